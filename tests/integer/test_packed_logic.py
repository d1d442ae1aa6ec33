"""Runs of truth tables as packed files: integer programs that predict as the run, and are verified as it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_diabetes

import htaf
from htaf._ground.errors import HtafError
from htaf.core.kernels import native
from htaf.data import tabular
from htaf.data.image_sets import load
from htaf.program.integer.model import IntegerModel
from htaf.training.families import ready_recipe
from htaf.training.fit import fit
from htaf.training.runs import PackedRun, Run, open_packed, pack_run
from htaf.training.runs.verify import verify_export


def packed(run: Run, data: Any) -> PackedRun:
    """The run packed, verified and read again."""
    file = run.path.parent / "run.packed"
    made = pack_run(run, file, data=data)
    assert made.agreement.predictions == made.agreement.rows
    assert made.agreement.difference == 0
    found = [*verify_export(file, run, data=data)]
    circuit = ["circuit"] * native.available()
    assert [one.where for one in found] == ["network in PyTorch", *circuit, "integer program"]
    assert all(one.same and one.rows for one in found)
    read = htaf.load(file)
    assert read.about["checked"] == {**read.about["checked"], "rows": made.agreement.rows, "same": made.agreement.rows}
    return read


@pytest.mark.parametrize("bunch", [load_breast_cancer, load_diabetes])
def test_a_packed_table_predicts_as_its_run(bunch: Any, tmp_path: Path) -> None:
    frame = bunch(as_frame=True, **({"scaled": False} if bunch is load_diabetes else {})).frame
    frame.to_csv(tmp_path / "table.csv", index=False)
    table = tabular.load(tmp_path / "table.csv", target="target")
    run = fit(ready_recipe("logic", "logic").replace(epochs=1, least_steps=0, luts=(32,)), table, tmp_path / "run")
    read = packed(run, table)
    rows = frame.drop(columns="target")
    pd.testing.assert_frame_equal(read.predict(rows), run.predict(rows))
    pd.testing.assert_frame_equal(read.predict(rows[:1]), run.predict(rows[:1]))
    with pytest.raises(HtafError, match="bits"):
        read.predict(rows, bits=True)
    changed = bytearray((tmp_path / "run.packed").read_bytes())
    changed[-1] ^= 1
    (tmp_path / "run.packed").write_bytes(changed)
    with pytest.raises(HtafError, match="changed"):
        open_packed(tmp_path / "run.packed")


def test_packed_images_predict_as_their_run(tmp_path: Path) -> None:
    digits = load("digits")
    small = {"epochs": 1, "train_images": 200, "validation_images": 100, "luts": (40,)}
    run = fit(ready_recipe("logic-images", "logic-images").replace(**small), digits, tmp_path / "run")
    read = packed(run, digits)
    pixels = digits.test.batch(torch.arange(20))
    files = [io.BytesIO() for _ in pixels]
    for file, image in zip(files, pixels, strict=True):
        Image.fromarray(image[0].numpy()).save(file, "png")
    given = [file.getvalue() for file in files]
    pd.testing.assert_frame_equal(read.predict_images(given), run.predict_images(given))
    assert isinstance(read.model, IntegerModel)
    as_run = run.model()(run.preprocessor().normalise(pixels))  # pyright: ignore
    np.testing.assert_array_equal(read.model(pixels).numpy(), as_run.detach().numpy())
    with pytest.raises(HtafError, match="pixels"):
        read.model(torch.full((1, 1, 8, 8), 0.1234))
