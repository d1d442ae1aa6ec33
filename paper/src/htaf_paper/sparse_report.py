"""Sparse heads on a network's bits beside those on other bits of the same images: accuracy, NEC, NCC, differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from htaf.concepts.codes import Codes, ConceptError, PartName
from htaf.concepts.counts import labelled, training_means
from htaf.concepts.heads import Head
from htaf.concepts.sparse import ALGORITHM, CAP, Z, measured, sparse_heads
from htaf.concepts.sparsity import COVERAGE
from htaf.concepts.store import Features
from htaf_paper.protocol import Table

OWN, SHUFFLED = "these", "shuffled labels"


def paired(difference: Float64[np.ndarray, " images"]) -> dict[str, Any]:
    """The mean of what each image differs by, with its 95% interval by the normal approximation."""
    mean, n = float(difference.mean()), len(difference)
    half = float(Z * difference.std(ddof=1) / np.sqrt(n)) if n > 1 else float("nan")
    return {"difference": mean, "interval": [mean - half, mean + half]}


def aligned(other: Codes | Features, codes: Codes, name: str) -> Codes | Features:
    """The images of `codes` among those of others, in the same order.

    Raises:
        ConceptError: other classes, or an image that is not there or has another label or part.
    """
    if other.classes != codes.classes:
        raise ConceptError(f"{name}: expected the classes {codes.classes}, got {other.classes}")
    ids = list(codes.ids)
    if list(other.ids) != ids:
        place = {image: row for row, image in enumerate(other.ids)}
        if missing := [image for image in ids if image not in place]:
            raise ConceptError(f"{name}: expected codes of the same images, got none of {missing[0]!r}")
        other = other.take(np.array([place[image] for image in ids], np.int64))
    if (np.asarray(other.labels) != codes.labels).any() or (np.asarray(other.parts) != codes.parts).any():
        raise ConceptError(f"{name}: expected codes of the same images, got other labels or parts")
    return other


def compare(
    codes: Codes,
    others: Mapping[str, Sequence[Codes | Features]],
    *,
    targets: Sequence[int | None] = (5, 10, None),
    shuffles: int = 0,
    part: PartName = "test",
    cap: int = CAP,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Accuracy at given numbers of concepts a class, on a network's bits and on others, all by `sparse_heads`.

    Args:
        codes: of the network, with labelled train, validation and `part`.
        others: by name, codes of the same images, or numbers in place of bits, one for each seed.
        targets: as `sparse_heads`.
        shuffles: how many times the same is done with the labels permuted: what chance gives.
        part: that is scored. The accuracy of train or validation, which fit and choose the heads, is too high.
        cap, seed: as `sparse_heads`; seed is also the first of the permutations'.
        progress: called with a line on each step.

    Returns:
        plain values. "own_head": the figures of `htaf.concepts.sparse.measured` of the network's own head;
        "rows": the same of each fit with "bits", "concepts", "seed", "target", "validation", "strength", "ridge";
        "summary": for each bits and target the mean over seeds, with "sd" over them; "differences": accuracy of these
        bits less that of others (mean over their seeds) with a 95% interval over images: "bits", "target",
        "difference", "interval". Seeds of a training are not in it.

    Raises:
        ConceptError: as `sparse_heads` and `aligned`.
    """
    tell = progress or (lambda line: None)
    if taken := {OWN, SHUFFLED} & set(others):
        raise ConceptError(f"expected other names for other bits, got {sorted(taken)[0]!r}, which these have")
    listed: dict[str, Sequence[Codes | Features]]
    listed = {OWN: [codes], **{name: [aligned(o, codes, name) for o in given] for name, given in others.items()}}
    listed |= {SHUFFLED: [permuted(codes, seed + i) for i in range(shuffles)]} if shuffles else {}
    scored, rows = labelled(codes, part), []
    hits: dict[tuple[str, int | None], list[Bool[np.ndarray, " images"]]] = {}
    for name, group in listed.items():
        for number, bits in enumerate(group):
            title = name if len(group) == 1 else f"{name}, seed {seed + number}"
            found = sparse_heads(bits, targets, cap=cap, seed=seed, progress=lambda line, t=title: tell(f"{t}: {line}"))
            means, here = training_means(bits), labelled(bits, part)
            for each in found:
                right, figures = measured(here, each.head, means)
                hits.setdefault((name, each.target), []).append(right)
                chosen = {"validation": each.validation, "strength": each.strength, "ridge": each.ridge}
                about = {"bits": name, "concepts": bits.concepts, "seed": seed + number, "target": each.target}
                rows.append(about | figures | chosen)
    own = Head(codes.weight.astype(np.float64), codes.bias.astype(np.float64))
    differences = [
        {"bits": name, "target": target, **paired(hits[OWN, target][0] - np.mean(group, axis=0))}
        for (name, target), group in hits.items()
        if name != OWN
    ]
    return {
        "concepts": codes.concepts,
        "classes": len(codes.classes),
        "part": part,
        "images": {name: len(labelled(codes, name)) for name in dict.fromkeys(("train", "validation", part))},
        "targets": list(targets),
        "coverage": COVERAGE,
        "cap": cap,
        "seed": seed,
        "own_head": measured(scored, own, training_means(codes))[1],
        "rows": rows,
        "summary": [_summed([row for row in rows if (row["bits"], row["target"]) == pair]) for pair in hits],
        "differences": differences,
        "algorithm": ALGORITHM,
    }


def permuted(codes: Codes, seed: int) -> Codes:
    """The codes with the labels of each part permuted among its labelled images: what a fit then reaches is chance."""
    rng, labels = np.random.default_rng(seed), np.array(codes.labels)
    for part in np.unique(codes.parts):
        rows: Int64[np.ndarray, " rows"] = np.flatnonzero((codes.parts == part) & (labels >= 0))
        labels[rows] = labels[rng.permutation(rows)]
    return replace(codes, labels=labels)


def _summed(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over seeds."""
    kept = {name: rows[0][name] for name in ("bits", "concepts", "target")}
    accuracy = [row["accuracy"] for row in rows]
    spread = float(np.std(accuracy, ddof=1)) if len(rows) > 1 else None
    means = {name: float(np.mean([row[name] for row in rows])) for name in ("nec", "ncc", "ncc_predicted")}
    return {**kept, "seeds": len(rows), "accuracy": float(np.mean(accuracy)), "sd": spread, **means}


def table(result: Mapping[str, Any]) -> Table:
    """The result of `compare`."""
    own, part = result["own_head"], result["part"]
    apart = {(row["bits"], row["target"]): row for row in result["differences"]}
    single = {(row["bits"], row["target"]): row["interval"] for row in result["rows"]}
    rows = [("the network's own head", "all", _share(own["accuracy"], own["interval"]), "-", "-", *_sizes(own))]
    for row in result["summary"]:
        pair = row["bits"], row["target"]
        other = apart.get(pair)
        rows.append(
            (
                row["bits"],
                str(row["target"] or "all"),
                _share(row["accuracy"], single[pair] if row["seeds"] == 1 else None),
                "-" if row["sd"] is None else f"{100 * row['sd']:.1f} ({row['seeds']})",
                "-" if other is None else f"{100 * other['difference']:+.1f} ({_range(other['interval'], sign='+')})",
                *_sizes(row),
            )
        )
    return Table(
        f"{result['concepts']} concepts, {result['classes']} classes, {result['images'][part]:,} images of the part "
        f"{part!r}",
        ("bits", "concepts a class", "accuracy, %", "sd over seeds", "these less those, points (95%)", "NEC", "NCC"),
        tuple(rows),
        READING,
    )


READING = (
    "At most so many concepts a class; all: no limit. NEC: weights other than 0 of a class. NCC: concepts that make up "
    "95% of what is added to a logit, mean over images and classes. Accuracy has Wilson's 95% interval, a difference "
    "one over images, paired; neither knows of other trainings. If random bits do as well, the concepts as such are "
    "worth nothing at this size."
)


def _share(accuracy: float, interval: Sequence[float] | None) -> str:
    return f"{100 * accuracy:.1f}" + ("" if interval is None else f" ({_range(interval)})")


def _sizes(row: Mapping[str, Any]) -> tuple[str, str]:
    return f"{row['nec']:.1f}", f"{row['ncc']:.1f}"


def _range(interval: Sequence[float], sign: str = "") -> str:
    return " to ".join(format(100 * value, f"{sign}.1f") for value in interval)
