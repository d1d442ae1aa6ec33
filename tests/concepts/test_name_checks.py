"""Who is held out, what a sorting scores, and whether chance does as well."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, cohen_kappa_score

from htaf.concepts.codes import ConceptError
from htaf.concepts.groups import Groups, groups
from htaf.concepts.naming import ClassEvidence, ConceptName, NamingSettings
from htaf.concepts.naming.checks import AGREEMENT, against_chance, agreements, balanced, kappa, refusal, shuffled

sizes = st.integers(0, 30)


def grouped(a: int, b: int, mixed: int = 0):
    """Groups of one concept with so many classes, in mixed order."""
    shares = np.array([[1.0] * a + [0.0] * b + [0.5] * mixed])
    return groups(np.random.default_rng(0).permuted(shares, axis=1))


def evidence(grouped_: Groups, **settings: Any) -> ClassEvidence:
    return ClassEvidence(grouped_, NamingSettings(**settings), (), None)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(2, 6), st.integers(2, 12), st.integers(0, 5))
def test_every_class_is_held_out_once(a: int, b: int, rounds: int, most: int, seed: int) -> None:
    case = evidence(grouped(a, b, 1), rounds=rounds, most=most, seed=seed).case(0)
    assert (case.inside.sum(), (~case.inside).sum()) == (a, b)
    assert case.nameless == (a == 0 or b == 0)
    if min(a, b) < 2:
        assert case.rounds == 0
        assert case.note
        return
    scored = {side: case.fold[(case.inside == side) & (case.fold >= 0)] for side in (True, False)}
    assert len(scored[True]) + len(scored[False]) == min(a + b, 2 * most)
    assert len(scored[True]) >= min(a, most)
    assert len(scored[False]) >= min(b, most)
    assert case.rounds == min(rounds, len(scored[True]), len(scored[False])) >= 2
    for fold in scored.values():
        count = np.bincount(fold, minlength=case.rounds)
        assert count.min() >= 1
        assert count.max() - count.min() <= 1
    assert case.note == ""


def test_the_draw_depends_on_seed_and_concept_alone() -> None:
    both = groups(np.tile([1.0] * 20 + [0.0] * 20, (2, 1)))
    one = evidence(both).case(0)
    assert np.array_equal(one.fold, evidence(groups(both.proportions[:1])).case(0).fold)
    assert not np.array_equal(one.fold, evidence(both).case(1).fold)
    assert not np.array_equal(one.fold, evidence(both, seed=1).case(0).fold)
    assert set(evidence(both).case(0, given=True).fold) == {0}  # one round sorts all that three do


def test_counts_of_the_groups() -> None:
    shares = np.array([[1.0, 0.9, 0.5, 0.1, np.nan]])
    sizes = {"group_a": 2, "group_b": 1, "mixed": 1, "empty": 1}
    assert groups(shares).counts(0) == sizes | {"test_a": None, "test_b": None}
    held = np.array([[0.7, np.nan, 0.0, 0.4, 0.0]])
    assert groups(shares, held=held).counts(0) == sizes | {"test_a": 0.7, "test_b": 0.4}


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=40))
def test_balanced_accuracy_is_that_of_scikit_learn(pairs: list[tuple[bool, bool]]) -> None:
    inside, said = (np.array(column) for column in zip(*pairs, strict=True))
    if inside.all() or not inside.any():
        return
    assert balanced(inside, said.astype(float)) == pytest.approx(balanced_accuracy_score(inside, said))


def test_classes_left_out_count_as_half_right() -> None:
    inside = np.array([True, True, False, False])
    assert balanced(inside, np.full(4, 0.5)) == 0.5
    assert balanced(inside, np.array([1, 0.5, 0, 0])) == 0.875
    assert balanced(inside, inside.astype(float)) == 1.0


@given(st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.sampled_from([0, 1, 2])), min_size=2, max_size=30))
def test_kappa_is_cohens_and_linearly_weighted_where_classes_are_left_out(pairs: list[tuple[int, int]]) -> None:
    one, other = (np.array(column) for column in zip(*pairs, strict=True))
    if len(set(one.tolist()) | set(other.tolist())) == 1:
        assert kappa(one / 2, other / 2) == 0
        return
    expected = cohen_kappa_score(one, other, labels=[0, 1, 2], weights="linear")
    assert kappa(one / 2, other / 2) == pytest.approx(expected)


def test_agreements_of_rounds() -> None:
    same = (np.arange(40) < 15).astype(float)
    found = agreements([same, same, 1 - same])
    assert found[0, 1] == 1
    assert found[0, 2] < -0.5
    assert np.array_equal(found, found.T)


def test_permutations_stay_within_the_folds() -> None:
    """One class of A and one of B in each fold: a round's pair is turned or not, so scores are k right of n."""
    inside, fold = np.array([True, False] * 4), np.repeat(np.arange(4), 2)
    chance = shuffled(inside, inside.astype(float), fold, 2000, np.random.default_rng(0))
    assert set(chance.round(9)) == {0, 0.25, 0.5, 0.75, 1}
    assert np.mean(chance == 1) == pytest.approx(1 / 16, abs=0.02)
    whole = shuffled(inside, inside.astype(float), np.zeros(8, dtype=np.int64), 2000, np.random.default_rng(0))
    assert np.mean(whole == 1) == pytest.approx(1 / 70, abs=0.01)


def p_values(sorter, count: int, classes: int = 24) -> np.ndarray:
    found = []
    for number in range(count):
        rng = np.random.default_rng(number)
        inside = rng.permutation(np.arange(classes) < classes // 3)
        said, fold = sorter(rng, inside), np.arange(classes) % 3
        chance = shuffled(inside, said, fold, 99, np.random.default_rng((0, number, 1)))
        found.append(against_chance(balanced(inside, said), chance)["p_value"])
    return np.array(found)


def test_p_is_uniform_for_a_sorter_who_knows_nothing() -> None:
    found = p_values(lambda rng, inside: rng.random(len(inside)), 600)  # no ties, so exactly uniform
    assert found.min() == 0.01
    for level in (0.05, 0.1, 0.25, 0.5, 0.75, 0.9):
        assert np.mean(found <= level) == pytest.approx(level, abs=3.5 * np.sqrt(level * (1 - level) / 600))
    ties = p_values(lambda rng, inside: rng.integers(0, 2, len(inside)).astype(float), 600)
    assert np.mean(ties <= 0.05) <= 0.05 + 3.5 * np.sqrt(0.05 * 0.95 / 600)


def test_p_is_small_for_a_perfect_sorter_and_one_for_a_constant() -> None:
    assert (p_values(lambda _, inside: inside.astype(float), 5) == 0.01).all()
    assert (p_values(lambda _, inside: np.ones(len(inside)), 5) == 1).all()


def test_what_refuses_a_score() -> None:
    good = {"held_out": 0.8, "agreement": 0.5, "p_value": 0.01}

    def said(**changed: Any) -> str:
        return refusal(good | changed, 0.75, "balanced accuracy", "shuffled classes do")

    assert said() == said(agreement=None) == said(p_value=None) == said(held_out=0.75, p_value=0.05) == ""
    assert said(held_out=0.5) == "balanced accuracy 0.50 < 0.75"
    assert said(agreement=0.1) == f"the names of the rounds sort differently: kappa 0.10 < {AGREEMENT}"
    assert said(p_value=0.2) == "shuffled classes do as well: p = 0.20 > 0.05"


def test_verdicts_of_classes() -> None:
    names = [ConceptName("a", "b", "c")] * 3

    def found(count: int, rounds: int = 3, *, wrong: bool = False, **settings: Any) -> dict[str, Any]:
        of = evidence(grouped(count, count), **settings)
        case = of.case(0, given=rounds == 1)
        said = case.inside[case.scored].astype(float)
        return of.verdict(case, names[:rounds], [np.ones(len(said)) if wrong else said] * rounds)[1]

    right = found(10)
    assert (right["held_out"], right["verified"], right["reason"], right["p_value"]) == (1.0, True, "", 0.001)
    assert right["baseline"]["mean"] == pytest.approx(0.5, abs=0.1)
    assert right["baseline"]["p95"] < 0.85
    assert found(10, wrong=True)["reason"] == "held-out balanced accuracy 0.50 < 0.75"
    assert found(10, 1, wrong=True)["reason"] == "balanced accuracy 0.50 < 0.75"
    few = found(3)
    assert few["p_value"] == pytest.approx(1 / 8, abs=0.04)
    assert (few["verified"], few["status"]) == (False, "too few classes")
    none = found(10, 1, permutations=0)
    assert (none["verified"], none["p_value"], none["baseline"], none["agreement"]) == (True, None, None, None)


@pytest.mark.parametrize(
    "wrong", [{"rounds": 1}, {"threshold": 1.5}, {"permutations": 5}, {"most": 1}, {"seed": -1}, {"threshold": np.nan}]
)
def test_settings_out_of_range(wrong: dict) -> None:
    with pytest.raises(ConceptError, match="expected rounds >= 2"):
        NamingSettings(**wrong)
