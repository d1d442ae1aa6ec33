"""Convolution of activations 0 and 1 with real weights: sums of subsets of the weights, looked up in tables.

float32: sums of the weights of those inputs that are 1, rounded as float32 additions round.

int16, int8: the inputs of a tap are cut into triples, anew at every 64 channels of a group; two triples are a six, the
last one of 64 channels may be smaller. For every output and triple there are 8 entries

    q[pattern] = round(sum of the weights whose bit of the pattern is set / unit), halves to even,

and a layer's sum is float32(sum of the integers q of all triples) * unit, one unit an output: the smallest for which
the ranges (largest - smallest) of the entries of 16 (int16) or 2 (int8) sixes in a row, over all taps, add up to what
16 or 8 bits hold. Every implementation gives the same integers.

fours: weights that are integers, whose sums are exact. The inputs of a tap are cut into fours, with 16 entries each.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from htaf.core.kernels.layers import Epilogue, Geometry, Outputs, bind_of
from htaf.core.kernels.packed_maps import reference as maps

Kind = Literal["float32", "int16", "int8"]
Entries = Literal[Kind, "fours"]

PATTERNS = torch.tensor(  # [triple, 8]
    [[p >> b & 1 for p in range(8)] for b in range(3)], dtype=torch.float64, device="cpu"
)
FOUR = torch.tensor(  # [four, 16]
    [[p >> b & 1 for p in range(16)] for b in range(4)], dtype=torch.float64, device="cpu"
)
ENTRIES = {"int16": torch.int16, "int8": torch.uint8}  # int16 holds the bits of an unsigned one
SIXES = {"int16": 16, "int8": 2}  # in a row, whose sum fits an entry
LARGEST = {"int16": 65535, "int8": 255}


class Weights(NamedTuple):
    """Made by `prepare`: what `forward` takes.

    values: float32 [outputs, taps, ceil(channels of a group / 32), 32], 0 beyond the channels; or int16 (unsigned) or
        uint8 [outputs, taps, sixes, 2, 8], the entries q - the smallest of their 8; or of fours uint8 [outputs, taps,
        ceil(channels of a group / 16), 4, 16].
    unit: float32 [outputs], 1 for float32.
    bias: int32 [outputs], what was added to the sum of all q: - the sum of the smallest ones; 0 for float32.
    error: float64 [outputs], a bound of |sum - exact sum| over all activations, rounding of float32 left aside: reached
        by the pattern of every triple that errs most in one direction.
    """

    values: Tensor
    kind: Entries
    unit: Tensor
    bias: Tensor
    error: Tensor


def prepare(weight: Tensor, geometry: Geometry, kind: Kind, *, whole: bool = False) -> Weights:
    """From float32 [outputs, channels / groups, kernel height, kernel width].

    whole: the weights are integers, and int16 or int8 is to hold their sums exactly: the unit is 1.

    Raises:
        TypeError, ValueError: weights of another type or shape, or not finite; sums that 32 bits do not hold; with
            whole weights that are no integers, or whose sums are too large, see `holds`.
    """
    g = geometry
    _check(weight, g, kind)
    taps = weight.detach().permute(0, 2, 3, 1).flatten(1, 2)  # [outputs, taps, channels]
    per_group, outputs = taps.shape[-1], g.outputs
    zeros = torch.zeros(outputs, dtype=torch.float64, device=weight.device)
    if kind == "float32":
        values = pad(taps, (0, -per_group % 32)).unflatten(-1, (-1, 32)).contiguous()
        return Weights(values, kind, zeros.float() + 1, zeros.int(), zeros)
    exact = triples(taps.double()) @ PATTERNS  # [outputs, taps, sixes, 2, 8]
    widths = ranges(taps.double(), kind)
    # rounding widens the range of a triple by 1 at most; a little more for the rounding of the unit itself
    unit = (widths * (1 + 1e-6) / (LARGEST[kind] - 2 * SIXES[kind])).clamp_min(torch.finfo(torch.float32).tiny).float()
    unit = torch.where(widths == 0, 1.0, unit)
    if whole:
        if not bool((weight == weight.round()).all() and (widths <= LARGEST[kind]).all()):
            raise ValueError(f"expected integers whose sums of {SIXES[kind]} sixes range over {LARGEST[kind]} at most")
        unit = torch.ones_like(unit)
    q = (exact / unit.double().view(-1, 1, 1, 1, 1)).round()
    least = q.amin(-1, keepdim=True)
    entries, bias = q - least, -least.flatten(1).sum(1)
    largest = entries.amax(-1).flatten(1).sum(1)
    if not (unit.isfinite().all() and largest.lt(2**31).all()):
        raise ValueError(f"expected weights whose sums in units fit 31 bits, got up to {float(largest.max()):.3g}")
    off = (q * unit.double().view(-1, 1, 1, 1, 1) - exact).flatten(1, -2)
    error = torch.maximum(off.amax(-1).sum(1), -off.amin(-1).sum(1))
    return Weights(entries.to(torch.int32).to(ENTRIES[kind]).contiguous(), kind, unit, bias.int(), error)


def prepare_whole(weight: Tensor, geometry: Geometry) -> Weights | None:
    """The fastest tables that hold the sums of integer weights exactly; None where none do. Args: as `prepare`."""
    return prepare(weight, geometry, "int8", whole=True) if holds(weight, "int8") else None


def fours(weight: Tensor, geometry: Geometry) -> Weights | None:
    """Tables of the sums of four integer weights; None where a byte does not hold them. Args: as `prepare`."""
    _check(weight, geometry, "int8")
    taps = weight.detach().double().permute(0, 2, 3, 1).flatten(1, 2)  # [outputs, taps, channels]
    each = pad(taps, (0, -taps.shape[-1] % 16)).unflatten(-1, (-1, 4, 4))
    if not bool((weight == weight.round()).all() and (each.abs().sum(-1) <= LARGEST["int8"]).all()):
        return None
    exact = each @ FOUR  # [outputs, taps, sixteens, 4, 16]
    least = exact.amin(-1, keepdim=True)
    zeros = torch.zeros(geometry.outputs, dtype=torch.float64, device=weight.device)
    bias = -least.flatten(1).sum(1)
    return Weights((exact - least).to(torch.uint8).contiguous(), "fours", zeros.float() + 1, bias.int(), zeros)


def holds(weight: Tensor, kind: Kind) -> bool:
    """Whether tables of this kind hold the sums of integer weights [outputs, channels, height, width] exactly."""
    return bool((ranges(weight.double().permute(0, 2, 3, 1).flatten(1, 2), kind) <= LARGEST[kind]).all())


def ranges(taps: Tensor, kind: Kind) -> Tensor:
    """[outputs]: how far apart sums of 16 (int16) or 2 (int8) sixes in a row may be; taps [outputs, taps, channels]."""
    sixes = triples(taps.abs()).sum((-1, -2)).flatten(1)
    return pad(sixes, (0, -sixes.shape[1] % SIXES[kind])).unflatten(1, (-1, SIXES[kind])).sum(-1).amax(-1)


def forward(bits: Tensor, weights: Weights, geometry: Geometry, epilogue: Epilogue) -> Outputs:
    """Bits [batch, height, width, row_bytes(channels)] -> y [batch, out height, out width, outputs] and its bits."""
    g, per_group = geometry, geometry.channels // geometry.groups
    images = maps.unpack(bits, g.channels)
    where = (g.stride, g.padding, g.dilation, g.groups)
    if weights.kind == "fours":
        entries = weights.values.double()
        each = (entries - entries[..., :1])[..., [1, 2, 4, 8]]  # the patterns of one input
        weight = each.flatten(2)[..., :per_group].unflatten(1, g.kernel).permute(0, 3, 1, 2)
        sums = conv2d(images.double().permute(0, 3, 1, 2), weight, None, *where).float()
    elif weights.kind == "float32":
        weight = weights.values.flatten(2)[..., :per_group].unflatten(1, g.kernel).permute(0, 3, 1, 2)
        sums = conv2d(images.permute(0, 3, 1, 2), weight, None, *where)
    else:
        images = triples(images.unflatten(-1, (g.groups, per_group)))
        pattern = (images @ torch.tensor([1.0, 2.0, 4.0])).long()
        chosen = torch.nn.functional.one_hot(pattern, 8).double().flatten(3).permute(0, 3, 1, 2)
        entries = weights.values.int() & LARGEST[weights.kind]
        q = (entries - entries[..., :1]).double()  # the pattern 0, which padding has too, counts 0
        q = q.flatten(2).unflatten(1, g.kernel).permute(0, 3, 1, 2)
        sums = conv2d(chosen, q, None, *where).float() * weights.unit.view(-1, 1, 1)
    return maps.finish(sums.permute(0, 2, 3, 1).contiguous(), epilogue)


def triples(values: Tensor) -> Tensor:
    """[..., channels of a group] -> [..., sixes, 2, 3] with zeros beyond, 11 sixes for every 64 channels."""
    channels = values.shape[-1]
    whole, rest = divmod(channels, 64)
    parts = [pad(values[..., : 64 * whole].unflatten(-1, (whole, 64)), (0, 2)).flatten(-2)] if whole else []
    if rest:
        parts.append(pad(values[..., 64 * whole :], (0, -rest % 6)))
    return torch.cat(parts, -1).unflatten(-1, (-1, 2, 3))


def _check(weight: Tensor, g: Geometry, kind: Kind) -> None:
    if kind not in ("float32", *ENTRIES):
        raise ValueError(f"kind must be float32, int16 or int8, got {kind!r}")
    g.check()
    expected = (g.outputs, g.channels // g.groups, *g.kernel)
    if weight.dtype != torch.float32 or weight.device.type != "cpu":
        raise TypeError(f"weight must be float32 on the CPU, got {weight.dtype} on {weight.device}")
    if tuple(weight.shape) != expected:
        raise ValueError(f"expected weight {expected}, got {tuple(weight.shape)}")
    if not weight.isfinite().all():
        raise ValueError(f"expected finite weights, got {int((~weight.isfinite()).sum())} of {math.prod(expected)} not")


bind = bind_of(forward)
