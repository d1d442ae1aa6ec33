"""Running statistics of batch norms, taken anew on what the exact network gives them."""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor, nn

from htaf.activations import Heaviside
from htaf.convert.functional_sites import Model, duplicate
from htaf.convert.modes import evaluating, first_of
from htaf.hardening.report import Batches, Report, call, expect_batches, inputs_of
from htaf.hardening.watching import is_norm


def recalibrate(model: Model, batches: Batches, *, everywhere: bool = False) -> tuple[Model, Report]:
    """Take the running means and variances of batch norms anew, as the average over batches.

        mean = sum_b n_b mean_b / sum_b n_b,   var likewise;   n_b: values a channel of batch b

    As `torch.optim.swa_utils.update_bn`, but a small last batch weighs little, and only norms are in training mode:
    dropout is off, and norms in front of the first exact step keep their statistics, as they see what they saw in the
    training. A batch with one value a channel has no variance and is left out.

    Args:
        model: hardened; not changed. In a model without `htaf.Heaviside` all norms are taken.
        batches: inputs as the training had them, in batches of its size or larger.
        everywhere: also norms in front of the first exact step, as when the weights before them are other ones now.

    Returns:
        The new model in eval mode, and the report.

    Raises:
        ValueError: no batches, or one value a channel in each of them.
        TypeError: batches can be gone through only once.
    """
    begin = time.perf_counter()
    first = expect_batches(batches)
    net = duplicate(model)
    with evaluating(net):
        norms = norms_behind_steps(net, inputs_of(first), everywhere)
        if norms:
            _Average(net, norms).over(batches)
    seconds = time.perf_counter() - begin
    of = sum(map(is_norm, net.modules()))
    rest = "; the others lie in front of the first exact step, or do not run" if len(norms) < of else ""
    notes = (f"statistics of {len(norms)} of {of} batch norms taken anew{rest}",)
    return net.eval(), Report("recalibrate", seconds, notes=notes)


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
        for batch in batches:
            state = self._state()
            try:
                call(self.net, inputs_of(batch))
            except _OneValue:
                self._restore(state)
        if not all(self.seen.values()):
            raise ValueError("expected batches with two values a channel or more, got one in each of them")

    def _weigh(self, norm: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = first_of(args, kwargs)
        values = x.numel() // x.shape[1]
        if values < 2:
            raise _OneValue
        self.seen[norm] += values
        norm.momentum = values / self.seen[norm]

    def _state(self) -> list[tuple[int, dict[str, Tensor]]]:
        return [(self.seen[n], {name: b.clone() for name, b in n.named_buffers()}) for n in self.norms]

    def _restore(self, state: list[tuple[int, dict[str, Tensor]]]) -> None:
        for norm, (seen, buffers) in zip(self.norms, state, strict=True):
            self.seen[norm] = seen
            for name, value in buffers.items():
                norm.get_buffer(name).copy_(value)


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
