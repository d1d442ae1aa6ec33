"""The compiled kernels: loads the extension, checks what it can take, hands over addresses in memory order.

Without the extension (`HTAF_NO_EXTENSION=1` when installing, or in the environment) the reference runs instead; a
warning says so once.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from htaf._ground.errors import HtafError
from htaf.core.kernels.formulas import Scalar

TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # the order of Type in csrc/kernels.hpp
HTAF, SCALED_SIGMOID = 0, 1  # of Smooth
RECTANGULAR, ATAN, APPROX_SIGN = 0, 1, 2  # of Slope


@cache
def load() -> tuple[ModuleType | None, str]:
    """The extension, or None and why not."""
    if os.environ.get("HTAF_NO_EXTENSION", "").lower() not in {"", "0", "f", "false", "n", "no", "off"}:  # as the build
        return None, "HTAF_NO_EXTENSION is set"
    try:
        from htaf.core.kernels import _native  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError as error:
        return None, f"not built when htaf was installed: {error}"
    wanted = os.environ.get("HTAF_INSTRUCTION_SET")
    if wanted:
        if wanted not in [*_native.instruction_sets(), "amx-emulated"]:  # for tests, see docs/kernels.md
            raise HtafError(f"HTAF_INSTRUCTION_SET must be one of {_native.instruction_sets()}, got {wanted!r}")
        _native.use_instruction_set(wanted)
    return _native, ""


@cache
def _warn() -> None:
    warnings.warn(
        f"htaf runs without its compiled kernels ({load()[1]}): plain PyTorch is 10 to 20 times slower. "
        "Install with a C++ compiler; `htaf doctor` tells more.",
        stacklevel=2,
    )


def available() -> bool:
    """Whether the extension is there; warns the first time when it is not."""
    if load()[0] is None:
        if not torch.compiler.is_compiling():
            _warn()
        return False
    return True


def extension() -> ModuleType:
    """The extension, known to be there."""
    module = load()[0]
    assert module is not None
    return module


def address(x: Tensor | None) -> int:
    """0 for none."""
    return 0 if x is None else x.data_ptr()


def channel_dimension(x: Tensor, parameter: Tensor) -> int | None:
    """The dimension of x along which the parameter varies (0 when it does not); None when there are several."""
    ahead = x.ndim - parameter.ndim
    varying = [ahead + i for i, size in enumerate(parameter.shape) if size != 1]
    return None if len(varying) > 1 else varying[0] if varying else 0


def supports(x: Tensor, *parameters: Scalar) -> bool:
    """Whether the compiled kernels take these: 32 or 16 bits, parameters scalar or varying along one dimension."""
    if x.dtype not in TYPES or x.device.type != "cpu":
        return False
    return not parameters or not isinstance(parameters[0], Tensor) or along_one_dimension(x, parameters)


def along_one_dimension(x: Tensor, parameters: tuple[Scalar, ...]) -> bool:
    """Whether these are tensors of one shape, on the device of x, that are scalar or vary along one dimension of x."""
    first = parameters[0]
    if not isinstance(first, Tensor) or first.ndim > x.ndim:
        return False
    if not all(isinstance(p, Tensor) and p.shape == first.shape and p.device == x.device for p in parameters):
        return False
    dim = channel_dimension(x, first)
    return dim is not None and (first.numel() == 1 or x.shape[dim] == first.numel())


def layout(x: Tensor, parameter: Tensor) -> tuple[int, int, int]:
    """A dense x in memory order as (outer, channels, inner), the channels being those of the parameter."""
    channels = parameter.numel()
    if channels == 1:
        return 1, 1, x.numel()
    dim = channel_dimension(x, parameter)
    assert dim is not None
    inner = math.prod(n for n, stride in zip(x.shape, x.stride(), strict=True) if stride < x.stride(dim))
    return (x.numel() // (channels * inner) if x.numel() else 0), channels, inner


def in_order_of(x: Tensor, like: Tensor) -> Tensor:
    """x with the strides of `like`, itself where it has them: then both are walked through in memory order."""
    if x.shape != like.shape or x.device != like.device:
        raise ValueError(f"expected {tuple(like.shape)} on {like.device}, got {tuple(x.shape)} on {x.device}")
    x = x.to(like.dtype)
    return x if x.stride() == like.stride() else torch.empty_like(like).copy_(x)


def smooth_forward(kind: int, x: Tensor, parameters: tuple[Scalar, ...], bipolar: bool) -> Tensor:
    y = torch.empty_like(x)
    x = in_order_of(x, y)
    scale, shift = (2.0, -1.0) if bipolar else (1.0, 0.0)
    threads = torch.get_num_threads()
    parameters = _floats(parameters)
    first = parameters[0]
    if isinstance(first, Tensor):
        table = _table(parameters)
        shape = layout(y, first)
        pointers = (x.data_ptr(), y.data_ptr())
        extension().forward_channels(kind, TYPES[x.dtype], *pointers, *shape, table.data_ptr(), scale, shift, threads)
    else:
        last = parameters[-1]
        extension().forward(
            kind, TYPES[x.dtype], x.data_ptr(), y.data_ptr(), x.numel(), first, last, scale, shift, threads
        )
    return y


def smooth_backward(
    kind: int,
    grad: Tensor,
    x: Tensor,
    parameters: tuple[Scalar, ...],
    bipolar: bool,
    sums: bool = False,
    scale: float = 1.0,
) -> tuple[Tensor, ...]:
    gx = torch.empty_like(x)
    x, grad = in_order_of(x, gx), in_order_of(grad, gx)
    scale *= 2.0 if bipolar else 1.0
    threads = torch.get_num_threads()
    pointers = (grad.data_ptr(), x.data_ptr(), gx.data_ptr())
    parameters = parameters if sums else _floats(parameters)
    first = parameters[0]
    if not isinstance(first, Tensor):
        extension().backward(kind, TYPES[x.dtype], *pointers, x.numel(), first, parameters[-1], scale, threads)
        return (gx,)
    table, shape = _table(parameters), layout(gx, first)
    found = torch.empty_like(table) if sums else None
    tables = (table.data_ptr(), address(found))
    extension().backward_channels(kind, TYPES[x.dtype], *pointers, *shape, *tables, scale, threads)
    if found is None:
        return (gx,)
    pairs = zip(found, parameters, strict=True)
    return gx, *(row.reshape(p.shape).to(p.dtype) for row, p in pairs if isinstance(p, Tensor))


def smooth(kind: int) -> tuple[Callable[..., Tensor], Callable[..., Tensor], Callable[..., tuple[Tensor, ...]]]:
    """`forward`, `backward` and `backward_all` of an activation, with the signatures of its reference.py."""

    def forward(x: Tensor, *parameters: Scalar, bipolar: bool) -> Tensor:
        return smooth_forward(kind, x, parameters, bipolar)

    def backward(grad: Tensor, x: Tensor, *parameters: Scalar, bipolar: bool) -> Tensor:
        return smooth_backward(kind, grad, x, parameters, bipolar)[0]

    def backward_all(grad: Tensor, x: Tensor, *parameters: Scalar, bipolar: bool) -> tuple[Tensor, ...]:
        return smooth_backward(kind, grad, x, parameters, bipolar, sums=True)

    return forward, backward, backward_all


def step_levels(x: Tensor, thresholds: list[float], bipolar: bool) -> Tensor:
    y = torch.empty_like(x)
    x = in_order_of(x, y)
    scale, shift = (2.0, -float(len(thresholds))) if bipolar else (1.0, 0.0)
    pointers = (x.data_ptr(), y.data_ptr(), x.numel(), thresholds)
    extension().step_levels(TYPES[x.dtype], *pointers, scale, shift, torch.get_num_threads())
    return y


def levels_forward(
    kind: int, x: Tensor, parameters: tuple[float, ...], thresholds: tuple[float, ...], bipolar: bool
) -> Tensor:
    y = torch.empty_like(x)
    x = in_order_of(x, y)
    sizes = (TYPES[x.dtype], x.data_ptr(), y.data_ptr(), x.numel(), parameters[0], parameters[-1], list(thresholds))
    extension().forward_levels(kind, *sizes, *((2.0, -1.0) if bipolar else (1.0, 0.0)), torch.get_num_threads())
    return y


def levels_backward(
    kind: int, grad: Tensor, x: Tensor, parameters: tuple[float, ...], thresholds: tuple[float, ...], bipolar: bool
) -> Tensor:
    gx = torch.empty_like(x)
    x, grad = in_order_of(x, gx), in_order_of(grad, gx)
    pointers = (grad.data_ptr(), x.data_ptr(), gx.data_ptr(), x.numel())
    last = (parameters[0], parameters[-1], list(thresholds), 2.0 if bipolar else 1.0, torch.get_num_threads())
    extension().backward_levels(kind, TYPES[x.dtype], *pointers, *last)
    return gx


def _floats(parameters: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    """Tensors of one value as floats, which take a shorter way."""
    if all(isinstance(p, Tensor) and p.numel() == 1 for p in parameters):
        return tuple(p.item() for p in parameters if isinstance(p, Tensor))
    return parameters


def _table(parameters: tuple[Scalar, ...]) -> Tensor:
    """float64 [parameters, channels]."""
    return torch.stack([p.detach().reshape(-1) for p in parameters if isinstance(p, Tensor)]).double().contiguous()


def slope_backward(kind: int, grad: Tensor, x: Tensor, parameter: float, bipolar: bool) -> Tensor:
    gx = torch.empty_like(x)
    x, grad = in_order_of(x, gx), in_order_of(grad, gx)
    pointers = (grad.data_ptr(), x.data_ptr(), gx.data_ptr())
    scale = 2.0 if bipolar else 1.0
    extension().slope(kind, TYPES[x.dtype], *pointers, x.numel(), parameter, scale, torch.get_num_threads())
    return gx


def heaviside(x: Tensor, *, bipolar: bool = False) -> Tensor:
    y = torch.empty_like(x)
    x = in_order_of(x, y)
    below = -1.0 if bipolar else 0.0
    extension().heaviside(TYPES[x.dtype], x.data_ptr(), y.data_ptr(), x.numel(), below, torch.get_num_threads())
    return y


def pack(x: Tensor) -> Tensor:
    x = x.contiguous()
    columns = x.shape[-1]
    bits = torch.empty(*x.shape[:-1], (columns + 7) // 8, dtype=torch.uint8, device=x.device)
    rows = math.prod(x.shape[:-1])
    if not extension().pack(TYPES[x.dtype], x.data_ptr(), bits.data_ptr(), rows, columns, torch.get_num_threads()):
        raise ValueError("cannot pack NaN to bits: the input holds NaN")
    return bits


def transpose(bits: Tensor, size: int) -> Tensor:
    bits, rows = bits.contiguous(), len(bits)
    turned = torch.empty((size, (rows + 7) // 8), dtype=torch.uint8, device=bits.device)
    extension().transpose(bits.data_ptr(), turned.data_ptr(), rows, size, torch.get_num_threads())
    return turned


def count_common(a: Tensor, b: Tensor) -> Tensor:
    a, b = a.contiguous(), a.contiguous() if a is b else b.contiguous()
    m, n, bytes = len(a), len(b), a.shape[1]
    counts = torch.empty((m, n), dtype=torch.int64, device=a.device)
    pointers = (a.data_ptr(), b.data_ptr(), counts.data_ptr())
    extension().count_common(*pointers, m, n, bytes, torch.get_num_threads())
    return counts
