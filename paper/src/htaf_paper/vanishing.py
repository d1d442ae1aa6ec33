"""The paper's appendix on vanishing gradients: `htaf paper run vanishing`.

MLPs without batch norm on Abalone (seed 0's split, standardised target, mean squared error), Adam 1e-3, batches of 256,
200 epochs. Per epoch and layer the mean over the batches of the L2 norm of dL/d(pre-activation) over the batch matrix,
and of the per-sample norm (`LayerGradient`). A gradient vanishes when the median of the first layer's norm over the
last 10% of the epochs is below 1e-5.

- table and figure over seven shapes: ReLU, HTAF (3, 7.3), scaled sigmoid 22;
- figure of every layer of 256-256-128: HTAF (2, 11), (8, 2.75), (11, 2), scaled sigmoid 22, ReLU;
- both once more for shapes of 256 units with larger learning rates: the paper does not print its own;
- not in the paper: the table with HTAF and the scaled sigmoid tuned to their pre-activations (`tune` with the
  learning rate, on the first 512 training rows), sharpened over the first 70% of the training.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from htaf.core.activations import Heaviside
from htaf.core.contract import SmoothStep
from htaf.data.tabular import load, split
from htaf.models.build import activation
from htaf.models.mlp import MLP
from htaf.transform.convert import harden
from htaf_paper import vanishing_report
from htaf_paper.computing import Place
from htaf_paper.experiments import Experiment, Settings
from htaf_paper.protocol import Scale, Setting
from htaf_paper.tuning import TunedLayer, tune

SHAPES = (
    (256, 256, 128),
    (512, 512, 256),
    (1024, 1024, 512),
    (256, 256, 256, 128),
    (512, 512, 512, 256),
    (1024, 1024, 1024, 512),
    (256, 256, 256, 256, 256),
)
RELU = {"method": "relu"}
SS = {"method": "ss", "beta": 22.0}
HTAF = {"method": "htaf", "alpha0": 3.0, "alpha1": 7.3}
PAIRS = tuple({"method": "htaf", "alpha0": a, "alpha1": b} for a, b in ((2.0, 11.0), (8.0, 2.75), (11.0, 2.0)))
TABLE = (RELU, HTAF, SS)
FIGURE = (*PAIRS, SS, RELU)
TUNED = (HTAF, SS)  # what `tune` starts from; the numbers are its own then
TUNED_SEEDS = (0, 1, 2)  # of shapes of at most 256 units at the first rate
TUNED_ROWS = 512
RATES = (1e-3, 3e-3, 1e-2)  # the protocol's, and two more: the paper does not print its own


@dataclass(frozen=True)
class DepthCell:
    """One training. seed: of the initial weights and the order of the batches. tuned: by `tune`."""

    hidden: tuple[int, ...]
    activation: dict[str, Any]
    seed: int
    epochs: int = 200
    batch_size: int = 256
    lr: float = 1e-3
    tuned: bool = False

    def settings(self, table: str) -> Settings:
        """As JSON, with the name of its table."""
        return asdict(self) | {"hidden": list(self.hidden), "table": table}


def cells(*, epochs: int = 200, seeds: Sequence[int] = (0,), rates: Sequence[float] = RATES) -> list[DepthCell]:
    """All trainings, each once; the shapes that take longest come last.

    Args:
        epochs, seeds: of each; tuned networks of at most 256 units have the seeds 0, 1 and 2 at the first rate.
        rates: learning rates; the first is for every shape, the others are for those of at most 256 units.
    """
    wanted = [(hidden, act) for hidden in SHAPES for act in TABLE] + [(SHAPES[0], act) for act in FIGURE]
    wanted = [pair for i, pair in enumerate(wanted) if pair not in wanted[:i]]
    found = [
        DepthCell(hidden, act, seed, epochs, lr=rate)
        for seed in seeds
        for rate in rates
        for hidden, act in wanted
        if rate == rates[0] or max(hidden) <= 256
    ]
    for rate in rates:
        for hidden in SHAPES if rate == rates[0] else [shape for shape in SHAPES if max(shape) <= 256]:
            own = TUNED_SEEDS if rate == rates[0] and max(hidden) <= 256 else seeds
            found += [DepthCell(hidden, act, seed, epochs, lr=rate, tuned=True) for act in TUNED for seed in own]
    return sorted(found, key=lambda cell: (max(cell.hidden) > 512, cell.tuned and max(cell.hidden)))


def fingerprint(settings: Mapping[str, Any], data_dir: str | None) -> str:
    """Of the table. Raises DataError where it is not here."""
    return load(settings["table"], data_dir=data_dir).fingerprint


def compute(settings: Settings, place: Place) -> dict[str, Any]:
    """The record of a training."""
    own = {name: value for name, value in settings.items() if name != "table"}
    table = load(settings["table"], data_dir=place.data_dir)
    parts = split(table, 0)
    preprocessor = table.fit_preprocessor(parts.train)
    data = []
    for rows in (parts.train, parts.validation):
        target = torch.from_numpy(preprocessor.encode_target(table.target[rows])).float().unsqueeze(1)
        data.append((torch.from_numpy(preprocessor.transform(table.features.iloc[rows])), target))
    scale = preprocessor.target.std if table.task == "regression" else 1.0
    return train(DepthCell(**{**own, "hidden": tuple(own["hidden"])}), data[0], data[1], scale=scale)


def plan(scale: Scale) -> list[Settings]:
    """The settings of all trainings at a scale."""
    if scale == "full":
        return [cell.settings("abalone") for cell in cells()]
    return [
        DepthCell(hidden, act, 0, epochs=3, tuned=tuned).settings("digits")
        for hidden in ((16, 16, 8), (16, 16, 16, 8))
        for act, tuned in ((RELU, False), (HTAF, False), (SS, False), (HTAF, True))
    ]


def train(
    cell: DepthCell, train_part: tuple[Tensor, Tensor], validation: tuple[Tensor, Tensor], scale: float
) -> dict[str, Any]:
    """One training on the CPU, a function of the cell and the data alone (same machine, same threads).

    Args:
        cell: what to train.
        train_part, validation: inputs float32 [rows, columns] and standardised targets float32 [rows, 1].
        scale: standard deviation of the target, for the RMSE in its units.

    Returns:
        layers: paths; norm, per_sample: [layers][epochs] to four digits; train_loss: [epochs], mean over the rows;
        validation_rmse: of the last epoch's smooth and exact network (None for ReLU); seconds; of a tuned cell also
        tuning: path, scale, start and end of every layer.
    """
    began = time.perf_counter()
    x, y = train_part
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pairs that never pass 0.99 are two of the candidates
        torch.manual_seed(cell.seed)
        net = MLP(x.shape[1], 1, cell.hidden, activation(cell.activation))
    tuning = None
    if cell.tuned:
        net, tuning = tune(net, x[:TUNED_ROWS], rate=cell.lr)
    optimizer = torch.optim.Adam(net.parameters(), cell.lr)
    steps = cell.epochs * math.ceil(len(x) / cell.batch_size)
    loss_function = nn.MSELoss()
    epochs, losses = [], []
    with GradientNorms(net) as norms:
        for epoch in range(cell.epochs):
            generator = torch.Generator().manual_seed(cell.seed * 1_000_003 + epoch)
            batches, total = [], 0.0
            for i, rows in enumerate(torch.randperm(len(x), generator=generator).split(cell.batch_size)):
                if tuning is not None:
                    tuning.sharpen(net, (epoch * steps / cell.epochs + i) / steps)
                optimizer.zero_grad()
                loss = loss_function(net(x[rows]), y[rows])
                loss.backward()
                batches.append(norms.read())
                optimizer.step()
                total += loss.item() * len(rows)
            epochs.append(mean_by_layer(batches))
            losses.append(_rounded(total / len(x)))
    layers = list(epochs[0])
    exact = None if cell.activation["method"] == "relu" else _rmse(harden(net), validation, scale)
    return {
        "layers": layers,
        "norm": [[_rounded(epoch[layer].norm) for epoch in epochs] for layer in layers],
        "per_sample": [[_rounded(epoch[layer].per_sample) for epoch in epochs] for layer in layers],
        "train_loss": losses,
        "validation_rmse": {"smooth": _rmse(net, validation, scale), "exact": exact},
        "seconds": round(time.perf_counter() - began, 1),
    } | ({} if tuning is None else {"tuning": [_layer(layer) for layer in tuning.layers]})


def _layer(layer: TunedLayer) -> dict[str, Any]:
    start, end = ([_rounded(value) for value in values] for values in (layer.start, layer.end))
    return {
        "path": layer.path,
        "before": _rounded(layer.before),
        "std": _rounded(layer.std),
        "start": start,
        "end": end,
    }


@torch.no_grad()
def _rmse(net: nn.Module, part: tuple[Tensor, Tensor], scale: float) -> float:
    x, y = part
    return _rounded(scale * nn.functional.mse_loss(net(x), y).sqrt().item())


def _rounded(value: float) -> float:
    """Four significant digits: what a figure shows, in files of a few kilobytes."""
    return float(f"{value:.3e}")


# ---- how large the gradient is that reaches each activation ----

ACTIVATIONS: tuple[type, ...] = (SmoothStep, Heaviside, nn.ReLU)
SAFE = (1e-12, 1e15)  # between these a float32 norm has lost nothing to underflow or overflow of its squares


@dataclass(frozen=True)
class LayerGradient:
    """The gradient G = dL/d(pre-activation) of one activation layer, [rows, units], one row a sample.

    norm: ||G||, the L2 norm over the whole batch matrix.
    per_sample: mean over the samples i of ||dl_i/dx_i||, where l_i is the loss of sample i alone. For a mean loss
        L = (1/B) sum l_i, which it must be, that is B times the mean row norm, so sum_i ||G_i||.
    """

    norm: float
    per_sample: float


class GradientNorms:
    """Records ||dL/d(pre-activation)|| at every activation module of a network, each of which runs once a pass.

    Source: Glorot and Bengio 2010; the paper, appendix on vanishing gradients.
    """

    def __init__(self, model: nn.Module) -> None:
        found = {path: module for path, module in model.named_modules() if isinstance(module, ACTIVATIONS)}
        self._squares: dict[str, Tensor | None] = dict.fromkeys(found)
        self._handles = [m.register_forward_pre_hook(partial(self._watch, path)) for path, m in found.items()]

    def read(self) -> dict[str, LayerGradient]:
        """The norms of the last backward pass by the paths of the layers, the first layer first."""
        return {
            path: LayerGradient(squares.sum().sqrt().item(), squares.sqrt().sum().item())
            for path, squares in self._squares.items()
            if squares is not None
        }

    def __enter__(self) -> GradientNorms:
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _watch(self, path: str, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if args[0].requires_grad:
            args[0].register_hook(partial(self._keep, path))

    def _keep(self, path: str, gradient: Tensor) -> None:
        self._squares[path] = _row_norms(gradient.detach()).square()


def _row_norms(rows: Tensor) -> Tensor:
    """L2 norms of rows, [rows, n] -> float64 [rows], tiny gradients included.

    On CPUs float64 sums are 20 times slower, so they are kept for rows whose squares leave the range of float32.
    """
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float32).double()
    unsafe = ~((norms > SAFE[0]) & (norms < SAFE[1]))
    norms[unsafe] = torch.linalg.vector_norm(rows[unsafe], dim=1, dtype=torch.float64)
    return norms


def mean_by_layer(batches: Iterable[dict[str, LayerGradient]]) -> dict[str, LayerGradient]:
    """Means over the batches of an epoch of both norms; a batch whose norm is not finite is left out, and a layer
    without a finite one has NaN."""
    sums: dict[str, list[LayerGradient]] = {}
    for batch in batches:
        for path, layer in batch.items():
            sums.setdefault(path, []).append(layer)
    return {path: _mean([g for g in layers if math.isfinite(g.norm)]) for path, layers in sums.items()}


def _mean(layers: list[LayerGradient]) -> LayerGradient:
    if not layers:
        return LayerGradient(math.nan, math.nan)
    return LayerGradient(
        math.fsum(layer.norm for layer in layers) / len(layers),
        math.fsum(layer.per_sample for layer in layers) / len(layers),
    )


STUDY = Experiment(
    "vanishing",
    "Vanishing gradients",
    {
        "smoke": Setting("two shapes of up to 16 units on the bundled digits, 3 epochs", 2.3),
        "full": Setting(
            "seven shapes on Abalone, 200 epochs; more learning rates and `tune` beside the paper's", 9800.0,
            data=("abalone",),
        ),
    },
    plan,
    compute,
    vanishing_report.outcome,
    fingerprint,
    paper="Table 7, Figures 7 and 8 (appendix F.2)",
)  # fmt: skip
