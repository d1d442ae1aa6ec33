"""Rules over raw columns: conditions, their words, and whether rows meet them."""

from __future__ import annotations

import calendar
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Bool, Shaped

SHOWN = 6  # categories of a set in words; JSON has all
NAMES = {"month": ("", *calendar.month_name[1:]), "weekday": tuple(calendar.day_name)}  # of parts of dates, by number
Values = Mapping[str, Shaped[np.ndarray, " rows"]]  # of raw columns: float64 (NaN: missing) or object of str


@dataclass(frozen=True)
class Condition:
    """One condition on one raw column.

    Of a number or a date (in days since 1970): above < value <= upto, None for no bound. Of a category: value is one of
    `among`, as the network reads it (`htaf.rules.raw_columns.read`). Of a special code of a number column: value is
    `code`. "missing": there is no value, or a special code. `negated` turns the last three around. A category that no
    training row has is in no set.

    Attributes:
        column: its name. kind: what is asked of it.
        part: of a date, such as "month", of which a number is asked; "" of the value itself.
        says: of a column with two values in training, plainer words: "trt is 2" for "trt > 1"; "" elsewhere.
        missing: of a number: whether rows without a value meet the condition.
        told: whether training rows lack the value, so that the words must say what holds for them.
    """

    column: str
    kind: Literal["number", "date", "category", "code", "missing"]
    above: float | None = None
    upto: float | None = None
    among: tuple[str, ...] = ()
    code: float = 0.0
    negated: bool = False
    missing: bool = False
    told: bool = False
    part: str = ""
    says: str = field(default="", compare=False)

    def holds(self, values: Values) -> Bool[np.ndarray, " rows"]:
        """Which rows meet the condition.

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
        return f"({said} or missing)" if self.missing and self.told else said

    def _shown(self, bound: float) -> str:
        if self.part in NAMES and float(bound).is_integer() and 0 <= bound < len(NAMES[self.part]):
            return NAMES[self.part][int(bound)] or "0"
        if self.kind == "number":
            return f"{bound:.10g}"
        moment = pd.Timestamp(0) + pd.Timedelta(days=bound)
        return str(moment.date()) if moment == moment.normalize() else str(moment.floor("s"))

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values, with the fields of its kind alone."""
        common = {"column": self.column, "kind": self.kind} | ({"part": self.part} if self.part else {})
        if self.kind == "category":
            return common | {"among": list(self.among), "negated": self.negated}
        if self.kind == "code":
            return common | {"code": self.code, "negated": self.negated}
        if self.kind == "missing":
            return common | {"negated": self.negated}
        return common | {"above": self.above, "upto": self.upto, "missing": self.missing}


def coded(column: str) -> str:
    """The key of `Values` under which a number column stands with its special codes as numbers."""
    return f"{column}\0"


def part_key(column: str, part: str) -> str:
    """The key of `Values` under which a part of a date stands; of no part the column's own."""
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
    """The same conjunction with as few conditions as can be, in the order of the first on each column."""
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
        """What the rule says of the bit in each row.

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
        """As plain JSON values."""
        return {"value": int(self.value), "alternatives": [[c.to_json() for c in every] for every in self.alternatives]}
