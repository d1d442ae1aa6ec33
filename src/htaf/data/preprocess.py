"""Turns raw rows into the float32 inputs of a network, by rules learned from the training part only."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float32, Float64, Int64, Shaped

from htaf.data.columns import (
    Column,
    Target,
    category_values,
    floats,
    learn_column,
    learn_target,
    read_column,
    read_target,
    strict_keys,
    texts,
)
from htaf.data.reading import DataError, counted, listed, to_number

FORMAT, VERSION = "htaf-tabular", 1


class Preprocessor:
    """Min-max for numbers, one-hot for categories, learned once and kept as plain JSON.

    Inputs are made from the learned `columns`, in training and after loading alike, so a round trip through JSON
    changes no bit; they are those of scikit-learn's SimpleImputer, MinMaxScaler and OneHotEncoder, which reading a
    run need not import. Numbers are not clipped: a value outside the training range falls outside [0, 1].

    Args:
        columns: one entry a raw column, in order.
        target: the target side.
        special_codes: numbers that stand for a reason why the value is missing.
        notes: what was handled while fitting.
    Raises:
        DataError: no column gives an input.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        target: Target,
        special_codes: Sequence[float] = (),
        notes: Sequence[str] = (),
    ) -> None:
        self.columns = tuple(columns)
        self.target = target
        self.special_codes = tuple(special_codes)
        self.notes = tuple(notes)
        scaled = [c for c in self.columns if c.kind == "number" and c.high > c.low]
        coded = [(c, code) for c in self.columns for code in c.codes]
        texts = [c for c in self.columns if c.kind == "category"]
        self.feature_names = (
            *(c.name for c in scaled),
            *(f"{c.name} is {code:g}" for c, code in coded),
            *(f"{c.name}={category or 'missing'}" for c in texts for category in c.categories),
        )
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
    ) -> "Preprocessor":
        """Learns ranges, medians, categories and the target's mean from the training rows.

        Args:
            features: training rows only, [rows, columns]; number columns are scaled, all others are
                categories.
            target: float64 [rows] in original units for regression, int64 [rows] class codes for
                classification.
            task: "regression" or "classification".
            target_name: for reports.
            classes: class names in code order, for classification.
            special_codes: numbers that mean "missing for this reason"; each that occurs in a column
                becomes one 0/1 input, and the value counts as missing.
        Returns:
            the fitted preprocessor.
        Raises:
            DataError: infinite values, a range beyond float64, a constant target, nothing to learn from.
        """
        if len(features) != len(target) or not len(target):
            raise DataError(f"expected as many rows as targets, got {len(features)} and {len(target)}")
        if len({str(name) for name in features.columns}) != features.shape[1]:
            raise DataError(f"expected distinct column names, got {listed([*map(str, features.columns)])}")
        notes: list[str] = []
        columns = [learn_column(features[name], str(name), special_codes, notes) for name in features.columns]
        learned = learn_target(np.asarray(target), task, target_name, tuple(classes), notes)
        return cls(columns, learned, tuple(float(code) for code in special_codes), notes)

    def transform(self, features: pd.DataFrame) -> Float32[np.ndarray, "rows columns"]:
        """Raw rows to network inputs; columns are found by name, in any order.

        Missing numbers take the training median, categories not seen in training give zeros, columns
        that were not trained on are ignored; `transform_with_notes` says where.

        Args:
            features: raw rows of any dtypes, [rows, raw columns].
        Returns:
            float32 [rows, len(feature_names)].
        Raises:
            DataError: a missing or repeated column; text, an infinite value or one beyond float32 in a
                number column.
        """
        return self.transform_with_notes(features)[0]

    def transform_with_notes(self, features: pd.DataFrame) -> tuple[Float32[np.ndarray, "rows columns"], list[str]]:
        """As `transform`, with what was handled in these rows.

        Args:
            features: raw rows of any dtypes, [rows, raw columns].
        Returns:
            float32 [rows, len(feature_names)], and one line each for ignored columns, missing values and
            categories not seen in training.
        Raises:
            DataError: as `transform`.
        """
        present = [str(name) for name in features.columns]
        wanted = [column for column in self.columns if column.kind != "dropped"]
        absent = [column.name for column in wanted if column.name not in present]
        if absent:
            raise DataError(f"expected the columns {listed(absent)} too, got only {listed(present)}")
        doubled = [column.name for column in wanted if present.count(column.name) > 1]
        if doubled:
            raise DataError(f"expected each column once, got {listed(doubled)} more than once")
        notes: list[str] = []
        known = {column.name for column in self.columns}
        extra = [name for name in present if name not in known]
        if extra:
            notes.append(f"ignored, not used in training: {listed(extra)}")
        if not len(features):
            return np.zeros((0, len(self.feature_names)), dtype=np.float32), notes
        numbers, codes, categories = [], [], []
        with np.errstate(over="ignore"):  # an overflow is reported below, by column and row
            for column in wanted:
                raw = features.iloc[:, present.index(column.name)]
                if column.kind == "number":
                    scaled, found = self._number(column, raw, notes)
                    numbers += scaled
                    codes += found
                else:
                    categories.append(self._category(column, raw, notes))
            blocks = [np.stack(part, axis=1) for part in (numbers, codes) if part]
            inputs = np.concatenate([*blocks, *categories], axis=1).astype(np.float32)
        if not np.isfinite(inputs).all():
            row, place = np.argwhere(~np.isfinite(inputs))[0]
            raise DataError(
                f"column {self.feature_names[place]!r}, row {row + 1}: the value is too far outside the "
                "training range for float32"
            )
        return inputs, notes

    def _number(self, column: Column, raw: pd.Series, notes: list[str]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The scaled column, if it varied in training, and a column for each code."""
        values, wrong = to_number(raw)
        for bad, wanted in ((wrong, "a number"), (np.isinf(values), "a finite number")):
            if bad.any():
                row = int(np.argmax(bad))
                raise DataError(f"column {column.name!r}, row {row + 1}: expected {wanted}, got {str(raw.iloc[row])!r}")
        codes = [(values == c).astype(np.float64) for c in column.codes]
        if not column.high > column.low:
            return [], codes
        absent = np.isnan(values) | np.isin(values, self.special_codes)
        unseen = np.isin(values, [code for code in self.special_codes if code not in column.codes])
        missing = int((np.isnan(values) | unseen).sum())
        if missing:
            notes.append(
                f"column {column.name!r}: {counted(missing, 'missing value')} set to the training median "
                f"{column.fill:g}"
            )
        scale = 1 / (column.high - column.low)
        return [np.where(absent, column.fill, values) * scale + (0 - column.low * scale)], codes

    def _category(self, column: Column, raw: pd.Series, notes: list[str]) -> np.ndarray:
        values, places = category_values(raw), {name: place for place, name in enumerate(column.categories)}
        unseen = [value for value in values if value not in places]
        if unseen:
            kinds = [value or "missing" for value in dict.fromkeys(unseen)]
            notes.append(
                f"column {column.name!r}: {counted(len(unseen), 'row')} with categories not seen in "
                f"training ({listed(kinds, 3)}), all inputs 0"
            )
        one_hot = np.zeros((len(values), len(places)))
        found = np.array([places.get(value, -1) for value in values], dtype=np.int64)
        one_hot[found >= 0, found[found >= 0]] = 1
        return one_hot

    def encode_target(
        self, values: Float64[np.ndarray, " rows"] | Int64[np.ndarray, " rows"]
    ) -> Float32[np.ndarray, " rows"] | Int64[np.ndarray, " rows"]:
        """Targets as the network is trained on them.

        Args:
            values: float64 [rows] in original units, or int64 [rows] class codes.
        Returns:
            float32 [rows] with mean 0 and variance 1 on the training part, or the class codes unchanged.
        """
        if self.target.task == "classification":
            return values.astype(np.int64)
        return ((values - self.target.mean) / self.target.std).astype(np.float32)

    def inverse(self, values: Shaped[np.ndarray, " rows"]) -> Shaped[np.ndarray, " rows"]:
        """Back from network targets: original units, or class names.

        Args:
            values: standardised values [rows], or integer class codes [rows].
        Returns:
            float64 [rows] in original units, or object [rows] of class names.
        """
        if self.target.task == "classification":
            return np.array(self.target.classes, dtype=object)[values]
        return values.astype(np.float64) * self.target.std + self.target.mean

    def to_json(self) -> dict[str, Any]:
        """Everything learned, as plain JSON values (no NaN); `from_json` restores it bit for bit.

        Returns:
            a dict for `json.dump`.
        """
        columns: list[dict[str, Any]] = []
        for column in self.columns:
            entry: dict[str, Any] = {"name": column.name, "kind": column.kind}
            if column.kind == "number":
                entry |= {"low": column.low, "high": column.high, "fill": column.fill}
                entry["codes"] = list(column.codes)
            if column.kind == "category":
                entry["categories"] = list(column.categories)
            columns.append(entry)
        target = asdict(self.target) | {"classes": list(self.target.classes)}
        return {
            "format": FORMAT,
            "version": VERSION,
            "columns": columns,
            "target": target,
            "special_codes": list(self.special_codes),
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Any) -> "Preprocessor":
        """Restores what `to_json` gave.

        Args:
            data: the dict, as it came from `json.load`.
        Returns:
            the preprocessor, whose transforms are equal bit for bit.
        Raises:
            DataError: another format or version, a missing, unknown or impossible entry.
        """
        top = strict_keys(data, "preprocessing", ("format", "version", "columns", "target", "special_codes", "notes"))
        if (top["format"], top["version"]) != (FORMAT, VERSION):
            raise DataError(
                f"preprocessing: expected format {FORMAT!r} version {VERSION}, "
                f"got {top['format']!r} version {top['version']!r}"
            )
        if not isinstance(top["columns"], list):
            raise DataError(f"preprocessing columns: expected a list, got {type(top['columns']).__name__}")
        columns = [read_column(entry, f"columns[{place}]") for place, entry in enumerate(top["columns"])]
        names = [column.name for column in columns]
        if len(set(names)) != len(names):
            raise DataError("preprocessing columns: expected distinct names, got one twice")
        return cls(
            columns,
            read_target(top["target"]),
            floats(top["special_codes"], "special_codes"),
            texts(top["notes"], "notes"),
        )
