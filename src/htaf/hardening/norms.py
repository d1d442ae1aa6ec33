"""Running statistics of batch norms, taken anew on what the exact network gives them."""

from __future__ import annotations

import time
from typing import Any

from torch import nn

from htaf.activations import Heaviside
from htaf.convert.functional_sites import duplicate
from htaf.hardening.report import Batches, Report, call, evaluating, expect_batches, inputs_of, measured
from htaf.hardening.watching import is_norm


def recalibrate(model: nn.Module, batches: Batches, *, validation: Batches | None = None) -> tuple[nn.Module, Report]:
    """Take the running means and variances of batch norms anew, as the average over batches.

    As `torch.optim.swa_utils.update_bn`, but only norms are in training mode: dropout is off, and norms in front of the
    first exact step keep their statistics, as they see what they saw in the training. Each batch counts the same.

    Args:
        model: hardened; not changed. In a model without `htaf.Heaviside` all norms are taken.
        batches: inputs as the training had them, in batches of its size or larger.
        validation: batches with targets for the report.

    Returns:
        The new model in eval mode, and the report.

    Raises:
        ValueError: no batches, or a batch with one value a channel. TypeError: they can be gone through only once.
    """
    begin = time.perf_counter()
    expect_batches(batches)
    net = duplicate(model)
    with evaluating(net):
        norms = _behind_steps(net, inputs_of(next(iter(batches))))
        kept = {norm: norm.momentum for norm in norms}
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum, norm.training = None, True
        if norms:
            for batch in batches:
                call(net, inputs_of(batch))
        for norm, momentum in kept.items():
            norm.momentum = momentum
    seconds = time.perf_counter() - begin
    notes = (f"{len(norms)} of {sum(map(is_norm, net.modules()))} batch norms",)
    before, after = measured(model, validation), measured(net, validation)
    return net.eval(), Report("recalibrate", seconds, before, after, notes=notes)


def _behind_steps(model: nn.Module, x: Any) -> list[Any]:
    """The batch norms that run first after an exact step has run, in order; all where there is no such step."""
    order: dict[nn.Module, None] = {}
    kinds = [m for m in model.modules() if is_norm(m) or isinstance(m, Heaviside)]
    handles = [m.register_forward_hook(lambda module, args, output: order.setdefault(module)) for m in kinds]
    try:
        call(model, x)
    finally:
        for handle in handles:
            handle.remove()
    ran = list(order)
    first = next((i for i, module in enumerate(ran) if isinstance(module, Heaviside)), -1)
    return [module for module in ran[first + 1 :] if is_norm(module)]
