"""Names from pictures: which images, how they are shown, what the scores say, and what comes of a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, balanced_accuracy_score, f1_score

from htaf.concepts.codes import Codes, ConceptError, codes_key, codes_of
from htaf.concepts.naming import (
    ConceptName,
    PictureEvidence,
    PictureSettings,
    class_evidence,
    naming_job,
    picture_evidence,
    read_names,
    write_names,
)
from htaf.concepts.naming.album import ON_A_SHEET, album, boxes, tile_of
from htaf.concepts.naming.checks import FEWEST_CLASSES
from htaf.concepts.naming.pictures import Choice, at_rate, choose, pools, scores, within
from made_pictures import NAMES, VisionModel, images_in, picture_pixels, pictured

QUICK = PictureSettings(tile=48, permutations=99)


def made(classes: int = 2, images: int = 360, seed: int = 0) -> tuple[Codes, Any]:
    codes, pixels = pictured(classes, images, np.random.default_rng(seed))
    return codes, lambda rows: pixels[rows]


CODES, PIXELS = made()


# Which images -------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 6), st.integers(8, 200), st.floats(0.02, 0.98), st.integers(0, 99), st.booleans())
def test_no_image_names_and_checks(classes: int, images: int, rate: float, seed: int, split: bool) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(-1, classes, images)
    bits = rng.random((images, 1)) < rate
    parts = rng.integers(0, 3, images).astype(np.uint8) if split else np.full(images, 3, np.uint8)
    codes = codes_of(bits, labels, np.ones((classes, 1)), np.zeros(classes), parts=parts)
    naming, checking = pools(codes, seed)
    assert sorted([*naming, *checking]) == list(range(images))
    found = choose(codes, 0, QUICK, naming, checking)
    if found.note:
        assert found.status in ("too few images", "nothing to name")
        assert len(found.rows) == 0
        return
    bit = bits[:, 0]
    assert len(set(found.rows.tolist())) == len(found.rows)
    assert bit[found.shown_with].all()
    assert not bit[found.shown_without].any()
    assert set(found.sorted) <= set(checking)
    assert {*found.shown_with, *found.shown_without} <= set(naming)
    assert found.bit.tolist() == bit[found.sorted].tolist()
    assert found.rate == bit[checking].mean()
    assert (found.bit & found.drawn).sum() == min(20, bit[checking].sum())
    assert (~found.bit & found.drawn).sum() == min(20, (~bit[checking]).sum())
    if len(found.pairs):
        inside, outside = found.sorted[found.pairs].T
        assert bit[inside].all()
        assert not bit[outside].any()
        assert (labels[inside] == labels[outside]).all()
        assert (labels[inside] >= 0).all()
        assert len(set(found.pairs.ravel().tolist())) == found.pairs.size


def test_half_of_the_shown_are_of_the_same_classes() -> None:
    labels = np.repeat([0, 1], 200)
    bits = (np.arange(400) % 200 < np.where(labels == 0, 180, 20))[:, None]
    parts = np.tile([0, 2], 200).astype(np.uint8)
    codes = codes_of(bits, labels, np.ones((2, 1)), np.zeros(2), parts=parts)
    found = choose(codes, 0, QUICK, *pools(codes, 0))
    ones = [(labels[rows] == 0).sum() for rows in (found.shown_with, found.shown_without)]
    assert len(found.shown_with) == len(found.shown_without) == 12
    assert 0 <= ones[0] - ones[1] <= 6  # without pairs: 10.8 - 1.2


def test_a_bit_that_is_always_the_same_or_rare() -> None:
    bits = np.zeros((40, 3), dtype=bool)
    bits[:, 1] = True
    bits[[0, 2, 4, 6, 1, 3, 5], 2] = True
    parts = np.tile([0, 2], 20).astype(np.uint8)
    codes = codes_of(bits, [0] * 40, np.ones((1, 3)), np.zeros(1), parts=parts)
    found = [choose(codes, c, QUICK, *pools(codes, 0)) for c in range(3)]
    assert [(each.note, each.status) for each in found] == [
        ("dead: always 0", "nothing to name"),
        ("dead: always 1", "nothing to name"),
        ("3 images with the bit to check it, 4 are needed", "too few images"),
    ]


# How they are shown ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sheets", "images"])
@pytest.mark.parametrize(("count", "channels"), [(1, 3), (7, 1), (23, 3)])
def test_an_album_shows_each_image_in_its_place(kind: Any, count: int, channels: int) -> None:
    values = np.linspace(20, 235, count).astype(np.uint8)
    pixels = np.repeat(values, channels * 64).reshape(count, channels, 8, 8)
    parts = album(pixels, kind, 40, title="Images")
    found = images_in(parts)["Images"]
    assert [tile.shape for tile in found] == [(40, 40, 3)] * count
    assert np.abs([tile.mean() for tile in found] - values.astype(float)).max() < 2
    assert sum(part["type"] == "image_url" for part in parts) == (
        -(-count // ON_A_SHEET) if kind == "sheets" else count
    )
    assert "data:image/jpeg;base64," in json.dumps(parts)


def test_images_keep_their_shape() -> None:
    assert tile_of(np.zeros((3, 20, 10), np.uint8), 60).shape == (60, 30, 3)
    (height, width), corners = boxes(6, 100)
    assert corners[5][0] > corners[0][0]
    parts = album(np.zeros((6, 3, 20, 10), np.uint8), "sheets", 100, title="Group A")
    sheet = picture_pixels(parts[1]["image_url"]["url"])
    assert sheet.shape == (height, width, 3)
    y, x = corners[5]
    assert sheet[y + 50, x + 50].max() < 20  # the image
    assert sheet[y + 50, x + 5].min() > 235  # paper beside it


# What the scores say --------------------------------------------------------------------------------------------------

rated = st.integers(4, 30).flatmap(
    lambda n: st.tuples(
        st.lists(st.booleans(), min_size=n, max_size=n).filter(lambda bits: 0 < sum(bits) < len(bits)),
        st.lists(st.integers(0, 10), min_size=n, max_size=n),
        st.lists(st.integers(1, 5), min_size=n, max_size=n),
    )
)


@settings(deadline=None, max_examples=30)
@given(rated)
def test_a_weight_is_so_many_images(values: tuple[list[bool], list[int], list[int]]) -> None:
    bit, said, weight = np.array(values[0]), np.array(values[1]) / 10, np.array(values[2])
    found, many = scores(bit, said, weight.astype(float)), scores(np.repeat(bit, weight), np.repeat(said, weight))
    for key in ("auprc", "f1", "correlation"):
        assert found[key] == pytest.approx(many[key], abs=1e-9)
    plain = scores(bit, said)
    assert plain["auprc"] == pytest.approx(average_precision_score(bit, said))
    assert plain["f1"] == pytest.approx(f1_score(bit, said > 0.5, zero_division=0))
    if said.std() > 0:
        assert plain["correlation"] == pytest.approx(np.corrcoef(bit, said)[0, 1], abs=1e-9)
    if not (said == 0.5).any():
        assert plain["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(bit, said > 0.5))


def test_at_its_rate_a_broad_name_scores_low() -> None:
    bit = np.arange(40) < 20
    said = np.where(np.arange(40) < 24, 1.0, 0.0)  # it fits four of the twenty without the bit
    found = at_rate(bit, said, 0.01)
    precision = 0.01 / (0.01 + 0.99 * 4 / 20)
    assert scores(bit, said)["f1"] > 0.9
    assert found["auprc"] == pytest.approx(precision)
    assert found["f1"] == pytest.approx(2 * precision / (1 + precision))
    assert found["correlation"] < 0.25
    assert at_rate(bit, said, 0.5)["f1"] == pytest.approx(scores(bit, said)["f1"])


def evidence(settings: PictureSettings = QUICK) -> PictureEvidence:
    return picture_evidence(CODES, PIXELS, settings)


def judged(choice: Choice, said: np.ndarray) -> dict[str, Any]:
    return evidence().verdict(choice, [ConceptName("x", "x", "y")], [said])[1]


def test_pairs_of_a_class_tell_what_the_class_does_not() -> None:
    choice = choose(CODES, 1, QUICK, *pools(CODES, 0))
    assert len(choice.pairs) == 12
    labels = CODES.labels[choice.sorted]
    assert within(choice, choice.bit.astype(float)) == {"score": 1.0, "pairs": 12, "p_value": 1 / 2**12}
    by_class = (labels == labels[choice.bit & choice.drawn][0]).astype(float)
    assert within(choice, by_class) == {"score": 0.5, "pairs": 12, "p_value": 1.0}
    assert judged(choice, choice.bit.astype(float))["only_class"] is False
    found = judged(choice, by_class)
    assert (found["verified"], found["only_class"]) == (True, True)  # 90% of one class, 10% of the other
    guess = np.random.default_rng(0).random(len(choice.bit))
    assert judged(choice, guess)["status"] == "not verified"


def test_few_classes_are_too_few_for_sorting_classes() -> None:
    def hopeless(k: int) -> bool:
        cases = [class_evidence((np.arange(k) < a)[None].astype(float)).case(0) for a in range(2, k - 1)]
        return all(case.hopeless for case in cases)

    assert hopeless(FEWEST_CLASSES - 1)
    assert not hopeless(FEWEST_CLASSES)


# A job ----------------------------------------------------------------------------------------------------------------


class Counted(VisionModel):
    """Counts what it is asked."""

    asked = 0

    def answer(self, messages: Any) -> str:
        self.asked += 1
        return super().answer(messages)


def job(client: Any, **options: Any) -> Any:
    return naming_job(evidence(), client, **options)


def test_names_of_two_classes_are_found_and_verified(tmp_path: Path) -> None:
    model, out = Counted(), tmp_path / "names.json"
    found = job(model, out=out).run()
    assert [entry["name"] for entry in found] == list(NAMES)
    assert {entry["status"] for entry in found} == {"verified"}
    assert [entry["only_class"] for entry in found] == [None, *[False] * 9]
    assert found[2]["pictures"] == {"shown": 24, "with": 20, "without": 20, "pairs": 12}
    needed = job(Counted()).estimate()
    assert needed.calls == pytest.approx(model.asked - 1, abs=4)  # but for the four digits; of three concepts
    assert (needed.concepts, needed.idle) == (10, 0)
    assert needed.images <= 360
    read = read_names(out, 10, codes=codes_key(CODES))
    assert [{k: e[k] for k in found[0]} for e in read] == json.loads(json.dumps(found))
    again = Counted()
    assert job(again, out=out).run() == read
    assert again.asked == 0
    assert job(again, out=out).estimate().concepts == 0
    with pytest.raises(ConceptError, match="which would be lost"):
        naming_job(evidence(PictureSettings(tile=64)), again, out=out)


def test_names_that_are_given_are_checked(tmp_path: Path) -> None:
    names = [{"concept": c, "name": NAMES[(c + (c > 4)) % 10]} for c in range(9)] + [{"concept": 9, "name": None}]
    write_names(names, tmp_path / "own.json")
    model = Counted()
    found = job(model, given=tmp_path / "own.json", out=tmp_path / "checked.json").run()
    assert [entry["verified"] for entry in found] == [True] * 5 + [False] * 5
    assert found[0]["checked_by"] == model.model
    assert found[0]["source"] == "hand"
    assert found[0]["pictures"]["shown"] == 0
    assert found[9].get("status", "nothing to name") == "nothing to name"
    asked = model.asked
    assert job(model, given=tmp_path / "own.json", out=tmp_path / "checked.json").run()[:9] == found[:9]
    assert model.asked == asked


def test_the_model_sees_neither_bit_nor_class_nor_file(tmp_path: Path) -> None:
    choice = evidence().case(2)
    requests = [evidence().naming(choice, 0)]
    requests += [messages for messages, _ in evidence().checking(choice, ConceptName("x", "x", "otherwise"), 0)[0]]
    texts = [part.get("text", "") for messages in requests for part in messages[1]["content"]]
    assert not any(NAMES[2] in text for text in texts)
    assert all(len(text) < 2000 for text in texts)
    assert sum("Group" in text for messages in requests[1:] for text in [messages[1]["content"][-1]["text"]]) == 0


@pytest.mark.parametrize("wrong", [{"shown": 1}, {"held_out": 3}, {"permutations": 0}, {"tile": 8}, {"threshold": 2.0}])
def test_settings_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConceptError, match="got"):
        PictureSettings(**wrong)
