"""The paper's appendices on theory, measured: `htaf paper run theory`.

- squares and products: bounds of `networks.square_network` and `product_network` beside the errors in exact
  arithmetic, float64 and float32, by m and by the paper's pairs;
- ReLU: a trained ReLU network (Wine) copied by HTAF networks (`expressivity.copy_relu`), bound and error by eps;
- the gap between smooth and exact network: its bounds (`gap_bound.dhn_gap_bound`) on the test parts of four
  tables, for each pair, one and two hidden layers of 64 units with batch norm;
- smooth HTAF as a general activation beside ReLU and tanh, on Wine and on the bundled digits: each with the same
  learning rates to choose from, by the validation part; five seeds.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any

import torch
from torch import Tensor, nn

from htaf.core.activations import HTAF
from htaf.data import image_sets, images
from htaf.data.tabular import load, split
from htaf.models.mlp import MLP
from htaf.training.runs.metrics import headline, loss_function, metrics
from htaf_paper import bounds, networks, theory_report
from htaf_paper.computing import Place
from htaf_paper.experiments import Experiment, Settings
from htaf_paper.expressivity import as_module, copy_relu
from htaf_paper.gap_bound import dhn_gap_bound
from htaf_paper.protocol import Scale, Setting

TABLES = ("abalone", "wine", "churn", "fico")
SIZES = tuple(10 ** (k / 2) for k in range(15))  # m, 1 to 1e7
EPSILONS = tuple(10.0**-k for k in range(10))
COPIED = ((0.1, 220.0), (2.0, 11.0), (5.0, 4.4))
RATES = (1e-3, 3e-3, 1e-2)
METHODS = ("relu", "tanh", "htaf-1-4", "htaf-2-11", "htaf-learned")
TASKS = ("wine", "digits")


@dataclass(frozen=True, eq=False)
class Part:
    """Inputs float32 and targets as `htaf.runs.metrics` takes them."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True, eq=False)
class Data:
    """Three parts of a data set. scale: standard deviation of a regression's target. outputs: of a network."""

    parts: tuple[Part, Part, Part]
    task: str
    outputs: int
    scale: float
    fingerprint: str

    @property
    def metric(self) -> str:
        """The name of the headline."""
        return headline(self.task, self.outputs)


def cells(
    *,
    epochs: int = 40,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    pairs: Sequence[tuple[float, float]] = bounds.PAPER_PAIRS,
    tables: Sequence[str] = TABLES,
    copied: str = "wine",
    tasks: Sequence[str] = TASKS,
    rates: Sequence[float] = RATES,
) -> list[Settings]:
    """The settings of all computations, each once; the trainings come last.

    Args:
        epochs: of a training; those of comparing activations have half of it. seeds: of comparing activations.
        pairs: (alpha0, alpha1). tables: whose gap is measured. copied: the table whose ReLU network is copied.
        tasks, rates: of comparing activations.
    """
    named = [{"alpha0": a, "alpha1": b} for a, b in pairs]
    found = [{"kind": "square", **pair, "form": form} for pair in named for form in ("paper", "central")]
    found += [{"kind": "product", **pair} for pair in named]
    trained = {"epochs": epochs, "batch_size": 128}
    found += [
        {"kind": "relu", "table": copied, "hidden": [16, 16], "alpha0": a, "alpha1": b, "seed": seeds[0], **trained}
        for a, b in (COPIED if copied == "wine" else COPIED[1:2])
    ]
    found += [
        {"kind": "gap", "table": table, "hidden": [64] * depth, **pair, "seed": seeds[0], "lr": 3e-3, **trained}
        for depth, table, pair in itertools.product((1, 2), tables, named)
    ]
    trained["epochs"] = max(1, epochs // 2)  # these are the most
    found += [
        {"kind": "activation", "task": task, "method": method, "lr": rate, "seed": seed, **trained}
        for task, seed, method, rate in itertools.product(tasks, seeds, METHODS, rates)
    ]
    return found


@functools.lru_cache(maxsize=4)
def _data(name: str, table: bool, seed: int, data_dir: str | None) -> Data:
    return digits(seed) if name == "digits" and not table else table_data(name, seed, data_dir)


def fingerprint(settings: Mapping[str, Any], data_dir: str | None) -> str | None:
    """Of the table or the digits. Raises DataError where they are not here."""
    table, task = settings.get("table"), settings.get("task")
    if not table and not task:
        return None
    return _data(table or task, bool(table), settings["seed"], data_dir).fingerprint


def cell(settings: Settings, place: Place) -> dict[str, Any]:
    """The record of a cell."""
    table, task = settings.get("table"), settings.get("task")
    data = _data(table or task, bool(table), settings["seed"], place.data_dir) if table or task else None
    return compute(settings, data)


def plan(scale: Scale) -> list[Settings]:
    """All computations at a scale."""
    if scale == "full":
        return cells()
    pairs = ((2.0, 11.0), (5.0, 4.4))
    small: dict[str, Any] = {"tables": ("digits",), "copied": "digits", "tasks": ("digits",), "rates": RATES[:1]}
    return cells(epochs=2, seeds=(0,), pairs=pairs, **small)


def compute(settings: Settings, data: Data | None) -> dict[str, Any]:
    """What a cell gives, a function of the settings and the data (same machine and threads)."""
    kind, own = settings["kind"], {name: value for name, value in settings.items() if name != "kind"}
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pairs whose outputs never pass 0.99 are two of the paper's
        if kind == "square":
            return square(**own)
        if kind == "product":
            return product(**own)
        assert data is not None
        return {"relu": relu, "gap": gap, "activation": activation}[kind](own, data)


def square(alpha0: float, alpha1: float, form: networks.SquareForm) -> dict[str, Any]:
    """The largest error over [0, 1] by m: its bound, of 60 digits (11 points), of float64 and float32 (101 points)."""
    x = torch.linspace(0, 1, 101, dtype=torch.float64)[:, None]
    rows = []
    for m in SIZES:
        network = networks.square_network(alpha0, alpha1, m, form)
        exact = max(exact_square_error(alpha0, alpha1, m, form, Decimal(j) / 10) for j in range(11))
        rows.append({"m": m, "bound": network.error, "exact": exact, "largest": network.largest})
        rows[-1] |= _errors(as_module(network), x, x[:, 0] ** 2)
    units = {"float64": 2.0**-53, "float32": 2.0**-24}
    return {"rows": rows, "best_m": {d: networks.best_m(alpha0, alpha1, unit, form) for d, unit in units.items()}}


def product(alpha0: float, alpha1: float) -> dict[str, Any]:
    """The largest error over [-1, 1]^2, a grid of 41 x 41 points, by m: its bound, of float64 and float32."""
    line = torch.linspace(-1, 1, 41, dtype=torch.float64)
    x, rows = torch.cartesian_prod(line, line), []
    for m in SIZES:
        network = networks.product_network(alpha0, alpha1, m)
        rows.append({"m": m, "bound": network.error, **_errors(as_module(network), x, x.prod(1))})
    return {"rows": rows}


def exact_square_error(alpha0: float, alpha1: float, m: float, form: networks.SquareForm, x: Decimal) -> float:
    """|f(x) - x^2| of `htaf_paper.networks.square_network` in 60 digits, its weights too."""
    with localcontext(prec=60):
        a0, a1, one, two = Decimal(alpha0), Decimal(alpha1), Decimal(1), Decimal(2)
        t = Decimal(networks.square_network(alpha0, alpha1, m, form).bias[0])

        def tanh(z: Decimal) -> Decimal:
            e = (-two * abs(z)).exp()
            return (one - e).copy_sign(z) / (one + e)

        def phi(z: Decimal) -> Decimal:
            return one / (one + (-a1 * tanh(a0 * z)).exp())

        u, p, k = tanh(a0 * t), phi(t), Decimal(m) * a0 * a1
        v = one - u * u
        curvature = a0 * a0 * a1 * v * p * (one - p) * (a1 * (one - two * p) * v - two * u)
        near = (t, t + x / k, t + two * x / k) if form == "paper" else (t - x / k, t, t + x / k)
        difference = phi(near[0]) - two * phi(near[1]) + phi(near[2])
        return float(abs(k * k * difference / curvature - x * x))


@torch.no_grad()
def _errors(network: nn.Module, x: Tensor, target: Tensor) -> dict[str, float]:
    """The largest error of a network with weights and inputs of either type."""
    found = {}
    for name, dtype in (("float64", torch.float64), ("float32", torch.float32)):
        y = copy.deepcopy(network).to(dtype)(x.to(dtype))[:, 0].double()
        found[name] = (y - target).abs().max().item()
    return found


def relu(settings: dict[str, Any], data: Data) -> dict[str, Any]:
    """A trained ReLU network copied for every eps: bound and largest error, test rows and 5,000 random ones."""
    torch.manual_seed(settings["seed"])
    inputs = data.parts[0].x.shape[1]
    sizes = [inputs, *settings["hidden"], data.outputs]
    layers = [module for a, b in itertools.pairwise(sizes) for module in (nn.Linear(a, b), nn.ReLU())]
    network = nn.Sequential(*layers[:-1])
    _fit(network, data, epochs=settings["epochs"], batch_size=settings["batch_size"], lr=3e-3, seed=settings["seed"])
    network = network.double()
    radius = max(part.x.abs().max().item() for part in data.parts)
    uniform = torch.rand(5000, inputs, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = torch.cat([data.parts[2].x.double(), radius * (2 * uniform - 1)])
    rows = []
    with torch.no_grad():
        target = network(x)
        for eps in EPSILONS:
            copied = copy_relu(network, eps, radius=radius, alpha0=settings["alpha0"], alpha1=settings["alpha1"])
            rows.append({"eps": eps, "bound": max(copied.error), "share": copied.share, "largest": copied.largest})
            rows[-1] |= {"rounding": copied.rounding, **_errors(copied.network, x, target[:, 0])}
    return {"rows": rows, "radius": radius, data.metric: _score(network.float(), data, 2)}


def gap(settings: dict[str, Any], data: Data) -> dict[str, Any]:
    """A trained network and the bounds of its gap on the test part."""
    torch.manual_seed(settings["seed"])
    pair = (settings["alpha0"], settings["alpha1"])
    network = MLP(data.parts[0].x.shape[1], data.outputs, settings["hidden"], lambda: HTAF(*pair), batch_norm=True)
    _fit(
        network, data, epochs=settings["epochs"], batch_size=settings["batch_size"], lr=settings["lr"],
        seed=settings["seed"],
    )  # fmt: skip
    found = dhn_gap_bound(network, data.parts[2].x)
    bounds = {
        name: None if values is None else sum(values) / len(values)
        for name in ("measured", "triangle", "certified", "by_neuron", "paper")
        for values in [getattr(found, name)]
    }
    return {"bounds": bounds, "layers": [vars(layer) for layer in found.layers], data.metric: _score(network, data, 2)}


def activation(settings: dict[str, Any], data: Data) -> dict[str, Any]:
    """A training with one activation: headline of the validation and of the test part."""
    torch.manual_seed(settings["seed"])
    act = _activation(settings["method"])
    if settings["task"] == "digits":
        network: nn.Module = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), act(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), act(),
            nn.Flatten(), nn.Linear(512, data.outputs),
        )  # fmt: skip
    else:
        network = MLP(data.parts[0].x.shape[1], data.outputs, (64, 64), act, batch_norm=True)
    _fit(
        network, data, epochs=settings["epochs"], batch_size=settings["batch_size"], lr=settings["lr"],
        seed=settings["seed"],
    )  # fmt: skip
    named = list(network.named_parameters())
    learned = [
        [float(value.detach().exp()) for name, value in named if name.endswith(f"log_{alpha}")]
        for alpha in ("alpha0", "alpha1")
    ]
    scores = {"metric": data.metric, "validation": _score(network, data, 1), "test": _score(network, data, 2)}
    return scores | ({"learned": learned} if learned[0] else {})


def _activation(method: str) -> Callable[[], nn.Module]:
    match method.split("-"):
        case ["relu"]:
            return nn.ReLU
        case ["tanh"]:
            return nn.Tanh
        case ["htaf", "learned"]:
            return lambda: HTAF(1.0, 4.0, learnable=True)
        case ["htaf", alpha0, alpha1]:
            return lambda: HTAF(float(alpha0), float(alpha1))
    raise ValueError(f"expected one of {', '.join(METHODS)}, got {method!r}")


def _fit(network: nn.Module, data: Data, *, epochs: int, batch_size: int, lr: float, seed: int) -> None:
    """Adam with a one-cycle learning rate, batches in an order of the seed; the network is left in eval mode."""
    part, loss_of = data.parts[0], loss_function(data.task)
    optimizer = torch.optim.Adam(network.parameters(), lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, epochs * math.ceil(len(part.x) / batch_size))
    network.train()
    for epoch in range(epochs):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        for rows in torch.randperm(len(part.x), generator=generator).split(batch_size):
            if len(rows) > 1:  # batch norm needs two
                optimizer.zero_grad()
                loss_of(network(part.x[rows]), part.y[rows]).backward()
                optimizer.step()
                schedule.step()
    network.eval()


@torch.no_grad()
def _score(network: nn.Module, data: Data, part: int) -> float | None:
    return metrics(network(data.parts[part].x), data.parts[part].y, data.task, data.scale)[data.metric]


def table_data(name: str, seed: int, data_dir: str | None = None) -> Data:
    """A table's parts for a seed, prepared as its training part says."""
    table = load(name, data_dir=data_dir)
    parts = split(table, seed)
    preprocessor = table.fit_preprocessor(parts.train)
    found = []
    for rows in (parts.train, parts.validation, parts.test):
        x = torch.from_numpy(preprocessor.transform(table.features.iloc[rows])).float()
        y = torch.from_numpy(preprocessor.encode_target(table.target[rows]))
        found.append(Part(x, y.float().unsqueeze(1) if table.task == "regression" else y.long()))
    regression = table.task == "regression"
    scale = preprocessor.target.std if regression else 1.0
    return Data(
        (found[0], found[1], found[2]), table.task, 1 if regression else len(table.classes), scale, table.fingerprint
    )


def digits(seed: int) -> Data:
    """The bundled digits, float32 [rows, 1, 8, 8] from 0 to 1; the validation part by the seed."""
    found = image_sets.load("digits")
    parts = images.split(found, validation=0.15, seed=seed)
    assert isinstance(found.train, images.MemoryPart)
    assert isinstance(found.test, images.MemoryPart)
    learning, tested = ((part.pixels.float() / 255, part.labels) for part in (found.train, found.test))
    train, validation = (Part(learning[0][rows], learning[1][rows]) for rows in (parts.train, parts.validation))
    return Data((train, validation, Part(*tested)), "classification", 10, 1.0, found.fingerprint)


STUDY = Experiment(
    "theory",
    "Theory: squares, expressivity, the gap, HTAF as a general activation",
    {
        "smoke": Setting("two pairs; the bundled digits, 2 epochs, one seed", 0.9),
        "full": Setting(
            "the paper's six pairs; four tables, 40 epochs; Wine and digits, five seeds", 4600.0, data=TABLES
        ),
    },
    plan,
    cell,
    theory_report.outcome,
    fingerprint,
    paper="Appendices B and C, section 3.2 (no table or figure)",
)
