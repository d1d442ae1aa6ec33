"""Does the check of a language model's names accept true names and refuse wrong ones?
`htaf paper run named --scale full --out DIR`.

Bits are planted from CUB's attributes as in `htaf_paper.planted`: bit j of an image is its class's attribute j, flipped
with probability 0, 5, 10, 20%. No language model is asked: a stand-in (`htaf_paper.table_model`) that knows the table
of classes and attributes reads the same prompts. Per noise level and seed:

- names that are given: the planted attributes, and the same names permuted over the bits (shuffled);
- names that are made: of the stand-in, of one that errs on 20% of the classes it sorts, each time
  anew, of stand-ins that name or sort badly, and of the stand-in for bits whose classes were permuted (null), where
  every name is wrong.

Counted: the share that is verified, and how well the score on held-out classes tells right from wrong names (area under
the ROC curve).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
from sklearn.metrics import roc_auc_score, roc_curve

from htaf.concepts.naming.files import NameEntry
from htaf.concepts.naming.job import class_evidence, naming_job
from htaf_paper.computing import Place
from htaf_paper.experiments import Experiment
from htaf_paper.planted import NOISE, Planting, fingerprint, planted_codes, planting, same_columns
from htaf_paper.protocol import Drawing, Outcome, Panel, Scale, Series, Setting, Table
from htaf_paper.reports import line, spread
from htaf_paper.table_model import Behaviour, TableModel

SEEDS = (0, 1, 2, 3, 4)
ERRS: Behaviour = "errs on 20%"
BAD: tuple[Behaviour, ...] = get_args(Behaviour)[2:]


def cell(plan: Planting, noise: float, seed: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """One noise level, one seed: plain values, and the scores behind the ROC curves (nan where there is none)."""
    rng = np.random.default_rng((seed, round(noise * 1000)))
    codes, null = planted_codes(plan, noise, rng), planted_codes(plan, noise, rng, null=True)
    model = TableModel(plan.attributes)
    planted, permuted = class_evidence(codes, seed=seed), class_evidence(null, seed=seed)
    truth = [plan.attributes.names[column] for column in plan.columns]
    order = rng.permutation(len(truth))
    wrong = np.empty(len(truth), dtype=np.int64)
    wrong[order] = np.roll(order, 1)  # a cycle: no bit keeps its name
    entries: dict[str, list[NameEntry]] = {
        "true": naming_job(planted, model, given=_given(truth)).run(),
        "shuffled": naming_job(planted, model, given=_given([truth[other] for other in wrong])).run(),
        "made": naming_job(planted, model).run(),
        "null": naming_job(permuted, model).run(),
    }
    for behaviour in (ERRS, *BAD):
        entries[behaviour] = naming_job(planted, TableModel(plan.attributes, behaviour, seed)).run()
    same = same_columns(plan.attributes)
    column = {name: number for number, name in enumerate(plan.attributes.names)}
    hit = np.array([
        not entry["negated"] and entry["name"] in column and same[column[entry["name"]]] == same[planted]
        for entry, planted in zip(_upright(entries["made"]), plan.columns, strict=True)
    ])  # fmt: skip
    verified = np.array([entry["verified"] for entry in entries["made"]])
    scores = {key: _numbers(found, "held_out") for key, found in entries.items()}
    result = {
        "noise": noise, "seed": seed, "bits": len(truth),
        "accepted": {key: float(np.mean([entry["verified"] for entry in found])) for key, found in entries.items()},
        "held_out": {key: _mean(found, "held_out") for key, found in entries.items()},
        "found": float(hit.mean()),
        "found_among_verified": float(hit[verified].mean()) if verified.any() else None,
        "null_p_small": float(np.mean(_numbers(entries["null"], "p_value") <= 0.05)),
        "auc": {"shuffled": area(scores["true"], scores["shuffled"])}
        | {key: area(scores["made"][hit], scores[key]) for key in ("null", *BAD)},
    }  # fmt: skip
    return result, scores | {"found": scores["made"][hit]}


def _given(names: Sequence[str]) -> list[NameEntry]:
    return [{"concept": concept, "name": name} for concept, name in enumerate(names)]


def _upright(names: Sequence[NameEntry]) -> list[NameEntry]:
    """With "negated" for a name whose first label says that the attribute is not there."""
    return [entry | {"negated": (entry["label_1"] or "").startswith("not ")} for entry in names]


def _numbers(names: Sequence[NameEntry], key: str) -> np.ndarray:
    return np.array([np.nan if entry[key] is None else entry[key] for entry in names])


def _mean(names: Sequence[NameEntry], key: str) -> float | None:
    values = [entry[key] for entry in names if entry[key] is not None]
    return float(np.mean(values)) if values else None


def area(right: np.ndarray, wrong: np.ndarray) -> float | None:
    """Area under the ROC curve; ties count half, names without a score not at all. None where one side is empty."""
    right, wrong = right[~np.isnan(right)], wrong[~np.isnan(wrong)]
    if not len(right) or not len(wrong):
        return None
    return float(roc_auc_score(*_labelled(right, wrong)))


def _labelled(right: np.ndarray, wrong: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.r_[np.ones(len(right)), np.zeros(len(wrong))], np.r_[right, wrong]


def compute(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """All seeds of a noise level, and the ROC curves of their scores together."""
    plan = planting(place.data_dir)
    found, scores = zip(*(cell(plan, settings["noise"], seed) for seed in settings["seeds"]), strict=True)
    curves = {
        name: _curve(*(np.concatenate([of_seed[key] for of_seed in scores]) for key in keys))
        for name, keys in (("shuffled", ("true", "shuffled")), ("null", ("found", "null")))
    }
    about = {
        "classes": len(plan.attributes.classes), "images": len(plan.labels),
        "attributes": len(plan.attributes.names), "bits": len(plan.columns),
    }  # fmt: skip
    return {"noise": settings["noise"], "cells": list(found), "curves": curves, "data": about}


def _curve(right: np.ndarray, wrong: np.ndarray) -> dict[str, list[float]]:
    """Corners of the ROC curve: shares of wrong and of right names that pass."""
    passed_wrong, passed_right, _ = roc_curve(*_labelled(right[~np.isnan(right)], wrong[~np.isnan(wrong)]))
    return {"wrong": passed_wrong.round(4).tolist(), "right": passed_right.round(4).tolist()}


LABELS = {
    "true": "true, given", "made": "made by the stand-in", "errs on 20%": "made, 20% of sortings wrong",
    "shuffled": "shuffled, given", "null": "made for null bits", "random name": "random attribute",
    "same name": "always the same", "lists classes": "lists its classes", "random sorting": "sorted at random",
    "all under label 1": "all under label 1",
}  # fmt: skip


def outcome(records: Sequence[dict[str, Any]], _: Scale) -> Outcome:
    """Names that are verified, their scores and how the rounds agree, over the noise."""
    if not records:
        return Outcome()
    data, own = records[0]["data"], {record["noise"]: record["cells"] for record in records}
    seeds = len(next(iter(own.values())))

    def table(title: str, what: str, names: Sequence[str], digits: int, note: str = "", times: float = 1) -> Table:
        rows = tuple(
            (LABELS[key], *(spread((c[what].get(key) for c in some), digits, times=times) for some in own.values()))
            for key in names
        )
        return Table(title, ("names", *(f"{level:.0%}" for level in own)), rows, note)

    def shares(key: str) -> str:
        return ", ".join(f"{100 * np.mean([c[key] for c in some]):.1f}% at {level:.0%}" for level, some in own.items())

    tables = (
        table(
            "Names that are verified (%)", "accepted", tuple(LABELS), 1,
            "Verified: balanced accuracy >= 0.75 on the half of the classes that did not make the name, sorted by the "
            "name alone, and p <= 0.05 against all other groups of the size. Given names are checked on the same half. "
            "Of the names that the stand-in made, so many are the planted attribute: "
            f"{shares('found')}. A shuffled name that is verified is an attribute that most of the same classes have: "
            "the stand-in sorts by the table, so its score is the true one", 100,
        ),
        table("Mean score on held-out classes", "held_out", tuple(LABELS), 2),
        table(
            "Area under the ROC curve of the score", "auc", ["shuffled", *list(LABELS)[4:]], 3,
            "Given: true against shuffled names. Others: the stand-in's names that are the planted attribute, against "
            "wrong ones. Null bits with p <= 0.05 (%), where 5 would be right and the stand-in searches all attributes "
            f"for the best: {shares('null_p_small')}",
        ),
    )  # fmt: skip
    notes = (
        f"{data['images']:,} images of {data['classes']} CUB classes, {data['bits']} bits planted from attributes, "
        "each image's bit flipped with the probability in the head of a column. No language model was asked: a "
        f"stand-in that reads the same prompts knows the table of classes and {data['attributes']} attributes. So this "
        f"measures the check, not how well language models know birds. Mean ± standard deviation over {seeds} seeds.",
    )
    verified = tuple(
        line(LABELS[key], list(own), lambda level, k=key: [c["accepted"][k] for c in own[level]], times=100)
        for key in list(LABELS)[:5]
    )
    titles = {"shuffled": "given: true against shuffled", "null": "made: right against those of null bits"}
    corners = tuple(
        Panel(
            title, "wrong names that pass", "right names that pass",
            tuple(
                Series(f"{r['noise']:.0%} flipped", tuple(r["curves"][key]["wrong"]), tuple(r["curves"][key]["right"]))
                for r in records
            ),
        )
        for key, title in titles.items()
    )  # fmt: skip
    about = "Names verified over the share of flipped bits, and ROC curves of the score on held-out classes."
    names = Panel("names", "share of bits flipped", "names verified, %", verified)
    return Outcome(tables, (Drawing("named", "Names that are verified", about, (names, *corners)),), notes=notes)


def plan(scale: Scale) -> list[dict[str, Any]]:
    """A cell a noise level."""
    noise, seeds = (NOISE[2:3], SEEDS[:1]) if scale == "smoke" else (NOISE, SEEDS)
    return [{"noise": level, "seeds": list(seeds)} for level in noise]


STUDY = Experiment(
    "named",
    "Names of a language model: does the check accept true ones and refuse wrong ones?",
    {
        "smoke": Setting("one noise level, one seed", 3.0, data=("cub",)),
        "full": Setting("four noise levels, five seeds", 44.0, data=("cub",)),
    },
    plan,
    compute,
    outcome,
    fingerprint,
)
