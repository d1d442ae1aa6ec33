"""The figures of a report against their definitions: calibration, residuals, importance, baselines, ticks."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from htaf.data.preprocess import Preprocessor
from htaf.data.tabular import Table, load, split
from htaf.models.mlp import Thermometer
from htaf.tables.inspection import network_importance as importance
from htaf.tables.report import contents
from htaf.tables.report.contents import Baseline, Measured, fit_baselines, raw_columns, verdict
from htaf.tables.report.writing import effect
from htaf.training.runs.metrics import bootstrap, confusion, drawn_metrics, metrics
from htaf.training.runs.predictions import predicted

SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS, st.integers(8, 60), st.integers(2, 4))
def test_calibration_by_its_definition(seed: int, rows: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    outputs, target = rng.normal(0, 3, (rows, classes)), np.arange(rows) % classes
    found = contents.calibration(measured(outputs, target))
    shares = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    said = shares[:, 1] if classes == 2 else shares.max(1)
    right = target == 1 if classes == 2 else target == shares.argmax(1)
    assert sum(one["rows"] for one in found["bins"]) == rows
    error = 0.0
    for one in found["bins"]:
        inside = (said >= one["low"] - 1e-12) & ((said < one["high"] - 1e-12) | (one["high"] == 1.0))
        assert inside.sum() == one["rows"]
        assert one["predicted"] == pytest.approx(said[inside].mean())
        assert one["observed"] == pytest.approx(right[inside].mean())
        error += abs(said[inside].sum() - right[inside].sum()) / rows
    assert found["error"] == pytest.approx(error)


@given(SEEDS, st.integers(2, 200))
def test_residuals_part_the_rows_by_prediction(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    predicted, truth = rng.normal(size=rows).round(1), rng.normal(size=rows)
    found = contents.residuals(measured(predicted[:, None], truth))
    bins = found["bins"]
    assert sum(one["rows"] for one in bins) == rows
    assert max(one["rows"] for one in bins) - min(one["rows"] for one in bins) <= 1
    assert all(a["high"] <= b["low"] for a, b in itertools.pairwise(bins))
    assert sum(one["mean"] * one["rows"] for one in bins) / rows == pytest.approx((truth - predicted).mean())
    assert found["deviation"] == pytest.approx((truth - predicted).std())
    assert all(one["q10"] <= one["median"] <= one["q90"] for one in bins)


@given(SEEDS, st.integers(1, 4))
def test_a_row_of_weight_2_is_two_rows(seed: int, classes: int) -> None:
    """Each measure of weighted rows is that of rows that stand there so often, whatever the unit of the weights."""
    rng = np.random.default_rng(seed)
    outputs, times = rng.normal(0, 2, (30, classes)).round(1), rng.integers(1, 4, 30)
    target = np.arange(30) % classes if classes > 1 else rng.normal(size=30)
    one = measured(outputs, target, weights=times * 0.25)
    each = np.repeat(np.arange(30), times)
    tensors = (one.outputs[each], None, one.target[each])
    two = Measured(one.preprocessor, "test", each, *tensors)
    wanted, found = [of(two) for of in MEASURES[classes > 1]], [of(one) for of in MEASURES[classes > 1]]
    for one_measure, other in zip(found, wanted, strict=True):
        assert one_measure == pytest.approx(other, abs=1e-9)


def of_bins(found: Measured) -> list[Any]:
    said = contents.calibration(found)
    return [said["error"], *(one[name] for one in said["bins"] for name in ("share", "predicted", "observed"))]


def of_residuals(found: Measured) -> list[Any]:
    said = contents.residuals(found)
    return [said["mean"], said["deviation"]]


MEASURES: dict[bool, Any] = {True: (of_bins,), False: (of_residuals,)}


def test_pictures_take_one_value_missing_and_large_ones() -> None:
    for low, high in ((0.0, 0.0), (5.0, 5.0), (-1e308, 1e308)):
        levels = [{"end": value, "text": "<x> & $y$", "points": [value]} for value in (low, high)]
        for kind in ("number", "category"):
            picture = effect({"kind": kind, "name": "_a$b$", "levels": levels}, ["one"], "y")
            assert picture.startswith('<svg viewBox="0 0 ')
            assert "nan" not in picture
            assert "#b9500f" not in picture


# --- decisions, the best baseline ---


def measured(
    outputs: np.ndarray, target: np.ndarray, threshold: float | None = None, weights: np.ndarray | None = None
) -> Measured:
    """What a network says of rows; of one column of outputs a number."""
    classes = tuple(f"c{k}" for k in range(outputs.shape[1])) if outputs.shape[1] > 1 else ()
    task: Any = "classification" if classes else "regression"
    frame = pd.DataFrame({"a": np.arange(len(target), dtype=float)})
    preprocessor = Preprocessor.fit(frame, target, task=task, classes=classes)
    if not classes:
        mean, std = preprocessor.target.mean, preprocessor.target.std
        outputs, target = (((v.reshape(-1) - mean) / std)[:, None] for v in (outputs, target))
    tensors = (torch.tensor(outputs), None, torch.tensor(target))
    preprocessor = preprocessor.with_threshold(threshold)
    return Measured(preprocessor, "test", np.arange(len(target)), *tensors, weights)


@given(SEEDS, st.integers(2, 4), st.sampled_from([None, 0.5, 0.3, "a probability"]))
def test_all_that_decides_decides_alike(seed: int, classes: int, threshold: Any) -> None:
    """Ties and probabilities that lie on the threshold too."""
    rng = np.random.default_rng(seed)
    outputs = rng.normal(0, 2, (40, classes)).round(int(rng.integers(0, 3)))
    target = np.arange(40) % classes
    if threshold == "a probability":
        threshold = float(torch.from_numpy(outputs).softmax(1)[7, 1])
    found = measured(outputs, target, threshold if classes == 2 else None)
    accuracy = metrics(found.outputs, found.target, "classification", threshold=found.threshold)["accuracy"]
    said = found.decided()
    assert (said == target).mean() == pytest.approx(accuracy)
    assert confusion(found.outputs, found.target, classes, found.threshold).trace() == (said == target).sum()
    draws = found.drawn["accuracy"]
    of_draws = bootstrap(40, lambda weights: {"": float(weights @ (said == target) / weights.sum())})[""]
    assert draws == pytest.approx(of_draws)
    named = predicted(found.outputs, found.preprocessor, pd.RangeIndex(40))["prediction"]
    assert named.tolist() == [f"c{k}" for k in said]
    if classes > 2:
        right = sum(one["observed"] * one["rows"] for one in contents.calibration(found)["bins"])
        assert right / 40 == pytest.approx(accuracy)


@pytest.mark.parametrize(
    ("metric", "values", "ahead", "stands", "text"),
    [
        ("auroc", (0.8, 0.828), (-0.046, -0.01), "behind", "{Logistic} is better by 0.028 AUROC [0.01, 0.046]."),
        ("auroc", (0.85, 0.828), (0.01, 0.046), "ahead", "{Ahead} {logistic} by 0.022 AUROC [0.01, 0.046]."),
        ("auroc", (0.82, 0.828), (-0.02, 0.01), "level", "{Level} {logistic}: behind by 0.008 AUROC [-0.01, 0.02]."),
        ("rmse", (747.0, 664.0), (40.0, 120.0), "behind", "{Logistic} is better by 83 RMSE [40, 120]."),
        ("rmse", (1.5, 2.0), (-0.8, -0.2), "ahead", "{Ahead} {logistic} by 0.5 RMSE [0.2, 0.8]."),
        ("accuracy", (0.9, 0.9), None, "level", "{Level} {logistic}."),
        ("accuracy", (0.9, 0.9 - 1.1e-16), (-0.1, 0.1), "level", "{Level} {logistic}."),
    ],
)
def test_the_headline_has_the_sign(metric: str, values: Any, ahead: Any, stands: str, text: str) -> None:
    own, value = values
    worse = value - 100 if metric != "rmse" else value + 1000
    found = [
        Baseline("constant", {"test": {metric: worse}}),
        Baseline("logistic", {"test": {metric: value}}, ahead={metric: ahead}),
        Baseline("boosting", note="not fitted: no memory"),
    ]
    said = verdict(own, "test", metric, found)
    assert said is not None
    words = {"Logistic": "Logistic regression", "logistic": "logistic regression"}
    words |= {"Ahead": "The network is ahead of", "Level": "The network is level with"}
    assert (said["baseline"], said["stands"], said["text"]) == ("logistic", stands, text.format(**words))
    assert (said["better_by"] > 0) == (stands == "ahead")
    assert verdict(None, "test", metric, found) is None
    assert verdict(own, "test", metric, found[2:]) is None


def test_intervals_of_baselines_are_of_the_same_draws(tmp_path: Path) -> None:
    frame, y = mixed()
    table, rows, preprocessor = made(tmp_path, frame.assign(y=y))
    truth = torch.tensor(preprocessor.encode_target(table.target[rows["test"]]))[:, None]
    own = drawn_metrics(truth + 0.1, truth, "regression", preprocessor.target.std)
    for one in fit_baselines(table, rows, preprocessor, beside=("test", own)):
        for metric, value in one.metrics["test"].items():
            low, high = one.intervals[metric] or (0.0, 0.0)
            assert low <= value <= high or one.name == "constant"
        bounds = [own["rmse"][0] - b for b in reversed(one.intervals["rmse"] or ())]  # its own is in each draw the same
        assert one.ahead["rmse"] == pytest.approx(bounds, abs=1e-6)
    assert all(one.intervals == {} for one in fit_baselines(table, rows, preprocessor))


# --- importance ---


def mixed(rows: int = 300, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Numbers, a category, missing values, a constant, and a target that `a` and `kind` make."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"noise": rng.normal(size=rows), "a": rng.normal(size=rows), "same": 1.0})
    frame["kind"] = pd.Series(rng.choice(["u", "v", "w"], rows), dtype=object)
    frame.loc[::7, "noise"] = np.nan
    return frame, (3 * frame["a"] + (frame["kind"] == "v")).to_numpy()


def test_inputs_of_each_column_are_found() -> None:
    frame, y = mixed()
    preprocessor = Preprocessor.fit(frame, y, task="regression", special_codes=(-9.0,))
    names = ["noise", "a", "kind"]
    found = [preprocessor.inputs_of(name) for name in names]
    of = [[n for n in preprocessor.feature_names if n.split("=")[0].split(" is ")[0] == name] for name in names]
    assert [[preprocessor.feature_names[i] for i in block] for block in found] == of


class Planted(nn.Module):
    """Reads the inputs of `a` alone."""

    def __init__(self, place: int, outputs: int) -> None:
        super().__init__()
        self.place, self.outputs = place, outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value = 10 * (x[:, self.place] - 0.5)
        return torch.stack([-value, value], 1) if self.outputs == 2 else value[:, None]


@pytest.mark.parametrize("headline", ["rmse", "auroc", "accuracy"])
def test_a_planted_column_is_found(headline: str) -> None:
    frame, y = mixed()
    classes = ("no", "yes") if headline != "rmse" else ()
    truth = (frame["a"] > 0).to_numpy().astype(np.int64) if classes else y
    task: Any = "classification" if classes else "regression"
    preprocessor = Preprocessor.fit(frame, truth, task=task, classes=classes)
    net = Planted(preprocessor.feature_names.index("a"), 2 if classes else 1)
    target = torch.from_numpy(truth) if classes else torch.from_numpy(preprocessor.encode_target(truth))[:, None]
    found = importance(net, preprocessor, frame, target, headline=headline)
    worse = found.columns["worse"].to_dict()
    assert next(iter(worse)) == "a"
    assert worse.pop("a") > 0.15
    assert [*worse.values()] == [0.0, 0.0]
    assert (found.metric, found.rows, found.repeats) == (headline, 300, 10)
    again = importance(net, preprocessor, frame, target, headline=headline)
    assert again.to_json() == found.to_json()


def test_importance_counts_rows_by_their_weights() -> None:
    frame, y = mixed(120)
    times = np.random.default_rng(1).integers(1, 4, 120)
    each = np.repeat(np.arange(120), times)
    preprocessor = Preprocessor.fit(frame, y, task="regression")
    net = Planted(preprocessor.feature_names.index("a"), 1)
    target = torch.from_numpy(preprocessor.encode_target(y))[:, None].float()
    weighted = importance(net, preprocessor, frame, target, headline="rmse", weights=times * 0.5)
    repeated = importance(net, preprocessor, frame.iloc[each], target[each], headline="rmse")
    plain = importance(net, preprocessor, frame, target, headline="rmse")
    assert weighted.value == pytest.approx(repeated.value, rel=1e-6)
    assert weighted.value != pytest.approx(plain.value, rel=1e-4)
    worse = [of.columns["worse"]["a"] for of in (weighted, plain)]  # of the same shuffles
    assert worse[0] != worse[1] == pytest.approx(worse[0], rel=0.5)


def test_many_columns_are_all_looked_at() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({f"c{k}": rng.normal(size=50) for k in range(120)})
    preprocessor = Preprocessor.fit(frame, rng.normal(size=50), task="regression")
    net = Planted(117, 1)
    target = torch.from_numpy(rng.normal(size=(50, 1))).float()
    found = importance(net, preprocessor, frame, target, headline="rmse")
    assert len(found.columns) == 120
    assert found.columns["worse"].abs().idxmax() == "c117"
    lead = Thermometer([3] * 120)
    x = torch.from_numpy(preprocessor.transform(frame))
    lead.place(x)
    places = nn.Linear(360, 1)
    with torch.no_grad():
        places.weight.zero_()
        places.weight[0, 3 * 44] = 1.0
    bits = nn.Sequential(lead, places)  # whose bits have a gradient, and the inputs none
    found = importance(bits, preprocessor, frame, target, headline="rmse")
    worse = found.columns["worse"]
    assert worse.index[worse != 0].tolist() == ["c44"]


# --- baselines ---


def made(tmp_path: Path, frame: pd.DataFrame) -> tuple[Table, dict[str, np.ndarray], Preprocessor]:
    frame.to_csv(tmp_path / "made.csv", index=False)
    table = load(tmp_path / "made.csv", target="y")
    rows = vars(split(table, 0))
    return table, rows, table.fit_preprocessor(rows["train"])


def test_baselines_of_a_planted_table(tmp_path: Path) -> None:
    frame, y = mixed()
    table, rows, preprocessor = made(tmp_path, frame.assign(y=y))
    told: list[str] = []
    constant, linear, boosting = fit_baselines(table, rows, preprocessor, progress=told.append)
    assert told == [one.name for one in (constant, linear, boosting)] == ["constant", "linear", "boosting"]
    truth = table.target[rows["test"]]
    mean = table.target[rows["train"]].mean()
    assert constant.metrics["test"]["rmse"] == pytest.approx(np.sqrt(((truth - mean) ** 2).mean()))
    assert (linear.metrics["test"]["r2"] or 0) > 0.99
    assert (boosting.metrics["test"]["r2"] or 0) > 0.8
    assert {one.rows for one in (constant, linear, boosting)} == {210}
    assert set(boosting.metrics) == {"validation", "test"}


def test_baselines_of_classes_agree_with_scikit_learn(tmp_path: Path) -> None:
    frame, _ = mixed()
    labels = np.where(frame["a"] > 0, "plus", np.where(frame["kind"] == "u", "minus", "zero"))
    table, rows, preprocessor = made(tmp_path, frame.assign(y=labels))
    found = {one.name: one.metrics["test"] for one in fit_baselines(table, rows, preprocessor)}
    most = np.bincount(table.target[rows["train"]]).argmax()
    assert found["constant"]["accuracy"] == pytest.approx((table.target[rows["test"]] == most).mean())
    assert found["constant"]["auroc"] == pytest.approx(0.5)
    assert (found["logistic"]["accuracy"] or 0) > 0.85
    assert (found["boosting"]["accuracy"] or 0) > 0.9


def test_boosting_is_left_out_of_wide_tables_and_has_fewer_rounds_of_many_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, y = mixed()
    table, rows, preprocessor = made(tmp_path, frame.assign(y=[f"c{k % 10}" for k in range(len(y))]))
    assert fit_baselines(table, rows, preprocessor)[-1].note == "50 rounds instead of 100, for 10 classes"
    monkeypatch.setattr(contents, "MOST_COLUMNS", 2)
    *_, linear, boosting = fit_baselines(table, rows, preprocessor)
    assert (linear.note, boosting.metrics) == ("", {})
    assert boosting.note == f"not fitted: {table.features.shape[1]} columns, more than 2"


def test_a_model_that_fails_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame, y = mixed()
    table, rows, preprocessor = made(tmp_path, frame.assign(y=y))
    original = contents._model

    def model(name: str, *rest: Any) -> Any:
        if name == "linear":
            raise MemoryError("too large")
        return original(name, *rest)

    monkeypatch.setattr(contents, "_model", model)
    _, linear, boosting = fit_baselines(table, rows, preprocessor)
    assert (linear.metrics, linear.note) == ({}, "not fitted: too large")
    assert boosting.metrics


def test_rare_classes_and_new_categories_do_no_harm(tmp_path: Path) -> None:
    frame, _ = mixed(120)
    labels = np.array(["one", "two"] * 60, dtype=object)
    labels[:3] = "rare"
    frame["kind"] = [f"k{row}" if row % 2 else "even" for row in range(120)]
    table, rows, preprocessor = made(tmp_path, frame.assign(y=labels))
    for one in fit_baselines(table, rows, preprocessor):
        assert one.metrics["test"]["loss"] is not None


def test_dates_are_numbers_for_baselines() -> None:
    days: Any = pd.to_datetime(["2020-01-01T00:00", None, "2021-06-15T12:00"])
    frame = pd.DataFrame({"day": days, "x": [1.0, 2.0, 3.0]})
    found = raw_columns(frame)
    assert list(found) == ["day elapsed days", "day month", "day weekday", "day hour", "x"]
    assert found["day elapsed days"].tolist()[::2] == [18262.0, 18793.5]
    assert np.isnan(found["day month"][1])
