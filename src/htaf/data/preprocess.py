"""Turns raw rows into the float32 inputs of a network, by rules learned from the training part only: what is learned
about each column and the target, and its JSON form."""

import math
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float32, Float64, Int64, Shaped

from htaf._ground.errors import listed, option, suggestion
from htaf.data import dates, stored
from htaf.data.cells import (
    Separators,
    TableError,
    finite_numbers,
    is_date,
    is_nearly_number,
    is_number,
    is_text,
    to_number,
    to_text,
)
from htaf.data.notes import MOST_NAMED, OF_COLUMNS, Note, lists, to_record
from htaf.data.reading import DataError, Frame, named, refuse_shifted, without_names

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

    Raw rows may write a number in its `unit`, see `htaf.data.cells.unit_of`.

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
    unit: in which raw rows write the numbers of a regression, see `htaf.data.cells.unit_of`; "" for none.
    """

    name: str
    task: Literal["regression", "classification"]
    mean: float = 0.0
    std: float = 1.0
    classes: tuple[str, ...] = ()
    threshold: float | None = None
    unit: str = ""


def numbers_as_text(column: pd.Series) -> str | None:
    """Of texts of which nine tenths are numbers in any unit, or, where they are many, are written alike but for their
    digits: the first of these that is no plain number, "" where all are plain. Else None."""
    present = column.dropna()
    some = np.unique(np.linspace(0, len(present) - 1, min(len(present), 1000)).astype(int))
    known = [text for text in to_text(present.iloc[some]) if text is not None]
    numbers = [text for text in known if is_nearly_number(text)]
    if len(numbers) < MOSTLY * len(known) and len({*known}) > MOST_ONE_HOT:
        written = [re.sub(r"\d+", "#", text.casefold()) for text in known]  # "13h45" and "9h05" are "#h#"
        forms = [form for form, _ in Counter(written).most_common(3) if form.startswith("#")]
        numbers = [text for text, form in zip(known, written, strict=True) if form in forms]
    if not known or len(numbers) < MOSTLY * len(known):
        return None
    # all are plain in a data frame alone, whose dtypes decide; those of files were read as numbers
    return next((text for text in numbers if not is_number(text)), "" if len(numbers) == len(known) else None)


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
    return dates.read(column.name, raw, column.order, column.zoned) if column.kind == "date" else category_values(raw)


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
    values = dates.native(column)
    known = np.sort(values[~np.isnat(values)])
    one = len(known) > 0 and bool(known[0] == known[-1])
    flagged = _blanks_tell(np.isnat(values), wanted, one)
    if not len(known) or (one and not flagged):
        why = f"one value, {known[0]}," if len(known) else "no value"
        notes.append(Note("dropped in training", name, values=(why,)))
        return Column(name, "dropped")
    first, filled = known[0], known[(len(known) - 1) // 2]
    ranges = {part: (float(found.min()), float(found.max())) for part, found in dates.numbers(known, first).items()}
    outputs = tuple(part for part, (low, high) in ranges.items() if low < high)
    return Column(
        name, "date", outputs=outputs, lows=tuple(ranges[part][0] for part in outputs),
        highs=tuple(ranges[part][1] for part in outputs), order=order or dates.YEAR_FIRST, first=str(first),
        filled=str(filled), missing=flagged, zoned=dates.has_zone(column),
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
        often = [category for category in categories if counts[category] >= FREQUENT]
        most = min(MOST_FREQUENT, MOST_CELLS // len(categories))
        frequent = sorted(sorted(often, key=lambda category: -counts[category])[:most])
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


def _learn_number(
    column: pd.Series,
    name: str,
    special_codes: Sequence[float],
    notes: list[Note],
    wanted: Float64[np.ndarray, "rows outputs"],
    unit: str,
) -> Column:
    values = finite_numbers(column, name)
    found = [code for code in special_codes if (values == code).any()]
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
    return Column(name, "number", low, high, min(max(fill, low), high), codes, flagged, unit)


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
    known = {*column.outputs} <= {*dates.PARTS} and column.order in dates.ORDERS
    days = [column.first, column.filled] if known else [""]
    try:
        good = all(day[:1].isdigit() and not np.isnat(np.datetime64(day, "us")) for day in days)
    except ValueError:
        good = False
    if not good:
        came = (column.outputs, column.order, column.first, column.filled)
        raise DataError(f"{where}: expected parts of a date, its order and two dates, got {came!r:.200}")


def _check_target(target: Target) -> None:
    """Raise DataError where the fields of a target that was read do not go together."""
    if target.std <= 0 or (target.task == "classification" and len(target.classes) < 2):
        came = f"{target.std} and {list(target.classes)}"
        raise DataError(f"target: expected std > 0 and two classes or more, got {came}")
    if target.threshold is not None and not (0 < target.threshold < 1 and len(target.classes) == 2):
        raise DataError(f"target: expected a threshold in (0, 1) of two classes, got {target.threshold}")


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
        written: Mapping[str, str] | None = None,
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
            written: how raw rows write the dates of a column, one of `htaf.data.dates.ORDERS`, else year first; or the
                unit of the numbers of a column or of the target, see `htaf.data.cells.unit_of`, else none.
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
        target, notes, written = np.asarray(target), list[Note](), written or {}
        learned = learn_target(target, task, target_name, tuple(classes), notes, weights)
        learned = replace(learned, unit=written.get(target_name, ""))
        wanted = encoding_outputs(target, learned)
        columns, codes = list[Column](), tuple(float(code) for code in special_codes)
        for name, column in ((str(name), column) for name, column in features.items()):
            column = column if rows is None else column.iloc[rows]
            if is_date(column):
                columns.append(_learn_date(column, name, notes, wanted[1], written.get(name, "")))
            elif is_text(column):
                columns.append(_learn_category(column, name, notes, wanted))
            else:
                columns.append(_learn_number(column, name, codes, notes, wanted[1], written.get(name, "")))
        notes.sort(key=lambda note: note.kind in OF_COLUMNS)  # one sentence about several columns, at the end
        return cls(columns, learned, codes, notes, ids, separators)

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
                raw = features[column.name] if rows is None else features[column.name].iloc[rows]
                values = read_values(column, raw)
                _note_without(column, raw, notes)
                for place in self._inputs[column.name, "missing"]:
                    inputs[:, place] = pd.isna(values)
                if column.kind == "number":
                    found = self._number(column, values, notes)
                else:
                    dated = column.kind == "date"
                    found = _date(column, values, notes) if dated else _encoded(column, values, notes, cross)
                places = [*self._inputs[column.name, column.kind], *self._inputs[column.name, "code"]]
                for place, made in zip(places, found, strict=True):
                    inputs[:, place] = made
        if not np.isfinite(inputs.sum(0, dtype=np.float64)).all():
            row, place = np.argwhere(~np.isfinite(inputs))[0]
            row = row if rows is None else rows[row]
            raise TableError(
                "the value is too far outside the training range for float32", self.feature_names[place], int(row) + 1
            )
        return inputs, sorted(notes, key=lambda note: note.kind in OF_COLUMNS)

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
            notes.append(Note("missing" if column.missing else "median", column.name, missing, (f"{column.fill:g}",)))
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
        columns = list[Column]()
        for place, entry in enumerate(top["columns"]):
            where = f"columns[{place}]"
            kind = stored.value(Kind, entry.get("kind") if isinstance(entry, dict) else None, where)
            columns.append(stored.read(Column, entry, where, ("name", "kind", *KEYS[kind])))
            _check_column(columns[-1], where)
        target = stored.read(Target, top["target"], "target")
        _check_target(target)
        if len({column.name for column in columns}) != len(columns):
            raise DataError("preprocessing columns: expected distinct names, got one twice")
        try:
            notes = [Note.from_json(value) for value in top["notes"]]
        except ValueError as error:
            raise DataError(f"notes: {error}") from None
        codes = stored.value(tuple[float, ...], top["special_codes"], "special_codes")
        ids = stored.value(tuple[str, ...], top["ids"], "ids")
        separators = stored.value(Separators, top["separators"], "separators")
        return cls(columns, target, codes, notes, ids, separators)


def _encoded(
    column: Column,
    values: Shaped[np.ndarray, " rows"],
    notes: list[Note],
    cross: Float64[np.ndarray, "rows outputs"] | None,
) -> Iterator[Shaped[np.ndarray, " rows"]]:
    """Return the inputs of the category of each row, an output at a time, those of an encoded column scaled; cross: for
    training rows, cross-fitted."""
    found, one_hot, count = places(column, values), column.kind == "category", len(column.categories)
    if unseen := values[found < 0].tolist():
        rare = column.other or 2 * count * len(column.outputs) > MOST_CELLS  # then rare ones may have no mean
        which = "rare in training or not seen" if rare else "not seen in training"
        instead = f"input {column.name}={OTHER}" if column.other else "all inputs 0" if one_hot else "the target's mean"
        notes.append(Note("unseen", column.name, len(unseen), (which, instead, *dict.fromkeys(unseen))[:MOST_NAMED]))
    if one_hot:
        yield from (found == place for place in range(count))
        yield from [found < 0] * column.other
        return
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
        kind = "missing" if column.missing else "median"  # with an input of its own
        notes.append(Note(kind, column.name, missing, (str(filled.astype("M8[D]")),)))
        values = np.where(np.isnat(values), filled, values)
    parts = dates.numbers(values, first) if column.outputs else {}
    return (_scaled(parts[part], column, output) for output, part in enumerate(column.outputs))


def _note_without(column: Column, raw: pd.Series, notes: list[Note]) -> None:
    """Note numbers without the unit, and times without the time zone, that training had."""
    if column.unit:
        plain, what = (~np.isnan(to_number(raw)[0])).sum(), (f"the unit {column.unit!r}", "if it were there")
    elif column.zoned:
        plain, what = dates.parsed(raw, column.order)[2].sum(), ("the time zone", "UTC")
    else:
        return
    if plain:
        notes.append(Note("without", column.name, int(plain), what))


def _note_outside(name: str, values: Shaped[np.ndarray, " present"], low: Any, high: Any, notes: list[Note]) -> None:
    """Note numbers or dates that are present and outside the range that the training part had."""
    outside = values[(values < low) | (values > high)]
    if len(outside):
        of = (outside.min(), outside.max(), low, high)
        if isinstance(low, np.datetime64):  # with as many decimals of a second as are not 0
            of = (str(one.astype("M8[us]")).rstrip("0").rstrip(".") for one in of)
        shown = tuple(one if isinstance(one, str) else float(one) for one in of)
        notes.append(Note("outside", name, len(outside), shown))


def is_by_chance(note: Note, rows: int, trained: int) -> bool:
    """Return whether values outside the range of training are as in any random part of a table.

    Of m rows beside n training rows k or more are outside in a column with probability q^k (1 + k (1 - q)), with q = m
    / (m + n). By chance are at most 1% of the rows, or k of a probability of 0.001 or more, none farther beyond the
    range than it is wide.

    Args:
        note: of any kind, "outside" alone can be. rows: that it is about, m. trained: n.
    """
    if note.kind != "outside":
        return False
    ends = [np.datetime64(end, "us").astype(float) if isinstance(end, str) else end for end in note.values]
    low, high, least, most = ends
    q = rows / (rows + trained)
    near = max(least - low, high - most) <= most - least
    return near and (note.count <= 0.01 * rows or q**note.count * (1 + note.count * (1 - q)) >= 1e-3)


def _scaled(values: Float64[np.ndarray, " rows"], column: Column, output: int) -> Float64[np.ndarray, " rows"]:
    low, high = column.lows[output], column.highs[output]
    return (values - low) / (high - low if high > low else 1)


# ---- classes in their own type ----


def read_labels(texts: Sequence[str]) -> np.ndarray:
    """Read names of classes as a reader of the file has them: whole numbers, other numbers, truth values or text."""
    if {*texts} <= {"True", "False"}:
        return np.array([text == "True" for text in texts])
    for kind in (int, float):
        try:
            values = [kind(text) for text in texts]
        except ValueError:
            continue
        if [str(value) for value in values] == [*texts]:
            return np.array(values)
    return np.array(texts, dtype=object)


LABELS = (str, int, float, bool)


def labels_of(record: Mapping[str, Any]) -> list[Any] | None:
    """Return the classes in the type of the target of an estimator that was saved; None: of a run of the command, of
    dates."""
    entry = record.get("estimator") or {}
    return entry.get("classes") if entry.get("dtype", "M").lstrip("<>=|")[:1] in "Obiuf" else None


def relabelled(found: pd.DataFrame, classes: Sequence[str], labels: Any = None) -> pd.DataFrame:
    """Return predictions with the classes in the type of the training's target, so that they can be compared with it.

    Args:
        found: `prediction` holds classes as text; not changed.
        classes: as the preprocessing names them; none of a regression.
        labels: a list of one for each, as `labels_of`; anything else: as `read_labels` reads them.
    """
    known = isinstance(labels, list) and len(labels) == len(classes) and all(type(v) in LABELS for v in labels)
    values = pd.Series(labels).to_numpy() if known else read_labels(classes)
    if not len(classes) or values.dtype == object:
        return found
    return found.assign(prediction=values[pd.Index(classes).get_indexer(pd.Index(found["prediction"]))])
