"""What a store costs: a thousand tiny cells through a queue on each kind of store, against the same cells without one.

A cell squares a number and writes its result, so that nearly all of the time is that of the store. Every worker is a
thread with a connection of its own. Calls: what is asked of Optuna's storage, a cell.

    python benchmarks/stores.py --cells 1000 --workers 1 4 --json results/stores/stores.json
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measuring import ROOT, alternate, at_least_one, parser, ratio, spread, test_first, warn_when_busy, write

sys.path.insert(0, str(ROOT / "tests"))

from htaf.training import worker
from htaf.training.queue import Place, Queue
from htaf.training.results import Results
from htaf.training.store import open_store
from htaf.training.worker import Work, compute_all
from made_cells import KINDS, MADE, made

STORES = ("folder", "journal", "postgresql", "grpc")


@contextlib.contextmanager
def addresses(kinds: list[str]) -> Iterator[dict[str, Any]]:
    """Functions that give the address of a new store, by kind; servers run while the block does."""
    from made_stores import Proxy, postgres

    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        count = iter(range(10**6))
        known: dict[str, Any] = {
            "folder": lambda: str(root / str(next(count))),
            "journal": lambda: f"journal:{root / str(next(count))}.journal",
        }
        if {"postgresql", "grpc"} & {*kinds}:
            server = stack.enter_context(postgres())
            known["postgresql"] = server.fresh
            if "grpc" in kinds:
                proxy = Proxy(server.fresh())
                stack.callback(proxy.stop)
                known["grpc"] = lambda: proxy.address
        yield {kind: known[kind] for kind in kinds}


def without(cells: int) -> tuple[float, ...]:
    """Seconds without a store."""
    with tempfile.TemporaryDirectory() as folder:
        results, tasks, begun = Results(folder), made(cells), time.perf_counter()
        place = Place(None, "cpu", 1, Path(folder), results)
        for task in tasks:
            if results.read(task.key) is None:
                results.write(task.key, MADE.compute(task.payload, task.key, place))
        return (time.perf_counter() - begun,)


def through(address: str, cells: int, workers: int, calls: list[float]) -> tuple[float, ...]:
    """Seconds in all, and of putting the tasks."""
    with tempfile.TemporaryDirectory() as folder:
        name, results, stores = f"s{time.monotonic_ns()}", Results(Path(folder) / "out"), []
        real = open_store
        worker.open_store = lambda *given, **named: stores.append(real(*given, **named)) or stores[-1]
        store = open_store(address)
        begun = time.perf_counter()
        queue = Queue.made(store, name, {"results": results.place, "token": results.token("t")})
        queue.put(made(cells))
        put = time.perf_counter() - begun
        work = Work(address, kinds=KINDS, only=name, work=Path(folder) / "work")
        crowd = [threading.Thread(target=compute_all, args=(work,)) for _ in range(workers)]
        for one in crowd:
            one.start()
        for one in crowd:
            one.join()
        spent = time.perf_counter() - begun
        worker.open_store = real
        assert queue.counts() == {"computed": cells}, queue.counts()
        calls.append(sum(sum(one.calls.values()) for one in (store, *stores)) / cells)
        return spent, put


def main() -> None:
    given = parser(__doc__, rounds=3)
    given.add_argument("--cells", type=at_least_one, default=1000)
    given.add_argument("--workers", type=at_least_one, nargs="+", default=[1, 4])
    given.add_argument("--stores", choices=STORES, nargs="+", default=[*STORES])
    args = given.parse_args()
    if not args.no_test:
        test_first("training/test_queue.py")
    warn_when_busy()
    rows: list[dict[str, Any]] = []
    with addresses(args.stores) as places:
        for workers in args.workers:
            calls: dict[str, list[float]] = {kind: [] for kind in args.stores}
            sides: dict[str, Any] = {"none": lambda: without(args.cells)}
            for kind in args.stores:
                sides[kind] = lambda kind=kind: through(places[kind](), args.cells, workers, calls[kind])  # noqa: B023
            times = alternate(sides, args.rounds, warm_up=0)
            for kind, found in times.items():
                whole, against = spread(t[0] for t in found), ratio(found, times["none"])
                put = None if kind == "none" else spread(t[1] for t in found).median
                asked = None if kind == "none" else spread(calls[kind]).median
                row = {"store": kind, "workers": workers if asked else 1, "cells": args.cells, "seconds": whole.median}
                rows.append(row | {"of_putting": put, "ratio_to_none": against.median, "calls_a_cell": asked})
                told = "" if asked is None else f", {put:.1f} s of it to put; {asked:.1f} calls a cell"
                print(
                    f"{kind}, {row['workers']} workers: {args.cells} cells in {whole} s, {against} of none{told}",
                    flush=True,
                )
            write(args.json, rows)  # a benchmark that is stopped has said what it knows


if __name__ == "__main__":
    main()
