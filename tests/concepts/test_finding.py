"""A concept of one's own: its bit and its direction, on features where the truth is planted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score

from htaf.concepts.codes import ConceptError
from htaf.concepts.finding import STRENGTH, Bit, Found, _divisions, find_concept
from htaf.concepts.heads import Head

FEATURES, CONCEPTS, CLASSES = 60, 12, 4


class Planted:
    """Features in which a concept is a shift along one direction, across all of the bits' own directions but weakly."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.directions = self.random.normal(size=(CONCEPTS, FEATURES)) / np.sqrt(FEATURES)
        self.head = Head(self.random.normal(size=(CLASSES, CONCEPTS)), self.random.normal(size=CLASSES))
        shift = self.random.normal(size=FEATURES)
        self.shift = 8 * shift / np.linalg.norm(shift)

    def pre_activations(self, x: np.ndarray) -> np.ndarray:
        return x @ self.directions.T - 0.1

    def rows(self, count: int) -> np.ndarray:
        return self.random.normal(size=(count, FEATURES)) * 3 + 1

    def find(self, with_: np.ndarray, without: np.ndarray, **options: Any) -> Found:
        return find_concept(with_, without, self.pre_activations, self.head, **options)


def test_a_direction_that_no_bit_has_is_found_and_moves_the_classes_as_the_shift_does() -> None:
    planted = Planted()
    with_, without = planted.rows(40) + planted.shift, planted.rows(40)
    found = planted.find(with_, without)
    direction = found.direction
    assert found.follows is direction
    assert direction.auc > 0.75
    assert direction.p < 0.01
    assert found.bit.p > 0.025
    assert roc_auc_score(found.has_concept, direction.scores) == pytest.approx(direction.auc)
    fresh = np.concatenate([planted.rows(500) + planted.shift, planted.rows(500)])
    scores = fresh @ direction.weight + direction.offset
    assert roc_auc_score(np.arange(1000) < 500, scores) == pytest.approx(direction.auc, abs=0.1)

    def logits(x: np.ndarray) -> np.ndarray:
        return (planted.pre_activations(x) >= 0) @ planted.head.weight.T

    rows = planted.rows(2000)
    truth = (logits(rows + planted.shift) - logits(rows)).mean(0)
    assert np.corrcoef(truth - truth.mean(), direction.gains)[0, 1] > 0.7


def test_moves_are_restated() -> None:
    planted = Planted(1)
    with_, without = planted.rows(12) + planted.shift, planted.rows(20)
    direction = planted.find(with_, without).direction
    x, own = np.concatenate([with_, without]), np.arange(32) < 12
    scale = x.std(0)
    apart = (with_.mean(0) - without.mean(0)) / scale
    assert direction.move @ (apart / scale) == pytest.approx((direction.move / scale) @ (direction.move / scale))
    ratio = direction.move / (direction.weight * scale**2)
    assert np.allclose(ratio, ratio[0])
    after = np.where(own[:, None], x - direction.move, x + direction.move)
    bits = [planted.pre_activations(at) >= 0 for at in (x, after)]
    change = bits[1].astype(float) - bits[0]
    turned = (change[~own].mean(0) - change[own].mean(0)) / 2
    assert np.allclose(direction.turned, turned)
    gains = planted.head.weight @ turned
    assert np.allclose(direction.gains, gains - gains.mean())
    classes = [(at @ planted.head.weight.T + planted.head.bias).argmax(1) for at in bits]
    assert (direction.moved == classes[1]).all()
    assert direction.changed == pytest.approx((classes[0] != classes[1]).mean())


@pytest.mark.parametrize("paired", [False, True])
def test_scores_are_those_of_fits_without_the_row_or_pair(paired: bool) -> None:
    planted = Planted(2)
    with_, without = planted.rows(8) + planted.shift, planted.rows(8)
    direction = planted.find(with_, without, paired=paired).direction
    x, y = np.concatenate([with_, without]), np.repeat([1.0, -1.0], 8)
    x = (x - x.mean(0)) / x.std(0)
    penalty = STRENGTH * np.trace(x @ x.T) / len(x)
    for row in range(16):
        out = [row % 8, row % 8 + 8] if paired else [row]
        fit = Ridge(alpha=penalty).fit(np.delete(x, out, 0), np.delete(y, out))
        assert direction.scores[row] == pytest.approx(fit.predict(x[[row]])[0])
    fit = Ridge(alpha=penalty).fit(x, y)
    scores = np.concatenate([with_, without]) @ direction.weight + direction.offset
    assert np.allclose(scores, fit.predict(x))


def test_a_bit_is_found() -> None:
    planted = Planted(3)
    rows = planted.rows(200)
    has = planted.pre_activations(rows)[:, 5] < 0
    found = planted.find(rows[has][:20], rows[~has][:20])
    assert isinstance(found.follows, Bit)
    assert (found.bit.concept, found.bit.on, found.bit.agreement) == (5, False, 1.0)
    assert found.bit.p == pytest.approx(1 / 1001)
    bits = (planted.pre_activations(np.concatenate([rows[has][:20], rows[~has][:20]])) >= 0).astype(float)
    bits[:, 5] = 1 - bits[:, 5]
    assert (found.bit.flipped == (bits @ planted.head.weight.T + planted.head.bias).argmax(1)).all()
    assert found.bit.changed == (found.bit.flipped != found.predicted).mean()


def test_pairs_tell_more() -> None:
    planted = Planted(4)
    rows = planted.rows(10)
    shift = 0.2 * planted.shift
    p = [planted.find(rows + shift, rows, paired=paired).direction.p for paired in (True, False)]
    assert p[0] < 0.01
    assert p[1] > 0.05, "the twin that stays in the fit pulls to its side"


@pytest.mark.parametrize("paired", [False, True])
def test_p_values_of_no_difference_are_uniform(paired: bool) -> None:
    planted = Planted(5)
    found = [planted.find(*planted.rows(24).reshape(2, 12, -1), paired=paired) for _ in range(40)]
    for p in (
        [one.bit.p for one in found],
        [one.direction.p for one in found],
        [one.direction.gains_p.min() for one in found],
    ):
        assert np.mean(np.array(p) <= 0.05) <= 0.15  # 6 of 40: more has a probability of 1.4%
        assert 0.3 < np.mean(p) < 0.75


def test_a_classifier_that_does_not_use_it() -> None:
    """The bits turn along the direction, but no class has a weight for those that do."""
    planted = Planted(6)
    with_, without = planted.rows(40) + planted.shift, planted.rows(40)
    planted.head.weight[:] = 0
    direction = planted.find(with_, without).direction
    assert direction.p < 0.01
    assert not direction.used
    assert not direction.gains.any()
    assert direction.changed == 0


def test_pairs_say_what_the_concept_itself_does() -> None:
    planted = Planted(seed=9)
    without = planted.rows(200)
    with_ = without + 3 * planted.shift
    found = planted.find(with_, without, paired=True)
    bits = [planted.pre_activations(rows) >= 0 for rows in (with_, without)]
    logits = [of @ planted.head.weight.T + planted.head.bias for of in bits]
    change = (logits[0] - logits[1]).mean(0)
    assert found.pairs is not None
    assert np.allclose(found.pairs.gains, change - change.mean())
    assert found.pairs.changed == (logits[0].argmax(1) != logits[1].argmax(1)).mean()
    assert found.pairs.gains_p.min() < 0.01
    assert planted.find(with_, without).pairs is None
    with pytest.raises(ConceptError, match="got the same 200 rows"):
        planted.find(with_, with_, paired=True)


def test_of_bits_that_tell_as_well_the_one_that_is_used_is_named() -> None:
    planted = Planted(seed=3)
    planted.directions[1] = planted.directions[0]  # the same bit twice
    planted.head.weight[:, :] = 0
    planted.head.weight[2, 1] = 1  # and a head of few concepts that draws on the second
    before = planted.rows(400)
    on = planted.pre_activations(before)[:, 0] >= 0
    bit = planted.find(before[on][:20], before[~on][:20], classes=np.zeros(40, int)).bit
    assert (bit.concept, bit.used, bit.agreement) == (1, True, 1.0)
    assert bit.weights.tolist() == [0, 0, 1, 0]
    assert bit.p < 0.01


def test_few_rows_other_sizes_and_equal_features_are_refused() -> None:
    planted = Planted(7)
    with pytest.raises(ConceptError, match="at least 5 rows with the concept and as many without, got 20 and 4"):
        planted.find(planted.rows(20), planted.rows(4))
    with pytest.raises(ConceptError, match="expected pairs, as many rows with as without, got 20 and 21"):
        planted.find(planted.rows(20), planted.rows(21), paired=True)
    with pytest.raises(ConceptError, match="at least 7 pairs, got 6"):
        planted.find(planted.rows(6), planted.rows(6), paired=True)
    with pytest.raises(ConceptError, match="the features of all 10 rows are the same"):
        planted.find(np.ones((5, FEATURES)), np.ones((5, FEATURES)))


@pytest.mark.parametrize("same", [0.0, 0.1])
def test_a_bit_for_which_all_classes_weigh_the_same_is_not_used(same: float) -> None:
    planted = Planted(3)
    planted.head.weight[:] = same
    planted.head = Head(planted.head.weight[:3], planted.head.bias[:3])  # three times 0.1, less their mean: 1e-17
    assert not planted.find(planted.rows(10) + planted.shift, planted.rows(10)).bit.used


def test_sides_of_other_classes_are_told() -> None:
    planted = Planted()
    rows = planted.rows(400)
    predicted = ((planted.pre_activations(rows) >= 0) @ planted.head.weight.T + planted.head.bias).argmax(1)
    first = np.bincount(predicted).argmax()
    found = planted.find(rows[predicted == first][:20], rows[predicted != first][:20])
    assert found.of_classes
    assert found.apart == 1
    assert found.confounded
    assert (found.follows, found.bit.p, found.direction.p, found.direction.gains_p.min()) == (None, 1, 1, 1)
    told = replace(found, bit=replace(found.bit, p=0.001))  # by images that are predicted wrong
    assert (told.follows, told.confounded) == (None, True)
    told = replace(told, known=True)
    assert (told.follows, told.confounded) == (told.bit, False)
    assert not planted.find(rows[:20], rows[20:40]).of_classes
    of_class = rows[predicted == first]
    assert not planted.find(of_class[:15], of_class[15:30]).of_classes


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_a_concept_is_told_from_the_classes_that_go_with_it(shift: float) -> None:
    """Classes lie apart; 17 of 20 rows with the concept are of the first, 3 of those without it."""
    planted, classes = Planted(11), np.repeat([0, 1, 0, 1], [17, 3, 3, 17])
    towards = 4 * planted.random.normal(size=FEATURES)
    p, before = [], []
    for _ in range(20):
        rows = planted.rows(40) + np.where(classes[:, None] == 0, towards, 0)
        rows[:20] += shift * planted.shift
        found = planted.find(rows[:20], rows[20:], classes=classes)
        p.append(found.direction.p)
        assert (found.apart, found.of_classes) == (0.7, True)
        if not shift:
            before.append(planted.find(rows[:20], rows[20:], classes=np.zeros(40, int)).direction.p)
    if shift:
        assert np.median(p) < 0.1
    else:
        assert np.mean(np.array(before) <= 0.05) >= 0.8, "the class passes for the concept"
        assert np.mean(np.array(p) <= 0.05) <= 0.2  # 4 of 20: more has a probability of 0.3%


def test_random_divisions_keep_the_classes_of_both_sides() -> None:
    given, classes = np.arange(30) < 12, np.random.default_rng(0).integers(0, 3, 30)
    made = _divisions(12, classes, False, np.random.default_rng(1))
    assert (made[0] == given).all()
    for label in range(3):
        assert (made[:, classes == label].sum(1) == given[classes == label].sum()).all()
        shares = made[1:, classes == label].mean(0)
        np.testing.assert_allclose(shares, given[classes == label].mean(), atol=0.08)  # 5 standard errors
