"""3 x 3 layers over packed bits with binary weights beside PyTorch's float32 and int8 convolutions, once tests pass.

    python benchmarks/binary_convolution.py [--channels 64 256] [--batches 1 32] [--threads 1 2] [--rounds 15]
                                            [--json FILE] [--no-test]

`bits`: bits to bits by an interval of the sums; `block`: scale, shift, residual, y and its bits. Float32 is oneDNN's
convolution of contiguous or of channels_last images and weights, the faster of the two; int8 is the quantized
convolution of the engines onednn and x86, likewise. Every round takes a sample of each, in reversed order every other
round; ratios are medians over the rounds of time of the other / time of htaf in the same round. The peak is xor,
popcount and add on registers, on one thread.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import measuring
import torch
from measuring import Sample
from torch import Tensor

from htaf.core.kernels import native
from htaf.core.kernels.binary_convolution import cpu
from htaf.core.kernels.layers import Epilogue, Geometry
from htaf.core.kernels.packed_maps import reference as maps

SIZES = {64: 56, 128: 28, 256: 14, 512: 7}  # pixels of a side, as in a residual network
SECONDS = 2e-3  # of a sample
PEAK_STEPS = 200_000
FLOAT32, INT8 = ("float32 contiguous", "float32 channels_last"), ("int8 onednn", "int8 x86")


def binary_calls(channels: int, batch: int) -> dict[str, Callable[[], Any]]:
    side, random = SIZES[channels], torch.Generator().manual_seed(0)
    geometry = Geometry(channels, channels, (3, 3), padding=(1, 1))
    bits = maps.pack(torch.rand(batch, side, side, channels, generator=random) < 0.5)
    weights = cpu.prepare(
        maps.pack(torch.rand(channels, 3, 3, channels, generator=random) < 0.5), geometry, bipolar=True
    )
    scale, shift, lower = torch.randn(3, channels, generator=random)
    residual = torch.randn(batch, side, side, channels, generator=random)
    upper = torch.full_like(lower, torch.inf)
    interval = Epilogue(lower=lower, upper=upper, keep=False)
    block = Epilogue(scale, shift, residual, lower, upper)
    return {
        "bits": lambda: cpu.forward(bits, weights, geometry, interval),
        "block": lambda: cpu.forward(bits, weights, geometry, block),
    }


def float_calls(channels: int, batch: int) -> dict[str, Callable[[], Any]]:
    side, random = SIZES[channels], torch.Generator().manual_seed(0)
    images = torch.randn(batch, channels, side, side, generator=random)
    weight = torch.randn(channels, channels, 3, 3, generator=random)
    calls: dict[str, Callable[[], Any]] = {}
    for name, layout in zip(FLOAT32, (torch.contiguous_format, torch.channels_last), strict=True):
        x, w = images.contiguous(memory_format=layout), weight.contiguous(memory_format=layout)
        calls[name] = lambda x=x, w=w: torch.conv2d(x, w, padding=1)
    for name in INT8:
        calls[name] = int8_call(images, weight, name.removeprefix("int8 "))
    return calls


def int8_call(images: Tensor, weight: Tensor, engine: str) -> Callable[[], Any]:
    """A quantized convolution, its weights laid out by the engine; 7 bits of activations, as x86 asks for."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = engine
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of quantized tensors, which PyTorch means to give up
            layer = torch.ao.nn.quantized.Conv2d(len(weight), len(weight), 3, padding=1)
            scales, zeros = torch.full((len(weight),), 0.03).double(), torch.zeros(len(weight)).long()
            w = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
            layer.set_weight_bias(w, None)
            layer.scale, layer.zero_point = 1.0, 64
            x = torch.quantize_per_tensor(images.contiguous(memory_format=torch.channels_last), 0.05, 64, torch.quint8)
    finally:
        torch.backends.quantized.engine = before
    return lambda: layer(x)  # the weights know their engine


def measure(channels: int, batch: int, threads: int, rounds: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    operations = 2 * 9 * channels**2 * SIZES[channels] ** 2 * batch
    calls = binary_calls(channels, batch) | float_calls(channels, batch)
    samples = {name: measuring.repeated(call, SECONDS) for name, call in calls.items()}
    times = measuring.alternate(samples, rounds)
    peak = measuring.spread(native.extension().popcount_peak(PEAK_STEPS) for _ in range(rounds)).median
    row: dict[str, Any] = {"channels": channels, "side": SIZES[channels], "batch": batch, "threads": threads}
    row |= {"rounds": rounds, "peak": peak, "ms": {n: 1e3 * median(t) for n, t in times.items()}}
    for name in ("bits", "block"):
        rate = operations / median(times[name])
        row[name] = {"operations_per_second": rate, "of_peak": rate / (peak * threads)}
        for base in (FLOAT32, INT8):
            best = min(base, key=lambda n: median(times[n]))
            ratio = measuring.ratio(times[best], times[name])
            row[name][base[0].split()[0]] = {
                "best": best, "ratio": ratio.median, "ratio_quartiles": [ratio.low, ratio.high],
            }  # fmt: skip
    return row


def median(times: list[Sample]) -> float:
    return measuring.spread(t[0] for t in times).median


def show(rows: list[dict[str, Any]]) -> None:
    cells = []
    for row in rows:
        for name in ("bits", "block"):
            found = row[name]
            rate = f"{found['operations_per_second'] / 1e12:.2f} ({found['of_peak']:.0%})"
            ratios = [f"{found[base]['ratio']:.1f} ({found[base]['best'].split()[1]})" for base in ("float32", "int8")]
            case = (f"{row['channels']}, {row['side']}", str(row["batch"]), str(row["threads"]))
            cells.append((*case, name, f"{row['ms'][name]:.3f}", rate, *ratios))
    columns = ("channels, side", "batch", "threads", "layer", "ms", "rate", "float32", "int8")
    title = "Binary 3 x 3 layers: ms, 10^12 operations a second (share of the peak), times faster"
    measuring.show(title, columns, cells, ["layer"])


def main() -> None:
    parser = measuring.parser(__doc__, rounds=15, batches=(1, 32), threads=(1, 2))
    parser.add_argument("--channels", type=int, nargs="+", choices=list(SIZES), default=list(SIZES))
    if not native.available():
        raise SystemExit("expected the compiled kernels, got htaf without them")
    arguments = measuring.begin(parser, "kernels/test_binary_convolution.py")
    rows = [
        measure(channels, batch, threads, arguments.rounds)
        for threads in arguments.threads
        for batch in arguments.batches
        for channels in arguments.channels
    ]
    show(rows)
    alone = native.extension().popcount_peak(PEAK_STEPS, counts_alone=True)
    peak = measuring.spread(row["peak"] for row in rows).median
    print(f"peak of one thread: {peak / 1e12:.2f}; popcount alone: {alone / 1e12:.2f} (10^12 operations a second)")
    measuring.end(arguments, rows)


if __name__ == "__main__":
    main()
