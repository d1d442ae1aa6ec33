"""What the networks of a run say of the rows of its report: intervals, curves, and the verdict beside the baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from htaf.data.parts import table_part
from htaf.data.preprocess import Preprocessor
from htaf.data.tabular import Table
from htaf.tables.report.baselines import Baseline
from htaf.tables.rules.bits import table_of
from htaf.training.runs import Run
from htaf.training.runs.data import table_rows
from htaf.training.runs.metrics import (
    LOWER_IS_BETTER,
    Interval,
    decided,
    decided_by,
    drawn_metrics,
    interval,
    probabilities,
)
from htaf.training.runs.predictions import Joined, forward

ROUNDING = 1e-9  # a difference of two figures this small beside them is none
THRESHOLDS = tuple(k / 10 for k in range(1, 10))
NAMES = {"rmse": "RMSE", "mae": "MAE", "r2": "R²", "auroc": "AUROC", "accuracy": "accuracy", "loss": "loss"}
BASELINES = {
    "constant": "one answer for all rows",
    "linear": "linear regression (ridge)",
    "logistic": "logistic regression",
    "boosting": "histogram boosting",
}


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
            RunError: other data, or a damaged run. RulesError: a run of images.
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

    def total(self, some: Bool[np.ndarray, " rows"]) -> float:
        """Say what some of the rows weigh together; of unweighted ones how many they are."""
        return float(some.sum() if self.weights is None else self.weights[some].sum())

    def values(self) -> Float64[np.ndarray, "rows outputs"]:
        """Probabilities of classes; numbers in the unit of the target."""
        if self.preprocessor.target.task == "regression":
            return self.preprocessor.inverse(self.outputs[:, 0].double().numpy())[:, None]
        return probabilities(self.outputs).numpy()

    def truth(self) -> np.ndarray:
        """Return the true classes, by number, or numbers in the unit of the target."""
        if self.preprocessor.target.task == "regression":
            return self.preprocessor.inverse(self.target[:, 0].double().numpy())
        return self.target.numpy()

    def decided(self) -> np.ndarray:
        """Say what is predicted: classes, by number, or numbers in the unit of the target."""
        if self.preprocessor.target.task == "regression":
            return self.values()[:, 0]
        return decided(self.outputs, self.threshold).numpy()


def thresholds(measured: Measured) -> list[dict[str, Any]]:
    """Of two classes what is found and what is right where the second is said from a probability on; the run's own
    threshold stands among round ones. Rows count by their weights.

    Returns:
        {"threshold", "said": share of the rows of which class 1 is said, "recall", "precision", "f1", "accuracy",
        "own": whether it is the run's}, in order; None where there is nothing to divide by.
    """
    values, truth = torch.from_numpy(measured.values()), measured.truth()
    if values.shape[1] != 2:
        return []
    own = 0.5 if measured.threshold is None else measured.threshold
    positive, found = truth == 1, list[dict[str, Any]]()
    for threshold in sorted({*THRESHOLDS, own}):
        by = measured.threshold if threshold == own else threshold
        said: Bool[np.ndarray, " rows"] = decided_by(values, by).numpy() == 1
        hits, count, wanted, whole = map(measured.total, (said & positive, said, positive, truth >= 0))
        found.append(
            {
                "threshold": threshold,
                "said": count / whole,
                "recall": hits / wanted if wanted else None,
                "precision": hits / count if count else None,
                "f1": 2 * hits / (count + wanted) if count + wanted else None,
                "accuracy": measured.total(said == positive) / whole,
                "own": threshold == own,
            }
        )
    return found


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
