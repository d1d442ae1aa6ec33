"""Trainings with steps of several levels, by family: what the run holds, how it is packed, and what its bits say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import htaf
from htaf.core.activations import HTAF, Heaviside, StraightThrough
from htaf.data.image_sets import load
from htaf.data.tabular import from_frame
from htaf.training.families import make_recipe, ready_recipe
from htaf.training.fit import fit
from htaf.training.recipe import Recipe
from htaf.training.runs import Run, forward, open_packed, open_run, pack_run


def quick(family: str, **changes: object) -> Recipe:
    small: dict[str, object] = {"epochs": 2, "batch_size": 50, "train_images": 200, "validation_images": 100}
    small |= {"precision": "float32", "widths": (8, 16), "levels": 2}
    return ready_recipe(family, "quick").replace(**small | changes)


@pytest.mark.parametrize(
    ("family", "changes"),
    [("dhn", {}), ("dhn", {"weights": "int8"}), ("bnn", {}), ("dhn", {"method": "ste", "levels": 3})],
)
def test_images(family: str, changes: dict[str, object], tmp_path: Path) -> None:
    recipe = quick(family, **changes)
    run = open_run(fit(recipe, load("digits"), tmp_path / "run", source={"name": "digits"}).path)
    assert run.record["recipe"]["levels"] == recipe.activation.levels
    assert run.record["model"]["activation"]["levels"] == recipe.activation.levels
    smooth, exact = run.model(exact=False), run.model()
    kind = StraightThrough if "method" in changes else HTAF
    assert [m.levels for m in smooth.modules() if isinstance(m, kind)] == [recipe.activation.levels] * 4
    steps = [m for m in exact.modules() if isinstance(m, Heaviside)]
    assert [m.levels for m in steps] == [recipe.activation.levels] * 4
    seen: list[torch.Tensor] = []
    steps[-1].register_forward_hook(lambda *call: seen.append(call[-1]))
    exact(torch.randn(20, 1, 8, 8))
    assert len(seen[0].unique()) <= recipe.activation.levels + 1
    made = pack_run(run, tmp_path / "net.packed", data=load("digits"))
    assert made.layers.ok
    assert str(made.report).count("packed: levels") >= 4
    assert not recipe.network.bipolar or str(made.report).count("packed: binary") == 3


def rows() -> pd.DataFrame:
    """Numbers whose class is decided by two of them."""
    values = np.random.default_rng(0).normal(size=(300, 4))
    frame = pd.DataFrame(values, columns=list("abcd"))
    return frame.assign(y=np.where(frame.a + frame.b > 0, "yes", "no"))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Run:
    recipe = make_recipe(hidden=(12,), epochs=3, levels=2, thresholds=0)
    return fit(recipe, from_frame(rows(), "y"), tmp_path_factory.mktemp("table") / "run")


def test_bits_of_a_packed_table_are_thresholds_of_its_units(table: Run, tmp_path: Path) -> None:
    pack_run(table, tmp_path / "table.packed", data=from_frame(rows(), "y"))
    text = open_packed(tmp_path / "table.packed").predict(rows(), bits=True)["bits"]
    found = np.array([[*map(int, row)] for row in text])
    assert found.shape == (300, 24)
    assert bool((found[:, ::2] >= found[:, 1::2]).all())  # who reaches the upper threshold has reached the lower one
    net: Any = table.model()
    preprocessor: Any = table.preprocessor()
    inputs = torch.from_numpy(preprocessor.transform(rows()))
    by_hand = found.reshape(300, 12, 2).mean(2) @ net.head.weight.detach().numpy().T + net.head.bias.detach().numpy()
    np.testing.assert_allclose(by_hand, forward(net, inputs), atol=1e-5)


def test_an_estimator_takes_levels() -> None:
    frame = rows()
    model = htaf.HtafClassifier(hidden=(8,), epochs=2, recipe={"levels": 2}).fit(frame[list("abcd")], frame.y)
    assert model.run_.record["recipe"]["levels"] == 2


def test_who_takes_one_level_says_why() -> None:
    with pytest.raises(ValueError, match="levels for icbm must be 1: a concept is there or not, got 2"):
        make_recipe("icbm", levels=2)
    with pytest.raises(ValueError, match="levels for snn must be 1: spikes over time are its levels"):
        make_recipe("snn", levels=2)
    with pytest.raises(ValueError, match="power of two with weights on a grid, got 3"):
        make_recipe("dhn", levels=3, weights="int8")
    with pytest.raises(ValueError, match="levels must lie in 1 to 127, got 0"):
        make_recipe("mlp", levels=0)
    with pytest.raises(ValueError, match="method relu does not read levels"):
        make_recipe("dhn", method="relu").refuse_unread(["levels"])
    assert "levels" not in make_recipe("mlp").final_activation()
