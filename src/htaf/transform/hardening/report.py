"""What the steps of this room share: their report, their batches, and which weights can be fitted.

Batches are a list, a `DataLoader` or anything else that can be iterated again. A batch is

- a pair (inputs, targets), as a tuple or a list. So a tuple of two tensors is inputs and targets, never two inputs;
- or the inputs alone, if no targets are needed.

Inputs are a tensor, a tuple of positional arguments or a mapping of keyword arguments of the model; anything else, a
list too, is its one argument. Two positional arguments without targets are the pair ((a, b), None). A `DataLoader`
turns tuples within an item into lists: for several arguments use mappings, or a `collate_fn` of your own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader

from htaf.core.binary import BinaryConv2d, BinaryLinear
from htaf.transform.convert.modes import evaluating
from htaf.transform.grid import GridBinary, bias_of

Batches = Iterable[Any]  # as above
Measure = Callable[[nn.Module], Any]  # a network in eval mode -> a number; lower is better
BINARY_WEIGHTS = (BinaryConv2d, BinaryLinear, GridBinary)  # which are never fitted
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
    if is_pair(batches):
        raise TypeError(
            f"expected {name} as a list of batches, got one pair (inputs, targets): give [(inputs, targets)]"
        )
    if iter(batches) is batches:
        raise TypeError(f"expected {name} that can be gone through again, such as a list, got {type(batches).__name__}")
    for batch in batches:
        return batch
    raise ValueError(f"expected {name} with one batch or more, got none")


def is_pair(batches: Any) -> bool:
    """Whether this is one batch and no list of them. A list of two tensors may be two batches of inputs alone."""
    if not isinstance(batches, (tuple, list)) or len(batches) != 2 or not isinstance(batches[1], Tensor):
        return False
    x, y = batches
    if isinstance(batches, tuple) or not isinstance(x, Tensor):
        return True
    columns = x.ndim == 2 and is_regression(x) and x.shape[1] != y.shape[-1]
    return x.dtype != y.dtype or x.ndim != y.ndim or columns


class InTime:
    """Batches that end once `until` is over (of `time.perf_counter`), after the first one."""

    def __init__(self, batches: Batches, until: float) -> None:
        self.batches, self.until = batches, until

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self.batches):
            if number and self.over():
                return
            yield batch

    def __len__(self) -> int:
        return batch_count(self.batches)

    def over(self) -> bool:
        return time.perf_counter() >= self.until


def batch_count(batches: Batches) -> int:
    """How many there are. Only lists and loaders are asked for their length: that of others may count rows."""
    if isinstance(batches, (list, tuple, DataLoader, InTime)):
        with suppress(TypeError):  # a loader of a set without a length
            return len(batches)
    return sum(1 for _ in batches)


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


def is_binary(y: Tensor) -> bool:
    """Whether targets are 0 and 1 in floats."""
    return is_regression(y) and bool(((y == 0) | (y == 1)).all())


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


def not_its_own(model: nn.Module, layer: Any) -> str:
    """Why the weight or the bias of a layer cannot be written, "" where they can."""
    if isinstance(layer, BINARY_WEIGHTS):
        return "its weights are binary"
    for name in ("weight", "bias"):
        own = layer._parameters.get(name)
        if own is None:
            if getattr(layer, name, None) is not None:
                return f"its {name} is computed from others (a parametrisation)"
        elif sum(own is p for m in model.modules() for p in m._parameters.values()) > 1:
            return f"another module has the same {name}"
    return ""


def not_plain(layer: Any, made: Tensor, output: Tensor) -> str:
    """Why an output is not that of the layer's weights, "" where it is.

    Args:
        made: what the weights give, without the bias, in float32 or wider; [..., channels] as `output`.
    """
    bias = bias_of(layer)
    made = made if bias is None else made + bias.to(made)
    tolerance = max(1e-3, 8 * torch.finfo(output.dtype).eps)  # 0.06 in bfloat16: it rounds to 3 digits
    if (made - output.to(made)).abs().max() > tolerance * output.abs().max() + 1e-6:
        return f"its output is not that of a plain {type(layer).__name__}"
    return ""


def wide(x: Tensor) -> Tensor:
    """Half precision as float32, others as they are."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
