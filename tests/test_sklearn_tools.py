"""scikit-learn's meta-estimators and tools of inspection, each run on the estimators with something asserted that is
true of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    StackingClassifier,
    StackingRegressor,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import (
    GridSearchCV,
    StratifiedKFold,
    cross_val_predict,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from htaf import HtafClassifier, HtafRegressor

ROWS = 90
TINY: dict[str, Any] = {"recipe": "tabular-mlp", "hidden": (8,), "epochs": 2, "lr": 0.05, "batch_size": 16}
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
        warnings.filterwarnings("ignore", message="(WARNING: .*|.*alone predicts.*)", category=UserWarning)
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


def calibration() -> None:
    for how, ensemble in (("sigmoid", True), ("isotonic", False)):
        found = CalibratedClassifierCV(classifier(), method=how, cv=2, ensemble=ensemble).fit(MIXED, Y)
        np.testing.assert_allclose(found.predict_proba(MIXED).sum(1), 1)


def stacking() -> None:
    found = StackingClassifier([("net", classifier()), ("line", LogisticRegression())], cv=2).fit(X, Y)
    assert found.transform(X).shape == (ROWS, 2)
    numbers = StackingRegressor([("net", regressor())], final_estimator=Ridge(), cv=2).fit(X, AMOUNT)
    np.testing.assert_allclose(numbers.transform(X)[:, 0], numbers.estimators_[0].predict(X))


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
    stored_by_skops,
    outputs_of_frames,
)
MORE: tuple[Callable[[], None], ...] = (
    calibration,
    stacking,
)


SLOW = [pytest.param(tool, marks=pytest.mark.slow) for tool in MORE]


@pytest.mark.parametrize("tool", [*TOOLS, *SLOW], ids=lambda tool: tool.__name__)
def test_a_tool_of_scikit_learn(tool: Callable[[], None]) -> None:
    tool()
