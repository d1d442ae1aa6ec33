"""Running statistics of batch norms, taken anew on what the exact network gives them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from htaf.activations import Heaviside
from htaf.convert.functional_sites import duplicate
from htaf.convert.modes import evaluating, hooked
from htaf.hardening.report import Batches, Report, call, expect_batches, inputs_of, measured
from htaf.hardening.watching import is_norm


def recalibrate(model: nn.Module, batches: Batches, *, validation: Batches | None = None) -> tuple[nn.Module, Report]:
    """Take the running means and variances of batch norms anew, as the average over batches.

        mean = sum_b n_b mean_b / sum_b n_b,   var likewise;   n_b: values a channel of batch b

    As `torch.optim.swa_utils.update_bn`, but a small last batch weighs little, and only norms are in training mode:
    dropout is off, and norms in front of the first exact step keep their statistics, as they see what they saw in the
    training. A batch of one row, which may have no variance, is joined to the next one, or the last one to the one
    before.

    Args:
        model: hardened; not changed. In a model without `htaf.Heaviside` all norms are taken.
        batches: inputs as the training had them, in batches of its size or larger.
        validation: batches with targets for the report.

    Returns:
        The new model in eval mode, and the report.

    Raises:
        ValueError: no batches, one value a channel in all of them, or validation without targets.
        TypeError: batches or validation can be gone through only once.
    """
    begin = time.perf_counter()
    first = expect_batches(batches, validation)
    net = duplicate(model)
    with evaluating(net):
        norms = _behind_steps(net, inputs_of(first))
        if norms:
            _average(net, norms, batches)
    seconds = time.perf_counter() - begin
    of = sum(map(is_norm, net.modules()))
    rest = "; the others lie in front of the first exact step, or do not run" if len(norms) < of else ""
    notes = (f"statistics of {len(norms)} of {of} batch norms taken anew{rest}",)
    before, after = measured(model, validation), measured(net, validation)
    return net.eval(), Report("recalibrate", seconds, before, after, notes=notes)


def _average(net: nn.Module, norms: list[Any], batches: Batches) -> None:
    """Running statistics of norms as averages weighted by the values a channel."""
    kept, seen = {norm: norm.momentum for norm in norms}, dict.fromkeys(norms, 0)

    def weigh(norm: Any, args: tuple[Any, ...]) -> None:
        values = args[0].numel() // args[0].shape[1]
        if values < 2:
            raise ValueError("expected batches with two values a channel or more, got one in all of them together")
        seen[norm] += values
        norm.momentum = values / seen[norm]

    for norm in norms:
        norm.reset_running_stats()
        norm.training = True
    try:
        with hooked(norm.register_forward_pre_hook(weigh) for norm in norms):
            for x in _of_two_rows(batches):
                call(net, x)
    finally:
        for norm, momentum in kept.items():
            norm.momentum, norm.training = momentum, False


def _of_two_rows(batches: Batches) -> Iterator[Any]:
    """The inputs of batches; a single row is joined to the next ones, the last one to those before."""
    held = single = None
    for batch in batches:
        x = inputs_of(batch) if single is None else _joined(single, inputs_of(batch))
        if any(isinstance(leaf, Tensor) and leaf.shape[:1] == (1,) for leaf in tree_leaves(x)):
            single = x
            continue
        if held is not None:
            yield held
        held, single = x, None
    if single is not None:
        held = single if held is None else _joined(held, single)
    yield held


def _joined(a: Any, b: Any) -> Any:
    """Inputs of two batches as those of one."""
    a, b = (dict(x) if isinstance(x, Mapping) else x for x in (a, b))
    return tree_map(lambda p, q: torch.cat([p, q]) if isinstance(p, Tensor) else p, a, b)


def _behind_steps(model: nn.Module, x: Any) -> list[Any]:
    """The batch norms that run first after an exact step has run, in order; all where there is no such step."""
    order: dict[nn.Module, None] = {}
    kinds = [m for m in model.modules() if is_norm(m) or isinstance(m, Heaviside)]
    with hooked(m.register_forward_hook(lambda module, args, output: order.setdefault(module)) for m in kinds):
        call(model, x)
    ran = list(order)
    first = next((i for i, module in enumerate(ran) if isinstance(module, Heaviside)), -1)
    return [module for module in ran[first + 1 :] if is_norm(module)]
