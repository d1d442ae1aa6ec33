"""The LightningModule: smooth training, validation of the smooth and the exact network side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, OneCycleLR
from torch.utils.data import DataLoader, Sampler

from htaf._errors import HtafError
from htaf.convert import harden
from htaf.sharpening import set_sharpness
from htaf.training.metrics import loss_function
from htaf.training.problems import Part
from htaf.training.recipe import Recipe


class TrainingError(HtafError):
    """A training that cannot start or go on."""


@final
class Training(L.LightningModule):
    """Trains `net` by a recipe. Logs train_loss, val_loss (exact network where there is a step) and val_loss_smooth."""

    def __init__(self, net: nn.Module, recipe: Recipe, task: str, steps: int) -> None:
        super().__init__()
        self.net, self.recipe, self.steps = net, recipe, steps
        self.train_loss, self.loss = loss_function(task, recipe.label_smoothing), loss_function(task)
        self.schedule = recipe.sharpening()
        self._exact: list[nn.Module] = []  # in a list, so that it is not a second set of entries in the state dict
        self._step: list[Any] = [torch.compile(net) if recipe.compile else net]

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.sharpen(self.global_step / self.steps)

    def sharpen(self, progress: float) -> None:
        """Set the activations as they are when the share `progress` of the training is done."""
        if self.schedule is not None:
            set_sharpness(self.net, self.schedule.at(progress))

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        loss = self.train_loss(self._step[0](x), y)
        if not torch.isfinite(loss):
            raise TrainingError(
                f"the training loss became {loss.item()} at step {self.global_step} (epoch {self.current_epoch}): "
                f"{first_non_finite(self.net, x)}. Lower lr, set clip, or check the data; "
                "the last good checkpoint is kept"
            )
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(x))
        return loss

    def on_validation_epoch_start(self) -> None:
        self.sharpen(self.global_step / self.steps)  # what is validated is the network of this moment
        # made anew each time: it holds the very tensors of `net`, wherever those have moved
        self._exact = [harden(self.net, share=True).eval()] if self.recipe.method != "relu" else [self.net]

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss_smooth", self.loss(self.net(x), y), batch_size=len(x))
        self.log("val_loss", self.loss(self._exact[0](x), y), batch_size=len(x))

    def configure_optimizers(self) -> Any:
        recipe, parameters = self.recipe, self.net.parameters()
        match recipe.optimizer:
            case "sgd":
                optimizer: torch.optim.Optimizer = torch.optim.SGD(
                    parameters, recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay, nesterov=recipe.nesterov
                )
            case "adam":
                optimizer = torch.optim.Adam(parameters, recipe.lr, weight_decay=recipe.weight_decay)
            case _:
                optimizer = torch.optim.AdamW(parameters, recipe.lr, weight_decay=recipe.weight_decay)
        match recipe.schedule:
            case "one_cycle":  # SGD keeps the recipe's momentum
                adaptive = recipe.optimizer != "sgd"
                schedule: Any = OneCycleLR(optimizer, recipe.lr, total_steps=self.steps + 1, cycle_momentum=adaptive)
            case "cosine":
                schedule = CosineAnnealingLR(optimizer, self.steps, eta_min=recipe.lr_end)
            case "linear":
                end = recipe.lr_end / recipe.lr
                schedule = LinearLR(optimizer, start_factor=1.0, end_factor=end, total_iters=self.steps)
            case _:
                return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@torch.no_grad()
def first_non_finite(net: nn.Module, x: Tensor) -> str:
    """Where the first NaN or infinity of a forward pass comes from: the inputs, a parameter, or a module's output."""
    if not torch.isfinite(x).all():
        return "the inputs of this batch are not finite"
    for name, tensor in (*net.named_parameters(), *net.named_buffers()):
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            return f"{name} is not finite since the step before"
    found: list[str] = []

    def look(name: str, module: nn.Module):
        def hook(_: nn.Module, inputs: Any, output: Any) -> None:
            if not found and isinstance(output, Tensor) and not torch.isfinite(output).all():
                found.append(f"the first value that is not finite is in the output of {name} ({type(module).__name__})")

        return module.register_forward_hook(hook)

    handles = [look(name, m) for name, m in net.named_modules() if not any(True for _ in m.children())]
    try:
        net(x)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else "every layer's output is finite, so it is the loss itself"


@final
class EpochBatches(Sampler[Any]):
    """Batches of row numbers with a key each, shuffled as a function of (seed, epoch) alone, so that a resumed epoch
    sees the same.

    The last batch may be smaller; a single left-over row joins the batch before it (batch norm needs two).
    """

    def __init__(self, rows: int, batch_size: int, seed: int) -> None:
        self.rows, self.batch_size, self.seed, self.epoch = rows, batch_size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        full, rest = divmod(self.rows, self.batch_size)
        return max(1, full + (rest > 1))

    def __iter__(self) -> Iterator[Any]:
        state = (self.seed * 1_000_003 + self.epoch) % 2**63
        order = torch.randperm(self.rows, generator=torch.Generator().manual_seed(state))
        for i in range(len(self)):
            rows = order[i * self.batch_size : (i + 1) * self.batch_size if i + 1 < len(self) else None]
            yield rows, (state * 1_000_003 + i) % 2**63  # what is random in the batch follows from this number


def loaders(
    train: Part, validation: Part, batch_size: int, seed: int, workers: int = 0
) -> tuple[DataLoader, DataLoader]:
    """Loaders that take whole batches by row numbers: no per-row work. `workers`: processes, for images in files."""
    batches = EpochBatches(len(train), batch_size, seed)
    chunks = [(rows, 0) for rows in torch.arange(len(validation)).split(validation.chunk)]
    options: dict[str, Any] = {"batch_size": None, "num_workers": workers, "persistent_workers": workers > 0}
    return DataLoader(train, sampler=batches, **options), DataLoader(validation, sampler=chunks, **options)  # pyright: ignore[reportArgumentType]
