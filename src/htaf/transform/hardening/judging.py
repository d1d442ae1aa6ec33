"""What decides whether a change of a network is kept: a loss on held-out data, or a measure of one's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from htaf.transform.convert.finding import rows_of
from htaf.transform.convert.modes import evaluating
from htaf.transform.hardening.report import (
    Batches,
    Measure,
    call,
    expect_batches,
    is_binary,
    is_pair,
    is_regression,
    measured_by,
    pair_of,
    wide,
)

Loss = Callable[[Any, Tensor], Tensor]  # of outputs and targets


@dataclass(frozen=True)
class Judge:
    """Gives a network a number, lower is better.

    name: what the number is. sign: -1 of a measure of which higher is better; `shown` has the measure's own sign.
    """

    measure: Measure
    name: str
    sign: int = 1

    def __call__(self, net: nn.Module) -> float:
        return self.sign * measured_by(self.measure, net)

    def shown(self, found: float) -> float:
        return self.sign * found

    def noise(self, net: nn.Module, found: float) -> float:
        """By how much the numbers of one network differ from call to call; of most measures 0.

        found: its number at one call. Where a second call gives another, three more tell how far they spread.
        """
        found_again = self(net)
        if found_again == found:
            return 0.0
        several = [found, found_again, *(self(net) for _ in range(3))]
        return max(several) - min(several)


def judge_by(net: nn.Module, valid: Any, loss: Loss | None, measure: Measure | None, higher: bool | None) -> Judge:
    """The judge that the arguments of `finish` and `sensitivity` name.

    Raises:
        TypeError: neither or both of valid and measure, a measure without `higher`, or `higher` beside a loss.
        ValueError: the usual loss does not fit the outputs of the network.
    """
    if (valid is None) == (measure is None):
        got = "neither" if valid is None else "both"
        raise TypeError(f"expected valid=(inputs, targets) to choose by, or measure= with higher=, got {got}")
    if measure is not None:
        if higher is None:
            raise TypeError(
                "expected higher=True beside a measure= that is better where it is higher, such as an accuracy, an IoU "
                "or a return, or higher=False of a loss or an error, got neither"
            )
        return Judge(measure, "measure", -1 if higher else 1)
    if higher is not None:
        raise TypeError("expected higher= beside measure= alone, got it beside valid=, whose loss is better if lower")
    held = [valid] if is_pair(valid) else valid
    name, found = ("loss", loss) if loss is not None else usual_loss(net, pair_of(expect_batches(held)))
    return Judge(lambda other: _mean(other, held, found), f"{name} on valid")


def _mean(net: nn.Module, batches: Batches, loss: Loss) -> float:
    """The loss over batches, each by its rows."""
    total, rows = 0.0, 0
    for x, y in map(pair_of, batches):
        count = rows_of(x) or 1
        output = call(net, x)
        device = output.device if isinstance(output, Tensor) else y.device
        total, rows = total + count * float(loss(output, y.to(device))), rows + count
    return total / rows


def usual_loss(net: nn.Module, batch: tuple[Any, Tensor]) -> tuple[str, Loss]:
    """The loss that targets ask for, and its name.

        class codes                   cross-entropy, with classes in dimension 1 or the last one; codes < 0 are left out
        0 and 1, one for each output  cross-entropy of every output by itself
        other floats                  mean squared error

    Outputs that are probabilities (between 0 and 1; of class codes with the sum 1) are taken as these, else as logits.

    Raises:
        ValueError: outputs are no tensor, or of another shape.
    """
    x, y = batch
    with evaluating(net):
        output = call(net, x)
    if not isinstance(output, Tensor):
        raise ValueError(f"expected loss= beside valid= for a network that returns a {type(output).__name__}")
    output = wide(output)
    y = y.to(output.device)
    unit = bool(((output >= 0) & (output <= 1)).all())
    if output.numel() == y.numel() and (is_binary(y) or (not is_regression(y) and bool((y <= 1).all()))):
        each = F.binary_cross_entropy if unit else F.binary_cross_entropy_with_logits
        return "cross-entropy", lambda output, y: each(wide(output).reshape(y.shape), y.to(wide(output)))
    if output.numel() == y.numel() and is_regression(y):
        return "squared error", lambda output, y: F.mse_loss(wide(output).reshape(y.shape), y.to(wide(output)))
    dims = [d for d in (1, -1) if output.ndim == y.ndim + 1 and output.movedim(d, -1).shape[:-1] == y.shape]
    if is_regression(y) or not dims:
        raise ValueError(
            f"expected class codes, one for each output of {tuple(output.shape)} without its classes, or floats of its "
            f"shape, got {y.dtype} of {tuple(y.shape)}: give loss= or measure="
        )
    likely = unit and torch.allclose(output.sum(dims[0]), torch.ones(()).to(output), atol=1e-3)

    def cross_entropy(output: Tensor, y: Tensor) -> Tensor:
        logits, codes = wide(output).movedim(dims[0], -1).flatten(0, -2), y.flatten()
        logits = logits.clamp_min(1e-12).log() if likely else logits
        return F.cross_entropy(logits[codes >= 0], codes[codes >= 0])

    return "cross-entropy", cross_entropy
