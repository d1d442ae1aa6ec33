"""Are the bits of a network concepts? Beside bits that anyone gets from the same features, by the same sparse heads.

No figure shows meaning by itself: random splits of the classes win some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64, UInt8
from scipy.optimize import linear_sum_assignment
from scipy.stats import binom

from htaf._ground.console import markdown_text
from htaf.concepts.codes import CHUNK, Codes, ConceptError, PartName, codes_of
from htaf.concepts.counts import class_counts, class_sizes, labelled, labelled_rows, shares
from htaf.concepts.heads import Head, balanced_rows, correct, sparse_heads
from htaf.concepts.reasons import SHOWN, reasons_of
from htaf.concepts.store import Features
from htaf.data.attributes import Attributes
from htaf_paper.other_bits import BASELINES, Backbone

PARTS: tuple[PartName, ...] = ("train", "validation", "test")  # fit heads, choose them, and score
CAP = 10_000  # images of each part: more change the figures little
SPLITS = 10  # of the classes into two halves, each of which chooses attributes for the other
TARGETS = (5, 10, None)
LOW, HIGH = 0.1, 0.9  # a class is clear where at most, or at least, so many of its images have the bit
# key of a figure: its name in the table, how it is written, what it shows
COLUMNS = {
    "accuracy": ("accuracy, %", ".1%", "of a linear head on all bits; random class splits can keep as much"),
    "accuracy_5": ("5 a class, %", ".1%", "of a head in which a class draws on at most 5 bits"),
    "accuracy_10": ("10, %", ".1%", "the same with 10 bits"),
    "attributes": (
        "attributes, AUROC", ".3f", "how well a bit follows one attribute, which half of the classes chose, on the "
        "other half; 0.5: chance",
    ),
    "clear": ("clear pairs", ".2f", "(bit, class) pairs in which at most 10%, or at least 90%, of the images have it"),
    "clear_by_chance": ("by chance", ".2f", "the same of bits that are on as often, in random images"),
    "one_class": ("of one class", ".2f", "bits that half or more of the images have of exactly one class"),
    "stability": ("stability", ".2f", "mean |correlation| with the bits of another seed, matched one to one"),
    "undone": (
        "undone", ".2f", f"decisions of the head on all bits that change when the {SHOWN} reasons shown are flipped"
    ),
}  # fmt: skip


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
    """Figures of how the bits of images lie to their classes: clear and by chance, of one class."""
    counts, sizes = class_counts(codes), class_sizes(codes)
    counts, sizes = counts[:, sizes > 0], sizes[sizes > 0]
    rates = counts.sum(1) / sizes.sum()
    live = (rates > 0) & (rates < 1)
    share, odds = shares(counts, sizes)[live], rates[live, None]
    few, many = np.floor(LOW * sizes + 1e-9), np.ceil(HIGH * sizes - 1e-9)
    chance = np.asarray(binom.cdf(few, sizes, odds) + binom.sf(many - 1, sizes, odds))
    some = bool(live.any())
    return {
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


def figures(codes: Codes, attributes: Attributes | None) -> dict[str, float | None]:
    """All figures of some bits, but for stability."""
    scored = labelled(codes, "test")
    found = of_classes(scored)
    targets = [target for target in TARGETS if target is None or target < codes.concepts]
    for each in sparse_heads(codes, targets, cap=CAP):
        if each.target is None:
            found["undone"] = undone(scored, each.head)
        end = "" if each.target is None else f"_{each.target}"
        found[f"accuracy{end}"] = float(correct(scored, each.head).mean())
    if attributes is not None:
        values = attributes.of(codes.classes).values
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
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Figures of bits, and of the baselines with as many bits of the same features, on test images.

    Args:
        features: of a backbone, with labelled images of the parts train, validation and test.
        given: bits of these images by name; of several seeds of one training under one name.
        attributes: of the classes; None: without that column.
        seeds: how often each baseline is drawn; from two on there are stability and a spread.
        progress: called with a line on each bits.

    Returns:
        plain values: sizes; "rows", of each bits {"bits", "concepts", "seeds": the figures of each, "mean" and "sd" of
        `COLUMNS` over them (None: not measured)}; "probe": accuracy of a linear probe.

    Raises:
        ConceptError: no bits, fewer than one seed, a part without labelled images, and as `aligned`.
    """
    if seeds < 1 or not given or not all(given.values()):
        raise ConceptError(f"expected bits and 1 or more seeds, got {len(given)} and {seeds}")
    if taken := set(given) & {*BASELINES}:
        raise ConceptError(f"expected other names than those of baselines, got {sorted(taken)[0]!r}")
    images = _chosen(features)
    listed = {name: [aligned(codes, images, name) for codes in some] for name, some in given.items()}
    concepts = next(iter(listed.values()))[0].concepts
    backbone, scored = Backbone(images), labelled_rows(images, "test")
    for name, made in BASELINES.items():
        listed[name] = [_codes(made(backbone, concepts, seed), images) for seed in range(seeds)]
    rows = []
    for name, some in listed.items():
        draws = [figures(codes, attributes) for codes in some]
        bits = [labelled(codes, "test").unpack() for codes in some]
        pairs = [matched(one, two) for i, one in enumerate(bits) for two in bits[:i]]
        rows.append(_row(name, some[0].concepts, draws, pairs))
        progress(f"{name}: accuracy {100 * rows[-1]['mean']['accuracy']:.1f}%")
    right = backbone.probabilities[scored].argmax(1) == np.asarray(images.labels)[scored]
    return {
        "classes": len(images.classes),
        "features": int(images.values.shape[1]),
        "images": {name: len(labelled_rows(images, name)) for name in PARTS},
        "rows": rows,
        "probe": float(right.mean()),
    }


def _codes(bits: Bool[np.ndarray, "images concepts"], images: Features) -> Codes:
    """Bits of these images as codes without a head."""
    weight = np.zeros((len(images.classes), bits.shape[1]))
    return codes_of(bits, images.labels, weight, weight.sum(1), classes=images.classes, parts=images.parts)


def _chosen(features: Features) -> Features:
    """At most `CAP` labelled images of each part that is used, classes as even as they can be."""
    rows = []
    for name in PARTS:
        labelled(features, name)  # there are some
        own = labelled_rows(features, name)
        rows.append(own[balanced_rows(np.asarray(features.labels)[own], CAP, 0)])
    return features.take(np.sort(np.concatenate(rows)))


def _row(name: str, concepts: int, draws: Sequence[Mapping[str, Any]], pairs: Sequence[float | None]) -> dict[str, Any]:
    """Mean and standard deviation over seeds; stability over pairs of them."""
    columns = {key: [one.get(key) for one in draws] for key in COLUMNS} | {"stability": pairs}
    known = {key: [value for value in values if value is not None] for key, values in columns.items()}
    mean = {key: float(np.mean(values)) if values else None for key, values in known.items()}
    sd = {key: float(np.std(values, ddof=1)) if len(values) > 1 else None for key, values in known.items()}
    return {"bits": name, "concepts": concepts, "seeds": [*draws], "mean": mean, "sd": sd}


def table(result: Mapping[str, Any], title: str) -> str:
    """The result of `bench` as Markdown."""
    shown = [key for key in COLUMNS if any(row["mean"][key] is not None for row in result["rows"])]
    heads = ("bits", *(COLUMNS[key][0] for key in shown))
    lines = [f"# {markdown_text(title)}", "", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for row in result["rows"]:
        cells = (_cell(row["mean"][key], row["sd"][key], COLUMNS[key][1]) for key in shown)
        lines.append(f"| {markdown_text(row['bits'])} | {' | '.join(cells)} |")
    lines.append(f"| linear probe, no bits | {_cell(result['probe'], None, '.1%')} |{' |' * (len(shown) - 1)}")
    lines += ["", f"{result['images']['test']:,} test images; ±: standard deviation over seeds.", ""]
    return "\n".join([*lines, *(f"- *{COLUMNS[key][0]}*: {COLUMNS[key][2]}." for key in shown), ""])


def _cell(mean: float | None, sd: float | None, form: str) -> str:
    """A figure with its deviation."""
    text = "-" if mean is None else format(mean, form).rstrip("%")
    return text if sd is None else f"{text} ± {format(sd, form).rstrip('%')}"
