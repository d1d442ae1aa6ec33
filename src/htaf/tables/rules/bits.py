"""A run of a table opened for rules: its table, its network's answers, and the bits that the linear head reads."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float32, Float64, Int64, Shaped, UInt8
from torch import Tensor, nn

from htaf._ground.errors import HtafError, suggestion
from htaf.core.activations import Heaviside
from htaf.data.columns import Column, Target
from htaf.data.notes import Note
from htaf.data.order import random_order
from htaf.data.preprocess import Preprocessor
from htaf.data.reading import listed
from htaf.data.tabular import Table, frame_like
from htaf.models.mlp import MLP
from htaf.training.runs import Run, UnknownSourceError, forward
from htaf.training.runs.data import rows_are_known
from htaf.training.runs.metrics import decided, decided_by, probabilities
from htaf.transform.grid import bias_of, weight_of

MOST_ROWS = 10_000  # of the training part and of the test part that are looked at


class RulesError(HtafError):
    """A run or a question that has no answer in rules."""


@runtime_checkable
class Fitted(Protocol):
    """An estimator that is fitted: it holds its run."""

    run_: Run


def run_of(model: Run | Fitted) -> Run:
    """Take the run itself, or that of a fitted estimator.

    Raises:
        RulesError: neither, or an estimator before `fit`.
    """
    run = getattr(model, "run_", model)
    if not isinstance(run, Run):
        came = f"{type(model).__name__}{', not fitted' if hasattr(model, 'fit') else ''}"
        raise RulesError(f"expected a run or a fitted HtafClassifier or HtafRegressor, got {came}")
    return run


def table_of(model: Run | Fitted) -> tuple[Run, Preprocessor]:
    """Open a run of a table, or that of a fitted estimator, and its preprocessing.

    Raises:
        RulesError: a run of images.
    """
    run = run_of(model)
    preprocessor = run.preprocessor()
    if not isinstance(preprocessor, Preprocessor):
        raise RulesError(
            f"expected a run of a table, {run.path} was trained on images: its bits are read by htaf concepts, the "
            "reasons of an image by htaf predict --explain"
        )
    return run, preprocessor


def column_of(preprocessor: Preprocessor, name: str) -> Column:
    """Look up a raw column that a network reads.

    Raises:
        RulesError: there is none of this name, or it was dropped.
    """
    columns = {column.name: column for column in preprocessor.columns}
    names = list(columns)
    if name not in columns:
        raise RulesError(f"expected one of the columns {listed(names)}, got {name!r}{suggestion(name, names)}")
    if columns[name].kind == "dropped":
        raise RulesError(f"column {name!r} was dropped in training: no value of it changes the prediction")
    return columns[name]


def own_table(run: Run, data: Table | pd.DataFrame | None) -> Table:
    """Read the table of a run: the one given, or the one that its record names."""
    target = table_of(run)[1].target
    if isinstance(data, pd.DataFrame):
        if rows_are_known(run):
            raise RulesError(f"{run.path} knows the rows of its training: expected its table or none, got a data frame")
        return frame_like(data, target=target)
    try:
        found = run.data() if data is None else data
    except UnknownSourceError as error:
        raise RulesError(f"{error.said}: give data=, a data frame with the column {target.name!r}") from None
    if not isinstance(found, Table):
        raise RulesError(f"expected a table for {run.path}, got the images {found.name}")
    return found


def drawn(rows: Int64[np.ndarray, " part"], most: int) -> Int64[np.ndarray, " some"]:
    """Draw at most so many of the row numbers, and keep their order."""
    if len(rows) <= most:
        return rows
    return rows[np.sort(random_order(len(rows), 0, 2)[:most])]


def answers(
    network: nn.Module, preprocessor: Preprocessor, inputs: Float32[np.ndarray, "rows inputs"]
) -> Float64[np.ndarray, "rows outputs"]:
    """Predict by a network: probabilities of classes, or numbers [rows, 1] in the unit of the target."""
    return in_units(forward(network, torch.from_numpy(inputs)), preprocessor)


def in_units(outputs: Tensor, preprocessor: Preprocessor) -> Float64[np.ndarray, "rows outputs"]:
    """Read a network's outputs as probabilities of classes, or numbers [rows, 1] in the unit of the target."""
    if preprocessor.target.task == "regression":
        return preprocessor.inverse(outputs[:, 0].double().numpy())[:, None]
    return probabilities(outputs).numpy()


def decided_values(said: Float64[np.ndarray, "rows outputs"], target: Target) -> Shaped[np.ndarray, " rows"]:
    """Say what is predicted: classes, by number, of their probabilities; numbers as they are."""
    return said[:, 0] if target.task == "regression" else decided_by(torch.tensor(said), target.threshold).numpy()


@dataclass(frozen=True)
class TableBits:
    """The exact network of a run of a table, open at its last hidden layer.

    outputs = bits @ weight.T + bias + the linear part, where the network has one, see `linear_weight`; up to the
    rounding of float32. A unit of several levels gives a bit for each threshold, lowest first, side by side: whether it
    is reached. Each has its share of the unit's weight. Leaves of trees beside the layer, see
    `htaf.models.mlp.Leaves`, are the last bits.

    Attributes:
        run: the run. network: its exact network. preprocessor: raw rows to inputs.
        weight: float64 [outputs, bits]. bias: float64 [outputs]. levels: bits of a unit.
    """

    run: Run
    network: nn.Module
    preprocessor: Preprocessor
    weight: Float64[np.ndarray, "outputs bits"]
    bias: Float64[np.ndarray, " outputs"]
    levels: int = 1

    @classmethod
    def of(cls, model: Run | Fitted) -> TableBits:
        """Open the exact network of a run, or of a fitted estimator.

        Raises:
            RulesError: a run of images, one without a step (method relu), or a network without a linear head.
            RunError: a damaged run.
        """
        run, preprocessor = table_of(model)
        if not run.has_step:
            raise RulesError(
                f"expected a run whose last layer is of bits, {run.path} was trained with method "
                f"{run.record['recipe']['method']}, which has real values: train with method htaf"
            )
        network = run.model(exact=True)
        head: Any = getattr(network, "head", None)
        if not isinstance(head, nn.Linear):
            raise RulesError(f"expected a network with a linear head over bits, {run.path} has {type(head).__name__}")
        weight = weight_of(head).detach().double().numpy()
        bias = np.zeros(len(weight)) if (b := bias_of(head)) is None else b.detach().double().numpy()
        steps = [module for module in network.modules() if isinstance(module, Heaviside)]
        levels = steps[-1].levels if steps else 1
        weight = np.repeat(weight / levels, levels, axis=1)
        if isinstance(network, MLP) and network.leaves is not None:
            weight = np.hstack([weight, weight_of(network.leaves.head).detach().double().numpy()])
        return cls(run, network, preprocessor, weight, bias, levels)

    def __len__(self) -> int:
        """Bits of the last hidden layer."""
        return self.weight.shape[1]

    @property
    def regression(self) -> bool:
        """Whether the target is a number."""
        return self.preprocessor.target.task == "regression"

    def of_inputs(
        self, inputs: Float32[np.ndarray, "rows columns"]
    ) -> tuple[UInt8[np.ndarray, "rows bits"], Float32[np.ndarray, "rows outputs"]]:
        """Compute the bits of network inputs, and the network's own outputs.

        Raises:
            RulesError: the last hidden layer has values other than 0 and 1, or than the shares of its levels.
        """
        seen, of_leaves = list[Tensor](), list[Tensor]()
        with contextlib.ExitStack() as hooks:
            for name, kept in (("head", seen), ("leaves.head", of_leaves)):
                if (head := dict(self.network.named_modules()).get(name)) is not None:
                    see = partial(lambda kept, module, given: kept.append(given[0].detach()), kept)
                    hooks.callback(head.register_forward_pre_hook(see).remove)
            outputs = forward(self.network, torch.from_numpy(inputs))
        values = torch.cat(seen)[: len(inputs)]
        reached = (values * self.levels).round()
        possible = (reached >= 0) & (reached <= self.levels) & (reached / self.levels == values)
        if values.ndim != 2 or not bool(possible.all()):
            raise RulesError(f"expected bits of 0 and 1 in the last hidden layer of {self.run.path}, got other values")
        bits = (reached.unsqueeze(-1) > torch.arange(self.levels)).flatten(1)
        if of_leaves:
            bits = torch.cat([bits, torch.cat(of_leaves)[: len(inputs)] > 0], 1)
        return bits.to(torch.uint8).numpy(), outputs.detach().numpy()

    def of_rows(
        self, rows: pd.DataFrame
    ) -> tuple[UInt8[np.ndarray, "rows bits"], Float32[np.ndarray, "rows outputs"], list[Note]]:
        """Compute the bits of raw rows, the network's outputs, and notes of what was handled.

        Raises:
            DataError: rows lack a column or hold values that cannot be used.
        """
        inputs, notes = self.preprocessor.transform_with_notes(rows)
        return *self.of_inputs(inputs), notes

    @property
    def linear_weight(self) -> Float64[np.ndarray, "outputs inputs"] | None:
        """The weights of the linear part, the layer `direct` of the inputs; None where there is none."""
        layer = getattr(self.network, "direct", None)
        return weight_of(layer).detach().double().numpy() if isinstance(layer, nn.Linear) else None

    def decision(
        self, outputs: Float[np.ndarray, "rows outputs"]
    ) -> tuple[Int64[np.ndarray, " rows"], Int64[np.ndarray, " rows"]]:
        """Find each row's predicted class and the next one; zeros of a regression. By a threshold the logit of the
        predicted one may be the lower."""
        if outputs.shape[1] == 1:
            zero = np.zeros(len(outputs), np.int64)
            return zero, zero
        first = decided(torch.from_numpy(outputs), self.preprocessor.target.threshold).numpy()
        others = outputs.copy()
        others[np.arange(len(others)), first] = -np.inf
        return first, others.argmax(1)

    def worth(self, first: int, second: int) -> Float64[np.ndarray, " bits"]:
        """Say what each bit that is on adds to the decision.

        Of classes: to the logit of class `first` minus that of `second`. Of a regression: to the prediction, in the
        units of the target; the arguments do not matter.
        """
        if self.regression:
            return self.weight[0] * self.preprocessor.target.std
        return self.weight[first] - self.weight[second]
