"""Completeness against the formula, one image and one concept at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import htaf.concepts.completeness as module
from htaf.concepts.codes import Codes, ConceptError, codes_of
from htaf.concepts.completeness import accuracies, by_importance, completeness


def some(seed: int = 0, n: int = 50, concepts: int = 11, classes: int = 3) -> Codes:
    r = np.random.default_rng(seed)
    bits = r.random((n, concepts)) < r.random(concepts)
    return codes_of(bits, r.integers(0, classes, n), r.normal(size=(classes, concepts)), r.normal(size=classes))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 20), st.integers(1, 5))
def test_accuracies_are_those_of_means_in_the_place_of_concepts(seed: int, n: int, concepts: int, classes: int) -> None:
    codes = some(seed, n, concepts, classes)
    r = np.random.default_rng(seed)
    order, means = r.permutation(concepts), r.random(concepts)
    found = accuracies(codes, order, means, np.arange(concepts + 1))
    for k in range(concepts + 1):
        values = codes.unpack().astype(float)
        values[:, order[k:]] = means[order[k:]]
        predicted = (values @ codes.weight.T.astype(float) + codes.bias).argmax(1)
        assert found[k] == pytest.approx(np.mean(predicted == codes.labels))
    assert found[-1] == pytest.approx(np.mean(codes.exact == codes.labels))


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, means = some(n=100), np.full(11, 0.4)
    whole = completeness(codes, means)
    monkeypatch.setattr(module, "CHUNK", 7)
    assert completeness(codes, means) == whole


def test_the_order_ignores_what_changes_no_prediction() -> None:
    codes = some()
    rates = codes.unpack().mean(0)
    shift = np.random.default_rng(1).normal(size=11) * 100  # the same for every class
    np.testing.assert_array_equal(by_importance(codes.weight, rates), by_importance(codes.weight + shift, rates))
    spread = [np.std([codes.weight[k, j] for k in range(3)]) * np.std(codes.unpack()[:, j]) for j in range(11)]
    assert by_importance(codes.weight, rates).tolist() == np.argsort(spread)[::-1].tolist()
    largest = [max(abs(w) for w in codes.weight[:, j]) for j in range(11)]
    assert by_importance(codes.weight, rates, "weight").tolist() == np.argsort(largest)[::-1].tolist()


def test_a_dead_concept_comes_last_and_ties_go_by_number() -> None:
    weight, rates = np.array([[9.0, 1.0, 1.0], [-9.0, -1.0, -1.0]]), np.array([1.0, 0.5, 0.5])
    assert by_importance(weight, rates).tolist() == [1, 2, 0]
    assert by_importance(weight, rates, "weight").tolist() == [0, 1, 2]


def test_enough_is_the_first_k_after_which_accuracy_stays_near() -> None:
    # bit 0 tells the class; bit 1 is noise that the head overrates against it; bits 2 and 3 mend that
    r = np.random.default_rng(0)
    truth, noise = r.random(400) < 0.5, r.random(400) < 0.5
    bits = np.stack([truth, noise, noise], 1)
    weight = np.array([[0.0, 0.0, 0.0], [3.0, 2.9, -2.0]])
    codes = codes_of(bits, truth.astype(int), weight, np.array([1.5 + 0.45, 0.0]))
    result = completeness(codes, bits.mean(0))
    curve = result["spread"]["accuracy"]
    assert curve[1] == 1
    assert result["spread"]["enough"] == 1
    bad = completeness(codes_of(bits, truth.astype(int), weight * [1, 2, 3], np.array([1.5, 0.0])), bits.mean(0))
    assert bad["k"] == [0, 1, 2, 3]
    for found in (result, bad):
        curve, enough = np.array(found["spread"]["accuracy"]), found["spread"]["enough"]
        assert (curve[enough:] >= curve[-1] - 0.005).all()
        assert enough == 0 or curve[enough - 1] < curve[-1] - 0.005


def test_points() -> None:
    codes = some(concepts=200)
    means = np.full(200, 0.5)
    every, few = completeness(codes, means), completeness(codes, means, points=9)
    assert every["k"] == list(range(201))
    assert few["k"][:2] == [0, 1]
    assert few["k"][-1] == 200
    assert len(few["k"]) <= 10
    assert few["spread"]["accuracy"] == [every["spread"]["accuracy"][k] for k in few["k"]]


def test_the_cost_of_many_images_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ", 50 * 20)
    assert len(completeness(some(concepts=200), np.full(200, 0.5))["k"]) <= 21
    monkeypatch.setattr(module, "READ", 1)
    assert completeness(some(concepts=200), np.full(200, 0.5))["k"] == [0, 1, 200]


def test_bad_arguments() -> None:
    codes, means = some(), np.full(11, 0.5)
    with pytest.raises(ConceptError, match="points >= 1"):
        completeness(codes, means, points=0)
    for within in (-1, float("nan"), float("inf")):
        with pytest.raises(ConceptError, match="a finite within >= 0"):
            completeness(codes, means, within=within)
