"""The items on implicit concept bottleneck models: what is kept of a cell, rules, records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from htaf.concepts.codes import codes_of
from htaf.data.attributes import Attributes
from htaf_paper import pretrained
from htaf_paper.cells import is_record
from htaf_paper.computing import Place as CellPlace
from htaf_paper.computing import StudyError, attempt, cell_folder, finished
from htaf_paper.engine import Records, wanted
from htaf_paper.icbm_concepts import explained
from htaf_paper.icbm_figures import _concept_claims, _near
from htaf_paper.icbm_items import _best_overall, _of_betas
from htaf_paper.icbm_scores import histogram, kept_run
from htaf_paper.items import item
from htaf_paper.pretrained import right
from htaf_paper.protocol import Claim, Found, Place
from htaf_paper.records import read_records, write_records

RESULTS = Path(__file__).parents[1] / "results"


def test_measured_records_need_no_networks(tmp_path: Path) -> None:
    """Each cell is computed once; from the records alone the same outcome is read."""
    study, place = item("feature-histograms"), Place(tmp_path / "smoke")
    records = Records(place.out)
    while tasks := wanted(study, "smoke", Found(records.read), place):
        for task in tasks:
            assert finished(task, place.out) is None, "computed twice"
            assert attempt(task, CellPlace(cell_folder(place.out, task.key))).error is None
    outcome = study.read("smoke", Found(records.read), place)
    assert [sum(panel.series[0].y) for panel in outcome.drawings[0].panels] == pytest.approx([1, 1], abs=1e-4)
    there, fresh = tmp_path / "there", Place(tmp_path / "fresh")
    stored = [json.loads(file.read_text()) for file in place.out.glob("cells/*/record.json")]
    write_records(there / "cells.jsonl", stored)
    found = Found(Records(fresh.out, [there]).read)
    assert wanted(study, "smoke", found, fresh) == []
    assert study.read("smoke", found, fresh) == outcome
    scores = next(one for one in stored if one.get("function") == "icbm-outputs")
    run = scores["run"]
    write_records(there / "cells.jsonl", [one for one in stored if one is not scores])
    again = wanted(study, "smoke", Found(Records(fresh.out, [there]).read), fresh)
    assert [(task.key, task.keeps) for task in again] == [(run, ("run",))], "its network alone is trained again"
    with pytest.raises(StudyError, match=f"expected the network {run} in .*{run}/run, got none"):
        kept_run(CellPlace(cell_folder(fresh.out, "k")), run)


# ---- rules ----


def scores(exact: list[float], concept: list[float], binarity: list[float | None]) -> dict[int, dict[str, Any]]:
    return {
        seed: {"exact": a, "concept_accuracy": {"mean": c}, "binarity": b}
        for seed, (a, c, b) in enumerate(zip(exact, concept, binarity, strict=True))
    }


def test_best_overall_needs_every_measure() -> None:
    rows = {
        "htaf": scores([0.9, 0.91, 0.905], [0.9, 0.91, 0.905], [0.98, 0.98, 0.98]),
        "ss": scores([0.8, 0.81, 0.806], [0.8, 0.81, 0.806], [0.4, 0.41, 0.4]),
        "ste": scores([0.8, 0.81, 0.806], [0.8, 0.81, 0.806], [1.0, 1.0, 1.0]),
        "bm": scores([0.7, 0.71, 0.706], [0.7, 0.71, 0.706], [None] * 3),
    }
    assert [claim.verdict for claim in _best_overall(rows, "reduced", "N", binarity=True)] == ["holds"] * 8
    rows["ss"] = scores([0.9, 0.91, 0.905], [0.8, 0.81, 0.806], [0.4, 0.41, 0.4])
    assert _best_overall(rows, "reduced", "N", binarity=True)[0].verdict == "does not hold", "0 is below half of 0.4"
    rows["ss"] = scores([0.8, 0.95, 0.7], [0.8, 0.81, 0.806], [0.4, 0.41, 0.4])
    assert _best_overall(rows, "reduced", "N", binarity=True)[0].verdict == "not settled"
    rows["ste"] = scores([0.95, 0.96, 0.955], [0.8, 0.81, 0.806], [1.0, 1.0, 1.0])
    assert _best_overall(rows, "reduced", "N", binarity=True)[0].verdict == "does not hold"
    assert _best_overall({}, "reduced", "N", binarity=False)[0].verdict == "not run"
    assert _best_overall(rows, "cpu", "N", binarity=False)[0].text == "N: HTAF has the best accuracy"  # the one measure
    assert _best_overall(rows, "smoke", "N", binarity=True)[0].verdict == "not testable at this scale"


def test_order_of_betas() -> None:
    rows = {
        f"ss-{beta}": scores([accuracy], [0.5], [binarity])
        for beta, accuracy, binarity in ((10, 0.5, 0.04), (50, 0.55, 0.4), (100, 0.5, 0.7), (1000, 0.2, 0.99))
    }
    assert [claim.verdict for claim in _of_betas(rows, "reduced", "N")] == ["holds", "holds"]
    rows["ss-1000"] = scores([0.6], [0.5], [0.3])
    assert [claim.verdict for claim in _of_betas(rows, "reduced", "N")] == ["does not hold", "does not hold"]
    del rows["ss-50"]
    assert [claim.verdict for claim in _of_betas(rows, "reduced", "N")] == ["not run", "not run"]


def test_nearness() -> None:
    def verdict(own: float, plain: float) -> str:
        return _near("", {"near": own}, {"near": plain, "zero": 0.0}, "reduced").verdict

    assert [verdict(0.9, 0.3), verdict(0.4, 0.3), verdict(0.6, 0.7)] == ["holds", "does not hold", "does not hold"]
    assert _near("", None, {"near": 0.1, "zero": 0.0}, "reduced").verdict == "not run"


def test_histograms() -> None:
    bits = histogram(np.array([[0.0, 0.02, 0.1], [0.5, 0.97, 1.0]]), True)
    assert bits["near"] == pytest.approx(5 / 6, abs=1e-6)
    assert (bits["edges"][0], bits["edges"][-1], len(bits["shares"])) == (0, 1, 50)
    assert [bits["shares"][i] for i in (0, 1, 5, 25, 48, 49)] == pytest.approx([1 / 6] * 6, abs=1e-6)
    plain = histogram(np.array([0.0] * 500 + [4.0] * 499 + [400.0]), False)
    assert plain["edges"][-1] == pytest.approx(4.396, abs=0.01), "the 99.9% quantile, interpolated"
    assert (plain["zero"], plain["near"]) == (0.5, 1.0)
    assert sum(plain["shares"]) == pytest.approx(1)
    assert histogram(np.zeros(4), False)["shares"][0] == 1


def made_codes() -> tuple[Any, np.ndarray, Attributes]:
    """Ten classes; bit 0 of all images says that the class is below 5, bit 1 is its opposite, bits 2 and 3 tell
    neighbours apart, bit 4 + k is of class k alone. Test image 3 of class 2 has other values of bits 0, 1 and 2."""
    classes = 10
    labels = np.repeat(np.arange(classes), 8)
    own = labels[:, None] == np.arange(classes)
    bits = np.c_[labels < 5, labels >= 5, labels % 2 == 0, labels % 4 < 2, own].astype(np.uint8)
    parts = np.tile(np.repeat(np.array([0, 2], np.uint8), 4), classes)
    odd = np.flatnonzero((labels == 2) & (parts == 2))[3]
    bits[odd, :3] = 1 - bits[odd, :3]
    first = bits[::8, :4] * 2.0 - 1  # of each class
    weight = np.c_[first * np.array([3.0, 2.5, 1.0, 0.5]), 2 * np.eye(classes)]
    codes = codes_of(bits, labels, weight, np.zeros(classes), classes=[f"c{k}" for k in range(classes)], parts=parts)
    attributes = Attributes(
        ("small", "even"), tuple(codes.classes),
        np.stack([np.arange(classes) < 5, np.arange(classes) % 2 == 0], 1).astype(np.float32),
    )  # fmt: skip
    return codes, bits.astype(np.float16) - 0.5, attributes


def test_concepts_of_a_class() -> None:
    codes, margins, attributes = made_codes()
    found = explained(codes, margins, attributes, "c2")
    assert found["class"] == "c2"
    assert [one["concept"] for one in found["concepts"]] == [0, 1, 6, 2, 3]
    first, wrong = found["concepts"][0], found["wrong"]
    assert (first["name"], first["verified"], first["importance"], first["usual"]) == ("small", True, 3.0, 1)
    assert found["concepts"][1]["name"] == "not small"
    assert found["concepts"][3]["name"] == "even"
    test = codes.part("test")
    assert len(first["on"]) == len({int(test.labels[row]) for row in first["on"]})
    assert all(test.unpack()[row, 0] == 1 for row in first["on"])
    assert all(test.unpack()[row, 0] == 0 for row in first["off"])
    assert (wrong["image"], wrong["differ"]) == (11, 3)
    assert (wrong["bits"], wrong["usual"]) == ([0, 1, 1, 0, 0], [1, 0, 1, 1, 0])
    assert (wrong["differ_wrong"], wrong["differ_right"]) == (3, 0)
    other = explained(codes, margins, attributes, "nothing like it")
    assert other["class"] == "c2", "the only class with an image right and one wrong"

    def verdicts(claims: list[Claim]) -> list[str]:
        return [claim.verdict for claim in claims]

    assert verdicts(_concept_claims(found, "reduced")) == ["holds", "holds"]
    few = [{**one, "verified": i < 2} for i, one in enumerate(found["concepts"])]
    level = {**wrong, "differ_right": 3.0}
    assert verdicts(_concept_claims({**found, "concepts": few, "wrong": level}, "reduced")) == ["does not hold"] * 2
    assert verdicts(_concept_claims({**found, "wrong": None}, "reduced")) == ["holds", "not run"]


# ---- committed records ----


def test_records_over_a_pretrained_backbone_say_what_was_measured() -> None:
    found = read_records(RESULTS / "pretrained")
    assert len(found) == 80
    for record in found:
        assert is_record(record)
        assert record["cell"]["fingerprint"][1] == record["weights"]["tensors_sha256"] == pretrained.TENSORS
        assert record["settings"] == {name: record[name] for name in record["settings"]}
        for network in ("smooth", "exact"):
            assert right(record, network).mean() == pytest.approx(record[network])
