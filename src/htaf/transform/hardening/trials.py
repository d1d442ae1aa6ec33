"""Find which steps of a trained network cost most: make each real, or give it a second level, and train shortly."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from htaf.core.contract import SmoothStep
from htaf.transform.convert import Site, conversion, harden, sites
from htaf.transform.convert.finding import inputs_of, module_of
from htaf.transform.convert.functional_sites import duplicate
from htaf.transform.convert.modes import evaluating, first_of, hooked
from htaf.transform.convert.transforms import put
from htaf.transform.convert.widths import fit_step, trained_step
from htaf.transform.hardening.judging import Judge, Loss, judge_by, usual_loss
from htaf.transform.hardening.report import Batches, Measure, batch_count, call, device_of, expect_batches, pair_of

Train = Callable[[nn.Module], Any]
RATE = 1e-3  # of the short training, falling to 0
CLOSED = 0.8  # of the distance to real activations: so much is most of it
VALUES = 1 << 16  # of a step, by which an activation is scaled to it


@dataclass(frozen=True)
class Change:
    """A change of a trained network, after a short training.

    paths: of the steps that were changed. real: they became the activations of before; else they got more levels.
    measure: after the training. gain: by how much that is better than without a change. work: share of the products
    of bits with weights that become products of real numbers, or that there are more of. seconds: wall time.
    """

    paths: tuple[str, ...]
    real: bool
    measure: float
    gain: float
    work: float
    seconds: float

    def __str__(self) -> str:
        what = f"real, {self.work:.0%} of the products" if self.real else f"more levels, {self.work:.0%} more products"
        return f"{', '.join(self.paths)}: {what}: {self.measure:.5g}, gain {self.gain:.3g}, {self.seconds:.1f} s"


@dataclass(frozen=True)
class Sensitivity:
    """What `sensitivity` found; print it, or `draw` it.

    name: what the measure is. trained: the network as it came. unchanged: after the short training alone. noise: by how
    much two of these differ. real: with all activations real. changes: of one step each, the largest gain first.
    keep: the fewest steps that win back most of what real activations would, for `replace(..., keep=)`; kept: their
    change. levels: the steps that gain by more levels within the budget, for `replace(..., levels=)`. notes: what
    was not tried.
    """

    name: str
    trained: float
    unchanged: float
    noise: float
    real: float | None
    changes: tuple[Change, ...]
    keep: tuple[str, ...]
    kept: Change | None
    levels: dict[str, int]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        real = "" if self.real is None else f", all activations real {self.real:.5g}"
        first = f"{self.name}: trained {self.trained:.5g}, trained on {self.unchanged:.5g}"
        lines = [f"{first}{real}, noise {self.noise:.2g}"]
        lines += [f"  {change}" for change in self.changes]
        lines += [f"  keep={list(self.keep)} wins back {self.kept.gain:.3g}"] if self.kept else []
        lines += [f"  levels={self.levels}"] if self.levels else []
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def draw(self) -> Any:
        """Return a `matplotlib.figure.Figure` of the gains, the largest on top; what is within the noise is grey."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 1 + 0.3 * len(self.changes)), layout="constrained")
        axes = figure.subplots()
        shown = self.changes[::-1]
        colours = ["tab:grey" if c.gain <= self.noise else "tab:orange" if c.real else "tab:blue" for c in shown]
        labels = [f"{', '.join(c.paths)} ({'real' if c.real else 'levels'})" for c in shown]
        axes.barh(range(len(shown)), [c.gain for c in shown], color=colours)
        axes.set_yticks(range(len(shown)), labels)
        axes.set_xlabel(f"gain of {self.name}")
        return figure


def sensitivity(
    model: nn.Module,
    batches: Batches,
    *,
    valid: Any = None,
    loss: Loss | None = None,
    measure: Measure | None = None,
    higher: bool | None = None,
    train: Train | None = None,
    steps: int = 100,
    levels: int = 2,
    budget: float = 1.5,
    seconds: float | None = None,
) -> Sensitivity:
    """Measure what each step of a trained network costs.

    It turns one step at a time back into the activation that it replaced, scaled and shifted to the step's values. Then
    it trains the network shortly, and measures it as an exact one. The gain compares with the same training without a
    change, which runs twice to see the noise. After that it makes the steps with the largest gains real together, until
    most of the distance to a network with real activations is won back. It also gives one step at a time more levels.

    Args:
        model: of `replace`, trained; not changed.
        batches: of the training part, as for `finish`.
        valid, loss, measure, higher: what decides, as for `finish`.
        train: trains a network shortly, in place: a tenth of your training, say. None: AdamW takes `steps` batches,
            with `loss` or the usual one.
        steps: how many batches AdamW takes.
        levels: how many levels a step gets in a try; 1: do not try.
        budget: so many times the products of bits with weights may `levels` of the result cost, of one level each 1.
        seconds: that all may take, about; what is not begun by then is named in the notes.

    Returns:
        The changes with their gains, and what to give `replace`.

    Raises:
        ValueError: the model did not come from `replace`, or holds no smooth step; without `train` the batches have no
            targets, or the usual loss does not fit them. TypeError: as of `finish`.

    Example:
        >>> found = htaf.sensitivity(net, [(x, y)], valid=(held, wanted))
        >>> net = htaf.replace(plain, example=x, keep=found.keep, levels=found.levels)
    """
    first, kinds = expect_batches(batches), {site.name: site.kind for site in conversion(model).replaced}
    found = {s.path: s for s in sites(model, batches) if s.calls and hasattr(s.module_type, "hardened")}
    if not found:
        raise ValueError("expected a network of htaf.replace with steps that run, got none")
    judge = judge_by(model, valid, loss, measure, higher)
    if train is None:
        x, y = pair_of(first)
        train = partial(_train, batches=batches, loss=loss or usual_loss(model, (x, y))[1], steps=steps)
    until = math.inf if seconds is None else time.perf_counter() + seconds
    return _Trials(model, judge, train, found, _seen(model, found, first), kinds, levels, until).run(budget)


def _train(net: nn.Module, batches: Batches, loss: Loss, steps: int) -> None:
    """AdamW over so many batches, from one that is drawn on."""
    optimizer = torch.optim.AdamW(net.parameters(), RATE)
    begin = int(torch.randint(batch_count(batches), ()))
    endless = itertools.chain.from_iterable(itertools.repeat(batches))
    for step, batch in enumerate(itertools.islice(endless, begin, begin + steps)):
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 + math.cos(math.pi * step / steps)) / 2
        x, y = pair_of(batch)
        optimizer.zero_grad()
        loss(call(net, x), y.to(device_of(net))).backward()
        optimizer.step()


def _seen(model: nn.Module, found: Mapping[str, Site], first: Any) -> dict[str, Tensor]:
    """What the steps at these paths read, some values each."""
    values: dict[str, Tensor] = {}

    def look(path: str, step: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = first_of(args, kwargs).detach().flatten()
        values.setdefault(path, x[:: 1 + len(x) // VALUES].clone())

    steps = {path: model.get_submodule(path) for path in found}
    handles = [s.register_forward_pre_hook(partial(look, path), with_kwargs=True) for path, s in steps.items()]
    with evaluating(model), hooked(handles):
        call(model, inputs_of(first))
    return values


class _Scaled(nn.Module):
    """An activation, scaled and shifted to the outputs of the step that it stands for, by least squares."""

    def __init__(self, activation: nn.Module, x: Tensor, y: Tensor) -> None:
        super().__init__()
        self.activation = activation.to(x.device)
        r = activation(x).detach()
        spread = float((r - r.mean()).square().mean())
        self.scale = float(((r - r.mean()) * y).mean()) / spread if spread else 1.0
        self.shift = float(y.mean() - self.scale * r.mean())

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.activation(x) + self.shift


@dataclass
class _Trials:
    """Changes of one trained network, each on a copy."""

    model: nn.Module
    judge: Judge
    train: Train
    found: dict[str, Site]
    seen: dict[str, Tensor]
    kinds: dict[str, str]
    levels: int
    until: float

    def run(self, budget: float) -> Sensitivity:
        base, again = (self.measured({}, seed) for seed in (0, 1))
        noise, paths = abs(base - again), tuple(self.found)
        singles = [one for path in paths if (one := self.change((path,), base))]
        whole = self.change(paths, base) if len(paths) > 1 else None
        finer = [one for path in paths if self.levels > 1 and (one := self.change((path,), base, real=False))]
        most = max((one.gain for one in [whole] if one), default=0)
        kept = self.fewest(sorted(singles, key=lambda one: -one.gain), base, noise, most)
        changes = tuple(sorted((*singles, *finer), key=lambda one: -one.gain))
        tried, wanted = Counter(one.paths for one in changes), 2 if self.levels > 1 else 1
        notes = tuple(f"{path}: no time was left" for path in paths if tried[path,] < wanted)
        if kept and len(kept.paths) == len(paths):
            kept, notes = None, (*notes, f"real activations in all steps win back {kept.gain:.3g}, none would be exact")
        shown = self.judge.shown
        return Sensitivity(
            self.judge.name, shown(self.judge(self.model)), shown(base), noise, whole and whole.measure, changes,
            kept.paths if kept else (), kept, self.within(finer, budget, noise), notes,
        )  # fmt: skip

    def measured(self, modules: Mapping[str, nn.Module], seed: int = 0) -> float:
        """The judge's number of a copy with these modules in place of steps, trained shortly and made exact."""
        net = duplicate(self.model)
        places = dict(net.named_modules(remove_duplicate=False))
        for path, module in modules.items():
            put(net, places, self.found[path], module)
        with torch.random.fork_rng(), torch.enable_grad():
            torch.manual_seed(seed)
            self.train(net.train())
        return self.judge(harden(net) if any(isinstance(m, SmoothStep) for m in net.modules()) else net)

    def change(self, paths: tuple[str, ...], base: float, *, real: bool = True) -> Change | None:
        """What becomes of these steps as real activations, or with more levels; None where no time is left."""
        begin = time.perf_counter()
        if begin >= self.until:
            return None
        found = self.measured({path: self.instead(path, real) for path in paths})
        products = sum(site.work for site in self.found.values()) or 1
        work = sum(self.found[path].work for path in paths) / products * (1 if real else self.levels - 1)
        return Change(paths, real, self.judge.shown(found), base - found, work, time.perf_counter() - begin)

    def instead(self, path: str, real: bool) -> nn.Module:
        """The module that takes the place of a step: the activation of before, or the step with more levels."""
        step, x = self.model.get_submodule(path), self.seen[path]
        if real:
            return _Scaled(module_of(self.kinds.get(path, "relu")), x, step(x).detach())
        made = trained_step(self.levels)
        made.threshold = float(getattr(step, "threshold", 0.0))
        fit_step(made, x)
        made.stretch = getattr(step, "stretch", 1.0)
        return made

    def fewest(self, singles: list[Change], base: float, noise: float, most: float) -> Change | None:
        """The fewest steps that, real, gain most of what all of them would; None where none gains beyond the noise."""
        best: Change | None = None
        most = max(most, *(one.gain for one in singles), 0.0) if singles else 0.0
        for number, one in enumerate(singles, 1):
            if one.gain <= noise or (best and best.gain >= CLOSED * most):
                break
            paths = tuple(path for other in singles[:number] for path in other.paths)
            made = one if number == 1 else self.change(paths, base)
            if made is None:
                break
            best = made if best is None or made.gain > best.gain else best
        return best

    def within(self, finer: list[Change], budget: float, noise: float) -> dict[str, int]:
        """The levels of the steps that gain most within a budget of products: those of the largest gain, or of the
        largest gain for their products, whichever gain more."""
        useful = [one for one in finer if one.gain > noise]
        best: list[Change] = []
        for rank in (lambda one: -one.gain, lambda one: -one.gain / max(one.work, 1e-9)):
            taken: list[Change] = []
            for one in sorted(useful, key=rank):
                if 1 + sum(other.work for other in (*taken, one)) <= budget + 1e-9:
                    taken.append(one)
            best = max(best, taken, key=lambda some: sum(one.gain for one in some))
        return {one.paths[0]: self.levels for one in best}
