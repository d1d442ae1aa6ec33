"""What the layers over packed bits share: their geometry, and what becomes of their sums.

Bits of images lie as uint8 [batch, height, width, 8 words], 64 channels a word, channel 8 i + j being bit j of byte i;
unused bits of the last word are 0. Floats beside them lie as [batch, height, width, channels].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor


def row_bytes(channels: int) -> int:
    """Bytes of one pixel: whole words of 64 channels."""
    return (channels + 63) // 64 * 8


WIDEST = 1 << 16  # padding, stride, dilation: what is computed from them stays small in 64 bits
LARGEST = 1 << 31  # channels, outputs, a kernel
EXACT = 1 << 24  # up to here float32 holds every integer


class Geometry(NamedTuple):
    """A convolution. A linear layer is one of 1 x 1 over one image of one row: bits [1, 1, rows, bytes]."""

    channels: int
    outputs: int
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def check(self) -> None:
        """Raises ValueError where no convolution is described."""
        steps = (*self.stride, *self.dilation)
        numbers = (self.channels, self.outputs, self.groups, *self.kernel, *steps)
        if max(*steps, *self.padding) > WIDEST or max(numbers) > LARGEST:
            raise ValueError(f"expected padding, stride and dilation of at most {WIDEST}, got {self}")
        whole = min(numbers) >= 1 and not (self.channels % self.groups or self.outputs % self.groups)
        if not whole or min(self.padding) < 0:
            raise ValueError(f"expected sizes >= 1, padding >= 0, channels and outputs in whole groups, got {self}")

    def out_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the output.

        Raises:
            ValueError: the kernel is larger than the padded image.
        """
        found = []
        for size, k, s, p, d in zip(
            (height, width), self.kernel, self.stride, self.padding, self.dilation, strict=True
        ):
            reach = d * (k - 1) + 1
            if size + 2 * p < reach:
                raise ValueError(f"expected images of at least {reach} pixels with padding, got {size} + 2 * {p}")
            found.append((size + 2 * p - reach) // s + 1)
        return found[0], found[1]


class Epilogue(NamedTuple):
    """What becomes of the sums of a layer: y = scale sum + shift + residual; bit = lower <= y <= upper.

    scale, shift, lower, upper: float32 [outputs]; wide: float64 [2, outputs], in place of scale and shift, which are
    then computed in float64 and rounded once; residual: float32 [batch, height, width, outputs], dense. None: left
    out; without lower and upper (both or none) there are no bits. `keep`: y itself is wanted. A batch norm and step
    after integer sums is an interval of these sums: one end is infinite, which one the sign of gamma says.
    """

    scale: Tensor | None = None
    shift: Tensor | None = None
    residual: Tensor | None = None
    lower: Tensor | None = None
    upper: Tensor | None = None
    keep: bool = True
    wide: Tensor | None = None


# y and the bits of a layer, None where they are not wanted
Outputs = tuple[Tensor | None, Tensor | None]


@runtime_checkable  # for beartype
class Bound(Protocol):
    """A layer with its weights and the constants of its epilogue."""

    def __call__(self, bits: Tensor, residual: Tensor | None = None) -> Outputs: ...


Bind = Callable[[Any, Geometry, Epilogue], Bound]  # of weights as a kernel prepared them


def bind_of(forward: Callable[..., Outputs]) -> Bind:
    """`bind` of formulas: the layer with its weights and constants; the residual is an argument of the call."""

    def bind(weights: Any, geometry: Geometry, epilogue: Epilogue) -> Bound:
        def call(bits: Tensor, residual: Tensor | None = None) -> Outputs:
            return forward(bits, weights, geometry, epilogue._replace(residual=residual))

        return call

    return bind


def forward_of(bind: Bind) -> Callable[[Tensor, Any, Geometry, Epilogue], Outputs]:
    """`forward` of compiled kernels, of one call: bits [batch, height, width, bytes] -> y and its bits, or None.

    It raises TypeError or ValueError for tensors whose type or shape is not that of `Geometry` and `Epilogue`.
    """

    def forward(bits: Tensor, weights: Any, geometry: Geometry, epilogue: Epilogue) -> Outputs:
        return bind(weights, geometry, epilogue._replace(residual=None))(bits, epilogue.residual)

    return forward
