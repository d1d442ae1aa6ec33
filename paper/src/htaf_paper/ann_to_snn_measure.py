"""Accuracy and time of a converted network, step by step, beside its ReLU network and a directly trained SNN."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from jaxtyping import Float32, Int64
from torch import Tensor, nn

from htaf._ground.errors import HtafError
from htaf_paper.balanced import STEPS, folded, to_spiking


class ComparisonError(HtafError, ValueError):
    """Runs or a folder that cannot be compared as asked."""


@dataclass(frozen=True)
class Pair:
    """A ReLU network, a directly trained spiking one, and the images on which they are compared.

    relu, snn: networks, [n, C, H, W] -> [n, classes].
    relu_images, snn_images: the test images as each network takes them, float32 [n, C, H, W].
    labels: int64 [n].
    calibration: training images as the ReLU network takes them, float32 [m, C, H, W].
    """

    relu: nn.Module
    snn: nn.Module
    relu_images: Float32[Tensor, "n c h w"]
    snn_images: Float32[Tensor, "n c h w"]
    labels: Int64[Tensor, " n"]
    calibration: Float32[Tensor, "m c h w"]


def compare(
    pair: Pair,
    options: Mapping[str, Any],
    *,
    steps: Sequence[int] = STEPS,
    batch_size: int = 100,
    repeats: int = 3,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Accuracy and wall time of one way of balancing, beside those of the ReLU network and of the direct SNN.

    Args:
        pair: what to compare.
        options: of `htaf_paper.balanced.to_spiking`.
        steps: values of T for the times, increasing; accuracies are taken at every T up to the last.
        batch_size: of all three networks, and of the calibration.
        repeats: runs of the ReLU network and the SNN on a batch, of which the median time counts. The converted
            network runs once.
        progress: told what is done after each batch.

    Returns:
        {"accuracy": {T: share}, "seconds": {T: s}, "accuracy_by_step": [share, ...] for T = 1, 2, ...,
        "passes_at": see `passes_at`, "thresholds": {path: s}, "conversion_seconds",
        "relu" and "snn": {"accuracy", "seconds"}}; times are for all images.

    Raises:
        ComparisonError: the ReLU network cannot be converted.
    """
    last, n = steps[-1], len(pair.labels)
    start = time.perf_counter()
    try:
        spiking = to_spiking(pair.relu, pair.calibration.split(batch_size), **options)
    except ValueError as error:
        raise ComparisonError(f"the ReLU network cannot be converted: {error}") from None
    conversion = time.perf_counter() - start
    direct = {
        "relu": (_fast(pair.relu), pair.relu_images),
        "snn": (_fast(pair.snn), pair.snn_images),
    }
    correct, seconds = [0] * last, [0.0] * last
    hits, spent = dict.fromkeys(direct, 0), dict.fromkeys(direct, 0.0)
    for network, images in direct.values():  # the first calls choose kernels
        _timed(network, images[:batch_size])
    spiking(pair.relu_images[:batch_size], 2)
    for begin in range(0, n, batch_size):
        rows = slice(begin, begin + batch_size)
        labels = pair.labels[rows]
        for name, (network, images) in direct.items():
            runs = [_timed(network, images[rows]) for _ in range(repeats)]
            spent[name] += median(taken for _, taken in runs)
            hits[name] += _hits(runs[0][0], labels)
        total, since = 0.0, time.perf_counter()
        for t, mean in spiking.run(pair.relu_images[rows], range(1, last + 1)):
            total += time.perf_counter() - since  # without what is done here between the steps
            seconds[t - 1] += total
            correct[t - 1] += _hits(mean, labels)
            since = time.perf_counter()
        progress(f"{min(begin + batch_size, n)} of {n} images")
    return {
        "images": n,
        "accuracy": {str(t): correct[t - 1] / n for t in steps},
        "seconds": {str(t): seconds[t - 1] for t in steps},
        "accuracy_by_step": [c / n for c in correct],
        "passes_at": passes_at(correct, hits["snn"]),
        "thresholds": {path: neuron.threshold.tolist() for path, neuron in spiking.neurons.items()},
        "conversion_seconds": conversion,
        **{name: {"accuracy": hits[name] / n, "seconds": spent[name]} for name in direct},
    }


def passes_at(correct: Sequence[int], direct: int) -> int | None:
    """The first T from which on more is correct than `direct`, at every T up to the last; None where there is none.

    Args:
        correct: correct predictions at T = 1, 2, ...
        direct: those of the network compared with.
    """
    stays = len(correct)
    while stays and correct[stays - 1] > direct:
        stays -= 1
    return stays + 1 if stays < len(correct) else None


def _fast(model: nn.Module) -> nn.Module:
    return folded(model).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


@torch.no_grad()
def _timed(network: nn.Module, x: Tensor) -> tuple[Tensor, float]:
    start = time.perf_counter()
    out = network(x.contiguous(memory_format=torch.channels_last))
    return out, time.perf_counter() - start


def _hits(outputs: Tensor, labels: Tensor) -> int:
    return int((outputs.argmax(1) == labels).sum())
