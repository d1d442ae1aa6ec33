"""The compiled kernels of csrc/logic.hpp, with the signatures of reference.py."""

from __future__ import annotations

import torch
from torch import Tensor

from htaf.core.kernels.native import address, extension

MOST_INPUTS = 8


def supports(x: Tensor, entries: Tensor) -> bool:
    """Whether these are float32 in the memory of the processor, of 8 inputs at most."""
    here = x.device.type == entries.device.type == "cpu"
    return here and x.dtype == entries.dtype == torch.float32 and x.shape[-1] <= MOST_INPUTS


def forward(x: Tensor, entries: Tensor) -> Tensor:
    x, entries = x.contiguous(), entries.contiguous()
    y = x.new_empty(x.shape[:-1])
    pointers, sizes = (address(x), address(entries), address(y)), (y.numel() // max(len(entries), 1), *x.shape[-2:])
    extension().lookup(*pointers, *sizes, torch.get_num_threads())
    return y


def backward(grad: Tensor, x: Tensor, entries: Tensor) -> tuple[Tensor, Tensor]:
    grad, x, entries = grad.contiguous(), x.contiguous(), entries.contiguous()
    of_x, of_entries = torch.empty_like(x), torch.zeros_like(entries)
    pointers = [address(t) for t in (grad, x, entries, of_x, of_entries)]
    extension().lookup_backward(*pointers, grad.numel() // max(len(entries), 1), *x.shape[-2:], torch.get_num_threads())
    return of_x, of_entries
