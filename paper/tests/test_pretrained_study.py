"""The study over a pretrained backbone: its plan, its figures from known answers, and one cell of each kind, tiny."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from htaf._files import LOCK
from htaf_paper import pretrained
from htaf_paper.computing import RECORD, Place, attempt, cell_folder
from htaf_paper.pretrained import SPARSE_AT, STUDY, Cell, cells, no_loss, outcome, recipe, right
from htaf_paper.protocol import Found
from htaf_paper.protocol import Place as PaperPlace


def measured(method: str, smooth: list[int], exact: list[int], *, seed: int = 0, **more: Any) -> dict[str, Any]:
    hexed = {name: np.packbits(v).tobytes().hex() for name, v in (("smooth", smooth), ("exact", exact))}
    return {
        "data": "cub", "concepts": 32, "method": method, "seed": seed, "finetune": False, "images": len(smooth),
        "smooth": float(np.mean(smooth)), "exact": float(np.mean(exact)), "right": hexed, **more,
    }  # fmt: skip


def test_the_plan() -> None:
    every = list(cells())
    assert len(every) == len(set(every)) == 2 * 3 * 4 * 3
    assert len({cell.name for cell in every}) == len(every)
    tuned = list(cells(finetune=True))
    assert {(cell.data, cell.concepts, cell.finetune) for cell in tuned} == {("cub", SPARSE_AT, True)}
    assert len({cell.name for cell in [*every, *tuned]}) == len(every) + len(tuned)
    for cell in [*every, *tuned]:
        own = recipe(cell, "weights.bin").flat()
        assert (own["method"], own["concepts"]) == (cell.method, cell.concepts)
        assert own["freeze"] == (not cell.finetune)
        assert own["backbone"] == "tf_efficientnet_lite0"
    assert recipe(Cell("cifar10", 32, "ss", 0), "w").activation.start == (1.0,)


def test_exact_less_plain() -> None:
    one = measured("htaf", [1, 1, 1, 1, 1], [1, 1, 0, 0, 1])
    two = measured("htaf", [1, 1, 1, 1, 1], [1, 1, 0, 1, 1], seed=1)
    plain = measured("relu", [1, 0, 1, 1, 1], [0, 0, 0, 0, 1])
    assert right(one, "exact").tolist() == [1, 1, 0, 0, 1]
    less = no_loss([one, two, plain], 32)
    assert less is not None
    assert less["difference"] == pytest.approx(np.mean([0, 1, -1, -0.5, 0]))
    assert less["interval"][0] < less["difference"] < less["interval"][1]
    bits = no_loss([one, plain], 32, "bm")
    assert bits is not None
    assert bits["difference"] == pytest.approx(0.2 - 0.8)
    assert no_loss([one], 32) is None


def test_the_report() -> None:
    summary = [{"bits": "these", "target": 5, "accuracy": 0.5}, {"bits": "these", "target": None, "accuracy": 0.75}]
    random = [{**row, "bits": "random hyperplanes", "accuracy": 0.25} for row in summary]
    rows = [
        measured("relu", [1, 1, 1, 1], [0, 1, 0, 0], sparse={"summary": summary}),
        measured("htaf", [1, 1, 1, 1], [1, 1, 0, 1], sparse={"summary": [*summary, *random]}),
        measured("htaf", [1, 1, 1, 0], [1, 1, 1, 1], seed=1, sparse={"summary": summary}),
        measured("htaf", [1, 1, 1, 0], [1, 1, 1, 1], concepts=128),
    ]
    accuracy, loss, sparse = outcome(rows, "full").tables
    assert accuracy.title == "CUB, 50 classes, frozen"
    shown = {row[0]: row[1:] for row in accuracy.rows}
    assert shown["HTAF"] == ("87.5 (17.7)", "87.5 (17.7)", "75.0", "100.0")
    assert shown["plain"] == ("100.0", "", "-", "")
    assert shown["median (BM)"] == ("", "25.0", "", "-")
    assert [row[0] for row in loss.rows] == ["HTAF", "scaled sigmoid", "straight-through", "median (BM)"]
    heads = {row[0]: row[1:] for row in sparse.rows}
    assert heads["HTAF"] == ("50.0 (0.0)", "75.0 (0.0)")
    assert heads["random hyperplanes"] == ("25.0", "25.0")


@pytest.mark.slow
def test_cells_on_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "RANDOM_SEEDS", 1)
    found = {}
    for task in STUDY.tasks("smoke", Found(lambda task: None), PaperPlace(tmp_path)):
        folder = cell_folder(tmp_path, task.key)
        record = attempt(task, Place(folder)).record
        assert record is not None
        found[record["method"]] = record
        assert {path.name for path in folder.iterdir()} <= {RECORD, LOCK}  # runs and codes are not kept
    assert found["htaf"]["exact"] == pytest.approx(right(found["htaf"], "exact").mean())
    assert {row["bits"] for row in found["htaf"]["sparse"]["summary"]} == {"these", "random hyperplanes"}
    assert {row["bits"] for row in found["relu"]["sparse"]["summary"]} == {"these"}
    assert outcome([*found.values()], "full").tables[0].title == "digits, frozen"
