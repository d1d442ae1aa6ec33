"""Trainings with weights on a grid: new, or on from a float run; stopped and resumed; packed without a flip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from htaf.data import tabular
from htaf.data.image_sets import load
from htaf.data.images import Images
from htaf.models.mlp import MLP, Thermometer
from htaf.training.families import make_recipe, ready_recipe
from htaf.training.fit import fit
from htaf.training.module import Training
from htaf.training.recipe import Recipe, Running
from htaf.training.runs import Run, open_packed, open_run, pack_run
from htaf.transform.grid import GridConv2d, WideBatchNorm2d, weight_of
from quick import slow_but

SMALL = {"epochs": 2, "batch_size": 50, "train_images": 200, "validation_images": 100, "precision": "float32"}


@pytest.fixture(scope="module")
def digits() -> Images:
    return load("digits")


@pytest.fixture(scope="module")
def real(digits: Images, tmp_path_factory: pytest.TempPathFactory) -> Run:
    recipe = ready_recipe("dhn", "reduced").replace(**SMALL, depth=10)
    return fit(recipe, digits, tmp_path_factory.mktemp("real") / "run", source={"name": "digits"})


def on(real: Run, weights: str) -> Recipe:
    return make_recipe(**real.record["recipe"]).replace(weights=weights, lr=0.02)


def test_a_network_on_a_grid_is_resumed_to_the_bit(real: Run, digits: Images, tmp_path: Path) -> None:
    whole = fit(on(real, "int8"), digits, tmp_path / "whole", source={"name": "digits"})
    net = whole.model()
    assert isinstance(net.get_submodule("stages.0.0.conv1"), GridConv2d)
    assert isinstance(net.get_submodule("norm"), WideBatchNorm2d)
    assert whole.record["recipe"]["weights"] == "int8"
    assert whole.record["model"]["weights"] == "int8"
    assert real.record["recipe"]["weights"] == "float"
    assert [*net.state_dict()] == [*real.model().state_dict()]
    before, after = (r.model().get_submodule("stages.0.0.conv1") for r in (real, whole))
    assert not torch.equal(weight_of(before), weight_of(after)), "gradients reach weights on the grid"
    assert not torch.equal(before.state_dict()["weight"], after.state_dict()["weight"])
    with pytest.MonkeyPatch.context() as patch:
        original = Training.training_step

        def stopped(self: Training, batch: Any, i: int) -> Any:
            if self.current_epoch == 1 and i == 2:
                raise MemoryError
            return original(self, batch, i)

        patch.setattr(Training, "training_step", stopped)
        with pytest.raises(MemoryError):
            fit(on(real, "int8"), digits, tmp_path / "run", running=Running(checkpoint_seconds=0))
    resumed = fit(on(real, "int8"), digits, tmp_path / "run", source={"name": "digits"})
    assert resumed.record["model_sha256"] == whole.record["model_sha256"]


@pytest.mark.parametrize("family", slow_but(["dhn", "snn", "bnn"], "dhn", "bnn"))
def test_a_packed_run_predicts_every_row_as_the_run_does(family: str, digits: Images, tmp_path: Path) -> None:
    small: dict[str, Any] = {
        "dhn": {"depth": 10, "weights": "int4"}, "snn": {"depth": 18, "width": 4, "steps": 2, "weights": "int4"},
        "bnn": {"layout": "whitened", "widths": (8, 16), "weights": "int8"},
    }[family]  # fmt: skip
    recipe = ready_recipe(family, "reduced").replace(**SMALL | {"epochs": 1}, **small)
    run = fit(recipe, digits, tmp_path / "run", source={"name": "digits"})
    run = open_run(tmp_path / "run")
    made = pack_run(run, tmp_path / "net.packed", data=digits, differing=0)
    assert made.agreement.predictions == made.agreement.rows
    packed, exact = open_packed(tmp_path / "net.packed"), run.model()
    images = next(iter(run.part("test", digits)))[0][:100]
    with torch.no_grad():
        torch.testing.assert_close(packed.model(images), exact(images), atol=1e-5, rtol=0)
    assert (tmp_path / "net.packed").stat().st_size < (tmp_path / "run" / "model.safetensors").stat().st_size


def test_the_field_is_checked(unchecked: None) -> None:
    with pytest.raises(ValueError, match="weights must be one of"):
        make_recipe("dhn", weights="int3")
    with pytest.raises(ValueError, match="family icbm does not read weights"):
        make_recipe("icbm", weights="int8")
    with pytest.raises(ValueError, match="layout residual does not read weights"):
        make_recipe("bnn", weights="int8").refuse_unread(["weights"])
    with pytest.raises(ValueError, match="method relu does not read weights"):
        make_recipe("dhn", weights="int8", method="relu").refuse_unread(["weights"])
    float_, grid = (make_recipe("dhn", weights=weights) for weights in ("float", "int8"))
    assert float_.identity() | {"weights": "int8"} == grid.identity()
    assert "int8 weights" in grid.network.title()
    same = make_recipe("dhn", weights="int8", method="relu").effective()
    assert same == make_recipe("dhn", method="relu").effective()


def test_thresholds_lie_between_columns_as_they_are_rounded(tmp_path: Path) -> None:
    """Of a column with a long tail many values are one on the grid: it has fewer thresholds, each between two of it."""
    rng = np.random.default_rng(0)
    tail = np.exp(9 * rng.standard_normal(120))
    frame = pd.DataFrame({"tail": tail, "other": rng.standard_normal(120), "y": rng.integers(0, 2, 120)})
    frame.to_csv(tmp_path / "table.csv", index=False)
    table = tabular.load(tmp_path / "table.csv", target="y")
    small = {"epochs": 1, "hidden": (8,), "thresholds": 200, "least_steps": 0, "leaves": 16}
    recipe = ready_recipe("mlp", "tabular-residual").replace(**small)
    counts = dict[str, tuple[int, ...]]()
    for weights in ("float", "int8"):
        net = fit(recipe.replace(weights=weights), table, tmp_path / weights).model()
        assert isinstance(net, MLP)
        assert isinstance(net.thermometer, Thermometer)
        counts[weights] = net.thermometer.counts
        if weights == "float":
            continue
        assert net.columns.rounds
        run = open_run(tmp_path / weights)
        x = torch.cat([inputs for inputs, _ in run.part("train", table)])
        bits = net.thermometer(net.columns(x))
        assert len(bits.unique(dim=1).T) == sum(net.thermometer.counts), "each tells other rows apart"
    assert counts["int8"][0] < counts["float"][0]
    assert counts["int8"][1] == counts["float"][1]
