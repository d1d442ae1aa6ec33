"""scikit-learn's meta-estimators and tools of inspection, each run on the estimators with something asserted that is
true of it."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import joblib
import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import (
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, make_scorer
from sklearn.model_selection import (
    GridSearchCV,
    StratifiedKFold,
    TunedThresholdClassifierCV,
    cross_val_predict,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from htaf import HtafClassifier, HtafRegressor

ROWS = 90
TINY: dict[str, Any] = {"recipe": "tabular-exact", "hidden": (8,), "epochs": 2, "lr": 0.05, "batch_size": 16}
RNG = np.random.default_rng(0)
X = pd.DataFrame(RNG.normal(size=(ROWS, 4)), columns=list("abcd"))
KIND = RNG.choice(["low", "high"], ROWS)
MIXED = X.assign(kind=KIND)
Y = np.where(X["a"] + X["b"] / 2 + RNG.normal(size=ROWS) / 3 > 0, "yes", "no")
THREE = np.array(["x", "y", "z"])[np.digitize(X["a"], [-0.5, 0.5])]
AMOUNT = (X["a"] * 3 + X["b"] + RNG.normal(size=ROWS) / 3).to_numpy()
FOLDS = StratifiedKFold(2)


def classifier(**options: Any) -> HtafClassifier:
    return HtafClassifier(**TINY | options)


def regressor(**options: Any) -> HtafRegressor:
    return HtafRegressor(**TINY | options)


@pytest.fixture(autouse=True)
def _told() -> Iterator[None]:
    """Two epochs may learn nothing, and these figures stay off the screen."""
    with warnings.catch_warnings(), mpl.rc_context({"backend": "agg"}):
        warnings.filterwarnings("ignore", message="(WARNING: .*|.*alone says.*)", category=UserWarning)
        yield


def pipeline() -> None:
    columns = ColumnTransformer([("kind", OneHotEncoder(sparse_output=False), ["kind"])], remainder=StandardScaler())
    fitted = make_pipeline(columns, classifier()).fit(MIXED, Y)
    assert fitted.predict(MIXED).shape == (ROWS,)
    assert fitted[-1].n_features_in_ == 6
    framed = make_pipeline(columns.set_output(transform="pandas"), classifier()).fit(MIXED, Y)
    assert [*framed[-1].feature_names_in_][:2] == ["kind__kind_high", "kind__kind_low"]


def grid_search() -> None:
    found = GridSearchCV(classifier(), {"hidden": [(4,), (8,)], "lr": [0.01]}, cv=FOLDS).fit(MIXED, Y)
    assert found.best_estimator_.hidden == found.best_params_["hidden"]
    assert found.best_estimator_.score(MIXED, Y) == found.score(MIXED, Y)


def predictions_of_folds() -> None:
    found = cross_val_predict(classifier(), MIXED, Y, cv=FOLDS, method="predict_proba")
    np.testing.assert_allclose(found.sum(1), 1)
    train, test = next(FOLDS.split(MIXED, Y))
    own = classifier().fit(MIXED.iloc[train], Y[train])
    np.testing.assert_array_equal(found[test], own.predict_proba(MIXED.iloc[test]))


def cross_validation() -> None:
    found = cross_validate(classifier(), MIXED, Y, cv=FOLDS, scoring=["accuracy", "roc_auc", "neg_log_loss"])
    assert {*found} >= {"test_accuracy", "test_roc_auc", "test_neg_log_loss"}
    assert np.isfinite([*found.values()]).all()


def calibration() -> None:
    for how, ensemble in (("sigmoid", True), ("isotonic", False)):
        found = CalibratedClassifierCV(classifier(), method=how, cv=2, ensemble=ensemble).fit(MIXED, Y)
        np.testing.assert_allclose(found.predict_proba(MIXED).sum(1), 1)


def threshold() -> None:
    scorer = make_scorer(accuracy_score)
    found = TunedThresholdClassifierCV(classifier(), scoring=scorer, cv=2).fit(MIXED, Y)
    expected = np.where(found.estimator_.predict_proba(MIXED)[:, 1] >= found.best_threshold_, "yes", "no")
    np.testing.assert_array_equal(found.predict(MIXED), expected)


def stacking() -> None:
    found = StackingClassifier([("net", classifier()), ("line", LogisticRegression())], cv=2).fit(X, Y)
    assert found.transform(X).shape == (ROWS, 2)
    numbers = StackingRegressor([("net", regressor())], final_estimator=Ridge(), cv=2).fit(X, AMOUNT)
    np.testing.assert_allclose(numbers.transform(X)[:, 0], numbers.estimators_[0].predict(X))


def voting() -> None:
    found = VotingClassifier([("net", classifier()), ("line", LogisticRegression())], voting="soft").fit(X, Y)
    mean = np.mean([one.predict_proba(X) for one in found.estimators_], axis=0)
    np.testing.assert_allclose(found.predict_proba(X), mean)
    numbers = VotingRegressor([("net", regressor()), ("line", Ridge())]).fit(X, AMOUNT)
    np.testing.assert_allclose(numbers.predict(X), np.mean([one.predict(X) for one in numbers.estimators_], axis=0))


def importance_by_permutation() -> None:
    fitted = classifier(epochs=10).fit(MIXED, Y)
    found = permutation_importance(fitted, MIXED, Y, n_repeats=2, random_state=0)
    assert found.importances_mean.argmax() == 0
    assert found.importances.shape == (5, 2)


def transformed_target() -> None:
    found = TransformedTargetRegressor(regressor(), func=np.log, inverse_func=np.exp).fit(X, np.exp(AMOUNT))
    np.testing.assert_allclose(found.predict(X), np.exp(regressor().fit(X, AMOUNT).predict(X)), rtol=1e-4)


def copies() -> None:
    fitted = classifier(random_state=3).fit(MIXED, Y)
    other = clone(fitted)
    assert other.get_params() == fitted.get_params()
    assert not hasattr(other, "run_")
    file = io.BytesIO()
    joblib.dump(fitted, file)
    file.seek(0)
    np.testing.assert_array_equal(joblib.load(file).predict_proba(MIXED), fitted.predict_proba(MIXED))
    assert "epochs=2" in repr(fitted)
    assert "HtafClassifier" in fitted._repr_html_()


def stored_by_skops() -> None:
    """Three types are to be trusted, of a model that a pipeline holds too."""
    import skops.io as files

    for model, y in ((classifier(), Y), (regressor(), AMOUNT)):
        fitted = make_pipeline(StandardScaler(), model).fit(X, y)
        stored = files.dumps(fitted)
        kinds = files.get_untrusted_types(data=stored)
        own = f"htaf.tables.estimators.{type(model).__name__}"
        assert {own, "htaf.training.runs.run.Run"} < set(kinds)
        assert len(kinds) == 3, "and a path"
        np.testing.assert_array_equal(files.loads(stored, trusted=kinds).predict(X), fitted.predict(X))


def outputs_of_frames() -> None:
    steps = make_pipeline(FunctionTransformer(), StandardScaler(), regressor()).set_output(transform="pandas")
    assert [*steps.fit(X, AMOUNT)[-1].feature_names_in_] == [*X]


TOOLS: tuple[Callable[[], None], ...] = (
    pipeline,
    grid_search,
    predictions_of_folds,
    cross_validation,
    voting,
    importance_by_permutation,
    transformed_target,
    copies,
    stored_by_skops,
    outputs_of_frames,
)
MORE: tuple[Callable[[], None], ...] = (
    calibration,
    threshold,
    stacking,
)


SLOW = [pytest.param(tool, marks=pytest.mark.slow) for tool in MORE]


@pytest.mark.parametrize("tool", [*TOOLS, *SLOW], ids=lambda tool: tool.__name__)
def test_a_tool_of_scikit_learn(tool: Callable[[], None]) -> None:
    tool()
