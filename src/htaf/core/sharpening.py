"""Sharpening: start with a soft curve and move its parameters geometrically to their final values.

Why: behind batch norm, a slope of P / 4 = 5.5 at 0 is sharper than early training likes, while the last epochs need
it for a small gap between the smooth and the exact network. The state is a function of progress alone, so a
resumed training is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from htaf._ground.errors import check_positive
from htaf.core.contract import SmoothStep, sharpness_of

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Geometric:
    """values(p) = start (end / start)^min(1, p / fraction), for each parameter; exactly `end` from p = fraction on.

    Args:
        start, end: the pair (alpha0, alpha1), or (beta,), or those of another step; all > 0.
        fraction: share of the training, in (0, 1], over which the parameters move.

    Raises:
        ValueError: a parameter is not > 0 and finite, the lengths differ, or fraction lies outside (0, 1].
    """

    start: tuple[float, ...]
    end: tuple[float, ...]
    fraction: float = 0.7

    def __post_init__(self) -> None:
        if len(self.start) != len(self.end) or not all(0 < v < math.inf for v in (*self.start, *self.end)):
            raise ValueError(f"start and end must be equally many numbers > 0, got {self.start} and {self.end}")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction must lie in (0, 1], got {self.fraction}")

    def at(self, progress: float) -> tuple[float, ...]:
        """The parameters when the share `progress` of the training is done."""
        share = min(max(progress, 0.0) / self.fraction, 1.0)
        if share == 1.0:
            return self.end
        return tuple(s * (e / s) ** share for s, e in zip(self.start, self.end, strict=True))


def soft_start(*end: float) -> tuple[float, ...]:
    """The usual soft start with slope 1/2 at 0: half of alpha0 and the alpha1 that makes P = 2; beta = 2 for one value.

    (2, 11) starts at (1, 2). A curve that is already softer than P = 2 starts at its end, so it does not move.
    """
    if math.prod(end) <= 2:
        return end
    return (2.0,) if len(end) == 1 else (end[0] / 2, 4 / end[0])


def set_sharpness(model: nn.Module, values: tuple[float, ...]) -> int:
    """Give every smooth step with as many sharpness parameters these values, in their order; returns how many took it.

    Args:
        values: (alpha0, alpha1) of HTAF, (beta,) of the scaled sigmoid; of others as their `sharpness` names them.

    Raises:
        ValueError: the model holds none, or those of several kinds; one of them keeps its parameters as tensors, or a
            value is out of range. Then nothing is set.
    """
    modules = [m for m in model.modules() if isinstance(m, SmoothStep) and len(m.sharpness) == len(values) > 0]
    kinds = sorted({m.kind for m in modules})
    if len(kinds) > 1:
        raise ValueError(f"expected smooth steps of one kind, got {', '.join(kinds)}")
    if not modules:
        wanted = f"smooth steps of {len(values)} sharpness parameters"
        held = sorted({f"{m.kind} ({', '.join(m.sharpness)})" for m in model.modules() if isinstance(m, SmoothStep)})
        raise ValueError(f"expected a model with {wanted}, got {', '.join(held) or 'none'}")
    named = [{name: check_positive(name, v) for name, v in zip(m.sharpness, values, strict=True)} for m in modules]
    for module, its in zip(modules, named, strict=True):  # all are looked at before one is set
        tensors = [name for name in its if name not in sharpness_of(module)]
        if tensors:
            raise ValueError(f"{type(module).__name__}.{tensors[0]} must be a float to be sharpened, not a tensor")
    for module, its in zip(modules, named, strict=True):
        for name, value in its.items():
            setattr(module, name, value)
    return len(modules)
