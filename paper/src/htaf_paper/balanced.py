"""A trained ReLU network made spiking: rate coding with balanced thresholds, the yardstick of directly trained SNNs.

    ReLU(x) ~ (s / T) * (number of spikes in T steps of an integrate-and-fire neuron with threshold s)

Source: Rueckauer et al. 2017, doi:10.3389/fnins.2017.00682; balancing as in spikingjelly's `ann2snn.Converter`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from htaf.transform import convert
from htaf.transform.convert.finding import Site
from htaf.transform.convert.functional_sites import duplicate

STEPS = (10, 30, 50, 100, 200)
MOMENTUM = 0.1  # of the moving average of the thresholds
Mode = Literal["max", "percentile"] | float


@final
class BalancedIF(nn.Module):
    """Integrate-and-fire neurons in the place of a ReLU: threshold s, reset by subtraction, spikes of height s.

        v[t] = u[t-1] + x[t],   z[t] = H(v[t] - s),   u[t] = v[t] - s z[t],   output s z[t],   u[0] = 0

    While `threshold` is None it is the ReLU, and keeps what its outputs make the threshold.
    """

    def __init__(self, mode: Mode = "max", percentile: float = 99.9) -> None:
        super().__init__()
        self.mode: Mode = mode
        self.percentile = percentile
        self.average: Tensor | None = None
        self.threshold: Any = None
        self.v: Tensor | None = None

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        if self.threshold is None:
            out = x.relu()
            s = _scale(out, self.mode, self.percentile)
            self.average = s if self.average is None else (1 - MOMENTUM) * self.average + MOMENTUM * s
            return out
        self.v = x.clone() if self.v is None else self.v.add_(x)
        out = torch.ge(self.v, self.threshold).to(x.dtype).mul_(self.threshold)
        self.v.sub_(out)
        return out

    def settle(self, path: str) -> None:
        """Take the threshold. Raises ValueError where it is not > 0 and finite."""
        if self.average is None or not (self.average.isfinite() and self.average > 0):
            raise ValueError(f"{path}: expected a threshold > 0 and finite, got {self.average}: use mode max")
        self.threshold = self.average


def _scale(out: Tensor, mode: Mode, percentile: float) -> Tensor:
    if mode == "percentile":
        place = percentile / 100 * (out.numel() - 1)
        low, high = (out.flatten().kthvalue(k + 1).values for k in (math.floor(place), math.ceil(place)))
        return low + (place - math.floor(place)) * (high - low)
    return out.max() if mode == "max" else out.max() * mode


@final
class SpikingModel(nn.Module):
    """A network with `BalancedIF` neurons, run for T steps on a constant input from rest; without gradients."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    @property
    def neurons(self) -> dict[str, BalancedIF]:
        """Path in the network -> neuron."""
        return {path: module for path, module in self.network.named_modules() if isinstance(module, BalancedIF)}

    def forward(self, x: Float[Tensor, " batch *shape"], steps: int = STEPS[-1]) -> Float[Tensor, " batch *out"]:
        """The mean output over `steps` steps."""
        return next(self.run(x, (steps,)))[1]

    @torch.no_grad()
    def run(
        self, x: Float[Tensor, " batch *shape"], steps: Sequence[int] = STEPS
    ) -> Iterator[tuple[int, Float[Tensor, " batch *out"]]]:
        """(T, mean output over the first T steps) for several increasing T, in one pass, as they are computed."""
        for neuron in self.neurons.values():
            neuron.v = None
        x = x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x
        total = x.new_zeros(())
        for t in range(1, max(steps) + 1):
            total = total + self.network(x.clone())  # which may begin with an operation in place
            if t in steps:
                yield t, total / t


@torch.no_grad()
def to_spiking(
    model: nn.Module, batches: Sequence[Tensor], *, mode: Mode = "max", percentile: float = 99.9
) -> SpikingModel:
    """Convert a trained ReLU network, whose other layers are affine, to a spiking one by threshold balancing.

    Args:
        model: not changed; each of its ReLUs, modules or calls, runs once.
        batches: training inputs, on which thresholds are measured.
        mode: "max": s is the largest activation of a batch; "percentile": that percentile of all its activations; a
            float in (0, 1]: that fraction of the largest. Over the batches s is a moving average.

    Raises:
        ValueError: something is neither affine nor a ReLU, or an activation whose s is not > 0 and finite.
    """
    plain = folded(model)
    network = convert.replace(plain, partial(BalancedIF, mode, percentile), where=_is_relu, example=batches[0]).eval()
    account = convert.conversion(network)
    pools = [path for path, module in network.named_modules() if isinstance(module, nn.MaxPool2d)]
    if others := [*map(str, account.left), *account.beyond, *pools]:
        raise ValueError(f"expected only affine maps and ReLU, got {', '.join(others)}")
    for x in batches:
        network(x.clone())
    spiking = SpikingModel(network)
    for path, neuron in spiking.neurons.items():
        neuron.settle(path)
    return spiking.to(memory_format=torch.channels_last).eval()  # pyright: ignore[reportCallIssue]


def _is_relu(site: Site) -> bool:
    return site.kind == "relu" and site.calls == 1


def folded(model: nn.Module) -> nn.Module:
    """A copy in eval mode with every batch normalisation folded into the convolution that its module holds before it.

    w' = w gamma / sqrt(var + eps),   b' = (b - mean) gamma / sqrt(var + eps) + beta
    """
    model = duplicate(model).eval()
    for (before, conv), (path, norm) in pairwise(list(model.named_modules())):
        if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            model.set_submodule(before, fuse_conv_bn_eval(conv, norm))
            model.set_submodule(path, nn.Identity())
    return model
