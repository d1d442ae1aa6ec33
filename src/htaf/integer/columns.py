"""What the numbers of a program mean, as text at the head of an export, from which it can be read again."""

from __future__ import annotations

import json
import re
from typing import Any

from htaf.data.numerals import BLANKS
from htaf.integer.program import IntegerProgram

_RULES = """\
How raw values become x, one line an input. v is the value of "column" in a row. It is missing where it is empty or one
of {blanks} in any case, of numbers also none. fixed(t) is t rounded to float32, times 2^{exponent}, rounded half to
even, clamped to {low}..{high}. v * scale + offset and the like are float64.
  number: fixed(v * scale + offset), v without its "unit"; "fill" in place of a missing v and of one of "codes"
  code: fixed(1) where v is "code", else 0; missing: fixed(1) where v is missing, else 0
  date: fixed((p - low) / (high - low)), p: the "part" of v, or of "fill" where v is missing. Dates are in UTC where a
    zone is known. weekday: Monday is 0; hour, and elapsed days since "first": with their fraction
  category: fixed(1) where v is that text, "" for a missing one, else 0; other: fixed(1) where v is none of "texts"
  encoded: the number of the text in "values", of others "otherwise"
Texts are compared without blanks at their ends and without case, single letters other than y, n, t and f with it.
low and high of a number or a date are those of the training rows; values outside them are allowed."""
_MEANS = {
    "regression": 'prediction = y[0] * {unit} * "std" + "mean"',
    "classification": 'y[i] belongs to class i; the class is that of the first greatest y, or, with a "threshold", '
    "class 1 from this probability on: 1 / (1 + exp((y[0] - y[1]) * {unit}))",
}


def lines(program: IntegerProgram) -> list[str]:
    """Text for a comment: how raw values become the inputs, a line of JSON each, and what the outputs are.

    None where `about` has no "columns" and no "target", as `htaf.runs.integer` makes them.
    """
    given, about, found = program.input, program.about, list[str]()
    if columns := about.get("columns"):
        blanks = ", ".join(sorted(BLANKS - {""}))
        rules = _RULES.format(blanks=blanks, exponent=given.exponent, low=given.low, high=given.high)
        found += [*rules.splitlines(), *map(_json, columns)]
    if target := about.get("target"):
        exponent, divisor = program.unit
        unit = f"2^{exponent} / {divisor}" if divisor != 1 else f"2^{exponent}"
        found += [_MEANS[target["task"]].format(unit=unit), _json({"y": target})]
    return found


def read(text: str) -> list[dict[str, Any]]:
    """The inputs that the comments of an export list; none where it lists none."""
    return [json.loads(line) for line in re.findall(r'^(?:   |// |)(\{"x": .*\})$', text, re.MULTILINE)]


def _json(said: dict[str, Any]) -> str:
    """One line that neither ends a comment nor begins one."""
    text = re.sub(r"/(?=\*)|(?<=\*)/", r"\\u002f", json.dumps(said, ensure_ascii=False))
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
