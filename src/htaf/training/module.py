"""The LightningModule: smooth training, validation of the smooth and the exact network side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import cos, pi
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, OneCycleLR
from torch.utils.data import DataLoader, Sampler

from htaf._ground.compat import no_trace
from htaf._ground.names import is_outside
from htaf.core.activations import exact_step
from htaf.core.contract import looks_smooth
from htaf.core.sharpening import set_sharpness
from htaf.data.parts import Part
from htaf.training.distributed import L, TrainingError, pooled, share, share_buffers
from htaf.training.recipe import Recipe
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
