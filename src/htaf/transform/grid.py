"""Weights on a grid of integers, so that the sums of a network with 0/1 activations are exact in any order."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from htaf.core.activations import Heaviside
from htaf.core.binary import BinaryConv2d, BinaryLinear, binary_weight
from htaf.core.functional import sign
from htaf.core.kernels.layers import EXACT
from htaf.core.kernels.table_convolution.reference import LARGEST, ranges
from htaf.transform.convert import harden
from htaf.transform.convert.functional_sites import Model, duplicate
from htaf.transform.convert.modes import evaluating

Bits = Literal[4, 8]
LayerBits = Literal[4, 8, 16]
_SLACK = 6  # that rounding may add to the sum of two sixes of integers: half of each
_FINEST, _COARSEST = -126, 120  # exponents of a grid's step: normal numbers of float32, with room for the sums
REACH = 8.0  # of real inputs: standardised ones beyond are rare
MOST_BITS, NEAR = 4096, 0.01  # of a mean; and how near to an integer its multiple is, rounded in float32
FEWEST = 512  # steps that the grid of real inputs must have on either side


def grid_weight(w: Float[Tensor, "*shape"], bits: LayerBits = 8, *, shared: bool = False) -> Float[Tensor, "*shape"]:
    """Round weights to s k: k an integer in [-127, 127] (8 bits) or [-7, 7] (4 bits), s one power of two for a filter.

    So the weights of inputs that are 0 or 1 sum to s times an integer, which float32 holds exactly in any order of
    summation. The gradient is that of w itself (straight-through), as if nothing were rounded.

    s with 8 bits: the least for which max |w| < 128 s and the integers of 12 neighbouring inputs sum to at most 255, so
    that tables of bytes hold their sums (docs/kernels.md). With 4 bits: that of the least squared error. With 16 bits:
    the least for which max |w| < 2^15 s. Values on the grid stay as they are: the function of its own result is that
    result.

    Args:
        w: floating-point tensor [filters, ...] of two dimensions or more, of nn.Linear or nn.Conv2d.
        bits: of an integer, 4, 8 or 16.
        shared: one s for all filters, as what compares them needs.

    Returns:
        Tensor of the shape and dtype of w.

    Raises:
        TypeError: w is not a floating-point tensor. ValueError: w has fewer than two dimensions, or other bits.

    Example:
        >>> grid_weight(torch.tensor([[0.3, -1.0], [0.01, 0.0]]), 4)
        tensor([[ 0.2500, -1.0000],
                [ 0.0098,  0.0000]])
    """
    k, step = integers_and_steps(w, bits, shared=shared)
    return (k * _along(step, w)).to(w.dtype) + (w - w.detach())  # 0 with the gradient of w


def integers_and_steps(
    w: Float[Tensor, "*shape"], bits: LayerBits = 8, *, shared: bool = False
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, " filters"]]:
    """The two factors of `grid_weight`, in float32: integers k of the shape of w, and powers of two s [filters].

    They have no gradient. Args, raises: as `grid_weight`.
    """
    if not w.is_floating_point():
        raise TypeError(f"w must be a floating-point tensor, got dtype {w.dtype}")
    if w.ndim < 2:
        raise ValueError(f"w must have at least two dimensions, got shape {tuple(w.shape)}")
    _checked(bits, LayerBits)
    w = w.detach().float()
    flat, most = w.flatten(1), 2 ** (bits - 1) - 1
    if not flat.numel():
        return _rounded(w, torch.zeros(len(w), dtype=torch.int32, device=w.device), most)
    largest = _largest(flat.abs().amax(1), shared)
    exponent = largest.frexp().exponent - (bits - 1)  # max |w| < 2^(bits - 1) 2^exponent
    if bits == 16:
        return _rounded(w, exponent, most)
    if bits == 8:
        taps = w.flatten(2).transpose(1, 2) if w.ndim > 2 else w.unsqueeze(1)  # [filters, taps, channels]
        reach = _largest(ranges(taps, "int8"), shared)  # of the sums of every two sixes of inputs, as tables hold them
        exact = torch.maximum(exponent, _least(reach / LARGEST["int8"]))
        k, step = _rounded(w, exact, most)
        off = (k * _along(step, w) != w).flatten(1).any(1)  # else there is nothing that rounding adds
        exponent = torch.maximum(exponent, _least(reach / (LARGEST["int8"] - _SLACK)))
        return _rounded(w, torch.where(_largest(off, shared), exponent, exact), most)
    tried = [_rounded(w, exponent - finer, most) for finer in range(3)]
    errors = torch.stack([(k * _along(s, w) - w).square().flatten(1).sum(1) for k, s in tried])
    errors = errors.sum(1, keepdim=True).expand_as(errors) if shared else errors
    return _rounded(w, exponent - errors.argmin(0), most)


def _largest(x: Tensor, shared: bool) -> Tensor:
    """Of each filter, or of all for each."""
    return x.amax().expand_as(x) if shared else x


def _rounded(w: Tensor, exponent: Tensor, most: int) -> tuple[Tensor, Tensor]:
    step = torch.ldexp(torch.ones_like(exponent, dtype=torch.float32), exponent.clamp(_FINEST, _COARSEST))
    return (w / _along(step, w)).round().clamp(-most, most), step


def _along(step: Tensor, w: Tensor) -> Tensor:
    return step.view(-1, *[1] * (w.ndim - 1))


def _least(x: Tensor) -> Tensor:
    """The least exponents of powers of two that are no smaller, int32."""
    found = x.frexp()
    return found.exponent - (found.mantissa == 0.5).int()


class _Grid(nn.Module):
    """Base of the layers that `on_grid` makes: `weight` holds real weights, of which a forward takes `grid_weight`.

    The state dict is that of the layer of PyTorch, with the real weights.
    """

    bits: LayerBits = 8
    weight: Any  # the parameters of the layer
    bias: Any
    real: bool = False  # the inputs are real numbers
    rounds: bool = False  # and are rounded first
    shared: bool = False  # one power of two for all filters, of which the bias holds multiples too
    wide: bool = False  # the outputs are float64
    over: int = 1  # the inputs are multiples of 1 / over, as means of so many bits
    settled: bool = False  # the parameters lie on the grid already

    def extra_repr(self) -> str:
        flags = ("real", "rounds", "shared", "wide")
        more = "".join(f", {name}=True" for name in flags if getattr(self, name))
        more += f", over={self.over}" * (self.over > 1)
        return f"{super().extra_repr()}, bits={self.bits}{more}"

    def grid_weight(self) -> Tensor:
        """Return the weights that the layer computes with."""
        if self.settled:
            return self.weight
        return grid_weight(self.weight, self.bits, shared=self.shared)

    def grid_bias(self) -> Tensor | None:
        """Return the bias that it computes with: where filters share their power of two, rounded to multiples of it."""
        if self.bias is None or self.settled or not self.shared:
            return self.bias
        step = integers_and_steps(self.weight, self.bits, shared=True)[1].to(self.bias.dtype)
        return (self.bias.detach() / step).round() * step + (self.bias - self.bias.detach())

    def counts(self, input: Tensor) -> Tensor:
        """Return the inputs times `over`, integers again, in float64. Raises ValueError for others than multiples."""
        times = input.double() * self.over
        whole = times.round()
        if not torch.compiler.is_compiling() and bool(((times - whole).abs() >= NEAR).any()):
            raise ValueError(
                f"expected multiples of 1 / {self.over}, as of means over images of the size that on_grid was given, "
                "got others: call on_grid with an example of this size"
            )
        return whole

    def rounded(self) -> dict[str, Tensor | None]:
        """Return the tensors that it computes with, by their names as parameters of a settled layer."""
        return {"weight": self.grid_weight(), "bias": self.grid_bias()}


def settled(model: nn.Module) -> nn.Module:
    """Round the weights and biases of layers on a grid once, for inference.

    Returns:
        A new model that shares all other parameters and buffers; or the model, where it has no such layers.
    """
    if not any(isinstance(module, _Grid) for module in model.modules()):
        return model
    new = duplicate(model, parameters=True, buffers=True)
    for module in new.modules():
        if isinstance(module, _Grid):
            held = {k: nn.Parameter(x.detach().clone(), False) for k, x in module.rounded().items() if x is not None}
            module._parameters, module.settled = {**module._parameters, **held}, True
    return new


def weight_of(layer: nn.Module) -> Tensor:
    """Return the weights that a layer computes with: of layers on a grid those on the grid, else its own."""
    return layer.grid_weight() if isinstance(layer, _Grid) else layer.weight  # pyright: ignore[reportReturnType]


def bias_of(layer: nn.Module) -> Tensor | None:
    """Return the bias that a layer computes with, as `weight_of`."""
    return layer.grid_bias() if isinstance(layer, _Grid) else layer.bias  # pyright: ignore[reportReturnType]


class Addend(nn.Linear):
    """nn.Linear whose outputs are a part of a sum: on a grid they are float64 outside of training, so that the sum is
    rounded once."""


class _GridConv(_Grid):
    """Convolution with weights on a grid: the sums of inputs that are 0 or 1, or small integers, are exact.

    Outside of training, real inputs are rounded to multiples of 2^-e and clipped so that the sums stay exact. Of means
    the integers are summed, and the sums divided. A bias is added to the sum, in one rounding.
    """

    def forward(self, input: Float[Tensor, "*batch"]) -> Float[Tensor, "*out"]:
        layer: Any = self
        if self.real and not self.training:
            input = fixed_point(input, *pixels_grid(_inputs(self) * (2 ** (self.bits - 1) - 1)))
        weight, bias, dimensions = self.grid_weight(), self.grid_bias(), self.weight.ndim - 2
        counted = self.over > 1 and not self.training
        if counted:
            input, weight = self.counts(input), weight.double()
        y = layer._conv_forward(input, weight, None)
        y = (y / self.over).to(self.weight.dtype) if counted else y
        return y if bias is None else y + bias.view(-1, *[1] * dimensions)


@final
class GridConv1d(_GridConv, nn.Conv1d):
    __doc__ = _GridConv.__doc__


@final
class GridConv2d(_GridConv, nn.Conv2d):
    __doc__ = _GridConv.__doc__


@final
class GridLinear(_Grid, nn.Linear):
    """Linear layer with weights on a grid: the sums of inputs that are 0 or 1, or small integers, are exact.

    Outside of training, the sums over real inputs are taken in float64 and rounded once, so that they do not depend on
    their order, but for one float32 in some 10^8. Of means the integers are summed, and the sums divided.
    """

    def forward(self, input: Float[Tensor, "*batch in_features"]) -> Float[Tensor, "*batch out_features"]:
        weight, bias = self.grid_weight(), self.grid_bias()
        if self.training or not self.real:
            y = nn.functional.linear(input if self.training else input.to(weight.dtype), weight)  # a mean is float64
            y = y.double() if self.wide and not self.training else y
            return y if bias is None else y + bias
        if self.rounds:
            input = fixed_point(input, *columns_grid(self.in_features if self.bits < 16 else None))
        if self.over > 1:
            # a bias on the grid of the sums is one more of them, and the whole is rounded once
            times = None if bias is None or not self.shared else self.over * bias.double()
            y = nn.functional.linear(self.counts(input), weight.double(), times) / self.over
            y = y if bias is None or self.shared else y + bias
        else:
            y = nn.functional.linear(input.double(), weight.double(), None if bias is None else bias.double())
        return y if self.wide else y.to(weight.dtype)


class GridBinary(_Grid):
    """Base of the layers with binary weights: outside of training they sum signs, and multiply the sums by mean |w|.

    Each is rounded once, so over bits the sums are exact. Training is that of `BinaryConv2d` and `BinaryLinear`.
    """

    scales: Any  # of a settled one, whose weights are signs

    def extra_repr(self) -> str:
        return super(_Grid, self).extra_repr()

    def grid_weight(self) -> Tensor:
        signs, scales = self.rounded().values()
        return signs * _along(scales, signs)

    def rounded(self) -> dict[str, Any]:
        if self.settled:
            return {"weight": self.weight, "scales": self.scales}
        wide = self.weight.detach().double()  # in which the mean is the same on every processor
        scales = wide.abs().flatten(1).mean(1).to(self.weight.dtype)
        return {"weight": sign(self.weight.detach()), "scales": scales}

    def forward(self, input: Float[Tensor, "*batch"]) -> Float[Tensor, "*out"]:
        places = (-1, *[1] * (self.weight.ndim - 2))
        weight, scales = (binary_weight(self.weight), None) if self.training else self.rounded().values()
        if isinstance(self, nn.Conv2d):
            y = self._conv_forward(input, weight, None)
        else:
            y = nn.functional.linear(input, weight)
        y = y if scales is None else y * scales.view(places)
        return y if self.bias is None else y + self.bias.view(places)


@final
class GridBinaryConv2d(GridBinary, nn.Conv2d):
    __doc__ = GridBinary.__doc__


@final
class GridBinaryLinear(GridBinary, nn.Linear):
    __doc__ = GridBinary.__doc__


class Mean(nn.Module):
    """Take the mean over some dimensions of the input, which the output has not.

    On a grid it is taken in float64 outside of training, and stays so for the layer behind it.
    """

    wide = False  # on a grid

    def __init__(self, dims: Sequence[int]) -> None:
        super().__init__()
        self.dims = tuple(dims)

    def forward(self, input: Float[Tensor, "*shape"]) -> Float[Tensor, "*rest"]:
        return (input.double() if self.wide and not self.training else input).mean(self.dims)

    def extra_repr(self) -> str:
        return f"{self.dims}"


class Columns(nn.Module):
    """Mark where the columns of a table come in: they stay as they are. On a grid they are rounded by `fixed_point`.

    Args:
        exponent, limit: of that, see `columns_grid`.
    """

    rounds = False  # on a grid

    def __init__(self, exponent: int, limit: int) -> None:
        super().__init__()
        self.exponent, self.limit = exponent, limit

    def forward(self, input: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return fixed_point(input, self.exponent, self.limit) if self.rounds else input


class _WideNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm that outside of training computes in float64 and rounds once.

    In float32 its last bit, and a step near its threshold, would depend on the processor and the size of the batch.
    """

    def forward(self, input: Tensor) -> Tensor:
        if self.training or self.running_mean is None or self.running_var is None:
            return super().forward(input)
        self._check_input_dim(input)
        given = (self.running_mean, self.running_var, self.weight, self.bias)
        mean, var, weight, bias = (None if x is None else x.double() for x in given)
        return nn.functional.batch_norm(input.double(), mean, var, weight, bias, eps=self.eps).to(input.dtype)


@final
class WideBatchNorm1d(_WideNorm, nn.BatchNorm1d):
    __doc__ = _WideNorm.__doc__


@final
class WideBatchNorm2d(_WideNorm, nn.BatchNorm2d):
    __doc__ = _WideNorm.__doc__


def fixed_point(x: Tensor, exponent: int, limit: int) -> Tensor:
    """Round to multiples of 2^-exponent, half to even, clipped to +-limit of them. Gradient: 1 where not clipped."""
    steps = 2.0**exponent
    clipped = x.clamp(-limit / steps, limit / steps)
    made = (clipped * steps).round() * (1 / steps)
    return made + (clipped - clipped.detach()) if x.requires_grad else made


def pixels_grid(weights: int) -> tuple[int, int]:
    """Return the exponent e and limit L = floor(2^24 / weights) for inputs of a convolution: float32 holds the sums.

    weights: the most that the absolute values of a filter's integers can sum to. e is the largest with 2^e 8 <= L.
    """
    limit = max(EXACT // weights, 1)
    return math.floor(math.log2(limit / REACH)), limit


def columns_grid(columns: int | None) -> tuple[int, int]:
    """Return the exponent e and limit L = 8 2^e for so many columns of a table that a linear layer of 8 bits reads.

    Columns in [-8, 8] are not clipped. L is at most 2^23, so that float32 holds every step. An int32 holds the sums,
    where the columns are not so many that fewer than 2^14 steps were left. None: nothing but thresholds and layers of
    16 bits read them.
    """
    most = EXACT // 2 if columns is None else (2**31 - 1) // (127 * columns)
    limit = 2 ** min(max(most.bit_length() - 1, 14), 23)
    return round(math.log2(limit / REACH)), limit


def _checked(bits: Any, of: Any = Bits) -> Any:
    if bits not in get_args(of):
        *others, last = get_args(of)
        raise ValueError(f"bits must be {', '.join(map(str, others))} or {last}, got {bits!r}")
    return bits


def on_grid(model: Model, example: Any, *, bits: Bits = 8) -> Model:
    """Return a new model whose sums are exact in the hardened network: weights on a grid, the rest in float64.

        nn.Linear, convolutions                     over 0/1 activations, sums and means of these: weights of `bits`
        nn.Linear over real inputs                  sums in float64; 16 bits, or 8 before the first step
        convolutions over real inputs               8 bits, the inputs rounded so that float32 holds the sums
        BinaryConv2d, BinaryLinear                  over 0/1 or -1/1: sums of signs, which are scaled
        nn.BatchNorm1d, nn.BatchNorm2d              in float64, rounded once

    A layer with no step behind it has one power of two for all outputs. It has 16 bits if it is linear and reads means.

    The hardened network then computes the same bits on every processor, in any order of summation. `htaf.pack` keeps
    all of them if no other layer comes before a step. Train the new model like any other one: its weights are real
    numbers, and the forward pass rounds them. A trained model needs a few more epochs.

    Args:
        model: with smooth or exact steps; not changed. Three kinds of layers stay as they are: layers that are not in
            the table, subclasses of those that are, and convolutions with more than 258 real inputs for each output. A
            warning names them. It cannot see functional calls with weights (F.linear).
        example: inputs, a tensor or a tuple. `on_grid` runs the hardened model on it, and lets the steps give random
            bits. A layer reads bits if its inputs are integers in this run, and its largest weights give sums of at
            most 2^24. A step of several levels, a power of two, counts in units of the finest one. If a layer reads
            means over pixels, the example must have the size that the model will get. A warning names the layers that
            clip values of the example beyond 8.
        bits: of an integer weight, 4 or 8.

    Returns:
        The new model, of the type of `model`, with the same state-dict keys and values. A model that is a single layer
        becomes that layer on the grid, such as a `GridLinear`.

    Raises:
        ValueError: bits are not 4 or 8; the model has layers on a grid, or none over bits; levels are no power of 2.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 4), htaf.HTAF(), nn.Linear(4, 2))
        >>> on_grid(net, torch.randn(5, 3))
        Sequential(
          (0): GridLinear(in_features=3, out_features=4, bias=True, bits=8, real=True, rounds=True)
          (1): HTAF(alpha0=2.0, alpha1=11.0)
          (2): GridLinear(in_features=4, out_features=2, bias=True, bits=8, shared=True)
        )
    """
    _checked(bits)
    if any(isinstance(module, _Grid) for module in model.modules()):
        raise ValueError("expected a model with real weights, got one that is on a grid already")
    ran: list[str] = []
    seen = _over_integers(model, example, bits, ran)
    left = _left(model, seen, ran)
    tables = any(hasattr(module, "connections") for module in model.modules())  # `LUTLayer`, which reads bits
    if not tables and not any(layer.whole or not layer.given for layer in seen.values()):
        others = f", and {'; '.join(left)}" if left else ""
        raise ValueError(
            "expected a model with an nn.Linear or a convolution over the outputs of steps, "
            f"got {len(seen)} of them over real inputs{others}"
        )
    if far := [path or "the model" for path, layer in seen.items() if layer.far]:
        wanted = f"expected inputs of about 1, as normalised ones, got some beyond {REACH:g}, where"
        warnings.warn(f"on_grid: {wanted} {', '.join(far[:_SHOWN])} clips them outside of training", stacklevel=2)
    if left:
        shown = "; ".join(left[:_SHOWN]) + (f"; and {len(left) - _SHOWN} more" if len(left) > _SHOWN else "")
        warnings.warn(f"on_grid: sums stay rounded in {shown}", stacklevel=2)
    new, known = duplicate(model), dict[nn.Module, nn.Module | None]()
    modules: list[tuple[str, nn.Module]] = list(new.named_modules(remove_duplicate=False))
    for path, module in modules:
        if module not in known:  # a layer under two names stays one
            known[module] = _made(module, seen.get(path), bits)
        if (made := known[module]) is not None:
            if not path:
                return cast(Model, made)
            parent, _, name = path.rpartition(".")
            setattr(new.get_submodule(parent), name, made)
    return new


_LAYERS: dict[type, type[_Grid]] = {
    nn.Linear: GridLinear, Addend: GridLinear,
    nn.Conv1d: GridConv1d, nn.Conv2d: GridConv2d,
    BinaryConv2d: GridBinaryConv2d, BinaryLinear: GridBinaryLinear,
}  # fmt: skip
_NORMS: dict[type, type[nn.Module]] = {nn.BatchNorm1d: WideBatchNorm1d, nn.BatchNorm2d: WideBatchNorm2d}
_SUMS = (  # what sums products of real weights or of values: its last bit depends on the order
    nn.Linear, nn.modules.conv._ConvNd, nn.Bilinear, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention,
    nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm,
)  # fmt: skip
_SHOWN = 6  # layers that a warning names


@dataclass
class _Seen:
    """A layer in the hardened model. whole: it reads integers alone, so small that float32 holds every sum.
    given: it reads what the model is given, with no step between. over: by what number else its inputs become integers,
    as means of so many bits do; 0: by none. far: it clips some of what it is given. fixed: it reads multiples of 2^-20.
    last: no step stands between it and the outputs."""

    whole: bool = True
    given: bool = False
    over: int = 1
    far: bool = False
    fixed: bool = True
    last: bool = False


def _made(module: nn.Module, seen: _Seen | None, bits: Bits) -> nn.Module | None:
    """Return what stands for a module, with its parameters; None where it stays."""
    kind = type(module)
    if kind in _NORMS:
        return _as(_NORMS[kind], module)
    if kind in (Mean, Columns):
        return _as(kind, module, **{"wide" if kind is Mean else "rounds": True})
    if seen is None or kind not in _LAYERS:
        return None
    made, real, many = _LAYERS[kind], not seen.whole, seen.over > 1
    if issubclass(made, GridBinary):
        return None if real else _as(made, module)
    more: dict[str, Any] = {"over": max(seen.over, 1), "shared": seen.last, "real": real, "bits": bits}
    if isinstance(module, nn.Linear):
        if real and (seen.last or not many):
            more["bits"] = 8 if seen.given and not seen.last else 16
        return _as(made, module, **more, rounds=real and seen.given and not seen.fixed, wide=kind is Addend)
    if real and not many:
        return None if _many(module) else _as(made, module, **more | {"bits": 8})
    return _as(made, module, **more | {"real": False})


def _inputs(layer: Any) -> int:
    """The most inputs that an output is a sum over."""
    return (
        layer.in_features
        if isinstance(layer, nn.Linear)
        else layer.in_channels // layer.groups * math.prod(layer.kernel_size)
    )


def _many(layer: nn.Module) -> bool:
    """Whether a convolution over real inputs has so many for each output that their grid would be too coarse."""
    return _inputs(layer) * 127 * FEWEST > EXACT


def _left(model: nn.Module, seen: dict[str, _Seen], ran: list[str]) -> list[str]:
    """The layers that `on_grid` leaves as they are, each with its class; of a convolution with its many inputs."""
    found: list[str] = []
    for path in dict.fromkeys(ran):
        kind = type(module := model.get_submodule(path))
        made = _LAYERS.get(kind, nn.Module)
        if issubclass(made, _GridConv) and not seen[path].whole and seen[path].over < 2 and _many(module):
            found.append(f"{path or 'the model'} ({kind.__name__}, {_inputs(module)} real inputs for each output)")
        elif issubclass(made, GridBinary) and not seen[path].whole:
            found.append(f"{path or 'the model'} ({kind.__name__}, real inputs)")
        elif kind not in (*_LAYERS, *_NORMS, *_NORMS.values()):
            found.append(f"{path or 'the model'} ({kind.__name__})")
    return found


def _as(kind: type[nn.Module], module: nn.Module, **more: Any) -> nn.Module:
    """The same module of another class: its parameters, buffers, hooks and options stay."""
    made = kind.__new__(kind)
    made.__dict__.update(module.__dict__)
    made.__dict__.update(more)
    return made


def _over(x: Tensor) -> int:
    """The least number, to MOST_BITS, of which 1 / number all are multiples; 0: there is none."""
    flat, tried = x.double().unique(), torch.arange(1.0, MOST_BITS + 1, dtype=torch.float64, device=x.device)

    def near(y: Tensor) -> Tensor:
        return ((y - y.round()).abs() < NEAR).all(0)

    found = (int(n) for n in tried[near(flat[:64, None] * tried)].tolist() if bool(near(flat * n)))
    return next(found, 0)


def _followed(x: Tensor) -> Tensor:
    """The tensor, so that what is made of it has a gradient."""
    return x.detach().requires_grad_(x.is_floating_point())


def _over_integers(model: nn.Module, example: Any, bits: Bits, ran: list[str]) -> dict[str, _Seen]:
    """The layers that run, by their paths, as they are in the hardened model.

    The steps give random bits: so the answer is that of the architecture. Of a fresh network whose steps all give 0, a
    mean of bits would look like an integer. These bits have no gradient: by gradients it is seen what stands before and
    behind all steps.
    ran: takes the paths of all layers of `_SUMS` that run.
    """
    try:
        exact = harden(model, share=True)
    except ValueError:  # it has no smooth step: it is hardened, or has none at all
        exact = duplicate(model, parameters=True, buffers=True)
    found: dict[str, _Seen] = {}
    probes: list[tuple[str, Tensor]] = []

    def see(path: str, module: nn.Module, given: tuple[Any, ...], y: Tensor) -> Tensor:
        fine, limit = columns_grid(None)
        x = given[0].detach() * finest
        largest = float(x.abs().max()) if x.numel() else 0.0
        held = largest * _inputs(module) * (2 ** (bits - 1) - 1) <= EXACT
        known = found.setdefault(path, _Seen())
        known.whole = known.whole and held and bool((x == x.round()).all())
        known.given |= given[0].requires_grad
        known.far |= beyond and known.given and not known.whole and largest > REACH * finest
        if not known.whole and known.over:
            known.over = 0 if known.given else math.lcm(known.over, _over(given[0].detach()))
        q = given[0].detach() * 2**fine
        known.fixed = known.fixed and bool(((q == q.round()) & (q.abs() <= limit)).all())
        probes.append((path, torch.zeros((), dtype=y.dtype, device=y.device, requires_grad=True)))
        return y + probes[-1][1]

    def real(module: nn.Module, given: tuple[Any, ...], y: Tensor) -> Tensor | None:
        """On a grid it is float64, so that nothing is to be counted again."""
        return None if bool((y == y.round()).all()) else y + torch.rand(y.shape, generator=random).to(y)

    random = torch.Generator().manual_seed(0)
    steps = [module for module in exact.modules() if isinstance(module, Heaviside)]
    finest = max((step.levels for step in steps), default=1)
    if others := [step.levels for step in steps if step.levels.bit_count() > 1]:
        shares = "steps of 1, 2, 4 or another power of two levels, as float32 holds no thirds exactly"
        raise ValueError(f"expected {shares}, got levels={others[0]}")

    def bits_of(step: nn.Module, given: tuple[Any, ...], y: Tensor) -> Tensor:
        assert isinstance(step, Heaviside)
        drawn = torch.randint(step.levels + 1, y.shape, generator=random).to(y) / step.levels
        return 2 * drawn - 1 if step.bipolar else drawn

    def rounded(columns: Any, given: tuple[Any, ...], y: Tensor) -> Tensor:
        return fixed_point(y, columns.exponent, columns.limit)

    for path, module in exact.named_modules():
        if isinstance(module, _SUMS):
            module.register_forward_pre_hook(lambda *_, path=path: ran.append(path))
        if type(module) in _LAYERS:
            module.register_forward_hook(partial(see, path))
        elif isinstance(module, Heaviside):
            module.register_forward_hook(bits_of)
        elif type(module) is Columns:
            module.register_forward_hook(rounded)
        elif type(module) is Mean:
            module.register_forward_hook(real)
    given = tree_map_only(Tensor, _followed, example if isinstance(example, tuple) else (example,))
    beyond = any(bool((x.detach().abs() > REACH).any()) for x in tree_leaves(given) if isinstance(x, Tensor))
    with evaluating(exact), torch.enable_grad():
        y = exact(*given)
        ends = [x.sum() for x in tree_leaves(y) if isinstance(x, Tensor) and x.requires_grad]
        if ends and probes:
            reached = torch.autograd.grad(ends, [probe for _, probe in probes], allow_unused=True)
            for (path, _), gradient in zip(probes, reached, strict=True):
                found[path].last |= gradient is not None
    return found
