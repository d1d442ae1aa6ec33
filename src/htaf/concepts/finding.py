"""A concept of one's own in a classifier, from rows that have it and rows that do not: its bit and its direction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.stats import rankdata

from htaf.concepts.codes import ConceptError
from htaf.concepts.heads import Head

DRAWS = 1000  # random divisions
CLASSES_APART = 0.5  # of both sides: from here on what is found may be the class
FEWEST, MOST = 5, 1000  # rows of a side; of more some evenly spread
FEWEST_PAIRS = 7  # 2 of the 2^7 ways to swap sides tell as much: p = 0.016; of 6 pairs 0.031, above LEVEL
LEVEL = 0.025  # of a p-value: bit and direction are two tests, 0.05 together
CLEAR = 0.8  # agreement of a bit that can be said to be the concept
STRENGTH = 0.1  # of the ridge penalty, in mean eigenvalues: of 0.01 to 10 what told planted marks and their class best
MOVED_VALUES = 1 << 24  # of moved rows in memory

PreActivations = Callable[[Float64[np.ndarray, "rows features"]], Float64[np.ndarray, "rows concepts"]]


@dataclass(frozen=True, eq=False)
class Bit:
    """The bit that tells rows with a concept best from rows without.

    Attributes:
        concept: its number. Where the classifier does not use the best one, one that it uses and that tells a row less
            or none may stand for it.
        on: whether rows with the concept have the bit; False: those without have it.
        agreement: mean of the shares of rows with and of rows without that it tells right; 0.5: by chance.
        p: of a permutation test: the share of random divisions of the same rows for which some bit agrees as much.
        weights: float64 [K], of the head, less their median over classes: 0 of most classes where a head is sparse.
        flipped: int64 [rows], the predicted class where the bit is flipped.
        changed: share of these rows whose prediction changes by that.
    """

    concept: int
    on: bool
    agreement: float
    p: float
    weights: Float64[np.ndarray, " classes"]
    flipped: Int64[np.ndarray, " rows"]
    changed: float

    @property
    def used(self) -> bool:
        """Whether the classifier draws on the bit at all."""
        return bool(np.ptp(self.weights) > 0)  # equal ones less their mean may be 1e-17


@dataclass(frozen=True, eq=False)
class Direction:
    """The direction in the features that tells rows with a concept from rows without, and what moving along it does.

    Rows without are moved by `move`, rows with by -`move`: features, then exact bits, then logits.

    Attributes:
        auc: on rows that were left out of the fit, the share of pairs of a row with and a row without in which the one
            with has the higher score (area under the ROC curve); 0.5: by chance.
        p: share of random divisions of the same rows, fitted and left out alike, that are told as well.
        scores: float64 [rows], of each row by the fit without it (and without the other row of its pair).
        weight: float64 [F] and offset: weight @ features + offset is the score by the fit to all rows.
        move: float64 [F], along the direction as far as the two sides' means lie apart on it.
        gains: float64 [K], the mean change of the logits towards the concept, less its mean over classes.
        gains_p: float64 [K], share of random divisions whose own direction changes some class as much, in standard
            deviations of that class over divisions; the least is the p-value of whether the classifier uses it.
        moved: int64 [rows], the predicted class after the move.
        changed: share of these rows whose prediction changes. changed_by_chance: the mean of that over divisions.
        turned: float64 [C], share of rows whose bit turns on, less the share whose bit turns off, towards the concept.
    """

    auc: float
    p: float
    scores: Float64[np.ndarray, " rows"]
    weight: Float64[np.ndarray, " features"]
    offset: float
    move: Float64[np.ndarray, " features"]
    gains: Float64[np.ndarray, " classes"]
    gains_p: Float64[np.ndarray, " classes"]
    moved: Int64[np.ndarray, " rows"]
    changed: float
    changed_by_chance: float
    turned: Float64[np.ndarray, " concepts"]

    @property
    def used(self) -> bool:
        """Whether class scores change more along it than along the directions of random divisions (p <= 0.05)."""
        return bool(self.gains_p.min() <= 2 * LEVEL)


@dataclass(frozen=True, eq=False)
class Pairs:
    """What a concept itself does, where each row with it has the same row without it.

    Attributes:
        gains: float64 [K], mean logits of the rows with it less those of their pairs, less the mean over classes.
        gains_p: float64 [K], as `Direction.gains_p`: random divisions swap the sides of pairs.
        changed: share of the pairs whose two rows have different predictions.
    """

    gains: Float64[np.ndarray, " classes"]
    gains_p: Float64[np.ndarray, " classes"]
    changed: float


@dataclass(frozen=True, eq=False, repr=False)
class Found:
    """What a classifier has of a concept; printed, its figures in short.

    Attributes:
        pairs: what the concept itself does; None: the rows are no pairs.
        bit, direction: the best ones. follows: the one to speak of, by their p-values and the bit's agreement; None:
            neither follows the concept in these rows.
        rows: int64 [rows], numbers of the rows that were taken, those without counted behind those with.
        has_concept: bool [rows], whether it is a row with. predicted: int64 [rows], classes.
        apart: how far the predicted classes of both sides differ, half the sum over classes of the differences of
            their shares: 1 where the sides have no class in common. apart_p: by random divisions, as `Bit.p`.
    """

    bit: Bit
    direction: Direction
    pairs: Pairs | None
    rows: Int64[np.ndarray, " rows"]
    has_concept: Bool[np.ndarray, " rows"]
    predicted: Int64[np.ndarray, " rows"]
    apart: float
    apart_p: float

    @property
    def of_classes(self) -> bool:
        """Whether the sides differ by predicted class, so that what is found may be the class. Of pairs it is not."""
        return self.pairs is None and self.apart >= CLASSES_APART and self.apart_p <= LEVEL

    @property
    def follows(self) -> Bit | Direction | None:
        if self.bit.p <= LEVEL and self.bit.agreement >= CLEAR:
            return self.bit
        return self.direction if self.direction.p <= LEVEL else self.bit if self.bit.p <= LEVEL else None

    def __repr__(self) -> str:
        bit, direction = self.bit, self.direction
        what = "nothing" if self.follows is None else "the bit" if self.follows is bit else "the direction"
        of = direction if self.pairs is None else self.pairs
        clear = int(np.abs(of.gains).argmax())
        classes = "the sides differ by predicted class, which may be all that is found; " if self.of_classes else ""
        return (
            f"{classes}{what} follows the concept; bit {bit.concept}, {'on' if bit.on else 'off'} with it: agreement "
            f"{bit.agreement:.2f}, p = {bit.p:.3f}, {'' if bit.used else 'not '}used; direction: AUC "
            f"{direction.auc:.2f}, p = {direction.p:.3f}; most changed is class {clear}, by {of.gains[clear]:+.2f}, "
            f"p = {of.gains_p[clear]:.3f}"
        )


def find_concept(
    with_: Float64[np.ndarray, "rows features"],
    without: Float64[np.ndarray, "others features"],
    pre_activations: PreActivations,
    head: Head,
    *,
    paired: bool = False,
    seed: int = 0,
) -> Found:
    """The bit and the direction of a concept, tested against 1,000 random divisions of the same rows.

    The best of many bits agrees somewhat with any division, and so does a direction that is fitted to it. So each
    random division is given its own best bit and its own direction. The direction is a ridge regression of the sides on
    the features, each divided by its standard deviation; each row, or pair, is scored by the fit to the others.

    Args:
        with_, without: features of rows that have the concept, and of rows that do not, 5 or more of each; 7 pairs.
        pre_activations: of features, affine; bit j is 1 where value j is >= 0. head: of the bits.
        paired: row i of both is of one thing, with the concept and without: pairs are left out together, and a random
            division swaps the sides within pairs.
        seed: of the divisions.

    Raises:
        ConceptError: too few rows, sides of other sizes where they are pairs, or features that are all the same.

    Source: Kim et al. 2018 (TCAV) for random sets as the null hypothesis.
    """
    if min(len(with_), len(without)) < FEWEST:
        raise ConceptError(
            f"expected at least {FEWEST} rows with the concept and as many without, got {len(with_)} and {len(without)}"
        )
    if np.array_equal(with_, without) and len(np.unique(with_, axis=0)) > 1:
        raise ConceptError(f"expected other rows without the concept than with it, got the same {len(with_)} rows")
    if paired and len(with_) != len(without):
        raise ConceptError(f"expected pairs, as many rows with as without, got {len(with_)} and {len(without)}")
    if paired and len(with_) < FEWEST_PAIRS:
        raise ConceptError(f"expected at least {FEWEST_PAIRS} pairs, got {len(with_)}: so few can always be chance")
    own, others = (evenly(len(side)) for side in (with_, without))
    x = np.concatenate([with_[own], without[others]]).astype(np.float64)
    sides = _divisions(len(own), len(others), paired, np.random.default_rng(seed))
    before = pre_activations(x)
    bits = (before >= 0).astype(np.float64)
    logits = bits @ head.weight.T + head.bias
    predicted = logits.argmax(1)
    apart = np.abs(_apart(sides) @ np.eye(len(head.bias))[predicted]).sum(1) / 2
    return Found(
        bit=_bit(bits, logits, sides, head),
        direction=_direction(x, before, predicted, sides, pre_activations, head, paired),
        pairs=_pairs(logits, predicted, sides) if paired else None,
        rows=np.concatenate([own, others + len(with_)]),
        has_concept=sides[0],
        predicted=predicted,
        apart=float(apart[0]),
        apart_p=_p(apart),
    )


def evenly(rows: int) -> Int64[np.ndarray, " rows"]:
    """All rows of a side; of more than `MOST` some evenly spread."""
    return np.linspace(0, rows - 1, min(rows, MOST)).round().astype(np.int64)


def _divisions(own: int, others: int, paired: bool, random: np.random.Generator) -> Bool[np.ndarray, "divisions rows"]:
    """Which rows are with the concept: first as given, then at random."""
    given = np.arange(own + others) < own
    if paired:
        kept = random.random((DRAWS, own)) < 0.5
        return np.concatenate([given[None], np.concatenate([kept, ~kept], 1)])
    return np.stack([given, *(random.permutation(given) for _ in range(DRAWS))])


def _p(values: Float64[np.ndarray, " divisions"]) -> float:
    """Share of the divisions that reach the first one."""
    return float((values >= values[0] - 1e-12).mean())


def _apart(sides: Bool[np.ndarray, "divisions rows"]) -> Float64[np.ndarray, "divisions rows"]:
    """Times values of rows: their mean over rows with, less that over rows without."""
    own = sides[0].sum()
    return np.where(sides, 1 / own, -1 / (sides.shape[1] - own))


def _bit(bits: np.ndarray, logits: np.ndarray, sides: Bool[np.ndarray, "divisions rows"], head: Head) -> Bit:
    apart = _apart(sides) @ bits  # shares with less shares without
    best = np.abs(apart).max(1)
    one_row = 1 / min(sides[0].sum(), len(logits) - sides[0].sum())
    level = np.abs(apart[0]) >= best[0] - one_row - 1e-12
    used = np.ptp(head.weight, axis=0) > 0
    concept = int(np.where(level & used if (level & used).any() else level, np.abs(apart[0]), -1).argmax())
    best[0] = np.abs(apart[0, concept])
    flipped = (logits + (1 - 2 * bits[:, concept, None]) * head.weight[:, concept]).argmax(1)
    return Bit(
        concept=concept,
        on=bool(apart[0, concept] > 0),
        agreement=float((1 + best[0]) / 2),
        p=_p(best),
        weights=head.weight[:, concept] - np.median(head.weight[:, concept]),
        flipped=flipped,
        changed=float((logits.argmax(1) != flipped).mean()),
    )


def _pairs(logits: np.ndarray, predicted: np.ndarray, sides: Bool[np.ndarray, "divisions rows"]) -> Pairs:
    gains, p = _of_classes(_apart(sides) @ logits)
    one, other = predicted.reshape(2, -1)
    return Pairs(gains, p, float((one != other).mean()))


def _of_classes(
    gains: Float64[np.ndarray, "divisions classes"],
) -> tuple[Float64[np.ndarray, " classes"], Float64[np.ndarray, " classes"]]:
    """Changes of the classes in the first division, less their mean; and their p-values."""
    gains = gains - gains.mean(1, keepdims=True)
    spread = gains.std(0)
    against = np.abs(gains) / np.where(spread > 0, spread, np.inf)
    return gains[0], (against.max(1)[:, None] >= against[0] - 1e-12).mean(0)


def _direction(
    x: np.ndarray,
    before: np.ndarray,
    predicted: np.ndarray,
    sides: Bool[np.ndarray, "divisions rows"],
    pre_activations: PreActivations,
    head: Head,
    paired: bool,
) -> Direction:
    centre, scale = x.mean(0), x.std(0)
    live = scale > 1e-6 * np.abs(centre)  # a column that is constant but for rounding tells nothing
    if not live.any():
        raise ConceptError(f"the features of all {len(x)} rows are the same: nothing can be told by them")
    scale = np.where(live, scale, np.inf)
    standard = (x - centre) / scale
    scores, weights = _ridge(standard, np.where(sides, 1.0, -1.0).T, paired)
    areas = _roc_areas(scores, sides)
    distance = (weights * (_apart(sides) @ standard)).sum(1) / (weights**2).sum(1).clip(1e-300)
    moves = weights * distance[:, None] * np.where(live, scale, 0.0)
    turned, moved, changed = _moved(before, predicted, sides, moves, pre_activations, head)
    gains, gains_p = _of_classes(turned @ head.weight.T)
    return Direction(
        auc=float(areas[0]),
        p=_p(areas),
        scores=scores[:, 0],
        weight=weights[0] / scale,
        offset=float(np.where(sides[0], 1, -1).mean() - (weights[0] / scale) @ centre),
        move=moves[0],
        gains=gains,
        gains_p=gains_p,
        moved=moved,
        changed=float(changed[0]),
        changed_by_chance=float(changed[1:].mean()),
        turned=turned[0],
    )


def _ridge(
    x: np.ndarray, y: Float64[np.ndarray, "rows divisions"], paired: bool
) -> tuple[Float64[np.ndarray, "rows divisions"], Float64[np.ndarray, "divisions features"]]:
    """Ridge regressions of several targets: what each row is given by the fit without it, or its pair; and weights.

    With H the matrix that takes targets to fitted values, the rows S of a fit without them are given
    y_S - (1 - H_SS)^-1 (y_S - (H y)_S), exactly.
    """
    n = len(x)
    kernel = x @ x.T
    inverse = np.linalg.inv(kernel + STRENGTH * np.trace(kernel) / n * np.eye(n))
    hat = kernel @ inverse + 1 / n
    wrong, given = y - hat @ y, np.empty_like(y)
    together = np.arange(n).reshape(2, -1).T if paired else np.arange(n)[:, None]
    for rows in together:
        given[rows] = y[rows] - np.linalg.solve(np.eye(len(rows)) - hat[np.ix_(rows, rows)], wrong[rows])
    return given, (y - y.mean(0)).T @ inverse @ x


def _roc_areas(scores: Float64[np.ndarray, "rows divisions"], sides: np.ndarray) -> Float64[np.ndarray, " divisions"]:
    """Areas under the ROC curve."""
    own = int(sides[0].sum())
    ranks = (rankdata(scores, axis=0) * sides.T).sum(0)
    return (ranks - own * (own + 1) / 2) / (own * (len(scores) - own))


def _moved(
    before: np.ndarray,
    predicted: np.ndarray,
    sides: Bool[np.ndarray, "divisions rows"],
    moves: Float64[np.ndarray, "divisions features"],
    pre_activations: PreActivations,
    head: Head,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`Direction.turned` of each division, `moved` of the first, and `changed` of each."""
    bits = (before >= 0).astype(np.float32)
    steps = pre_activations(moves) - pre_activations(np.zeros_like(moves[:1]))
    weight, bias = head.weight.T.astype(np.float32), head.bias.astype(np.float32)
    signs = np.where(sides, -1.0, 1.0)
    towards = -_apart(sides) / 2  # of rows with, which are moved away, the change counts the other way round
    some = max(1, MOVED_VALUES // (len(bits) * max(bits.shape[1], len(bias))))
    turned, classes = [], []
    for first in range(0, len(sides), some):
        chunk = slice(first, first + some)
        after = (before + signs[chunk, :, None] * steps[chunk, None] >= 0).astype(np.float32)
        turned.append(np.einsum("dr,drc->dc", towards[chunk], after - bits))
        classes.append((after @ weight + bias).argmax(2))
    found = np.concatenate(classes)
    return np.concatenate(turned), found[0], (found != predicted).mean(1)
