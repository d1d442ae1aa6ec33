"""Permutation importance of raw columns: what a network loses where a column says nothing, in bounded time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float32
from torch import Tensor, nn

from htaf.data.preprocess import Preprocessor
from htaf.data.tabular import Table
from htaf.grid import settled
from htaf.models.mlp import MLP, Thermometer
from htaf.rules.bits import Fitted, RulesError, run_of, shuffles
from htaf.rules.explanation import drawn, own_table, warn_of_training
from htaf.runs import Run, forward
from htaf.runs.data import rows_for_figures
from htaf.runs.intervals import Weights, drawn_metrics, figures, interval
from htaf.runs.metrics import LOWER_IS_BETTER, loss_function

MOST_ROWS = 2_000  # that are looked at
MOST_COLUMNS = 100  # that are shuffled: those to which the smooth network is most sensitive
MOST_FORWARD = 200_000  # rows through the network, in all
MOST_REPEATS = 10
WITH_INTERVAL = 15  # of the strongest columns


@dataclass(frozen=True)
class Importance:
    """How much worse a network is when one raw column is shuffled among the rows.

    Attributes:
        metric: of the run: rmse, auroc or accuracy; loss where that is not defined on these rows.
        value: of the metric on the rows as they are. rows: how many. repeats: shuffles of each column.
        columns: index the column; `worse` mean over the repeats of how much worse the metric gets (above 0 is worse,
            of every metric), `std` its standard deviation over the repeats, `low` and `high` the 95% interval over the
            rows, of the 15 strongest; the largest first.
        left_out: columns that were not looked at, because there are too many.
    """

    metric: str
    value: float
    rows: int
    repeats: int
    columns: pd.DataFrame
    left_out: int = 0

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        columns = [
            {"column": name} | {key: None if np.isnan(value) else float(value) for key, value in row.items()}
            for name, row in self.columns.iterrows()
        ]
        return {k: v for k, v in vars(self).items() if k != "columns"} | {"columns": columns}


def importance(
    model: Run | Fitted,
    data: Table | pd.DataFrame | None = None,
    *,
    part: str = "test",
    repeats: int | None = None,
    seed: int = 0,
    most_rows: int = MOST_ROWS,
    most_columns: int = MOST_COLUMNS,
    told: Callable[[], object] = lambda: None,
) -> Importance:
    """Permutation importance (Breiman 2001) of the raw columns, as in `sklearn.inspection.permutation_importance`.

    Of the exact network; of a run without a step, method relu, of its network. A raw column is shuffled with all the
    inputs that are made of it. Columns that say the same share their importance, so a column of little importance need
    not be a useless one. The report of a run and `htaf explain` have these figures.

    Args:
        model: as `htaf.rules.explain` takes it.
        data: the table that it was trained on; None: `run.data()`, which reads it. Of an estimator or a run on a data
            frame any labelled rows, all of which are looked at; give rows that were held out.
        part: "train", "validation" or "test", where the rows of the training are known.
        repeats: shuffles of each column, >= 1; None: as many as are 200,000 rows through the network, 1 to 10.
        seed: of the shuffles. most_rows: of a larger part so many are drawn.
        most_columns: of more those to which the loss of the smooth network is most sensitive.
        told: called after each column, for progress.

    Raises:
        RulesError: a run of images, no such part, or less than one repeat.
        RunError: another table than that of the training.
    """
    run = run_of(model)
    preprocessor = run.preprocessor()
    if not isinstance(preprocessor, Preprocessor):
        raise RulesError(f"expected a run of a table, {run.path} was trained on images")
    table = own_table(run, data)
    parts = rows_for_figures(run, table)
    if part not in ("train", "validation", "test"):
        raise RulesError(f"expected a part of train, validation, test, got {part!r}")
    if repeats is not None and repeats < 1:
        raise RulesError(f"expected at least one repeat, got {repeats}")
    chosen = drawn(getattr(parts, part), most_rows, seed)
    warn_of_training(model, table.features.iloc[chosen])
    target = torch.from_numpy(preprocessor.encode_target(table.target[chosen]))
    target = target.float().unsqueeze(1) if preprocessor.target.task == "regression" else target.long()
    smooth, weights = run.model(exact=False), table.weights_of(chosen)
    return network_importance(
        smooth, run.model() if run.has_step else smooth, preprocessor, table.features.iloc[chosen], target,
        headline=run.record["headline"], weights=weights, repeats=repeats, seed=seed, most_columns=most_columns,
        told=told,
    )  # fmt: skip


def network_importance(
    smooth: nn.Module,
    network: nn.Module,
    preprocessor: Preprocessor,
    features: pd.DataFrame,
    target: Tensor,
    *,
    headline: str,
    weights: Weights | None = None,
    repeats: int | None = None,
    seed: int = 0,
    most_columns: int = MOST_COLUMNS,
    told: Callable[[], object] = lambda: None,
) -> Importance:
    """`importance` of networks in memory.

    Args:
        smooth: the network with gradients. network: the one to measure.
        features: raw rows, as the preprocessing takes them. target: as the network learns it.
        headline: "rmse", "auroc" or "accuracy". weights: how much each row counts; None: all alike.
        Others as of `importance`.
    """
    features = features.reset_index(drop=True)
    names = [c.name for c in preprocessor.columns if c.kind != "dropped" and c.name in features]
    scale, task = preprocessor.target.std, preprocessor.target.task
    x = torch.from_numpy(preprocessor.transform(features))
    blocks = [torch.from_numpy(preprocessor.inputs_of(name)) for name in names]
    places = [*range(len(names))]
    if len(names) > most_columns:
        per_input = _sensitivity(smooth, x, target, task, weights)
        by_column = [float(per_input[block].sum()) for block in blocks]
        places = sorted(sorted(places, key=lambda place: -by_column[place])[:most_columns])
    network = settled(network)  # weights on a grid are rounded once, not for each column
    said = forward(network, x)
    of, ones = {"weights": weights, "threshold": preprocessor.target.threshold}, np.ones(len(x))

    def score(outputs: Tensor) -> dict[str, float]:
        return figures(outputs, target, task, scale, **of)(ones)

    metric = headline if np.isfinite(score(said)[headline]) else "loss"
    before = score(said)[metric]
    sign = 1.0 if metric in LOWER_IS_BETTER else -1.0
    if repeats is None:
        repeats = int(np.clip(MOST_FORWARD // max(1, len(x) * len(places)), 1, MOST_REPEATS))
    orders = [torch.from_numpy(order) for order in shuffles(len(x), repeats, seed)]
    found: dict[str, tuple[float, float]] = {}
    first: dict[str, Tensor] = {}
    for place in places:
        worse = []
        for order in orders if len(blocks[place]) else ():
            moved = x.clone()
            moved[:, blocks[place]] = x[order][:, blocks[place]]
            outputs = forward(network, moved)
            first.setdefault(names[place], outputs)
            worse.append(sign * (score(outputs)[metric] - before))
        found[names[place]] = (float(np.mean(worse)), float(np.std(worse))) if worse else (0.0, 0.0)
        told()
    frame = pd.DataFrame.from_dict(found, orient="index", columns=["worse", "std"]).rename_axis("column")
    frame = frame.sort_values("worse", ascending=False, kind="stable").assign(low=np.nan, high=np.nan)
    usual = drawn_metrics(said, target, task, scale, **of)[metric]
    for name in frame.index[:WITH_INTERVAL]:
        if name in first:
            drawn_worse = sign * (drawn_metrics(first[name], target, task, scale, **of)[metric] - usual)
            moved_by = float(frame["worse"][name]) - sign * (score(first[name])[metric] - before)
            frame.loc[name, ["low", "high"]] = interval(drawn_worse + moved_by) or (np.nan, np.nan)
    return Importance(metric, before, len(x), repeats, frame, len(names) - len(places))


def _sensitivity(
    smooth: nn.Module, x: Tensor, target: Tensor, task: str, weights: Weights | None = None
) -> Float32[np.ndarray, " inputs"]:
    """By input: mean |gradient of the loss| times standard deviation; of a thermometer the sum over its bits, and over
    what reads the input beside it."""
    lead = next((module for module in smooth.modules() if isinstance(module, Thermometer)), None)
    x = x.clone().requires_grad_()
    with torch.no_grad():
        leaf = x if lead is None else lead(x).detach().requires_grad_()
    handles = [] if lead is None else [lead.register_forward_hook(lambda module, given, made: leaf)]
    if isinstance(smooth, MLP) and smooth.leaves is not None:  # whose own step has no gradient
        soft = smooth.leaves.step.register_forward_hook(lambda module, given, made: torch.sigmoid(given[0]))
        handles.append(soft)
    try:
        with torch.enable_grad():
            of = None if weights is None else torch.from_numpy(weights / weights.mean()).float()
            loss = loss_function(task)(smooth(x), target, of) * len(x)
            slope, beside = torch.autograd.grad(loss, (leaf, x), allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()

    def felt(slope: Tensor, values: Tensor) -> Tensor:
        return slope.abs().mean(0) * values.detach().std(0, correction=0)

    if lead is None:
        return felt(slope, leaf).numpy()
    found = torch.zeros(x.shape[1]) if beside is None else felt(beside, x)
    return found.index_add(0, lead.column, felt(slope, leaf)).numpy()
