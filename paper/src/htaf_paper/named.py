"""Does the check of a language model's names accept true names and refuse wrong ones?
`python -m htaf_paper.named --out DIR`.

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

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
from rich.console import Console
from sklearn.metrics import roc_auc_score, roc_curve

from htaf.concepts.naming import NameEntry, NamingSettings, class_evidence, naming_job
from htaf.runs import environment, to_json, write_atomic
from htaf_paper import named_report
from htaf_paper.planted import NOISE, Planting, planted_codes, planting, same_columns
from htaf_paper.table_model import Behaviour, TableModel

SEEDS = (0, 1, 2, 3, 4)
ERRS: Behaviour = "errs on 20%"
BAD: tuple[Behaviour, ...] = get_args(Behaviour)[2:]


def cell(plan: Planting, noise: float, seed: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """One noise level, one seed: plain values, and the scores behind the ROC curves (nan where there is none)."""
    rng = np.random.default_rng((seed, round(noise * 1000)))
    codes, null = planted_codes(plan, noise, rng), planted_codes(plan, noise, rng, null=True)
    settings, model = NamingSettings(seed=seed), TableModel(plan.attributes)
    planted, permuted = class_evidence(codes, settings), class_evidence(null, settings)
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
        "agreement": {key: _mean(entries[key], "agreement") for key in ("made", ERRS, "null", *BAD)},
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


def run(
    out: str | Path, data_dir: str | None = None, noise: Sequence[float] = NOISE, seeds: Sequence[int] = SEEDS
) -> str:
    """Measure all cells, write record.json, report.md and roc.png.

    Returns:
        The report.

    Raises:
        DataError: CUB cannot be loaded.
    """
    start = time.process_time()
    plan = planting(data_dir)
    cells, curves = [], {}
    for level in noise:
        pooled = []
        for seed in seeds:
            found, scores = cell(plan, level, seed)
            cells.append(found)
            pooled.append(scores)
        curves[f"{level:g}"] = {
            name: _curve(*(np.concatenate([scores[key] for scores in pooled]) for key in keys))
            for name, keys in (("shuffled", ("true", "shuffled")), ("null", ("found", "null")))
        }
    record = {
        "data": {
            "classes": len(plan.attributes.classes), "images": len(plan.labels),
            "attributes": len(plan.attributes.names), "bits": len(plan.columns),
        },
        "cells": cells, "curves": curves, "environment": environment(),
    }  # fmt: skip
    record["cpu_seconds"] = round(time.process_time() - start, 1)
    write_atomic(Path(out) / "record.json", to_json(record))
    return named_report.write(json.loads(to_json(record)), out)


def _curve(right: np.ndarray, wrong: np.ndarray) -> dict[str, list[float]]:
    """Corners of the ROC curve: shares of wrong and of right names that pass."""
    passed_wrong, passed_right, _ = roc_curve(*_labelled(right[~np.isnan(right)], wrong[~np.isnan(wrong)]))
    return {"wrong": passed_wrong.round(4).tolist(), "right": passed_right.round(4).tolist()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m htaf_paper.named", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", required=True, help="folder")
    parser.add_argument("--data-dir", help="where CUB_200_2011 lies, before HTAF_DATA")
    arguments = parser.parse_args()
    Console().print(run(arguments.out, arguments.data_dir), markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
