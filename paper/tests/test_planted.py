"""The planted-concept experiment: what is planted, the checks it makes, and its report on a small made set."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score

from htaf.concepts.naming.by_attributes import Round, splits
from htaf.data.attributes import Attributes
from htaf_paper import planted
from htaf_paper.computing import Place
from htaf_paper.planted import Planting, cell, check, common_columns, planted_codes, planting, same_columns, vote


def made() -> Planting:
    rng = np.random.default_rng(0)
    attributes = Attributes(
        tuple(f"a{i}" for i in range(20)), tuple(f"c{i}" for i in range(24)), rng.random((24, 20)).astype(np.float32)
    )
    labels = np.repeat(np.arange(24), 30)
    return Planting(attributes, common_columns(attributes), labels, np.tile([0, 2], 360).astype(np.uint8))


def test_columns_that_are_neither_rare_nor_nearly_everywhere() -> None:
    values = np.zeros((12, 4), dtype=np.float32)
    for column, count in enumerate((4, 5, 7, 8)):
        values[:count, column] = 1
    attributes = Attributes(tuple("abcd"), tuple(map(str, range(12))), values)
    assert common_columns(attributes).tolist() == [1, 2]
    twins = attributes.values[:, [0, 1, 0]]
    same = same_columns(Attributes(tuple("xyz"), attributes.classes, twins))
    assert same[0] == same[2] != same[1]


def test_planted_bits_are_the_classes_attributes_flipped_so_often() -> None:
    plan = made()
    clean = planted_codes(plan, 0.0, np.random.default_rng(0)).unpack()
    np.testing.assert_array_equal(clean, plan.attributes.values[plan.labels][:, plan.columns] >= 0.5)
    noisy = planted_codes(plan, 0.2, np.random.default_rng(0)).unpack()
    assert np.mean(noisy != clean) == pytest.approx(0.2, abs=0.015)
    null = planted_codes(plan, 0.0, np.random.default_rng(0), null=True)
    counts = [null.unpack()[plan.labels == k][0] for k in range(24)]
    np.testing.assert_array_equal(np.sum(counts, axis=0), plan.bits.sum(0))  # as many classes, but others
    assert np.mean(np.array(counts) != plan.bits) > 0.3


def test_check_against_scikit_learn() -> None:
    plan, rng = made(), np.random.default_rng(1)
    inside = rng.random(24) < 0.5
    held = splits(inside, 6, 0.3, rng)
    attribute, negated = rng.integers(0, 20, 6), rng.random(6) < 0.5
    found = check(inside, held, plan.attributes, attribute, negated)
    for i in range(6):
        said = plan.attributes.binary()[held[i], attribute[i]] != negated[i]
        assert found[i] == pytest.approx(balanced_accuracy_score(inside[held[i]], said))


def test_vote() -> None:
    attribute, negated = np.array([3, 3, 5, 3, 5]), np.array([False, True, False, True, False])
    played = Round(attribute, negated, np.array([1.0, 0.8, 0.7, 0.8, 0.8]), np.zeros(5))
    best, sign, chose = vote(played)
    assert (best, sign, chose.tolist()) == (3, True, [False, True, False, True, False])  # two rounds each: 1.6 > 1.5


def test_a_cell_finds_what_is_planted_and_nothing_else() -> None:
    found = cell(made(), 0.05, 0)
    assert found["bits"] == found["usable"] == len(made().columns)
    assert found["name_concepts"]["found"] == found["20 splits"]["found"] == 1
    assert found["name_concepts"]["verified_right"] == 1
    assert found["name_concepts"]["null_verified"] < 0.2
    assert found["20 splits"]["auc"]["shuffled"] > 0.95
    assert found["20 splits"]["auc"]["null"] > 0.95
    assert found["20 splits"]["null_held_out"]["all rounds"] == pytest.approx(0.5, abs=0.1)


def test_the_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(planted, "planting", lambda _: made())
    place = Place(tmp_path)
    found = planted.outcome([planted.compute({"noise": 0.1, "seed": seed}, place) for seed in (0, 1)], "full")
    assert "720 images of 24 CUB classes" in found.notes[0]
    assert [row[:2] for row in found.tables[1].rows] == [("10%", "one split"), ("10%", "20 splits")]
    assert len(found.drawings[0].panels) == 2


@pytest.mark.data
def test_cub_plan(data_dir: Path) -> None:
    plan = planting(data_dir)
    count = plan.bits.sum(0)
    classes = len(plan.attributes.classes)
    assert len(plan.columns) >= 40
    assert count.min() >= 5
    assert count.max() <= classes - 5
    assert (np.bincount(plan.labels, minlength=classes) > 0).all()
    assert set(plan.parts.tolist()) == {0, 2}
