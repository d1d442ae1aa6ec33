"""What surrounds a packed model, and sizes that nobody means, change nothing and overrun nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import htaf
from htaf.core.kernels import native
from htaf.core.kernels.layers import Epilogue, Geometry, row_bytes
from htaf.program.packed import PackedError, PackedModel, pack
from htaf.program.packed.instructions import Call, Layer, Machine, Pool, Threshold, kernels
from htaf.program.packed.program import Input, Program, check
from htaf.program.packed.report import Report


class Both(nn.Module):
    """Levels as an output, so that bits are unpacked, and a layer that stays in float."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.step, self.last = nn.Linear(8, 65), htaf.Heaviside(), nn.Linear(65, 9)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        bits = self.step(self.first(x))
        other = 0.25 + 0.5 * self.step(self.first(x))
        return self.last(bits), bits * 1.0, other


@pytest.fixture(scope="module")
def packed() -> PackedModel:
    torch.manual_seed(0)
    return pack(Both().eval(), torch.randn(4, 8))


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


AROUND: dict[str, Callable[[], AbstractContextManager]] = {
    "bfloat16": lambda: _default(torch.bfloat16),
    "float64": lambda: _default(torch.float64),
    "meta": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("around", AROUND)
def test_defaults_of_pytorch_change_nothing(packed: PackedModel, around: str) -> None:
    x = torch.randn(64, 8)
    wanted = packed(x)
    with AROUND[around]():
        fresh = PackedModel(packed.program, packed.report)  # its weights prepared under them, too
        found = [fresh(x), packed(x)]
    for outputs in found:
        for a, b in zip(outputs, wanted, strict=True):
            assert a.dtype == torch.float32
            assert a.is_cpu
            assert torch.equal(a, b)


def _program(g: Geometry, image: tuple[int, int] = (2, 2)) -> Program:
    c = g.channels
    ends = {"lo": torch.zeros(c), "hi": torch.ones(c)}
    weight = torch.zeros(g.outputs, *g.kernel, row_bytes(c // g.groups), dtype=torch.uint8)
    steps = (
        Threshold("a", 0, 1, "lo", "hi", 1),
        Layer("b", "binary", "image", g, "w", True, 1, None, None, None, None, None, 2, None),
    )
    return Program((Input((None, c, *image)),), steps, 2, {**ends, "w": weight})


FAR = {
    "wraps to nothing": Geometry(2**10, 1, (1, 1), (2**24, 2**24), (2**24 - 1, 2**24 - 1)),
    "stride": Geometry(64, 1, stride=(2**24, 1)),
    "dilation": Geometry(64, 1, dilation=(1, 2**17)),
    "a large border": Geometry(64, 1, (1, 1), (2**16, 2**16), (2**15, 2**15)),
}


@pytest.mark.parametrize("name", FAR)
def test_sizes_that_kernels_would_allocate_are_bounded(name: str) -> None:
    with pytest.raises(PackedError, match="expected"):
        check(_program(FAR[name]))


def test_values_are_bounded_together() -> None:
    one = _program(Geometry(64, 64, padding=(500, 500)))
    check(one)
    layer = one.instructions[1]
    assert isinstance(layer, Layer)
    many = [replace(layer, name=str(i), y=2 + i) for i in range(3000)]
    with pytest.raises(PackedError, match="together"):
        check(Program(one.inputs, (one.instructions[0], *many), 2, one.tensors))


def test_values_are_bounded_for_the_batch_that_comes() -> None:
    grown = Call("a", "expand.default", [{"v": 0}, [{"s": [2**20, 1, 0]}, {"s": [1, 1, 0]}, 1]], {}, 1)
    program = Program((Input((None, 1)),), (grown, Call("b", "mean.default", [{"v": 1}], {}, 2)), 2, {})
    model = PackedModel(program, Report((), 0, 0))
    assert model(torch.ones(3, 1)) == 1
    with pytest.raises(PackedError, match=r"at most [\d,]+ bytes, got \[.*batch of 300: give fewer rows"):
        model(torch.ones(300, 1))


def test_values_may_grow_with_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer of 4,096 outputs makes 1.6 GB of 100,000 rows, which is no more than anybody may mean."""
    torch.manual_seed(0)
    model = pack(nn.Sequential(nn.Linear(2, 4096), htaf.Heaviside(), nn.Linear(4096, 2)), torch.randn(4, 2))
    values = check(model.program, 100_000)
    assert max(y.numel() * y.element_size() for y in values) == 100_000 * 4096 * 4
    monkeypatch.setattr("htaf._ground.errors._memory", lambda: 1.5e9)
    with pytest.raises(PackedError, match=r"a batch of 100000 needs 1.7 GB of memory, .* has 1.5 GB: give fewer rows"):
        model(torch.zeros(1, 2).expand(100_000, 2))


def test_the_time_of_a_program_is_bounded() -> None:
    """Sums of 2^27 copies of the input: each is small, and takes a moment."""
    wide = Call("wide", "expand.default", [{"v": 0}, [2**26, 2, 1]], {}, 1)
    sums = [Call(str(i), "sum.default", [{"v": 1}], {}, 2 + i) for i in range(20)]
    with pytest.raises(PackedError, match="read and made together"):
        check(Program((Input((None, 1)),), (wide, *sums), 2, {}))


@pytest.mark.parametrize("weight", [-128, 127])
def test_integers_stay_exact(weight: int) -> None:
    taps = 1100  # of 127, over 7 planes of spikes: beyond 2^24
    g = Geometry(1, 2, (1, taps if weight > 0 else 3))
    layer = Layer("l", "integer", "image", g, "w", False, 0, None, None, None, None, None, 1, None, planes=7)
    weights = {"w": torch.full((2, 1, *g.kernel), weight, dtype=torch.int8)}
    machine = Machine(weights, *kernels())
    with pytest.raises(ValueError, match="got -128" if weight < 0 else "expected sums below"):
        layer.prepare(machine)


def test_windows_larger_than_images_are_refused() -> None:
    one = _program(Geometry(64, 64))
    pool = Pool("p", 1, (2**20, 2**20), (1, 1), (2**19, 2**19), 2)
    with pytest.raises(PackedError, match="padding"):
        check(Program(one.inputs, (one.instructions[0], pool), 2, one.tensors))


@pytest.mark.skipif(not native.available(), reason="needs the compiled extension")
def test_the_kernels_refuse_sizes_that_wrap_around() -> None:
    """Sizes alone are looked at, so that the addresses do not matter."""
    far = 2**24
    kernels = native.extension()
    calls = ((kernels.binary_convolution, (0, 0, True, 0)), (kernels.table_forward, (0,) * 9))
    for kernel, weights in calls:
        for sizes in (
            ((1, 2, 2, 2**17, 1), (1, 1), (far, far), (far - 1, far - 1), (1, 1), 1),
            ((1, 2, 2, 64, 1), (1, 1), (0, 1), (0, 0), (1, 1), 1),
            ((1, 2, 2, 64, 1), (4, 4), (1, 1), (0, 0), (1, 1), 1),
            ((1, 2, 2, 64, 1), (1, 1), (1, 1), (2**62, 0), (1, 1), 1),
        ):
            with pytest.raises(ValueError, match="expected"):
                kernel(sizes, 0, weights, (0,) * 9, 1)


@pytest.mark.skipif(not native.available(), reason="needs the compiled extension")
def test_a_residual_must_lie_on_the_cpu() -> None:
    from htaf.core.kernels.binary_convolution import cpu

    g = Geometry(64, 64)
    layer = cpu.bind(cpu.prepare(torch.zeros(64, 1, 1, 8, dtype=torch.uint8), g, bipolar=True), g, Epilogue())
    with pytest.raises(TypeError, match="on meta"):
        layer(torch.zeros(1, 2, 2, 8, dtype=torch.uint8), torch.empty(1, 2, 2, 64, device="meta"))
