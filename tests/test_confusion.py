"""Which classes are taken for which: the matrix, figures of each class, and the files of `htaf evaluate --out`."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from htaf.runs.confusion import confusion, per_class, picture
from made_runs import digits, made_run


@given(st.integers(2, 5), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_figures_are_those_of_scikit_learn(classes: int, pairs: list[tuple[int, int]]) -> None:
    true = torch.tensor([a % classes for a, _ in pairs])
    predicted = torch.tensor([b % classes for _, b in pairs])
    outputs = torch.nn.functional.one_hot(predicted, classes).float()
    matrix, labels = confusion(outputs, true, classes), range(classes)
    assert np.array_equal(matrix, confusion_matrix(true, predicted, labels=list(labels)))
    undefined: Any = np.nan
    expected: Any = precision_recall_fscore_support(true, predicted, labels=list(labels), zero_division=undefined)
    for row, *wanted in zip(per_class(matrix, [*map(str, labels)]), *expected, strict=True):
        assert row["rows"] == wanted[3]
        for name, value in zip(("precision", "recall", "f1"), wanted[:3], strict=True):
            if not np.isnan(value):
                assert (row[name] or 0.0) == pytest.approx(value)
            else:
                assert row[name] is None
        wrong = [(count, -other) for other, count in enumerate(matrix[int(row["class"])]) if other != int(row["class"])]
        assert row["times"] == max(wrong)[0]
        assert row["taken_for"] == (str(-max(wrong)[1]) if max(wrong)[0] else None)


def test_names_are_no_formulas() -> None:
    name = r"$\frac{ a$"
    assert picture(np.eye(2, dtype=np.int64), (name, "b"), name).startswith(b"\x89PNG")


def test_counts_stand_in_the_cells_of_a_few_classes() -> None:
    for classes, counted in ((2, True), (20, True), (21, False)):
        names, matrix = [*map(str, range(classes))], np.eye(classes, dtype=np.int64) + 1
        assert (picture(matrix, names, "") != picture(10 * matrix, names, "")) is counted  # the shares are the same
    assert picture(np.zeros((2, 2), np.int64), ["a", "b"], "").startswith(b"\x89PNG")


def test_evaluate_writes_them_but_not_into_what_it_reads(htaf, tmp_path: Path) -> None:
    run, out = made_run(tmp_path / "run", digits()), tmp_path / "classes"
    before = sorted(path.name for path in run.path.iterdir())
    for within in (run.path, run.path / "checkpoints"):
        code, _, err = htaf("evaluate", run.path, "--data", "digits", "--out", within)
        assert code != 0
        assert "choose another folder" in " ".join(err.split())
    assert sorted(path.name for path in run.path.iterdir()) == before
    code, printed, _ = htaf("evaluate", run.path, "--data", "digits", "--out", out, "--json")
    assert code == 0
    found = json.loads(printed)
    matrix = np.array(found["confusion"])
    assert matrix.sum() == found["rows"] == 1797
    assert np.trace(matrix) / 1797 == pytest.approx(found["exact"]["accuracy"], abs=1e-6)
    rows = list(csv.reader((out / "confusion.csv").open()))
    assert rows[0] == ["true", *"0123456789"]
    assert np.array_equal(np.array([row[1:] for row in rows[1:]], dtype=int), matrix)
    figures = list(csv.DictReader((out / "classes.csv").open()))
    assert [row["class"] for row in figures] == [*"0123456789"]
    assert int(figures[3]["rows"]) == matrix[3].sum()
    assert (out / "confusion.png").read_bytes().startswith(b"\x89PNG")
    said = htaf("evaluate", run.path, "--data", "digits", "--out", out)[1]
    assert "found, most often taken for" in said
    assert f"all classes: {out}" in said
