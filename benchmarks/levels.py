"""Time of the packed quick network with steps of two levels, beside one level, on one core.

    python benchmarks/levels.py [--batches 1 32] [--runs 30]

Random weights: time does not depend on them. All networks run in turn in one process; a ratio is the median of the
ratios of one turn to that of the first row, in brackets its quartiles.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import numpy as np
import torch
from torch import nn

import htaf
from htaf.core.binary import BinaryConv2d
from htaf.models.whitened import WhitenedConvNet
from htaf.transform.grid import on_grid

NETWORKS = (  # name, widths, levels
    ("one level, 64-256-256", (64, 256, 256), 1),
    ("two levels, 48-176-176", (48, 176, 176), 2),
    ("two levels, 64-256-256", (64, 256, 256), 2),
)


def packed_network(widths: tuple[int, ...], levels: int, weights: str, x: torch.Tensor) -> nn.Module:
    """A packed network of these weights: float, int8 or binary."""
    torch.manual_seed(0)
    conv = BinaryConv2d if weights == "binary" else nn.Conv2d
    net = WhitenedConvNet(10, partial(htaf.HTAF, 0.4, 5.0, levels=levels), widths=widths, conv=conv)
    net = on_grid(net, x) if weights == "int8" else net
    with torch.no_grad():
        net.train()(x)
    return htaf.pack(htaf.harden(net.eval()), x)


def measure(batch: int, runs: int) -> None:
    x = torch.randn(max(batch, 32), 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for weights in ("float", "int8", "binary"):
        nets = {name: packed_network(widths, levels, weights, x) for name, widths, levels in NETWORKS}
        given, times = x[:batch], {name: list[float]() for name in nets}
        for turn in range(runs + 3):
            for name, net in nets.items():
                start = time.perf_counter()
                net(given)
                if turn >= 3:
                    times[name].append(1e3 * (time.perf_counter() - start))
        first = np.array(times[NETWORKS[0][0]])
        for name, found in times.items():
            low, middle, high = np.quantile(np.array(found) / first, [0.25, 0.5, 0.75])
            shown = f"{np.median(found):8.2f} ms   {middle:.2f} ({low:.2f}-{high:.2f})"
            print(f"batch {batch:3} {weights:7} {name:24} {shown}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--runs", type=int, default=30)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for batch in given.batches:
        measure(batch, given.runs)


if __name__ == "__main__":
    main()
