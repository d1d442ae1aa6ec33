"""Nearest images against a sort of all distances, counted bit by bit."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from htaf.concepts.codes import Codes, ConceptError, codes_of
from htaf.concepts.search import NearestImages

pytest.importorskip("faiss", reason="needs htaf[search]")


def made(values: np.ndarray) -> Codes:
    return codes_of(values, np.zeros(len(values)), np.zeros((1, values.shape[1])), np.zeros(1))


def nearest(queries: np.ndarray, values: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """By the distances of bool [q, C] and [N, C]; a stable sort leaves equal ones in the order of the rows."""
    distances = (queries[:, None] != values[None]).sum(2)
    rows = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, rows, axis=1), rows


def same(found: tuple[np.ndarray, np.ndarray], expected: tuple[np.ndarray, np.ndarray]) -> None:
    assert found[0].dtype == np.int32
    assert found[1].dtype == np.int64
    assert np.array_equal(found[0], expected[0])
    assert np.array_equal(found[1], expected[1])


@given(data=st.data())
def test_nearest_images_with_many_ties(data: st.DataObject) -> None:
    draw = np.random.default_rng(data.draw(st.integers(0, 999)))
    concepts, images = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 300))
    few = draw.random((data.draw(st.integers(1, 6)), concepts)) < 0.5  # repeated: most distances are equal
    values = few[draw.integers(0, len(few), images)]
    queries = np.concatenate([values[:3], draw.random((2, concepts)) < 0.5])
    k = data.draw(st.integers(1, images))
    found = NearestImages(made(values)).query(made(queries).bits, k)
    same(found, nearest(queries, values, k))


@pytest.mark.parametrize("threads", [1, 3])
def test_ties_across_blocks_of_rows_and_threads(threads: int) -> None:
    draw = np.random.default_rng(0)
    values = (draw.random((9, 64)) < 0.5)[draw.integers(0, 9, 100_000)]
    queries, before = draw.random((20, 64)) < 0.5, torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        distances, rows = NearestImages(made(values)).query(made(queries).bits, 37)
    finally:
        torch.set_num_threads(before)
    same((distances, rows), nearest(queries, values, 37))


def test_neighbours_of_an_image_leave_it_out() -> None:
    draw = np.random.default_rng(1)
    values = draw.random((50, 12)) < 0.5
    values[[3, 9, 20, 30]] = values[40]
    index = NearestImages(made(values))
    assert len(index) == 50
    for row in (0, 3, 40, 49):
        others = np.delete(np.arange(50), row)
        for k in (1, 2, 3, 49):  # row 40 has four equals before it: it is not among its own three nearest
            distances, places = nearest(values[row : row + 1], values[others], k)
            found = index.of(row, k)
            same(found, (distances[0], others[places[0]]))
            assert row not in found[1]


def test_a_read_only_memory_map_and_no_queries(tmp_path: Path) -> None:
    values = np.random.default_rng(2).random((40, 20)) < 0.5
    codes = made(values)
    np.save(tmp_path / "bits.npy", codes.bits)
    mapped = np.load(tmp_path / "bits.npy", mmap_mode="r")
    index = NearestImages(dataclasses.replace(codes, bits=mapped))
    same(index.query(mapped[5:8], 4), nearest(values[5:8], values, 4))
    same(index.of(39, 1), tuple(x[0] for x in nearest(values[39:], values[:39], 1)))
    distances, rows = index.query(mapped[:0], 4)
    assert distances.shape == rows.shape == (0, 4)


def test_bad_input() -> None:
    codes = made(np.random.default_rng(3).random((10, 12)) < 0.5)
    index = NearestImages(codes)
    with pytest.raises(ConceptError, match=r"^expected bits uint8 \[q, 2\] for 12 concepts, got uint8 \[3, 1\]$"):
        index.query(codes.bits[:3, :1], 2)
    with pytest.raises(ConceptError, match=r"^expected bits from number 12 on to be 0, got a query that sets some$"):
        index.query(codes.bits[:3] | np.uint8(16), 2)
    for k in (0, 11):
        with pytest.raises(ConceptError, match=rf"^expected k from 1 to 10, got {k}$"):
            index.query(codes.bits[:3], k)
    for k in (0, 10):
        with pytest.raises(ConceptError, match=rf"^expected k from 1 to 9, got {k}$"):
            index.of(2, k)
    for row in (-1, 10):
        with pytest.raises(ConceptError, match=rf"^expected a row from 0 to 9, got {row}$"):
            index.of(row, 2)
    with pytest.raises(ConceptError, match=r"^expected images with concepts, got 0 images of 12 concepts$"):
        NearestImages(codes.take(np.arange(0)))


def test_without_faiss_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ConceptError, match=r"pip install 'htaf\[search\]'"):
        NearestImages(made(np.ones((3, 8), dtype=bool)))


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's list of threads")
@pytest.mark.slow
def test_faiss_takes_the_threads_of_torch_and_no_pool_of_its_own() -> None:
    program = """
import os, numpy as np, torch
torch.set_num_threads(2)
from htaf.concepts.codes import codes_of
from htaf.concepts.search import NearestImages
values = np.random.default_rng(0).random((20000, 64)) < 0.5
codes = codes_of(values, np.zeros(20000), np.zeros((1, 64)), np.zeros(1))
index = NearestImages(codes)
tasks = lambda: len(os.listdir("/proc/self/task"))
a = torch.randn(300, 300)
both = []
for threads in (2, 1, 2):
    torch.set_num_threads(threads)
    (a @ a).relu().sum(); torch.randn(1_000_000).exp_()
    before = tasks()
    index.query(codes.bits[:64], 3)
    both.append(tasks() - before)
    assert torch.get_num_threads() == threads
print(both)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[0, 0, 0]"
