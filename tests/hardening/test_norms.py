"""Recalibration: the norms behind the first step, and they alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small import batches, fresh
from torch import nn
from torch.optim.swa_utils import update_bn

from htaf import HTAF, Heaviside, harden, recalibrate


def network() -> nn.Sequential:
    one = (nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), HTAF(1.0, 5.0), nn.Dropout(0.5))
    return nn.Sequential(*one, nn.Conv2d(4, 3, 3, bias=False), nn.BatchNorm2d(3, momentum=0.3), HTAF(1.0, 5.0))


def test_statistics_are_those_of_update_bn_without_dropout() -> None:
    exact = harden(fresh(network))
    some = batches(20, 2, 8, 8, count=3)
    before = {k: v.clone() for k, v in exact.state_dict().items()}
    found: Any
    found, report = recalibrate(exact, some)
    wanted: Any = harden(fresh(network))
    wanted[3] = nn.Identity()
    wanted[1].momentum = 0.0  # the one in front of the first step stays
    first = wanted[1]
    wanted[1] = nn.Sequential()  # in eval mode, so that `update_bn` does not see it
    x = [first.eval()(wanted[0](x)) for x in some]
    with torch.no_grad():
        update_bn(x, nn.Sequential(*list(wanted)[2:]))
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(found[5], name), getattr(wanted[5], name))
        assert torch.equal(getattr(found[1], name), before[f"1.{name}"])
    assert found[5].momentum == 0.3
    assert report.notes == (
        "statistics of 1 of 2 batch norms taken anew; the others lie in front of the first exact step, or do not run",
    )
    assert all(torch.equal(v, before[k]) for k, v in exact.state_dict().items()), "the input is not changed"
    assert not any(m.training for m in found.modules())


def test_without_a_step_all_norms_are_taken() -> None:
    plain = fresh(lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()))
    found: Any = recalibrate(plain, batches(20, 2, 8, 8))[0]
    with torch.no_grad():
        y = torch.cat([found[:2](x) for x in batches(20, 2, 8, 8)])
    torch.testing.assert_close(y.mean((0, 2, 3)), found[1].bias, atol=1e-3, rtol=1e-3)


def weighted(net: Any, norm: int, some: list[Any]) -> tuple[Any, Any]:
    """Mean and variance behind the layers in front of a norm, each batch by its values a channel."""
    mean = var = total = 0.0
    with torch.no_grad():
        for x in some:
            y = net[:norm](x).movedim(1, 0).flatten(1)
            mean, var = mean + y.mean(1) * y.shape[1], var + y.var(1) * y.shape[1]
            total += y.shape[1]
    return mean / total, var / total


def test_batches_count_by_their_rows() -> None:
    exact = harden(fresh(network))
    sizes = (40, 25, 3)
    some = [x + i for i, x in enumerate(torch.cat(batches(sum(sizes), 2, 8, 8, count=1)).split(sizes))]
    found: Any = recalibrate(exact, some)[0]
    mean, var = weighted(found, 4 + 1, some)
    torch.testing.assert_close(found[5].running_mean, mean)
    torch.testing.assert_close(found[5].running_var, var)


def table() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), HTAF(1.0, 5.0), nn.Linear(6, 5), nn.BatchNorm1d(5))


def test_a_single_row_is_left_out() -> None:
    exact = harden(fresh(table))
    parts = batches(51, 4, count=1)[0].split((30, 1, 20))
    for wrap in (lambda x: x, lambda x: (x, torch.zeros(len(x)))):
        found: Any = recalibrate(exact, [wrap(part) for part in parts])[0]
        mean, var = weighted(found, 3, [parts[0], parts[2]])
        torch.testing.assert_close(found[3].running_mean, mean)
        torch.testing.assert_close(found[3].running_var, var)


def test_single_images_of_several_sizes_are_batches() -> None:
    exact = harden(
        fresh(lambda: nn.Sequential(nn.Conv2d(2, 3, 1), HTAF(1.0, 5.0), nn.Conv2d(3, 5, 1), nn.BatchNorm2d(5)))
    )
    images = [torch.randn(1, 2, side, side) for side in (4, 6, 3)]
    found: Any = recalibrate(exact, images)[0]
    values = torch.cat([exact[:3](x).flatten(2) for x in images], 2)[0]
    torch.testing.assert_close(found[3].running_mean, values.mean(1))


def test_one_row_alone_has_no_variance() -> None:
    with pytest.raises(ValueError, match="expected batches with two values a channel or more"):
        recalibrate(harden(fresh(table)), batches(1, 4, count=1))


def test_batches_can_be_gone_through_again() -> None:
    with pytest.raises(TypeError, match="expected batches that can be gone through again"):
        recalibrate(fresh(network), iter(batches(4, 2, 8, 8)))


def test_norms_in_front_of_the_first_step_where_the_weights_before_them_are_others() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), Heaviside(), nn.Linear(8, 2))
    x = torch.randn(500, 4)
    kept, _ = recalibrate(net, [(x, None)])
    made, _ = recalibrate(net, [(x, None)], everywhere=True)
    assert torch.equal(kept[1].running_var, torch.ones(8))
    assert torch.allclose(made[1].running_var, net[0](x).var(0), rtol=1e-4)
