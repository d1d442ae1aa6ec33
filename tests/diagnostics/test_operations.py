"""Operations against counts made by hand and figures that were published."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from torch import Tensor, nn

from htaf.activations import HTAF, Heaviside
from htaf.binary import BinaryLinear
from htaf.convert import harden
from htaf.diagnostics import HOROWITZ_45NM, Energy, operations, totals
from htaf.models.bireal import BiRealNet
from htaf.spiking.neurons import IF


class Lambda(nn.Module):
    """Feeds fixed inputs to a layer, one call each."""

    def __init__(self, layer: nn.Module, *inputs: Tensor) -> None:
        super().__init__()
        self.layer, self.inputs = layer, inputs

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.layer(each) for each in self.inputs]).sum(0)


def binary(layer: nn.Module) -> nn.Module:
    layer.has_binary_weights = True  # pyright: ignore[reportArgumentType]
    return layer


def one(layer: nn.Module, *inputs: Tensor, samples: int = 1):
    (found,) = operations(Lambda(layer, *inputs), torch.zeros(samples, 1))
    return found


REAL = torch.tensor([[0.5, -1.5, 2.0, 0.25]])
BITS = torch.tensor([[0.0, 1.0, 1.0, 1.0]])
SIGNS = torch.tensor([[-1.0, 1.0, 1.0, -1.0]])
COUNTS = torch.tensor([[0.0, 3.0, 1.0, 2.0]])


@pytest.mark.parametrize(
    ("inputs", "kind", "macs", "adds", "bits"),
    [
        # real weights 4 -> 3: 12 pairs; each one bit meets 3 weights, each count as many times as it says
        (REAL, "real", 12, 0, 0),
        (BITS, "binary", 0, 3 * 3, 0),
        (SIGNS, "binary", 0, 12, 0),
        (COUNTS, "counts", 0, (3 + 1 + 2) * 3, 0),
    ],
)
def test_linear_with_real_weights(inputs: Tensor, kind: str, macs: int, adds: int, bits: int) -> None:
    layer = one(nn.Linear(4, 3), inputs)
    assert (layer.path, layer.kind, layer.calls, layer.inputs) == ("layer", "Linear", 1, kind)
    assert (layer.multiply_adds, layer.accumulations, layer.binary_operations) == (macs, adds, bits)
    assert layer.dense == 12
    assert layer.joules == pytest.approx(4.6e-12 * macs + 0.9e-12 * adds)


@pytest.mark.parametrize(
    ("inputs", "adds", "bits"), [(REAL, 12, 0), (BITS, 0, 12), (SIGNS, 0, 12), (COUNTS, (3 + 1 + 2) * 3, 0)]
)
def test_linear_with_binary_weights(inputs: Tensor, adds: int, bits: int) -> None:
    """Weights of -1 and +1 need no multiplication."""
    layer = one(binary(nn.Linear(4, 3)), inputs)
    assert layer.binary_weights
    assert (layer.multiply_adds, layer.accumulations, layer.binary_operations) == (0, adds, bits)
    assert layer.joules == pytest.approx(0.9e-12 * adds + 0.03e-12 * bits)


def test_a_predicate_says_which_weights_are_binary() -> None:
    model = nn.Sequential(nn.Linear(4, 3), Heaviside(), nn.Linear(3, 2))
    first, second = operations(model, REAL, binary_weights=lambda module: module is model[2])
    assert (first.binary_weights, second.binary_weights) == (False, True)
    assert second.binary_operations == 6


def test_one_value_that_is_not_binary_makes_the_input_real() -> None:
    assert one(nn.Linear(4, 3), BITS + torch.tensor([0, 0, 0, 1e-3])).inputs == "real"
    assert one(nn.Linear(4, 3), torch.tensor([[0.0, 255.0, 3.0, 1.0]])).inputs == "real"  # raw pixels are no spikes
    assert one(nn.Linear(4, 3), torch.tensor([[0.0, -1.0, 1.0, 1.0]])).inputs == "counts"  # neither bits nor signs


def test_convolutions_by_hand() -> None:
    # 5 x 5, kernel 3, stride 2, padding 1: 3 x 3 outputs, each 4 channels x (6 / 2) inputs x 9
    layer = one(nn.Conv2d(6, 4, 3, 2, 1, groups=2), torch.randn(2, 6, 5, 5), samples=2)
    assert layer.multiply_adds == 9 * 4 * 3 * 9
    # 7 x 2 inputs, each meets 5 channels x 4 taps
    assert one(nn.ConvTranspose1d(2, 5, 4, stride=2), torch.randn(1, 2, 7)).multiply_adds == 7 * 2 * 5 * 4
    assert one(nn.Conv1d(2, 5, 4), torch.randn(1, 2, 7)).multiply_adds == 4 * 5 * 2 * 4
    assert one(nn.Conv3d(1, 2, 2), torch.randn(1, 1, 3, 3, 3)).multiply_adds == 8 * 2 * 8
    assert one(nn.Conv2d(6, 4, 3), torch.randn(6, 5, 5)).multiply_adds == 9 * 4 * 6 * 9  # without a batch


def test_steps_add_up_and_each_has_its_own_rate() -> None:
    layer = one(nn.Linear(4, 3), BITS, torch.zeros_like(BITS), torch.ones_like(BITS))
    assert (layer.calls, layer.dense, layer.accumulations) == (3, 36, 3 * (3 + 0 + 4))
    assert layer.rate == pytest.approx(7 / 12)
    for inputs, kind in (((BITS, COUNTS), "counts"), ((BITS, REAL), "real"), ((BITS, SIGNS), "counts")):
        assert one(nn.Linear(4, 3), *inputs).inputs == one(nn.Linear(4, 3), *inputs[::-1]).inputs == kind


def test_counts_are_of_one_sample() -> None:
    bits = torch.tensor([[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    layer = one(nn.Linear(4, 3), bits, samples=2)
    assert (layer.dense, layer.accumulations) == (12, 9)  # the mean of 6 and 12


def test_a_spiking_network() -> None:
    """0.4 a step fires in steps 3 and 6, whatever the weights before: fan-out 5, and 10 multiply-adds a step."""
    first = nn.Linear(2, 1)
    with torch.no_grad():
        first.weight.zero_()
        first.bias.fill_(0.4)
    model = nn.Sequential(first, IF(Heaviside()), nn.Linear(1, 5))

    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x.expand(6, *x.shape)).mean(0)

    before, after = operations(Steps(), torch.randn(3, 2))
    assert (before.inputs, before.multiply_adds) == ("real", 6 * 2)
    assert (after.inputs, after.rate, after.dense) == ("binary", pytest.approx(2 / 6), 6 * 5)
    assert after.accumulations == pytest.approx(2 * 5)


def test_totals_and_json() -> None:
    model = nn.Sequential(nn.Linear(4, 64), Heaviside(), binary(nn.Linear(64, 2)), Heaviside(), nn.Linear(2, 3))
    layers = operations(model, REAL, energy=Energy(3.0, 2.0, 1.0))
    total = totals(layers)
    assert (total.multiply_adds, total.binary_operations) == (256, 128)
    assert total.accumulations == layers[2].accumulations
    assert total.operations == 256 + total.accumulations + 2
    assert total.joules == 3 * 256 + 2 * total.accumulations + 128
    assert total.dense == 256 + 128 + 6
    text = json.dumps([dataclasses.asdict(layer) for layer in layers])
    assert [entry["path"] for entry in json.loads(text)] == ["0", "2", "4"]
    assert (HOROWITZ_45NM.mac, HOROWITZ_45NM.accumulate) == (3.7e-12 + 0.9e-12, 0.9e-12)


@pytest.mark.parametrize(("depth", "published"), [(18, 1.814e9), (50, 4.089e9)])
def test_resnets_as_torchvision_publishes(depth: int, published: float) -> None:
    """GFLOPS of its model pages (`_ops` of the weights), which count a multiply-add once."""
    models = pytest.importorskip("torchvision.models")
    with torch.device("meta"):
        meta = getattr(models, f"resnet{depth}")(weights=None)
    dense = count_shapes(meta)
    assert dense == pytest.approx(published, rel=1e-3)
    small = getattr(models, f"resnet{depth}")(weights=None)
    layers = operations(small, torch.randn(1, 3, 64, 64))
    assert totals(layers).multiply_adds == count_shapes(meta, 64)


def count_shapes(model: nn.Module, size: int = 224) -> int:
    """Multiply-adds from shapes alone, on the meta device."""
    total = 0

    def see(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        shape = module.weight.shape
        total += output.numel() * (shape[1:].numel())

    handles = [m.register_forward_hook(see) for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    model.eval()(torch.empty(1, 3, size, size, device="meta"))
    for handle in handles:
        handle.remove()
    return total


def test_the_shape_of_bi_real_net_18() -> None:
    """Its 16 convolutions of 3 x 3 are binary: 1.68e9 binary and 1.39e8 real operations, 1.63e8 in all (ReActNet's
    table 1, arXiv:2003.03488; batch norm is in the published ones)."""
    models = pytest.importorskip("torchvision.models")
    model = models.resnet18(weights=None)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.ReLU):
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, Heaviside())

    def is_binary(module: nn.Module) -> bool:
        return isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3)

    layers = operations(model, torch.randn(1, 3, 224, 224), binary_weights=is_binary)
    total = totals(layers)
    assert total.binary_operations == pytest.approx(1.68e9, rel=5e-3)
    real = sum(layer.dense for layer in layers if not layer.binary_weights)
    assert real == pytest.approx(1.39e8, rel=1e-2)
    assert real + total.binary_operations / 64 == pytest.approx(1.63e8, rel=1e-2)


def test_our_binary_layers_are_known() -> None:
    """All 16 convolutions of a hardened Bi-Real Net count as binary, by themselves."""
    model = harden(BiRealNet(18, 10, width=4, stem="cifar").eval())
    layers = operations(model, torch.randn(1, 3, 32, 32))
    assert sum(layer.binary_operations > 0 for layer in layers) == 16
    assert all(layer.accumulations == 0 for layer in layers if layer.binary_operations)
    (linear,) = operations(BinaryLinear(4, 3), SIGNS)
    assert (linear.binary_operations, linear.accumulations) == (12, 0)


def test_smooth_networks_have_real_inputs() -> None:
    model = nn.Sequential(nn.Linear(4, 3), HTAF(), nn.Linear(3, 2))
    assert [layer.inputs for layer in operations(model, REAL)] == ["real", "real"]


def test_the_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(), nn.Linear(3, 2))
    model.train()
    model[2].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    operations(model, torch.randn(5, 4))
    assert [m.training for m in model] == [True, True, False, True]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks for m in model.modules())


def test_what_is_not_counted_is_named() -> None:
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4), nn.GRU(4, 3))
    with pytest.warns(UserWarning, match=r"not counted: 2 \(GRU\)$"):
        layers = operations(model, torch.tensor([[1, 2, 3]]))
    assert [layer.path for layer in layers] == ["1"]


def test_errors() -> None:
    with pytest.raises(ValueError, match="that runs in Sequential, got none"):
        operations(nn.Sequential(nn.ReLU()), REAL)
    with pytest.raises(ValueError, match="at least one sample"):
        operations(nn.Linear(4, 3), torch.empty(0, 4))
