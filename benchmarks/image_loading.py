"""Images a second that `ImageDataset` loads, augments and normalises, in batches of 128.

CIFAR-10 from memory with each preset on one thread, and CUB files at 112 pixels decoded by one and two threads. Where
HTAF_DATA does not hold a set, its rows are left out.
"""

from __future__ import annotations

import time
from typing import Any, get_args
from unittest import mock

import measuring
import torch
from torch import Tensor

from htaf.data import image_reading
from htaf.data.images import ImageDataset, Images, fit_preprocessor, load
from htaf.data.reading import DataError
from htaf.names import Augment

BATCH = 128
TARGET = 20_000  # images a second, CIFAR-10 with crop-flip on one thread


def found(name: str, size: int | None = None) -> Images | None:
    try:
        return load(name, size=size, download=False)
    except DataError as error:
        print(error)
        return None


def rates(dataset: ImageDataset, batches: list[Tensor], rounds: int) -> measuring.Spread:
    """Images a second in each round over all batches."""
    dataset[batches[0], 0]
    measured = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for key, rows in enumerate(batches):
            dataset[rows, key]
        measured.append(sum(map(len, batches)) / (time.perf_counter() - begin))
    return measuring.spread(measured)


def row(images: Images, preset: Augment, threads: int, speed: measuring.Spread) -> dict[str, Any]:
    median, low, high = (round(value) for value in speed)
    print(f"{images.name:8} {preset:18} {threads} thread(s)   {median:>9,} images/s ({low:,}-{high:,})")
    return {"set": images.name, "size": images.train.size, "preset": preset, "threads": threads, "images_per_s": speed}


def main() -> None:
    args = measuring.parser(__doc__, rounds=5).parse_args()
    if not args.no_test:
        measuring.test_first("data/test_augment.py", "data/test_images.py")
    measuring.warn_when_busy()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    if (images := found("cifar10")) is not None:
        order = torch.randperm(len(images.train), generator=torch.Generator().manual_seed(0))
        preprocessor = fit_preprocessor(images, order)
        for preset in get_args(Augment):
            batches = list(order[: BATCH * (10 if preset == "augmix" else 100)].split(BATCH))
            speed = rates(ImageDataset(images.train, preprocessor, preset), batches, args.rounds)
            rows.append(row(images, preset, 1, speed))
        reached = next(entry["images_per_s"].median for entry in rows if entry["preset"] == "crop-flip")
        print(f"target {TARGET:,} with crop-flip: {'met' if reached > TARGET else 'missed'}")
    if (images := found("cub", 112)) is not None:
        preprocessor = fit_preprocessor(images, torch.arange(200))
        batches = list(torch.arange(4 * BATCH).split(BATCH))
        for threads in (1, 2):
            with mock.patch.object(image_reading, "threads", lambda count=threads: count):
                for preset in ("none", "resized-crop-flip"):
                    speed = rates(ImageDataset(images.train, preprocessor, preset), batches, args.rounds)
                    rows.append(row(images, preset, threads, speed))
    print(measuring.one_line())
    measuring.write(args.json, rows)


if __name__ == "__main__":
    main()
