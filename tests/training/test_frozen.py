"""Trainings over a frozen backbone: its features are computed once, kept, checked, and give the same network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from htaf.concepts.extract import extract
from htaf.data.image_sets import load
from htaf.data.images import Images
from htaf.data.images import split as split_images
from htaf.models.icbm import ICBM
from htaf.training.families import ready_recipe
from htaf.training.fit import fit
from htaf.training.recipe import Recipe
from htaf.training.runs import Run, open_run
from htaf.training.runs import features as room
from htaf.training.runs.features import CHECKS, FEATURES, FeatureStore, fill, folder_of, key_of


def recipe(**changes: Any) -> Recipe:
    small = {"backbone": "wide_resnet", "pretrained": "", "depth": 10, "concepts": 16, "epochs": 2, "batch_size": 50}
    return ready_recipe("icbm", "frozen").replace(**{**small, "train_images": 200, "validation_images": 100, **changes})


@pytest.fixture(scope="module")
def digits() -> Images:
    return load("digits")


@pytest.fixture(scope="module")
def run(digits: Images, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(recipe(), digits, tmp_path_factory.mktemp("run") / "r", source={"name": "digits"})


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images go through a backbone."""
    seen: list[int] = []
    real = room._features

    def counted(net: Any, pixels: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.append(len(pixels))
        return real(net, pixels, *rest)

    monkeypatch.setattr(room, "_features", counted)
    return seen


def test_what_is_measured_on_features_is_what_the_whole_network_gives(run: Run, digits: Images) -> None:
    found = open_run(run.path).evaluate("test", digits)
    for network in ("smooth", "exact"):
        kept = run.record["metrics"][network]["test"]
        assert found[network]["accuracy"] == kept["accuracy"]
        assert found[network]["loss"] == pytest.approx(kept["loss"], rel=1e-4)
    assert any("computed once" in note for note in run.record["notes"])
    assert run.record["parameters"] > 70_000  # the backbone's too


def test_a_second_training_computes_nothing(run: Run, digits: Images, tmp_path: Path, count: list[int]) -> None:
    fit(recipe(epochs=1, alpha1=9.0), digits, tmp_path / "r", source={"name": "digits"})
    assert count == []


def test_another_backbone_or_preprocessing_has_features_of_its_own(digits: Images, tmp_path: Path, count: list[int]):
    fit(recipe(epochs=1), digits, tmp_path / "other", seed=5)  # other weights
    assert sum(count) == 200 + 100 + len(digits.test)
    count.clear()
    fit(recipe(epochs=1, concepts=0), digits, tmp_path / "cut", seed=5)  # without the final activation
    assert sum(count) == 200 + 100 + len(digits.test)


def test_a_finished_training_is_only_read(run: Run, digits: Images, count: list[int]) -> None:
    again = fit(recipe(), digits, run.path)
    assert again.record["model_sha256"] == run.record["model_sha256"]
    assert count == []


def made_store(digits: Images, run: Run) -> tuple[FeatureStore, ICBM, Any]:
    net, preprocessor = run.model(exact=False), run.preprocessor()
    assert isinstance(net, ICBM)
    key = key_of(net, run.record["model"], preprocessor, digits.test, digits.test.fingerprint())  # pyright: ignore
    return FeatureStore(key, 64), net, preprocessor


def test_a_stopped_computation_goes_on_and_a_damaged_row_is_made_again(
    digits: Images, run: Run, count: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(room, "cache_folder", lambda: tmp_path)
    store, net, preprocessor = made_store(digits, run)
    rows = torch.arange(150)
    real, calls = store.write, []

    def stopped(*given: Any) -> None:
        if calls:
            raise KeyboardInterrupt
        calls.append(1)
        real(*given)

    monkeypatch.setattr(store, "write", stopped)
    with pytest.raises(KeyboardInterrupt):
        fill(store, net, digits.test, preprocessor, rows)
    store.flush()
    store, *_ = made_store(digits, run)
    assert store.missing(rows).tolist() == list(range(room.BATCH, 150))
    assert fill(store, net, digits.test, preprocessor, rows) == 150 - room.BATCH
    whole = store.batch(rows)
    with torch.no_grad():
        direct = net.features(preprocessor.normalise(digits.test.batch(rows)))
    torch.testing.assert_close(whole, direct, rtol=1e-4, atol=1e-5)
    folder = folder_of(store.key)
    damaged = np.load(folder / FEATURES, mmap_mode="r+")
    damaged[7, 3] += 1
    damaged.flush()
    store, *_ = made_store(digits, run)
    assert store.missing(rows).tolist() == [7]
    fill(store, net, digits.test, preprocessor, rows)
    torch.testing.assert_close(store.batch(rows), whole, rtol=1e-4, atol=1e-5)
    (folder / CHECKS).write_bytes(b"no")  # files that are not whole are begun anew
    store, *_ = made_store(digits, run)
    assert len(store.missing(rows)) == 150


def test_new_views_in_every_epoch_go_through_the_backbone(digits: Images, tmp_path: Path, count: list[int]) -> None:
    fit(recipe(augment="crop-flip", epochs=1), digits, tmp_path / "r", seed=3)
    assert count == []


def test_a_stopped_training_ends_with_the_same_bits(digits: Images, tmp_path: Path, run: Run) -> None:
    """The backbone is put back whatever else happens."""
    again = fit(recipe(), digits, tmp_path / "r", source={"name": "digits"})
    assert again.record["model_sha256"] == run.record["model_sha256"]
    rows = split_images(digits, train=200, validation=100).validation
    net: Any = again.model(exact=False)
    x = again.preprocessor().normalise(digits.train.batch(rows))  # pyright: ignore[reportAttributeAccessIssue]
    with torch.no_grad():
        assert torch.equal(net(x), net(net.features(x)))


def test_extraction_reads_what_is_kept(
    run: Run, digits: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ICBM, "features", lambda *_: pytest.fail("the backbone is run"))
        kept = extract(run, digits, tmp_path / "kept").codes()
    with monkeypatch.context() as patch:
        patch.setattr(room, "cache_folder", lambda: tmp_path / "empty")
        direct = extract(run, digits, tmp_path / "direct").codes()
    assert not (tmp_path / "empty").exists()  # an extraction keeps nothing there
    assert [*kept.ids] == [*direct.ids]
    differing = np.bitwise_count(kept.bits ^ direct.bits).sum()
    assert differing <= 2  # by the rounding of other batches
    assert (kept.exact != direct.exact).sum() <= 2
