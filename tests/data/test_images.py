"""Splits, the preprocessor and the batches: balanced, seeded, exact, the same with and without workers."""

import json
import math
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

import htaf.data.images as images_module
from htaf.data import image_reading
from htaf.data.image_sets import load
from htaf.data.images import (
    FilePart,
    ImageDataset,
    ImagePreprocessor,
    Images,
    MemoryPart,
    augment,
    fit_preprocessor,
    split,
)
from htaf.data.reading import DataError


def made(labels: list[int], pixels: Tensor | None = None) -> Images:
    """A set in memory with these training labels; an image's number is its first pixel."""
    if pixels is None:
        pixels = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).clone()
    part = MemoryPart(pixels, torch.tensor(labels, dtype=torch.int64))
    classes = tuple(f"class {number}" for number in range(max(labels) + 1))
    return Images("made", classes, part, part, "0", ())


def write_files(folder: Path, count: int = 6, size: tuple[int, int] = (80, 70)) -> Path:
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for place in range(count):
            shape = (size[1], size[0], 3)
            pixels = np.random.default_rng([place, ord(name)]).integers(0, 256, shape, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{place}.png")
    return folder


# --- load ---


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"'cifar-10': expected one of 'cifar10', .* got neither \(did you mean 'cifar10'"
    ):
        load("cifar-10")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="or a folder of images, got a file"):
        load(tmp_path / "file")
    with pytest.raises(DataError, match="size: expected 1 to 9,459 pixels, got 0"):
        load(tmp_path, size=0)
    for name in ("cifar10", "cifar100", "digits"):
        with pytest.raises(DataError, match=f"{name}: leave size out, it is for sets of image files"):
            load(name, size=64)


# --- split ---


@settings(max_examples=80, deadline=None)
@given(
    counts=st.lists(st.integers(4, 25), min_size=2, max_size=5),
    seed=st.integers(0, 2**40),
    shares=st.tuples(st.sampled_from([0, 0.1, 0.25, 0.5]), st.sampled_from([0, 0.1, 0.2, 0.45])),
)
def test_shares_of_each_class(counts: list[int], seed: int, shares: tuple[float, float]) -> None:
    labels = [number for number, count in enumerate(counts) for _ in range(count)]
    images = made(np.random.default_rng(0).permutation(labels).tolist())
    train, validation = shares
    parts = split(images, train=train, validation=validation, seed=seed)
    rows = [set(part.tolist()) for part in (parts.train, parts.validation)]
    assert not rows[0] & rows[1]
    assert rows[0] | rows[1] <= set(range(len(labels)))
    for part in (parts.train, parts.validation):
        assert part.dtype == torch.int64
        assert torch.equal(part, part.sort().values)
        assert len(part.unique()) == len(part)
    for number, count in enumerate(counts):
        held = int((images.train.labels[parts.validation] == number).sum())
        trained = int((images.train.labels[parts.train] == number).sum())
        assert held == (max(1, round(count * validation)) if validation else 0)
        assert trained == (max(1, round(count * train)) if train else count - held)
    again = split(images, train=train, validation=validation, seed=seed)
    assert torch.equal(again.train, parts.train)
    assert torch.equal(again.validation, parts.validation)


@settings(max_examples=80, deadline=None)
@given(classes=st.integers(2, 6), train=st.integers(0, 60), validation=st.integers(0, 60), seed=st.integers(0, 9))
def test_counts_are_even_over_the_classes(classes: int, train: int, validation: int, seed: int) -> None:
    images = made([row % classes for row in range(100)])
    labels = images.train.labels
    least = min(torch.bincount(labels).tolist())
    if any(0 < amount < classes for amount in (train, validation)):
        with pytest.raises(DataError, match=f"expected at least {classes}, one for each class"):
            split(images, train=train, validation=validation, seed=seed)
        return
    if math.ceil(train / classes) + math.ceil(validation / classes) + (not train) > least:
        return
    parts = split(images, train=train, validation=validation, seed=seed)
    assert len(parts.validation) == validation
    assert len(parts.train) == (train or 100 - validation)
    spread = torch.bincount(labels[parts.validation], minlength=classes)
    assert spread.max() - spread.min() <= 1
    if train:
        spread = torch.bincount(labels[parts.train], minlength=classes)
        assert spread.max() - spread.min() <= 1


def test_seeds_differ_and_smaller_parts_lie_within_larger_ones() -> None:
    images = made([row % 3 for row in range(90)])
    parts = [split(images, train=30, validation=9, seed=seed).train.tolist() for seed in range(20)]
    assert len({tuple(part) for part in parts}) == 20
    small, large = (split(images, train=train, validation=9, seed=4) for train in (12, 45))
    assert set(small.train.tolist()) < set(large.train.tolist())
    assert torch.equal(small.validation, large.validation)
    often = np.bincount(np.concatenate(parts), minlength=90)  # 20 draws with probability 1 / 3
    assert often.min() >= 1
    assert often.max() <= 15


def test_a_split_is_the_same_in_every_version() -> None:
    """Frozen: a change would turn every recorded result into another experiment."""
    parts = split(made([row % 2 for row in range(20)]), train=6, validation=4, seed=11)
    assert parts.train.tolist() == [3, 6, 7, 8, 10, 19]
    assert parts.validation.tolist() == [1, 9, 12, 16]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"train": 95, "validation": 10},
            "made: expected 48 training and 5 validation images of 'class 0', got 50: lower "
            "train_images or validation_images",
        ),
        ({"validation": 1.0}, "validation_images: expected a whole number >= 0 or a fraction below 1, got 1.0"),
        ({"train": -4}, "train_images: expected a whole number >= 0 or a fraction below 1, got -4"),
        ({"train": math.nan}, "train_images: expected a whole number >= 0 or a fraction below 1, got nan"),
        ({"train": 1}, "train_images: expected at least 2, one for each class, got 1"),
        ({"seed": -1}, "seed must be >= 0 and below 2**63, got -1"),
    ],
)
def test_splits_that_cannot_be_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        split(made([row % 2 for row in range(100)]), **options)


# --- the preprocessor ---


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**20), channels=st.sampled_from([1, 3]), count=st.integers(1, 30))
def test_mean_and_deviation_of_the_chosen_rows(seed: int, channels: int, count: int) -> None:
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (30, channels, 3, 5), dtype=np.uint8)
    rows = random.permutation(30)[:count]
    fitted = fit_preprocessor(made([0, 1] * 15, torch.from_numpy(pixels)), torch.from_numpy(rows))
    chosen = pixels[rows].astype(np.float64) / 255
    np.testing.assert_allclose(fitted.mean, chosen.mean((0, 2, 3)), rtol=1e-14)
    np.testing.assert_allclose(fitted.std, chosen.std((0, 2, 3)), rtol=1e-12)
    assert (fitted.size, fitted.channels, fitted.classes, fitted.notes) == (
        (3, 5),
        channels,
        ("class 0", "class 1"),
        (),
    )
    whole = fitted.normalise(torch.from_numpy(pixels[rows]))
    assert whole.dtype == torch.float32
    expected = (chosen - chosen.mean((0, 2, 3), keepdims=True)) / chosen.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(whole, expected, atol=2e-6)


def test_a_nearly_constant_channel_keeps_its_deviation() -> None:
    """One pixel of 3,000,000 differs: E x^2 - (E x)^2 in floating point would lose it."""
    pixels = torch.full((3000, 1, 10, 100), 251, dtype=torch.uint8)
    pixels[7, 0, 0, 0] = 250
    fitted = fit_preprocessor(made([0, 1] * 1500, pixels), torch.arange(3000))
    share = 1 / 3_000_000
    assert fitted.std[0] == pytest.approx(math.sqrt(share * (1 - share)) / 255, rel=1e-12)


def test_a_constant_channel() -> None:
    pixels = torch.randint(0, 256, (8, 3, 4, 4), dtype=torch.uint8)
    pixels[:, 1] = 7
    fitted = fit_preprocessor(made([0, 1] * 4, pixels), torch.arange(8))
    assert fitted.std[1] == 1
    assert fitted.notes == ("channel 2 has one value, 7, in every pixel; its deviation is 1",)
    assert (fitted.normalise(pixels)[:, 1].abs() < 1e-7).all()
    with pytest.raises(DataError, match="made: expected at least one training row, got none"):
        fit_preprocessor(made([0, 1]), torch.arange(0))


def test_files_are_sampled_when_there_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = load(write_files(tmp_path), size=66)
    assert isinstance(images.train, FilePart)
    rows = torch.arange(len(images.train))
    exact = fit_preprocessor(images, rows)
    assert exact.notes == ()
    assert (
        exact.mean
        == fit_preprocessor(Images("m", images.classes, images.train.in_memory(), images.test, "", ()), rows).mean
    )
    monkeypatch.setattr(images_module, "SAMPLE", 4)
    sampled = fit_preprocessor(images, rows)
    assert sampled.notes == ("mean and standard deviation from 4 of 10 training images, seeded",)
    assert sampled.mean != exact.mean
    assert sampled == fit_preprocessor(images, rows)


def some() -> ImagePreprocessor:
    return ImagePreprocessor((0.1, 1 / 3, 0.49139968), (0.2, 0.25, 1e-3), (32, 48), 3, ("a", "b é"), ("note",))


def test_json_keeps_every_bit() -> None:
    again = ImagePreprocessor.from_json(json.loads(json.dumps(some().to_json(), allow_nan=False)))
    assert again == some()
    pixels = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    assert torch.equal(again.normalise(pixels), some().normalise(pixels))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "htaf-table"}, "expected format 'htaf-images' version 1, got 'htaf-table' version 1"),
        ({"mean": [0.1, 0.2]}, "mean and std: expected 3 values each, got 2 and 3"),
        ({"std": [0.1, 0.2, 0]}, "expected finite means and std > 0"),
        ({"channels": 2}, "channels: expected 1 or 3, got 2"),
        ({"size": [32]}, "preprocessing size: expected tuple[int, int], got [32]"),
        ({"size": [32, 0]}, "size: expected (H, W) of 1 or more, got (32, 0)"),
        ({"extra": 1}, "preprocessing: expected the keys"),
    ],
)
def test_json_that_does_not_fit(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        ImagePreprocessor.from_json(some().to_json() | change)


def test_files_are_read_as_in_training(tmp_path: Path) -> None:
    images = load(write_files(tmp_path), size=66)
    assert isinstance(images.train, FilePart)
    fitted = fit_preprocessor(images, torch.arange(len(images.train)))
    paths = [images.train.folder / images.train.names[row] for row in (4, 0)]
    assert torch.equal(fitted.read_each(paths)[0], images.train.batch(torch.tensor([4, 0])))
    assert torch.equal(fitted.read_each([str(path) for path in paths])[0], fitted.read_each(paths)[0])
    assert fitted.read_each([])[0].shape == (0, 3, 66, 66)
    (tmp_path / "bad.png").write_bytes(b"no image")
    assert "bad.png: expected an image, got a file of another kind" in str(
        fitted.read_each([paths[0], tmp_path / "bad.png"])[1][1]
    )
    grey = ImagePreprocessor((0.5,), (0.5,), (8, 8), 1, ("a", "b")).read_each(paths)[0]
    assert grey.shape == (2, 1, 8, 8)


# --- batches ---


class Batches(Sampler[tuple[Tensor, int]]):
    def __init__(self, rows: int, size: int) -> None:
        self.rows, self.size = rows, size

    def __len__(self) -> int:
        return self.rows // self.size

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        order = torch.randperm(self.rows, generator=torch.Generator().manual_seed(0))
        yield from ((rows, 1000 + key) for key, rows in enumerate(order.split(self.size)[: len(self)]))


def dataset(preset: Any = "crop-flip") -> ImageDataset:
    pixels = torch.randint(0, 256, (60, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = made([row % 3 for row in range(60)], pixels)
    return ImageDataset(images.train, fit_preprocessor(images, torch.arange(60)), preset)


def test_a_batch_is_the_part_augmented_and_normalised() -> None:
    made_of = dataset()
    rows = torch.tensor([5, 5, 59])
    images, labels = made_of[rows, 3]
    assert labels.tolist() == [2, 2, 2]
    expected = made_of.preprocessor.normalise(augment("crop-flip", made_of.part.batch(rows), 3))
    assert torch.equal(images, expected)
    assert not torch.equal(images[0], images[1])
    plain, _ = dataset("none")[rows, 3]
    assert torch.equal(plain, made_of.preprocessor.normalise(made_of.part.batch(rows)))
    assert len(made_of) == 60
    assert isinstance(made_of.part, MemoryPart)
    before = made_of.part.pixels.clone()
    plain += 1
    assert torch.equal(made_of.part.pixels, before)


@pytest.mark.parametrize("preset", ["none", "crop-flip"])
def test_workers_change_nothing(preset: str) -> None:
    runs = []
    for workers in (0, 2):
        torch.manual_seed(workers)
        loader = DataLoader(dataset(preset), batch_size=None, sampler=Batches(60, 16), num_workers=workers)
        assert len(loader) == 3
        runs.append(list(loader))
    assert len(runs[0]) == 3
    for (images, labels), (again, same) in zip(*runs, strict=True):
        assert images.shape == (16, 3, 16, 16)
        assert torch.equal(images, again)
        assert torch.equal(labels, same)


def test_what_does_not_fit_together() -> None:
    with pytest.raises(
        DataError, match=r"expected images of \[channels, height, width\] \(3, 32, 48\), got \(3, 16, 16\)"
    ):
        ImageDataset(dataset().part, some())


def test_a_strip_is_refused_by_its_header(tmp_path: Path) -> None:
    for name, size in (("wide", (202, 2)), ("high", (1, 70_000))):
        Image.new("L", size).save(tmp_path / f"{name}.png")
        assert "a strip" in image_reading.look(tmp_path / f"{name}.png").problem
        with pytest.raises(DataError, match="a strip"):
            image_reading.decode(tmp_path / f"{name}.png", 3, (8, 8))


def tiff_of_one_tile(image: int, tile: int) -> bytes:
    """A grey TIFF whose only tile is larger than the image."""
    data = zlib.compress(bytes(tile * tile))
    head = 8 + 2 + 12 * 10 + 4
    tags = [(256, image), (257, image), (258, 8), (259, 8), (262, 1), (277, 1), (322, tile), (323, tile), (324, head)]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in [*tags, (325, len(data))])
    return b"II*\0" + struct.pack("<IH", 8, 10) + entries + bytes(4) + data


def test_a_tile_larger_than_the_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "huge.tif").write_bytes(tiff_of_one_tile(image=16, tile=9600))
    assert "tiles of 92,160,000 pixels" in image_reading.look(tmp_path / "huge.tif").problem
