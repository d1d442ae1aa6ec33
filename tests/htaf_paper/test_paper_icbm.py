"""The study of ICBMs on a tiny scale: every method is trained, measured and reported, once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from htaf.training.families import ready_recipe
from htaf.training.plan import Plan, Source
from htaf_paper import icbm, icbm_more


def tiny() -> Plan:
    base = ready_recipe("icbm", "reduced").replace(
        depth=10, concepts=12, epochs=1, batch_size=50, train_images=200,
        validation_images=100, precision="float32",
    )  # fmt: skip
    methods = {name: {key: values[:1] for key, values in grid.items()} for name, grid in icbm.METHODS.items()}
    return Plan("tiny", (Source("digits"),), methods, base=base, candidates=1, splits=2, search_epochs=1)


def test_plans() -> None:
    for one in icbm.plans():
        assert {*one.methods} == {"htaf", "ste", "ss", "relu"}
        assert one.splits == 3
        assert len({one.number(method) for method in ("htaf", "ste", "ss")}) == 1, "equal budgets"
    assert icbm.cub_resnet().sources[0].size == icbm.CUB_SIZE


@pytest.mark.slow
def test_table_on_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = icbm.table(tmp_path, (tiny(),), data_dir=None, workers=1, threads=1)
    found = json.loads((tmp_path / "concepts.json").read_text())["tiny"]
    assert {*found} == {"htaf", "ste", "ss", "bm", "relu"}
    for method, rows in found.items():
        assert len(rows) == 2
        if method != "relu":
            assert [row["seed"] for row in rows] == [0, 1]
            assert all(0 <= row["concept_accuracy"]["balanced"] <= 1 for row in rows)
            assert all(row["curves"]["random"]["accuracy"][0] == pytest.approx(row["exact"]) for row in rows)
    assert [row["smooth"] for row in found["bm"]] == pytest.approx([row["accuracy"] for row in found["relu"]])
    assert all(row["exact"] == row["smooth"] for row in found["ste"])
    text = path.read_text()
    for label in ("HTAF", "straight-through", "scaled sigmoid", "median (BM)", "plain, real-valued"):
        assert label in text
    for name in ("tiny-curves.png", "tiny-classes.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr("htaf_paper.icbm_scores.score", None)  # what is measured is not measured again
    assert icbm.table(tmp_path, (tiny(),), data_dir=None, workers=1, threads=1).read_text() == text


def test_other_experiments_by_name() -> None:
    assert {*icbm_more.EXPERIMENTS} == {"pretrained", "attributes"}
    assert icbm_more._percent([0.5, None, 0.7]) == "60.0 (10.0)"
    assert icbm_more._percent([None]) == "-"
