"""Weights of rows and of classes, and the threshold of a rare class: in losses and fits, in files and in searches."""

from __future__ import annotations

import io
import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    f1_score,
    log_loss,
    matthews_corrcoef,
    mean_absolute_error,
    mean_squared_error,
    r2_score,
    roc_auc_score,
)
from sklearn.model_selection import KFold, cross_validate
from sklearn.utils.class_weight import compute_class_weight
from torch import nn

import htaf
from htaf import HtafClassifier, HtafRegressor
from htaf.data.notes import told
from htaf.data.tabular import Split, Table, from_frame, load
from htaf.program.export import onnx_table
from htaf.tables.estimators import parts
from htaf.tables.inspection import reasons
from htaf.tables.report.contents import fit_baselines
from htaf.training.families import ready_recipe
from htaf.training.problems import class_weights, problem
from htaf.training.recipe import TableData
from htaf.training.runs import Run, open_packed, open_run
from htaf.training.runs.metrics import Loss, decided, metrics, threshold_for
from htaf.training.runs.run import table_rows
from htaf.transform.hardening import refit_head

SMALL: dict[str, Any] = {"hidden": (16,), "epochs": 6, "lr": 0.03, "batch_size": 32, "recipe": {"members": 2}}
TINY: dict[str, Any] = {"hidden": (4,), "epochs": 1}


def rare(rows: int = 400, share: float = 0.1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two classes, of which the second has this share."""
    x, y, *_ = make_classification(rows, 6, weights=[1 - share], flip_y=0.02, class_sep=0.8, random_state=seed)
    return np.asarray(x), np.asarray(y)


X, Y = rare()
ROW_WEIGHTS = np.where(Y == 1, 5.0, 1.0)


@pytest.fixture(scope="module")
def plain() -> HtafClassifier:
    return HtafClassifier(**SMALL).fit(X, Y)


@pytest.fixture(scope="module")
def by_f1() -> HtafClassifier:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return HtafClassifier(threshold="f1", **SMALL).fit(X, Y)


# --- what is weighted ---------------------------------------------------------------------------------


def test_a_weighted_loss_counts_rows_as_often_as_they_weigh() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs, codes = torch.randn(5, 3, generator=generator), torch.tensor([0, 2, 1, 1, 0])
    times = torch.tensor([1, 3, 0, 2, 4])
    of = times / times.double().mean()
    for task, target in (("classification", codes), ("regression", torch.randn(5, 3, generator=generator))):
        loss = Loss(task, 0.1)
        repeated = loss(outputs.repeat_interleave(times, 0), target.repeat_interleave(times, 0))
        torch.testing.assert_close(loss(outputs, target, of).float(), repeated)
        members = outputs.repeat_interleave(2, 0), target.repeat_interleave(2, 0)
        torch.testing.assert_close(loss(*members, of).float(), repeated)


def test_metrics_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    of, many = rng.uniform(0.1, 3, 60), rng.integers(0, 3, 60)
    for weights in (None, of):
        w = None if weights is None else torch.from_numpy(weights)
        y, said = rng.normal(size=60), rng.normal(size=60)
        found = metrics(torch.tensor(said)[:, None], torch.tensor(y)[:, None], "regression", 2.0, weights=w)
        assert found["loss"] == pytest.approx(mean_squared_error(y, said, sample_weight=weights))
        assert found["rmse"] == pytest.approx(2 * mean_squared_error(y, said, sample_weight=weights) ** 0.5)
        assert found["mae"] == pytest.approx(2 * mean_absolute_error(y, said, sample_weight=weights))
        assert found["r2"] == pytest.approx(r2_score(y, said, sample_weight=weights))
        for codes, classes in ((many, 3), (many % 2, 2)):
            outputs = torch.from_numpy(rng.normal(size=(60, classes)))
            p = outputs.softmax(1).numpy()
            found = metrics(outputs, torch.from_numpy(codes), "classification", weights=w)
            score, how = (p[:, 1], {}) if classes == 2 else (p, {"multi_class": "ovr"})
            assert found["loss"] == pytest.approx(log_loss(codes, p, sample_weight=weights))
            assert found["accuracy"] == pytest.approx(accuracy_score(codes, p.argmax(1), sample_weight=weights))
            assert found["auroc"] == pytest.approx(roc_auc_score(codes, score, sample_weight=weights, **how))
    lacking = metrics(torch.zeros(3, 2), torch.tensor([1, 1, 1]), "classification")
    assert lacking["auroc"] is None
    assert metrics(torch.full((2, 2), torch.nan), torch.tensor([0, 1]), "classification")["auroc"] is None


@pytest.mark.parametrize("kind", ["numbers", "codes", "binary"])
@pytest.mark.parametrize("rows", [24, 6])  # more and fewer than inputs
def test_the_head_is_refitted_as_to_repeated_rows(kind: str, rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    net: Any = nn.Sequential(nn.Linear(8, 1 if kind != "codes" else 3))
    x = torch.randn(rows, 8, generator=generator)
    y: torch.Tensor = torch.randn(rows, 1, generator=generator)
    y = y if kind == "numbers" else torch.arange(rows) % (3 if kind == "codes" else 2)
    times = torch.arange(rows) % 3 + 1
    twice = x.repeat_interleave(times, 0), y.repeat_interleave(times, 0)
    options: Any = {"strengths": (0.1,)}
    made, report = refit_head(net, [(x, y)], validation=[(x, y)], weights=(times * 2.0, times * 5.0), **options)
    wanted, expected = refit_head(net, [twice], validation=[twice], **options)
    torch.testing.assert_close(made[0].weight, wanted[0].weight, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(made[0].bias, wanted[0].bias, rtol=1e-3, atol=1e-4)
    assert report.after is not None
    assert report.after["loss"] == pytest.approx((expected.after or {})["loss"], rel=1e-3)
    uneven, _ = refit_head(net, [(x, y)], validation=[(x, y)], **options)
    assert not torch.allclose(made[0].weight, uneven[0].weight, rtol=1e-3)
    with pytest.raises(ValueError, match=f"expected weights of {rows} rows of the output, got 2"):
        refit_head(net, [(x, y)], validation=[(x, y)], weights=(torch.ones(2), torch.ones(rows)))
    with pytest.raises(ValueError, match="expected validation= beside weights="):
        refit_head(net, [(x, y)], weights=(torch.ones(rows), torch.ones(rows)))


@pytest.mark.parametrize("kind", [HtafClassifier, HtafRegressor])
def test_a_row_of_weight_0_is_as_if_it_were_not_there(kind: Any) -> None:
    target = Y if kind is HtafClassifier else X[:, 0] * 3 + Y
    weights = np.random.default_rng(0).integers(0, 3, len(Y))
    taken = weights > 0
    with_zeros = kind(**TINY).fit(np.where(taken[:, None], X, 1e9), target, sample_weight=weights)
    without = kind(**TINY).fit(X[taken], target[taken], sample_weight=weights[taken])
    np.testing.assert_array_equal(with_zeros.predict(X), without.predict(X))
    assert with_zeros.run_.record["metrics"] == without.run_.record["metrics"]
    assert f"{(~taken).sum()} rows of weight 0 in 'sample_weight' dropped" in with_zeros.notes_
    other = kind(**TINY).fit(X[taken], target[taken])
    assert other.run_.record["metrics"] != without.run_.record["metrics"]


def test_only_the_proportions_of_weights_matter(plain: HtafClassifier) -> None:
    even = HtafClassifier(**SMALL).fit(X, Y, sample_weight=np.full(len(Y), 0.3))
    np.testing.assert_array_equal(even.predict_proba(X), plain.predict_proba(X))
    one, other = (HtafClassifier(**TINY).fit(X, Y, sample_weight=ROW_WEIGHTS * by) for by in (1, 4))
    np.testing.assert_array_equal(one.predict_proba(X), other.predict_proba(X))


def test_one_weighted_loss_chooses_epoch_norms_and_head() -> None:
    recipe = ready_recipe("mlp", "tabular-members").replace(members=2)
    made = HtafClassifier(**SMALL | {"recipe": recipe}).fit(X, Y, sample_weight=ROW_WEIGHTS)
    assert made.run_.held is not None
    epochs = pd.read_csv(io.BytesIO(made.run_.held["metrics.csv"]))
    norms, head = made.run_.record["hardening"]["finish"]
    assert norms["before"] == pytest.approx(epochs["val_loss"].min(), rel=1e-4)
    assert head["before"] == pytest.approx(head["report"]["before"]["loss"], rel=1e-4)
    assert head["after"] == pytest.approx(head["report"]["after"]["loss"], rel=1e-4)
    table = from_frame(pd.DataFrame(X), Y, task="classification", classes=("0", "1"))
    held = parts(table, 0.1, 0).validation
    p = made.predict_proba(X[held])
    assert log_loss(Y[held], p, sample_weight=ROW_WEIGHTS[held]) == pytest.approx(
        min(one["after" if one["kept"] else "before"] for one in (norms, head)), rel=1e-3
    )


# --- classes -----------------------------------------------------------------------------------------


def test_weights_of_classes_are_those_of_scikit_learn() -> None:
    frame = pd.DataFrame({"x": np.arange(30.0)})
    codes = np.array([0] * 20 + [1] * 9 + [2])
    of = np.random.default_rng(0).uniform(0.5, 2, 30)
    train = np.arange(30)
    for weights in (None, of):
        table = from_frame(frame, codes, task="classification", classes=("a", "b", "c"), weights=weights)
        known: Any = {"classes": np.arange(3), "y": codes, "sample_weight": weights}
        found: Any = class_weights(TableData(class_weight=("balanced",)), table, train)
        np.testing.assert_allclose(found, compute_class_weight("balanced", **known))
        found = class_weights(TableData(class_weight=("b=3", "c=0.5")), table, train)
        np.testing.assert_allclose(found, compute_class_weight({1: 3, 2: 0.5}, **known))
    part: Any = class_weights(TableData(class_weight=("balanced",)), table, train[:25])
    few = compute_class_weight("balanced", classes=np.arange(2), y=codes[:25], sample_weight=of[:25])
    np.testing.assert_allclose(part[:2], few)


def test_weights_of_classes_multiply_those_of_rows(tmp_path: Path) -> None:
    of = np.random.default_rng(0).uniform(0.5, 2, len(Y))
    labels = np.where(Y == 1, "yes", "no")
    held = {"validation_fraction": 0.3}  # 12 rows of "yes"
    both = HtafClassifier(class_weight={"yes": 5}, **TINY, **held).fit(X, labels, sample_weight=of)
    rows = HtafClassifier(**TINY, **held).fit(X, labels, sample_weight=of * np.where(Y == 1, 5, 1))
    np.testing.assert_allclose(both.predict_proba(X), rows.predict_proba(X), atol=1e-6)
    both.save(tmp_path / "run")
    again = htaf.load(tmp_path / "run")
    fresh: Any = clone(again)
    fresh.fit(X, labels, sample_weight=of)
    np.testing.assert_array_equal(fresh.predict_proba(X), both.predict_proba(X))


def test_no_row_of_a_small_class_chooses_alone() -> None:
    y = np.repeat([0, 1, 2, 3], [240, 120, 36, 4])
    table = from_frame(pd.DataFrame({"a": np.arange(400.0)}), y, task="classification", classes=tuple("abcd"))
    rows = Split(np.flatnonzero(np.arange(400) % 4 > 0), np.arange(0, 400, 4), np.zeros(0, dtype=np.int64))
    recipe = ready_recipe("mlp", "tabular-residual").replace(class_weight=("balanced",))
    posed = problem(recipe, table, 0, "given", rows=rows, test=False)
    assert posed.train.weights is not None
    assert posed.validation.weights is not None
    shares = [
        np.bincount(y[of], weights.numpy(), 4) / weights.sum().item()
        for of, weights in ((rows.train, posed.train.weights), (rows.validation, posed.validation.weights))
    ]
    np.testing.assert_allclose(shares[0], 0.25, rtol=1e-5)
    whole = np.array([1, 1, 9 / 10, 1 / 10])  # 60, 30, 9 and 1 rows
    np.testing.assert_allclose(shares[1], whole / whole.sum(), rtol=1e-5)
    assert "target 'target': 9 rows of 'c', 1 row of 'd' in the validation part, fewer than 10" in " ".join(
        told(posed.notes)
    )
    several = problem(recipe.replace(class_weight=("c=1.05", "d=0.5")), table, 0, "given", rows=rows, test=False)
    assert several.validation.weights is not None
    found = several.validation.weights.numpy()[[0, 60, 90, 99]]
    np.testing.assert_allclose(found / found[0], [1, 1, 1, 0.5], rtol=1e-5)  # never below 1, nor raised to it


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("balance", "class_weight must be balanced, or CLASS=WEIGHT"),
        ({5: 1}, "class_weight: expected the classes '0', '1', got '5'"),
        ({0: -1}, "got '0=-1'"),
        ({0: 0}, "got '0=0'"),
        ({1: np.nan}, "got '1=nan'"),
        ({1: "much"}, "got '1=much'"),
        (3, r"class_weight must be 'balanced', \{label: weight\} or None, got 3"),
    ],
)
def test_bad_weights_of_classes(given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        HtafClassifier(class_weight=given, **TINY).fit(X, Y)


def test_a_class_may_be_missing_from_a_fold() -> None:
    y = np.repeat(["a", "b", "c"], [180, 180, 40])
    how: Any = {"cv": KFold(2), "error_score": "raise", "return_estimator": True}  # without a shuffle
    found = cross_validate(HtafClassifier(class_weight="balanced", **TINY), X, y, **how)
    assert [one.classes_.tolist() for one in found["estimator"]] == [["b", "c"], ["a", "b"]]
    with pytest.raises(ValueError, match="needs at least 2 classes, got 1 class"):
        HtafClassifier(**TINY).fit(X[:100], y[:100])


# --- bad weights of rows -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda w: np.where(np.arange(len(w)) == 2, -1, w),
            "row 3: expected a weight >= 0 in every row, got a negative one, -1: give 0",
        ),
        (lambda w: np.where(np.arange(len(w)) == 2, np.nan, w), "row 3: expected a weight >= 0 in every row, got none"),
        (lambda w: np.where(np.arange(len(w)) == 2, np.inf, w), "row 3: expected a finite number, got 'inf'"),
        (lambda w: ["much"] * len(w), "row 1: expected a number, got 'much'"),
        (lambda w: w * 0, "expected weights 'sample_weight' above 0 in some rows, got zero in all of them"),
        (lambda w: w[1:], r"sample_weight: expected one for each of 400 rows, got the shape \(399,\)"),
        (lambda w: w[:, None], r"got the shape \(400, 1\)"),
        (lambda w: 3.0, r"got the shape \(\)"),
        (lambda w: w * (Y == 1), "needs at least 2 classes with a weight above 0, got 1 class: 1"),
    ],
)  # fmt: skip
def test_bad_weights_of_rows(change: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("int64(1)", "1").replace("class: 1", "class: .*1")):
        HtafClassifier(**TINY).fit(X, Y, sample_weight=change(ROW_WEIGHTS))
    if "classes" not in said:
        with pytest.raises(ValueError, match=said):
            HtafRegressor(**TINY).fit(X, X[:, 0], sample_weight=change(ROW_WEIGHTS))


def test_a_class_without_weight_is_no_class_and_warned_of() -> None:
    labels = np.array(["a", "b", "c"])[np.arange(len(Y)) % 3]
    with pytest.warns(UserWarning, match="target 'y': every row of 'b' has weight 0, as if there were no such class"):
        made = HtafClassifier(**TINY).fit(X, labels, sample_weight=labels != "b")
    assert made.classes_.tolist() == ["a", "c"]
    frame = pd.DataFrame(X).assign(y=labels, w=labels != "b")
    with pytest.warns(UserWarning, match="target 'y': every row of 'b' has weight 0, as if there were no such class"):
        whole = htaf.fit(frame, "y", sample_weight="w", **TINY)
    assert isinstance(whole, HtafClassifier)
    assert whole.classes_.tolist() == ["a", "c"]


# --- the threshold -----------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("name", "measure"),
    [("f1", f1_score), ("balanced_accuracy", balanced_accuracy_score), ("matthews_corrcoef", matthews_corrcoef)],
)
def test_the_threshold_is_the_best_of_all(name: str, measure: Any, weighted: bool) -> None:
    rng = np.random.default_rng(3)
    for seed in range(5):
        codes = (rng.random(40) < 0.2).astype(np.int64)
        codes[:2] = 0, 1
        outputs = torch.from_numpy(np.round(rng.normal(size=(40, 2)) + np.eye(2)[codes], 1))  # with ties
        of = rng.uniform(0.1, 3, 40) if weighted else None
        chosen, best, half = threshold_for(
            name, outputs, torch.from_numpy(codes), None if of is None else torch.from_numpy(of)
        )
        p = outputs.softmax(1)[:, 1].numpy()

        def by(threshold: float) -> float:
            return float(measure(codes, decided(outputs, threshold).numpy(), sample_weight=of))  # noqa: B023

        every = [by(t) for t in (*(np.unique(p)), 1 - 1e-12)]
        assert by(chosen) == pytest.approx(best), seed
        assert best == pytest.approx(max(every)), seed
        assert half == pytest.approx(by(0.5)), seed


def test_the_threshold_decides_labels_and_nothing_else(plain: HtafClassifier, by_f1: HtafClassifier) -> None:
    assert plain.threshold_ is None
    assert by_f1.threshold_ == by_f1.run_.record["threshold"]
    np.testing.assert_array_equal(by_f1.predict_proba(X), plain.predict_proba(X))
    np.testing.assert_array_equal(by_f1.decision_function(X), plain.decision_function(X))
    np.testing.assert_array_equal(by_f1.predict(X), by_f1.predict_proba(X)[:, 1] >= by_f1.threshold_)
    fixed = HtafClassifier(threshold=0.99, **SMALL).fit(X, Y)
    assert fixed.threshold_ == 0.99
    np.testing.assert_array_equal(fixed.predict(X), plain.predict_proba(X)[:, 1] >= 0.99)
    right = fixed.run_.record["metrics"]["exact"]["validation"]["accuracy"]
    assert right != plain.run_.record["metrics"]["exact"]["validation"]["accuracy"]


def test_the_threshold_is_kept_in_every_file(by_f1: HtafClassifier, tmp_path: Path, htaf: Any) -> None:
    from htaf import load as load_run

    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(6)])
    frame.assign(target=Y).to_csv(tmp_path / "rows.csv", index=False)
    folder, rows = by_f1.save(tmp_path / "run"), tmp_path / "rows.csv"
    wanted = by_f1.predict(X).tolist()
    loaded = load_run(folder)
    assert isinstance(loaded, HtafClassifier)
    assert loaded.predict(X).tolist() == wanted
    assert (loaded.threshold_, loaded.recipe.flat()["threshold"]) == (by_f1.threshold_, "f1")
    assert open_run(folder).predict(frame)["prediction"].tolist() == wanted
    assert htaf("pack", folder, "--data", rows, "--out", tmp_path / "p.htaf")[0] == 0
    assert open_packed(tmp_path / "p.htaf").predict(frame)["prediction"].tolist() == wanted
    assert htaf("export", folder, "--data", rows, "--to", "onnx", "--out", tmp_path / "m.onnx")[0] == 0
    assert onnx_table(tmp_path / "m.onnx")(frame)["prediction"].tolist() == wanted
    code, out, error = htaf("evaluate", folder, "--data", rows, "--json")
    assert code == 0, error
    told = json.loads(out)
    assert told["exact"]["accuracy"] == pytest.approx(accuracy_score(Y, by_f1.predict(X)))
    assert told["confusion"][1][1] == int(by_f1.predict(X)[Y == 1].sum())
    wanted = [*map(str, wanted)]
    run, rows_given = open_run(folder), frame.assign(target=Y)
    assert [reasons(run, frame.iloc[[row]], rows_given).prediction for row in range(20)] == wanted[:20]
    for words in (("predict", folder, rows), ("predict", tmp_path / "p.htaf", rows)):
        code, out, error = htaf(*words)
        assert code == 0, error
        assert [line.split(",")[0] for line in out.splitlines()[1:]] == wanted


def test_a_threshold_is_of_two_classes_of_which_validation_rows_are() -> None:
    with pytest.raises(ValueError, match="threshold: expected a target 'target' of two classes, got 3 classes"):
        HtafClassifier(threshold="f1", **TINY).fit(X, np.arange(len(Y)) % 3)
    with pytest.raises(ValueError, match="threshold: expected a target 'target' of two classes, got a number"):
        HtafRegressor(threshold=0.3, **TINY).fit(X, X[:, 0])
    alone = np.arange(len(Y)) == 0
    with pytest.raises(ValueError, match="validation rows of both classes to choose f1 by, got only those of '0'"):
        HtafClassifier(threshold="f1", **TINY).fit(X, alone.astype(int))
    with pytest.warns(UserWarning, match="5 validation rows of the rarer class '1'"):
        HtafClassifier(threshold="f1", **TINY).fit(X, Y)


def test_a_class_that_is_never_predicted_is_warned_of() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 3))
    y = (x[:, 0] + 0.3 * rng.normal(size=600) > 1.6).astype(int)
    with pytest.warns(UserWarning, match=r"never predicts '1' of 'target' \(\d rows\): class_weight='balanced' finds"):
        HtafClassifier(threshold=0.9999, **SMALL).fit(x, y)


# --- frames, files and the command -------------------------------------------------------------------


def test_a_column_of_weights_is_no_feature() -> None:
    frame = pd.DataFrame(X, columns=[*"abcdef"]).assign(y=Y, w=ROW_WEIGHTS)
    named = htaf.fit(frame, "y", sample_weight="w", **TINY)
    given = htaf.fit(frame.drop(columns="w"), "y", sample_weight=ROW_WEIGHTS, **TINY)
    assert "w" not in named.feature_names_in_
    np.testing.assert_array_equal(named.predict(frame), given.predict(frame))
    assert named.run_.record["data"]["weight"] == "w"
    lacking = frame.assign(y=np.where(np.arange(len(Y)) < 5, np.nan, Y), w=np.where(np.arange(len(Y)) < 5, np.nan, 1.5))
    table = from_frame(lacking, "y", weights="w")
    assert (len(table.target), table.weights, table.weight) == (len(Y) - 5, None, "w"), "equal weights are none"
    for wrong, said in (
        ("ww", r"weight: expected a column \(did you mean 'w'\?\), got 'ww'"),
        ("y", "than the target"),
    ):
        with pytest.raises(ValueError, match=said):
            htaf.fit(frame, "y", sample_weight=wrong, **TINY)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "rows.csv"
    weights = np.random.default_rng(0).integers(0, 4, len(Y))
    frame = pd.DataFrame(X, columns=[*"abcdef"])
    frame.assign(y=np.where(Y == 1, "yes", "no"), w=weights).to_csv(path, index=False)
    return path


def test_the_command_trains_measures_and_compares_by_weights(file: Path, tmp_path: Path, htaf: Any) -> None:
    words = ("train", "tabular", "--data", file, "--target", "y", "--epochs", 2, "--hidden", 8, "--weight", "w")
    more = ("--class-weight", "balanced", "--threshold", "balanced_accuracy", "--split", "stratified")
    code, out, error = htaf(*words, *more, "--out", tmp_path / "run")
    assert code == 0, error
    assert "rows of weight 0 in 'w' dropped" in error
    assert "rows weighted by 'w', 1 to 3" in error
    run = open_run(tmp_path / "run")
    record = run.record
    assert record["recipe"]["class_weight"] == ["balanced"]
    assert record["data"]["weight"] == "w"
    assert 0 < record["threshold"] < 1
    assert re.search(r"from a probability of \S+: the best balanced_accuracy on", error)
    code, explained, _ = htaf("explain", tmp_path / "run", file, "--row", 1)
    assert f"threshold: 'yes' is predicted from a probability of {record['threshold']:.4g}" in explained
    table = run.data()
    assert isinstance(table, Table)
    assert table.weights is not None
    found = run.evaluate("test", table)
    assert found["exact"] == record["metrics"]["exact"]["test"]
    assert found["weight"] == "w"
    parts = run.part("test", table)
    predicted = run.predict(pd.read_csv(file).query("w > 0").reset_index(drop=True))
    rows = table_rows(run, table).test
    assert len(rows) == len(parts)
    known, said = table.target[rows], (predicted["prediction"].to_numpy() == "yes")[rows]
    p = predicted["probability_yes"].to_numpy()[rows]
    assert found["exact"]["auroc"] == pytest.approx(
        roc_auc_score(known, p, sample_weight=table.weights[rows]), abs=1e-6
    )
    assert found["exact"]["accuracy"] == pytest.approx(accuracy_score(known, said, sample_weight=table.weights[rows]))
    code, out, error = htaf("evaluate", tmp_path / "run")
    assert "rows weighted by 'w', positive class 'yes'" in " ".join(out.split())
    other = tmp_path / "other.csv"
    pd.read_csv(file).drop(columns="w").to_csv(other, index=False)
    code, out, error = htaf("evaluate", tmp_path / "run", "--data", other)
    assert code == 0, error
    assert "no column 'w': every row counts the same, unlike in the training" in " ".join(error.split())
    _the_report_measures_as_the_record(run, json.loads((tmp_path / "run" / "report.json").read_text()))
    code, _, error = htaf(*words[:-1], "y", "--out", tmp_path / "none")
    assert (code, "weight: expected another column than the target" in error) == (1, True), error


def _the_report_measures_as_the_record(run: Run, report: dict[str, Any]) -> None:
    """One AUROC, one accuracy and one share of a class on the page, of rows by their weights."""
    exact = run.record["metrics"]["exact"]["test"]
    assert report["weighted"] is True
    assert report["importance"]["value"] == pytest.approx(exact["auroc"], abs=1e-9)
    assert sum(one["share"] for one in report["calibration"]["bins"]) == pytest.approx(1)
    page = (run.path / "report.html").read_text("utf-8")
    assert "Rows count by their weights" in page
    assert "But the training weighted the classes (balanced)" in page


def test_baselines_are_fitted_and_measured_by_weights(file: Path) -> None:
    table = load(file, target="y", weight="w")
    rows = {"train": np.arange(200), "test": np.arange(200, len(table.target))}
    preprocessor = table.fit_preprocessor(rows["train"])
    assert table.weights is not None
    train, test = table.weights[rows["train"]], table.weights[rows["test"]]
    constant = fit_baselines(table, rows, preprocessor, weights=train)[0]
    share = np.average(table.target[rows["train"]], weights=train)
    wanted = log_loss(table.target[rows["test"]], np.full(len(test), share), sample_weight=test)
    assert constant.metrics["test"]["loss"] == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (2, "-1", "column 'w', row 3: expected a weight >= 0 in every row, got a negative one, -1"),
        (2, "", "column 'w', row 3: expected a weight >= 0 in every row, got none"),
        (2, "much", "column 'w', row 3: expected a number, got 'much'"),
        (slice(None), "0", "expected weights 'w' above 0 in some rows, got zero in all of them"),
    ],
)
def test_bad_weights_of_a_file(place: Any, value: str, said: str, file: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(file, dtype=str)
    frame.loc[place, "w"] = value
    frame.to_csv(tmp_path / "bad.csv", index=False)
    with pytest.raises(ValueError, match=said):
        load(tmp_path / "bad.csv", target="y", weight="w")
