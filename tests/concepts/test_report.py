"""Reports: strict JSON, tables that say what the scores say, pictures that open and draw at random."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from htaf.concepts.codes import Codes, ConceptError, codes_of
from htaf.concepts.report import examples, pictures, write_report
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
    scores = score(codes, baseline={"plain, binarised": some(1)})
    files = write_report(scores, tmp_path / "report", title="A net")
    assert sorted(path.name for path in files) == sorted(path.name for path in (tmp_path / "report").iterdir())
    assert json.loads((tmp_path / "report/scores.json").read_text()) == scores
    text = (tmp_path / "report/scores.md").read_text()
    assert text.startswith("# A net\n")
    exact = f"{100 * scores['accuracy']['test']['exact']:.1f}%"
    assert f"| test | 99 | - | {exact} | - | - |" in text
    assert f"| concept accuracy: all; live | {100 * scores['concept_accuracy']['mean']:.1f}%" in text
    assert "| plain, binarised |" in text
    first = next(t for entry in scores["importance"] for t in entry["top"][:5] if t["reversed"])
    both = f"{first['contribution']:+z.2f} / {first['fitted_contribution']:+z.2f}"
    assert f"{first['concept']} ({first['weight']:+.2f}, {both}, reversed)" in text
    assert "| cat | 33 | " in text
    assert "| a\\|b |" in text  # a class's name does not break the table
    blocks = "\n".join(line if line.startswith("|") else "" for line in text.splitlines()).split("\n\n")
    for block in filter(None, (block.strip() for block in blocks)):  # every line of a table is as wide
        widths = {line.replace("\\|", "").count("|") for line in block.splitlines()}
        assert len(widths) == 1, block
    for name in ("histograms.png", "completeness.png"):
        assert opened((tmp_path / "report" / name).read_bytes()).std() > 0


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


def numbered(side: int = 4, channels: int = 3) -> tuple[Any, list[int]]:
    """Images of one colour each, and the rows that were asked for."""
    asked: list[int] = []

    def give(rows: list[int]) -> torch.Tensor:
        asked.extend(rows)
        return torch.full((len(rows), channels, side, side), 128, dtype=torch.uint8)

    return give, asked


def test_pictures_are_drawn_at_random_from_each_side() -> None:
    codes = some()
    give, asked = numbered()
    opened(pictures(codes, give, 4, count=5))
    on, off = examples(codes, 4, count=5)
    assert asked == [*on.tolist(), *off.tolist()]
    drawn = set()
    for seed in range(60):
        on, off = examples(codes, 4, count=5, seed=seed)
        bits = codes.unpack()[:, 4]
        assert bits[on].tolist() == [1] * 5
        assert bits[off].tolist() == [0] * 5
        assert len({*on.tolist(), *off.tolist()}) == 10
        drawn |= {*on.tolist(), *off.tolist()}
    assert drawn == set(np.flatnonzero(codes.parts == 2).tolist())  # every image of the part can come, no other


def test_pictures_of_a_dead_concept_and_of_grey_images() -> None:
    codes = replace(some(), bits=np.zeros((300, 2), dtype=np.uint8))
    give, asked = numbered(channels=1)
    opened(pictures(codes, give, 3, count=4, name="nothing"))
    assert len(asked) == 4


def test_titles(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.arange(60) % 3
    bits = (labels != 2)[:, None] & (np.arange(60) % 2 == 0)[:, None] | (labels == 0)[:, None]
    bits[30:] |= (labels == 2)[30:, None]  # the groups are those of the part that is drawn
    codes = codes_of(
        bits,
        labels,
        np.ones((3, 1)),
        np.zeros(3),
        classes=["cat", "dog", "fish"],
        parts=np.repeat([0, 2], 30).astype(np.uint8),
    )
    seen: list[str] = []
    from matplotlib.figure import Figure

    original = Figure.suptitle
    monkeypatch.setattr(Figure, "suptitle", lambda self, t, **kw: (seen.append(t), original(self, t, **kw))[1])
    pictures(codes, numbered()[0], 0, count=2, name="legs")
    assert seen == [
        "concept 0: legs, 83% of test images have it\nabove: activated (A: cat, fish (training 0%))"
        "\nbelow: unactivated (B: none)"
    ]


def test_bad_pictures() -> None:
    codes = some()
    with pytest.raises(ConceptError, match="a concept from 0 to 8"):
        pictures(codes, numbered()[0], 9)
    with pytest.raises(ConceptError, match="expected images uint8"):
        pictures(codes, lambda rows: np.zeros((len(rows), 4, 4, 3), dtype=np.uint8), 0)
    with pytest.raises(ConceptError, match="part 'test'"):
        pictures(replace(codes, parts=np.zeros(300, dtype=np.uint8)), numbered()[0], 0)
