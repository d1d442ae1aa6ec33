"""Multi-layer perceptron whose activation is an argument."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from htaf.activations import HTAF


@final
class MLP(nn.Module):
    """Linear -> [batch norm] -> activation, once per hidden size, then a linear head.

    Args:
        in_features: columns of the input.
        out_features: columns of the output: classes, or 1 for a regression.
        hidden: sizes of the hidden layers; (256, 256, 128) is the paper's.
        act: makes one activation module per hidden layer, such as `partial(HTAF, 2.0, 11.0)`.
        batch_norm: normalise every pre-activation.

    Shape: [batch, in_features] -> [batch, out_features].

    Raises:
        ValueError: a size is not a positive integer, or there is no hidden layer.

    Source: the paper, appendix E.3.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        hidden: Sequence[int] = (256, 256, 128),
        act: Callable[[], nn.Module] = HTAF,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        sizes = [in_features, *hidden]
        if not hidden or min(*sizes, out_features) < 1:
            raise ValueError(f"sizes must be positive, got {in_features} -> {tuple(hidden)} -> {out_features}")
        self.hidden = nn.Sequential()
        for n_in, n_out in itertools.pairwise(sizes):
            block = nn.Sequential()
            block.add_module("linear", nn.Linear(n_in, n_out, bias=not batch_norm))
            if batch_norm:
                block.add_module("norm", nn.BatchNorm1d(n_out))
            block.add_module("act", act())
            self.hidden.append(block)
        self.head = nn.Linear(sizes[-1], out_features)

    def forward(self, x: Float[Tensor, "batch in_features"]) -> Float[Tensor, "batch out_features"]:
        return self.head(self.hidden(x))
