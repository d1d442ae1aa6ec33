"""Binary weights: the sign in {-1, +1} times one scale a filter, real weights kept for training."""

from __future__ import annotations

from typing import Any, Literal, final

import torch
import torch.fx
from jaxtyping import Float
from torch import Tensor, nn

from htaf.core.functional import sign
from htaf.core.kernels.registration import transformed

torch.fx.wrap("binary_weight")


def binary_weight(w: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Magnitude-aware sign, mean |w| sign(w), one mean for each filter.

    Gradient: that of the clip of w to [-1, 1], so grad where |w| <= 1, else 0. The scale is held constant and does not
    multiply it. sign(0) = +1. A filter of zeros stays zero; one that holds a NaN becomes all NaN, and the gradient
    at the NaN is 0.

    Args:
        w: floating-point tensor [filters, ...] of at least two dimensions.

    Returns:
        Tensor of the shape, dtype and memory format of w.

    Raises:
        TypeError: w is not a floating-point tensor. ValueError: w has fewer than two dimensions.

    Source: Liu et al. 2018, arXiv:1808.00278, section 3.3; the code is Bi-Real Net's (liuzechun/Bi-Real-net).

    Example:
        >>> binary_weight(torch.tensor([[0.5, -1.5], [0.0, 0.5]]))
        tensor([[ 1.0000, -1.0000],
                [ 0.2500,  0.2500]])
    """
    if transformed():  # the same bits and derivatives from PyTorch's own functions, which know them all
        clipped = w.clamp(-1, 1)
        return _value(w) + (clipped - clipped.detach())
    return _BinaryWeight.apply(w)  # pyright: ignore[reportReturnType]


def _value(w: Tensor) -> Tensor:
    if not w.is_floating_point():
        raise TypeError(f"w must be a floating-point tensor, got dtype {w.dtype}")
    if w.ndim < 2:
        raise ValueError(f"w must have at least two dimensions, got shape {tuple(w.shape)}")
    w = w.detach()
    return sign(w) * w.abs().mean([*range(1, w.ndim)], keepdim=True)


class _BinaryWeight(torch.autograd.Function):
    # `straight_through` with a rectangular slope would multiply the gradient by twice the scale and leave out |w| = 1

    @staticmethod
    def forward(w: Tensor) -> Tensor:
        return _value(w)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        (w,) = ctx.saved_tensors
        return torch.where(w.abs() <= 1, grad, 0)


@final
class BinaryConv2d(nn.Conv2d):
    """Convolution with `binary_weight(weight)`; the input stays as it is, and padding adds zeros to it.

    Args, shapes: as nn.Conv2d, but without a bias unless `bias=True`. The state dict is that of nn.Conv2d: `weight`
    holds the real weights [out_channels, in_channels / groups, *kernel_size], with nn.Conv2d's initial values.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: str | int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = False,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = (in_channels, out_channels, kernel_size, stride, padding, dilation)
        super().__init__(*sizes, groups, bias, padding_mode, device, dtype)

    def forward(self, input: Float[Tensor, "*batch c h w"]) -> Float[Tensor, "*batch c2 h2 w2"]:
        return self._conv_forward(input, binary_weight(self.weight), self.bias)


@final
class BinaryLinear(nn.Linear):
    """Linear layer with `binary_weight(weight)`; the input stays as it is.

    Args, shapes: as nn.Linear, but without a bias unless `bias=True`. The state dict is that of nn.Linear: `weight`
    holds the real weights [out_features, in_features], with nn.Linear's initial values.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)

    def forward(self, input: Float[Tensor, "*batch in_features"]) -> Float[Tensor, "*batch out_features"]:
        return nn.functional.linear(input, binary_weight(self.weight), self.bias)
