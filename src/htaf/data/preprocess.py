"""Turns raw rows into the float32 inputs of a network, by rules learned from the training part only."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float32, Float64, Int64, Shaped

from htaf._ground.errors import listed, suggestion
from htaf.data import dates, stored
from htaf.data.columns import (
    KEYS,
    MOST_CELLS,
    OTHER,
    Column,
    Target,
    cross_fitted,
    encoding_outputs,
    learn_column,
    learn_target,
    places,
    read_column,
    read_target,
    read_values,
    truth_as_numbers,
)
from htaf.data.notes import MOST_NAMED, OF_COLUMNS, Note, lists, to_record
from htaf.data.numerals import Separators
from htaf.data.reading import (
    DataError,
    Frame,
    TableError,
    named,
    refuse_shifted,
    to_number,
    without_names,
)

FORMAT, VERSION = "htaf-tabular", 7
BLOCKS = ("number", "code", "missing", "date", "encoded", "category")  # of the inputs, in order


def _made_of(column: Column, block: str) -> list[str]:
    """Return names of the inputs that a column makes in one of the `BLOCKS`."""
    if block == "code":
        return [f"{column.name} is {code:g}" for code in column.codes]
    if block == "missing":
        return [f"{column.name} is missing"] * column.missing
    if column.kind != block:
        return []
    if block == "number":
        return [column.name] * (column.high > column.low)
    if block == "category":
        shown = [*(category or "missing" for category in column.categories), *[OTHER] * column.other]
        return [f"{column.name}={category}" for category in shown]
    return [f"{column.name}: {output}" for output in column.outputs]


class Preprocessor:
    """Min-max for numbers and parts of dates, one-hot for few categories, means of the target for many.

    It is learned once and kept as plain JSON. Inputs are made from the learned `columns`, in training and after loading
    alike, so a round trip through JSON changes no bit; they are those of scikit-learn's SimpleImputer, MinMaxScaler,
    OneHotEncoder and TargetEncoder, which reading a run need not import. They come in this order: numbers, special
    codes, missing values, dates, encoded columns, one-hot. Numbers are not clipped: a value outside the training range
    falls outside [0, 1]. `calendar` holds the places of the parts of dates that have few values: all but hour and
    elapsed days.

    Args:
        columns: one entry a raw column, in order.
        target: the target side.
        special_codes: numbers that stand for a reason why the value is missing.
        notes: what was handled while fitting.
        ids: columns that name the rows and are no inputs; predictions have them beside.
        separators: of thousands and decimals in the file of the training, see `htaf.data.table_files.read_frame`.
    Raises:
        DataError: no column gives an input.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        target: Target,
        special_codes: Sequence[float] = (),
        notes: Sequence[Note] = (),
        ids: Sequence[str] = (),
        separators: str = "",
    ) -> None:
        self.columns = tuple(columns)
        self.target = target
        self.special_codes = tuple(special_codes)
        self.notes = tuple(notes)
        self.ids = tuple(ids)
        self.separators = separators
        names: list[str] = []
        self._inputs: dict[tuple[str, str], range] = {}  # of a column in a block
        for block in BLOCKS:
            for column in self.columns:
                made = _made_of(column, block)
                self._inputs[column.name, block] = range(len(names), len(names) + len(made))
                names += made
        self.feature_names = tuple(names)
        dated = (zip(c.outputs, self._inputs[c.name, "date"], strict=True) for c in self.columns if c.kind == "date")
        self.calendar = tuple(place for column in dated for part, place in column if part not in ("hour", dates.DAYS))
        if not self.feature_names:
            raise DataError("expected at least one column that varies in the training part, got none")

    @classmethod
    def fit(
        cls,
        features: pd.DataFrame,
        target: Float64[np.ndarray, " rows"] | Int64[np.ndarray, " rows"],
        *,
        task: Literal["regression", "classification"],
        target_name: str = "target",
        classes: Sequence[str] = (),
        special_codes: Sequence[float] = (),
        orders: Mapping[str, str] | None = None,
        units: Mapping[str, str] | None = None,
        ids: Sequence[str] = (),
        rows: Int64[np.ndarray, " part"] | None = None,
        weights: Float64[np.ndarray, " rows"] | None = None,
        separators: str = "",
    ) -> "Preprocessor":
        """Learn ranges, medians, categories and the target's mean from the training rows.

        Args:
            features: training rows, [rows, columns]; number columns are scaled, columns of a date dtype are taken
                apart, all others are categories.
            target: float64 [rows] in original units for regression, int64 [rows] class codes for
                classification.
            task: "regression" or "classification".
            target_name: for reports.
            classes: class names in code order, for classification.
            special_codes: numbers that mean "missing for this reason"; each that occurs in a column
                becomes one 0/1 input, and the value counts as missing.
            orders: how raw rows write the dates of a column, one of `htaf.data.dates.ORDERS`; else year first.
            units: in which raw rows write the numbers of a column or of the target, see `htaf.data.numerals.unit_of`;
                else none.
            ids: names of columns that predictions have beside.
            rows: int64 [part], the training rows among `features`, taken a column at a time; None: all.
            weights: float64 [rows], > 0, of the target's mean and deviation; what is learned of the columns counts
                every row once.
            separators: as of the class.
        Returns:
            the fitted preprocessor.
        Raises:
            DataError: infinite values, a range beyond float64, a constant target, nothing to learn from.
        """
        count = len(features) if rows is None else len(rows)
        if count != len(target) or not len(target):
            raise DataError(f"expected as many rows as targets, got {count} and {len(target)}")
        if len({str(name) for name in features.columns}) != features.shape[1]:
            raise DataError(f"expected distinct column names, got {listed([*map(str, features.columns)])}")
        target, notes = np.asarray(target), list[Note]()
        learned = learn_target(target, task, target_name, tuple(classes), notes, weights)
        learned = replace(learned, unit=(units or {}).get(target_name, ""))
        wanted = encoding_outputs(target, learned)
        columns = [
            learn_column(
                _taken(column, rows),
                name,
                special_codes,
                notes,
                wanted,
                (orders or {}).get(name, ""),
                (units or {}).get(name, ""),
            )
            for name, column in ((str(name), column) for name, column in features.items())
        ]
        codes = tuple(float(code) for code in special_codes)
        return cls(columns, learned, codes, _in_order(notes), ids, separators)

    def transform(
        self,
        features: Frame,
        rows: Int64[np.ndarray, " part"] | None = None,
        *,
        trained: Float64[np.ndarray, " rows"] | Int64[np.ndarray, " rows"] | None = None,
    ) -> Float32[np.ndarray, "rows columns"]:
        """Turn raw rows into network inputs; columns are found by name, in any order.

        Missing numbers and dates take the training median. Categories not seen in training give the input of the
        rare ones, where there is one, else zeros; of an encoded column the target's mean. Columns that were not
        trained on are ignored. `transform_with_notes` says where. Encoded columns of the rows that it was fitted on
        are cross-fitted, so that no row is encoded by its own target; the same rows give the same bits.

        Args:
            features: raw rows of any dtypes, [rows, raw columns], of pandas, Polars or pyarrow.
            rows: int64 [part], those that are wanted, taken a column at a time; None: all.
            trained: the target of the wanted rows, as `fit` was given it, where they are those that it was fitted on.
        Returns:
            float32 [rows, len(feature_names)].
        Raises:
            DataError: a missing or repeated column; text, an infinite value or one beyond float32 in a
                number column.
        """
        return self.transform_with_notes(features, rows, trained=trained)[0]

    def named(self, rows: Frame) -> pd.DataFrame:
        """Return raw rows of pandas whose columns have the names that are known here: as they are, else as
        `reading.named` makes them."""
        return named(rows, [*(column.name for column in self.columns), *self.ids, self.target.name])

    def without_texts(self, rows: Frame) -> tuple[pd.DataFrame, list[Note]]:
        """Return raw rows in which a text that is no number, or no date, is missing in columns of numbers or dates.

        Returns:
            the rows, with their columns named as here, and a note of each column in which there was one.
        """
        made, notes = self.named(rows), list[Note]()
        for column in self.columns:
            if column.kind not in ("number", "date") or [*made.columns].count(column.name) != 1:
                continue
            raw = truth_as_numbers(column, made[column.name])
            wrong = dates.parsed(raw, column.order)[1] if column.kind == "date" else to_number(raw, column.unit)[1]
            if wrong.any():
                texts = tuple(dict.fromkeys(map(str, raw[wrong])))[:MOST_NAMED]
                notes.append(Note("text as missing", column.name, int(wrong.sum()), texts))
                made = made.assign(**{column.name: raw.astype(object).mask(wrong, None)})
        return made, notes

    def transform_with_notes(
        self,
        features: Frame,
        rows: Int64[np.ndarray, " part"] | None = None,
        *,
        trained: Float64[np.ndarray, " rows"] | Int64[np.ndarray, " rows"] | None = None,
    ) -> tuple[Float32[np.ndarray, "rows columns"], list[Note]]:
        """As `transform`, with notes of ignored columns, and of each column with missing values, values outside the
        range of training or categories not seen in it. Args, raises: as there."""
        features = self.named(features)
        refuse_shifted("", features)
        known = {*(column.name for column in self.columns), *self.ids}
        present = features.columns.tolist()
        times = Counter(present)
        wanted = [column for column in self.columns if column.kind != "dropped"]
        absent = [column.name for column in wanted if column.name not in times]
        if absent:
            hint = without_names(present) if len(absent) == len(wanted) else ""
            near = suggestion(absent[0], [name for name in present if name not in known])
            raise DataError(f"expected the columns {listed(absent)} too, got only {listed(present)}{near}{hint}")
        doubled = [column.name for column in wanted if times[column.name] > 1]
        if doubled:
            raise DataError(f"expected each column once, got {listed(doubled)} more than once")
        notes: list[Note] = []
        extra = [name for name in present if name not in known and name != self.target.name]
        if extra:
            notes.append(Note("ignored", values=tuple(extra)))
        if self.target.name in present and self.target.name not in known:
            notes.append(Note("ignored target", self.target.name))
        inputs = np.zeros((len(features) if rows is None else len(rows), len(self.feature_names)), dtype=np.float32)
        if not len(inputs):
            return inputs, notes
        cross = None if trained is None else encoding_outputs(trained, self.target)[1]
        with np.errstate(over="ignore"):  # an overflow is reported below, by column and row
            for column in wanted:
                raw = _taken(features[column.name], rows)
                values, at = read_values(column, raw), self._inputs[column.name, column.kind].start
                _note_without_zone(column, raw, notes)
                for place in self._inputs[column.name, "missing"]:
                    inputs[:, place] = pd.isna(values)
                if column.kind == "category":
                    found = _one_hot(column, values, notes)
                    inputs[np.flatnonzero(found >= 0), at + found[found >= 0]] = 1
                elif column.kind == "number":
                    places = [*self._inputs[column.name, "number"], *self._inputs[column.name, "code"]]
                    for place, made in zip(places, self._number(column, values, notes), strict=True):
                        inputs[:, place] = made
                else:
                    dated = column.kind == "date"
                    parts = _date(column, values, notes) if dated else _encoded(column, values, notes, cross)
                    for place, made in enumerate(parts, start=at):
                        inputs[:, place] = made
        if not np.isfinite(inputs.sum(0, dtype=np.float64)).all():
            row, place = np.argwhere(~np.isfinite(inputs))[0]
            row = row if rows is None else rows[row]
            raise TableError(
                "the value is too far outside the training range for float32", self.feature_names[place], int(row) + 1
            )
        return inputs, _in_order(notes)

    def spans(self) -> list[tuple[int, float]]:
        """Return the place of each input that is a number, and by how much the number grows from 0 to 1."""
        numbers = ((self._inputs[column.name, "number"], column) for column in self.columns if column.kind == "number")
        return [(place, column.high - column.low) for places, column in numbers for place in places]

    def inputs_of(self, name: str) -> Int64[np.ndarray, " inputs"]:
        """Return which inputs of a network a raw column makes, by place in `feature_names`; none of a dropped one."""
        return np.array([place for block in BLOCKS for place in self._inputs[name, block]], dtype=np.int64)

    def _number(
        self, column: Column, values: Float64[np.ndarray, " rows"], notes: list[Note]
    ) -> list[Float64[np.ndarray, " rows"]]:
        """Return the scaled column, if it varied in training, then a column for each code."""
        codes = [(values == c).astype(np.float64) for c in column.codes]
        if not column.high > column.low:
            if column.missing:  # a flag: 0 would be read as its value
                present = values[~np.isnan(values) & ~np.isin(values, self.special_codes)]
                _note_outside(column.name, present, column.low, column.high, notes)
            return codes
        absent = unseen = np.isnan(values)
        if self.special_codes:
            absent = absent | np.isin(values, self.special_codes)
            unseen = unseen | np.isin(values, [code for code in self.special_codes if code not in column.codes])
        _note_outside(column.name, values[~absent], column.low, column.high, notes)
        missing = int(unseen.sum())
        if missing:
            notes.append(Note("median", column.name, missing, (f"{column.fill:g}",)))
        scale = 1 / (column.high - column.low)
        return [np.where(absent, column.fill, values) * scale + (0 - column.low * scale), *codes]

    def encode_target(
        self, values: Float64[np.ndarray, " rows"] | Int64[np.ndarray, " rows"]
    ) -> Float32[np.ndarray, " rows"] | Int64[np.ndarray, " rows"]:
        """Turn targets into the numbers that the network is trained on.

        Args:
            values: float64 [rows] in original units, or int64 [rows] class codes.
        Returns:
            float32 [rows] with mean 0 and variance 1 on the training part, or the class codes unchanged.
        """
        if self.target.task == "classification":
            return values.astype(np.int64)
        return ((values - self.target.mean) / self.target.std).astype(np.float32)

    def inverse(self, values: Shaped[np.ndarray, " rows"]) -> Shaped[np.ndarray, " rows"]:
        """Turn network targets back into original units, or class names.

        Args:
            values: standardised values [rows], or integer class codes [rows].
        Returns:
            float64 [rows] in original units, or object [rows] of class names.
        """
        if self.target.task == "classification":
            return np.array(self.target.classes, dtype=object)[values]
        return values.astype(np.float64) * self.target.std + self.target.mean

    def with_threshold(self, threshold: float | None) -> "Preprocessor":
        """Return the same with another threshold of the second of two classes."""
        target = replace(self.target, threshold=threshold)
        return Preprocessor(self.columns, target, self.special_codes, self.notes, self.ids, self.separators)

    def to_json(self) -> dict[str, Any]:
        """Return everything learned, as plain JSON values (no NaN); `from_json` restores it bit for bit.

        Returns:
            a dict for `json.dump`.
        """
        columns = [
            {key: lists(getattr(column, key)) for key in ("name", "kind", *KEYS[column.kind])}
            for column in self.columns
        ]
        return {
            "format": FORMAT,
            "version": VERSION,
            "columns": columns,
            "target": {key: lists(value) for key, value in vars(self.target).items()},
            "special_codes": list(self.special_codes),
            "notes": to_record(self.notes),
            "ids": list(self.ids),
            "separators": self.separators,
        }

    @classmethod
    def from_json(cls, data: Any) -> "Preprocessor":
        """Restore what `to_json` gave.

        Args:
            data: the dict, as it came from `json.load`.
        Returns:
            the preprocessor, whose transforms are equal bit for bit.
        Raises:
            DataError: another format or version, a missing, unknown or impossible entry.
        """
        keys = ("columns", "target", "special_codes", "notes", "ids", "separators")
        top = stored.of_format(data, "preprocessing", FORMAT, VERSION, keys)
        for key in ("columns", "notes"):
            if not isinstance(top[key], list):
                raise DataError(f"preprocessing {key}: expected a list, got {top[key]!r:.80}")
        columns = [read_column(entry, f"columns[{place}]") for place, entry in enumerate(top["columns"])]
        names = [column.name for column in columns]
        if len(set(names)) != len(names):
            raise DataError("preprocessing columns: expected distinct names, got one twice")
        try:
            notes = [Note.from_json(value) for value in top["notes"]]
        except ValueError as error:
            raise DataError(f"notes: {error}") from None
        codes = stored.value(tuple[float, ...], top["special_codes"], "special_codes")
        ids = stored.value(tuple[str, ...], top["ids"], "ids")
        separators = stored.value(Separators, top["separators"], "separators")
        return cls(columns, read_target(top["target"]), codes, notes, ids, separators)


def _in_order(notes: list[Note]) -> list[Note]:
    """Put notes about missing values last, as they are one sentence about several columns."""
    return sorted(notes, key=lambda note: note.kind in OF_COLUMNS)


def _one_hot(column: Column, values: Shaped[np.ndarray, " rows"], notes: list[Note]) -> Int64[np.ndarray, " rows"]:
    """Return which of the inputs of a column is 1 in each row; -1: none."""
    found = places(column, values)
    unseen = values[found < 0].tolist()
    if unseen:
        which, instead = "not seen in training", "all inputs 0"
        if column.other:
            which, instead = "rare in training or not seen", f"input {column.name}={OTHER}"
        notes.append(_about_unseen(which, instead, column, unseen))
    return np.where(found < 0, len(column.categories), found) if column.other else found


def _encoded(
    column: Column,
    values: Shaped[np.ndarray, " rows"],
    notes: list[Note],
    cross: Float64[np.ndarray, "rows outputs"] | None,
) -> Iterator[Float64[np.ndarray, " rows"]]:
    """Return the scaled encoding of each row, an output at a time; cross: for training rows, cross-fitted."""
    found = places(column, values)
    unseen = values[found < 0].tolist()
    if unseen:
        bounded = 2 * len(column.categories) * len(column.outputs) > MOST_CELLS  # rare ones may have no mean
        which = "rare in training or not seen" if bounded else "not seen in training"
        notes.append(_about_unseen(which, "the target's mean", column, unseen))
    table = np.array([*column.values, column.otherwise])  # -1 is the last
    own = np.zeros((0, 0))  # the outputs after these say nothing of the target
    if cross is not None:
        own = cross_fitted(np.array([*column.categories, None], dtype=object)[found], cross)
        own[found < 0] = column.otherwise[: own.shape[1]]  # too rare to have a mean of its own: as in prediction
    for output in range(len(column.outputs)):
        yield _scaled(own[:, output] if output < own.shape[1] else table[found, output], column, output)


def _date(
    column: Column, values: Shaped[np.ndarray, " rows"], notes: list[Note]
) -> Iterator[Float64[np.ndarray, " rows"]]:
    """Return the scaled parts of the dates of each row, a part at a time."""
    first, filled = np.datetime64(column.first, "us"), np.datetime64(column.filled, "us")
    if dates.DAYS in column.outputs:
        place = column.outputs.index(dates.DAYS)
        low, high = (first + np.timedelta64(round(of[place] * dates.DAY), "us") for of in (column.lows, column.highs))
        _note_outside(column.name, values[~np.isnat(values)], low, high, notes)
    if (missing := int(np.isnat(values).sum())) and column.outputs:
        notes.append(Note("median", column.name, missing, (str(filled.astype("M8[D]")),)))
        values = np.where(np.isnat(values), filled, values)
    parts = dates.numbers(values, first) if column.outputs else {}
    return (_scaled(parts[part], column, output) for output, part in enumerate(column.outputs))


def _note_without_zone(column: Column, raw: pd.Series, notes: list[Note]) -> None:
    """Note times without the time zone that training had."""
    if column.zoned and (plain := int(dates.parsed(raw, column.order)[2].sum())):
        notes.append(Note("without", column.name, plain))


def _note_outside(name: str, values: Shaped[np.ndarray, " present"], low: Any, high: Any, notes: list[Note]) -> None:
    """Note numbers or dates that are present and outside the range that the training part had."""
    outside = values[(values < low) | (values > high)]
    if len(outside):
        of = (outside.min(), outside.max(), low, high)
        shown = tuple(_moment(one) if isinstance(low, np.datetime64) else float(one) for one in of)
        notes.append(Note("outside", name, len(outside), shown))


def is_by_chance(note: Note, rows: int) -> bool:
    """Return whether values outside the range of training are as in any random part of a table.

    By chance are at most 5% of the rows, or one, none farther beyond the range than it is wide.

    Args:
        note: of any kind, "outside" alone can be. rows: that it is about.
    """
    if note.kind != "outside":
        return False
    ends = [np.datetime64(end, "us").astype(float) if isinstance(end, str) else end for end in note.values]
    low, high, least, most = ends
    return max(least - low, high - most) <= most - least and note.count <= max(1, 0.05 * rows)


def _moment(value: np.datetime64) -> str:
    """ISO 8601, with as many decimals of a second as are not 0."""
    return str(value.astype("M8[us]")).rstrip("0").rstrip(".")


def _taken(column: pd.Series, rows: Int64[np.ndarray, " part"] | None) -> pd.Series:
    return column if rows is None else column.iloc[rows]


def _scaled(values: Float64[np.ndarray, " rows"], column: Column, output: int) -> Float64[np.ndarray, " rows"]:
    low, high = column.lows[output], column.highs[output]
    return (values - low) / (high - low if high > low else 1)


def _about_unseen(which: str, instead: str, column: Column, unseen: list[str]) -> Note:
    return Note("unseen", column.name, len(unseen), (which, instead, *dict.fromkeys(unseen))[:MOST_NAMED])
