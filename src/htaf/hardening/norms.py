"""Running statistics of batch norms, taken anew on what the exact network gives them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from htaf.activations import Heaviside
from htaf.convert.functional_sites import Model, duplicate
from htaf.convert.modes import evaluating, first_of
from htaf.hardening.report import Batches, Report, call, expect_batches, inputs_of, measured
from htaf.hardening.watching import is_norm


def recalibrate(
    model: Model, batches: Batches, *, validation: Batches | None = None, everywhere: bool = False
) -> tuple[Model, Report]:
    """Take the running means and variances of batch norms anew, as the average over batches.

        mean = sum_b n_b mean_b / sum_b n_b,   var likewise;   n_b: values a channel of batch b

    As `torch.optim.swa_utils.update_bn`, but a small last batch weighs little, and only norms are in training mode:
    dropout is off, and norms in front of the first exact step keep their statistics, as they see what they saw in the
    training. A batch with one value a channel, which has no variance, is joined to the next one, or the last one to the
    one before.

    Args:
        model: hardened; not changed. In a model without `htaf.Heaviside` all norms are taken.
        batches: inputs as the training had them, in batches of its size or larger.
        validation: batches with targets for the report.
        everywhere: also norms in front of the first exact step, as when the weights before them are other ones now.

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
        norms = norms_behind_steps(net, inputs_of(first), everywhere)
        if norms:
            _Average(net, norms).over(batches)
    seconds = time.perf_counter() - begin
    of = sum(map(is_norm, net.modules()))
    rest = "; the others lie in front of the first exact step, or do not run" if len(norms) < of else ""
    notes = (f"statistics of {len(norms)} of {of} batch norms taken anew{rest}",)
    before, after = measured(model, validation), measured(net, validation)
    return net.eval(), Report("recalibrate", seconds, before, after, notes=notes)


class _OneValue(Exception):
    """A batch has one value a channel."""


class _Average:
    """Running statistics of norms as averages weighted by the values a channel."""

    def __init__(self, net: nn.Module, norms: list[Any]) -> None:
        self.net, self.norms = net, norms
        self.seen = dict.fromkeys(norms, 0)

    def over(self, batches: Batches) -> None:
        kept = {norm: norm.momentum for norm in self.norms}
        handles = [norm.register_forward_pre_hook(self._weigh, with_kwargs=True) for norm in self.norms]
        for norm in self.norms:
            norm.reset_running_stats()
            norm.training = True
        try:
            self._go_through(batches)
        finally:
            for handle in handles:
                handle.remove()
            for norm, momentum in kept.items():
                norm.momentum, norm.training = momentum, False

    def _go_through(self, batches: Batches) -> None:
        last = before_last = left = None  # the last inputs that were taken, the state before them, inputs still to join
        for batch in batches:
            x = inputs_of(batch) if left is None else _joined(left, inputs_of(batch))
            state = self._state()
            if self._took(x):
                last, before_last, left = x, state, None
            else:
                self._restore(state)
                left = x
        if left is not None and before_last is not None:
            self._restore(before_last)
            left = None if self._took(_joined(last, left)) else left
        if left is not None:
            raise ValueError("expected batches with two values a channel or more, got one in all of them together")

    def _weigh(self, norm: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = first_of(args, kwargs)
        values = x.numel() // x.shape[1]
        if values < 2:
            raise _OneValue
        self.seen[norm] += values
        norm.momentum = values / self.seen[norm]

    def _took(self, x: Any) -> bool:
        try:
            call(self.net, x)
        except _OneValue:
            return False
        return True

    def _state(self) -> list[tuple[int, dict[str, Tensor]]]:
        return [(self.seen[n], {name: b.clone() for name, b in n.named_buffers()}) for n in self.norms]

    def _restore(self, state: list[tuple[int, dict[str, Tensor]]]) -> None:
        for norm, (seen, buffers) in zip(self.norms, state, strict=True):
            self.seen[norm] = seen
            for name, value in buffers.items():
                norm.get_buffer(name).copy_(value)


def _joined(a: Any, b: Any) -> Any:
    """Inputs of two batches as those of one."""
    if isinstance(a, Tensor):
        return torch.cat([a, b])
    if isinstance(a, Mapping):
        return {key: _joined(value, b[key]) for key, value in a.items()}
    if isinstance(a, (tuple, list)):
        return type(a)(_joined(p, q) for p, q in zip(a, b, strict=True))
    return a


def norms_behind_steps(model: nn.Module, x: Any, everywhere: bool = False) -> list[Any]:
    """The batch norms that run first after an exact step has run, in order; all of `everywhere`, or without a step."""
    order: dict[nn.Module, None] = {}
    kinds = [m for m in model.modules() if is_norm(m) or isinstance(m, Heaviside)]
    handles = [m.register_forward_hook(lambda module, args, output: order.setdefault(module)) for m in kinds]
    try:
        call(model, x)
    finally:
        for handle in handles:
            handle.remove()
    ran = list(order)
    steps = [i for i, module in enumerate(ran) if isinstance(module, Heaviside)]
    first = steps[0] if steps and not everywhere else -1
    return [module for module in ran[first + 1 :] if is_norm(module)]
