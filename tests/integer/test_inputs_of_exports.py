"""Exports of tables say how raw values become their inputs: every kind of column, read again from the text alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest

from htaf.data.preprocess import Preprocessor
from htaf.program.integer import exports
from htaf.program.integer.c import to_c
from htaf.program.integer.execute import run_program
from htaf.program.integer.onnx import to_integer_onnx
from htaf.program.integer.ops import Linear
from htaf.program.integer.program import Input, IntegerProgram
from htaf.program.integer.verilog import to_verilog
from htaf.training.runs.integer import inputs_of, prepared

CODE = -9.0


def frame(rows: int, seed: int) -> pd.DataFrame:
    """Numbers with codes and blanks, few and many categories, blanks in them, odd names, dates."""
    rng = np.random.default_rng(seed)
    city = np.array([f"City {i}" for i in range(30)], object)[rng.integers(0, 30, rows)]
    sex = np.array(["male", "female", None, "Ärztin", "*/ y"], object)[rng.integers(0, 5, rows)]
    rare = np.where(rng.random(rows) < 0.04, [f"r{i % 3}" for i in range(rows)], "often")
    age = np.where(rng.random(rows) < 0.1, np.nan, rng.uniform(17, 90, rows))
    day = pd.Timestamp("2019-01-01") + pd.to_timedelta(rng.integers(0, 10**5, rows), "h")
    table = {"age": age, "wage /* \u2028": np.where(rng.random(rows) < 0.1, CODE, rng.normal(size=rows))}
    table |= {"sex": sex, "city": city, "rare": rare, "day": day.where(rng.random(rows) > 0.1)}
    return pd.DataFrame(table)


@pytest.fixture(scope="module")
def made() -> tuple[Preprocessor, IntegerProgram]:
    train = frame(300, 0)
    known = Preprocessor.fit(
        train, np.nan_to_num(train["age"].to_numpy(float), nan=200), task="regression", special_codes=(CODE,)
    )
    given = Input("columns", (len(known.feature_names),), -(2**24), 2**24, 20)
    about = {"columns": inputs_of(known, given), "target": {"task": "regression", "mean": 3.0, "std": 2.0}}
    fc = Linear("fc", 0, np.ones((1, len(known.feature_names)), int), None)
    return known, IntegerProgram(given, (fc,), 1, (0, 1), about)


def said_by(form: str, program: IntegerProgram, folder: Path) -> str:
    if form == "c":
        to_c(program, folder)
        return (folder / "network.h").read_text("utf-8")
    if form == "verilog":
        to_verilog(program, folder)
        return (folder / "network.v").read_text("utf-8")
    to_integer_onnx(program, folder / "p.onnx")
    return {one.key: one.value for one in onnx.load(str(folder / "p.onnx")).metadata_props}["columns"]


@pytest.mark.parametrize("form", ["c", "verilog", "onnx-integer"])
def test_raw_values_become_the_inputs_by_what_an_export_says(
    form: str, made: tuple[Preprocessor, IntegerProgram], tmp_path: Path
) -> None:
    known, program = made
    text = said_by(form, program, tmp_path)
    said = exports.read(text)
    assert [one["name"] for one in said] == [*known.feature_names]
    assert {one["kind"] for one in said} == {"number", "code", "missing", "date", "encoded", "category", "other"}
    rows: Any = frame(200, 1)
    rows.loc[:3, ["sex", "city"]] = [["MALE", "city 3"], ["unseen", "unseen"], ["?", "N/A"], [" female ", "City 1"]]
    rows.loc[4, "age"] = 1e6  # beyond the training, and clamped
    np.testing.assert_array_equal(prepared(said, program.input, rows), program.input.quantised(known.transform(rows)))
    assert '"std" + "mean"' in text


def test_names_neither_end_a_comment_nor_begin_one(made: tuple[Preprocessor, IntegerProgram], tmp_path: Path) -> None:
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    to_c(made[1], tmp_path)
    assert run_program(tmp_path, tmp_path / "test" / "test.c").startswith("0 of ")
