"""The concepts that matter for one class, as a cell: their importance, names, images with them and without them, and a
misclassified image explained by its bits. The record holds numbers of images, never their pixels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float16, Float64, Int64

from htaf.concepts.codes import Codes
from htaf.concepts.counts import proportions
from htaf.concepts.extract import extract
from htaf.concepts.naming.by_attributes import name_by_attributes
from htaf.concepts.reasons import reasons_of
from htaf.data.attributes import Attributes, load
from htaf_paper.computing import Place
from htaf_paper.icbm_scores import images_of, kept_run, scratch

TOP = 5  # concepts, as in the paper
SHOWN = 10  # images with a bit, and as many without it
NAMED = ("name", "negated", "verified", "status", "reason", "held_out", "p_value", "group_a", "group_b", "mixed")


@dataclass(frozen=True)
class Concepts:
    """The most important concepts of one class.

    Settings: run, the key of a kept network; attributes, the table that names come from, as for
    `htaf.data.attributes.load`; class, part of the name of the class, which is taken where there is such a one. Else it
    is the class with most test images right among those with one wrong or more.
    """

    def identity(self, settings: Mapping[str, Any], data_dir: str | None) -> dict[str, Any]:
        names = ("run", "attributes", "class")
        return {"what": "icbm-concepts", **{name: settings[name] for name in names}}

    def compute(self, settings: Mapping[str, Any], place: Place) -> dict[str, Any]:
        run = kept_run(place, settings["run"])
        attributes = load(settings["attributes"], data_dir=place.data_dir)
        folder = extract(run, images_of(run, place), scratch(place) / "codes")
        codes, margins = folder.codes(), folder.margins()
        assert margins is not None
        found = explained(codes, margins, attributes.of(codes.classes), settings["class"])
        return {"run": settings["run"], "data": run.record["source"], **found}


CELLS = Concepts()


def explained(
    codes: Codes, margins: Float16[np.ndarray, "images concepts"], attributes: Attributes, wanted: str
) -> dict[str, Any]:
    """What the record of a cell holds.

    Args:
        codes: of train and test images. margins: their pre-activations, rows as in `codes`.
        attributes: of the classes. wanted: part of a class's name.

    Returns:
        class, and its images: of the test part, right, wrong. concepts: of the five with the largest |w_kj| number,
        importance, weight, share (of the class's right images that have the bit), usual (the bit of most of them), and
        name with its check; on, off: test images (numbers within the part) whose pre-activation is largest and least,
        at most one a class. wrong: a test image of the class that is read as another one, its bits, what that other
        class is, and its five strongest reasons.
    """
    rows = codes.rows("test")
    test = codes.take(rows)
    margins = margins[rows]
    number = chosen_class(test, wanted)
    weight = test.weight[number].astype(np.float64)
    top = np.argsort(-np.abs(weight), kind="stable")[:TOP]
    own = np.flatnonzero(test.labels == number)
    right = own[test.exact[own] == number]
    bits = test.unpack()
    share = bits[right][:, top].mean(0) if len(right) else np.full(len(top), np.nan)
    names = name_by_attributes(np.ascontiguousarray(proportions(codes.part("train"))[top]), attributes)
    concepts = []
    for place, concept in enumerate(top.tolist()):
        margin = margins[:, concept].astype(np.float64)
        concepts.append(
            {
                "concept": concept,
                "importance": round(float(abs(weight[concept])), 6),
                "weight": round(float(weight[concept]), 6),
                "share": None if not len(right) else round(float(share[place]), 4),
                "usual": None if not len(right) else int(share[place] >= 0.5),
                "on": one_a_class(margin, bits[:, concept] == 1, test.labels),
                "off": one_a_class(-margin, bits[:, concept] == 0, test.labels),
                **{name: names[place][name] for name in NAMED},
            }
        )
    return {
        "class": test.classes[number],
        "classes": len(test.classes),
        "images": {"test": len(own), "right": len(right)},
        "concepts": concepts,
        "wrong": misread(test, bits, own, right, top),
    }


def chosen_class(test: Codes, wanted: str) -> int:
    """The first class whose name has `wanted` in it and that has images right and wrong; else the one with most right
    among those with one wrong or more, else class 0."""
    classes = range(len(test.classes))
    right = [int(((test.labels == k) & (test.exact == k)).sum()) for k in classes]
    wrong = [int(((test.labels == k) & (test.exact != k)).sum()) for k in classes]
    for k in classes:
        if wanted and wanted in test.classes[k] and right[k] and wrong[k]:
            return k
    return max(classes, key=lambda k: (wrong[k] > 0, right[k], -k))


def one_a_class(
    order: Float64[np.ndarray, " images"], there: np.ndarray, labels: np.ndarray, most: int = SHOWN
) -> list[int]:
    """Images by falling `order` among those that are `there`, at most one of each class."""
    rows = np.flatnonzero(there)
    found: list[int] = []
    seen: set[int] = set()
    for row in rows[np.argsort(-order[rows], kind="stable")].tolist():
        if int(labels[row]) not in seen:
            seen.add(int(labels[row]))
            found.append(row)
        if len(found) == most:
            break
    return found


def misread(
    test: Codes,
    bits: np.ndarray,
    own: Int64[np.ndarray, " n"],
    right: Int64[np.ndarray, " m"],
    top: Int64[np.ndarray, " concepts"],
) -> dict[str, Any] | None:
    """The wrong image of the class whose important bits differ most from those of the right images; None without."""
    wrong = own[test.exact[own] != test.labels[own]]
    if not len(wrong) or not len(right):
        return None
    usual = bits[right][:, top].mean(0) >= 0.5
    far = (bits[wrong][:, top].astype(bool) != usual).sum(1)
    row = int(wrong[np.argmax(far)])
    reasons = reasons_of(bits[[row]], test.weight, test.bias)
    predicted = int(reasons.predicted[0])
    return {
        "image": row,
        "predicted": test.classes[predicted],
        "bits": bits[row, top].tolist(),
        "usual": usual.astype(int).tolist(),
        "differ": int(far.max()),
        # how far the important bits of all wrong and all right images of the class are from the usual ones, on average
        "differ_wrong": round(float(far.mean()), 4),
        "differ_right": round(float((bits[right][:, top].astype(bool) != usual).sum(1).mean()), 4),
        "margin": round(float(reasons.margin[0]), 4),
        "reasons": [
            {"concept": c, "bit": int(bits[row, c]), "worth": round(float(reasons.worth[0, c]), 4)}
            for c in reasons.strongest(0)
        ],
    }
