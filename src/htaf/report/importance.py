"""What a network loses where a column says nothing: permutation importance, in bounded time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float32
from torch import Tensor, nn

from htaf.data.preprocess import Preprocessor
from htaf.runs.metrics import LOWER_IS_BETTER, loss_function
from htaf.runs.predictions import forward

MOST_ROWS = 2_000  # that are looked at
MOST_COLUMNS = 100  # that are permuted: those to which the smooth network is most sensitive
MOST_FORWARD = 200_000  # rows through the network, in all
MOST_REPEATS = 5


@dataclass(frozen=True)
class Importance:
    """How much worse a metric becomes where one column is permuted.

    Attributes:
        metric: its name; "loss" where the headline is not defined on these rows.
        rows, repeats: how many rows were looked at, and how often each column was permuted.
        columns: raw columns, the most important first.
        worse: by column, mean over the repeats of how much worse the metric became; above 0 the column helped.
        spread: by column, standard deviation over the repeats.
        left_out: columns that were not looked at, because there are too many.
    """

    metric: str
    rows: int
    repeats: int
    columns: tuple[str, ...]
    worse: tuple[float, ...]
    spread: tuple[float, ...]
    left_out: int = 0


def column_inputs(preprocessor: Preprocessor, features: pd.DataFrame, columns: Sequence[str]) -> list[np.ndarray]:
    """Which inputs of a network each raw column makes, whatever its kind.

    Each input is made from one column. The columns are numbered from 1; for each binary digit the columns that have it
    are permuted together, and the inputs that change have this digit in the number of their column. So log2(columns)
    transforms are enough. An input that is the same in all of these rows belongs to no column.

    Args:
        features: raw rows. columns: those to look for.
    Returns:
        int64 input numbers by column.
    """
    before = preprocessor.transform(features)
    order = _orders(len(features), 1)[0]
    number = np.zeros(before.shape[1], dtype=np.int64)
    for digit in range(len(columns).bit_length()):
        moved = features.copy()
        for place, name in enumerate(columns, 1):
            if place >> digit & 1:
                moved[name] = features[name].array.take(order)
        number += (preprocessor.transform(moved) != before).any(0).astype(np.int64) << digit
    return [np.flatnonzero(number == place) for place in range(1, len(columns) + 1)]


def importance(
    smooth: nn.Module,
    network: nn.Module,
    preprocessor: Preprocessor,
    features: pd.DataFrame,
    target: Tensor,
    *,
    headline: str,
) -> Importance:
    """How much worse the headline metric of a network becomes where one raw column is permuted among the rows.

    At most 2,000 rows are looked at, evenly spread; of more than 100 columns those to which the loss of the smooth
    network is most sensitive, by gradient times standard deviation. What is random is the same each time.

    Args:
        smooth: the network with gradients. network: the one to measure, usually the exact one.
        features: raw rows, as the preprocessing takes them. target: as the network learns it.
        headline: "rmse", "auroc" or "accuracy".
    """
    kept = np.linspace(0, len(features) - 1, min(len(features), MOST_ROWS)).astype(np.int64)
    features, target = features.iloc[kept].reset_index(drop=True), target[torch.from_numpy(kept)]
    names = [c.name for c in preprocessor.columns if c.kind != "dropped" and c.name in features]
    scale = preprocessor.target.std
    x = torch.from_numpy(preprocessor.transform(features))
    blocks = [torch.from_numpy(b) for b in column_inputs(preprocessor, features, names)]
    chosen = [*range(len(names))]
    if len(names) > MOST_COLUMNS:
        per_input = _sensitivity(smooth, x, target, preprocessor.target.task)
        by_column = [float(per_input[block].sum()) for block in blocks]
        chosen = sorted(sorted(chosen, key=lambda place: -by_column[place])[:MOST_COLUMNS])
    metric = headline if _score(network, x, target, headline, scale) is not None else "loss"
    before = _score(network, x, target, metric, scale) or 0.0
    sign = 1.0 if metric in LOWER_IS_BETTER else -1.0
    repeats = int(np.clip(MOST_FORWARD // max(1, len(x) * len(chosen)), 1, MOST_REPEATS))
    orders = [torch.from_numpy(order) for order in _orders(len(x), repeats)]
    found: list[tuple[float, float, str]] = []
    for place in chosen:
        worse = []
        for order in orders if len(blocks[place]) else ():
            moved = x.clone()
            moved[:, blocks[place]] = x[order][:, blocks[place]]
            worse.append(sign * ((_score(network, moved, target, metric, scale) or 0.0) - before))
        of = np.array(worse or [0.0])
        found.append((float(of.mean()), float(of.std()), names[place]))
    found.sort(key=lambda one: -one[0])
    worse, spread, columns = zip(*found, strict=True) if found else ((), (), ())
    return Importance(metric, len(x), repeats, columns, worse, spread, len(names) - len(chosen))


def _orders(rows: int, count: int) -> list[np.ndarray]:
    """Permutations of row numbers, the same on every machine; see `htaf.data.tabular.split`."""
    words = np.random.PCG64(0).random_raw(rows * count).reshape(count, rows)
    return [np.argsort(row, kind="stable") for row in words]


def _sensitivity(smooth: nn.Module, x: Tensor, target: Tensor, task: str) -> Float32[np.ndarray, " inputs"]:
    """By input: mean |gradient of the loss| times standard deviation."""
    x = x.clone().requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(loss_function(task)(smooth(x), target) * len(x), x)
    return (slope.abs().mean(0) * x.detach().std(0, correction=0)).numpy()


@torch.no_grad()
def _score(network: nn.Module, x: Tensor, target: Tensor, metric: str, scale: float) -> float | None:
    """A metric as `htaf.runs.metrics.metrics` has it, without the others; None where it is not defined."""
    outputs = forward(network, x)
    if metric == "rmse":
        value = scale * (outputs.double() - target.double()).square().mean().sqrt().item()
    elif metric == "accuracy":
        value = (outputs.argmax(1) == target).double().mean().item()
    elif metric == "auroc":
        from sklearn.metrics import roc_auc_score

        if len(target.unique()) < 2:
            return None
        value = float(roc_auc_score(target.numpy(), (outputs[:, 1] - outputs[:, 0]).double().numpy()))
    else:
        value = loss_function("regression" if target.is_floating_point() else "classification")(outputs, target).item()
    return value if np.isfinite(value) else None
