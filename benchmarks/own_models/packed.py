"""What `keep="first"` costs in packed inference: its time over that of steps throughout, in one run, in turn.

    python -m benchmarks.own_models.packed [--tasks ...] [--batches 1 32]

The networks are not trained: time does not depend on weights. Outputs are compared first.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable

import torch
from benchmarks.own_models.tasks import NAMES
from torch import nn

import htaf

ROUNDS, LEAST = 9, 0.02  # of a side in turn, and seconds of each


def seconds_of(run: Callable[[], object]) -> float:
    begin, count = time.perf_counter(), 0
    while time.perf_counter() < begin + LEAST:
        run()
        count += 1
    return (time.perf_counter() - begin) / count


def packed(task: str, batch: int) -> tuple[list[float], list[float]]:
    """Seconds of one batch with steps throughout, and with the first activation real."""
    problem = importlib.import_module(f"benchmarks.own_models.tasks.{task}").make(0)
    x = problem.example[:batch]
    sides = []
    for keep in (None, "first"):
        net = htaf.replace(problem.net(nn.ReLU), where=problem.where, example=problem.example, keep=keep)
        exact = htaf.harden(net).eval()
        made = htaf.pack(exact, x)
        torch.testing.assert_close(made(x), exact(x), atol=1e-3, rtol=1e-3)
        sides.append((made, []))
    for _ in range(ROUNDS):
        for made, found in sides:
            found.append(seconds_of(lambda made=made: made(x)))
    return sides[0][1], sides[1][1]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["shapes", "keypoints", "forecast", "tabular"], choices=NAMES)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32])
    args = parser.parse_args()
    torch.set_num_threads(1)
    for task in args.tasks:
        for batch in args.batches:
            steps, first = packed(task, batch)
            ratio = statistics.median(first) / statistics.median(steps)
            print(
                f"{task} batch {batch}: {1e3 * statistics.median(steps):.3f} ms, first real {ratio:.2f} times",
                flush=True,
            )


if __name__ == "__main__":
    main()
