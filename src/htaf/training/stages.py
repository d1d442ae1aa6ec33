"""When which steps become exact, and what the learning rate is meanwhile: functions of the step number alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from htaf.activations import exact_step
from htaf.contract import looks_smooth
from htaf.training.recipe import Hardening, HardenUnit, Schedule

LONGEST = 10_000  # epochs up to which the least number is looked for
WARM = 0.3  # share of one cycle that goes up, as in torch's OneCycleLR
FIRST, LAST = 1 / 25, 1 / 250_000  # of its highest rate
LOW, HIGH = 0.85, 0.95  # of the momentum that it moves the other way


@dataclass(frozen=True)
class Stages:
    """The stages of a progressive training: stage 0 from the start, with all steps smooth, then one for each group.

    epochs: of the training. begins: epoch at which each group becomes exact. groups: names of its steps.
    """

    epochs: int
    begins: tuple[int, ...]
    groups: tuple[tuple[str, ...], ...]

    def at(self, epoch: int) -> int:
        """The stage that an epoch belongs to."""
        return sum(begin <= epoch for begin in self.begins)

    def hard(self, stage: int) -> tuple[str, ...]:
        """The steps that are exact in a stage."""
        return tuple(name for group in self.groups[:stage] for name in group)

    def within(self, progress: float) -> tuple[int, float]:
        """The stage, and the share of it that is done, when the share `progress` of the training is done."""
        epoch = min(max(progress, 0.0), 1.0) * self.epochs
        stage = self.at(math.floor(epoch + 1e-9))
        ends = (0, *self.begins, self.epochs)
        return stage, min(max((epoch - ends[stage]) / (ends[stage + 1] - ends[stage]), 0.0), 1.0)

    def share(self, group: int, progress: float) -> float:
        """The share of a group's units that is exact: it grows from 0 to 1 over the stage before the group's own, of
        the first group over as many epochs as the second one takes."""
        end = self.begins[group]
        if group:
            begin = self.begins[group - 1]
        else:
            begin = max(0, end - (self.begins[1] - end if len(self.begins) > 1 else self.epochs - end))
        return min(max((progress * self.epochs - begin) / (end - begin), 0.0), 1.0)


def stages_of(hardening: Hardening, steps: Sequence[str], epochs: int) -> Stages:
    """The stages of a training.

    Args:
        steps: names of the smooth steps in order of first run.

    Raises:
        ValueError: no steps, more stages than steps, or too few epochs; the message says the least number.
    """
    if not steps:
        raise ValueError("expected a network with smooth steps to harden, got none")
    number = 1 if hardening.harden_order == "together" else hardening.harden_stages or len(steps)
    if number > len(steps):
        raise ValueError(f"harden_stages must be at most {len(steps)}, the network's steps, got {number}")
    begins = _begins(hardening, number, epochs)
    if begins is None:
        least = next((n for n in range(epochs + 1, LONGEST) if _begins(hardening, number, n)), None)
        between = f"between {hardening.harden_from:g} and {hardening.last:g} of them"
        if least is None:
            room = f"{hardening.harden_from:g} and {hardening.harden_to:g}"
            raise ValueError(f"harden_to must be further above harden_from for {number} stages, got {room}")
        fewer = ", or fewer harden_stages" if number > 1 else ""
        raise ValueError(f"epochs must be >= {least} for {number} stages {between}, got {epochs}: take more{fewer}")
    ordered = list(reversed(steps)) if hardening.harden_order == "backward" else list(steps)
    cuts = [round(i * len(steps) / number) for i in range(number + 1)]
    groups = tuple(tuple(ordered[a:b]) for a, b in pairwise(cuts))
    return Stages(epochs, begins, groups)


def _begins(hardening: Hardening, number: int, epochs: int) -> tuple[int, ...] | None:
    """The first epochs of so many stages; None where they do not fit."""
    first, last = hardening.harden_from, hardening.harden_to
    shares = [first + (last - first) * i / max(1, number - 1) for i in range(number)]
    found = [math.floor(epochs * share + 0.5) for share in shares]
    apart = all(a < b for a, b in zip((0, *found), (*found, epochs), strict=True))
    return tuple(found) if apart else None


def rate(schedule: Schedule, done: float, end: float = 0.0) -> float:
    """The learning rate as a share of the highest when the share `done` of a cycle is done; end: of the lr at the end
    of cosine and linear."""
    match schedule:
        case "one_cycle":
            return _cosine(FIRST, 1.0, done / WARM) if done < WARM else _cosine(1.0, LAST, (done - WARM) / (1 - WARM))
        case "cosine":
            return _cosine(1.0, end, done)
        case "linear":
            return 1 + (end - 1) * done
    return 1.0


def momentum(done: float) -> float:
    """The first beta of Adam in one cycle."""
    return _cosine(HIGH, LOW, done / WARM) if done < WARM else _cosine(LOW, HIGH, (done - WARM) / (1 - WARM))


def _cosine(start: float, end: float, done: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * done)) / 2


class Noise:
    """Forward pre-hook of a smooth step: Gaussian noise on the pre-activations, in training only."""

    def __init__(self, std: float) -> None:
        self.std = std

    def __deepcopy__(self, memo: object) -> Noise:
        return self

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if not module.training or not looks_smooth(module):  # a step that is exact by now keeps the hook
            return None
        x, *more = args
        return x + self.std * torch.randn_like(x), *more


class Mask:
    """Forward hook of a smooth step: the units whose number in [0, 1) is below `share` give what the exact step gives.

    The numbers are drawn once from the seed, so a unit that is exact stays so, also after a resume. A whole layer
    ("layer") has the number 0.
    Source: StoMPP (2026), whose random masks grow within a layer.

    Args:
        straight_through: the exact units have the gradient of the smooth step; else none.
    """

    def __init__(self, unit: HardenUnit, seed: int, straight_through: bool = False) -> None:
        self.unit, self.seed, self.straight_through, self.share = unit, seed, straight_through, 0.0
        self.numbers: Tensor | None = None

    def __deepcopy__(self, memo: object) -> Mask:
        return self

    def chosen(self, x: Tensor) -> Tensor:
        """bool, of the shape of one row of x, or of its channels: the units that are exact."""
        shape = list(x.shape[1:])
        if self.unit == "channel":
            at = 0 if x.ndim > 3 else -1  # images [N, C, H, W]; else the channels come last
            shape = [size if i == at % len(shape) else 1 for i, size in enumerate(shape)]
        if self.numbers is None or list(self.numbers.shape) != shape:
            self.numbers = torch.rand(shape, generator=torch.Generator().manual_seed(self.seed))
        return self.numbers.to(x.device) < self.share

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        if self.share == 0 or not looks_smooth(module):
            return None
        x = args[0].detach()
        exact = exact_step(module, x).to(output.dtype)
        if self.straight_through:
            exact = exact + (output - output.detach())  # plus 0
        return exact if self.unit == "layer" else torch.where(self.chosen(x), exact, output)
