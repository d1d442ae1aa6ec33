"""The operations of an integer program: what each takes, gives and computes.

Each is defined by its `run`, which is written to be read, not to be fast; every other form (packed, C, Verilog, ONNX)
is compared with it. Shapes are those of one row. The channels of images [C, H, W] are the third axis from the
end; those of rows [F], or of several [M, F], are the last one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int64

from htaf._ground.errors import HtafError

WIDEST = 2**62  # the greatest magnitude of a value, so that an int64 holds every sum
Array = np.ndarray
Pair = tuple[int, int]


class IntegerError(HtafError):
    """A network, program or file has no integer form, or is none."""


@dataclass(frozen=True)
class Value:
    """What an operation gives for one row: its shape, and the least and greatest number that it can hold."""

    shape: tuple[int, ...]
    low: int
    high: int

    @property
    def channels(self) -> int:
        return self.shape[channel_axis(self.shape)]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def channel_axis(shape: tuple[int, ...]) -> int:
    """From the end: -3 of images, -1 of rows."""
    return -3 if len(shape) >= 3 else -1


def by_channel(of: Array, shape: tuple[int, ...]) -> Array:
    """One number a channel, [C], so that it broadcasts over values of this shape."""
    return of.reshape(-1, 1, 1) if channel_axis(shape) == -3 else of


@dataclass(frozen=True)
class Op(ABC):
    """One operation. name: the module of the network that it computes, for messages and comments.

    Fields that are integers or tuples of these are kept as they are; arrays are integers, in C order, and are not
    written to.

    Raises:
        IntegerError: a field is of another kind, or does not fit the others.
    """

    name: str
    READS: ClassVar[tuple[str, ...]] = ("x",)

    def __post_init__(self) -> None:
        for one in fields(self):
            value, wanted = getattr(self, one.name), one.type
            if "np.ndarray" in str(wanted) and value is not None:
                if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
                    self.expect(False, f"integers in {one.name}", type(value).__name__)
                held = np.ascontiguousarray(value, np.int64)
                held.flags.writeable = False
                object.__setattr__(self, one.name, held)
            elif wanted == "int":
                self.expect(type(value) is int, f"an integer as {one.name}", value)
            elif wanted == "bool":
                self.expect(type(value) is bool, f"true or false as {one.name}", value)
            elif wanted in ("Pair", "tuple[int, ...]"):
                numbers = tuple(value) if isinstance(value, (list, tuple)) else (None,)
                self.expect(all(type(number) is int for number in numbers), f"integers as {one.name}", value)
                self.expect(wanted != "Pair" or len(numbers) == 2, f"two integers as {one.name}", value)
                object.__setattr__(self, one.name, numbers)

    def expect(self, holds: bool, expected: str, got: object) -> None:
        if not holds:
            raise IntegerError(f"{self.name or type(self).__name__}: expected {expected}, got {got}")

    def expect_channels(self, given: Value, **arrays: Array) -> None:
        """That each array has an entry a channel."""
        for name, array in arrays.items():
            self.expect(len(array) == given.channels, f"{given.channels} channels in {name}", len(array))

    @property
    def reads(self) -> tuple[int, ...]:
        """The numbers of the values that it takes."""
        return tuple(getattr(self, name) for name in self.READS)

    @abstractmethod
    def value(self, *given: Value) -> Value:
        """What it gives for what it takes; the range is proved from the arrays.

        Raises:
            IntegerError: shapes that do not fit.
        """

    @abstractmethod
    def run(self, *given: Int64[Array, "rows ..."]) -> Int64[Array, "rows ..."]:
        """Its integers for those of some rows."""


@dataclass(frozen=True)
class Lookup(Op):
    """y[c, i, j] = table[c, x[c, i, j]]: what a pixel, 0 to 255, is to the network. table: [C, 256]."""

    x: int
    table: np.ndarray

    def value(self, *given: Value) -> Value:
        (x,) = given
        self.expect(self.table.ndim == 2 and self.table.shape[1] == 256, "a table [channels, 256]", self.table.shape)
        self.expect_channels(x, table=self.table)
        self.expect(x.low >= 0 and x.high <= 255, "values in 0 to 255", (x.low, x.high))
        return Value(x.shape, int(self.table.min()), int(self.table.max()))

    def run(self, *given: Array) -> Array:
        (x,) = given
        return self.table[by_channel(np.arange(len(self.table)), x.shape[1:]), x]


@dataclass(frozen=True)
class Take(Op):
    """y[..., i] = x[..., index[i]]: of rows, as the columns of a thermometer."""

    x: int
    index: np.ndarray

    def value(self, *given: Value) -> Value:
        (x,) = given
        self.expect(channel_axis(x.shape) == -1, "rows", x.shape)
        inside = self.index.ndim == 1 and len(self.index) > 0
        inside = inside and int(self.index.min()) >= 0 and int(self.index.max()) < x.channels
        self.expect(inside, f"places in 0 to {x.channels - 1}", self.index.tolist()[:8])
        return Value((*x.shape[:-1], len(self.index)), x.low, x.high)

    def run(self, *given: Array) -> Array:
        return given[0][..., self.index]


@dataclass(frozen=True)
class Shift(Op):
    """clip(x * 2 ** shift, least, most) by channel; shifts to the right round half to even. shift: [C]."""

    x: int
    shift: np.ndarray
    least: int
    most: int

    def value(self, *given: Value) -> Value:
        (x,) = given
        self.expect_channels(x, shift=self.shift)
        self.expect(self.least <= self.most, "least <= most", (self.least, self.most))
        low, high, up = int(self.shift.min()), int(self.shift.max()), max(abs(x.low), abs(x.high))
        self.expect(low >= -62 and up << max(high, 0) <= WIDEST, "shifts that an int64 holds", (low, high))
        ends = [int(v) for end in (x.low, x.high) for v in shifted(np.full(len(self.shift), end), self.shift)]
        return Value(x.shape, *(min(max(end, self.least), self.most) for end in (min(ends), max(ends))))

    def run(self, *given: Array) -> Array:
        (x,) = given
        return shifted(x, by_channel(self.shift, x.shape[1:])).clip(self.least, self.most)


def shifted(x: Array, shift: Array) -> Array:
    """x * 2 ** shift, rounded half to even."""
    left, right = np.maximum(shift, 0), np.maximum(-shift, 0)
    floor = x >> right
    rest, half = x - (floor << right), (np.int64(1) << right) >> 1
    up = (rest > half) | ((rest == half) & (floor & 1 == 1))
    return (floor + (up & (right > 0))) << left


@dataclass(frozen=True)
class Conv(Op):
    """A convolution of integers, zeros around the image. weight: [O, I, kernel height, kernel width]; bias: [O] or
    none."""

    x: int
    weight: np.ndarray
    bias: np.ndarray | None
    stride: Pair
    padding: Pair
    dilation: Pair

    @property
    def reach(self) -> Pair:
        """How many rows and columns of pixels a sum spans."""
        high, wide = self.weight.shape[2:]
        return (high - 1) * self.dilation[0] + 1, (wide - 1) * self.dilation[1] + 1

    def value(self, *given: Value) -> Value:
        (x,) = given
        self.expect(len(x.shape) >= 3, "images", x.shape)
        self.expect(self.weight.ndim == 4, "weights of 4 axes", self.weight.shape)
        self.expect(self.weight.shape[1] == x.channels, f"{self.weight.shape[1]} channels", x.channels)
        self.expect(min(*self.stride, *self.dilation) >= 1 and min(self.padding) >= 0, "a stride from 1", self.stride)
        sizes = zip(x.shape[-2:], self.padding, self.reach, self.stride, strict=True)
        size = [(n + 2 * p - reach) // s + 1 for n, p, reach, s in sizes]
        self.expect(min(size) >= 1, "an image as large as the kernel", x.shape)
        around = Value(x.shape, min(x.low, 0), max(x.high, 0)) if any(self.padding) else x
        low, high = sums(self.weight.reshape(len(self.weight), -1), self.bias, around)
        return Value((*x.shape[:-3], len(self.weight), *size), low, high)

    def run(self, *given: Array) -> Array:
        (x,) = given
        images = x.reshape(-1, *x.shape[-3:])
        (up, left), (down, right) = self.padding, self.reach
        kind = exact(self.weight, x)
        padded = np.pad(images.astype(kind), ((0, 0), (0, 0), (up, up), (left, left)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (down, right), (2, 3))
        windows = windows[:, :, :: self.stride[0], :: self.stride[1], :: self.dilation[0], :: self.dilation[1]]
        windows = windows.transpose(0, 2, 3, 1, 4, 5)
        flat = self.weight.astype(kind).reshape(len(self.weight), -1)
        y = windows.reshape(*windows.shape[:3], flat.shape[1]) @ flat.T
        y = y.astype(np.int64) if self.bias is None else y.astype(np.int64) + self.bias
        return y.transpose(0, 3, 1, 2).reshape(*x.shape[:-3], *y.shape[3:], *y.shape[1:3])


def exact(weight: Array, x: Array) -> Any:
    """The numbers in which sums of x over all but the first axis of the weights are exact in any order: floats where
    these hold every part of a sum, as that is faster."""
    most = int(np.abs(weight).reshape(len(weight), -1).sum(1).max(initial=0)) * max(int(np.abs(x).max(initial=0)), 1)
    return np.float32 if most < 2**24 else np.float64 if most < 2**53 else np.int64


def sums(weight: Array, bias: Array | None, x: Value) -> tuple[int, int]:
    """The least and the greatest sum of inputs in [x.low, x.high], over all rows of the weights."""
    plus, minus = np.maximum(weight, 0).sum(1), np.minimum(weight, 0).sum(1)
    constant = [0] * len(weight) if bias is None else bias.tolist()
    ends = [*zip(plus.tolist(), minus.tolist(), constant, strict=True)]
    low = min(p * x.low + m * x.high + b for p, m, b in ends)
    high = max(p * x.high + m * x.low + b for p, m, b in ends)
    return low, high


@dataclass(frozen=True)
class Linear(Op):
    """y = weight @ x + bias, of rows. weight: [O, F]; bias: [O] or none."""

    x: int
    weight: np.ndarray
    bias: np.ndarray | None

    def value(self, *given: Value) -> Value:
        (x,) = given
        fits = self.weight.ndim == 2 and channel_axis(x.shape) == -1 and self.weight.shape[1] == x.channels
        self.expect(fits, f"rows of {self.weight.shape[-1]}", x.shape)
        self.expect(self.bias is None or len(self.bias) == len(self.weight), "a bias a row of the weights", self.bias)
        return Value((*x.shape[:-1], len(self.weight)), *sums(self.weight, self.bias, x))

    def run(self, *given: Array) -> Array:
        kind = exact(self.weight, given[0])
        y = (given[0].astype(kind) @ self.weight.T.astype(kind)).astype(np.int64)
        return y if self.bias is None else y + self.bias


@dataclass(frozen=True)
class Steps(Op):
    """y = least + unit * (number of k with sign[c] * x >= thresholds[c, k]): a step, or several.

    thresholds: [C, L]; sign: [C], 1 or -1. One threshold with least 0 and unit 1 gives bits; least -1 and unit 2 gives
    -1 and 1.
    """

    x: int
    thresholds: np.ndarray
    sign: np.ndarray
    least: int
    unit: int

    def value(self, *given: Value) -> Value:
        (x,) = given
        self.expect(self.thresholds.ndim == 2, "thresholds [channels, levels]", self.thresholds.shape)
        self.expect_channels(x, thresholds=self.thresholds, sign=self.sign)
        self.expect(bool((np.abs(self.sign) == 1).all()), "signs 1 or -1", self.sign.tolist()[:8])
        self.expect(self.unit >= 1, "a unit from 1", self.unit)
        return Value(x.shape, self.least, self.least + self.unit * self.thresholds.shape[1])

    def run(self, *given: Array) -> Array:
        (x,) = given
        signed = x * by_channel(self.sign, x.shape[1:])
        reached = sum((signed >= by_channel(t, x.shape[1:])).astype(np.int64) for t in self.thresholds.T)
        return self.least + self.unit * np.asarray(reached)


@dataclass(frozen=True)
class Pool(Op):
    """The greatest number of each window of an image, or the least where smallest[c] is 1; the border never counts.

    smallest: [C], 0 or 1. Of bits it is OR, or AND.
    """

    x: int
    kernel: Pair
    stride: Pair
    padding: Pair
    smallest: np.ndarray

    def value(self, *given: Value) -> Value:
        (x,) = given
        self.expect(len(x.shape) >= 3, "images", x.shape)
        self.expect_channels(x, smallest=self.smallest)
        self.expect(min(*self.stride, *self.kernel) >= 1 and min(self.padding) >= 0, "a kernel from 1", self.kernel)
        half = all(2 * p <= k for p, k in zip(self.padding, self.kernel, strict=True))
        self.expect(half, "a padding of half the kernel at most", self.padding)
        sizes = zip(x.shape[-2:], self.padding, self.kernel, self.stride, strict=True)
        size = [(n + 2 * p - k) // s + 1 for n, p, k, s in sizes]
        self.expect(min(size) >= 1, "an image as large as the kernel", x.shape)
        return Value((*x.shape[:-2], *size), x.low, x.high)

    def run(self, *given: Array) -> Array:
        (x,) = given
        sign = by_channel(1 - 2 * self.smallest, x.shape[1:])
        width = [(0, 0)] * (x.ndim - 2) + [(p, p) for p in self.padding]
        padded = np.pad(x * sign, width, constant_values=-WIDEST - 1)
        windows = np.lib.stride_tricks.sliding_window_view(padded, self.kernel, (-2, -1))
        return windows[..., :: self.stride[0], :: self.stride[1], :, :].max((-2, -1)) * sign


@dataclass(frozen=True)
class Add(Op):
    """y = (a << left) + (b << right) by channel: a residual stream, whose parts have units that are powers of two.
    left, right: [C], from 0."""

    a: int
    b: int
    left: np.ndarray
    right: np.ndarray
    READS: ClassVar[tuple[str, ...]] = ("a", "b")

    def value(self, *given: Value) -> Value:
        a, b = given
        self.expect(a.shape == b.shape, f"two values of one shape, {a.shape}", b.shape)
        self.expect_channels(a, left=self.left, right=self.right)
        held = min(self.left.min(), self.right.min()) >= 0 and max(self.left.max(), self.right.max()) < 62
        self.expect(bool(held), "shifts in 0 to 61", (self.left.tolist()[:8], self.right.tolist()[:8]))
        shifts = [*zip(self.left.tolist(), self.right.tolist(), strict=True)]
        low = min((a.low << i) + (b.low << j) for i, j in shifts)
        return Value(a.shape, low, max((a.high << i) + (b.high << j) for i, j in shifts))

    def run(self, *given: Array) -> Array:
        a, b = given
        shape = a.shape[1:]
        return (a << by_channel(self.left, shape)) + (b << by_channel(self.right, shape))


@dataclass(frozen=True)
class LUT(Op):
    """Truth tables of bits, of rows: y[n] = table[n, sum of x[index[n, i]] 2^i]. index: [N, k], k from 1 to 8; table:
    [N, 2^k], 0 or 1."""

    x: int
    index: np.ndarray
    table: np.ndarray

    def value(self, *given: Value) -> Value:
        (x,) = given
        self.expect(channel_axis(x.shape) == -1 and (x.low, x.high) == (0, 1), "rows of bits", (x.shape, x.low, x.high))
        self.expect(self.index.ndim == 2 and 1 <= self.index.shape[1] <= 8, "1 to 8 inputs each", self.index.shape)
        sizes = (len(self.index), 2 ** self.index.shape[1])
        self.expect(self.table.shape == sizes and self.table.size > 0, f"tables {list(sizes)}", self.table.shape)
        inside = int(self.index.min()) >= 0 and int(self.index.max()) < x.channels
        self.expect(inside, f"places in 0 to {x.channels - 1}", self.index.reshape(-1).tolist()[:8])
        self.expect(bool(((self.table == 0) | (self.table == 1)).all()), "tables of 0 and 1", "others")
        return Value((*x.shape[:-1], len(self.index)), 0, 1)

    def run(self, *given: Array) -> Array:
        address = (given[0][..., self.index] << np.arange(self.index.shape[1])).sum(-1)
        return self.table[np.arange(len(self.table)), address]


@dataclass(frozen=True)
class Count(Op):
    """Sums over axes, from the end: -1 and -2 are the pixels of an image. A mean is a count whose divisor is in the
    unit of the outputs."""

    x: int
    axes: tuple[int, ...]

    def value(self, *given: Value) -> Value:
        (x,) = given
        inside = len({*self.axes}) == len(self.axes) and all(-len(x.shape) <= axis < 0 for axis in self.axes)
        self.expect(inside and 0 < len(self.axes) < len(x.shape), f"axes of {x.shape} from the end", self.axes)
        count = math.prod(x.shape[axis] for axis in self.axes)
        kept = tuple(n for place, n in enumerate(x.shape) if place - len(x.shape) not in self.axes)
        return Value(kept, x.low * count, x.high * count)

    def run(self, *given: Array) -> Array:
        return given[0].sum(self.axes)


@dataclass(frozen=True)
class View(Op):
    """The same numbers in another shape, in C order."""

    x: int
    shape: tuple[int, ...]

    def value(self, *given: Value) -> Value:
        (x,) = given
        self.expect(
            min(self.shape, default=0) >= 1 and math.prod(self.shape) == x.size, f"{x.size} numbers", self.shape
        )
        return Value(self.shape, x.low, x.high)

    def run(self, *given: Array) -> Array:
        return given[0].reshape(-1, *self.shape)


OPS: dict[str, type[Op]] = {
    one.__name__: one for one in (Lookup, Take, Shift, Conv, Linear, Steps, Pool, Add, LUT, Count, View)
}


def plain(op: Op) -> dict[str, Any]:
    """The fields that are no arrays."""
    return {one.name: value for one in fields(op) if not isinstance(value := getattr(op, one.name), np.ndarray)}


def arrays(op: Op) -> dict[str, Array]:
    """The fields that are arrays."""
    return {one.name: value for one in fields(op) if isinstance(value := getattr(op, one.name), np.ndarray)}
