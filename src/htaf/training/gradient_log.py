"""Gradient norms of every activation layer, epoch by epoch."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, final

import matplotlib as mpl
from matplotlib.figure import Figure
from torch import nn

from htaf._files import csv_text
from htaf.diagnostics import GradientNorms, LayerGradient, mean_by_layer
from htaf.runs import write_atomic
from htaf.training._lightning import Callback, L

CSV, PLOT = "gradients.csv", "gradients.png"
COLUMNS = ["epoch", "layer", "norm", "per_sample"]
NAMED = 12  # layers that a legend can name


@final
class GradientLog(Callback):
    """Means over the batches of an epoch of both gradient norms (`htaf.diagnostics.LayerGradient`) of every activation.

    Norms are those of the loss itself: a gradient scaler's factor is divided out, and a step whose gradients overflow
    is left out. On several devices they are those of the first one's share of each batch. The rows are in the
    checkpoint, so a resumed training has them all.

    Args:
        path: folder; gradients.csv (epoch, layer, norm, per_sample) and gradients.png are written when training ends.
        net: what to watch; None for the `net` of the LightningModule, or all of it when it has none. The loss is taken
            to be a mean over the batch.
    """

    def __init__(self, path: str | Path, net: nn.Module | None = None) -> None:
        self.path, self.net = Path(path), net
        self.rows: list[dict[str, Any]] = []
        self._norms: GradientNorms | None = None
        self._batches: list[dict[str, LayerGradient]] = []

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        own = getattr(pl_module, "net", None)
        self._norms = GradientNorms(self.net or (own if isinstance(own, nn.Module) else pl_module))

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._batches = []

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        assert self._norms is not None
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._batches.append(self._norms.read(scale=scaler.get_scale() if scaler is not None else 1.0))

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for layer, mean in mean_by_layer(self._batches).items():
            self.rows.append(
                {"epoch": trainer.current_epoch, "layer": layer, "norm": mean.norm, "per_sample": mean.per_sample}
            )

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._close()
        if trainer.is_global_zero:
            self.write()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self._norms is not None:
            self._norms.close()
            self._norms = None

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = list(state_dict["rows"])

    def write(self) -> None:
        """Both files, each whole or not at all."""
        rows = ([row[name] for name in COLUMNS] for row in self.rows)
        write_atomic(self.path / CSV, csv_text([COLUMNS, *rows]))
        picture = io.BytesIO()
        plot(self.rows).savefig(picture, format="png", dpi=120)
        write_atomic(self.path / PLOT, picture.getvalue())


def plot(rows: list[dict[str, Any]]) -> Figure:
    """Norms by epoch on a logarithmic scale, one line a layer, first to last from dark to bright; a 0 is a gap.

    Args:
        rows: as in gradients.csv.
    """
    figure = Figure(figsize=(7.2, 4), layout="constrained")
    axes = figure.subplots()
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    shades = mpl.colormaps["viridis"]
    step = -(-len(layers) // NAMED) or 1
    for i, layer in enumerate(layers):
        own = [row for row in rows if row["layer"] == layer]
        label = layer if i % step == 0 or i + 1 == len(layers) else None
        colour = shades(0.9 * i / max(1, len(layers) - 1))
        axes.plot([r["epoch"] + 1 for r in own], [r["norm"] or float("nan") for r in own], color=colour, label=label)
    axes.set(xlabel="epoch", ylabel="L2 norm of dL/d(pre-activation)", yscale="log")
    if layers:
        figure.legend(loc="outside right upper", fontsize="small")
    return figure
