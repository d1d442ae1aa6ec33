"""Two networks side by side, and images at full size: what their files say."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from htaf.concepts.codes import Codes, ConceptError, codes_of
from htaf.explorer.beside import Beside, common_images, compared, matches
from htaf.explorer.build import build_page
from htaf.explorer.shown import Shown
from made_pages import contents, made_codes, read_page, read_script

pytestmark = pytest.mark.usefixtures("stand_in")


def another(codes: Codes) -> Codes:
    """The same images in another order, without the first; concepts reversed, one of them the opposite."""
    rows = np.random.default_rng(1).permutation(np.arange(1, len(codes)))
    values = codes.unpack(rows)[:, ::-1].astype(bool)
    values[:, 2] = ~values[:, 2]
    weight = codes.weight[:, ::-1] * np.linspace(0.5, 1.5, codes.concepts)
    return codes_of(
        values,
        codes.labels[rows],
        weight,
        codes.bias,
        classes=codes.classes,
        parts=np.asarray(codes.parts)[rows],
        ids=[codes.ids[row] for row in rows],
    )


def test_concepts_are_matched_by_correlation() -> None:
    codes = made_codes(200)
    other = another(codes)
    mine, theirs = common_images(codes, other)
    assert [codes.ids[row] for row in mine] == [other.ids[row] for row in theirs] == list(codes.ids)[1:]
    number, value = matches(codes.take(mine), other.take(theirs))
    assert number.tolist() == list(range(20, -1, -1))
    expected = np.ones(21)
    expected[18] = -1
    np.testing.assert_allclose(value, expected, atol=1e-6)
    dead = codes_of(np.zeros((5, 2)), np.zeros(5), np.ones((1, 2)), np.zeros(1))
    assert matches(dead, dead)[0].tolist() == [-1, -1]


def test_the_comparison_counts_common_images(tmp_path: Path) -> None:
    codes = made_codes(200, names=("ash", "birch", "cedar", "dogwood", "elm"))
    other = another(codes)
    names = [{"concept": 0, "name": "bark", "verified": True}]
    build_page(codes, tmp_path / "p", beside=Beside(other, "second", names), seconds=0.0)
    found = read_script(tmp_path / "p" / "data" / "beside.js")
    assert read_page(tmp_path / "p")["page"]["beside"] == "second"
    assert found["names"] == {"0": {"name": "bark", "verified": True}}
    test = codes.part("test")
    guess = {one: int(k) for one, k in zip(other.ids, other.exact, strict=True)}
    tally = [0, 0, 0, 0]
    only: tuple[list[int], list[int]] = ([], [])
    for row, one in enumerate(test.ids):
        if one in guess and test.labels[row] >= 0:
            a, b = test.exact[row] == test.labels[row], guess[one] == test.labels[row]
            tally[2 * (not a) + (not b)] += 1
            if a != b:
                only[int(b)].append(row)
    assert found["tally"] == tally
    assert (found["only_here"], found["only_there"]) == only
    assert found["common"] == len(set(test.ids) & set(other.ids))
    assert len(found["accuracies"]) == 5
    before = contents(tmp_path / "p")
    build_page(codes, tmp_path / "p", beside=Beside(other, "second", names), seconds=0.0)
    assert contents(tmp_path / "p") == before
    build_page(codes, tmp_path / "p", seconds=0.0)
    assert not (tmp_path / "p" / "data" / "beside.js").exists()


def test_images_that_the_other_was_trained_on_are_not_compared() -> None:
    codes = made_codes(200)
    test = codes.rows("test")
    parts = np.array(codes.parts)
    parts[test[:10]] = 0
    found = compared(codes, codes.part("test"), Beside(replace(codes, parts=parts), "second"), "test")
    assert found["common"] == len(test) - 10
    assert found["tally"][1:3] == [0, 0]


def large(one: str) -> np.ndarray:
    return np.full((3, 120, 150), int(one) % 256, np.uint8)


def small_ones(ids: list[str]) -> np.ndarray:
    return np.stack([large(one)[:, ::10, ::10] for one in ids])


def gone(one: str) -> np.ndarray:
    raise OSError("they are gone")


def test_some_images_are_there_at_full_size(tmp_path: Path) -> None:
    out, codes = tmp_path / "p", made_codes(200)
    made = build_page(codes, out, pixels=small_ones, original=large, shown=Shown(originals=10), seconds=0.0)
    found = read_page(out)["page"]
    assert made["originals"] == len(found["originals"]["rows"]) == 10
    assert found["example"] in found["originals"]["rows"]
    for row in found["originals"]["rows"]:
        image = Image.open(io.BytesIO((out / "data" / "full" / f"{row:06d}.webp").read_bytes()))
        assert image.size == (150, 120)
        assert abs(int(np.asarray(image).mean()) - int(codes.part("test").ids[row]) % 256) <= 2
    before = contents(out)
    made = build_page(codes, out, pixels=small_ones, original=gone, shown=Shown(originals=10), seconds=0.0)
    assert made["originals"] == 10
    assert "earlier pictures at full size: they are gone" in made["notes"]
    (out / "data" / "full" / ".000001.webp.abc").write_text("left")
    build_page(codes, out, pixels=small_ones, original=large, shown=Shown(originals=10), seconds=0.0)
    assert contents(out) == before
    build_page(codes, out, pixels=small_ones, original=large, shown=Shown(originals=0), seconds=0.0)
    assert not (out / "data" / "full").exists()


def test_codes_of_other_images_are_refused() -> None:
    codes = made_codes(60)
    other = replace(codes, ids=[f"x{one}" for one in codes.ids])
    with pytest.raises(ConceptError, match="second has none of their test images"):
        compared(codes, codes.part("test"), Beside(other, "second"), "test")
