"""Time and error of real weights on packed bits beside PyTorch's float32 convolution, once their tests pass.

    python benchmarks/table_convolution.py [--threads 1 2] [--batches 1 32] [--rounds 9] [--only 64x56 ...]
                                           [--json FILE] [--no-test]

Layers of 3 x 3 with padding 1 (CxS: C channels and outputs, images of S x S), weights N(0, 1 / K), half of the bits
set. A sample is one whole layer, bits to bits: indices, tables, sums, batch norm and step; `floats` is bits to float32,
`bits alone` the layer bound, whose float32 bits come from int16 sums and repairs.
PyTorch's is the convolution alone, contiguous and channels_last; the base is the one with the lower median. A ratio is
the median over the rounds of time of the base / time. The permutation peak is what lookups and additions on registers
alone reach. Errors are those of the outputs over their standard deviation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import measuring
import torch

from htaf.core.kernels.layers import Epilogue, Geometry
from htaf.core.kernels.packed_maps import reference as maps
from htaf.core.kernels.table_convolution import cpu
from htaf.core.kernels.table_convolution.reference import Kind

LAYERS = ((64, 56), (128, 28), (256, 14), (512, 7), (32, 32), (64, 16), (128, 8))  # of ResNet-18 and WRN-40-2
KINDS: tuple[Kind, ...] = ("float32", "int16", "int8")
SECONDS = 2e-3  # a sample repeats a layer for about so long
BASES = ("contiguous", "channels_last")


class Layer:
    """One layer on one batch: what is timed."""

    def __init__(self, channels: int, size: int, batch: int) -> None:
        made = torch.Generator().manual_seed(0)
        self.geometry = Geometry(channels, channels, (3, 3), padding=(1, 1))
        self.weight = torch.randn(channels, channels, 3, 3, generator=made) / (9 * channels) ** 0.5
        images = torch.rand(batch, size, size, channels, generator=made) < 0.5
        self.bits = maps.pack(images)
        self.images = images.float().permute(0, 3, 1, 2)  # channels_last
        ones = torch.ones(channels)
        self.step = Epilogue(ones, 0.1 * ones, lower=0.0 * ones, upper=torch.inf * ones, keep=False)
        self.weights = {kind: cpu.prepare(self.weight, self.geometry, kind) for kind in KINDS}
        self.operations = 2 * self.weight.numel() * batch * size * size

    def ways(self) -> dict[str, Callable[[], object]]:
        ways: dict[str, Callable[[], object]] = {}
        for name, layout in zip(BASES, (torch.contiguous_format, torch.channels_last), strict=True):
            x, w = (v.contiguous(memory_format=layout) for v in (self.images, self.weight))
            ways[name] = lambda x=x, w=w: torch.conv2d(x, w, None, 1, 1)
        layer = cpu.bind(self.weights["float32"], self.geometry, self.step)
        ways["float32, bits alone"] = lambda: layer(self.bits)
        for kind, weights in self.weights.items():
            ways[kind] = lambda w=weights: cpu.forward(self.bits, w, self.geometry, self.step)
            ways[f"{kind}, floats"] = lambda w=weights: cpu.forward(self.bits, w, self.geometry, Epilogue())
        return ways

    def errors(self, kind: Kind) -> dict[str, float]:
        """Of the first images, over the standard deviation of the exact outputs."""
        bits, images = self.bits[:4], self.images[:4].double()
        exact = torch.conv2d(images, self.weight.double(), None, 1, 1).permute(0, 2, 3, 1)
        y, _ = cpu.forward(bits, self.weights[kind], self.geometry, Epilogue())
        assert y is not None
        error, scale = (y - exact).abs(), exact.std()
        return {
            "max": float(error.max() / scale),
            "rms": float(error.square().mean().sqrt() / scale),
            "bound": float(self.weights[kind].error.max() / scale),
        }


@torch.inference_mode()
def measure(
    channels: int, size: int, batch: int, threads: int, rounds: int, peaks: dict[Kind, float]
) -> list[dict[str, Any]]:
    torch.set_num_threads(threads)
    layer = Layer(channels, size, batch)
    times = measuring.alternate({name: measuring.repeated(run, SECONDS) for name, run in layer.ways().items()}, rounds)
    median = {name: measuring.spread(s[0] for s in times[name]).median for name in times}
    base = min(BASES, key=median.__getitem__)
    case = {"layer": f"{channels}x{size}", "batch": batch, "threads": threads, "rounds": rounds, "base": base}
    rows = []
    for name in times:
        ratio = measuring.ratio(times[base], times[name])
        rate = layer.operations / median[name]
        row = {"way": name, **case, "ms": 1e3 * median[name], "ratio": ratio.median}
        row |= {"ratio_quartiles": [ratio.low, ratio.high], "tops": rate / 1e12}
        kind = next((k for k in KINDS if k == name.partition(",")[0]), None)
        if kind is not None:
            row["peak_fraction"] = rate / (peaks[kind] * threads) if peaks[kind] else None
            row["error"] = layer.errors(kind)
        rows.append(row)
    return rows


def show(rows: list[dict[str, Any]], batch: int, threads: int) -> None:
    rows = [row for row in rows if (row["batch"], row["threads"]) == (batch, threads)]
    ways = [w for w in dict.fromkeys(row["way"] for row in rows) if w not in BASES]
    cells = []
    for layer in dict.fromkeys(row["layer"] for row in rows):
        found = {row["way"]: row for row in rows if row["layer"] == layer}
        base = found[found["contiguous"]["base"]]
        cells.append([layer, f"{base['ms']:.3f} ({base['tops']:.3f})"])
        for way in ways:
            share = found[way]["peak_fraction"]
            cells[-1].append(f"{found[way]['ratio']:.2f}" + ("" if share is None else f" ({share:.0%})"))
    title = f"Batch {batch}, {threads} thread{'s' * (threads > 1)}: times as fast as PyTorch (share of the peak)"
    measuring.show(title, ("layer", "PyTorch ms (TOPS)", *ways), cells, ["layer"])


def show_errors(rows: list[dict[str, Any]]) -> None:
    cells = []
    for layer in dict.fromkeys(row["layer"] for row in rows):
        found = {row["way"]: row["error"] for row in rows if row["layer"] == layer and row["way"] in KINDS}
        cells.append((layer, *(f"{e['rms']:.1e} {e['max']:.1e} {e['bound']:.1e}" for e in (found[k] for k in KINDS))))
    title = "Error over the standard deviation of the outputs: root of the mean square, largest, bound"
    measuring.show(title, ("layer", *KINDS), cells, ["layer"])


def main() -> None:
    parser = measuring.parser(__doc__, rounds=9, threads=(1, 2), batches=(1, 32))
    names = [f"{c}x{s}" for c, s in LAYERS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="CxS", help=" ".join(names))
    arguments = measuring.begin(parser, "kernels/test_table_convolution.py")
    rows = []
    peaks: dict[Kind, float] = {kind: cpu.peak(kind) for kind in KINDS}
    print("permutation peak of one thread: " + ", ".join(f"{k} {v / 1e12:.2f} TOPS" for k, v in peaks.items()))
    for threads in arguments.threads:
        for batch in arguments.batches:
            for (channels, size), name in zip(LAYERS, names, strict=True):
                if name in arguments.only:
                    rows += measure(channels, size, batch, threads, arguments.rounds, peaks)
            show(rows, batch, threads)
    show_errors(rows)
    measuring.end(arguments, [{"way": k, "peak_tops": v / 1e12} for k, v in peaks.items()] + rows)


if __name__ == "__main__":
    main()
