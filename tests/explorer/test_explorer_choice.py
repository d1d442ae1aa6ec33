"""Which images are shown: all where they fit; else misclassified ones up to half, spread over the classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htaf.concepts.codes import Codes, codes_of
from htaf.explorer.choice import chosen_rows, flips_of
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
    rows = chosen_rows(codes, "test", most)
    assert (np.diff(rows) > 0).all()
    assert len(rows) == min(images, most)
    if most < images:
        expected = max(min(int(wrong.sum()), most // 2), most - int((~wrong).sum()))
        assert wrong[rows].sum() == expected
    np.testing.assert_array_equal(rows, chosen_rows(codes, "test", most))


def test_rare_classes_are_seen() -> None:
    labels = np.repeat([0, 1, 2, -1], [1000, 10, 3, 50])
    wrong = (np.arange(1063) % 4 == 0) & (labels >= 0)
    rows = chosen_rows(of_labels(labels, wrong, 3), "test", 60)
    right = {label: int((labels[rows][~wrong[rows]] == label).sum()) for label in (-1, 0, 1, 2)}
    missed = {label: int((labels[rows][wrong[rows]] == label).sum()) for label in (0, 1, 2)}
    assert (sum(missed.values()), sum(right.values())) == (30, 30)
    kinds = [(label, flag) for label in (1, 2) for flag in (True, False)]
    all_of = {(label, flag): int(((labels == label) & (wrong == flag)).sum()) for label, flag in kinds}
    assert (missed[1], missed[2]) == (all_of[1, True], all_of[2, True])
    assert (right[1], right[2]) == (all_of[1, False], all_of[2, False])
    assert abs(right[0] - right[-1]) <= 1


def test_other_parts_are_left_out() -> None:
    codes = made_codes()
    np.testing.assert_array_equal(chosen_rows(codes, "validation", 1000), codes.rows("validation"))
    assert len(chosen_rows(codes, "other", 5)) == 0


def test_time_is_kept_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second for each question: bounds of four, no time for proofs."""
    from htaf.explorer import choice

    shown = made_codes(400).part("test")
    now, asked, done = [0.0], [], []

    def slow(codes: Codes, row: int, *, time_limit: float):
        now[0] += 1
        asked.append(time_limit)
        return real(codes, row, time_limit=time_limit)

    real = choice.fewest_flips
    monkeypatch.setattr(choice.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(choice, "fewest_flips", slow)
    found, wrong = flips_of(shown, 4.0, advance=done.append)
    assert (len(found), asked) == (4, [0] * 4)
    assert wrong == ((shown.labels >= 0) & (shown.labels != shown.exact)).sum() > 4
    asked.clear()
    found, wrong = flips_of(shown, 1e9, advance=done.append)
    assert len(found) == wrong
    assert all(one["proven"] for one in found.values())
    assert set(asked) <= {0, 2.0}
