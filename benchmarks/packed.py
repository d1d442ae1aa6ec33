"""Whole networks: packed beside the best of float32, once the tests of the packed layers pass.

    python benchmarks/packed.py [--nets bireal18 wrn-40-2 mlp sew18] [--batches 1 32] [--threads 1 2] [--rounds 9]
                                [--no-onnx] [--no-compile] [--no-openvino] [--no-sizes] [--json FILE] [--no-test]

Float32 is the same hardened network in its best form: binary weights as constants, the step as a comparison that a
compiler can fuse, batch norms folded where the runtime does it; eager (contiguous and channels-last), compiled with
weights frozen, onnxruntime, and OpenVINO where it is installed (the extra `peers`). The best of them is the base.
OpenVINO's bfloat16, int8 (NNCF after training) and, of Bi-Real Net, binary convolutions (u1) are timed beside it: they
compute something else or less exactly, so each has a ratio of its own and no part in the base. Every round times each
side once, in reversed order every other round; a ratio is the median over the rounds of base / time in the same round,
with its quartiles. Before each sample the others' threads get time to fall asleep, and one call does not count.
Weights are random (batch norms have seen random images). Of two networks the packed ones with int8 and int4 weights
(`htaf.on_grid`) are timed too, which are exact. `equal`: rows whose predictions are those of the hardened network, or
of the one on the grid; over whole test sets `htaf pack` says it. Memory: the most that a fresh process holds beyond
its imports while it loads the network and predicts one batch.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import itertools
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import measuring
import torch
from measuring import Sample
from safetensors.torch import save_file
from torch import Tensor, nn

import htaf
from htaf.core.binary import BinaryConv2d, BinaryLinear, binary_weight
from htaf.models.bireal import BiRealNet
from htaf.models.mlp import MLP
from htaf.models.sew_resnet import SEWResNet
from htaf.models.wide_resnet import WideResNet
from htaf.transform.spiking.neurons import IF

SHORTEST = 0.02  # seconds of a sample
ASLEEP = 0.01  # seconds until a pool of threads that waits by spinning sleeps
INEXACT = ("openvino bf16", "openvino int8", "openvino u1")  # never the base: not the network in float32


class Net(NamedTuple):
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    grid: bool = False  # also with int8 and int4 weights


NETS: dict[str, Net] = {
    "bireal18": Net(lambda: BiRealNet(18, 1000), (3, 224, 224)),
    "wrn-40-2": Net(lambda: WideResNet(40, 2, 10), (3, 32, 32), grid=True),
    "mlp": Net(lambda: MLP(16, 1, (256, 256, 128), batch_norm=True), (16,)),
    "sew18": Net(lambda: SEWResNet(18, 10, lambda: IF(), steps=4, stem="cifar"), (3, 32, 32), grid=True),
}


class Step(nn.Module):
    """The exact step as comparisons alone."""

    def __init__(self, bipolar: bool) -> None:
        super().__init__()
        self.bipolar = bipolar

    def forward(self, x: Tensor) -> Tensor:
        bits = (x >= 0).to(x.dtype)
        return 2 * bits - 1 if self.bipolar else bits


def hardened(net: Net) -> nn.Module:
    """Random weights, batch norms that have seen random images."""
    torch.manual_seed(0)
    model = net.make().train()
    with torch.no_grad():
        for _ in range(8):
            model(torch.randn(8, *net.shape))
    return htaf.harden(model).eval()


def plain(model: nn.Module) -> nn.Module:
    """The same network for other runtimes: constant binary weights, steps that they know."""
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, htaf.Heaviside):
                setattr(parent, name, Step(child.bipolar))
            elif isinstance(child, BinaryConv2d):
                made = nn.Conv2d(
                    child.in_channels, child.out_channels, child.kernel_size, child.stride, child.padding,
                    child.dilation, child.groups, child.bias is not None,
                )  # fmt: skip
                _fill(made, child)
                setattr(parent, name, made)
            elif isinstance(child, BinaryLinear):
                made = nn.Linear(child.in_features, child.out_features, child.bias is not None)
                _fill(made, child)
                setattr(parent, name, made)
    return model.eval().requires_grad_(False)


def _fill(made: nn.Conv2d | nn.Linear, binary: BinaryConv2d | BinaryLinear) -> None:
    made.weight.data = binary_weight(binary.weight.data)
    if made.bias is not None and binary.bias is not None:
        made.bias.data = binary.bias.data


def eager(model: nn.Module, x: Tensor) -> Callable[[], Any]:
    return lambda: model(x)


def compiled(model: nn.Module, x: Tensor) -> Callable[[], Any]:
    from torch._inductor import config

    print("torch.compile: minutes for a network of spikes over time, as its steps are unrolled", flush=True)
    begin = time.perf_counter()
    torch.compiler.reset()
    run = torch.compile(copy.deepcopy(model), dynamic=False)
    with config.patch(freezing=True), torch.no_grad():
        run(x)
        run(x)
    print(f"torch.compile: {time.perf_counter() - begin:.0f} s", flush=True)
    return lambda: run(x)


def exported(model: nn.Module, x: Tensor, folder: Path) -> Path:
    file = folder / "model.onnx"
    torch.onnx.export(model, (x,), file, dynamo=True, verbose=False)
    return file


def onnx(file: Path, x: Tensor, threads: int) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: x.numpy()}
    return lambda: session.run(None, feed)[0]


def openvino(
    model: nn.Module, file: Path, x: Tensor, images: Callable[[int], Tensor], threads: int
) -> dict[str, Callable[[], Any]]:
    """benchmarks/peers/openvino/networks.py, in this process."""
    sys.path.insert(0, str(Path(__file__).parent / "peers" / "openvino"))
    import networks  # pyright: ignore[reportMissingImports]

    return networks.sides(model, file, x, images, threads)


def samples(sides: dict[str, Callable[[], Any]]) -> dict[str, Callable[[], Sample]]:
    """What times each side; the others' threads get time to fall asleep, and one call does not count."""
    calls = {}
    for key, run in sides.items():
        run()
        calls[key] = max(1, math.ceil(SHORTEST / statistics.median(measuring.once(run) for _ in range(3))))

    def sample(key: str) -> Sample:
        time.sleep(ASLEEP)
        sides[key]()
        return (measuring.once(sides[key], calls[key]),)

    return {key: partial(sample, key) for key in sides}


def packings(net: Net, model: nn.Module, x: Tensor) -> dict[str, tuple[nn.Module, Any]]:
    """The networks that are packed, and as they are packed, by name."""
    made: dict[str, tuple[nn.Module, Any]] = {"packed": (model, htaf.pack(model, x))}
    for bits in (8, 4) if net.grid else ():
        one = htaf.on_grid(model, x, bits=bits)
        made[f"packed, int{bits} weights"] = (one, htaf.pack(one, x))
    return made


@torch.no_grad()
def measure(
    name: str, net: Net, model: nn.Module, x: Tensor, threads: int, rounds: int, others: set[str]
) -> list[dict[str, Any]]:
    torch.set_num_threads(threads)
    float32, images = plain(model), x.ndim == 4
    packed = packings(net, model, x)
    # the first of a folder is closed before it goes; sessions hold their model in memory
    with tempfile.TemporaryDirectory() as folder:
        sides: dict[str, Callable[[], Any]] = {"eager": eager(float32, x)}
        if images:
            last = x.to(memory_format=torch.channels_last)
            nhwc = copy.deepcopy(float32).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
            sides["eager channels-last"] = eager(nhwc, last)
        if "compiled" in others:
            sides["compiled"] = compiled(float32, x)
            if images:
                sides["compiled channels-last"] = compiled(nhwc, last)
        if others & {"onnxruntime", "openvino"}:
            file = exported(float32, x, Path(folder))
        if "onnxruntime" in others:
            sides["onnxruntime"] = onnx(file, x, threads)
        if "openvino" in others:
            fresh = torch.Generator().manual_seed(2)
            sides |= openvino(model, file, x, lambda n: torch.randn(n, *net.shape, generator=fresh), threads)
        sides |= {key: eager(one, x) for key, (_, one) in packed.items()}
        times = measuring.alternate(samples(sides), rounds)
    medians = {key: measuring.spread(t[0] for t in spent).median for key, spent in times.items()}
    exact = [key for key in times if not key.startswith("packed") and key not in INEXACT]
    base = min(exact, key=lambda key: medians[key])
    rows = []
    for key, spent in times.items():
        row: dict[str, Any] = {
            "net": name, "batch": len(x), "threads": threads, "side": key, "ms": 1e3 * medians[key],
            "rows_per_second": len(x) / medians[key], "base": base,
            "speed": measuring.ratio(times[base], spent)._asdict(),
        }  # fmt: skip
        if key in packed or key in INEXACT or key == "openvino f32":
            expected = (packed[key][0] if key in packed else model)(x)
            found = torch.as_tensor(sides[key]()).clone()
            row["largest_difference"] = (found - expected).abs().max().item()
            row["equal"] = (found.argmax(-1) == expected.argmax(-1)).double().mean().item()
        if key in packed:  # losses beside wins
            others_than_base = [other for other in times if other in INEXACT]
            row["over"] = {other: measuring.ratio(times[other], spent)._asdict() for other in others_than_base}
        rows.append(row)
    return rows


MEMORY = """
import resource, sys, torch, htaf, htaf.packed
from safetensors.torch import load_file
sys.path.insert(0, {benchmarks!r})
torch.set_num_threads(1)
{before}
x = torch.randn({shape})
start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
{load}
with torch.no_grad():
    model(x)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) * 1024)
"""


def sizes(name: str, net: Net, model: nn.Module, batches: list[int]) -> list[dict[str, Any]]:
    """Bytes on disk, and the most memory that a fresh process takes for them."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        float_file = Path(folder) / "float.safetensors"
        save_file({k: v.contiguous() for k, v in plain(model).state_dict().items()}, float_file)
        make = f"packed.plain(htaf.harden(packed.NETS[{name!r}].make()))"
        float_load = f"model = {make}; model.load_state_dict(load_file({str(float_file)!r}), assign=True)"
        sides = {"float32": (float_file, "import packed", float_load)}
        for key, (_, made) in packings(net, model, torch.randn(2, *net.shape)).items():
            file = Path(folder) / f"{key}.safetensors"
            htaf.packed.save(made, file)
            sides[key] = (file, "", f"model = htaf.packed.load({str(file)!r})")
        for (side, (file, before, load)), batch in itertools.product(sides.items(), batches):
            shape = (batch, *net.shape)
            code = MEMORY.format(benchmarks=str(Path(__file__).parent), before=before, shape=shape, load=load)
            command = [sys.executable, "-c", code]
            peaks = [int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(3)]
            row = {"net": name, "side": side, "batch": batch, "bytes": file.stat().st_size}
            rows.append({**row, "peak_memory": statistics.median(peaks)})
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    cells = []
    for row in rows:
        mark = " *" if row["side"] == row["base"] else ""
        equal = f"{row['equal']:.2%}" if "equal" in row else ""
        difference = f"{row['largest_difference']:.1e}" if "equal" in row else ""
        cells.append((
            row["net"], str(row["batch"]), str(row["threads"]), row["side"] + mark, f"{row['ms']:.3f}",
            f"{row['rows_per_second']:,.0f}", str(measuring.Spread(**row["speed"])), equal, difference,
        ))  # fmt: skip
    columns = ("net", "batch", "threads", "side", "ms", "rows / s", "speed", "equal", "largest difference")
    title = "Speed over the best float32: median over the rounds and (quartiles)"
    measuring.show(title, columns, cells, ["net", "side"])


def show_inexact(rows: list[dict[str, Any]]) -> None:
    """Packed networks over peers that are not exact."""
    cells = []
    for row in (row for row in rows if row.get("over")):
        over = (str(measuring.Spread(**row["over"][one])) if one in row["over"] else "" for one in INEXACT)
        cells.append((row["net"], str(row["batch"]), str(row["threads"]), row["side"], *over))
    title = "Packed over peers of lower precision: median over the rounds and (quartiles)"
    measuring.show(title, ("net", "batch", "threads", "side", *INEXACT), cells, ["net", "side"])


def show_sizes(rows: list[dict[str, Any]]) -> None:
    cells = [
        (row["net"], row["side"], str(row["batch"]), f"{row['bytes'] / 1e3:,.0f}", f"{row['peak_memory'] / 1e3:,.0f}")
        for row in rows
    ]
    columns = ("net", "side", "batch", "file, kB", "memory, kB")
    measuring.show("Bytes on disk, and memory while loading and predicting", columns, cells, ["net", "side"])


def peers(given: argparse.Namespace) -> set[str]:
    """The other runtimes that are wanted and installed."""
    wanted = ({"onnxruntime"} if not given.no_onnx else set()) | ({"compiled"} if not given.no_compile else set())
    if not given.no_openvino:
        if importlib.util.find_spec("openvino") is None:
            print("OpenVINO is not installed (the extra `peers`): it is left out", flush=True)
        else:
            wanted.add("openvino")
    return wanted


def main() -> None:
    parser = measuring.parser(__doc__, rounds=9, batches=(1, 32), threads=(1, 2))
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--no-onnx", action="store_true", help="leave onnxruntime out")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--no-openvino", action="store_true", help="leave OpenVINO out")
    parser.add_argument("--no-sizes", action="store_true", help="leave files and memory out")
    arguments = measuring.begin(parser, *measuring.kernel_tests(), "packed")
    others, rows, kept = peers(arguments), [], []
    for name in arguments.nets:
        net = NETS[name]
        model = hardened(net)
        for batch, threads in itertools.product(arguments.batches, arguments.threads):
            x = torch.randn(batch, *net.shape, generator=torch.Generator().manual_seed(1))
            found = measure(name, net, model, x, threads, arguments.rounds, others)
            show(found)
            show_inexact(found)
            rows += found
            measuring.write(arguments.json, rows + kept)  # a benchmark that is stopped has said what it knows
        if not arguments.no_sizes:
            kept += sizes(name, net, model, arguments.batches)
    show_sizes(kept)
    measuring.end(arguments, rows + kept)


if __name__ == "__main__":
    main()
