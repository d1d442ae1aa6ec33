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
    gap_k = logit of target - logit of k and step_kj is what flipping bit j adds to it. A greedy set bounds the optimum
    from above; from below, each competitor alone needs its largest steps. Where the bounds differ, the integer program
    is solved (HiGHS).

    Args:
        codes: images and head.
        row: of the image.
        target: a class; None: the image's label.
        time_limit: seconds for the integer program, about; 0 keeps the two bounds.
    Returns:
        the flips; after them np.argmax of the logits is the target.
    Raises:
        ConceptError: no such row or class, an image without label where target is None, a time limit below 0.
    """
    classes = len(codes.bias)
    if not 0 <= row < len(codes):
        raise ConceptError(f"expected a row in 0 to {len(codes) - 1}, got {row}")
    goal = int(codes.labels[row]) if target is None else int(target)
    if target is None and goal < 0:
        raise ConceptError(f"row {row} has no label: expected a target")
    if not 0 <= goal < classes:
        raise ConceptError(f"expected a class in 0 to {classes - 1}, got {goal}")
    if not time_limit >= 0:
        raise ConceptError(f"expected time_limit >= 0, got {time_limit}")
    bits = codes.unpack(np.array([row]))[0].astype(np.float64)
    weight = codes.weight.astype(np.float64)
    others = np.delete(np.arange(classes), goal)
    difference = weight[goal] - weight[others]
    gap = difference @ bits + (codes.bias[goal].astype(np.float64) - codes.bias[others])
    step = difference * (1 - 2 * bits)

    def found(
        flipped: Bool[np.ndarray, " concepts"] | None, lower: int, feasible: bool | None = True
    ) -> Counterfactual:
        if flipped is None:
            return Counterfactual(row, goal, None, feasible, feasible is False, lower, _margin(gap))
        chosen = tuple(np.flatnonzero(flipped).tolist())
        return Counterfactual(row, goal, chosen, True, len(chosen) == lower, lower, _margin(gap + step @ flipped))

    lower = _lower(gap, step)
    if lower is None:
        return found(None, 0, feasible=False)
    best = _greedy(gap, step)
    if (best is not None and best.sum() == lower) or not time_limit:
        return found(best, lower, feasible=None)
    answer, bound = _exact(gap, step, lower, best, time_limit)
    if answer is not None and (best is None or answer.sum() < best.sum()):
        best = answer
    if best is None and bound is None:
        return found(None, 0, feasible=False)
    return found(best, bound if bound is not None else lower, feasible=None)


def _margin(gap: Float64[np.ndarray, " others"]) -> float:
    return float(gap.min()) if len(gap) else float("inf")


def _lower(gap: np.ndarray, step: np.ndarray) -> int | None:
    """Return the most flips that a single competitor needs; None where one can never be passed."""
    helpful = -np.sort(-np.maximum(step, 0), axis=1)
    reach = gap[:, None] + np.concatenate([np.zeros((len(gap), 1)), helpful.cumsum(1)], axis=1)
    enough = reach >= MARGIN - 1e-9  # rounding of the sum must never make the bound too high
    if not enough[:, -1].all():
        return None
    return int(enough.argmax(1).max(initial=0))


def _greedy(gap: np.ndarray, step: np.ndarray) -> Bool[np.ndarray, " concepts"] | None:
    """Flip one at a time, each the one that lowers the summed shortfall most; then those not needed are undone."""
    flipped = np.zeros(step.shape[1], dtype=bool)
    now, short = gap.copy(), np.maximum(MARGIN - gap, 0).sum()
    while short > 0:
        after = np.maximum(MARGIN - (now[:, None] + step), 0).sum(0)
        after[flipped] = np.inf
        best = int(after.argmin()) if len(after) else 0
        if not len(after) or after[best] >= short:
            return None
        flipped[best] = True
        now = gap + step @ flipped
        short = np.maximum(MARGIN - now, 0).sum()
    for concept in np.flatnonzero(flipped):
        flipped[concept] = False
        if not (gap + step @ flipped >= MARGIN).all():
            flipped[concept] = True
    return flipped


def _exact(
    gap: np.ndarray, step: np.ndarray, lower: int, known: np.ndarray | None, seconds: float
) -> tuple[Bool[np.ndarray, " concepts"] | None, int | None]:
    """Return a set that meets the constraints to the last bit, or None; and a proven lower bound, None where
    infeasible.

    The solver lets a constraint be missed by a little, so its optimum is a lower bound of ours. Where its set misses
    the margin, it is asked once more with a margin that is larger by SLACK.
    """
    concepts = step.shape[1]
    upper = concepts if known is None else int(known.sum()) - 1  # only smaller sets are of interest
    rows = np.vstack([step, np.ones(concepts)])
    most: Any = np.append(np.full(len(gap), np.inf), upper)
    bound = lower
    for more in (0.0, SLACK):
        least: Any = np.append(MARGIN - gap + more, lower)
        solved = milp(
            np.ones(concepts),
            constraints=LinearConstraint(rows, least, most),
            bounds=Bounds(0, 1),
            integrality=np.ones(concepts),
            options={"time_limit": seconds},
        )
        if solved.status == 2 and not more:  # infeasible even with the solver's tolerance
            return None, None if known is None else upper + 1
        if not more and solved.mip_dual_bound is not None and np.isfinite(solved.mip_dual_bound):
            bound = max(lower, int(np.ceil(solved.mip_dual_bound - 1e-6)))
        if solved.x is None:
            return None, bound
        answer = solved.x > 0.5
        if (gap + step @ answer >= MARGIN).all():
            return answer, bound
    return None, bound
