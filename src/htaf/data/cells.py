"""Cells of a table as text and as numbers: one grammar for sign, brackets, currency, thousands, decimals and unit."""

import math
import re
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64, Shaped

from htaf._ground.errors import DataError

BLANKS = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "?", "<na>"})  # texts in place of a value, in any case
NUMBER_BLANKS = BLANKS | {"none"}  # "None" is a common category, but never a number
SPACE = "[ \u00a0\u2009\u202f]"  # before a unit, and between thousands
_APOSTROPHE = "['\u2019]"
_SIGN = "[+\u2212-]"
_BEFORE = r"(?:US|A|C|HK|NZ|S|R)?[$€£¥₹]|CHF|CNY|CZK|DKK|EUR|GBP|INR|JPY|NOK|PLN|SEK|USD|Fr\.|Rs\.?"
_AFTER = r"[$€£¥₹%‰°]|°?[^\W\d_]{1,5}[²³]?(?:/[^\W\d_]{1,3}[²³]?)?"
_NUMBER = re.compile(
    rf"(?P<open>\()?(?P<sign>{_SIGN}(?=[^\d\s+-]))?(?P<before>{_BEFORE})?{SPACE}?"
    rf"(?P<number>(?(sign)|{_SIGN}?)"
    rf"(?:(?:\d+|[1-9]\d{{0,2}}(?:(?:,\d{{3}})+|(?:{_APOSTROPHE}\d{{3}})+|(?:{SPACE}\d{{3}})+)"
    rf"|[1-9]\d?(?:,\d\d)+,\d{{3}})(?:\.\d+)?|\.\d+))"
    rf"(?:{SPACE}?(?P<after>{_AFTER})|(?P<behind>-))?(?P<close>(?(open)\)))"
)
_TIME = re.compile(rf"({_SIGN})?(\d{{1,3}}):([0-5]\d)(?::([0-5]\d(?:\.\d+)?))?(?: ?([ap])\.?m\.?)?", re.IGNORECASE)
_COMMA = re.compile(rf"{_SIGN}?(?:\d+|\d{{1,3}}(?:\.\d{{3}})+),\d+")
TIME = "#:#"  # the unit of times of the day, in hours
# of thousands and of decimals, as the numbers of a file show them; "": they show neither
Separators = Literal["", ".", ",", ".,"]
_GROUPS = re.compile(f"(?<=\\d)(?:,|{_APOSTROPHE}|{SPACE})(?=\\d)")

# in Arrow's regular expressions: all numbers with decimal commas, and what is one with a comma or a point alone
_DECORATED = r"^\(?{sign}?({before})? ?{sign}?({number})" + "({space}?({after})|-)?\\)?$"
_OF_ARROW = {"sign": _SIGN, "before": _BEFORE, "space": SPACE, "after": _AFTER.replace(r"[^\W\d_]", r"\pL")}
_IN_GROUPS = rf"\d+|[1-9]\d{{0,2}}((\.\d{{3}})+|({_APOSTROPHE}\d{{3}})+|({SPACE}\d{{3}})+)"
WITH_COMMA = _DECORATED.format(number=rf"({_IN_GROUPS})(,\d+)?([eE][+-]?\d+)?", **_OF_ARROW)
ONLY_COMMA = r"(^|\D)0,\d|,(\d{1,2}|\d{4,})(\D|$)|\.\d{3}[,.]\d|\d{4},\d"
ONLY_POINT = _DECORATED.format(number=r"\d*\.(\d{1,2}|\d{4,})|0?\.\d+|[\d,]*,\d{3}\.\d+|\d{4,}\.\d+", **_OF_ARROW)
DOTS = r"\d\.\d{3}(\D|$)"  # of numbers as `WITH_COMMA`: thousands or decimals


class TableError(DataError):
    """A cell of a table that cannot be used; the message is made of these attributes when it is shown.

    Attributes:
        what: what was expected, and what came.
        column, row: where; the row counts from 1.
        table: in which table, where that is to be said.
    """

    def __init__(self, what: str, column: str, row: int, table: str = "") -> None:
        super().__init__(what)
        self.what, self.column, self.row, self.table = what, column, row, table

    def __str__(self) -> str:
        table = f"{self.table}, " if self.table else ""
        return f"{table}column {self.column!r}, row {self.row}: {self.what}"

    def __reduce__(self) -> Any:
        return type(self), (self.what, self.column, self.row, self.table)


# ---- columns ----


def is_text(column: pd.Series) -> bool:
    """Return whether a column is a category by its dtype: text and truth values are; numbers and dates are not."""
    return pd.api.types.is_bool_dtype(column) or not (pd.api.types.is_numeric_dtype(column) or is_date(column))


def is_date(column: pd.Series) -> bool:
    """Return whether a column holds dates by its dtype: dates, times with or without a zone, and periods. Texts may be
    dates too, see `htaf.data.dates.find`."""
    return pd.api.types.is_datetime64_any_dtype(column) or isinstance(column.dtype, pd.PeriodDtype)


def to_text(column: pd.Series, blanks: frozenset[str] = BLANKS) -> Shaped[np.ndarray, " rows"]:
    """Return one column as stripped text, None where missing.

    Whole numbers lose their ".0", so that a category 1 reads the same from an integer and a float column.

    Args:
        column: any dtype, [rows].
        blanks: lower-case texts that count as missing.
    Returns:
        object [rows] of str or None.
    """

    def text(value: object) -> str | None:
        if isinstance(value, float | np.floating) and float(value).is_integer():
            value = int(value)
        stripped = str(value).strip()
        return None if stripped.lower() in blanks else stripped

    if isinstance(column.dtype, pd.CategoricalDtype):  # each text once
        texts = to_text(pd.Series(np.asarray(column.cat.categories, dtype=object)), blanks)
        return np.append(texts, np.array([None]))[column.cat.codes.to_numpy()]
    result = np.empty(len(column), dtype=object)
    missing = column.isna().to_numpy(dtype=bool)
    result[:] = [None if gone else text(value) for value, gone in zip(column, missing, strict=True)]
    return result


def to_number(column: pd.Series, unit: str = "") -> tuple[Float64[np.ndarray, " rows"], Bool[np.ndarray, " rows"]]:
    """Return one column as numbers, and where it holds text that is no number.

    Texts are read by `number_in`. A text beyond float64, such as the code 8E467, is no number.

    Args:
        column: any dtype, [rows].
        unit: as `unit_of` gives it, that texts may have.
    Returns:
        values float64 [rows], NaN where missing or wrong; wrong bool [rows].
    Raises:
        DataError: complex numbers.
    """
    if getattr(column.dtype, "kind", "") == "c":
        raise DataError(f"column {str(column.name)!r}: expected real numbers, got complex ones")
    if pd.api.types.is_numeric_dtype(column):
        plain = column.dtype == np.float64  # the same memory
        values = column.to_numpy() if plain else column.to_numpy(dtype=np.float64, na_value=np.nan)
        return values, np.zeros(len(values), dtype=bool)
    if isinstance(column.dtype, pd.CategoricalDtype):  # each text once
        values, wrong = to_number(pd.Series(np.asarray(column.cat.categories, dtype=object)), unit)
        codes = column.cat.codes.to_numpy()
        return np.append(values, np.nan)[codes], np.append(wrong, False)[codes]
    values, wrong = np.full(len(column), np.nan), np.zeros(len(column), dtype=bool)
    for row, text in enumerate(to_text(column, NUMBER_BLANKS)):
        if text is None:
            continue
        try:
            number = float(text)
            # float() reads 1_000, a table does not
            wrong[row] = "_" in text or (math.isinf(number) and "inf" not in text.lower())
            values[row] = np.nan if wrong[row] else number
        except ValueError:
            found = number_in(text, unit)
            wrong[row], values[row] = found is None, np.nan if found is None else found
    return values, wrong


def finite_numbers(
    column: pd.Series, name: str, where: str = "", table: str = "", unit: str = ""
) -> Float64[np.ndarray, " rows"]:
    """Return one column as numbers that are all finite; see `to_number`.

    Args:
        column: any dtype, [rows].
        name, table: what messages call it and its table. where: what it is to them, as in "a number in the target".
        unit: as of `to_number`.
    Returns:
        float64 [rows], NaN where missing.
    Raises:
        TableError: a text that is no number, or an infinite one.
    """
    values, wrong = to_number(column, unit)
    for bad, wanted in ((wrong, "a number"), (np.isinf(values), "a finite number")):
        if bad.any():
            row = int(np.argmax(bad))
            came = str(column.iloc[row])
            nearly = is_nearly_number(came.strip())
            written = f": write numbers as {(unit or '#').replace('#', '1234.5')}" if nearly else ""
            raise TableError(f"expected {wanted}{where}, got {came[:40]!r}{written}", name, row + 1, table)
    return values


def lost_digits(column: pd.Series, values: Float64[np.ndarray, " rows"]) -> int | None:
    """Return the first row (from 0) whose whole number float64 rounds; None where every one is kept, as all up to 2^53
    are.

    Args:
        column: any dtype, [rows].
        values: float64 [rows], the same as numbers, NaN where they are none.
    """
    for row in np.flatnonzero(np.isfinite(values) & (np.abs(values) >= 2**53)).tolist():
        try:
            number = int(str(column.iloc[row]).strip())
        except ValueError:
            continue  # 1e300 means the float
        if number != int(values[row]):
            return row
    return None


# ---- texts ----


def is_number(text: str) -> bool:
    """Return whether Python reads this text as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def parts_of(text: str) -> tuple[float, str, str] | None:
    """Find the number in a text, and what stands before and after it; None where it is none."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    digits = found["number"].replace("\u2212", "-")
    value = float(_GROUPS.sub("", digits))
    if found["open"] or found["behind"] or found["sign"] in ("-", "\u2212"):
        value = -abs(value)
    return value, found["before"] or "", found["after"] or ""


def _hours(text: str) -> float | None:
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    sign, hour, minute, second, half = found.groups()
    if half and (sign or not 1 <= int(hour) <= 12):
        return None
    whole = int(hour) % 12 + 12 * (half in "pP") if half else int(hour)
    value = whole + int(minute) / 60 + float(second or 0) / 3600
    return -value if sign in ("-", "\u2212") else value


def unit_of(texts: Iterable[str | None]) -> str | None:
    """Find the unit in which each of the texts is a number, as "#" between what stands before and after: "$#", "#%",
    "#kg"; or `TIME`; None where they do not agree on one, or have none."""
    given = [text for text in texts if text is not None]
    hours = [_hours(text) for text in given]
    if given and None not in hours:
        colons = [text.count(":") for text in given]
        no_day = any(count == 1 and abs(hour or 0) >= 24 for count, hour in zip(colons, hours, strict=True))
        return None if 2 in colons and no_day else TIME  # 45:10 beside 1:02:03 is of minutes and seconds
    parts = [parts_of(text) for text in given]
    found = {None if of is None else of[1:] for of in parts} - {("", "")}
    unit = found.pop() if len(found) == 1 else None
    return unit and f"{unit[0]}#{unit[1]}" if all(of and of[1:] == unit for of in parts) else None


def number_in(text: str, unit: str = "") -> float | None:
    """Find the number in a text without a unit or with this one, as `unit_of` gives it; None where it is none.

    Thousands may be set apart, as in 1,352 or 1'352.5 or 1 352, and a number in brackets is below 0.
    """
    if unit == TIME and (hours := _hours(text)) is not None:
        return hours
    found = parts_of(text)
    return found[0] if found and f"{found[1]}#{found[2]}" in ("#", unit) else None


def is_nearly_number(text: str) -> bool:
    """Return whether a text is a number in any unit, or with a decimal comma, such as 12,5 or 1.139,99."""
    return parts_of(text) is not None or _COMMA.fullmatch(text) is not None


def is_padded(texts: Iterable[str]) -> str | None:
    """Return the first of texts that begins with a 0 before further digits, where all are digits alone: codes, as 01067
    and 1067 are two; else None."""
    given = [text for text in texts if text.lower() not in NUMBER_BLANKS]
    first = next((text for text in given if len(text) > 1 and text[0] == "0"), None)
    return first if first and all(text.isascii() and text.isdigit() for text in given) else None
