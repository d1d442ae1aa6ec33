"""What happens inside: per activation layer, how binary the smooth network is and where the exact one differs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from htaf.activations import HTAF, Heaviside, ScaledSigmoid, StraightThrough

BINARY = (HTAF, ScaledSigmoid, StraightThrough, Heaviside)


@dataclass(frozen=True)
class LayerStatistics:
    """One activation layer over a data set, eval mode.

    path: module path. units: features or channels.
    mean, std: of the smooth network's pre-activations over everything. Binarity depends on this std more than on the
    curve.
    binarity: share of smooth outputs > 0.99 or < 0.01 (after mapping bipolar outputs to [0, 1]); None for a real
    activation.
    flip_rate: share of bits (pre-activation >= 0) in which the exact network differs from the smooth one; None
    without one.
    dead: share of units whose bit in the exact network (the smooth one without it) is the same for all inputs.
    """

    path: str
    units: int
    mean: float
    std: float
    binarity: float | None
    flip_rate: float | None
    dead: float


@torch.no_grad()
def layer_statistics(smooth: nn.Module, exact: nn.Module | None, batches: Iterable[Tensor]) -> list[LayerStatistics]:
    """Compare a smooth network with its hardened twin layer by layer.

    Args:
        smooth: network with HTAF, ScaledSigmoid, StraightThrough or ReLU modules.
        exact: `harden(smooth)`, or None for a real-valued network.
        batches: inputs, [batch, ...]; the unit dimension is 1, or the last one for [batch, tokens, features].

    Returns:
        One entry per activation module, in the order of `named_modules`.

    Raises:
        ValueError: no activation module ran, or there are no batches.
    """
    counters = {n: _Counter() for n, m in smooth.named_modules() if isinstance(m, (*BINARY, nn.ReLU))}
    handles = []
    for name, counter in counters.items():
        module = smooth.get_submodule(name)
        handles.append(module.register_forward_hook(counter.see_smooth))
        if exact is not None:
            handles.append(exact.get_submodule(name).register_forward_hook(counter.see_exact))
    modes = [(m, m.training) for net in (smooth, exact) if net is not None for m in net.modules()]
    try:
        for module, _ in modes:
            module.training = False
        for batch in batches:
            smooth(batch)
            if exact is not None:
                exact(batch)
            for counter in counters.values():
                counter.close_batch()
    finally:
        for module, training in modes:
            module.training = training
        for handle in handles:
            handle.remove()
    found = [counter.result(name) for name, counter in counters.items() if counter.count]
    if not found:
        raise ValueError("expected at least one batch and one activation module that runs, found none")
    return found


class _Counter:
    """Running sums of one layer: nothing is kept but the sums and the batch at hand."""

    def __init__(self) -> None:
        self.count = self.flips = self.compared = self.extreme = self.units = 0
        self.total = self.squares = 0.0
        self.binary = False
        self.ever_on: Tensor | None = None
        self.ever_off: Tensor | None = None
        self.smooth_bits: list[Tensor] = []
        self.exact_bits: list[Tensor] = []

    def see_smooth(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        x = args[0].double()
        self.count += x.numel()
        self.total += x.sum().item()
        self.squares += (x * x).sum().item()
        self.binary = isinstance(module, BINARY)
        y = (output + 1) / 2 if getattr(module, "bipolar", False) else output
        self.extreme += int(((y > 0.99) | (y < 0.01)).sum())
        self.smooth_bits.append(args[0] >= 0)

    def see_exact(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        self.exact_bits.append(args[0] >= 0)

    def close_batch(self) -> None:
        for smooth, exact in zip(self.smooth_bits, self.exact_bits, strict=bool(self.exact_bits)):
            self.flips += int((smooth != exact).sum())
            self.compared += smooth.numel()
        for bits in self.exact_bits or self.smooth_bits:
            rows = bits.movedim(-1 if bits.ndim == 3 else min(1, bits.ndim - 1), 0).flatten(1)
            on, off = rows.any(1), (~rows).any(1)
            self.ever_on = on if self.ever_on is None else self.ever_on | on
            self.ever_off = off if self.ever_off is None else self.ever_off | off
        self.smooth_bits, self.exact_bits = [], []

    def result(self, path: str) -> LayerStatistics:
        assert self.ever_on is not None
        assert self.ever_off is not None
        mean = self.total / self.count
        return LayerStatistics(
            path=path,
            units=len(self.ever_on),
            mean=mean,
            std=max(self.squares / self.count - mean * mean, 0.0) ** 0.5,
            binarity=self.extreme / self.count if self.binary else None,
            flip_rate=self.flips / self.compared if self.compared else None,
            dead=1 - (self.ever_on & self.ever_off).double().mean().item(),
        )
