# pyright: reportMissingImports=false, reportIndexIssue=false
"""What the Triton kernels share on the device: exponentials, conversions, loads and stores. Launches: triton_maps.py.

Arithmetic is float32. `fma` stands where one rounding is meant, as contraction is a setting of Triton.
"""

from __future__ import annotations

from typing import no_type_check  # keeps type checkers at run time away: Triton reads the functions' own source

import torch
import triton
import triton.language as tl
from triton import knobs

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
