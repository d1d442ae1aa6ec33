"""Counterfactuals: the smallest change of an image's bits that gives it another class, proven where it can be.

Source: Wachter, Mittelstadt and Russell (2018), Counterfactual explanations without opening the black box.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64
from scipy.optimize import Bounds, LinearConstraint, milp

from htaf.concepts.codes import Codes, ConceptError

MARGIN = 1e-4  # of a logit: beyond the rounding of a float32 matrix product
SLACK = 1e-5  # the solver takes a constraint for met that is missed by 1e-6; ten times that is on the safe side


@dataclass(frozen=True)
class Counterfactual:
    """The fewest bits to flip so that a class has the highest logit.

    Attributes:
        row: of the image.
        target: the class.
        concepts: the bits to flip, ascending, empty where the class wins already; None where no set was found.
        feasible: False: proven that no flips make the class win; None: not known.
        proven: no smaller set exists (or, with concepts None, no set at all).
        lower: no set of fewer than `lower` flips exists.
        margin: logit of the target minus the highest other after the flips; as the image is, where concepts is None.
    """

    row: int
    target: int
    concepts: tuple[int, ...] | None
    feasible: bool | None
    proven: bool
    lower: int
    margin: float

    @property
    def upper(self) -> int | None:
        """How many flips suffice; None where none were found."""
        return None if self.concepts is None else len(self.concepts)


def counterfactual(codes: Codes, row: int, target: int | None = None, *, time_limit: float = 10.0) -> Counterfactual:
    """Return the smallest set of bits whose flip gives `target` the highest logit, by 1e-4 or more.

    minimise sum z over z in {0, 1}^C with gap_k + sum_j step_kj z_j >= 1e-4 for every other class k, where
    gap_k = logit of target - logit of k and step_kj is what flipping bit j adds to it: an integer program (HiGHS).

    Args:
        codes: images and head, of two classes or more.
        row: of the image.
        target: a class; None: the image's label.
        time_limit: seconds for the integer program, about.
    Returns:
        the flips; after them np.argmax of the logits is the target.
    Raises:
        ConceptError: no such row or class, an image without label where target is None, a time limit of 0 or less.
    """
    classes = len(codes.bias)
    if not 0 <= row < len(codes):
        raise ConceptError(f"expected a row in 0 to {len(codes) - 1}, got {row}")
    goal = int(codes.labels[row]) if target is None else int(target)
    if target is None and goal < 0:
        raise ConceptError(f"row {row} has no label: expected a target")
    if classes < 2 or not 0 <= goal < classes:
        raise ConceptError(f"expected two classes or more, and one in 0 to {classes - 1}, got {goal}")
    if not time_limit > 0:
        raise ConceptError(f"expected time_limit > 0, got {time_limit}")
    bits = codes.unpack(np.array([row]))[0].astype(np.float64)
    weight = codes.weight.astype(np.float64)
    others = np.delete(np.arange(classes), goal)
    difference = weight[goal] - weight[others]
    gap = difference @ bits + (codes.bias[goal].astype(np.float64) - codes.bias[others])
    step = difference * (1 - 2 * bits)
    answer, lower = _solved(gap, step, time_limit)
    if lower is None:
        return Counterfactual(row, goal, None, False, True, 0, float(gap.min()))
    if answer is None:
        return Counterfactual(row, goal, None, None, False, lower, float(gap.min()))
    chosen = tuple(np.flatnonzero(answer).tolist())
    return Counterfactual(row, goal, chosen, True, len(chosen) == lower, lower, float((gap + step @ answer).min()))


def _solved(
    gap: Float64[np.ndarray, " others"], step: Float64[np.ndarray, "others concepts"], seconds: float
) -> tuple[Bool[np.ndarray, " concepts"] | None, int | None]:
    """Return a set that meets the constraints to the last bit, or None; and a proven lower bound, None where
    infeasible.

    The solver lets a constraint be missed by a little, so its optimum is a lower bound of ours. Where its set misses
    the margin, it is asked once more with a margin that is larger by SLACK.
    """
    concepts, bound = step.shape[1], 0
    most: Any = np.full(len(gap), np.inf)
    for more in (0.0, SLACK):
        least: Any = MARGIN - gap + more
        solved = milp(
            np.ones(concepts),
            constraints=LinearConstraint(step, least, most),
            bounds=Bounds(0, 1),
            integrality=np.ones(concepts),
            options={"time_limit": seconds},
        )
        if solved.status == 2 and not more:  # infeasible even with the solver's tolerance
            return None, None
        if not more and solved.mip_dual_bound is not None and np.isfinite(solved.mip_dual_bound):
            bound = max(0, int(np.ceil(solved.mip_dual_bound - 1e-6)))
        if solved.x is None:
            break
        answer = solved.x > 0.5
        if (gap + step @ answer >= MARGIN).all():
            return answer, bound
    return None, bound
