"""What a preprocessor learns about each column and the target, and its JSON form."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float64, Int64, Shaped

from htaf.data.reading import DataError, counted, is_text, listed, to_number, to_text

# A range below these cannot be told from rounding in float32, and MinMaxScaler takes it for a constant
RELATIVE_RANGE, ABSOLUTE_RANGE = 1e-9, 1e-14
MANY_CATEGORIES = 100
MISSING = ""  # the missing category; no present text is empty


@dataclass(frozen=True)
class Column:
    """What was learned about one raw column.

    A number becomes `(x - low) / (high - low)` when high > low, with `fill` where x is missing or a
    special code, and one 0/1 input for each of `codes`. A category becomes one 0/1 input for each of
    `categories`, where "" stands for missing. A dropped column gives no input.
    """

    name: str
    kind: Literal["number", "category", "dropped"]
    low: float = 0.0
    high: float = 0.0
    fill: float = 0.0
    codes: tuple[float, ...] = ()
    categories: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """The target side: `(y - mean) / std` for regression, class codes for classification."""

    name: str
    task: Literal["regression", "classification"]
    mean: float = 0.0
    std: float = 1.0
    classes: tuple[str, ...] = ()


def category_values(column: pd.Series) -> Shaped[np.ndarray, " rows"]:
    """One column as categories.

    Args:
        column: any dtype, [rows].
    Returns:
        object [rows] of str, `MISSING` where missing.
    """
    text = to_text(column)
    text[[value is None for value in text]] = MISSING
    return text


def learn_column(column: pd.Series, name: str, special_codes: Sequence[float], notes: list[str]) -> Column:
    """What the training part says about one raw column.

    Args:
        column: the training rows, [rows]; a number dtype is scaled, any other is a category.
        name: the column's name.
        special_codes: numbers that mean "missing for this reason"; they are left out of the range.
        notes: what was handled is appended here.
    Returns:
        the column's range, median and codes, or its categories sorted by code point; kind "dropped" where
        it does not vary.
    Raises:
        DataError: an infinite value, or a range beyond float64.
    """
    if is_text(column):
        categories = tuple(sorted(set(category_values(column))))
        if len(categories) == 1:
            notes.append(f"column {name!r} dropped: {categories[0] or 'missing'!r} in every training row")
            return Column(name, "dropped")
        if MISSING in categories:
            count = int(np.count_nonzero(category_values(column) == MISSING))
            notes.append(f"column {name!r}: {counted(count, 'missing training value')}, a category of its own")
        if len(categories) > MANY_CATEGORIES:
            notes.append(f"column {name!r} has {len(categories):,} categories, each one input")
        return Column(name, "category", categories=categories)
    values, _ = to_number(column)
    if np.isinf(values).any():
        row = int(np.argmax(np.isinf(values)))
        raise DataError(f"column {name!r}, row {row + 1}: expected a finite number, got {values[row]}")
    found = [float(code) for code in special_codes if (values == code).any()]
    codes = tuple(code for code in found if not (values == code).all())
    plain = values[~np.isnan(values) & ~np.isin(values, found)]
    low, high = (float(plain.min()), float(plain.max())) if plain.size else (0.0, 0.0)
    fill = float(np.median(plain)) if plain.size else 0.0
    if not math.isfinite(high - low) or not math.isfinite(fill):
        raise DataError(f"column {name!r}: expected a range within float64, got {low:g} to {high:g}")
    if high - low <= max(RELATIVE_RANGE * max(abs(low), abs(high)), ABSOLUTE_RANGE):
        reason = "no value" if not plain.size else f"one value, {low:g}," if low == high else "too narrow a range"
        if low < high:
            reason += f" ({low:.17g} to {high:.17g}; change its unit or subtract an offset)"
        notes.append(f"column {name!r} dropped: {reason} in the training part")
        if not codes:
            return Column(name, "dropped")
        low = high = fill = 0.0
    elif (missing := int(np.isnan(values).sum())) > 0:
        notes.append(f"column {name!r}: {counted(missing, 'missing training value')} set to the median {fill:g}")
    if codes:
        counts = ", ".join(f"{code:g} ({counted(int((values == code).sum()), 'training row')})" for code in codes)
        notes.append(f"column {name!r}: one input for each of the codes {counts}")
    return Column(name, "number", low, high, min(max(fill, low), high), codes)


def learn_target(
    values: Float64[np.ndarray, " rows"] | Int64[np.ndarray, " rows"],
    task: Literal["regression", "classification"],
    name: str,
    classes: tuple[str, ...],
    notes: list[str],
) -> Target:
    """What the training part says about the target.

    Args:
        values: float64 [rows] in original units for regression, int64 [rows] class codes >= 0 for
            classification.
        task: "regression" or "classification".
        name: the target's name.
        classes: class names in code order; not used for regression.
        notes: classes without training rows are appended here.
    Returns:
        mean and population standard deviation for regression, the classes for classification.
    Raises:
        DataError: a constant target, fewer than two classes with rows, or a code without a class.
    """
    if task == "regression":
        low, high = float(values.min()), float(values.max())
        if low == high:
            raise DataError(f"target {name!r}: expected values that vary in the training part, got {low:g} only")
        with np.errstate(over="ignore", invalid="ignore"):
            mean, std = float(values.mean()), float(values.std())
        if not std > 0 or not math.isfinite(std):
            raise DataError(
                f"target {name!r}: expected values whose squares float64 can hold (about 1e-150 to 1e150), got "
                f"{low:g} to {high:g}: change the unit"
            )
        return Target(name, task, mean, std)
    counts = np.bincount(values, minlength=len(classes))
    if len(counts) > len(classes) or np.count_nonzero(counts) < 2:
        raise DataError(
            f"target {name!r}: expected at least two of {len(classes)} classes in the training part, "
            f"got codes {sorted(set(values.tolist()))[:5]}"
        )
    absent = [label for label, count in zip(classes, counts, strict=True) if not count]
    if absent:
        notes.append(f"target {name!r}: no training rows of {listed(absent)}")
    return Target(name, task, classes=classes)


def strict_keys(data: Any, where: str, keys: Sequence[str]) -> dict[str, Any]:
    """Checks that parsed JSON is an object with these keys, no fewer and no more.

    Args:
        data: a value from `json.load`.
        where: what the value is, for the message.
        keys: the keys, in any order.
    Returns:
        the same dict.
    Raises:
        DataError: another type, a missing or an unknown key.
    """
    if not isinstance(data, dict) or set(data) != set(keys):
        came = sorted(map(str, data)) if isinstance(data, dict) else type(data).__name__
        raise DataError(f"{where}: expected the keys {sorted(keys)}, got {came}")
    return data


def _float(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"{where}: expected a finite number, got {value!r}")
    return float(value)


def floats(values: Any, where: str) -> tuple[float, ...]:
    """Checks that parsed JSON is a list of finite numbers.

    Args:
        values: a value from `json.load`.
        where: what the value is, for the message.
    Returns:
        the numbers.
    Raises:
        DataError: no list, or an entry that is no finite number (a truth value is none).
    """
    if not isinstance(values, list):
        raise DataError(f"{where}: expected a list of numbers, got {values!r}")
    return tuple(_float(value, where) for value in values)


def texts(values: Any, where: str) -> tuple[str, ...]:
    """Checks that parsed JSON is a list of texts.

    Args:
        values: a value from `json.load`.
        where: what the value is, for the message.
    Returns:
        the texts.
    Raises:
        DataError: no list, or an entry that is no text.
    """
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise DataError(f"{where}: expected a list of texts, got {values!r}")
    return tuple(values)


def read_column(data: Any, where: str) -> Column:
    """One column from the JSON form of a preprocessor.

    Args:
        data: an entry of "columns", from `json.load`: name, kind and the fields of that kind.
        where: which entry it is, for the message.
    Returns:
        the column.
    Raises:
        DataError: an unknown kind, missing or unknown keys, a value of another type, a range without
            low <= fill <= high, repeated codes, no or repeated categories.
    """
    kind = data.get("kind") if isinstance(data, dict) else None
    keys = {"number": ("low", "high", "fill", "codes"), "category": ("categories",), "dropped": ()}
    if not isinstance(kind, str) or kind not in keys:
        raise DataError(f"{where}: expected the kind number, category or dropped, got {kind!r:.80}")
    strict_keys(data, where, ("name", "kind", *keys[kind]))
    if not isinstance(data["name"], str):
        raise DataError(f"{where}: expected a name, got {data['name']!r}")
    if kind == "dropped":
        return Column(data["name"], kind)
    if kind == "category":
        categories = texts(data["categories"], f"{where} categories")
        if not categories or len(set(categories)) != len(categories):
            raise DataError(f"{where}: expected distinct categories, got {categories!r}")
        return Column(data["name"], kind, categories=categories)
    low, high, fill = (_float(data[key], f"{where} {key}") for key in ("low", "high", "fill"))
    if not low <= fill <= high:
        raise DataError(f"{where}: expected low <= fill <= high, got {low}, {fill}, {high}")
    codes = floats(data["codes"], f"{where} codes")
    if len(set(codes)) != len(codes):
        raise DataError(f"{where}: expected distinct codes, got {codes}")
    return Column(data["name"], "number", low, high, fill, codes)


def read_target(data: Any) -> Target:
    """The target side from the JSON form of a preprocessor.

    Args:
        data: the entry "target", from `json.load`: every field of `Target`.
    Returns:
        the target side.
    Raises:
        DataError: missing or unknown keys, a value of another type, std <= 0, fewer than two classes.
    """
    data = strict_keys(data, "target", [field.name for field in fields(Target)])
    if data["task"] not in ("regression", "classification") or not isinstance(data["name"], str):
        raise DataError(f"target: expected a name and a task, got {data['name']!r} and {data['task']!r}")
    mean, std = _float(data["mean"], "target mean"), _float(data["std"], "target std")
    classes = texts(data["classes"], "target classes")
    if std <= 0 or (data["task"] == "classification" and len(classes) < 2):
        raise DataError(f"target: expected std > 0 and two classes or more, got {std} and {list(classes)}")
    return Target(data["name"], data["task"], mean, std, classes)
