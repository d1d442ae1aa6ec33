"""The step function: the one place that decides what 0, -0.0 and NaN give."""

from __future__ import annotations

import torch
from torch import Tensor


def forward(x: Tensor) -> Tensor:
    """H(x) = 1 where x >= 0 (-0.0 counts as 0), else 0; NaN stays NaN. Same shape and dtype as x."""
    return torch.where(torch.isnan(x), x, (x >= 0).to(x.dtype))
