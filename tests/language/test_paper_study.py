"""The study of language models, on a tiny model."""

from __future__ import annotations

import json

import pytest

from htaf_paper.language import Cell, Setting, before, cells, run_cell
from htaf_paper.language_report import FIGURES, report


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
    setting = Setting(str(model), str(text), str(task), str(task), steps=2, length=32)
    out = tmp_path / "study"
    for cell in [Cell("text", 1, way) for way in ("plain", "trained")] + [Cell("text", 1, "trained", "ste", 1)]:
        record = run_cell(cell, setting, out)
        assert not (out / cell.name / "model.safetensors").exists()
    run_cell(Cell("task", 2, "trained"), setting, out, (1, 2))
    assert record["trained"]["task"]["questions"] == 200
    said = report(out)
    assert "| 1 | calibrated: down refitted too |" in said
    assert "| 1 | trained, straight-through |" in said
    assert "| 2 | " in said
    rows = {row["cell"] for row in json.loads((out / "report.json").read_text())["rows"]}
    assert "task-k01-htaf-0" in rows
    assert all((out / f"{name}.svg").is_file() for name in FIGURES)
    with pytest.raises(ValueError, match="expected finished cells"):
        report(tmp_path)
