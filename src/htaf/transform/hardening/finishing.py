"""The end of a training: harden the network, then try each repair and keep it if a measure is better."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from htaf._ground.errors import first_line
from htaf.core.activations import Heaviside, StraightThrough
from htaf.core.contract import SmoothStep
from htaf.transform.convert import harden
from htaf.transform.convert.finding import inputs_of
from htaf.transform.convert.functional_sites import Model, duplicate
from htaf.transform.convert.modes import evaluating, first_of, hooked
from htaf.transform.hardening.heads import refit_head
from htaf.transform.hardening.judging import Judge, Loss, judge_by
from htaf.transform.hardening.layerwise import repair
from htaf.transform.hardening.report import (
    OF_MEASURE,
    Batches,
    InTime,
    Measure,
    Report,
    call,
    expect_batches,
    is_pair,
    measured_by,
)
from htaf.transform.hardening.watching import is_norm

Make = Callable[[nn.Module], tuple[nn.Module, Report]]
STEP_ERRORS = (ValueError, TypeError, torch.linalg.LinAlgError)  # pyright: ignore[reportPrivateImportUsage]


@dataclass(frozen=True)
class TriedStep:
    """A step that was tried on an exact network.

    name: of the step. seconds: wall time, the measure included. before, after: the measure. kept: whether the network
    keeps the change; False if nothing changed. report: of the step itself. left_out: the error, if the step could not
    run; then there is no `after`.
    """

    name: str
    seconds: float
    before: float
    after: float | None = None
    kept: bool = False
    report: Report | None = None
    left_out: str = ""

    def __str__(self) -> str:
        if self.left_out:
            return f"{self.name}: left out: {self.left_out}"
        change = f"{self.before:.5g} -> {self.after:.5g}, {self.seconds:.1f} s"
        return f"{self.name}: {'kept' if self.kept else 'not kept'}: {change}"

    def shown_by(self, judge: Judge) -> TriedStep:
        """The same with measures of their own sign."""
        return replace(
            self, before=judge.shown(self.before), after=None if self.after is None else judge.shown(self.after)
        )

    def of_loss(self) -> str:
        """In words, where the measure is the loss on the validation part of a run."""
        if self.left_out:
            return str(self)
        kept = "" if self.kept else ", not kept"
        return f"{self.name}: validation loss {self.before:.4f} -> {self.after:.4f}{kept}"

    def entry(self) -> dict[str, Any]:
        """As records have it: name, before and kept, with after and the report, or with the error that left it out."""
        found = {"name": self.name, "before": self.before, "kept": self.kept}
        if self.report is None:
            return found | {"error": self.left_out}
        return found | {"after": self.after, "report": asdict(self.report)}


@dataclass(frozen=True)
class Finish:
    """What `finish` did: every step, and the measure of the trained, the hardened and the finished network.

    name: what the measure is. noise: by how much it differs from call to call. reference: the measure of the network to
    compare with. seconds: wall time of everything. notes: what makes the measure doubtful, and what to try next.
    """

    trained: float
    hardened: float
    measure: float
    steps: tuple[TriedStep, ...]
    notes: tuple[str, ...] = ()
    name: str = "measure"
    noise: float = 0.0
    reference: float | None = None
    seconds: float = 0.0

    def __str__(self) -> str:
        first = f"{self.name}: trained {self.trained:.5g}, hardened {self.hardened:.5g}, finished {self.measure:.5g}"
        first += "" if self.reference is None else f", reference {self.reference:.5g}"
        first += f", {self.seconds:.1f} s"
        return "\n".join([first, *(f"  {step}" for step in self.steps), *(f"  note: {note}" for note in self.notes)])


def finish(
    model: Model,
    batches: Batches,
    *,
    valid: Any = None,
    loss: Loss | None = None,
    measure: Measure | None = None,
    higher: bool | None = None,
    reference: nn.Module | None = None,
    seconds: float | None = None,
) -> tuple[Model, Finish]:
    """Harden a trained network, then refit its norms, layers and head to the bits, and keep what is better.

    It runs `recalibrate`, `repair`, `recalibrate` and `refit_head` in turn, each on the network that was kept before.
    `recalibrate` needs a norm after a step, and runs again only if `repair` was kept. `repair` needs steps that gave
    values between 0 and 1 until the end of the training. `refit_head` needs batches with targets.

    Give `valid`, whose loss decides, or a `measure`. Do not give test data, because they would choose the network.

    Args:
        model: with smooth steps, trained; not changed.
        batches: of the training part, not augmented: (inputs, targets), or inputs alone; a list or a `DataLoader`.
        valid: held-out (inputs, targets), or batches of these.
        loss: of outputs and targets of `valid`. None: the cross-entropy of class codes and of targets that are 0 and 1,
            the squared error of other floats.
        measure: a function from a network to a number. It is called with networks in eval mode, without gradients. If
            two calls on one network differ, a change must gain more than that difference, and a warning says so.
        higher: whether a higher measure is better: True of an accuracy, an IoU, a return, False of an error.
        reference: a network to compare with, such as the same one trained with ReLU.
        seconds: about how long all may take. Steps that have not begun by then are left out; the longest ends early.

    Returns:
        The exact network in eval mode, of the type of `model`, and what was tried, with the measures; print it.

    Raises:
        ValueError: the model holds no smooth step, it cannot take the batches, the usual loss does not fit its outputs,
            or the measure of the exact network is not a finite number.
        TypeError: batches can be iterated only once, or are a single pair; neither or both of `valid` and `measure`; a
            measure without `higher`; a measure that is no number.

    Example: exact, report = finish(net, [(x, y)], valid=(held, wanted))
    """
    begin = time.perf_counter()
    if seconds is not None and not seconds > 0:
        raise ValueError(f"expected seconds > 0, or None, got {seconds}")
    first = expect_batches(batches)
    exact = harden(model).eval()
    try:
        normed = _has_norms_behind_steps(exact, first)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{_WANTED}, got {_shown(first)}, which the model cannot take: {error}") from error
    judge = judge_by(exact, valid, loss, measure, higher)
    trained, hardened = judge(model), judge(exact)
    if not math.isfinite(hardened):
        raise ValueError(f"expected a measure that is finite for the exact network, got {judge.shown(hardened)}")
    noise = judge.noise(exact, hardened)
    until = None if seconds is None else begin + seconds
    taken: list[TriedStep] = []
    steps = _steps(model, batches, judge, taken, normed=normed, targets=_has_targets(first), until=until)
    net, _ = kept_where_better(exact, steps, judge, taken.append, before=hardened, noise=noise, until=until)
    last = next((one.after for one in reversed(taken) if one.kept and one.after is not None), hardened)
    if not _has_targets(first):
        taken.append(TriedStep("refit_head", 0.0, last, left_out=f"{_WANTED}, got {_shown(first)}"))
    compared = None if reference is None else judge(reference)
    doubts = (*_doubts(noise, hardened), *_doubts_of_data(batches, first, valid))
    notes = (*doubts, *_hints(last, {"trained": trained, "reference": compared}, noise))
    for doubt in doubts:
        warnings.warn(doubt, stacklevel=2)
    shown = [judge.shown(value) for value in (trained, hardened, last)]
    tried = tuple(one.shown_by(judge) for one in taken)
    compared = None if compared is None else judge.shown(compared)
    spent = time.perf_counter() - begin
    return cast(Model, net), Finish(shown[0], shown[1], shown[2], tried, notes, judge.name, noise, compared, spent)


def _steps(
    model: nn.Module,
    batches: Batches,
    judge: Judge,
    taken: list[TriedStep],
    *,
    normed: bool,
    targets: bool,
    until: float | None,
) -> Iterator[tuple[str, Make]]:
    """What is tried in turn; `taken` holds what was. In the time that is left."""
    smooth = any(isinstance(m, SmoothStep) and not isinstance(m, StraightThrough) for m in model.modules())
    some = batches if until is None else InTime(batches, until)
    norms = "recalibrate", partial(recalibrate, batches=some)
    if normed:
        yield norms
    if smooth:
        yield "repair", partial(repair, smooth=model, batches=some)
    if normed and smooth and taken[-1].kept:
        yield norms
    if targets:
        left = None if until is None else until - time.perf_counter()
        yield "refit_head", partial(refit_head, batches=batches, measure=judge, seconds=left)


_WANTED = "expected batches (inputs, targets), targets a tensor, and several inputs a tuple, ((a, b), targets)"
_ROUNDING = 1e-6  # of a measure: what sums in another order may change
_FAR = 0.05  # of the measure of another network, or of its distance to 1: so much worse is far


def _has_targets(batch: Any) -> bool:
    return isinstance(batch, (tuple, list)) and len(batch) == 2 and isinstance(batch[1], Tensor)


def _has_norms_behind_steps(exact: nn.Module, first: Any) -> bool:
    with evaluating(exact):
        return bool(norms_behind_steps(exact, inputs_of(first)))


def _doubts(noise: float, found: float) -> tuple[str, ...]:
    """What speaks against a measure."""
    if noise <= _ROUNDING * abs(found):
        return ()
    return (
        f"the measure of one network differs by {noise:.3g} from call to call: no step is kept that is not better by "
        "more; fix its seed, or measure on more rows",
    )


def _doubts_of_data(batches: Batches, first: Any, valid: Any) -> tuple[str, ...]:
    """What speaks against held-out data: that they are the training data, as far as the same tensors tell it."""
    same = valid is not None and valid is batches
    if not same and isinstance(valid, (tuple, list)):
        held = valid if is_pair(valid) else valid[0]
        x, other = (one[0] if isinstance(one, (tuple, list)) else one for one in (first, held))
        same = isinstance(x, Tensor) and isinstance(other, Tensor) and x.data_ptr() == other.data_ptr()
    return ("valid holds training data, so a change that overfits is kept: give rows held out of it",) if same else ()


def _hints(found: float, others: Mapping[str, float | None], noise: float) -> tuple[str, ...]:
    """What to try where the exact network is far behind others; measures are lower where better."""
    far = [name for name, other in others.items() if other is not None and found - other > noise + _FAR * abs(other)]
    if not far:
        return ()
    return (
        f"far behind the {' and the '.join(far)} network: htaf.replace(..., keep='first') often wins most of it back; "
        "htaf.sensitivity(net, batches, ...) tells which steps cost most in this one",
    )


def _shown(batch: object) -> str:
    """What a batch is, and of a mapping, which may hold its targets, what to do."""
    if isinstance(batch, (tuple, list)):
        return f"({', '.join(type(one).__name__ for one in batch)})"
    kind = type(batch).__name__
    return f"{kind}: take targets out of it, (batch, batch.pop('labels'))" if isinstance(batch, Mapping) else kind


def kept_where_better(
    net: nn.Module,
    steps: Iterable[tuple[str, Make]],
    measure: Measure,
    after_step: Callable[[TriedStep], None] = lambda step: None,
    *,
    before: float | None = None,
    noise: float = 0.0,
    until: float | None = None,
) -> tuple[nn.Module, list[TriedStep]]:
    """The network after those steps that lower a measure, each taken on what was kept before, and what was tried.

    Args:
        steps: name -> what makes another network and a report of a network.
        after_step: called after every step.
        before: the measure of `net`, where it is known.
        noise: by how much a measure must be lower, more than this.
        until: of `time.perf_counter`; what is not begun by then is left out.

    Raises:
        What the measure raises; errors of a step itself leave this step out.
    """
    best, taken = measured_by(measure, net) if before is None else before, list[TriedStep]()
    for name, make in steps:
        begin = time.perf_counter()
        try:
            if until is not None and begin >= until:
                raise ValueError("no time was left")
            made, report = make(net)
        except STEP_ERRORS as error:  # such as a head that cannot be refitted
            if getattr(error, OF_MEASURE, False):
                raise
            taken.append(TriedStep(name, time.perf_counter() - begin, best, left_out=first_line(error)))
        else:
            after = measured_by(measure, made)
            better = after < best - noise and not _is_same(net, made)
            taken.append(TriedStep(name, time.perf_counter() - begin, best, after, better, report))
            net, best = (made, after) if better else (net, best)
        after_step(taken[-1])
    return net, taken


def _is_same(net: nn.Module, made: nn.Module) -> bool:
    """Whether a step left every weight and every statistic as it was."""
    before, after = net.state_dict(), made.state_dict()
    return before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def recalibrate(model: Model, batches: Batches) -> tuple[Model, Report]:
    """Take the running means and variances of batch norms anew, as the average over batches.

        mean = sum_b n_b mean_b / sum_b n_b,   var likewise;   n_b: values a channel of batch b

    As `torch.optim.swa_utils.update_bn`, but a small last batch weighs little, and only norms are in training mode:
    dropout is off, and norms in front of the first exact step keep their statistics, as they see what they saw in the
    training. A batch with one value a channel has no variance, so that norm leaves it out.

    Args:
        model: hardened; not changed. In a model without `htaf.Heaviside` all norms are taken.
        batches: inputs as the training had them, in batches of its size or larger.

    Returns:
        The new model in eval mode, and the report.

    Raises:
        ValueError: no batches, or one value a channel in each of them.
        TypeError: batches can be gone through only once.
    """
    begin = time.perf_counter()
    first = expect_batches(batches)
    net = duplicate(model)
    with evaluating(net):
        norms = norms_behind_steps(net, inputs_of(first))
        if norms:
            _average(net, norms, batches)
    seconds = time.perf_counter() - begin
    of = sum(map(is_norm, net.modules()))
    rest = "; the others lie in front of the first exact step, or do not run" if len(norms) < of else ""
    notes = (f"statistics of {len(norms)} of {of} batch norms taken anew{rest}",)
    return net.eval(), Report("recalibrate", seconds, notes=notes)


def _average(net: nn.Module, norms: list[Any], batches: Batches) -> None:
    """Take the running statistics of norms as averages over batches, weighted by the values a channel."""
    seen = dict.fromkeys(norms, 0)
    kept = {norm: norm.momentum for norm in norms}

    def weigh(norm: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = first_of(args, kwargs)
        values = x.numel() // x.shape[1]
        norm.training = values > 1
        if norm.training:
            seen[norm] += values
            norm.momentum = values / seen[norm]

    for norm in norms:
        norm.reset_running_stats()
    try:
        with hooked(norm.register_forward_pre_hook(weigh, with_kwargs=True) for norm in norms):
            for batch in batches:
                call(net, inputs_of(batch))
    finally:
        for norm, momentum in kept.items():
            norm.momentum, norm.training = momentum, False
    if not all(seen.values()):
        raise ValueError("expected batches with two values a channel or more, got one in each of them")


def norms_behind_steps(model: nn.Module, x: Any) -> list[Any]:
    """The batch norms that run first after an exact step has run, in order; all of a model without a step."""
    order: dict[nn.Module, None] = {}
    kinds = [m for m in model.modules() if is_norm(m) or isinstance(m, Heaviside)]
    with hooked([m.register_forward_hook(lambda module, args, output: order.setdefault(module)) for m in kinds]):
        call(model, x)
    ran = list(order)
    steps = [i for i, module in enumerate(ran) if isinstance(module, Heaviside)]
    first = steps[0] if steps else -1
    return [module for module in ran[first + 1 :] if is_norm(module)]
