"""The sizes of every tensor and of every step of a program, before any of it runs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from htaf._errors import first_line
from htaf.kernels.layers import Geometry, row_bytes
from htaf.packed import operators
from htaf.packed.program import Call, Layer, PackedError, Pool, Program, Step, Threshold, Unpack

_LARGEST, _TIMES = 1 << 30, 1 << 10  # bytes of a value for a batch of two, and where it is more: times the inputs'
_TOGETHER = 4  # times that: of all values that a file makes
_ENTRIES = 1 << 33


def check(program: Program) -> None:
    """Go through the steps with tensors that have sizes and no content, for a batch of two.

    Raises:
        PackedError: an operator that is not allowed, or sizes that do not fit or are too large.
    """
    meta = {name: tensor.to("meta") for name, tensor in program.tensors.items()}
    values: list[Any] = []
    for sizes in program.inputs:
        values.append(_empty([2 if size is None else size for size in sizes], torch.float32))
    most = max(_LARGEST, _TIMES * sum(_bytes(x) for x in values))
    left = _TOGETHER * most
    for step in program.steps:
        try:
            made = _sizes(step, values, program.tensors, meta, most)
        except PackedError as error:
            raise PackedError(f"{step.name}: {error}") from None
        except Exception as error:  # whatever an operator raises for arguments that do not fit
            raise PackedError(f"{step.name}: {first_line(error):.200}") from None
        for value in made:
            left -= _check_size(step, value, most)
            if left < 0:
                raise PackedError(f"expected values of at most {_TOGETHER * most:,} bytes together, got more")
            values.append(value)


def _sizes(step: Step, values: list[Any], tensors: dict[str, Tensor], meta: dict[str, Tensor], most: int) -> list[Any]:
    if isinstance(step, Call):
        function = operators.allowed(step.operator)
        if function is None:
            raise PackedError(f"expected an operator of a packed model, got {step.operator!r:.40}")
        if any(not k.isidentifier() for k in step.kwargs):
            raise PackedError("expected names of arguments, got others")
        given = [_given(a, values, meta) for a in step.args]
        operators.check_arguments(function, given, step.kwargs)
        named = {k: _given(a, values, meta) for k, a in step.kwargs.items()}
        where = {"device": "meta"} if operators.makes(function) else {}
        return [function(*given, **named, **where)]
    x = values[step.input]
    if not isinstance(x, Tensor):
        raise PackedError("expected a tensor, got a list of them")
    if isinstance(step, Layer):
        return _layer(step, x, values, tensors, most)
    if isinstance(step, Pool):
        _expect_bits(x, 4, None)
        pool = Geometry(1, 1, step.kernel, step.stride, step.padding, step.dilation)
        if any(2 * p > k for p, k in zip(step.padding, step.kernel, strict=True)):
            raise PackedError(f"expected a padding of at most half a window, got {step.padding}")
        pool.check()
        if any(p > size for p, size in zip(step.padding, x.shape[1:3], strict=True)):
            raise PackedError(f"expected a padding of at most the image {list(x.shape[1:3])}, got {step.padding}")
        return [_empty([x.shape[0], *pool.out_size(x.shape[1], x.shape[2]), x.shape[3]], torch.uint8)]
    if isinstance(step, Unpack):
        _expect_bits(x, None, step.channels)
        if step.axis >= x.ndim:
            raise PackedError(f"expected a dimension of {x.ndim}, got {step.axis}")
        sizes = list(x.shape[:-1])
        sizes.insert(step.axis, step.channels)
        return [_empty(sizes, torch.float32)]
    if x.dtype != torch.float32 or step.axis >= x.ndim:
        raise PackedError(f"expected floats with a dimension {step.axis}, got {x.dtype} {list(x.shape)}")
    sizes = list(x.shape)
    channels = sizes.pop(step.axis)
    if isinstance(step, Threshold):
        _expect_channels(tensors[step.lower], channels)
        _expect_channels(tensors[step.upper], channels)
    elif x.ndim < 2 or step.axis == 0 or x.shape[0] == 0:
        raise PackedError(f"expected time steps, then more dimensions, got {list(x.shape)}")
    return [_empty([*sizes, row_bytes(channels)], torch.uint8)]


def _given(written: Any, values: list[Any], meta: dict[str, Tensor]) -> Any:
    argument = operators.decode(written, meta)
    return argument.get(values, 2) if isinstance(argument, operators.Pending) else argument


def _layer(step: Layer, x: Tensor, values: list[Any], tensors: dict[str, Tensor], most: int) -> list[Any]:
    g = step.geometry
    g.check()
    _expect_bits(x, {"image": 4, "line": 3}.get(step.form), g.channels)
    per_group = g.channels // g.groups
    if step.weights == "binary":
        _expect(tensors[step.weight], [g.outputs, *g.kernel, row_bytes(per_group)], torch.uint8)
        if step.planes != 1:
            raise PackedError(f"expected one plane of bits for binary weights, got {step.planes}")
    else:
        _expect(tensors[step.weight], [g.outputs, _kept(step, tensors), *g.kernel], torch.float32)
        if (size := 4 * g.outputs * per_group * math.prod(g.kernel)) > most:
            raise PackedError(f"expected weights of at most {most:,} bytes, got {size:,}")
        if step.bipolar:
            raise PackedError("expected bits 0 and 1 for a table, got -1 and 1")
    for name in (step.scale, step.shift, step.lower, step.upper):
        if name is not None:
            _expect_channels(tensors[name], g.outputs)
    if (step.lower is None) != (step.upper is None) or (step.bits is None) != (step.lower is None):
        raise PackedError("expected both ends of an interval where there are bits, got one or none")
    if step.y is None and step.bits is None:
        raise PackedError("expected a layer with an output, got none")
    lead = list(x.shape[:-1])
    if step.form == "image":
        _check_padded(g, lead[0], lead[1], lead[2], most)
        size = g.out_size(*lead[1:])
        floats, bits = [lead[0], g.outputs, *size], [lead[0], *size]
    elif step.form == "line":
        _check_padded(g, lead[0], 1, lead[1], most)
        height, width = g.out_size(1, lead[1])
        if height != 1:
            raise PackedError(f"expected a height of 1, got {height}")
        floats, bits = [lead[0], g.outputs, width], [lead[0], width]
    elif step.form == "row":
        if g._replace(channels=1, outputs=1, groups=1) != Geometry(1, 1) or g.groups != 1:
            raise PackedError(f"expected a linear layer, got {g}")
        floats, bits = [*lead, g.outputs], lead
    else:
        _expect_bits(x, len(x.shape) if x.ndim in (3, 4) else 4, g.channels)
        if tuple(lead[1:]) != (g.kernel if x.ndim == 4 else g.kernel[1:]) or (x.ndim == 3 and g.kernel[0] != 1):
            raise PackedError(f"expected images of {g.kernel} pixels, got {lead[1:]}")
        if (g.stride, g.padding, g.dilation, g.groups) != ((1, 1), (0, 0), (1, 1), 1):
            raise PackedError(f"expected a linear layer over whole images, got {g}")
        floats, bits = [lead[0], g.outputs], lead[:1]
    if step.residual is not None:
        _expect(values[step.residual], floats, torch.float32)
    made = [] if step.y is None else [_empty(floats, torch.float32)]
    return made if step.bits is None else [*made, _empty([*bits, row_bytes(g.outputs)], torch.uint8)]


def _kept(step: Layer, tensors: dict[str, Tensor]) -> int:
    """The channels of a table's weights, of which those of the file may be the first of each plane."""
    g, weight = step.geometry, tensors[step.weight]
    each = g.channels // g.groups // step.planes
    if g.channels // g.groups != each * step.planes or (step.planes > 1 and (g.groups > 1 or each % 64)):
        raise PackedError(f"expected {step.planes} planes of whole words in one group, got {g}")
    kept = weight.shape[1] if weight.ndim == 4 else 0
    return kept if g.groups == 1 and not each % 64 and each - 64 < kept <= each else each


def _check_padded(g: Geometry, batch: int, height: int, width: int, most: int) -> None:
    """What a kernel may make of its input: a copy with a border, every group in words, or indices for tables."""
    (down, across), columns = g.padding, g.stride[1]
    pixels = batch * (height + 2 * down) * (width + 2 * across + columns)
    if (size := pixels * g.groups * 4 * math.ceil(g.channels / g.groups / 8)) > most:
        raise PackedError(f"expected padded images of at most {most:,} bytes, got {size:,}")


def _empty(sizes: list[int], dtype: torch.dtype) -> Tensor:
    if any(size < 0 for size in sizes) or math.prod(sizes) > _ENTRIES:
        raise PackedError(f"expected values of at most {_ENTRIES:,} entries, got {sizes}")
    return torch.empty(sizes, dtype=dtype, device="meta")


def _check_size(step: Step, value: Any, most: int) -> int:
    """The bytes of what a step makes."""
    total = 0
    for tensor in value if isinstance(value, (list, tuple)) else [value]:
        if not isinstance(tensor, Tensor):
            raise PackedError(f"{step.name}: expected a tensor, got {type(tensor).__name__}")
        if tensor.dtype not in operators.DTYPES:
            raise PackedError(f"{step.name}: expected values in float32 or whole numbers, got {tensor.dtype}")
        if _bytes(tensor) > most:
            raise PackedError(f"{step.name}: expected values of at most {most:,} bytes, got {list(tensor.shape)}")
        total += _bytes(tensor)
    return total


def _bytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * tensor.element_size()  # numel() may overflow


def _expect(tensor: Any, sizes: list[int], dtype: torch.dtype) -> None:
    if not isinstance(tensor, Tensor) or tensor.dtype != dtype or list(tensor.shape) != sizes:
        got = f"{tensor.dtype} {list(tensor.shape)}" if isinstance(tensor, Tensor) else type(tensor).__name__
        raise PackedError(f"expected {dtype} {sizes}, got {got}")


def _expect_channels(tensor: Tensor, channels: int) -> None:
    """A number of every channel, or one for all."""
    _expect(tensor, [1] if list(tensor.shape) == [1] else [channels], torch.float32)


def _expect_bits(x: Tensor, rank: int | None, channels: int | None) -> None:
    fits = x.dtype == torch.uint8 and x.ndim >= 1 and (rank is None or x.ndim == rank)
    if not fits or (x.shape[-1] % 8 if channels is None else x.shape[-1] != row_bytes(channels)):
        wanted = "whole words" if channels is None else f"{row_bytes(channels)} bytes"
        raise PackedError(f"expected bits of {wanted} a pixel, got {x.dtype} {list(x.shape)}")
