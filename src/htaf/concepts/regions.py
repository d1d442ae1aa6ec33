"""Where in an image a concept comes from: maps of its pre-activation, exact behind average pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from htaf.concepts.codes import ConceptError

Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels; right and bottom are outside
CELLS = 16  # to a side of the grid on which a box is looked for
LEVEL = 0.5  # of the highest value: what belongs to a box
TOLERANCE = 1e-3  # of the values, for float32: beyond it a function is not affine

_MEANS: set[Any] = {torch.mean, Tensor.mean}
_POOLS: set[Any] = {
    F.adaptive_avg_pool2d, F.avg_pool2d, F.adaptive_avg_pool1d, F.avg_pool1d,
    torch.adaptive_avg_pool1d, torch.avg_pool1d,
}  # fmt: skip


@final
@dataclass(frozen=True, eq=False)
class Map:
    """How much each place of an image adds to the pre-activation of a concept, whose bit is 1 where that is >= 0.

    Attributes:
        concept: its number.
        values: float64 [h, w], rows of places from the top, which sum to the pre-activation.
        pre_activation: of the image.
        constant: the part of the pre-activation that comes from no place (biases and means of norms). It is in equal
            shares in `values`: so a value is the pre-activation of an image that looks everywhere as it does there,
            divided by the number of places.
        size: (height, width) of the image in pixels.
    """

    concept: int
    values: Float[np.ndarray, "h w"]
    pre_activation: float
    constant: float
    size: tuple[int, int]

    def box(self) -> Box | None:
        """Return the responsible region: a box around the highest value and what is joined to it at half its height or
        more.

        Finer maps are averaged to at most 16 places a side before. None where no value is positive.
        """
        from scipy import ndimage

        h, w = (min(CELLS, side) for side in self.values.shape)
        cells = resized(self.values, (h, w))
        if not cells.max() > 0:
            return None
        joined = ndimage.label(cells >= LEVEL * cells.max(), np.ones((3, 3)))[0]  # pyright: ignore[reportIndexIssue]
        ys, xs = np.nonzero(joined == joined.flat[int(cells.argmax())])
        (height, width), end = self.size, 1 - 1e-9
        return (
            int(xs.min() * width / w), int(ys.min() * height / h),
            int((xs.max() + 1) * width / w + end), int((ys.max() + 1) * height / h + end),
        )  # fmt: skip


@dataclass(frozen=True)
class Pooling:
    """The average that ends a network: behind it all is affine.

    Attributes:
        call: which of the averages that a forward takes, counted from 0.
        dims: of its input, over which it averages.
        grid: (h, w), the places of the map.
    """

    call: int
    dims: tuple[int, ...]
    grid: tuple[int, int]


@final
class Regions:
    """Exact maps of a model's concepts.

    Whether a model ends in average pooling is found by running it: the last average over places of a forward is taken
    for that pooling, if the pre-activations depend on the image through its input alone, and as an affine function of
    its output. So any backbone will do: convolutions, tokens, channels last, a projection and a batch norm behind.

    With a [channels, P] = the input of the pooling, g [channels] = the gradient of pre-activation z_j with respect to
    its output, which is the same for all images, and z_j(0) = what is left where a is 0, the value of place p is

        (sum over channels of g a[:, p]  +  z_j(0)) / P.

    Args:
        model: `htaf.ICBM`, smooth or hardened, in eval mode; or a module with `pre_activations`, images -> [n, C],
            `channels` and `image_size`.

    Attributes:
        pooling: the average pooling.

    Raises:
        ConceptError: a model that does not end in average pooling; a model in training mode.

    Example:
        >>> regions = Regions(model)
        >>> found = regions.of(images, [3, 7])[0][1]  # image 0, concept 7
        >>> abs(found.values.sum() - found.pre_activation) < 1e-4
        True
    """

    def __init__(self, model: nn.Module) -> None:
        if model.training:
            raise ConceptError("expected a model in eval mode, got one in training mode: call model.eval()")
        self.model: Any = model
        parameter = next(model.parameters(), None)
        self.device = torch.device("cpu") if parameter is None else parameter.device
        draw = torch.Generator().manual_seed(0)
        images = torch.randn(2, self.model.channels, *self.model.image_size, generator=draw).to(self.device)
        self.pooling = self._pooling(images[:1])
        self._gradient, self._constant = self._affine(images[:1])
        self._exact(images, range(len(self._constant)))

    def of(self, images: Float[Tensor, "n c h w"], concepts: Sequence[int]) -> list[list[Map]]:
        """Return a map for each image and each concept.

        Args:
            images: as the model takes them, normalised; on any device. All go through the network at once.
            concepts: their numbers.

        Returns:
            a list for each image, with a map for each concept in their order.

        Raises:
            ConceptError: no such concept, or images of another shape.
        """
        expected = (self.model.channels, *self.model.image_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            raise ConceptError(
                f"expected images [n, channels, height, width] of {list(expected)}, got {list(images.shape)}"
            )
        if bad := [j for j in concepts if not 0 <= j < len(self._constant)]:
            raise ConceptError(f"expected concepts from 0 to {len(self._constant) - 1}, got {bad[0]}")
        if not len(images) or not len(concepts):
            return [[] for _ in images]
        values, before = self._exact(images.to(self.device), concepts)
        height, width = images.shape[2:]
        constants = self._constant[list(concepts)].tolist()
        return [
            [
                Map(int(j), values[i, k], float(before[i, k]), constants[k], (height, width))
                for k, j in enumerate(concepts)
            ]
            for i in range(len(images))
        ]

    @torch.no_grad()
    def _exact(self, images: Tensor, concepts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return values [n, concepts, h, w] and pre-activations [n, concepts]. Raises ConceptError: other sums."""
        with _Averages(self.pooling.call, lambda before: before) as seen:
            z = _double(self.model.pre_activations(images))[:, list(concepts)]
        if z.isnan().any():
            raise ConceptError("expected numbers as pre-activations, got NaN")
        at = self._by_place(seen.replaced)
        gradient, constant = self._gradient[list(concepts)], self._constant[list(concepts)]
        values = (torch.einsum("ncp,jc->njp", at, gradient) + constant[:, None]) / at.shape[2]
        size = torch.einsum("nc,jc->nj", at.abs().mean(2), gradient.abs()) + constant.abs() + 1e-30
        if ((values.sum(2) - z).abs() / size).max() > TOLERANCE:
            raise ConceptError(
                "no exact map: what follows the last average is not affine, as a layer norm or an activation is not, "
                "or the concepts do not depend on the image through the last average alone"
            )
        return values.unflatten(2, self.pooling.grid).numpy(), z.numpy()

    def _by_place(self, x: Tensor) -> Float[Tensor, "n channels places"]:
        """Return a pooling's input, in float64, its places last."""
        dims = self.pooling.dims
        return _double(x).movedim(dims, tuple(range(-len(dims), 0))).reshape(len(x), -1, math.prod(self.pooling.grid))

    @torch.no_grad()
    def _pooling(self, image: Tensor) -> Pooling:
        """Return the last average over places. Raises ConceptError: there is none."""
        with _Averages() as seen:
            self.model.pre_activations(image)
        over = [(call, shape, dims) for call, (shape, dims) in enumerate(seen.calls) if dims]
        if not over:
            raise ConceptError("no exact map: the network takes no average over places")
        call, shape, dims = over[-1]
        grid = _grid(shape, dims, tuple(self.model.image_size))
        if grid is None:
            shown = [shape[d] for d in dims]
            raise ConceptError(f"no exact map: its last average is over {shown} values, which are no grid of places")
        return Pooling(call, dims, grid)

    def _affine(self, image: Tensor) -> tuple[Float[Tensor, "concepts channels"], Float[Tensor, " concepts"]]:
        """Return gradients with respect to the average's output, and the pre-activations where its input is 0."""

        def leaf(before: Tensor) -> Tensor:
            torch.set_grad_enabled(True)  # from here on, until the block below ends
            return torch.zeros_like(before).requires_grad_()

        with _Averages(self.pooling.call, leaf) as seen, torch.no_grad():
            z: Tensor = self.model.pre_activations(image)
        with torch.enable_grad():
            every = (torch.autograd.grad(one, seen.replaced, retain_graph=True)[0] for one in z[0])
            return torch.cat([self._by_place(found).sum(2) for found in every]), _double(z)[0]


def resized(values: Float[np.ndarray, "h w"], size: tuple[int, int]) -> Float[np.ndarray, "height width"]:
    """Resize a grid of values to another grid over the same image: each value is spread evenly over its area, so the
    sum stays."""
    rows, columns = (_overlap(*sides) for sides in zip(values.shape, size, strict=True))
    return rows @ values.astype(np.float64) @ columns.T


def _overlap(cells: int, pixels: int) -> Float[np.ndarray, "pixels cells"]:
    """Return shares of `cells` equal pieces of a line that lie in each of `pixels` equal pieces; columns sum to 1."""
    to, own = np.arange(pixels)[:, None] * cells, np.arange(cells)[None] * pixels
    inside = np.minimum(to + cells, own + pixels) - np.maximum(to, own)
    return inside.clip(min=0) / pixels


class _Averages(TorchFunctionMode):
    """Sees the averages that a forward takes; the input of one of them can be replaced.

    Attributes:
        calls: of each average the shape of its input and the dimensions of places, none where it is over others.
        replaced: what took the place of the input.
    """

    replaced: Tensor

    def __init__(self, call: int = -1, instead: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.call, self.instead = call, instead
        self.calls: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func not in _MEANS and func not in _POOLS:
            return func(*args, **kwargs)
        given: Tensor = args[0] if args else kwargs.pop("input")
        rest = args[1:]
        self.calls.append((tuple(given.shape), _places(func, given, rest, kwargs)))
        if len(self.calls) - 1 == self.call and self.instead is not None:
            given = self.replaced = self.instead(given)
        return func(given, *rest, **kwargs)


def _places(func: Any, given: Tensor, rest: Sequence[Any], kwargs: dict[str, Any]) -> tuple[int, ...]:
    """Return the dimensions that are averaged, in [batch, channels and places]; none where the average is not over
    places."""
    if func in _POOLS:
        many = 2 if "2d" in func.__name__ else 1
        return tuple(range(given.ndim - many, given.ndim)) if given.ndim == many + 2 else ()
    dims = kwargs.get("dim", rest[0] if rest else None)
    if dims is None or given.ndim not in (3, 4):
        return ()
    dims = tuple(sorted(d % given.ndim for d in ([dims] if isinstance(dims, int) else dims)))
    return dims if 0 not in dims and len(dims) == given.ndim - 2 and len(set(dims)) == len(dims) else ()


def _grid(shape: tuple[int, ...], dims: tuple[int, ...], size: tuple[int, int]) -> tuple[int, int] | None:
    """Return rows and columns of the places; None where a number of tokens is no grid of the image's proportions."""
    if len(dims) == 2:
        return shape[dims[0]], shape[dims[1]]
    height, width = size
    rows = max(1, round(math.sqrt(shape[dims[0]] * height / width)))
    columns = shape[dims[0]] // rows
    return (rows, columns) if rows * columns == shape[dims[0]] and rows * width == columns * height else None


def _double(x: Tensor) -> Tensor:
    return x.detach().cpu().double()
