"""Rules of bits over raw columns: planted ones are found, what is said of them is true."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.tree import DecisionTreeClassifier

from htaf.data import tabular
from htaf.data.preprocess import Preprocessor
from htaf.data.reading import DataError
from htaf.data.table_files import read_frame
from htaf.tables import rules
from htaf.tables.rules import RulesError, trees
from htaf.tables.rules.conditions import RARE, Condition, RawColumn, RawColumns, Rule, joined, roundest, simplified
from htaf.tables.rules.explanation import OTHERS, drawn
from htaf.tables.rules.trees import LEAST_LEAF, fit_rule
from htaf.training.runs import Run, RunError
from made_runs import digits
from made_runs import made_run as image_run
from rules.made_table import COLORS, Kind, made_run, table

KINDS: tuple[Kind, ...] = ("two", "three", "number")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, Run]:
    folder = tmp_path_factory.mktemp("tables")
    return {kind: made_run(folder, kind) for kind in KINDS}


# ---- rules of planted bits ----


@pytest.mark.parametrize("kind", KINDS)
def test_planted_bits_are_found(made: dict[Kind, Run], kind: Kind) -> None:
    found = rules.explain(made[kind])
    assert found.dead == {"always on": [3], "always off": [4]}
    assert str(found.rule(0).rule) in ("on if (size > 40 or missing)", "off if size <= 40")
    assert str(found.rule(1).rule) in ("on if color in {blue, red}", "on if color not in {green, white}")
    both = found.rule(2)
    assert both.rule is not None
    assert set(both.rule.columns) == {"size", "color"}
    for bit in range(3):
        about = found.rule(bit).fidelity
        assert about is not None
        assert (about.accuracy, about.balanced, about.faithful) == (1.0, 1.0, True)
        assert about.majority < 0.8
    assert next(rule.bit for rule in found.rules()) == 2  # the largest weights
    assert sorted(rule.bit for rule in found.rules()) == [0, 1, 2]
    assert found.rules(1)[0].effect == found.effects.max()
    for dead in (3, 4):
        assert (found.rule(dead).rule, found.rule(dead).effect) == (None, 0.0)
    with pytest.raises(RulesError, match="0 to 4, got 5"):
        found.rule(5)


def test_effects_are_mean_contributions(made: dict[Kind, Run]) -> None:
    found = rules.explain(made["three"])
    weight, usual = found.bits.weight, found.train_bits.mean(0)
    by_hand = np.zeros(5)
    for bits, logits in zip(found.test_bits, found.outputs, strict=True):
        one, other = np.argsort(-logits)[:2]
        by_hand += abs((weight[one] - weight[other]) * (bits - usual))
    assert np.allclose(found.effects, by_hand / len(found.test_bits))


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_only_the_linear_part_reads_is_seen(tmp_path: Path, kind: Kind, htaf, rows_csv: Path) -> None:
    run = made_run(tmp_path, kind, linear=True)
    found = rules.explain(run)
    assert (found.effects == 0).all()
    (strongest, effect), *others = found.linear_effects.items()
    assert (strongest, [of for _, of in others]) == ("weight", [0.0, 0.0])
    assert (found.linear_share, found.share(5)) == (1.0, 0.0)
    preprocessor: Any = run.preprocessor()
    (place,) = preprocessor.inputs_of("weight")
    x, usual = (preprocessor.transform(rows)[:, place] for rows in (found.test, found.train))
    worth = found.bits.linear_weight
    assert worth is not None
    first, second = found.bits.decision(found.outputs)
    by_hand = (
        worth[0, place] * preprocessor.target.std if kind == "number" else (worth[first] - worth[second])[:, place]
    )
    assert effect == pytest.approx(np.abs(by_hand * (x - usual.mean(dtype=np.float64))).mean())
    shuffled = rules.importance(run).columns["worse"]
    assert {name for name, of in shuffled.items() if of} == {"weight"}
    (curve,) = rules.effects(run, ["weight"])
    assert np.ptp([point.mean[0] for point in curve.points]) > 0.3
    assert found.reasons(found.test.iloc[[3]]).columns.index[0] == "weight"
    with pytest.raises(RulesError, match="expected one row, got 2"):
        found.reasons(found.test.iloc[[3, 4]])
    assert rules.surrogate(run).columns == ("weight",)
    (tmp_path / "without").mkdir()
    changed = rules.what_if(run, {"weight": "1.5"}, found.test.iloc[[3]].assign(weight="0"))
    assert (changed.turned_on, changed.turned_off) == (((),), ((),))
    assert not changed.before.equals(changed.after)
    code, out, _ = htaf("explain", run.path, rows_csv, "--set", "weight=1.5")
    assert (code, "no bit changes" in out) == (0, True)
    assert htaf("explain", run.path, rows_csv, "--set", "weight=1,5")[:2] == (0, out)
    without = rules.explain(made_run(tmp_path / "without", kind))
    assert (without.linear_effects, without.linear_share, without.bits.linear_weight) == ({}, 0.0, None)


@pytest.mark.parametrize("kind", KINDS)
def test_bits_add_up_to_the_outputs(made: dict[Kind, Run], kind: Kind) -> None:
    found = rules.explain(made[kind])
    by_hand = found.test_bits @ found.bits.weight.T + found.bits.bias
    assert by_hand == pytest.approx(found.outputs, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_columns_of_a_row_add(made: dict[Kind, Run], kind: Kind) -> None:
    """Beside predictions of the row with the values of the same training rows."""
    run = made[kind]
    found = rules.explain(run)
    row = found.test.iloc[[7]]
    reasons = found.reasons(row)
    of_columns = reasons.columns
    adds = of_columns["adds"].to_dict()
    assert {*adds} == {"color", "size", "weight"}
    assert [abs(value) for value in adds.values()] == sorted(map(abs, adds.values()), reverse=True)
    no_bit_reads_it = (adds["weight"], of_columns["std"].to_dict()["weight"])
    assert no_bit_reads_it == pytest.approx((0, 0), abs=1e-4)  # as the decision of one row and of many are rounded
    predicted = run.predict(row)["prediction"].iloc[0]
    assert reasons.prediction == (pytest.approx(predicted) if kind == "number" else predicted)
    chosen = found.train.iloc[drawn(np.arange(len(found.train)), OTHERS)]
    for name in ("color", "size"):
        others = pd.concat([row] * len(chosen), ignore_index=True).assign(**{name: chosen[name].to_numpy()})
        predicted = run.predict(others)
        if kind == "number":
            decided = predicted["prediction"].to_numpy()
        else:
            one, other = (predicted[f"probability_{c}"].to_numpy() for c in (reasons.prediction, reasons.instead))
            decided = np.log(one / other)
        assert adds[name] == pytest.approx(reasons.decision - decided.mean(), abs=1e-4)


# ---- trees and conditions ----


@given(
    st.integers(0, 10_000),
    st.sampled_from(["size > 55", "green", "code", "missing", "noise", "three"]),
    st.booleans(),
)
def test_a_rule_says_what_its_tree_says(seed: int, what: str, codes: bool) -> None:
    """Beside scikit-learn's own prediction, on training rows; rounding a threshold moves none of them."""
    rng = np.random.default_rng(seed)
    rows = table(rows=120, seed=seed).drop(columns="y")
    rows["weight"] = rng.choice([-9.0, 0.0, 1.25, 7.0], 120) if codes else rows["weight"]
    size = rows["size"].to_numpy()
    bit = {
        "size > 55": size > 55,
        "green": (rows["color"] == "green").to_numpy(),
        "code": (rows["weight"] == -9).to_numpy(),
        "missing": np.isnan(size),
        "noise": rng.random(120) < 0.3,
        "three": (size > 20) & (rows["color"] != "red").to_numpy() & (rows["weight"] > 0).to_numpy(),
    }[what]
    if bit.all() or not bit.any():
        return
    preprocessor = Preprocessor.fit(
        rows, rng.integers(0, 2, 120), task="classification", classes=("a", "b"), special_codes=(-9.0,) if codes else ()
    )
    columns = RawColumns.learn(preprocessor, rows)
    values = columns.read(rows)
    encoded = columns.encode(values)
    rule, depth = fit_rule(encoded, bit)
    inputs, _ = encoded.ordered(bit, np.arange(120))
    tree = DecisionTreeClassifier(
        max_depth=depth, min_samples_leaf=LEAST_LEAF, class_weight="balanced", random_state=0
    ).fit(inputs, bit)
    assert 1 <= depth <= 3
    assert np.array_equal(rule.predict(values, 120), tree.predict(inputs))
    assert str(rule)


def test_categories_are_ordered_by_weighted_means() -> None:
    rows = pd.DataFrame({"b": list("xyz") * 40})
    said = np.where(np.arange(120) < 60, 0.0, np.tile([1.0, 0.8, 0.5], 40))
    preprocessor = Preprocessor.fit(rows, said, task="regression")
    columns = RawColumns.learn(preprocessor, rows)
    encoded, all_rows = columns.encode(columns.read(rows)), np.arange(120)
    weights = np.where((rows["b"] == "z") & (said > 0), 9.0, 1.0)  # z mostly says more than 0
    for of, wanted in ((None, [2, 1, 0]), (weights, [1, 2, 0])):
        assert encoded.ordered(said, all_rows, of)[1][0].tolist() == wanted


@given(st.floats(-1e12, 1e12, allow_subnormal=False), st.floats(1e-12, 1e12, allow_subnormal=False))
def test_roundest(low: float, more: float) -> None:
    high = low + more
    if low >= high:
        return
    found = roundest(low, high)
    assert low <= found < high


def test_words_of_conditions() -> None:
    def number(**given: object) -> Condition:
        return Condition("x", "number", **given)  # pyright: ignore[reportArgumentType]

    assert str(number(upto=0.5)) == "x <= 0.5"
    assert str(number(above=2.0, upto=3.0, missing=True, some_missing=True)) == "(2 < x <= 3 or missing)"
    assert str(number(above=2.0, missing=True)) == "x > 2"  # no training row lacks it
    assert str(Condition("x", "missing")) == "x is missing"
    assert str(Condition("x", "missing", negated=True)) == "x is not missing"
    assert str(Condition("x", "code", code=-9.0, negated=True)) == "x is not the code -9"
    assert str(Condition("c", "category", among=("",))) == "c is missing"
    assert str(Condition("c", "category", among=tuple("abcdefgh"))) == "c in {a, b, c, d, e, f, 2 more}"
    assert str(Condition("d", "date", upto=365.0)) == "d <= 1971-01-01"
    one, other = number(upto=1.0), Condition("c", "category", among=("a",))
    assert str(Rule(True, ((one, other), (one, number(above=0.0))))) == "on if x <= 1 and (c is a or x > 0)"
    assert str(Rule(False, ((one,), (other,)))) == "off if x <= 1; or c is a"
    assert (str(Rule(True, ())), str(Rule(True, ((),))), str(Rule(False, ()))) == (
        "always off",
        "always on",
        "always on",
    )


CONDITIONS = {
    "above": lambda k: Condition("x", "number", above=float(k), missing=k % 2 == 0),
    "upto": lambda k: Condition("x", "number", upto=float(k), missing=k % 2 == 0),
    "month": lambda k: Condition("d", "number", upto=float(k), part="month"),
    "in": lambda k: Condition("c", "category", among=COLORS[: k % 4]),
    "out": lambda k: Condition("c", "category", among=COLORS[k % 4 :], negated=True),
    "code": lambda k: Condition("x", "code", code=float(k), negated=k % 2 == 0),
    "missing": lambda k: Condition("x", "missing", negated=k % 2 == 0),
}
conjunctions = st.lists(st.tuples(st.sampled_from([*CONDITIONS]), st.integers(0, 5)), max_size=5)


def many_rows(rows: int = 400) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.integers(-1, 7, rows).astype(float)
    x[::5] = np.nan
    code = np.where(rng.random(rows) < 0.3, x, np.nan)
    other = {"c": rng.choice([*COLORS, "new", ""], rows).astype(object), "d\0month": rng.permutation(x)}
    return {"x": np.where(np.isnan(code), x, np.nan), "x\0": code, **other}


@given(conjunctions)
def test_joined_conditions_hold_for_the_same_rows(given: list[tuple[str, int]]) -> None:
    conditions, values = [CONDITIONS[kind](k) for kind, k in given], many_rows()
    one, other = (Rule(True, (tuple(some),)).predict(values, 400) for some in (conditions, joined(conditions)))
    assert np.array_equal(one, other)
    assert len(joined(conditions)) <= len(conditions)


@given(st.lists(conjunctions, max_size=4))
def test_a_simplified_rule_holds_for_the_same_rows(given: list[list[tuple[str, int]]]) -> None:
    alternatives = [[CONDITIONS[kind](k) for kind, k in every] for every in given]
    found, values = simplified(alternatives), many_rows()
    one, other = (Rule(True, tuple(map(tuple, some))).predict(values, 400) for some in (alternatives, found))
    assert np.array_equal(one, other)
    assert sum(map(len, found)) <= sum(map(len, alternatives))
    assert len(found) <= len(alternatives)
    assert simplified(found) == found


def test_rules_without_needless_conditions() -> None:
    a, c = (Condition(name, "category", among=("Yes",)) for name in ("a", "c"))
    no_a, no_c = (replace(one, negated=True) for one in (a, c))
    few, more = (Condition("b", "category", among=tuple(names)) for names in ("p", "pq"))
    low, lower, upto3 = (Condition("x", "number", upto=bound) for bound in (2.0, 1.0, 3.0))
    other_few = replace(few, negated=True)
    high, higher = (Condition("x", "number", above=bound) for bound in (2.0, 1.0))
    for alternatives, said in (
        ([(no_a, no_c), (a, no_c)], "c is not Yes"),
        ([(a,), (no_a, c)], "a is Yes; or c is Yes"),
        ([(a, c), (a, no_c)], "a is Yes"),
        ([(few, c), (other_few, more, c)], "c is Yes and b in {p, q}"),
        ([(more, few), (more, other_few)], "b in {p, q}"),
        ([(lower,), (higher, low)], "x <= 2"),
        ([(low, higher, c), (high, upto3, c)], "1 < x <= 3 and c is Yes"),
        ([(Condition("x", "missing", negated=True), high)], "x > 2"),
        ([(a, low), (a, high), (a, Condition("x", "missing"))], "a is Yes"),
        ([(a, c), (no_a, no_c)], "a is Yes and c is Yes; or a is not Yes and c is not Yes"),
    ):
        assert str(Rule(True, simplified(alternatives))) == f"on if {said}"
    rows = pd.DataFrame(np.random.default_rng(0).choice(["Yes", "No"], (400, 3)), columns=[*"abc"])
    majority = ((rows == "Yes").sum(axis=1) >= 2).to_numpy()
    told = ruled(learned(rows), rows, majority)
    assert len(re.findall(" is ", told)) == 5, told  # not 6: one pair of the three needs nothing beside it
    assert simplified([(a,), (no_a,)]) == ((),)
    assert simplified([(a, no_a)]) == simplified([]) == ()


def test_a_category_that_training_lacks_is_in_no_set() -> None:
    values = {"c": np.array(["a", "new", ""], dtype=object)}
    assert Condition("c", "category", among=("a",)).holds(values).tolist() == [True, False, False]
    assert Condition("c", "category", among=("a",), negated=True).holds(values).tolist() == [False, True, True]


def learned(rows: pd.DataFrame, target: np.ndarray | None = None, **given: Any) -> RawColumns:
    """Raw columns as a network of these training rows reads them."""
    truth = np.arange(len(rows)) % 2 if target is None else target
    preprocessor = Preprocessor.fit(rows, truth, task="classification", classes=("a", "b"), **given)
    return RawColumns.learn(preprocessor, rows)


def ruled(columns: RawColumns, rows: pd.DataFrame, bit: np.ndarray) -> str:
    return str(fit_rule(columns.encode(columns.read(rows)), bit)[0])


def test_rules_of_dates() -> None:
    rows = pd.DataFrame({"day": pd.date_range("2020-01-01", periods=800, freq="D"), "x": np.arange(800.0) % 7})
    columns = learned(rows, orders={"day": "day-month-year"})
    assert [column.part for column in columns.columns] == ["", "month", "weekday", "day of year", ""]
    assert columns.names == ("day", "x")
    day = rows["day"].dt
    assert ruled(columns, rows, (rows["day"] > "2021-03-15").to_numpy()) in (
        "on if day > 2021-03-15",
        "off if day <= 2021-03-15",
    )
    assert ruled(columns, rows, day.month.isin([6, 7, 8]).to_numpy()) == "on if May < month of day <= August"
    weekend = ruled(columns, rows, (day.day_of_week > 4).to_numpy())
    assert weekend in ("on if weekday of day > Friday", "off if weekday of day <= Friday")
    written = pd.DataFrame({"day": day.strftime("%d.%m.%Y"), "x": rows["x"]})  # as raw rows have it
    one, other = columns.read(rows), columns.read(written)
    assert all(np.array_equal(one[key], other[key]) for key in one)
    with pytest.raises(DataError, match=r"day-month-year.*2020-13-45"):
        columns.read(written.assign(day="2020-13-45"))
    rule, _ = fit_rule(columns.encode(one), day.month.isin([6, 7, 8]).to_numpy())
    assert rule.columns == ("day",)
    assert rule.to_json()["alternatives"][0][0]["part"] == "month"
    gone = columns.read(written.assign(day=None))
    assert rule.predict(gone, len(rows)).sum() in (0, len(rows))


def test_spellings_and_rare_categories_are_read_as_the_network_does() -> None:
    names = ["Yes", "yes", "YES", "No"] * 50 + ["Maybe"] * 3 + ["never"] * 2
    rows = pd.DataFrame({"said": names, "x": np.arange(205.0)})
    columns = learned(rows)
    assert columns.columns[0].values.tolist() == ["No", "YES", RARE]
    other = pd.DataFrame({"said": ["yEs", "no", "maybe", "what", None], "x": 1.0})
    assert columns.read(other)["said"].tolist() == ["YES", "No", RARE, RARE, RARE]
    rare = np.isin(names, ["Maybe", "never"])
    assert ruled(columns, rows, rare) in (f"on if said is {RARE}", f"off if said is not {RARE}", "on if x > 199")
    bit = np.char.lower(names) == "yes"
    assert ruled(columns, rows, bit) in ("on if said is YES", "off if said is not YES")
    few = learned(rows.iloc[:200])  # without rare ones a new category is in no set
    assert few.read(other)["said"].tolist() == ["YES", "No", "maybe", "what", ""]


def test_many_categories_are_in_the_order_of_their_encoding() -> None:
    rng = np.random.default_rng(0)
    town = np.array([f"town {k:02}" for k in range(30)], dtype=object)[rng.integers(0, 30, 3000)]
    number = np.array([int(name[-2:]) for name in town])
    target = (rng.random(3000) < number / 30).astype(int)
    rows = pd.DataFrame({"town": town, "x": rng.normal(size=3000)})
    preprocessor = Preprocessor.fit(rows, target, task="classification", classes=("a", "b"))
    town_column, x = preprocessor.columns
    assert RawColumn.learn(town_column, rows["town"])[0].ranks == ()  # frequent ones are told each by itself
    mean = replace(
        town_column, outputs=town_column.outputs[:1], values=tuple(row[:1] for row in town_column.values),
        otherwise=town_column.otherwise[:1], lows=town_column.lows[:1], highs=town_column.highs[:1],
    )  # fmt: skip
    columns = RawColumns.learn(Preprocessor([mean, x], preprocessor.target), rows)
    column = columns.columns[0]
    assert (column.learned.kind, len(column.ranks)) == ("encoded", 30)
    order = np.array(column.values)[np.argsort(column.ranks)]
    high = set(order[20:])
    rule, _ = fit_rule(columns.encode(columns.read(rows)), np.isin(town, [*high]))
    (condition,) = rule.alternatives[0]
    assert set(condition.among) == high
    counts = pd.Series(town).value_counts()
    assert [counts[name] for name in condition.among] == sorted((counts[name] for name in high), reverse=True)
    assert str(condition).endswith(", 4 more}")
    new = columns.read(pd.DataFrame({"town": ["TOWN 03", "elsewhere"], "x": 0.0}))
    assert new["town"].tolist() == ["town 03", "elsewhere"]


# ---- importance ----


@pytest.mark.parametrize("kind", KINDS)
def test_importance_of_columns(made: dict[Kind, Run], kind: Kind) -> None:
    found = rules.importance(made[kind], repeats=4)
    assert found.metric == {"two": "auroc", "three": "accuracy", "number": "rmse"}[kind]
    assert found.value == pytest.approx(made[kind].evaluate("test")["exact"][found.metric])
    assert sorted(found.columns.index) == ["color", "size", "weight"]  # a constant column is none
    assert [found.columns[name].to_dict()["weight"] for name in ("worse", "std")] == [0.0, 0.0]  # no bit reads it
    assert min(found.columns["std"].to_dict()[name] for name in ("size", "color")) > 0
    assert json.dumps(found.to_json())
    assert found.columns.equals(rules.importance(made[kind], repeats=4).columns)


class Predictor(RegressorMixin, BaseEstimator):
    """A run of numbers as an estimator over raw rows, against which row numbers are held."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self) -> None: ...

    def predict(self, x: pd.DataFrame) -> np.ndarray:
        return self.run.predict(x)["prediction"].to_numpy()


def test_row_numbers_give_what_raw_rows_give(made: dict[Kind, Run]) -> None:
    """The same shuffles of the rows themselves, and the same values written into them."""

    run = made["number"]
    data = run.data()
    assert isinstance(data, tabular.Table)
    rows = tabular.split(data, 0).test

    theirs: Any = permutation_importance(
        Predictor(run),
        data.features.iloc[rows],
        data.target[rows],
        scoring="neg_root_mean_squared_error",
        n_repeats=3,
        random_state=0,
    )
    found = rules.importance(run, repeats=3).columns
    for name, of in found.iterrows():
        place = data.features.columns.get_loc(name)
        assert of["worse"] == pytest.approx(theirs.importances_mean[place], abs=1e-5)
        assert of["std"] == pytest.approx(theirs.importances_std[place], abs=1e-5)
    (effect,) = rules.effects(run, ["size"])
    values = [point.value for point in effect.points if point.value != ""]
    of_raw: Any = partial_dependence(
        Predictor(run), data.features.iloc[rows], ["size"], custom_values={"size": values}, kind="average"
    )
    means = [point.mean[0] for point in effect.points if point.value != ""]
    assert means == pytest.approx(of_raw["average"][0], rel=1e-5)


# ---- what if ----


def test_what_if(made: dict[Kind, Run]) -> None:
    run = made["two"]
    row = pd.DataFrame({"size": ["10"], "color": ["blue"], "weight": ["0"]})
    found = rules.what_if(run, {"size": 90}, row)
    assert (found.turned_on, found.turned_off) == (((0, 2),), ((),))
    assert found.before.equals(run.predict(row))
    assert found.after.equals(run.predict(row.assign(size="90")))
    found = rules.what_if(run, {"size": "41", "color": "green"}, row.assign(size="90"))
    assert (found.turned_on, found.turned_off) == (((),), ((1, 2),))
    (note,) = rules.what_if(run, {"size": 250}, row).notes
    assert str(note) == "values outside the range of training: size (1 row, up to 250 where training had 0.9 to 99.7)"
    (note,) = rules.what_if(run, {"color": "mauve"}, row).notes
    assert "not seen in training ('mauve')" in str(note)
    (note,) = rules.what_if(run, {"size": ""}, row).notes
    assert "set to the training median" in str(note)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "at least one column"),
        ({"seize": 3}, "did you mean 'size'"),
        ({"y": "yes"}, "expected one of the columns"),
        ({"size": "big"}, "column 'size', row 1: expected a number, got 'big'"),
        ({"size": "inf"}, "column 'size', row 1: expected a finite number, got 'inf'"),
        ({"mark": 3}, "expected one of the columns"),  # constant: dropped when it was read
    ],
)
def test_what_if_refuses(made: dict[Kind, Run], changes: dict[str, object], said: str) -> None:
    with pytest.raises((RulesError, DataError), match=said.replace("(", r"\(")):
        rules.what_if(made["two"], changes, table(rows=2).drop(columns="y"))


# ---- runs that have no rules ----


def test_runs_that_are_refused(made: dict[Kind, Run], tmp_path: Path) -> None:
    relu = made_run(tmp_path, "two", {"method": "relu"})
    with pytest.raises(RulesError, match="method relu, which has real values"):
        rules.explain(relu)
    with pytest.raises(RulesError, match=r"trained on images.*predict --explain"):
        rules.explain(image_run(tmp_path / "images", digits()))
    other = table("two", seed=5)
    other.to_csv(tmp_path / "other.csv", index=False)
    with pytest.raises(RulesError, match="expected one of the columns"):
        rules.effects(made["two"], ["colour "])
    for function in (rules.explain, rules.importance):
        with pytest.raises(RunError, match="trained on other data"):
            function(made["two"], tabular.load(tmp_path / "other.csv", target="y"))
    with pytest.raises(RulesError, match="at least one repeat, got 0"):
        rules.importance(made["two"], repeats=0)
    with pytest.raises(RulesError, match="train, validation, test, got 'tset'"):
        rules.importance(made["two"], part="tset")
    with pytest.raises(DataError, match="expected the columns 'color' too"):
        rules.explain(made["two"]).reasons(table(rows=1).drop(columns="color"))


# ---- the command ----


@pytest.fixture
def rows_csv(tmp_path: Path) -> Path:
    table("two", rows=3).drop(columns="y").to_csv(tmp_path / "rows.csv", index=False)
    return tmp_path / "rows.csv"


def test_explain_command(made: dict[Kind, Run], htaf) -> None:
    for run in (made["three"], made["number"]):
        code, out, _ = htaf("explain", run.path)
        assert code == 0
        for said in (
            "one tree for the whole network",
            "A tree of ",
            "3 of the 3 bits are described faithfully",
            "3 that do most have 100% of the effect",
            "always on in training: 3",
            "off in training: 4",
            "color",
        ):
            assert said in out
    run = made["two"].path
    code, out, _ = htaf("explain", run, "--json")
    assert code == 0
    whole = json.loads(out)
    assert whole["surrogate"] == json.loads(json.dumps(rules.surrogate(made["two"]).to_json()))
    assert sorted(rule["bit"] for rule in whole["rules"]) == [0, 1, 2]
    effects = [rule["effect"] for rule in whole["rules"]]
    assert effects == sorted(effects, reverse=True)
    assert whole["importance"]["repeats"] == 10


def test_explain_shows_faithful_rules_alone(made: dict[Kind, Run], htaf, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made["two"]
    rare = rules.explain(run).rule(2).fidelity
    assert rare is not None
    monkeypatch.setattr(trees.Fidelity, "faithful", property(lambda one: one.majority != rare.majority))
    code, out, _ = htaf("explain", run.path)
    assert code == 0
    assert "the 3 bits that do most to 'y', 2 with a rule that is faithful" in out
    assert "2 of the 3 bits are described faithfully" in out
    assert "not faithful" not in out
    code, out, _ = htaf("explain", run.path, "--bits", "3")
    assert "not faithful: on if" in out or "not faithful: off if" in out


def test_explain_command_of_a_row(made: dict[Kind, Run], htaf, rows_csv: Path) -> None:
    for kind, run in [*made.items()][1:]:
        code, out, _ = htaf("explain", run.path, rows_csv, "--row", "2")
        assert code == 0
        assert "row 2: y = " in out
        assert "What its values add" in out
        words = ("explain", run.path, rows_csv, "--set", "size=99", "--set", "color=red")
        code, out, _ = htaf(*words)
        assert code == 0
        for said in ("with size = 99, color = red", "before", "after"):
            assert said in out
        assert out.splitlines()[0].startswith("row 1: y = ")
        assert "What its values add" not in out, kind
        code, out, _ = htaf(*words, "--json")
        found = json.loads(out)
        first = read_frame(rows_csv)[0].iloc[[0]]
        assert (
            found["what_if"]["after"]
            == rules.what_if(run, {"size": "99", "color": "red"}, first).after.to_dict("records")[0]
        )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("ROWS", "--set", "seize=3"), 1, "did you mean 'size'"),
        (("ROWS", "--set", "size"), 2, "--set: expected COLUMN=VALUE, got 'size'"),
        (("ROWS", "--set", "size=1", "--set", "size=2"), 2, "each column once"),
        (("--set", "size=3"), 2, "give ROWS"),
        (("ROWS", "--row", "4"), 2, "--row must be in 1 to 3"),
        (("--row", "2"), 2, "--row is one of ROWS"),
        (("SHORT",), 1, "expected the columns 'color' too"),
    ],
)
def test_explain_command_refuses(
    made: dict[Kind, Run], htaf, rows_csv: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    short = rows_csv.with_name("short.csv")
    pd.read_csv(rows_csv).drop(columns="color").to_csv(short, index=False)
    given = [{"ROWS": rows_csv, "SHORT": short}.get(word, word) for word in words]
    found, _, error = htaf("explain", made["two"].path, *given)
    assert (found, said in error) == (code, True), error


def test_explain_command_refuses_other_runs(htaf, tmp_path: Path) -> None:
    images = image_run(tmp_path / "images", digits())
    code, _, error = htaf("explain", images.path)
    assert (code, "htaf predict --explain" in error) == (1, True)
    (tmp_path / "net.packed").write_bytes(b"")
    code, _, error = htaf("explain", tmp_path / "net.packed")
    assert (code, "got the file" in error) == (2, True)
    moved_from = tmp_path / "again"
    moved_from.mkdir()
    moved = made_run(moved_from, "two")
    (moved_from / "two.csv").rename(moved_from / "moved.csv")
    assert htaf("explain", moved.path)[0] == 1
    assert htaf("explain", moved.path, "--data", moved_from / "moved.csv")[0] == 0
