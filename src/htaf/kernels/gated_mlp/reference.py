"""A gated MLP with 0/1 gates, in plain PyTorch.

    open = gate x >= threshold
    y = down^T (open * (up x))

A row of `down` is a column of the layer's weight; scales of the gates are folded into `up`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int8
from torch import Tensor


@dataclass(frozen=True)
class Weights:
    """Of one gated MLP.

    gate, up, down: all float32 or all bfloat16. threshold: float32.
    rounded, step, rest, norm: the gate in 8 bits, gate = step * rounded + e by rows, |e| = rest, |gate| = norm.
    """

    gate: Float[Tensor, "neurons inputs"]
    up: Float[Tensor, "neurons inputs"]
    down: Float[Tensor, "neurons outputs"]
    threshold: Float[Tensor, " neurons"]
    rounded: Int8[Tensor, "neurons inputs"] | None = None
    step: Float[Tensor, " neurons"] | None = None
    rest: Float[Tensor, " neurons"] | None = None
    norm: Float[Tensor, " neurons"] | None = None

    def __post_init__(self) -> None:
        kinds = {v.dtype for v in (self.gate, self.up, self.down)}
        if len(kinds) > 1 or kinds - {torch.float32, torch.bfloat16}:
            raise TypeError(f"gate, up and down must be all float32 or all bfloat16, got {sorted(map(str, kinds))}")
        if self.threshold.dtype != torch.float32:
            raise TypeError(f"threshold must be float32, got {self.threshold.dtype}")


def rounded(weights: Weights) -> Weights:
    """The same with its gate in 8 bits too, so that most rows of the float one need not be read."""
    gate = weights.gate.float()
    step = gate.abs().amax(1).clamp_min(1e-30) / 127
    whole = (gate / step[:, None]).round().clamp(-127, 127)
    rest = (gate.double() - step[:, None].double() * whole.double()).norm(dim=1)
    norm = gate.double().norm(dim=1)
    return replace(
        weights, rounded=whole.to(torch.int8), step=step, rest=(rest * 1.000001).float(),
        norm=(norm * 1.000001).float(),
    )  # fmt: skip


def gated_mlp(
    weights: Weights, x: Float[Tensor, "tokens inputs"]
) -> tuple[Float[Tensor, "tokens outputs"], Bool[Tensor, "tokens neurons"]]:
    """(y, open). Sums in float32."""
    x = x.float()
    opened = x @ weights.gate.float().T >= weights.threshold
    return (opened * (x @ weights.up.float().T)) @ weights.down.float(), opened
