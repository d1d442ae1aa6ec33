"""Convolution of bits with real weights: the integers of the reference on every instruction set, and float64 sums."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from instruction_sets import INSTRUCTION_SETS, threads
from torch import Tensor

from htaf.core.kernels import native
from htaf.core.kernels.layers import Epilogue, Geometry, row_bytes
from htaf.core.kernels.packed_maps import reference as maps
from htaf.core.kernels.table_convolution import cpu, reference
from htaf.core.kernels.table_convolution.reference import Kind, Weights

KINDS: list[Kind] = ["float32", "int16", "int8"]
compiled = pytest.mark.skipif(not INSTRUCTION_SETS, reason="no compiled kernels")


class Case(NamedTuple):
    """A layer and its images."""

    geometry: Geometry
    batch: int
    height: int
    width: int
    seed: int

    def weight(self) -> Tensor:
        g = self.geometry
        made = torch.Generator().manual_seed(self.seed)
        return torch.randn(g.outputs, g.channels // g.groups, *g.kernel, generator=made)

    def images(self) -> Tensor:
        """Booleans, some channels rarely set."""
        made = torch.Generator().manual_seed(self.seed + 1)
        shape = (self.batch, self.height, self.width, self.geometry.channels)
        return torch.rand(shape, generator=made) < torch.rand(shape[-1], generator=made)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    groups = draw(st.sampled_from([1, 1, 1, 2, 3, 5]))
    channels = groups * draw(st.one_of(st.integers(1, 20), st.sampled_from([31, 33, 63, 64, 65, 70, 128, 130])))
    outputs = groups * draw(st.one_of(st.integers(1, 9), st.sampled_from([16, 63, 64, 65])))
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    kernel, stride, dilation = draw(pair), draw(pair), draw(pair)
    padding = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    size = [
        draw(st.integers(max(1, d * (k - 1) + 1 - 2 * p), 20))
        for k, d, p in zip(kernel, dilation, padding, strict=True)
    ]
    geometry = Geometry(channels, outputs, kernel, stride, padding, dilation, groups)
    return Case(geometry, draw(st.integers(1, 3)), *size, draw(st.integers(0, 99)))


def sums(case: Case, weight: Tensor) -> Tensor:
    """In float64, by PyTorch alone."""
    g = case.geometry
    images = case.images().permute(0, 3, 1, 2).double()
    return torch.conv2d(images, weight.double(), None, g.stride, g.padding, g.dilation, g.groups).permute(0, 2, 3, 1)


def epilogue(case: Case, fields: str) -> Epilogue:
    """What is drawn is exact in float32: products by powers of two, halves added."""
    g = case.geometry
    made = torch.Generator().manual_seed(case.seed + 2)
    shape = (case.batch, *g.out_size(case.height, case.width), g.outputs)

    def drawn(*shape: int) -> Tensor:
        return torch.randint(-3, 4, shape, generator=made) / 2

    lower = drawn(g.outputs)
    lower = torch.where(lower > 1, -torch.inf, lower)
    return Epilogue(
        scale=2.0 ** drawn(g.outputs).round() * drawn(g.outputs).sign() if "s" in fields else None,
        shift=drawn(g.outputs) if "h" in fields else None,
        residual=drawn(*shape) if "r" in fields else None,
        lower=lower if "b" in fields else None,
        upper=torch.where(lower < 0, torch.inf, lower + 2) if "b" in fields else None,
        keep="y" in fields,
    )


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    if INSTRUCTION_SETS:
        native.extension().use_instruction_set(INSTRUCTION_SETS[0])


def on(name: str, number: int, run: Callable[[], tuple[Tensor | None, Tensor | None]]) -> tuple[Tensor | None, ...]:
    native.extension().use_instruction_set(name)
    with threads(number):
        return run()


def equal(a: Tensor | None, b: Tensor | None) -> bool:
    return (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))


def rounding(case: Case, weight: Tensor) -> float:
    """A bound of the error of a float32 sum: as many roundings as there are weights, of sums of absolute values."""
    size = weight.abs().sum((1, 2, 3)).max().item()
    return (weight[0].numel() + 1) * 2**-24 * size


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(case=cases(), number=st.sampled_from([1, 1, 1, 2, 3]))  # threads wait for each other where cores are few
def test_sums(name: str, kind: Kind, case: Case, number: int) -> None:
    weight, bits = case.weight(), maps.pack(case.images())
    weights = cpu.prepare(weight, case.geometry, kind)
    y, none = on(name, number, lambda: cpu.forward(bits, weights, case.geometry, Epilogue()))
    assert none is None
    assert y is not None
    if kind != "float32":
        assert torch.equal(y, found(reference.forward(bits, weights, case.geometry, Epilogue())))
    error = (y.double() - sums(case, weight)).abs()
    assert (error <= weights.error * (1 + 1e-6) + rounding(case, weight)).all()


def found(outputs: tuple[Tensor | None, Tensor | None]) -> Tensor:
    assert outputs[0] is not None
    return outputs[0]


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
@settings(max_examples=30, deadline=None)
@given(
    case=cases(),
    kind=st.sampled_from(["int16", "int8"]),
    fields=st.sampled_from(["y", "b", "yb", "shb", "sb", "hb", "rb", "sy", "shrby", "hry", "srb", ""]),
)
def test_epilogues(name: str, case: Case, kind: Kind, fields: str) -> None:
    """With a unit that is a power of two everything is exact."""
    weight = case.weight()
    bits, after = maps.pack(case.images()), epilogue(case, fields)
    weights = cpu.prepare(weight, case.geometry, kind)
    weights = weights._replace(unit=torch.full_like(weights.unit, 2.0**-6))
    y, packed = on(name, 1, lambda: cpu.forward(bits, weights, case.geometry, after))
    expected, expected_bits = reference.forward(bits, weights, case.geometry, after)
    assert equal(y, expected)
    assert equal(packed, expected_bits)
    assert (y is not None) == ("y" in fields)
    assert (packed is not None) == ("b" in fields)


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
@pytest.mark.parametrize("fields", ["b", "shb", "shrby", "y"])
@pytest.mark.parametrize("pixels", [1, 4, 5, 70])
def test_epilogues_of_floats(name: str, fields: str, pixels: int) -> None:
    case = Case(Geometry(70, 67), 1, 1, pixels, 3)
    weight = case.weight().mul(8).round() / 8  # exact sums
    bits, after = maps.pack(case.images()), epilogue(case, fields)
    weights = cpu.prepare(weight, case.geometry, "float32")
    y, packed = on(name, 1, lambda: cpu.forward(bits, weights, case.geometry, after))
    expected, expected_bits = reference.forward(bits, weights, case.geometry, after)
    assert equal(y, expected)
    assert equal(packed, expected_bits)


LAYERS = {
    "3 x 3": Case(Geometry(128, 96, (3, 3), padding=(1, 1)), 1, 14, 14, 0),
    "many pieces of K": Case(Geometry(512, 12, (3, 3), padding=(1, 1)), 1, 7, 7, 1),
    "many blocks of pixels": Case(Geometry(64, 70, (3, 3), padding=(1, 1)), 2, 40, 40, 2),
    "stride 2": Case(Geometry(64, 128, (3, 3), (2, 2), (1, 1)), 2, 15, 15, 3),
    "linear": Case(Geometry(1000, 130), 1, 1, 37, 4),
    "one row": Case(Geometry(1000, 130), 1, 1, 1, 5),
    "depthwise": Case(Geometry(72, 72, (3, 3), padding=(1, 1), groups=72), 1, 9, 9, 6),
    "groups across words": Case(Geometry(3 * 50, 3 * 30, (3, 3), padding=(1, 1), groups=3), 1, 9, 9, 7),
    "wide padding": Case(Geometry(9, 5, (2, 3), padding=(20, 17), dilation=(2, 3)), 1, 6, 5, 8),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", LAYERS)
@compiled
def test_layers_on_any_number_of_threads(layer: str, kind: Kind) -> None:
    case = LAYERS[layer]
    weight, bits = case.weight(), maps.pack(case.images())
    weights = cpu.prepare(weight, case.geometry, kind)
    for name in INSTRUCTION_SETS:
        runs = [found(on(name, n, lambda: cpu.forward(bits, weights, case.geometry, Epilogue()))) for n in (1, 2, 5)]
        assert all(torch.equal(y, runs[0]) for y in runs)
        assert ((runs[0] - sums(case, weight)).abs() <= weights.error + rounding(case, weight)).all()
        if kind != "float32":
            assert torch.equal(runs[0], found(reference.forward(bits, weights, case.geometry, Epilogue())))


def adversary(weight: Tensor, weights: Weights, sign: float) -> Tensor:
    """For output 0 of a layer of 1 x 1: the pattern of every triple that errs most, by search."""
    exact = reference.triples(weight[0, :, 0, 0].double())  # [sixes, 2, 3]
    entries = weights.values[0, 0].int() & reference.LARGEST[weights.kind]
    q = (entries - entries[..., :1]).double() * weights.unit[0].double()
    patterns = torch.tensor(list(itertools.product((0.0, 1.0), repeat=3)), dtype=torch.float64)
    index = (patterns @ torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)).long()
    errors = sign * (q[..., index] - (exact.unsqueeze(-2) * patterns).sum(-1))
    return patterns[errors.argmax(-1)].flatten()


@pytest.mark.parametrize("module", [reference, *([cpu] if INSTRUCTION_SETS else [])])
@pytest.mark.parametrize("kind", ["int16", "int8"])
@pytest.mark.parametrize("channels", [3, 12, 60])
def test_the_error_bound_is_reached_and_not_passed(module: ModuleType, kind: Kind, channels: int) -> None:
    case = Case(Geometry(channels, 1), 1, 1, 1, 7)
    weight = case.weight()
    weights = module.prepare(weight, case.geometry, kind)
    worst = []
    for sign in (1.0, -1.0):
        inputs = adversary(weight, weights, sign)[:channels].view(1, 1, 1, -1)
        y, _ = module.forward(maps.pack(inputs > 0), weights, case.geometry, Epilogue())
        worst.append(abs(y.double() - (weight[0, :, 0, 0].double() * inputs).sum()).item())
    assert max(worst) <= weights.error.item() + rounding(case, weight)
    assert max(worst) >= weights.error.item() - rounding(case, weight)


@pytest.mark.parametrize("kind", ["int16", "int8"])
def test_entries_and_their_sums_fit(kind: Kind) -> None:
    geometry = Geometry(130, 4, (3, 2))
    for scale in (1e-42, 1e-30, 1.0, 1e37):
        weights = reference.prepare(torch.randn(4, 130, 3, 2) * scale, geometry, kind)
        largest = (weights.values.int() & reference.LARGEST[kind]).amax(-1).sum(-1).flatten(1)  # of each six
        for i in range(0, largest.shape[1], reference.SIXES[kind]):
            assert (largest[:, i : i + reference.SIXES[kind]].sum(1) <= reference.LARGEST[kind]).all()


EXTREMES = {
    "zeros": lambda w: w * 0,
    "equal": lambda w: w * 0 + 0.1,
    "huge range": lambda w: torch.where(torch.arange(w.shape[1]).view(1, -1, 1, 1) == 5, w * 1e30, w * 1e-10),
    "denormal": lambda w: w * 1e-42,
    "an output of zeros": lambda w: torch.cat([w[:1] * 0, w[1:]]),
    "negative": lambda w: -w.abs(),
    "huge": lambda w: w.clamp(-2, 2) * 1e35,
}


@compiled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("extreme", EXTREMES)
def test_extreme_weights(extreme: str, kind: Kind) -> None:
    case = Case(Geometry(70, 6, (3, 3), padding=(1, 1)), 1, 6, 6, 2)
    weight, bits = EXTREMES[extreme](case.weight()), maps.pack(case.images())
    weights = cpu.prepare(weight, case.geometry, kind)
    for name in INSTRUCTION_SETS:
        y = found(on(name, 1, lambda: cpu.forward(bits, weights, case.geometry, Epilogue())))
        size = weight.double().abs().sum((1, 2, 3))
        bound = weights.error * (1 + 1e-6) + (weight[0].numel() + 2) * 2**-24 * size + 1e-37
        assert ((y.double() - sums(case, weight)).abs() <= bound).all()
        if kind != "float32":
            assert torch.equal(y, found(reference.forward(bits, weights, case.geometry, Epilogue())))


def near_an_end(case: Case, weight: Tensor, after: Epilogue) -> Tensor:
    """Outputs so near to an end of their interval that the rounding of float32 sums may decide their bits."""
    assert after.lower is not None
    assert after.upper is not None
    scale = torch.ones(case.geometry.outputs) if after.scale is None else after.scale
    shift = torch.zeros(case.geometry.outputs) if after.shift is None else after.shift
    y = sums(case, weight) * scale.double() + shift.double()
    apart = torch.minimum((y - after.lower.double()).abs(), (y - after.upper.double()).abs())
    size = weight.double().abs().sum((1, 2, 3)) * scale.double().abs() + shift.double().abs()
    return apart <= (weight[0].numel() + 4) * 2**-24 * size


def bits_alone(case: Case, weight: Tensor, after: Epilogue) -> tuple[Tensor, Tensor, Tensor]:
    """Of a bound layer on 1 and 2 threads, and of the plain one."""
    bits = maps.pack(case.images())
    weights = cpu.prepare(weight, case.geometry, "float32")
    layer = cpu.bind(weights, case.geometry, after)
    one, plain = layer(bits)[1], cpu.forward(bits, weights, case.geometry, after)[1]
    with threads(2):
        two = layer(bits)[1]
    assert one is not None
    assert two is not None
    assert plain is not None
    return one, two, plain


@pytest.fixture
def always_rough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small layers too."""
    monkeypatch.setattr(cpu, "FEW_INPUTS", 1)
    monkeypatch.setattr(cpu, "FEW_OUTPUTS", 1)


@pytest.mark.usefixtures("always_rough")
@pytest.mark.parametrize("name", INSTRUCTION_SETS)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases(), fields=st.sampled_from(["b", "sb", "hb", "shb"]), few=st.booleans())
def test_bits_alone_are_those_of_float32_sums(name: str, case: Case, fields: str, few: bool) -> None:
    weight, after = case.weight(), epilogue(case, fields)
    if few:  # ends that sums reach, in a case where sums near them are rare
        middle = sums(case, weight)[0, 0, 0].float()
        after = after._replace(scale=None, shift=None, lower=middle, upper=middle + torch.inf)
    native.extension().use_instruction_set(name)
    one, two, plain = bits_alone(case, weight, after)
    assert torch.equal(one, two)
    expected = maps.unpack(plain, case.geometry.outputs)
    assert ((maps.unpack(one, case.geometry.outputs) == expected) | near_an_end(case, weight, after)).all()
    beyond = maps.unpack(one, 8 * one.shape[-1])[..., case.geometry.outputs :]
    assert not beyond.any()


@compiled
@pytest.mark.parametrize("grid", [0.5, 2.0, 64.0])  # nearly all chunks are summed by tables of float32; some; few
@pytest.mark.parametrize("layer", ["3 x 3", "many blocks of pixels", "stride 2", "linear", "groups across words"])
def test_ends_on_sums_that_are_reached(grid: float, layer: str) -> None:
    """Sums are exact in float32, and many of them lie on an end or within the error of int16 from it."""
    case = LAYERS[layer]
    weight = case.weight().mul(grid).round() / grid
    exact = sums(case, weight)
    middle = exact.flatten(0, 2).median(0).values.float()
    sign = torch.where(torch.arange(case.geometry.outputs) % 2 == 0, 1.0, -2.0)
    for step in (-1, 0, 1):
        lower = sign * (middle + step / grid) + 0.5
        after = Epilogue(sign, torch.full_like(sign, 0.5), lower=lower, upper=lower + 3 / grid, keep=False)
        y = exact * sign.double() + 0.5
        assert torch.equal(y, y.float().double())
        want = maps.pack((lower <= y) & (y <= lower + 3 / grid))
        for name in INSTRUCTION_SETS:
            native.extension().use_instruction_set(name)
            assert all(torch.equal(x, want) for x in bits_alone(case, weight, after)), name


@compiled
@pytest.mark.parametrize(
    ("lower", "upper"),
    [(torch.inf, torch.inf), (-torch.inf, -torch.inf), (-torch.inf, torch.inf), (1.0, 0.999), (torch.nan, 1.0),
     (0.0, torch.nan), (3.4e38, torch.inf), (-torch.inf, -3.4e38), (-0.1, 0.1), (0.5, 0.5)],
)  # fmt: skip
def test_intervals_of_every_kind(lower: float, upper: float) -> None:
    case = LAYERS["3 x 3"]
    outputs = torch.ones(case.geometry.outputs)
    weight = case.weight().mul(4).round() / 4
    weight[1] = 0
    for scale in (1.0, -0.5, 0.0, 3e38, torch.inf, torch.nan):
        after = Epilogue(scale * outputs, None, lower=lower * outputs, upper=upper * outputs, keep=False)
        one, two, plain = bits_alone(case, weight, after)
        assert torch.equal(one, plain)
        assert torch.equal(two, plain)


@compiled
@pytest.mark.parametrize("extreme", ["zeros", "huge range", "denormal", "an output of zeros", "huge"])
def test_bits_alone_of_extreme_weights(extreme: str) -> None:
    case = Case(Geometry(70, 6, (3, 3), padding=(1, 1)), 2, 6, 6, 2)
    weight = EXTREMES[extreme](case.weight())
    middle = sums(case, weight).flatten(0, 2).median(0).values.float()
    for lower in (middle, torch.zeros(6)):
        after = Epilogue(lower=lower, upper=lower + torch.inf, keep=False)
        one, two, plain = bits_alone(case, weight, after)
        differ = maps.unpack(one, 6) != maps.unpack(plain, 6)
        assert torch.equal(one, two)
        assert not (differ & ~near_an_end(case, weight, after)).any()


@compiled
def test_rough_weights_are_made_where_bits_alone_are_wanted() -> None:
    extension, case = native.extension(), LAYERS["3 x 3"]
    weights, outputs = cpu.prepare(case.weight(), case.geometry, "float32"), torch.ones(96)
    after = Epilogue(lower=-outputs, upper=outputs, keep=False)
    made = cpu._rough(weights, case.geometry, after)
    assert (made is not None) == extension.tables_take_rough()
    assert cpu._rough(weights, case.geometry, after._replace(keep=True)) is None
    assert cpu._rough(weights, case.geometry, Epilogue(keep=False)) is None
    if made is not None:
        inner_lower, inner_upper, outer_lower, outer_upper = made[3]
        assert (outer_lower < after.lower).all()
        assert (after.lower < inner_lower).all()
        assert (inner_upper < after.upper).all()
        assert (after.upper < outer_upper).all()
        assert ((inner_lower - outer_lower) < 0.5).all()  # sums have a standard deviation of about 17


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_weights_must_be_finite(kind: Kind, value: float) -> None:
    weight = torch.zeros(2, 9, 1, 1)
    weight[1, 3] = value
    with pytest.raises(ValueError, match="expected finite weights, got 1 of 18 not"):
        reference.prepare(weight, Geometry(9, 2), kind)


@compiled
def test_unused_bits_and_no_images() -> None:
    geometry, weight = Geometry(9, 3, (2, 2)), torch.randn(3, 9, 2, 2)
    bits = maps.pack(torch.rand(1, 5, 5, 9) < 0.5)
    dirty = bits.clone()
    dirty[..., 1] |= 0b11111110
    dirty[..., 2:] = 255
    for kind, name in itertools.product(KINDS, INSTRUCTION_SETS):
        weights = cpu.prepare(weight, geometry, kind)
        native.extension().use_instruction_set(name)
        a, b = (found(cpu.forward(x, weights, geometry, Epilogue())) for x in (bits, dirty))
        assert torch.equal(a, b)
        assert found(cpu.forward(bits[:0], weights, geometry, Epilogue())).shape == (0, 4, 4, 3)


G = Geometry(70, 6, (3, 3))
BITS = torch.zeros(2, 5, 5, row_bytes(70), dtype=torch.uint8)


@compiled
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("bits", "geometry", "after", "error", "message"),
    [
        (BITS[..., :8], G, Epilogue(), ValueError, r"must be \[batch, height, width, 16\], got \(2, 5, 5, 8\)$"),
        (BITS[0], G, Epilogue(), ValueError, "got \\(5, 5, 16\\)$"),
        (BITS.int(), G, Epilogue(), TypeError, "^bits must be uint8 on the CPU, got torch.int32"),
        (BITS[:, :2], G, Epilogue(), ValueError, "^expected images of at least 3 pixels"),
        (BITS, G._replace(outputs=7), Epilogue(), ValueError, "^expected weights prepared for this geometry"),
        (BITS, G._replace(kernel=(1, 3)), Epilogue(), ValueError, "^expected weights prepared for this geometry"),
        (BITS, G._replace(stride=(0, 1)), Epilogue(), ValueError, "^expected sizes >= 1"),
        (BITS, G._replace(padding=(-1, 1)), Epilogue(), ValueError, "^expected sizes >= 1"),
        (BITS, G, Epilogue(scale=torch.zeros(5)), ValueError, r"^scale must have the shape \(6,\), got \(5,\)$"),
        (BITS, G, Epilogue(shift=torch.zeros(6).double()), TypeError, "^shift must be float32 on the CPU, got"),
        (BITS, G, Epilogue(residual=torch.zeros(2, 5, 5, 6)), ValueError, "^residual must have the shape"),
        (BITS, G, Epilogue(lower=torch.zeros(6)), ValueError, "^expected both lower and upper or neither, got one"),
    ],
)  # fmt: skip
def test_wrong_inputs_are_refused(
    bits: Tensor, geometry: Geometry, after: Epilogue, error: type[Exception], message: str
) -> None:
    weights = cpu.prepare(torch.randn(6, 70, 3, 3), G, "int8")
    with pytest.raises(error, match=message):
        cpu.forward(bits, weights, geometry, after)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("weight", "geometry", "error", "message"),
    [
        (torch.zeros(6, 70, 3, 3), G._replace(channels=71), ValueError, r"^expected weight \(6, 71, 3, 3\), got"),
        (torch.zeros(6, 70, 3, 3).double(), G, TypeError, "^weight must be float32 on the CPU, got torch.float64"),
        (torch.zeros(6, 70, 3, 3), G._replace(groups=4), ValueError, "in whole groups, got Geometry"),
        (torch.zeros(6, 70, 3, 3), G._replace(dilation=(1, 0)), ValueError, "^expected sizes >= 1"),
    ],
)
def test_wrong_weights_are_refused(weight: Tensor, geometry: Geometry, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        reference.prepare(weight, geometry, "int8")


@pytest.mark.usefixtures("unchecked")
def test_a_kind_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"^kind must be float32, int16 or int8, got 'int4'$"):
        reference.prepare(torch.zeros(6, 70, 3, 3), G, "int4")  # pyright: ignore[reportArgumentType]
