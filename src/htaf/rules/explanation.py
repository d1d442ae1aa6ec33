"""What the bits of a run of a table say: a rule for each, its fidelity, and the reasons of rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64, Int64, UInt8

from htaf.data.order import random_order
from htaf.data.tabular import Split, Table, frame_like
from htaf.rules.bits import Fitted, RulesError, TableBits, run_of, table_of
from htaf.rules.conditions import Rule
from htaf.rules.raw_columns import Encoded, RawColumns
from htaf.rules.trees import Fidelity, fidelity, fit_rule
from htaf.runs import Run, UnknownSourceError
from htaf.runs.data import rows_are_known, rows_for_looking

MOST_ROWS = 10_000  # of a part
OTHERS = 200  # training rows whose values a row is given

State = Literal["varies", "always on", "always off"]


@dataclass(frozen=True)
class BitRule:
    """One bit of the last hidden layer.

    Attributes:
        bit: its number. state: whether it changes in the training rows; one that never does is dead.
        effect: what it does: mean |contribution| to the decision, see `Explanation.effects`.
        on: share of the test rows in which it is on.
        weights: of the head, a number for each output: in the units of the target, or logits.
        rule: over the raw columns; None of a dead bit. depth: of its tree.
        fidelity: of the rule on the test rows; None of a dead bit.
    """

    bit: int
    state: State
    effect: float
    on: float
    weights: tuple[float, ...]
    rule: Rule | None
    depth: int
    fidelity: Fidelity | None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        found: dict[str, Any] = {
            "bit": self.bit, "state": self.state, "effect": self.effect, "on": self.on, "weights": list(self.weights),
            "rule": None, "text": None, "columns": [], "depth": self.depth, "fidelity": None,
        }  # fmt: skip
        if self.rule is not None:
            found |= {"rule": self.rule.to_json(), "text": str(self.rule), "columns": list(self.rule.columns)}
        if self.fidelity is not None:
            found["fidelity"] = vars(self.fidelity) | {"faithful": self.fidelity.faithful}
        return found


@dataclass(frozen=True)
class RowReasons:
    """What the values of one row add to its decision, column by column.

    Attributes:
        prediction: a class, or a number. instead: the class with the next highest logit; None of a regression.
        decision: the prediction, or the logit of its class minus that of the next one.
        columns: index the column; `adds`, the decision minus its mean when the column has the values of 200 training
            rows, one after the other, and all others stay; `std`, the standard deviation over the values; the largest
            |adds| first. Columns are looked at one by one, so what takes two of them together is in neither or in both.
    """

    prediction: str | float
    instead: str | None
    decision: float
    columns: pd.DataFrame


@dataclass
class Explanation:
    """The bits of a run beside the raw rows on which they are read; made by `explain`.

    Attributes:
        bits: the network, open at its last hidden layer. name: of the table.
        columns: raw columns as rules read them. train, test: raw rows.
        train_bits, test_bits: uint8 [rows, bits]. outputs: float32 [test rows, outputs] of the network.
        seed: of what is random in the rules.
    """

    bits: TableBits
    name: str
    columns: RawColumns
    train: pd.DataFrame
    test: pd.DataFrame
    train_bits: UInt8[np.ndarray, "train bits"]
    test_bits: UInt8[np.ndarray, "test bits"]
    outputs: np.ndarray
    seed: int = 0
    _rules: dict[int, BitRule] = field(default_factory=dict, repr=False)

    @cached_property
    def _encoded(self) -> Encoded:
        return self.columns.encode(self.columns.read(self.train))

    @cached_property
    def _test_values(self) -> Any:
        return self.columns.read(self.test)

    @cached_property
    def _ever(self) -> tuple[Bool[np.ndarray, " bits"], Bool[np.ndarray, " bits"]]:
        """Of each bit whether it is on in all training rows, and in any."""
        count = self.train_bits.sum(0, dtype=np.int64)
        return count == len(self.train_bits), count > 0

    @cached_property
    def effects(self) -> Float64[np.ndarray, " bits"]:
        """What each bit does to the decision on the test rows: mean of |worth_ij (bit_ij - p_j)|.

        worth_ij is what bit j adds to the decision of row i where it is on: to the prediction of a regression, or to
        the logit of the predicted class minus that of the next one. p_j is the share of the training rows in which the
        bit is on, so that a bit that never changes does nothing.
        """
        usual = self.train_bits.mean(0, dtype=np.float64)
        first, second = self.bits.decision(self.outputs)
        total = np.zeros(len(self.bits))
        for one, other in {*zip(first.tolist(), second.tolist(), strict=True)}:
            rows = (first == one) & (second == other)
            worth = np.abs(self.bits.worth(one, other))
            total += (np.abs(self.test_bits[rows] - usual) * worth).sum(0)
        return total / max(len(self.test_bits), 1)

    @cached_property
    def linear_effects(self) -> dict[str, float]:
        """What the linear part does to the decision on the test rows, by raw column, the largest first; empty where the
        network has none.

        As `effects`: mean |sum over the inputs of the column of worth_ij (x_ij - m_j)|, with worth_ij what input j adds
        to the decision of row i for each unit, and m_j its mean in the training rows.
        """
        if (weight := self.bits.linear_weight) is None:
            return {}
        preprocessor, (first, second) = self.bits.preprocessor, self.bits.decision(self.outputs)
        moved = preprocessor.transform(self.test) - preprocessor.transform(self.train).mean(0, dtype=np.float64)
        worth = weight[first] * preprocessor.target.std if self.bits.regression else weight[first] - weight[second]
        adds, blocks = worth * moved, ((name, preprocessor.inputs_of(name)) for name in self.columns.names)
        found = {name: float(np.abs(adds[:, block].sum(1)).mean()) for name, block in blocks}
        return dict(sorted(found.items(), key=lambda one: -one[1]))

    @property
    def linear_share(self) -> float:
        """The share that the linear part has in the sum of all effects, its columns and the bits one by one."""
        linear = sum(self.linear_effects.values())
        return linear / (linear + float(self.effects.sum())) if linear else 0.0

    @cached_property
    def order(self) -> Int64[np.ndarray, " bits"]:
        """The bits by `effects`, the largest first."""
        return np.argsort(-self.effects, kind="stable")

    def state(self, bit: int) -> State:
        """Whether a bit changes in the training rows."""
        always, ever = self._ever
        return "always on" if always[bit] else "varies" if ever[bit] else "always off"

    @property
    def dead(self) -> dict[str, list[int]]:
        """The bits that never change in the training rows: "always on" and "always off"."""
        states = [self.state(bit) for bit in range(len(self.bits))]
        return {kind: [b for b, state in enumerate(states) if state == kind] for kind in ("always on", "always off")}

    def rule(self, bit: int) -> BitRule:
        """The rule of a bit, fitted when it is first asked for.

        Raises:
            RulesError: there is no such bit.
        """
        if not 0 <= bit < len(self.bits):
            raise RulesError(f"expected a bit from 0 to {len(self.bits) - 1}, got {bit}")
        if bit not in self._rules:
            self._rules[bit] = self._fit(bit)
        return self._rules[bit]

    def _fit(self, bit: int) -> BitRule:
        of_train: Bool[np.ndarray, " rows"] = self.train_bits[:, bit].astype(bool)
        of_test: Bool[np.ndarray, " rows"] = self.test_bits[:, bit].astype(bool)
        target, weights = self.bits.preprocessor.target, self.bits.weight[:, bit]
        scaled = tuple(float(w * target.std) if self.bits.regression else float(w) for w in weights)
        state, effect, on = self.state(bit), float(self.effects[bit]), float(of_test.mean())
        if state != "varies":
            return BitRule(bit, state, effect, on, scaled, None, 0, None)
        rule, depth = fit_rule(self._encoded, of_train, self.seed)
        said = rule.predict(self._test_values, len(of_test))
        return BitRule(
            bit, state, effect, on, scaled, rule, depth, fidelity(said, of_test, bool(of_train.mean() >= 0.5))
        )

    def share(self, most: int) -> float:
        """The share that the bits that do most have in the sum of all effects, those of the linear part too."""
        whole = float(self.effects.sum())
        share = float(self.effects[self.order[:most]].sum()) / whole if whole else 1.0
        return share * (1 - self.linear_share)

    def rules(self, most: int | None = None, told: Callable[[], object] = lambda: None) -> list[BitRule]:
        """The rules of the bits that do most, in order; dead bits are left out.

        Args:
            most: how many, None for all. told: called after each, for progress.
        """
        found = []
        for bit in self.order.tolist():
            if self.state(bit) == "varies" and (most is None or len(found) < most):
                found.append(self.rule(bit))
                told()
        return found

    def reasons(self, row: pd.DataFrame) -> RowReasons:
        """Say why the network predicts what it does of one row.

        Args:
            row: raw columns by name, one row.

        Raises:
            RulesError: not one row. DataError: the row lacks a column or holds values that cannot be used.
        """
        if len(row) != 1:
            raise RulesError(f"expected one row, got {len(row)}: ask for each by itself, as row.iloc[[0]]")
        preprocessor = self.bits.preprocessor
        inputs = preprocessor.transform(row)
        outputs = self.bits.of_inputs(inputs)[1]
        (one,), (other,) = self.bits.decision(outputs)

        def decided(outputs: np.ndarray) -> np.ndarray:
            if self.bits.regression:
                return preprocessor.inverse(outputs[:, 0].astype(np.float64))
            return outputs[:, one].astype(np.float64) - outputs[:, other]

        chosen = drawn(np.arange(len(self.train)), OTHERS, self.seed)
        others, own = preprocessor.transform(self.train.iloc[chosen]), float(decided(outputs)[0])
        found = {}
        for name in self.columns.names:
            block = preprocessor.inputs_of(name)
            moved = np.repeat(inputs, len(others), axis=0)
            moved[:, block] = others[:, block]
            values = decided(self.bits.of_inputs(moved)[1]) if len(block) else np.array([own])
            found[name] = (float(own - values.mean()), float(values.std()))
        frame = pd.DataFrame.from_dict(found, orient="index", columns=["adds", "std"]).rename_axis("column")
        frame = frame.sort_values("adds", key=lambda of: -of.abs(), kind="stable")
        classes = preprocessor.target.classes
        return RowReasons(classes[one], classes[other], own, frame) if classes else RowReasons(own, None, own, frame)


def explain(
    model: Run | Fitted,
    data: Table | pd.DataFrame | None = None,
    *,
    train: pd.DataFrame | None = None,
    most_rows: int = MOST_ROWS,
    seed: int = 0,
) -> Explanation:
    """Open a run of a table for its rules.

    Args:
        model: a run, from `htaf.runs.open_run`, or a fitted estimator.
        data: the table that it was trained on; None: `run.data()`, which reads it. Of an estimator or a run on a data
            frame any labelled rows, a data frame too; give rows that were held out.
        train: of such a model the rows to which rules are fitted, so that all of `data` are for their figures; None:
            most of `data` are fitted to, and a fifth of them is for figures.
        most_rows: of the training part and of the test part; of larger ones so many are drawn.
        seed: of the rows that are drawn, and of what is random in the rules.

    Returns:
        The bits with their rows. `rules()` has the rules, `reasons(row)` what the values of a row add.

    Raises:
        RulesError: a run of images, or one without bits; a data frame where the rows of the training are known.
        RunError: another table than that of the training. DataError: rows without a column or the target.
    """
    bits = TableBits.of(model)
    table, parts = fitted_and_held(model, data, train)
    of_train, of_test = (table.features.iloc[drawn(rows, most_rows, seed)] for rows in (parts.train, parts.test))
    train_bits, _, _ = bits.of_rows(of_train)
    test_bits, outputs, _ = bits.of_rows(of_test)
    columns = RawColumns.learn(bits.preprocessor, of_train)
    return Explanation(bits, table.name, columns, of_train, of_test, train_bits, test_bits, outputs, seed)


def fitted_and_held(
    model: Run | Fitted, data: Table | pd.DataFrame | None, train: pd.DataFrame | None
) -> tuple[Table, Split]:
    """A table, and which of its rows something is fitted to, "train", and which are for its figures, "test"; arguments
    as of `explain`."""
    run = run_of(model)
    if train is None:
        table = own_table(run, data)
        parts = rows_for_looking(run, table)
    else:
        if not isinstance(train, pd.DataFrame) or not isinstance(data, pd.DataFrame):
            came = f"{type(data).__name__} and {type(train).__name__}"
            raise RulesError(f"expected data, the held-out rows, and train to be data frames, got {came}")
        preprocessor = table_of(run)[1]
        each = [own_table(run, rows) for rows in (train, data)]
        for one in each:
            preprocessor.transform(one.features.head(0))  # it has all columns
        table = own_table(run, pd.concat([preprocessor.named(train), preprocessor.named(data)], ignore_index=True))
        count, none = len(each[0].target), np.zeros(0, np.int64)
        parts = Split(np.arange(count), none, np.arange(count, len(table.target)))
    warn_of_training(model, table.features.iloc[parts.test], 4)
    return table, parts


def warn_of_training(model: Run | Fitted, rows: pd.DataFrame, level: int = 3) -> None:
    """Warn where rows whose figures are asked for are of the training, as far as the estimator knows."""
    if not isinstance(model, Run):
        for note in model.trained_on(rows):
            warnings.warn(str(note), UserWarning, stacklevel=level)


def own_table(run: Run, data: Table | pd.DataFrame | None) -> Table:
    """The table of a run: the one given, or the one that its record names."""
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


def drawn(rows: Int64[np.ndarray, " part"], most: int, seed: int) -> Int64[np.ndarray, " some"]:
    """At most so many of the row numbers, in their order."""
    if len(rows) <= most:
        return rows
    return rows[np.sort(random_order(len(rows), seed, 2)[:most])]
