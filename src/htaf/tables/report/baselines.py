"""What simple models and boosted trees reach on the same rows: a figure says little without another beside it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64

from htaf._ground.errors import first_line, release_memory
from htaf.data import dates
from htaf.data.preprocess import Preprocessor
from htaf.data.reading import is_date, is_text
from htaf.data.tabular import Table
from htaf.training.runs.metrics import Interval, drawn_metrics, interval, metrics

MOST_ROWS = 100_000  # to fit on
MOST_CLASSES, MOST_COLUMNS = 100, 2_000  # of boosting, which grows a tree for each class in each round
ROUNDS, MOST_TREES = 100, 500  # of boosting: the default of scikit-learn, fewer where there are many classes
MOST_WORK = 10_000_000  # rows x columns x classes to fit on: of more so many rows as are within it, but
FEWEST_ROWS = 1_000  # however many columns and classes there are
ONE_HOT = 50  # categories of a column, for the linear model; rarer ones share one
CODES = 254  # categories of a column that boosting takes
Draws = Mapping[str, Float64[np.ndarray, " draws"]]


@dataclass(frozen=True)
class Baseline:
    """A model of scikit-learn beside a network.

    Attributes:
        name: "constant", "linear", "logistic" or "boosting".
        metrics: by part, as `htaf.runs.metrics.metrics` gives them; empty where it could not be fitted.
        rows: it was fitted on.
        seconds: of fitting and predicting.
        note: what a reader must know; "" for nothing.
        intervals: by metric the 95% interval over the rows of the reported part; None where it has none.
        ahead: by metric the interval of the network's minus this model's, on the same draws of rows.
    """

    name: str
    metrics: dict[str, dict[str, float | None]] = field(default_factory=dict)
    rows: int = 0
    seconds: float = 0.0
    note: str = ""
    intervals: dict[str, Interval | None] = field(default_factory=dict)
    ahead: dict[str, Interval | None] = field(default_factory=dict)


def fit_baselines(
    table: Table,
    rows: Mapping[str, np.ndarray],
    preprocessor: Preprocessor,
    *,
    threads: int = 1,
    progress: Callable[[str], Any] = lambda name: None,
    weights: np.ndarray | None = None,
    beside: tuple[str, Draws] | None = None,
) -> list[Baseline]:
    """Fit a constant, a linear model and histogram boosting on the training rows, and measure them on the others.

    All see the raw columns of the table, those too that the network drops: numbers as they are, missing ones too;
    categories by name; dates as days, month, weekday and hour. The linear model has standardised numbers, one-hot
    categories and an input for the missing values of each number; both models are
    those of scikit-learn at their defaults, but of several classes boosting has at most 500 trees. Of more than 100,000
    rows, or 10,000,000 cells (rows x columns, times the classes where there are more than two), they are fitted on as
    many as are within it, evenly spread. The notes say so.

    Args:
        table: the whole table.
        rows: row numbers by part; "train" is fitted on, all others are measured.
        preprocessor: says the classes, and the unit of the target.
        threads: of the CPU.
        progress: called with the name of each model before it is fitted.
        weights: float64 [training rows], how much each counts in the fit; None: all alike. Measured by the table's own.
        beside: a part, and the network's metrics in the draws of its rows, see `htaf.runs.metrics.drawn_metrics`:
            intervals are of that part. None: no intervals.

    Returns:
        one entry a model, the simplest first. One that cannot be fitted has a note and no metrics.
    """
    from threadpoolctl import threadpool_limits

    _model("constant", table.task, pd.DataFrame(), ROUNDS)  # its imports are not in the time of the first model
    names = ("constant", "linear" if table.task == "regression" else "logistic", "boosting")
    found: list[Baseline] = []
    with threadpool_limits(limits=threads), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no convergence, columns without a value
        for name in names:
            progress(name)
            began = time.perf_counter()
            try:
                one = _fitted(name, table, rows, preprocessor, weights, beside)
            except Exception as error:  # of any data: numbers near 1e300, no memory
                one = Baseline(name, note=f"not fitted: {first_line(error)}")
            found.append(replace(one, seconds=round(time.perf_counter() - began, 3)))
            release_memory()
    return found


def raw_columns(features: pd.DataFrame) -> pd.DataFrame:
    """Read the columns of a table as models of scikit-learn take them: float64, NaN where missing; or text.

    Args:
        features: raw rows, as `Table.features` holds them.
    Returns:
        a frame of the same rows. A date is four columns: elapsed days since 1970, month, weekday, hour.
    """
    made: dict[str, Any] = {}
    for name, values in features.items():
        if is_date(values):
            parts = dates.numbers(dates.native(values), np.datetime64(0, "us"))
            made |= {f"{name} {part}": parts[part] for part in (dates.DAYS, "month", "weekday", "hour")}
        elif is_text(values):
            made[str(name)] = values.fillna("").astype(str).to_numpy(object)
        else:
            made[str(name)] = values.to_numpy(np.float64, na_value=np.nan)
    return pd.DataFrame(made, index=features.index)


def _fitted(
    name: str,
    table: Table,
    rows: Mapping[str, np.ndarray],
    preprocessor: Preprocessor,
    weights: np.ndarray | None,
    beside: tuple[str, Draws] | None,
) -> Baseline:
    """One model, fitted and measured."""
    classes, columns, train = len(table.classes), table.features.shape[1], np.asarray(rows["train"])
    notes, rounds = list[str](), ROUNDS
    if name == "boosting":
        for count, most, what in ((classes, MOST_CLASSES, "classes"), (columns, MOST_COLUMNS, "columns")):
            if count > most:
                return Baseline(name, note=f"not fitted: {count:,} {what}, more than {most:,}")
        rounds = ROUNDS if classes <= 2 else min(ROUNDS, max(5, MOST_TREES // classes))
    cells = max(1, columns) * (classes if classes > 2 else 1)
    within = min(len(train), MOST_ROWS, max(FEWEST_ROWS, MOST_WORK // cells))
    if name != "constant" and within < len(train):
        notes.append(f"fitted on {within:,} of {len(train):,} training rows, evenly spread")
        some = np.linspace(0, len(train) - 1, within).astype(np.int64)
        train, weights = train[some], None if weights is None else weights[some]
    if rounds < ROUNDS:
        notes.append(f"{rounds} rounds instead of {ROUNDS}, for {classes} classes")
    chosen = raw_columns(table.features.iloc[train])
    model = _model(name, table.task, chosen, rounds)
    last = f"{model.steps[-1][0]}__" if hasattr(model, "steps") else ""
    model.fit(chosen, table.target[train], **({} if weights is None else {f"{last}sample_weight": weights}))
    del chosen
    found: dict[str, dict[str, float | None]] = {}
    intervals, ahead, target = dict[str, Interval | None](), dict[str, Interval | None](), preprocessor.target
    for part, measured in rows.items():
        if part == "train":
            continue
        raw = raw_columns(table.features.iloc[measured])
        if table.task == "regression":
            said = np.asarray(model.predict(raw), np.float64)
            outputs = torch.from_numpy(((said - target.mean) / target.std)[:, None])
            truth = torch.from_numpy((table.target[measured] - target.mean) / target.std)[:, None]
        else:
            shares = np.zeros((len(measured), classes))
            shares[:, model.classes_] = model.predict_proba(raw)
            outputs = torch.from_numpy(np.log(np.maximum(shares, 1e-15)))
            truth = torch.from_numpy(table.target[measured])
        of = table.weights_of(measured)
        found[part] = metrics(
            outputs, truth, table.task, target.std, weights=None if of is None else torch.from_numpy(of)
        )
        if beside is not None and beside[0] == part:
            drawn = drawn_metrics(outputs, truth, table.task, target.std, weights=of)
            intervals = {metric: interval(values) for metric, values in drawn.items()}
            ahead = {metric: interval(beside[1][metric] - values) for metric, values in drawn.items()}
    return Baseline(name, found, len(train), note="; ".join(notes), intervals=intervals, ahead=ahead)


def _model(name: str, task: str, raw: pd.DataFrame, rounds: int) -> Any:
    """An unfitted model of scikit-learn for raw columns."""
    from sklearn import compose, dummy, ensemble, impute, linear_model, pipeline, preprocessing

    numbers_task = task == "regression"
    if name == "constant":
        return dummy.DummyRegressor() if numbers_task else dummy.DummyClassifier(strategy="prior")
    categories = [column for column in raw if is_text(raw[column])]
    numbers = [column for column in raw if column not in set(categories)]
    if name == "boosting":
        codes = preprocessing.OrdinalEncoder(
            handle_unknown="use_encoded_value",
            unknown_value=np.nan,
            encoded_missing_value=np.nan,
            max_categories=CODES,
        )
        columns = compose.ColumnTransformer([("numbers", "passthrough", numbers), ("categories", codes, categories)])
        of = ensemble.HistGradientBoostingRegressor if numbers_task else ensemble.HistGradientBoostingClassifier
        marked = [False] * len(numbers) + [True] * len(categories)
        trees: Any = of(categorical_features=marked, max_iter=rounds, random_state=0)  # pyright: ignore[reportArgumentType]
        return pipeline.make_pipeline(columns, trees)
    scaled = pipeline.make_pipeline(
        impute.SimpleImputer(strategy="median", keep_empty_features=True, add_indicator=True),
        preprocessing.StandardScaler(),
    )
    coded = preprocessing.OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=ONE_HOT)
    columns = compose.ColumnTransformer([("numbers", scaled, numbers), ("categories", coded, categories)])
    linear = linear_model.Ridge() if numbers_task else linear_model.LogisticRegression(max_iter=200)
    return pipeline.make_pipeline(columns, linear)
