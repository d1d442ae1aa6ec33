"""Time of depthwise layers on packed bits beside PyTorch's float32 convolution, once their tests pass.

    python benchmarks/depthwise_convolution.py [--threads 1 2] [--batches 1 32] [--rounds 9] [--only 64x112 ...]
                                               [--network NAME] [--json FILE] [--no-test]

Layers of 3 x 3 with padding 1 (CxS: C channels, images of S x S, sN: stride N), weights N(0, 1 / 9), half of the bits
set. A sample is one whole layer: `bits` from bits by a batch norm and a step to bits, `floats` to the float32 sums.
PyTorch's is the convolution alone, contiguous and channels_last; the base is the one with the lower median.
`without` is what packed inference does without the kernel: bits to floats, PyTorch's convolution in channels_last,
batch norm and step. A ratio is the median over the rounds of time of the base / time.

The last rows are a whole network of timm's, its activations exact steps, 224 x 224 pixels: packed, beside PyTorch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import measuring
import timm
import torch
from table_convolution import BASES, SECONDS
from torch import nn

import htaf
from htaf.kernels.depthwise_convolution import cpu
from htaf.kernels.layers import Epilogue, Geometry
from htaf.kernels.packed_maps import cpu as maps
from htaf.kernels.packed_maps import reference

LAYERS = ((32, 112, 1), (64, 112, 2), (128, 56, 1), (256, 28, 1), (512, 14, 1), (1024, 7, 1))  # of MobileNet
NETWORK = "mobilenetv1_100"


def layer_ways(channels: int, size: int, stride: int, batch: int) -> dict[str, Callable[[], object]]:
    made = torch.Generator().manual_seed(0)
    geometry = Geometry(channels, channels, (3, 3), (stride, stride), (1, 1), groups=channels)
    weight = torch.randn(channels, 1, 3, 3, generator=made) / 3
    images = torch.rand(batch, size, size, channels, generator=made) < 0.5
    bits, floats = reference.pack(images), images.float().permute(0, 3, 1, 2)
    ways: dict[str, Callable[[], object]] = {}
    for name, layout in zip(BASES, (torch.contiguous_format, torch.channels_last), strict=True):
        x, w = (v.contiguous(memory_format=layout) for v in (floats, weight))
        ways[name] = lambda x=x, w=w: torch.conv2d(x, w, None, stride, 1, 1, channels)
    ones = torch.ones(channels)
    step = Epilogue(ones, 0.1 * ones, lower=0.0 * ones, upper=torch.inf * ones, keep=False)
    last = weight.contiguous(memory_format=torch.channels_last)

    def without() -> object:
        x = maps.unpack(bits, channels).permute(0, 3, 1, 2)
        sums = torch.conv2d(x, last, None, stride, 1, 1, channels)
        return maps.finish(sums.permute(0, 2, 3, 1).contiguous(), step)

    ways["without"] = without
    weights = cpu.prepare(weight, geometry)
    to_bits, to_floats = cpu.bind(weights, geometry, step), cpu.bind(weights, geometry, Epilogue())
    ways["bits"] = lambda: to_bits(bits)
    ways["floats"] = lambda: to_floats(bits)
    return ways


def network_ways(name: str, batch: int) -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    net = timm.create_model(name, num_classes=100)
    for path, module in [*net.named_modules()]:
        if isinstance(module, (nn.ReLU, nn.ReLU6)):
            net.set_submodule(path, htaf.HTAF())
    x = torch.randn(batch, 3, 224, 224)
    net(torch.randn(8, 3, 224, 224))  # batch norms see data once
    net = htaf.harden(net.eval())
    packed = htaf.pack(net, x[:1])
    ways: dict[str, Callable[[], object]] = {"contiguous": lambda: net(x)}
    last, images = (v.to(memory_format=torch.channels_last) for v in (copy.deepcopy(net), x))
    ways["channels_last"] = lambda: last(images)
    ways["packed"] = lambda: packed(x)
    return ways


@torch.inference_mode()
def measure(
    what: str, ways: dict[str, Callable[[], object]], case: dict[str, int], rounds: int
) -> list[dict[str, Any]]:
    samples = {name: measuring.repeated(run, SECONDS) for name, run in ways.items()}
    times = measuring.alternate(samples, rounds)
    median = {name: measuring.spread(s[0] for s in times[name]).median for name in times}
    base = min(BASES, key=median.__getitem__)
    rows = []
    for way in times:
        ratio = measuring.ratio(times[base], times[way])
        row = {"layer": what, "way": way, **case, "rounds": rounds, "base": base, "ms": 1e3 * median[way]}
        rows.append(row | {"ratio": ratio.median, "ratio_quartiles": [ratio.low, ratio.high]})
    return rows


def show(rows: list[dict[str, Any]], title: str) -> None:
    ways = [way for way in dict.fromkeys(row["way"] for row in rows) if way not in BASES]
    cells = []
    for what in dict.fromkeys(row["layer"] for row in rows):
        found = {row["way"]: row for row in rows if row["layer"] == what}
        base = found[found["contiguous"]["base"]]
        cells.append((what, f"{base['ms']:.3f}", *(cell(found[way]) if way in found else "" for way in ways)))
    measuring.show(title, ("layer", "PyTorch ms", *ways), cells, ["layer"])


def cell(row: dict[str, Any]) -> str:
    low, high = row["ratio_quartiles"]
    return f"{row['ratio']:.2f} ({low:.2f}-{high:.2f})"


def main() -> None:
    parser = measuring.parser(__doc__, rounds=9, threads=(1, 2), batches=(1, 32))
    layers = {f"{c}x{s}" + (f"s{stride}" if stride > 1 else ""): (c, s, stride) for c, s, stride in LAYERS}
    parser.add_argument("--only", nargs="+", choices=layers, default=[*layers], metavar="CxS", help=" ".join(layers))
    parser.add_argument("--network", default=NETWORK, help=f"of timm's (default: {NETWORK})")
    arguments = measuring.begin(parser, "kernels/test_depthwise_convolution.py")
    rows = []
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        for batch in arguments.batches:
            case, found = {"batch": batch, "threads": threads}, []
            for name in arguments.only:
                found += measure(name, layer_ways(*layers[name], batch), case, arguments.rounds)
            found += measure(arguments.network, network_ways(arguments.network, batch), case, arguments.rounds)
            threads_named = f"{threads} thread{'s' * (threads > 1)}"
            show(found, f"Batch {batch}, {threads_named}: times as fast as PyTorch (quartiles)")
            rows += found
    measuring.end(arguments, rows)


if __name__ == "__main__":
    main()
