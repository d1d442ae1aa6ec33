"""Training steps of SEW-ResNet-18 a second, beside SpikingJelly's multi-step network with the same weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import measuring
import torch
from networks import exact_spike, pair
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from htaf.spiking.neurons import IF

FORMATS = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}
OURS = {"htaf": IF, "straight-through": lambda: IF(exact_spike())}
PEER = "spikingjelly"


def sample(net: nn.Module, x: Tensor, label: Tensor) -> tuple[float]:
    """Seconds of a training step without the optimizer, which is the same on both sides."""
    start = time.perf_counter()
    net.zero_grad(set_to_none=True)
    cross_entropy(net(x), label).backward()
    return (time.perf_counter() - start,)


def measure(width: int, threads: int, batch: int, steps: int, rounds: int) -> list[dict[str, Any]]:
    torch.set_num_threads(threads)
    samples: dict[tuple[str, str], Callable[[], tuple[float]]] = {}
    for layout, memory_format in FORMATS.items():
        nets: dict[str, nn.Module] = {}
        for name, neuron in OURS.items():
            nets[name], nets[PEER] = pair(neuron, width=width, steps=steps)
        torch.manual_seed(1)
        x = torch.randn(batch, 3, 32, 32).to(memory_format=memory_format)
        label = torch.randint(10, (batch,))
        for name, net in nets.items():
            samples[name, layout] = partial(sample, net.to(memory_format=memory_format), x, label)
    times = measuring.alternate(samples, rounds)
    medians = {key: measuring.spread(t[0] for t in spent).median for key, spent in times.items()}
    best = min((key for key in times if key[0] == PEER), key=lambda key: medians[key])
    return [
        {
            "part": "throughput", "network": name, "format": layout, "width": width, "threads": threads, "batch": batch,
            "steps": steps, "rounds": rounds, "peer_format": best[1],
            "ms": 1e3 * medians[name, layout],
            "images_per_second": batch / medians[name, layout],
            "over_peer": measuring.ratio(times[best], spent)._asdict(),
        }
        for (name, layout), spent in times.items()
    ]  # fmt: skip


def show(rows: list[dict[str, Any]], console: Console, target: float) -> None:
    table = Table(title="Training step of SEW-ResNet-18; ratio: SpikingJelly's quicker format / time (quartiles)")
    for name in ("width", "threads", "batch", "network", "format", "ms", "images/s", "ratio"):
        table.add_column(name, justify="left" if name in ("network", "format") else "right", no_wrap=True)
    for r in rows:
        cells = [str(r["width"]), str(r["threads"]), str(r["batch"]), r["network"], r["format"], f"{r['ms']:.0f}"]
        table.add_row(*cells, f"{r['images_per_second']:.1f}", str(measuring.Spread(**r["over_peer"])))
    console.print(table)
    cases: dict[tuple[Any, ...], float] = {}
    for r in rows:
        if r["network"] != PEER:
            key = (r["network"], r["width"], r["threads"])
            cases[key] = max(cases.get(key, 0.0), r["over_peer"]["median"])
    met, least = sum(ratio >= target for ratio in cases.values()), min(cases.values())
    console.print(
        f"ours in its best format {target} times as fast or more: {met} of {len(cases)}; the least {least:.2f}"
    )
