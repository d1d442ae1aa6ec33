"""What a preprocessor learns about each column and the target, and its JSON form. Many categories become means of the
target by scikit-learn's TargetEncoder, cross-fitted on the training rows."""

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64, Int64, Shaped

from htaf._ground.errors import listed, option
from htaf.data import stored
from htaf.data.dates import ORDERS, PARTS, YEAR_FIRST, has_zone, native, numbers, read
from htaf.data.notes import Note
from htaf.data.numerals import form_of, has_decimal_comma, parts_of, units_of
from htaf.data.reading import DataError, finite_numbers, is_date, is_number, is_text, to_text

# A range below these cannot be told from rounding in float32, and MinMaxScaler takes it for a constant
RELATIVE_RANGE, ABSOLUTE_RANGE = 1e-9, 1e-14
MOST_ONE_HOT = 20  # categories; a column with more is encoded by the target
FREQUENT, MOST_FREQUENT = 10, 50  # training rows from which such a category has an input too, of so many at most
MOST_CELLS = 1_000_000  # of the table of an encoded column, which is kept as JSON
RARE, RARE_AMONG = 5, 100  # fewer training rows make a category rare, where there are at least so many
APART = 3.0  # standard errors between the targets of rows with and without a value, from which blanks say something
MISSING = ""  # the missing category; no present text is empty
TRUTH = frozenset({"false", "f", "no", "n", "off", "0", "0.0"}), frozenset({"true", "t", "yes", "y", "on", "1", "1.0"})
FOLDS = 5  # by which training rows are encoded
OTHER = "other"  # names the input of rare and unseen categories
Kind = Literal["number", "category", "encoded", "date", "dropped"]
MOSTLY = 0.9  # share of numbers in a text column from which it is said that they are not read as such


@dataclass(frozen=True)
class Column:
    """What was learned about one raw column.

    A number becomes `(x - low) / (high - low)` when high > low, with `fill` where x is missing or a
    special code, and one 0/1 input for each of `codes`.

    Raw rows may write a number in its `unit`, see `htaf.data.numerals.unit_of`.

    A number or a date with `missing` has another input, 1 where there is no value.

    A category becomes one 0/1 input for each of `categories`, where "" stands for missing, and one for all others
    where `other` is set.

    An encoded column becomes one input for each of `outputs`: for a category its row of `values`, for another one
    `otherwise`, scaled from [lows, highs] to [0, 1]. The first ones come from the target; those that follow are 1 in
    one of the most frequent categories and 0 in all others.

    A date becomes one input for each of `outputs`, of `htaf.data.dates.PARTS`, scaled from [lows, highs] to [0, 1]. It
    is read in this `order`, in UTC where training had a time zone (`zoned`); days are counted from `first`; a missing
    one is `filled` (both ISO 8601).

    Spellings that differ in case alone are one category. A dropped column gives no input.
    """

    name: str
    kind: Kind
    low: float = 0.0
    high: float = 0.0
    fill: float = 0.0
    codes: tuple[float, ...] = ()
    missing: bool = False
    unit: str = ""
    categories: tuple[str, ...] = ()
    other: bool = False
    outputs: tuple[str, ...] = ()
    values: tuple[tuple[float, ...], ...] = ()
    otherwise: tuple[float, ...] = ()
    lows: tuple[float, ...] = ()
    highs: tuple[float, ...] = ()
    order: str = ""
    zoned: bool = False
    first: str = ""
    filled: str = ""


@dataclass(frozen=True)
class Target:
    """The target side: `(y - mean) / std` for regression, class codes for classification.

    threshold: the probability from which the second of two classes is predicted; None: the likelier class is.
    unit: in which raw rows write the numbers of a regression, see `htaf.data.numerals.unit_of`; "" for none.
    """

    name: str
    task: Literal["regression", "classification"]
    mean: float = 0.0
    std: float = 1.0
    classes: tuple[str, ...] = ()
    threshold: float | None = None
    unit: str = ""


def numbers_as_text(column: pd.Series) -> tuple[str, ...] | None:
    """Of texts of which nine tenths are numbers in any unit, or, where they are many, are written alike but for their
    digits: the first of these that is no plain number, "" where all are plain; then, where they have several, the
    units. Else None."""
    present = column.dropna()
    some = np.unique(np.linspace(0, len(present) - 1, min(len(present), 1000)).astype(int))
    known = [text for text in to_text(present.iloc[some]) if text is not None]
    numbers = [text for text in known if parts_of(text) or has_decimal_comma(text)]
    if len(numbers) < MOSTLY * len(known) and len({*known}) > MOST_ONE_HOT:
        forms = [form for form, _ in Counter(map(form_of, known)).most_common(3) if form.startswith("#")]
        numbers = [text for text in known if form_of(text) in forms]
    if not known or len(numbers) < MOSTLY * len(known):
        return None
    # all are plain in a data frame alone, whose dtypes decide; those of files were read as numbers
    plain = "" if len(numbers) == len(known) else None
    written, units = next((text for text in numbers if not is_number(text)), plain), units_of(numbers)
    if written is None:
        return None
    return written, *(units if len(units) > 1 else ())


def category_values(column: pd.Series) -> Shaped[np.ndarray, " rows"]:
    """Turn one column into categories.

    Args:
        column: any dtype, [rows].
    Returns:
        object [rows] of str, `MISSING` where missing.
    """
    text = to_text(column)
    text[[value is None for value in text]] = MISSING
    return text


def spelled(text: str) -> str:
    """Return what spellings of one category share: the text without its case. Single letters but y, n, t, f keep
    theirs, as m and M may be two codes."""
    return text.casefold() if len(text) > 1 or text in "yYnNtTfF" else text


def spellings(categories: Sequence[str]) -> dict[str, str]:
    """Map each category by what its spellings share. Two categories such as no and yes have all spellings of
    `TRUTH`."""
    known = {spelled(name): name for name in categories}
    sides = [[name for spelling, name in known.items() if spelling in words] for words in TRUTH]
    if [len(side) for side in sides] == [1, 1] and len({*known} - {MISSING}) == 2:
        known |= {word: side[0] for side, words in zip(sides, TRUTH, strict=True) for word in words}
    return known


def one_spelling(values: Shaped[np.ndarray, " rows"]) -> tuple[dict[str, str], tuple[tuple[str, ...], ...]]:
    """Give each category its most frequent spelling, and return the spellings of categories that have several."""
    names, counts = np.unique(values.astype(object), return_counts=True)
    groups: dict[str, list[tuple[int, str]]] = {}
    for name, count in zip(names.tolist(), counts.tolist(), strict=True):
        groups.setdefault(spelled(name), []).append((-count, name))
    chosen = {name: min(group)[1] for group in groups.values() for _, name in group}
    several = (tuple(name for _, name in sorted(group)) for group in groups.values() if len(group) > 1)
    return chosen, tuple(several)


def read_values(column: Column, raw: pd.Series) -> Shaped[np.ndarray, " rows"]:
    """Read raw values as training read those of the column.

    Args:
        column: not a dropped one. raw: any dtype, [rows].
    Returns:
        float64 of numbers (NaN where missing), datetime64[us] of dates (NaT), object of str of categories (`MISSING`).
    Raises:
        TableError: a text that is no number or no date, an infinite number, or a time zone unlike in training.
    """
    raw = truth_as_numbers(column, raw)
    if column.kind == "number":
        return finite_numbers(raw, column.name, unit=column.unit)
    return read(column.name, raw, column.order, column.zoned) if column.kind == "date" else category_values(raw)


def truth_as_numbers(column: Column, raw: pd.Series) -> pd.Series:
    """Return raw values, with 1 and 0 for texts such as true and no of a column that was numbers 0 and 1 in
    training."""
    if (column.kind, column.low, column.high) != ("number", 0, 1) or not is_text(raw):
        return raw
    texts = [text if text is None else text.casefold() for text in to_text(raw)]
    if not {*texts} - {None} or not {*texts} <= {None}.union(*TRUTH):
        return raw
    return pd.Series([None if text is None else float(text in TRUTH[1]) for text in texts], raw.index, np.float64)


def places(column: Column, values: Shaped[np.ndarray, " rows"]) -> Int64[np.ndarray, " rows"]:
    """Return the place of each value in the categories of a column, -1 where it has no such category.

    Args:
        values: as `category_values` gives them, [rows].
    """
    known = {name: place for place, name in enumerate(column.categories)}
    alike = {spelling: known[name] for spelling, name in spellings([*known]).items()}
    found = {value: known.get(value, alike.get(spelled(value), -1)) for value in dict.fromkeys(values)}
    return np.array([found[value] for value in values], dtype=np.int64)


def learn_column(
    column: pd.Series,
    name: str,
    special_codes: Sequence[float],
    notes: list[Note],
    wanted: tuple[tuple[str, ...], Float64[np.ndarray, "rows outputs"]] = ((), np.zeros((0, 0))),
    order: str = "",
    unit: str = "",
) -> Column:
    """Learn one raw column from the training part.

    Args:
        column: the training rows, [rows]; a number dtype is scaled, dates are taken apart, any other is a category.
        name: the column's name.
        special_codes: numbers that mean "missing for this reason"; they are left out of the range.
        notes: what was handled is added.
        wanted: from `encoding_outputs`, for columns with more than `MOST_ONE_HOT` categories; without
            outputs these are one-hot too. It says too whether blanks tell of the target, see `_blanks_tell`.
        order: of dates that raw rows write as text. unit: of numbers that they write as text.
    Returns:
        the column's range, median and codes; its categories sorted by code point, with their encoding where they are
        many; or the parts of its dates that vary; kind "dropped" where it does not vary.
    Raises:
        DataError: an infinite value, or a range beyond float64.
    """
    if is_date(column):
        return _learn_date(column, name, notes, wanted[1], order)
    if is_text(column):
        return _learn_category(column, name, notes, wanted)
    learned = _learn_number(column, name, special_codes, notes, wanted[1])
    return replace(learned, unit=unit) if learned.kind == "number" else learned


def _blanks_tell(missing: Bool[np.ndarray, " rows"], wanted: Float64[np.ndarray, "rows outputs"], only: bool) -> bool:
    """Return whether a column gets an input that is 1 where it has no value: 5 rows with one and 5 without (2 of fewer
    than 100 rows), and a target whose mean differs between them by more than `APART` standard errors, or somewhat more
    where there are many classes.

    only: the column has one value, so that its blanks are all that it says; the target is not asked.
    """
    rows, count = len(missing), int(missing.sum())
    if min(count, rows - count) < (RARE if rows >= RARE_AMONG else 2):
        return False
    if only or not len(wanted):
        return only
    deviation = wanted.std(0)
    apart = np.abs(wanted[missing].mean(0) - wanted[~missing].mean(0))
    error = np.where(deviation > 0, deviation, np.inf) * math.sqrt(1 / count + 1 / (rows - count))
    many = math.sqrt(APART**2 + 2 * math.log(wanted.shape[1]))  # the largest of many differences is larger by chance
    return bool((apart > many * error).any())


def _learn_date(
    column: pd.Series, name: str, notes: list[Note], wanted: Float64[np.ndarray, "rows outputs"], order: str
) -> Column:
    values = native(column)
    known = np.sort(values[~np.isnat(values)])
    one = len(known) > 0 and bool(known[0] == known[-1])
    flagged = _blanks_tell(np.isnat(values), wanted, one)
    if not len(known) or (one and not flagged):
        why = f"one value, {known[0]}," if len(known) else "no value"
        notes.append(Note("dropped in training", name, values=(why,)))
        return Column(name, "dropped")
    first, filled = known[0], known[(len(known) - 1) // 2]
    ranges = {part: (float(found.min()), float(found.max())) for part, found in numbers(known, first).items()}
    outputs = tuple(part for part, (low, high) in ranges.items() if low < high)
    return Column(
        name, "date", outputs=outputs, lows=tuple(ranges[part][0] for part in outputs),
        highs=tuple(ranges[part][1] for part in outputs), order=order or YEAR_FIRST, first=str(first),
        filled=str(filled), missing=flagged, zoned=has_zone(column),
    )  # fmt: skip


def _learn_category(
    column: pd.Series,
    name: str,
    notes: list[Note],
    wanted: tuple[tuple[str, ...], Float64[np.ndarray, "rows outputs"]],
) -> Column:
    values = category_values(column)
    chosen, several = one_spelling(values)
    if several:
        notes.append(Note("one category", name, values=several))
        values = np.array([chosen[value] for value in values], dtype=object)
    counts = {value: int(count) for value, count in zip(*np.unique(values, return_counts=True), strict=True)}
    categories = tuple(sorted(counts))
    if len(categories) == 1:
        notes.append(Note("dropped in training", name, values=(f"one value, {categories[0] or 'missing'!r},",)))
        return Column(name, "dropped")
    if len(categories) > MOST_ONE_HOT and wanted[0]:
        most = max(1, MOST_CELLS // len(wanted[0]))  # the others have the mean of all rows
        categories = tuple(sorted(sorted(categories, key=lambda category: -counts[category])[:most]))
        found = encodings(values, wanted[1], np.array(categories, dtype=object))
        frequent = _frequent(categories, counts)
        own = np.array([[float(category == one) for one in frequent] for category in categories])
        table = np.hstack([found, own.reshape(len(categories), -1)])
        return Column(
            name, "encoded", categories=categories,
            outputs=(*wanted[0], *(f"is {category}" if category else "has no value" for category in frequent)),
            values=tuple(map(tuple, table.tolist())),
            otherwise=(*wanted[1].mean(0).tolist(), *[0.0] * len(frequent)),
            lows=tuple(table.min(0).tolist()), highs=tuple(table.max(0).tolist()),
        )  # fmt: skip
    rare = [value for value in categories if counts[value] < RARE] if len(values) >= RARE_AMONG else []
    if len(rare) < 2 or len(rare) == len(categories):
        return Column(name, "category", categories=categories)
    kept = tuple(value for value in categories if value not in rare)
    return Column(name, "category", categories=kept, other=True)


def _frequent(categories: Sequence[str], counts: dict[str, int]) -> list[str]:
    """Return the most frequent of many categories, by name."""
    most = min(MOST_FREQUENT, MOST_CELLS // len(categories))
    found = sorted((category for category in categories if counts[category] >= FREQUENT), key=lambda c: -counts[c])
    return sorted(found[:most])


def _learn_number(
    column: pd.Series,
    name: str,
    special_codes: Sequence[float],
    notes: list[Note],
    wanted: Float64[np.ndarray, "rows outputs"],
) -> Column:
    values = finite_numbers(column, name)
    found = [float(code) for code in special_codes if (values == code).any()]
    codes = tuple(code for code in found if not (values == code).all())
    plain = values[~np.isnan(values) & ~np.isin(values, found)]
    low, high = (float(plain.min()), float(plain.max())) if plain.size else (0.0, 0.0)
    fill = float(np.median(plain)) if plain.size else 0.0
    if not math.isfinite(high - low) or not math.isfinite(fill):
        raise DataError(f"column {name!r}: expected a range within float64, got {low:g} to {high:g}")
    one = bool(plain.size) and high - low <= max(RELATIVE_RANGE * max(abs(low), abs(high)), ABSOLUTE_RANGE)
    flagged = _blanks_tell(np.isnan(values), wanted, one)
    if one or not plain.size:
        if not flagged:
            narrow = f"too narrow a range ({low:.17g} to {high:.17g}; change its unit or subtract an offset)"
            why = "no value" if not plain.size else f"one value, {low:g}," if low == high else narrow
            notes.append(Note("dropped in training", name, values=(why,)))
        if not codes and not flagged:
            return Column(name, "dropped")
    if one or not plain.size:
        low = high = fill = fill if flagged else 0.0  # of a flag its value
    return Column(name, "number", low, high, min(max(fill, low), high), codes, flagged)


def learn_target(
    values: Float64[np.ndarray, " rows"] | Int64[np.ndarray, " rows"],
    task: Literal["regression", "classification"],
    name: str,
    classes: tuple[str, ...],
    notes: list[Note],
    weights: Float64[np.ndarray, " rows"] | None = None,
) -> Target:
    """Learn the target from the training part.

    Args:
        values: float64 [rows] in original units for regression, int64 [rows] class codes >= 0 for
            classification.
        task: "regression" or "classification".
        name: the target's name.
        classes: class names in code order; not used for regression.
        notes: classes without training rows are appended here.
        weights: of the rows, for mean and deviation.
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
            mean = float(np.average(values, weights=weights))
            std = math.sqrt(np.average((values - mean) ** 2, weights=weights)) if math.isfinite(mean) else math.nan
        if not std > 0 or not math.isfinite(std):
            raise DataError(
                f"target {name!r}: expected values whose squares float64 can hold (about 1e-150 to 1e150), got "
                f"{low:g} to {high:g}: change the unit"
            )
        return Target(name, task, mean, std)
    counts = np.bincount(values, minlength=len(classes))
    there = [label for label, count in zip(classes, counts, strict=False) if count]
    if len(counts) > len(classes) or len(there) < 2:
        lost = [label for label in classes if label not in there]
        raise DataError(
            f"target {name!r}: expected at least two of {len(classes)} classes in the training part, got "
            f"{listed(there)} only ({listed(lost)} has its rows in other parts): add rows of it, or divide the rows in "
            f"another way ({option('--split stratified, another --seed', 'stratified, or by another seed')})"
        )
    absent = [label for label, count in zip(classes, counts, strict=True) if not count]
    if absent:
        notes.append(Note("no training rows", name, values=tuple(absent)))
    return Target(name, task, classes=classes)


def read_column(data: Any, where: str) -> Column:
    """Read one column from the JSON form of a preprocessor.

    Args:
        data: an entry of "columns", from `json.load`: name, kind and the fields of that kind.
        where: which entry it is, for the message.
    Returns:
        the column.
    Raises:
        DataError: an unknown kind, missing or unknown keys, a value of another type, a range without
            low <= fill <= high, repeated codes, no or repeated categories, lists of different lengths.
    """
    kind = stored.value(Kind, data.get("kind") if isinstance(data, dict) else None, where)
    column = stored.read(Column, data, where, ("name", "kind", *KEYS[kind]))
    _check_column(column, where)
    return column


# of each kind the fields that are kept
KEYS: dict[str, tuple[str, ...]] = {
    "number": ("low", "high", "fill", "codes", "missing", "unit"),
    "category": ("categories", "other"),
    "encoded": ("categories", "outputs", "values", "otherwise", "lows", "highs"),
    "date": ("outputs", "lows", "highs", "order", "zoned", "first", "filled", "missing"),
    "dropped": (),
}


def _check_column(column: Column, where: str) -> None:
    """Raise DataError where the fields of a column that was read do not go together."""
    if not column.low <= column.fill <= column.high:
        raise DataError(f"{where}: expected low <= fill <= high, got {column.low}, {column.fill}, {column.high}")
    for key in ("codes", "categories", "outputs"):
        found = getattr(column, key)
        empty = key != "codes" and key in KEYS[column.kind] and not (found or column.missing)
        if len(set(found)) != len(found) or empty:
            raise DataError(f"{where}: expected distinct {key}, got {found!r:.200}")
    width = len(column.outputs)
    lists = [column.lows, column.highs, *((column.otherwise, *column.values) if column.kind == "encoded" else ())]
    falling = any(low > high for low, high in zip(column.lows, column.highs, strict=False))
    if any(len(one) != width for one in lists) or falling:
        raise DataError(f"{where}: expected {width} lows <= highs, and as many values for each category")
    if column.kind == "encoded" and len(column.values) != len(column.categories):
        raise DataError(f"{where}: expected values for each of {len(column.categories)} categories")
    if column.kind != "date":
        return
    days = [column.first, column.filled] if {*column.outputs} <= {*PARTS} and column.order in ORDERS else [""]
    try:
        dates = all(day[:1].isdigit() and not np.isnat(np.datetime64(day, "us")) for day in days)
    except ValueError:
        dates = False
    if not dates:
        came = (column.outputs, column.order, column.first, column.filled)
        raise DataError(f"{where}: expected parts of a date, its order and two dates, got {came!r:.200}")


def read_target(data: Any) -> Target:
    """Read the target side from the JSON form of a preprocessor.

    Args:
        data: the entry "target", from `json.load`: every field of `Target`.
    Returns:
        the target side.
    Raises:
        DataError: missing or unknown keys, a value of another type, std <= 0, fewer than two classes.
    """
    target = stored.read(Target, data, "target")
    if target.std <= 0 or (target.task == "classification" and len(target.classes) < 2):
        came = f"{target.std} and {list(target.classes)}"
        raise DataError(f"target: expected std > 0 and two classes or more, got {came}")
    if target.threshold is not None and not (0 < target.threshold < 1 and len(target.classes) == 2):
        raise DataError(f"target: expected a threshold in (0, 1) of two classes, got {target.threshold}")
    return target


def encoding_outputs(
    values: Float64[np.ndarray, " rows"] | Int64[np.ndarray, " rows"], target: Target
) -> tuple[tuple[str, ...], Float64[np.ndarray, "rows outputs"]]:
    """Return the numbers that categories are encoded by, with a name for each: the standardised target, or 0 and 1 for
    each class that has rows; of two classes only the second."""
    if target.task == "regression":
        return (f"mean {target.name}",), ((values - target.mean) / target.std)[:, None].astype(np.float64)
    codes = range(1, 2) if len(target.classes) == 2 else np.unique(values).tolist()
    return tuple(f"share of {target.classes[code]}" for code in codes), np.stack(
        [(values == code).astype(np.float64) for code in codes], axis=1
    )


def cross_fitted(
    categories: Shaped[np.ndarray, " rows"], wanted: Float64[np.ndarray, "rows outputs"]
) -> Float64[np.ndarray, "rows outputs"]:
    """Encode each row by the four fifths of the rows that it is not in, so that it does not hold its own
    target. The fifths are drawn by a fixed seed."""
    from sklearn.model_selection import KFold

    found = np.empty_like(wanted)
    folds = KFold(min(FOLDS, len(wanted)), shuffle=True, random_state=0)
    for known, held in folds.split(wanted):
        found[held] = encodings(categories[known], wanted[known], categories[held])
    return found


def encodings(
    known: Shaped[np.ndarray, " rows"], wanted: Float64[np.ndarray, "rows outputs"], asked: Shaped[np.ndarray, " asked"]
) -> Float64[np.ndarray, "asked outputs"]:
    """Encode each category asked for by the rows of known ones: by the mean of what is wanted in it, drawn
    towards the mean of all rows where it has few."""
    from sklearn.preprocessing import TargetEncoder

    columns = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a mean over one row, which the encoder handles
        for values in wanted.T:
            if values.min() == values.max():
                columns.append(np.full(len(asked), values[0]))
                continue
            encoder = TargetEncoder(target_type="continuous", smooth="auto").fit(known[:, None], values)
            columns.append(np.asarray(encoder.transform(asked[:, None]))[:, 0])
    return np.stack(columns, axis=1)
