"""One tree for a whole network: a planted rule is found by the default report, and fidelity is what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score
from sklearn.tree import DecisionTreeRegressor

from htaf.data.preprocess import Preprocessor
from htaf.data.tabular import load
from htaf.tables import rules
from htaf.tables.report.writing import write_report
from htaf.tables.rules.conditions import RawColumns
from htaf.tables.rules.inspection import CURVES
from htaf.tables.rules.trees import FAITHFUL, LEAVES, fit_surrogate
from htaf.training.families.mlp import tabular_members
from htaf.training.fit import fit
from htaf.training.recipe import Running
from htaf.training.runs import open_run
from rules.made_table import made_run, table

QUICK = tabular_members().replace(members=2, hidden=(64,), thresholds=24, epochs=8, batch_size=64, lr=0.01)


def planted(folder: Path, seed: int, rows: int = 800) -> Path:
    """`yes` where b is not y and a <= 2.83, but for 5% of the rows; six columns more say nothing."""
    rng = np.random.default_rng([seed, 99])
    frame = pd.DataFrame({"a": rng.uniform(0, 5, rows).round(2), "b": rng.choice(list("xyz"), rows)})
    for k in range(6):
        frame[f"n{k}"] = rng.normal(size=rows).round(3) if k % 2 else rng.choice(list("uvw"), rows)
    yes = ((frame["a"] <= 2.83) & (frame["b"] != "y")) ^ (rng.random(rows) < 0.05)
    frame["t"] = np.where(yes, "yes", "no")
    frame.to_csv(folder / "planted.csv", index=False)
    return folder / "planted.csv"


@pytest.mark.parametrize("seed", range(3))
def test_the_default_report_finds_a_planted_rule(tmp_path: Path, seed: int) -> None:
    data = load(planted(tmp_path, seed), target="t")
    run = fit(QUICK, data, tmp_path / "run", seed=seed, running=Running("cpu"))
    found = write_report(run, data, baselines=False)["surrogate"]
    words = re.fullmatch(r"yes if (?:b is not y and a <= (\S+)|a <= (\S+) and b is not y)", found["rule"])
    assert words is not None, found["rule"]
    assert float(words[1] or words[2]) == pytest.approx(2.83, abs=0.1)
    assert found["faithful"]
    assert found["columns"] == ["a", "b"] or found["columns"] == ["b", "a"]
    assert (found["leaves"], found["measure"]) == (3, "agreement")
    page = (run.path / "report.html").read_text("utf-8")
    assert page.index("in one tree") < page.index("Which columns matter")
    assert ">yes if " in page
    assert "Not faithful" not in page


def fitted(
    said: np.ndarray, frame: pd.DataFrame, labels: np.ndarray | None = None, cut: int = 0, **options: Any
) -> Any:
    """The tree of these predictions, the last third of the rows held out, or those from `cut` on."""
    cut = cut or len(frame) * 2 // 3
    classes = tuple(f"c{k}" for k in range(said.shape[1])) if said.shape[1] > 1 else ()
    truth = said[:, 0] if not classes else said.argmax(1)
    known = truth[:cut] if not classes else np.arange(cut) % len(classes)  # of which each has rows
    task: Any = "classification" if classes else "regression"
    preprocessor = Preprocessor.fit(frame.iloc[:cut], known, task=task, classes=classes)
    columns = RawColumns.learn(preprocessor, frame.iloc[:cut])
    parts = (frame.iloc[:cut], frame.iloc[cut:])
    held = (truth if labels is None else labels)[cut:]
    return fit_surrogate(columns, preprocessor, parts, (said[:cut], said[cut:]), held, **options)


def test_fidelity_is_that_of_held_out_rows() -> None:
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"a": rng.normal(size=900), "b": rng.normal(size=900)})
    one = (1 / (1 + np.exp(-8 * frame["a"]))).to_numpy()
    labels = ((frame["a"] > 0) ^ (rng.random(900) < 0.2)).to_numpy().astype(np.int64)
    found = fitted(np.stack([1 - one, one], 1), frame, labels)
    (first, second) = (b for b in found.branches if b.says is not None)
    assert {first.condition.column, second.condition.column} == {"a"}
    bound = first.condition.upto if first.condition.upto is not None else first.condition.above
    held = frame["a"].to_numpy()[600:]
    agree = (held > bound) == (held > 0)
    assert (found.fidelity.value, found.rows) == (pytest.approx(agree.mean()), 300)
    assert found.tree.value == pytest.approx(((held > bound) == (labels[600:] == 1)).mean())
    assert found.network.value == pytest.approx(((held > 0) == (labels[600:] == 1)).mean())
    assert found.usual == pytest.approx(max((held > 0).mean(), (held <= 0).mean()), abs=0.1)


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_a_tree_counts_rows_by_their_weights(outputs: int) -> None:
    rng = np.random.default_rng(4)
    frame = pd.DataFrame({"a": rng.integers(0, 30, 900) * 1.0, "b": rng.choice(list("uvwxyz"), 900)})
    score = frame["a"].to_numpy() * (1 + (frame["b"] < "w").to_numpy()) + rng.normal(size=900) * 3
    said = score[:, None] if outputs == 1 else np.exp(-((score[:, None] / 20 - np.arange(outputs)) ** 2))
    said = said if outputs == 1 else said / said.sum(1, keepdims=True)
    labels = score.round() if outputs == 1 else rng.integers(0, outputs, 900)
    times = np.where(frame["b"] == "u", 3, 1)
    each = np.repeat(np.arange(900), times)
    cut = int((each < 600).sum())
    weighted = fitted(said, frame, labels, weights=(times[:600] * 0.5, times[600:] * 7.0))
    plain = fitted(said, frame, labels)
    repeated = fitted(said[each], frame.iloc[each].reset_index(drop=True), labels[each], cut=cut)
    assert weighted.branches != plain.branches

    def leaves(found: Any) -> list[Any]:  # which side of a condition comes first is open
        return sorted(
            (b.rows, b.chance or 0, b.says if outputs == 1 else int(b.says[1])) for b in found.branches if b.says
        )

    assert np.array(leaves(weighted)) == pytest.approx(np.array(leaves(repeated)))
    for name in ("fidelity", "network", "tree"):
        assert getattr(weighted, name).value == pytest.approx(getattr(repeated, name).value)
    assert weighted.usual == pytest.approx(repeated.usual)


def test_a_tree_that_is_not_faithful_is_said_to_be_so() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(900, 8)), columns=[*"abcdefgh"])
    spread = fitted(frame.sum(axis=1).to_numpy()[:, None], frame)
    assert spread.fidelity.value < FAITHFUL
    assert not spread.faithful
    assert re.search(r"It is not faithful \(\d+\.\d points below 90%\)", spread.text)
    rare = (frame["a"] > 1.75) | (frame["b"] + frame["c"] * frame["d"] > 1.8)  # one answer for all is right in 90%
    seldom = fitted(np.stack([1.0 - rare, rare * 1.0], 1), frame)
    assert seldom.leaves > 1
    assert seldom.measure == "agreement"
    assert seldom.fidelity.value > FAITHFUL
    assert not seldom.faithful
    assert "hardly better than one answer for all" in seldom.text


def test_the_tree_of_a_rare_class_shows_where_it_is_likelier() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"a": rng.normal(size=1500).round(2), "b": rng.choice([*"xyz"], 1500), "c": rng.normal(size=1500)}
    )
    risk = np.where((frame["a"] > 1) & (frame["b"] == "x"), 0.36, 0.01) + 0.04 * (frame["a"] > 0).to_numpy()
    labels = (rng.random(1500) < risk).astype(np.int64)
    found = fitted(np.stack([1 - risk, risk], 1), frame, labels)
    assert re.fullmatch(r"always c0; c1 is likeliest, 40%, where (a > 1 and b is x|b is x and a > 1)", found.rule)
    leaves = [b for b in found.branches if b.says is not None]
    assert {b.says for b in leaves} == {"c0"}
    assert sorted({round(b.chance, 3) for b in leaves}) == [0.01, 0.05, 0.4]
    assert (found.risk, found.chance, found.measure, found.metric) == ("c1", "probability of c1", "r2", "auroc")
    assert (found.fidelity.value, found.faithful) == (pytest.approx(1), True)
    assert found.network.value == pytest.approx(roc_auc_score(labels[1000:], risk[1000:]))
    low, high = found.network.interval
    assert low < found.network.value < high
    assert "of the variance of the network's probabilities on 500 test rows" in found.text
    assert [line[:12] for line in found.text.split("\n")] == ["A tree of 4 ", "Against the "]
    assert "AUROC" in found.text
    noisy = fitted(np.stack([1 - risk, risk], 1) + rng.normal(0, 0.1, (1500, 2)), frame, labels)
    assert not noisy.faithful
    lacking = fitted(np.stack([1 - risk, risk], 1), frame, labels * 0)  # held-out rows of one class alone
    assert (lacking.metric, lacking.tree.value) == ("accuracy", 1.0)
    three = fitted(np.stack([1 - 1.2 * risk, risk, 0.2 * risk], 1), frame, labels)
    assert (three.risk, three.chance, three.metric, three.measure) == ("", "probability", "accuracy", "r2")
    assert json.loads(json.dumps(found.to_json()))["chance"] == "probability of c1"


def test_the_tree_of_fewer_leaves_is_a_part_of_the_larger_one() -> None:
    """What `_leaves` stands on: a node is a leaf of the tree of k leaves where its children come later."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 4))
    y = np.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2]
    large: Any = DecisionTreeRegressor(max_leaf_nodes=LEAVES, random_state=0).fit(x, y).tree_
    above = {int(c): n for n in range(large.node_count) for c in (large.children_left[n], large.children_right[n])}
    for leaves in range(2, LEAVES):
        small: Any = DecisionTreeRegressor(max_leaf_nodes=leaves, random_state=0).fit(x, y)
        at = []
        for node in large.apply(x.astype(np.float32)):
            while node > 2 * (leaves - 1):
                node = above[int(node)]
            at.append(large.value[node, 0, 0])
        assert np.allclose(small.predict(x), at)


# ---- partial dependence ----


@pytest.mark.parametrize("kind", ["two", "number"])
def test_effects_are_means_of_predictions(tmp_path: Path, kind: Any) -> None:
    run = open_run(made_run(tmp_path, kind).path)
    size, color = rules.effects(run, ["size", "color"])
    assert (size.kind, color.kind) == ("number", "category")
    data: Any = run.data()
    from htaf.training.runs.data import table_rows

    rows = data.features.iloc[table_rows(run, data).test]
    assert size.rows == len(rows) <= CURVES
    name = "prediction" if kind == "number" else "probability_yes"
    for effect, places in ((size, (0, 9, -1)), (color, (0, 3))):
        for place in places:
            point = effect.points[place]
            mean = run.predict(rows.assign(**{effect.column: point.value}))[name].mean()
            assert point.mean[-1] == pytest.approx(mean, rel=1e-4)
    assert [point.value for point in size.points] == sorted(point.value for point in size.points)
    assert {point.value for point in color.points} == set(table(kind)["color"])


def test_a_flag_has_one_value_and_none(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"x": rng.normal(size=400), "flag": np.where(rng.random(400) < 0.4, 1.0, np.nan)})
    frame["y"] = frame["x"] + 3 * frame["flag"].fillna(0)
    frame.to_csv(tmp_path / "flag.csv", index=False)
    data = load(tmp_path / "flag.csv", target="y")
    run = fit(QUICK.replace(epochs=3), data, tmp_path / "run", running=Running("cpu"))
    (effect,) = rules.effects(run, ["flag"], data)
    assert [point.label for point in effect.points] == ["1", "missing"]
    assert sum(point.share for point in effect.points) == pytest.approx(1)
    assert effect.points[0].mean[0] > effect.points[1].mean[0]
    found = write_report(run, data, baselines=False)
    assert found["effects"]["columns"]
    assert ">missing</text>" in (run.path / "report.html").read_text("utf-8")
