"""The compiled kernels of csrc/activations.hpp, with the signatures of reference.py."""

from __future__ import annotations

from torch import Tensor

from htaf.kernels import native
from htaf.kernels.formulas import Scalar
from htaf.kernels.native import HTAF, supports

__all__ = ["backward", "backward_all", "forward", "supports"]


def forward(x: Tensor, *parameters: Scalar, bipolar: bool) -> Tensor:
    return native.smooth_forward(HTAF, x, parameters, bipolar)


def backward(grad: Tensor, x: Tensor, *parameters: Scalar, bipolar: bool) -> Tensor:
    return native.smooth_backward(HTAF, grad, x, parameters, bipolar)[0]


def backward_all(grad: Tensor, x: Tensor, *parameters: Scalar, bipolar: bool) -> tuple[Tensor, ...]:
    return native.smooth_backward(HTAF, grad, x, parameters, bipolar, sums=True)
