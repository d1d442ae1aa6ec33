"""Recalibration: the norms behind the first step, and they alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small import batches, fresh
from torch import nn
from torch.optim.swa_utils import update_bn

from htaf import HTAF, harden, recalibrate


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
    assert report.notes == ("1 of 2 batch norms",)
    assert all(torch.equal(v, before[k]) for k, v in exact.state_dict().items()), "the input is not changed"
    assert not any(m.training for m in found.modules())


def test_without_a_step_all_norms_are_taken() -> None:
    plain = fresh(lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()))
    found: Any = recalibrate(plain, batches(20, 2, 8, 8))[0]
    with torch.no_grad():
        y = torch.cat([found[:2](x) for x in batches(20, 2, 8, 8)])
    torch.testing.assert_close(y.mean((0, 2, 3)), found[1].bias, atol=1e-3, rtol=1e-3)


def test_batches_can_be_gone_through_again() -> None:
    with pytest.raises(TypeError, match="expected batches that can be gone through again"):
        recalibrate(fresh(network), iter(batches(4, 2, 8, 8)))
