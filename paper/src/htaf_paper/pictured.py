"""Does the check of names on held-out images accept true names and refuse wrong ones, with few classes as with many?
`python -m htaf_paper.pictured --out DIR`.

Pictures are drawn with ten attributes (`htaf_paper.drawn`): one is fixed by the class, four are linked to it (90% of
the images of half of the classes, 10% of the others), five are free of it. Bit j of an image is attribute j. No model
is asked: a stand-in (`htaf_paper.vision_model`) gets the same messages, decodes the contact sheets, reads the
attributes from the pixels, and misreads each of an image with probability 0, 5, 10, 20%, each time anew. Per number of
classes, error and seed:

- names that are given: the planted attributes (true), the same permuted over the bits (shuffled), phrases that mean
  nothing (random), the name of one bit for all others (constant), and with two classes for the linked bits the
  attribute that is fixed by the class (class);
- names that are made: of the stand-in, and for bits permuted over the images (null), where every name is wrong;
- true names rated badly: at random, or the best for all.

Counted: the share that is verified, how many of these are flagged as names of classes alone, and how well each score
tells true names from wrong ones (area under the ROC curve).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from htaf._console import plain_errors
from htaf._console import progress as progress_of
from htaf._files import check_output_folder
from htaf.concepts.codes import Codes, codes_of
from htaf.concepts.naming import NameEntry, PictureSettings, naming_job, picture_evidence
from htaf.runs import environment, to_json, write_atomic
from htaf_paper import pictured_report
from htaf_paper.drawn import FIXED, LINKED, NAMES, Drawn, drawn
from htaf_paper.kept import read_kept
from htaf_paper.named import area
from htaf_paper.vision_model import Seeing, VisionModel

CLASSES = (2, 5, 10, 50)
ERRORS = (0.0, 0.05, 0.1, 0.2)
SEEDS = (0, 1, 2, 3, 4)
IMAGES = 900  # two thirds to name, one third to check
TILE = 64  # pixels: the stand-in needs no more
SCORES = ("balanced_accuracy", "auprc", "f1", "correlation")
WRONG = ("shuffled", "random", "constant", "null", "random ratings", "fits always")


def planted(pictures: Drawn, rng: np.random.Generator, *, null: bool = False) -> Codes:
    """Codes whose bits are the attributes; null: permuted over the images of each part, each bit by itself."""
    test = np.arange(len(pictures.labels)) // len(pictures.linked) % 3 == 2  # of each class a third
    bits = pictures.has.copy()
    if null:
        for part in (test, ~test):
            bits[part] = rng.permuted(bits[part], axis=0)
    classes, concepts = pictures.linked.shape
    parts = np.where(test, 2, 0).astype(np.uint8)
    return codes_of(bits, pictures.labels, np.ones((classes, concepts)), np.zeros(classes), parts=parts)


def cell(classes: int, errs: float, seed: int, images: int = IMAGES) -> dict[str, Any]:
    """One number of classes, one error, one seed: plain values."""
    rng = np.random.default_rng((seed, classes, round(errs * 1000)))
    pictures = drawn(classes, images, rng)
    codes, null = planted(pictures, rng), planted(pictures, rng, null=True)
    settings = PictureSettings(tile=TILE, seed=seed)

    def named(of: Codes, given: Sequence[str | None] | None = None, behaviour: Seeing = "sees") -> list[NameEntry]:
        evidence = picture_evidence(of, lambda rows: pictures.pixels[rows], settings)
        entries = None if given is None else [{"concept": c, "name": name} for c, name in enumerate(given) if name]
        found = naming_job(evidence, VisionModel(errs, behaviour, seed), given=entries).run(parallel=1)
        return [entry for entry in found if entry["held_out"] is not None]

    order = rng.permutation(len(NAMES))
    wrong = np.empty(len(order), dtype=np.int64)
    wrong[order] = np.roll(order, 1)  # a cycle: no bit keeps its name
    constant = int(rng.integers(len(NAMES)))
    entries = {
        "true": named(codes, NAMES),
        "shuffled": named(codes, [NAMES[other] for other in wrong]),
        "random": named(codes, [f"a thing of kind {number}" for number in rng.integers(10**6, size=len(NAMES))]),
        "constant": named(codes, [None if c == constant else NAMES[constant] for c in range(len(NAMES))]),
        "made": named(codes),
        "null": named(null),
        "random ratings": named(codes, NAMES, "random ratings"),
        "fits always": named(codes, NAMES, "fits always"),
    }
    if classes == 2:
        fixed = pictures.linked[:, FIXED[0]]
        proxy = [("" if (pictures.linked[:, c] > 0.5).tolist() == (fixed > 0.5).tolist() else "not ") for c in LINKED]
        given: list[str | None] = [None] * len(NAMES)
        for c, sign in zip(LINKED, proxy, strict=True):
            given[c] = sign + NAMES[FIXED[0]]
        entries["class"] = named(codes, given)
    scores = {key: {score: _scores(found, score) for score in SCORES} for key, found in entries.items()}
    return {
        "classes": classes, "errs": errs, "seed": seed, "bits": len(entries["true"]),
        "accepted": {key: _share(found) for key, found in entries.items()},
        "beyond_class": {key: _share(found, beyond=True) for key, found in entries.items()},
        "held_out": {key: float(np.mean(scores[key]["balanced_accuracy"])) for key in entries},
        "found": float(np.mean([entry["name"] == NAMES[entry["concept"]] for entry in entries["made"]])),
        "auc": {key: {s: area(scores["true"][s], scores[key][s]) for s in SCORES} for key in WRONG},
    }  # fmt: skip


def _share(names: Sequence[NameEntry], *, beyond: bool = False) -> float:
    """Share of names that are verified; beyond: and not flagged as names of a class alone."""
    return float(np.mean([entry["verified"] and not (beyond and entry["only_class"]) for entry in names]))


def _scores(names: Sequence[NameEntry], score: str) -> np.ndarray:
    return np.array([entry["scores"][score] for entry in names])


def run(
    out: str | Path,
    classes: Sequence[int] = CLASSES,
    errors: Sequence[float] = ERRORS,
    seeds: Sequence[int] = SEEDS,
    images: int = IMAGES,
    *,
    progress: bool = False,
) -> str:
    """Measure all cells, write report.json, report.md and pictured.png. Cells that are in report.json are kept.

    Returns:
        The report.

    Raises:
        KeptError: report.json is damaged or foreign. OutputError: the folder cannot be written.
    """
    check_output_folder(Path(out))
    settings, file = PictureSettings(tile=TILE), Path(out) / "report.json"
    record: dict[str, Any] = {
        "images": images, "attributes": len(NAMES), "cells": [], "environment": environment(),
        "settings": {key: getattr(settings, key) for key in ("shown", "held_out", "pairs", "tile", "threshold")},
        "cpu_seconds": 0.0,
    }  # fmt: skip
    there = read_kept(file, _checked)
    if there is not None and all(there[name] == record[name] for name in ("images", "attributes", "settings")):
        record = there
    wanted = [(count, errs, seed) for count in classes for errs in errors for seed in seeds]
    cells = {(each["classes"], each["errs"], each["seed"]): each for each in record["cells"]}
    missing = [key for key in wanted if key not in cells]
    with progress_of("cells", len(wanted), shown=progress, done=len(wanted) - len(missing)) as advance:
        for key in missing:
            start = time.process_time()
            cells[key] = cell(*key, images)
            record["cells"] = [cells[each] for each in wanted if each in cells]
            record["cpu_seconds"] = round(record["cpu_seconds"] + time.process_time() - start, 1)
            write_atomic(file, to_json(record))
            advance()
    return pictured_report.write(json.loads(to_json(record)), out)


def _checked(record: Any) -> None:
    """Read all that a run goes on from."""
    for name in ("images", "attributes", "settings"):
        record[name]
    for each in record["cells"]:
        hash((each["classes"], each["errs"], each["seed"]))
    if record["cells"]:
        pictured_report.report(record)
        pictured_report.figure(record)
    round(record["cpu_seconds"], 1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m htaf_paper.pictured", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", required=True, help="folder")
    given = parser.parse_args()
    with plain_errors():
        Console().print(run(given.out, progress=True), markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
