"""Ids lead back to the images they were given for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from htaf.concepts.codes import ConceptError
from htaf.concepts.pixels import pixels_of
from htaf.data.images import MemoryPart, load


def test_images_in_memory() -> None:
    digits = load("digits")
    found = pixels_of(digits, ["test/3", "train/0", "test/0"])
    expected = torch.stack([digits.test.pixels[3], digits.train.pixels[0], digits.test.pixels[0]])  # pyright: ignore
    assert torch.equal(found, expected)
    assert pixels_of(digits, []).shape == (0, 1, 8, 8)
    with pytest.raises(ConceptError, match=r"expected ids of digits, such as 'train/0', got 'test/9999'"):
        pixels_of(digits, ["test/9999"])


def test_images_in_files(tmp_path: Path) -> None:
    for name, level in (("a", 10), ("b", 200)):
        (tmp_path / name).mkdir()
        for number in range(5):
            pixels = np.full((80, 90, 3), level + number, np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    images = load(tmp_path, size=80)
    names = [*images.train.names, *images.test.names]  # pyright: ignore
    found = pixels_of(images, names)
    levels = [{"a": 10, "b": 200}[name[0]] + int(name[2]) for name in names]
    assert found[:, 0, 0, 0].tolist() == levels


def test_small_images_of_files_keep_their_names(tmp_path: Path) -> None:
    for name, level in (("a", 10), ("b", 200)):
        (tmp_path / name).mkdir()
        for number in range(5):
            Image.fromarray(np.full((8, 9, 3), level + number, np.uint8)).save(tmp_path / name / f"{number}.png")
    images = load(tmp_path)
    assert isinstance(images.train, MemoryPart)
    names = [*images.train.names, *images.test.names]  # pyright: ignore
    assert sorted(names) == [f"{name}/{number}.png" for name in "ab" for number in range(5)]
    levels = [{"a": 10, "b": 200}[name[0]] + int(name[2]) for name in names]
    assert pixels_of(images, names)[:, 0, 0, 0].tolist() == levels
    assert pixels_of(images, ["test/1", "train/2"])[:, 0, 0, 0].tolist() == [levels[9], levels[2]]  # of older codes
    with pytest.raises(ConceptError, match=f"such as '{names[0]}', got 'a/9.png'"):
        pixels_of(images, ["a/9.png"])
