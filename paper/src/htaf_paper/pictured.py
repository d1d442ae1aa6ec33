"""Does the check of names on held-out images accept true names and refuse wrong ones, with few classes as with many?
`htaf paper run pictured --scale full --out DIR`.

Pictures are drawn with ten attributes (`htaf_paper.drawn`): one is fixed by the class, four are linked to it (90% of
the images of half of the classes, 10% of the others), five are free of it. Bit j of an image is attribute j. No model
is asked: a stand-in (`htaf_paper.vision_model`) gets the same messages, decodes the contact sheets, reads the
attributes from the pixels, and misreads each of an image with probability 0, 5, 10, 20%, each time anew. Per number of
classes, error and seed:

- names that are given: the planted attributes (true), the same permuted over the bits (shuffled), phrases that mean
  nothing (random), the name of one bit for all others (constant), and with two classes for the linked bits the
  attribute that is fixed by the class (class);
- names that are made: of the stand-in, and for bits permuted over the images (null), where every name is wrong;
- true names sorted badly: at random, or all under the first label.

Counted: the share that is verified, how many of these are flagged as names of classes alone, and how well the score
tells true names from wrong ones (area under the ROC curve).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from htaf.concepts.codes import Codes, codes_of
from htaf.concepts.naming.files import NameEntry
from htaf.concepts.naming.job import CHECKED, PAIRS, SHOWN, naming_job, picture_evidence
from htaf_paper.computing import Place
from htaf_paper.drawn import FIXED, LINKED, NAMES, Drawn, drawn
from htaf_paper.experiments import Experiment
from htaf_paper.named import area
from htaf_paper.protocol import Drawing, Outcome, Panel, Scale, Setting, Table
from htaf_paper.reports import levels, line, spread
from htaf_paper.vision_model import Seeing, VisionModel

CLASSES = (2, 5, 10, 50)
ERRORS = (0.0, 0.05, 0.1, 0.2)
SEEDS = (0, 1, 2, 3, 4)
IMAGES = 900  # two thirds to name, one third to check
TILE = 64  # pixels: the stand-in needs no more
WRONG = ("shuffled", "random", "constant", "null", "random sorting", "fits always")


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

    def named(of: Codes, given: Sequence[str | None] | None = None, behaviour: Seeing = "sees") -> list[NameEntry]:
        evidence = picture_evidence(of, lambda rows: pictures.pixels[rows], tile=TILE, seed=seed)
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
        "random sorting": named(codes, NAMES, "random sorting"),
        "fits always": named(codes, NAMES, "fits always"),
    }
    if classes == 2:
        fixed = pictures.linked[:, FIXED[0]]
        proxy = [("" if (pictures.linked[:, c] > 0.5).tolist() == (fixed > 0.5).tolist() else "not ") for c in LINKED]
        given: list[str | None] = [None] * len(NAMES)
        for c, sign in zip(LINKED, proxy, strict=True):
            given[c] = sign + NAMES[FIXED[0]]
        entries["class"] = named(codes, given)
    scores = {key: np.array([entry["held_out"] for entry in found]) for key, found in entries.items()}
    return {
        "classes": classes, "errs": errs, "seed": seed, "bits": len(entries["true"]),
        "accepted": {key: _share(found) for key, found in entries.items()},
        "beyond_class": {key: _share(found, beyond=True) for key, found in entries.items()},
        "held_out": {key: float(np.mean(scores[key])) for key in entries},
        "found": float(np.mean([entry["name"] == NAMES[entry["concept"]] for entry in entries["made"]])),
        "auc": {key: area(scores["true"], scores[key]) for key in WRONG},
    }  # fmt: skip


def _share(names: Sequence[NameEntry], *, beyond: bool = False) -> float:
    """Share of names that are verified; beyond: and not flagged as names of a class alone."""
    return float(np.mean([entry["verified"] and not (beyond and entry["only_class"]) for entry in names]))


def compute(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    return cell(settings["classes"], settings["errs"], settings["seed"], settings["images"])


LABELS = {
    "true": "true, given", "made": "made by the stand-in", "shuffled": "shuffled, given", "random": "random phrase",
    "constant": "one name for all", "null": "made for null bits", "random sorting": "true, sorted at random",
    "fits always": "true, fits always", "class": "its class, given",
}  # fmt: skip


def outcome(records: Sequence[dict[str, Any]], _: Scale) -> Outcome:
    """Names that are verified, and not flagged, by the number of classes; how well each score tells them apart."""
    if not records:
        return Outcome()
    classes, errors = levels(records, "classes"), levels(records, "errs")
    heads = tuple(f"{errs:.0%} misread" for errs in errors)

    def of(count: int | None, errs: float) -> list[dict[str, Any]]:
        return [r for r in records if count in (None, r["classes"]) and r["errs"] == errs]

    def shares(count: int, what: str, title: str, note: str = "") -> Table:
        rows = [
            (label, *(spread((c[what].get(key) for c in of(count, errs)), times=100) for errs in errors))
            for key, label in LABELS.items()
            if any(key in c[what] for errs in errors for c in of(count, errs))
        ]
        return Table(f"{count} classes: {title}", ("names", *heads), tuple(rows), note)

    found = "; ".join(
        f"{count} classes "
        + ", ".join(f"{100 * np.mean([c['found'] for c in of(count, errs)]):.0f}%" for errs in errors)
        for count in classes
    )
    verified = (
        "Verified: balanced accuracy >= 0.75 on the images drawn at random, and p <= 0.05 against a shuffled bit. Of "
        "the names that the stand-in made, so many are the planted attribute, at errors of "
        f"{', '.join(f'{e:.0%}' for e in errors)}: {found}. A shuffled or constant name that is verified is an "
        "attribute that goes with the bit, because both go with the class: with two classes all linked attributes do. "
        "Such a name sorts images rightly. What it cannot do is tell images of one class apart, and that is what the "
        "flag `only_class` is for"
    )
    flagged = "A true name is flagged where the errors leave too few of the pairs in the right order"
    mean = {errs: np.mean([[*c["auc"].values()] for c in of(None, errs)]) for errs in errors}
    areas = Table(
        "Area under the ROC curve: true against wrong names, all numbers of classes",
        ("score", *heads),
        (("balanced accuracy", *(f"{mean[errs]:.3f}" for errs in errors)),),
        "Wrong names: shuffled, random, constant, null, and true ones that are sorted badly; mean of the six. Area of "
        "the score within one cell (10 bits), mean over seeds and numbers of classes",
    )
    titles = "names that are verified (%)", "verified and not flagged as the name of a class alone (%)"
    tables = [shares(count, "accepted", titles[0], verified if count == classes[-1] else "") for count in classes]
    tables += [shares(count, "beyond_class", titles[1], flagged if count == classes[-1] else "") for count in classes]
    notes = (
        f"{IMAGES} drawn pictures with {len(NAMES)} known attributes, of {', '.join(map(str, classes))} classes; each "
        "attribute is a bit. No model was asked: a stand-in that gets the same messages decodes the contact sheets and "
        "reads the attributes from the pixels; it misreads each with the probability in the head of a column, each "
        f"time anew. So this measures the check, not how well models see. A name is made from {SHOWN} images "
        f"with the bit and as many without, checked on {CHECKED} and {CHECKED} others and on "
        f"{PAIRS} pairs of one class. Mean ± standard deviation over {len(levels(records, 'seed'))} seeds.",
    )
    panels = tuple(
        Panel(
            f"{count} classes", "share of attributes misread", "names verified, %",
            tuple(
                line(LABELS[key], errors, lambda e, n=count, k=key: [c["accepted"][k] for c in of(n, e)], times=100)
                for key in list(LABELS)[:6]
            ),
        )
        for count in classes
    )  # fmt: skip
    about = "Names verified over the share of attributes misread, a panel for each number of classes."
    drawing = Drawing("pictured", "Names that are verified", about, panels, columns=2)
    return Outcome((*tables, areas), (drawing,), notes=notes)


def plan(scale: Scale) -> list[dict[str, Any]]:
    """A cell a number of classes, error and seed."""
    if scale == "smoke":
        return [{"classes": 2, "errs": 0.0, "seed": 0, "images": 240}]
    return [
        {"classes": count, "errs": errs, "seed": seed, "images": IMAGES}
        for count in CLASSES
        for errs in ERRORS
        for seed in SEEDS
    ]


STUDY = Experiment(
    "pictured",
    "Names from pictures: does the check on held-out images accept true ones and refuse wrong ones?",
    {
        "smoke": Setting("two classes, no error, one seed, 240 pictures", 3.0),
        "full": Setting("2, 5, 10 and 50 classes, four errors, five seeds", 285.0),
    },
    plan,
    compute,
    outcome,
)
