"""Names from attributes: found where planted, checked on classes that did not choose, refused where nothing is."""

from __future__ import annotations

import itertools
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score

from htaf.concepts.codes import ConceptError, codes_of
from htaf.concepts.groups import EMPTY, IN_A, IN_B, MIXED, balanced, chance, groups
from htaf.concepts.naming.by_attributes import name_by_attributes, play, splits
from htaf.data.attributes import Attributes
from htaf.data.reading import DataError


def made(classes: int = 30, count: int = 40, seed: int = 0) -> Attributes:
    """Random attributes that half the classes have, as shares."""
    rng = np.random.default_rng(seed)
    values = rng.random((classes, count)).astype(np.float32)
    names = tuple(f"a{i}" for i in range(count))
    return Attributes(names, tuple(f"c{i}" for i in range(classes)), values)


def test_planted_attributes_and_negations_are_found() -> None:
    attributes = made()
    planted = attributes.binary().T.astype(float)
    found = name_by_attributes(np.concatenate([planted, 1 - planted]), attributes, shuffles=0)
    assert [each["name"] for each in found] == [*attributes.names, *(f"not {name}" for name in attributes.names)]
    assert all(each["verified"] and each["naming"] == pytest.approx(1) for each in found)
    assert all(each["held_out"] > 0.9 and each["agreement"] > 0.5 for each in found)
    assert found[3]["attribute"] == 3
    assert found[43]["negated"]


@pytest.mark.parametrize(("share", "verified"), [(1.0, True), (0.6, True), (0.4, False), (None, True)])
def test_groups_of_training_images_alone_verify_no_name(share: float | None, verified: bool) -> None:
    """A bit that all training images of group A have, and `share` of its test images; of group B the other ones."""
    attributes = made(count=4)
    has = attributes.binary().T[0].astype(bool)
    labels = np.repeat(np.arange(30), 10)
    training, bits = labels >= 0, [has[labels]]
    if share is not None:
        some = np.arange(300) % 10 < 10 * share
        training, bits = np.repeat([True, False], 300), [*bits, np.where(has[labels], some, ~some)]
    codes = codes_of(
        np.concatenate(bits)[:, None], np.resize(labels, len(training)), np.zeros((30, 1)), np.zeros(30),
        classes=attributes.classes, parts=np.where(training, 0, 2).astype(np.uint8),
    )  # fmt: skip
    (found,) = name_by_attributes(codes, attributes, shuffles=0)
    assert (found["name"], found["verified"]) == ("a0", verified)
    if share is None:
        assert (found["test_a"], found["test_b"]) == (None, None)
    else:
        assert (found["test_a"], found["test_b"]) == pytest.approx((share, 1 - share))
    if share is not None and not verified:
        said = f"not so on test images: {share:.0%} of group A and {1 - share:.0%} of group B have it"
        assert (found["reason"], found["status"]) == (said, "not verified")


def test_p_values_of_random_groups_are_even() -> None:
    attributes = made(24, 12)
    rng = np.random.default_rng(2)
    shares = np.array([rng.permutation(np.arange(24) < 10) for _ in range(100)], dtype=float)
    found = name_by_attributes(shares, attributes, rounds=5, shuffles=19)
    p = np.array([each["p_value"] for each in found])
    assert 0.4 < p.mean() < 0.62  # (1 + 19 / 2) / 20 = 0.525
    assert (p <= 0.05).mean() < 0.13
    assert np.mean([each["baseline"]["mean"] for each in found]) == pytest.approx(0.5, abs=0.02)


def test_few_classes_may_pass_the_threshold_by_chance_but_not_the_p_value() -> None:
    attributes = made(6, 200)
    rng = np.random.default_rng(3)
    shares = np.array([rng.permutation([1, 1, 0, 0, 0, 0]) for _ in range(30)], dtype=float)
    free = name_by_attributes(shares, attributes, rounds=1, shuffles=0)
    checked = name_by_attributes(shares, attributes, rounds=1, shuffles=39)
    passed = [i for i, each in enumerate(free) if each["verified"]]
    assert passed
    assert not any(checked[i]["verified"] for i in passed)
    assert "shuffled classes do as well: p = " in checked[passed[0]]["reason"]


def test_play_against_scikit_learn() -> None:
    """Each round: the best balanced accuracy over attributes and negations, and that name's score on the others."""
    attributes = made(20, 15)
    rng = np.random.default_rng(4)
    inside = rng.random(20) < 0.4
    held = splits(inside, 12, 0.3, rng)
    played = play(inside, held, attributes)
    have = attributes.binary()
    for number in range(12):
        naming = ~held[number]
        scores = {
            (a, negated): balanced_accuracy_score(inside[naming], have[naming, a] != negated)
            for a, negated in itertools.product(range(15), (False, True))
        }
        assert played.naming[number] == pytest.approx(max(scores.values()))
        chosen = int(played.attribute[number]), bool(played.negated[number])
        assert scores[chosen] == pytest.approx(max(scores.values()))
        others = held[number]
        expected = balanced_accuracy_score(inside[others], have[others, chosen[0]] != chosen[1])
        assert played.held_out[number] == pytest.approx(expected)


def test_splits_are_stratified_and_leave_a_class_on_either_side() -> None:
    inside = np.array([True] * 10 + [False] * 20)
    held = splits(inside, 50, 0.3, np.random.default_rng(0))
    assert (held[:, inside].sum(1) == 3).all()
    assert (held[:, ~inside].sum(1) == 6).all()
    assert len(np.unique(held, axis=0)) > 40
    two = splits(np.array([True, True, False, False]), 10, 0.9, np.random.default_rng(0))
    assert (two[:, :2].sum(1) == 1).all()
    assert (two[:, 2:].sum(1) == 1).all()


def test_ties_go_to_the_larger_difference_of_the_values() -> None:
    values = np.array([[0.6, 0.9, 0.9], [0.6, 0.9, 0.8], [0.4, 0.1, 0.2], [0.4, 0.1, 0.1]], dtype=np.float32)
    attributes = Attributes(("faint", "clear", "nearly"), tuple("wxyz"), values)
    found = name_by_attributes(np.array([[1.0, 1, 0, 0]]), attributes, shuffles=0)[0]
    assert found["name"] == "clear"
    opposite = Attributes(("a", "b"), tuple("wxyz"), np.stack([values[:, 0], 1 - values[:, 1]], axis=1))
    found = name_by_attributes(np.array([[1.0, 1, 0, 0]]), opposite, shuffles=0)[0]
    assert found["name"] == "not b"


def test_a_held_out_class_has_no_say() -> None:
    """Whatever the attributes of held-out classes are, the round's name stays the same."""
    attributes = made(20, 30)
    inside = np.arange(20) < 8
    held = splits(inside, 1, 0.3, np.random.default_rng(0))
    first = play(inside, held, attributes)
    changed = attributes.values.copy()
    changed[held[0]] = 1 - changed[held[0]]
    second = play(inside, held, Attributes(attributes.names, attributes.classes, changed))
    assert (first.attribute, first.negated, first.naming) == (second.attribute, second.negated, second.naming)
    assert second.held_out[0] == pytest.approx(1 - first.held_out[0])


def test_twins_of_a_name_are_no_disagreement() -> None:
    """Four attributes that are the same in every class, and one that is their opposite: rounds may name any."""
    rng = np.random.default_rng(7)
    has = np.arange(30) < 14
    columns = [np.where(has, *rng.uniform((0.5, 0), (1, 0.5), (30, 2)).T) for _ in range(5)]
    columns[4] = 1 - columns[4]
    attributes = Attributes(tuple("abcde"), tuple(map(str, range(30))), np.stack(columns, axis=1).astype(np.float32))
    assert (attributes.binary()[:, :4] == has[:, None]).all()
    assert (attributes.binary()[:, 4] != has).all()
    found = name_by_attributes(np.stack([has, ~has]).astype(float), attributes, held_out=0.6, rounds=50)
    for each in found:
        assert (each["held_out"], each["agreement"], each["verified"]) == (1, 1, True)


def test_codes_use_the_training_part_and_names_of_classes() -> None:
    attributes = made(12, 10)
    order = np.random.default_rng(5).permutation(12)
    classes = [attributes.classes[i] for i in order]
    labels = np.repeat(np.arange(12), 5)
    bits = attributes.binary()[order][labels]
    parts = np.tile([0, 0, 0, 0, 2], 12).astype(np.uint8)
    bits[parts == 2] ^= True  # would turn each name round
    codes = codes_of(bits, labels, np.zeros((12, 10)), np.zeros(12), classes=classes, parts=parts)
    found = name_by_attributes(codes, attributes, shuffles=0)
    assert [(each["name"], each["source"]) for each in found] == [(name, "attributes") for name in attributes.names]
    with pytest.raises(DataError, match=r"got none of .*'c3'"):
        name_by_attributes(
            codes, Attributes(attributes.names, (*attributes.classes[:3], *"abcdefghi"), attributes.values)
        )


@pytest.mark.parametrize(
    "settings", [{"rounds": 0}, {"held_out": 0.0}, {"held_out": 1.0}, {"threshold": 2.0}, {"shuffles": 5}]
)
def test_settings_out_of_range(settings: dict) -> None:
    with pytest.raises(ConceptError, match="expected rounds >= 1"):
        name_by_attributes(np.zeros((1, 30)), made(), **settings)


def test_the_seed_decides() -> None:
    attributes = made()
    shares = np.random.default_rng(6).integers(0, 2, (5, 30)).astype(float)
    first, again, other = (name_by_attributes(shares, attributes, seed=seed, shuffles=19) for seed in (0, 0, 1))
    assert first == again != other
    assert name_by_attributes(shares[:2], attributes, shuffles=19) == first[:2]  # not on the concepts after it


# ---- groups of classes ----


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
