"""Measuring the thresholds of a spiking network on batches of its ReLU network, and what else acts in it."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Mode = Literal["max", "percentile"] | float

# known to be neither affine nor an activation site: the mean over time of what it gives is not what it gives for the
# mean; _PRODUCTS only of two tensors that depend on the input
_NOT_AFFINE = {
    "max_pool",
    "softmax",
    "softmin",
    "layer_norm",
    "group_norm",
    "instance_norm",
    "rms_norm",
    "local_response",
}


_BENT = {
    "abs",
    "absolute",
    "pow",
    "square",
    "sqrt",
    "rsqrt",
    "exp",
    "expm1",
    "log",
    "log1p",
    "reciprocal",
    "norm",
    "clamp",
}
_BENT |= {"clip", "maximum", "minimum", "sin", "cos", "where", "amax", "amin", "logsumexp", "cumprod", "prod"}
_PRODUCTS = {"mul", "multiply", "matmul", "bmm", "div", "true_divide", "divide", "scaled_dot_product_attention"}


class ThresholdRecorder(nn.Module):
    """A ReLU that keeps the threshold that its outputs so far make, one for each call in a forward of the model."""

    def __init__(self, mode: Mode, percentile: float, momentum: float | None) -> None:
        super().__init__()
        self.mode: Mode = mode
        self.percentile, self.momentum = percentile, momentum
        self.batch: list[Tensor] = []
        self.s: list[Tensor] = []

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        out = x.relu()
        self.batch.append(_scale(out, self.mode, self.percentile))  # now: the model may overwrite out
        return out

    def end_batch(self, path: str) -> None:
        new, self.batch = self.batch, []
        if self.s and len(new) != len(self.s):
            raise ValueError(f"{path}: {other_calls(len(self.s), str(len(new)))}")
        if not self.s:
            self.s = new
        elif self.momentum is None:
            self.s = [torch.maximum(*pair) for pair in zip(self.s, new, strict=True)]
        else:
            m = self.momentum
            self.s = [(1 - m) * old + m * s for old, s in zip(self.s, new, strict=True)]

    def thresholds(self, path: str) -> Tensor:
        s = torch.stack(self.s)
        if not (s.isfinite() & (s > 0)).all():
            raise ValueError(
                f"{path}: expected a threshold > 0 and finite, got {s.tolist()}: a percentile is 0 where hardly any "
                "neuron is active (use mode max), and so is the maximum where none is (use other batches)"
            )
        return s


class Watch(TorchFunctionMode):
    """Notes the functions that ran which are neither affine nor elementwise."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "").strip("_")
        bent = name in _BENT or any(part in name for part in _NOT_AFFINE)
        if bent or (name in _PRODUCTS and sum(map(_data, args)) > 1):
            self.seen.add(name)
        return func(*args, **(kwargs or {}))


def _data(value: object) -> bool:
    """Whether a factor depends on the input, as far as can be seen: no parameter, no single number."""
    return isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and value.numel() > 1


def check(mode: Mode, percentile: float, momentum: float | None, v0: float) -> None:
    fraction = isinstance(mode, (int, float)) and not isinstance(mode, bool) and 0 < mode <= 1
    if mode not in ("max", "percentile") and not fraction:
        raise ValueError(f'mode must be "max", "percentile" or a fraction in (0, 1], got {mode!r}')
    if not 0 < percentile <= 100:
        raise ValueError(f"percentile must be in (0, 100], got {percentile}")
    if momentum is not None and not 0 <= momentum <= 1:
        raise ValueError(f"momentum must be in [0, 1] or None, got {momentum}")
    if not 0 <= v0 < 1:
        raise ValueError(f"v0 must be in [0, 1), got {v0}")


def _scale(out: Tensor, mode: Mode, percentile: float) -> Tensor:
    if mode == "percentile":
        place = percentile / 100 * (out.numel() - 1)
        low, high = (out.flatten().kthvalue(k + 1).values for k in (math.floor(place), math.ceil(place)))
        return low + (place - math.floor(place)) * (high - low)
    return out.max() if mode == "max" else out.max() * mode


def other_calls(expected: int, came: str) -> str:
    return f"expected a ReLU to run {expected} times in every forward, as in the first batch, got {came}"
