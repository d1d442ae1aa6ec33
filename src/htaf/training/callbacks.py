"""What goes on beside the steps: history, best weights, early stopping, checkpoints, a progress bar."""

from __future__ import annotations

import csv
import io
import math
import os
import time
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, Checkpoint
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from htaf.runs import METRICS, write_atomic


class History(Callback):
    """One row of metrics an epoch, the weights of the best epoch, and early stopping; all of it in the checkpoint.

    Best: the lowest validation loss of the exact network. Stopping: `patience` epochs without a better one, counted
    from `count_from`, the epoch at which sharpening ends.
    """

    def __init__(self, folder: Path, patience: int, count_from: int) -> None:
        self.folder, self.patience, self.count_from = folder, patience, count_from
        self.began, self.spent, self.device = time.perf_counter(), 0.0, ""
        self.cpu_began, self.cpu_spent = time.process_time(), 0.0
        self.rows: list[dict[str, float]] = []
        self.best_loss, self.best_epoch, self.stopped = math.inf, -1, False
        self.best: dict[str, torch.Tensor] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.should_stop = self.stopped  # the checkpoint may lie behind the stop
        device, before = str(trainer.strategy.root_device), self.device
        if before not in ("", device):
            warnings.warn(
                f"began on {before}, goes on on {device}: the result can differ in the last bits", stacklevel=2
            )
        self.device = device

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        epoch, seen = trainer.current_epoch, trainer.callback_metrics
        row = {name: float(seen[name]) for name in ("train_loss", "val_loss_smooth", "val_loss")}
        self.rows.append({"epoch": epoch, **row, "lr": trainer.optimizers[0].param_groups[0]["lr"]})
        if row["val_loss"] < self.best_loss:
            self.best_loss, self.best_epoch = row["val_loss"], epoch
            assert isinstance(pl_module.net, nn.Module)
            self.best = {k: v.detach().cpu().clone() for k, v in pl_module.net.state_dict().items()}
        if self.patience and epoch - max(self.best_epoch, self.count_from) >= self.patience:
            self.stopped = trainer.should_stop = True

    def write(self) -> None:
        """metrics.csv, whole: what a resumed training repeats is not there twice."""
        text = io.StringIO()
        writer = csv.DictWriter(text, ["epoch", "train_loss", "val_loss_smooth", "val_loss", "lr"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write_atomic(self.folder / METRICS, text.getvalue())

    def seconds(self) -> float:
        """Wall time of all sessions up to now; what was lost with a kill does not count."""
        return self.spent + time.perf_counter() - self.began

    def cpu_seconds(self) -> float:
        """Processor time of all threads of this process, in the same sessions: it does not count what waits."""
        return self.cpu_spent + time.process_time() - self.cpu_began

    def state_dict(self) -> dict[str, Any]:
        names = ("rows", "best_loss", "best_epoch", "stopped", "best", "device")
        return {k: getattr(self, k) for k in names} | {"spent": self.seconds(), "cpu_spent": self.cpu_seconds()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name, value in state_dict.items():
            setattr(self, name, value)


class AtomicCheckpoint(Checkpoint):
    """After an epoch, when `seconds` have passed since the last time: a checkpoint, whole or not at all; the last
    two stay."""

    def __init__(self, folder: Path, history: History, seconds: float) -> None:
        self.folder, self.history, self.seconds = folder, history, seconds
        self.last = time.monotonic()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if time.monotonic() - self.last < self.seconds:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"epoch-{trainer.current_epoch:06d}.ckpt"
        temporary = path.with_suffix(".tmp")
        try:
            trainer.save_checkpoint(temporary)
            with temporary.open("r+b") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        self.history.write()
        for old in sorted(self.folder.glob("epoch-*.ckpt"))[:-2]:
            old.unlink()
        self.last = time.monotonic()


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that can be read; a damaged one is passed over with a warning."""
    for path in sorted(folder.glob("epoch-*.ckpt"), reverse=True):
        try:
            torch.load(path, weights_only=True, map_location="cpu")
        except Exception as error:
            warnings.warn(f"{path} is damaged ({type(error).__name__}): going back to the one before", stacklevel=2)
            continue
        return path
    return None


class EpochBar(Callback):
    """One bar over the epochs, with the losses."""

    def __init__(self, title: str, epochs: int) -> None:
        losses = TextColumn("[dim]{task.fields[losses]}")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), losses)
        self.bar = Progress(*columns, console=Console(stderr=True))
        self.task = self.bar.add_task(title, total=epochs, losses="")

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.bar.start()
        self.bar.update(self.task, completed=trainer.current_epoch)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        smooth, exact = (float(trainer.callback_metrics[name]) for name in ("val_loss_smooth", "val_loss"))
        losses = f"validation loss: smooth {smooth:.4f}, exact {exact:.4f}"
        self.bar.update(self.task, completed=trainer.current_epoch + 1, losses=losses)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.bar.stop()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self.bar.stop()
