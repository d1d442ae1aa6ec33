"""Logic networks: speed on this processor beside an int8 network of ReLU in OpenVINO and boosted trees; accuracy.

    python benchmarks/logic.py speed [--tasks mnist mnist-2000 20 200] [--sides relu trees c torchlogix]
                                     [--rows 10000] [--trees 60] [--rounds 15] [--out FOLDER] [--json FILE] [--no-test]
    python benchmarks/logic.py accuracy --out FOLDER [--luts 100 4000] [--seeds 0 1 2] [--figure FILE] [--json FILE]
    python benchmarks/logic.py relu [--hidden 64 96 128] [--seeds 0 1 2] [--json FILE]
    python benchmarks/logic.py torchlogix --out FOLDER [--seeds 0] [--minutes 3] [--networks six readme]

accuracy: MNIST's test images by `htaf train logic` at its defaults, over the number of tables; of the other gradients
at 1,000 tables too. A training whose run is in the folder is not repeated. The figure has published results beside it.

relu: the same images by networks of ReLU 784-N-10 with int8 weights and activations of 0 to 255, the opponents of
speed: 24 epochs, as `htaf train logic` takes, of the images as they are and of images moved by a pixel as there.

torchlogix: the same images in so many minutes of one core (1,000 tables of `htaf` take 3), Adam at 0.01 and batches of
128 as its README has them. readme: the network of that page, of gates of two inputs; dense: two layers of 4,000 gates.
six: 1,000 tables of six inputs, each learned among 16 pixels (among all 784 a step takes over 20 seconds).

speed: it needs the packages of `benchmarks/peers/logic/requirements.txt`; what is missing is left out, with a line.
Bytes of MNIST's test images, or integer columns, in and classes out. Circuits of images are those of the runs
htaf-1000-0 and htaf-2000-0 in --out; without it, and of columns, they have random connections and tables, which take
longer, as fewer tables share inputs. The int8 network has random weights and activations of 0 to 255 by
FakeQuantize, which OpenVINO runs in int8; its batch is the fastest of `BATCHES`. LightGBM is trained on 10,000 images,
whose accuracy is printed, and on noisy labels of columns; tl2cgen compiles its trees by gcc. torchlogix's networks are
those of --out, compiled as it does for 64 rows a word; six has no such form. C is our export by gcc -O2. A ratio is the
median over the rounds of time / time of the circuit in the same round, with its quartiles.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import ctypes
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import measuring
import numpy as np
import torch
from torch import nn

from htaf.data.image_sets import load
from htaf.program.integer import Circuit, Input, IntegerProgram, to_c
from htaf.program.integer.execute import exported
from htaf.program.integer.ops import LUT, Count, Steps, Take, View
from htaf.training.runs import open_run
from htaf.training.runs.packing import build_run

PIXELS, CLASSES, LEVELS, TABLES = 784, 10, 15, 300
BATCHES = (250, 1000, 10_000)
HIDDEN = 64  # units of a ReLU network of columns
SIZES = {"mnist": (1000, 64), "mnist-2000": (2000, 96)}  # tables, and hidden units of a ReLU network as accurate
TREES, LEARNED = {"num_leaves": 31, "learning_rate": 0.1, "verbose": -1, "num_threads": 1}, 10_000
Run = Callable[[], Any]


def circuit(luts: int, columns: int = 0) -> Circuit:
    """Random tables: on a threshold a pixel, or on 15 of each column."""
    rng = np.random.default_rng(0)
    if columns:
        given, first = (
            Input("columns", (columns,), -8192, 8192, 10),
            Take("x", 0, np.repeat(np.arange(columns), LEVELS)),
        )
        thresholds = rng.integers(-8000, 8000, (columns * LEVELS, 1))
    else:
        given, first = Input("pixels", (1, 28, 28)), View("x", 0, (PIXELS,))
        thresholds = rng.integers(1, 255, (PIXELS, 1))
    bits = len(thresholds)
    ops = (
        first,
        Steps("bits", 1, thresholds, np.ones(bits, np.int64), 0, 1),
        LUT("tables", 2, rng.integers(0, bits, (luts, 6)), rng.integers(0, 2, (luts, 64))),
        View("groups", 3, (CLASSES, 1, luts // CLASSES)),
        Count("sums", 4, (-2, -1)),
    )
    return Circuit(IntegerProgram(given, ops, 5))


def relu(hidden: int, x: np.ndarray) -> Run | None:
    """Classes of bytes or of columns by an int8 network of ReLU in OpenVINO; None where it is not installed."""
    try:
        import openvino as ov  # pyright: ignore[reportMissingImports]
    except ImportError:
        return print("OpenVINO is not installed")
    given = x.reshape(len(x), -1)
    options = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    runs = dict[int, Run]()
    for batch in {min(size, len(x)) for size in BATCHES}:
        compiled = ov.Core().compile_model(_int8(batch, hidden, given), "CPU", options)
        request = compiled.create_infer_request()
        parts = [ov.Tensor(np.ascontiguousarray(given[i : i + batch])) for i in range(0, len(x) - batch + 1, batch)]

        def run(request: Any = request, parts: list[Any] = parts) -> None:
            for part in parts:
                request.set_input_tensor(part)
                request.infer()

        runs[batch] = run
    spent = {batch: min(measuring.once(run) for _ in range(4)) for batch, run in runs.items()}
    return runs[min(spent, key=spent.__getitem__)]


def _int8(batch: int, hidden: int, given: np.ndarray) -> Any:
    import openvino as ov  # pyright: ignore[reportMissingImports]
    from openvino import opset13 as o  # pyright: ignore[reportMissingImports]

    rng, inputs = np.random.default_rng(0), given.shape[1]
    x = o.parameter([batch, inputs], given.dtype.type)
    ends = (0, 255, 0, 1) if given.dtype == np.uint8 else (-8192, 8191, -1, 1)
    y = o.fake_quantize(o.convert(x, np.float32), *map(np.float32, ends), 256)
    for a, b in ((inputs, hidden), (hidden, CLASSES)):
        values = o.convert(o.constant(rng.integers(-127, 128, (b, a)).astype(np.int8)), np.float32)
        y = o.matmul(y, o.multiply(values, o.constant(np.full((b, 1), 1 / 127 / np.sqrt(a), np.float32))), False, True)
        if b == hidden:
            y = o.fake_quantize(o.relu(y), *map(np.float32, (0, 4, 0, 4)), 256)
    return ov.Model([o.topk(y, o.constant(np.int64(1)), 1, "max", "none").output(1)], [x])


def in_c(program: IntegerProgram) -> dict[str, Callable[[np.ndarray], Any]]:
    """Outputs by the C of `htaf export --to c`, a row a call; none where there is no compiler."""
    folder = Path(tempfile.mkdtemp())
    to_c(program, folder)
    export, library = exported(folder), folder / "network.so"
    if shutil.which("gcc") is None:
        return {}
    words = ("gcc", "-std=c99", "-O2", "-march=native", "-shared", "-fPIC", f"-I{folder}")
    subprocess.run([*words, str(folder / "network.c"), "-o", str(library)], check=True)
    made, kind = ctypes.CDLL(str(library)), np.dtype(export.x_type.removesuffix("_t"))

    def run(x: np.ndarray) -> np.ndarray:
        given = np.ascontiguousarray(x.reshape(len(x), -1), kind)
        y = np.empty((len(x), export.outputs), export.y_type.removesuffix("_t"))
        for i in range(len(x)):
            made.network_run(ctypes.c_void_p(given[i:].ctypes.data), ctypes.c_void_p(y[i:].ctypes.data))
        return y

    return {"C, a row": run}


def boosted(x: np.ndarray, y: np.ndarray, rounds: int) -> dict[str, Callable[[np.ndarray], Any]]:
    """Classes by LightGBM's trees, fitted on rows."""
    try:
        import lightgbm  # pyright: ignore[reportMissingImports]
    except ImportError:
        return print("LightGBM is not installed") or {}
    data = lightgbm.Dataset(x.astype(np.float32), y)
    booster = lightgbm.train({**TREES, "objective": "multiclass", "num_class": CLASSES}, data, rounds)
    return {"LightGBM": lambda rows: booster.predict(rows).argmax(1), **compiled_trees(booster)}


def compiled_trees(booster: Any) -> dict[str, Callable[[np.ndarray], Any]]:
    """The same trees as C, compiled."""
    try:
        import tl2cgen  # pyright: ignore[reportMissingImports]
        import treelite  # pyright: ignore[reportMissingImports]
    except ImportError:
        return print("tl2cgen is not installed") or {}
    library = Path(tempfile.mkdtemp()) / "trees.so"
    parts = {"parallel_comp": 16}  # files: of one file gcc takes minutes
    tl2cgen.export_lib(treelite.frontend.from_lightgbm(booster), "gcc", library, parts, nthread=1)
    predictor = tl2cgen.Predictor(library, nthread=1)

    def run(rows: np.ndarray) -> np.ndarray:
        given = tl2cgen.DMatrix(rows.reshape(len(rows), -1).astype(np.float32))
        return predictor.predict(given).reshape(len(rows), -1).argmax(1)

    return {"LightGBM, tl2cgen": run}


def timed(
    title: str, base: Callable[[np.ndarray], Any], others: dict[str, Any], x: np.ndarray, rounds: int
) -> list[Any]:
    """Rows of the table. others: by name what runs all of x, or a function of rows, which gets a tenth of them."""
    some = x.reshape(len(x), -1)[: max(len(x) // 10, 1)]
    sides: dict[str, tuple[Run, int]] = {"circuit": (partial(base, x), len(x))}
    for name, run in others.items():
        sides[name] = (run, len(x)) if name.startswith("ReLU") else (partial(run, some), len(some))
    seconds = 0.02 if len(x) > 1 else 0.005
    samples = {name: measuring.repeated(run, seconds) for name, (run, _) in sides.items()}
    times = measuring.alternate(samples, rounds)
    each = {name: [(t[0] / sides[name][1],) for t in spent] for name, spent in times.items()}
    found = []
    for name, spent in each.items():
        ratio = measuring.ratio(spent, each["circuit"])
        ns = 1e9 * measuring.spread(t[0] for t in spent).median
        found.append({"task": title, "rows": len(x), "side": name, "ns": ns, "ratio": ratio._asdict()})
    return found


SIDES = ("relu", "trees", "c", "torchlogix")


def speed(given: Any) -> list[dict[str, Any]]:
    """Rows of all tasks; given: the flags."""
    return [row for task in given.tasks for row in (of_images if task in SIZES else of_columns)(task, given)]


def of_images(task: str, given: Any) -> list[dict[str, Any]]:
    data, found, (luts, hidden) = load("mnist"), list[dict[str, Any]](), SIZES[task]
    x = data.test.batch(torch.arange(min(given.rows[0], len(data.test)))).numpy()
    made = Circuit(build_run(open_run(given.out / f"htaf-{luts}-0"))) if given.out else circuit(luts)
    peers: dict[str, Any] = {}
    if "trees" in given.sides:
        some = torch.arange(LEARNED)
        images, labels = data.train.batch(some).numpy().reshape(LEARNED, -1), data.train.labels[some].numpy()
        for name, run in boosted(images, labels, given.trees[0]).items():
            right = run(x[:1000].reshape(1000, -1).astype(np.float32)) == data.test.labels[:1000].numpy()
            print(f"{name}, {given.trees[0]} rounds on {LEARNED:,} images: {right.mean():.1%} of 1,000 test images")
            peers[name] = lambda rows, run=run: run(rows.astype(np.float32))
    if "torchlogix" in given.sides and given.out:
        peers |= gates(given.out)
    if "c" in given.sides:
        peers |= in_c(made.program)
    for rows in (x, x[:1]):
        others = {k: v for k, v in peers.items() if len(rows) > 1 or k.startswith("LightGBM")}
        if "relu" in given.sides and (run := relu(hidden, rows)):
            others[f"ReLU 784-{hidden}-10, OpenVINO int8"] = run
        found += timed(f"MNIST, {luts:,} LUTs", made.classes, others, rows, given.rounds)
    return found


def of_columns(task: str, given: Any) -> list[dict[str, Any]]:
    rng, found, columns, rows = np.random.default_rng(1), list[dict[str, Any]](), int(task), given.rows[0]
    made, table = circuit(TABLES, columns), rng.integers(-8192, 8192, (rows, columns)).astype(np.int32)
    labels = (table[:, :CLASSES] + 2000 * rng.standard_normal((rows, CLASSES))).argmax(1)
    peers = boosted(table[:LEARNED], labels[:LEARNED], given.trees[0]) if "trees" in given.sides else {}
    for some in (table, table[:1]):
        others: dict[str, Any] = peers | (in_c(made.program) if "c" in given.sides and len(some) > 1 else {})
        if "relu" in given.sides and (run := relu(HIDDEN, some)):
            others[f"ReLU {columns}-{HIDDEN}-10, OpenVINO int8"] = run
        found += timed(f"{columns} columns, {TABLES} LUTs", made.classes, others, some, given.rounds)
    return found


# ---- networks of ReLU ----

EPOCHS, BATCH, RATE = 24, 128, 4e-3


def relu_learned(hidden: int, seed: int, moved: bool) -> float:
    """The test accuracy in % of a network of ReLU, rounded to int8 as OpenVINO computes it."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    data = load("mnist")
    images = data.train.batch(torch.arange(len(data.train))).reshape(-1, 28, 28)
    around = nn.functional.pad(images, (1, 1, 1, 1)).unfold(1, 28, 1).unfold(2, 28, 1)
    net = nn.Sequential(nn.Linear(PIXELS, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))
    steps = len(images) // BATCH
    optimizer = torch.optim.AdamW(net.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, EPOCHS * steps)
    for _ in range(EPOCHS):
        for some in torch.randperm(len(images))[: steps * BATCH].split(BATCH):
            down, right = torch.randint(0, 3, (2, BATCH)) if moved else torch.ones(2, BATCH, dtype=torch.int64)
            x = around[some, down, right].flatten(1) / 255
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), data.train.labels[some]).backward()
            optimizer.step()
            schedule.step()
    x = data.test.batch(torch.arange(len(data.test))).flatten(1) / 255
    return 100 * float((rounded(net, x, images[:2000].flatten(1) / 255).argmax(1) == data.test.labels).float().mean())


@torch.no_grad()
def rounded(net: nn.Sequential, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Scores with weights of 8 bits, a unit an output, and activations of 0 to 255; seen: rows that set their unit."""
    for layer in (net[0], net[2]):
        assert isinstance(layer, nn.Linear)
        unit = layer.weight.abs().amax(1, keepdim=True) / 127
        layer.weight.copy_((layer.weight / unit).round() * unit)
    unit = net[:2](seen).max() / 255
    return net[2]((net[:2](x) / unit).round().clamp(0, 255) * unit)


def relus(sizes: Sequence[int], seeds: Sequence[int]) -> list[dict[str, Any]]:
    found = []
    for hidden, moved in ((hidden, moved) for hidden in sizes for moved in (False, True)):
        each = [relu_learned(hidden, seed, moved) for seed in seeds]
        print(f"{hidden}{', moved' * moved}: {each}", flush=True)
        found.append(
            {"method": f"ReLU 784-{hidden}-10, int8{', moved' * moved}", "luts": 0, "exact": each, "smooth": []}
        )
    return found


# ---- torchlogix ----

MOST = 64  # of 256: a pixel from here on is 1


def logic_gates(kind: str) -> nn.Sequential:
    from torchlogix import layers  # pyright: ignore[reportMissingImports]

    if kind == "six":
        few = {"num_candidates": 16}
        tables = {"lut_rank": 6, "parametrization": "light", "connections": "learnable", "connections_kwargs": few}
        return nn.Sequential(nn.Flatten(), layers.LogicDense(PIXELS, 1000, **tables), layers.GroupSum(CLASSES, 8))
    front, width = [nn.Flatten()], PIXELS
    if kind == "readme":
        conv = layers.LogicConv2d(in_dim=28, channels=1, num_kernels=16, tree_depth=2, receptive_field_size=3)
        front, width = [conv, layers.OrPooling2d(kernel_size=2, stride=2, padding=0), nn.Flatten()], 16 * 13 * 13
    dense = layers.LogicDense(width, 4000), layers.LogicDense(4000, 4000)
    return nn.Sequential(*front, *dense, layers.GroupSum(CLASSES, 8))


def learned(kind: str, seed: int, minutes: float, folder: Path) -> dict[str, Any]:
    """Train one on MNIST for so long, and keep its weights."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    net, data, steps, begin = logic_gates(kind), load("mnist"), 0, time.process_time()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    while time.process_time() - begin < 60 * minutes:
        for some in torch.randperm(len(data.train)).split(128):
            optimizer.zero_grad()
            bits = (data.train.batch(some) >= MOST).float()
            nn.functional.cross_entropy(net(bits), data.train.labels[some]).backward()
            optimizer.step()
            steps += 1
            if time.process_time() - begin > 60 * minutes:
                break
    torch.save(net.eval().state_dict(), folder / f"torchlogix-{kind}-{seed}.pt")
    right = 0
    with torch.no_grad():
        for some in torch.arange(len(data.test)).split(500):
            found = net((data.test.batch(some) >= MOST).float()).argmax(1)
            right += int((found == data.test.labels[some]).sum())
    exact = [100 * right / len(data.test)]
    size = sum(getattr(layer, "out_dim", 0) for layer in net)  # of dense layers
    return {"method": f"torchlogix, {kind}, {steps:,} steps", "luts": size, "exact": exact, "smooth": exact}


def gates(folder: Path) -> dict[str, Callable[[np.ndarray], Any]]:
    """Classes of bytes by the compiled circuits of the networks that `learned` kept."""
    found = {}
    for file in sorted(folder.glob("torchlogix-*-0.pt")):
        kind = file.stem.split("-")[1]
        if kind != "six":
            from torchlogix import Circuit as Gates  # pyright: ignore[reportMissingImports]

            net = logic_gates(kind)
            net.load_state_dict(torch.load(file))
            made = Gates.from_model(net.eval(), (1, 28, 28))
            made.simplify()
            made.compile(pack_bits=64)
            found[f"torchlogix, {kind}"] = partial(gate_classes, made)
    return found


def gate_classes(made: Any, x: np.ndarray) -> np.ndarray:
    x = x.reshape(len(x), 1, 28, 28)[: len(x) // 64 * 64]
    return made(x >= MOST, use_compiled=True).argmax(1)


THREE_SEEDS = 2000  # tables; of more the first seed, which takes 12 minutes of a core for 4,000
METHODS = {
    "htaf": (),
    "ste_rect": ("--method", "ste", "--set", "slope=rectangular"),
    "ss": ("--method", "ss"),
}  # by the names of their folders
PUBLISHED = {  # MNIST: LUTs of six inputs, and accuracy
    "DWN, core": [(692, 97.1)],
    "DWN, whole": [(2092, 97.8), (4082, 98.3)],
    "TreeLUT": [(4478, 97.0)],
}


WHOLE = [(2635, 98.32), (4775, 98.55)]  # ours of 1,000 and 2,000 tables, by benchmarks/gates.py --runs


def trained(folder: Path, method: str, luts: int, seed: int) -> dict[str, Any]:
    """The record of a run, which is trained where it is not there."""
    out = folder / f"{method}-{luts}-{seed}"
    record = out / "record.json"
    if not (record.exists() and json.loads(record.read_text())["status"] == "finished"):
        words = ("train", "logic", "--data", "mnist", "--luts", luts, "--seed", seed, "--out", out, *METHODS[method])
        subprocess.run([sys.executable, "-m", "htaf", *map(str, words)], check=True)
    return json.loads(record.read_text())


def accuracies(folder: Path, luts: Sequence[int], seeds: Sequence[int]) -> list[dict[str, Any]]:
    wanted = [("htaf", size) for size in luts] + [(method, 1000) for method in METHODS if method != "htaf"]
    found = []
    for method, size in wanted:
        records = [trained(folder, method, size, seed) for seed in (seeds if size <= THREE_SEEDS else seeds[:1])]
        each = [100 * record["metrics"]["exact"]["test"]["accuracy"] for record in records]
        smooth = [100 * record["metrics"]["smooth"]["test"]["accuracy"] for record in records]
        found.append({"method": method, "luts": size, "exact": each, "smooth": smooth})
    return found


def drawn(found: Sequence[dict[str, Any]], to: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    own = [row for row in found if row["method"] == "htaf"]
    axes.plot([row["luts"] for row in own], [np.mean(row["exact"]) for row in own], "o-", label="htaf, tables alone")
    axes.plot(*zip(*WHOLE, strict=True), "o--", label="htaf, whole")
    for marker, (name, points) in zip("s^v", PUBLISHED.items(), strict=True):
        axes.plot(*zip(*points, strict=True), marker, label=f"{name} (published)")
    axes.set(xscale="log", xlabel="LUTs of six inputs", ylabel="MNIST, test accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(to, dpi=110)


def shown(found: Sequence[dict[str, Any]], seeds: Sequence[int]) -> None:
    cells = [
        (
            row["method"],
            f"{row['luts']:,}",
            *(
                f"{np.mean(row[of]):.2f} ({min(row[of]):.2f}-{max(row[of]):.2f})"
                for of in ("exact", "smooth")
                if of in row
            ),
        )
        for row in found
    ]
    measuring.show(f"MNIST, seeds {seeds}", ("method", "LUTs", "exact, %", "smooth, %"), cells, ["method"])


def shown_times(found: Sequence[dict[str, Any]]) -> None:
    cells = [
        (row["task"], f"{row['rows']:,}", row["side"], f"{row['ns']:,.0f}", str(measuring.Spread(**row["ratio"])))
        for row in found
    ]
    columns = ("task", "rows", "side", "ns a row", "time / circuit's")
    measuring.show("Classes, one thread: median over the rounds and (quartiles)", columns, cells, ["task", "side"])


def main() -> None:
    parser = measuring.parser(__doc__, rounds=15, rows=(10_000,), trees=(60,), luts=(100, 200, 500, 1000, 2000, 4000))
    parser.add_argument("what", choices=("speed", "accuracy", "relu", "torchlogix"), help="what is measured")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, help="where the runs of accuracy are")
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 96, 128], help="hidden units of networks of ReLU")
    parser.add_argument("--tasks", nargs="+", choices=(*SIZES, "20", "200"), default=[*SIZES, "20", "200"])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=[*SIDES])
    parser.add_argument("--minutes", type=float, default=3, help="of a training by torchlogix")
    parser.add_argument("--networks", nargs="+", default=["six", "readme", "dense"])
    parser.add_argument("--figure", type=Path, help="draw accuracy over LUTs here")
    arguments = parser.parse_args()
    if arguments.what in ("accuracy", "torchlogix") and arguments.out is None:
        parser.error(f"{arguments.what} needs --out FOLDER")
    if arguments.what == "torchlogix":
        each = [(kind, seed) for kind in arguments.networks for seed in arguments.seeds]
        found = [learned(kind, seed, arguments.minutes, arguments.out) for kind, seed in each]
        shown(found, arguments.seeds)
    elif arguments.what == "relu":
        found = relus(arguments.hidden, arguments.seeds)
        shown(found, arguments.seeds)
    elif arguments.what == "accuracy":
        found = accuracies(arguments.out, arguments.luts, arguments.seeds)
        if arguments.figure:
            drawn(found, arguments.figure)
        shown(found, arguments.seeds)
    else:
        arguments = measuring.begin(parser, "integer/test_circuit.py")
        torch.set_num_threads(1)
        found = speed(arguments)
        shown_times(found)
    measuring.end(arguments, found)


if __name__ == "__main__":
    main()
