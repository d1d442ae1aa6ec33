"""What networks of `htaf_paper.icbm` are worth as concepts, as cells: each reads a network that was kept, by its key.

A network lies in `cells/<key>/run` of the folder of results. Its key is in the identity of each cell, so that the
record of a cell stays right when the network is gone.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32

from htaf.concepts.codes import PARTS, Codes
from htaf.concepts.counts import class_counts, class_sizes, part_counts
from htaf.concepts.extract import extract
from htaf.concepts.scores import score, specificity
from htaf.data.images import Images
from htaf.training.recipe import Source
from htaf.training.runs import Run, open_run
from htaf_paper.binarise import binarise
from htaf_paper.computing import Place, StudyError
from htaf_paper.trainings import data_of, run_path

BARS = 50  # of the histograms of outputs
NEAR = 0.1  # of an end
BESIDE = ("by-number", "by-rate")  # how nodes of a plain network are paired with concepts


@dataclass(frozen=True)
class Scores:
    """Accuracy, binarity, concept accuracy and class specificity of one network.

    Settings: run, its key; plain, the key of the plain network of the same seed, whose features at the concepts' firing
    rates are the baseline of the class specificity, or None; cut: None, or "median" for a plain network whose features
    are cut at their medians (BM).
    """

    def identity(self, settings: Mapping[str, Any], data_dir: str | None) -> dict[str, Any]:
        return _identity("icbm-scores", settings, "run", "plain", "cut")

    def compute(self, settings: Mapping[str, Any], place: Place) -> dict[str, Any]:
        run = kept_run(place, settings["run"])
        images = images_of(run, place)
        work = scratch(place)
        if settings["cut"] == "median":
            codes, beside = median_codes(run, images, work), {}
        else:
            codes = extract(run, images, work / "codes").codes()
            beside = beside_codes(codes, settings["plain"], images, place, work) if settings["plain"] else {}
        return scored(codes, beside, run, method="bm" if settings["cut"] else None)


@dataclass(frozen=True)
class Classes:
    """Histograms of the share of each class's test images that have a concept, beside a plain network's.

    Settings: run and plain, as for `Scores`.
    """

    def identity(self, settings: Mapping[str, Any], data_dir: str | None) -> dict[str, Any]:
        return _identity("icbm-classes", settings, "run", "plain")

    def compute(self, settings: Mapping[str, Any], place: Place) -> dict[str, Any]:
        run = kept_run(place, settings["run"])
        images = images_of(run, place)
        work = scratch(place)
        codes = extract(run, images, work / "codes").codes()
        every = {"icbm": codes, **beside_codes(codes, settings["plain"], images, place, work)}
        found = {"classes": list(codes.classes), "concepts": codes.concepts, "run": settings["run"]}
        return found | {name: _by_class(one.part("test")) for name, one in every.items()}


@dataclass(frozen=True)
class Outputs:
    """Histogram of what the feature extractor gives, over all features and test images.

    Settings: run, its key. Of a plain network the last bar holds the 0.1% that lie beyond it.
    """

    def identity(self, settings: Mapping[str, Any], data_dir: str | None) -> dict[str, Any]:
        return _identity("icbm-outputs", settings, "run")

    def compute(self, settings: Mapping[str, Any], place: Place) -> dict[str, Any]:
        run = kept_run(place, settings["run"])
        work = scratch(place)
        values = outputs(run, images_of(run, place), work)
        return {"run": settings["run"], "method": run.record["recipe"]["method"], **histogram(values, run.has_step)}


SCORES, CLASSES, OUTPUTS = Scores(), Classes(), Outputs()


def _identity(what: str, settings: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Raises KeyError for a setting that is not there."""
    return {"what": what, **{name: settings[name] for name in names}}


def kept_run(place: Place, key: str) -> Run:
    """A network that was kept. Raises StudyError where it is not here, RunError where it is damaged."""
    path = run_path(place.study, key)
    if not path.is_dir():
        raise StudyError(f"expected the network {key} in {path}, got none: run the item again, which trains it")
    return open_run(path)


def images_of(run: Run, place: Place) -> Images:
    """The images that a network was trained on. Raises DataError: they are not here."""
    source = run.record["source"]
    images = data_of(Source(source["name"], size=source.get("size")), False, place.data_dir)
    assert isinstance(images, Images)
    return images


def scratch(place: Place) -> Path:
    """An empty folder for codes, which goes when the cell has its record."""
    work = place.folder / "codes"
    shutil.rmtree(work, ignore_errors=True)  # of a process that was killed
    work.mkdir()
    return work


def beside_codes(codes: Codes, plain: str, images: Images, place: Place, work: Path) -> dict[str, Codes]:
    """A plain network cut to the firing rates of `codes`: its nodes by number, and in the order of their rates."""
    extract(kept_run(place, plain), images, work / "plain")
    return {
        name: binarise(work / "plain", work / name, "rates", like=codes, sorted=name == "by-rate") for name in BESIDE
    }


def median_codes(plain: Run, images: Images, work: Path) -> Codes:
    """A plain network with its features cut at their medians."""
    extract(plain, images, work / "plain")
    return binarise(work / "plain", work / "median", "median")


def scored(codes: Codes, beside: Mapping[str, Codes], run: Run, *, method: str | None = None) -> dict[str, Any]:
    """The scores that items read."""
    scores = score(codes)
    accuracy, concept, specific = scores["accuracy"]["test"], scores["concept_accuracy"], scores["class_specificity"]
    return {
        "method": method or run.record["recipe"]["method"],
        "seed": run.record["seed"],
        "run": run.record["key"],
        "concepts": codes.concepts,
        **{name: accuracy[name] for name in ("smooth", "exact", "gap", "flips")},
        "binarity": scores["binarity"],
        "concept_accuracy": {name: concept[name] for name in ("mean", "live", "balanced", "trivial")},
        "dead": scores["dead"]["share"],
        "specificity": _specific(specific)
        | {name: _specific(specificity(*part_counts(other, "test"))) for name, other in beside.items()},
        "redundancy": {
            "duplicates": scores["redundancy"]["duplicates"]["count"],
            "complementary": scores["redundancy"]["complementary"]["count"],
            "effective": scores["redundancy"]["effective"],
        },
    }


def _specific(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("extreme", "extreme_live", "explained")}


def _by_class(codes: Codes) -> dict[str, Any]:
    """Concepts in 20 bins of the share of a class's images, and the share of extreme pairs."""
    found = specificity(class_counts(codes), class_sizes(codes))
    return {"per_class": found["per_class"], **_specific(found)}


def outputs(run: Run, images: Images, work: Path) -> Float32[np.ndarray, "images features"]:
    """What the head of the smooth, or of the plain, network reads of the test images."""
    features = extract(run, images, work / "codes", keep=["features"]).features()
    values = np.array(features.values[np.flatnonzero(features.parts == PARTS.index("test"))], dtype=np.float32)
    if not run.has_step:
        return values
    net: Any = run.model(exact=False)
    with torch.no_grad():
        return net.act(torch.from_numpy(values)).numpy()


def histogram(values: np.ndarray, bits: bool) -> dict[str, Any]:
    """Shares in 50 equal bars.

    Args:
        values: any shape. bits: whether they lie between 0 and 1; else the bars reach from the least value to the
            99.9% quantile.

    Returns:
        edges: 51 numbers. shares: 50, of all values. near: share within 0.1 of 0 or 1; of others, of the two ends of
        the range in parts of its length. zero: share of values that are 0.
    """
    flat = values.ravel().astype(np.float64)
    low, high = (0.0, 1.0) if bits else (float(flat.min()), float(np.quantile(flat, 0.999)))
    high = high if high > low else low + 1.0
    edges = np.linspace(low, high, BARS + 1)
    counts, _ = np.histogram(flat.clip(low, high), edges)
    at = (flat - low) / (high - low)
    return {
        "edges": [round(edge, 6) for edge in edges.tolist()],
        "shares": [round(share, 6) for share in (counts / flat.size).tolist()],
        "near": round(float(((at <= NEAR) | (at >= 1 - NEAR)).mean()), 6),
        "zero": round(float((flat == 0).mean()), 6),
        "values": int(flat.size),
    }
