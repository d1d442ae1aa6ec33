"""The compiled kernels of csrc/activations.hpp, with the signatures of reference.py."""

from __future__ import annotations

from torch import Tensor

from htaf.kernels import native
from htaf.kernels.formulas import Scalar
from htaf.kernels.native import SCALED_SIGMOID, supports

__all__ = ["backward", "backward_all", "forward", "supports"]


def forward(x: Tensor, *parameters: Scalar, bipolar: bool) -> Tensor:
    return native.smooth_forward(SCALED_SIGMOID, x, parameters, bipolar)


def backward(grad: Tensor, x: Tensor, *parameters: Scalar, bipolar: bool) -> Tensor:
    return native.smooth_backward(SCALED_SIGMOID, grad, x, parameters, bipolar)[0]


def backward_all(grad: Tensor, x: Tensor, *parameters: Scalar, bipolar: bool) -> tuple[Tensor, ...]:
    return native.smooth_backward(SCALED_SIGMOID, grad, x, parameters, bipolar, sums=True)
