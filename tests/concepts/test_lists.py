"""Inverted lists over parts: exact where all lists are gone over, with less recall where fewer are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from htaf.concepts import lists, sharded_writing, writing
from htaf.concepts.codes import ConceptError, codes_of
from htaf.concepts.lists import INDEX, build_lists, open_lists
from htaf.concepts.nearest import NearestInParts
from htaf.concepts.sharded import ShardedCodes, open_sharded
from htaf.concepts.sharded_writing import slice_of, writing_parts
from htaf.concepts.writing import Contents


def made(path: Path, sizes: list[int], c: int, seed: int = 0) -> ShardedCodes:
    """Codes near to a few centres."""
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    values = rng.integers(0, 2, (20, c))[rng.integers(0, 20, n)] ^ (rng.random((n, c)) < 0.1)
    codes = codes_of(values, np.zeros(n), np.zeros((1, c)), np.zeros(1))
    codes = replace(codes, saturated=np.zeros(n, np.int32))
    contents = Contents({"run": "r"}, codes.classes, codes.labels, codes.parts, codes.ids, codes.weight, codes.bias)
    with pytest.MonkeyPatch.context() as patch:
        for module in (writing, sharded_writing):
            patch.setattr(module, "environment", dict)
        with writing_parts(path, contents.settings) as parts:
            for number, size in enumerate(sizes):
                first = sum(sizes[:number])
                rows = slice(first, first + size)
                with writing.writing(parts.folder(number), slice_of(contents, first, first + size)) as writer:
                    arrays = {name: getattr(codes, name)[rows] for name in ("smooth", "exact", "saturated")}
                    writer.write(0, arrays | {"codes": codes.bits[rows]})
                    writer.finish()
            parts.finish(len(sizes))
    return open_sharded(path)


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> ShardedCodes:
    return made(tmp_path_factory.mktemp("codes") / "a", [900, 700, 3], 77)


@pytest.fixture(scope="module")
def queries(codes: ShardedCodes) -> np.ndarray:
    bits = codes.whole().bits[::50].copy()
    bits[:, 0] ^= 5
    return bits


def test_all_lists_give_the_exact_distances(codes: ShardedCodes, queries: np.ndarray, tmp_path: Path) -> None:
    index = build_lists(codes, tmp_path / "lists", lists=12)
    exact, _ = NearestInParts(codes).query(queries, 10)
    distances, rows = index.query(queries, 10, probes=12)
    np.testing.assert_array_equal(distances, exact)
    whole = codes.whole()
    for q, query in enumerate(queries):
        np.testing.assert_array_equal(np.bitwise_count(whole.bits[rows[q]] ^ query).sum(1), distances[q])
        assert [*zip(distances[q].tolist(), rows[q].tolist(), strict=True)] == sorted(
            zip(distances[q].tolist(), rows[q].tolist(), strict=True)
        )
    recalls = [float((index.query(queries, 10, probes=p)[0] <= exact[:, -1:]).mean()) for p in (1, 3, 12)]
    assert recalls[0] <= recalls[1] <= recalls[2] == 1
    assert recalls[0] > 0.5, "codes near to a few centres"


def test_fewer_than_k(tmp_path: Path) -> None:
    few = made(tmp_path / "few", [60, 60], 16)
    index = build_lists(few, tmp_path / "lists", lists=3)
    distances, rows = index.query(few.whole().bits[:5], 100, probes=1)
    assert ((rows == -1) == (distances == -1)).all()
    assert (rows == -1).any()
    for line in rows:
        assert len(set(line[line >= 0].tolist())) == (line >= 0).sum()


def test_a_stopped_build_is_continued(
    codes: ShardedCodes, queries: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_lists(codes, tmp_path / "whole", lists=12)
    written, left = lists.written_whole, [2]  # the centres and a part

    def stops(path: Path) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return written(path)

    monkeypatch.setattr(lists, "written_whole", stops)
    with pytest.raises(KeyboardInterrupt):
        build_lists(codes, tmp_path / "again", lists=12)
    with pytest.raises(ConceptError, match="is not finished"):
        open_lists(tmp_path / "again", codes)
    left[0] = 9
    build_lists(codes, tmp_path / "again", lists=12)
    assert left[0] == 7, "the first part, or the centres, were made again"
    names = sorted(p.name for p in (tmp_path / "whole").iterdir())
    assert names == ["centres.npy", INDEX, "part-00000.faiss", "part-00001.faiss", "part-00002.faiss"]
    for name in names:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


def test_what_is_refused(codes: ShardedCodes, queries: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(ConceptError, match="expected lists from 1 to 41, one for 39 images, got 42"):
        build_lists(codes, tmp_path / "a", lists=42)
    with pytest.raises(ConceptError, match=r"expected a folder with index\.json, found none"):
        open_lists(tmp_path / "a", codes)
    index = build_lists(codes, tmp_path / "a", lists=12)
    for k, probes in ((0, 1), (1604, 1), (1, 0), (1, 13)):
        with pytest.raises(ConceptError, match=f"k from 1 to 1603 and probes from 1 to 12, got {k} and {probes}"):
            index.query(queries, k, probes=probes)
    with pytest.raises(ConceptError, match=r"expected bits uint8 \[q, 10\] for 77 concepts, got uint8 \[33, 9\]"):
        index.query(queries[:, :-1], 1)
    with pytest.raises(ConceptError, match="expected bits from number 77 on to be 0"):
        index.query(queries | np.uint8(128), 1)
    with pytest.raises(ConceptError, match="holds lists of other codes, or of another number or seed"):
        build_lists(codes, tmp_path / "a", lists=11)
    other = made(tmp_path / "other", [900, 700, 3], 77, seed=1)
    with pytest.raises(ConceptError, match="is of other codes than"):
        open_lists(tmp_path / "a", other)
    file = tmp_path / "a" / "part-00001.faiss"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(ConceptError, match=r"part-00001\.faiss is damaged: its SHA-256 differs"):
        open_lists(tmp_path / "a", codes).query(queries, 1)
    (tmp_path / "a" / INDEX).write_text('{"format": 1, "kind": "x", "parts": []}')
    with pytest.raises(ConceptError, match="is damaged, or no inverted lists"):
        open_lists(tmp_path / "a", codes)
    with pytest.raises(ConceptError, match="expected a new or empty folder"):
        build_lists(codes, tmp_path / "other")
