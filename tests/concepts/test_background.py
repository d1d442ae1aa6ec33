"""Is it the background? Classifiers of which it is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from htaf.concepts.background import Background, background, middle, read_objects
from htaf.concepts.codes import ConceptError
from htaf.concepts.heads import Head
from htaf.data.images import ImagePreprocessor

SIZE = (20, 16)
OBJECT, AROUND = 0, 1  # bits: whether this part is light


def made(count: int = 60, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Images whose object and surroundings are light or dark, at random; objects of all places and sizes."""
    random = np.random.default_rng(seed)
    objects = torch.zeros(count, *SIZE, dtype=torch.bool)
    for one in objects:
        top, left = random.integers(0, 10, 2)
        one[top : top + random.integers(4, 8), left : left + random.integers(4, 7)] = True
    light = torch.from_numpy(random.random((count, 2)) < 0.5)
    pixels = torch.where(objects, light[:, :1, None], light[:, 1:, None])[:, None] * 200 + 20
    return pixels.to(torch.uint8), objects


def classifier(objects: torch.Tensor, weights: tuple[float, float]) -> Background:
    """Two classes by these weights of both bits."""

    def bits_of(x: torch.Tensor) -> np.ndarray:
        parts = [(x[:, 0] * of).sum((1, 2)) / of.sum((1, 2)) for of in (objects, ~objects)]
        return torch.stack(parts, 1).numpy() >= 120

    head = Head(np.stack([np.zeros(2), np.array(weights)]), np.array([0.0, -0.5]))
    return background(PIXELS, objects, bits_of, head)


PIXELS, OBJECTS = made()


def test_a_classifier_of_surroundings_and_one_of_objects() -> None:
    found = classifier(OBJECTS, (0, 1))
    before = found.classes["as it is"]
    assert (before != before[found.donors]).all()
    assert found.is_followed
    assert found.drawn[0] > 0.8, "but where the donor's object covers surroundings"
    assert found.follows[AROUND] == found.taken("swapped").mean()
    assert found.follows[OBJECT] == 0
    assert (found.classes["no object"] == before).all()
    assert (found.classes["control"] == before).all()
    found = classifier(OBJECTS, (1, 0))
    before = found.classes["as it is"]
    assert not found.is_followed
    assert found.drawn[0] == 0
    assert (found.classes["swapped"] == before).all()
    assert (found.classes["no surroundings"] == before).all()
    assert (found.classes["no object"] != before).any()


def test_only_common_surroundings_are_given() -> None:
    seen: list[torch.Tensor] = []

    def bits_of(x: torch.Tensor) -> np.ndarray:
        seen.append(x)
        return np.arange(len(x))[:, None] % 2 == 1

    found = background(PIXELS, OBJECTS, bits_of, Head(np.array([[0.0], [1.0]]), np.array([0.5, 0.0])), seed=3)
    _, swapped, _, no_surroundings, no_object = (x.numpy()[:, 0] for x in seen)
    pixels, objects = PIXELS.numpy()[:, 0], OBJECTS.numpy()
    for row, donor in enumerate(found.donors):
        both = ~objects[row] & ~objects[donor]
        assert (swapped[row] == np.where(both, pixels[donor], pixels[row])).all()
        around, inside = pixels[row][~objects[row]], pixels[row][objects[row]]
        assert set(no_object[row].ravel()) == {around[0]}
        assert set(no_surroundings[row].ravel()) == {inside[0]}


@pytest.mark.parametrize(("turned", "drawn"), [((2,), 1 / 22), ((2, 3), 0.0), ((3,), -1 / 22)])
def test_what_the_control_does_too_is_not_counted(turned: tuple[int, ...], drawn: float) -> None:
    """22 images; the first has another bit in these passes: 1 as it is, 2 swapped, 3 control."""
    bits = np.arange(22)[:, None] % 2 == 1
    passes = 0

    def bits_of(x: torch.Tensor) -> np.ndarray:
        nonlocal passes
        passes += 1
        return bits ^ ((passes in turned) & (np.arange(22)[:, None] == 0))

    found = background(*made(22), bits_of, Head(np.array([[0.0], [1.0]]), np.array([0.5, 0.0])))
    assert found.drawn[0] == drawn
    assert found.drawn[1] < 0 < found.drawn[2]
    assert not found.is_followed, "so few images may be chance"


def test_the_middle_is_half_of_the_area() -> None:
    found = middle(2, (100, 64))
    assert found.float().mean() == pytest.approx(0.5, abs=0.03)
    assert (found[0] == found[1].flip(0, 1)).all()


def test_few_images_and_one_class_are_refused() -> None:
    head = Head(np.array([[0.0], [1.0]]), np.array([0.5, 0.0]))
    with pytest.raises(ConceptError, match="at least 20 images of two predicted classes or more, got 19 of 2"):
        background(*made(19), lambda x: np.arange(len(x))[:, None] % 2 == 1, head)
    with pytest.raises(ConceptError, match="got 60 of 1"):
        background(PIXELS, OBJECTS, lambda x: np.zeros((len(x), 1), bool), head)


def test_masks_by_the_names_of_images(tmp_path: Path) -> None:
    preprocessor = ImagePreprocessor((0.5,), (0.5,), SIZE, 1, ("a", "b"))
    (tmp_path / "a").mkdir()
    for name, objects in (("a/0.png", OBJECTS[0]), ("a/2.png", OBJECTS[2]), ("a/3.png", OBJECTS[3] * 0)):
        Image.fromarray(objects.numpy().astype(np.uint8) * 255).save(tmp_path / name)
    rows, found = read_objects(tmp_path, ["a/0.jpg", "a/1.jpg", "a/2.jpg", "a/3.jpg"], preprocessor)
    assert rows == [0, 2]
    assert torch.equal(found, OBJECTS[[0, 2]])
    with pytest.raises(ConceptError, match=r"masks by the names of the images, such as b/0.png, got none"):
        read_objects(tmp_path, ["b/0.jpg"], preprocessor)
