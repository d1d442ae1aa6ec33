"""The bench of concepts: each figure on planted bits with a known answer, and the baselines on planted features."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from htaf.concepts.codes import Codes, ConceptError, codes_of
from htaf.concepts.counts import class_counts, class_sizes
from htaf.concepts.heads import Head
from htaf.concepts.store import Features
from htaf.data.attributes import Attributes
from htaf_paper.bench import aligned, attribute_auroc, bench, matched, of_classes, table, undone
from htaf_paper.other_bits import BASELINES, Backbone, class_splits, itq, median_cut, random_hyperplanes


def plain(bits: np.ndarray, labels: np.ndarray, parts: np.ndarray | str = "test") -> Codes:
    k = int(labels.max()) + 1
    return codes_of(bits, labels, np.zeros((k, bits.shape[1])), np.zeros(k), parts=parts)  # pyright: ignore[reportArgumentType]


def auroc(bits: np.ndarray, labels: np.ndarray, values: np.ndarray, **more: int) -> float | None:
    codes = plain(bits, labels)
    return attribute_auroc(class_counts(codes), class_sizes(codes), values, **more)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_bits_that_follow_attributes_and_bits_that_do_not(seed: int) -> None:
    r = np.random.default_rng(seed)
    labels = np.repeat(np.arange(24), 20)
    values = (r.permuted(np.tile(np.arange(24) % 2, (8, 1)), axis=1).T).astype(np.float32)
    for bits in (values[labels] > 0, values[labels] == 0):  # an absence follows it as well
        found = auroc(bits, labels, values)  # two attributes may be the same in the classes that choose
        assert found is not None
        assert found > 0.97
    noise = auroc(r.random((len(labels), 60)) < 0.3, labels, values)
    assert noise is not None
    assert abs(noise - 0.5) < 0.03


def test_the_attribute_is_chosen_on_other_classes() -> None:
    """With as many attributes as one likes, a bit of single classes follows some, but not on other classes."""
    r = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 10)
    found = auroc(np.eye(20, dtype=bool)[labels] | (r.random((200, 20)) < 0.05), labels, r.random((20, 500)))
    assert found is not None
    assert abs(found - 0.5) < 0.1


def test_the_auroc_is_that_of_mann_and_whitney() -> None:
    r = np.random.default_rng(1)
    labels, values = r.integers(0, 4, 300), r.integers(0, 3, (4, 1)).astype(float) / 2
    values[:, 0] = [0, 0.5, 0.5, 1]
    bits = r.random((300, 1)) < 0.3 + 0.4 * values[labels]
    order = np.random.default_rng(5).permutation(4)
    sides = []
    for half in (order[:2], order[2:]):
        own = np.isin(labels, half)
        x, y = values[labels[own], 0], bits[own, 0]
        sides.append(mannwhitneyu(x[y], x[~y]).statistic / (y.sum() * (~y).sum()))
    expected = np.mean([b if a >= 0.5 else 1 - b for a, b in (sides, sides[::-1])])
    assert auroc(bits, labels, values, splits=1, seed=5) == pytest.approx(expected)
    assert auroc(bits[labels < 3], labels[labels < 3], values[:3]) is None, "too few classes to hold some out"
    assert auroc(np.ones((300, 1), bool), labels, values) is None, "a bit that never changes"


def test_how_bits_lie_to_classes() -> None:
    labels = np.repeat(np.arange(10), 50)
    r = np.random.default_rng(2)
    one, half = labels == 3, labels < 5
    found = of_classes(plain(np.stack([one, half, np.zeros_like(one)], 1), labels))
    assert (found["clear"], found["one_class"]) == (1, 0.5)
    for rate in (0.05, 0.12, 0.5):  # what is called chance is what random bits have
        random = of_classes(plain(r.random((500, 400)) < rate, labels))
        assert random["clear"] == pytest.approx(random["clear_by_chance"], abs=0.02)
    assert of_classes(plain(np.ones((500, 2), bool), labels))["clear"] is None


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12))
def test_stability_knows_neither_order_nor_sign(seed: int, concepts: int) -> None:
    r = np.random.default_rng(seed)
    bits = (r.random((200, concepts)) < 0.4).astype(np.uint8)
    other = bits[:, r.permutation(concepts)] ^ r.integers(0, 2, concepts, dtype=np.uint8)
    assert matched(bits, other) == pytest.approx(1)
    assert matched(bits, np.concatenate([other, other[::-1]], 1)) == pytest.approx(0.5), "half lack a partner"
    noise = matched(bits, (r.random((200, concepts)) < 0.4).astype(np.uint8))
    assert noise is not None
    assert noise < 0.35
    assert matched(bits, np.ones_like(bits)) is None


def test_decisions_undone() -> None:
    labels = np.repeat(np.arange(2), 30)
    bits = np.tile(labels[:, None] == 1, (1, 11))
    one = Head(np.array([[0.0] * 11, [1.0] + [0.0] * 10]), np.array([0.5, 0.0]))
    assert undone(plain(bits, labels), one, 1) == 1
    spread = Head(np.array([[0.0] * 11, [1.0] * 11]), np.array([5.5, 0.0]))
    assert undone(plain(bits, labels), spread, 5) == 0, "five of eleven do not turn it"
    assert undone(plain(bits, labels), spread, 6) == 1
    assert undone(plain(bits[:1], np.zeros(1, int)), Head(np.zeros((1, 11)), np.zeros(1))) is None


def features(classes: int = 6, each: int = 60, size: int = 24) -> Features:
    """Classes that are clouds in the features; half of the images are training images."""
    r = np.random.default_rng(3)
    labels = np.tile(np.arange(classes), each).astype(np.int32)
    values = (r.normal(0, 3, (classes, size))[labels] + r.normal(0, 1, (len(labels), size))).astype(np.float32)
    parts = np.repeat(np.arange(3, dtype=np.uint8), [len(labels) // 2, len(labels) // 6, len(labels) // 3])
    names = tuple(f"class {k}" for k in range(classes))
    zeros = (np.zeros((classes, size), np.float32), np.zeros(classes, np.float32))
    ids = [f"i{i}" for i in range(len(labels))]
    return Features(values, names, labels, parts, ids, *zeros, np.full(len(labels), -1, np.int32))


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_are_drawn_by_the_seed_and_learn_from_training_images_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("htaf_paper.other_bits.STEPS", 40)
    given = features()
    one = BASELINES[name](Backbone(given), 8, 0)
    assert one.shape == (len(given), 8)
    assert one.dtype == bool
    np.testing.assert_array_equal(one, BASELINES[name](Backbone(given), 8, 0))
    assert (one != BASELINES[name](Backbone(given), 8, 1)).any()
    test = given.parts == 2
    moved = replace(given, values=np.where(test[:, None], given.values[::-1] * 5, given.values))
    np.testing.assert_array_equal(BASELINES[name](Backbone(moved), 8, 0)[~test], one[~test])


def test_what_baselines_are() -> None:
    images = Backbone(features())
    train = images.train
    assert random_hyperplanes(images, 9, 0)[train].mean(0) == pytest.approx(0.5)
    assert median_cut(images, 100, 0).shape[1] == itq(images, 100, 0).shape[1] == 24, "no more than features"
    assert BASELINES["k-means"](images, 20, 0).sum(1).tolist() == [3] * len(images.labels)
    assert BASELINES["sparse autoencoder"](images, 20, 0).sum(1).max() <= 3
    splits = class_splits(images, 50, 0)
    shares = np.stack([splits[images.labels == k].mean(0) for k in range(6)])
    assert ((shares > 0.9).sum(0) == 3).all(), "each bit is a half of six classes that a probe tells apart"
    dead = features()
    dead.values[:, 3] = 7
    assert not Backbone(dead).standard[:, 3].any()


def test_the_bench_finds_planted_concepts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits of attributes of the classes beside the baselines: only they follow attributes."""
    given, r = features(classes=16, each=20), np.random.default_rng(4)
    has = r.permuted(np.tile(np.arange(16) % 2 > 0, (6, 1)), axis=1).T
    flips = r.random((2, len(given), 6)) < 0.005
    bits = [plain(has[given.labels] ^ flip, given.labels, given.parts) for flip in flips]
    bits = [replace(one, classes=given.classes, ids=given.ids) for one in bits]
    known = Attributes(tuple(f"a{i}" for i in range(6)), given.classes, has.astype(np.float32))
    told: list[str] = []
    for name in set(BASELINES) - {"random hyperplanes", "k-means", "random class splits"}:
        monkeypatch.delitem(BASELINES, name)
    result = bench(given, {"planted": bits}, attributes=known, seeds=1, progress=told.append)
    rows = {row["bits"]: row for row in result["rows"]}
    own = rows["planted"]["mean"]
    assert own["attributes"] > 0.95
    assert own["attributes"] > 0.1 + max(rows[name]["mean"]["attributes"] for name in BASELINES)
    assert own["clear"] > 0.9
    assert own["stability"] > 0.85
    assert rows["random class splits"]["mean"]["accuracy"] > 0.8
    assert rows["planted"]["sd"]["accuracy"] is not None
    assert own["accuracy_10"] is None, "there are but six"
    assert result["probe"] > 0.95
    assert len(told) == 1 + len(BASELINES)
    assert result["images"] == {
        name: int((given.parts == i).sum()) for i, name in enumerate(("train", "validation", "test"))
    }
    text = table(result, "<planted>")
    assert all(f"\n| {name} | " in text for name in rows)
    assert "<planted>" not in text


def test_what_the_bench_refuses() -> None:
    given = features()
    codes = replace(plain(np.zeros((360, 4), bool), given.labels, given.parts), classes=given.classes, ids=given.ids)
    for bits, said in (
        ({}, "expected bits"),
        ({"ITQ": [codes]}, "expected other names than those of baselines, got 'ITQ'"),
        ({"a": [replace(codes, classes=tuple("abcdef"))]}, "a: expected the classes"),
        ({"a": [codes.take(np.arange(5, 360))]}, "a: expected codes of the same images, got none of 'i0'"),
        ({"a": [replace(codes, labels=np.roll(codes.labels, 1))]}, "got other labels or parts"),
    ):
        with pytest.raises(ConceptError, match=said):
            bench(given, bits, seeds=1)
    with pytest.raises(ConceptError, match="part 'train'"):
        bench(replace(given, parts=np.full(360, 2, np.uint8)), {"a": [codes]})
    turned = codes.take(np.arange(360)[::-1])
    np.testing.assert_array_equal(aligned(turned, given, "x").labels, given.labels)
