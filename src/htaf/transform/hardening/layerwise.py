"""Repair: fit every layer by least squares, so that it computes from bits what the smooth network computed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from htaf.core.activations import Heaviside
from htaf.core.contract import looks_smooth
from htaf.transform.convert.finding import inputs_of
from htaf.transform.convert.functional_sites import Model, duplicate
from htaf.transform.convert.modes import evaluating
from htaf.transform.grid import weight_of
from htaf.transform.hardening.report import (
    BINARY_WEIGHTS,
    Batches,
    InTime,
    LayerReport,
    Report,
    batch_count,
    expect_batches,
    few_rows,
    not_its_own,
    not_plain,
    wide,
)
from htaf.transform.hardening.watching import Call, Unit, observe, survey

STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)
EQUAL = 1e-6  # of the target's size: rounding
VALUES = 1 << 24  # of the patches of a convolution that are held at once
ROWS, MOST, FEWEST, LARGE = 4096, 40, 8, 1024  # rows: at least, and for each weight of an output, fewer of large ones


def repair(
    exact: Model,
    smooth: nn.Module,
    batches: Batches,
    *,
    strength: float | None = None,
) -> tuple[Model, Report]:
    """Correct every linear layer and convolution of a hardened network, so that its outputs are those before hardening.

    Layers are corrected in the order of their first run, each in closed form.

        W <- W + argmin_D |H D - (U - H W)|^2 + lambda |D|^2

    H: the layer's inputs in the exact network, all earlier repairs included. U: its outputs in the smooth network. If
    they are added to something (a residual connection), U is the smooth sum minus what is added in the exact network,
    so that the errors of the shortcut are corrected too. Means go into the bias, or into the norm after the layer. The
    running variance of a norm is scaled as the variance of its input, so that rates stay. Without bias and norm the
    mean is part of the fit. It needs no labels and no gradients. Layers with binary weights stay as they are, and the
    statistics of the norm after them change.

    Args:
        exact: `htaf.harden(smooth)`, or a network that is hard in part; not changed.
        smooth: the network before it was hardened; not changed. Any module with the same paths.
        batches: inputs as the training had them, (inputs, targets) or inputs alone; read again for each layer. About
            40 rows (images times pixels) for each weight of an output are enough: of more a sample is taken.
        strength: >= 0, lambda over the mean of the diagonal of H'H; None: for each layer the best of 0.001 to 1
            on half of the batches (the weights do not change if all are worse).

    Returns:
        The repaired network in eval mode, and the report, whose layers are those that were changed. A layer with fewer
        rows than inputs is named in its notes.

    Raises:
        ValueError: the two networks do not have the same layers in the same order, or were given the wrong way round;
            there are no batches; or strength < 0.
        TypeError: batches can be iterated only once, or are a single pair.

    Source: layer-wise reconstruction of quantised networks, Nagel et al. 2020, arXiv:2004.10568, here as a regression.
    """
    begin = time.perf_counter()
    if strength is not None and not strength >= 0:
        raise ValueError(f"expected strength >= 0, or None, got {strength}")
    first = inputs_of(expect_batches(batches))
    _expect_hardened(exact, smooth)
    net = duplicate(exact)
    with evaluating(net, smooth):
        units, others = survey(net, first), survey(smooth, first)
        _expect_same(units, others)
        # of a deep network that is hard at its end alone, most layers need not be looked at one by one
        equal = {a.name for a, b in zip(units, others, strict=True) if a.inputs == b.inputs and not (a.sums or b.sums)}
        done: list[LayerReport] = []
        notes: list[str] = []
        repairer = _Repairer(net, smooth, batches, batch_count(batches), strength)
        taken: set[str] = set()
        for unit in units:
            if unit.name in taken or unit.name in equal:
                continue
            if isinstance(batches, InTime) and batches.over():
                notes.append(f"no time was left for {unit.name} and what is behind it")
                break
            found = repairer.layer(unit, notes) if unit.is_layer else repairer.norm(unit)
            if found is not None:
                done.append(found)
                taken |= {unit.norm} if unit.norm else set()
    seconds = time.perf_counter() - begin
    return net.eval(), Report("repair", seconds, layers=tuple(done), notes=tuple(notes))


def _expect_hardened(exact: nn.Module, smooth: nn.Module) -> None:
    """Raises ValueError where a step is smooth in `exact` and exact in `smooth`."""
    other = dict(smooth.named_modules())
    for path, module in exact.named_modules():
        if looks_smooth(module) and isinstance(other.get(path), Heaviside):
            raise ValueError(
                f"expected repair(exact, smooth, ...), got the smooth network first: {path or 'the model'} is "
                f"{type(module).__name__} in the first network and exact in the second"
            )


def _expect_same(exact: Sequence[Unit], smooth: Sequence[Unit]) -> None:
    for a, b in zip(exact, smooth, strict=False):
        if (a.name, a.calls) != (b.name, b.calls):
            raise ValueError(
                f"expected exact and smooth to run the same layers, got {a.name} ({a.calls} calls) in exact where "
                f"smooth has {b.name} ({b.calls} calls)"
            )
    if len(exact) != len(smooth):
        raise ValueError(f"expected exact and smooth to run the same layers, got {len(exact)} and {len(smooth)}")


@dataclass
class _Repairer:
    """One repair under way: `net` is changed layer by layer."""

    net: nn.Module
    smooth: nn.Module
    batches: Batches
    count: int
    strength: float | None

    def layer(self, unit: Unit, notes: list[str]) -> LayerReport | None:
        """Repair a layer; None where it gives what it should, or cannot be repaired, which a note then says."""
        layer: Any = unit.module
        if isinstance(layer, BINARY_WEIGHTS):
            notes.append(f"{unit.name} is left as it is: its weights are binary")
            return None
        halves: list[Sums] = []
        for number, pairs in self._seen(unit):
            for exact, target in pairs:
                rows = _rows(layer, exact.output, self.count * unit.calls, number)
                for part, h in patches(layer, wide(exact.input), rows):
                    y = wide(by_rows(layer, exact.output)[rows[part]])
                    u = wide(by_rows(layer, target)[rows[part]])
                    u = torch.where(u.isnan(), y, u)  # a channel of gain 0, which tells nothing
                    if not halves and (why := self._unfit(layer, h, by_rows(layer, exact.output)[rows[part]])):
                        notes.append(f"{unit.name} is left as it is: {why}")
                        return None
                    g = groups_of(layer)
                    r, u = (v.reshape(len(v), g, -1).transpose(0, 1) for v in (u - y, u))
                    if not halves:
                        centred = _centred(unit)
                        h0 = h.mean(1, keepdim=True) if centred else torch.zeros_like(h[:, :1])
                        halves = [Sums(h0, u.mean(1, keepdim=True)) for _ in range(2)]
                    for half, chosen in enumerate(self._halves(exact.output, layer, rows[part], number)):
                        if chosen is None or bool(chosen.any()):
                            halves[half].add(*((v if chosen is None else v[:, chosen]) for v in (h, r, u)))
        if not halves:
            return None
        notes.extend(few_rows(unit.name, halves[0].n + halves[1].n, fan_in(layer), "what they were"))
        return self._solved(unit, halves)

    def norm(self, unit: Unit) -> LayerReport | None:
        """Move the statistics of a norm as those of its input have moved."""
        sums: Any = 0.0
        n = 0
        for _, pairs in self._seen(unit):
            for exact, target in pairs:
                a, b = (v.movedim(1, -1).reshape(-1, v.shape[1]).double() for v in (exact.input, target))
                sums = sums + torch.stack([a, b, a * a, b * b]).sum(1)
                n += len(a)
        if not n:
            return None
        a, b, aa, bb = sums / n
        _matched(unit.module, (a, aa - a * a), (b, bb - b * b))
        return LayerReport(unit.name, None, None, None, n, "running mean and variance")

    def _seen(self, unit: Unit) -> Iterator[tuple[int, list[tuple[Call, Tensor]]]]:
        """(number of the batch, its calls in the exact network with what they should give); nothing where they do."""
        for number, batch in enumerate(self.batches):
            x = inputs_of(batch)
            smooth = observe(self.smooth, x, unit)
            pairs = [(e, _target(unit, e, s)) for e, s in zip(observe(self.net, x, unit), smooth, strict=True)]
            if number == 0 and not any(_differs(e.output if unit.is_layer else e.input, t) for e, t in pairs):
                return
            yield number, pairs

    def _unfit(self, layer: Any, h: Tensor, y: Tensor) -> str:
        """Why the weights of a layer cannot be corrected, "" where they can."""
        if why := not_its_own(self.net, layer):
            return why
        w = weight_of(layer).to(h).reshape(h.shape[0], -1, h.shape[2]).transpose(1, 2)
        return not_plain(layer, (h @ w).transpose(0, 1).reshape(y.shape), y)

    def _halves(self, output: Tensor, layer: nn.Module, rows: Tensor, number: int) -> list[Tensor | None]:
        """Which rows belong to each half: batches by turns, of one batch its samples, of one sample its rows."""
        none = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        if self.count > 1:
            return [None, none] if number % 2 == 0 else [none, None]
        odd = rows // (max(1, row_count(layer, output) // len(output)) if len(output) > 1 else 1) % 2 == 1
        return [~odd, odd]

    def _solved(self, unit: Unit, halves: list[Sums]) -> LayerReport:
        layer: Any = unit.module
        whole = halves[0] + halves[1]
        halves = halves if all(half.n for half in halves) else [whole, whole]  # a single row
        moments = whole.centred() if _centred(unit) else whole.about_zero()
        strength = self.strength if self.strength is not None else _chosen(halves, _centred(unit))
        d = None if strength is None else ridge(moments[0], moments[1], strength)
        if d is not None:
            layer.weight += d.transpose(1, 2).reshape(layer.weight.shape).to(layer.weight)
        norm: Any = None if unit.norm is None else self.net.get_submodule(unit.norm)
        offset = whole.mean_residual(d).flatten()
        if layer.bias is not None:
            layer.bias += offset.to(layer.bias)
            offset = torch.zeros_like(offset)
        if norm is not None and unit.to_sum:
            norm.running_mean -= offset.to(norm.running_mean)
        elif norm is not None:  # what is left of the error shrinks the outputs, and rates with them
            w = layer.weight.reshape(len(moments[0]), -1, moments[0].shape[1]).to(moments[0])
            now, wanted = ((w @ moments[0]) * w).sum(2).flatten() / whole.n, moments[3].flatten() / whole.n
            mean = whole.mean_target().flatten()
            _matched(norm, (mean - offset, now), (mean, wanted))
        size = moments[3].sum()
        known = size > 0  # not of a single row, whose deviation from the mean is 0
        before, after = (
            (error(one, moments).sum().clamp(min=0) / size).sqrt().item() if known else 0.0 for one in (None, d)
        )
        return LayerReport(unit.name, before, after, strength, whole.n, "" if d is not None else "means alone")


def _centred(unit: Unit) -> bool:
    """Whether something can take up a constant offset of a layer's output."""
    return unit.module.bias is not None or unit.norm is not None or bool(unit.norms_of_sum)


def _target(unit: Unit, exact: Call, smooth: Call) -> Tensor:
    """What a call should give, NaN where nothing is known; of a norm its input in the smooth network."""
    if not unit.is_layer:
        return smooth.input
    if not unit.to_sum:
        return smooth.output
    assert smooth.sum is not None
    assert exact.other is not None
    return exact.back(smooth.sum - exact.other)


def _matched(norm: Any, now: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> None:
    """Move a norm's statistics so that inputs of mean and variance `now` give what those of `wanted` gave."""
    alive = (now[1] > 1e-6 * wanted[1]) & (wanted[1] > 0)
    ratio = torch.where(alive, now[1] / torch.where(alive, wanted[1], 1), 1)
    before = norm.running_var.to(ratio) + norm.eps
    after = (ratio * before).clamp(min=norm.eps)
    mean = now[0] - (wanted[0] - norm.running_mean.to(ratio)) * (after / before).sqrt()
    norm.running_mean.copy_(mean.to(norm.running_mean))
    norm.running_var.copy_((after - norm.eps).to(norm.running_var))


def _differs(x: Tensor, target: Tensor) -> bool:
    known = ~target.isnan()
    x, target = x[known], target[known]
    return bool(len(x) and (x - target).abs().max() > EQUAL * target.abs().max())


def _rows(layer: nn.Module, output: Tensor, outputs: int, number: int) -> Tensor:
    """Numbers of the rows of an output that are used: all, or a sample that is the same in each repair."""
    there, size = row_count(layer, output), fan_in(layer)
    enough = max(ROWS, MOST * size if size <= LARGE else FEWEST * size)
    wanted = -(-enough // outputs)
    if there <= wanted:
        return torch.arange(there, device=output.device)
    generator = torch.Generator().manual_seed(number)
    return torch.randperm(there, generator=generator)[:wanted].sort().values.to(output.device)


def _chosen(halves: Sequence[Sums], centred: bool) -> float | None:
    """The strength that, fitted to one half, errs least on the other; None where no change is better."""
    fitted, held = ((one.centred() if centred else one.about_zero()) for one in halves)
    size = held[3].clamp(min=1e-30)

    def score(d: Tensor | None) -> float:
        return (error(d, held) / size)[held[3] > 0].mean().item()

    best = min(
        (score(None if s is None else ridge(fitted[0], fitted[1], s)), i) for i, s in enumerate((None, *STRENGTHS))
    )
    return (None, *STRENGTHS)[best[1]]


# ---- least squares from sums over rows: no patch is kept ----


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
    around = layer._reversed_padding_repeated_twice  # of the constructor, by which PyTorch pads with other than zeros
    if layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
        around = [side for width in reversed(layer.padding) for side in (width, width)]
    if any(around):
        x = nn.functional.pad(x, around, mode="constant" if layer.padding_mode == "zeros" else layer.padding_mode)
    for i, (k, d, s) in enumerate(zip(layer.kernel_size, layer.dilation, layer.stride, strict=True)):
        x = x.unfold(2 + i, d * (k - 1) + 1, s)[..., ::d]
    return x.movedim(1, 1 + spatial)


class Sums:
    """Sums over rows of inputs h, residuals r and targets u, float64, about a fixed point; those of parts can be added.

    h: [groups, rows, fan_in]; r, u: [groups, rows, outputs]. Rows of 1,000s are multiplied in the dtype of h, which is
    exact enough once the point is near the mean.
    """

    def __init__(self, h0: Tensor, u0: Tensor) -> None:
        """The point, [groups, 1, fan_in] and [groups, 1, outputs]."""
        self.h0, self.u0, self.n = h0, u0, 0
        self.h = self.r = self.u = self.hh = self.hr = self.rr = self.uu = cast(Any, 0)

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
