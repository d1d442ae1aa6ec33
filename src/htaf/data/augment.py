"""Random changes to batches of images, each a function of an explicit generator."""

from __future__ import annotations

from typing import get_args

import numpy as np
import torch
from jaxtyping import Bool, Int64, UInt8
from torch import Generator, Tensor
from torch.nn.functional import pad

from htaf._ground.names import Augment

PAD_SHARE = 8  # "crop-flip" pads by size // 8: 4 pixels at 32
SHIFT_SHARE = 16  # "shift" moves by size // 16: 2 pixels at 32, 1 below


def augment(
    preset: Augment,
    images: UInt8[Tensor, "b c h w"],
    key: int,
    *,
    rows: Int64[Tensor, " b"] | None = None,
    epoch: int = 0,
) -> UInt8[Tensor, "b c h w"]:
    """Apply a preset, with every random draw a function of `key` (and of the number and size of the images).

    "none": nothing. "crop-flip": zero padding by size // 8, a random window of the original size, mirrored left to
    right with probability 1/2. "shift": moved by at most size // 16 (or 1), edges reflected. "shift-flip": this, and
    mirrored in every other epoch, one half of the images in the even ones and the other half in the odd ones (Jordan
    2024, arXiv:2404.00498). Each image has its own draws. The size is the shorter side.

    Args:
        preset: one of the names.
        images: uint8 [b, C, H, W].
        key: one for each batch, >= 0; the same key gives the same draws.
        rows: which image each one is, for "shift-flip"; None: counted from 0.
        epoch: how often the images were seen before, for "shift-flip".
    Returns:
        uint8 [b, C, H, W].
    Raises:
        ValueError: an unknown preset, or a negative key.
    """
    check_preset(preset)
    generator = generator_of(key)
    if preset == "none" or not len(images):
        return images
    height, width = images.shape[2:]
    by_chance, shorter = preset == "crop-flip", min(height, width)
    margin = shorter // PAD_SHARE if by_chance else min(max(1, shorter // SHIFT_SHARE), shorter - 1)
    top, left = torch.randint(0, 2 * margin + 1, (2, len(images)), generator=generator, device="cpu")
    if by_chance:
        mirrored = torch.rand(len(images), generator=generator, device="cpu", dtype=torch.float64) < 0.5
    else:
        seen = torch.arange(len(images), device="cpu") if rows is None else rows
        mirrored = _turns(seen, epoch) & (preset == "shift-flip")
    how, kind = ("constant", torch.uint8) if by_chance else ("reflect", torch.float32)  # whole numbers do not reflect
    padded = pad(images.to(kind), (margin,) * 4, mode=how).to(torch.uint8) if margin else images
    return crop(padded, (height, width), top, left, mirrored)


def check_preset(preset: str) -> None:
    """Raise ValueError for an unknown preset."""
    if preset not in get_args(Augment):
        raise ValueError(f"augment: expected one of {', '.join(get_args(Augment))}, got {preset!r}")


def generator_of(key: int) -> Generator:
    """Return a generator for a key; keys that differ in one bit give unrelated draws.

    Args:
        key: a whole number >= 0, of any size.
    """
    if key < 0:
        raise ValueError(f"key must be >= 0, got {key}")
    seed = np.random.SeedSequence(key).generate_state(1, np.uint64)  # the generator itself wants a well mixed seed
    return Generator("cpu").manual_seed(int(seed[0]) >> 1)


def _turns(rows: Int64[Tensor, " b"], epoch: int) -> Bool[Tensor, " b"]:
    """Return which images are mirrored in an epoch: one half of them in the even ones, the other half in the odd
    ones."""
    return ((rows.cpu() * 2654435761 >> 16) + epoch) % 2 == 1  # Knuth's multiplicative hash: halves of any order


def crop(
    images: UInt8[Tensor, "b c h w"],
    size: tuple[int, int],
    top: Int64[Tensor, " b"],
    left: Int64[Tensor, " b"],
    flip: Bool[Tensor, " b"],
) -> UInt8[Tensor, "b c2 h2 w2"]:
    """Cut given windows of the images, mirrored where `flip` says so.

    Args:
        images: uint8 [b, C, H, W].
        size: height and width of a window.
        top, left: int64 [b], where each window begins.
        flip: bool [b].
    Returns:
        uint8 [b, C, *size].
    """
    count, channels = images.shape[:2]
    height, width = size
    columns = torch.arange(width, device=left.device)
    columns = torch.where(flip[:, None], width - 1 - columns, columns) + left[:, None]
    rows = torch.arange(height, device=top.device) + top[:, None]
    places = rows[:, :, None] * images.shape[3] + columns[:, None, :]
    index = places.view(count, 1, -1).expand(-1, channels, -1).to(images.device)
    return images.reshape(count, channels, -1).gather(2, index).view(count, channels, height, width)
