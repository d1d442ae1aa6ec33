"""A readable run as it stands: its steps and rules in words, what each adds to a row, and the run with a step changed.

All numbers are points, integers times one power of two. The words are the model: `Reading.points` computes by them.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import safetensors.torch
import torch
from jaxtyping import Bool, Int64

from htaf.data import dates
from htaf.data.preprocess import spelled
from htaf.data.tabular import Table, frame_like
from htaf.models.mlp import MLP, Leaves, Thermometer
from htaf.program.integer.program import Input
from htaf.program.integer.raw import prepared_column
from htaf.program.packed.graph import on_powers
from htaf.tables.inspection import Fitted, InspectionError, own_table, table_of
from htaf.training.additive import OUT_OF_FOLD, shortest
from htaf.training.runs import Run, content_hash
from htaf.training.runs.folder import HASHED, MODEL
from htaf.training.runs.packing import inputs_of, values_of
from htaf.training.runs.run import rows_are_known

SHOWN = 6  # texts of a group that are named
WORDS = ("missing", "another value")  # of a list of texts; the other values were not seen in training
MOST = 2**20  # points of a level: sums stay exact in every form


@dataclass(frozen=True)
class Condition:
    """A bit in words. said, given: its input, see `htaf.training.runs.packing.inputs_of`. least: from which integer of
    it on the bit is 1. number: the same, in the unit of a number or a part of a date. texts: for which it is 1, of
    others."""

    said: dict[str, Any]
    given: Input
    least: int
    number: float = 0.0
    texts: frozenset[str] = frozenset()

    def text(self, holds: bool = True) -> str:
        kind, column = self.said["kind"], self.said["column"]
        if kind in ("number", "date"):
            part = f": {self.said['part']}" if kind == "date" else ""
            return f"{column}{part} {'>=' if holds else '<'} {self.number:.15g}"
        if kind in ("missing", "code"):
            what = "missing" if kind == "missing" else f"{self.said['code']:g}"
            return f"{column} is{'' if holds else ' not'} {what}"
        names = listed([*self.texts])
        if kind == "other":
            return f"{column} is {'none' if holds else 'one'} of {names}"
        return f"{column} is {'' if holds else 'not '}{names if len(self.texts) == 1 else f'one of {names}'}"

    def holds(self, v: np.ndarray) -> Bool[np.ndarray, " rows"]:
        """For values of the raw column, as `htaf.training.runs.packing.values_of` reads them; a number counts as the
        nearest multiple of about a millionth of its range."""
        return prepared_column(self.said, v, self.given) >= self.least


def listed(texts: Sequence[str], other: bool = False) -> str:
    """Name texts, those in quotes that would be misread; other: and those not seen in training."""
    shown = [json.dumps(t, ensure_ascii=False) if "," in t or t in WORDS else t or "missing" for t in sorted(texts)]
    more = [f"{len(texts) - SHOWN:,} more"] * (len(texts) > SHOWN)
    return " and ".join([", ".join([*shown[:SHOWN], *[WORDS[1]] * other]), *more])


@dataclass(frozen=True)
class Level:
    """What a term adds: points of each output, for the rows with such bits. end: where it begins, of a number."""

    text: str
    points: tuple[int, ...]
    bits: tuple[bool, ...]
    end: float | None = None


@dataclass(frozen=True)
class Term:
    """A column with its levels, one of which every row has; or a rule. places: of its bits, or of the rule."""

    name: str
    places: tuple[int, ...]
    levels: tuple[Level, ...]
    rule: bool = False

    @property
    def steps(self) -> int:
        """How many numbers it holds: levels with other points, but one."""
        return len({level.points for level in self.levels}) - (not self.rule)


class Reading:
    """What a readable run says.

    Attributes:
        unit: what a point is worth: of a logit, or of the standard deviation of the target.
        bias: points of each output of a row with no bit. outputs: names, of two classes the second alone.

    Raises:
        InspectionError: another run.
    """

    def __init__(self, model: Run | Fitted) -> None:
        self.run, self.known = table_of(model)
        if not self.run.is_readable:
            raise InspectionError(f"expected a run of the recipe readable, got {self.run.path} with hidden layers")
        net = self.run.model()
        assert isinstance(net, MLP)
        assert isinstance(net.thermometer, Thermometer)
        self.net, target = net, self.known.target
        leaves = [] if net.leaves is None else [net.leaves.head.weight]
        every = torch.cat([net.head.weight, net.head.bias[:, None], *leaves], 1).detach()
        whole, unit = on_powers(every.reshape(1, -1))
        whole = whole.reshape(every.shape).numpy().astype(np.int64)
        one = len(target.classes or ()) == 2
        self.unit, self.whole, bits = float(unit), whole[1:] if one else whole, net.head.in_features
        self.outputs = (target.name,) if not target.classes else target.classes[1:] if one else target.classes
        self.weights, self.bias, self.of_rules = self.whole[:, :bits], self.whole[:, bits], self.whole[:, bits + 1 :]
        given = Input("columns", (net.columns.limit,), -net.columns.limit, net.columns.limit, net.columns.exponent)
        self.inputs = inputs_of(self.known, given)
        read = zip(net.thermometer.column.tolist(), net.thermometer.threshold.tolist(), strict=True)
        self.conditions = [condition_of(self.inputs[j], t, given) for j, t in read]
        ands = net.leaves.linear.weight.detach().int().tolist() if isinstance(net.leaves, Leaves) else []
        self.rules = [[(i, w > 0) for i, w in enumerate(row) if w] for row in ands]

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """Columns in the order of the table, then rules."""
        found = list[Term]()
        names = dict.fromkeys(self._name(one.said) for one in self.conditions)
        for name in names:
            places = [i for i, one in enumerate(self.conditions) if self._name(one.said) == name]
            levels = [*self._levels(places)]
            if any(level.points != levels[0].points for level in levels):
                found.append(Term(name, tuple(places), tuple(levels)))
        for place, rule in enumerate(self.rules):
            text = " and ".join(self.conditions[i].text(on) for i, on in rule)
            level = Level(text, tuple(self.of_rules[:, place].tolist()), ())
            found.append(Term(" x ".join(dict.fromkeys(self.conditions[i].said["column"] for i, _ in rule)),
                              (place,), (level,), rule=True))  # fmt: skip
        return tuple(found)

    @property
    def count(self) -> int:
        """Of the terms: columns, and pairs of columns that have rules."""
        return len({(term.name, term.rule) for term in self.terms if not term.rule or " x " in term.name})

    @staticmethod
    def _name(said: dict[str, Any]) -> str:
        return f"{said['column']}: {said['part']}" if said["kind"] == "date" else said["column"]

    def _levels(self, places: list[int]) -> list[Level]:
        ordered = [i for i in places if self.conditions[i].said["kind"] in ("number", "date")]
        flags = [i for i in places if self.conditions[i].said["kind"] in ("missing", "code")]
        if not ordered and not flags:
            return self._groups(places)
        ends, off = [self.conditions[i].number for i in ordered], [False] * len(flags)
        texts = [f"below {ends[0]:.15g}"] if ends else ["a value"]
        texts += [f"{a:.15g} to below {b:.15g}" for a, b in pairwise(ends)]
        texts += [f"from {ends[-1]:.15g}"] if ends else []
        found = [
            self._level(places, text, [k < n for k in range(len(ordered))] + off, end)
            for n, (text, end) in enumerate(zip(texts, [None, *ends], strict=True))
        ]
        fill = [end <= self._filled(ordered) for end in ends]
        for at, i in enumerate(flags):
            text = self.conditions[i].text().rpartition(" is ")[2]
            found.append(self._level(places, text, fill + [k == at for k in range(len(flags))], None))
        return found

    def _filled(self, ordered: list[int]) -> float:
        said = self.conditions[ordered[0]].said if ordered else {"kind": "number", "fill": 0.0}
        if said["kind"] == "number":
            return said["fill"]
        moment = np.array([said["fill"]], "datetime64[us]")
        return float(dates.numbers(moment, np.datetime64(said["first"], "us"))[said["part"]][0])

    def _groups(self, places: list[int]) -> list[Level]:
        """Texts that are alike to the model."""
        own = [one for one in self.inputs if one["column"] == self.conditions[places[0]].said["column"]]
        texts = dict.fromkeys(
            text for one in own for text in one.get("values", one.get("texts", [one.get("text", "")]))
        )
        v = np.array([*map(spelled, texts), "\0"], object)
        bits = np.stack([self.conditions[i].holds(v) for i in places], 1)
        alike, other = dict[tuple[bool, ...], list[str]](), tuple(bits[-1].tolist())
        for text, row in zip(texts, bits[:-1].tolist(), strict=True):
            alike.setdefault(tuple(row), []).append(text)
        alike.setdefault(other, [])
        return [self._level(places, listed(names, row == other), row, None) for row, names in alike.items()]

    def _level(self, places: list[int], text: str, bits: Sequence[bool], end: float | None) -> Level:
        points = self.weights[:, places] @ np.array(bits, np.int64)
        return Level(text, tuple(points.tolist()), tuple(bits), end)

    def __repr__(self) -> str:
        """Write the card: the points of each output of every row, and of all levels and rules."""
        rows = [("", tuple(self.bias.tolist()), "every row")]
        rows += [(one.name, level.points, level.text) for one in self.terms for level in one.levels]
        lines = [f"points of {', '.join(self.outputs)}"]
        for (before, *_), (name, points, text) in pairwise([("", (), ""), *rows]):
            lines += [name] * (name != before) + ["".join(f"{one:+8,}" for one in points) + f"  {text}"]
        return "\n".join(lines)

    def bits(self, rows: pd.DataFrame) -> Bool[np.ndarray, "rows bits"]:
        """The conditions of raw rows."""
        raw = values_of(self.inputs, rows)
        return np.stack([one.holds(raw[one.said["column"]]) for one in self.conditions], 1)

    def _held(self, term: Term, bits: Bool[np.ndarray, "rows bits"]) -> Bool[np.ndarray, "rows levels"]:
        """Which level of a term each row has."""
        if not term.rule:
            return (bits[:, None, term.places] == np.array([level.bits for level in term.levels])).all(2)
        return np.all([bits[:, i] == on for i, on in self.rules[term.places[0]]], axis=0)[:, None]

    def points(self, rows: pd.DataFrame, output: int = 0) -> pd.DataFrame:
        """What each term adds to raw rows, by their words: a column a term, then "bias"; their sum is the score."""
        bits, found = self.bits(rows), dict[str, Int64[np.ndarray, " rows"]]()
        for term in self.terms:
            adds = self._held(term, bits) @ np.array([level.points[output] for level in term.levels])
            found[term.name] = found.get(term.name, 0) + adds
        # what belongs to no term is the same for every row
        found["bias"] = found.get("bias", 0) + np.full(len(rows), self.bias[output])
        return pd.DataFrame(found, index=rows.index)

    def shares(self, rows: pd.DataFrame) -> list[list[float]]:
        """Of these rows the share of each level of each term."""
        bits = self.bits(rows)
        return [self._held(term, bits).mean(0).tolist() for term in self.terms]


def condition_of(
    said: dict[str, Any],
    threshold: float,
    given: Input,
    near: Sequence[float] = (-0.499, 0, 0.499),
    *,
    whole: bool = False,
) -> Condition:
    """Say which raw values have a bit, by its input, see `Condition`, and its threshold as the network has it.

    near: where its number may be, in units of the network around the threshold; by default where this one reads it as
    the threshold. The values that are rounded up to the threshold begin at -0.5. whole: the column has whole numbers
        alone; then it is the least of them that has the bit, as of parts of a date that are whole.
    """
    unit = 2.0**-given.exponent
    least = math.ceil(threshold / unit)
    if said["kind"] in ("number", "date"):
        span = said["high"] - said["low"]
        ends = (said["low"] + (least + off) * unit * span for off in near)
        number = shortest(*ends)
        if whole or said.get("part") in ("year", "month", "weekday", "day of year"):
            some = math.ceil(number) + np.arange(-1.0, 2.0)
            first = int(np.argmax(prepared_column({**said, "codes": ()}, some, given) >= least))
            number = float(some[first]) if first else number  # 0: a range so wide that the bit does not tell them apart
        return Condition(said, given, least, number)
    if said["kind"] == "encoded":
        return Condition(said, given, least, texts=frozenset(t for t, v in said["values"].items() if v >= least))
    return Condition(said, given, least, texts=frozenset(said.get("texts", [said.get("text", "")])))


@dataclass(frozen=True)
class Edited:
    """A run with a step changed, in memory (`run.save`), and the figures of a part before and after. Its record has the
    figures of all parts that could be measured again; those out of fold are gone."""

    run: Run
    part: str
    before: dict[str, Any]
    after: dict[str, Any]


def edit(
    model: Run | Fitted, column: str, level: str, points: int, data: Table | pd.DataFrame | None = None, output: int = 0
) -> Edited:
    """Give a level of a column other points; all other levels stay.

    Args:
        model: a readable run, or a fitted estimator. level: its text, as `Term.levels` and the report have it. points:
            the new ones. data: the run's table, or a data frame with the target, all rows of which are measured; None:
            `run.data()`. output: which class, of more than two.

    Raises:
        InspectionError: no such column, level or output; a level of categories that shares its bits with others; points
            that are no whole number, or out of range.
    """
    reading = Reading(model)
    if not isinstance(points, numbers.Integral) or isinstance(points, bool) or abs(points) > MOST:
        raise InspectionError(f"points: expected a whole number in -{MOST:,} to {MOST:,}, got {points!r}")
    if not isinstance(output, numbers.Integral) or not 0 <= output < len(reading.outputs):
        named = ", ".join(f"{k} ({name})" for k, name in enumerate(reading.outputs))
        raise InspectionError(f"output: expected one of {named}, got {output!r}")
    columns = {one.name: one for one in reading.terms if not one.rule}
    if column not in columns:
        hint = "; rules are not edited: train with pairs=0" if any(one.name == column for one in reading.terms) else ""
        raise InspectionError(f"expected one of the columns {', '.join(columns)}, got {column!r}{hint}")
    term, texts = columns[column], [one.text for one in columns[column].levels]
    if level not in texts:
        raise InspectionError(f"expected one of the levels {texts}, got {level!r}")
    found = texts.index(level)
    net, by = copy.deepcopy(reading.net), points - term.levels[found].points[output]
    wanted = np.array([one.points[output] + by * (place == found) for place, one in enumerate(term.levels)])
    bits = np.array([[*one.bits, True] for one in term.levels], float)  # the last one goes to the bias
    change, *_ = np.linalg.lstsq(bits, wanted - [one.points[output] for one in term.levels])
    change = np.rint(change).astype(np.int64)
    if (bits @ change != wanted - [one.points[output] for one in term.levels]).any():
        raise InspectionError(f"{level!r} has no bits of its own: change a level beside it")
    row = len(net.head.weight) - len(reading.outputs) + output
    with torch.no_grad():
        net.head.weight[row, [*term.places]] += torch.from_numpy(change[:-1] * reading.unit).float()
        net.head.bias[row] += float(change[-1] * reading.unit)
    about = {"column": column, "level": level, "points": int(points), "output": int(output)}
    return _measured(reading, net, about, data)


def _measured(reading: Reading, net: MLP, about: dict[str, Any], data: Table | pd.DataFrame | None) -> Edited:
    """The run with this network, measured again; figures out of fold go, as the network is not fitted again."""
    old = reading.run.in_memory()
    assert old.held is not None
    weights = safetensors.torch.save({k: v.detach().contiguous() for k, v in net.state_dict().items()})
    edits = [*old.record.get("edits", []), about]
    record = {**old.record, "edits": edits, HASHED[MODEL]: hashlib.sha256(weights).hexdigest()}
    record["notes"] = [note for note in record["notes"] if note != OUT_OF_FOLD]
    record["key"] = content_hash({"key": old.record["key"], "edits": edits})
    new = Run(Path("in memory"), record, old.step, {**old.held, MODEL: weights})
    frame = isinstance(data, pd.DataFrame)
    table = frame_like(data, target=reading.known.target) if frame else own_table(reading.run, data)
    parts = ["all"] if frame or not rows_are_known(old) else [*old.record["metrics"]["smooth"]] or ["validation"]
    found = {part: [one.evaluate(part, table)["smooth"] for one in (old, new)] for part in parts}  # pyright: ignore
    kept = {part: after for part, (_, after) in found.items() if part not in ("all", "validation")}
    record["metrics"] = {kind: of and kept for kind, of in old.record["metrics"].items()}
    part = "test" if "test" in found else parts[-1]
    return Edited(new, part, *found[part])
