"""Packed networks with weights on a grid compute exactly what their hardened models do, on every instruction set."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kernels.instruction_sets import EMULATED, INSTRUCTION_SETS, threads, using
from torch import Tensor, nn

import htaf
from htaf.core.kernels import native
from htaf.models.mlp import MLP
from htaf.models.sew_resnet import SEWResNet
from htaf.models.whitened import WhitenedConvNet
from htaf.models.wide_resnet import WideResNet
from htaf.program.packed import PackedError, PackedModel, Traced, instructions, load, pack, save, trace, verify
from htaf.program.packed.instructions import Layer, from_nibbles, to_nibbles
from htaf.program.packed.lowering import integers
from htaf.transform.grid import Bits, integers_and_steps
from htaf.transform.spiking.neurons import IF, LIF
from quick import slow_but

ACT = partial(htaf.HTAF, 2.0, 11.0)
SIGN = partial(htaf.HTAF, 2.0, 11.0, bipolar=True)
Make = Callable[[], nn.Module]


def drawn(make: Make, shape: tuple[int, ...], bits: Bits, seed: int) -> tuple[nn.Module, Tensor]:
    """A hardened network whose norms have seen images, and images."""
    torch.manual_seed(seed)
    net, x = make(), torch.randn(6, *shape)
    grid = htaf.on_grid(net, x, bits=bits).train()
    with torch.no_grad():
        for _ in range(3):
            grid(x)
        for module in grid.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.weight.add_(0.3 * torch.randn_like(module.weight))
                module.bias.add_(0.3 * torch.randn_like(module.bias))
    return htaf.harden(grid).eval(), x


def same(packed: PackedModel, exact: nn.Module, traced: Traced, x: Tensor, wander: float) -> None:
    """Every bit of every layer, in a free run too; outputs but for the rounding of means."""
    with torch.no_grad():
        expected = exact(x)
    found = verify(packed, traced, x)
    assert found.ok
    assert found.count == 0
    first = packed(x)
    assert float((first - expected).abs().max()) <= wander
    assert torch.equal(packed(x), first)  # by the plan that the first call has left
    assert torch.equal(packed(x[2:3]).argmax(-1), expected[2:3].argmax(-1))


NETS: dict[str, tuple[Make, tuple[int, ...], float]] = {
    "wrn": (lambda: WideResNet(10, 2, 5, ACT), (3, 16, 16), 0.0),
    "whitened": (lambda: WhitenedConvNet(5, ACT, widths=(8, 70)), (3, 14, 14), 0.0),
    "mlp without norms": (lambda: MLP(7, 3, (70, 20), ACT), (7,), 0.0),
    "thermometer": (lambda: MLP(7, 3, (70, 20), ACT, True, thresholds=[3] * 7), (7,), 0.0),
    "binary": (lambda: WhitenedConvNet(5, SIGN, widths=(8, 70), conv=htaf.BinaryConv2d), (3, 14, 14), 0.0),
    "sew": (lambda: SEWResNet(18, 5, lambda: IF(ACT()), steps=2, width=8, stem="cifar"), (3, 8, 8), 0.0),
    "sew lif": (lambda: SEWResNet(18, 5, lambda: LIF(ACT()), steps=3, width=8, stem="imagenet"), (3, 16, 16), 0.0),
}


CASES = [
    ("wrn", 8),
    ("whitened", 4),
    ("binary", 8),
    ("thermometer", 8),
    ("mlp without norms", 4),
    ("sew", 8),
    ("sew lif", 4),
]


COUNTS = {"wrn": 16, "whitened": 9, "binary": 9, "sew": 2, "sew lif": 3}  # what the last mean divides by


@pytest.mark.parametrize("name", NETS)
def test_outputs_are_integers_times_one_unit(name: str) -> None:
    """Of all outputs together, so that comparing integers is comparing outputs; rounded to float32 once."""
    make, shape, _ = NETS[name]
    exact, x = drawn(make, shape, 8, 5)
    head: Any = exact.get_submodule("fc" if name.startswith("sew") else "head")
    unit = float(integers_and_steps(head.weight, head.bits, shared=True)[1][0]) / COUNTS.get(name, 1)
    with torch.no_grad():
        y = exact(x).double()
    whole = (y / unit).round()
    assert float(whole.abs().max()) < 2**24
    assert bool((whole != 0).any())
    assert ((whole * unit).float() - y).abs().max() <= 1e-15


@pytest.mark.skipif(not INSTRUCTION_SETS, reason="no compiled kernels")
@pytest.mark.parametrize(("name", "bits"), slow_but(CASES, *CASES[:-2], rows=True))
def test_our_networks(name: str, bits: Bits, tmp_path: Path) -> None:
    make, shape, wander = NETS[name]
    exact, x = drawn(make, shape, bits, 0)
    traced = trace(exact, x)
    packed = pack(traced, x)
    layers = [i for i in packed.program.instructions if isinstance(i, Layer)]
    assert layers
    assert {layer.weights for layer in layers} == {"binary" if name == "binary" else "integer"}
    for name in INSTRUCTION_SETS[: None if bits == 8 else 1]:
        with using(name):
            same(PackedModel(packed.program, packed.report), exact, traced, x, wander)
    save(packed, tmp_path / "net.packed")
    assert torch.equal(load(tmp_path / "net.packed")(x), packed(x))


@pytest.mark.skipif(not EMULATED, reason="needs the kernels for AVX-512")
@pytest.mark.parametrize("name", ["wrn", "binary", "mlp without norms"])
def test_networks_on_tiles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By tiles wherever the faster of two kernels would be measured, on two threads."""
    make, shape, wander = NETS[name]
    exact, x = drawn(make, shape, 8, 1)
    traced = trace(exact, x)
    monkeypatch.setattr(instructions._ByPixels, "of", lambda self, *_: self.few())
    with using(*EMULATED), threads(2):
        same(pack(traced, x), exact, traced, x, wander)


@pytest.mark.parametrize("whole", slow_but([True, False], False))
def test_without_the_compiled_kernels(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "available", lambda: False)
    make, shape, wander = NETS["sew" if whole else "wrn"]
    exact, x = drawn(make, shape, 8, 3)
    traced = trace(exact, x)
    same(pack(traced, x), exact, traced, x, wander)


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Sequential, tuple[int, ...]]:
    """Convolutions with strides, dilation, padding, groups, bias and norms; poolings; a linear end."""
    channels, size = draw(st.integers(1, 4)), draw(st.integers(8, 12))
    layers: list[nn.Module] = []
    width, side = channels, size
    for i in range(draw(st.integers(2, 3))):
        groups = 1 if i == 0 else draw(st.sampled_from([1, 1, 2, width]))
        made = width if groups > 2 else 2 * draw(st.integers(1, 40))
        kernel, stride, padding = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(0, 1))
        if width % groups or side + 2 * padding < kernel:
            groups, kernel = 1, 1
        norm = draw(st.booleans())
        layers.append(nn.Conv2d(width, made, kernel, stride, padding, groups=groups, bias=not norm))
        side = (side + 2 * padding - kernel) // stride + 1
        if side >= 4 and draw(st.booleans()):
            layers.append(nn.MaxPool2d(2))
            side //= 2
        layers += [nn.BatchNorm2d(made)] if norm else []
        layers.append(ACT())
        width = made
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * side * side, 3)), (channels, size, size)


@pytest.mark.skipif(not INSTRUCTION_SETS, reason="no compiled kernels")
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(made=networks(), bits=st.sampled_from([8, 4]), seed=st.integers(0, 99))
def test_random_networks(made: tuple[nn.Sequential, tuple[int, ...]], bits: Bits, seed: int) -> None:
    net, shape = made
    exact, x = drawn(lambda: net, shape, bits, seed)
    traced = trace(exact, x)
    packed = pack(traced, x)
    for name in INSTRUCTION_SETS:
        with using(name):
            same(PackedModel(packed.program, packed.report), exact, traced, x, 1e-5)


def test_nibbles() -> None:
    for shape in ((3, 5, 3, 3), (2, 4, 1, 1)):
        weight = torch.randint(-7, 8, shape, dtype=torch.int8)
        packed = to_nibbles(weight)
        assert packed.shape == (shape[0], (weight[0].numel() + 1) // 2)
        assert torch.equal(from_nibbles(packed, shape), weight)


@pytest.mark.parametrize(("weight", "most", "fits"), [
    ([[1.0, -127.0]], 1, True), ([[0.5, 63.5]], 1, True), ([[1.0, 128.0]], 1, True), ([[1.0, 255.0]], 1, False),
    ([[0.0, 0.0]], 1, True), ([[0.1, 0.7]], 1, False), ([[1.0, torch.inf]], 1, False), ([[1.0, 2.0]], 128, False),
    ([[1.0, 2.0], [0.1, 0.3]], 1, False), ([[2.0**-140, 2.0**-141]], 1, True),
])  # fmt: skip
def test_weights_that_lie_on_a_grid_are_found(weight: list[list[float]], most: int, fits: bool) -> None:
    w = torch.tensor(weight)[:, :, None, None]
    found = integers(w, most)
    if not fits and weight != [[1.0, 128.0]]:
        assert found is None
    elif found is not None:
        k, step = found
        assert torch.equal(k.double() * step.view(-1, 1, 1, 1), w.double())
    else:
        assert weight == [[1.0, 128.0]]


def test_bad_files_are_refused(unchecked: None, tmp_path: Path) -> None:
    exact, x = drawn(NETS["thermometer"][0], (7,), 8, 0)
    packed = pack(exact, x)
    layer = next(step for step in packed.program.instructions if isinstance(step, Layer))
    tensors = dict(packed.program.tensors)
    for changed, words in (
        ({layer.weight: tensors[layer.weight].float()}, "expected torch.int8"),
        ({layer.weight: tensors[layer.weight][:, :5].contiguous()}, "expected torch.int8"),
        ({layer.weight: torch.full_like(tensors[layer.weight], -128)}, "got -128"),
    ):
        program = packed.program.__class__(
            packed.program.inputs, packed.program.instructions, packed.program.outputs, tensors | changed
        )
        save(_Unchecked(program, packed), tmp_path / "bad")  # pyright: ignore[reportArgumentType]
        with pytest.raises(PackedError, match=words):
            load(tmp_path / "bad")


class _Unchecked:
    """What `save` reads of a model."""

    def __init__(self, program: Any, packed: PackedModel) -> None:
        self.program, self.report, self.extra = program, packed.report, packed.extra


@pytest.mark.parametrize(("few", "many"), [(-1, 0), (16, 512), (10**6, 10**6)])
def test_products_and_tables_give_the_same_sums(few: int, many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From few pixels to many, by one kernel, by the faster, by the other: all as the hardened network."""
    monkeypatch.setattr(instructions, "FEW", few)
    monkeypatch.setattr(instructions, "MANY", many)
    exact, x = drawn(partial(WideResNet, 10, 1, 4, ACT), (3, 8, 8), 8, seed=3)
    packed = pack(exact, x)
    with torch.no_grad():
        for rows in (1, 2, 6):  # maps of 4, 16 and 64 pixels each
            for _ in range(2):  # the second by a plan
                assert float((packed(x[:rows]) - exact(x[:rows])).abs().max()) <= 1e-6
