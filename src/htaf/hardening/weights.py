"""Which weights can be written: those that a layer has for itself and uses as they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from htaf.binary import BinaryConv2d, BinaryLinear
from htaf.grid import GridBinary, bias_of

BINARY_WEIGHTS = (BinaryConv2d, BinaryLinear, GridBinary)


def not_its_own(model: nn.Module, layer: Any) -> str:
    """Why the weight or the bias of a layer cannot be written, "" where they can."""
    if isinstance(layer, BINARY_WEIGHTS):
        return "its weights are binary"
    for name in ("weight", "bias"):
        own = layer._parameters.get(name)
        if own is None:
            if getattr(layer, name, None) is not None:
                return f"its {name} is computed from others (a parametrisation)"
        elif sum(own is p for m in model.modules() for p in m._parameters.values()) > 1:
            return f"another module has the same {name}"
    return ""


def not_plain(layer: Any, made: Tensor, output: Tensor) -> str:
    """Why an output is not that of the layer's weights, "" where it is.

    Args:
        made: what the weights give, without the bias, in float32 or wider; [..., channels] as `output`.
    """
    bias = bias_of(layer)
    made = made if bias is None else made + bias.to(made)
    tolerance = max(1e-3, 8 * torch.finfo(output.dtype).eps)  # 0.06 in bfloat16: it rounds to 3 digits
    if (made - output.to(made)).abs().max() > tolerance * output.abs().max() + 1e-6:
        return f"its output is not that of a plain {type(layer).__name__}"
    return ""


def wide(x: Tensor) -> Tensor:
    """Half precision as float32, others as they are."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
