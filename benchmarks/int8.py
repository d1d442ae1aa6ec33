"""Networks of bits beside int8 networks of ReLU in OpenVINO, which is what people deploy on processors like this one.

    python benchmarks/int8.py [--batches 1 32] [--threads 1 2] [--rounds 15] [--json FILE] [--no-test]
    python benchmarks/int8.py --draw FILE --to docs/figures/int8.png    # of what --json wrote; times nothing

It needs `pip install openvino nncf`. All are `WhitenedConvNet` of some widths on images of 32 x 32 with random weights,
batch norms that have seen random images. Sides: ReLU in OpenVINO int8 (NNCF after training, its defaults) and bf16;
the network of steps in OpenVINO int8; packed, with int8 and with binary weights. The base is ReLU int8 of 64-256-256. A
ratio is the median over the rounds of base / time in the same round, with its quartiles. `difference`: the largest
difference of the outputs from those of the network itself, 0 where a packed one is the network. Ratios hold for a class
of processors (AVX2, AVX-512 VNNI, AMX), so each table names the processor and its class.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import measuring
import torch
from torch import Tensor, nn

import htaf
import packed as whole_networks
from htaf.core.binary import BinaryConv2d
from htaf.models.whitened import WhitenedConvNet
from htaf.transform.grid import settled

SHAPE = (3, 32, 32)
WIDTHS = {"64-256-256": (64, 256, 256), "48-192-192": (48, 192, 192), "32-128-128": (32, 128, 128)}
BASE = "ReLU 64-256-256, OpenVINO int8"
ACCURACY = {  # % of CIFAR-10's test images, docs/where-it-pays.md says of which runs
    BASE: 92.3,
    "ReLU 32-128-128, OpenVINO int8": 90.0,
    "bits 64-256-256, packed, int8 weights": 85.4,
    "bits 64-256-256, packed, binary weights": 78.4,
}


def seen(net: nn.Module) -> nn.Module:
    """The network after it saw random images."""
    images = torch.rand(128, 3, 8, 8).repeat_interleave(4, 2).repeat_interleave(4, 3) * 2 - 1
    images = images + 0.3 * torch.randn(128, *SHAPE)
    net.whiten(images)  # pyright: ignore
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d) and layer.weight.requires_grad:
            nn.init.kaiming_normal_(layer.weight)
    with torch.no_grad():
        for _ in range(3):
            net.train()(images)
    return net.eval()


def relu(widths: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(0)
    return seen(WhitenedConvNet(10, nn.ReLU, widths=widths))


def steps(widths: tuple[int, ...], *, binary: bool) -> nn.Module:
    """The exact network with int8, or binary, weights."""
    torch.manual_seed(0)
    conv = BinaryConv2d if binary else nn.Conv2d
    net = WhitenedConvNet(10, partial(htaf.HTAF, 0.4, 5.0, bipolar=binary), widths=widths, conv=conv)
    return htaf.harden(htaf.on_grid(seen(net), torch.randn(2, *SHAPE))).eval()


def openvino(net: nn.Module, x: Tensor, threads: int, kind: str) -> Callable[[], Any]:
    sys.path.insert(0, str(Path(__file__).parent / "peers" / "openvino"))
    import networks  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as folder:
        model = networks.read(whole_networks.exported(net, x, Path(folder)), tuple(x.shape))
    if kind == "int8":
        model = networks.int8(model, torch.randn(networks.CALIBRATION, *SHAPE))
    return networks.compiled(model, x, threads, "f32" if kind == "int8" else kind)


@torch.no_grad()
def measure(batch: int, threads: int, rounds: int) -> list[dict[str, Any]]:
    torch.set_num_threads(threads)
    x = torch.randn(batch, *SHAPE)
    sides: dict[str, Callable[[], Any]] = {}
    own: dict[str, nn.Module] = {}
    for name, widths in WIDTHS.items():
        sides[f"ReLU {name}, OpenVINO int8"] = openvino(relu(widths), x, threads, "int8")
    first = WIDTHS["64-256-256"]
    sides["ReLU 64-256-256, OpenVINO bf16"] = openvino(relu(first), x, threads, "bf16")
    exact = steps(first, binary=False)
    sides["bits 64-256-256, OpenVINO int8"] = openvino(whole_networks.plain(settled(exact)), x, threads, "int8")
    for weights in ("int8", "binary"):
        name = f"bits 64-256-256, packed, {weights} weights"
        own[name] = exact if weights == "int8" else steps(first, binary=True)
        sides[name] = partial(htaf.pack(own[name], x), x)
    times = measuring.alternate(whole_networks.samples(sides), rounds)
    rows = []
    for side, spent in times.items():
        row: dict[str, Any] = {"batch": batch, "threads": threads, "side": side}
        row["ms"] = 1e3 * measuring.spread(t[0] for t in spent).median
        row["speed"] = measuring.ratio(times[BASE], spent)._asdict()
        if side in own:
            row["difference"] = float((sides[side]() - own[side](x)).abs().max())
        rows.append(row)
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    cells = []
    for row in rows:
        speed, apart = str(measuring.Spread(**row["speed"])), f"{row['difference']:.1g}" if "difference" in row else ""
        cells.append((str(row["batch"]), str(row["threads"]), row["side"], f"{row['ms']:.3f}", speed, apart))
    columns = ("batch", "threads", "side", "ms", "speed", "difference")
    title = f"Speed over {BASE}: median over the rounds and (quartiles), {measuring.processor()}"
    measuring.show(title, columns, cells, ["side"])


def draw(record: Path, file: Path) -> None:
    """Accuracy over speed, on one thread."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.6))
    for batch, mark in ((1, "o"), (32, "s")):
        for row in json.loads(record.read_text())["rows"]:
            if (row["batch"], row["threads"]) != (batch, 1) or row["side"] not in ACCURACY:
                continue
            color = "tab:blue" if row["side"].startswith("bits") else "tab:gray"
            axes.plot(row["speed"]["median"], ACCURACY[row["side"]], mark, color=color)
            if batch == 1:
                place = (row["speed"]["median"], ACCURACY[row["side"]])
                axes.annotate(row["side"], place, (6, 6), textcoords="offset points", fontsize=8)
    axes.set(xlabel="times as fast as the int8 ReLU network (o: batch 1, squares: 32)", ylabel="CIFAR-10, %")
    axes.set(xlim=(0.5, 5), ylim=(76, 95))
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = measuring.parser(__doc__, rounds=15, batches=(1, 32), threads=(1, 2))
    parser.add_argument("--draw", type=Path, help="a file of --json: only draw it")
    parser.add_argument("--to", type=Path, default=Path("int8.png"), help="the figure")
    if (given := parser.parse_args()).draw:
        draw(given.draw, given.to)
        return
    arguments = measuring.begin(parser, *measuring.kernel_tests(), "packed")
    rows: list[dict[str, Any]] = []
    for batch, threads in itertools.product(arguments.batches, arguments.threads):
        found = measure(batch, threads, arguments.rounds)
        show(found)
        rows += found
        measuring.write(arguments.json, rows)
    measuring.end(arguments, rows)


if __name__ == "__main__":
    main()
