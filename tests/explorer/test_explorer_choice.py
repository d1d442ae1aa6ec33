"""Which images are shown: all where they fit; else half at random, then misclassified ones, over all classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htaf.concepts.codes import Codes, codes_of
from htaf.explorer.choice import chosen_rows, counterfactuals_of
from made_pages import made_codes


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
    wrong = (labels >= 0) & (codes.exact != labels)
    rows, drawn = chosen_rows(codes, "test", most)
    assert (np.diff(rows) > 0).all()
    assert len(rows) == len(drawn) == min(images, most)
    if most < images:
        random = rows[drawn]
        assert len(random) == most - most // 2
        missed = int(wrong.sum() - wrong[random].sum())
        room = most // 2
        assert wrong[rows[~drawn]].sum() == max(min(missed, room), room - int((~wrong).sum() - (~wrong)[random].sum()))
        kept = np.bincount(labels[random] + 1, minlength=classes + 1)
        whole = np.bincount(labels + 1, minlength=classes + 1)
        assert kept[kept < whole].min(initial=most) >= kept.max() - 1, "evenly over the classes"
    else:
        assert drawn.all()
    for one, again in zip((rows, drawn), chosen_rows(codes, "test", most), strict=True):
        np.testing.assert_array_equal(one, again)


@settings(deadline=None)
@given(st.integers(2, 60), st.integers(1, 59), st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_random_images_know_nothing_of_the_predictions(images: int, most: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(-1, classes, images)
    chosen = []
    for share in (0.0, 0.5, 1.0):
        rows, drawn = chosen_rows(of_labels(labels, rng.random(images) < share, classes), "test", most)
        chosen.append(rows[drawn].tolist())
    assert chosen[0] == chosen[1] == chosen[2]


def test_time_is_kept_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second for each question: bounds of four, no time for proofs."""
    from htaf.explorer import choice

    shown = made_codes(400).part("test")
    now, asked, done = [0.0], [], []

    def slow(codes: Codes, row: int, *, time_limit: float):
        now[0] += 1
        asked.append(time_limit)
        return real(codes, row, time_limit=time_limit)

    real = choice.counterfactual
    monkeypatch.setattr(choice.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(choice, "counterfactual", slow)
    found, wrong = counterfactuals_of(shown, 4.0, advance=done.append)
    assert (len(found), asked) == (4, [0] * 4)
    assert wrong == ((shown.labels >= 0) & (shown.labels != shown.exact)).sum() > 4
    asked.clear()
    found, wrong = counterfactuals_of(shown, 1e9, advance=done.append)
    assert len(found) == wrong
    assert all(one["proven"] for one in found.values())
    assert set(asked) <= {0, 2.0}
