"""Leaves of boosted trees as hidden units: from the trees to a run and its files."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import htaf
from htaf.data.tabular import from_frame
from htaf.models.build import build
from htaf.models.mlp import MLP, Leaves, LeavesByWords
from htaf.program.export import onnx_network, to_onnx
from htaf.tables.inspection import reasons
from htaf.training import boosting
from htaf.training.boosting import Ands, Rows, as_bits, boosted, grown
from htaf.training.families import ready_recipe
from htaf.training.problems import problem
from htaf.training.runs import forward
from quick import slow_but

QUICK = {"hidden": (8,), "epochs": 2}


def bits_of(rows: Rows) -> torch.Tensor:
    """As a thermometer gives them."""
    return torch.from_numpy(rows.bits())


def placed(found: Ands) -> Leaves:
    made = Leaves(found.weight.shape[1], 1, len(found.value))
    made.place(*(torch.from_numpy(part).float() for part in (found.weight, found.needed, found.value)))
    return made.double()


def crossed(rows: int, classes: int, seed: int = 0) -> Rows:
    """Rows whose target is by two columns together; a third column is constant."""
    rng, counts = np.random.default_rng(seed), (5, 0, 9)
    codes = np.stack([rng.integers(0, n + 1, rows) for n in counts], 1)
    hit = (codes[:, 0] > 2) ^ (codes[:, 2] > 4)
    y = hit * 1 + (classes == 3) * (codes[:, 2] > 7) if classes else hit + rng.normal(0, 0.1, rows)
    return Rows(codes, counts, y, classes, np.ones(rows), np.zeros((rows, max(1, classes - (classes == 2)))))


@given(st.integers(0, 2**31), st.sampled_from([1, 7, 8, 300]))
def test_words_are_the_leaves(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.choice([-1, 0, 0, 1], (9, 6))
    leaves, bits = Leaves(6, 9, 2), torch.from_numpy(rng.integers(0, 2, (rows, 6))).float()
    parts = weight, (weight > 0).sum(1), rng.integers(-9, 9, (2, 9))
    leaves.place(*(torch.from_numpy(part).float() for part in parts))
    assert torch.equal(LeavesByWords(leaves)(bits), leaves(bits))


@given(st.integers(0, 2**31), st.integers(1, 3))
def test_leaves_are_the_tree(seed: int, outputs: int) -> None:
    rows, rng = crossed(60, 0, seed), np.random.default_rng(seed)
    slope, curve = rng.normal(size=(60, outputs)), rng.random((60, outputs))
    tree = grown(rows.codes, slope, curve, np.array(rows.counts) + 1, np.array([0, 2]), boosting.LEAST)
    paths = tree.paths()
    found = as_bits(paths, rows.first, outputs)
    bits, made = bits_of(rows), placed(found)
    with torch.no_grad():
        torch.testing.assert_close(made(bits.double()), torch.from_numpy(tree.of(rows.codes)))
    with torch.no_grad():
        on = made.step(made.linear(bits.double()))
    assert bool((on.sum(1) == 1).all())  # every row is in one leaf
    reached = bits @ torch.from_numpy(found.weight).T
    assert bool((reached <= torch.from_numpy(found.needed)).all())  # half a bit on either side of the step


@pytest.mark.parametrize("classes", slow_but([0, 2, 3], 2))
def test_trees_learn_what_is_in_two_columns_together(classes: int) -> None:
    rows, seen, other = (crossed(count, classes, count) for count in (600, 200, 300))
    found = boosted(rows, seen, 500, 0)
    with torch.no_grad():
        said = placed(found)(bits_of(other).double()).numpy()
    assert other.losses(other.start + said).mean() < 0.2 * other.losses(other.start).mean()
    few, again = (boosted(rows, seen, 20, 0) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(vars(few).values(), vars(again).values(), strict=True))
    assert 0 < len(few.needed) <= 20
    assert len(boosted(rows, seen, 1, 0).needed) == 0  # not even one tree


@pytest.mark.parametrize("classes", slow_but([0, 3], 0))
def test_a_row_of_weight_two_is_two_rows(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosting, "LEAST", 1)
    rows, seen, twice = crossed(200, classes), crossed(100, classes, 1), np.arange(200) < 80
    weighted, repeated = replace(rows, weights=1.0 + twice), rows.some(np.repeat(np.arange(200), 1 + twice))
    assert weighted.losses(rows.start + 0.1).sum() == pytest.approx(repeated.losses(repeated.start + 0.1).sum())
    one, other = (boosted(of, seen, 60, 0) for of in (weighted, repeated))
    bits, plain = bits_of(seen).double(), boosted(rows, seen, 60, 0)
    with torch.no_grad():
        torch.testing.assert_close(placed(one)(bits), placed(other)(bits))
        assert not torch.allclose(placed(plain)(bits), placed(one)(bits))


def test_many_columns_stay_within_memory() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2, (300, 10_000)).astype(np.int16)
    y = codes[:, 0] + rng.normal(0, 0.1, 300)
    rows = Rows(codes, (1,) * 10_000, y, 0, np.ones(300), np.zeros((300, 1)))
    tracemalloc.start()
    found = boosted(rows, rows, 64, 0)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found.needed) > 0
    assert most < 150e6


def made(rows: int = 500, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """A target by two columns together, which no line has."""
    rng = np.random.default_rng(seed)
    x = pd.DataFrame({name: rng.random(rows) for name in "abc"})
    return x, ((x["a"] > 0.4) ^ (x["b"] > 0.6)).to_numpy() + x["c"].to_numpy() + rng.normal(0, 0.05, rows)


@pytest.fixture(scope="module")
def regressor() -> htaf.HtafRegressor:
    return htaf.HtafRegressor(**QUICK).fit(*made())


def test_a_run_holds_the_leaves(regressor: htaf.HtafRegressor, tmp_path: Path) -> None:
    x, y = made(300, 1)
    run, net = regressor.run_, regressor.run_.model()
    assert isinstance(net, MLP)
    assert net.leaves is not None
    assert run.record["model"]["leaves"] == net.leaves.count <= 4096
    assert {*net.leaves.linear.weight.unique().tolist()} == {-1.0, 0.0, 1.0}  # no step of the training moved them
    error = np.sqrt(np.mean((regressor.predict(x) - y) ** 2))
    assert error < 0.25
    without = htaf.HtafRegressor(**QUICK, recipe={"leaves": 0}).fit(*made())
    assert error < 0.6 * np.sqrt(np.mean((without.predict(x) - y) ** 2))
    assert "leaves" not in without.run_.record["model"]
    again = htaf.HtafRegressor(**QUICK).fit(*made())
    np.testing.assert_array_equal(again.predict(x), regressor.predict(x))
    np.testing.assert_array_equal(htaf.load(regressor.save(tmp_path / "run")).predict(x), regressor.predict(x))


def test_files_reasons_and_importance_have_the_leaves(regressor: htaf.HtafRegressor, tmp_path: Path) -> None:
    x, y = made()
    run, net = regressor.run_, regressor.run_.model()
    inputs = torch.from_numpy(regressor._preprocessor.transform(x))
    outputs = forward(net, inputs)
    torch.testing.assert_close(htaf.pack(net, inputs)(inputs), outputs, rtol=1e-4, atol=1e-5)
    to_onnx(net, inputs[:2], tmp_path / "net.onnx")
    torch.testing.assert_close(onnx_network(tmp_path / "net.onnx")(inputs), outputs, rtol=1e-4, atol=1e-5)
    found = reasons(run, x[:1], x.assign(target=y))
    assert found.decision == pytest.approx(regressor.predict(x[:1])[0], abs=1e-4)


@pytest.mark.parametrize("classes", [2, 3])
def test_classes_with_weights(classes: int) -> None:
    x, y = made()
    labels = np.digitize(y, [0.8] if classes == 2 else [0.6, 1.2])
    model = htaf.HtafClassifier(**QUICK).fit(x, labels, sample_weight=np.linspace(0.5, 1.5, len(x)))
    other, y = made(300, 1)
    assert model.score(other, np.digitize(y, [0.8] if classes == 2 else [0.6, 1.2])) > 0.9


def test_a_table_that_needs_none_has_none(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"a": rng.random(120)})
    model = htaf.HtafRegressor(**QUICK).fit(x, rng.normal(size=120))
    saved = htaf.load(model.save(tmp_path / "run"))
    assert saved.run_.record["model"]["leaves"] == getattr(saved.run_.model().leaves, "count", 0)
    np.testing.assert_array_equal(saved.predict(x), model.predict(x))
    with pytest.raises(ValueError, match="leaves must be 0 or lie in 16 to 65,536, got 1"):
        htaf.HtafRegressor(**QUICK, recipe={"leaves": 1}).fit(*made(100))


def test_whole_numbers_that_repeat_have_a_threshold_for_each_value() -> None:
    rng, rows = np.random.default_rng(0), 1000
    firm, year = rng.integers(0, 100, rows) * 7, rng.integers(1990, 1999, rows)
    x = pd.DataFrame({"firm": firm, "year": year, "size": rng.random(rows), "id": rng.permutation(rows)})
    model = htaf.HtafRegressor(**QUICK).fit(x, rng.normal(size=100)[firm // 7])
    assert model.run_.record["model"]["thresholds"] == [99, 8, 48, 48]
    pixels = pd.DataFrame(rng.integers(0, 100, (rows, 12))).add_prefix("p")
    model = htaf.HtafRegressor(**QUICK).fit(pixels, rng.normal(size=rows))
    assert model.run_.record["model"]["thresholds"] == [48] * 12


def test_weights_on_a_grid() -> None:
    x, y = made()
    model = htaf.HtafRegressor(**QUICK, recipe={"weights": "int8"}).fit(x, y)
    assert np.sqrt(np.mean((model.predict(x) - y) ** 2)) < 0.25


def test_leaves_need_a_thermometer() -> None:
    recipe = ready_recipe("mlp", "tabular-residual").replace(thresholds=0)
    assert "leaves" not in recipe.model({"in_features": 2, "levels": [4, 4], "discrete": []}, 1)
    with pytest.raises(ValueError, match="thresholds 0 does not read leaves"):
        recipe.refuse_unread(["leaves"])
    with pytest.raises(ValueError, match="leaves must be 0 without a thermometer, got 3"):
        MLP(2, 1, (4,), leaves=3)


def test_leaves_are_found_again_in_a_network_of_their_number() -> None:
    """As where the processes that trained it held a share of it each."""
    x, y = made()
    x = x.assign(**{name: np.random.default_rng(1).permutation(x["c"]) for name in "defgh"})  # trees see some of them
    recipe = ready_recipe("mlp", "tabular-residual").replace(hidden=(8,))
    posed = problem(recipe, from_frame(x, y, task="regression"), 0, "random")
    described, found = recipe.model(posed.inputs, 1), []
    for _ in range(2):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            net = build(described)
            recipe.network.initialise(net, posed)
        described |= recipe.network.sizes(net)
        assert isinstance(net, MLP)
        assert net.leaves is not None
        found.append(net.leaves.linear.weight)
    assert torch.equal(*found)
    assert described["leaves"] == len(found[0]) < 4096
