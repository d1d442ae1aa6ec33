"""AugMix on a whole batch: each image has its own chains of operations, and one call serves all of them.

After Hendrycks et al., "AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty" (ICLR 2020), and
the levels of its published code. What a colour operation does to a pixel depends on its value alone, so each becomes a
table of 256 entries; the geometric ones are affine maps.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64, Int64, UInt8
from torch import Generator, Tensor
from torch.nn.functional import grid_sample

OPERATIONS = (
    *("autocontrast", "equalize", "posterize", "solarize"),
    *("rotate", "shear x", "shear y", "translate x", "translate y"),
)
COLOURS = 4  # the first four change values, the others move pixels
WIDTH, DEPTH, SEVERITY = 3, 3, 3  # chains, most operations in a chain, strength of 10


def augmix(images: UInt8[Tensor, "b c h w"], generator: Generator) -> UInt8[Tensor, "b c h w"]:
    """Each image mixed with a mixture of three chains of one to three random operations.

        (1 - m) x + m (w1 chain1(x) + w2 chain2(x) + w3 chain3(x)),  m ~ Beta(1, 1),  w ~ Dirichlet(1, 1, 1)

    The result is rounded to whole values, where the published code mixes normalised images.

    Args:
        images: uint8 [b, C, H, W].
        generator: gives the draws.
    Returns:
        uint8 [b, C, H, W].
    """
    count, device = len(images), images.device
    options = {"generator": generator, "device": generator.device}
    part = torch.rand(1, count, **options)  # Beta(1, 1) is uniform
    weights = torch.empty(WIDTH, count, device=generator.device).exponential_(generator=generator)
    weights = (part * weights / weights.sum(0)).to(device)  # exponentials over their sum are Dirichlet
    lengths = torch.randint(1, DEPTH + 1, (WIDTH * count,), **options)
    chosen = torch.randint(0, len(OPERATIONS), (DEPTH, WIDTH * count), **options)
    levels = 0.1 + (SEVERITY - 0.1) * torch.rand(DEPTH, WIDTH * count, dtype=torch.float64, **options)
    signs = torch.randint(0, 2, (DEPTH, WIDTH * count), **options) * 2 - 1
    changed = images.repeat(WIDTH, 1, 1, 1)  # the chains one below the other
    for place in range(DEPTH):
        rows = (lengths > place).nonzero()[:, 0]
        picked = rows.to(device)
        changed[picked] = operate(changed[picked], chosen[place, rows], levels[place, rows], signs[place, rows])
    mixed = images.to(torch.float32).mul_((1 - part).to(device).view(-1, 1, 1, 1))
    for weight, chain in zip(weights, changed.chunk(WIDTH), strict=True):
        mixed += chain.to(torch.float32).mul_(weight.view(-1, 1, 1, 1))
    return mixed.round_().clamp_(0, 255).to(torch.uint8)


def operate(
    images: UInt8[Tensor, "b c h w"],
    chosen: Int64[Tensor, " b"],
    levels: Float64[Tensor, " b"],
    signs: Int64[Tensor, " b"],
) -> UInt8[Tensor, "b c h w"]:
    """One operation on each image.

    Args:
        images: uint8 [b, C, H, W].
        chosen: int64 [b], places in `OPERATIONS`.
        levels: float64 [b], strength, 0 to 10.
        signs: int64 [b], -1 or 1, the direction of a geometric operation.
    Returns:
        uint8 [b, C, H, W].
    """
    result = images.clone()
    moved = (chosen >= COLOURS).nonzero()[:, 0]
    if len(moved):
        maps = _maps(chosen[moved], levels[moved], signs[moved], images.shape[3], images.shape[2])
        result[moved.to(images.device)] = _move(images[moved.to(images.device)], maps)
    coloured = (chosen < COLOURS).nonzero()[:, 0]
    if len(coloured):
        place = coloured.to(images.device)
        some = images[place]
        tables = _tables(some, chosen[coloured].to(images.device), levels[coloured].to(images.device))
        result[place] = tables.gather(2, some.flatten(2).long()).view(some.shape)
    return result


def _tables(some: Tensor, chosen: Tensor, levels: Tensor) -> UInt8[Tensor, "b c 256"]:
    """For each image and channel what becomes of each value."""
    values = torch.arange(256, device=some.device)
    tables = values.expand(*some.shape[:2], 256).clone()
    for number, name in enumerate(OPERATIONS[:COLOURS]):
        rows = (chosen == number).nonzero()[:, 0]
        if not len(rows):
            continue
        level = levels[rows]
        match name:
            case "autocontrast":
                tables[rows] = _stretched(some[rows])
            case "equalize":
                tables[rows] = _equalized(some[rows])
            case "posterize":
                low = 8 - (4 - (level * 4 / 10).long())  # the bits that are cleared
                tables[rows] = ((values >> low[:, None]) << low[:, None])[:, None]
            case _:
                threshold = 256 - (level * 256 / 10).long()
                tables[rows] = torch.where(values < threshold[:, None], values, 255 - values)[:, None]
    return tables.to(torch.uint8)


def _stretched(some: Tensor) -> Int64[Tensor, "b c 256"]:
    """The darkest value becomes 0, the brightest 255."""
    flat = some.flatten(2).double()
    low, high = flat.amin(2, keepdim=True), flat.amax(2, keepdim=True)
    values = torch.arange(256, device=some.device, dtype=torch.float64)
    scale = 255 / (high - low).clamp(min=1)
    stretched = (values * scale - low * scale).clamp(0, 255).long()
    return torch.where(high > low, stretched, values.long())


def _equalized(some: Tensor) -> Int64[Tensor, "b c 256"]:
    """A flat histogram, by the whole-number rule of PIL."""
    count, channels = some.shape[:2]
    offsets = 256 * torch.arange(count * channels, device=some.device)
    histogram = torch.bincount((some.reshape(count * channels, -1) + offsets[:, None]).flatten(), minlength=0)
    histogram = torch.nn.functional.pad(histogram, (0, 256 * count * channels - len(histogram)))
    histogram = histogram.view(count, channels, 256)
    values = torch.arange(256, device=some.device)
    last = torch.where(histogram > 0, values, -1).amax(2, keepdim=True)
    step = (histogram.sum(2, keepdim=True) - histogram.gather(2, last)) // 255
    before = histogram.cumsum(2) - histogram
    equalized = ((step // 2 + before) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, equalized, values)


def _maps(chosen: Tensor, levels: Tensor, signs: Tensor, width: int, height: int) -> Float64[Tensor, "b 2 3"]:
    """For each image the affine map from a place in the result to the place that is read, in pixels."""
    maps = torch.eye(2, 3, dtype=torch.float64, device=chosen.device).repeat(len(chosen), 1, 1)
    for number in range(COLOURS, len(OPERATIONS)):
        rows = (chosen == number).nonzero()[:, 0]
        level, sign = levels[rows], signs[rows]
        match OPERATIONS[number]:
            case "rotate":
                turn = -(level * 30 / 10).trunc() * sign * math.pi / 180
                cos, sin = turn.cos(), turn.sin()
                across = width / 2 * (1 - cos) - height / 2 * sin
                down = height / 2 * (1 - cos) + width / 2 * sin
                entries = torch.stack((cos, sin, across, -sin, cos, down), 1)
                maps[rows] = entries.view(-1, 2, 3)
            case "shear x":
                maps[rows, 0, 1] = level * 0.3 / 10 * sign
            case "shear y":
                maps[rows, 1, 0] = level * 0.3 / 10 * sign
            case "translate x":
                maps[rows, 0, 2] = (level * (width / 3) / 10).trunc() * sign
            case _:
                maps[rows, 1, 2] = (level * (height / 3) / 10).trunc() * sign
    return maps


def _move(some: Tensor, maps: Tensor) -> UInt8[Tensor, "b c h w"]:
    """Bilinear; what comes from outside is 0."""
    height, width = some.shape[2:]
    x = torch.arange(width, device=maps.device, dtype=maps.dtype) + 0.5
    y = torch.arange(height, device=maps.device, dtype=maps.dtype) + 0.5
    places = maps[:, None, None, :, 0] * x[:, None] + maps[:, None, None, :, 1] * y[:, None, None]
    places = places + maps[:, None, None, :, 2]
    size = torch.tensor([width, height], dtype=maps.dtype, device=maps.device)
    inside = ((places >= 0) & (places < size)).all(3)[:, None].to(some.device)
    grid = (places * (2 / size) - 1).to(some.device, torch.float32)
    moved = grid_sample(some.to(torch.float32), grid, mode="bilinear", padding_mode="border", align_corners=False)
    return (moved.round_() * inside).to(torch.uint8)
