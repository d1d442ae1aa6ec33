"""The LightningModule: smooth training, validation of the smooth and the exact network side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

from htaf.convert import harden
from htaf.sharpening import set_sharpness
from htaf.training.metrics import loss_function
from htaf.training.recipe import Recipe


@final
class Training(L.LightningModule):
    """Trains `net` by a recipe. Logs train_loss, val_loss (exact network where there is a step) and val_loss_smooth."""

    def __init__(self, net: nn.Module, recipe: Recipe, task: str, steps: int) -> None:
        super().__init__()
        self.net, self.recipe, self.steps = net, recipe, steps
        self.loss = loss_function(task)
        self.schedule = recipe.sharpening()
        self._exact: list[nn.Module] = []  # in a list, so that it is not a second set of entries in the state dict

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.sharpen(self.global_step / self.steps)

    def sharpen(self, progress: float) -> None:
        """Set the activations as they are when the share `progress` of the training is done."""
        if self.schedule is not None:
            set_sharpness(self.net, self.schedule.at(progress))

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        loss = self.loss(self.net(x), y)
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
        recipe = self.recipe
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)
        match recipe.schedule:
            case "one_cycle":
                schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.lr, total_steps=self.steps + 1)
            case "cosine":
                schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
            case _:
                return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@final
class EpochBatches(Sampler[list[int]]):
    """Batches of row numbers, shuffled as a function of (seed, epoch) alone, so that a resumed epoch sees the same.

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
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) % 2**63)
        order = torch.randperm(self.rows, generator=generator)
        for i in range(len(self)):
            yield order[i * self.batch_size : (i + 1) * self.batch_size if i + 1 < len(self) else None]


def loaders(
    train: tuple[Tensor, Tensor], validation: tuple[Tensor, Tensor], batch_size: int, seed: int
) -> tuple[DataLoader, DataLoader]:
    """Loaders that take whole batches out of tensors by index: no per-row work."""
    batches = EpochBatches(len(train[0]), batch_size, seed)
    chunks = list(torch.arange(len(validation[0])).split(8192))
    return (
        DataLoader(TensorDataset(*train), sampler=batches, batch_size=None),
        DataLoader(TensorDataset(*validation), sampler=chunks, batch_size=None),  # pyright: ignore[reportArgumentType]
    )
