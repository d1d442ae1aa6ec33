"""A concept of one's own in a classifier, from rows that have it and rows that do not: its bit and its direction.

For a run on images also what was found in plain words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64, UInt8
from scipy.stats import rankdata
from torch import Tensor

from htaf._ground.errors import listed
from htaf.concepts.codes import ConceptError
from htaf.concepts.extract import ConceptNetwork, Device
from htaf.concepts.heads import Head
from htaf.data.image_reading import image_files
from htaf.data.reading import DataError
from htaf.training.runs import Run, to_json, write_atomic

DRAWS = 1000  # random divisions
CLASSES_APART = 0.5  # of both sides: from here on what is found may be the class
FEWEST, MOST = 5, 1000  # rows of a side; of more some evenly spread
FEWEST_PAIRS = 7  # 2 of the 2^7 ways to swap sides tell as much: p = 0.016; of 6 pairs 0.031, above LEVEL
LEVEL = 0.025  # of a p-value: bit and direction are two tests, 0.05 together
CLEAR = 0.8  # agreement of a bit that can be said to be the concept
STRENGTH = 0.1  # of the ridge penalty, in mean eigenvalues: of 0.01 to 10 what told planted marks and their class best
MOVED_VALUES = 1 << 24  # of moved rows in memory

PreActivations = Callable[[Float64[np.ndarray, "rows features"]], Float64[np.ndarray, "rows concepts"]]
RECORD = "found.json"
BATCH = 16  # images in one pass
BITS = 10  # that are listed
CLASSES = 3  # that an answer names
PAIRED = 0.8  # share of the names that are on both sides, so that the images are pairs


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
    """What a classifier has of a concept.

    Attributes:
        pairs: what the concept itself does; None: the rows are no pairs.
        bit, direction: the best ones. follows: the one to speak of, by their p-values and the bit's agreement; None:
            neither follows the concept in these rows.
        rows: int64 [rows], numbers of the rows that were taken, those without counted behind those with.
        has_concept: bool [rows], whether it is a row with. predicted: int64 [rows], classes.
        apart: how far the classes of both sides differ, half the sum over classes of the differences of their shares:
            1 where the sides have no class in common. apart_p: by random divisions of all rows.
        known: whether the classes were given; else they are the predicted ones.
    """

    bit: Bit
    direction: Direction
    pairs: Pairs | None
    rows: Int64[np.ndarray, " rows"]
    has_concept: Bool[np.ndarray, " rows"]
    predicted: Int64[np.ndarray, " rows"]
    apart: float
    apart_p: float
    known: bool

    @property
    def of_classes(self) -> bool:
        """Whether the sides differ by class. Of pairs they do not."""
        return self.pairs is None and self.apart >= CLASSES_APART and self.apart_p <= LEVEL

    @property
    def confounded(self) -> bool:
        """Whether the sides differ by class, and by nothing that can be told from it."""
        return self.of_classes and self.follows is None

    @property
    def follows(self) -> Bit | Direction | None:
        if self.of_classes and not self.known:  # a wrong prediction would pass for a class on both sides
            return None
        if self.bit.p <= LEVEL and self.bit.agreement >= CLEAR:
            return self.bit
        return self.direction if self.direction.p <= LEVEL else self.bit if self.bit.p <= LEVEL else None


def find_concept(
    with_: Float64[np.ndarray, "rows features"],
    without: Float64[np.ndarray, "others features"],
    pre_activations: PreActivations,
    head: Head,
    *,
    paired: bool = False,
    classes: Int64[np.ndarray, " all_rows"] | None = None,
    seed: int = 0,
) -> Found:
    """The bit and the direction of a concept, tested against 1,000 random divisions of the same rows.

    The best of many bits agrees somewhat with any division, and so does a direction that is fitted to it. So each
    random division is given its own best bit and its own direction. The direction is a ridge regression of the sides on
    the features, each divided by its standard deviation; each row, or pair, is scored by the fit to the others.

    A random division has as many rows of each class on a side as the given one. So what tells classes apart does not
    pass for a concept: of sides without a common class all divisions are the given one, and p is 1.

    Args:
        with_, without: features of rows that have the concept, and of rows that do not, 5 or more of each; 7 pairs.
        pre_activations: of features, affine; bit j is 1 where value j is >= 0. head: of the bits.
        paired: row i of both is of one thing, with the concept and without: pairs are left out together, and a random
            division swaps the sides within pairs.
        classes: of the rows with, then of those without; None: the predicted ones. What turns predictions cannot be
            told from these. seed: of the divisions.

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
    rows = np.concatenate([own, others + len(with_)])
    before = pre_activations(x)
    bits = (before >= 0).astype(np.float64)
    logits = bits @ head.weight.T + head.bias
    predicted = logits.argmax(1)
    of = np.unique(predicted if classes is None else classes[rows], return_inverse=True)[1]
    sides = _divisions(len(own), of, paired, np.random.default_rng(seed))
    freely = _divisions(len(own), np.zeros_like(of), False, np.random.default_rng(seed))
    apart = np.abs(_apart(freely) @ np.eye(of.max() + 1)[of]).sum(1) / 2
    return Found(
        bit=_bit(bits, logits, sides, head),
        direction=_direction(x, before, predicted, sides, pre_activations, head, paired),
        pairs=_pairs(logits, predicted, sides) if paired else None,
        rows=rows,
        has_concept=sides[0],
        predicted=predicted,
        apart=float(apart[0]),
        apart_p=_p(apart),
        known=classes is not None,
    )


def evenly(rows: int, most: int = MOST) -> Int64[np.ndarray, " rows"]:
    """All rows; of more than `most` some evenly spread."""
    return np.linspace(0, rows - 1, min(rows, most)).round().astype(np.int64)


def _divisions(
    own: int, classes: Int64[np.ndarray, " rows"], paired: bool, random: np.random.Generator
) -> Bool[np.ndarray, "divisions rows"]:
    """Which rows are with the concept: first as given, then at random, as many of each class."""
    given = np.arange(len(classes)) < own
    if paired:
        kept = random.random((DRAWS, own)) < 0.5
        return np.concatenate([given[None], np.concatenate([kept, ~kept], 1)])
    by_class, divisions = np.argsort(classes, kind="stable"), np.tile(given, (DRAWS + 1, 1))
    for division in divisions[1:]:
        division[by_class] = given[np.lexsort((random.random(len(classes)), classes))]
    return divisions


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
    together = np.arange(len(x)).reshape(2, -1).T if paired else None
    strength = STRENGTH * (standard**2).sum() / len(x)
    scores, weights = ridge(standard, np.where(sides, 1.0, -1.0).T, strength, together)
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


def ridge(
    x: Float64[np.ndarray, "rows features"],
    y: Float64[np.ndarray, "rows targets"],
    strength: float,
    together: Int64[np.ndarray, "groups some"] | None = None,
) -> tuple[Float64[np.ndarray, "rows targets"], Float64[np.ndarray, "targets features"]]:
    """Ridge regressions of several targets: what each row is given by the fit without it, or its group; and weights.

    With H the matrix that takes targets to fitted values, the rows S of a fit without them are given
    y_S - (1 - H_SS)^-1 (y_S - (H y)_S), exactly.

    Args:
        x: columns of mean 0. strength: of the penalty. together: rows that are left out together; None: each alone.
    """
    n, f = x.shape
    if n < f:  # the smaller matrix is inverted
        half = np.linalg.inv(x @ x.T + strength * np.eye(n)) @ x
    else:
        half = x @ np.linalg.inv(x.T @ x + strength * np.eye(f))
    weights = (y - y.mean(0)).T @ half
    wrong = y - x @ weights.T - y.mean(0)
    if together is None:
        return y - wrong / (1 - 1 / n - (half * x).sum(1))[:, None], weights
    given = np.empty_like(y)
    for rows in together:
        left = np.eye(len(rows)) - 1 / n - half[rows] @ x[rows].T
        given[rows] = y[rows] - np.linalg.solve(left, wrong[rows])
    return given, weights


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


@dataclass(frozen=True, eq=False)
class Sides:
    """Images with a concept, then those without.

    Attributes:
        names: paths. pixels: as the network sees them, before normalisation. has_concept: whether an image is one with.
        paired: both sides have the same names but for their endings, so image i of both is one pair.
        notes: what was left out. unread: "path: reason" of files that cannot be read.
    """

    names: Sequence[str]
    pixels: UInt8[Tensor, "n channels height width"]
    has_concept: Bool[np.ndarray, " n"]
    paired: bool
    notes: Sequence[str]
    unread: Sequence[str]


def read_sides(run: Run, with_: Sequence[Path], without: Sequence[Path]) -> Sides:
    """The images of both sides, read as `htaf predict` reads them.

    Of very many files of a side some are read, evenly spread by name. Of equal images of a side the first is taken:
    with its copy it would be left out of no fit.

    Args:
        run: of `htaf train icbm`. with_, without: files and folders.

    Raises:
        ConceptError: an image on both sides, or fewer than 5 images on one. DataError: no images.
    """
    preprocessor: Any = run.preprocessor()
    files: list[list[Path]] = []
    keys: list[list[str]] = []
    notes: list[str] = []
    for given, side in ((with_, "with"), (without, "without")):
        found, left_out = image_files(given)
        inside = {file: str(file.relative_to(place)) for place in given if place.is_dir() for file in found
                  if file.is_relative_to(place)}  # fmt: skip
        named = sorted((inside.get(file, file.name), file) for file in found)
        some = [named[row] for row in evenly(len(named))]
        files.append([file for _, file in some])
        keys.append([name for name, _ in some])
        notes += left_out
        if len(some) < len(named):
            notes.append(f"{len(some):,} of the {len(named):,} images {side} it are taken, evenly spread by name")
    pixels, problems = preprocessor.read_each([*files[0], *files[1]])
    names = [*map(str, files[0]), *map(str, files[1])]
    own = np.arange(len(names)) < len(files[0])
    unread = [f"{name}: {str(why).removeprefix(f'{name}: ')}" for name, why in zip(names, problems, strict=True) if why]
    if len(unread) == len(names):
        raise DataError(f"none of {len(names)} files can be read as an image: {unread[0]}")
    seen: dict[bytes, int] = {}
    kept, copies = [], []
    for row in (row for row, why in enumerate(problems) if why is None):
        first = seen.setdefault(pixels[row].numpy().tobytes(), row)
        if first == row:
            kept.append(row)
        elif own[first] != own[row]:
            raise ConceptError(
                f"expected other images without the concept than with it, got one on both sides: {names[first]} and "
                f"{names[row]}"
            )
        else:
            copies.append(names[row])
    if copies:
        notes.append(f"left out, as equal to others of their side: {listed(copies, 3)}")
    first, second = ([row for row in kept if own[row] == side] for side in (True, False))
    if min(len(first), len(second)) < FEWEST:
        raise ConceptError(
            f"expected at least {FEWEST} images with the concept and as many without, got {len(first)} and "
            f"{len(second)}{f'; not read: {unread[0]}' if unread else ''}"
        )
    key = [str(Path(name).with_suffix("")) for name in (*keys[0], *keys[1])]
    of = [{key[row]: row for row in rows} for rows in (first, second)]
    same = [name for name in of[0] if name in of[1]]
    paired = len(same) >= max(FEWEST_PAIRS, PAIRED * max(len(first), len(second)))
    if paired:
        if alone := len(first) + len(second) - 2 * len(same):
            notes.append(f"images whose name is not on both sides are left out, as the others are pairs: {alone:,}")
        first, second = ([rows[name] for name in same] for rows in of)
    rows = [*first, *second]
    return Sides([names[row] for row in rows], pixels[rows], own[rows], paired, notes, unread)


def find_in_run(run: Run, sides: Sides, out: Path | None = None, *, device: Device = "auto") -> dict[str, Any]:
    """Look for a concept in a run, and write found.json.

    Args:
        run: of `htaf train icbm`, with bits. sides: of `read_sides`.
        out: a folder, made where it does not exist; a file of this name is replaced. None: nothing is written.
        device: where the network runs.

    Returns:
        what found.json holds.

    Raises:
        ConceptError: a run without bits, features that are not finite or all the same.
    """
    network = ConceptNetwork(run, device)
    net, head = network.deciding(run)
    normalise = network.preprocessor.normalise
    with torch.no_grad():
        features = torch.cat(
            [net.features(normalise(some.to(network.device))).float().cpu() for some in sides.pixels.split(BATCH)]
        ).numpy()
    if len(bad := np.flatnonzero(~np.isfinite(features).all(1))):
        raise ConceptError(f"expected finite features, got others for the image {sides.names[bad[0]]}")

    @torch.no_grad()
    def pre_activations(x: np.ndarray) -> np.ndarray:
        return net.pre_activations(torch.from_numpy(x.astype(np.float32)).to(network.device)).cpu().double().numpy()

    notes = []
    if sides.paired and not _are_alike(features[sides.has_concept], features[~sides.has_concept]):
        sides = replace(sides, paired=False)
        notes.append("the images of one name are no more alike than others, so they are not taken as pairs")
    names = network.preprocessor.classes
    folders = [Path(name).parent.name for name in sides.names]
    known = np.array([names.index(one) for one in folders]) if {*folders} <= {*names} else None
    found = find_concept(
        features[sides.has_concept], features[~sides.has_concept], pre_activations, head, paired=sides.paired,
        classes=known,
    )  # fmt: skip
    bits = pre_activations(features) >= 0
    result = _record(run, sides, found, bits, names)
    result |= {"notes": notes, "answers": answers(result)}
    if out is not None:
        write_atomic(out / RECORD, to_json(result))
    return result


def _are_alike(with_: Float32[np.ndarray, "pairs f"], without: Float32[np.ndarray, "pairs f"]) -> bool:
    """Whether most rows are nearer to their partner (cosine) than to any other's, as one photo is to its copy. Numbered
    files of other photos have the same names too."""
    unit = [side / np.linalg.norm(side, axis=1, keepdims=True).clip(1e-12) for side in (with_, without)]
    cosine = unit[0] @ unit[1].T
    nearest = (cosine <= np.diag(cosine)[:, None]).all(1)
    return bool(nearest.mean() > 1 / 2)


def _record(run: Run, sides: Sides, found: Found, bits: np.ndarray, classes: Sequence[str]) -> dict[str, Any]:
    bit, direction, pairs = found.bit, found.direction, found.pairs
    shares = [float(bits[found.has_concept == side, bit.concept].mean()) for side in (True, False)]
    turned = np.argsort(-np.abs(direction.turned), kind="stable")[:BITS]
    return {
        "run": str(run.path),
        "model_sha256": run.record["model_sha256"],
        "with": int(found.has_concept.sum()),
        "without": int((~found.has_concept).sum()),
        "paired": sides.paired,
        "of_classes": {"differ": found.of_classes, "apart": found.apart, "p": found.apart_p},
        "confounded": found.confounded,
        "follows": None if found.follows is None else "bit" if isinstance(found.follows, Bit) else "direction",
        "bit": {name: getattr(bit, name) for name in ("concept", "on", "agreement", "p", "used", "changed")}
        | {
            "with": shares[0],
            "without": shares[1],
            "weights": dict(zip(classes, bit.weights.tolist(), strict=True)),
        },
        "direction": {name: getattr(direction, name) for name in ("auc", "p", "used", "changed", "changed_by_chance")}
        | {
            "classes": _by_gain(classes, direction.gains, direction.gains_p),
            "bits": [{"concept": int(j), "turned": float(direction.turned[j])} for j in turned if direction.turned[j]],
        },
        "pairs": None
        if pairs is None
        else {
            "changed": pairs.changed,
            "classes": _by_gain(classes, pairs.gains, pairs.gains_p),
        },
        "images": [
            {
                "image": sides.names[row],
                "with": bool(found.has_concept[row]),
                "score": float(direction.scores[row]),
                "prediction": classes[found.predicted[row]],
                "moved": classes[direction.moved[row]],
                "flipped": classes[bit.flipped[row]],
            }
            for row in range(len(sides.names))
        ],
    }


def _by_gain(classes: Sequence[str], gains: np.ndarray, p: np.ndarray) -> list[dict[str, Any]]:
    return [{"class": classes[k], "gain": float(gains[k]), "p": float(p[k])} for k in np.argsort(-gains, kind="stable")]


def answers(result: Mapping[str, Any]) -> dict[str, str]:
    """Say what was found in a few lines, each with a heading."""
    bit, direction, follows, paired = (result[key] for key in ("bit", "direction", "follows", "paired"))
    counts = f"{result['with']:,} images with it, {result['without']:,} without"
    if paired:
        counts = f"{result['with']:,} pairs of images, by their names"
    found = {
        "bit": f"concept {bit['concept']} follows it",
        "direction": "no bit follows it closely; a direction in the features of the backbone does",
        None: "nothing follows it in these images: the network does not see it, or they are too few",
    }[follows]
    if result["confounded"]:
        found = "it cannot be told from the class in these images"
    lines = {
        **({"first": _of_classes_alone(result)} if result["of_classes"]["differ"] else {}),
        "found": f"{found} ({counts})",
        "bit": f"concept {bit['concept']} is on in {bit['with']:.0%} of the images with it, {bit['without']:.0%} of "
        f"those without; as good a bit by chance: p = {bit['p']:.3f}",
        "direction": f"of two images left out of its fit the one with it scores higher in {direction['auc']:.0%} of "
        f"cases, by chance in 50%: p = {direction['p']:.3f}",
    }
    many = len(result["images"])
    if paired:
        pairs, half = result["pairs"], many // 2
        lines["used"] = (
            f"of {half:,} pairs {pairs['changed'] * half:,.0f} have another prediction with it; {_gains(pairs)}"
        )
    elif direction["p"] <= LEVEL:
        changed, chance = direction["changed"] * many, direction["changed_by_chance"] * many
        lines["used"] = (
            f"{'yes' if direction['used'] else 'not shown'}: moved along the direction {changed:,.0f} of {many:,} "
            f"predictions change, by chance {chance:,.1f}; {_gains(direction)}"
        )
    if follows == "bit":
        weights = [weight if bit["on"] else -weight for weight in bit["weights"].values()]  # of the concept being there
        named = sorted(zip(weights, bit["weights"], strict=True))
        lines["used, as a bit"] = (
            f"of {many:,} predictions {bit['changed'] * many:,.0f} change where it is flipped; it speaks most for "
            f"{named[-1][1]} ({named[-1][0]:+.2f}), least for {named[0][1]} ({named[0][0]:+.2f})"
            if bit["used"]
            else "no: every class has the same weight for it"
        )
    return lines


def _of_classes_alone(result: Mapping[str, Any]) -> str:
    """That the sides differ by predicted class, and in which most."""
    sides = [Counter(row["prediction"] for row in result["images"] if row["with"] == side) for side in (True, False)]
    of = [{name: count / side.total() for name, count in side.items()} for side in sides]
    most = max(of[0] | of[1], key=lambda name: abs(of[0].get(name, 0) - of[1].get(name, 0)))
    shares = [f"{side.get(most, 0):.0%}" for side in of]
    return (
        f"the two sides differ by class: {shares[0]} of the images with it are predicted {most}, {shares[1]} of those "
        "without. To tell a thing from its class, give images of the same classes on both sides, in folders of their "
        "classes, or pairs: the same images with it and without"
    )


def _gains(of: Mapping[str, Any]) -> str:
    """The classes whose scores change most clearly."""
    by_p = sorted(of["classes"], key=lambda row: (row["p"], -abs(row["gain"])))[:CLASSES]
    return "class scores: " + ", ".join(f"{row['class']} {row['gain']:+.2f} (p = {row['p']:.3f})" for row in by_p)
