"""Dates in a table: which texts are dates, in which order, and the numbers that a network is told of one."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64, Int64, Shaped

from htaf._ground.errors import counted
from htaf.data.cells import TableError, is_date, to_text
from htaf.data.notes import Note

YEAR_FIRST, DAY_FIRST, MONTH_FIRST, BY_NAME = "year-month-day", "day-month-year", "month-day-year", "month by name"
ORDERS = (YEAR_FIRST, DAY_FIRST, MONTH_FIRST, BY_NAME)
EXAMPLES: dict[str, str] = dict(zip(ORDERS, ("2012-01-31", "31.01.2012", "01/31/2012", "31 Jan 2012"), strict=True))
DAYS = "elapsed days"
PARTS = ("year", "month", "weekday", "day of year", "hour", DAYS)
DAY = 86_400_000_000  # microseconds

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NAMES = (
    "jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|"
    "nov(?:ember)?|dec(?:ember)?"
)
_DATE = re.compile(
    r"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,? +)?"
    r"(?:(?P<y1>\d{4})(?:(?P<s1>[-/.])(?P<m1>\d{1,2})(?P=s1)(?P<d1>\d{1,2})|[-/](?P<m0>\d{1,2}))"
    r"|(?P<a>\d{1,2})(?P<s2>[-/.])(?P<b>\d{1,2})(?P=s2)(?P<y2>\d{4})"
    r"|(?P<a3>\d{1,2})/(?P<b3>\d{1,2})/(?P<y3>\d{2})"
    rf"|(?P<d4>\d{{1,2}})(?:st|nd|rd|th)?[- ](?P<m4>{_NAMES})\.?[-, ]+(?P<y4>\d{{4}})"
    rf"|(?P<m5>{_NAMES})\.? +(?P<d5>\d{{1,2}})(?:st|nd|rd|th)?,? +(?P<y5>\d{{4}}))"
    r"(?:(?:T|,? +)(?P<h>\d{1,2}):(?P<i>\d{2})(?::(?P<s>\d{2})(?:[.,](?P<f>\d{1,9}))?)?"
    r"(?: ?(?P<p>[ap])\.?m\.?)?(?: ?(?P<z>Z|UTC|GMT|[+-]\d{2}:?\d{2}))?)?",
    re.IGNORECASE,
)
_ZONE = re.compile(r":\d{2}.*(?:Z|UTC|GMT|[+-]\d{2}:?\d{2})$", re.IGNORECASE)  # of a text that is a date
_NONE, _YEAR, _NUMBERS, _NAME = range(4)  # how a text was written
_SAMPLE, _SCANNED = 200, np.dtype((np.int64, 6))
MIXED_CATEGORIES = 20  # a column that mixes texts with dates or numbers is a category up to this many distinct values
_MOSTLY = 0.9  # share of dates from which the other texts of a column are taken for mistakes


@dataclass(frozen=True)
class Dates:
    """A column that holds dates.

    Attributes:
        order: one of `ORDERS`.
        values: datetime64[us] [rows], NaT where missing; UTC where a zone was written.
        open: no row says whether day or month comes first.
        example: the first text.
        zoned: share of the different texts that have a time zone.
    """

    order: str
    values: Shaped[np.ndarray, " rows"]
    open: bool
    example: str
    zoned: float = 0.0


def native(column: pd.Series) -> Shaped[np.ndarray, " rows"]:
    """Return a column of dates as datetime64[us] [rows], in UTC where it has a time zone."""
    if isinstance(column.dtype, pd.PeriodDtype):
        column = column.dt.to_timestamp()
    if not isinstance(column.dtype, np.dtype):
        column = pd.to_datetime(column, utc=True).dt.tz_localize(None)
    return column.to_numpy().astype("datetime64[us]")


def has_zone(column: pd.Series) -> bool:
    """Return whether a column of dates has a time zone by its dtype."""
    return getattr(column.dtype, "tz", None) is not None


def find(name: str, codes: Int64[np.ndarray, " rows"], texts: Shaped[np.ndarray, " texts"]) -> Dates | Note | None:
    """Find the dates of a column of texts; a note where it is a category in which half of the texts or more are dates;
    None where it holds none.

    ISO 8601 (2012-01-31, 2012-01-31T13:00:00Z), year first with / or ., three numbers with the year last, and months
    by name, each with or without a time. A year alone, 20120131 and other numbers are no dates.

    Args:
        name: of the column, for messages.
        codes: the place of each row's text in `texts`, -1 where missing. texts: each once, as they come.
    Raises:
        TableError: dates of several forms; or mostly dates, with some other text among them.
    """

    def row(place: int) -> int:
        return int(np.argmax(codes == place)) + 1

    def mixed(places: np.ndarray, why: str) -> TableError:
        one, two = sorted(places.tolist(), key=row)
        wanted = f"expected dates of one form, got {texts[two]!r} after {texts[one]!r}{why}"
        return TableError(f"{wanted}: write all as 2012-01-31 or exclude the column", name, row(two))

    present = codes[codes >= 0]
    some = texts[present[np.unique(np.linspace(0, len(present) - 1, _SAMPLE).astype(int))]] if len(present) else []
    if sum(_DATE.fullmatch(text) is not None for text in some) * 2 < max(len(some), 1):
        return None
    scanned: Any = np.fromiter(map(_fields, texts), _SCANNED, len(texts))
    how, first, second = scanned[:, 0], scanned[:, 2], scanned[:, 3]
    if (wrong := how == _NONE).any():
        others, place = int(wrong[present].sum()), int(np.argmax(wrong))
        known = len(present) - others
        if known < _MOSTLY * len(present) or len(texts) <= MIXED_CATEGORIES:
            advice = "; correct them or leave them blank to have dates"
            return Note("mixed", name, others, (counted(known, "date"), str(texts[place]), advice), row(place))
        wanted = f"expected a date as in {known / len(present):.1%} of the rows, got {texts[place]!r}"
        raise TableError(f"{wanted}; correct it, leave it blank or exclude the column", name, row(place))
    kinds, places = np.unique(how, return_index=True)
    if len(kinds) > 1:
        raise mixed(np.sort(places)[:2], "")
    order, either = {_YEAR: YEAR_FIRST, _NAME: BY_NAME}.get(int(kinds[0]), ""), False
    if not order:
        day_first, month_first = first > 12, second > 12
        if day_first.any() and month_first.any():
            pair = np.array([np.argmax(day_first), np.argmax(month_first)])
            raise mixed(pair, ", one with the day and one with the month first")
        either = not (day_first.any() or month_first.any())
        slashes = either and "/" in texts[0]
        order = MONTH_FIRST if month_first.any() or slashes else DAY_FIRST
    values = _values(scanned, order)
    if (bad := np.isnat(values)).any():  # such as 2012-02-31
        place = int(np.argmax(bad))
        if bad.mean() > 1 - _MOSTLY:
            return None
        why = f"expected a date ({order}), got {texts[place]!r}, which the calendar does not have"
        raise TableError(why, name, row(place))
    zoned = sum(_ZONE.search(text) is not None for text in texts) / len(texts)
    return Dates(order, np.append(values, np.datetime64("NaT", "us"))[codes], either, str(texts[0]), zoned)


def read(name: str, column: pd.Series, order: str, zoned: bool) -> Shaped[np.ndarray, " rows"]:
    """Read the dates of a column whose order is known; year first and months by name are always read.

    Args:
        column: any dtype, [rows]. order: one of `ORDERS`. zoned: whether training had a time zone.
    Returns:
        datetime64[us] [rows], NaT where missing; in UTC where a zone is given.
    Raises:
        TableError: a text that is no date, or one of another form; no time zone in any row where training had one, or
            one where it had none.
    """
    values, wrong, naive = parsed(column, order)
    present = wrong | ~np.isnat(values)
    if present.any() and ((present == naive).all() if zoned else (present != naive).any()):
        row = int(np.argmax(naive if zoned else present & ~naive))
        wanted, do = (
            ("with a time zone", f"write it, as in 2012-01-31T13:00+01:00 or by frame[{name!r}].dt.tz_localize")
            if zoned
            else ("without a time zone", "convert to the zone that those of training were in, and leave it out")
        )
        raise TableError(f"expected times {wanted}, as in training, got {str(column.iloc[row])!r}: {do}", name, row + 1)
    if wrong.any():
        row = int(np.argmax(wrong))
        came = str(column.iloc[row]).strip()
        forms = " or ".join(dict.fromkeys((EXAMPLES[order], EXAMPLES[YEAR_FIRST])))
        raise TableError(f"expected a date ({order}, as in training), got {came!r}: write {forms}", name, row + 1)
    return values


def parsed(
    column: pd.Series, order: str
) -> tuple[Shaped[np.ndarray, " rows"], Bool[np.ndarray, " rows"], Bool[np.ndarray, " rows"]]:
    """Return dates of a column whose order is known, as `read` gives them; which rows hold a text that is none, and
    which rows have a value without a time zone."""
    if is_date(column):
        return native(column), np.zeros(len(column), dtype=bool), column.notna().to_numpy() & (not has_zone(column))
    codes, texts = pd.factorize(to_text(column))  # missing: -1
    scanned: Any = np.fromiter(map(_fields, texts), _SCANNED, len(texts))
    if order not in (DAY_FIRST, MONTH_FIRST):
        scanned[scanned[:, 0] == _NUMBERS, 0] = _NONE
    values = np.append(_values(scanned, order), np.datetime64("NaT", "us"))
    naive = np.array([*(_ZONE.search(text) is None for text in texts), False])
    return values[codes], np.append(np.isnat(values[:-1]), False)[codes], naive[codes]


def _fields(text: str) -> tuple[int, int, int, int, int, int]:
    """Return how a text is written, year, two numbers (month and day where they are known), microseconds of the day,
    and minutes by which its zone is ahead of UTC."""
    match = _DATE.fullmatch(text)
    if match is None:
        return (_NONE, 0, 0, 0, 0, 0)
    of = match.groupdict()
    if of["y1"]:
        how, year, one, two = _YEAR, of["y1"], of["m1"] or of["m0"], of["d1"] or "1"
    elif of["y2"]:
        how, year, one, two = _NUMBERS, of["y2"], of["a"], of["b"]
    elif of["y3"]:  # as POSIX reads two digits
        year = of["y3"]
        how, year, one, two = _NUMBERS, ("19" if int(year) >= 69 else "20") + year, of["a3"], of["b3"]
    else:
        how, year, two = _NAME, of["y4"] or of["y5"], of["d4"] or of["d5"]
        one = str(_MONTHS.index((of["m4"] or of["m5"])[:3].lower()) + 1)
    hour, minute, second = int(of["h"] or 0), int(of["i"] or 0), int(of["s"] or 0)
    if of["p"]:
        if not 1 <= hour <= 12:
            return (_NONE, 0, 0, 0, 0, 0)
        hour = hour % 12 + (12 if of["p"].lower() == "p" else 0)
    if hour > 23 or minute > 59 or second > 59:
        return (_NONE, 0, 0, 0, 0, 0)
    zone = of["z"] or ""
    ahead = (int(zone[1:3]) * 60 + int(zone[-2:])) * (-1 if zone[0] == "-" else 1) if zone[:1] in ("+", "-") else 0
    fraction = int((of["f"] or "0")[:6].ljust(6, "0"))
    time = ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction
    return (how, int(year), int(one), int(two), time, ahead)


def _values(scanned: Int64[np.ndarray, "texts 6"], order: str) -> Shaped[np.ndarray, " texts"]:
    """datetime64[us], NaT where the calendar has no such date; numbers with the year last in this order."""
    how, year, one, two, time, ahead = scanned.T
    swapped = (how == _NUMBERS) & (order == DAY_FIRST)
    month, day = np.where(swapped, two, one), np.where(swapped, one, two)
    good = (how != _NONE) & (month >= 1) & (month <= 12) & (day >= 1) & (year >= 1)
    begins = ((year - 1970) * 12 + np.where(good, month, 1) - 1).astype("datetime64[M]")
    days = begins.astype("datetime64[D]") + (day - 1)
    good &= days.astype("datetime64[M]") == begins
    values = days.astype("datetime64[us]") + (time - ahead * 60_000_000).astype("timedelta64[us]")
    values[~good] = np.datetime64("NaT", "us")
    return values


def numbers(values: Shaped[np.ndarray, " rows"], first: np.datetime64) -> dict[str, Float64[np.ndarray, " rows"]]:
    """Turn dates into numbers for a network: a float64 column for each of `PARTS`, NaN where missing.

    Weekday: 0 for Monday to 6. Hour: with its fraction. Elapsed days: since `first`, with their fraction.
    """
    index, missing = pd.DatetimeIndex(values), np.isnat(values)
    since_midnight = (values - values.astype("datetime64[D]")).astype(np.int64)
    found = {
        "year": index.year, "month": index.month, "weekday": index.day_of_week, "day of year": index.day_of_year,
        "hour": since_midnight / (DAY / 24), "elapsed days": (values - first).astype(np.int64) / DAY,
    }  # fmt: skip
    return {name: np.where(missing, np.nan, np.asarray(part, dtype=np.float64)) for name, part in found.items()}
