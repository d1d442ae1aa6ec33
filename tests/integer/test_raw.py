"""Programs of raw columns equal those of prepared ones, at every threshold and on either side of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.integer.made import Made

from htaf.data.preprocess import Preprocessor
from htaf.program.integer.c import to_c
from htaf.program.integer.execute import exported, missing, run_program
from htaf.program.integer.logic_c import compared_of, names
from htaf.program.integer.ops import LUT, Count, IntegerError, Linear, Steps, Take, View
from htaf.program.integer.program import Input, IntegerProgram
from htaf.program.integer.raw import raw, raw_inputs
from htaf.training.runs.packing import inputs_of, prepared, values_of

CODES = (-9.0, 77.0)


def frame(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    """Numbers with decimals, blanks and codes; one-hot and encoded categories; dates."""
    blank = rng.random((6, rows)) < 0.15
    number = np.round(rng.normal(size=rows) * 10.0 ** rng.integers(0, 4), int(rng.integers(0, 3)))
    coded = np.where(blank[0], rng.choice(CODES, rows), np.round(rng.uniform(0, 60, rows), 1))
    many = np.array([f"City {i}" for i in range(40)], object)[rng.integers(0, 40, rows)]
    few = np.array(["red", "green", "blue", "x", "y y"], object)[rng.integers(0, 5, rows)]
    day = pd.Timestamp("2019-03-01") + pd.to_timedelta(rng.integers(0, 900, rows), "D")
    return pd.DataFrame(
        {
            "number": np.where(blank[1], np.nan, number),
            "coded": np.where(blank[2], np.nan, coded),
            "count": np.where(blank[0], np.nan, rng.integers(0, 9, rows)),
            "many": np.where(blank[3], None, many),  # pyright: ignore
            "few": np.where(blank[4], None, few),  # pyright: ignore
            "day": pd.Series(day).where(~blank[5]),
        }
    )


def logic_program(known: Preprocessor, x: np.ndarray, seed: int, **about: Any) -> IntegerProgram:
    """Truth tables of random thresholds of prepared columns; two counts."""
    given = Input("columns", (len(known.feature_names),), -(2**13), 2**13, 10)
    made = Made(seed, given)
    made.seen[0] = given.quantised(x)
    made.add(Take, 0, made.rng.integers(0, len(known.feature_names), 90))
    made.bits()
    made.luts(30, int(made.rng.integers(1, 7)))
    made.luts(16)
    made.add(View, made.here(), (2, 1, 8))
    made.count((-2, -1))
    return IntegerProgram(given, tuple(made.ops), 6, (-1, 1), {"columns": inputs_of(known, given), **about})


def inputs(program: IntegerProgram, rows: pd.DataFrame) -> list[dict[str, Any]]:
    return raw_inputs(program, values_of(program.about["columns"], rows))


@pytest.mark.parametrize("seed", range(6))
def test_raw_programs_equal_prepared_ones(seed: int) -> None:
    rng = np.random.default_rng(seed)
    train, rows = frame(rng, 300), frame(rng, 300)
    y = train["number"].fillna(9).to_numpy(float) + train["day"].isna() * 5
    known = Preprocessor.fit(train, y, task="regression", special_codes=CODES)
    program = logic_program(known, known.transform(train), seed)
    made = raw(program, inputs(program, pd.concat([train, rows])))
    for some in (train, rows, _beside(made, rows)):
        x = prepared(made.about["columns"], made.input, some)
        np.testing.assert_array_equal(made.run(x), program.run(program.input.quantised(known.transform(some))))
    assert len(compared_of(made)[1]) == 1


def _beside(made: IntegerProgram, rows: pd.DataFrame) -> pd.DataFrame:
    """Rows whose numbers lie at the thresholds of a program, one unit beside them, and far away."""
    lines, found = made.about["columns"], rows.copy()
    rng = np.random.default_rng(0)
    for line in lines:
        if line["column"] in ("number", "coded", "count"):
            (bits,) = compared_of(made)[1].values()
            ends = [end for one in bits if one.place == line["x"] for end in one.toggles]
            near = [end + by for end in ends for by in (-1, 0, 1)] + [made.input.low + 2, made.input.high - 2]
            low, high = made.input.low + (made.input.low < 0), made.input.high - (made.input.low == 0)
            near = np.array([v for v in near if low <= v <= high]) / 10.0 ** line["decimals"]
            found[line["column"]] = rng.choice(near, len(rows))
    found.loc[:9, "few"] = "never seen"
    return found


def test_a_missing_value_is_an_integer_that_does_the_same() -> None:
    """The median where it can be, else an integer that no value has."""
    count = pd.DataFrame({"count": [0.0, 1, 2, 3, 4, 5, 6, 7, np.nan]})
    known = Preprocessor.fit(count, np.arange(9.0), task="regression")
    given = Input("columns", (1,), -(2**13), 2**13, 10)
    steps = Steps("steps", 0, np.array([[round(2**10 * 4 / 7)]]), np.array([1]), 0, 1)  # count >= 4, of a median 3.5
    luts = LUT("luts", 1, np.array([[0]]), np.array([[0, 1]]))
    ops = (steps, luts, View("view", 2, (1, 1)), Count("count", 3, (-1,)))
    program = IntegerProgram(given, ops, 4, about={"columns": inputs_of(known, given)})
    (line,) = inputs(program, count)
    assert (line["kind"], line["decimals"], line["missing"]) == ("fixed", 0, 3)
    made = raw(program, [line])
    assert made.run(np.arange(256)[:, None])[:, 0].tolist() == [0] * 4 + [1] * 252
    with pytest.raises(IntegerError, match="expected lines of raw columns, got"):
        raw(program, [{"kind": "fixed"}])


def test_columns_that_a_layer_reads_are_refused() -> None:
    given = Input("columns", (2,), -9, 9)
    program = IntegerProgram(given, (Linear("fc", 0, np.array([[1, 2]]), None),), 1, about={"columns": [{}]})
    with pytest.raises(IntegerError, match=r"expected columns of a table that thresholds alone read, .* got fc"):
        raw_inputs(program, {})


def test_c_names_columns_missing_values_texts_and_classes(tmp_path: Path) -> None:
    """A program that fills its row by the names of the header gives the class; NETWORK_H is no column's name."""
    if missing("host"):
        pytest.skip("gcc is not installed")
    rows = pd.DataFrame({"h": [1.5, 2, 3, 4] * 50, "sex */": ["m", "f", None, "Ä"] * 50, "x y": [0.0, 1] * 100})
    known = Preprocessor.fit(rows, np.arange(200) % 2, task="classification", classes=("no", "yes"))
    said = {"target": {"task": "classification", "classes": ["no", "yes"], "threshold": 0.3}}
    program = logic_program(known, known.transform(rows), 29, **said)
    made = raw(program, inputs(program, rows))
    to_c(made, tmp_path)
    text = """#include <stdio.h>
#include "network.h"
int main(void)
{
    TYPE x[NETWORK_INPUTS];
    x[NETWORK_X_Y] = 1;
    for (int i = 0; i < 8; i++) {
        static const TYPE texts[] = {NETWORK_SEX_M, NETWORK_SEX_F, NETWORK_SEX_MISSING, NETWORK_SEX_OTHER};
        x[NETWORK_H_2] = i < 4 ? 15 : NETWORK_H_2_MISSING, x[NETWORK_SEX] = texts[i % 4];
        printf("%d", network_class(x));
    }
    return NETWORK_SEX_OTHER != 4;
}
"""
    (tmp_path / "main.c").write_text(text.replace("TYPE", exported(tmp_path).x_type))
    numbers = {"h": [1.5] * 4 + [np.nan] * 4, "sex */": ["m", "f", None, "new"] * 2, "x y": [1.0] * 8}
    y = program.run(program.input.quantised(known.transform(pd.DataFrame(numbers))))
    probability = 1 / (1 + np.exp((y[:, 0] - y[:, 1]) * 2.0 ** program.unit[0] / program.unit[1]))
    assert len({*probability}) > 2
    assert run_program(tmp_path, tmp_path / "main.c") == "".join(str(int(p >= 0.3)) for p in probability)


@given(st.lists(st.text(max_size=4), min_size=1, max_size=9, unique=True))
@example(["возраст", "возраст 2", "column 0", "größe", "GROSSE", "+", "-", "h", "missing", "max", "C"])
def test_names_in_c_are_distinct_and_valid(texts: list[str]) -> None:
    columns: list[dict[str, Any]] = [
        {"x": x, "name": f"{text}|", "kind": "fixed", "missing": 0} for x, text in enumerate(texts)
    ]
    columns.append({"x": len(texts), "name": texts[0], "kind": "index", "texts": texts})
    about = {"columns": columns, "target": {"classes": texts}}
    text = names(IntegerProgram(Input("columns", (len(columns),), 0, 9), (), 0, about=about), "int8", ["INT8_H"])
    found = re.findall(r"^    (.*) = \d+", text, re.MULTILINE)
    assert len(found) == 1 + 4 * len(texts) + 1 + ("" not in texts)
    assert len({*found, "INT8_H", "INT8_MAX", "INT8_MIN"}) == len(found) + 3
    assert all(re.fullmatch(r"INT8_[A-Z0-9_]+", one) for one in found)
