"""Layer statistics against figures worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from htaf.core.activations import HTAF, Heaviside
from htaf.transform.convert import harden, replace
from htaf.transform.diagnostics import layer_statistics
from htaf.transform.spiking.neurons import IF

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
    assert layer.firing_rate == 6 / 8  # 0 counts as on


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
    hardened, smooth = layer_statistics(model, harden(model), rows)[1], layer_statistics(model, None, rows)[1]
    assert (hardened.dead, hardened.firing_rate) == (1.0, 1.0)
    assert (smooth.dead, smooth.firing_rate) == (0.0, 0.5)


def test_many_batches_are_one() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), HTAF(), nn.Linear(5, 4), HTAF(), nn.Linear(4, 1))
    x = torch.randn(64, 3)
    (first, second), parts = (layer_statistics(model, harden(model), batches) for batches in ([x], x.split(7)))
    for whole, part in zip((first, second), parts, strict=True):
        for name in ("units", "binarity", "flip_rate", "dead", "firing_rate"):
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
    assert (layer.binarity, layer.flip_rate, layer.dead, layer.firing_rate) == (None, None, 0.5, 0.75)


@pytest.mark.parametrize("act", [nn.ReLU(inplace=True), replace(nn.ReLU(inplace=True), HTAF, where="*")])
def test_the_input_is_read_before_it_is_overwritten(act: nn.Module) -> None:
    (layer,) = layer_statistics(nn.Sequential(nn.Identity(), act), None, [X.clone()])
    assert layer.mean == pytest.approx(X.mean().item(), abs=1e-6)
    assert (layer.dead, layer.firing_rate) == (0.5, 0.75)


def test_time_steps_of_a_spiking_neuron() -> None:
    """0.4 a step reaches 1 in the third and the sixth step; 0.6 in every second; 0 never."""
    neuron = IF(Heaviside())
    x = torch.tensor([[0.4, 0.6, 0.0]]).expand(6, 1, 3)
    (layer,) = layer_statistics(neuron, None, [x])
    assert layer.firing_rate == pytest.approx((2 + 3 + 0) / 18)
    assert (layer.path, layer.units, layer.dead) == ("spike", 3, pytest.approx(1 / 3))


def test_networks_that_call_a_layer_differently_often() -> None:
    class Calls(nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.act, self.number = HTAF(), number

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([self.act(x) for _ in range(self.number)]).sum(0)

    for smooth, exact in ((2, 1), (1, 2)):
        with pytest.raises(ValueError, match="as often as the smooth one"):
            layer_statistics(Calls(smooth), Calls(exact), [X])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_more_values_than_fit_one_piece(dtype: torch.dtype, memory: torch.memory_format) -> None:
    x = (100 + torch.randn(5, 3, 80, 90)).to(dtype).to(memory_format=memory)
    (layer,) = layer_statistics(one_layer(), None, [x])
    assert layer.mean == pytest.approx(x.double().mean().item(), rel=1e-12)
    assert layer.std == pytest.approx(x.double().std(correction=0).item(), rel=1e-6)
    assert (layer.units, layer.binarity, layer.firing_rate) == (3, 1.0, 1.0)


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
    assert not any(m._forward_hooks or m._forward_pre_hooks for net in (model, exact) for m in net.modules())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())  # eval mode: no update


@pytest.mark.parametrize(("model", "batches"), [(nn.Sequential(HTAF()), []), (nn.Sequential(nn.Linear(2, 1)), [X])])
def test_nothing_to_measure(model: nn.Module, batches: list[torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="found none"):
        layer_statistics(model, None, batches)
