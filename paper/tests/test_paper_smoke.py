"""The whole of `htaf paper` at its smallest scale, without data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from htaf_paper.items import ITEMS
from htaf_paper.outcomes import OUTCOMES, picture_file
from htaf_paper.protocol import SCALES, Outcome
from htaf_paper.records import read_lines
from htaf_paper.writing import write_report

CONCEPTS = (
    "icbm-accuracy", "icbm-methods", "binarisation", "class-specificity", "feature-histograms", "cbm", "cub-concepts"
)  # fmt: skip


def computed(out: Path, work: Path) -> None:
    words = [sys.executable, "-m", "htaf", "paper", "run", "all", "--scale", "smoke", "--out", str(out)]
    words += ["--workers", "2"]
    environment = {k: v for k, v in os.environ.items() if k != "HTAF_DATA"}
    environment |= {"XDG_CACHE_HOME": str(work), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_everything_at_smoke_scale(tmp_path: Path) -> None:
    """From nothing to the report; the second call computes nothing."""
    out = tmp_path / "out"
    computed(out, tmp_path / "cache")
    there = {file: file.stat().st_mtime_ns for file in out.glob("cells/*/record.json")}
    found = {one["id"]: one for one in read_lines(out / OUTCOMES)}
    assert found.keys() == ITEMS.keys()
    for one in found.values():
        assert (one["status"], one["scale"] in SCALES) == ("finished", True), one["id"]
        outcome = TypeAdapter(Outcome).validate_json(json.dumps(one["outcome"]))
        if one["id"] in CONCEPTS:
            assert outcome.tables, one["id"]
            assert {claim.verdict for claim in outcome.claims} <= {"not testable at this scale", "not run"}, one["id"]
        for drawing in outcome.drawings:
            assert drawing.picture is None or picture_file(out, one["scale"], drawing.picture).is_file()
    page = write_report(out).read_text()
    assert all(name in page for name in ITEMS)
    computed(out, tmp_path / "cache")
    assert {file: file.stat().st_mtime_ns for file in out.glob("cells/*/record.json")} == there
