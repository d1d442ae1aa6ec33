"""Numbers as people write them: one grammar for sign, brackets, currency, thousands, decimals, magnitude and unit."""

import re
from collections.abc import Iterable
from typing import Literal

import numpy as np

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
_DURATION = re.compile(r"(-?\d+) days?(?: \+?(\d\d):(\d\d):(\d\d(?:\.\d+)?))?")  # as pandas writes it
_TIME = re.compile(rf"({_SIGN})?(\d{{1,3}}):([0-5]\d)(?::([0-5]\d(?:\.\d+)?))?(?: ?([ap])\.?m\.?)?", re.IGNORECASE)
_COMMA = re.compile(rf"{_SIGN}?(?:\d+|\d{{1,3}}(?:\.\d{{3}})+),\d+")
BLANKS = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "?", "<na>"})  # texts in place of a value, in any case
DURATION = "# days #:#:#"  # the unit of durations
TIME = "#:#"  # the unit of times of the day and of durations, in hours
_TIMES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "mn": 1e6, "B": 1e9, "bn": 1e9}
TIMES = "#kMB"  # ends the unit of numbers of which some are in thousands, millions or billions
# of thousands and of decimals, as the numbers of a file show them; "": they show neither
Separators = Literal["", ".", ",", ".,"]
_GROUPS = re.compile(f"(?<=\\d)(?:,|{_APOSTROPHE}|{SPACE})(?=\\d)")
SECONDS = 86_400  # of a day

# in Arrow's regular expressions: all numbers with decimal commas, and what is one with a comma or a point alone
_DECORATED = r"^\(?{sign}?({before})? ?{sign}?({number})" + "({space}?({after})|-)?\\)?$"
_OF_ARROW = {"sign": _SIGN, "before": _BEFORE, "space": SPACE, "after": _AFTER.replace(r"[^\W\d_]", r"\pL")}
_IN_GROUPS = rf"\d+|[1-9]\d{{0,2}}((\.\d{{3}})+|({_APOSTROPHE}\d{{3}})+|({SPACE}\d{{3}})+)"
WITH_COMMA = _DECORATED.format(number=rf"({_IN_GROUPS})(,\d+)?([eE][+-]?\d+)?", **_OF_ARROW)
ONLY_COMMA = r"(^|\D)0,\d|,(\d{1,2}|\d{4,})(\D|$)|\.\d{3}[,.]\d|\d{4},\d"
ONLY_POINT = _DECORATED.format(number=r"\d*\.(\d{1,2}|\d{4,})|0?\.\d+|[\d,]*,\d{3}\.\d+|\d{4,}\.\d+", **_OF_ARROW)
DOTS = r"\d\.\d{3}(\D|$)"  # of numbers as `WITH_COMMA`: thousands or decimals


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


def _days(text: str) -> float | None:
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds = found.groups(default="0")
    return (int(days) * SECONDS + int(hours) * 3600 + int(minutes) * 60 + float(seconds)) / SECONDS


_OF_TIME = {DURATION: _days, TIME: _hours}


def unit_of(texts: Iterable[str | None]) -> str | None:
    """Find the unit in which each of the texts is a number, as "#" between what stands before and after: "$#", "#%",
    "#kg"; `DURATION` of such as pandas writes, `TIME`, or one that ends with `TIMES`; None where they do not agree on
    one, or have none."""
    given = [text for text in texts if text is not None]
    if given and all(_days(text) is not None for text in given):
        return DURATION
    if given and all(_hours(text) is not None for text in given):
        colons = [text.count(":") for text in given]
        no_day = any(count == 1 and abs(_hours(text) or 0) >= 24 for count, text in zip(colons, given, strict=True))
        return None if 2 in colons and no_day else TIME  # 45:10 beside 1:02:03 is of minutes and seconds
    found = set[tuple[str, str]]()
    for text in given:
        if (parts := parts_of(text)) is None:
            return None
        found.add(parts[1:])
    befores, afters = {before for before, _ in found}, {after for _, after in found}
    if len(found) == 1:
        ((before, after),) = found
        return f"{before}#{after}" if before or after else None
    if len(befores) == 1 and afters <= {*_TIMES}:
        return befores.pop() + TIMES
    return None


def number_in(text: str, unit: str = "") -> float | None:
    """Find the number in a text without a unit or with this one, as `unit_of` gives it; None where it is none.

    Thousands may be set apart, as in 1,352 or 1'352.5 or 1 352, and a number in brackets is below 0.
    """
    if (read := _OF_TIME.get(unit)) is not None and (found := read(text)) is not None:
        return found
    if (found := parts_of(text)) is None:
        return None
    value, before, after = found
    if unit.endswith(TIMES) and before == unit.removesuffix(TIMES) and after in _TIMES:
        return value * _TIMES[after]
    return value if f"{before}#{after}" in ("#", unit) else None


def units_of(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the different units of texts that are numbers, each as it is written."""
    found = (parts_of(text) for text in texts)
    return tuple(dict.fromkeys(f"{parts[1]}{parts[2]}" for parts in found if parts and any(parts[1:])))


def has_decimal_comma(text: str) -> bool:
    """Return whether a text is a number with a decimal comma, such as 12,5 or 1.139,99."""
    return _COMMA.fullmatch(text) is not None and number_in(text) is None


def form_of(text: str) -> str:
    """Return how a text is written but for its digits: "13h45" and "9h05" are "#h#"."""
    return re.sub(r"\d+", "#", text.casefold())


def is_padded(texts: np.ndarray) -> str | None:
    """Return the first of texts, None where missing, that begins with a 0 before further digits, where all are digits
    alone: codes, as 01067 and 1067 are two; else None."""
    first = next((text for text in texts if text is not None and len(text) > 1 and text[0] == "0"), None)
    return first if first and all(text is None or (text.isascii() and text.isdigit()) for text in texts) else None
