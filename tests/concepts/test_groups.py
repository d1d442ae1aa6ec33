"""Groups of classes: bounds belong to the groups, mixed and empty classes are kept apart, one-sided concepts say so."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score

from htaf.concepts.codes import ConceptError
from htaf.concepts.counts import EMPTY, IN_A, IN_B, MIXED, balanced, chance, groups

NAN = float("nan")


def test_the_bounds_belong_to_the_groups() -> None:
    found = groups(np.array([[0.8, 0.79, 0.2, 0.21, NAN, 1.0, 0.0]]), classes=list("abcdefg"))
    assert found.member[0].tolist() == [IN_A, MIXED, IN_B, MIXED, EMPTY, IN_A, IN_B]
    assert found.note(0) == ""


@pytest.mark.parametrize(
    ("shares", "note"),
    [
        ([0.0, 0.0, NAN], "dead: always 0"),
        ([1.0, NAN, 1.0], "dead: always 1"),
        ([0.0, 0.1, 0.5], "group A is empty: no class with a share of 80% or more"),
        ([0.9, 1.0, 0.5], "group B is empty: no class with a share of 20% or less"),
        ([0.5, 0.4, 0.6], "both groups are empty: every class is mixed"),
        ([0.5, 0.5, 0.5], "both groups are empty: every class is mixed"),
    ],
)
def test_one_sided_concepts_say_so(shares: list[float], note: str) -> None:
    found = groups(np.array([shares, [0.0, 1.0, 0.5]]))
    assert (found.note(0), found.note(1)) == (note, "")


@given(st.lists(st.one_of(st.just(NAN), st.floats(0, 1)), min_size=1, max_size=20))
def test_each_class_is_in_one_place(shares: list[float]) -> None:
    if np.isnan(shares).all():
        return
    found = groups(np.array([shares]))
    for share, member in zip(shares, found.member[0].tolist(), strict=True):
        wanted = EMPTY if share != share else IN_A if share >= 0.8 else IN_B if share <= 0.2 else MIXED
        assert member == wanted


def test_proportions_that_are_none() -> None:
    with pytest.raises(ConceptError, match=r"expected proportions in \[0, 1\], got 0.0 to 1.5"):
        groups(np.array([[0.0, 1.5]]))
    with pytest.raises(ConceptError, match=r"expected proportions \[concepts, 3\], got \(1, 2\)"):
        groups(np.array([[0.0, 1.0]]), classes=["a", "b", "c"])
    with pytest.raises(ConceptError, match="images of one class or more"):
        groups(np.array([[NAN, NAN]]))


sortings = st.integers(2, 9).flatmap(
    lambda n: st.tuples(
        st.lists(st.booleans(), min_size=n, max_size=n).filter(lambda inside: 0 < sum(inside) < len(inside)),
        st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=n, max_size=n),
    )
)


@given(sortings)
def test_balanced_accuracy_is_that_of_scikit_learn(made: tuple[list[bool], list[float]]) -> None:
    inside, said = np.array(made[0]), np.array(made[1])
    if not (said == 0.5).any():
        assert balanced(inside, said) == pytest.approx(balanced_accuracy_score(inside, said > 0.5))
    assert balanced(inside, np.full(len(inside), 0.5)) == 0.5


@given(sortings)
def test_chance_counts_all_groups(made: tuple[list[bool], list[float]]) -> None:
    inside, said = np.array(made[0]), np.array(made[1])
    own, fits = balanced(inside, said), []
    for members in combinations(range(len(inside)), int(inside.sum())):
        group = np.isin(np.arange(len(inside)), members)
        fits.append(balanced(group, said) >= own - 1e-12)
    assert chance(inside, said) == pytest.approx(np.mean(fits))
