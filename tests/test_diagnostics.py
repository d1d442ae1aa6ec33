"""Layer statistics against figures worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from htaf.activations import HTAF, Heaviside
from htaf.convert import harden
from htaf.diagnostics import layer_statistics

X = torch.tensor([[-3.0, 0.01], [1.0, 0.5], [-2.0, 4.0], [0.0, 2.0]])


def one_layer(**options: bool) -> nn.Sequential:
    return nn.Sequential(HTAF(2.0, 11.0, **options))


def test_by_hand() -> None:
    model = one_layer()
    (layer,) = layer_statistics(model, harden(model), [X])
    assert (layer.path, layer.units) == ("0", 2)
    assert layer.mean == pytest.approx((-3 + 0.01 + 1 + 0.5 - 2 + 4 + 0 + 2) / 8, abs=1e-6)
    assert layer.std == pytest.approx(X.double().std(correction=0).item(), abs=1e-6)
    assert layer.binarity == 6 / 8  # 0.01 and 0 are in the middle of the curve
    assert layer.flip_rate == 0.0  # one layer: both networks see the same pre-activations
    assert layer.dead == 0.5  # the second unit is on for every row, the first is not


def test_flips_of_a_second_layer() -> None:
    """Smooth 0.5 and exact 1 at x = 0 stand on two sides of the second layer's threshold 0.75."""
    second = nn.Linear(1, 1)
    with torch.no_grad():
        second.weight.fill_(1.0)
        second.bias.fill_(-0.75)
    model = nn.Sequential(HTAF(2.0, 11.0), second, HTAF(2.0, 11.0))
    layers = layer_statistics(model, harden(model), [torch.tensor([[0.0], [5.0], [-5.0], [-4.0]])])
    assert [layer.path for layer in layers] == ["0", "2"]
    assert [layer.flip_rate for layer in layers] == [0.0, 0.25]
    smooth_only = layer_statistics(model, None, [torch.tensor([[0.0], [5.0], [-5.0], [-4.0]])])
    assert [layer.flip_rate for layer in smooth_only] == [None, None]


def test_dead_counts_bits_of_the_exact_network() -> None:
    second = nn.Linear(1, 1)
    with torch.no_grad():
        second.weight.fill_(1.0)
        second.bias.fill_(-0.75)
    model = nn.Sequential(HTAF(2.0, 11.0), second, HTAF(2.0, 11.0))
    rows = [torch.tensor([[0.0], [5.0]])]  # exact: 1 and 1, always on; smooth: 0.5 and 1, off and on
    assert layer_statistics(model, harden(model), rows)[1].dead == 1.0
    assert layer_statistics(model, None, rows)[1].dead == 0.0


def test_many_batches_are_one() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), HTAF(), nn.Linear(5, 4), HTAF(), nn.Linear(4, 1))
    x = torch.randn(64, 3)
    (first, second), parts = (layer_statistics(model, harden(model), batches) for batches in ([x], x.split(7)))
    for whole, part in zip((first, second), parts, strict=True):
        for name in ("units", "binarity", "flip_rate", "dead"):
            assert getattr(part, name) == getattr(whole, name)
        assert part.mean == pytest.approx(whole.mean, rel=1e-6)
        assert part.std == pytest.approx(whole.std, rel=1e-6)
    assert second.flip_rate is not None
    assert 0 < second.flip_rate < 1  # otherwise the comparison above says little


def test_bipolar_outputs_are_mapped_to_0_and_1() -> None:
    model = one_layer(bipolar=True)
    (layer,) = layer_statistics(model, harden(model), [X])
    assert layer.binarity == 6 / 8


def test_a_real_activation_has_no_binarity() -> None:
    (layer,) = layer_statistics(nn.Sequential(nn.ReLU()), None, [X])
    assert (layer.binarity, layer.flip_rate, layer.dead) == (None, None, 0.5)


def test_exact_modules_are_fully_binary() -> None:
    (layer,) = layer_statistics(nn.Sequential(Heaviside()), None, [X])
    assert layer.binarity == 1.0


@pytest.mark.parametrize(("shape", "units"), [((4, 6, 3, 3), 6), ((4, 5, 7), 7), ((4, 9), 9)])
def test_units_by_shape(shape: tuple[int, ...], units: int) -> None:
    (layer,) = layer_statistics(one_layer(), None, [torch.randn(*shape)])
    assert layer.units == units


def test_hooks_go_and_training_flags_come_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), HTAF())
    model.train()
    model[0].eval()
    exact = harden(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    flags = [[m.training for m in net.modules()] for net in (model, exact)]
    layer_statistics(model, exact, [X])
    assert [[m.training for m in net.modules()] for net in (model, exact)] == flags
    assert not any(m._forward_hooks for net in (model, exact) for m in net.modules())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())  # eval mode: no update


def test_hooks_go_after_an_error() -> None:
    model = one_layer().train()

    def broken():
        yield X
        raise RuntimeError("data ended early")

    with pytest.raises(RuntimeError, match="data ended early"):
        layer_statistics(model, None, broken())
    assert model.training
    assert not model[0]._forward_hooks


@pytest.mark.parametrize(("model", "batches"), [(nn.Sequential(HTAF()), []), (nn.Sequential(nn.Linear(2, 1)), [X])])
def test_nothing_to_measure(model: nn.Module, batches: list[torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="found none"):
        layer_statistics(model, None, batches)
