"""What a network computes, layer by layer: multiply-adds, accumulations of spikes, binary operations, their energy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from torch import Tensor, nn

from htaf.convert.modes import evaluating, hooked

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
MAX_COUNT = 64  # integers up to here count as spikes that were added up; beyond, as numbers (raw pixels, say)
BINARY_PER_REAL = 64  # binary operations that one real one is worth: the bits of a word

Input = Literal["real", "binary", "counts"]


@dataclass(frozen=True)
class Energy:
    """Joules of one operation.

    mac: multiply-add of 32-bit floats. accumulate: addition of 32-bit floats. binary: XNOR and its share of a popcount.

    Arithmetic only: reading weights and activations from memory costs more than either on most machines.
    """

    mac: float
    accumulate: float
    binary: float


# Horowitz, ISSCC 2014, 45 nm at 0.9 V: float32 multiplication 3.7 pJ, addition 0.9 pJ. The table has no one-bit
# operation; its 8-bit integer addition, 0.03 pJ, bounds one from above: a gate, and one bit more in a sum.
HOROWITZ_45NM = Energy(mac=4.6e-12, accumulate=0.9e-12, binary=0.03e-12)


@dataclass(frozen=True)
class LayerOperations:
    """Operations of one convolution or linear layer for one sample, over all calls (time steps) of a forward pass.

    path, kind: module path and class name. calls: how often it ran.
    inputs: "binary" when every value of the example was 0 or 1, or every one -1 or +1; "counts" for other integers up
        to 64 (spikes that shortcuts add up); else "real".
    binary_weights: whether its weights are binary.
    rate: mean |input| over the example: of 0/1 inputs the firing rate, of -1/+1 inputs 1.
    dense: weight times input pairs, padded zeros included; one of the next three fields holds what becomes of them.
    multiply_adds: of real inputs with real weights: dense.
    accumulations: additions without a multiplication. Of 0/1 inputs or counts with real weights rate x dense ("synaptic
        operations": a zero costs nothing, a 2 costs two, padding counts as if spikes were there as often as elsewhere);
        of -1/+1 inputs with real weights, or real inputs with binary ones, dense.
    binary_operations: of binary inputs with binary weights (XNOR and popcount): dense.
    joules: by the energies that were given.
    """

    path: str
    kind: str
    calls: int
    inputs: Input
    binary_weights: bool
    rate: float
    dense: float
    multiply_adds: float
    accumulations: float
    binary_operations: float
    joules: float


@dataclass(frozen=True)
class Totals:
    """Sums over layers.

    operations: multiply_adds + accumulations + binary_operations / 64, as papers on binary networks count (Bi-Real Net,
    Liu et al. 2018, arXiv:1808.00278).
    """

    dense: float
    multiply_adds: float
    accumulations: float
    binary_operations: float
    operations: float
    joules: float


def operations(
    model: nn.Module,
    example: Tensor | tuple[Any, ...],
    *,
    binary_weights: Callable[[nn.Module], bool] | None = None,
    energy: Energy = HOROWITZ_45NM,
) -> list[LayerOperations]:
    """Count the operations of every convolution and linear layer for one sample.

    Whether inputs are binary is seen in the values of the example, so give real samples, and the exact network
    (`htaf.harden`): of a smooth one all inputs are real. Runs once, in eval mode. Bias, normalisation, activation,
    pooling and attention's products are not counted; other layers with weights are named in a warning.

    Args:
        model: any module.
        example: a batch [samples, ...], or a tuple of positional arguments of which the first is one.
        binary_weights: says of a layer whether its weights are binary; None: its attribute `has_binary_weights`.
        energy: joules of each operation.

    Returns:
        One entry a layer that ran, in the order of `named_modules`.

    Raises:
        ValueError: an empty example, or no such layer ran.

    Source: accumulations as in Rathi and Roy 2020 (arXiv:2008.03658), energies Horowitz 2014.
    """
    arguments = example if isinstance(example, tuple) else (example,)
    if not arguments or not isinstance(arguments[0], Tensor):
        shown = type(arguments[0]).__name__ if arguments else "an empty tuple"
        raise ValueError(f"expected an example that is a tensor, or a tuple that begins with one, got {shown}")
    if not arguments[0].numel():
        raise ValueError("expected an example with at least one sample, got an empty one")
    is_binary = binary_weights or (lambda module: bool(getattr(module, "has_binary_weights", False)))
    counters = {
        path: _Counter(module)
        for path, module in model.named_modules()
        if isinstance(module, (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)) or hasattr(module, "has_binary_weights")
    }
    others: list[str] = []
    handles = [module.register_forward_hook(counters[p].see) for p, module in model.named_modules() if p in counters]
    for path, module in model.named_modules():
        if path not in counters and not isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            weights = [p for p in module.parameters(recurse=False) if p.ndim > 1]
            if weights:
                name = f"{path} ({type(module).__name__})"
                handles.append(module.register_forward_hook(lambda *_, name=name: others.append(name)))
    with evaluating(model), hooked(handles):
        model(*arguments)
    if others:
        warnings.warn(f"operations of these layers are not counted: {', '.join(dict.fromkeys(others))}", stacklevel=2)
    samples = len(arguments[0])
    found = [c.result(p, is_binary(c.module), samples, energy) for p, c in counters.items() if c.calls]
    if not found:
        raise ValueError(f"expected a convolution or linear layer that runs in {type(model).__name__}, got none")
    return found


def totals(layers: Sequence[LayerOperations]) -> Totals:
    """Sums over layers."""
    dense, macs, adds, bits, joules = (
        sum(getattr(layer, name) for layer in layers)
        for name in ("dense", "multiply_adds", "accumulations", "binary_operations", "joules")
    )
    return Totals(dense, macs, adds, bits, macs + adds + bits / BINARY_PER_REAL, joules)


@final
class _Counter:
    """Sums over the calls of one layer."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.calls = self.dense = self.values = 0
        self.weighted = self.magnitude = 0.0
        self.zero_one = self.signs = self.counts = True

    def see(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        x, weight = args[0], module.weight
        assert isinstance(weight, Tensor)
        each = x if isinstance(module, TRANSPOSED) else output  # of this each value meets weight[0].numel() weights
        dense = each.numel() * weight[0].numel()
        size = x.abs()
        mean = size.double().mean().item() if size.device.type != "mps" else size.mean().item()
        self.calls += 1
        self.dense += dense
        self.weighted += mean * dense
        self.magnitude += mean * x.numel()
        self.values += x.numel()
        self.zero_one &= bool(((x == 0) | (x == 1)).all())
        self.signs &= bool((size == 1).all())
        self.counts &= bool(((x == x.round()) & (size <= MAX_COUNT)).all())

    def result(self, path: str, binary_weights: bool, samples: int, energy: Energy) -> LayerOperations:
        binary = self.zero_one or self.signs
        dense, weighted = self.dense / samples, self.weighted / samples
        macs = adds = bits = 0.0
        if binary and binary_weights:
            bits = dense
        elif binary or self.counts:
            adds = weighted
        elif binary_weights:
            adds = dense
        else:
            macs = dense
        return LayerOperations(
            path=path,
            kind=type(self.module).__name__,
            calls=self.calls,
            inputs="binary" if binary else "counts" if self.counts else "real",
            binary_weights=binary_weights,
            rate=self.magnitude / self.values,
            dense=dense,
            multiply_adds=macs,
            accumulations=adds,
            binary_operations=bits,
            joules=macs * energy.mac + adds * energy.accumulate + bits * energy.binary,
        )
