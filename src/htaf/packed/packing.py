"""From a hardened model to a packed one."""

from __future__ import annotations

from typing import Any

from torch import nn

from htaf.packed.errors import PackedError
from htaf.packed.graph import Traced, arguments_of, trace
from htaf.packed.lowering import NOT_OF_BITS, NOT_READ, lower
from htaf.packed.model import PackedModel
from htaf.packed.report import Report
from htaf.packed.verification import compare


def pack(
    model: nn.Module | Traced,
    example: Any,
    *,
    dynamic_batch: bool = True,
    progress: bool = False,
) -> PackedModel:
    """A model that computes the same over packed bits, on the CPU.

    The model is exported (`torch.export`), and every layer that takes the outputs of steps becomes one over bits:
    weights that are +-1 times one number a filter by xor and popcount, other weights by tables of their sums. Batch
    norms, sums and steps after a layer are computed with it. What else there is runs as it was, in float32. The
    result is compared with the model on the example, see `verify`.

    A packed model refuses inputs that are not finite: bits have no value for what a network makes of them.

    Args:
        model: from `htaf.harden`, or any float32 module with exact steps; it is packed as in eval mode. Or what
            `trace` made of it.
        example: tensor [batch, ...] or a tuple of them, as the model takes them: float32, integers (ids) or bools
            (masks). The packed model takes these dtypes.
        dynamic_batch: the packed model takes batches of any size; False for models whose graph is tied to one.
        progress: show bars, and plain lines where there is no terminal.

    Returns:
        A module with the same call, in eval mode whatever the mode of the model. `.report` says what became of every
        operator.

    Raises:
        PackedError: a model that is smooth, has NaN, cannot be exported, holds nothing to pack or operators that a
            packed model does not know, or whose packed form does not agree with it on the example.

    Example:
        >>> net = nn.Sequential(nn.Linear(8, 64), htaf.Heaviside(), nn.Linear(64, 2))
        >>> pack(net, torch.randn(4, 8))(torch.randn(100, 8)).shape
        torch.Size([100, 2])
    """
    if isinstance(model, PackedModel):
        raise PackedError("expected a hardened model, got one that is packed already")
    given = arguments_of(example)
    traced = model if isinstance(model, Traced) else trace(model, given, dynamic_batch=dynamic_batch, progress=progress)
    program, report = lower(traced)
    if not report.layers:
        raise PackedError(f"there is nothing to pack: {_why_none(report)}")
    packed = PackedModel(program, report)
    found = compare(packed, traced, given, progress=progress)
    if not found.ok:
        raise PackedError(f"expected the packed model to agree with the hardened one on the example, got:\n{found}")
    return packed


def _why_none(report: Report) -> str:
    """Why no layer of a network runs over bits."""
    taking = [r for r in report.rows if r.how.startswith("float: ") and r.how not in (NOT_OF_BITS, NOT_READ)]
    if not taking:
        return "expected steps (Heaviside) with layers behind them, got none (htaf.replace, train, htaf.harden)"
    found = "; ".join(f"{r.path or r.name} ({r.operator}): {r.how.removeprefix('float: ')}" for r in taking[:4])
    return f"expected a linear layer or a convolution that takes the bits of a step, got what runs in float: {found}"
