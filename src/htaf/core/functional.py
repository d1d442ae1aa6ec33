"""Pure functions on tensors: the step, its smooth stand-ins, and their exact gradients.

Every function computes in at least float32 and rounds once to the dtype of x. Gradients are closed forms that
keep their relative accuracy in the tails; second derivatives too. All work on any device, under `torch.compile`,
autocast, the transforms of `torch.func` and forward mode (`jvp`, `jacfwd`, `hessian`, dual numbers), for x and for
tensor parameters. With float parameters one tensor, x, is saved for the backward pass.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch
import torch.fx
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from htaf._ground.errors import check_finite, check_positive
from htaf.core.kernels import levels as kernel
from htaf.core.kernels import operators
from htaf.core.kernels.formulas import Scalar, compute_dtype

for _name in ("heaviside", "sign", *(smooth.name for smooth in operators.SMOOTH)):
    torch.fx.wrap(_name)  # torch.fx.symbolic_trace keeps a call of them as it is


MOST_LEVELS = 127  # of one step, so that the level is an integer that products of bytes take
REACH = 2.8  # of pre-activations of N(0, 1), which several thresholds divide: 1.4 apart are two, 0.7 are four


def spacing_of(levels: int) -> float:
    """Return the default distance between two thresholds: 2.8 / levels, for pre-activations near N(0, 1)."""
    return REACH / levels


def thresholds(levels: int, spacing: float | None = None, threshold: float = 0.0) -> tuple[float, ...]:
    """Where a step rises: t_k = threshold + (k - (levels + 1) / 2) spacing for k = 1 to levels.

    Each is rounded to float32, so that it is the same number for x of every dtype.

    Args:
        levels: how many, >= 1; 1 gives the threshold itself.
        spacing: > 0, between two of them; None: 2.8 / levels.
        threshold: their middle, finite.

    Raises:
        TypeError: `levels` is not an integer. ValueError: it is not from 1 to 127, spacing is not > 0, or threshold is
            not finite.

    Example:
        >>> thresholds(3, 1.0)
        (-1.0, 0.0, 1.0)
    """
    if not isinstance(levels, int) or isinstance(levels, bool):
        raise TypeError(f"levels must be an integer, got {levels!r}")
    if not 1 <= levels <= MOST_LEVELS:
        raise ValueError(f"levels must lie in 1 to {MOST_LEVELS}, got {levels}")
    spacing = spacing_of(levels) if spacing is None else check_positive("spacing", spacing)
    middle = check_finite("threshold", threshold)
    parts = [math.frexp(middle + (k - (levels + 1) / 2) * spacing) for k in range(1, levels + 1)]
    return tuple(math.ldexp(round(math.ldexp(mantissa, 24)), exponent - 24) for mantissa, exponent in parts)


def heaviside(
    x: Float[Tensor, "*shape"], *, levels: int = 1, spacing: float | None = None, threshold: float = 0.0
) -> Float[Tensor, "*shape"]:
    """Compute the exact step H(x - threshold), where H(x) = 1 if x >= 0 else 0.

    With several levels the result is the mean of H(x - t_k) over the `thresholds` t_k: 0, 1 / 2 or 1 for levels=2. Each
    comparison is exact. The mean is rounded once.

    -0.0 counts as 0, so H(-0.0) = 1. NaN gives NaN. The gradient is 0. At NaN it is 1, so that a NaN stays visible.

    Args:
        x: floating-point tensor of any shape.
        levels, spacing, threshold: as `thresholds`.

    Returns:
        Tensor of 0 and 1, or of the shares i / levels, same shape and dtype as x.

    Raises:
        TypeError: x is not a floating-point tensor. TypeError, ValueError: as `thresholds`.

    Example:
        >>> heaviside(torch.tensor([-1.0, -0.0, 2.0]))
        tensor([0., 1., 1.])
    """
    return _exact(x, False, levels, spacing, threshold)


def sign(
    x: Float[Tensor, "*shape"], *, levels: int = 1, spacing: float | None = None, threshold: float = 0.0
) -> Float[Tensor, "*shape"]:
    """Compute the exact sign, sign(x) = 2 H(x) - 1, so sign(0) = +1 (unlike `torch.sign`). NaN gives NaN.

    Args, returns, raises: as `heaviside`, with values -1 and +1; -1, 0 and +1 for levels=2.
    """
    return _exact(x, True, levels, spacing, threshold)


def _exact(x: Tensor, bipolar: bool, levels: int, spacing: float | None, threshold: float) -> Tensor:
    check_floating(x)
    if levels == 1 and threshold == 0:
        return operators.heaviside(x, bipolar)
    return operators.levels(x, list(thresholds(levels, spacing, threshold)), bipolar)


def lookup(
    x: Float[Tensor, "*batch tables inputs"], entries: Float[Tensor, "tables addresses"]
) -> Float[Tensor, "*batch tables"]:
    """Truth tables of k inputs, multilinear between bits: of bits x the entry at the address sum_i x_i 2^i.

        y_n = sum_a entries_na prod_i (x_ni if bit i of a is 1 else 1 - x_ni)

    The gradient of a bit x_i is thus the entry with that bit on minus the entry with it off; the gradient of an entry
    comes from the rows at its address. It is differentiable between bits too.

    Args:
        x: k inputs of each table, floating-point, in [0, 1]. entries: 2^k of each table, of the dtype of x.

    Raises:
        TypeError: x is not a floating-point tensor. ValueError: shapes that do not fit.

    Source: the multilinear extension of a Boolean function, as for gates of two inputs in Petersen et al. 2022, "Deep
    Differentiable Logic Gate Networks".

    Example:
        >>> lookup(torch.tensor([[[0.0, 1.0]]]), torch.tensor([[0.1, 0.2, 0.3, 0.4]]))
        tensor([[0.3000]])
    """
    check_floating(x)
    return operators.lookup(x, entries)


def htaf(
    x: Float[Tensor, "*shape"],
    alpha0: Scalar = 2.0,
    alpha1: Scalar = 11.0,
    *,
    bipolar: bool = False,
    levels: int = 1,
    spacing: float | None = None,
) -> Float[Tensor, "*shape"]:
    """Heavy-Tailed Activation Function, HTAF(x) = sigma(alpha1 tanh(alpha0 x)).

    Gradient: alpha0 alpha1 (sech(alpha0 x) sech(alpha1 tanh(alpha0 x) / 2) / 2)^2, evaluated without cancellation;
    likewise for alpha0 and alpha1 when they are tensors. Range: from sigma(-alpha1) to sigma(alpha1).

    Args:
        x: floating-point tensor of any shape.
        alpha0: > 0, width of the tails: they decay as exp(-2 alpha0 |x|). A float from 9.4e-38 to 1.06e37, or a
            floating-point tensor that broadcasts to x (a value that is not > 0 gives NaN; the module `HTAF` checks when
            it is made). Over all of this range, also of products, errors are as in docs/kernels.md.
        alpha1: > 0, a float or a tensor as alpha0. The slope at 0 is alpha0 alpha1 / 4.
        bipolar: 2 HTAF(x) - 1 instead, in one pass; its error is absolute (2.5e-7), not relative, near 0.
        levels: the mean of HTAF(x - t_k) over as many thresholds instead, with the gradient of that mean; computed in
            at least float32 and rounded once.
        spacing: between two of these, see `thresholds`.

    Returns:
        Tensor of the shape and dtype of x.

    Raises:
        TypeError: x or a tensor parameter is not floating-point.
        ValueError: a float parameter is out of range, or a tensor does not broadcast to x.

    Source: the paper, equation (1); the stable gradient is this library's.

    Example:
        >>> htaf(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([2.4785e-05, 5.0000e-01, 9.9998e-01])
    """
    check_floating(x)
    _warn_float16(x)
    return _leveled(operators.htaf, x, {"alpha0": alpha0, "alpha1": alpha1}, bipolar, levels, spacing)


def scaled_sigmoid(
    x: Float[Tensor, "*shape"],
    beta: Scalar = 22.0,
    *,
    bipolar: bool = False,
    levels: int = 1,
    spacing: float | None = None,
) -> Float[Tensor, "*shape"]:
    """Scaled sigmoid (SS), sigma(beta x): the limit of HTAF for alpha0 -> 0 with alpha0 alpha1 = beta.

    Gradient: beta (sech(beta x / 2) / 2)^2, evaluated without cancellation; likewise for beta when it is a tensor.

    Args:
        x: floating-point tensor of any shape.
        beta: > 0, a float, or a floating-point tensor that broadcasts to x. The slope at 0 is beta / 4.
        bipolar: 2 sigma(beta x) - 1 instead, in one pass.
        levels, spacing: as `htaf`.

    Returns, raises: as `htaf`.
    """
    check_floating(x)
    _warn_float16(x)
    return _leveled(operators.scaled_sigmoid, x, {"beta": beta}, bipolar, levels, spacing)


def mean_of_levels(
    step: Callable[[Tensor], Tensor], x: Tensor, levels: int, spacing: float | None, threshold: float = 0.0
) -> Tensor:
    """The mean of step(x - t_k) over `thresholds`, in at least float32, rounded once to the dtype of x.

    Raises: as `thresholds`.
    """
    if levels == 1 and threshold == 0:
        return step(x)
    first, *others = thresholds(levels, spacing, threshold)
    wide = x.to(compute_dtype(x))
    total = step(wide - first)
    for threshold in others:
        total = total + step(wide - threshold)
    return (total / levels).to(x.dtype)


def pack_bits(x: Float[Tensor, "*rows n"]) -> UInt8[Tensor, "*rows bytes"]:
    """The exact step as bits, eight values a byte along the last dimension: 1 where x >= 0.

    Value 8 i + j of a row is bit j, counted from the least significant, of byte i of that row; the unused bits of the
    last byte are 0. So `numpy.unpackbits(bits, axis=-1, bitorder="little")` reads it.

    Args:
        x: floating-point tensor [..., n] of at least one dimension.

    Returns:
        uint8 tensor [..., ceil(n / 8)]. It has no gradient.

    Raises:
        TypeError: x is not a floating-point tensor.
        ValueError: x has no dimension, or holds a NaN, which has no bit.

    Example:
        >>> pack_bits(torch.tensor([1.0, -1.0, 0.0]))
        tensor([5], dtype=torch.uint8)
    """
    check_floating(x)
    if x.ndim == 0:
        raise ValueError("x must have at least one dimension to be packed along, got a tensor of shape ()")
    return operators.pack_bits(x.detach())


def transpose_bits(bits: UInt8[Tensor, "rows bytes"], n: int) -> UInt8[Tensor, "n columns"]:
    """Transpose a matrix of packed bits: bit j of row i becomes bit i of row j.

    So rows of images, with n properties each, become rows of properties, as `count_common_bits` takes them.

    Args:
        bits: uint8 tensor [rows, ceil(n / 8)] as from `pack_bits`; its unused bits may have any value.
        n: values a row.

    Returns:
        uint8 tensor [n, ceil(rows / 8)], unused bits 0.

    Raises:
        TypeError: bits is not a uint8 tensor.
        ValueError: bits is not a matrix whose last dimension is ceil(n / 8).

    Example:
        >>> transpose_bits(torch.tensor([[1], [3], [0]], dtype=torch.uint8), 2)
        tensor([[3],
                [2]], dtype=torch.uint8)
    """
    _check_bits("bits", bits)
    if not isinstance(n, (int, torch.SymInt)) or n < 0:
        raise ValueError(f"n must be an integer >= 0, got {n!r}")
    if bits.shape[1] != (n + 7) // 8:
        raise ValueError(f"bits must have a last dimension of {(n + 7) // 8} for n = {n}, got {tuple(bits.shape)}")
    return operators.transpose_bits(bits, n)


def count_common_bits(a: UInt8[Tensor, "m bytes"], b: UInt8[Tensor, "n bytes"]) -> Int64[Tensor, "m n"]:
    """Count the bits that are set in both rows, for every row of a and every row of b: popcount(a_i & b_j).

    This is the exact product of two matrices of 0 and 1, a times b transposed, over packed bits.

    Args:
        a: uint8 tensor [m, bytes] as from `pack_bits`. Unused bits must be 0 in a or in b.
        b: uint8 tensor [n, bytes]. If it is a itself, half of the work is saved.

    Returns:
        int64 tensor [m, n].

    Raises:
        TypeError: a or b is not a uint8 tensor.
        ValueError: they are not matrices of equally long rows on one device.

    Example:
        >>> count_common_bits(torch.tensor([[7]], dtype=torch.uint8), torch.tensor([[5], [8]], dtype=torch.uint8))
        tensor([[2, 0]])
    """
    _check_bits("a", a)
    _check_bits("b", b)
    if a.shape[1] != b.shape[1] or a.device != b.device:
        raise ValueError(
            "a and b must have rows of equally many bytes on one device, "
            f"got {tuple(a.shape)} on {a.device} and {tuple(b.shape)} on {b.device}"
        )
    return operators.count_common_bits(a, b)


def _check_bits(name: str, bits: object) -> None:
    if not isinstance(bits, Tensor) or bits.dtype != torch.uint8:
        raise TypeError(f"{name} must be a uint8 tensor, got {getattr(bits, 'dtype', type(bits).__name__)}")
    if bits.ndim != 2:
        raise ValueError(f"{name} must have two dimensions, got a tensor of shape {tuple(bits.shape)}")


def check_floating(x: object) -> None:
    """Raise TypeError unless x is a real floating-point tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a torch.Tensor, got {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(f"x must be a real floating-point tensor, got dtype {x.dtype}")
    if x.layout is not torch.strided:
        raise TypeError(f"x must be a dense tensor, got layout {x.layout}")


def _warn_float16(x: Tensor) -> None:
    if x.dtype == torch.float16 and x.requires_grad and not torch.compiler.is_compiling():
        warnings.warn(
            "float16 gradients underflow below 6e-8: train with a loss scale (torch.amp.GradScaler)", stacklevel=3
        )


def _smooth(activation: operators.Smooth, x: Tensor, parameters: dict[str, Scalar], bipolar: bool) -> Tensor:
    """Run the operator for floats, or the one for tensors of one shape if any parameter is a tensor."""
    # a compiled graph is made again for every value of a float: there it becomes a tensor, unless it is to be exported
    compiled = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    if not compiled and not any(isinstance(value, Tensor) for value in parameters.values()):
        floats = [check_positive(name, value) for name, value in parameters.items()]  # pyright: ignore[reportArgumentType]
        return activation.floats(x, *floats, bipolar)
    dtype = compute_dtype(x)
    values = []
    for name, value in parameters.items():
        if not isinstance(value, Tensor):
            # as a product, which torch.compile keeps open for other values
            values.append(x.new_ones((), dtype=dtype) * check_positive(name, value))
            continue
        if not value.is_floating_point():
            raise TypeError(f"{name} must be a float or a floating-point tensor, got dtype {value.dtype}")
        if _broadcast(value.shape, x.shape) != x.shape:
            raise ValueError(f"{name} of shape {tuple(value.shape)} does not broadcast to x of shape {tuple(x.shape)}")
        values.append(value.to(dtype))
    return activation.tensors(x, *torch.broadcast_tensors(*values), bipolar)


def _leveled(
    activation: operators.Smooth,
    x: Tensor,
    parameters: dict[str, Scalar],
    bipolar: bool,
    levels: int,
    spacing: float | None,
) -> Tensor:
    """As `_smooth`, of one level or several."""
    if levels == 1:
        return _smooth(activation, x, parameters, bipolar)

    def formula(z: Tensor) -> Tensor:
        return mean_of_levels(lambda one: _smooth(activation, one, parameters, bipolar), z, levels, spacing)

    if not kernel.supports(x, tuple(parameters.values())):
        return formula(x)
    floats = tuple(check_positive(name, value) for name, value in parameters.items())  # pyright: ignore[reportArgumentType]
    return kernel.mean(activation.name, x, floats, thresholds(levels, spacing), bipolar, formula)


def _broadcast(*shapes: torch.Size) -> torch.Size | None:
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError:
        return None
