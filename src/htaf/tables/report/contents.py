"""What the networks of a run say of the rows of its report, and the figures of it, as plain JSON values: what
`report.json` holds and the page shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64, Int64
from torch import Tensor

from htaf._ground.console import direction
from htaf.data.notes import Note, from_record, told
from htaf.data.parts import table_part
from htaf.data.preprocess import Column, Preprocessor
from htaf.data.tabular import Table
from htaf.tables.inspection import decided_values, importance, in_units, table_of
from htaf.tables.readable import Reading
from htaf.tables.report.baselines import Baseline
from htaf.training.runs import Run
from htaf.training.runs.data import table_rows
from htaf.training.runs.metrics import (
    LOWER_IS_BETTER,
    Interval,
    confusion,
    drawn_metrics,
    interval,
)
from htaf.training.runs.predictions import Joined, forward

FORMAT = 9
BINS = 10
MOST_CLASSES = 100  # whose whole confusion matrix is kept
MOST_PAIRS = 20  # of classes that are taken for each other
MOST_SHOWN = 8  # categories of a column that are named
KINDS = {
    "number": "number", "category": "category", "encoded": "many categories", "date": "date", "dropped": "not used"
}  # fmt: skip
ROUNDING = 1e-9  # a difference of two figures this small beside them is none
NAMES = {"rmse": "RMSE", "mae": "MAE", "r2": "R²", "auroc": "AUROC", "accuracy": "accuracy", "loss": "loss"}
BASELINES = {
    "constant": "one answer for all rows",
    "linear": "linear regression (ridge)",
    "logistic": "logistic regression",
    "boosting": "histogram boosting",
}


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
        found: dict[str, Any] = {"exact": None, "smooth": None, "gap": None}
        own = {name: interval(of) for name, of in self.drawn.items()}
        if self.smooth is None:
            return found | {"smooth": own}
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
        return decided_values(self.values(), self.preprocessor.target)


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
    stands = "ahead" if by > 0 else "behind" if by < 0 else "level"
    if within is not None and within[0] <= 0 <= within[1]:
        stands = "level"
    found = {"baseline": best.name, "metric": metric, "network": own, "value": value, "better_by": by}
    found |= {"interval": within, "stands": stands}
    return found | {"text": _sentence(BASELINES.get(best.name, best.name), NAMES.get(metric, metric), found)}


def _sentence(name: str, metric: str, found: dict[str, Any]) -> str:
    by, within, stands = found["better_by"], found["interval"], found["stands"]
    turned = within if within is None or by >= 0 else (-within[1], -within[0])
    far = f"{amount(abs(by))} {metric}" + ("" if turned is None else f" [{amount(turned[0])}, {amount(turned[1])}]")
    if stands == "level":
        how = f": {'ahead' if by > 0 else 'behind'} by {far}" if by else ""
        return f"The network is level with {name}{how}."
    if stands == "ahead":
        return f"The network is ahead of {name} by {far}."
    return f"{name[0].upper()}{name[1:]} is better by {far}."


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
    from htaf.tables.report.circuit import circuit

    record, preprocessor = run.record, measured.preprocessor
    metrics, headline, part, target = record["metrics"], record["headline"], measured.part, preprocessor.target
    found = results(metrics, headline)
    own = found[part]["smooth"] if found[part]["exact"] is None else found[part]["exact"]
    of = {
        "format": FORMAT,
        "key": record["key"],
        "model_sha256": record["model_sha256"],
        "data": record["data"]["name"],
        "target": target.name,
        "task": target.task,
        "classes": list(target.classes),
        "threshold": measured.threshold,
        "weighted": table.weights is not None,
        "method": record["recipe"]["method"],
        "refitted": refitted(run),
        "rows": record["rows"],
        "part": part,
        "headline": headline,
        "lower_is_better": headline in LOWER_IS_BETTER,
        "verdict": verdict(own, part, headline, baselines or ()),
        "results": found,
        "metrics": metrics,
        "intervals": measured.intervals(),
        "baselines": None if baselines is None else [dataclasses.asdict(one) for one in baselines],
        "importance": importance(run, table, part=part).to_json(),
        "circuit": circuit(run, table, measured) if record["model"]["kind"] == "logic" else None,
        "readable": whole_model(run, table.features.iloc[measured.rows]) if run.is_readable else None,
        "columns": columns(preprocessor),
        "left_out": left_out(record),
        "notes": told(from_record(record["notes"])),
        "recipe": record["recipe"],
        "seed": record["seed"],
        "parameters": record.get("parameters"),
        "seconds": record.get("seconds"),
        "calibration": None,
        "confusion": None,
        "residuals": None,
    }
    if target.task == "regression":
        return of | {"residuals": residuals(measured)}
    matrix = confusion(measured.outputs, measured.target, len(target.classes), measured.threshold)
    return of | {
        "calibration": calibration(measured),
        "confusion": confused(matrix),
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


def columns(known: Preprocessor) -> list[dict[str, Any]]:
    """Say of each raw column its kind, how many inputs it makes, and in words how it is read."""
    inputs = {c.name: len(known.inputs_of(c.name)) for c in known.columns}
    of = ({"name": c.name, "kind": KINDS[c.kind], "inputs": inputs[c.name], "read": read_as(c)} for c in known.columns)
    return [*of]


def left_out(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """Columns of the data that are no inputs, and why: those that a training was told not to read, and those that it
    had no use for. What does not vary in the training part alone stands among the columns."""
    found: list[dict[str, str]] = []
    for note in from_record(record["notes"]):
        if isinstance(note, Note) and note.kind in ("asked", "dropped"):
            found.append({"name": note.column, "why": str(note.values[0])})
        elif isinstance(note, Note) and note.kind == "no name":
            places = str(note.values[0]).split(", ")
            found += [{"name": f"column {place}", "why": "has no name"} for place in places]
    return found


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
