"""Logic networks: neurons that are truth tables of a few bits, connections that are learned, classes by counts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from htaf.core.activations import HTAF
from htaf.core.functional import lookup
from htaf.core.kernels.registration import is_plain
from htaf.models.mlp import Thermometer, midpoints
from htaf.transform.grid import REACH, fixed_point

MOST_INPUTS = 8  # of a table: 2^8 entries
ROUNDING = 0.01  # by which sums of values in [0, 1] may miss it, in bfloat16


def _multiplied(x: Tensor) -> torch.dtype:
    """The dtype of the product: bfloat16 where the processor has instructions for it, which take half of the time."""
    has = getattr(torch.cpu, "_is_avx512_bf16_supported", bool)
    return torch.bfloat16 if x.dtype == torch.float32 and x.device.type == "cpu" and has() else x.dtype


class _Connect(torch.autograd.Function):
    """y = x[:, place]. The gradient of x goes to the columns that were read; that of the weights is the one of y = x
    weight^T at bits that are taken as -1 and 1: grad^T (2 x - 1)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, place: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(x, place.clone())  # the next forward writes over it
        return x.index_select(1, place)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, place = ctx.saved_tensors
        of_x = torch.zeros_like(x).index_add_(1, place, grad) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return of_x, None, None
        kind = _multiplied(x)
        return of_x, (grad.to(kind).t() @ (2 * x - 1).to(kind)).to(x.dtype), None


@final
class LUTLayer(nn.Module):
    """Truth tables of k inputs each: y_n = lookup(x at the connections of n, act(table_n)), see `functional.lookup`.

    A table's entries are real numbers. The activation turns them into values in [0, 1], the exact step into bits. So
    one table is one LUT of an FPGA, and the activation takes no time for a row.

    While there is a `weight`, the connections are learned: an input of a table reads the column with the greatest
    weight. The weights of all columns get the gradient of y = x weight^T, where bits count as -1 and 1. `settle`
    removes the weights and keeps the connections.

    Args:
        in_features: columns to choose from.
        out_features: tables.
        inputs: k of each table, 1 to 8; 6 is a LUT of most FPGAs.
        act: makes the activation of the entries.
        learned: learn the connections; else they are a random choice, which is even over the columns.

    Shape: [batch, ..., in_features] -> [batch, ..., out_features]; x are bits, or values in [0, 1] of another such
    layer. Behind `Patches` the same tables read every patch.

    Raises:
        ValueError: a size is not positive, or inputs are not 1 to 8; x of another shape. In eval mode on a CPU also
            values outside [0, 1].

    Source: learned connections and tables: Bacellar et al. 2024, "Differentiable Weightless Neural Networks".
    """

    connections: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        inputs: int = 6,
        act: Callable[[], nn.Module] = HTAF,
        *,
        learned: bool = True,
    ) -> None:
        super().__init__()
        if min(in_features, out_features) < 1 or not 1 <= inputs <= MOST_INPUTS:
            got = f"{in_features} -> {out_features} of {inputs}"
            raise ValueError(f"expected positive sizes and 1 to {MOST_INPUTS} inputs, got {got}")
        self.in_features, self.out_features, self.inputs = in_features, out_features, inputs
        self.table = nn.Parameter(torch.empty(out_features, 2**inputs).uniform_(-1, 1))
        self.act = act()
        wanted = out_features * inputs
        turns = [torch.randperm(in_features) for _ in range(math.ceil(wanted / in_features))]
        self.register_buffer("connections", torch.cat(turns)[:wanted])
        self.weight = nn.Parameter(0.01 * torch.randn(wanted, in_features)) if learned else None
        if self.weight is not None:
            self.connect()

    @torch.no_grad()
    def connect(self) -> None:
        """Let each input read the column with its greatest weight."""
        assert self.weight is not None
        weight = self.weight.detach()
        quick = weight.device.type == "cpu" and weight.dtype == torch.float32  # NumPy takes a seventh of the time
        self.connections.copy_(torch.from_numpy(weight.numpy().argmax(1)) if quick else weight.argmax(1))

    def settle(self) -> None:
        """Keep the connections as the last training step had them, and take their weights away."""
        self.weight = None

    def forward(self, x: Float[Tensor, "batch ... in_features"]) -> Float[Tensor, "batch ... out_features"]:
        if x.ndim < 2 or x.shape[-1] != self.in_features:
            raise ValueError(f"expected [batch, ..., {self.in_features}], got {list(x.shape)}")
        if not self.training and x.is_cpu and not torch.compiler.is_compiling() and is_plain((x,)) and x.numel():
            low, high = (bound.item() for bound in x.aminmax())
            if low < -ROUNDING or high > 1 + ROUNDING:
                raise ValueError(f"expected values in [0, 1], got {low:.6g} to {high:.6g}")
        learning = self.weight is not None and self.weight.requires_grad
        if learning and self.training:
            self.connect()
        if self.weight is None or not learning or not torch.is_grad_enabled():
            read = x.index_select(-1, self.connections)
        else:
            read = _Connect.apply(x.flatten(0, -2), self.weight, self.connections).unflatten(0, x.shape[:-1])
        return lookup(read.unflatten(-1, (self.out_features, self.inputs)), self.act(self.table).to(x.dtype))

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, inputs={self.inputs}, learned={self.weight is not None}"


@final
class Patches(nn.Module):
    """The square windows of images, each as a row of its own, so that a `LUTLayer` behind is a convolution.

    Args:
        shape: channels, height and width of the images.
        kernel: side of a window. stride: pixels from a window to the next one.

    Shape: [batch, C, H, W] or [batch, C H W] -> [batch, windows, C kernel kernel], windows row by row.

    Raises:
        ValueError: a size is not positive, or the window is larger than the image; x of another size.

    Example:
        >>> Patches((1, 8, 8), kernel=3, stride=2)(torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5, 9, 9])
    """

    index: Tensor

    def __init__(self, shape: tuple[int, int, int], kernel: int, stride: int = 1) -> None:
        super().__init__()
        if min(*shape, kernel, stride) < 1 or kernel > min(shape[1:]):
            raise ValueError(f"expected a window within the image, got {kernel} (stride {stride}) of {tuple(shape)}")
        self.shape, self.kernel, self.stride = tuple(shape), kernel, stride
        windows = torch.arange(math.prod(shape)).view(shape).unfold(1, kernel, stride).unfold(2, kernel, stride)
        rows = windows.permute(1, 2, 0, 3, 4).flatten(0, 1).flatten(1)
        self.size = tuple(rows.shape)
        self.register_buffer("index", rows.flatten(), persistent=False)

    def forward(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch windows values"]:
        if x.shape[1:].numel() != math.prod(self.shape):
            raise ValueError(f"expected [batch, {', '.join(map(str, self.shape))}], got {list(x.shape)}")
        return x.flatten(1).index_select(1, self.index).unflatten(1, self.size)

    def extra_repr(self) -> str:
        return f"{self.shape}, kernel={self.kernel}, stride={self.stride}"


@final
class GroupSum(nn.Module):
    """The sum of each of `groups` equal parts of the columns, divided by `divisor`.

    A learned divisor says how certain of a class a count is: on noisy labels a large one keeps the tables from
    learning the noise. `settle` rounds it to a power of two, which is no parameter. Call it before an export, and give
    `divisor` to the constructor of a module that loads the weights.

    Args:
        groups: outputs, such as classes, >= 1. divisor: > 0; a power of two keeps the sums exact.
        learned: begin with the divisor, and learn its logarithm.

    Shape: [batch, features] -> [batch, groups].

    Raises:
        ValueError: groups < 1 or a divisor that is not > 0; features are no multiple of the groups.

    Source: Petersen et al. 2022, "Deep Differentiable Logic Gate Networks".
    """

    def __init__(self, groups: int, divisor: float = 1.0, *, learned: bool = False) -> None:
        super().__init__()
        if groups < 1 or not divisor > 0:
            raise ValueError(f"expected groups >= 1 and a divisor > 0, got {groups} and {divisor}")
        self.groups, self.divisor = groups, divisor
        self.log2_divisor = nn.Parameter(torch.tensor(math.log2(divisor))) if learned else None

    def settle(self) -> None:
        """Round a learned divisor to a power of two, and learn it no more."""
        if self.log2_divisor is not None:
            self.divisor = 2.0 ** round(self.log2_divisor.item())
            self.log2_divisor = None

    def forward(self, x: Float[Tensor, "batch features"]) -> Float[Tensor, "batch groups"]:
        if x.ndim != 2 or x.shape[1] % self.groups:
            raise ValueError(f"expected [batch, a multiple of {self.groups}], got {list(x.shape)}")
        divisor = self.divisor if self.log2_divisor is None else self.log2_divisor.exp2()
        return x.unflatten(1, (self.groups, 1, -1)).sum((2, 3)) / divisor  # as an image, whose pixels are counted

    def extra_repr(self) -> str:
        learned = "" if self.log2_divisor is None else ", learned=True"
        return f"{self.groups}, divisor={self.divisor:g}{learned}"


@final
class LogicNet(nn.Module):
    """Thermometer -> truth tables, once per size -> counts: classes by the sums of equal groups of tables.

    A regression has `GROUPS` groups, whose sums a linear head weighs.

    Args:
        in_features: columns of the input.
        out_features: classes, or 1 for a regression.
        luts: tables of each layer; those of the last one are rounded up to a multiple of the groups.
        act: makes the activation of a layer's entries.
        thresholds: how many each column of the input has, see `Thermometer`; empty: the inputs are bits.
        exponent: columns are rounded to multiples of 2^-exponent in [-8, 8], so that integers of exponent + 5 bits are
            the whole input; None: they are read as they are.
        inputs: of each table.
        learned: whether each layer's connections are learned.
        divisor: of the sums; None: the power of two that is nearest to sqrt(tables a group) / 2, so that scores are of
            a softmax's size. learn_divisor: begin with it, see `GroupSum`.

    Shape: [batch, in_features] -> [batch, out_features]; images [batch, C, H, W] are read as rows of C H W columns.

    Raises:
        ValueError: there is no layer, a size is not positive, or thresholds are of another number of columns.
    """

    GROUPS = 16

    def __init__(
        self,
        in_features: int,
        out_features: int,
        luts: Sequence[int] = (1000,),
        act: Callable[[], nn.Module] = HTAF,
        *,
        thresholds: Sequence[int] = (),
        exponent: int | None = None,
        inputs: int = 6,
        learned: bool = True,
        divisor: float | None = None,
        learn_divisor: bool = False,
    ) -> None:
        super().__init__()
        self.exponent = exponent
        if not luts or min(in_features, out_features, *luts) < 1:
            raise ValueError(f"sizes must be positive, got {in_features} -> {tuple(luts)} -> {out_features}")
        if thresholds and len(thresholds) != in_features:
            raise ValueError(f"thresholds must be of {in_features} columns, got {len(thresholds)}")
        if thresholds and not any(thresholds):
            raise ValueError("expected a threshold in one column at least, got 0 in all")
        groups = out_features if out_features > 1 else self.GROUPS
        last = math.ceil(luts[-1] / groups)
        self.thermometer = Thermometer(thresholds) if any(thresholds) else nn.Identity()
        sizes = [getattr(self.thermometer, "out_features", in_features), *luts[:-1], last * groups]
        layers = (LUTLayer(a, b, inputs, act, learned=learned) for a, b in itertools.pairwise(sizes))
        self.layers = nn.Sequential(*layers)
        size = 2.0 ** round(math.log2(math.sqrt(last) / 2))
        self.sums = GroupSum(groups, size if divisor is None else divisor, learned=learn_divisor)
        self.head = nn.Identity() if out_features > 1 else nn.Linear(groups, 1)

    @torch.no_grad()
    def settle(self) -> None:
        """Keep the connections of all layers and the divisor, see `LUTLayer.settle` and `GroupSum.settle`.

        The head of a regression is rounded to weights of 12 bits, so that its sums are exact up to 8,192 tables.
        """
        for layer in self.layers:
            assert isinstance(layer, LUTLayer)
            layer.settle()
        self.sums.settle()
        if isinstance(self.head, nn.Linear):
            step = 2.0 ** math.ceil(math.log2(max(float(self.head.weight.abs().max()), 1e-30) / 2**11))
            for parameter, unit in ((self.head.weight, step), (self.head.bias, step / self.sums.divisor)):
                parameter.copy_((parameter / unit).round() * unit)

    def forward(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch out_features"]:
        return self.head(self.sums(self.layers(self.thermometer(self.rounded(x.flatten(1))))))

    def rounded(self, x: Float[Tensor, "batch in_features"]) -> Float[Tensor, "batch in_features"]:
        """The columns as the thermometer reads them."""
        return x if self.exponent is None else fixed_point(x, self.exponent, round(REACH * 2**self.exponent))

    @torch.no_grad()
    def place(self, x: Float[Tensor, "rows in_features"]) -> None:
        """Put the thresholds at quantiles of these rows' columns, as `Thermometer.place`.

        Where the rounding leaves fewer gaps between values than a column has thresholds, the last ones are beyond all.
        """
        if not isinstance(self.thermometer, Thermometer):
            return
        if not bool(x.isfinite().all()):
            raise ValueError("expected finite numbers in all columns, got others")
        placed = list[Tensor]()
        for column, count in zip(self.rounded(x).unbind(1), self.thermometer.counts, strict=True):
            gaps = min(count, len(column.unique()) - 1)
            found = midpoints(column, gaps) if gaps else column[:0]
            beyond = found.new_full((count - gaps,), float(column.abs().max()) + 2 * REACH)
            placed.append(torch.cat((found, beyond)))
        self.thermometer.threshold.copy_(torch.cat(placed))


@torch.no_grad()
def informative(x: Int64[Tensor, "rows columns"], y: Int64[Tensor, " rows"], count: int) -> list[int]:
    """The thresholds of levels that say most about the class together, one set for all columns.

    Greedy: each is the one that adds most to I(bits of a column; y), the mutual information, summed over the columns.

    Args:
        x: levels from 0 to n. y: classes from 0. count: 1 to n thresholds.

    Returns:
        Their places in ascending order: k stands for x >= k + 1.
    """
    levels, classes = int(x.max()) + 1, int(y.max()) + 1
    held = torch.zeros(x.shape[1], max(levels, count + 1) * classes)
    held.scatter_add_(1, (x * classes + y[:, None]).t(), torch.ones(x.shape[1], len(x)))
    above = held.unflatten(1, (-1, classes)).flip(1).cumsum(1).flip(1)  # rows of each class that reach a level

    def information(chosen: list[int]) -> float:
        ends = [0, *(k + 1 for k in sorted(chosen))]
        parts = torch.cat((above[:, ends], torch.zeros_like(above[:, :1])), 1)
        parts = parts[:, :-1] - parts[:, 1:]
        return float(torch.special.xlogy(parts, parts).sum() - torch.special.xlogy(parts.sum(2), parts.sum(2)).sum())

    found = list[int]()
    for _ in range(count):
        left = [k for k in range(above.shape[1] - 1) if k not in found]
        found.append(max(left, key=lambda k: information([*found, k])))
    return sorted(found)
