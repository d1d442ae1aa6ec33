"""Leakage: planted soft information, planted names, and the identities of information."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mutual_info_score

from htaf.concepts.codes import Codes, ConceptError, codes_of
from htaf.concepts.store import Features
from htaf.data.attributes import Attributes
from htaf_paper.leakage import beyond, entropy, information, named_leakage, paired, soft_leakage

SIZES = (400, 150, 300)


def counted(bits: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    return np.stack([[bits[labels == k, j].sum() for k in range(classes)] for j in range(bits.shape[1])]).astype(int)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6))
def test_information_is_scikit_learns(seed: int, classes: int) -> None:
    r = np.random.default_rng(seed)
    labels, bits = r.integers(0, classes, 60), r.random((60, 4)) < r.random(4)
    sizes = np.bincount(labels, minlength=classes + 1)  # a class without images
    found = information(np.pad(counted(bits, labels, classes), ((0, 0), (0, 1))), sizes)
    np.testing.assert_allclose(found, [mutual_info_score(bits[:, j], labels) for j in range(4)], atol=1e-12)
    assert entropy(sizes) == pytest.approx(mutual_info_score(labels, labels), abs=1e-12)


def test_the_paired_interval_covers_the_mean() -> None:
    r, covered = np.random.default_rng(0), 0
    for _ in range(300):
        one, two = r.random(200) < 0.8, r.random(200) < 0.7
        low, high = paired(one.astype(float) - two)["interval"]
        covered += low <= 0.1 <= high
    assert 0.9 <= covered / 300 <= 0.99


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_a_bit_tells_what_its_name_tells_and_what_is_beyond(seed: int) -> None:
    r = np.random.default_rng(seed)
    labels, has = r.integers(0, 6, 5000), r.random(6) < 0.5
    bits = r.random(5000) < r.random(6)[labels]
    told, rest = beyond(counted(bits[:, None], labels, 6)[0], np.bincount(labels, minlength=6), has)
    attribute = has[labels]
    within = sum((attribute == v).mean() * mutual_info_score(bits[attribute == v], labels[attribute == v])
                 for v in (False, True) if (attribute == v).any())  # fmt: skip
    assert rest == pytest.approx(within, abs=6 / 5000)
    assert told - rest == pytest.approx(mutual_info_score(bits, attribute), abs=1e-9)


def soft(seed: int = 0, leak: float = 0.0) -> tuple[Codes, Features]:
    """Four bits tell four classes in part; with `leak`, the size of a value beyond its sign tells the class too."""
    r = np.random.default_rng(seed)
    n = sum(SIZES)
    labels = r.integers(0, 4, n)
    sign = np.where(r.random((n, 4)) < np.where(labels[:, None] == np.arange(4), 0.7, 0.2), 1.0, -1.0)
    own = labels[:, None] == np.arange(4)
    size = 1 + 2 * leak * ((sign > 0) == own) + r.random((n, 4))
    values = (sign * size).astype(np.float32)
    parts = np.repeat(np.arange(3, dtype=np.uint8), SIZES)
    codes = codes_of(values >= 0, labels, np.eye(4), np.zeros(4), parts=parts)
    fields = (codes.classes, codes.labels, codes.parts, codes.ids, codes.weight, codes.bias)
    return codes, Features(values, *fields, codes.smooth, {})


def test_soft_values_that_leak_are_found() -> None:
    clean, leaking = soft_leakage(*soft()), soft_leakage(*soft(leak=1.0))
    assert clean["ctl"] < 0.03
    assert leaking["ctl"] > 0.2
    assert clean["gain"]["interval"][0] < 0 < clean["gain"]["interval"][1] + 0.05
    assert leaking["gain"]["interval"][0] > 0.1
    each = leaking["per_concept"]
    assert leaking["ctl"] == pytest.approx(np.mean(np.subtract(each["soft"], each["bit"])))
    codes, _ = soft()
    test = codes.part("test")
    plain = [mutual_info_score(test.unpack()[:, j], test.labels) / entropy(np.bincount(test.labels)) for j in range(4)]
    np.testing.assert_allclose(clean["per_concept"]["bit"], plain, atol=0.02)
    assert clean["images"] == 300
    assert soft_leakage(*soft(), most=100)["images"] == 100


def test_pre_activations_of_others_are_refused() -> None:
    codes, features = soft()
    with pytest.raises(ConceptError, match=r"expected pre-activations \[850, 4\], as bits, got \[850, 3\]"):
        soft_leakage(codes, replace(features, values=features.values[:, :3], weight=features.weight[:, :3]))
    with pytest.raises(ConceptError, match="whose signs are the bits"):
        soft_leakage(codes, replace(features, values=-features.values))


def named(seed: int = 0) -> tuple[Codes, list[dict[str, Any]], Attributes]:
    """Eight classes. Bit 0 is attribute 0; bit 1, named after attribute 1, is one class of it; bit 2 has no name."""
    r = np.random.default_rng(seed)
    labels = r.integers(0, 8, 4 * sum(SIZES))
    have = np.stack([np.arange(8) < 4, np.arange(8) % 2 == 0], 1)
    flips = r.random((len(labels), 3)) < 0.05
    bits = np.stack([have[labels, 0], labels == 2, labels % 4 >= 2], 1) ^ flips
    parts = np.repeat(np.arange(3, dtype=np.uint8), [4 * size for size in SIZES])
    codes = codes_of(bits, labels, np.zeros((8, 3)), np.zeros(8), parts=parts)
    names: list[dict[str, Any]] = [
        {"concept": 0, "name": "low", "attribute": 0, "verified": True},
        {"concept": 1, "name": "even", "verified": True},
        {"concept": 2, "name": "even", "attribute": 1, "verified": False},
    ]
    return codes, names, Attributes(("low", "even"), codes.classes, have.astype(np.float32))


def test_what_no_name_accounts_for() -> None:
    codes, names, attributes = named()
    found = named_leakage(codes, names, attributes)
    assert found["verified"] == [0, 1]
    low, even = found["beyond"]
    assert (low["concept"], even["concept"]) == (0, 1)
    assert low["beyond"] < 0.02
    assert even["beyond"] > 0.5
    assert low["information"] == pytest.approx(1 / 3 * (1 - 0.286), abs=0.03)  # one of three bits, flipped at 5%
    assert found["accuracy"]["all"] > found["accuracy"]["verified"] + 0.05
    assert found["unnamed"]["interval"][0] > 0
    assert found["unnamed"]["difference"] == pytest.approx(found["accuracy"]["all"] - found["accuracy"]["verified"])
    nothing = named_leakage(codes, [])
    assert nothing["verified"] == nothing["beyond"] == []
    test = codes.part("test")
    most = np.bincount(codes.part("train").labels).argmax()
    assert nothing["accuracy"]["verified"] == pytest.approx((test.labels == most).mean())
    everything = named_leakage(codes, [entry | {"verified": True} for entry in names])
    assert everything["unnamed"]["difference"] == 0
