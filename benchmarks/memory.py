"""Memory of one activation: what it keeps for the backward pass, and what it takes beside its results.

Two measures, because each is blind to something: PyTorch's own list of saved tensors (whose storages they are), and the
resident memory of the process (which also sees buffers that a kernel allocates by itself; Linux only).
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

SIZE = 2**24  # blocks of 32 MiB and more are given back to the system when they are freed: nothing hides in a pool
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def saved(function: Callable[[Tensor], Tensor], x: Tensor) -> dict[str, Any]:
    """What `function(x)` saves: the number of distinct storages that are x, its output, and others (not parameters)."""
    kept: list[Tensor] = []
    with saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = function(x)
    known = {x.untyped_storage().data_ptr(): "x", y.untyped_storage().data_ptr(): "output"}
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}
    others = [size for address, size in storages.items() if address not in known]
    large = [size for size in others if size >= x.numel()]  # parameters have a value per channel, not per element
    names = sorted(known[address] for address in storages if address in known)
    return {"saved": [*reversed(names)] + ["other"] * len(large), "other_bytes_per_value": sum(large) / x.numel()}


def resident(function: Callable[[Tensor], Tensor], leaves: Sequence[Tensor]) -> dict[str, float] | None:
    """In units of the size of x = leaves[0]; None where the system does not tell.

    forward_peak, held: most memory during, and memory after the forward pass, beside x and the output.
    backward_peak: most memory during the backward pass beside what was there and the gradient of x.
    """
    x = leaves[0]
    if not (_status("VmRSS") and _reset_peak()):
        return None
    unit = x.numel() * x.element_size()
    incoming = torch.ones_like(x)
    torch.autograd.grad(function(x), leaves, incoming)  # so that code and thread stacks are there
    _trim()
    before = _status("VmRSS")
    _reset_peak()
    y = function(x)
    peak = _status("VmHWM")
    _trim()
    after = _status("VmRSS")
    _reset_peak()
    torch.autograd.grad(y, leaves, incoming)
    backward_peak = _status("VmHWM")
    result = y.numel() * y.element_size()
    return {
        "forward_peak": (peak - before - result) / unit,
        "held": (after - before - result) / unit,
        "backward_peak": (backward_peak - after - unit) / unit,
    }


def _status(name: str) -> int:
    """A line of /proc/self/status in bytes, 0 where there is none."""
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return 1024 * int(found[1]) if found else 0


def _trim() -> None:
    """Give freed memory back to the system, where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _reset_peak() -> bool:
    try:
        CLEAR.write_text("5")
    except OSError:
        return False
    return True
