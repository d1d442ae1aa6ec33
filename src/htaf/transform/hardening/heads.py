"""Refit the last linear layer, or 1 x 1 convolution, to what it reads in the exact network."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from htaf.transform.convert.finding import rows_of
from htaf.transform.convert.flow import tensors_of
from htaf.transform.convert.functional_sites import Model, duplicate
from htaf.transform.convert.modes import evaluating, hooked
from htaf.transform.grid import weight_of
from htaf.transform.hardening.linear import LinearFit, Weights
from htaf.transform.hardening.report import (
    FITTED,
    Batches,
    InTime,
    LayerReport,
    Measure,
    Report,
    batch_count,
    call,
    expect_batches,
    few_rows,
    is_binary,
    is_regression,
    measured_by,
    not_its_own,
    not_plain,
    pair_of,
    wide,
)

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
ENDS: dict[str, Callable[[Tensor], Tensor]] = {  # what a model may make of its head's output
    "": lambda x: x,
    "sigmoid": torch.sigmoid,
    "softmax": partial(torch.softmax, dim=-1),
    "log_softmax": partial(torch.log_softmax, dim=-1),
}
ROWS, MOST = 8192, 40  # rows of pixels or vectors: so many at least, and so many for each weight of an output
HELD = 5  # without validation batches every fifth row chooses the strength


def refit_head(
    model: Model,
    batches: Batches,
    *,
    validation: Batches | None = None,
    measure: Measure | None = None,
    strengths: Sequence[float] = STRENGTHS,
    weights: tuple[Tensor, Tensor] | None = None,
    seconds: float | None = None,
) -> tuple[Model, Report]:
    """Fit the last linear layer of a hardened network anew: ridge (numbers) or multinomial logistic (classes).

        mean loss(W z + b, y) + strength / 2 |W - W0|^2,   z: the layer's inputs, standardised

    W0 is the old head, or 0; both are tried with every strength. The loss is half the squared error, or cross-entropy
    by L-BFGS from W0. The strength and W0 with the lowest loss on validation win, unless the old head is better still.
    Without validation every fifth row is held out for this choice, and the chosen fit is made once more on all rows. A
    layer without bias is fitted without one, to inputs that are scaled and not centred.

    Behind a sigmoid, and for codes 0 and 1 of a single output, the loss is the cross-entropy of every output by itself;
    for float targets that are 0 and 1 it is tried as well where a measure decides.

    Args:
        model: its output must be that of an nn.Linear, or of a convolution with kernels of size 1, with real weights of
            its own; or the mean of such outputs over time steps, or over all pixels; or a sigmoid, softmax or
            log_softmax of these; reshaped (`squeeze(1)`, `[:, 0]`, `flatten`) or not; alone or in a tuple, mapping or
            object of outputs. Of several such layers the one that runs last is fitted. Not changed.
        batches: (inputs, targets) as the training had them: float targets of the output's shape, or class codes
            (those < 0 are left out), one for each pixel where the output has pixels. A classifier takes codes, no
            one-hot rows.
        validation: the same, of other rows; it decides.
        measure: decides in place of validation: a function of a network on held-out data; lower is better. See
            `finish`.
        strengths: >= 0, factors of the penalty above.
        weights: two tensors [rows] > 0: how much each row of batches counts, and each row of validation.
        seconds: how long it may take; the best fit that was tried by then wins. If a row is a pixel or its target has
            several numbers, 8,192 rows, or 40 for each weight of an output, are enough: of more a sample is taken.

    Returns:
        The new model in eval mode, and the report. With fewer rows than inputs its notes say so.

    Raises:
        ValueError: no such layer; its weight is binary, computed from others or shared with another module; no batches
            or targets; targets of another shape than the output, codes that it has no output for, or one-hot rows;
            fewer than 5 rows without validation; no strength; both validation and measure; weights without validation,
            or not one for each row of the output.
        TypeError: batches or validation can be iterated only once, or are a single pair.
    """
    begin = time.perf_counter()
    if not strengths or not all(strength >= 0 for strength in strengths):
        raise ValueError(f"expected strengths >= 0, one or more, got {tuple(strengths)}")
    if validation is not None and measure is not None:
        raise ValueError("expected validation= or measure= to choose by, got both")
    if weights is not None and validation is None:
        raise ValueError("expected validation= beside weights=, got none")
    first, _ = pair_of(expect_batches(batches, validation))
    net = duplicate(model)
    with evaluating(net):
        head = _Head(net, first)
        until = None if seconds is None else begin + seconds
        batches = batches if seconds is None else InTime(batches, begin + seconds / 2)
        h, y, rest = head.gathered(batches, sampled=weights is None)
        known: Any = slice(None)
        seen, (of, of_seen) = (h, y, rest), weights or (None, None)
        if validation is not None:
            seen = head.gathered(validation)
            of, of_seen = (_of_rows(one, rows) for one, rows in ((of, h), (of_seen, seen[0])))
        elif measure is None:
            held = torch.arange(len(h), device=h.device) % HELD == HELD - 1
            if not bool(held.any()):
                raise ValueError(f"expected {HELD} rows or more to choose a strength, or validation=, got {len(h)}")
            known, seen = ~held, (h[held], y[held], rest[held])

        def judged(found: Weights) -> float:
            if measure is None:
                return _losses(found, *seen, head.sigmoid, of_seen)["loss"]
            head.put(found)
            return measured_by(measure, net)

        biased, sigmoid = head.layer.bias is not None, head.sigmoid
        fit = LinearFit(h[known], y[known], rest[known], biased, of, until)
        before = head.weights()
        best, kept = judged(before), before
        chosen: tuple[float, str, Weights] | None = None
        tried = 0
        for each in dict.fromkeys((head.sigmoid, head.sigmoid or (measure is not None and is_binary(y)))):
            for centre, start in (
                ("the change of the weights", before),
                ("the weights", (torch.zeros_like(before[0]), before[1])),
            ):
                now = before
                for strength in sorted(strengths, reverse=True):
                    if until is not None and tried and time.perf_counter() >= until:
                        break
                    tried += 1
                    now = fit(now, start, strength, each)
                    if (loss := judged(now)) < best:
                        best, kept, chosen, sigmoid = loss, now, (strength, centre, start), each
        if chosen is not None and validation is None and measure is None:
            kept = LinearFit(h, y, rest, biased)(kept, chosen[2], chosen[0], sigmoid)
        old, new = (_losses(one, h, y, rest, sigmoid, of)["loss"] for one in (before, kept))
        losses = [_losses(one, *seen, sigmoid, of_seen) if validation is not None else None for one in (before, kept)]
        head.put(kept)
    seconds = time.perf_counter() - begin
    strength, centre = (None, "") if chosen is None else chosen[:2]
    note = "kept: no other was better on validation" if chosen is None else f"penalty {strength:g} on {centre}"
    layer = LayerReport(head.name, old, new, strength, len(h), note, measure=FITTED)
    near = "0" if centre == "the weights" else "what they were"
    few = few_rows(head.name, len(h), h.shape[1], near)
    return net.eval(), Report("refit_head", seconds, losses[0], losses[1], (layer,), few)


class _Head:
    """The last linear layer that ran: its weights are its own, and its output, or a mean or squashing of it, is one of
    the model's.

    classes: the dimension of a layer's output along which classes, or numbers, lie. means: the dimensions over which
    the model's output is a mean, of time or of all pixels. sigmoid: every output is a probability by itself. softmax:
    all are together. adds: the place, among the model's outputs, of one that is the layer's and what the model adds to
    it, such as a linear layer of its inputs; else None.
    """

    def __init__(self, model: nn.Module, x: Any) -> None:
        self.model = model
        ran: list[str] = []
        found = {name: module for name, module in model.named_modules() if _linear(module) or not module._modules}
        with hooked(m.register_forward_hook(partial(lambda n, *_: ran.append(n), name)) for name, m in found.items()):
            call(model, x)
        last = max((i for i, name in enumerate(ran) if _linear(found[name])), default=None)
        if last is None:
            raise ValueError(
                f"expected a model that ends in an nn.Linear, or in a convolution with kernels of size 1, "
                f"{type(model).__name__} has none that runs"
            )
        self.name, self.layer, self.adds = ran[last], cast(Any, found[ran[last]]), None
        self.classes = 1 if isinstance(self.layer, nn.modules.conv._ConvNd) else -1
        output, calls = self._run(x)
        if why := not_its_own(model, self.layer) or self._not_plain(*calls[-1]):
            raise ValueError(f"expected a head whose weights can be fitted, but of {self.name} {why}")
        mine = [out for out, _ in calls]
        out = torch.stack(mine) if len(mine) > 1 else mine[0]
        dims: list[tuple[int, ...]] = [(), *((d,) for d in range(out.ndim - 1))]
        if self.classes == 1:
            dims.append(tuple(range(out.ndim - 1)[-(self.layer.weight.ndim - 2) :]))
        for tensor, d, end in itertools.product(tensors_of(output), dims, ENDS):
            if self._gives(ENDS[end](out.mean(d) if d else out), tensor):
                self.means, self.sigmoid, self.softmax = d, end == "sigmoid", "softmax" in end
                return
        for place in range(len(mine) == 1 and len(list(tensors_of(output)))):
            if self._adds(place, x):
                self.means, self.sigmoid, self.softmax, self.adds = (), False, False, place
                return
        behind = ", ".join(f"{name} ({type(found[name]).__name__})" for name in ran[last + 1 :])
        raise ValueError(
            f"expected a model that returns the output of an nn.Linear or a convolution with kernels of size 1, alone "
            f"or among others (or its mean over time or over all pixels, its one column, its sigmoid or softmax), got "
            f"another after {self.name}, the last one that runs{behind and f', and {behind} behind it'}: return its "
            "output, and leave the rest to the loss"
        )

    def _run(self, x: Any) -> tuple[Any, list[tuple[Tensor, Tensor]]]:
        """What the model gives, and the layer's output and input at each of its calls, channels last."""
        calls: list[tuple[Tensor, Tensor]] = []

        def see(module: nn.Module, args: Any, output: Tensor) -> None:
            calls.append((_channels_last(module, output).clone(), _channels_last(module, args[0]).clone()))

        with hooked([self.layer.register_forward_hook(see)]):
            return call(self.model, x), calls

    def _gives(self, out: Tensor, tensor: Tensor) -> bool:
        """Whether an output of the model, of whatever shape, is this one, whose classes are last."""
        if not tensor.is_floating_point() or tensor.numel() != out.numel():
            return False
        return torch.allclose(self._classes_last(tensor).reshape(out.shape).to(out), out, rtol=1e-4, atol=1e-5)

    def _adds(self, place: int, x: Any) -> bool:
        """Whether an output is the layer's own plus something that is the same whatever the layer's weights are.

        Two sets of weights are tried, of which one has the other signs; what is added may differ by little beside what
        the layer's output differs by.
        """
        before = self.layer.weight.detach().clone()
        noise = torch.randn(before.shape, generator=torch.Generator().manual_seed(0)).to(before)
        one, out = self._rest(place, *self._run(x))
        self.layer.weight.copy_(noise * before.std(correction=0) - before)
        other, moved = self._rest(place, *self._run(x))
        self.layer.weight.copy_(before)
        if one is None or other is None:
            return False
        rounding = 1e-5 * float(max(one.abs().max(), out.abs().max(), moved.abs().max()))
        return float((one - other).abs().max()) <= 1e-3 * float((out - moved).abs().max()) + rounding

    def _rest(self, place: int, output: Any, calls: list[tuple[Tensor, Tensor]]) -> tuple[Tensor | None, Tensor]:
        """What the model adds to the layer's output for one of its own, None where they differ in shape; and the
        layer's output."""
        tensor, out = list(tensors_of(output))[place], calls[-1][0]
        if not tensor.is_floating_point() or tensor.numel() != out.numel():
            return None, out
        return self._classes_last(tensor).reshape(out.shape) - out, out

    def _classes_last(self, x: Tensor) -> Tensor:
        """An output of the model, or targets of its shape; with one column its dimension may lack."""
        return x.movedim(1, -1) if self.classes == 1 and x.ndim == self.layer.weight.ndim else x

    def _not_plain(self, output: Tensor, h: Tensor) -> str:
        h = wide(h)
        return not_plain(self.layer, h @ weight_of(self.layer).flatten(1).to(h).T, output)

    def gathered(
        self, batches: Batches, *, sampled: bool = False
    ) -> tuple[Float[Tensor, "n features"], Tensor, Tensor]:
        """What the layer reads, the targets: float [n, outputs], or class codes [n] of more than one output; and what
        the model adds to the layer's outputs: [n, outputs], or zeros [n, 1].

        sampled: of pixels, and of vectors of targets, no more rows than are enough.
        """
        enough = max(ROWS, MOST * self.layer.weight[0].numel()) // batch_count(batches) + 1 if sampled else None
        hs, ys, rests, outputs = [], [], [], len(self.layer.weight)
        for batch in batches:
            x, y = pair_of(batch)
            output, calls = self._run(x)
            rest = None if self.adds is None else self._rest(self.adds, output, calls)[0]
            given = [read for _, read in calls]
            h = torch.stack(given) if len(given) > 1 else given[0]
            h = (h.mean(self.means) if self.means else h).reshape(-1, h.shape[-1])
            y = self._classes_last(y.to(h.device)) if is_regression(y) else y.to(h.device)
            if is_regression(y) and y.numel() != len(h) * outputs:
                raise ValueError(
                    f"expected float targets of the output's shape, {len(h)} rows of {outputs}, or "
                    f"int64 class codes, got {y.dtype} of shape {tuple(y.shape)}"
                )
            y = y.reshape(len(h), -1) if is_regression(y) else y.reshape(-1).long()
            known: Any = slice(None) if is_regression(y) else y >= 0
            if len(y) != len(h):
                raise ValueError(f"expected a class code for each of {len(h)} rows of the output, got {len(y)}")
            if enough is not None and len(h) > enough and (y.ndim > 1 < y.shape[1] or len(h) != rows_of(x)):
                some = torch.zeros(len(h), dtype=torch.bool)
                some[torch.randperm(len(h), generator=torch.Generator().manual_seed(len(hs)))[:enough]] = True
                known = some.to(h.device) if is_regression(y) else known & some.to(h.device)
            hs.append(wide(h[known]))
            ys.append(y[known])
            added = torch.zeros_like(h[:, :1]) if rest is None else rest.reshape(len(h), -1)
            rests.append(wide(added[known]))
        h, y, rest = torch.cat(hs), torch.cat(ys), torch.cat(rests)
        if not len(h):
            raise ValueError("expected batches with a row that has a target, got none")
        if is_regression(y) and (self.softmax or (_one_hot(y) and not self.sigmoid)):
            got = "one-hot rows of " if _one_hot(y) else ""
            raise ValueError(f"expected int64 class codes for a classifier, got {got}{y.dtype}: give targets.argmax(1)")
        if is_regression(y) and self.sigmoid and not bool(((y >= 0) & (y <= 1)).all()):
            low, high = (float(v) for v in y.aminmax())
            raise ValueError(f"expected targets in [0, 1] behind a sigmoid, got {low:.6g} to {high:.6g}")
        if not is_regression(y) and int(y.max()) >= max(outputs, 2):
            raise ValueError(f"expected class codes below {max(outputs, 2)} for {outputs} outputs, got {int(y.max())}")
        if not is_regression(y) and outputs == 1:
            self.sigmoid, y = True, y[:, None].to(h)
        return h, y, rest

    def weights(self) -> Weights:
        """Those of the layer, as doubles."""
        w, b = self.layer.weight.detach().flatten(1).double(), self.layer.bias
        return w.clone(), torch.zeros_like(w[:, 0]) if b is None else b.detach().double().clone()

    def put(self, weights: Weights) -> None:
        """Take these weights over."""
        w, b = (v.to(self.layer.weight) for v in weights)
        self.layer.weight.copy_(w.reshape(self.layer.weight.shape))
        if self.layer.bias is not None:
            self.layer.bias.copy_(b)


def _of_rows(weights: Tensor | None, h: Tensor) -> Tensor | None:
    """Weights of the rows of a head's inputs as doubles of mean 1. Raises ValueError where they are not one each."""
    if weights is None:
        return None
    if len(weights) != len(h):
        raise ValueError(f"expected weights of {len(h)} rows of the output, got {len(weights)}")
    return (weights.double() / weights.double().mean()).to(h.device)


def _losses(
    weights: Weights, h: Tensor, y: Tensor, rest: Tensor, sigmoid: bool, rows: Tensor | None = None
) -> dict[str, float]:
    """{"loss"} of numbers (mean squared error), {"loss", "accuracy"} of classes and probabilities (cross-entropy).

    rest, rows: as of `LinearFit`.
    """
    w, b = (v.to(h) for v in weights)
    output = torch.addmm(b, h, w.T).double() + rest.double()

    def mean(each: Tensor) -> float:
        each = each.double().reshape(len(h), -1)
        return (each if rows is None else each * rows[:, None]).mean().item()

    if not is_regression(y):
        hits, loss = output.argmax(1) == y, nn.functional.cross_entropy(output, y, reduction="none")
    elif sigmoid:
        hits = (output > 0) == (y > 0.5)
        loss = nn.functional.binary_cross_entropy_with_logits(output, y.double(), reduction="none")
    else:
        return {"loss": mean((output - y.double()).square())}
    return {"loss": mean(loss), "accuracy": mean(hits)}


def _one_hot(y: Tensor) -> bool:
    """Whether float targets [n, outputs] are rows of one 1 and zeros, in two places or more."""
    return is_binary(y) and y.shape[1] > 1 and bool((y.sum(1) == 1).all() and (y != y[0]).any())


def _linear(module: nn.Module) -> bool:
    """Whether a layer gives for every row, or pixel, the products of its own weights with it."""
    if isinstance(module, nn.Linear):
        return True
    if not isinstance(module, nn.modules.conv._ConvNd) or module.transposed or module.groups != 1:
        return False
    return {*module.kernel_size, *module.stride} == {1} and module.padding in (
        "same",
        "valid",
        (0,) * len(module.stride),
    )


def _channels_last(layer: Any, x: Tensor) -> Tensor:
    """What a layer takes or gives with its channels, or features, in the last dimension."""
    return x if isinstance(layer, nn.Linear) else x.movedim(1 - layer.weight.ndim, -1)
