"""The readable network: how it is fitted, that its words are the model, edits, and the program of raw columns."""

from __future__ import annotations

import json
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htaf import HtafClassifier, HtafRegressor
from htaf.program.integer.raw import raw, raw_inputs
from htaf.sharing import load
from htaf.tables.inspection import InspectionError
from htaf.tables.readable import Reading, edit
from htaf.training.additive import Options, Term, learned, monotone, segments, shortest
from htaf.training.boosting import Rows
from htaf.training.distributed import TrainingError
from htaf.training.families import ready_recipe
from htaf.training.runs.integer import build_run, prepared, values_of


def table(rows: int = 300, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Columns of all kinds with missing values, and a number that they say."""
    rng = np.random.default_rng(seed)
    age, size = rng.integers(18, 80, rows).astype(float), rng.normal(0, 1, rows).round(2)
    kind, town = rng.choice(["a", "b", "c", "d"], rows), rng.choice([f"t{i}" for i in range(30)], rows)
    day = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 700, rows), unit="D")
    y = (age > 41) * 2 + size + np.isin(kind, ["a", "c"]) + (day.dt.month if hasattr(day, "dt") else day.month) / 6
    y = np.asarray(y + 2 * ((age > 60) & (size > 0.5)) + rng.normal(0, 0.2, rows))
    missing = rng.random(rows) < 0.2
    y[missing] += 1.5
    age[missing] = np.nan
    return pd.DataFrame({"age": age, "size": size, "kind": kind, "town": town, "day": day}), y


@cache
def fitted(classes: int, **fields: Any) -> tuple[Any, pd.DataFrame]:
    frame, y = table()
    recipe = ready_recipe("mlp", "readable").replace(**fields)
    if not classes:
        return HtafRegressor(recipe=recipe).fit(frame, y), frame
    codes = np.digitize(y, np.quantile(y, np.arange(1, classes) / classes))
    return HtafClassifier(recipe=recipe).fit(frame, codes), frame


@pytest.mark.filterwarnings("ignore:rows unlike")
@pytest.mark.parametrize("classes", [0, 2, 3])
def test_words_are_the_model(classes: int) -> None:
    model, frame = fitted(classes)
    new, _ = table(200, 1)
    new.loc[:20, "kind"], new.loc[5:30, "size"], new.loc[40:50, "day"] = "unseen", np.nan, pd.NaT
    said = Reading(model)
    for rows in (frame, new):
        outputs = model._outputs(rows)[:, -len(said.outputs) :]
        for output in range(len(said.outputs)):
            points = said.points(rows, output)
            assert np.array_equal(points.sum(axis=1).to_numpy() * said.unit, outputs[:, output])
    for term, shares in zip(said.terms, said.shares(new), strict=True):
        assert term.rule or sum(shares) == pytest.approx(1)
    assert said.count <= 30
    assert model.score(frame, model.predict(frame)) == pytest.approx(1)


@pytest.mark.parametrize("classes", [0, 2])
def test_raw_columns_give_the_same(classes: int) -> None:
    model, frame = fitted(classes)
    program = build_run(model.run_)
    direct = raw(program, raw_inputs(program, values_of(program.about["columns"], frame)))
    found = [one.run(prepared(one.about["columns"], one.input, frame)) for one in (program, direct)]
    assert np.array_equal(*found)
    exponent, divisor = program.unit
    assert np.array_equal(found[0] * 2.0**exponent / divisor, model._outputs(frame))


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 4)), min_size=1, max_size=7), st.sampled_from([0.3, 2.0]))
def test_segments_cost_least(cells: list[tuple[int, int]], price: float) -> None:
    values, weights = (np.array(of, float) for of in zip(*cells, strict=True))

    def cost(ends: tuple[int, ...]) -> float:
        parts = [slice(a, b) for a, b in zip((0, *ends), (*ends, len(values)), strict=True)]
        left = sum(weights[p] @ (values[p] - np.average(values[p], weights=weights[p] + 1e-12)) ** 2 for p in parts)
        return left / 2 + price * len(ends)

    inner = range(1, len(values))
    least = min(cost(ends) for count in range(len(values)) for ends in combinations(inner, count))
    made = segments(values, weights, [price, price / 2])[0]
    own = weights @ (values - made) ** 2 / 2 + price * np.count_nonzero(np.diff(made))
    assert own <= least + 1e-9


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e3))
def test_shortest_lies_in_the_interval(low: float, width: float) -> None:
    number = shortest(low, low + width / 2, low + width)
    assert low <= number <= low + width
    assert len(f"{number:.15g}") <= len(f"{low + width / 2:.15g}")


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 2**31))
def test_columns_that_say_nothing_are_left_out(seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 9, (400, 4))
    y = (codes[:, 1] > 3) - 1.0 + rng.normal(0, 0.05, 400)
    terms = [Term(str(j), (j,)) for j in range(4)]
    rows = Rows(codes, (8,) * 4, y, 0, np.ones(400), np.zeros((400, 1)))
    found, _ = learned(rows, terms, Options(steps=3))
    assert found.bits[0, 8 + 3] > 0.9
    assert found.steps(rows, terms) <= 3


def test_outputs_out_of_fold_are_worse_than_those_of_the_fit() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 31, (240, 6))
    y = (codes[:, 0] > 15) + rng.normal(size=240)
    rows = Rows(codes, (30,) * 6, y, 0, np.ones(240), np.zeros((240, 1)))
    fit, outside = learned(rows, [Term(str(j), (j,)) for j in range(6)], Options())
    constant, own, found = (rows.losses(of).mean() for of in (np.full((240, 1), y.mean()), fit.of(rows), outside))
    assert own < 0.99 * found < constant


def test_every_form_of_a_run_says_the_same(tmp_path: Path, htaf: Any) -> None:
    frame, y = table()
    file, run = tmp_path / "t.csv", tmp_path / "run"
    frame.assign(y=np.where(y > np.median(y), "high", "low")).to_csv(file, index=False)
    words = ("--data", file, "--target", "y", "--recipe", "readable", "--baselines", "False", "--out", run)
    assert htaf("train", "tabular", *words)[0] == 0
    own = json.loads((run / "record.json").read_text())
    seen = json.loads(htaf("evaluate", run, "--part", "validation", "--json")[1])["exact"]
    assert own["metrics"]["exact"]["validation"]["loss"] != pytest.approx(seen["loss"])
    assert any("out of fold" in note for note in own["notes"] if isinstance(note, str))
    for form, name in (("c", "c"), ("verilog", "v")):
        assert htaf("export", run, "--to", form, "--out", tmp_path / name)[0] == 0
        code, out, err = htaf("verify", tmp_path / name, run, *(["--target", "host"] if form == "c" else []))
        assert (code, "0 predictions and 0 outputs differ" in out + err) == (0, True)
    assert "NETWORK_AGE_MISSING" in (tmp_path / "c" / "network.h").read_text(), "raw columns"
    assert htaf("pack", run, "--out", tmp_path / "run.packed")[0] == 0
    code, out, err = htaf("verify", tmp_path / "run.packed", run)
    assert (code, "0 predictions and 0 outputs differ" in out + err) == (0, True)


def test_monotone_is_the_nearest() -> None:
    values = np.array([1.0, 3.0, 2.0])
    assert monotone(values, np.ones(3), 1).tolist() == [1, 2.5, 2.5]
    assert monotone(values, np.ones(3), -1).tolist() == [2, 2, 2]


def test_options_hold() -> None:
    model, _ = fitted(2, monotone=("+size", "-age"), points=20, pairs=0, steps=15)
    said = Reading(model)
    levels = {term.name: [level for level in term.levels if level.end is not None] for term in said.terms}
    points = [level.points[0] for level in levels["size"]]
    assert len(points) > 1
    assert points == sorted(points)
    assert not levels.get("age"), "it rises where it must not"
    assert np.abs(said.weights).max() <= 20
    assert sum(term.steps for term in said.terms) <= 15 + len(said.terms)
    with pytest.raises(TrainingError, match="monotone: expected columns of numbers"):
        fitted(2, monotone=("+kind",))
    with pytest.raises(ValueError, match="behind \\+ or -"):
        ready_recipe("mlp", "readable").replace(monotone=("age",))


def test_edited_level(tmp_path: Path) -> None:
    model, frame = fitted(0)
    said = Reading(model)
    term = next(one for one in said.terms if one.name == "age")
    level = term.levels[1]
    changed = edit(model, "age", level.text, level.points[0] + 100, frame.assign(target=table()[1]))
    by = Reading(changed.run).points(frame).sum(axis=1) - said.points(frame).sum(axis=1)
    bits = said.bits(frame)[:, term.places]
    assert np.array_equal(by, 100 * (bits == np.array(level.bits)).all(1))
    assert changed.before != changed.after
    again = load(changed.run.save(tmp_path / "run").path)
    assert np.array_equal(again.predict(frame), changed.run.predict(frame)["prediction"])
    with pytest.raises(InspectionError, match="expected one of the levels"):
        edit(model, "age", "old", 1)
