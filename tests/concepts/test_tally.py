"""Sums over images: any partition, added in any order, gives the scores of the whole."""

from __future__ import annotations

import functools
import itertools
import json
import operator
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from htaf.concepts import store, writing
from htaf.concepts.codes import PARTS, Codes, ConceptError, codes_of
from htaf.concepts.nearest import NearestImages
from htaf.concepts.report import tables
from htaf.concepts.scores import score, score_tally
from htaf.concepts.store import open_folder
from htaf.concepts.tally import Tally, chosen, mixed, tally


def drawn(n: int, c: int, k: int, seed: int, *, predicted: bool = True) -> Codes:
    """Codes of images of all parts, some without a label; the first two are labelled, of train and test."""
    rng = np.random.default_rng(seed)
    codes = codes_of(
        rng.random((n, c)) < rng.random(c),
        rng.integers(-1, k, n),
        rng.normal(size=(k, c)),
        rng.normal(size=k),
        parts=rng.integers(0, len(PARTS), n).astype(np.uint8),
    )
    labels, parts = codes.labels.copy(), codes.parts.copy()
    labels[:2], parts[:2] = 0, (0, 2)
    known = {name: rng.integers(0, end, n).astype(np.int32) for name, end in (("smooth", k), ("saturated", c + 1))}
    return replace(codes, labels=labels, parts=parts, **(known if predicted else {}))


def slices(codes: Codes, cuts: list[int]) -> list[tuple[int, Codes]]:
    ends = [0, *sorted(cuts), len(codes)]
    return [(a, codes.take(np.arange(a, b))) for a, b in itertools.pairwise(ends)]


def added(tallies: list[Tally], shape: str) -> Tally:
    if shape == "backwards":
        tallies = tallies[::-1]
    while shape == "tree" and len(tallies) > 1:
        tallies = [functools.reduce(operator.add, tallies[i : i + 2]) for i in range(0, len(tallies), 2)]
    return functools.reduce(operator.add, tallies)


def equal(one: Any, other: Any) -> None:
    assert json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(
    n=st.integers(2, 150),
    c=st.integers(1, 20),
    k=st.integers(1, 4),
    seed=st.integers(0, 99),
    predicted=st.booleans(),
    shape=st.sampled_from(["in order", "backwards", "tree"]),
    scored=st.sampled_from(["test", "train"]),
    data=st.data(),
)
def test_any_partition_gives_the_scores_of_the_whole(
    n: int, c: int, k: int, seed: int, predicted: bool, shape: str, scored: Any, data: st.DataObject
) -> None:
    codes = drawn(n, c, k, seed, predicted=predicted)
    cuts = data.draw(st.lists(st.integers(0, n), max_size=5))
    found = added([tally(part, first=first, scored=scored) for first, part in slices(codes, cuts)], shape)
    equal(score_tally(found, codes.weight, codes.bias), score(codes, scored=scored))
    limit = data.draw(st.integers(1, n))
    found = added([tally(part, first=first, scored=scored, limit=limit) for first, part in slices(codes, cuts)], shape)
    whole = tally(codes, scored=scored, limit=limit)
    assert len(whole.sample.rows) == min(limit, int(whole.sizes[1].sum()))
    for name in ("rows", "bits", "labels"):
        np.testing.assert_array_equal(getattr(found.sample, name), getattr(whole.sample, name))
    np.testing.assert_array_equal(whole.sample.bits, codes.bits[whole.sample.rows])
    equal(score_tally(found, codes.weight, codes.bias), score_tally(whole, codes.weight, codes.bias))


def test_a_sample_says_so_and_is_drawn_evenly() -> None:
    codes = drawn(4000, 6, 3, 1)
    scores = score_tally(tally(codes, limit=100), codes.weight, codes.bias)
    assert scores["sample"]["images"] == 100
    assert scores["sample"]["of"] == scores["accuracy"]["test"]["images"]
    assert "NCC and how many are enough: 100 of " in tables(scores)
    assert "sample" not in score(codes)
    places = chosen(np.arange(10**6), 10_000)
    assert (np.diff(places) > 0).all()
    assert np.abs(np.histogram(places, bins=10, range=(0, 10**6))[0] - 1000).max() < 150
    assert len(np.unique(mixed(np.arange(10**5)))) == 10**5


def test_scores_of_parts_on_disk_are_those_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, htaf: Callable[..., Any]
) -> None:
    monkeypatch.setattr(writing, "environment", dict)
    monkeypatch.setattr(store, "PART_IMAGES", 300)
    monkeypatch.setattr(store, "CHUNK", 1)
    monkeypatch.setattr(writing, "GROUP_ROWS", 130)
    codes, other = drawn(700, 13, 3, 2), drawn(400, 9, 3, 3)
    for name, some in (("codes", codes), ("other", other)):
        writing.write_codes(tmp_path / name, some, {"run": "r"})
    parts, baseline = open_folder(tmp_path / "codes"), open_folder(tmp_path / "other")
    assert len(list(parts.codes_in_pieces())) == 7
    expected = score(codes, baseline={"other": other})
    equal(score(parts, baseline={"other": baseline}), expected)
    equal(score(parts, baseline={"other": other}, limit=50)["redundancy"], expected["redundancy"])
    words = ("concepts", "score", tmp_path / "codes", "--baseline", tmp_path / "other", "--json")
    equal(json.loads(htaf(*words)[1]), expected)
    for row in (5, 350):
        distances, found = NearestImages(parts).of(row, 10)
        far = (codes.unpack() != codes.unpack(slice(row, row + 1))).sum(1)
        order = [i for i in np.argsort(far, kind="stable") if i != row][:10]
        assert [*zip(found.tolist(), distances.tolist(), strict=True)] == [(i, far[i]) for i in order]


def test_what_cannot_be_added_or_scored() -> None:
    one = tally(drawn(50, 6, 3, 1))
    with pytest.raises(ConceptError, match="expected tallies of the same concepts, got 6 and 7"):
        one + tally(drawn(50, 7, 3, 1))
    with pytest.raises(ConceptError, match="expected tallies of the same classes"):
        one + tally(drawn(50, 6, 2, 1))
    with pytest.raises(ConceptError, match="expected tallies of the same scored, got 'test' and 'validation'"):
        one + tally(drawn(50, 6, 3, 1), scored="validation")
    codes = drawn(50, 6, 3, 1)
    few = codes.take(np.flatnonzero(codes.parts == 0))
    with pytest.raises(ConceptError, match="expected labelled images of the part 'test', got only train"):
        score_tally(tally(few), codes.weight, codes.bias)
    with pytest.raises(ConceptError, match="expected labelled images of the part 'test', got only train"):
        score(codes, baseline={"few": few})
    with pytest.raises(ConceptError, match="top must be >= 1, got 0"):
        score_tally(one, codes.weight, codes.bias, top=0)
