"""What the compiled layers over packed bits share: tensors checked, and handed over as addresses.

The kernels read and write memory as these say, so nothing passes unchecked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from htaf.core.kernels.layers import Bound, Epilogue, Geometry, Outputs, row_bytes
from htaf.core.kernels.native import address


def check_bits(bits: Tensor, channels: int, planes: int = 1) -> Tensor:
    """Dense bits of images.

    Raises:
        TypeError: not uint8 on the CPU.
        ValueError: not [batch, height, width, row_bytes(channels)].
    """
    if bits.dtype != torch.uint8 or bits.device.type != "cpu":
        raise TypeError(f"bits must be uint8 on the CPU, got {bits.dtype} on {bits.device}")
    if bits.ndim != 4 or bits.shape[-1] != planes * row_bytes(channels):
        raise ValueError(
            f"bits of {channels} channels must be [batch, height, width, {planes * row_bytes(channels)}], "
            f"got {tuple(bits.shape)}"
        )
    return aligned(bits.contiguous())


def check_weights(name: str, x: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Dense prepared weights. Raises ValueError where they are for another geometry."""
    if x.dtype != dtype or tuple(x.shape) != shape or x.device.type != "cpu":
        expected = f"{name} prepared for this geometry, {dtype} {shape}"
        raise ValueError(f"expected {expected}, got {x.dtype} {tuple(x.shape)} on {x.device}")
    return x.contiguous()


def aligned(bits: Tensor) -> Tensor:
    """The same bits at an address that is a multiple of a word's size."""
    return bits if bits.data_ptr() % 8 == 0 else bits.clone()


def check_floats(name: str, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Dense float32 of that shape. Raises TypeError or ValueError."""
    if x.dtype != torch.float32 or x.device.type != "cpu":
        raise TypeError(f"{name} must be float32 on the CPU, got {x.dtype} on {x.device}")
    if tuple(x.shape) != shape:
        raise ValueError(f"{name} must have the shape {shape}, got {tuple(x.shape)}")
    return x.contiguous()


CPU = torch.device("cpu")  # named wherever an address leaves Python: PyTorch's own default may be another


def constants(epilogue: Epilogue, channels: int) -> tuple[tuple[Tensor | None, ...], tuple[int, ...]]:
    """Dense scale, shift, lower, upper and wide, and their addresses, two of wide; 0 for none.

    Raises TypeError or ValueError.
    """
    e = epilogue
    if (e.lower is None) != (e.upper is None):
        raise ValueError("expected both lower and upper or neither, got one of them")
    if (wide := e.wide) is not None:
        if e.scale is not None or e.shift is not None:
            raise ValueError("expected wide in place of scale and shift, got both")
        if wide.dtype != torch.float64 or wide.device.type != "cpu":
            raise TypeError(f"wide must be float64 on the CPU, got {wide.dtype} on {wide.device}")
        if tuple(wide.shape) != (2, channels):
            raise ValueError(f"wide must have the shape {(2, channels)}, got {tuple(wide.shape)}")
        wide = wide.contiguous()
    given = (("scale", e.scale), ("shift", e.shift), ("lower", e.lower), ("upper", e.upper))
    kept = [None if x is None else check_floats(name, x, (channels,)) for name, x in given]
    both = (None, None) if wide is None else (wide[0], wide[1])
    return (*kept, wide), tuple(map(address, (*kept, *both)))


Shape2d = tuple[tuple[int, int, int, int, int], tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int], int]


def shape2d(bits: Tensor, geometry: Geometry) -> Shape2d:
    """As csrc/bind_packed.hpp reads it."""
    g = geometry
    batch, height, width, _ = bits.shape
    return (batch, height, width, g.channels, g.outputs), g.kernel, g.stride, g.padding, g.dilation, g.groups


KNOWN_SHAPES = 64  # of inputs, whose sizes a bound layer keeps
Run = Callable[[Shape2d, int, Any, tuple[int, ...], int], None]  # sizes, bits, weights, epilogue, threads


def bound(
    name: str, run: Run, held: Any, weights: tuple[Tensor, ...], geometry: Geometry, epilogue: Epilogue, planes: int = 1
) -> Bound:
    """A layer whose constants are checked now, so that a call checks only what it is given: a few microseconds.

    Args:
        name: the method of `Plan` of csrc/bind_plan.cpp that is this layer. run: the kernel alone.
        held: the addresses of the weights, as both take them, and what else they say of them. weights: kept alive.
        geometry: of the layer. epilogue: its constants; the residual is an argument of the call.
        planes: of bits, side by side in a pixel, each of the geometry's channels.

    Raises:
        TypeError, ValueError: constants of another type or shape; from a call, bits or a residual of another.
    """
    geometry.check()
    if epilogue.residual is not None:
        raise ValueError("expected a residual when the layer is called, got one when it is bound")
    kept, addresses = constants(epilogue, geometry.outputs)
    scale, shift, lower, upper, wide_scale, wide_shift = addresses
    wanted = lower != 0
    known: dict[torch.Size, tuple[Shape2d, tuple[int, ...], tuple[int, ...]]] = {}
    keep, uint8, float32, empty, threads = epilogue.keep, torch.uint8, torch.float32, torch.empty, torch.get_num_threads

    def call(bits: Tensor, residual: Tensor | None = None) -> Outputs:
        sizes = known.get(bits.shape)
        if sizes is None:
            check_bits(bits, geometry.channels, planes)
            out = (bits.shape[0], *geometry.out_size(bits.shape[1], bits.shape[2]))
            sizes = shape2d(bits, geometry), (*out, geometry.outputs), (*out, row_bytes(geometry.outputs))
            if len(known) == KNOWN_SHAPES:
                known.clear()
            known[bits.shape] = sizes
        shape, floats, packed = sizes
        source = bits.data_ptr()
        if bits.dtype is not uint8 or source % 8 or not (bits.is_cpu and bits.is_contiguous()):
            bits = check_bits(bits, geometry.channels, planes)
            source = bits.data_ptr()
        added = 0
        if residual is not None:
            if residual.dtype is not float32 or not (
                residual.is_cpu and residual.shape == floats and residual.is_contiguous()
            ):
                residual = check_floats("residual", residual, floats)
            added = residual.data_ptr()
        y = empty(floats, dtype=float32, device=CPU) if keep else None
        found = empty(packed, dtype=uint8, device=CPU) if wanted else None
        ends = (scale, shift, added, address(y), lower, upper, address(found), wide_scale, wide_shift)
        run(shape, source, held, ends, threads())
        return y, found

    call.kept = (*kept, *weights)  # pyright: ignore[reportFunctionMemberAccess]
    call.native = name, held, addresses  # pyright: ignore[reportFunctionMemberAccess]
    return call
