"""Truth tables of k inputs as multilinear functions, in plain PyTorch.

    y[..., n] = sum over a from 0 to 2^k - 1 of entries[n, a] prod_i (x[..., n, i] if bit i of a else 1 - x[..., n, i])

Of bits it is the entry at the address sum_i x_i 2^i, and its derivative by x_i is the entry with that bit on minus the
entry with it off. Each input halves the entries that are left: off (1 - x) + on x, the last input first.
"""

from __future__ import annotations

import torch
from torch import Tensor


def forward(x: Tensor, entries: Tensor) -> Tensor:
    """y [..., n] from x [..., n, k] and entries [n, 2^k]."""
    left = entries.expand(*x.shape[:-1], entries.shape[-1])
    for share in reversed(x.unbind(-1)):
        off, on = left.chunk(2, -1)
        left = off * (1 - share[..., None]) + on * share[..., None]
    return left.squeeze(-1)


def backward(grad: Tensor, x: Tensor, entries: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the entries."""
    left, differences = entries.expand(*x.shape[:-1], entries.shape[-1]), list[Tensor]()
    for share in reversed(x.unbind(-1)):
        off, on = left.chunk(2, -1)
        differences.append(on - off)
        left = off * (1 - share[..., None]) + on * share[..., None]
    weight, parts = grad[..., None], list[Tensor]()
    for share, difference in zip(x.unbind(-1), reversed(differences), strict=True):
        parts.append((weight * difference).sum(-1))
        weight = torch.cat((weight * (1 - share[..., None]), weight * share[..., None]), -1)
    return torch.stack(parts, -1), weight.sum_to_size(entries.shape)
