"""Does attribute naming find the names that are there, and refuse others? `htaf paper run planted
--scale full --out DIR`.

Concepts are planted: for the images of the CUB classes at hand, bit j is the class's attribute j (value >= 0.5), for
every attribute that at least 5 of the classes have and at least 5 lack; then each image's bit is flipped with
probability 0, 5, 10, 20%. No image is read and no network is trained. Per noise level and seed:

- found: share of bits whose name is the planted attribute (or one with the same column over all classes), for the name
  of one split, of a vote over twenty splits, and of all classes, which is what `name_by_attributes` gives;
- a detector: how well the held-out score tells found names from wrong ones (area under the ROC curve). Wrong names:
  `shuffled`, the found names permuted over the bits; `other`, a random other attribute for each bit; both scored on
  the same held-out classes, round by round; `null`, bits whose classes were permuted, named by the same procedure,
  which is hardest: their name is the best of all candidates on the naming classes;
- all for one split of the classes and for twenty, with the score of all rounds or of those that chose the vote's name.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64
from sklearn.metrics import roc_auc_score

from htaf.concepts.codes import Codes, codes_of
from htaf.concepts.counts import IN_A, IN_B, Groups, groups, proportions
from htaf.concepts.naming.by_attributes import Round, chosen, name_by_attributes, play, splits
from htaf.data.attributes import Attributes, load
from htaf.data.image_sets import folder_of
from htaf.training.runs import content_hash
from htaf_paper.computing import Place
from htaf_paper.experiments import Experiment
from htaf_paper.protocol import Drawing, Outcome, Panel, Scale, Series, Setting, Table
from htaf_paper.reports import levels, line, spread

NOISE = (0.0, 0.05, 0.1, 0.2)
SEEDS = (0, 1, 2, 3, 4)
LEAST = 5  # classes that have an attribute, and that lack it
ROUNDS = {"one split": 1, "20 splits": 20}
THRESHOLD = 0.75
SHARE = 0.3


@dataclass(frozen=True, eq=False)
class Planting:
    """What is planted.

    Attributes:
        attributes: of the classes that have images.
        columns: places of the planted attributes.
        labels: int [N], class of each image. parts: uint8 [N], 0 for training images, 2 for test images.
    """

    attributes: Attributes
    columns: np.ndarray
    labels: np.ndarray
    parts: np.ndarray

    @property
    def bits(self) -> Bool[np.ndarray, "classes bits"]:
        """The planted bits of each class."""
        return self.attributes.binary()[:, self.columns]


def planting(data_dir: str | os.PathLike[str] | None = None) -> Planting:
    """Classes, labels and split from CUB's lists; attributes that are neither rare nor nearly everywhere.

    Raises:
        DataError: CUB cannot be found, or its lists are damaged.
    """
    folder = folder_of("cub", data_dir)
    label, train, named = (
        dict(line.split()[:2] for line in (folder / name).read_text().splitlines() if line.strip())
        for name in ("image_class_labels.txt", "train_test_split.txt", "classes.txt")
    )
    present = [number for number in named if number in set(label.values())]
    images = [image for image in label if label[image] in present]
    labels = np.array([present.index(label[image]) for image in images])
    parts = np.array([0 if train[image] == "1" else 2 for image in images], dtype=np.uint8)
    attributes = load("cub", data_dir=data_dir).of([named[number] for number in present])
    return Planting(attributes, common_columns(attributes), labels, parts)


def common_columns(attributes: Attributes, least: int = LEAST) -> np.ndarray:
    """Places of the attributes that `least` classes or more have and as many lack."""
    count = attributes.binary().sum(0)
    return np.flatnonzero((count >= least) & (count <= len(attributes.classes) - least))


def planted_codes(plan: Planting, noise: float, rng: np.random.Generator, *, null: bool = False) -> Codes:
    """The images' bits: their classes' bits, each flipped with probability `noise`.

    Args:
        null: first permute the classes of each bit, so that no attribute is its name.
    """
    bits = plan.bits
    if null:
        bits = np.stack([rng.permutation(column) for column in bits.T], axis=1)
    values = bits[plan.labels] ^ (rng.random((len(plan.labels), bits.shape[1])) < noise)
    classes, concepts = bits.shape
    head = np.zeros((classes, concepts)), np.zeros(classes)
    return codes_of(values, plan.labels, *head, classes=plan.attributes.classes, parts=plan.parts)


def same_columns(attributes: Attributes) -> np.ndarray:
    """int [A]: attributes with the same column over all classes have the same number."""
    return np.unique(attributes.binary().T, axis=0, return_inverse=True)[1].reshape(-1)


@dataclass(frozen=True, eq=False)
class Scored:
    """Held-out scores of the same bits; each [bits that both groups have two classes of]."""

    right: np.ndarray  # whether the name, of one split or of all classes, is the planted one
    vote: np.ndarray  # whether the name of most rounds is
    found: np.ndarray  # score of all rounds
    chosen: np.ndarray  # score of the rounds that chose the vote's name
    shuffled: np.ndarray
    other: np.ndarray


def measured(plan: Planting, codes: Codes, rounds: int, seed: int) -> Scored:
    """Name every bit, and score the names and wrong ones on the classes held out."""
    grouped = groups(proportions(codes.part("train")), classes=plan.attributes.classes)
    same = same_columns(plan.attributes)
    usable = [c for c in range(codes.concepts) if min(_sizes(grouped, c)) >= 2]
    rng = np.random.default_rng((seed, 1))
    cases = [_case(grouped, c, plan.attributes, rounds, rng) for c in usable]
    count = len(usable)
    shift = _derangement(count, rng)
    right, voted = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    found, of_chosen, shuffled, other = (np.zeros(count) for _ in range(4))
    for i, (inside, held, local, played) in enumerate(cases):
        planted = plan.columns[usable[i]]
        attribute, negated, chose = vote(played)
        voted[i] = not negated and same[attribute] == same[planted]
        best, turned, _ = (each.item() for each in chosen(inside, np.ones((1, len(inside)), dtype=bool), local))
        right[i] = voted[i] if rounds == 1 else not turned and same[best] == same[planted]
        found[i], of_chosen[i] = played.held_out.mean(), played.held_out[chose].mean()
        of = cases[shift[i]][3]  # round r of this bit with the name of another bit's round r
        shuffled[i] = check(inside, held, local, of.attribute, of.negated).mean()
        wrong = rng.choice(np.flatnonzero(same != same[planted]), rounds)
        other[i] = check(inside, held, local, wrong, np.zeros(rounds, dtype=bool)).mean()
    return Scored(right, voted, found, of_chosen, shuffled, other)


def vote(played: Round) -> tuple[int, bool, np.ndarray]:
    """The attribute that most rounds chose, whether negated, and which rounds; ties to the better naming score."""
    names = list(zip(played.attribute.tolist(), played.negated.tolist(), strict=True))
    count, fit = Counter(names), Counter[tuple[int, bool]]()
    for name, value in zip(names, played.naming.tolist(), strict=True):
        fit[name] += value
    best = max(count, key=lambda name: (count[name], fit[name], -name[0]))
    return *best, np.array([name == best for name in names])


def check(
    inside: np.ndarray, held: np.ndarray, known: Attributes, attribute: np.ndarray, negated: np.ndarray
) -> Float64[np.ndarray, " rounds"]:
    """Balanced accuracy of a given name in each round, on the classes that the round holds out."""
    agrees = known.binary()[:, attribute].T ^ negated[:, None]  # [rounds, classes]
    a, b = held & inside, held & ~inside
    return ((agrees & a).sum(1) / a.sum(1) + (~agrees & b).sum(1) / b.sum(1)) / 2


def _sizes(grouped: Groups, concept: int) -> tuple[int, int]:
    member = grouped.member[concept]
    return int((member == IN_A).sum()), int((member == IN_B).sum())


def _case(grouped: Groups, concept: int, known: Attributes, rounds: int, rng: np.random.Generator):
    member = grouped.member[concept]
    used = np.flatnonzero((member == IN_A) | (member == IN_B))
    inside = member[used] == IN_A
    held = splits(inside, rounds, SHARE, rng)
    local = replace(known, classes=tuple(known.classes[row] for row in used), values=known.values[used])
    return inside, held, local, play(inside, held, local)


def _derangement(count: int, rng: np.random.Generator) -> np.ndarray:
    """A random permutation without fixed points: a random cycle."""
    order = rng.permutation(count)
    shift = np.empty(count, dtype=np.int64)
    shift[order] = np.roll(order, 1)
    return shift


def cell(plan: Planting, noise: float, seed: int) -> dict[str, Any]:
    """One noise level, one seed: plain values."""
    rng = np.random.default_rng((seed, round(noise * 1000)))
    codes, empty = planted_codes(plan, noise, rng), planted_codes(plan, noise, rng, null=True)
    result: dict[str, Any] = {"noise": noise, "seed": seed, "bits": codes.concepts}
    for name, rounds in ROUNDS.items():
        own, null = measured(plan, codes, rounds, seed), measured(plan, empty, rounds, seed)
        result["usable"] = len(own.right)
        aucs = {
            what: _auc(own.found[own.right], wrong)
            for what, wrong in (("shuffled", own.shuffled), ("other", own.other), ("null", null.found))
        }
        result[name] = {
            "found": float(own.right.sum() / codes.concepts), "vote": float(own.vote.sum() / codes.concepts),
            "auc": aucs | {"null, rounds that chose": _auc(own.chosen[own.right], null.chosen)},
            "held_out": float(own.found.mean()),
            "null_held_out": {"all rounds": float(null.found.mean()), "rounds that chose": float(null.chosen.mean())},
            "passed": float((own.found >= THRESHOLD).mean()),
            "null_passed": {
                "all rounds": float((null.found >= THRESHOLD).mean()),
                "rounds that chose": float((null.chosen >= THRESHOLD).mean()),
            },
            "wrong_passed": {
                "shuffled": float((own.shuffled >= THRESHOLD).mean()), "other": float((own.other >= THRESHOLD).mean()),
            },
        }  # fmt: skip
    same, names = same_columns(plan.attributes), name_by_attributes(codes, plan.attributes, seed=seed)
    nulls = name_by_attributes(empty, plan.attributes, seed=seed)
    hit = [n["attribute"] is not None and not n["negated"] and same[n["attribute"]] == same[c]
           for n, c in zip(names, plan.columns, strict=True)]  # fmt: skip
    result["name_concepts"] = {
        "found": float(np.mean(hit)),
        "verified": float(np.mean([n["verified"] for n in names])),
        "verified_right": float(np.mean([h for h, n in zip(hit, names, strict=True) if n["verified"]] or [0])),
        "null_verified": float(np.mean([n["verified"] for n in nulls])),
        "mixed": float(np.mean([n["mixed"] for n in names])),
    }
    return result


def _auc(right: np.ndarray, wrong: np.ndarray) -> float | None:
    """Area under the ROC curve; ties count half. None where one side is empty."""
    if not len(right) or not len(wrong):
        return None
    return float(roc_auc_score(np.r_[np.ones(len(right)), np.zeros(len(wrong))], np.r_[right, wrong]))


def compute(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """A cell, and what is planted."""
    plan = planting(place.data_dir)
    same = same_columns(plan.attributes)
    about = {
        "classes": len(plan.attributes.classes), "images": len(plan.labels), "attributes": len(plan.attributes.names),
        "planted": [plan.attributes.names[c] for c in plan.columns],
        "with_a_twin": sum(int((same == same[column]).sum()) > 1 for column in plan.columns),
    }  # fmt: skip
    return cell(plan, settings["noise"], settings["seed"]) | {"data": about}


def fingerprint(settings: Mapping[str, Any], data_dir: str | None) -> str:
    """Of what is planted."""
    plan = planting(data_dir)
    return content_hash(
        [plan.attributes.names, plan.attributes.classes, plan.bits.tolist(), plan.labels.tolist(), plan.parts.tolist()]
    )


def outcome(records: Sequence[dict[str, Any]], _: Scale) -> Outcome:
    """Names found, the held-out score as a detector of right names, and which score."""
    if not records:
        return Outcome()
    data, noise = records[0]["data"], levels(records, "noise")
    notes = (
        f"{data['images']:,} images of {data['classes']} CUB classes; {len(data['planted'])} bits, one for each of "
        f"those of {data['attributes']} attributes that at least 5 classes have and at least 5 lack; "
        f"{data['with_a_twin']} of them share their column with another attribute, which then counts as the same name. "
        "Each image's bit is flipped with the probability in the first column. Mean ± standard deviation over "
        f"{len(levels(records, 'seed'))} seeds.",
    )
    own = {level: [each for each in records if each["noise"] == level] for level in noise}
    found = Table(
        "Names found (%), and verified by `name_by_attributes`",
        ("noise", "one split", "vote", "all classes", "verified", "right among verified", "null verified", "mixed"),
        tuple(
            (
                f"{level:.0%}",
                spread((c["one split"]["found"] for c in some), times=100),
                spread((c["20 splits"]["vote"] for c in some), times=100),
                *(
                    spread((c["name_concepts"][key] for c in some), times=100)
                    for key in ("found", "verified", "verified_right", "null_verified")
                ),
                f"{np.mean([c['name_concepts']['mixed'] for c in some]):.1f}",
            )
            for level, some in own.items()
        ),
        "Names of one split's naming classes, of a vote over 20 splits, and of all classes (`name_by_attributes`). "
        "Verified: held-out balanced accuracy >= 0.75, half of the rounds agree, p <= 0.05. Null: bits whose classes "
        "were permuted, so that no name is right. Mixed: classes in neither group, of each bit",
    )
    wrong = ("shuffled", "other", "null", "null, rounds that chose")
    detector = Table(
        "The held-out score as a detector of right names",
        ("noise", "splits", *wrong[:3], "null, score of the rounds that chose the name"),
        tuple(
            (f"{level:.0%}", name, *(spread((c[name]["auc"][key] for c in some), 3) for key in wrong))
            for level, some in own.items()
            for name in ROUNDS
        ),
        "Area under the ROC curve, right names against wrong ones: names of other bits (shuffled), random other "
        "attributes (other), the names found for null bits (null)",
    )
    kinds = ("all rounds", "rounds that chose")
    chance = Table(
        "Which score? Null bits have no name: chance is 0.50",
        ("noise", "splits", *kinds, "passing, all", "passing, that chose"),
        tuple(
            (
                f"{level:.0%}",
                name,
                *(spread((c[name]["null_held_out"][kind] for c in some), 2) for kind in kinds),
                *(spread((c[name]["null_passed"][kind] for c in some), times=100) for kind in kinds),
            )
            for level, some in own.items()
            for name in ROUNDS
        ),
        "The score over all rounds, and over those that chose the vote's name; and the share that passes 0.75 (%)",
    )
    return Outcome((found, detector, chance), (_drawing(own),), notes=notes)


def _drawing(own: Mapping[float, Sequence[dict[str, Any]]]) -> Drawing:
    """Names found, and the detector's area, over the noise."""
    noise = list(own)

    def series(label: str, value: Callable[[dict[str, Any]], float | None], times: float) -> Series:
        return line(label, noise, lambda level: [value(c) for c in own[level]], times=times)

    names = (
        series("right, names of one split", lambda c: c["one split"]["found"], 100),
        series("right, names of all classes", lambda c: c["20 splits"]["found"], 100),
        series("verified though nothing is planted", lambda c: c["name_concepts"]["null_verified"], 100),
    )
    areas = tuple(
        series(f"{name}, against {wrong}", lambda c, n=name, w=wrong: c[n]["auc"][w], 1)
        for name in ROUNDS
        for wrong in ("shuffled", "null")
    )
    return Drawing(
        "planted", "Names found and the held-out score", "Right and wrongly verified names over the share of flipped "
        "bits, and the area under the ROC curve of the held-out score.",
        (
            Panel("names", "share of bits flipped", "bits, %", names, hline=95),
            Panel("held-out score, right against wrong", "share of bits flipped", "area under the ROC curve", areas),
        ),
        columns=2,
    )  # fmt: skip


def plan(scale: Scale) -> list[dict[str, Any]]:
    """A cell a noise level and seed."""
    noise, seeds = (NOISE[2:3], SEEDS[:1]) if scale == "smoke" else (NOISE, SEEDS)
    return [{"noise": level, "seed": seed} for level in noise for seed in seeds]


STUDY = Experiment(
    "planted",
    "Planted concepts: does attribute naming find names that are there?",
    {
        "smoke": Setting("one noise level, one seed", 2.0, data=("cub",)),
        "full": Setting("four noise levels, five seeds", 27.0, data=("cub",)),
    },
    plan,
    compute,
    outcome,
    fingerprint,
)
