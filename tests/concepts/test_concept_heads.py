"""Logistic heads on some of the concepts: scikit-learn's own fit, absent classes, even samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from htaf.concepts import heads
from htaf.concepts.codes import Codes, ConceptError, codes_of
from htaf.concepts.heads import Fit, Head, accuracy_of


def some(classes: int, concepts: int = 6, n: int = 200) -> Codes:
    r = np.random.default_rng(0)
    labels = np.concatenate([np.arange(classes), r.integers(0, classes, n)])
    bits = r.random((len(labels), concepts)) < r.random((concepts, classes))[:, labels].T
    return codes_of(bits, labels, r.normal(size=(classes, concepts)), np.zeros(classes))


def fitted(codes: Codes, strength: float) -> Head:
    return Fit(codes, codes.unpack().mean(0), 10**6, 0).head(np.arange(codes.concepts), strength)


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_the_head_is_that_of_scikit_learn(classes: int) -> None:
    codes = some(classes)
    head, bits = fitted(codes, 1e-2), codes.unpack().astype(float)
    model = LogisticRegression(C=1 / (1e-2 * len(bits)), tol=1e-8, max_iter=2000).fit(bits, codes.labels)
    logits = bits @ head.weight.T + head.bias
    probability = np.exp(logits - logits.max(1, keepdims=True))
    probability /= probability.sum(1, keepdims=True)
    np.testing.assert_allclose(probability, model.predict_proba(bits), atol=0.01)


def test_the_strength_is_that_of_best_validation_accuracy() -> None:
    codes, every = some(5), np.arange(6)
    fit = Fit(codes, codes.unpack().mean(0), 10**6, 0)
    strength, head = fit.choose(every, codes)
    found = {each: accuracy_of(codes, every, fitted(codes, each)) for each in heads.STRENGTHS}
    assert strength in found
    assert accuracy_of(codes, every, head) >= max(found.values()) - 0.02


@pytest.mark.parametrize("present", [[0, 1, 2, 3], [3]])
def test_a_class_without_training_images_is_never_predicted(present: list[int]) -> None:
    codes = some(5)
    head = fitted(codes.take(np.flatnonzero(np.isin(codes.labels, present))), 1e-6)
    every = np.array(list(np.ndindex(*[2] * 6))) @ head.weight.T + head.bias
    assert set(every.argmax(1).tolist()) <= set(present)


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


def test_bad_cap() -> None:
    with pytest.raises(ConceptError, match="cap must be >= 1"):
        Fit(some(2), np.zeros(6), 0, 0)


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, every = some(5), np.arange(6)
    head = Head(codes.weight.astype(float), codes.bias.astype(float))
    whole = accuracy_of(codes, every, head)
    monkeypatch.setattr(heads, "CHUNK", 13)
    assert accuracy_of(codes, every, head) == whole
