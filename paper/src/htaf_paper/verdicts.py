"""The rules by which claims of the paper are judged, each stated in words beside what it gives.

All compare means by an interval of 95%, Student's t, and never a single figure: a claim whose interval holds both
"yes" and "no" is not settled. A claim about the paper's own figures is testable at the scale `full` alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from scipy.special import stdtrit

from htaf_paper.protocol import Claim, Scale, Verdict

ORDER = (
    "holds if the 95% interval of the difference (ours on the same seeds or data sets, Student's t) lies above 0; does "
    "not hold if it lies below 0, or if its upper end is below half of the paper's difference; else not settled"
)
LEVEL = (
    "holds if the 95% interval of the difference lies above {bound}{unit}; does not hold if it lies below; "
    "else not settled"
)
UNTESTABLE = "needs the paper's own scale"
TRUE = "holds if it is so for every value that was computed, else it does not hold"


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95% interval by Student's t; infinite for fewer than two values."""
    mean = sum(values) / len(values) if values else math.nan
    if len(values) < 2:
        return mean, -math.inf, math.inf
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))
    half = float(stdtrit(len(values) - 1, 0.975)) * spread
    return mean, mean - half, mean + half


def spoken(mean: float, low: float, high: float, *, digits: int = 2, unit: str = "") -> str:
    """Mean [interval], with signs."""
    if not math.isfinite(low):
        return f"{mean:+.{digits}f}{unit} (one value)"
    return f"{mean:+.{digits}f}{unit} [{low:+.{digits}f}, {high:+.{digits}f}]"


def better(
    text: str, place: str, differences: Sequence[float], scale: Scale, *, paper: float | None = None, what: str = "",
    digits: int = 2, unit: str = "",
) -> Claim:  # fmt: skip
    """A claim that one method is better than another.

    Args:
        differences: ours, paired; above 0 where the claim is right. paper: the difference that the paper prints.
        what: of what they are, for the evidence.
    """
    least = 0.0 if paper is None else max(0.0, paper / 2)
    found = _compared(text, place, ORDER, differences, scale, (0.0, least), what=what, digits=digits, unit=unit)
    if paper is None or not differences:
        return found
    return dataclasses.replace(found, evidence=f"{found.evidence}; the paper has {paper:+.{digits}f}{unit}")


def no_worse(
    text: str, place: str, differences: Sequence[float], scale: Scale, *, margin: float, what: str = "",
    digits: int = 2, unit: str = "",
) -> Claim:  # fmt: skip
    """A claim that one method loses at most `margin` against another; the other arguments are those of `better`."""
    rule = LEVEL.format(bound=f"-{margin:g}" if margin else "0", unit=unit)
    return _compared(text, place, rule, differences, scale, (-margin, -margin), what=what, digits=digits, unit=unit)


def _compared(
    text: str, place: str, rule: str, differences: Sequence[float], scale: Scale, bounds: tuple[float, float], *,
    what: str, digits: int, unit: str,
) -> Claim:  # fmt: skip
    """bounds: it holds if the interval lies above the first, and does not if it lies below the second."""
    if not differences:
        verdict: Verdict = "not testable at this scale" if scale == "smoke" else "not run"
        return Claim(text, place, rule, verdict, "no pair was measured")
    mean, low, high = interval(differences)
    verdict = "not settled"
    if scale == "smoke":
        verdict = "not testable at this scale"
    elif low > bounds[0]:
        verdict = "holds"
    elif high < bounds[1]:
        verdict = "does not hold"
    shown = spoken(mean, low, high, digits=digits, unit=unit)
    return Claim(text, place, rule, verdict, f"{what} {shown}, n = {len(differences)}".lstrip())


def true(text: str, place: str, holds: bool, evidence: str, *, rule: str = TRUE, scale: Scale = "full") -> Claim:
    """A claim that is right or wrong without chance."""
    verdict: Verdict = "not testable at this scale" if scale == "smoke" else "holds" if holds else "does not hold"
    return Claim(text, place, rule, verdict, evidence)


def untestable(text: str, place: str, evidence: str) -> Claim:
    """A claim that needs a larger scale."""
    return Claim(text, place, UNTESTABLE, "not testable at this scale", evidence)
