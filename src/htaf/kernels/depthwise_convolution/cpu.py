"""The compiled kernels of csrc/depthwise.cpp, with the signatures of reference.py."""

from __future__ import annotations

import torch
from torch import Tensor

from htaf.kernels.depthwise_convolution.reference import Weights, check
from htaf.kernels.layers import Bound, Epilogue, Geometry, forward_of, row_bytes
from htaf.kernels.native import extension
from htaf.kernels.packed_native import CPU, bound, check_weights

__all__ = ["Weights", "bind", "forward", "prepare"]


def prepare(weight: Tensor, geometry: Geometry, *, planes: int = 1, bipolar: bool = False) -> Weights:
    """From float32 [channels, 1, kernel height, kernel width]. Args, raises: as reference.py.

    values: float32 [taps, channels filled up to words of 64], 0 there.
    """
    g = geometry
    check(weight, g, planes, bipolar)
    values = torch.zeros(g.kernel[0] * g.kernel[1], 8 * row_bytes(g.channels), dtype=torch.float32, device=CPU)
    values[:, : g.channels] = weight.detach().flatten(1).t()
    return Weights(values, planes, bipolar, torch.zeros(g.outputs, dtype=torch.float64, device=CPU))


def bind(weights: Weights, geometry: Geometry, epilogue: Epilogue) -> Bound:
    """The layer with its weights and constants, checked once. Raises as `forward`."""
    g = geometry
    g.check()
    shape = (g.kernel[0] * g.kernel[1], 8 * row_bytes(g.channels))
    values = check_weights("values", weights.values, torch.float32, shape)
    held, run = (values.data_ptr(), weights.planes, weights.bipolar), extension().depthwise_convolution

    return bound("depthwise", run, held, (values,), g, epilogue, planes=weights.planes)


forward = forward_of(bind)
