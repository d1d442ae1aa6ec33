"""Networks of closed form as modules, and ReLU networks copied by HTAF networks: the paper on expressivity."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from htaf.core.activations import HTAF
from htaf_paper.bounds import derivatives
from htaf_paper.networks import (
    Shallow,
    curvature_point,
    fourth_derivative_bound,
    step_distance,
    third_derivative_bound,
)


@dataclass(frozen=True, eq=False)
class ReluCopy:
    """An HTAF network in place of a ReLU network.

    Attributes:
        network: float64, 2 L hidden layers for L of the ReLU network, of 2 N and 3 N neurons for N.
        error: what |copy - ReLU network| is at most where all |x_i| <= radius, in exact arithmetic, [outputs].
        share: the error of each copied ReLU, as a share of the largest absolute pre-activation that it can have.
        rounding: about what float64 adds to `share`; a smaller eps than that gains nothing.
        largest: the largest absolute parameter.
    """

    network: nn.Sequential
    error: tuple[float, ...]
    share: float
    rounding: float
    largest: float


def as_module(network: Shallow, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """A network of closed form as Linear -> HTAF -> Linear, [batch, inputs] -> [batch, 1]."""
    weight = torch.tensor(network.weight, dtype=torch.float64)
    first = _linear(weight, torch.tensor(network.bias, dtype=torch.float64))
    last = _linear(
        torch.tensor([network.outer], dtype=torch.float64), torch.tensor([network.offset], dtype=torch.float64)
    )
    return nn.Sequential(first, _htaf(network.alpha0, network.alpha1), last).to(dtype)


def copy_relu(
    network: nn.Sequential, eps: float, *, radius: float = 1.0, alpha0: float = 2.0, alpha1: float = 11.0
) -> ReluCopy:
    """An HTAF network of twice the depth and three times the width that is within eps of a ReLU network.

    Theorem "any deep ReLU network" of the paper, made explicit as Theorem 1 of Zhang, Lu and Zhao 2024 does for
    S-shaped functions: ReLU(z) = z H(z). With v = z / R, |v| <= 1, and phi = HTAF:

    - layer 1: I(v) = (phi(d v) - 1/2) / (d phi'(0)) = v + e, |e| <= d^2 sup|phi'''| / (6 phi'(0)), and the step
      S(k v) = (phi(k v) - sigma(-alpha1)) / tanh(alpha1 / 2) with |v| |S - H| <= c / k (`networks.step_distance`);
    - layer 2: the product I S by the three neurons of `networks.product_network`.

    Then R I S is within `share` R of ReLU(z). R bounds |z| by intervals from layer to layer, the errors of earlier
    layers included, and an error passes a layer with |W|, as ReLU is 1-Lipschitz. `share` is the largest for eps.

    Any alpha0 and alpha1 will do, as the theorem says; weights grow as 1 / share^2 where two copied layers meet. The
    inputs must be bounded, as no bounded activation follows a ReLU network to infinity; the paper's norm is over
    [0, 1]^d. Its proof names a point with HTAF'' != 0 only; limits at -inf and inf that differ are needed too.

    Args:
        network: Linear and ReLU modules in turn, a Linear first and last.
        eps: > 0, the largest error of any output. radius: of the inputs, |x_i| <= radius.
        alpha0, alpha1: of the copy's HTAF.

    Raises:
        ValueError: another network, or a number that is not > 0 and finite.
    """
    for name, value in {"eps": eps, "radius": radius}.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} must be > 0 and finite, got {value}")
    layers = [(layer.weight.detach().double(), _bias(layer)) for layer in _linears(network)]
    low, high = 0.0, 1.0
    while _spread(layers, radius, high)[1].max() < eps and high < 1e3:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _spread(layers, radius, middle)[1].max() <= eps else (low, middle)
    share = min(low, 1.0)
    ranges, error = _spread(layers, radius, share)
    return _built(layers, ranges, error, share, alpha0, alpha1)


Layers = list[tuple[Tensor, Tensor]]


def _built(layers: Layers, ranges: list[Tensor], error: Tensor, share: float, alpha0: float, alpha1: float) -> ReluCopy:
    slope, t = derivatives(0.0, alpha0, alpha1).x, curvature_point(alpha0, alpha1)
    at, low, high = derivatives(t, alpha0, alpha1), *_limits(alpha0, alpha1)
    k = 3 * step_distance(alpha0, alpha1) / share
    d = (share / 3 * 6 * slope / third_derivative_bound(alpha0, alpha1)) ** 0.5
    q = 1 + share / 3  # |I| <= q
    h = (share / 3 * abs(at.xx) / (fourth_derivative_bound(alpha0, alpha1) * q * (q * q / 6 + q / 4 + 1 / 6))) ** 0.5
    scale, found = 1 / (h * h * at.xx), list[nn.Module]()

    def behind(product: Tensor | None, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """A layer of the ReLU network on the products before it, R scale (phi - phi - phi + phi(t)) each."""
        if product is None:
            return weight, bias
        w = weight * (scale * product)
        return torch.cat([w, -w, -w], 1), bias + w.sum(1) * at.value

    product = None
    for (weight, bias), largest in zip(layers[:-1], ranges, strict=True):
        w, b = behind(product, weight / largest[:, None], bias / largest)
        found += [_linear(torch.cat([d * w, k * w]), torch.cat([d * b, k * b])), _htaf(alpha0, alpha1)]
        one = torch.eye(len(bias), dtype=torch.float64)
        copied, step, zero = one * (h / (d * slope)), one * (h / (high - low)), torch.zeros_like(one)
        w = torch.cat([torch.cat(row, 1) for row in ((copied, step), (copied, zero), (zero, step))])
        parts = torch.tensor([-h / (2 * d * slope), -h * low / (high - low)], dtype=torch.float64)
        b = t + torch.stack([parts.sum(), *parts]).repeat_interleave(len(bias))
        found += [_linear(w, b), _htaf(alpha0, alpha1)]
        product = largest
    found.append(_linear(*behind(product, *layers[-1])))
    network = nn.Sequential(*found)
    unit = 2.0**-53
    return ReluCopy(
        network,
        tuple(error.tolist()),
        share,
        4 * unit * abs(scale) * (at.value + t * at.x) + 2 * unit / (d * slope),
        max(float(p.detach().abs().max()) for p in network.parameters()),
    )


def _spread(layers: Layers, radius: float, share: float) -> tuple[list[Tensor], Tensor]:
    """R of every ReLU, by hidden layer, and the largest error of every output."""
    weight, bias = layers[0]
    middle, half = bias, weight.abs().sum(1) * radius
    error, ranges = torch.zeros_like(bias), []
    for weight, bias in layers[1:]:
        low, high = middle - half, middle + half
        largest = torch.maximum(low.abs(), high.abs()) + error
        largest = torch.where(largest > 0, largest, 1.0)  # a neuron that is always 0
        ranges.append(largest)
        error = weight.abs() @ (error + largest * share)
        low, high = low.clamp(min=0), high.clamp(min=0)
        middle, half = weight @ ((low + high) / 2) + bias, weight.abs() @ ((high - low) / 2)
    return ranges, error


def _htaf(alpha0: float, alpha1: float) -> HTAF:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no output needs to pass 0.99 here
        return HTAF(alpha0, alpha1)


def _limits(alpha0: float, alpha1: float) -> tuple[float, float]:
    """sigma(-alpha1) and sigma(alpha1), between which HTAF lies."""
    far = 40 / alpha0
    return derivatives(-far, alpha0, alpha1).value, derivatives(far, alpha0, alpha1).value


def _linears(network: nn.Sequential) -> list[nn.Linear]:
    kinds = [nn.Linear if place % 2 == 0 else nn.ReLU for place in range(len(network))]
    if len(network) % 2 == 0 or not all(type(m) is kind for m, kind in zip(network, kinds, strict=True)):
        names = ", ".join(type(module).__name__ for module in network)
        raise ValueError(f"expected Linear and ReLU in turn, a Linear first and last, got {names or 'nothing'}")
    return [module for module in network if isinstance(module, nn.Linear)]


def _bias(layer: nn.Linear) -> Tensor:
    return torch.zeros(layer.out_features).double() if layer.bias is None else layer.bias.detach().double()


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")  # draws no random numbers
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    return layer
