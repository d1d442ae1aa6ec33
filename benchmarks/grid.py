"""Networks with weights on a grid beside the same with real weights, once the tests of the integer layers pass.

    python benchmarks/grid.py [--nets wrn-40-2 sew18] [--batches 1] [--threads 1] [--rounds 9] [--no-onnx]
                              [--no-openvino] [--json FILE] [--no-test]

Sides: the packed network with int8 and int4 weights, which is exact; with real weights and tables of float32, which is
exact but for rounding, and of int8, which is not; onnxruntime in float32, and OpenVINO in float32 and bfloat16 where it
is installed. Random weights, batch norms that have seen random images, as in benchmarks/packed.py. Every round times
each side once, in reversed order every other round; a ratio is the median over the rounds of the side's time over that
of int8 in the same round, with its quartiles. `equal`: rows whose outputs are bit for bit those of the network's own
hardened model; bytes of the file.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import measuring
import torch

import htaf
import packed

NETS = ("wrn-40-2", "sew18")
BASE = "grid int8"
WANTED = ("openvino f32", "openvino bf16")


@torch.no_grad()
def measure(name: str, batch: int, threads: int, rounds: int, others: set[str]) -> list[dict[str, Any]]:
    torch.set_num_threads(threads)
    net = packed.NETS[name]
    model, x = packed.hardened(net), torch.randn(batch, *net.shape, generator=torch.Generator().manual_seed(1))
    grids = {f"grid int{bits}": htaf.on_grid(model, x, bits=bits) for bits in (8, 4)}
    made = {key: htaf.pack(one, x) for key, one in grids.items()}
    made |= {f"tables {kind}": htaf.pack(model, x, tables=kind) for kind in ("float32", "int8")}
    with tempfile.TemporaryDirectory() as folder:
        sides = {key: packed.eager(one, x) for key, one in made.items()}
        if others:
            file = packed.exported(packed.plain(model), x, Path(folder))
        if "onnxruntime" in others:
            sides["onnxruntime"] = packed.onnx(file, x, threads)
        if "openvino" in others:
            found = packed.openvino(model, file, x, lambda n: torch.randn(n, *net.shape), threads)
            sides |= {key: run for key, run in found.items() if key in WANTED}
        sizes = {}
        for key, one in made.items():
            htaf.packed.save(one, Path(folder) / "net.packed")
            sizes[key] = (Path(folder) / "net.packed").stat().st_size
        times = measuring.alternate(packed.samples(sides), rounds)
    rows = []
    for key, spent in times.items():
        row: dict[str, Any] = {
            "net": name, "batch": batch, "threads": threads, "side": key,
            "ms": 1e3 * measuring.spread(t[0] for t in spent).median,
            "over": measuring.ratio(spent, times[BASE])._asdict(),
        }  # fmt: skip
        if key in grids:
            equal = made[key](x) == grids[key](x)
            row["equal"] = equal.flatten(1).all(1).double().mean().item()
        if key in sizes:
            row["bytes"] = sizes[key]
        rows.append(row)
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    cells = []
    for row in rows:
        equal = f"{row['equal']:.0%}" if "equal" in row else ""
        size = f"{row['bytes'] / 1e3:,.0f}" if "bytes" in row else ""
        case = (row["net"], str(row["batch"]), str(row["threads"]), row["side"])
        cells.append((*case, f"{row['ms']:.3f}", str(measuring.Spread(**row["over"])), equal, size))
    columns = ("net", "batch", "threads", "side", "ms", "times", "equal", "file, kB")
    title = f"Time over that of {BASE}: median over the rounds and (quartiles)"
    measuring.show(title, columns, cells, ["net", "side"])


def main() -> None:
    parser = measuring.parser(__doc__, rounds=9, batches=(1,), threads=(1,))
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--no-onnx", action="store_true", help="leave onnxruntime out")
    parser.add_argument("--no-openvino", action="store_true", help="leave OpenVINO out")
    arguments = measuring.begin(parser, "kernels/test_integer_convolution.py", "packed/test_packed_grid.py")
    others, rows = packed.peers(arguments), []
    for name, batch, threads in itertools.product(arguments.nets, arguments.batches, arguments.threads):
        found = measure(name, batch, threads, arguments.rounds, others)
        show(found)
        rows += found
        measuring.write(arguments.json, rows)  # a benchmark that is stopped has said what it knows
    measuring.end(arguments, rows)


if __name__ == "__main__":
    main()
