"""The minimal concept set: planted answers, scikit-learn's own fit, and that the test part chooses nothing."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from htaf.concepts import heads
from htaf.concepts.codes import Codes, ConceptError, codes_of
from htaf.concepts.heads import Fit, Head, accuracy_of, refitted, selected
from htaf.concepts.minimal import minimal_set
from htaf.runs import to_json


def parts_of(*sizes: int) -> np.ndarray:
    return np.repeat(np.arange(len(sizes), dtype=np.uint8), sizes)


def planted(seed: int = 0, noise: float = 0.0, extra: int = 20) -> Codes:
    """Eight classes told by concepts 0, 1, 2 alone (mixed among noise, copies, complements and dead bits)."""
    r = np.random.default_rng(seed)
    n = 1500
    labels = r.integers(0, 8, n)
    told = (labels[:, None] >> np.arange(3)) & 1
    told ^= r.random((n, 3)) < noise
    junk = r.random((n, extra)) < r.random(extra)
    dead = np.stack([np.ones(n), np.zeros(n)], 1)
    bits = np.concatenate([told, junk, told, 1 - told, dead], 1).astype(bool)
    weight = np.zeros((8, bits.shape[1]))
    for j in range(3):  # spread over the three that say the same
        sign = np.where(np.arange(8) >> j & 1, 2.0, -2.0)
        weight[:, j] = 1.5 * sign
        weight[:, 3 + extra + j] = sign
        weight[:, 6 + extra + j] = -sign
    bias = -weight.sum(1) / 2
    weight += r.normal(0, 0.05, weight.shape)
    return codes_of(bits, labels, weight, bias, parts=parts_of(750, 350, 400))


def test_planted_concepts_are_found() -> None:
    codes = planted()
    result = minimal_set(codes)
    json.loads(to_json(result))
    assert result["needed"] == 3
    saying = [{j, 23 + j, 26 + j} for j in range(3)]  # one of each, whichever
    assert all(len(group & set(result["kept"])) == 1 for group in saying)
    assert result["head"] == "refitted"
    assert result["accuracy"]["full"] == {"validation": 1, "test": 1}
    assert result["accuracy"]["chosen"] == {"validation": 1, "test": 1}
    assert result["removed"] == {"dead": 2, "redundant": 6}
    assert result["same_head"]["needed"] >= 3
    assert all(k is not None and k >= 3 for k in result["random"])
    assert set(result["curve"]) >= {"23", "3", "2", "1", "0"}
    assert result["curve"]["2"] < 0.9


def test_what_is_returned_reproduces_its_accuracy() -> None:
    codes = planted(noise=0.1)
    result = minimal_set(codes, tolerance=1)
    kept = result["kept"]
    for name, part in (("validation", 1), ("test", 2)):
        rows = np.flatnonzero(codes.parts == part)
        values = codes.unpack(rows)
        logits = values[:, kept] @ np.array(result["weight"]).T + result["bias"]
        assert result["accuracy"]["chosen"][name] == pytest.approx(np.mean(logits.argmax(1) == codes.labels[rows]))
        means = codes.unpack(np.flatnonzero(codes.parts == 0)).mean(0)
        mixed = np.tile(means, (len(rows), 1))
        mixed[:, kept] = values[:, kept]
        old = mixed @ codes.weight.T.astype(float) + codes.bias
        assert result["accuracy"]["kept"][name] == pytest.approx(np.mean(old.argmax(1) == codes.labels[rows]))
        full = codes.logits(rows)
        assert result["accuracy"]["full"][name] == pytest.approx(np.mean(full.argmax(1) == codes.labels[rows]))
    assert result["target"] == pytest.approx(result["accuracy"]["full"]["validation"] - 0.01)
    assert result["accuracy"]["chosen"]["validation"] >= result["target"] - 1e-9
    assert result["needed"] == min(int(k) for k, a in result["curve"].items() if a >= result["target"] - 1e-9)
    assert result["curve"][str(result["needed"])] == result["accuracy"]["chosen"]["validation"]


def test_at_the_border_concepts_go_one_by_one() -> None:
    r = np.random.default_rng(0)  # 60 weak witnesses: steps of 10% are of several concepts
    labels = r.integers(0, 2, 1800)
    bits = labels[:, None] ^ (r.random((1800, 60)) < 0.4)
    weight = np.stack([-np.ones(60), np.ones(60)])
    result = minimal_set(codes_of(bits, labels, weight, np.array([60.0, 0.0]), parts=parts_of(600, 600, 600)), seeds=0)
    assert 20 < result["needed"] < 60
    assert result["curve"][str(result["needed"] - 1)] < result["target"]  # it was tried


def test_the_test_part_chooses_nothing() -> None:
    codes = planted(noise=0.1)
    r = np.random.default_rng(0)
    rows = np.flatnonzero(codes.parts == 2)
    bits, labels = codes.bits.copy(), codes.labels.copy()
    bits[rows] = bits[r.permutation(rows)]
    labels[rows] = r.integers(0, 8, len(rows))
    a, b = minimal_set(codes), minimal_set(replace(codes, bits=bits, labels=labels))
    for result in (a, b):
        for row in result["accuracy"].values():
            row.pop("test")
    assert a == b


def test_a_wider_tolerance_needs_no_more() -> None:
    codes = planted(noise=0.1)
    sizes = [minimal_set(codes, tolerance=t, seeds=0)["needed"] for t in (0, 0.5, 5, 100)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 0


def test_where_no_refitted_head_reaches_the_target_the_old_one_stays() -> None:
    codes = planted(noise=0.05)
    rows = np.flatnonzero(codes.parts == 0)
    labels = codes.labels.copy()
    labels[rows] = np.random.default_rng(0).permutation(labels[rows])  # nothing to learn from
    result = minimal_set(replace(codes, labels=labels))
    assert result["head"] == "same"
    assert result["needed"] == result["same_head"]["needed"]
    assert result["random"] == [None] * 3
    assert result["accuracy"]["chosen"] == result["accuracy"]["kept"]
    assert result["accuracy"]["chosen"]["validation"] >= result["target"] - 1e-9
    curve = result["same_head"]["curve"]
    assert all(a < result["target"] - 1e-9 for a in curve[: result["needed"]])
    assert curve[-1] == result["accuracy"]["full"]["validation"]


def test_the_old_head_wins_where_it_needs_fewer() -> None:
    # concept 0 tells the class, except on the training part, where only the majority of the other three does
    r = np.random.default_rng(0)
    three = r.random((3000, 3)) < 0.5
    labels = (three.sum(1) >= 2).astype(np.int32)
    parts = parts_of(1000, 1000, 1000)
    first = np.where(parts == 0, r.random(3000) < 0.5, labels)
    weight = np.array([[0.0] * 4, [4.0, 1.0, 1.0, 1.0]])
    codes = codes_of(np.column_stack([first, three]).astype(bool), labels, weight, np.array([4.5, 0.0]), parts=parts)
    result = minimal_set(codes, seeds=0)
    assert result["curve"]["3"] == 1  # the three, refitted
    assert (result["needed"], result["kept"], result["head"]) == (1, [0], "same")
    assert result["accuracy"]["chosen"] == {"validation": 1, "test": 1}


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(1, 12))
def test_a_head_is_scikit_learns(seed: int, classes: int, concepts: int) -> None:
    r = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), r.integers(0, classes, 200)])
    bits = r.random((len(labels), concepts)) < r.random((concepts, classes))[:, labels].T
    codes = codes_of(bits, labels, np.zeros((classes, concepts)), np.zeros(classes))
    small = refitted(codes, np.arange(concepts), strength=1e-2)
    model = LogisticRegression(C=1 / (1e-2 * len(labels)), tol=1e-8, max_iter=2000).fit(bits.astype(float), labels)
    logits = small.logits()
    probability = np.exp(logits - logits.max(1, keepdims=True))
    probability /= probability.sum(1, keepdims=True)
    np.testing.assert_allclose(probability, model.predict_proba(bits.astype(float)), atol=0.01)


def test_a_warm_start_changes_little() -> None:
    codes = planted(noise=0.1).part("train")
    fit = Fit(codes, codes.unpack().mean(0), 10**6, 0)
    every = np.arange(23)
    head = fit.head(every, 1e-2)
    kept, warm = fit.without(every, head, 18, 1e-2)
    cold = fit.head(kept, 1e-2)
    np.testing.assert_allclose(warm.weight, cold.weight, atol=0.02)
    assert {0, 1, 2} <= set(kept.tolist())


def test_refitted_keeps_bits_in_the_order_asked_for() -> None:
    codes = planted(noise=0.1)
    kept = [5, 0, 17, 2, 25, 3, 9, 11, 30]
    before = codes.exact.copy()
    small = refitted(codes, kept)
    np.testing.assert_array_equal(codes.exact, before)  # left alone
    assert (small.concepts, small.weight.shape) == (9, (8, 9))
    np.testing.assert_array_equal(small.unpack(), codes.unpack()[:, kept])
    np.testing.assert_array_equal(small.exact, small.logits().argmax(1))
    assert small.info["kept"] == kept
    assert (small.smooth == -1).all()
    assert (small.saturated == -1).all()
    assert len(small.ids) == len(codes)


def test_a_class_without_training_images_is_never_predicted() -> None:
    codes = planted()
    labels = np.where((codes.parts == 0) & (codes.labels == 5), -1, codes.labels).astype(np.int32)
    small = refitted(replace(codes, labels=labels), [0, 1, 2], strength=1e-6)
    every = np.array(list(np.ndindex(2, 2, 2))) @ small.weight.T + small.bias
    assert sorted(set(every.argmax(1).tolist())) == [0, 1, 2, 3, 4, 6, 7]
    assert (every[:, 5] < np.delete(every, 5, axis=1).min(1)).all()  # the last of all, for any bits
    one = np.where(codes.labels == 3, 3, -1).astype(np.int32)
    assert (refitted(replace(codes, labels=one), [0, 1, 2]).exact == 3).all()
    assert (refitted(replace(codes, labels=one), []).exact == 3).all()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 70), st.integers(0, 5))
def test_a_subsample_is_even_over_classes(labels: list[int], cap: int, seed: int) -> None:
    of = np.array(labels, dtype=np.int32)
    rows = heads.balanced_rows(of, cap, seed)
    assert len(rows) == min(cap, len(of))
    assert (np.diff(rows) > 0).all()
    taken, there = np.bincount(of[rows], minlength=5), np.bincount(of, minlength=5)
    for k in range(5):  # a class has fewer than another by more than one only where it has no more
        assert taken[k] >= min(there[k], taken.max() - 1)


def test_a_capped_training_part_is_noted() -> None:
    result = minimal_set(planted(noise=0.05), cap=400)
    assert (result["fitted_images"], result["train_images"]) == (400, 750)
    assert result == minimal_set(planted(noise=0.05), cap=400)


def test_progress_is_told() -> None:
    seen: list[tuple[int, float]] = []
    result = minimal_set(planted(), seeds=0, progress=lambda k, accuracy: seen.append((k, accuracy)))
    assert {str(k): accuracy for k, accuracy in seen} == result["curve"]


@pytest.mark.parametrize("concepts", [1, 2])
def test_few_concepts_two_classes(concepts: int) -> None:
    labels = np.arange(90) % 2
    bits = np.repeat(labels[:, None], concepts, 1).astype(bool)
    weight = np.array([[-1.0] * concepts, [1.0] * concepts])
    codes = codes_of(bits, labels, weight, np.array([0.5, 0]), parts=parts_of(30, 30, 30))
    result = minimal_set(codes)
    assert (result["needed"], result["accuracy"]["chosen"]["test"]) == (1, 1)


def test_all_dead() -> None:
    codes = replace(planted(), bits=np.zeros((1500, 4), dtype=np.uint8))
    result = minimal_set(replace(codes, concepts=31))
    assert (result["needed"], result["kept"], result["removed"]["dead"]) == (0, [], 31)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"tolerance": -1}, "tolerance"),
        ({"tolerance": float("nan")}, "a finite tolerance"),
        ({"tolerance": float("inf")}, "a finite tolerance"),
        ({"seeds": -1}, "seeds"),
        ({"cap": 0}, "cap must be >= 1"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ConceptError, match=match):
        minimal_set(planted(), **arguments)


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_a_missing_part_is_an_error(part: str) -> None:
    codes = planted()
    number = ["train", "validation", "test"].index(part)
    with pytest.raises(ConceptError, match=f"labelled images of the part '{part}'"):
        minimal_set(codes.take(np.flatnonzero(codes.parts != number)))


def test_bad_sets() -> None:
    codes = planted()
    for kept in ([0, 0], [31], [-1]):
        with pytest.raises(ConceptError, match="different concept numbers"):
            refitted(codes, kept)
    for strength in (0, float("nan"), float("inf")):
        with pytest.raises(ConceptError, match="strength must be > 0 and finite"):
            refitted(codes, [0], strength=strength)
    with pytest.raises(ConceptError, match="expected a head of weight"):
        selected(codes, [0, 1], Head(np.zeros((8, 3)), np.zeros(8)))


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = planted(noise=0.1)
    head = Head(codes.weight.astype(float), codes.bias.astype(float))
    whole, small = accuracy_of(codes, np.arange(31), head), selected(codes, np.arange(31), head)
    monkeypatch.setattr(heads, "CHUNK", 13)
    assert accuracy_of(codes, np.arange(31), head) == whole
    again = selected(codes, np.arange(31), head)
    np.testing.assert_array_equal(again.bits, small.bits)
    np.testing.assert_array_equal(again.exact, small.exact)
    np.testing.assert_array_equal(small.exact, codes.exact)
