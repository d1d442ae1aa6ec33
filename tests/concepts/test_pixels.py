"""Ids lead back to the images they were given for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from htaf.concepts.codes import ConceptError
from htaf.concepts.pixels import Pictures
from htaf.data.images import load


def test_images_in_memory() -> None:
    digits = load("digits")
    found = Pictures(digits)
    expected = torch.stack([digits.test.pixels[3], digits.train.pixels[0], digits.test.pixels[0]])  # pyright: ignore
    assert torch.equal(found.pixels(["test/3", "train/0", "test/0"]), expected)
    assert found.pixels([]).shape == (0, 1, 8, 8)
    assert found.file("test/3") is None
    np.testing.assert_array_equal(found.original("test/3"), expected[0])
    with pytest.raises(ConceptError, match=r"expected ids of digits, such as 'train/0', got 'test/9999'"):
        found.pixels(["test/9999"])


@pytest.mark.parametrize("side", [80, 8])
def test_images_in_files(tmp_path: Path, side: int) -> None:
    """Small ones are read into memory, and keep their names."""
    for name, level in (("a", 10), ("b", 200)):
        (tmp_path / name).mkdir()
        for number in range(5):
            Image.fromarray(np.full((side, side + 1, 3), level + number, np.uint8)).save(
                tmp_path / name / f"{number}.png"
            )
    images = load(tmp_path, size=80) if side == 80 else load(tmp_path)
    names = [*images.train.names, *images.test.names]  # pyright: ignore
    assert sorted(names) == [f"{name}/{number}.png" for name in "ab" for number in range(5)]
    levels = [{"a": 10, "b": 200}[name[0]] + int(name[2]) for name in names]
    found = Pictures(images)
    assert found.pixels(names)[:, 0, 0, 0].tolist() == levels
    assert found.file(names[0]) == (tmp_path / names[0] if side == 80 else None)
    assert found.original(names[0]).shape == (3, side, side + 1)
    with pytest.raises(ConceptError, match=f"such as '{names[0]}', got 'a/9.png'"):
        found.pixels(["a/9.png"])
