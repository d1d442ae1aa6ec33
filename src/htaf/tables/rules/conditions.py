"""Raw columns of a table as trees read them, and rules over them: conditions, their words, whether rows meet them."""

from __future__ import annotations

import calendar
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float32, Float64, Int64, Shaped

from htaf.data import dates
from htaf.data.columns import MISSING, Column, places, read_values
from htaf.data.preprocess import Preprocessor
from htaf.data.reading import named

SHOWN = 6  # categories of a set in words; JSON has all
NAMES = {"month": ("", *calendar.month_name[1:]), "weekday": tuple(calendar.day_name)}  # of parts of dates, by number
RARE = "other (rare or new)"  # what a network reads alike: categories of few training rows, and new ones
PRIOR = 10.0  # training rows of a category whose mean counts as much as the mean of all
Values = Mapping[str, Shaped[np.ndarray, " rows"]]  # of raw columns: float64 (NaN: missing) or object of str


@dataclass(frozen=True)
class Condition:
    """One condition on one raw column.

    Of a number or a date (in days since 1970): above < value <= upto, None for no bound. Of a category: value is one of
    `among`, as the network reads it (`read`). Of a special code of a number column: value is
    `code`. "missing": there is no value, or a special code. `negated` turns the last three around. A category that no
    training row has is in no set.

    Attributes:
        column: its name. kind: what is asked of it.
        part: of a date, such as "month", of which a number is asked; "" of the value itself.
        says: of a column with two values in training, plainer words: "trt is 2" for "trt > 1"; "" elsewhere.
        missing: of a number: whether rows without a value meet the condition.
        some_missing: whether training rows lack the value, so that the words must say what holds for them.
    """

    column: str
    kind: Literal["number", "date", "category", "code", "missing"]
    above: float | None = None
    upto: float | None = None
    among: tuple[str, ...] = ()
    code: float = 0.0
    negated: bool = False
    missing: bool = False
    some_missing: bool = False
    part: str = ""
    says: str = field(default="", compare=False)

    def holds(self, values: Values) -> Bool[np.ndarray, " rows"]:
        """Say which rows meet the condition.

        Args:
            values: from `RawColumns.read`.
        """
        if self.kind == "category":
            found = pd.Series(values[self.column], dtype=object).isin(self.among).to_numpy()
            return ~found if self.negated else found
        if self.kind == "code":
            return (values[coded(self.column)] == self.code) != self.negated
        numbers = values[part_key(self.column, self.part)].astype(np.float64)
        absent = np.isnan(numbers)
        if self.kind == "missing":
            return absent != self.negated
        above = -math.inf if self.above is None else self.above
        upto = math.inf if self.upto is None else self.upto
        return np.where(absent, self.missing, (numbers > above) & (numbers <= upto))

    def __str__(self) -> str:
        """In words: "0.3 < carat <= 0.71", "color in {D, E}", "Age > 40 or missing"."""
        if self.kind == "category":
            names = [value or "missing" for value in self.among]
            if len(names) == 1:
                if self.says:
                    return self.says
                return f"{self.column} {'is not' if self.negated else 'is'} {names[0]}"
            more = f", {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            return f"{self.column} {'not in' if self.negated else 'in'} {{{', '.join(names[:SHOWN])}{more}}}"
        if self.kind == "code":
            return f"{self.column} {'is not' if self.negated else 'is'} the code {self.code:g}"
        if self.kind == "missing":
            return f"{self.column} is {'not ' if self.negated else ''}missing"
        low, high = (None if bound is None else self._shown(bound) for bound in (self.above, self.upto))
        name = f"{self.part} of {self.column}" if self.part else self.column
        said = self.says
        if not said and high is None:
            said = f"{name} > {low}"
        elif not said:
            said = f"{name} <= {high}" if low is None else f"{low} < {name} <= {high}"
        return f"({said} or missing)" if self.missing and self.some_missing else said

    def _shown(self, bound: float) -> str:
        if self.part in NAMES and float(bound).is_integer() and 0 <= bound < len(NAMES[self.part]):
            return NAMES[self.part][int(bound)] or "0"
        if self.kind == "number":
            return f"{bound:.10g}"
        moment = pd.Timestamp(0) + pd.Timedelta(days=bound)
        return str(moment.date()) if moment == moment.normalize() else str(moment.floor("s"))

    def to_json(self) -> dict[str, Any]:
        """Write as plain JSON values, with the fields of its kind alone."""
        common = {"column": self.column, "kind": self.kind} | ({"part": self.part} if self.part else {})
        if self.kind == "category":
            return common | {"among": list(self.among), "negated": self.negated}
        if self.kind == "code":
            return common | {"code": self.code, "negated": self.negated}
        if self.kind == "missing":
            return common | {"negated": self.negated}
        return common | {"above": self.above, "upto": self.upto, "missing": self.missing}


def coded(column: str) -> str:
    """Make the key of `Values` under which a number column stands with its special codes as numbers."""
    return f"{column}\0"


def part_key(column: str, part: str) -> str:
    """Make the key of `Values` under which a part of a date stands; of no part the column's own."""
    return f"{column}\0{part}" if part else column


def both(one: Condition, other: Condition) -> Condition | None:
    """One condition for two on the same column and of the same kind, None where it takes two."""
    if (one.column, one.kind, one.part) != (other.column, other.kind, other.part) or one.kind in ("code", "missing"):
        return None
    if one.kind == "category":
        if one.negated and other.negated:
            return replace(one, among=tuple(dict.fromkeys((*one.among, *other.among))), says="")
        if one.negated:
            one, other = other, one
        kept = (v for v in one.among if (v in other.among) != other.negated)
        return replace(one, among=tuple(kept), says="")
    above = max((b for b in (one.above, other.above) if b is not None), default=None)
    upto = min((b for b in (one.upto, other.upto) if b is not None), default=None)
    return replace(one, above=above, upto=upto, missing=one.missing and other.missing, says="")


def joined(conditions: Sequence[Condition]) -> tuple[Condition, ...]:
    """Make the same conjunction with as few conditions as can be, in the order of the first on each column."""
    made: list[Condition] = []
    for condition in conditions:
        for place, before in enumerate(made):
            if (merged := both(before, condition)) is not None:
                made[place] = merged
                break
        else:
            made.append(condition)
    return tuple(made)


def simplified(alternatives: Sequence[Sequence[Condition]]) -> tuple[tuple[Condition, ...], ...]:
    """Alternatives that hold for the same rows, without a condition or an alternative that can be left out.

    "a is x and b is y; or a is not x and b is y" becomes "b is y", "a is x; or a is not x and b is y" becomes "a is x;
    or b is y". Whatever is left out, the others hold for the same of all cases that the conditions tell apart.

    Args:
        alternatives: conjunctions, of a tree's depth: the cases are all combinations of values of their columns.
    """
    truth = _in_every_case({condition for every in alternatives for condition in every})
    always = np.ones(len(next(iter(truth.values()), [True])), dtype=bool)
    found = [tuple(dict.fromkeys(every)) for every in alternatives]

    def all_of(conditions: Sequence[Condition]) -> Bool[np.ndarray, " cases"]:
        return np.logical_and.reduce([always, *(truth[condition] for condition in conditions)])

    def any_of(every: Sequence[Sequence[Condition]]) -> Bool[np.ndarray, " cases"]:
        return np.logical_or.reduce([~always, *map(all_of, every)])

    def shorter() -> Iterator[list[tuple[Condition, ...]]]:
        for place in range(len(found)):
            yield [*found[:place], *found[place + 1 :]]
        for one, other in itertools.combinations(range(len(found)), 2):
            held = any_of([found[one], found[other]])
            shared = tuple(c for c in dict.fromkeys((*found[one], *found[other])) if truth[c][held].all())
            yield [*found[:one], shared, *found[one + 1 : other], *found[other + 1 :]]
        for place, conditions in enumerate(found):
            for gone in conditions:
                yield [*found[:place], tuple(c for c in conditions if c != gone), *found[place + 1 :]]

    wanted = any_of(found)
    while (less := next((some for some in shorter() if np.array_equal(any_of(some), wanted)), None)) is not None:
        found = less
    return tuple(map(joined, found))


def _in_every_case(conditions: Collection[Condition]) -> dict[Condition, Bool[np.ndarray, " cases"]]:
    """Whether each condition holds in the cases that they tell apart; every row there may be is like one of these."""
    columns: dict[str, list[Condition]] = {}
    for condition in conditions:
        columns.setdefault(part_key(condition.column, condition.part), []).append(condition)
    cases = itertools.product(*(_cases(of_column) for of_column in columns.values()))
    values: dict[str, np.ndarray] = {}
    for name, column in zip(columns, zip(*cases, strict=True), strict=True):
        values[name], values[coded(name)] = (np.array(side, dtype=object) for side in zip(*column, strict=True))
    return {condition: condition.holds(values) for condition in conditions}


def _cases(conditions: Sequence[Condition]) -> list[tuple[Any, float]]:
    """Of conditions on one column the values that they tell apart, each with its special code, NaN for none."""
    if conditions[0].kind == "category":
        sets = [frozenset(condition.among) for condition in conditions]
        alike = {tuple(value in one for one in sets): value for some in sets for value in sorted(some)}
        return [(value, math.nan) for value in (alike | {(False,) * len(sets): "\0"}).values()]  # "\0": in no set
    bounds = {bound for c in conditions for bound in (c.above, c.upto) if bound is not None}
    codes = {c.code for c in conditions if c.kind == "code"}
    none = [(math.nan, code) for code in (math.nan, *sorted(codes))]
    return [*none, *((bound, math.nan) for bound in (*sorted(bounds), math.inf))]  # each ends what is told apart


@dataclass(frozen=True)
class Rule:
    """A bit as alternatives of conditions: it is `value` where all conditions of one alternative hold, else not.

    Attributes:
        value: what the alternatives say of the bit.
        alternatives: conjunctions; none: the bit is never `value`; an empty one: it always is.
    """

    value: bool
    alternatives: tuple[tuple[Condition, ...], ...]

    def predict(self, values: Values, rows: int) -> Bool[np.ndarray, " rows"]:
        """Say what the rule says of the bit in each row.

        Args:
            values: from `RawColumns.read`. rows: how many there are.
        """
        found = np.zeros(rows, dtype=bool)
        for conditions in self.alternatives:
            every = np.ones(rows, dtype=bool)
            for condition in conditions:
                every &= condition.holds(values)
            found |= every
        return found if self.value else ~found

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it asks for, in order."""
        return tuple(dict.fromkeys(c.column for conditions in self.alternatives for c in conditions))

    def __str__(self) -> str:
        """In words: "on if carat > 0.71 and color in {D, E}; or carat <= 0.71 and (x > 5 or y > 5)"."""
        word = "on" if self.value else "off"
        if not all(self.alternatives):
            return f"always {word}"
        if not self.alternatives:
            return f"always {'off' if self.value else 'on'}"
        said = []
        for first, group in itertools.groupby(self.alternatives, key=lambda every: every[0]):
            rest = [" and ".join(map(str, every[1:])) for every in group]
            if len(rest) > 1 and all(rest):
                said.append(f"{first} and ({' or '.join(rest)})")
            else:
                said += [f"{first} and {more}" if more else str(first) for more in rest]
        return f"{word} if " + "; or ".join(said)

    def to_json(self) -> dict[str, Any]:
        """Write as plain JSON values."""
        return {"value": int(self.value), "alternatives": [[c.to_json() for c in every] for every in self.alternatives]}


# ---- raw columns ----


@dataclass(frozen=True)
class RawColumn:
    """One raw column that the network reads.

    Attributes:
        name: of the column. kind: how its values are compared.
        values: the distinct values of the training rows, ascending: float64, or object of str ("" for missing).
        learned: how the network reads it.
        absent: whether a training row lacks the value.
        counts: of each category, how many training rows have it; empty of a number or a date.
        ranks: of each category the one number by which the network is told of it; empty where it is told otherwise.
        part: of a date, such as "month": its values are numbers; "" of the date itself.
    """

    name: str
    kind: Literal["number", "date", "category"]
    values: Shaped[np.ndarray, " distinct"]
    learned: Column
    absent: bool = False
    counts: tuple[int, ...] = ()
    ranks: tuple[float, ...] = ()
    part: str = ""

    @property
    def key(self) -> str:
        """Of its values in `Values`."""
        return part_key(self.name, self.part)

    @classmethod
    def learn(cls, column: Column, raw: pd.Series) -> list[RawColumn]:
        """Learn the distinct values of training rows; of a date those of its parts too. column: not a dropped one."""
        found = read(column, raw)
        if column.kind in ("category", "encoded"):
            values, counts = np.unique(found.astype(str), return_counts=True)
            ranks = ()
            if column.kind == "encoded" and len(column.outputs) == 1:
                known = dict(zip(column.categories, column.values, strict=True))
                ranks = tuple(known[value][0] for value in values.tolist())
            absent = bool((found == MISSING).any())
            return [cls(column.name, "category", values.astype(object), column, absent, tuple(counts.tolist()), ranks)]
        absent = bool(np.isnan(found).any())
        distinct = np.unique(found[~np.isnan(found)])
        if column.kind == "number":
            return [cls(column.name, "number", distinct, column, absent)]
        parts = parts_of(column, distinct)
        return [
            cls(column.name, "date", distinct, column, absent),
            *(cls(column.name, "number", np.unique(of), column, absent, part=part) for part, of in parts.items()),
        ]

    @property
    def codes(self) -> tuple[float, ...]:
        """Numbers that say why a value is missing."""
        return self.learned.codes

    def bound(self, left: int, right: int) -> float:
        """Find the roundest bound that parts two places in `values`: at most it on the left, above it on the right."""
        low, high = float(self.values[left]), float(self.values[right])
        if self.kind == "number":
            return roundest(low, high)
        return float(math.ceil(low)) if math.ceil(low) < high else low  # whole days


def roundest(low: float, high: float) -> float:
    """Find the number with the fewest digits in low <= number < high, of those the one nearest to the middle.

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
        used = [column for column in preprocessor.columns if column.kind != "dropped"]
        return cls(tuple(one for column in used for one in RawColumn.learn(column, rows[column.name])))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the table, each once."""
        return tuple(dict.fromkeys(column.name for column in self.columns))

    def read(self, rows: pd.DataFrame) -> Values:
        """Read the values of raw rows, as `Condition.holds` takes them; the columns are there."""
        values: dict[str, np.ndarray] = {}
        rows = named(rows, self.names)
        for column in self.columns:
            if column.part:
                continue  # made with its date
            raw = rows[column.name]
            values[column.name] = read(column.learned, raw)
            if column.kind == "date":
                found = parts_of(column.learned, values[column.name])
                values |= {part_key(column.name, part): of for part, of in found.items()}
            if column.codes:
                values[coded(column.name)] = read_values(column.learned, raw)
        return values

    def encode(self, values: Values) -> Encoded:
        """Training rows as the inputs of a tree."""
        blocks, names = [], []
        for column in self.columns:
            found = values[column.key]
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
        self,
        said: Bool[np.ndarray, " rows"] | Float64[np.ndarray, " rows"],
        rows: Int64[np.ndarray, " some"],
        weights: Float64[np.ndarray, " rows"] | None = None,
    ) -> tuple[Float32[np.ndarray, "rows inputs"], dict[int, Int64[np.ndarray, " categories"]]]:
        """The inputs with categories in an order: that of the number by which the network is told of them, else that of
        the mean of `said` in them; for one bit, or one number, this loses no split.

        A category of few rows is drawn towards the mean of all, see `PRIOR`.

        Args:
            said: of all rows a bit or a number. rows: those that the order is learned from. weights: of all rows.

        Returns:
            the inputs of all rows, and by input the categories in their order.
        """
        inputs, orders = self.inputs.copy(), {}
        of, known = (np.ones(len(said)) if weights is None else weights)[rows], said[rows]
        for place, (column, code) in enumerate(self.names):
            if column.kind != "category" or code is not None:
                continue
            at = self.inputs[:, place].astype(np.int64)
            if column.ranks:
                order = np.argsort(column.ranks, kind="stable")
                inputs[:, place], orders[place] = np.argsort(order)[at], order
                continue
            count = np.bincount(at[rows], of, len(column.values))
            total = np.bincount(at[rows], of * known, len(column.values))
            usual = float(np.average(known, weights=of))
            mean: Float64[np.ndarray, " categories"] = (total + PRIOR * usual) / (count + PRIOR)
            order = np.argsort(mean, kind="stable")
            rank = np.empty(len(order), np.int64)
            rank[order] = np.arange(len(order))
            inputs[:, place], orders[place] = rank[at], order
        return inputs, orders


def sides(
    column: RawColumn, code: float | None, between: tuple[int, int], missing_left: bool, order: Sequence[int] | None
) -> tuple[Condition, Condition]:
    """Make the two conditions of a split of a tree: where it goes left, and where it goes right.

    Args:
        column, code: of the input. between: the last place that goes left and the first that goes right, of the rows
            that the split parts. missing_left: where rows without a value go.
        order: the categories in their order, None of a number.
    """
    if code is not None:
        return Condition(column.name, "code", code=code, negated=True), Condition(column.name, "code", code=code)
    if order is not None:
        cut = (between[0] + between[1]) // 2 + 1
        left, right = (_named(column, part) for part in (order[:cut], order[cut:]))
        few, many = (left, False) if len(left) <= len(right) else (right, True)
        one = Condition(column.name, "category", among=few, negated=many)
        other = Condition(column.name, "category", among=few, negated=not many)
        if len(column.values) != 2:
            return one, other
        names = (_is(column, part) for part in (left, right))
        return tuple(replace(c, says=n) for c, n in zip((one, other), names, strict=True))  # pyright: ignore
    kind, bound = ("date" if column.kind == "date" else "number"), column.bound(*between)
    one = Condition(column.name, kind, upto=bound, missing=missing_left, some_missing=column.absent, part=column.part)
    other = replace(one, upto=None, above=bound, missing=not missing_left)
    if len(column.values) == 2 and kind == "number" and not column.part:
        low, high = (f"{column.name} is {value:.10g}" for value in column.values.tolist())
        return replace(one, says=low), replace(other, says=high)
    return one, other


def _is(column: RawColumn, names: Sequence[str]) -> str:
    return f"{column.name} is {names[0] or 'missing'}"


def _named(column: RawColumn, chosen: Sequence[int]) -> tuple[str, ...]:
    """Categories by name; where they are too many to be shown the most frequent first."""
    if len(chosen) <= SHOWN:
        return tuple(sorted(column.values[list(chosen)]))
    return tuple(column.values[sorted(chosen, key=lambda place: -column.counts[place])])


def parts_of(column: Column, days: Float64[np.ndarray, " dates"]) -> dict[str, Float64[np.ndarray, " dates"]]:
    """The parts of dates of which a network is told, but those that rise with the date itself: year, elapsed days.

    Args:
        column: of dates. days: since 1970, NaN where missing.
    """
    chosen = [part for part in column.outputs if part not in ("year", "elapsed days")]
    if not chosen:
        return {}
    moments = np.round(np.where(np.isnan(days), 0, days) * dates.DAY).astype(np.int64).astype("datetime64[us]")
    moments[np.isnan(days)] = np.datetime64("NaT")
    found = dates.numbers(moments, np.datetime64(0, "us"))
    return {part: found[part] for part in chosen}


def read(column: Column, raw: pd.Series) -> Shaped[np.ndarray, " rows"]:
    """Raw values as a network reads them: spellings of one category are one, rare and new ones are `RARE` where they
    share an input, dates are read in the order of the training.

    Args:
        column: not a dropped one. raw: any dtype, [rows].
    Returns:
        object of str, "" where missing; float64 of a number or a date (days since 1970), NaN where missing or a code.
    Raises:
        DataError: a text that is no number or no date.
    """
    values = read_values(column, raw)
    if column.kind in ("category", "encoded"):
        at = places(column, values)
        names = np.array([*column.categories, RARE], dtype=object)[at]  # -1 is the last
        return names if column.other else np.where(at < 0, values, names)
    if column.kind == "date":
        days = values.astype("datetime64[us]").astype(np.int64) / dates.DAY
        return np.where(np.isnat(values), np.nan, days)
    return np.where(np.isin(values, column.codes), np.nan, values) if column.codes else values
