"""What the networks of `htaf_paper.icbm` are worth as concepts: bits, scores, minimal concept sets, interventions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from htaf.concepts.binarise import binarise
from htaf.concepts.codes import Codes
from htaf.concepts.extract import extract, extract_features
from htaf.concepts.intervene import intervention_curve
from htaf.concepts.minimal import minimal_set
from htaf.concepts.scores import score
from htaf.data.images import Images
from htaf.runs import Run, content_hash, to_json, write_atomic

VERSION = 1  # of what a measurement holds


def measure(run: Run, images: Images, plain: Run, out: Path) -> dict[str, Any]:
    """Scores of one binary network, computed once.

    Args:
        run: of a method with a step.
        images: its data.
        plain: the plain network of the same seed: its features at the concepts' firing rates are the baseline of the
            class specificity, by number and in the order of their rates.
        out: folder for codes and measurements.
    """
    key = content_hash([VERSION, run.record["key"], plain.record["key"]])
    known = _known(out, key)
    if known is not None:
        return known
    codes = extract(run, images, out / "codes" / run.record["key"])
    features = _features(plain, images, out)
    beside = {
        name: binarise(features, out / "codes" / f"{key}-{name}", "rates", like=codes, sorted=name == "by-rate")
        for name in ("by-number", "by-rate")
    }
    return _measured(codes, run, out, key, beside)


def measure_median(plain: Run, images: Images, out: Path) -> dict[str, Any]:
    """Scores of a plain network with its features cut at their medians (BM), computed once."""
    key = content_hash([VERSION, plain.record["key"], "median"])
    known = _known(out, key)
    if known is not None:
        return known
    codes = binarise(_features(plain, images, out), out / "codes" / key, "median")
    return _measured(codes, plain, out, key, {}, method="bm")


def _features(plain: Run, images: Images, out: Path) -> Path:
    folder = out / "codes" / plain.record["key"]
    extract_features(plain, images, folder)
    return folder


def _known(out: Path, key: str) -> dict[str, Any] | None:
    file = out / "measured" / f"{key}.json"
    return json.loads(file.read_text()) if file.is_file() else None


def _measured(
    codes: Codes, run: Run, out: Path, key: str, beside: Mapping[str, Codes], *, method: str | None = None
) -> dict[str, Any]:
    scores = score(codes, baseline=beside)
    few = minimal_set(codes)
    accuracy, concept = scores["accuracy"]["test"], scores["concept_accuracy"]
    specific = scores["class_specificity"]
    found = {
        "method": method or run.record["recipe"]["method"],
        "seed": run.record["seed"],
        "key": run.record["key"],
        "commit": run.record["commit"],
        "concepts": codes.concepts,
        "smooth": accuracy["smooth"],
        "exact": accuracy["exact"],
        "gap": accuracy["gap"],
        "flips": accuracy["flips"],
        "binarity": scores["binarity"],
        "concept_accuracy": {name: concept[name] for name in ("mean", "live", "balanced", "trivial")},
        "dead": scores["dead"]["share"],
        "specificity": _specific(specific) | {name: _specific(row) for name, row in specific["baselines"].items()},
        "redundancy": {
            "duplicates": scores["redundancy"]["duplicates"]["count"],
            "complementary": scores["redundancy"]["complementary"]["count"],
            "effective": scores["redundancy"]["effective"],
        },
        "completeness": {"k": scores["completeness"]["k"], "accuracy": scores["completeness"]["spread"]["accuracy"]},
        "needed": {name: few[name] for name in ("needed", "head", "accuracy", "random", "target", "removed")}
        | {"same_head": few["same_head"]["needed"]},
        "curves": {order: intervention_curve(codes, order=order).to_json() for order in ("random", "importance")},
        "histograms": {"classes": scores["classes"], "class_specificity": specific},
    }
    write_atomic(out / "measured" / f"{key}.json", to_json(found))
    return found


def _specific(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("extreme", "extreme_live", "explained")}
