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

    "none": nothing. "flip": each image mirrored left to right with probability 1/2. "crop-flip": zero padding by
    size // 8, a random window of the original size, then "flip". "shift": moved by at most size // 16 (or 1), edges
    reflected. "shift-flip": this, and mirrored in every other epoch, one half of the images in the even ones and the
    other half in the odd ones (Jordan 2024, arXiv:2404.00498). Each image has its own draws.

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
    match preset:
        case "flip":
            return torch.where(
                _coins(len(images), generator).to(images.device)[:, None, None, None], images.flip(3), images
            )
        case "crop-flip":
            return crop_flip(images, generator)
        case _:
            seen = torch.arange(len(images), device="cpu") if rows is None else rows
            return shifted(images, generator, _turns(seen, epoch) & (preset == "shift-flip"))


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


def crop_flip(images: UInt8[Tensor, "b c h w"], generator: Generator) -> UInt8[Tensor, "b c h w"]:
    """Cut a random window of each padded image, mirrored with probability 1/2.

    Args:
        images: uint8 [b, C, H, W]; min(H, W) // 8 zeros are added on each side.
        generator: gives the draws.
    Returns:
        uint8 [b, C, H, W].
    """
    margin = min(images.shape[2:]) // PAD_SHARE
    offsets = torch.randint(0, 2 * margin + 1, (2, len(images)), generator=generator, device=generator.device)
    size = (images.shape[2], images.shape[3])
    return crop(pad(images, (margin,) * 4), size, offsets[0], offsets[1], _coins(len(images), generator))


def shifted(
    images: UInt8[Tensor, "b c h w"], generator: Generator, mirrored: Bool[Tensor, " b"]
) -> UInt8[Tensor, "b c h w"]:
    """Move each image by up to min(H, W) // 16 pixels (at least 1), edges reflected; some mirrored.

    Args:
        images: uint8 [b, C, H, W].
        generator: gives the moves.
        mirrored: bool [b], which ones are mirrored.
    Returns:
        uint8 [b, C, H, W].
    """
    smaller = min(images.shape[2:])
    margin = min(max(1, smaller // SHIFT_SHARE), smaller - 1)
    offsets = torch.randint(0, 2 * margin + 1, (2, len(images)), generator=generator, device=generator.device)
    padded = pad(images.float(), (margin,) * 4, mode="reflect").to(torch.uint8) if margin else images
    return crop(padded, (images.shape[2], images.shape[3]), offsets[0], offsets[1], mirrored)


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


def _coins(count: int, generator: Generator) -> Bool[Tensor, " b"]:
    return torch.rand(count, generator=generator, device=generator.device, dtype=torch.float64) < 0.5
