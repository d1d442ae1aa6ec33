"""The items on implicit concept bottleneck models: computed at the scale smoke, the paper's figures, rules, records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from htaf.concepts.codes import codes_of
from htaf.data.attributes import Attributes
from htaf_paper import icbm, pretrained
from htaf_paper.cells import is_record
from htaf_paper.computing import Place as CellPlace
from htaf_paper.computing import StudyError, attempt, cell_folder, finished
from htaf_paper.engine import Records, wanted
from htaf_paper.icbm import ACCURACY, COMPARED
from htaf_paper.icbm_concepts import explained
from htaf_paper.icbm_figures import ESTIMATED, _concept_claims, _near
from htaf_paper.icbm_items import BINARISED, BOTTLENECKS, _best_overall, _of_betas
from htaf_paper.icbm_scores import histogram, kept_run
from htaf_paper.items import item
from htaf_paper.outcomes import picture_file
from htaf_paper.pretrained import right
from htaf_paper.protocol import Claim, Figure, Found, Outcome, Place
from htaf_paper.records import read_records, write_records

RESULTS = Path(__file__).parents[1] / "results"
NAMES = (
    "icbm-accuracy", "icbm-methods", "binarisation", "class-specificity", "feature-histograms", "cbm", "cub-concepts"
)  # fmt: skip
STUDIES = {name: item(name) for name in NAMES}


def test_plans() -> None:
    for one in (icbm.cifar10_wide_resnet(), icbm.cifar10_resnet(), icbm.cub_resnet()):
        assert {*one.methods} == {"htaf", "ste", "ss", "relu"}
        assert one.splits == 3
        assert len({len(one.draw(method)) for method in ("htaf", "ste", "ss")}) == 1, "equal budgets"
    assert icbm.cub_resnet().sources[0].size == icbm.CUB_SIZE
    betas = icbm.fixed_betas()
    assert [betas.recipe(row, betas.draw(row)[0]).activation.beta for row in betas.methods] == [10, 50, 100, 1000]
    assert not any(betas.recipe(row, betas.draw(row)[0]).activation.sharpen for row in betas.methods)
    full = icbm.with_and_without("full")
    assert {*full} == {(data, backbone) for data in ACCURACY for backbone in ACCURACY[data]}
    assert all(plan.splits == 5 for plan in full.values())


# ---- computed ----


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Records]]:
    """A folder with all cells of all items, computed in this process."""
    out = tmp_path_factory.mktemp("smoke")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    place, records = Place(out), Records(out)
    for study in STUDIES.values():
        while tasks := wanted(study, "smoke", Found(records.read), place):
            for task in tasks:
                assert finished(task, out) is None, "computed twice"
                assert attempt(task, CellPlace(cell_folder(out, task.key))).error is None
                assert finished(task, out) is not None
    yield place, records
    torch.set_num_threads(threads)


def test_outcomes(smoke: tuple[Place, Records]) -> None:
    place, records = smoke
    for study in STUDIES.values():
        outcome = study.read("smoke", Found(records.read), place)
        assert TypeAdapter(Outcome).validate_json(json.dumps(outcome.to_json())) == outcome
        assert outcome.tables
        assert outcome.claims
        assert {claim.verdict for claim in outcome.claims} <= {"not testable at this scale", "not run"}
    methods = STUDIES["icbm-methods"].read("smoke", Found(records.read), place).tables[0]
    assert methods.columns[1:] == (
        "HTAF", "SS, tuned", "SS, beta 10", "SS, beta 50", "SS, beta 100", "SS, beta 1000", "STE", "BM", "plain"
    )  # fmt: skip
    accuracy, binarity = methods.rows[0], methods.rows[1]
    assert all(isinstance(cell, Figure) and 0 <= (cell.mean or 0.0) <= 100 for cell in accuracy[1:])
    assert isinstance(binarity[7], Figure)
    assert binarity[7].mean == 100, "bits of STE"
    before = STUDIES["binarisation"].read("smoke", Found(records.read), place).tables[0].rows[0]
    numbers = [cell.mean or 0.0 for cell in before[1:] if isinstance(cell, Figure)]
    assert [a - b for a, b in zip(numbers[::3], numbers[1::3], strict=True)] == pytest.approx(numbers[2::3])


def test_figures_are_drawn(smoke: tuple[Place, Records]) -> None:
    place, records = smoke
    specific, outputs, concepts = (
        STUDIES[name].read("smoke", Found(records.read), place) for name in (*NAMES[3:5], NAMES[6])
    )
    one, every = specific.drawings
    assert len(one.panels) == 1
    assert len(every.panels) == 10
    for panel in (*one.panels, *every.panels):
        for series in panel.series:
            assert (len(series.x), sum(series.y)) == (21, pytest.approx(1))
    assert [sum(panel.series[0].y) for panel in outputs.drawings[0].panels] == pytest.approx([1, 1], abs=1e-4)
    assert [drawing.picture for drawing in concepts.drawings] == [
        f"cub-concepts-{what}.png" for what in ("on", "off", "wrong")
    ]
    for drawing in concepts.drawings:
        file = picture_file(place.out, "smoke", str(drawing.picture))
        assert file.read_bytes().startswith(b"\x89PNG")


def test_measured_records_need_no_networks(smoke: tuple[Place, Records], tmp_path: Path) -> None:
    place, _ = smoke
    there = tmp_path / "there"
    stored = [json.loads(file.read_text()) for file in place.out.glob("cells/*/record.json")]
    write_records(there / "cells.jsonl", stored)
    fresh = Place(tmp_path / "fresh")
    records = Records(fresh.out, [there])
    for study in STUDIES.values():
        assert wanted(study, "smoke", Found(records.read), fresh) == []
        assert study.read("smoke", Found(records.read), fresh).tables
    scores = next(one for one in stored if one.get("function") == "icbm-outputs")
    run = scores["run"]
    write_records(there / "cells.jsonl", [one for one in stored if one is not scores])
    found = Found(Records(fresh.out, [there]).read)
    again = wanted(STUDIES["feature-histograms"], "smoke", found, fresh)
    assert [(task.key, task.keeps) for task in again] == [(run, ("run",))], "its network alone is trained again"
    with pytest.raises(StudyError, match=f"expected the network {run} in .*{run}/run, got none"):
        kept_run(CellPlace(cell_folder(fresh.out, "k")), run)


# ---- the paper's figures ----

PRINTED = r"""
\textsc{CIFAR-10} & 94.6\% & 94.6\% & 96.1\% & 95.7\% & 96.6\% & \textbf{96.7\%} \\
\textsc{CIFAR-100} & 80.8\% & 80.0\% & 79.5\% & 78.2\% & \textbf{89.0\%} & 88.6\%\\
\textsc{CUB-200} & 74.8\% & 74.5\% & 77.3\% & 77.5\% & \textbf{88.5\%} & 87.1\%\\
\textsc{Tiny Imagenet} & 72.2\%  & 72.1\%  & 85.4\% & 85.7\% & 86.6\% & \textbf{86.7}\% \\
"""
PRINTED_METHODS = r"""
Accuracy  & 96.1\% & 95.5\% & 95.7\% & 95.3\% & 79.3\% & 94.3\% & 90.0\%\\
Binarity score & 98.4\% &  3.9\% & 40.4\% & 73.3 \% & 99.7 \% & 100.0\% & --\\
Concept accuracy & 96.1\% &  91.2 \% & 91.6\% &91.5\% & 73.8 \% & 89.7\% & 88.4\% \\ \midrule
Accuracy & 79.5\% & 77.8\% & 78.6\% & 78.2 \% & 56.3\% & 74.8\% & 70.7\%\\
Binarity score & 98.3\% & 14.3 \% & 60.5\% & 74.0 \% & 99.8\% & 100.0\% &  --\\
Concept accuracy & 84.6\% & 77.0\% & 78.7\% & 78.8\% & 67.8\%  & 76.1\% & 70.8\%\\
"""
PRINTED_BINARISED = r"""
& 96.1\% & 96.1\% & 96.1\% & 95.7\% & 95.6\% & 90.0\% \\
& 79.5\% & 79.5\% & 79.0\% & 78.7\% & 79.2\% & 70.7\% \\
"""
PRINTED_BOTTLENECKS = r"""
CBMs & -- & -- & 72.5\% \\
Label-free CBMs & 86.5\% & 65.1\% & 55.7\% \\
ICBMs (Ours) & \textbf{96.1}\% & \textbf{79.5}\% & \textbf{77.3}\% \\
"""


def printed(text: str) -> list[list[float | None]]:
    """The figures of each row; None for --."""
    rows = []
    for line in text.strip().splitlines():
        found = re.findall(r"&\s*(?:\\textbf\{)?(\d+\.\d|--)", line)
        rows.append([None if figure == "--" else float(figure) for figure in found])
    return rows


def test_figures_of_the_paper() -> None:
    assert [[x for pair in row.values() for x in pair] for row in ACCURACY.values()] == printed(PRINTED)
    found = [[figures[i] for figures in rows.values()] for rows in COMPARED.values() for i in range(3)]
    assert found == printed(PRINTED_METHODS)
    assert [[x for pair in row.values() for x in pair] for row in BINARISED.values()] == printed(PRINTED_BINARISED)
    data = ("cifar10", "cifar100", "cub")
    assert [[row.get(one) for one in data] for row in BOTTLENECKS.values()] == printed(PRINTED_BOTTLENECKS)
    assert [(node, value) for node, _, _, value in ESTIMATED] == [
        (135, 0.1069), (186, 0.0941), (690, 0.0922), (153, 0.0879), (217, 0.0840)
    ]  # fmt: skip


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
