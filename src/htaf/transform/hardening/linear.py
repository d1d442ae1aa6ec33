"""Fits of a linear layer: ridge regression to numbers, logistic regression to classes, and sparse weights by a path."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from htaf.transform.hardening.report import is_regression

STEPS = 200  # of L-BFGS or of an elastic net, at most
AT_ONCE = 20  # of L-BFGS between two looks at the time
COLUMNS = 64  # of which means are taken at once
DOUBLE = 1 << 26  # numbers that are kept as doubles; more as they are
MIX = 0.99  # share of the L1 penalty in an elastic net
POINTS, SMALLEST = 30, 1e-3  # of the path: strengths, and the last one as a share of the first
PRECISION = 1e-4  # an elastic net ends where no weight moves by more than this share of the largest
NOTHING = torch.tensor(0.0)

Weights = tuple[Float[Tensor, "outputs features"], Float[Tensor, " outputs"]]


@dataclass
class LinearFit:
    """Fits to some rows, of standardised inputs z.

    A call takes and gives weights of the inputs as they are. The other methods take and give those of z, and `raw`
    turns these into the others. Penalties are those of the weights of z.

    Attributes:
        h: [n, features], the inputs. z: the same, standardised; a constant input is 0 and gets weight 0.
        y: class codes [n], or floats [n, outputs]: numbers in a call, probabilities in the other methods.
        rest: what is added to the outputs whatever the weights are.
        biased: without a bias inputs are scaled and not centred.
        rows: double [n] of mean 1, how much each row counts; None: all alike.
        until: of `time.perf_counter`, when a logistic fit ends where it is; None: it goes on.
    """

    h: Tensor
    y: Tensor
    rest: Tensor = NOTHING
    biased: bool = True
    rows: Tensor | None = None
    until: float | None = None
    _factors: dict[float, tuple[Tensor, Tensor | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mean, std = self._moments()
        # a unit that is constant gets weight 0: what it gave is part of the bias
        self.std = torch.where(std > 1e-6 * std.max(), std, torch.inf)
        self.z = self.h - self.mean.to(self.h)
        self.z /= self.std.to(self.h)
        if self.z.numel() <= DOUBLE:
            self.z = self.z.double()

    def _moments(self) -> tuple[Float[Tensor, " features"], Float[Tensor, " features"]]:
        """Means, 0 without a bias, and deviations from them as doubles; a few columns at a time, as doubles of all
        inputs would be the most that a fit holds."""
        means, stds = [], []
        for some in self.h.split(COLUMNS, 1):
            part = some.double()
            mean = self._mean(part) if self.biased else torch.zeros_like(part[0])
            means.append(mean)
            stds.append(self._mean((part - mean).square_()).sqrt())
        return torch.cat(means), torch.cat(stds)

    def _mean(self, values: Float[Tensor, "n columns"]) -> Float[Tensor, " columns"]:
        return values.mean(0) if self.rows is None else self.rows @ values / len(values)

    def _counted(self, values: Tensor) -> Tensor:
        """Values [n, columns] times the square root of what their rows count, so that squares count as much."""
        return values if self.rows is None else values * self.rows.sqrt().to(values)[:, None]

    def __call__(self, start: Weights, centre: Weights, strength: float, sigmoid: bool = False) -> Weights:
        """The minimum from `start`, penalised by the distance of the weights from those of `centre`.

        sigmoid: float targets are probabilities, not numbers."""
        dead = ~self.std.isfinite()
        scale = torch.where(dead, 0.0, self.std)
        w0 = centre[0] * scale
        start = start[0] * scale, start[1] + start[0] @ torch.where(dead, 0.0, self.mean)
        numbers = is_regression(self.y) and not sigmoid
        return self.raw(self._ridge(w0, strength) if numbers else self.logistic(start, strength, centre=w0))

    def raw(self, weights: Weights) -> Weights:
        """Weights of z as weights of the inputs h."""
        w = weights[0] / self.std
        return w, weights[1] - w @ self.mean

    @property
    def _few(self) -> bool:
        """Whether fewer rows than inputs; not of float32, which would round what cancels."""
        return len(self.z) < self.z.shape[1] and self.z.dtype == torch.float64

    @cached_property
    def _gram(self) -> Tensor:
        """z z' / n [rows, rows] where these are `_few`, else z' z / n [inputs, inputs]; double."""
        z = self._counted(self.z)
        return (z @ z.T if self._few else z.T @ z).double() / len(z)

    def _factor(self, strength: float) -> tuple[Tensor, Tensor | None]:
        """The Gram matrix with a penalty, and its Cholesky factor, which rounding may leave none of; kept, as both
        centres ask for it."""
        if strength not in self._factors:
            penalised = self._gram.clone()
            penalised.diagonal().add_(strength)
            factor, failed = torch.linalg.cholesky_ex(penalised)
            self._factors[strength] = penalised, None if int(failed) else factor
        return self._factors[strength]

    def _ridge(self, w0: Tensor, strength: float) -> Weights:
        z, n = self._counted(self.z), len(self.z)
        y = self.y.double() - self.rest.double()
        b = self._mean(y) if self.biased else torch.zeros_like(y[0])
        target = self._counted(y - b) - (z @ w0.T.to(z)).double()
        penalised = self._factor(max(strength, 1e-9))
        if self._few:  # (z'z + n s)^-1 z' = z' (zz' + n s)^-1
            d = (z.T @ _solved(penalised, target).to(z)).double() / n
        else:
            d = _solved(penalised, (z.T @ target.to(z)).double() / n)
        return w0 + d.T, b

    @torch.no_grad()
    def loss(self, weights: Weights) -> tuple[Tensor, Tensor, Tensor]:
        """Mean cross-entropy of z w' + b + rest, and its gradients for w and b; doubles."""
        (w, b), z, n = weights, self.z, len(self.z)
        logits = torch.addmm(b.to(z), z, w.T.to(z)).add_(self.rest.to(z))
        if is_regression(self.y):
            y = self.y.to(z)
            each = nn.functional.binary_cross_entropy_with_logits(logits, y, reduction="none").double().sum(1)
            p = logits.sigmoid() - y
        else:
            rows = torch.arange(n, device=z.device)
            likely = logits.log_softmax(1)
            each = -likely[rows, self.y].double()
            p = likely.exp_()
            p[rows, self.y] -= 1
        if self.rows is not None:
            each, p = each * self.rows, p * self.rows.to(p)[:, None]
        of_bias = p.sum(0).double() / n if self.biased else torch.zeros_like(b)
        return each.sum() / n, (p.T @ z).double() / n, of_bias

    def logistic(
        self,
        start: Weights,
        strength: float,
        *,
        centre: Tensor = NOTHING,
        kept: Bool[Tensor, "outputs features"] | None = None,
    ) -> Weights:
        """argmin of mean cross-entropy + strength / 2 |W - centre|^2 by L-BFGS, over the weights that are kept."""
        w, b = start
        both = nn.Parameter(torch.cat([w if kept is None else w * kept, b[:, None]], 1))

        @torch.no_grad()
        def loss() -> float:
            weight, bias = both[:, :-1], both[:, -1]
            value, slope, of_bias = self.loss((weight, bias))
            away = weight - centre
            slope += strength * away
            both.grad = torch.cat([slope if kept is None else slope * kept, of_bias[:, None]], 1)
            return (value + strength / 2 * away.square().sum()).item()

        steps = STEPS if self.until is None else AT_ONCE
        optimizer = torch.optim.LBFGS(
            [both], max_iter=steps, history_size=10, tolerance_grad=1e-6, tolerance_change=1e-9,
            line_search_fn="strong_wolfe",
        )  # fmt: skip
        for _ in range(STEPS // steps):
            optimizer.step(loss)
            if self.until is not None and time.perf_counter() >= self.until:
                break
        return both.detach()[:, :-1], both.detach()[:, -1]

    def best(
        self,
        judged: Callable[[Weights], float],
        strengths: Sequence[float],
        start: Weights,
        kept: Bool[Tensor, "outputs features"] | None = None,
    ) -> tuple[float, float, Weights]:
        """The highest value of `judged`, the first of equals, its strength and weights; a fit starts from the last."""
        tried = []
        for strength in strengths:
            start = self.logistic(start, strength, kept=kept)
            tried.append((judged(start), strength, start))
        return max(tried, key=lambda row: row[0])

    def constant(self, classes: int) -> Weights:
        """The best weights without inputs: a class's bias is the log of its share, of an absent one that of half a
        row."""
        share = torch.bincount(self.y, minlength=classes).double() / len(self.y)
        b = share.clamp(min=0.5 / len(self.y)).log()
        return torch.zeros(classes, self.z.shape[1], dtype=b.dtype, device=b.device), b - b.mean()

    @cached_property
    def curvature(self) -> float:
        """A bound on the largest second derivative of `loss`: half that of (z, 1)'s mean square, in any direction."""
        columns = torch.cat([self.z, torch.ones_like(self.z[:, :1])], 1)
        return 0.5 * float(torch.linalg.eigvalsh(columns.T @ columns / len(columns))[-1])

    def elastic_net(self, start: Weights, strength: float) -> Weights:
        """argmin of mean cross-entropy + strength (mix |W|_1 + (1 - mix) / 2 |W|_2^2), from a start.

        Accelerated proximal gradient: a step of 1 / L down the slope at a point ahead, where L bounds the curvature,
        then every weight is brought nearer to 0 by strength mix / L. The point ahead starts anew where it leads back.

        Source: Beck and Teboulle 2009 (FISTA); O'Donoghue and Candes 2015 (the new start).
        """
        rate, (weight, bias) = 1 / self.curvature, start
        ahead, pace = start, 1.0
        for _ in range(STEPS):
            _, slope, of_bias = self.loss(ahead)
            w = nn.functional.softshrink(ahead[0] - rate * slope, rate * strength * MIX)
            w, b = w / (1 + rate * strength * (1 - MIX)), ahead[1] - rate * of_bias
            change = w - weight, b - bias
            back = float(((ahead[0] - w) * change[0]).sum() + (ahead[1] - b) @ change[1]) > 0
            faster = 1.0 if back else (1 + (1 + 4 * pace * pace) ** 0.5) / 2
            momentum = 0.0 if back else (pace - 1) / faster
            ahead = w + momentum * change[0], b + momentum * change[1]
            weight, bias, pace = w, b, faster
            if max(float(part.abs().max()) for part in change) <= PRECISION * max(1.0, float(weight.abs().max())):
                break
        return weight, bias

    def path(self, classes: int) -> Iterator[tuple[float, Weights]]:
        """Weights by an elastic net along falling strengths, evenly spaced in their logarithm, each started from the
        last. The first strength is the smallest one at which every weight is 0."""
        weights = self.constant(classes)
        largest = float(self.loss(weights)[1].abs().max()) / MIX
        yield largest, weights
        if largest > 0:  # else every input is constant, or there is one class
            for strength in np.geomspace(largest, largest * SMALLEST, POINTS)[1:].tolist():
                weights = self.elastic_net(weights, strength)
                yield strength, weights


def largest_of_each(weight: Float[Tensor, "outputs features"], most: int) -> Bool[Tensor, "outputs features"]:
    """Which weights are among the `most` largest of their output and not 0; of equal ones the first."""
    order = weight.abs().argsort(dim=1, descending=True, stable=True)[:, :most]
    return torch.zeros_like(weight, dtype=torch.bool).scatter_(1, order, value=True) & (weight != 0)


def _solved(a: tuple[Tensor, Tensor | None], b: Tensor) -> Tensor:
    """The solution of a x = b for symmetric a and its Cholesky factor, see `LinearFit._factor`."""
    whole, factor = a
    return torch.linalg.solve(whole, b) if factor is None else torch.cholesky_solve(b, factor)
