"""Reports: strict JSON, tables that say what the scores say, pictures that open and draw at random."""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from htaf.concepts.codes import Codes, codes_of
from htaf.concepts.report import write_report
from htaf.concepts.scores import score


def some(seed: int = 0, n: int = 300, concepts: int = 9, classes: int = 3) -> Codes:
    r = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    bits = r.random((n, concepts)) < r.random((concepts, classes))[:, labels].T
    parts = (np.arange(n) // classes % 3).astype(np.uint8)
    names = ["cat", "a|b", r"$\frac{ dog$"][:classes]  # no formula, whatever matplotlib thinks
    return codes_of(bits, labels, r.normal(size=(classes, concepts)), np.zeros(classes), classes=names, parts=parts)


def opened(data: bytes) -> np.ndarray:
    image = Image.open(io.BytesIO(data))
    assert image.format == "PNG"
    return np.asarray(image.convert("RGB"))


def test_write_report(tmp_path: Path) -> None:
    codes = some()
    scores = score(codes)
    files = write_report(scores, tmp_path / "report", title="A net")
    assert sorted(path.name for path in files) == sorted(path.name for path in (tmp_path / "report").iterdir())
    assert json.loads((tmp_path / "report/scores.json").read_text()) == scores
    text = (tmp_path / "report/scores.md").read_text()
    assert text.startswith("# A net\n")
    exact = f"{100 * scores['accuracy']['test']['exact']:.1f}%"
    assert f"| test | 99 | - | {exact} | - | - |" in text
    assert f"| concept accuracy: all; live | {100 * scores['concept_accuracy']['mean']:.1f}%" in text
    first = next(t for entry in scores["importance"] for t in entry["top"][:5] if t["reversed"])
    both = f"{first['contribution']:+z.2f} / {first['fitted_contribution']:+z.2f}"
    assert f"{first['concept']} ({first['weight']:+.2f}, {both}, reversed)" in text
    assert "| cat | 33 | " in text
    assert "| a\\|b |" in text  # a class's name does not break the table
    blocks = "\n".join(line if line.startswith("|") else "" for line in text.splitlines()).split("\n\n")
    for block in filter(None, (block.strip() for block in blocks)):  # every line of a table is as wide
        widths = {line.replace("\\|", "").count("|") for line in block.splitlines()}
        assert len(widths) == 1, block
    assert opened((tmp_path / "report" / "scores.png").read_bytes()).std() > 0


@pytest.mark.parametrize(
    "codes",
    [
        some(concepts=1, classes=1),
        replace(some(), bits=np.zeros((300, 2), dtype=np.uint8)),
        replace(some(), labels=np.where(some().labels == 2, -1, some().labels).astype(np.int32)),
    ],
    ids=["one concept", "all dead", "an empty class"],
)
def test_a_report_of_little(codes: Codes, tmp_path: Path) -> None:
    for path in write_report(score(codes), tmp_path):
        assert path.stat().st_size > 0
    assert "nan" not in (tmp_path / "scores.md").read_text()
