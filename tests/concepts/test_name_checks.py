"""What a check counts: balanced accuracy, and the share of all groups that a sorting fits as well."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score

from htaf.concepts.naming.checks import balanced, chance

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
