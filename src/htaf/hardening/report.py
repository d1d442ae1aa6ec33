"""What the steps of this room share: their report, their batches, and a network's loss on them.

Batches are a list, a `DataLoader` or anything else that can be gone through again. A batch is

- a pair (inputs, targets), as a tuple or a list. So a tuple of two tensors is inputs and targets, never two inputs;
- or the inputs alone, where no targets are needed.

Inputs are a tensor, a tuple of positional arguments or a mapping of keyword arguments of the model; anything else, a
list too, is its one argument. Two positional arguments without targets are the pair ((a, b), None). A `DataLoader`
turns tuples within an item into lists: for several arguments use mappings, or a `collate_fn` of your own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader

from htaf.convert.modes import evaluating

Batches = Iterable[Any]  # as above
Measure = Callable[[nn.Module], Any]  # a network in eval mode -> a number; lower is better
FITTED = "loss on the rows fitted to"


@dataclass(frozen=True)
class LayerReport:
    """What became of one layer.

    name: module path. strength: of the ridge; None: its weights are as they were. rows: used. note: how it was done.
    measure: what before and after are, "error" or FITTED.
        "error": the root of the mean squared error over the standard deviation of what the layer should give, on the
        rows that were used; about the means, where a bias or a norm takes them up.
        FITTED: of a refitted head, the mean squared error or cross-entropy on the rows that it was fitted to, which
        are not those of the report's own losses.
    before, after: the layer as it was and as it is; None for a norm, of which only the statistics move.
    """

    name: str
    before: float | None
    after: float | None
    strength: float | None
    rows: int
    note: str = ""
    measure: str = "error"

    def __str__(self) -> str:
        moved = "" if self.before is None else f"{self.measure} {self.before:.3f} -> {self.after:.3f}"
        return f"{self.name}: {', '.join(part for part in (moved, self.note) if part)}"


@dataclass(frozen=True)
class Report:
    """What a step did and what it brought; `dataclasses.asdict` makes JSON of it.

    name: of the step. seconds: wall time. before, after: {"loss"} or {"loss", "accuracy"} on the validation batches,
    None without them. layers: in the order in which they were changed. notes: what was left as it was, and why; sizes;
    layers that were fitted to fewer rows than they have inputs.
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
        return "\n".join([*lines, *(f"  {one}" for one in (*self.layers, *self.notes))])


def expect_batches(batches: Batches, validation: Batches | None = None) -> Any:
    """The first batch. Of both only the first is looked at, as a batch may be costly to make.

    Raises:
        TypeError: they can be gone through only once, are a tensor or a single pair. ValueError: there are none.
    """
    first = _first(batches, "batches")
    if validation is not None:
        pair_of(_first(validation, "validation"))
    return first


def _first(batches: Batches, name: str) -> Any:
    if isinstance(batches, Tensor):
        raise TypeError(f"expected {name} as a list of batches, got a tensor of shape {tuple(batches.shape)}")
    if _is_pair(batches):
        raise TypeError(
            f"expected {name} as a list of batches, got one pair (inputs, targets): give [(inputs, targets)]"
        )
    if iter(batches) is batches:
        raise TypeError(f"expected {name} that can be gone through again, such as a list, got {type(batches).__name__}")
    for batch in batches:
        return batch
    raise ValueError(f"expected {name} with one batch or more, got none")


def _is_pair(batches: Batches) -> bool:
    """Whether this is one batch and no list of them. A list of two tensors may be two batches of inputs alone."""
    if not isinstance(batches, (tuple, list)) or len(batches) != 2 or not isinstance(batches[1], Tensor):
        return False
    x, y = batches
    if isinstance(batches, tuple) or not isinstance(x, Tensor):
        return True
    columns = x.ndim == 2 and is_regression(x) and x.shape[1] != y.shape[-1]
    return x.dtype != y.dtype or x.ndim != y.ndim or columns


def batch_count(batches: Batches) -> int:
    """How many there are. Only lists and loaders are asked for their length: that of others may count rows."""
    if isinstance(batches, (list, tuple, DataLoader)):
        with suppress(TypeError):  # a loader of a set without a length
            return len(batches)
    return sum(1 for _ in batches)


def inputs_of(batch: Any) -> Any:
    """The inputs of a batch: the first of a pair, else the batch."""
    return batch[0] if isinstance(batch, (tuple, list)) and len(batch) == 2 else batch


def pair_of(batch: Any) -> tuple[Any, Tensor]:
    """Inputs and targets. Raises ValueError where it is no pair, or one without targets."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise ValueError(f"expected batches of (inputs, targets), got {type(batch).__name__}")
    if not isinstance(batch[1], Tensor):
        raise ValueError(f"expected batches of (inputs, targets) with a tensor of targets, got {batch[1]!r:.40}")
    return batch[0], batch[1]


def device_of(model: nn.Module) -> torch.device:
    """Where the first of its tensors lies."""
    return next((t.device for t in (*model.parameters(), *model.buffers())), torch.device("cpu"))


def moved(x: Any, device: torch.device) -> Any:
    """The inputs on a device: a tensor, or a tuple, list or mapping of them."""
    return tree_map_only(Tensor, lambda value: value.to(device), dict(x) if isinstance(x, Mapping) else x)


def call(model: nn.Module, x: Any) -> Any:
    """The model's output for a tuple of positional arguments, a mapping of keyword arguments, or one argument."""
    x = moved(x, device_of(model))
    output = model(**x) if isinstance(x, Mapping) else model(*x) if isinstance(x, tuple) else model(x)
    return getattr(output, "logits", output)  # a language model's output is an object


def few_rows(name: str, rows: int, inputs: int, near: str) -> tuple[str, ...]:
    """A note on a fit to fewer rows than a layer has inputs, none of more. near: where the strength holds weights."""
    if rows >= inputs:
        return ()
    return (
        f"{name}: {rows} rows are fewer than its {inputs} inputs. Many weights fit so few rows; the strength decides "
        f"between them: it holds the weights near {near}. Give more rows",
    )


def is_regression(y: Tensor) -> bool:
    """Whether targets are numbers, not class codes."""
    return y.is_floating_point()


def measured(model: nn.Module, batches: Batches | None) -> dict[str, float] | None:
    """{"loss"} of float targets (mean squared error), {"loss", "accuracy"} of class codes (cross-entropy, in nats).

    Class codes < 0 are left out. None for None.

    Raises:
        ValueError: a batch without targets, no row at all, or an output that is no tensor.
    """
    if batches is None:
        return None
    loss = hits = count = 0.0
    coded = True
    with evaluating(model):
        for batch in batches:
            x, y = pair_of(batch)
            output = call(model, x)
            if not isinstance(output, Tensor):
                raise ValueError(
                    f"expected a model that returns a tensor, or an object with logits, got {type(output).__name__}: "
                    "give no validation=, and choose by a measure of your own as htaf.finish does"
                )
            y = y.to(output.device)
            coded = not is_regression(y)
            if coded:
                output, y = _rows_and_codes(output, y)
                loss += nn.functional.cross_entropy(output.double(), y, reduction="sum").item()
                hits += (output.argmax(1) == y).sum().item()
                count += len(y)
            else:
                loss += (output.double() - y.reshape(output.shape)).square().sum().item()
                count += y.numel()
    if not count:
        raise ValueError("expected batches with a row that has a target, got none")
    found = {"loss": loss / count}
    return found | {"accuracy": hits / count} if coded else found


def _rows_and_codes(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [n, ...] of an output and class codes [n], those < 0 left out.

    Classes are dimension 1 where there is a code for each pixel, as of an output [batch, classes, height, width] and
    codes [batch, height, width]; else the last.
    """
    pixels = output.ndim > 2 and y.shape != output.shape[:-1] and y.shape == output[:, 0].shape
    output = output.movedim(1 if pixels else -1, -1)
    output, y = output.reshape(-1, output.shape[-1]), y.reshape(-1).long()
    known = y >= 0
    return (output, y) if bool(known.all()) else (output[known], y[known])


OF_MEASURE = "_htaf_of_measure"  # an attribute of errors that a measure raised


def measured_by(measure: Measure, net: nn.Module) -> float:
    """The measure of a network, in eval mode and without gradients.

    Raises:
        TypeError: it is no number. Whatever the measure raises, with the attribute `OF_MEASURE`.
    """
    with evaluating(net):
        try:
            found = measure(net)
        except Exception as error:
            setattr(error, OF_MEASURE, True)
            raise
    try:
        return float(found.detach() if isinstance(found, Tensor) else found)
    except (TypeError, ValueError):
        raise TypeError(f"expected a measure that gives a number, got {type(found).__name__}") from None
