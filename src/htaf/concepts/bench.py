"""Are the bits of a network concepts? Beside bits that anyone gets from the same features, by the same sparse heads.

No figure shows meaning by itself: random splits of the classes win some. `COLUMNS` says what each does not show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64, UInt8
from scipy.optimize import linear_sum_assignment
from scipy.stats import binom

from htaf._errors import expect_seed
from htaf.concepts.baselines import BASELINES, Backbone
from htaf.concepts.bench_table import COLUMNS, PROBE
from htaf.concepts.codes import CHUNK, Codes, ConceptError, PartName, codes_of
from htaf.concepts.counts import class_counts, class_sizes, labelled, labelled_rows, shares, training_means
from htaf.concepts.heads import ALGORITHM, Head, balanced_rows, measured, sparse_heads, wilson
from htaf.concepts.reasons import SHOWN, reasons_of
from htaf.concepts.store import Features
from htaf.data.attributes import Attributes

CAP = 10_000  # images of each part: more change the figures little
SPLITS = 10  # of the classes into two halves, each of which chooses attributes for the other
TARGETS = (5, 10, None)
LOW, HIGH = 0.1, 0.9  # a class is clear where at most, or at least, so many of its images have the bit


def attribute_auroc(
    counts: Int64[np.ndarray, "concepts classes"],
    sizes: Int64[np.ndarray, " classes"],
    values: Float[np.ndarray, "classes attributes"],
    *,
    splits: int = SPLITS,
    seed: int = 0,
) -> float | None:
    """How well bits follow attributes, on classes that did not choose which.

    Of each bit, the attribute with the largest |AUROC - 1/2| on the images of half of the classes is taken, and its
    AUROC (or 1 - AUROC, as the first half has it) measured on the others. An image has the attribute's value of its
    class, which scores the bit. Mean over bits, both halves and splits; without bits that are the same in all images
    of a half.

    Args:
        counts: images of each class with the bit. sizes: images of each class.
        splits: of the classes into halves. seed: of these.

    Returns:
        None where there are fewer than four classes with images, or no such bit.
    """
    present, rng, found = np.flatnonzero(sizes), np.random.default_rng(seed), []
    if len(present) < 4:
        return None
    for _ in range(splits):
        order = rng.permutation(present)
        halves = [order[: len(order) // 2], order[len(order) // 2 :]]
        first, second = (_auroc(counts[:, half], sizes[half], values[half]) for half in halves)
        alive = np.isfinite(first).all(1) & np.isfinite(second).all(1)
        for choosing, other in ((first[alive], second[alive]), (second[alive], first[alive])):
            best = np.abs(choosing - 0.5).argmax(1)[:, None]
            held, chosen = (np.take_along_axis(some, best, 1)[:, 0] for some in (other, choosing))
            found.append(np.where(chosen < 0.5, 1 - held, held))
    every = np.concatenate(found)
    return float(every.mean()) if len(every) else None


def _auroc(
    counts: Int64[np.ndarray, "concepts some"], sizes: Int64[np.ndarray, " some"], values: Float[np.ndarray, "some a"]
) -> Float64[np.ndarray, "concepts a"]:
    """Of each bit and attribute, from mean ranks (Mann and Whitney 1947); nan for a bit that never changes."""
    ranks = np.stack([sizes @ (values < own) + (sizes @ (values == own) + 1) / 2 for own in values])
    ones = counts.sum(1, keepdims=True).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return (counts @ ranks - ones * (ones + 1) / 2) / (ones * (sizes.sum() - ones))


def of_classes(codes: Codes) -> dict[str, float | None]:
    """Figures of how the bits of images lie to their classes: clear and by chance, of one class, rate, live bits."""
    counts, sizes = class_counts(codes), class_sizes(codes)
    counts, sizes = counts[:, sizes > 0], sizes[sizes > 0]
    rates = counts.sum(1) / sizes.sum()
    live = (rates > 0) & (rates < 1)
    share, odds = shares(counts, sizes)[live], rates[live, None]
    few, many = np.floor(LOW * sizes + 1e-9), np.ceil(HIGH * sizes - 1e-9)
    chance = np.asarray(binom.cdf(few, sizes, odds) + binom.sf(many - 1, sizes, odds))
    some = bool(live.any())
    return {
        "live": float(live.sum()),
        "rate": float(rates.mean()),
        "clear": float(((share <= LOW) | (share >= HIGH)).mean()) if some else None,
        "clear_by_chance": float(np.minimum(chance, 1).mean()) if some else None,
        "one_class": float(((share >= 0.5).sum(1) == 1).mean()) if some else None,
    }


def matched(one: UInt8[np.ndarray, "images c"], other: UInt8[np.ndarray, "images d"]) -> float | None:
    """Mean |correlation| of the bits of the same images, matched one to one for the largest sum; one without a partner
    counts 0, a bit that never changes is left out. None where there is none.

    Source: Kuhn 1955 (the assignment).
    """
    kept = [bits[:, bits.any(0) & ~bits.all(0)].astype(np.float64) for bits in (one, other)]
    if not min(bits.shape[1] for bits in kept):
        return None
    a, b = ((bits - bits.mean(0)) / bits.std(0) for bits in kept)
    same = np.abs(a.T @ b) / len(a)
    return float(same[linear_sum_assignment(-same)].sum() / max(same.shape))


def undone(codes: Codes, head: Head, most: int = SHOWN) -> float | None:
    """Share of images whose class changes when the bits of the reasons shown are flipped; None with one class."""
    if len(head.weight) < 2:
        return None
    changed = 0
    for start in range(0, len(codes), CHUNK):
        bits = codes.unpack(slice(start, start + CHUNK))
        reasons = reasons_of(bits, head.weight, head.bias)
        shown = np.argsort(-reasons.worth, axis=1, kind="stable")[:, :most]
        flip: Bool[np.ndarray, "images concepts"] = np.zeros(bits.shape, dtype=bool)
        np.put_along_axis(flip, shown, np.take_along_axis(reasons.worth, shown, 1) > 0, axis=1)
        changed += int((reasons_of(bits ^ flip, head.weight, head.bias).predicted != reasons.predicted).sum())
    return changed / len(codes)


def figures(codes: Codes, part: PartName, attributes: Attributes | None, seed: int) -> dict[str, Any]:
    """All figures of some bits, but for stability."""
    scored, means = labelled(codes, part), training_means(codes)
    found: dict[str, Any] = {"concepts": codes.concepts} | of_classes(scored)
    targets = [target for target in TARGETS if target is None or target < codes.concepts]
    for each in sparse_heads(codes, targets, cap=CAP, seed=seed):
        end = "" if each.target is None else f"_{each.target}"
        figured = measured(scored, each.head, means)[1]
        found |= {f"{name}{end}": figured[name] for name in ("accuracy", "interval", "nec", "ncc")}
        found[f"undone{end}"] = undone(scored, each.head)
    values = None if attributes is None else attributes.of(codes.classes).values
    if values is not None:
        found["attributes"] = attribute_auroc(class_counts(scored), class_sizes(scored), values)
    return found


def aligned(other: Codes, images: Features, name: str) -> Codes:
    """The bits of these images, in the same order.

    Raises:
        ConceptError: other classes, or an image that is not there or has another label or part.
    """
    if other.classes != images.classes:
        raise ConceptError(f"{name}: expected the classes {images.classes}, got {other.classes}")
    place = {image: row for row, image in enumerate(other.ids)}
    if missing := [image for image in images.ids if image not in place]:
        raise ConceptError(f"{name}: expected codes of the same images, got none of {missing[0]!r}")
    found = other.take(np.array([place[image] for image in images.ids], np.int64))
    if (np.asarray(found.labels) != images.labels).any() or (np.asarray(found.parts) != images.parts).any():
        raise ConceptError(f"{name}: expected codes of the same images, got other labels or parts")
    return found


def bench(
    features: Features,
    given: Mapping[str, Sequence[Codes]],
    *,
    attributes: Attributes | None = None,
    seeds: int = 3,
    part: PartName = "test",
    cap: int = CAP,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Figures of bits, and of the baselines with as many bits of the same features.

    Args:
        features: of a backbone, with labelled images of the parts train, validation and `part`.
        given: bits of these images by name; of several seeds of one training under one name.
        attributes: of the classes; None: without that column.
        seeds: how often each baseline is drawn; from two on there are stability and a spread.
        part: that is scored. Train and validation, which fit and choose the heads, give too much.
        cap: most images of each part; of more so many are drawn, classes as even as they can be.
        seed: the first one of the baselines, and that of the images drawn.
        progress: called with a line on each bits.

    Returns:
        plain values: the sizes; "rows", of each bits {"bits", "made" (a baseline), "seeds": the figures of each seed,
        "mean", "sd" and standard "error" of `COLUMNS` over them (None: not measured)}; "probe": accuracy of a linear
        probe; "columns": what each figure shows; "algorithm" of the heads.

    Raises:
        ConceptError: no bits, fewer than one seed, a part without labelled images, and as `aligned`.
    """
    expect_seed(seed, ConceptError)
    if seeds < 1 or not given or not all(given.values()):
        raise ConceptError(f"expected bits and 1 or more seeds, got {len(given)} and {seeds}")
    if taken := set(given) & {*BASELINES, PROBE}:
        raise ConceptError(f"expected other names than those of baselines, got {sorted(taken)[0]!r}")
    tell = progress or (lambda line: None)
    images = _chosen(features, part, cap, seed)
    listed = {name: [aligned(codes, images, name) for codes in some] for name, some in given.items()}
    concepts = next(iter(listed.values()))[0].concepts
    backbone, rows, scored = Backbone(images), [], labelled_rows(images, part)
    blank = np.zeros((len(images.classes), 0))
    for name, made in (dict.fromkeys(listed) | BASELINES).items():
        draws, bits = [], []
        for number in range(len(listed[name]) if made is None else seeds):
            if made is None:
                codes = listed[name][number]
            else:
                drawn = made(backbone, concepts, seed + number)
                weight = np.zeros((len(blank), drawn.shape[1]))
                codes = codes_of(
                    drawn, images.labels, weight, weight.sum(1), classes=images.classes, parts=images.parts
                )
            draws.append(figures(codes, part, attributes, seed))
            bits.append(labelled(codes, part).unpack())
            tell(f"{name}, seed {seed + number}: accuracy {100 * draws[-1]['accuracy']:.1f}%")
        pairs = [matched(one, two) for i, one in enumerate(bits) for two in bits[:i]]
        rows.append(_row(name, draws, pairs, len(scored), made=made is not None))
    right = backbone.probabilities[scored].argmax(1) == np.asarray(images.labels)[scored]
    return {
        "concepts": concepts,
        "classes": len(images.classes),
        "features": int(images.values.shape[1]),
        "part": part,
        "images": {name: len(labelled_rows(images, name)) for name in _parts(part)},
        "attributes": None if attributes is None else len(attributes.names),
        "seed": seed,
        "rows": rows,
        "probe": {"accuracy": float(right.mean()), "interval": list(wilson(int(right.sum()), len(right)))},
        "columns": {column.key: {"shows": column.shows, "not_shown": column.not_shown} for column in COLUMNS},
        "algorithm": ALGORITHM,
    }


def _parts(part: PartName) -> tuple[PartName, ...]:
    return tuple(dict.fromkeys(("train", "validation", part)))


def _chosen(features: Features, part: PartName, cap: int, seed: int) -> Features:
    """At most `cap` labelled images of each part that is used."""
    rows = []
    for name in _parts(part):
        labelled(features, name)  # there are some
        own = labelled_rows(features, name)
        rows.append(own[balanced_rows(np.asarray(features.labels)[own], cap, seed)])
    return features.take(np.sort(np.concatenate(rows)))


def _row(
    name: str, draws: list[dict[str, Any]], pairs: list[float | None], images: int, *, made: bool
) -> dict[str, Any]:
    """Mean, standard deviation and standard error over seeds; stability over pairs of them, whose deviation is of
    pairs. The error of an accuracy has that of its images too."""
    columns = {column.key: [one.get(column.key) for one in draws] for column in COLUMNS} | {"stability": pairs}
    known = {key: [value for value in values if value is not None] for key, values in columns.items()}
    mean = {key: float(np.mean(values)) if values else None for key, values in known.items()}
    sd = {key: float(np.std(values, ddof=1)) if len(values) > 1 else None for key, values in known.items()}

    def error(key: str) -> float | None:
        share, spread = mean[key], sd[key]
        of_seeds = None if spread is None else spread**2 / min(len(known[key]), len(draws))  # pairs share seeds
        if share is None or not key.startswith("accuracy"):
            return None if of_seeds is None else float(np.sqrt(of_seeds))
        share = (share * images + 1) / (images + 2)  # not 0 where all are right
        return float(np.sqrt(share * (1 - share) / images + (of_seeds or 0.0)))

    return {
        "bits": name,
        "made": made,
        "seeds": draws,
        "concepts": float(np.mean([one["concepts"] for one in draws])),
        "live": float(np.mean([one["live"] for one in draws])),
        "mean": mean,
        "sd": sd,
        "error": {key: error(key) for key in known},
    }
