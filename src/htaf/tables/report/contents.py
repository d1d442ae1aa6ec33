"""What the networks of a run say of the rows of its report, and the figures of it, as plain JSON values: what
`report.json` holds and the page shows."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from htaf._ground.console import direction
from htaf._ground.errors import first_line, release_memory
from htaf.data import dates
from htaf.data.notes import Note, from_record, told
from htaf.data.parts import table_part
from htaf.data.preprocess import Column, Preprocessor
from htaf.data.reading import is_date, is_text
from htaf.data.tabular import Table
from htaf.program.integer.logic_c import Bit, Compared, Logic, asked
from htaf.program.integer.ops import IntegerError
from htaf.program.integer.program import IntegerProgram
from htaf.program.integer.raw import raw, raw_inputs
from htaf.program.integer.verilog import estimated
from htaf.tables.inspection import importance, in_units, table_of
from htaf.tables.readable import Reading, condition_of
from htaf.training.runs import Run
from htaf.training.runs.metrics import (
    LOWER_IS_BETTER,
    Interval,
    confusion,
    decided_by,
    drawn_metrics,
    interval,
    metrics,
)
from htaf.training.runs.packing import build_run, values_of
from htaf.training.runs.predictions import Joined, forward
from htaf.training.runs.run import table_rows

FORMAT = 9
BINS = 10
MOST_CLASSES = 100  # whose whole confusion matrix is kept; of boosting, which grows a tree for each in each round
MOST_PAIRS = 20  # of classes that are taken for each other
MOST_SHOWN = 8  # categories of a column that are named
TELLING, SAMPLED = 10, 1_000  # truth tables that are shown; about how many rows choose them
KINDS = {
    "number": "number", "category": "category", "encoded": "many categories", "date": "date", "dropped": "not used"
}  # fmt: skip
MOST_ROWS = 100_000  # to fit on
MOST_COLUMNS = 2_000  # of boosting
ROUNDS, MOST_TREES = 100, 500  # of boosting: the default of scikit-learn, fewer where there are many classes
MOST_WORK = 10_000_000  # rows x columns x classes to fit on: of more so many rows as are within it, but
FEWEST_ROWS = 1_000  # however many columns and classes there are
ONE_HOT = 50  # categories of a column, for the linear model; rarer ones share one
CODES = 254  # categories of a column that boosting takes
Draws = Mapping[str, Float64[np.ndarray, " draws"]]
ROUNDING = 1e-9  # a difference of two figures this small beside them is none
NAMES = {"rmse": "RMSE", "mae": "MAE", "r2": "R²", "auroc": "AUROC", "accuracy": "accuracy", "loss": "loss"}
BASELINES = {
    "constant": "one answer for all rows",
    "linear": "linear regression (ridge)",
    "logistic": "logistic regression",
    "boosting": "histogram boosting",
}


# ---- models beside the network: a figure says little without another beside it ----


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


# ---- what is measured ----


@dataclass(frozen=True)
class Measured:
    """The rows of a report and what is said of them.

    Attributes:
        part: "test", else "validation". rows: its row numbers in the table.
        outputs: of the exact network, of method relu of its one. smooth: of the smooth one; None of method relu.
        target: as networks learn it.
        weights: how much each row counts; None: all alike.
    """

    preprocessor: Preprocessor
    part: str
    rows: Int64[np.ndarray, " rows"]
    outputs: Tensor
    smooth: Tensor | None
    target: Tensor
    weights: Float64[np.ndarray, " rows"] | None = None

    @classmethod
    def of(cls, run: Run, table: Table) -> Measured:
        """Run the networks.

        Raises:
            RunError: other data, or a damaged run. InspectionError: a run of images.
        """
        run, preprocessor = table_of(run)
        part = "test" if "test" in run.record["metrics"]["smooth"] else "validation"
        rows = getattr(table_rows(run, table), part)
        whole = table_part(table, preprocessor, rows)
        networks = [run.model(exact=True), run.model(exact=False)] if run.has_step else [run.model(exact=False)]
        found = [Joined(len(whole)) for _ in networks]
        for x, _ in whole:  # chunk by chunk: inputs are not held twice
            for network, outputs in zip(networks, found, strict=True):
                outputs.add(forward(network, x))
        smooth = found[1].whole() if run.has_step else None
        return cls(preprocessor, part, rows, found[0].whole(), smooth, whole.targets(), table.weights_of(rows))

    @property
    def threshold(self) -> float | None:
        """The probability of the second of two classes from which it is predicted; None: the likelier class is."""
        return self.preprocessor.target.threshold

    @cached_property
    def drawn(self) -> dict[str, Float64[np.ndarray, " draws"]]:
        """The metrics in each draw of the rows."""
        return self._drawn(self.outputs)

    def _drawn(self, outputs: Tensor) -> dict[str, Float64[np.ndarray, " draws"]]:
        target = self.preprocessor.target
        options = {"weights": self.weights, "threshold": self.threshold}
        return drawn_metrics(outputs, self.target, target.task, target.std, **options)

    def intervals(self) -> dict[str, dict[str, Interval | None] | None]:
        """Find, by network, and of the gap between them, by metric, the 95% interval over the rows."""
        own = {name: interval(of) for name, of in self.drawn.items()}
        if self.smooth is None:
            return {"exact": None, "smooth": own, "gap": None}
        smooth = self._drawn(self.smooth)
        gap = {name: interval(of - smooth[name]) for name, of in self.drawn.items()}
        return {"exact": own, "smooth": {name: interval(of) for name, of in smooth.items()}, "gap": gap}

    def values(self) -> Float64[np.ndarray, "rows outputs"]:
        """Probabilities of classes; numbers in the unit of the target."""
        return in_units(self.outputs, self.preprocessor)

    def truth(self) -> np.ndarray:
        """Return the true classes, by number, or numbers in the unit of the target."""
        number = self.preprocessor.target.task == "regression"
        return in_units(self.target, self.preprocessor)[:, 0] if number else self.target.numpy()

    def decided(self) -> np.ndarray:
        """Say what is predicted: classes, by number, or numbers in the unit of the target."""
        said, target = self.values(), self.preprocessor.target
        return said[:, 0] if not target.classes else decided_by(torch.tensor(said), target.threshold).numpy()


def verdict(own: float | None, part: str, metric: str, baselines: Sequence[Baseline]) -> dict[str, Any] | None:
    """Compare the network with the best baseline.

    Args:
        own: the network's metric on the part.

    Returns:
        {"baseline", "metric", "network", "value": of the baseline, "better_by": how much better the network is, below 0
        worse, "interval": of that, "stands": "ahead", "behind" or "level", where the interval holds 0, "text"}; None
        where there is no baseline with this metric.
    """
    known = [one for one in baselines if one.metrics.get(part, {}).get(metric) is not None]
    if own is None or not known:
        return None
    sign = -1.0 if metric in LOWER_IS_BETTER else 1.0
    best = max(known, key=lambda one: sign * (one.metrics[part][metric] or 0.0))
    value = best.metrics[part][metric] or 0.0
    by, within = sign * (own - value), best.ahead.get(metric)
    by = 0.0 if abs(by) < ROUNDING * max(abs(own), abs(value)) else by
    if within is not None:
        within = within if sign > 0 else (-within[1], -within[0])
    unsure = not by or (within is not None and within[0] <= 0 <= within[1])
    stands, way = "level" if unsure else "ahead" if by > 0 else "behind", "ahead" if by > 0 else "behind"
    name, turned = (
        BASELINES.get(best.name, best.name),
        within if within is None or by >= 0 else (-within[1], -within[0]),
    )
    far = f"{amount(abs(by))} {NAMES.get(metric, metric)}"
    far += "" if turned is None else f" [{amount(turned[0])}, {amount(turned[1])}]"
    text = {
        "level": f"The network is level with {name}{f': {way} by {far}' if by else ''}.",
        "ahead": f"The network is ahead of {name} by {far}.",
        "behind": f"{name[0].upper()}{name[1:]} is better by {far}.",
    }
    found = {"baseline": best.name, "metric": metric, "network": own, "value": value, "better_by": by}
    return found | {"interval": within, "stands": stands, "text": text[stands]}


def amount(value: float) -> str:
    """Write a difference of a metric, in three significant digits."""
    value = value or 0.0  # no -0
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


# ---- what stands in the file ----


def contents(
    run: Run,
    table: Table,
    measured: Measured,
    *,
    baselines: Sequence[Baseline] | None = None,
) -> dict[str, Any]:
    """Say what there is to say of a finished run of a table; the same for the same run.

    Args:
        run: of a table.
        table: the one that it was trained on.
        measured: what its networks say of the rows of the report.
        baselines: beside it; None: none.

    Returns:
        JSON values; docs/tables.md describes them.

    Raises:
        RunError: other data, or a damaged run.
    """
    record, preprocessor = run.record, measured.preprocessor
    headline, part, target = record["headline"], measured.part, preprocessor.target
    found = results(record["metrics"], headline)
    own = found[part]["smooth"] if found[part]["exact"] is None else found[part]["exact"]
    numbers = target.task == "regression"
    matrix = None if numbers else confusion(measured.outputs, measured.target, len(target.classes), measured.threshold)
    return {
        "format": FORMAT,
        **{name: record[name] for name in ("key", "model_sha256", "rows", "headline", "metrics", "recipe", "seed")},
        **{name: record.get(name) for name in ("parameters", "seconds")},
        "data": record["data"]["name"],
        "target": target.name,
        "task": target.task,
        "classes": list(target.classes),
        "threshold": measured.threshold,
        "weighted": table.weights is not None,
        "method": record["recipe"]["method"],
        "refitted": refitted(run),
        "part": part,
        "lower_is_better": headline in LOWER_IS_BETTER,
        "verdict": verdict(own, part, headline, baselines or ()),
        "results": found,
        "intervals": measured.intervals(),
        "baselines": None if baselines is None else [dataclasses.asdict(one) for one in baselines],
        "importance": importance(run, table, part=part).to_json(),
        "circuit": circuit(run, table, measured) if record["model"]["kind"] == "logic" else None,
        "readable": whole_model(run, table.features.iloc[measured.rows]) if run.is_readable else None,
        "columns": columns(preprocessor),
        "left_out": left_out(record),
        "notes": told(from_record(record["notes"])),
        "calibration": None if numbers else calibration(measured),
        "confusion": None if matrix is None else confused(matrix),
        "residuals": residuals(measured) if numbers else None,
    }


def whole_model(run: Run, rows: pd.DataFrame) -> dict[str, Any]:
    """Say all that a readable network is.

    Returns:
        {"outputs": names, "unit": of a logit, or of the unit of the target; "center": the number of 0 points, None of
        classes; "bias": points; "terms": [{"name", "rule", "kind", "levels": [{"text", "end", "points", "share": of the
        rows}]}]; "row": of the first row, by term, its points}.
    """
    reading, terms = Reading(run), list[dict[str, Any]]()
    target, own = reading.known.target, reading.points(rows.head(1)).iloc[0]
    for term, shares in zip(reading.terms, reading.shares(rows), strict=True):
        levels = [
            {"text": level.text, "end": level.end, "points": list(level.points), "share": share}
            for level, share in zip(term.levels, shares, strict=True)
        ]
        ends = [one["end"] for one in levels if one["end"] is not None]
        terms.append({"name": term.name, "rule": term.rule, "kind": "number" if ends else "category", "levels": levels})
    numbers = target.task == "regression"
    return {
        "outputs": list(reading.outputs),
        "unit": reading.unit * (target.std if numbers else 1.0),
        "center": target.mean if numbers else None,
        "bias": reading.bias.tolist(),
        "terms": terms,
        "row": [{"name": str(name), "points": int(points)} for name, points in own.items()],
    }


def results(metrics: Mapping[str, Any], headline: str) -> dict[str, dict[str, Any]]:
    """Put together, by part, the headline of the smooth and the exact network, the gap and its direction in words."""
    found: dict[str, dict[str, Any]] = {}
    for part, smooth in metrics["smooth"].items():
        one = smooth[headline]
        other = metrics["exact"][part][headline] if metrics["exact"] else None
        gap = None if one is None or other is None else other - one
        word = "" if gap is None else direction(gap, lower_is_better=headline in LOWER_IS_BETTER) or "the same"
        found[part] = {"smooth": one, "exact": other, "gap": gap, "direction": word}
    return found


def refitted(run: Run) -> list[str] | None:
    """Return the names of the steps that refitted the exact network after hardening; None: both networks have the same
    weights."""
    if not run.has_own_smooth:
        return None
    return [one["name"] for one in run.record.get("hardening", {}).get("finish", ()) if one["kept"]]


def calibration(measured: Measured) -> dict[str, Any]:
    """Reliability in ten bins of equal width: of two classes the probability of class 1 and how often it is; of more
    the highest probability and how often it is right. Empty bins are left out. Rows count by their weights.

    Returns:
        {"of": "class 1" or "highest", "bins": [{"low", "high", "rows", "share": of the rows' weight, "predicted",
        "observed"}], "error": the expected calibration error, the mean |predicted - observed| over the rows}.
    """
    shares, weights = measured.values(), measured.weights
    two = shares.shape[1] == 2
    said, right = (
        (shares[:, 1], measured.truth() == 1) if two else (shares.max(1), measured.decided() == measured.truth())
    )
    weights = np.ones(len(said)) if weights is None else weights
    place = np.minimum((said * BINS).astype(np.int64), BINS - 1)
    bins, error = list[dict[str, Any]](), 0.0
    for number in np.unique(place).tolist():
        chosen = place == number
        predicted, observed = (float(np.average(of[chosen], weights=weights[chosen])) for of in (said, right))
        share = float(weights[chosen].sum() / weights.sum())
        error += abs(predicted - observed) * share
        one = {"low": number / BINS, "high": (number + 1) / BINS, "rows": int(chosen.sum()), "share": share}
        bins.append(one | {"predicted": predicted, "observed": observed})
    return {"of": "class 1" if two else "highest", "bins": bins, "error": error}


def residuals(measured: Measured) -> dict[str, Any]:
    """True value minus prediction, in ten bins of about as many rows each, by prediction. In figures rows count by
    their weights.

    Returns:
        {"bins": [{"low", "high": of the predictions, "rows", "predicted": mean, "mean", "q10", "median", "q90": of the
        residuals}], "mean", "deviation": of all residuals}.
    """
    predicted, weights = measured.decided(), measured.weights
    order = np.argsort(predicted, kind="stable")
    bins: list[dict[str, Any]] = []
    left = measured.truth() - predicted
    for chosen in np.array_split(order, min(BINS, len(order))):
        own = None if weights is None else weights[chosen]
        how = "linear" if own is None else "inverted_cdf"  # of weighted rows: up to which so much of the weight lies
        spread = np.quantile(left[chosen], [0.1, 0.5, 0.9], weights=own, method=how).tolist()
        means = (float(np.average(of[chosen], weights=own)) for of in (predicted, left))
        one = {"low": float(predicted[chosen].min()), "high": float(predicted[chosen].max()), "rows": len(chosen)}
        one |= dict(zip(("predicted", "mean"), means, strict=True))
        bins.append(one | dict(zip(("q10", "median", "q90"), spread, strict=True)))
    mean = float(np.average(left, weights=weights))
    return {"bins": bins, "mean": mean, "deviation": float(np.average((left - mean) ** 2, weights=weights) ** 0.5)}


def confused(matrix: Int64[np.ndarray, "true predicted"]) -> dict[str, Any]:
    """The confusion matrix, None of more than 100 classes, and the pairs of classes that are most often confused."""
    wrong = matrix.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_PAIRS]
    places = [divmod(int(place), len(matrix)) for place in order]
    pairs = [{"true": t, "predicted": p, "rows": int(wrong[t, p])} for t, p in places if wrong[t, p]]
    return {"matrix": matrix.tolist() if len(matrix) <= MOST_CLASSES else None, "pairs": pairs}


def circuit(run: Run, table: Table, measured: Measured) -> dict[str, Any] | None:
    """Describe a logic network as a circuit.

    Returns:
        {"tables": how many, "asked": [{"column", "tables": how many read it}], "telling": as `telling` gives, and
        estimates: "luts" of an FPGA, "flash" in bytes and "instructions" a row of a Cortex-M0}; None of more tables
        than C writes out.
    """
    program, times = build_run(run), Counter[str]()
    lines, written = program.about["columns"], program
    with suppress(IntegerError):  # C and Verilog then take prepared columns
        written = raw(program, raw_inputs(program, values_of(lines, table.features)))
    if (found := asked(program)) is None or (takes := asked(written)) is None:
        return None
    for place, count in found.times.items():
        times[lines[place]["column"]] += count
    return {
        "tables": len(found.logic.tables()),
        "asked": [{"column": column, "tables": count} for column, count in times.most_common()],
        "telling": telling(program, found.logic, table, measured)[:TELLING],
        "luts": estimated(written, math.inf),
        "flash": takes.flash,
        "instructions": takes.instructions,
    }


def telling(program: IntegerProgram, logic: Logic, table: Table, measured: Measured) -> list[dict[str, Any]]:
    """Order the counted tables by how far their bit differs between the rows of their class and the others; of a
    regression, between the rows above the median and the others.

    Returns:
        [{"class": its number, "reads": conditions in words, "own", "others": shares of these rows whose bit is 1}]
    """
    some = slice(None, None, math.ceil(len(measured.rows) / SAMPLED))
    x = torch.cat([x for x, _ in table_part(table, measured.preprocessor, measured.rows[some])]).numpy()
    values, truth, found = program.every_value(program.input.quantised(x)), measured.truth()[some], list[Any]()
    numbers = table.features.select_dtypes("number")
    whole = {str(name) for name, column in numbers.items() if (column.dropna() % 1 == 0).all()}
    counted = values[program.ops[logic.number - 1].reads[0]].reshape(len(x), len(logic.groups), -1)
    for group, bits in enumerate(logic.groups):
        own = truth == group if measured.preprocessor.target.classes else truth > np.median(truth)
        shares = [counted[rows, group].sum(0) / max(rows.sum(), 1) for rows in (own, ~own)]
        for bit, share, other in zip(bits, *shares, strict=True):
            reads = [condition(program, one, whole) for one in ([bit] if isinstance(bit, Compared) else bit.inputs)]
            found.append({"class": group, "reads": reads, "own": float(share), "others": float(other)})
    return sorted(found, key=lambda one: -abs(one["own"] - one["others"]))


def condition(program: IntegerProgram, bit: Bit, whole: Collection[str] = ()) -> str:
    """Say in words where an input of a truth table is 1, in the unit of its column; whole: columns of whole numbers."""
    if not isinstance(bit, Compared):
        return "another table"
    said, unit = program.about["columns"][bit.place], 2.0**-program.input.exponent
    of_whole, near = said["column"] in whole, (-0.501, -0.5, -0.499)
    ends = [condition_of(said, end * unit, program.input, near, whole=of_whole) for end in bit.toggles]
    signs = itertools.cycle((not bit.first, bool(bit.first)))
    return ", ".join(one.text(on) for one, on in zip(ends, signs, strict=False))


def columns(known: Preprocessor) -> list[dict[str, Any]]:
    """Say of each raw column its kind, how many inputs it makes, and in words how it is read."""
    inputs = {c.name: len(known.inputs_of(c.name)) for c in known.columns}
    of = ({"name": c.name, "kind": KINDS[c.kind], "inputs": inputs[c.name], "read": read_as(c)} for c in known.columns)
    return [*of]


def left_out(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """Columns of the data that are no inputs, and why: those that a training was told not to read, and those that it
    had no use for. What does not vary in the training part alone stands among the columns."""
    notes = [note for note in from_record(record["notes"]) if isinstance(note, Note)]
    nameless = (place for note in notes if note.kind == "no name" for place in str(note.values[0]).split(", "))
    found = [{"name": f"column {place}", "why": "has no name"} for place in nameless]
    return found + [{"name": n.column, "why": str(n.values[0])} for n in notes if n.kind in ("asked", "dropped")]


def read_as(column: Column) -> str:
    """Say how a column is read, in words."""
    if column.kind == "dropped":
        return "not used: it does not vary"
    if column.kind == "number":
        said = [f"{column.low:g} to {column.high:g} become 0 to 1; missing: {column.fill:g}"] * (
            column.high > column.low
        )
        said += [f"in {column.unit!r}"] * bool(column.unit)
        said += [f"codes {', '.join(f'{c:g}' for c in column.codes)}"] * bool(column.codes)
        return "; ".join([*said, *["one input for missing"] * column.missing])
    if column.kind == "date":
        order = column.order if column.order == "month by name" else f"as {column.order}"
        first = column.first.partition("T")[0]
        return f"{', '.join(column.outputs)}; read {order}, from {first}; missing: {column.filled.partition('T')[0]}"
    if column.kind == "encoded":
        what = ", ".join(column.outputs[:MOST_SHOWN]) + (" ..." if len(column.outputs) > MOST_SHOWN else "")
        return f"{what} in each of {len(column.categories):,} categories: {_named(column.categories)}"
    rare = "; one for rare and new ones" if column.other else ""
    return f"one input each: {_named(column.categories)}{rare}"


def _named(values: Sequence[Any]) -> str:
    shown = [str(value) or "missing" for value in values[:MOST_SHOWN]]
    more = len(values) - MOST_SHOWN
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")
