"""Gated MLPs that read the rows of open gates alone, for text token by token on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from htaf.kernels import native
from htaf.kernels.gated_mlp import cpu, reference
from htaf.kernels.gated_mlp.reference import Weights
from htaf.language.errors import LanguageError
from htaf.language.gates import Gate, GatedMLP, gated_mlps

FEW = 4  # tokens at most for which single rows are read; for more, as in a prompt, the dense products are quicker


class SparseGatedMLP(nn.Module):
    """down((gate(x) >= threshold) * up(x)) with the exact step; scales are folded into `up`.

    Args:
        mlp: a gated MLP whose activation is an exact `Gate`, without biases, float32 or bfloat16 on the CPU.
        eight: keep the gate in 8 bits too, and read its float rows only where those could decide otherwise.

    Shape: [..., hidden], output equal to input; dtype kept. Sums in float32 for up to `FEW` tokens.
    """

    def __init__(self, mlp: GatedMLP, eight: bool = False) -> None:
        super().__init__()
        gate: Any = mlp.activation
        held = mlp.module.gate_up_proj.weight if mlp.fused else None
        first = mlp.module.gate_proj.weight if held is None else held[: mlp.neurons]
        second = mlp.module.up_proj.weight if held is None else held[mlp.neurons :]
        with torch.no_grad():
            up = (second.float() * gate.scale[:, None]).to(second.dtype)
            weights = Weights(
                first.detach().clone(), up, mlp.module.down_proj.weight.detach().T.contiguous(),
                gate.threshold.detach().float().clone(),
            )  # fmt: skip
        self.weights = reference.rounded(weights) if eight else weights

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        w, tokens = self.weights, x.reshape(-1, x.shape[-1])
        if len(tokens) <= FEW and native.available():
            return cpu.gated_mlp(w, tokens)[0].to(x.dtype).view(x.shape)
        opened = nn.functional.linear(x, w.gate) >= w.threshold
        return (opened * nn.functional.linear(x, w.up)) @ w.down


def read_open_rows_only(model: nn.Module, *, eight: bool = False) -> int:
    """Exchange the gated MLPs with exact gates for `SparseGatedMLP`, in place; returns how many.

    Raises:
        LanguageError: a gate is smooth, a projection has a bias, or the weights are neither float32 nor bfloat16 on
            the CPU.
    """
    chosen = [mlp for mlp in gated_mlps(model) if isinstance(mlp.activation, Gate)]
    for mlp in chosen:
        names = ("gate_up_proj", "down_proj") if mlp.fused else ("gate_proj", "up_proj", "down_proj")
        layers = [getattr(mlp.module, name) for name in names]
        if not getattr(mlp.activation, "exact", False):
            raise LanguageError(f"expected exact gates, layer {mlp.layer} has a smooth one")
        if any(layer.bias is not None for layer in layers):
            raise LanguageError(f"expected projections without biases, layer {mlp.layer} has some")
        kinds = {(v.weight.dtype, v.weight.device.type) for v in layers}
        wrong = [f"{d} on {place}" for d, place in kinds if place != "cpu" or d not in (torch.float32, torch.bfloat16)]
        if wrong:
            raise LanguageError(f"expected float32 or bfloat16 on the CPU, layer {mlp.layer} has {', '.join(wrong)}")
    modules = dict(model.named_modules())
    for mlp in chosen:
        parent, _, name = mlp.path.rpartition(".")
        setattr(modules[parent], name, SparseGatedMLP(mlp, eight))
    return len(chosen)
