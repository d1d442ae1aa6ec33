# pyright: reportMissingImports=false, reportIndexIssue=false
"""What the Triton kernels share on the device: exponentials, conversions, loads and stores; kernels over whole tensors.

Arithmetic is float32. `fma` stands where one rounding is meant, as contraction is a setting of Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import (
    Any,
    no_type_check,  # keeps type checkers at run time away: Triton reads the functions' own source
)

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from htaf.core.kernels.formulas import Scalar
from htaf.core.kernels.native import TYPES, along_one_dimension, in_order_of, layout

INTERPRETED = tl.constexpr(knobs.runtime.interpret)
TWO_ROUNDINGS = tl.constexpr(knobs.runtime.interpret and int(triton.__version__.split(".")[1]) < 9)  # in tl.fma
PTX = tl.constexpr(not knobs.runtime.interpret and torch.version.hip is None)


@triton.jit
@no_type_check
def block_start(program, SIZE: tl.constexpr):
    """First index of a program's block, in int64: a tensor may hold more than 2^31 values."""
    return program.to(tl.int64) * SIZE


@triton.jit
@no_type_check
def widen(v):
    """float32 of v. The interpreter's own conversion loses the denormals of bfloat16."""
    if INTERPRETED and v.dtype == tl.bfloat16:
        wide = (v.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        wide = v.to(tl.float32)
    return wide


@triton.jit
@no_type_check
def narrow(v, DTYPE: tl.constexpr):
    """v rounded to nearest even. The interpreter's own conversion to bfloat16 truncates."""
    if INTERPRETED and tl.bfloat16 == DTYPE:
        b = v.to(tl.uint32, bitcast=True)
        b = tl.where(v == v, b + 0x7FFF + ((b >> 16) & 1), b | 0x400000)
        some = (b >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        some = v.to(DTYPE)
    return some


@triton.jit
@no_type_check
def fma(a, b, c):
    """a b + c, rounded once. Before Triton 3.9 the interpreter's own rounds twice."""
    if TWO_ROUNDINGS:
        v = (tl.cast(a, tl.float64) * tl.cast(b, tl.float64) + tl.cast(c, tl.float64)).to(tl.float32)
    else:
        v = tl.fma(a, b, c)
    return v


@triton.jit
@no_type_check
def at_most(v, bound):
    return tl.minimum(v, bound, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
@no_type_check
def at_least(v, bound):
    return tl.maximum(v, bound, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
@no_type_check
def exp2(v):
    """2^v by the processor's own instruction: relative error 2^-22, 0 below 2^-126."""
    if PTX:
        e = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [v], tl.float32, is_pure=True, pack=1)
    else:
        e = tl.exp2(v)
    return e


@triton.jit
@no_type_check
def reciprocal(v):
    """1 / v by the processor's own instruction: relative error 2^-23, 0 above 2^126; a fifth of a division's work."""
    if PTX:
        q = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [v], tl.float32, is_pure=True, pack=1)
    else:
        q = 1.0 / v
    return q


@triton.jit
@no_type_check
def quotient(n, d):
    """n / d by one Newton step: relative error 7e-8; d from 2^-126 to 2^126."""
    q = reciprocal(d)
    t = n * q
    return fma(fma(-d, t, n), q, t)


@triton.jit
@no_type_check
def times(p, HIGH: tl.constexpr, LOW: tl.constexpr):
    """p (HIGH + LOW) as a pair (high, low) of float32, relative error 2^-46."""
    high = p * HIGH
    return high, fma(p, LOW, fma(p, HIGH, -high))


@triton.jit
@no_type_check
def split(x, rate, BIAS: tl.constexpr):
    """(r, s) with 2^(x rate) = s 2^(127 - BIAS) 2^r, s a power of two and |r| <= 1/2.

    BIAS 159 gives s times 2^32, so that 2^-158 is still a normal number. Needs round(x rate) in [-BIAS, 255 - BIAS]; at
    the one end s is 0, at the other infinite.
    """
    magic: tl.constexpr = 12582912.0 + BIAS  # 1.5 2^23: a sum with it is rounded to an integer
    shifted = fma(x, rate, magic)
    r = fma(x, rate, magic - shifted)
    return r, (shifted.to(tl.int32, bitcast=True) << 23).to(tl.float32, bitcast=True)


@triton.jit
@no_type_check
def split_exp2(x, high, low, BIAS: tl.constexpr):
    """2^(x (high + low)) 2^(BIAS - 127), relative error 9e-8 before rounding."""
    r, s = split(x, high, BIAS)
    r = fma(x, low, r)
    q = fma(r, 1.32647273e-3, 9.67151299e-3)
    q = fma(q, r, 5.55073358e-2)
    q = fma(q, r, 2.40222424e-1)
    q = fma(q, r, 6.93147004e-1)
    return fma(q, r, 1.0) * s


@triton.jit
@no_type_check
def split_exp2_rough(x, rate):
    """2^(x rate), relative error 3e-6."""
    r, s = split(x, rate, 127)
    q = fma(r, 9.58285294e-3, 5.59064262e-2)
    q = fma(q, r, 2.40240991e-1)
    q = fma(q, r, 6.93124175e-1)
    return fma(q, r, 1.0) * s


@triton.jit
@no_type_check
def split_expm1_parts(x, high, low, BIAS: tl.constexpr):
    """(h, s) with 2^(x (high + low)) = (s + h) 2^(127 - BIAS), s a power of two; relative error of h 1.1e-8."""
    r, s = split(x, high, BIAS)
    r = fma(x, low, r)
    q = fma(r, 1.54035122e-4, 1.33907353e-3)
    q = fma(q, r, 9.61823761e-3)
    q = fma(q, r, 5.55035733e-2)
    q = fma(q, r, 2.40226492e-1)
    q = fma(q, r, 6.93147182e-1)
    return q * r * s, s


@triton.jit
@no_type_check
def split_expm1(x, high, low):
    """2^(x (high + low)) - 1, relative error 1.1e-8 before rounding."""
    h, s = split_expm1_parts(x, high, low, 127)
    return h + (s - 1.0)


@triton.jit
@no_type_check
def load_block(pointer, rest, SIZE: tl.constexpr):
    """SIZE values, or the `rest` that is left: only then with a mask, as a mask of unknown end forbids wide loads."""
    index = tl.arange(0, SIZE)
    if rest >= SIZE:  # noqa: SIM108
        v = tl.load(pointer + index)
    else:
        v = tl.load(pointer + index, mask=index < rest, other=0.0)
    return widen(v)


@triton.jit
@no_type_check
def store_block(pointer, value, rest, SIZE: tl.constexpr):
    index = tl.arange(0, SIZE)
    v = narrow(value, pointer.dtype.element_ty)
    if rest >= SIZE:
        tl.store(pointer + index, v)
    else:
        tl.store(pointer + index, v, mask=index < rest)


# ---- kernels that go over a whole tensor for any activation, and their launch ----

OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}  # the rounding that is written, as in the interpreter
BYTES = 4096  # of one operand that a program takes at a time: two 16-byte loads a thread
SHORT_ROW = 128  # an inner length below this is folded into the channels
LEAST_PROGRAMS = 1024  # a program goes on to further tiles only when there are this many programs
MOST_TILES = 16


@triton.jit
@no_type_check
def forward_kernel(x, y, n, p0, p1, scale, shift, DERIVE: tl.constexpr, VALUE: tl.constexpr, SIZE: tl.constexpr):
    """y = VALUE(x) for n values and two float parameters."""
    HALF: tl.constexpr = x.dtype.element_ty.primitive_bitwidth == 16
    start = block_start(tl.program_id(0), SIZE)
    v = load_block(x + start, n - start, SIZE)
    constants = DERIVE(tl.cast(p0, tl.float32), tl.cast(p1, tl.float32), scale)
    store_block(y + start, VALUE(v, constants, scale, shift, HALF), n - start, SIZE)


@triton.jit
@no_type_check
def backward_kernel(grad, x, out, n, p0, p1, scale, DERIVE: tl.constexpr, GRADIENT: tl.constexpr, SIZE: tl.constexpr):
    """out = GRADIENT(grad, x) for n values and two float parameters."""
    HALF: tl.constexpr = x.dtype.element_ty.primitive_bitwidth == 16
    start = block_start(tl.program_id(0), SIZE)
    g = load_block(grad + start, n - start, SIZE)
    v = load_block(x + start, n - start, SIZE)
    constants = DERIVE(tl.cast(p0, tl.float32), tl.cast(p1, tl.float32), scale)
    gx, _, _ = GRADIENT(g, v, constants, HALF)
    store_block(out + start, gx, n - start, SIZE)


@triton.jit
@no_type_check
def first_tile(program, across, units, BY_ROW: tl.constexpr, TILES: tl.constexpr, UNIT: tl.constexpr,
               HEIGHT: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """Rows and columns of a program's first tile, and how many columns there are: all int64."""
    down, over = program // across, program % across
    row = block_start(down, HEIGHT if BY_ROW else HEIGHT * TILES) + tl.arange(0, HEIGHT)
    column = block_start(over, WIDTH * TILES if BY_ROW else WIDTH) + tl.arange(0, WIDTH)
    return row, column, tl.cast(units, tl.int64) * UNIT


@triton.jit
@no_type_check
def channels_kernel(
    grad, x, out, sums, p0, p1, rows, units, channels, repeat, across, scale, shift,
    DERIVE: tl.constexpr, FUNCTION: tl.constexpr, SUMS: tl.constexpr, BACKWARD: tl.constexpr, BY_ROW: tl.constexpr,
    TILES: tl.constexpr, UNIT: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """A matrix of `rows` rows and `units` * UNIT columns; the parameters are tensors.

    BY_ROW: row r has parameters r % channels and a program takes TILES tiles side by side; else column c has
    parameters c // repeat and the tiles lie below one another. UNIT, a power of two: what loads may take in one piece.
    SUMS: how many sums over a program's tiles go to sums [SUMS, groups, rows or columns].
    """
    HALF: tl.constexpr = x.dtype.element_ty.primitive_bitwidth == 16
    row, column, columns = first_tile(tl.program_id(0), across, units, BY_ROW, TILES, UNIT, HEIGHT, WIDTH)
    if BY_ROW:
        of, line, lines = row % channels, row, rows
        group, groups = tl.program_id(0) % across, across
    else:
        of, line, lines = column // repeat, column, columns
        group, groups = tl.program_id(0) // across, tl.num_programs(0) // across
    inside = line < lines
    place = tl.cast(group, tl.int64) * lines + line
    axis: tl.constexpr = 1 if BY_ROW else 0  # along which is summed
    a = tl.expand_dims(tl.load(p0 + of, mask=inside, other=1.0).to(tl.float32), axis)
    b = tl.expand_dims(tl.load(p1 + of, mask=inside, other=1.0).to(tl.float32), axis)
    nan = float("nan")  # for parameters that the formulas do not hold for
    constants = DERIVE(tl.where(a > 0, a, nan), tl.where(b > 0, b, nan), scale)
    total0 = tl.zeros([HEIGHT, WIDTH], tl.float32)
    total1 = tl.zeros([HEIGHT, WIDTH], tl.float32)
    for tile in range(TILES):
        r = row if BY_ROW else row + tile * HEIGHT
        c = column + tile * WIDTH if BY_ROW else column
        offset = r[:, None] * columns + c[None, :]
        mask = (r < rows)[:, None] & (c < columns)[None, :]
        v = widen(tl.load(x + offset, mask=mask, other=0.0))
        if BACKWARD:
            g = widen(tl.load(grad + offset, mask=mask, other=0.0))
            result, term0, term1 = FUNCTION(g, v, constants, HALF)
            total0 += term0
            total1 += term1
        else:
            result = FUNCTION(v, constants, scale, shift, HALF)
        tl.store(out + offset, narrow(result, out.dtype.element_ty), mask=mask)
    if SUMS > 0:
        tl.store(sums + place, tl.sum(total0, axis), mask=inside)
    if SUMS > 1:
        tl.store(sums + tl.cast(groups, tl.int64) * lines + place, tl.sum(total1, axis), mask=inside)


def supports(x: Tensor, *parameters: Scalar) -> bool:
    """Whether the kernels take these: 32 or 16 bits; parameters floats, or tensors that vary along one dimension."""
    first = parameters[0] if parameters else 0.0
    if x.dtype not in TYPES:
        return False
    if not isinstance(first, Tensor):
        return not any(isinstance(p, Tensor) for p in parameters)
    return along_one_dimension(x, parameters)


def on_device(x: Tensor) -> AbstractContextManager[Any]:
    """Triton launches on the current device, which need not be that of x."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def block_size(x: Tensor) -> int:
    return BYTES // x.element_size()


def run_forward(x: Tensor, parameters: tuple[Scalar, ...], bipolar: bool, derive: Any, value: Any) -> Tensor:
    """VALUE of x, in memory order; the result has the strides of x where x is dense."""
    y = torch.empty_like(x)
    x = in_order_of(x, y)
    scale, shift = (2.0, -1.0) if bipolar else (1.0, 0.0)
    first, last = parameters[0], parameters[-1]
    if not x.numel():
        return y
    if isinstance(first, Tensor):
        _run_channels(y, x, y, parameters, scale, shift, derive, value, backward=False, sums=0)
        return y
    size = block_size(x)
    with on_device(x):
        forward_kernel[(triton.cdiv(x.numel(), size),)](
            x, y, x.numel(), first, last, scale, shift, derive, value, size, **OPTIONS
        )
    return y


def run_backward(
    grad: Tensor, x: Tensor, parameters: tuple[Scalar, ...], scale: float, derive: Any, gradient: Any,
    finish: Callable[..., tuple[Tensor, ...]] | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradient of x and, where `finish(sums, *parameters)` says what the sums lack, those of the parameters."""
    gx = torch.empty_like(x)
    x, grad = in_order_of(x, gx), in_order_of(grad, gx)
    first, last = parameters[0], parameters[-1]
    if isinstance(first, Tensor):
        count = len(parameters) if finish else 0
        sums = _run_channels(grad, x, gx, parameters, scale, 0.0, derive, gradient, backward=True, sums=count)
        if finish is None:
            return (gx,)
        wide = [p.detach().float().double().reshape(-1) for p in parameters if isinstance(p, Tensor)]
        pairs = zip(finish(sums, *wide), parameters, strict=True)
        return gx, *(d.reshape(p.shape).to(p.dtype) for d, p in pairs if isinstance(p, Tensor))
    size = block_size(x)
    if x.numel():
        with on_device(x):
            backward_kernel[(triton.cdiv(x.numel(), size),)](
                grad, x, gx, x.numel(), first, last, scale, derive, gradient, size, **OPTIONS
            )
    return (gx,)


def _run_channels(
    grad: Tensor, x: Tensor, out: Tensor, parameters: tuple[Any, ...], scale: float, shift: float, derive: Any,
    function: Any, *, backward: bool, sums: int,
) -> Tensor:  # fmt: skip
    """Launches `channels_kernel`; returns its sums, float64 [sums, channels], if any."""
    p0, p1 = (parameters[i].detach().reshape(-1).contiguous() for i in (0, -1))
    if not x.numel():
        return x.new_zeros((sums, p0.numel()), dtype=torch.float64)
    outer, channels, inner = layout(out, parameters[0])
    by_row = channels == 1 or inner >= SHORT_ROW
    rows, columns = (outer * channels, inner) if by_row else (outer, channels * inner)
    unit = min(16, columns & -columns)
    size = block_size(x)
    width = _width(columns, SHORT_ROW, size) if by_row else _width(columns, 32, max(SHORT_ROW, size // rows))
    height = min(triton.next_power_of_2(rows), size // width)
    all_tiles = triton.cdiv(columns, width) if by_row else triton.cdiv(rows, height)  # along the axis of the sums
    tiles = max(1, min(MOST_TILES, all_tiles, x.numel() // (size * LEAST_PROGRAMS)))
    groups = triton.cdiv(all_tiles, tiles)
    tiles = triton.cdiv(all_tiles, groups)
    others = triton.cdiv(rows, height) if by_row else triton.cdiv(columns, width)
    across = groups if by_row else others
    shape = (groups, outer, channels, 1) if by_row else (groups, 1, channels, inner)
    partial = torch.empty((sums, *shape), dtype=torch.float32, device=x.device)
    with on_device(x):
        channels_kernel[(groups * others,)](
            grad, x, out, partial, p0, p1, rows, columns // unit, channels, inner, across, scale, shift,
            derive, function, sums, backward, by_row, tiles, unit, height, width, **OPTIONS,
        )  # fmt: skip
    return partial.sum((1, 2, 4), dtype=torch.float64) if sums else partial


def _width(columns: int, least: int, most: int) -> int:
    """A power of two: the widest of those that overhang the columns least, in steps of a tenth."""
    most = min(triton.next_power_of_2(columns), 1 << (most.bit_length() - 1))
    widths = [1 << i for i in range(most.bit_length()) if 1 << i >= min(least, most)]
    return min(widths, key=lambda w: (10 * w * triton.cdiv(columns, w) // columns, -w))
