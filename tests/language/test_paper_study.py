"""The study of language models, on a tiny model."""

from __future__ import annotations

import io
import json

import pytest
from transformers.utils import logging

from htaf._console import quiet_transformers
from htaf.training.queue import Place
from htaf.training.results import Results
from htaf_paper.language import CELLS, STUDY, Cell, Shared, before, cells, run_cell
from htaf_paper.language_report import outcome


def test_the_plan():
    planned = list(cells())
    assert len({cell.name for cell in planned}) == len(planned)
    assert {cell.method for cell in planned if cell.last_k == 8 and cell.seed == 2} == {"htaf", "ste", "ss"}
    assert before(Cell("task", 8, "trained", "ste"), (1, 4, 8)) == Cell("task", 4, "trained", "ste")
    assert before(Cell("text", 8, "trained"), (1, 4, 8)) is None


def test_cells_and_report(model, text, tmp_path):
    task = tmp_path / "task.jsonl"
    words = ("the sun.", "the sea.")
    lines = [{"context": "red cats see", "choices": words, "answer": i % 2} for i in range(200)]
    task.write_text("\n".join(map(json.dumps, lines)))
    setting = Shared(str(model), str(text), str(task), str(task), steps=2, length=32)
    out, records = tmp_path / "study", {}
    for cell in [Cell("text", 1, way) for way in ("plain", "trained")] + [Cell("text", 1, "trained", "ste")]:
        records[cell.name] = run_cell(cell, setting, out)
        assert not (out / cell.name / "model.safetensors").exists()
    task = Cell("task", 2, "trained")
    records[task.name] = run_cell(task, setting, out, (1, 2))
    assert (out / "task-k01-htaf-0" / "htaf_record.json").is_file()  # the one that it begins with
    assert records["text-k01-ste-0"]["trained"]["task"]["questions"] == 200
    found = outcome(records, "cpu", [("text-k04-htaf-0", "not run: time", "the command")])
    text, by_task = found.tables
    assert {row[1] for row in text.rows} >= {"calibrated: down refitted too", "trained, straight-through", "plain step"}
    assert [row[0] for row in by_task.rows] == ["2"]
    assert by_task.rows[0][2] == "not run"
    assert {drawing.name for drawing in found.drawings} == {"language-text", "language-task"}
    assert found.claims[1].verdict == "not run"  # accuracy: no pair of the same k
    assert found.missing == (("text-k04-htaf-0", "not run: time", "the command"),)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def bars():
    """Bars are on before a test, and after it."""
    logging.enable_progress_bar()
    yield logging.is_progress_bar_enabled
    logging.enable_progress_bar()


def test_bars_stay_on_a_terminal_alone(bars, monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    quiet_transformers()
    assert bars()
    quiet_transformers(json=True)
    assert not bars()


def test_no_bars_in_the_log_of_a_worker(bars, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.setattr("htaf_paper.language.run_cell", lambda *_, **__: {"bars": bars()})
    (_, task), *_ = STUDY.made("smoke")
    place = Place(None, "cpu", 1, tmp_path, Results(tmp_path))
    assert CELLS.compute(task.payload["settings"], task.key, place) == {"bars": False}
