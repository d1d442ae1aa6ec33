"""The experiment on names from pictures: drawn attributes are read back, and a small run writes its report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from htaf.concepts.naming.album import album
from htaf.llm.sight import DIGITS, sight_prompt
from htaf_paper.drawn import FIXED, FREE, LINKED, NAMES, drawn, read
from htaf_paper.pictured import WRONG, planted, run
from htaf_paper.vision_model import VisionModel, images_in


@pytest.mark.parametrize("kind", ["sheets", "images"])
def test_drawn_attributes_are_read_from_what_is_sent(kind) -> None:
    pictures = drawn(4, 60, np.random.default_rng(0))
    sent = images_in(album(pictures.pixels, kind, 64, title="Images"))["Images"]
    assert (read(sent) == pictures.has).all()
    assert {*FIXED, *LINKED, *FREE} == set(range(len(NAMES)))


def test_classes_have_the_attributes_that_they_should() -> None:
    pictures = drawn(2, 400, np.random.default_rng(0))
    shares = np.stack([pictures.has[pictures.labels == k].mean(0) for k in (0, 1)])
    assert sorted(shares[:, FIXED[0]].tolist()) == [0, 1]
    assert np.abs(np.sort(shares[:, LINKED], axis=0) - [[0.1] * 4, [0.9] * 4]).max() < 0.08
    codes, null = (planted(pictures, np.random.default_rng(0), null=null) for null in (False, True))
    assert (codes.unpack() == pictures.has).all()
    assert 0.3 < (null.unpack() == pictures.has).mean() < 0.7
    assert [(codes.parts[codes.labels == k] == 2).mean().round(2) for k in (0, 1)] == [0.33, 0.33]


def test_the_stand_in_reads_digits_only_where_they_are() -> None:
    messages = sight_prompt()
    assert json.loads(VisionModel().answer(messages)) == {"digits": DIGITS}
    messages[0]["content"][1] = album(np.full((1, 3, 8, 8), 255, np.uint8), "images", 300, title="x")[2]
    assert json.loads(VisionModel().answer(messages)) == {"digits": ""}


def test_a_small_run_writes_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = run(tmp_path, classes=(2,), errors=(0.0,), seeds=(0,), images=240)
    (cell,) = json.loads((tmp_path / "report.json").read_text())["cells"]
    assert cell["accepted"]["true"] == cell["accepted"]["made"] == cell["found"] == cell["accepted"]["class"] == 1
    for key in ("random", "null", "random ratings", "fits always"):
        assert cell["accepted"][key] == 0
    assert cell["beyond_class"]["true"] == 1
    assert cell["beyond_class"]["class"] < 1
    assert set(cell["auc"]) == set(WRONG)
    assert (tmp_path / "report.md").read_text() == text
    assert "| true, given | 100.0 ± 0.0 |" in text
    assert (tmp_path / "pictured.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr("htaf_paper.pictured.cell", lambda *_: pytest.fail("measured again"))
    assert run(tmp_path, classes=(2,), errors=(0.0,), seeds=(0,), images=240) == text
