"""What the compiled layers over packed bits share: tensors checked, and handed over as addresses.

The kernels read and write memory as these say, so nothing passes unchecked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from htaf.kernels.layers import Bound, Epilogue, Geometry, Outputs, Spare, row_bytes


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


class Finishing:
    """The tensors of an epilogue: those given, checked, and the results, y and bits, None where not wanted."""

    def __init__(self, epilogue: Epilogue, shape: tuple[int, ...]) -> None:
        e, channels = epilogue, shape[-1]
        if (e.lower is None) != (e.upper is None):
            raise ValueError("expected both lower and upper or neither, got one of them")
        given = [
            x if x is None else check_floats(name, x, (channels,))
            for name, x in (("scale", e.scale), ("shift", e.shift), ("lower", e.lower), ("upper", e.upper))
        ]
        residual = None if e.residual is None else check_floats("residual", e.residual, shape)
        self.wide = check_wide(e, channels)
        self.y = torch.empty(shape, dtype=torch.float32, device=CPU) if e.keep else None
        packed = (*shape[:-1], row_bytes(channels))
        self.bits = None if e.lower is None else torch.empty(packed, dtype=torch.uint8, device=CPU)
        self.kept = (*given[:2], residual, self.y, *given[2:], self.bits)  # alive while the kernel runs

    def addresses(self) -> tuple[int, ...]:
        return (*(0 if x is None else x.data_ptr() for x in self.kept), *wide_addresses(self.wide))


def check_wide(epilogue: Epilogue, channels: int) -> Tensor | None:
    """Dense scale and shift in float64, None where there are none. Raises TypeError or ValueError."""
    wide = epilogue.wide
    if wide is None:
        return None
    if epilogue.scale is not None or epilogue.shift is not None:
        raise ValueError("expected wide in place of scale and shift, got both")
    if wide.dtype != torch.float64 or wide.device.type != "cpu":
        raise TypeError(f"wide must be float64 on the CPU, got {wide.dtype} on {wide.device}")
    if tuple(wide.shape) != (2, channels):
        raise ValueError(f"wide must have the shape {(2, channels)}, got {tuple(wide.shape)}")
    return wide.contiguous()


def wide_addresses(wide: Tensor | None) -> tuple[int, int]:
    """Of scale and shift in float64, 0 for none."""
    return (0, 0) if wide is None else (wide[0].data_ptr(), wide[1].data_ptr())


Shape2d = tuple[tuple[int, int, int, int, int], tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int], int]


def shape2d(bits: Tensor, geometry: Geometry) -> Shape2d:
    """As csrc/bind_packed.hpp reads it."""
    g = geometry
    batch, height, width, _ = bits.shape
    return (batch, height, width, g.channels, g.outputs), g.kernel, g.stride, g.padding, g.dilation, g.groups


KNOWN_SHAPES = 64  # of inputs, whose sizes a bound layer keeps
Run = Callable[[int, Shape2d, tuple[int, ...], int], None]


def bound(
    run: Run, geometry: Geometry, epilogue: Epilogue, native: tuple[str, Any] | None = None, planes: int = 1
) -> Bound:
    """A layer whose constants are checked now, so that a call checks only what it is given: a few microseconds.

    Args:
        run: takes the address of the bits, sizes, the epilogue's addresses and threads; keeps its weights alive.
        geometry: of the layer. epilogue: its constants; the residual is an argument of the call.
        native: the method of `Plan` of csrc/bind_plan.cpp that is this layer, and the addresses of its weights; None:
            no plan holds it.
        planes: of bits, side by side in a pixel, each of the geometry's channels.

    Raises:
        TypeError, ValueError: constants of another type or shape; from a call, bits or a residual of another.
    """
    geometry.check()
    e, channels = epilogue, (geometry.outputs,)
    if e.residual is not None:
        raise ValueError("expected a residual when the layer is called, got one when it is bound")
    if (e.lower is None) != (e.upper is None):
        raise ValueError("expected both lower and upper or neither, got one of them")
    given = (("scale", e.scale), ("shift", e.shift), ("lower", e.lower), ("upper", e.upper))
    kept = [x if x is None else check_floats(name, x, channels) for name, x in given]
    wide = check_wide(e, geometry.outputs)
    wide_scale, wide_shift = wide_addresses(wide)
    scale, shift, lower, upper = (0 if x is None else x.data_ptr() for x in kept)
    wanted = lower != 0
    known: dict[torch.Size, tuple[Shape2d, tuple[int, ...], tuple[int, ...]]] = {}
    keep, uint8, float32, empty, threads = e.keep, torch.uint8, torch.float32, torch.empty, torch.get_num_threads

    def call(bits: Tensor, residual: Tensor | None = None, spare: Spare | None = None) -> Outputs:
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
        y = None
        if keep:
            there = spare.get(floats) if spare else None
            try:
                y = there.pop() if there else empty(floats, dtype=float32, device=CPU)
            except IndexError:  # another thread took the last one
                y = empty(floats, dtype=float32, device=CPU)
        found = empty(packed, dtype=uint8, device=CPU) if wanted else None
        into, to = 0 if y is None else y.data_ptr(), 0 if found is None else found.data_ptr()
        run(source, shape, (scale, shift, added, into, lower, upper, to, wide_scale, wide_shift), threads())
        return y, found

    call.kept = (*kept, wide)  # pyright: ignore[reportFunctionMemberAccess]
    if native is not None:
        call.native = (*native, (scale, shift, lower, upper, wide_scale, wide_shift))  # pyright: ignore[reportFunctionMemberAccess]
    return call
