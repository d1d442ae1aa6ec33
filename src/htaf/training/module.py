"""The LightningModule: smooth training, validation of the smooth and the exact network side by side."""

from __future__ import annotations

import math
import time
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from math import cos, pi
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, OneCycleLR
from torch.utils.data import DataLoader, Sampler

from htaf._ground.compat import no_trace
from htaf._ground.console import progress, tell
from htaf._ground.errors import counted
from htaf._ground.files import csv_text, written_whole
from htaf._ground.names import is_outside
from htaf.core.activations import exact_step
from htaf.core.contract import looks_smooth
from htaf.core.sharpening import set_sharpness
from htaf.data.parts import Part
from htaf.training.distributed import Callback, L, TrainingError, pooled, share, share_buffers
from htaf.training.problems import Problem
from htaf.training.recipe import ImageData, Recipe
from htaf.training.runs import METRICS, write_atomic
from htaf.training.runs.metrics import loss_function
from htaf.transform.convert import harden

NEWTON_SCHULZ = 3  # iterations of Muon, as in cifar10-airbench


@final
class Training(L.LightningModule):
    """Trains `net` by a recipe. Logs train_loss, val_loss (exact network where there is a step) and val_loss_smooth;
    of a classification also val_accuracy and val_accuracy_smooth.

    Args:
        task: regression or classification.
        steps: of the whole training.
        world: processes that train together, each with its share of every batch.
        seed: of what dropout draws, with the step; another one in every process.
        attributes: float32 [classes, concepts], what the concepts of a supervised bottleneck learn of each class.
    """

    def __init__(
        self,
        net: nn.Module,
        recipe: Recipe,
        task: str,
        steps: int,
        world: int = 1,
        seed: int = 0,
        attributes: Tensor | None = None,
    ) -> None:
        super().__init__()
        recipe.network.hold(net)
        self.net, self.recipe, self.steps, self.world = net, recipe, steps, world
        self.seed = seed
        self.attributes = attributes
        self.draws = _is_random(net)
        smooth = [step for step in net.modules() if looks_smooth(step)]
        self._hooks: list[Any] = []  # of the steps, while it trains
        self._exactly = ExactValues()
        if recipe.exact_epoch is not None:
            self._hooks += [step.register_forward_hook(self._exactly) for step in smooth]
        self.classes = task == "classification"
        self.train_loss, self.loss = loss_function(task, recipe.optimization.label_smoothing), loss_function(task)
        self.schedule = recipe.activation.sharpening()
        self._sharp: Any = None  # what the activations were set to
        # the smooth and the exact network; in a list, so that they are no second sets of entries in the state dict
        self._measured: list[nn.Module] = []
        self._exact: tuple[list[int], nn.Module] | None = None
        self._trained, self._validated = Means(), Means()  # since the last validation, and in this one

    def weights(self) -> dict[str, Tensor]:
        """The state dict of `net` on the CPU."""
        return {name: value.detach().cpu().clone() for name, value in self.net.state_dict().items()}

    def on_train_epoch_start(self) -> None:
        first = self.recipe.exact_epoch
        self._exactly.on = first is not None and self.current_epoch >= first

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        progress = self.global_step / self.steps
        now = None if self.schedule is None else self.schedule.at(progress)
        if batch_idx == 0 or now != self._sharp:  # its modules change between epochs alone
            self.sharpen(progress)
            self._sharp = now
        if batch_idx == 0 and self.world == 1:
            self.recipe.network.advance(self.net, progress)
        if self.draws and batch_idx == 0:  # a resumed training begins with an epoch
            seed = (self.seed * 1_000_003 + self.global_step) % 2**63
            if self.device.type == "cpu":  # torch.manual_seed keeps a stack trace for a GPU that comes later
                torch.default_generator.manual_seed(seed)
            else:
                torch.manual_seed(seed)

    def sharpen(self, progress: float) -> None:
        """Set the activations as they are when the share `progress` of the training is done."""
        if self.schedule is not None and has_smooth(self.net):
            set_sharpness(self.net, self.schedule.at(progress))

    def on_train_end(self) -> None:
        for handle in self._hooks:
            handle.remove()

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        x, y, *weights = batch
        loss = self.objective(x, y, *weights)
        mean, rows = loss.detach(), len(x)
        if self.world > 1:
            (mean,), rows = pooled(loss[None], len(x))
        if not torch.isfinite(mean):  # of all processes, so that they stop together
            raise TrainingError(
                f"the training loss became {mean.item()} at step {self.global_step} (epoch {self.current_epoch + 1}): "
                "lower lr, set clip, or check the data; the last good checkpoint is kept"
            )
        self._trained.add({"train_loss": mean}, rows)
        # the processes' gradients are averaged: this makes it the gradient of the mean over all rows
        return loss if self.world == 1 else loss * (len(x) * self.world / rows)

    def objective(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """The training loss: of the outputs, and of the attributes where the network learns them."""
        attributes = None if self.attributes is None else self.attributes.to(y.device)[y]
        loss = partial(self.train_loss, weights=weights)
        return self.recipe.network.loss(self.net, x, y, loss, attributes)

    def on_validation_epoch_start(self) -> None:
        self.sharpen(self.global_step / self.steps)  # what is validated is the network of this moment
        if self.world > 1:
            share_buffers(self.net)
        self._measured = [self.net, self._exact_of(self.net) if has_smooth(self.net) else self.net]

    def _exact_of(self, net: nn.Module) -> nn.Module:
        """The exact network over the very tensors of this one; made anew where modules or tensors are others, and where
        a step of the user's own says what becomes of it."""
        if is_outside(self.recipe.activation.method):
            return harden(net, share=True).eval()
        seen = [*map(id, net.modules()), *map(id, net.parameters()), *(b.data_ptr() for b in net.buffers())]
        if self._exact is None or self._exact[0] != seen:
            self._exact = seen, harden(net, share=True)
        return self._exact[1].eval()

    def on_validation_epoch_end(self) -> None:
        self.log_dict(self._trained.pop() | self._validated.pop())
        self._measured = []

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        x, y, *weights = batch
        found: dict[str, Tensor] = {}
        for net, suffix in zip(self._measured, ("_smooth", ""), strict=True):
            with torch.autocast(x.device.type, enabled=False):  # a rounding to bfloat16 flips bits of the exact network
                outputs = net(x)
            found[f"val_loss{suffix}"] = self.loss(outputs, y, *weights)
            if self.classes:
                found[f"val_accuracy{suffix}"] = (outputs.argmax(1) == y).float().mean()
        rows = len(x)
        if self.world > 1:  # not by Lightning: it divides by a number of rows that it has rounded down
            means, rows = pooled(torch.stack(list(found.values())), rows)
            found = dict(zip(found, means, strict=True))
        self._validated.add(found, rows)

    def configure_optimizers(self) -> Any:
        recipe = self.recipe.optimization
        parameters = self.recipe.network.groups(self.net, recipe.lr)
        fused = True if self.world == 1 and not recipe.clip else None  # one pass over memory; not of clipped bfloat16
        match recipe.optimizer:
            case "sgd":
                optimizer: torch.optim.Optimizer = torch.optim.SGD(
                    parameters, recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay, nesterov=recipe.nesterov
                )
            case "muon":
                with no_trace():
                    from timm.optim.muon import Muon  # timm takes a second to import

                groups = undecayed(parameters)
                optimizer = Muon(groups, recipe.lr, recipe.weight_decay, recipe.momentum, ns_steps=NEWTON_SCHULZ)
            case "adam":
                optimizer = torch.optim.Adam(parameters, recipe.lr, weight_decay=recipe.weight_decay, fused=fused)
            case _:
                optimizer = torch.optim.AdamW(parameters, recipe.lr, weight_decay=recipe.weight_decay, fused=fused)
        match recipe.schedule:
            case "one_cycle":  # SGD keeps the recipe's momentum
                adaptive = recipe.optimizer in ("adam", "adamw")
                highest = [group["lr"] for group in optimizer.param_groups]
                schedule: Any = OneCycleLR(optimizer, highest, total_steps=self.steps + 1, cycle_momentum=adaptive)
            case "cosine":
                schedule = CosineAnnealingLR(optimizer, self.steps, eta_min=recipe.lr_end)
                if len(optimizer.param_groups) > 1:  # each down to its own share
                    end = recipe.lr_end / recipe.lr
                    schedule = LambdaLR(optimizer, lambda t: end + (1 - end) * (1 + cos(pi * t / self.steps)) / 2)
            case "linear":
                end = recipe.lr_end / recipe.lr
                schedule = LinearLR(optimizer, start_factor=1.0, end_factor=end, total_iters=self.steps)
            case _:
                return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class ExactValues:
    """Forward hook of a smooth step: while `on`, it gives what the exact step gives, with the gradient of the smooth
    one."""

    def __init__(self) -> None:
        self.on = False

    def __deepcopy__(self, memo: object) -> ExactValues:
        return self

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        if not self.on or not looks_smooth(module):
            return None
        exact = exact_step(module, args[0].detach()).to(output.dtype)
        return exact + (output - output.detach())  # plus 0


@final
class Means:
    """Means over batches, each by its rows; a call of Lightning's log in every step takes a sixth of a small one."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.rows = 0

    def add(self, values: Mapping[str, Tensor], rows: int) -> None:
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0) + value * rows
        self.rows += rows

    def pop(self) -> dict[str, Tensor]:
        """The means since the last call."""
        found = {name: total / self.rows for name, total in self.sums.items()}
        self.sums, self.rows = {}, 0
        return found


def undecayed(parameters: Iterable[Any]) -> list[dict[str, Any]]:
    """Parameters or groups of them as groups, in which norms and biases have no weight decay: it would shrink the
    pre-activations, and with them what makes an activation binary."""
    found: list[dict[str, Any]] = []
    for group in ({"params": [p]} if isinstance(p, Tensor) else p for p in parameters):
        for flat in (False, True):
            chosen = [p for p in group["params"] if (p.ndim < 2) == flat]
            options = {k: v for k, v in group.items() if k != "params"} | ({"weight_decay": 0.0} if flat else {})
            same = next((one for one in found if {**one, "params": 0} == {**options, "params": 0}), None)
            if same is not None:
                same["params"] += chosen
            elif chosen:
                found.append({"params": chosen, **options})
    return found


def _is_random(net: nn.Module) -> bool:
    """Whether training draws random numbers inside the network: dropout, or stochastic depth of a timm backbone."""
    return any("Drop" in type(module).__name__ and getattr(module, "p", 1.0) != 0.0 for module in net.modules())


def has_smooth(net: nn.Module) -> bool:
    return any(map(looks_smooth, net.modules()))


@final
class EpochBatches(Sampler[Any]):
    """Batches of row numbers with a key each and the epoch, shuffled as a function of (seed, epoch) alone: a resumed
    epoch sees the same.

    The last batch may be smaller, but not smaller than `least` (batch norm needs two): then its rows join the batch
    before. Of several processes, `rank` of `world` takes its share of every batch, with a key of its own.
    """

    def __init__(self, rows: int, batch_size: int, seed: int, rank: int = 0, world: int = 1, least: int = 2) -> None:
        self.rows, self.batch_size, self.seed, self.epoch = rows, batch_size, seed, 0
        self.rank, self.world, self.least = rank, world, least

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        full, rest = divmod(self.rows, self.batch_size)
        return max(1, full + (rest >= self.least))

    def __iter__(self) -> Iterator[Any]:
        state = (self.seed * 1_000_003 + self.epoch) % 2**63
        order = torch.randperm(self.rows, generator=torch.Generator().manual_seed(state))
        for i in range(len(self)):
            rows = order[i * self.batch_size : (i + 1) * self.batch_size if i + 1 < len(self) else None]
            key = state * 1_000_003 + i  # what is random in the batch follows from this number
            yield rows[self.rank :: self.world], (key * self.world + self.rank) % 2**63, self.epoch


def loaders(
    train: Part,
    validation: Part,
    batch_size: int,
    seed: int,
    workers: int = 0,
    *,
    rank: int = 0,
    world: int = 1,
    least: int = 2,
) -> tuple[DataLoader, DataLoader]:
    """Loaders that take whole batches by row numbers: no per-row work.

    Args:
        batch_size: of all processes together.
        workers: processes that read images from files.
        rank, world, least: as `EpochBatches` takes them; validation rows are shared too.
    """
    batches = EpochBatches(len(train), batch_size, seed, rank, world, least)
    chunks = [(rows, 0) for rows in share(torch.arange(len(validation)), rank, world, validation.chunk)]
    options: dict[str, Any] = {"batch_size": None, "num_workers": workers, "persistent_workers": workers > 0}
    return DataLoader(train, sampler=batches, **options), DataLoader(validation, sampler=chunks, **options)  # pyright: ignore[reportArgumentType]


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
    """Show how far the first process is by `htaf._ground.console.progress`, with the losses of the last validation."""

    def __init__(self, posed: Problem, recipe: Recipe, history: History, unit: str) -> None:
        self.posed, self.recipe, self.history, self.unit = posed, recipe, history, unit
        self.stack = ExitStack()
        self.advance: Callable[..., None] = lambda more, note: None
        self.losses = ""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
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
        if trainer.current_epoch == self.recipe.exact_epoch:
            tell(f"epoch {trainer.current_epoch + 1}/{self.recipe.optimization.epochs}: exact from here")

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        epoch, of = trainer.current_epoch + 1, self.recipe.optimization.epochs
        self.advance(1, f"epoch {epoch}/{of}{self.losses}")

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not validated(trainer):
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
        if seen.stopped and seen.epochs < of.epochs:
            tell(
                f"stopped early, after epoch {seen.epochs} of {of.epochs}: no better exact network in the last "
                f"{of.patience} epochs (patience)"
            )

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self.stack.close()
