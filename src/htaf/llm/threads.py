"""The same work for many items in threads: results as they come, an early end on failure, no waiting after Ctrl-C."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Stopped(Exception):
    """Another item's failure ends the work."""


def in_threads(
    items: Sequence[Item], work: Callable[[Item, threading.Event], Result], parallel: int
) -> Iterator[Result]:
    """What `work(item, stop)` gives for each item, in the order in which they are finished.

    The items are begun in their order. After a failure `stop` is set: work under way may continue to its end, or raise
    `Stopped` at once; its results still come, then the first failure is raised. When the reader gives up (Ctrl-C),
    nobody waits.

    Args:
        parallel: threads, >= 1.
    """
    todo: queue.SimpleQueue[Item] = queue.SimpleQueue()
    results: queue.SimpleQueue[tuple[str, Result | BaseException | None]] = queue.SimpleQueue()
    stop = threading.Event()
    for item in items:
        todo.put(item)

    def serve() -> None:
        try:
            while not stop.is_set():
                results.put(("done", work(todo.get_nowait(), stop)))
        except (queue.Empty, Stopped):
            pass
        except BaseException as error:  # whatever it is, the reader raises it
            stop.set()
            results.put(("failed", error))
        finally:
            results.put(("ended", None))

    alive = min(parallel, len(items))
    for _ in range(alive):
        threading.Thread(target=serve, daemon=True).start()  # daemon: work that hangs must not keep the program alive
    failure: BaseException | None = None
    try:
        while alive:
            kind, value = results.get()
            if kind == "done":
                yield value  # pyright: ignore[reportReturnType]  # "done" comes with a result
            elif kind == "ended":
                alive -= 1
            elif failure is None and isinstance(value, BaseException):
                failure = value
    finally:
        stop.set()
    if failure is not None:
        raise failure
