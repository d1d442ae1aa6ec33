"""Names from pictures: which images, how they are shown, and what comes of a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htaf.concepts.codes import Codes, codes_key, codes_of
from htaf.concepts.naming.files import read_names
from htaf.concepts.naming.job import NamingJob, album, naming_job, picture_evidence, pools
from made_pictures import NAMES, VisionModel, images_in, pictured


def made(classes: int = 2, images: int = 360, seed: int = 0) -> tuple[Codes, Any]:
    codes, pixels = pictured(classes, images, np.random.default_rng(seed))
    return codes, lambda rows: pixels[rows]


CODES, PIXELS = made()


# Which images -------------------------------------------------------------------------------------------------------


def evidence(codes: Codes = CODES, pixels: Any = PIXELS) -> Any:
    return picture_evidence(codes, pixels, tile=48)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 6), st.integers(8, 200), st.floats(0.02, 0.98), st.integers(0, 99), st.booleans())
def test_no_image_names_and_checks(classes: int, images: int, rate: float, seed: int, split: bool) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(-1, classes, images)
    bits = rng.random((images, 1)) < rate
    parts = rng.integers(0, 3, images).astype(np.uint8) if split else np.full(images, 3, np.uint8)
    codes = codes_of(bits, labels, np.ones((classes, 1)), np.zeros(classes), parts=parts)
    naming, checking = pools(codes, 0)
    assert sorted([*naming, *checking]) == list(range(images))
    found, bit = evidence(codes).case(0), bits[:, 0]
    if len(found.pairs[0]):
        assert bit[found.pairs[0]].all()
        assert not bit[found.pairs[1]].any()
        assert (labels[found.pairs[0]] == labels[found.pairs[1]]).all()
        assert (labels[found.pairs[0]] >= 0).all()
        everything = [*found.pairs.ravel(), *found.checked, *found.shown_with, *found.shown_without]
        assert len(set(everything)) == len(everything)
    if found.note:
        assert found.status in ("too few images", "nothing to name")
        assert len(found.checked) == len(found.shown_with) == 0
        return
    assert len(set(found.checked.tolist())) == len(found.checked)
    assert bit[found.shown_with].all()
    assert not bit[found.shown_without].any()
    assert set(found.checked) <= set(checking)
    assert {*found.shown_with, *found.shown_without} <= set(naming)
    assert found.inside.tolist() == bit[found.checked].tolist()
    assert found.inside.sum() == min(20, bit[checking].sum())
    assert (~found.inside).sum() == min(20, (~bit[checking]).sum())


def test_half_of_the_shown_are_pairs_of_one_class() -> None:
    labels = np.repeat([0, 1], 200)
    bits = (np.arange(400) % 200 < np.where(labels == 0, 180, 20))[:, None]
    parts = np.tile([0, 2], 200).astype(np.uint8)
    codes = codes_of(bits, labels, np.ones((2, 1)), np.zeros(2), parts=parts)
    found = evidence(codes).case(0)
    of_class = [(labels[rows] == 0).sum() for rows in (found.shown_with, found.shown_without)]
    assert len(found.shown_with) == len(found.shown_without) == 12
    assert 0 <= of_class[0] - of_class[1] <= 6  # without pairs: 10.8 - 1.2


def test_a_bit_that_is_always_the_same_or_rare() -> None:
    bits = np.zeros((40, 3), dtype=bool)
    bits[:, 1] = True
    bits[[0, 2, 4, 6, 1, 3, 5], 2] = True
    parts = np.tile([0, 2], 20).astype(np.uint8)
    codes = codes_of(bits, [0] * 40, np.ones((1, 3)), np.zeros(1), parts=parts)
    found = [evidence(codes).case(c) for c in range(3)]
    assert [(each.note, each.status) for each in found] == [
        ("dead: always 0", "nothing to name"),
        ("dead: always 1", "nothing to name"),
        ("3 images with the bit and 17 without it to check it, 4 of each are needed", "too few images"),
    ]


# How they are shown ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "channels"), [(1, 3), (7, 1), (20, 3)])
def test_an_album_shows_each_image_in_its_place(count: int, channels: int) -> None:
    values = np.linspace(20, 235, count).astype(np.uint8)
    pixels = np.repeat(values, channels * 64).reshape(count, channels, 8, 8)
    parts = album(pixels, 40, title="Pictures")
    found = images_in(parts)["Pictures"]
    assert [tile.shape for tile in found] == [(40, 40, 3)] * count
    assert np.abs([tile.mean() for tile in found] - values.astype(float)).max() < 2
    assert [part["type"] for part in parts] == ["text", "image_url"]


# A job ----------------------------------------------------------------------------------------------------------------


class Counted(VisionModel):
    """Counts what it is asked; keeps its replies."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def answer(self, messages: Any) -> str:
        self.asked.append(messages)
        return super().answer(messages)


def job(client: Any, **options: Any) -> NamingJob:
    return naming_job(evidence(), client, **options)


def test_names_of_two_classes_are_found_and_verified(tmp_path: Path) -> None:
    model, out = Counted(), tmp_path / "names.json"
    asked = job(model, out=out)
    needed = asked.estimate()
    found = asked.run()
    assert [entry["name"] for entry in found] == list(NAMES)
    assert {(entry["status"], entry["source"]) for entry in found} == {("verified", "pictures")}
    assert found[2]["pictures"] == {"shown": 24, "checked": 40, "pairs": 12}
    assert [entry["only_class"] for entry in found] == [None, *[False] * 9]
    assert found[2]["within"] == {"pairs": 12, "right": 12, "wrong": 0, "p_value": 1 / 2**12}
    assert (needed["names"], needed["idle"]) == (10, 0)
    assert needed["requests"] == len(model.asked)
    assert 200 < needed["images"] <= 360
    read = read_names(out, 10, codes=codes_key(CODES))
    assert [{k: e[k] for k in found[0]} for e in read] == json.loads(json.dumps(found))


def test_pairs_of_a_class_tell_what_the_class_does_not() -> None:
    fixed, linked = 0, 1  # the class decides the one, and nine of ten images of the other
    same = (CODES.has(fixed) == CODES.has(linked)).mean() > 0.5
    (entry,) = job(VisionModel(), given=[{"concept": linked, "name": ("" if same else "not ") + NAMES[fixed]}]).run()
    assert (entry["verified"], entry["only_class"]) == (True, True)
    assert (entry["within"]["right"], entry["within"]["wrong"], entry["within"]["p_value"]) == (0, 0, 1)


def test_the_model_sees_neither_bit_nor_class_nor_file() -> None:
    model = Counted()
    job(model, only=[2]).run()
    naming, *checks = model.asked
    texts = [[part.get("text", "") for part in messages[1]["content"]] for messages in (naming, *checks)]
    assert not any(NAMES[2] in text for text in texts[0])
    assert all(len(text) < 2000 for each in texts for text in each)
    assert len(checks) == 4
    assert not any("Group" in text for each in texts[1:] for text in each)
