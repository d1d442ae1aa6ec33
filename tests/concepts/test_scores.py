"""Every score against its formula on unpacked bits; concept accuracy against scikit-learn's logistic regression."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score

from htaf.concepts import store
from htaf.concepts.codes import Codes, ConceptError, codes_of
from htaf.concepts.scores import score, shown, summary
from htaf.concepts.store import open_folder
from htaf.training.runs import to_json


def some(seed: int = 0, n: int = 240, concepts: int = 19, classes: int = 4, dead: int = 0) -> Codes:
    """Bits that depend on the class; a third of the images each in train, validation, test."""
    r = np.random.default_rng(seed)
    labels = r.integers(0, classes, n)
    rate = r.random((concepts, classes))
    bits = r.random((n, concepts)) < rate[:, labels].T
    bits[:, :dead] = np.arange(dead) % 2
    parts = (np.arange(n) % 3).astype(np.uint8)
    r.shuffle(parts)
    codes = codes_of(bits, labels, r.normal(size=(classes, concepts)), r.normal(size=classes), parts=parts)
    smooth = np.where(r.random(n) < 0.8, codes.exact, labels).astype(np.int32)
    return replace(codes, smooth=smooth, saturated=r.integers(0, concepts + 1, n).astype(np.int32))


def split_of(codes: Codes, part: int) -> tuple[np.ndarray, np.ndarray]:
    rows = np.flatnonzero((codes.parts == part) & (codes.labels >= 0))
    return codes.unpack(rows).astype(float), codes.labels[rows]


drawn = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10**6),
        "n": st.integers(30, 120),
        "concepts": st.integers(1, 20),
        "classes": st.integers(1, 5),
        "dead": st.integers(0, 1),
    }
)


def with_class_gaps(codes: Codes, seed: int) -> Codes:
    """Some labels unknown; the last class absent from the training part."""
    r = np.random.default_rng(seed)
    labels = np.where(r.random(len(codes)) < 0.1, -1, codes.labels)
    if len(codes.classes) > 1:
        labels = np.where((codes.parts == 0) & (labels == len(codes.classes) - 1), -1, labels)
    return replace(codes, labels=labels.astype(np.int32))


@settings(max_examples=25, deadline=None)
@given(sizes=drawn, gaps=st.booleans())
def test_scores_are_their_formulae(sizes: dict[str, int], gaps: bool) -> None:
    codes = with_class_gaps(some(**sizes), 1) if gaps else some(**sizes)
    result = score(codes)
    (train, _), (test, of_test) = split_of(codes, 0), split_of(codes, 2)
    json.loads(to_json(result))  # plain and strict

    np.testing.assert_allclose(result["rates"]["fitted"], train.mean(0))
    np.testing.assert_allclose(result["rates"]["scored"], test.mean(0))
    dead = (train == train[0]).all(0)
    assert result["dead"]["count"] == dead.sum()
    assert sorted(result["dead"]["always_0"] + result["dead"]["always_1"]) == np.flatnonzero(dead).tolist()
    rows = (codes.parts == 2) & (codes.labels >= 0)
    assert result["binarity"] == pytest.approx((codes.saturated[rows] / codes.concepts).mean())
    for part, name in enumerate(("train", "validation", "test")):
        here = (codes.parts == part) & (codes.labels >= 0)
        row = result["accuracy"][name]
        assert (row["images"], row["unlabelled"]) == (here.sum(), ((codes.parts == part) & (codes.labels < 0)).sum())
        if here.any():
            assert row["exact"] == pytest.approx(np.mean(codes.exact[here] == codes.labels[here]))
            assert row["gap"] == pytest.approx(row["exact"] - np.mean(codes.smooth[here] == codes.labels[here]))
            assert row["flips"] == pytest.approx(np.mean(codes.exact[here] != codes.smooth[here]))

    specific = result["class_specificity"]
    shares, all_bins = [], np.zeros(20)
    for k in range(len(codes.classes)):
        inside = test[of_test == k]
        if not len(inside):
            assert specific["per_class"][k] is None
            continue
        # bins of whole numbers: 20 ones >= edge * images, the last bin closed
        ones = inside.sum(0)
        expected = [
            int(sum(b * len(inside) <= 20 * o and (20 * o < (b + 1) * len(inside) or b == 19) for o in ones))
            for b in range(20)
        ]
        assert specific["per_class"][k] == expected
        all_bins += expected
        shares.append(np.round(inside.mean(0), 12))
    assert specific["histogram"] == all_bins.tolist()
    p = np.array(shares)
    assert specific["extreme"] == pytest.approx(np.mean((p <= 0.1) | (p >= 0.9)))
    live = np.ptp(test, axis=0) > 0
    if live.any():
        fitted = np.array([test[of_test == k].mean(0) for k in of_test])
        assert specific["explained"] == pytest.approx((fitted.var(0)[live] / test.var(0)[live]).mean())
    else:
        assert specific["explained"] is None

    assert result["images"] == [(of_test == k).sum() for k in range(len(codes.classes))]


def one_hot(labels: np.ndarray, classes: int) -> np.ndarray:
    return np.eye(classes)[labels]


@settings(max_examples=15, deadline=None)
@given(sizes=drawn)
def test_concept_accuracy_is_that_of_a_logistic_regression_from_the_class(sizes: dict[str, int]) -> None:
    codes = some(**sizes)
    result = score(codes)["concept_accuracy"]["per_concept"]
    (train, of_train), (test, of_test) = split_of(codes, 0), split_of(codes, 2)
    classes = len(codes.classes)
    for j in range(codes.concepts):
        ones = np.array([train[of_train == k, j].sum() for k in range(classes)])
        images = np.bincount(of_train, minlength=classes)
        if (2 * ones == images).any():  # a tie, or a class that was never seen: the regression has no say
            continue
        if np.ptp(train[:, j]) == 0:
            predicted = np.full(len(test), train[0, j])
        else:
            model = LogisticRegression(C=1e6, max_iter=2000).fit(one_hot(of_train, classes), train[:, j])
            predicted = model.predict(one_hot(of_test, classes))
        assert result["accuracy"][j] == pytest.approx(np.mean(predicted == test[:, j]))
        if np.ptp(test[:, j]) > 0:
            assert result["balanced"][j] == pytest.approx(balanced_accuracy_score(test[:, j], predicted))
        else:
            assert result["balanced"][j] is None
        assert result["trivial"][j] == pytest.approx(max(test[:, j].mean(), 1 - test[:, j].mean()))


def parts_of(*sizes: int) -> np.ndarray:
    return np.repeat(np.arange(len(sizes), dtype=np.uint8), sizes)


def test_a_tie_counts_as_one_and_an_unseen_class_takes_the_majority_over_all() -> None:
    # training: class 0 has the bit in 1 of 2, class 1 in none of 3, class 2 has no images; overall 1 of 5
    bits = np.array([[1], [0], [0], [0], [0], [1], [0], [0], [0]])
    codes = codes_of(bits, [0, 0, 1, 1, 1, 0, 1, 2, 2], np.ones((3, 1)), np.zeros(3), parts=parts_of(5, 0, 4))
    result = score(codes)["concept_accuracy"]
    assert result["per_concept"] == {"accuracy": [1], "balanced": [1], "trivial": [0.75]}
    codes = replace(codes, bits=codes.bits[[0, 2, 0, 0, 2, 5, 6, 7, 8]])  # class 1 in 2 of 3, overall 3 of 5
    result = score(codes)["concept_accuracy"]
    assert result["per_concept"] == {"accuracy": [0.25], "balanced": [0.5], "trivial": [0.75]}


def test_dead_concepts_score_100_percent_and_are_told() -> None:
    codes = some(dead=4)
    result = score(codes)
    assert result["dead"] == {"always_0": [0, 2], "always_1": [1, 3], "count": 4, "share": 4 / 19}
    accuracy = result["concept_accuracy"]
    assert accuracy["per_concept"]["accuracy"][:4] == [1, 1, 1, 1]
    assert accuracy["per_concept"]["balanced"][:4] == [None] * 4
    assert accuracy["live"] == pytest.approx(np.mean(accuracy["per_concept"]["accuracy"][4:]))
    assert accuracy["mean"] > accuracy["live"]
    nothing = score(some(concepts=3, dead=3))
    assert nothing["dead"]["share"] == 1
    assert nothing["concept_accuracy"]["live"] is None
    assert nothing["concept_accuracy"]["balanced"] is None
    assert nothing["redundancy"]["effective"] == 0


def test_edges_of_the_histogram_belong_to_the_bin_above() -> None:
    # proportions 0, 3/20 (an edge that floats miss), 0.1 and 0.9 (both extreme), 1
    ones = [0, 3, 2, 18, 20]
    bits = np.array([[row < count for count in ones] for row in range(20)] * 2)
    codes = codes_of(bits, [0] * 40, np.ones((1, 5)), np.zeros(1), parts=parts_of(20, 0, 20))
    specific = score(codes)["class_specificity"]
    assert np.flatnonzero(specific["histogram"]).tolist() == [0, 2, 3, 18, 19]
    assert specific["extreme"] == pytest.approx(4 / 5)
    assert specific["extreme_live"] == pytest.approx(2 / 3)


def test_explained_does_not_grow_by_bits_being_rare() -> None:
    r = np.random.default_rng(0)
    labels = r.integers(0, 2, 4000)
    rare = r.random((4000, 8)) < 0.02
    told = np.repeat(labels[:, None], 8, 1) ^ (r.random((4000, 8)) < 0.15)
    parts = parts_of(2000, 0, 2000)
    a, b = (
        score(codes_of(bits, labels, np.ones((2, 8)), np.zeros(2), parts=parts))["class_specificity"]
        for bits in (rare, told)
    )
    assert a["extreme"] == 1
    assert a["explained"] < 0.01
    assert b["extreme"] < 0.1
    assert b["explained"] > 0.4


def test_what_is_not_known_is_none() -> None:
    unknown = np.full(240, -1, dtype=np.int32)
    result = score(replace(some(), smooth=unknown, saturated=unknown))
    assert result["binarity"] is None
    row = result["accuracy"]["test"]
    assert (row["smooth"], row["gap"], row["flips"]) == (None, None, None)
    assert row["exact"] is not None


def test_images_without_labels_are_an_error() -> None:
    with pytest.raises(ConceptError, match="labelled images of the part 'train', got only none"):
        score(replace(some(), labels=np.full(240, -1, dtype=np.int32)))


def test_the_order_of_images_does_not_matter() -> None:
    codes = some(dead=2)
    shuffled = codes.take(np.random.default_rng(0).permutation(len(codes)))
    assert score(codes) == score(shuffled)


def test_scores_of_parts_on_disk_are_those_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, htaf: Callable[..., Any]
) -> None:
    monkeypatch.setattr(store, "environment", dict)
    monkeypatch.setattr(store, "PART_IMAGES", 300)
    codes = some(n=700)
    store.write_codes(tmp_path / "codes", codes, {"run": "r"})
    parts = open_folder(tmp_path / "codes")
    expected = score(codes)
    assert score(parts) == expected
    assert json.loads(htaf("concepts", "score", tmp_path / "codes", "--json")[1]) == expected
    few = codes.take(np.flatnonzero(codes.parts == 0))
    with pytest.raises(ConceptError, match="labelled images of the part 'test', got only train"):
        score(few)


def named_codes(seed: int = 0, n: int = 300, concepts: int = 9, classes: int = 3) -> Codes:
    r = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    bits = r.random((n, concepts)) < r.random((concepts, classes))[:, labels].T
    parts = (np.arange(n) // classes % 3).astype(np.uint8)
    names = ["cat", "a|b", r"$\frac{ dog$"][:classes]  # no formula, whatever matplotlib thinks
    return codes_of(bits, labels, r.normal(size=(classes, concepts)), np.zeros(classes), classes=names, parts=parts)


def test_the_rows_of_a_summary() -> None:
    scores = score(named_codes())
    rows = {row["key"]: row for row in summary(scores)}
    assert rows["exact"]["value"] == scores["accuracy"]["test"]["exact"]
    assert rows["dead"]["value"] == scores["dead"]["count"]
    assert shown({"value": None, "kind": "percent"}) == "-"
    assert shown({"value": 0.125, "kind": "percent"}) == "12.5%"
    assert shown({"value": -0.01, "kind": "points"}) == "-1.00 points"
    assert all(row["help"] and shown(row) for row in rows.values())


@pytest.mark.parametrize(
    "codes",
    [
        named_codes(concepts=1, classes=1),
        replace(named_codes(), bits=np.zeros((300, 2), dtype=np.uint8)),
        replace(named_codes(), labels=np.where(named_codes().labels == 2, -1, named_codes().labels).astype(np.int32)),
    ],
    ids=["one concept", "all dead", "an empty class"],
)
def test_scores_of_little(codes: Codes) -> None:
    scores = score(codes)
    json.loads(to_json(scores))  # strict
    assert all(shown(row) != "nan" for row in summary(scores))
