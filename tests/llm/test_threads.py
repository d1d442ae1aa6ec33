"""Work in threads: all results come, failures end it, nobody waits for what hangs."""

from __future__ import annotations

import threading
import time

import pytest

from htaf.llm import Stopped, in_threads


@pytest.mark.parametrize("parallel", [1, 3, 50])
def test_all_items_are_done_once(parallel: int) -> None:
    assert sorted(in_threads(range(20), lambda item, _: item * item, parallel)) == [i * i for i in range(20)]
    assert list(in_threads([], lambda item, _: item, parallel)) == []


def test_items_are_begun_in_their_order() -> None:
    begun = []
    list(in_threads([3, 1, 2], lambda item, _: begun.append(item), 1))
    assert begun == [3, 1, 2]


def test_a_failure_ends_the_work_after_what_is_under_way() -> None:
    started, go = threading.Barrier(2), threading.Event()

    def work(item: int, stop: threading.Event) -> int:
        if item < 2:
            started.wait(5)
        if item == 0:
            raise ValueError("down")
        assert stop.wait(5)
        go.set()
        return item

    found: list[int] = []
    with pytest.raises(ValueError, match="down"):
        found += in_threads(range(100), work, 2)
    assert go.is_set()
    begun = in_threads(range(100), work, 2)
    assert next(begun) == 1  # paid for, so it is given before the failure
    with pytest.raises(ValueError, match="down"):
        next(begun)


def test_work_may_stop_at_once() -> None:
    def work(item: int, stop: threading.Event) -> int:
        if item == 0:
            raise ValueError("down")
        stop.wait(5)
        raise Stopped

    with pytest.raises(ValueError, match="down"):
        list(in_threads(range(4), work, 4))


def test_a_reader_who_leaves_waits_for_nobody() -> None:
    release = threading.Event()

    def work(item: int, stop: threading.Event) -> int:
        if item:
            release.wait(20)
        return item

    results = in_threads(range(3), work, 3)
    assert next(results) == 0
    begun = time.monotonic()
    results.close()
    assert time.monotonic() - begun < 2
    release.set()
