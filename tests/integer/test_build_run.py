"""Runs trained with weights on a grid, as integer programs: every row of the test part is predicted as the run does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer

from htaf.data import tabular
from htaf.data.image_sets import load
from htaf.data.images import Images
from htaf.program.integer import files
from htaf.program.integer.ops import IntegerError
from htaf.training.families import ready_recipe
from htaf.training.fit import fit
from htaf.training.runs import Run, RunError
from htaf.training.runs.integer import build_run
from quick import slow_but

SMALL = {"epochs": 1, "batch_size": 50, "train_images": 200, "validation_images": 100, "precision": "float32"}
FAMILIES = {
    "dhn": {"depth": 10},
    "snn": {"depth": 18, "width": 4, "steps": 2},
    "bnn": {"layout": "whitened", "widths": (8, 16)},
}


@pytest.fixture(scope="module")
def digits() -> Images:
    return load("digits")


def trained(family: str, digits: Images, path: Path, **more: object) -> Run:
    recipe = ready_recipe(family, "reduced").replace(**SMALL, **FAMILIES[family], **more)
    return fit(recipe, digits, path, source={"name": "digits"})


@pytest.mark.parametrize("family", slow_but(FAMILIES, "dhn"))
def test_a_run_of_images(family: str, digits: Images, tmp_path: Path) -> None:
    run = trained(family, digits, tmp_path / "run", weights="int8")
    program = build_run(run)
    assert program.about["run"] == run.record["key"]
    assert program.about["classes"] == [*"0123456789"]
    assert program.about["unproved"] == []
    pixels = digits.test.batch(torch.arange(len(digits.test)))
    with torch.no_grad():
        expected = run.model()(run.preprocessor().normalise(pixels)).numpy()  # pyright: ignore
    logits = program.run(pixels.numpy())
    np.testing.assert_array_equal(logits.argmax(1), expected.argmax(1))
    made = np.ldexp(logits.astype(np.float64), program.unit[0]) / program.unit[1]
    np.testing.assert_allclose(made, expected, rtol=2**-23, atol=1e-15)
    files.save(program, tmp_path / "run.integer")
    assert files.load(tmp_path / "run.integer").digest == program.digest


def test_runs_without_integer_weights_are_refused(digits: Images, tmp_path: Path) -> None:
    run = trained("dhn", digits, tmp_path / "run")
    with pytest.raises(IntegerError, match=r"integer weights, .* has real ones: train with weights=.int8"):
        build_run(run)
    run.record["recipe"]["method"] = "relu"
    with pytest.raises(RunError, match="expected a run with steps"):
        build_run(run)


@pytest.mark.parametrize("name", slow_but(["exact", "members", "residual"], "exact"))
def test_a_run_of_a_table(name: str, tmp_path: Path) -> None:
    bunch: Any = load_breast_cancer(as_frame=True)
    bunch.frame.to_csv(tmp_path / "table.csv", index=False)
    table = tabular.load(tmp_path / "table.csv", target="target")
    recipe = ready_recipe("mlp", f"tabular-{name}").replace(epochs=1, weights="int8")
    run = fit(recipe, table, tmp_path / "run")
    program = build_run(run)
    assert program.input.kind == "columns"
    assert program.about["classes"] == ["0", "1"]
    x = torch.cat([inputs for inputs, _ in run.part("test", table)])
    with torch.no_grad():
        expected = run.model()(x).numpy()
    logits = program.run(program.input.quantised(x.numpy()))
    np.testing.assert_array_equal(logits.argmax(1), expected.argmax(1))
    made = np.ldexp(logits.astype(np.float64), program.unit[0]) / program.unit[1]
    np.testing.assert_allclose(made, expected, rtol=2**-23, atol=1e-15)
