"""Corrections of a layer's weights by ridge regression, from sums over rows: no patch is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

VALUES = 1 << 24  # of patches at once


def row_count(layer: nn.Module, output: Tensor) -> int:
    """Rows of an output: one for each value of a channel."""
    channels: int = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels  # pyright: ignore
    return output.numel() // channels


def fan_in(layer: Any) -> int:
    """Weights that one output is made with."""
    return layer.weight[0].numel()


def groups_of(layer: Any) -> int:
    """1 of a linear layer."""
    return getattr(layer, "groups", 1)


def by_rows(layer: nn.Module, x: Tensor) -> Tensor:
    """Something of a layer's output's shape as [rows, channels]."""
    if isinstance(layer, nn.Linear):
        return x.reshape(-1, x.shape[-1])
    spatial = layer.weight.ndim - 2  # pyright: ignore
    x = x if x.ndim == spatial + 2 else x.unsqueeze(0)
    return x.movedim(1, -1).reshape(-1, x.shape[1])


def patches(layer: Any, x: Tensor, rows: Tensor) -> Iterator[tuple[Tensor, Float[Tensor, "groups n fan_in"]]]:
    """What those rows of the output are made of, in pieces: (numbers in `rows`, patches)."""
    size = max(1, VALUES // (fan_in(layer) * groups_of(layer)))
    if isinstance(layer, nn.Linear):
        flat = x.reshape(-1, x.shape[-1])
        for part in torch.arange(len(rows), device=x.device).split(size):
            yield part, flat[rows[part]].unsqueeze(0)
        return
    view = _windows(layer, x)
    n, spatial, groups = len(view), layer.weight.ndim - 2, layer.groups
    out = view.shape[1 : 1 + spatial]
    for part in torch.arange(len(rows), device=x.device).split(size):
        place = torch.unravel_index(rows[part], (n, *out))
        yield part, view[place].reshape(len(part), groups, -1).transpose(0, 1)


def _windows(layer: Any, x: Tensor) -> Tensor:
    """A view [n, *positions, channels, *kernel] of a convolution's padded input."""
    spatial = layer.weight.ndim - 2
    x = x if x.ndim == spatial + 2 else x.unsqueeze(0)
    sizes, dilation, stride = layer.kernel_size, layer.dilation, layer.stride
    if layer.padding == "valid":
        sides = [(0, 0)] * spatial
    elif layer.padding == "same":
        whole = [d * (k - 1) for d, k in zip(dilation, sizes, strict=True)]
        sides = [(w // 2, w - w // 2) for w in whole]
    else:
        sides = [(p, p) for p in layer.padding]
    around = [side for pair in reversed(sides) for side in pair]
    if any(around):
        x = nn.functional.pad(x, around, mode="constant" if layer.padding_mode == "zeros" else layer.padding_mode)
    x = x.contiguous()
    steps, out = x.stride()[2:], []
    for length, k, d, s in zip(x.shape[2:], sizes, dilation, stride, strict=True):
        out.append((length - d * (k - 1) - 1) // s + 1)
    strides = [t * s for t, s in zip(steps, stride, strict=True)], [t * d for t, d in zip(steps, dilation, strict=True)]
    return x.as_strided(
        [len(x), *out, x.shape[1], *sizes], [x.stride(0), *strides[0], x.stride(1), *strides[1]], x.storage_offset()
    )


class Sums:
    """Sums over rows of inputs h, residuals r and targets u, float64, about a fixed point; those of parts can be added.

    h: [groups, rows, fan_in]; r, u: [groups, rows, outputs]. Rows of 1,000s are multiplied in the dtype of h, which is
    exact enough once the point is near the mean.
    """

    def __init__(self, h0: Tensor, u0: Tensor) -> None:
        """The point, [groups, 1, fan_in] and [groups, 1, outputs]."""
        self.h0, self.u0, self.n = h0, u0, 0
        self.h: Any = 0
        self.r: Any = 0
        self.u: Any = 0
        self.hh: Any = 0
        self.hr: Any = 0
        self.rr: Any = 0
        self.uu: Any = 0

    def add(self, h: Tensor, r: Tensor, u: Tensor) -> None:
        """Some rows more."""
        h, u = h - self.h0, u - self.u0
        ht = h.transpose(1, 2)
        values = {"h": h.sum(1), "r": r.sum(1), "u": u.sum(1), "hh": ht @ h, "hr": ht @ r}
        values |= {"rr": r.square().sum(1), "uu": u.square().sum(1)}
        self.n += h.shape[1]
        for name, value in values.items():
            setattr(self, name, getattr(self, name) + _double(value))

    def __add__(self, other: Sums) -> Sums:
        both = Sums(self.h0, self.u0)
        both.n = self.n + other.n
        for name in ("h", "r", "u", "hh", "hr", "rr", "uu"):
            setattr(both, name, getattr(self, name) + getattr(other, name))
        return both

    def centred(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """hh, hr, rr and uu about the means."""
        h, r, n = self.h, self.r, self.n
        hh = self.hh - h.unsqueeze(2) * h.unsqueeze(1) / n
        hr = self.hr - h.unsqueeze(2) * r.unsqueeze(1) / n
        return hh, hr, self.rr - r * r / n, self.uu - self.u * self.u / n

    def about_zero(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """hh, hr and rr about zero; uu about its mean."""
        h0, n = _double(self.h0[:, 0]), self.n
        h = self.h + n * h0
        hh = self.hh + h.unsqueeze(2) * h0.unsqueeze(1) + h0.unsqueeze(2) * self.h.unsqueeze(1)
        hr = self.hr + h0.unsqueeze(2) * self.r.unsqueeze(1)
        return hh, hr, self.rr, self.uu - self.u * self.u / n

    def mean_target(self) -> Tensor:
        """Mean of u, [groups, outputs]."""
        return self.u / self.n + _double(self.u0[:, 0])

    def mean_residual(self, d: Tensor | None) -> Tensor:
        """Mean of r - h d, [groups, outputs]."""
        h = (self.h / self.n + _double(self.h0[:, 0])).unsqueeze(1)
        return self.r / self.n - (h @ d)[:, 0] if isinstance(d, Tensor) else self.r / self.n


def ridge(hh: Tensor, hr: Tensor, strength: float) -> Float[Tensor, "groups fan_in outputs"]:
    """D = argmin |h D - r|^2 + lambda |D|^2, lambda = strength times the mean of the diagonal of hh, a group each.

    A group whose inputs are all constant gets 0.
    """
    scale = hh.diagonal(dim1=1, dim2=2).mean(1)
    eye = torch.eye(hh.shape[1], dtype=hh.dtype, device=hh.device)
    strength = max(strength, 1e-12)
    while True:
        weight = torch.where(scale > 0, strength * scale, 1.0)[:, None, None]
        factor, failed = torch.linalg.cholesky_ex(hh + weight * eye)
        if not bool(failed.any()):
            return torch.cholesky_solve(hr, factor) * (scale > 0)[:, None, None]
        strength *= 10  # rounding made it indefinite


def error(d: Tensor | None, moments: Sequence[Tensor]) -> Float[Tensor, "groups outputs"]:
    """|r - h d|^2 from the sums hh, hr and rr; of d = 0 rr."""
    hh, hr, rr = moments[:3]
    return rr if not isinstance(d, Tensor) else (rr - 2 * (d * hr).sum(1) + (d * (hh @ d)).sum(1)).clamp(min=0)


def _double(x: Tensor) -> Tensor:
    return (x.cpu() if x.device.type == "mps" else x).double()
