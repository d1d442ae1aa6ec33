"""The experiment on names from pictures: drawn attributes are read back, and a small run writes its report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from htaf._files import OutputError
from htaf.concepts.naming.album import album
from htaf.llm.sight import DIGITS, sight_prompt
from htaf_paper.drawn import FIXED, FREE, LINKED, NAMES, drawn, read
from htaf_paper.kept import KeptError
from htaf_paper.pictured import SCORES, WRONG, main, planted, run
from htaf_paper.pictured_report import KINDS
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


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"\xff\xfe",
        lambda data: b"[1, 2]",
        lambda data: b"null",
        lambda data: b'{"cells": 3}',
        lambda data: data.replace(b'"accepted"', b'"taken"'),
        lambda data: data.replace(b'"classes": 2', b'"classes": [2]'),
        lambda data: data.replace(b'"cpu_seconds"', b'"seconds"'),
        lambda data: data.replace(b'"found": 1.0', b'"found": "all"'),
    ],
)
def test_a_damaged_report_is_one_clear_error(
    change: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "report.json"
    names = (*KINDS,)
    cell = {
        "classes": 2, "errs": 0.0, "seed": 0, "accepted": dict.fromkeys(names, 1.0), "found": 1.0,
        "beyond_class": dict.fromkeys(names, 1.0), "auc": {key: dict.fromkeys(SCORES, 0.9) for key in WRONG},
    }  # fmt: skip
    monkeypatch.setattr("htaf_paper.pictured.cell", lambda *_: cell)
    run(tmp_path, classes=(2,), errors=(0.0,), seeds=(0,), images=240)
    good = file.read_bytes()
    assert change(good) != good
    file.write_bytes(change(good))
    with pytest.raises(KeptError, match=r"report\.json: expected results that this command wrote.*choose another"):
        run(tmp_path, classes=(2,), errors=(0.0,), seeds=(0,), images=240)
    assert file.read_bytes() == change(good)
    monkeypatch.setattr("sys.argv", ["pictured", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1


def test_a_folder_that_cannot_be_written_is_seen_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "report.json").mkdir()
    monkeypatch.setattr("htaf_paper.pictured.cell", lambda *_: pytest.fail("measured"))
    with pytest.raises(OutputError, match="expected a folder"):
        run(tmp_path / "file")
    with pytest.raises(KeptError, match=r"report\.json: expected results"):
        run(tmp_path)
