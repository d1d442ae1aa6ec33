"""Which head a run keeps, and what its record says of the others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from htaf.concepts import readable
from htaf.concepts.readable import about_heads, keep_readable
from htaf.data.images import Images
from htaf.runs import Run, RunError, open_run
from htaf.training.families import ready_recipe
from htaf.training.fit import fit
from made_runs import digits, made_run


@pytest.fixture(scope="module")
def images() -> Images:
    return digits()


@pytest.fixture
def run(images: Images, tmp_path: Path) -> Run:
    return made_run(tmp_path / "run", images, concepts=21, shares={"train_images": 300, "validation_images": 100})


def kept(run: Run) -> dict[str, Any]:
    (row,) = (row for row in run.record["heads"]["rows"] if row["kept"])
    return row


def used(run: Run) -> int:
    head: Any = run.model().get_submodule("head")
    return int((head.weight != 0).sum(1).max())


def test_the_head_of_a_run_over_a_frozen_backbone(images: Images, tmp_path: Path) -> None:
    small: dict[str, Any] = {"backbone": "wide_resnet", "pretrained": "", "depth": 10, "concepts": 16, "epochs": 1}
    recipe = ready_recipe("icbm", "frozen").replace(**small, train_images=200, validation_images=100)
    before = fit(recipe, images, tmp_path / "run", source={"name": "digits"})
    assert used(before) == 16
    after = keep_readable(before, images, 3)
    assert open_run(after.path).record == after.record
    assert after.record["key"] == before.record["key"]  # the same training
    rows = after.record["heads"]["rows"]
    assert [(row["kind"], row["target"]) for row in rows] == [("trained", None), ("fitted", 3), ("fitted", None)]
    assert kept(after)["target"] == 3
    assert used(after) <= 3
    for part in ("validation", "test"):  # what is measured on kept features is what the whole network gives
        found = open_run(after.path).evaluate(part, images)
        assert kept(after)[part] == pytest.approx(found["exact"]["accuracy"])
        for network in ("smooth", "exact"):
            assert after.record["metrics"][network][part]["loss"] == pytest.approx(found[network]["loss"], rel=1e-4)
    again = fit(recipe, images, tmp_path / "run", source={"name": "digits"})
    assert again.record == after.record  # the same command finds it done
    assert keep_readable(again, images, 3).record == after.record
    with pytest.raises(RunError, match="--concepts-per-class 3, not auto"):
        keep_readable(again, images)


@pytest.mark.parametrize("near", [-1.0, 1.0])
def test_auto_keeps_the_sparsest_that_is_near_enough(
    run: Run, images: Images, near: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readable, "NEAR", near)
    after = keep_readable(run, images)
    said = about_heads(after.record["heads"])
    assert open_run(run.path).record["heads"] == after.record["heads"]
    if near > 0:
        assert kept(after)["target"] == 5
        assert used(after) <= 5
        assert "each class draws on at most 5 concepts: " in said
    else:
        dense = [row for row in after.record["heads"]["rows"] if row["target"] is None]
        assert kept(after) is max(dense, key=lambda row: row["validation"])  # the first of equals: the trained one
        same = after.record["model_sha256"] == run.record["model_sha256"]
        assert same is (kept(after)["kind"] == "trained")
        assert re.search(
            r"of 100 validation images with at most 5, [\d.]+ points \(standard error [\d.]+\) fewer, ", said
        )
        assert re.search(r"with at most 10, [\d.]+ points \(standard error [\d.]+\) fewer would be right; ", said)


def test_few_validation_images_choose_nothing(images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readable, "FEWEST", 50)
    few = made_run(tmp_path / "few", images, concepts=21, shares={"train_images": 300, "validation_images": 49})
    after = keep_readable(few, images)
    assert kept(after)["kind"] == "trained"
    assert "49 validation images are too few to choose a sparser head by, it takes 50" in about_heads(
        after.record["heads"]
    )


def test_a_kill_leaves_a_training_to_be_made_again(run: Run, images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "save", stopped)
    with pytest.raises(KeyboardInterrupt):
        keep_readable(run, images, 5)
    with pytest.raises(RunError, match="has not finished"):
        open_run(run.path)


@pytest.mark.parametrize(
    ("cost", "error", "near"), [(0.01, 0.01, True), (0.02, 0.02, True), (0.021, 0.0, False), (0.0, 0.05, False)]
)
def test_few_images_do_not_show_that_a_head_is_near(cost: float, error: float, near: bool) -> None:
    assert readable._is_near({"cost": cost, "error": error}) is near  # pyright: ignore[reportPrivateUsage]
