"""An export of a table says how raw values become its inputs, and that is enough to make them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import htaf
from htaf.integer.c import to_c
from htaf.integer.columns import lines, read
from htaf.integer.program import IntegerProgram
from htaf.runs.columns import prepared
from htaf.runs.integer import build_run


@pytest.fixture(scope="module")
def raw() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"age": rng.integers(18, 90, 120).astype(float), "wage": [f"{x:.2f} €" for x in rng.random(120)]}
    )
    frame["when"] = pd.date_range("2024-01-01", periods=120, freq="31h", tz="UTC")
    frame["kind"] = rng.choice(["a/b", "Straße", "*/ c"], 120)
    frame["place"] = [f"p{i % 30}" for i in range(120)]
    frame.loc[::9, ["age", "kind"]] = None
    frame["y"] = frame["age"].fillna(50) > 50
    return frame


@pytest.fixture(scope="module")
def program(raw: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> tuple[IntegerProgram, htaf.HtafClassifier]:
    model = htaf.fit(raw, "y", leaves=0, members=1, epochs=1, fields={"weights": "int8"})
    folder = tmp_path_factory.mktemp("columns") / "run"
    model.save(folder)
    return build_run(htaf.runs.open_run(folder)), model


def test_raw_rows_become_the_inputs_by_the_header_alone(program, raw: pd.DataFrame, tmp_path: Path) -> None:
    made, model = program
    to_c(made, tmp_path)
    said = read((tmp_path / "network.h").read_text())
    assert [one["x"] for one in said] == [*range(made.input.shape[0])]
    rows = raw.drop(columns="y").assign(kind="new").iloc[:20]
    for some in (raw.drop(columns="y"), rows):
        known = model.run_.preprocessor()
        np.testing.assert_array_equal(prepared(said, made.input, some), made.input.quantised(known.transform(some)))


def test_text_of_strangers_ends_no_comment(program) -> None:
    assert not [line for line in lines(program[0]) if "*/" in line or "/*" in line]
