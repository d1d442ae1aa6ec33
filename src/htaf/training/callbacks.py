"""What goes on beside the steps: history, best weights, early stopping, checkpoints, a progress bar."""

from __future__ import annotations

import math
import time
import warnings
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

from htaf._ground.compat import no_trace
from htaf._ground.console import progress, tell
from htaf._ground.errors import counted
from htaf._ground.files import csv_text, written_whole
from htaf.training.distributed import Callback, L
from htaf.training.module import Training
from htaf.training.problems import Problem
from htaf.training.recipe import ImageData, Recipe
from htaf.training.runs import METRICS, write_atomic

with no_trace():
    from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
    from lightning.pytorch.callbacks import Checkpoint

_WHOLE = {"state_dict", "callbacks", "loops", "optimizer_states", "lr_schedulers", "epoch", "global_step"}
_KEPT = ("rows", "best_loss", "best_epoch", "stopped", "best", "device", "devices", "notes")


def validated(trainer: L.Trainer) -> bool:
    """Whether the epoch that ends has been validated."""
    every = trainer.check_val_every_n_epoch
    assert every is not None
    return (trainer.current_epoch + 1) % every == 0


class History(Callback):
    """One row of metrics an epoch that is validated, the weights of the best epoch, and early stopping; all of it in
    the checkpoint.

    Best: the lowest validation loss of the exact network; with `last` the last epoch, and no early stopping. Stopping:
    `patience` epochs without a better one, counted from `count_from`, the epoch at which sharpening ends. Of several
    processes the first one decides for all. `devices` is how many train together.
    """

    def __init__(
        self,
        folder: Path,
        patience: int,
        count_from: int,
        devices: int = 1,
        *,
        last: bool = False,
    ) -> None:
        self.folder, self.patience, self.count_from, self.last = folder, patience, count_from, last
        self.began, self.spent, self.device = time.perf_counter(), 0.0, ""
        self.now, self.devices = devices, 0
        self.notes: list[str] = []
        self.cpu_began, self.cpu_spent = time.process_time(), 0.0
        self.rows: list[dict[str, float]] = []
        self.best_loss, self.best_epoch, self.stopped = math.inf, -1, False
        self.best: dict[str, torch.Tensor] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.should_stop = self.stopped  # the checkpoint may lie behind the stop
        root = trainer.strategy.root_device
        device, before = root.type if trainer.world_size > 1 else str(root), self.device
        if before not in ("", device):
            self._note(f"began on {before}, continues on {device}: the result can differ in the last bits")
        if self.devices not in (0, self.now):
            other = f"began with devices {self.devices}, continues with devices {self.now}"
            self._note(f"{other}: the result differs from that of either")
        self.device, self.devices = device, self.now

    def _note(self, text: str) -> None:
        warnings.warn(text, stacklevel=3)
        self.notes.append(text)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not validated(trainer):
            return
        epoch, seen = trainer.current_epoch, trainer.callback_metrics
        row = {name: float(seen[name]) for name in ("train_loss", "val_loss_smooth", "val_loss")}
        row = trainer.strategy.broadcast(row)
        self.rows.append({"epoch": epoch, **row, "lr": trainer.optimizers[0].param_groups[0]["lr"]})
        if self.last or row["val_loss"] < self.best_loss:
            self.best_loss, self.best_epoch = row["val_loss"], epoch
            assert isinstance(pl_module, Training)
            self.best = pl_module.weights()
        if self.patience and epoch - max(self.best_epoch, self.count_from) >= self.patience:
            self.stopped = trainer.should_stop = True

    def keep(self, net: nn.Module) -> None:
        """Take a network as the best one that has nothing to train."""
        self.best = {name: value.detach().clone() for name, value in net.state_dict().items()}
        self.best_epoch, self.device, self.devices = 0, "cpu", self.now

    @property
    def epochs(self) -> int:
        """How many epochs have ended, up to the last validation."""
        return int(self.rows[-1]["epoch"]) + 1 if self.rows else 0

    def write(self) -> None:
        """metrics.csv, whole: what a resumed training repeats is not there twice."""
        columns = ("epoch", "train_loss", "val_loss_smooth", "val_loss", "lr")
        rows = ([row[name] for name in columns] for row in self.rows)
        write_atomic(self.folder / METRICS, csv_text([columns, *rows]))

    def seconds(self) -> float:
        """Wall time of all sessions up to now; what was lost with a kill does not count."""
        return self.spent + time.perf_counter() - self.began

    def cpu_seconds(self) -> float:
        """Processor time of all threads of this process, in the same sessions: it does not count what waits."""
        return self.cpu_spent + time.process_time() - self.cpu_began

    def state_dict(self) -> dict[str, Any]:
        return {k: getattr(self, k) for k in _KEPT} | {"spent": self.seconds(), "cpu_spent": self.cpu_seconds()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name in _KEPT:  # no others: a checkpoint of elsewhere must not say where this one writes
            setattr(self, name, state_dict[name])
        self.spent, self.cpu_spent = state_dict["spent"], state_dict["cpu_spent"]


class AtomicCheckpoint(Checkpoint):
    """After an epoch that is validated, when `seconds` have passed since the last time: a checkpoint, whole or not at
    all; the last two stay. An epoch that ends with weights that are not finite leaves none."""

    def __init__(self, folder: Path, history: History, seconds: float) -> None:
        self.folder, self.history, self.seconds = folder, history, seconds
        self.last = time.monotonic()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not validated(trainer):
            return
        # all processes take part in a checkpoint, so one clock decides
        due = trainer.strategy.broadcast(time.monotonic() - self.last >= self.seconds)
        if not due or not trainer.strategy.reduce_boolean_decision(_finite(pl_module), all=True):
            return
        path = self.folder / f"epoch-{trainer.current_epoch:06d}.ckpt"
        if not trainer.is_global_zero:
            trainer.save_checkpoint(path)  # writes nothing
            return
        with written_whole(path) as new:
            trainer.save_checkpoint(new)
        self.history.write()
        for old in sorted(self.folder.glob("epoch-*.ckpt"))[:-2]:
            old.unlink()
        self.last = time.monotonic()


class PlainCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint where it is to lie; Lightning's own passes it through the memory and the folder TMPDIR."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        try:
            with open(path, "wb") as file:
                torch.save(checkpoint, file)
        except RuntimeError as error:  # PyTorch's, in place of the system's
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None


@torch.no_grad()
def _finite(module: nn.Module) -> bool:
    """Whether all weights and buffers are finite."""
    tensors = (*module.parameters(), *module.buffers())
    return all(bool(torch.isfinite(t).all()) for t in tensors if t.is_floating_point())


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that can be read; a damaged one is passed over with a warning."""
    for path in sorted(folder.glob("epoch-*.ckpt"), reverse=True):
        try:
            with zipfile.ZipFile(path) as archive:  # torch.load does not compare the checksums that it wrote
                if (part := archive.testzip()) is not None:
                    raise ValueError(f"{part} has another checksum")
            found = torch.load(path, weights_only=True, map_location="cpu")
            if not isinstance(found, dict) or not found.keys() >= _WHOLE:
                raise ValueError("expected the state of a training")
        except Exception as error:
            warnings.warn(f"{path} is damaged ({type(error).__name__}): going back to the one before", stacklevel=2)
            continue
        return path
    return None


class ShownProgress(Callback):
    """Show how far a training is by `htaf._ground.console.progress`, with the losses of the last validation."""

    def __init__(self, posed: Problem, recipe: Recipe, history: History, unit: str) -> None:
        self.posed, self.recipe, self.history, self.unit = posed, recipe, history, unit
        self.stack = ExitStack()
        self.advance: Callable[..., None] = lambda more, note: None
        self.losses = ""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        recipe, posed, training = self.recipe, self.posed, self.recipe.optimization
        augment = f", augment {recipe.data.augment}" if isinstance(recipe.data, ImageData) else ""
        cpu, threads = trainer.strategy.root_device.type == "cpu", counted(torch.get_num_threads(), "thread")
        each = f" in each of {trainer.world_size} processes" if trainer.world_size > 1 else ""
        tell(
            f"{posed.name}, {recipe.family} {recipe.activation.method}: {len(posed.train):,} {self.unit} to train "
            f"on{augment}, {len(posed.validation):,} to validate; {training.epochs} epochs, {training.optimizer}, "
            f"lr {training.lr:g} ({training.schedule}), batches of {training.batch_size}"
            + (f"; {threads}{each}" if cpu else "")
        )
        if trainer.current_epoch:
            tell(f"resumed after {trainer.current_epoch} epochs")
        assert isinstance(pl_module, Training)
        what, done = f"{posed.name} {recipe.activation.method}", trainer.global_step
        self.advance = self.stack.enter_context(progress(what, pl_module.steps, done=done))

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero and trainer.current_epoch == self.recipe.exact_epoch:
            tell(f"epoch {trainer.current_epoch + 1}/{self.recipe.optimization.epochs}: exact from here")

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        epoch, of = trainer.current_epoch + 1, self.recipe.optimization.epochs
        self.advance(1, f"epoch {epoch}/{of}{self.losses}")

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.is_global_zero or not validated(trainer):
            return
        seen = {name: float(value) for name, value in trainer.callback_metrics.items()}
        loss = seen["val_loss"]
        if self.posed.task == "regression":  # of the standardised target
            metric = f"RMSE {self.posed.scale * loss**0.5:.4g}"
        else:
            metric = f"accuracy {seen['val_accuracy']:.4f}"
        self.losses = f", validation loss {loss:.4g}, {metric}"

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.stack.close()
        seen, of = self.history, self.recipe.optimization
        if not trainer.is_global_zero or not seen.rows:
            return
        if seen.stopped and seen.epochs < of.epochs:
            tell(
                f"stopped early, after epoch {seen.epochs} of {of.epochs}: no better exact network in the last "
                f"{of.patience} epochs (patience)"
            )

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self.stack.close()
