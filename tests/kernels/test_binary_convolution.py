"""Convolution of bits with binary weights, every instruction set against formulas and NumPy's own counts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from instruction_sets import WITH_TILES, threads

from htaf.core.kernels import native
from htaf.core.kernels.binary_convolution import reference
from htaf.core.kernels.layers import Epilogue, Geometry, row_bytes
from htaf.core.kernels.packed_maps import reference as maps

CHANNELS = st.one_of(st.integers(1, 70), st.sampled_from([96, 128, 200, 320]))
SIDES = st.tuples(st.integers(1, 3), st.integers(1, 3))


BITS = torch.zeros(2, 5, 6, 16, dtype=torch.uint8)
SIGNS = torch.zeros(70, 3, 3, 16, dtype=torch.uint8)
GEOMETRY = Geometry(100, 70, (3, 3))


@pytest.fixture(scope="module", params=WITH_TILES)
def compiled(request: pytest.FixtureRequest) -> Iterator[Any]:
    """cpu.py, its kernels set to one instruction set, and on tiles where this has them."""
    from htaf.core.kernels.binary_convolution import cpu

    before = native.extension().instruction_set()
    native.extension().use_instruction_set(request.param)
    tiles = native.extension().tiles()
    yield SimpleNamespace(prepare=partial(cpu.prepare, tiles=True), forward=cpu.forward) if tiles else cpu
    native.extension().use_instruction_set(before)


def drawn(geometry: Geometry, batch: int, height: int, width: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Bits of images and of signs."""
    g, random = geometry, torch.Generator().manual_seed(seed)
    images = torch.rand(batch, height, width, g.channels, generator=random) < torch.rand((), generator=random)
    signs = torch.rand(g.outputs, *g.kernel, g.channels // g.groups, generator=random) < 0.5
    return maps.pack(images), maps.pack(signs)


def epilogue_of(which: str, shape: tuple[int, ...], seed: int = 0) -> Epilogue:
    """Of the fields whose initials are given. Whatever is not rounded in float32, so that equality is asked for."""
    draw, outputs = np.random.default_rng(seed), shape[-1]

    def small(*size: int) -> torch.Tensor:
        return torch.from_numpy(draw.integers(-8, 9, size).astype(np.float32))

    ends = torch.stack([small(outputs) * 2, small(outputs) * 2 + 8])
    ends[0, ::3], ends[1, 1::3] = -torch.inf, torch.inf
    ends[:, 5::7] += 0.5
    ends[0, 6::7] = torch.nan if seed % 2 else torch.inf
    scale = torch.from_numpy(draw.choice([-2.0, -0.5, 0.25, 1.0, 4.0], outputs).astype(np.float32))
    return Epilogue(
        scale=scale if "s" in which else None,
        shift=small(outputs) if "t" in which else None,
        residual=small(*shape) if "r" in which else None,
        lower=ends[0] if "b" in which else None,
        upper=ends[1] if "b" in which else None,
        keep="y" in which,
    )


def check(
    compiled: ModuleType,
    geometry: Geometry,
    image: tuple[int, int, int],
    bipolar: bool,
    which: str,
    seed: int,
    number: int = 1,
) -> None:
    batch, height, width = image
    bits, signs = drawn(geometry, batch, height, width, seed)
    epilogue = epilogue_of(which, (batch, *geometry.out_size(height, width), geometry.outputs), seed)
    want = reference.forward(bits, reference.prepare(signs, geometry, bipolar=bipolar), geometry, epilogue)
    weights = compiled.prepare(signs, geometry, bipolar=bipolar)
    with threads(number):
        found = compiled.forward(bits, weights, geometry, epilogue)
    for ours, theirs in zip(found, want, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert torch.equal(ours, theirs)


@st.composite
def layers(draw: Callable[..., Any]) -> tuple[Geometry, tuple[int, int, int]]:
    """A geometry and images [batch, height, width] that are large enough for it."""
    groups = draw(st.sampled_from([1, 1, 1, 2, 3, 5]))
    kernel, dilation, padding = draw(SIDES), draw(SIDES), draw(st.tuples(st.integers(0, 4), st.integers(0, 4)))
    more = draw(st.tuples(st.integers(0, 8), st.integers(0, 8)))
    height, width = (
        max(1, d * (k - 1) + 1 - 2 * p) + m for k, d, p, m in zip(kernel, dilation, padding, more, strict=True)
    )
    geometry = Geometry(
        draw(CHANNELS) * groups, draw(CHANNELS) * groups, kernel, draw(SIDES), padding, dilation, groups
    )
    return geometry, (draw(st.integers(0, 3)), height, width)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    layer=layers(),
    bipolar=st.booleans(),
    which=st.sampled_from(["y", "b", "yb", "sty", "stb", "sb", "tb", "ry", "rb", "stryb", ""]),
    seed=st.integers(0, 999),
    number=st.sampled_from([1, 1, 1, 1, 1, 2]),
)
def test_any_layer(
    compiled: ModuleType,
    layer: tuple[Geometry, tuple[int, int, int]],
    bipolar: bool,
    which: str,
    seed: int,
    number: int,
) -> None:
    check(compiled, *layer, bipolar, which, seed, number)


@pytest.mark.parametrize("groups", [1, 2, 64])
def test_every_epilogue(compiled: ModuleType, groups: int) -> None:
    # whole blocks of outputs, part of one, and groups whose outputs start inside a word
    for fields in ("".join(some) for n in range(6) for some in itertools.combinations("strby", n)):
        for outputs in (128, 192 if groups == 64 else 70):
            geometry = Geometry(64, outputs, (3, 3), padding=(1, 1), groups=groups)
            check(compiled, geometry, (1, 5, 4), True, fields, seed=len(fields))


@pytest.mark.parametrize("bipolar", [False, True])
@pytest.mark.parametrize(
    ("geometry", "image"),
    [
        (Geometry(64, 64, (3, 3), padding=(1, 1)), (1, 56, 56)),
        (Geometry(256, 130, (3, 3), padding=(1, 1)), (3, 14, 14)),
        (Geometry(3, 65, (7, 7), (2, 2), (3, 3)), (1, 33, 30)),
        (Geometry(70, 10, (3, 3), padding=(4, 5)), (1, 3, 2)),  # pixels all of whose taps are outside
        (Geometry(128, 128, (1, 1), (2, 2)), (2, 9, 7)),
        (Geometry(96, 96, (3, 3), padding=(1, 1), groups=96), (2, 7, 7)),
        (Geometry(192, 128, (3, 1), padding=(1, 0), dilation=(3, 1), groups=2), (1, 9, 5)),
        (Geometry(512, 64, (5, 5), padding=(2, 2)), (2, 20, 21)),  # more images than stay near
    ],
)
def test_layers_of_networks(
    compiled: ModuleType, geometry: Geometry, image: tuple[int, int, int], bipolar: bool
) -> None:
    check(compiled, geometry, image, bipolar, "y", 0, number=2)
    check(compiled, geometry, image, bipolar, "b", 1, number=3)


@pytest.mark.parametrize("bipolar", [False, True])
@pytest.mark.parametrize(
    ("rows", "channels", "outputs"), [(1, 1, 1), (1, 4096, 100), (7, 333, 65), (50, 64, 64), (2, 40001, 3)]
)
def test_linear_by_counts(compiled: ModuleType, rows: int, channels: int, outputs: int, bipolar: bool) -> None:
    geometry = Geometry(channels, outputs)
    bits, signs = drawn(geometry, 1, 1, rows)
    a, w = bits.numpy()[0, 0, :, None], signs.numpy()[None, :, 0, 0]
    if bipolar:
        want = channels - 2 * np.bitwise_count(a ^ w).sum(-1, dtype=np.int64)
    else:
        want = np.bitwise_count(a & w).sum(-1, dtype=np.int64) - np.bitwise_count(a & ~w).sum(-1, dtype=np.int64)
    y, _ = compiled.forward(bits, compiled.prepare(signs, geometry, bipolar=bipolar), geometry, Epilogue())
    assert np.array_equal(y.numpy()[0, 0], want)


def test_the_largest_sums(compiled: ModuleType) -> None:
    """2^24 products that are all 1, all -1, and all but one."""
    if native.extension().tiles():
        pytest.skip("tiles leave sums of so many products to AVX-512, and bytes of the signs take a gigabyte")
    geometry = Geometry(2**24, 3)
    signs = torch.zeros(3, 1, 1, row_bytes(2**24), dtype=torch.uint8)
    signs[1:] = 255
    signs[2, 0, 0, -1] = 127
    weights = compiled.prepare(signs, geometry, bipolar=True)
    y, _ = compiled.forward(signs[1:2], weights, geometry, Epilogue())
    assert y.flatten().tolist() == [-(2**24), 2**24, 2**24 - 2]


@pytest.mark.parametrize("keep", [False, True])
def test_ends_of_intervals_belong_to_them(compiled: ModuleType, keep: bool) -> None:
    geometry = Geometry(8, 70)
    ones = torch.zeros(70, 1, 1, 8, dtype=torch.uint8)
    weights = compiled.prepare(ones, geometry, bipolar=True)  # the sum of no bits and no signs: 8
    inf, nan = torch.inf, torch.nan
    for lower, upper, inside in [
        (8, 8, 1), (7.5, 8.5, 1), (8.5, 9, 0), (7, 7.5, 0), (-inf, 8, 1), (8, inf, 1), (-inf, inf, 1), (inf, inf, 0),
        (-inf, -inf, 0), (9, 7, 0), (nan, inf, 0), (-inf, nan, 0), (nan, nan, 0), (-3e38, 3e38, 1), (3e38, inf, 0),
        (-inf, -3e38, 0), (8.25, 8.75, 0),
    ]:  # fmt: skip
        epilogue = Epilogue(lower=torch.full((70,), float(lower)), upper=torch.full((70,), float(upper)), keep=keep)
        _, bits = compiled.forward(torch.zeros(1, 1, 1, 8, dtype=torch.uint8), weights, geometry, epilogue)
        assert maps.unpack(bits, 128).flatten().tolist() == 70 * [inside] + 58 * [0], (lower, upper)


def test_scales_that_round(compiled: ModuleType) -> None:
    geometry = Geometry(300, 70, (3, 3), padding=(1, 1))
    bits, signs = drawn(geometry, 2, 6, 5)
    epilogue = Epilogue(torch.randn(70), torch.randn(70), torch.randn(2, 6, 5, 70))
    want, _ = reference.forward(bits, reference.prepare(signs, geometry, bipolar=True), geometry, epilogue)
    y, _ = compiled.forward(bits, compiled.prepare(signs, geometry, bipolar=True), geometry, epilogue)
    torch.testing.assert_close(y, want, rtol=1e-6, atol=1e-4)


def test_other_strides(compiled: ModuleType) -> None:
    geometry = Geometry(100, 70)
    bits, signs = drawn(geometry, 2, 6, 8)
    weights = compiled.prepare(signs, geometry, bipolar=True)
    scale, residual, lower = torch.randn(140)[::2], torch.randn(2, 8, 6, 70).transpose(1, 2), torch.zeros(1).expand(70)
    epilogue = Epilogue(scale, residual=residual, lower=lower, upper=torch.full((70,), torch.inf))
    dense = epilogue._replace(scale=scale.contiguous(), residual=residual.contiguous(), lower=lower.contiguous())
    found = compiled.forward(bits[:, ::2].transpose(0, 1), weights, geometry, epilogue._replace(residual=None))
    want = compiled.forward(bits[:, ::2].transpose(0, 1).contiguous(), weights, geometry, dense._replace(residual=None))
    assert all(map(torch.equal, found, want))
    found, want = (compiled.forward(bits, weights, geometry, e) for e in (epilogue, dense))
    assert all(map(torch.equal, found, want))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"bits": BITS[0]}, "must be [batch, height, width, 16], got (5, 6, 16)"),
        ({"bits": BITS.int()}, "bits must be uint8 on the CPU, got torch.int32"),
        ({"bits": BITS[..., :8]}, "bits of 100 channels must be [batch, height, width, 16], got (2, 5, 6, 8)"),
        ({"bits": BITS[:, :2]}, "at least 3 pixels with padding, got 2"),
        (
            {"geometry": GEOMETRY._replace(outputs=200)},
            "signs prepared for this geometry, torch.int32 (1, 4, 9, 4, 64)",
        ),
        (
            {"geometry": GEOMETRY._replace(kernel=(3, 1))},
            "signs prepared for this geometry, torch.int32 (1, 2, 3, 4, 64)",
        ),
        ({"geometry": GEOMETRY._replace(padding=(0, -1))}, "padding >= 0"),
        ({"geometry": GEOMETRY._replace(stride=(0, 1))}, "sizes >= 1"),
        ({"geometry": GEOMETRY._replace(groups=3)}, "in whole groups, got Geometry"),
        ({"epilogue": Epilogue(torch.zeros(71))}, "scale must have the shape (70,), got (71,)"),
        (
            {"epilogue": Epilogue(shift=torch.zeros(70, dtype=torch.double))},
            "shift must be float32 on the CPU, got torch.float64",
        ),
        ({"epilogue": Epilogue(residual=torch.zeros(2, 3, 3, 70))}, "residual must have the shape (2, 3, 4, 70)"),
        ({"epilogue": Epilogue(lower=torch.zeros(70))}, "both lower and upper or neither"),
        (
            {"epilogue": Epilogue(lower=torch.zeros(70), upper=torch.zeros(7))},
            "upper must have the shape (70,), got (7,)",
        ),
    ],
)
def test_what_forward_rejects(compiled: ModuleType, changes: dict[str, Any], says: str) -> None:
    arguments = {"bits": BITS, "geometry": GEOMETRY, "epilogue": Epilogue()} | changes
    weights = compiled.prepare(SIGNS, GEOMETRY, bipolar=True)
    with pytest.raises((TypeError, ValueError)) as error:
        compiled.forward(arguments["bits"], weights, arguments["geometry"], arguments["epilogue"])
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("signs", "geometry", "says"),
    [
        (SIGNS[:, :2], GEOMETRY, "torch.uint8 (70, 3, 3, 16), got torch.uint8 (70, 2, 3, 16)"),
        (SIGNS.float(), GEOMETRY, "got torch.float32"),
        (SIGNS, GEOMETRY._replace(groups=4), "in whole groups, got Geometry"),
        (SIGNS[:1, :1, :1, :1].expand(1, 1, 1, 2**21 + 8), Geometry(2**24 + 1, 1), "at most 2^24 products"),
    ],
)
def test_what_prepare_rejects(compiled: ModuleType, signs: torch.Tensor, geometry: Geometry, says: str) -> None:
    with pytest.raises(ValueError) as error:
        compiled.prepare(signs, geometry, bipolar=True)
    assert says in str(error.value)
