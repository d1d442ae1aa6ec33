"""How far the exact network can be from the smooth one: the paper's bound, sharper ones, and the measured gap."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from htaf.core.contract import SmoothStep

ROWS = 8192  # rows at a time
AFFINE = (nn.Linear, nn.BatchNorm1d, nn.Dropout, nn.Flatten, nn.Identity)  # in eval mode, on matrices


@dataclass(frozen=True)
class GapLayer:
    """One smooth step s of the network, H the exact one.

    path: module path. width: its neurons.
    eps: the least eps with |s(h) - H(h)| <= eps for |h| >= eps (`htaf_paper.bounds.achieved_eps`); the largest of all.
    density: C of the paper's condition, max over neurons of P(|h_j| < eps) / eps, on the smooth network's h.
    difference: mean over rows and neurons of |exact network's bit - smooth network's output|.
    flipped: share of the bits in which the exact network differs from H of the smooth one's pre-activations.
    undecided: share of the bits that `certified` cannot exclude to differ; flipped <= undecided.
    """

    path: str
    width: int
    eps: float
    density: float
    difference: float
    flipped: float
    undecided: float


@dataclass(frozen=True)
class GapBound:
    """Mean over rows of |exact output - smooth output| and what it is at most, each [outputs].

    measured: the gap. It is <= triangle <= certified; with one hidden layer triangle = certified <= by_neuron <= paper.
    triangle: sum_j |W_j| mean |bit_j - smooth_j|, over the bits that the exact network has.
    certified: the same with the largest difference that the smooth network alone allows, see `dhn_gap_bound`.
    by_neuron: sum_j |W_j| (eps + P(|h_j| < eps) / 2); None for more than one hidden layer.
    paper: n ||W||_inf (1 + C) eps, the paper's theorem; None for more than one hidden layer, or more behind it.
    layers: in order.
    """

    measured: tuple[float, ...]
    triangle: tuple[float, ...]
    certified: tuple[float, ...]
    by_neuron: tuple[float, ...] | None
    paper: tuple[float, ...] | None
    layers: tuple[GapLayer, ...]


@torch.no_grad()
def dhn_gap_bound(model: nn.Module, x: Tensor) -> GapBound:
    """Bounds of the gap between a smooth network and its exact one, over the rows x, in float64.

    One hidden layer, E over the rows: E|f - g| <= sum_j |W_j| E|H(h_j) - s(h_j)| (triangle inequality). Each mean is at
    most eps + P(|h_j| < eps) / 2, as the difference is at most eps for |h| >= eps and 1/2 elsewhere. The paper's
    n ||W||_inf (1 + C) eps is larger by the largest weight for all, the largest P for all and a factor 2 of it.

    More layers: the step has no Lipschitz constant, so no product of norms holds. `certified` is by induction, for each
    row. Let D be bounds of |bit - smooth output| in one layer. Then the next layer's pre-activations differ by at most
    r = |W| D. Where r <= |h| the exact network has the bit H(h), so the difference is |H(h) - s(h)|; else it is at most
    max(s(h), 1 - s(h)), the new D. After the last step the gap is at most |W| D. (Proof: triangle inequality, twice.)

    Args:
        model: a chain of Linear, BatchNorm1d, Dropout, Flatten, Identity and smooth steps that are not bipolar, such as
            `htaf.models.mlp.MLP`; anything without smooth steps may come before the first Linear. It is not changed.
        x: rows as the model takes them, [rows, ...], finite.

    Raises:
        ValueError: no rows or not finite ones, no smooth step, or another kind of network.
    """
    if len(x) == 0 or not torch.isfinite(x).all():
        raise ValueError(f"expected rows of finite numbers, got {'others' if len(x) else 'none'}")
    smooth = copy.deepcopy(model).double().eval()
    if x.is_floating_point():
        x = x.double()
    chain = _chain(smooth, x[:2])
    places = [place for place, (_, module) in enumerate(chain) if isinstance(module, SmoothStep)]
    found: dict[int, _Sums] = {}
    gap, rows = torch.zeros(()), len(x)
    for part in x.split(ROWS):
        values, output = _into(smooth, chain[0][1], part)
        bits, radius = values, torch.zeros_like(values)
        for place, (path, module) in enumerate(chain):
            h, exact_h, values = values, bits, module(values)
            if not isinstance(module, SmoothStep):
                bits, radius = module(bits), _passed(module, radius)
                continue
            own, bits, radius = (h >= 0).double(), (exact_h >= 0).double(), radius * (1 + 1e-9)  # of rounding
            undecided = torch.where(h >= 0, h < radius, -h <= radius) & (radius > 0)
            radius = torch.where(undecided, torch.maximum(values, 1 - values), (own - values).abs())
            sums = found.setdefault(place, _Sums(path, module, h.shape[1]))
            sums.add(h.abs() < sums.eps, (bits - values).abs(), bits != own, undecided, radius)
        if not torch.allclose(values, output, rtol=1e-9, atol=1e-9):
            raise ValueError(f"expected a chain of layers, got {type(model).__name__}, which does more than its layers")
        gap = gap + (bits - values).abs().sum(0)
    last, tail = found[places[-1]], [module for _, module in chain[places[-1] + 1 :]]
    layers = tuple(found[place].layer(rows) for place in places)
    by_neuron = paper = None
    if len(places) == 1:
        by_neuron = _numbers(_through(tail, last.eps + last.worst * last.near / rows))
        heads = [module for module in tail if isinstance(module, nn.Linear | nn.BatchNorm1d)]
        if len(heads) == 1 and isinstance(heads[0], nn.Linear):
            (layer,) = layers
            paper = _numbers(layer.width * heads[0].weight.abs().amax(1) * (1 + layer.density) * layer.eps)
    return GapBound(
        measured=_numbers(gap / rows),
        triangle=_numbers(_through(tail, last.difference / rows)),
        certified=_numbers(_through(tail, last.radius / rows)),
        by_neuron=by_neuron,
        paper=paper,
        layers=layers,
    )


class _Sums:
    """Of one step, sums over the rows by neuron."""

    def __init__(self, path: str, step: nn.Module, width: int) -> None:
        zero = torch.zeros(1, width, dtype=torch.float64)
        low, high = zero, zero + 0.5
        for _ in range(60):  # s rises and eps falls short of 1 - s(eps) below the one crossing
            middle = (low + high) / 2
            over = torch.maximum(1 - step(middle), step(-middle)) > middle
            low, high = torch.where(over, middle, low), torch.where(over, high, middle)
        at_zero = step(zero)
        self.path, self.eps, self.worst = path, high[0], torch.maximum(at_zero, 1 - at_zero)[0]
        self.near, self.difference, self.flipped, self.undecided, self.radius = (zero[0] for _ in range(5))

    def add(self, near: Tensor, difference: Tensor, flipped: Tensor, undecided: Tensor, radius: Tensor) -> None:
        self.near = self.near + near.double().sum(0)
        self.difference = self.difference + difference.sum(0)
        self.flipped = self.flipped + flipped.double().sum(0)
        self.undecided = self.undecided + undecided.double().sum(0)
        self.radius = self.radius + radius.sum(0)

    def layer(self, rows: int) -> GapLayer:
        return GapLayer(
            path=self.path,
            width=len(self.eps),
            eps=self.eps.max().item(),
            density=(self.near / rows / self.eps).max().item(),
            difference=self.difference.mean().item() / rows,
            flipped=self.flipped.mean().item() / rows,
            undecided=self.undecided.mean().item() / rows,
        )


def _chain(model: nn.Module, x: Tensor) -> list[tuple[str, nn.Module]]:
    """Its layers in order of call, from the first Linear on."""
    called: list[tuple[str, nn.Module]] = []
    leaves = [(path, module) for path, module in model.named_modules() if not any(module.children())]
    hooks = [
        module.register_forward_pre_hook(lambda module, _, path=path: called.append((path, module)))
        for path, module in leaves
    ]
    model(x)
    for hook in hooks:
        hook.remove()
    first = next((place for place, (_, module) in enumerate(called) if isinstance(module, nn.Linear)), None)
    if first is None:
        raise ValueError(f"expected a Linear layer in {type(model).__name__}, got none that runs")
    for place, (path, module) in enumerate(called):
        smooth = isinstance(module, SmoothStep)
        if smooth and place > first and not module.bipolar:
            continue
        if smooth or (place > first and not isinstance(module, AFFINE)):
            what = "bipolar " * (smooth and module.bipolar) + type(module).__name__
            raise ValueError(
                f"expected Linear, BatchNorm1d, Dropout, Flatten, Identity and smooth steps with outputs in [0, 1] "
                f"after a Linear, got {what} at {path or 'the top'}"
            )
    if not any(isinstance(module, SmoothStep) for _, module in called):
        raise ValueError(f"expected a smooth step in {type(model).__name__}, got none that runs")
    return called[first:]


def _into(model: nn.Module, layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """What a layer takes when the model runs on x, and the model's output."""
    taken: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: taken.append(inputs[0]))
    output = model(x)
    hook.remove()
    return taken[0], output


def _passed(module: nn.Module, radius: Tensor) -> Tensor:
    """What an affine layer makes of |differences| of its inputs, at most: [rows, features]."""
    if isinstance(module, nn.Linear):
        return radius @ module.weight.abs().T
    if isinstance(module, nn.BatchNorm1d):
        assert module.running_var is not None
        scale = 1 if module.weight is None else module.weight.abs()
        return radius * scale / (module.running_var + module.eps).sqrt()
    return radius


def _through(tail: list[nn.Module], difference: Tensor) -> Tensor:
    difference = difference[None]
    for module in tail:
        difference = _passed(module, difference)
    return difference[0]


def _numbers(values: Tensor) -> tuple[float, ...]:
    return tuple(values.tolist())
