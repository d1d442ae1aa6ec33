"""Our own studies: reports from records, by the command and of what is committed."""

from __future__ import annotations

from pathlib import Path

import pytest

from htaf._files import parse_json
from htaf_paper import reports
from htaf_paper.items import EXPERIMENTS, item
from htaf_paper.protocol import Study
from htaf_paper.records import read_records
from htaf_paper.rules import planted_cell

RESULTS = Path(__file__).parents[1] / "results"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_committed_report_is_that_of_its_records(name: str) -> None:
    study, records = item(name), read_records(RESULTS / name)
    records += [parse_json(file.read_bytes()) for file in sorted((RESULTS / name).glob("cells/*.json"))]
    plan = study.plan("full")  # pyright: ignore[reportAttributeAccessIssue]
    ours = [record for record in records if "cell" in record]  # others are of peers
    ordered = [record for settings in plan for record in ours if record["cell"].items() >= settings.items()]
    assert len(ordered) == len(ours) > 0
    ordered += [record for record in records if "cell" not in record]
    found = study.outcome(ordered, "full")  # pyright: ignore[reportAttributeAccessIssue]
    assert reports.text_of(study.title, found) == (RESULTS / name / "report.md").read_text()
    assert all((RESULTS / name / "figures" / f"{drawing.name}.svg").is_file() for drawing in found.drawings)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_is_an_item_and_a_kind_of_cells(name: str) -> None:
    study = item(name)
    assert isinstance(study, Study)
    assert study.id == name
    assert {"smoke", "full"} <= set(study.settings)


@pytest.mark.slow
def test_the_command_computes_one_and_writes_its_report(htaf, tmp_path: Path) -> None:
    code, text, err = htaf("paper", "run", "pictured", "--out", tmp_path)
    assert code == 0, err
    assert "pictured, smoke: finished, 1 cell" in text
    code, _, err = htaf("paper", "report", "--out", tmp_path)
    assert code == 0, err
    assert "| true, given | 100.0 ± 0.0 |" in (tmp_path / "pictured" / "report.md").read_text()
    code, _, err = htaf("paper", "run", "picture", "--out", tmp_path)
    assert code == 2
    assert "pictured" in err


def test_a_planted_rule_is_found_by_a_trained_network(tmp_path: Path) -> None:
    """The target is a known rule of two of eight columns, with 5% of the labels turned."""
    found = planted_cell(0, tmp_path, hidden=(8,), epochs=12)
    assert found["precision"] > 0.6  # 2 of 8 columns taken at random: 0.25
    assert found["important"]
    assert found["best_agreement"] > 0.8 > found["constant"] > 0.5
