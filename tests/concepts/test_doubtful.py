"""Labels that may be wrong, where it is known which are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from htaf.concepts.codes import Codes, codes_of
from htaf.concepts.doubtful import doubtful
from htaf.concepts.finding import ridge

CLASSES = 4


def clouds(seed: int = 0, each: int = 30) -> tuple[Codes, np.ndarray]:
    """Images in a cloud for each class; a third of them are test images, and the network knows the clouds."""
    rng = np.random.default_rng(seed)
    true = np.repeat(np.arange(CLASSES), each)
    x = 8 * rng.normal(size=(CLASSES, 12))[true] + rng.normal(size=(len(true), 12))
    bits = np.eye(CLASSES)[true]
    parts = (2 * (np.arange(len(true)) % 3 == 2)).astype(np.uint8)
    return codes_of(bits, true, np.eye(CLASSES), np.zeros(CLASSES), parts=parts), x


def labelled(codes: Codes, rows: list[int]) -> Codes:
    labels = codes.labels.copy()
    labels[rows] = (labels[rows] + 1) % CLASSES
    return replace(codes, labels=labels)


def test_wrong_labels_and_copies_are_found_and_nothing_else() -> None:
    codes, x = clouds()
    assert doubtful(codes, x) == ([], 120)
    wrong = labelled(codes, [3, 5, 62])  # of the training, of the test part, of the test part
    x[100] = 1.001 * x[40]
    copied = labelled(wrong, [100])
    copied.labels[100] = 0
    found, compared = doubtful(copied, x)
    assert compared == 120
    assert [(one.kind, one.row, one.like, one.seems) for one in found if one.kind == "copy"] == [("copy", 100, 40, 1)]
    others = {one.row: one.seems for one in found if one.kind == "class"}
    assert others == {3: 0, 5: 0, 62: 2}
    assert all(copied.labels[one.like] == one.seems for one in found)
    assert all(copied.parts[one.like] == 0 for one in found if one.kind == "class")
    unlabelled = replace(copied, labels=np.where(np.isin(np.arange(120), [3, 100]), -1, copied.labels))
    assert {one.row for one in doubtful(unlabelled, x)[0]} == {5, 62}


def test_what_the_network_does_not_say_of_a_held_out_image_is_not_said() -> None:
    codes, x = clouds()
    wrong = labelled(codes, [3, 5])
    agreeing = replace(wrong, exact=wrong.labels)
    assert [one.row for one in doubtful(agreeing, x)[0]] == [3], "a training image it was taught"


def test_nothing_is_said_of_few_images_or_of_bits_that_only_divide_the_classes() -> None:
    codes, x = clouds()
    assert doubtful(codes, None) == ([], 0)
    assert doubtful(codes.take(np.arange(12)), x[:12]) == ([], 0)
    assert doubtful(replace(codes, labels=np.zeros_like(codes.labels)), x) == ([], 0)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(1, 14), st.integers(0, 2**31), st.booleans())
def test_rows_that_are_left_out_have_no_part_in_their_values(half: int, columns: int, seed: int, paired: bool) -> None:
    rng, rows = np.random.default_rng(seed), 2 * half
    z, targets, penalty = rng.normal(size=(rows, columns)), rng.normal(size=(rows, 2)), rng.uniform(0.1, 10)
    z -= z.mean(0)
    together = np.arange(rows).reshape(2, -1).T
    found, weights = ridge(z, targets, penalty, together if paired else None)
    a, fine = np.c_[np.ones(rows), z], np.diag([0.0, *[penalty] * columns])
    whole = np.linalg.solve(a.T @ a + fine, a.T @ targets)
    np.testing.assert_allclose(weights, whole[1:].T, atol=1e-8)
    for left in together if paired else np.arange(rows)[:, None]:
        kept = np.setdiff1d(np.arange(rows), left)
        fit = np.linalg.solve(a[kept].T @ a[kept] + fine, a[kept].T @ targets[kept])
        np.testing.assert_allclose(found[left], a[left] @ fit, atol=1e-7)
