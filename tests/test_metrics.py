"""Intervals by the bootstrap, and which classes are taken for which."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from htaf.training.runs.metrics import (
    DRAWS,
    LEAST_DRAWS,
    bootstrap,
    confusion,
    drawn_metrics,
    interval,
    metrics,
    per_class,
)
from made_runs import digits, made_run


def drawn_rows(rows: int) -> list[np.ndarray]:
    """The rows of each draw."""
    found: list[np.ndarray] = []
    bootstrap(rows, lambda weights: {"": float(found.append(np.repeat(np.arange(rows), weights.astype(int))) or 0)})
    return found


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_a_draw_is_measured_as_its_rows_are(outputs: int) -> None:
    rng = torch.Generator().manual_seed(0)
    said = (8 * torch.randn(60, outputs, generator=rng)).round() / 8  # with ties that are exact
    task = "regression" if outputs == 1 else "classification"
    target = torch.randn(60, 1, generator=rng) if outputs == 1 else torch.randint(outputs, (60,), generator=rng)
    found = drawn_metrics(said, target, task, 3.0)
    rows = drawn_rows(60)
    assert len(rows) == DRAWS == len(found["loss"])
    for draw in (0, 1, 77):
        expected = metrics(said[rows[draw]], target[rows[draw]], task, 3.0)
        assert {*expected} == {*found}
        for name, value in expected.items():
            assert found[name][draw] == pytest.approx(value, rel=1e-5), name


def test_rows_that_count_twice_are_as_two() -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    said, target, weights = torch.randn(40, 2), torch.randint(2, (40,)), rng.integers(1, 4, 40)
    found = drawn_metrics(said, target, "classification", weights=weights * 0.5)
    for draw in (0, 5):
        rows = np.repeat(drawn_rows(40)[draw], weights[drawn_rows(40)[draw]])
        for name, value in metrics(said[rows], target[rows], "classification").items():
            assert found[name][draw] == pytest.approx(value, rel=1e-5)


def test_a_threshold_decides() -> None:
    said, target = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 1, 1])
    usual = drawn_metrics(said, target, "classification")["accuracy"]
    low = drawn_metrics(said, target, "classification", threshold=0.2)["accuracy"]
    assert (usual.max(), low.min()) == (1.0, 1.0)
    assert usual.min() < 1


def test_draws_are_the_same_again_and_fewer_of_many_rows() -> None:
    one, other = (bootstrap(30, lambda weights: {"sum": float(weights @ np.arange(30.0))})["sum"] for _ in range(2))
    assert (one == other).all()
    assert len({*one.tolist()}) > 100
    assert len(bootstrap(1_000_000, lambda weights: {"": weights.sum()})[""]) == LEAST_DRAWS


def test_of_many_rows_some_are_drawn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(0)
    target = torch.randint(2, (8000,), generator=rng)
    said = torch.stack([torch.zeros(8000), target + 1.5 * torch.randn(8000, generator=rng)], 1)
    all_rows = drawn_metrics(said, target, "classification")
    monkeypatch.setattr("htaf.training.runs.metrics.MOST_ROWS", 2000)
    fewer = drawn_metrics(said, target, "classification")
    for name in ("loss", "accuracy", "auroc"):
        expected, found = interval(all_rows[name]) or (0, 0), interval(fewer[name]) or (0, 0)
        width = expected[1] - expected[0]
        assert found == pytest.approx(expected, abs=0.3 * width)


def test_an_interval_holds_the_mean_as_often_as_it_says() -> None:
    held = 0
    for seed in range(200):
        values = np.random.default_rng(seed).normal(size=200)
        low, high = interval(bootstrap(200, lambda weights: {"": weights @ values / weights.sum()})[""]) or (0, 0)  # noqa: B023
        held += low <= 0 <= high
    assert 180 <= held <= 198


def test_an_undefined_figure_has_no_interval() -> None:
    assert interval(np.array([np.nan, 1.0, 2.0])) is None
    only = drawn_metrics(torch.randn(9, 2), torch.ones(9, dtype=torch.int64), "classification")["auroc"]
    assert interval(only) is None


# ---- which classes are taken for which ----


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


def test_evaluate_counts_them(htaf, tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", digits())
    code, printed, _ = htaf("evaluate", run.path, "--data", "digits", "--json")
    assert code == 0
    found = json.loads(printed)
    matrix = np.array(found["confusion"])
    assert matrix.sum() == found["rows"] == 1797
    assert np.trace(matrix) / 1797 == pytest.approx(found["exact"]["accuracy"], abs=1e-6)
    assert found["classes"][3]["rows"] == matrix[3].sum()
    assert "found, most often taken for" in htaf("evaluate", run.path, "--data", "digits")[1]
