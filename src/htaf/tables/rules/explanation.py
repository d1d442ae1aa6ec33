"""What the bits of a run of a table say: a rule for each, its fidelity, the reasons of rows, and what if."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float64, Int64, UInt8

from htaf.data.notes import Note
from htaf.data.tabular import Table
from htaf.tables.rules.bits import MOST_ROWS, Fitted, RulesError, TableBits, column_of, drawn, own_table
from htaf.tables.rules.conditions import Encoded, RawColumns, Rule
from htaf.tables.rules.trees import Fidelity, fidelity, fit_rule
from htaf.training.runs import Run
from htaf.training.runs.data import rows_for_looking
from htaf.training.runs.predictions import predicted

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
        """Write as plain JSON values."""
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
    """

    bits: TableBits
    name: str
    columns: RawColumns
    train: pd.DataFrame
    test: pd.DataFrame
    train_bits: UInt8[np.ndarray, "train bits"]
    test_bits: UInt8[np.ndarray, "test bits"]
    outputs: np.ndarray
    _rules: dict[int, BitRule] = field(default_factory=dict, repr=False)

    @cached_property
    def _encoded(self) -> Encoded:
        return self.columns.encode(self.columns.read(self.train))

    @cached_property
    def _test_values(self) -> Any:
        return self.columns.read(self.test)

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

    @cached_property
    def states(self) -> list[State]:
        """Whether each bit changes in the training rows."""
        shares = self.train_bits.mean(0, dtype=np.float64).tolist()
        return ["always on" if share == 1 else "varies" if share else "always off" for share in shares]

    @property
    def dead(self) -> dict[str, list[int]]:
        """The bits that never change in the training rows: "always on" and "always off"."""
        wanted = ("always on", "always off")
        return {kind: [b for b, state in enumerate(self.states) if state == kind] for kind in wanted}

    def rule(self, bit: int) -> BitRule:
        """Return the rule of a bit, fitted when it is first asked for.

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
        state, effect, on = self.states[bit], float(self.effects[bit]), float(of_test.mean())
        if state != "varies":
            return BitRule(bit, state, effect, on, scaled, None, 0, None)
        rule, depth = fit_rule(self._encoded, of_train)
        said = rule.predict(self._test_values, len(of_test))
        return BitRule(
            bit, state, effect, on, scaled, rule, depth, fidelity(said, of_test, bool(of_train.mean() >= 0.5))
        )

    def share(self, most: int) -> float:
        """Compute the share that the bits that do most have in the sum of all effects, those of the linear part too."""
        whole = float(self.effects.sum())
        share = float(self.effects[self.order[:most]].sum()) / whole if whole else 1.0
        return share * (1 - self.linear_share)

    def rules(self, most: int | None = None, progress: Callable[[], object] = lambda: None) -> list[BitRule]:
        """Return the rules of the bits that do most, in order; dead bits are left out.

        Args:
            most: how many, None for all. progress: called after each, for progress.
        """
        found = []
        for bit in self.order.tolist():
            if self.states[bit] == "varies" and (most is None or len(found) < most):
                found.append(self.rule(bit))
                progress()
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

        chosen = drawn(np.arange(len(self.train)), OTHERS)
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


def explain(model: Run | Fitted, data: Table | pd.DataFrame | None = None) -> Explanation:
    """Open a run of a table for its rules, over at most 10,000 rows of a part.

    Args:
        model: a run, from `htaf.runs.open_run`, or a fitted estimator.
        data: the table that it was trained on; None: `run.data()`, which reads it. Of an estimator or a run on a data
            frame any labelled rows, a data frame too, that were held out: most of them are fitted to, and a fifth is
            for figures.

    Returns:
        The bits with their rows. `rules()` has the rules, `reasons(row)` what the values of a row add.

    Raises:
        RulesError: a run of images, or one without bits; a data frame where the rows of the training are known.
        RunError: another table than that of the training. DataError: rows without a column or the target.
    """
    bits = TableBits.of(model)
    table = own_table(bits.run, data)
    parts = rows_for_looking(bits.run, table)
    of_train, of_test = (table.features.iloc[drawn(rows, MOST_ROWS)] for rows in (parts.train, parts.test))
    train_bits, _, _ = bits.of_rows(of_train)
    test_bits, outputs, _ = bits.of_rows(of_test)
    columns = RawColumns.learn(bits.preprocessor, of_train)
    return Explanation(bits, table.name, columns, of_train, of_test, train_bits, test_bits, outputs)


# ---- what if ----


@dataclass(frozen=True)
class WhatIf:
    """Predictions of rows as they are and as they would be.

    Attributes:
        before, after: as `htaf.runs.Run.predict` gives them.
        turned_on, turned_off: of each row the bits of the last hidden layer that change.
        notes: what was handled in the changed rows.
    """

    before: pd.DataFrame
    after: pd.DataFrame
    turned_on: tuple[tuple[int, ...], ...]
    turned_off: tuple[tuple[int, ...], ...]
    notes: tuple[Note, ...]


def what_if(model: Run | Fitted, changes: Mapping[str, Any], rows: pd.DataFrame) -> WhatIf:
    """Say what changes in the predictions of raw rows when columns have other values.

    Args:
        model: a run, from `htaf.runs.open_run`, or a fitted estimator.
        changes: raw values by column, as they would stand in the table: numbers, text, None or "" for missing.
        rows: the columns that it was trained on, by name.

    Raises:
        RulesError: no change, or a column that the network does not read.
        DataError: rows lack a column, or rows or changes hold values that cannot be used, such as text for a number.
    """
    bits = TableBits.of(model)
    if not isinstance(changes, Mapping):
        raise RulesError(f"expected values by column, then the rows, got {type(changes).__name__} first")
    if not changes:
        raise RulesError("expected at least one column to change, got none")
    before, outputs, _ = bits.of_rows(rows)
    changed = bits.preprocessor.named(rows)
    for name, value in changes.items():
        column_of(bits.preprocessor, name)
        # as a column of its own, as of a file: a whole number beside fractions must not become another category
        changed[name] = pd.Series([value] * len(rows), index=rows.index, dtype=object)
    after, others, noted = bits.of_rows(changed)
    flips = after.astype(int) - before.astype(int)
    turned_on, turned_off = (tuple(tuple(np.flatnonzero(row == way).tolist()) for row in flips) for way in (1, -1))
    notes = tuple(note for note in noted if note.column in changes)
    was, would_be = (predicted(torch.from_numpy(of), bits.preprocessor, changed.index) for of in (outputs, others))
    return WhatIf(was, would_be, turned_on, turned_off, notes)
