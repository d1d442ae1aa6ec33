"""Which images are shown, orders, relations, typical images, the example: against plain loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from htaf.concepts.codes import Codes, codes_of
from htaf.concepts.counts import proportions
from htaf.concepts.explorer.contents import (
    chosen_rows,
    clustered_order,
    example_row,
    relations,
    sample_images,
    strengths,
    strongest_images,
    typical_images,
)
from made_pages import made_codes


@given(st.integers(0, 30), st.integers(0, 5), st.integers(0, 10))
def test_an_order_is_a_permutation(rows: int, columns: int, seed: int) -> None:
    values = np.random.default_rng(seed).random((rows, columns)).round(1)
    assert sorted(clustered_order(values).tolist()) == list(range(rows))


def test_similar_rows_stand_together() -> None:
    kinds = np.array([0, 1, 2, 0, 2, 1, 0, 1, 2])
    profiles = np.array([[0.0, 0.1], [0.5, 0.6], [1.0, 0.9]])[kinds] + 0.001 * np.arange(9)[:, None]
    profiles[kinds == 0, 1] = np.nan  # counts as 0.5
    order = kinds[clustered_order(profiles)]
    assert (np.diff(order) != 0).sum() == 2


def test_relations_are_correlations() -> None:
    codes = made_codes(300, 9, 4)
    numbers, values = relations(codes, 8)
    known = codes.labels >= 0
    bits, labels = codes.unpack()[known].astype(float), codes.labels[known]
    phi = np.corrcoef(bits.T)
    centred = bits.copy()
    for k in range(4):
        centred[labels == k] -= centred[labels == k].mean(0)
    within = np.corrcoef(centred.T)
    for kind, expected in enumerate((phi, phi, within)):
        for concept in range(9):
            there = numbers[kind, concept] >= 0
            found = numbers[kind, concept][there]
            assert concept not in found
            np.testing.assert_allclose(values[kind, concept][there], expected[concept, found], atol=1e-6)
            sign = -1 if kind == 1 else 1
            wanted = sign * np.delete(expected[concept], concept)
            assert len(found) == (wanted > 1e-9).sum()
            assert np.all(np.diff(sign * expected[concept, found]) <= 1e-9)
            assert np.isnan(values[kind, concept][~there]).all()


def test_typical_images_are_nearest_to_the_shares() -> None:
    codes = made_codes(300)
    shares = proportions(codes.part("train"))
    shown = codes.part("test")
    found = typical_images(shown, shares, 5)
    bits = shown.unpack()
    for k in range(5):
        rows = np.flatnonzero(shown.labels == k)
        far = np.abs(bits[rows] - shares[:, k]).sum(1)
        assert found[k].tolist() == rows[np.argsort(far.round(9), kind="stable")[:5]].tolist()
    shares[:, 2] = np.nan
    assert (typical_images(shown, shares)[2] == -1).all()


def test_samples_have_the_concept() -> None:
    shown = made_codes(200)
    found, bits = sample_images(shown, 6), shown.unpack()
    for concept in range(21):
        rows = found[concept][found[concept] >= 0]
        assert len(set(rows.tolist())) == min(6, int(bits[:, concept].sum()))
        assert bits[rows, concept].all()


def test_strong_and_bare_images_by_margin() -> None:
    rng = np.random.default_rng(0)
    margins = rng.normal(size=(60, 5)).astype(np.float16)
    shown = codes_of(margins > 0, np.zeros(60), np.ones((1, 5)), np.zeros(1))
    found, rows = strongest_images(shown, margins, 4), np.arange(60)
    for concept in range(5):
        values = margins[rows, concept]
        on, off = rows[values > 0], rows[values <= 0]
        assert found[0, concept].tolist() == on[np.argsort(-margins[on, concept], kind="stable")[:4]].tolist()
        assert found[1, concept].tolist() == on[np.argsort(margins[on, concept], kind="stable")[:4]].tolist()
        assert found[2, concept].tolist() == off[np.argsort(-margins[off, concept], kind="stable")[:4]].tolist()


def test_images_are_counted_by_margin() -> None:
    margins = np.random.default_rng(0).normal(size=(80, 5)).astype(np.float16) * np.array(
        [1, 100, 1e-3, 1, 0], np.float16
    )
    margins[:3, 3] = np.array([-5.96e-8, 0, np.nan], np.float16)  # the first is off, the second on
    found, values = strengths(margins), margins.astype(np.float64)
    for concept in range(5):
        top = np.nanmax(np.abs(values[:, concept])) or 1.0
        kept = values[~np.isnan(values[:, concept]), concept]
        assert found[concept].sum() == len(kept)
        assert found[concept, :10].sum() == (kept < 0).sum()
        if concept < 3:
            np.testing.assert_array_equal(found[concept], np.histogram(kept, np.linspace(-top, top, 21))[0])
    assert strengths(margins[:0]).sum() == 0


def test_the_example_is_right_and_explained_by_few() -> None:
    weight = np.array([[1.0, 1, 1, 1], [0, 0, 0, 0]])
    bits = np.array([[1, 1, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]])
    codes = codes_of(bits, [0, 0, 0, 1], weight, np.array([0.0, 0.5]))
    assert codes.exact.tolist() == [0, 0, 1, 0]
    rates = np.array([0.5, 0.5, 0.5, 1.0])
    assert example_row(codes, rates) == 0
    assert example_row(codes.take(np.arange(1, 4)), rates) == 0
    assert example_row(codes_of(bits, [0] * 4, weight[:1], np.zeros(1)), rates) is None


def of_labels(labels: np.ndarray, wrong: np.ndarray, classes: int) -> Codes:
    """One concept a class: the network finds the class of the bit that is set."""
    guess = np.where(wrong, (labels + 1) % classes, np.maximum(labels, 0))
    return codes_of(np.eye(classes)[guess], labels, np.eye(classes), np.zeros(classes), parts="test")


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 80), st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_chosen_rows(images: int, most: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(-1, classes, images)
    codes = of_labels(labels, rng.random(images) < rng.random(), classes)
    rows = chosen_rows(codes, "test", most)
    assert (np.diff(rows) > 0).all()
    assert len(rows) == min(images, most)
    kept, whole = (np.bincount(of + 1, minlength=classes + 1) for of in (labels[rows], labels))
    assert kept[kept < whole].min(initial=most) >= kept.max() - 1, "evenly over the classes"
    np.testing.assert_array_equal(rows, chosen_rows(codes, "test", most))
    right = of_labels(labels, np.zeros(images, bool), classes)
    np.testing.assert_array_equal(rows, chosen_rows(right, "test", most), "whatever is predicted")
