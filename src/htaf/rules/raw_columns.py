"""Raw columns of a table as trees and rules read them: numbers as they are, categories as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float32, Float64, Int64, Shaped

from htaf.data.columns import MISSING, Column, category_values
from htaf.data.preprocess import Preprocessor
from htaf.data.reading import is_text, to_number
from htaf.rules.conditions import Condition, Values, coded

DATES = ("date", "time", "datetime")  # kinds of a column whose raw values are points in time
PRIOR = 10.0  # training rows of a category whose mean counts as much as the mean of all


@dataclass(frozen=True)
class RawColumn:
    """One raw column that the network reads.

    Attributes:
        name: of the column. kind: how its values are compared.
        values: the distinct values of the training rows, ascending: float64, or object of str ("" for missing).
        codes: numbers that say why a value is missing.
        absent: whether a training row lacks the value. day_first: of dates written as text, 31/12/2020.
    """

    name: str
    kind: Literal["number", "date", "category"]
    values: Shaped[np.ndarray, " distinct"]
    codes: tuple[float, ...] = ()
    absent: bool = False
    day_first: bool = False

    def bound(self, left: int, right: int) -> float:
        """The roundest bound that parts two places in `values`: at most it on the left, above it on the right."""
        low, high = float(self.values[left]), float(self.values[right])
        if self.kind == "number":
            return roundest(low, high)
        return float(math.ceil(low)) if math.ceil(low) < high else low  # whole days


def roundest(low: float, high: float) -> float:
    """The number with the fewest digits in low <= number < high, of those the one nearest to the middle.

    Args:
        low, high: finite, low < high.
    """
    middle = low + (high - low) / 2
    top = math.ceil(math.log10(max(abs(low), abs(high)))) + 1
    for power in range(top, top - 20, -1):
        try:
            near = math.floor(middle / 10.0**power)
        except (OverflowError, ZeroDivisionError):  # at the ends of what float64 holds
            break
        found = [float(f"{count}e{power}") for count in (near - 1, near, near + 1, near + 2)]
        if within := [value for value in found if low <= value < high]:
            return min(within, key=lambda value: abs(value - middle)) + 0.0
    return low


@dataclass(frozen=True)
class RawColumns:
    """The raw columns that a network reads, as its training rows have them."""

    columns: tuple[RawColumn, ...]

    @classmethod
    def learn(cls, preprocessor: Preprocessor, rows: pd.DataFrame) -> RawColumns:
        """Kinds, distinct values and codes.

        Args:
            preprocessor: of the run; columns that it dropped are left out.
            rows: raw training rows.
        """
        made = []
        for column in preprocessor.columns:
            if column.kind == "dropped":
                continue
            kind = _kind(column, rows[column.name])
            codes = tuple(getattr(column, "codes", ()))
            day_first = str(getattr(column, "order", "")).startswith("day")
            found = _read(kind, rows[column.name], codes, day_first)
            present = found if kind == "category" else found[~np.isnan(found)]
            absent = bool((found == MISSING).any()) if kind == "category" else len(present) < len(found)
            made.append(RawColumn(column.name, kind, np.unique(present), codes, absent, day_first))
        return cls(tuple(made))

    def read(self, rows: pd.DataFrame) -> Values:
        """The values of raw rows, as `Condition.holds` takes them; the columns are there."""
        values: dict[str, np.ndarray] = {}
        for column in self.columns:
            raw = rows[column.name]
            values[column.name] = _read(column.kind, raw, column.codes, column.day_first)
            if column.codes:
                values[coded(column.name)] = to_number(raw)[0]
        return values

    def encode(self, values: Values) -> Encoded:
        """Training rows as the inputs of a tree."""
        blocks, names = [], []
        for column in self.columns:
            found = values[column.name]
            if column.kind == "category":
                block = np.searchsorted(column.values.astype(str), found.astype(str)).astype(np.float64)
            else:
                block = np.searchsorted(column.values, found).astype(np.float64)
                block[np.isnan(found)] = np.nan
            blocks.append(block)
            names.append((column, None))
            for code in column.codes:
                blocks.append((values[coded(column.name)] == code).astype(np.float64))
                names.append((column, code))
        return Encoded(np.stack(blocks, axis=1).astype(np.float32), tuple(names))


@dataclass(frozen=True)
class Encoded:
    """Rows as the inputs of a tree.

    Attributes:
        inputs: float32 [rows, inputs]: places in the distinct values of a column, NaN where a number is missing; 0 or 1
            for a special code. Places are whole numbers below 2^24, so float32 holds them.
        names: of each input its column, and the special code or None.
    """

    inputs: Float32[np.ndarray, "rows inputs"]
    names: tuple[tuple[RawColumn, float | None], ...]

    def ordered(
        self, bit: Bool[np.ndarray, " rows"], rows: Int64[np.ndarray, " some"]
    ) -> tuple[Float32[np.ndarray, "rows inputs"], dict[int, Int64[np.ndarray, " categories"]]]:
        """The inputs with categories in the order in which the bit is on more often; for one bit this loses no split.

        A rare category is drawn towards the mean of all, see `PRIOR`.

        Args:
            bit: of all rows. rows: those that the order is learned from.

        Returns:
            the inputs of all rows, and by input the categories in their order.
        """
        inputs, orders = self.inputs.copy(), {}
        for place, (column, code) in enumerate(self.names):
            if column.kind != "category" or code is not None:
                continue
            at = self.inputs[:, place].astype(np.int64)
            count = np.bincount(at[rows], minlength=len(column.values))
            on = np.bincount(at[rows], weights=bit[rows], minlength=len(column.values))
            share: Float64[np.ndarray, " categories"] = (on + PRIOR * bit[rows].mean()) / (count + PRIOR)
            order = np.argsort(share, kind="stable")
            rank = np.empty(len(order), np.int64)
            rank[order] = np.arange(len(order))
            inputs[:, place], orders[place] = rank[at], order
        return inputs, orders


def sides(
    column: RawColumn, code: float | None, between: tuple[int, int], missing_left: bool, order: Sequence[int] | None
) -> tuple[Condition, Condition]:
    """The two conditions of a split of a tree: where it goes left, and where it goes right.

    Args:
        column, code: of the input. between: the last place that goes left and the first that goes right, of the rows
            that the split parts. missing_left: where rows without a value go.
        order: the categories in their order, None of a number.
    """
    if code is not None:
        return Condition(column.name, "code", code=code, negated=True), Condition(column.name, "code", code=code)
    if order is not None:
        cut = (between[0] + between[1]) // 2 + 1
        left, right = (tuple(sorted(column.values[list(part)])) for part in (order[:cut], order[cut:]))
        few, many = (left, False) if len(left) <= len(right) else (right, True)
        one = Condition(column.name, "category", among=few, negated=many)
        return one, Condition(column.name, "category", among=few, negated=not many)
    kind, bound = ("date" if column.kind == "date" else "number"), column.bound(*between)
    one = Condition(column.name, kind, upto=bound, missing=missing_left, told=column.absent)
    return one, Condition(column.name, kind, above=bound, missing=not missing_left, told=column.absent)


def _kind(column: Column, raw: pd.Series) -> Literal["number", "date", "category"]:
    if column.kind in DATES or pd.api.types.is_datetime64_any_dtype(raw):
        return "date"
    return "category" if is_text(raw) else "number"


def _read(kind: str, raw: pd.Series, codes: Sequence[float], day_first: bool) -> np.ndarray:
    if kind == "category":
        return category_values(raw)
    if kind == "date":
        moments = pd.to_datetime(raw, errors="coerce", format="mixed", dayfirst=day_first, utc=True)
        return ((moments - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)).to_numpy(np.float64)
    numbers = to_number(raw)[0]
    return np.where(np.isin(numbers, codes), np.nan, numbers) if codes else numbers
