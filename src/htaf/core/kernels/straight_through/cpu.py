"""The compiled kernels of csrc/activations.hpp, with the signatures of reference.py."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from htaf.core.kernels import native
from htaf.core.kernels.native import supports

__all__ = ["backward", "supports"]

KINDS = {"rectangular": native.RECTANGULAR, "atan": native.ATAN, "approx_sign": native.APPROX_SIGN}


def backward(grad: Tensor, x: Tensor, slope: str, parameters: Sequence[float], *, bipolar: bool = False) -> Tensor:
    if slope in KINDS:
        return native.slope_backward(KINDS[slope], grad, x, parameters[0] if parameters else 0.0, bipolar)
    if slope == "tanh":  # sech(x)^2 is twice the slope of sigma(2 x)
        return native.smooth_backward(native.SCALED_SIGMOID, grad, x, (2.0,), bipolar, scale=2.0)[0]
    kind = native.HTAF if slope == "htaf" else native.SCALED_SIGMOID
    return native.smooth_backward(kind, grad, x, tuple(parameters), bipolar)[0]
