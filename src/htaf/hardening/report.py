"""What the steps of this room share: their report, their batches, and a network's loss on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Batches = Iterable[Any]  # of (inputs, targets), or of inputs alone; re-iterable


@dataclass(frozen=True)
class LayerReport:
    """What became of one layer.

    name: module path. before, after: root of the error's variance over that of the target, on all rows that were used.
    strength: of the ridge; None: its weights are as they were. rows: used. note: what else there is to say.
    """

    name: str
    before: float
    after: float
    strength: float | None
    rows: int
    note: str = ""


@dataclass(frozen=True)
class Report:
    """What a step did and what it brought; `dataclasses.asdict` makes JSON of it.

    name: of the step. seconds: wall time. before, after: {"loss"} or {"loss", "accuracy"} on the validation batches,
    None without them. layers: in the order in which they were changed. notes: what else there is to say.
    """

    name: str
    seconds: float
    before: dict[str, float] | None = None
    after: dict[str, float] | None = None
    layers: tuple[LayerReport, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.seconds:.1f} s"]
        if self.before and self.after:
            lines[0] += "".join(f", {key} {value:.4f} -> {self.after[key]:.4f}" for key, value in self.before.items())
        for layer in self.layers:
            lines.append(
                f"  {layer.name}: error {layer.before:.3f} -> {layer.after:.3f}{layer.note and f', {layer.note}'}"
            )
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


def expect_batches(batches: Batches, name: str = "batches") -> int:
    """How many there are.

    Raises:
        TypeError: they can be gone through only once. ValueError: there are none.
    """
    if iter(batches) is batches:
        raise TypeError(f"expected {name} that can be gone through again, such as a list, got {type(batches).__name__}")
    if not (count := sum(1 for _ in batches)):
        raise ValueError(f"expected {name} with one batch or more, got none")
    return count


def inputs_of(batch: Any) -> Any:
    """The inputs of a batch: the first of a pair, else the batch."""
    return batch[0] if isinstance(batch, (tuple, list)) and len(batch) == 2 else batch


def pair_of(batch: Any) -> tuple[Any, Tensor]:
    """Inputs and targets. Raises ValueError where it is no pair."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2 or not isinstance(batch[1], Tensor):
        raise ValueError(f"expected batches of (inputs, targets), got {type(batch).__name__}")
    return batch[0], batch[1]


def device_of(model: nn.Module) -> torch.device:
    """Where the first of its tensors lies."""
    return next((t.device for t in (*model.parameters(), *model.buffers())), torch.device("cpu"))


def moved(x: Any, device: torch.device) -> Any:
    """The inputs on a device: a tensor, or a tuple, list or mapping of them."""
    if isinstance(x, Tensor):
        return x.to(device)
    if isinstance(x, Mapping):
        return {key: moved(value, device) for key, value in x.items()}
    return tuple(moved(value, device) for value in x) if isinstance(x, (tuple, list)) else x


def call(model: nn.Module, x: Any) -> Any:
    """The model's output for a tensor, a tuple of positional arguments or a mapping of keyword arguments."""
    x = moved(x, device_of(model))
    output = model(**x) if isinstance(x, Mapping) else model(*x) if isinstance(x, tuple) else model(x)
    return getattr(output, "logits", output)  # a language model's output is an object


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Eval mode, without gradients; every module's flag is as it was afterwards."""
    flags = [(module, module.training) for model in models for module in model.modules()]
    try:
        for module, _ in flags:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module, training in flags:
            module.training = training


def is_regression(y: Tensor) -> bool:
    """Whether targets are numbers, not class codes."""
    return y.is_floating_point()


def measured(model: nn.Module, batches: Batches | None) -> dict[str, float] | None:
    """{"loss"} of float targets (mean squared error), {"loss", "accuracy"} of class codes (cross-entropy, in nats).

    Class codes < 0 are left out. None for None.
    """
    if batches is None:
        return None
    loss = hits = count = 0.0
    classes = True
    with evaluating(model):
        for batch in batches:
            x, y = pair_of(batch)
            output = call(model, x)
            y = y.to(output.device)
            classes = not is_regression(y)
            if classes:
                output, y = rows_and_codes(output, y)
                loss += nn.functional.cross_entropy(output.double(), y, reduction="sum").item()
                hits += (output.argmax(1) == y).sum().item()
                count += len(y)
            else:
                loss += (output.double() - y.reshape(output.shape)).square().sum().item()
                count += y.numel()
    found = {"loss": loss / max(count, 1)}
    return found | {"accuracy": hits / max(count, 1)} if classes else found


def rows_and_codes(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [n, ...] of an output and class codes [n], those < 0 left out."""
    output, y = output.reshape(-1, output.shape[-1]), y.reshape(-1)
    known = y >= 0
    return (output, y) if bool(known.all()) else (output[known], y[known])
