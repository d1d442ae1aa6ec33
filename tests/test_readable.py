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

from htaf import HtafClassifier, HtafRegressor, fit
from htaf.data.reading import DataError
from htaf.program.integer.program import Input
from htaf.program.integer.raw import raw, raw_inputs
from htaf.sharing import load
from htaf.tables.inspection import InspectionError
from htaf.tables.readable import Reading, condition_of, edit
from htaf.training import additive
from htaf.training.additive import (
    GRID,
    STEPS,
    Axis,
    Fit,
    Term,
    few,
    grid,
    learned,
    monotone,
    rounded,
    segments,
    shortest,
)
from htaf.training.boosting import Rows
from htaf.training.distributed import TrainingError
from htaf.training.families import ready_recipe
from htaf.training.families.mlp import MLPNetwork
from htaf.training.runs import Run, open_run
from htaf.training.runs.packing import build_run, prepared, values_of


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


@given(st.integers(-50, 50), st.integers(1, 3000), st.floats(0, 1), st.sampled_from([8, 20]), st.data())
def test_a_threshold_of_whole_numbers_is_one(
    low: int, span: int, at: float, exponent: int, data: st.DataObject
) -> None:
    """It divides the whole numbers as the network does, which does not tell them apart where its steps are wide."""
    given = Input("columns", (1,), -(2**30), 2**30, exponent)
    said = {"kind": "number", "column": "n", "scale": 1 / span, "offset": -low / span, "codes": [], "fill": low}
    said |= {"low": low, "high": low + span}
    found = condition_of(
        said, at, given, data.draw(st.sampled_from([(-0.499, 0, 0.499), (-0.501, -0.5, -0.499)])), whole=True
    )
    whole = np.arange(low - 3.0, low + span + 3)
    assert np.array_equal(whole >= found.number, found.holds(whole)) or span > 2**exponent
    assert found.number % 1 == 0 or span > 2**exponent


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 2**31))
def test_columns_that_say_nothing_are_left_out(seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 9, (400, 4))
    y = (codes[:, 1] > 3) - 1.0 + rng.normal(0, 0.05, 400)
    terms = [Term(str(j), (j,)) for j in range(4)]
    rows = Rows(codes, (8,) * 4, y, 0, np.ones(400), np.zeros((400, 1)))
    found, _ = learned(rows, terms, MLPNetwork(steps=3))
    assert found.bits[0, 8 + 3] > 0.9
    assert found.steps(rows, terms) <= 3


def test_outputs_out_of_fold_are_worse_than_those_of_the_fit() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 31, (240, 6))
    y = (codes[:, 0] > 15) + rng.normal(size=240)
    rows = Rows(codes, (30,) * 6, y, 0, np.ones(240), np.zeros((240, 1)))
    fit, outside = learned(rows, [Term(str(j), (j,)) for j in range(6)], MLPNetwork())
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
    assert json.loads((run / "report.json").read_text())["importance"]["columns"], "the section of the page"
    level = Reading(opened := open_run(run)).terms[0].levels[0]
    changed = [edit(opened, "age", level.text, 900, data) for data in (None, frame.assign(y="high"))]
    kept = changed[0].run.record["metrics"]
    assert (changed[0].part, changed[1].part, [*kept["exact"]]) == ("test", "all", ["test"])
    assert (
        kept["exact"]["test"]
        == changed[0].run.evaluate("test", opened.data())["exact"]
        != own["metrics"]["exact"]["test"]
    )
    assert changed[1].run.record["metrics"]["exact"] == {}, "other rows"
    assert htaf("pack", run, "--out", tmp_path / "run.packed")[0] == 0
    code, out, err = htaf("verify", tmp_path / "run.packed", run)
    assert (code, "0 predictions and 0 outputs differ" in out + err) == (0, True)


def test_monotone_is_the_nearest() -> None:
    values = np.array([1.0, 3.0, 2.0])
    assert monotone(values, np.ones(3), 1).tolist() == [1, 2.5, 2.5]
    assert monotone(values, np.ones(3), -1).tolist() == [2, 2, 2]


def test_options_hold() -> None:
    model, _ = fitted(2, monotone=("size+", "age-"), points=20, pairs=0, steps=15)
    said = Reading(model)
    levels = {term.name: [level for level in term.levels if level.end is not None] for term in said.terms}
    points = [level.points[0] for level in levels["size"]]
    assert len(points) > 1
    assert points == sorted(points)
    assert not levels.get("age"), "it rises where it must not"
    assert np.abs(said.weights).max() <= 20
    assert sum(term.steps for term in said.terms) <= 15 + len(said.terms)
    with pytest.raises(TrainingError, match="monotone: expected columns of numbers"):
        fitted(2, monotone=("kind+",))
    with pytest.raises(ValueError, match="in front of \\+ or -"):
        ready_recipe("mlp", "readable").replace(monotone=("age",))
    with pytest.raises(TrainingError, match="monotone"):  # fields beside the name of a ready recipe
        fit(table()[0].assign(y=table()[1]), "y", recipe="readable", monotone=("kind+",))


def test_edited_level(tmp_path: Path) -> None:
    model, frame = fitted(0)
    said = Reading(model)
    term = next(one for one in said.terms if one.name == "age")
    level = term.levels[1]
    labelled = frame.assign(target=table()[1])
    changed = edit(model, "age", level.text, level.points[0] + 100, labelled)
    by = Reading(changed.run).points(frame).sum(axis=1) - said.points(frame).sum(axis=1)
    bits = said.bits(frame)[:, term.places]
    assert np.array_equal(by, 100 * (bits == np.array(level.bits)).all(1))
    assert changed.before != changed.after
    again = load(changed.run.save(tmp_path / "run").path)
    assert np.array_equal(again.predict(frame), changed.run.predict(frame)["prediction"])
    assert changed.run.record["metrics"] == {"smooth": {}, "exact": {}}, "no rows of it are known"
    for wrong in ({"level": "old"}, {"points": 1.5}, {"points": True}, {"points": 2**40}, {"output": 1}):
        with pytest.raises(InspectionError, match="expected"):
            edit(model, **{"column": "age", "level": level.text, "points": 1, "data": labelled, **wrong})


@pytest.mark.filterwarnings("ignore:rows unlike")
@pytest.mark.parametrize("steps", [0, 8])
def test_rows_without_a_number_say_nothing_of_it(steps: int) -> None:
    rng, rows = np.random.default_rng(0), 2000
    a, missing = rng.uniform(0, 100, rows), rng.random(rows) < 0.3
    y = np.where(missing, 30.0, a / 10) + rng.normal(0, 0.3, rows)
    frame = pd.DataFrame({"a": np.where(missing, np.nan, a)})
    model = HtafRegressor(recipe=ready_recipe("mlp", "readable").replace(steps=steps)).fit(frame, y)
    asked = pd.DataFrame({"a": [*np.linspace(45, 55, 21), np.nan]})
    near = 1.0 if steps else 0.5
    assert np.abs(model.predict(asked) - [*asked["a"][:-1] / 10, 30]).max() < near


def test_of_many_rows_some_are_fitted_and_a_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    frame, y = table()
    monkeypatch.setattr(additive, "FITTED", 200)
    monkeypatch.setattr(additive, "WORK", 1.0)
    model = HtafRegressor(recipe="readable").fit(frame[["size"]], y)
    assert any("200 of 300 rows" in note for note in model.notes_)


def test_steps_that_are_no_numbers_are_refused() -> None:
    rows = Rows(np.zeros((3, 1), int), (1,), np.zeros(3), 0, np.ones(3), np.zeros((3, 1)))
    for value in (np.nan, np.inf):
        with pytest.raises(DataError, match="finite"):
            rounded(Fit(np.array([[value]]), {}, np.zeros(1)), rows, 0)


def test_texts_that_would_be_misread_stand_in_quotes() -> None:
    rng = np.random.default_rng(0)
    kind = rng.choice(["a, b", "a", "missing", "", "c"], 400)
    model = HtafRegressor(recipe="readable").fit(pd.DataFrame({"kind": kind}), (kind == "a, b") + (kind == "c") * 2.0)
    (term,) = (said := Reading(model)).terms
    assert {level.text for level in term.levels} >= {'"a, b"', "c"}
    assert any('"missing"' in level.text for level in term.levels)
    assert all(level.text in repr(said) for level in term.levels)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=40), st.integers(0, 2**31))
def test_few_steps(values: list[float], seed: int) -> None:
    made = few(np.array(values), np.random.default_rng(seed).integers(0, 3, len(values)).astype(float))
    assert np.count_nonzero(np.diff(made)) <= STEPS
    assert min(values) - 1e-9 <= made.min() <= made.max() <= max(values) + 1e-9


@given(st.integers(0, 2**31))
def test_a_product_lowers_the_loss_as_least_squares_say(seed: int) -> None:
    rng = np.random.default_rng(seed)
    axes = []
    for term, make in enumerate((np.tri, np.eye)):  # a number, a category
        levels = make(3, 2, -1)
        axes.append(Axis(term, [(term, 0, True), (term, 1, True)], rng.normal(size=2), levels, rng.integers(0, 3, 60)))
    slope, a, b = rng.normal(size=(60, 1)), *(axis.levels[axis.level] for axis in axes)
    alone = np.hstack([a, b, np.ones((60, 1))])
    both = np.hstack([alone, ((a @ axes[0].adds) * (b @ axes[1].adds))[:, None]])
    left = [np.square(slope - x @ np.linalg.lstsq(x, slope)[0]).sum() for x in (alone, both)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(additive, "RULE", 1e6)  # no number of its own
        gain, pair = grid(axes[0], axes[1], slope, np.ones((60, 1)), 1.0)
    assert gain + GRID == pytest.approx((left[0] - left[1]) / 2, abs=1e-9)
    assert pair.rules == [((0, i, True), (1, k, True)) for i in range(2) for k in range(2)]


@pytest.mark.parametrize("classes", [0, 3])
def test_columns_that_multiply(classes: int) -> None:
    rng, rows = np.random.default_rng(0), 600
    frame = pd.DataFrame(
        {"a": rng.integers(0, 20, rows), "b": rng.integers(0, 20, rows), "c": rng.choice([*"xyz"], rows)}
    )
    y = frame["a"] * frame["b"] / 20.0 + (frame["c"] == "x") * frame["a"] + rng.normal(0, 0.5, rows)
    recipe = ready_recipe("mlp", "readable")
    if not classes:
        losses = []
        for pairs in (0, 10):
            model = HtafRegressor(recipe=recipe.replace(pairs=pairs)).fit(frame[:400], y[:400])
            losses.append(np.square(model.predict(frame[400:]) - y[400:]).mean())
        assert losses[1] < losses[0] / 2
    else:
        model = HtafClassifier(recipe=recipe).fit(frame, np.digitize((frame["a"] - 5) * (frame["b"] - 5), [-5, 20]))
    said = Reading(model)
    assert said.rules
    for rule, term in zip(said.rules, [one for one in said.terms if one.rule], strict=True):
        assert len({said.conditions[i].said["column"] for i, _ in rule}) == len(rule) == 2
        assert len(set(term.name.split(" x "))) == 2
    points = np.stack([said.points(frame, k).sum(axis=1) for k in range(len(said.outputs))], 1)
    assert np.array_equal(points * said.unit, model._outputs(frame)[:, -len(said.outputs) :])
    program = build_run(model.run_)
    direct = raw(program, raw_inputs(program, values_of(program.about["columns"], frame)))
    found = [one.run(prepared(one.about["columns"], one.input, frame)) for one in (program, direct)]
    assert np.array_equal(found[0], found[1])


def test_other_networks_are_not_readable() -> None:
    for model in ({"kind": "logic", "hidden": []}, {"kind": "mlp", "hidden": [], "direct": True}):
        assert not Run(Path("x"), {"model": model}).is_readable
