"""What can be chosen of a conversion, and its defaults. Needs no torch, so that the command knows them at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from htaf._ground.errors import HtafError

Method = Literal["htaf", "ste", "ss"]
Precision = Literal["float32", "bfloat16"]
Calibration = Literal["plain", "gates", "down"]
MOST = 2**31 - 1  # steps and blocks
WIDEST = 4096  # rank
# shares of the steps: the rate rises; smooth steps grow steep; the first and the last layer become exact, from below
WARMUP, SHARPEN, HARDEN_FROM, HARDEN_TO = 0.06, 0.4, 0.4, 0.8
ENDS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "htaf": ((0.5, 4.0), (1.0, 8.0)), "ss": ((2.0,), (8.0,)), "ste": ((), ()),
}  # fmt: skip


class LanguageError(HtafError):
    """A model, a file or a text that this room cannot take; its message says what was expected and what came."""


@dataclass(frozen=True)
class Data:
    """The text of a run.

    text: a file, or a folder of text files, for calibration, training and perplexity.
    length: tokens of a block, >= 2. calibration, training, validation, test: at most so many blocks of each.

    Raises:
        LanguageError: a number is too small.
    """

    text: str
    length: int = 256
    calibration: int = 128
    training: int = 2000
    validation: int = 16
    test: int = 64

    def __post_init__(self) -> None:
        for name, least in (("length", 2), ("calibration", 2), ("training", 2), ("validation", 1), ("test", 1)):
            if getattr(self, name) < least:
                raise LanguageError(f"{name} must be >= {least}, got {getattr(self, name)}")


@dataclass(frozen=True)
class Training:
    """How the last layers are trained. The paper: steps 5,000, lr 1e-4, rank 8, lora_alpha 16, distil 0.

    Args:
        method: htaf, ss: smooth steps, exact layer by layer from 40% to 80% of the steps; ste: exact forward, a slope
            backward.
        steps: Optimiser steps.
        batch_size: Blocks of tokens in a step.
        lr: Of AdamW, on LoRA and gates; rises over 6% of the steps, then falls linearly to 0.
        rank: Of LoRA, on every projection of the layers.
        lora_alpha: What LoRA adds is scaled by lora_alpha / rank.
        distil: Share of the loss that is KL(original || this) on next tokens; the rest is the text's likelihood.
        start: Where the smooth step starts, in units of each gate's standard deviation: (alpha0, alpha1) of htaf,
            (beta,) of ss; none: that of the method.
        end: Where it ends, as start.
        precision: bfloat16: mixed precision while it trains and validates: frozen weights are rounded, what learns is
            not.
        validate: Steps between two measurements on validation blocks.
        seed: Of LoRA's first weights and of the order of the blocks.

    Raises:
        LanguageError: a value is out of range.
    """

    method: Method = "htaf"
    steps: int = 400
    batch_size: int = 4
    lr: float = 1e-3
    rank: int = 8
    lora_alpha: int = 16
    distil: float = 1.0
    start: tuple[float, ...] | None = None
    end: tuple[float, ...] | None = None
    precision: Precision = "float32"
    validate: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in ENDS:
            raise LanguageError(f"method must be htaf, ste or ss, got {self.method}")
        count = len(ENDS[self.method][0])
        if any(len(values) != count for values in self.ends):
            raise LanguageError(f"start and end of {self.method} must be {count} numbers each")
        _expect(0 <= self.steps <= MOST, f"steps must be in 0 to {MOST}", self.steps)
        _expect(self.precision in get_args(Precision), "precision must be float32, bfloat16", self.precision)
        for name, most in (("batch_size", MOST), ("rank", WIDEST), ("lora_alpha", 10**6), ("validate", MOST)):
            _expect(1 <= getattr(self, name) <= most, f"{name} must be in 1 to {most}", getattr(self, name))
        _expect(0 < self.lr < math.inf, "lr must be > 0 and finite", self.lr)
        _expect(0 <= self.distil <= 1, "distil must lie in [0, 1]", self.distil)

    @property
    def ends(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Start and end, those of the method where none are given."""
        start, end = ENDS[self.method]
        return self.start or start, self.end or end

    def rate(self, step: int) -> float:
        """Return the learning rate at a step, as a share of lr."""
        rising = max(1, round(WARMUP * self.steps))
        return (step + 1) / rising if step < rising else max(0.0, (self.steps - step) / max(1, self.steps - rising))

    def exact(self, step: int, layers: Sequence[int]) -> list[int]:
        """Return the layers that are exact at a step, of those that are converted, from below."""
        if self.method == "ste":
            return []
        first, last = HARDEN_FROM * self.steps, HARDEN_TO * self.steps
        at = [first + (last - first) * i / max(1, len(layers) - 1) for i in range(len(layers))]
        return [layer for layer, when in zip(layers, at, strict=True) if step >= when]


@dataclass(frozen=True)
class Machine:
    """Where a model is held while it is converted, and how.

    Args:
        device: cpu, cuda, ...
        dtype: Of the weights while they are trained, and of the files.
        cache: Folder of hidden states and calibrations that several runs share; none: in the run's own, deleted at its
            end.
    """

    device: str = "cpu"
    dtype: Precision = "float32"
    cache: Path | None = None


def _expect(holds: bool, rule: str, got: Any) -> None:
    if not holds:
        raise LanguageError(f"{rule}, got {got}")
