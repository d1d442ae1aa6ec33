"""NEC, NCC and completeness: the definitions restated one decision, one image and one concept at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htaf.concepts import heads as module
from htaf.concepts.codes import Codes, ConceptError, codes_of
from htaf.concepts.heads import accuracies, by_importance, completeness, contributing, effective, sparsity


def slowly(weight: np.ndarray, inputs: np.ndarray, coverage: float) -> list[list[int]]:
    counts = []
    for row in inputs:
        counts.append([])
        for line in weight:
            added = sorted((abs(float(w) * float(x)) for w, x in zip(line, row, strict=True)), reverse=True)
            wanted, needed = coverage * sum(added), 0
            while sum(added[:needed]) < wanted - 1e-7 * sum(added):
                needed += 1
            counts[-1].append(needed)
    return counts


def test_worked_examples() -> None:
    weight = np.array([[1.0, 0, -0.5], [0, 0.3, 0]])
    assert effective(weight) == 1.5
    # class 0: 1 of 1.5 is below 95%, so two; class 1: one
    assert contributing(weight, np.ones((1, 3))) == {"classes": 1.5, "predicted": 2.0}
    assert contributing(weight, np.ones((1, 3)), coverage=0.6) == {"classes": 1.0, "predicted": 1.0}
    assert contributing(weight, np.ones((1, 3)), np.array([0, 9.0]))["predicted"] == 1.0
    assert contributing(weight, np.zeros((2, 3))) == {"classes": 0.0, "predicted": 0.0}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 9), st.sampled_from([0.3, 0.8, 0.95, 1.0]))
def test_each_decision_by_hand(seed: int, classes: int, concepts: int, coverage: float) -> None:
    r = np.random.default_rng(seed)
    weight = r.normal(size=(classes, concepts)) * (r.random((classes, concepts)) < 0.7)
    inputs = r.normal(size=(7, concepts))
    counts = np.array(slowly(weight, inputs, coverage))
    found = contributing(weight, inputs, coverage=coverage)
    assert found["classes"] == pytest.approx(counts.mean())
    assert found["predicted"] == pytest.approx(counts[np.arange(7), (inputs @ weight.T).argmax(1)].mean())
    if coverage == 1:
        assert found["classes"] == pytest.approx(effective(weight))


def test_equal_contributions_need_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CELLS", 1)  # an image at a time
    for size in (10, 20, 100):  # 95% of 20 equal ones are 19, whatever the rounding of their sum
        found = contributing(np.full((2, size), 0.1), np.full((3, size), 0.7))
        assert found["classes"] == int(np.ceil(0.95 * size - 1e-9))


def test_of_codes_means_are_taken_off() -> None:
    r = np.random.default_rng(0)
    bits, weight, bias = r.random((50, 6)) < 0.4, r.normal(size=(3, 6)), r.normal(size=3)
    weight[0, :4] = 0
    codes = codes_of(bits, r.integers(0, 3, 50), weight, bias)
    means = bits.mean(0)
    found = sparsity(codes, means)
    assert found["nec"] == pytest.approx((2 + 6 + 6) / 3)
    weight = codes.weight.astype(np.float64)
    counts = np.array(slowly(weight, bits - means, 0.95))
    assert found["ncc"] == pytest.approx(counts.mean())
    assert found["ncc_predicted"] == pytest.approx(counts[np.arange(50), codes.exact].mean())
    assert sparsity(codes, means, most=7)["images"] == 7


def test_bad_input_is_refused() -> None:
    for coverage in (0.0, 1.1, float("nan")):
        with pytest.raises(ConceptError, match="coverage must be"):
            contributing(np.ones((2, 3)), np.ones((1, 3)), coverage=coverage)
    with pytest.raises(ConceptError, match="expected images"):
        contributing(np.ones((2, 3)), np.ones((0, 3)))


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


def test_a_dead_concept_comes_last_and_ties_go_by_number() -> None:
    weight, rates = np.array([[9.0, 1.0, 1.0], [-9.0, -1.0, -1.0]]), np.array([1.0, 0.5, 0.5])
    assert by_importance(weight, rates).tolist() == [1, 2, 0]


def test_enough_is_the_first_k_after_which_accuracy_stays_near() -> None:
    # bit 0 tells the class; bit 1 is noise that the head overrates against it; bits 2 and 3 mend that
    r = np.random.default_rng(0)
    truth, noise = r.random(400) < 0.5, r.random(400) < 0.5
    bits = np.stack([truth, noise, noise], 1)
    weight = np.array([[0.0, 0.0, 0.0], [3.0, 2.9, -2.0]])
    codes = codes_of(bits, truth.astype(int), weight, np.array([1.5 + 0.45, 0.0]))
    result = completeness(codes, bits.mean(0))
    curve = result["accuracy"]
    assert curve[1] == 1
    assert result["enough"] == 1
    bad = completeness(codes_of(bits, truth.astype(int), weight * [1, 2, 3], np.array([1.5, 0.0])), bits.mean(0))
    assert bad["k"] == [0, 1, 2, 3]
    for found in (result, bad):
        curve, enough = np.array(found["accuracy"]), found["enough"]
        assert (curve[enough:] >= curve[-1] - 0.005).all()
        assert enough == 0 or curve[enough - 1] < curve[-1] - 0.005


def test_the_cost_of_many_images_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ", 50 * 20)
    assert len(completeness(some(concepts=200), np.full(200, 0.5))["k"]) <= 21
    monkeypatch.setattr(module, "READ", 1)
    assert completeness(some(concepts=200), np.full(200, 0.5))["k"] == [0, 1, 200]
