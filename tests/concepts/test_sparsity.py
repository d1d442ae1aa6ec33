"""NEC and NCC: the definitions restated one decision at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htaf.concepts import sparsity as module
from htaf.concepts.codes import ConceptError, codes_of
from htaf.concepts.sparsity import contributing, effective, sparsity


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
