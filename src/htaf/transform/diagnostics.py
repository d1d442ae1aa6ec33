"""Per activation layer, how binary the smooth network is, how often its bits are one, where the exact one differs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from htaf.core.activations import Heaviside, level_of, share_binary
from htaf.core.contract import SmoothStep, levels_of
from htaf.transform.convert.modes import evaluating, hooked

BINARY = (SmoothStep, Heaviside)
CHUNK = 65_536  # values that are made doubles at a time: they stay in the cache, ten times faster than all at once


@dataclass(frozen=True)
class LayerStatistics:
    """One activation layer over a data set, eval mode.

    path: module path. units: features or channels.
    mean, std: of the smooth network's pre-activations over everything. Binarity depends on this std more than on the
    curve.
    binarity: share of smooth outputs > 0.99 or < 0.01 (after mapping bipolar outputs to [0, 1]), of several levels near
    one of them; None for a real activation.
    flip_rate: share of bits (pre-activation >= 0, or >= each threshold of several levels) in which the exact network
    differs from the smooth one; None without one.
    dead: share of units whose bits in the exact network (the smooth one without it) are the same for all inputs.
    firing_rate: share of ones among the bits of the exact network (the smooth one without it), over samples, units and
    calls: of a spiking neuron the spikes per time step.
    """

    path: str
    units: int
    mean: float
    std: float
    binarity: float | None
    flip_rate: float | None
    dead: float
    firing_rate: float


def layer_statistics(smooth: nn.Module, exact: nn.Module | None, batches: Iterable[Tensor]) -> list[LayerStatistics]:
    """Compare a smooth network with its hardened twin layer by layer.

    Memory: of every batch one byte per activation of the network, so batches need not be smaller than for inference.

    Args:
        smooth: network with smooth steps (HTAF, ...) or ReLU modules.
        exact: `harden(smooth)`, or None for a real-valued network.
        batches: inputs, [batch, ...]; the unit dimension is 1, or the last one for [batch, tokens, features].

    Returns:
        One entry per activation module, in the order of `named_modules`.

    Raises:
        ValueError: no activation module ran, or there are no batches; or the two networks call a module differently
            often.
    """
    counters: dict[str, _Counter] = {}
    for path, module in smooth.named_modules():
        if isinstance(module, (*BINARY, nn.ReLU)) and not any(path.startswith(f"{step}.") for step in counters):
            counters[path] = _Counter()  # what a smooth step is made of is no layer
    handles = []
    for name, counter in counters.items():
        module = smooth.get_submodule(name)
        handles.append(module.register_forward_pre_hook(counter.see_input))
        handles.append(module.register_forward_hook(counter.see_output))
        if exact is not None:
            handles.append(exact.get_submodule(name).register_forward_pre_hook(counter.see_exact_input))
    networks = [smooth] if exact is None else [smooth, exact]
    with evaluating(*networks), hooked(handles):
        for batch in batches:
            for network in networks:
                network(batch)
            for name, counter in counters.items():
                counter.close_batch(name, exact is not None)
    found = [counter.result(name) for name, counter in counters.items() if counter.count]
    if not found:
        raise ValueError("expected at least one batch and one activation module that runs, found none")
    return found


class _Counter:
    """Running sums of one layer: nothing is kept but the sums and the bits of the batch at hand."""

    def __init__(self) -> None:
        self.count = self.flips = self.compared = self.extreme = self.ones = self.bits = 0
        self.total = self.squares = 0.0
        self.binary = False
        self.levels = 1
        self.most: Tensor | None = None  # of every unit
        self.least: Tensor | None = None
        self.smooth_bits: list[Tensor] = []  # of the calls of the batch at hand that the exact network has not made yet

    def see_input(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        """Of the smooth network, before the module runs: it may write its output over its input."""
        for x in _chunks(args[0]):
            x = x.double()
            self.count += x.numel()
            self.total += x.sum().item()
            self.squares += torch.dot(x, x).item()
        self.levels = levels_of(module)
        self.smooth_bits.append(level_of(module, args[0]))

    def see_output(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        self.binary = isinstance(module, BINARY)
        for y in _chunks(output) if self.binary else ():
            self.extreme += int(share_binary(module, y).count_nonzero())

    def see_exact_input(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if not self.smooth_bits:
            raise ValueError(
                f"expected the exact network to call its {type(module).__name__} as often as the smooth one, got more"
            )
        bits = level_of(module, args[0])
        apart = self.smooth_bits.pop(0).int() - bits.int()
        self.flips += int(apart.abs().sum())
        self.compared += self.levels * bits.numel()
        self.see_bits(bits)

    def see_bits(self, bits: UInt8[Tensor, "*shape"]) -> None:
        """bits: how many thresholds are reached, of one the bit."""
        self.ones += int(bits.sum())
        self.bits += self.levels * bits.numel()
        unit = -1 if bits.ndim == 3 else min(1, bits.ndim - 1)
        others = [i for i in range(bits.ndim) if i != unit % bits.ndim]
        most, least = bits.amax(others), bits.amin(others)
        self.most = most if self.most is None else torch.maximum(self.most, most)
        self.least = least if self.least is None else torch.minimum(self.least, least)

    def close_batch(self, path: str, compared: bool) -> None:
        if compared and self.smooth_bits:
            raise ValueError(f"expected the exact network to call {path} as often as the smooth one, got fewer calls")
        for bits in self.smooth_bits:
            self.see_bits(bits)
        self.smooth_bits.clear()

    def result(self, path: str) -> LayerStatistics:
        assert self.most is not None
        assert self.least is not None
        mean = self.total / self.count
        return LayerStatistics(
            path=path,
            units=len(self.most),
            mean=mean,
            std=max(self.squares / self.count - mean * mean, 0.0) ** 0.5,
            binarity=self.extreme / self.count if self.binary else None,
            flip_rate=self.flips / self.compared if self.compared else None,
            dead=(self.most == self.least).double().mean().item(),
            firing_rate=self.ones / self.bits,
        )


def _chunks(x: Tensor) -> tuple[Tensor, ...]:
    """The values of x in pieces that fit a cache; on a GPU whole (mps has no doubles: on the CPU)."""
    x = x.cpu() if x.device.type == "mps" else x
    return x.flatten().split(CHUNK) if x.device.type == "cpu" else (x.flatten(),)
