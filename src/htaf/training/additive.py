"""Readable networks of tables: a bias, step functions of the columns and a few rules of two of them.

    y = bias + sum over columns of f(column) + rules

Every f is a sum of steps at thresholds of a thermometer. They are fitted in three stages, each in closed form:

1. `rules_of`: pairs of columns, each in few steps, for what step functions of all columns leave. A rule is an and of a
   step of each. The rules of a pair add the product of what the columns add, or this and a number each.
2. `smooth`: all steps and rules at once, each shrunk by the variance of its column's steps, which the rows say.
3. `stepped`: neighbouring values of f are fused while the loss rises by less than a price for each step.

Price and number of rules are chosen out of fold. At the end all numbers are integers times one power of two, so that
sums are exact.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, product

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from torch import nn

from htaf.data.preprocess import Preprocessor
from htaf.data.reading import DataError, listed
from htaf.models.mlp import MLP, Thermometer
from htaf.program.integer.program import Input
from htaf.training.boosting import And, Rows, Values, as_bits, for_outputs, holds, known, set_leaves
from htaf.training.families.mlp import MLPNetwork
from htaf.training.problems import Problem
from htaf.training.runs.metrics import metrics
from htaf.training.runs.packing import inputs_of

FOLDS = 4
ROUNDS, MORE_ROUNDS = 12, 4  # of the variances: at first, and from those of another fit
PRICES = tuple(0.0125 * 2**k for k in range(10))  # of a step, in nats of the loss
MORE = tuple(0.0125 * 2**k for k in range(10, 19))  # where there are to be few
SOME = (3,)  # pairs of columns that have rules; else none, or as many as there may be
TRIED, STEPS = 12, 4  # columns that are paired, and the most steps of each: of more they fit noise
GRID, RULE = 3.0, 1.0  # prices of the product of two columns and of a rule with a number of its own, in nats
WEAK = 0.5, 0.001  # of the variances before any rows are seen: what a term adds is never thought to be 0
LEVEL = 0.1  # standard errors by which fewer steps may be worse out of fold
NEAR = 1e-5  # of the curvature: sums of float32 are no nearer
TREND = 4  # thresholds from which a column has a trend
WORK, FITTED = 4e10, 8192  # rows times bits squared, at most: of more rows some are fitted, at least so many
FINE = {"regression": 12, "classification": 10}  # binary digits behind the point
MOST = 2**15 - 1  # of an integer
OUT_OF_FOLD = (
    "figures of the validation part are of all rows but the test part, out of fold, each row by a network fitted "
    "without it; the run's own network is fitted to them too"
)

Bits = Float32[np.ndarray, "rows bits"]


@dataclass(frozen=True)
class Term:
    """A column: its name, its inputs of a network, and whether these are the values of a category, one of which is
    1. slope: 1 or -1 where its function must not fall or not rise, else 0. flags: the inputs that are 1 where there is
    no number."""

    name: str
    inputs: tuple[int, ...]
    category: bool = False
    slope: int = 0
    flags: tuple[int, ...] = ()

    def slope_of(self, j: int, counts: Sequence[int]) -> int:
        """Of an input: a flag beside a number has none."""
        return self.slope if counts[j] > 1 or len(self.inputs) == 1 else 0


@dataclass(frozen=True)
class Pair:
    """Rules of two columns, and what is fitted of them: each number adds to the rules so many times its part."""

    rules: list[And]
    parts: Float64[np.ndarray, "numbers rules"]


@dataclass(frozen=True)
class Smooth:
    """Heights of what is fitted, [outputs, 1 + columns], the bias first. spread: penalty of each term's heights,
    [outputs, terms]. noise: variance of a number around its prediction, 1 of classes."""

    heights: Float64[np.ndarray, "outputs columns"]
    spread: Float64[np.ndarray, "outputs terms"]
    noise: float

    def of(self, bits: Bits) -> Values:
        return self.heights[:, 0] + bits @ self.heights[:, 1:].T


def smooth(
    rows: Rows, bits: Bits, term: Int64[np.ndarray, " bits"], before: np.ndarray | None, rounds: int, noise: float = 1.0
) -> Smooth:
    """The heights that are likeliest where those of a term are normal around 0, with a variance that makes the rows
    likeliest: ridge or logistic regression by Newton's steps, a penalty for each term.

    Args:
        bits: float32 [rows, bits]. term: of each bit. before, noise: penalties and noise to begin with.

    Source: MacKay 1992, "Bayesian interpolation"; of generalised additive models Wood and Fasiolo 2017.
    """
    n, width = bits.shape
    whole = torch.from_numpy(np.hstack([np.ones((n, 1), np.float32), bits]))
    sizes = np.bincount(term, minlength=0 if before is None else before.shape[1])
    heights, f = np.zeros((rows.outputs, width + 1)), np.zeros((n, rows.outputs))
    spread = np.full((rows.outputs, len(sizes)), 10.0) if before is None else before.copy()
    gram, count = torch.empty(0), len(sizes)
    for _ in range(rounds):
        for k in range(rows.outputs):
            slope, curve = (torch.from_numpy(one[:, k].copy()) for one in rows.slopes(f))
            if rows.classes or not len(gram):
                gram = ((whole * curve[:, None].float()).t() @ whole).double()
            penalty = torch.from_numpy(np.concatenate([[1e-6], spread[k][term]]))
            penalty += NEAR * gram.diagonal()
            inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram + torch.diag(penalty)))
            new = inverse @ (whole.t() @ slope.float() + gram @ torch.from_numpy(heights[k]))
            heights[k] = new.numpy()
            f[:, k] = (whole @ new.float()).numpy()
            free = np.maximum(sizes - spread[k] * np.bincount(term, inverse.diagonal()[1:].numpy(), count), 1e-3)
            if not rows.classes:
                noise = float(2 * rows.losses(f).sum() / max(n - free.sum(), n / 10))
            squares = np.bincount(term, heights[k, 1:] ** 2, count)
            spread[k] = np.clip(noise * (free + WEAK[0]) / (squares + WEAK[1]), 1e-2, 1e7)
    return Smooth(heights, spread, noise)


def segments(
    values: Float64[np.ndarray, " cells"], weights: Float64[np.ndarray, " cells"], prices: Sequence[float]
) -> Float64[np.ndarray, "prices cells"]:
    """By price, the step function with the least sum of weights (values - it)^2 / 2 and the price of each step."""
    sums = [np.concatenate([[0.0], np.cumsum(v)]) for v in (weights, weights * values, weights * values**2)]
    price, cells = np.array(prices), len(values)
    best, start = np.zeros((len(price), cells + 1)), np.zeros((cells, len(price)), np.int64)
    best[:, 0] = -price
    for end in range(1, cells + 1):
        mass, first, second = (of[end] - of[:end] for of in sums)
        cost = best[:, :end] + price[:, None] + (second - first**2 / np.maximum(mass, 1e-12)) / 2
        start[end - 1] = cost.argmin(1)
        best[:, end] = cost.min(1)
    made = np.empty((len(price), cells))
    for row, begins in zip(made, start.T, strict=True):
        end = cells
        while end:
            begin = begins[end - 1]
            row[begin:end] = np.average(values[begin:end], weights=weights[begin:end] + 1e-12)
            end = begin
    return made


def monotone(values: np.ndarray, weights: np.ndarray, slope: int) -> np.ndarray:
    """The nearest values that do not fall (slope 1) or do not rise (-1); 0: as they are."""
    from sklearn.isotonic import isotonic_regression

    return isotonic_regression(values, sample_weight=weights + 1e-9, increasing=slope > 0) if slope else values


@dataclass(frozen=True)
class Axis:
    """A column in few steps: their bits, each an input and a threshold, and what each adds; which of them are 1 in each
    level, and the level of each row."""

    term: int
    bits: list[tuple[int, int, bool]]
    adds: Float64[np.ndarray, " bits"]
    levels: Float64[np.ndarray, "levels bits"]
    level: Int64[np.ndarray, " rows"]


def axes_of(
    rows: Rows, term: Term, place: int, heights: Float64[np.ndarray, "outputs bits"], curve: Values
) -> list[Axis]:
    """Approximate what a term adds by few steps, for the output to which it adds most; a column of several numbers,
    such as a date, has as many axes."""
    found = list[Axis]()
    for inputs in [term.inputs] if term.category else [(j,) for j in term.inputs if j not in term.flags]:
        bits = [(j, cut, True) for j in inputs for cut in range(rows.counts[j])]
        held = np.stack([rows.codes[:, j] > cut for j, cut, _ in bits], 1)
        own = heights[:, [rows.first[j] + cut for j, cut, _ in bits]]
        k = int((own**2 @ held.mean(0)).argmax())
        if term.category:
            order, share, adds = np.argsort(own[k], kind="stable"), held.T @ curve[:, k], np.empty(len(bits))
            adds[order] = few(own[k][order], share[order])
            adds -= adds[share.argmax()]
        else:
            values = np.concatenate([[0.0], np.cumsum(own[k])])
            adds = np.diff(few(values, np.bincount(rows.codes[:, inputs[0]], curve[:, k], len(values))))
        some = np.flatnonzero(adds)
        levels = (np.eye if term.category else np.tri)(len(some) + 1, len(some), -1)
        level = held[:, some] @ (1 + np.arange(len(some)) * term.category)
        found += [Axis(place, [bits[i] for i in some], adds[some], levels, level)] * (len(some) > 0)
    return found


def few(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Approximate values by a function of at most `STEPS` steps, with the least price of a step that gives so few."""
    spread = weights @ (values - np.average(values, weights=weights + 1e-12)) ** 2
    made = segments(values, weights, [spread + 1, *(spread * 2.0**-k for k in range(1, 16))])
    return made[np.flatnonzero(np.count_nonzero(np.diff(made), axis=1) <= STEPS)[-1]]


def grid(a: Axis, b: Axis, slope: Values, curve: Values, noise: float) -> tuple[float, Pair]:
    """Pair the steps of two columns: by how much the rules lower the loss beyond their price, and the rules.

    Either one number is fitted, by which what the columns add is multiplied; or each rule has one of its own too.
    """
    x, cell, adds = np.kron(a.levels, b.levels), a.level * len(b.levels) + b.level, np.outer(a.adds, b.adds).ravel()
    alone = [np.repeat(a.levels, len(b.levels), 0), np.tile(b.levels, (len(a.levels), 1)), np.ones((len(x), 1))]
    sides, adds = np.hstack(alone), adds / np.abs(adds).max()
    one, each = -GRID, -RULE * len(adds)
    for k in range(slope.shape[1]):
        mass, sums = (np.bincount(cell, of[:, k], len(x)) for of in (curve, slope))
        root = np.sqrt(mass)[:, None]
        own = x - sides @ (np.linalg.pinv(root * sides) @ (root * x))  # beside what the columns alone can add
        told, gram = own.T @ sums, own.T @ (mass[:, None] * own)
        one += (adds @ told) ** 2 / max(adds @ gram @ adds, 1e-9) / 2 / noise
        each += told @ np.linalg.solve(gram + noise * np.eye(len(gram)), told) / 2 / noise
    rules = [(min(rule), max(rule)) for rule in product(a.bits, b.bits)]
    return max(one, each), Pair(rules, adds[None] if one >= each else np.vstack([adds, np.eye(len(adds))]))


def rules_of(
    rows: Rows,
    terms: Sequence[Term],
    f: Values,
    noise: float,
    heights: Float64[np.ndarray, "outputs bits"],
    strongest: Sequence[int],
) -> list[Pair]:
    """Pair the strongest terms for what f leaves, in the order of how much each pair lowers the loss beyond the price
    of its rules. noise: see `Smooth`."""
    slope, curve = (np.broadcast_to(of, f.shape) for of in rows.slopes(f))
    axes = [axis for i in strongest if not terms[i].slope for axis in axes_of(rows, terms[i], i, heights, curve)]
    pairs = [(a, b) for a, b in combinations(axes, 2) if a.term != b.term]
    grids = [(*grid(a, b, slope, curve, noise), (a.term, b.term)) for a, b in pairs]
    best = dict[tuple[int, int], Pair]()
    for gain, pair, own in sorted(grids, key=lambda one: -one[0]):
        if gain > 0:
            best.setdefault(own, pair)
    return [*best.values()]


@dataclass(frozen=True)
class Fit:
    """A readable model: what each bit and each rule adds, and the bias; counts: see `Rows`."""

    bits: Float64[np.ndarray, "outputs bits"]
    rules: dict[And, Float64[np.ndarray, " outputs"]]
    bias: Float64[np.ndarray, " outputs"]

    def steps(self, rows: Rows, terms: Sequence[Term]) -> int:
        """How many numbers it holds: steps, groups of the texts of a column, and rules."""
        return len(self.groups(rows, terms)) + len(self.rules)

    def groups(self, rows: Rows, terms: Sequence[Term]) -> list[list[int]]:
        """Bits that add something: of a number each alone, of a category those of one height."""
        found, first = list[list[int]](), rows.first
        for one in terms:
            own = [[bit] for j in one.inputs for bit in range(first[j], first[j + 1]) if self.bits[:, bit].any()]
            if one.category:
                alike = dict[tuple[float, ...], list[int]]()
                for (bit,) in own:
                    alike.setdefault(tuple(self.bits[:, bit]), []).append(bit)
                own = [*alike.values()]
            found += own
        return found

    def of(self, rows: Rows) -> Values:
        """The outputs of rows."""
        found = self.bias + rows.bits() @ self.bits.T
        for rule, value in self.rules.items():
            found += holds(rule, rows.codes)[:, None] * value
        return found


@dataclass(frozen=True)
class Design:
    """Columns of a fit: the bits, a trend of each number (all its bits together: as if a straight line had a variance
    too), then rules. terms: whose they are. trends: the first and last bit of each, and its scale.

    A row without a number has the median's bits in a network. In a fit it has the mean bits of the other rows, so that
    it says nothing of the steps near the median. flags: of each flag its bit, the first and last bit of the number, and
    by how much the mean bits are more than the median's.
    """

    x: Bits
    own: Int64[np.ndarray, " columns"]
    trends: list[tuple[int, int, float]]
    flags: list[tuple[int, int, int, np.ndarray]]

    @classmethod
    def of(cls, rows: Rows, terms: Sequence[Term]) -> Design:
        bits, first, own = rows.bits(), rows.first, np.empty(sum(rows.counts), np.int64)
        trends, of_trends, flags = list[tuple[int, int, float]](), list[int](), list[tuple[int, int, int, np.ndarray]]()
        for place, term in enumerate(terms):
            blank = rows.codes[:, [*term.flags]].any(1)
            for j in term.inputs:
                own[first[j] : first[j + 1]] = place
                if j not in term.flags and blank.any() and not blank.all():
                    a, b = int(first[j]), int(first[j + 1])
                    more = bits[~blank, a:b].mean(0) - bits[blank.argmax(), a:b]
                    bits[blank, a:b] += more
                    flags += [(int(first[flag]), a, b, more) for flag in term.flags]
                if rows.counts[j] >= TREND:
                    trends.append((int(first[j]), int(first[j + 1]), rows.counts[j] ** -0.5))
                    of_trends.append(len(terms) + place)
        lines = [bits[:, a:b].sum(1, keepdims=True) * scale for a, b, scale in trends]
        return cls(np.hstack([bits, *lines]), np.array([*own, *of_trends]), trends, flags)

    def kept(self, terms: int, chosen: np.ndarray) -> Design:
        """Without the terms that are not chosen."""
        return replace(self, x=self.x * np.isin(self.own % terms, chosen).astype(np.float32))

    def with_rules(self, terms: int, pairs: Sequence[Pair], codes: np.ndarray) -> Design:
        """With the rules of these pairs: the product is a term, and so is what the rules of a pair add beside it."""
        held = [np.stack([holds(rule, codes) for rule in pair.rules], 1) @ pair.parts.T for pair in pairs]
        own = [2 * (terms + place) + (k > 0) for place, pair in enumerate(pairs) for k in range(len(pair.parts))]
        return replace(self, x=np.hstack([self.x, *held]).astype(np.float32), own=np.array([*self.own, *own]))

    def of_bits(self, found: Smooth, bits: int) -> Float64[np.ndarray, "outputs bits"]:
        """The heights of bits alone, with what the trends add to them."""
        heights = found.heights[:, 1 : 1 + bits].copy()
        for (a, b, scale), height in zip(self.trends, found.heights[:, 1 + bits :].T, strict=False):
            heights[:, a:b] += height[:, None] * scale
        self.to_flags(heights)
        return heights

    def to_flags(self, heights: Float64[np.ndarray, "outputs bits"]) -> None:
        """Add to the heights of flags, in place, what the mean bits of a fit add beyond those of the network."""
        for flag, a, b, more in self.flags:
            heights[:, flag] += heights[:, a:b] @ more


def path(
    rows: Rows, terms: Sequence[Term], options: MLPNetwork, before: Smooth | None = None
) -> tuple[dict[tuple[float, int], Fit], Smooth]:
    """Fits by the price of a step and the number of pairs that have rules, and the one of all steps alone.

    before: from whose variances it begins.
    """
    design, count, fits = Design.of(rows, terms), len(terms), dict[tuple[float, int], Fit]()
    plain = smooth(rows, design.x, design.own, None if before is None else before.spread,
                   ROUNDS if before is None else MORE_ROUNDS, 1.0 if before is None else before.noise)  # fmt: skip
    heights, bits = design.of_bits(plain, sum(rows.counts)), rows.bits()
    own = design.own[: bits.shape[1]]
    strength = np.array([(bits[:, own == i] @ heights[:, own == i].T).std(0).sum() for i in range(count)])
    most = max(1, options.terms - options.pairs)
    if count > most:
        design = design.kept(count, np.argsort(-strength, kind="stable")[:most])
        plain = smooth(rows, design.x, design.own, plain.spread, MORE_ROUNDS, plain.noise)
    strongest = sorted(np.argsort(-strength)[:TRIED].tolist()) if options.pairs else []
    pairs = rules_of(rows, terms, plain.of(design.x), plain.noise, heights, strongest)[: options.pairs]
    made = dict[int, list[Fit]]()  # by the number of pairs that there are
    for some in sorted({0, options.pairs, *(few for few in SOME if few < options.pairs)}):
        there = pairs[:some]
        if len(there) not in made:
            made[len(there)] = _by_price(rows, terms, options, design, plain, there)
        fits |= {(price, some): fit for price, fit in zip(_prices(options), made[len(there)], strict=True)}
    return fits, plain


def _prices(options: MLPNetwork) -> tuple[float, ...]:
    return (*PRICES, *MORE) if options.steps else PRICES


def _by_price(
    rows: Rows, terms: Sequence[Term], options: MLPNetwork, design: Design, plain: Smooth, pairs: Sequence[Pair]
) -> list[Fit]:
    """Fits of all columns and the rules of these pairs, by the price of a step."""
    found, count = plain, len(terms)
    if pairs:
        design = design.with_rules(count, pairs, rows.codes)
        more = 2 * count + 2 * len(pairs) - plain.spread.shape[1]
        spread = np.hstack([plain.spread, np.full((rows.outputs, more), 10.0)])
        found = smooth(rows, design.x, design.own, spread, MORE_ROUNDS, plain.noise)
    made = stepped(rows, terms, design, found, pairs, _prices(options))
    return [refitted(rows, terms, fit) for fit in made] if options.steps else made


def stepped(
    rows: Rows, terms: Sequence[Term], design: Design, found: Smooth, pairs: Sequence[Pair], prices: Sequence[float]
) -> list[Fit]:
    """By price, fuse neighbouring values of each column, and texts of a category that add about the same; the most
    frequent group of texts adds nothing, and the bias has what it added."""
    first, heights = rows.first, design.of_bits(found, sum(rows.counts))
    curve = np.broadcast_to(rows.slopes(found.of(design.x))[1], (len(rows.y), rows.outputs)) / found.noise
    bits, bias = np.zeros((len(prices), *heights.shape)), np.tile(found.heights[:, 0], (len(prices), 1))
    for k in range(rows.outputs):
        mass, own = curve[:, k], heights[k]
        for one in terms:
            if one.category:
                places = first[[*one.inputs]]
                share = rows.codes[:, [*one.inputs]].T @ mass
                order = np.argsort(own[places], kind="stable")
                made = segments(own[places[order]], share[order], prices)
                usual = [max(of, key=lambda value: share[order][of == value].sum()) for of in made]
                bits[:, k, places[order]] = made - np.array(usual)[:, None]
                bias[:, k] += usual
                continue
            blank = rows.codes[:, [*one.flags]].any(1)
            for j in (j for j in one.inputs if j not in one.flags):
                values = np.concatenate([[0.0], np.cumsum(own[first[j] : first[j + 1]])])
                weights = np.bincount(rows.codes[:, j], mass * ~blank, rows.counts[j] + 1)
                made = segments(monotone(values, weights, one.slope_of(j, rows.counts)), weights, prices)
                bits[:, k, first[j] : first[j + 1]] = np.diff(made, axis=1)
                bias[:, k] += made[:, 0]
                if blank.any():  # they add what they added
                    cell = rows.codes[blank.argmax(), j]
                    bits[:, k, first[[*one.flags]]] -= (made[:, cell] - values[cell])[:, None]
            bits[:, k, first[[*one.flags]]] += own[first[[*one.flags]]]
    of_rules, place = dict[And, np.ndarray](), heights.shape[1] + len(design.trends) + 1
    for pair in pairs:
        own = pair.parts.T @ found.heights[:, place : place + len(pair.parts)].T
        of_rules |= zip(pair.rules, own, strict=True)
        place += len(pair.parts)
    return [Fit(bits[i], of_rules, bias[i]) for i in range(len(prices))]


def refitted(rows: Rows, terms: Sequence[Term], fit: Fit) -> Fit:
    """Fit the heights of few steps anew; those that are then against the slope of their column are 0."""
    groups, design = fit.groups(rows, terms), Design.of(rows, terms)
    of = [next(i for i, one in enumerate(terms) if j in one.inputs) for j in range(len(rows.counts)) if rows.counts[j]]
    by_bit = np.repeat(of, [count for count in rows.counts if count])
    own = [int(by_bit[group[0]]) for group in groups] + [len(terms)] * len(fit.rules)
    held = [holds(rule, rows.codes)[:, None] for rule in fit.rules]
    x = np.hstack([*(design.x[:, g].sum(1, keepdims=True) for g in groups), *held, np.zeros((len(rows.y), 0))])
    found = smooth(rows, x.astype(np.float32), np.array(own, np.int64), None, MORE_ROUNDS).heights
    heights = np.zeros_like(fit.bits)
    for place, group in enumerate(groups):
        slope = terms[own[place]].slope
        heights[:, group] = np.where(found[:, [1 + place]] * slope < 0, 0.0, found[:, [1 + place]])
    design.to_flags(heights)
    of_rules = found[:, 1 + len(groups) :].T
    return Fit(heights, dict(zip(fit.rules, of_rules, strict=True)), found[:, 0])


def learned(rows: Rows, terms: Sequence[Term], options: MLPNetwork) -> tuple[Fit, Values]:
    """The fit with the fewest steps that is as good as the best one out of fold, but for `LEVEL` standard errors; and
    the outputs of each row by a fit of the other folds."""
    fits, start = path(rows, terms, options)
    order = np.random.default_rng(0).permutation(len(rows.y))
    folds = list[tuple[np.ndarray, dict[tuple[float, int], Fit]]]()
    losses = {key: np.empty(len(rows.y)) for key in fits}
    for fold in range(FOLDS):
        held = np.sort(order[fold::FOLDS])
        outside, found = rows.some(held), path(rows.some(np.setdiff1d(order, held)), terms, options, start)[0]
        folds.append((held, found))
        for key, fit in found.items():
            losses[key][held] = outside.losses(fit.of(outside))
    steps = {key: fit.steps(rows, terms) for key, fit in fits.items()}
    fitting = [key for key in fits if not options.steps or steps[key] <= options.steps]
    fitting = fitting or [min(fits, key=lambda key: steps[key])]
    best = min(fitting, key=lambda key: losses[key].mean())
    if not options.steps:
        level = [key for key in fitting if _worse(losses[key] - losses[best]) <= LEVEL]
        best = min(level, key=lambda key: steps[key])
    outputs = np.empty((len(rows.y), rows.outputs))
    for held, found in folds:
        outputs[held] = rounded(found[best], rows, options.points)[0].of(rows.some(held))
    return rounded(fits[best], rows, options.points)[0], outputs


def _worse(by: Float64[np.ndarray, " rows"]) -> float:
    """How many standard errors a mean lies above 0."""
    return float(by.mean() / (by.std() / len(by) ** 0.5 + 1e-12))


# ---- as a network ----


def fit_readable(net: MLP, posed: Problem, options: MLPNetwork) -> tuple[dict[str, float | None], list[str]]:
    """Make a network without hidden layers a readable one, by the rows of training and validation; of many, by some.

    Returns:
        its metrics out of fold: each row by a fit of the other folds; and notes on what the figures are of.

    Raises:
        DataError: monotone names a column that is no number, or there are more than two classes.
    """
    assert isinstance(net.thermometer, Thermometer)
    assert isinstance(posed.preprocessor, Preprocessor)
    net.thermometer.threshold.copy_(short_thresholds(net, posed.examples(sys.maxsize), posed.preprocessor))
    rows, notes = known(net, posed.fitting(), posed.choosing()), [OUT_OF_FOLD]
    most = max(FITTED, int(WORK / sum(rows.counts) ** 2))
    if (count := len(rows.y)) > most:
        rows = rows.some(np.linspace(0, count - 1, most).astype(np.int64))
        notes.append(f"the network was fitted to {most:,} of {count:,} rows, evenly spread: more take too long")
    terms = terms_of(posed.preprocessor, options.monotone, net.thermometer.counts, posed.outputs)
    fit, found = learned(rows, terms, options)
    place(net, fit)
    outputs = torch.from_numpy(for_outputs(found.T, posed.outputs).T.copy())
    y = torch.from_numpy(rows.y if rows.classes else rows.y[:, None])
    weights = torch.from_numpy(rows.weights) if posed.weights else None
    threshold = posed.preprocessor.target.threshold
    return metrics(outputs, y, posed.task, posed.scale, weights=weights, threshold=threshold), notes


def short_thresholds(net: MLP, x: torch.Tensor, known: Preprocessor) -> torch.Tensor:
    """Thresholds of the same rows that have few digits in the unit of their column, of numbers and parts of dates.

    Each is a value that the network reads, between two of the rows.
    """
    assert isinstance(net.thermometer, Thermometer)
    made, unit = net.thermometer.threshold.clone(), 2**net.columns.exponent
    columns = inputs_of(known, Input("columns", (1,), 0, 1))
    for place, (j, threshold) in enumerate(zip(net.thermometer.column.tolist(), made.tolist(), strict=True)):
        said = columns[j]
        if said["kind"] in ("number", "date"):
            values, span = net.columns(x[:, j]).double(), said["high"] - said["low"]
            a, b = float(values[values < threshold].max()), float(values[values >= threshold].min())
            ends = (said["low"] + (w * a + (1 - w) * b) * span for w in (0.75, 0.5, 0.25))
            number = round((shortest(*ends) - said["low"]) / span * unit) / unit
            made[place] = number if a < number else b
    return made


def shortest(low: float, middle: float, high: float) -> float:
    """The number with the fewest digits in an interval, nearest to its middle."""
    rounded = (float(f"{middle:.{digits}g}") for digits in range(1, 18))
    return next((number for number in rounded if low <= number <= high), middle)


def terms_of(known: Preprocessor, slopes: Sequence[str], counts: Sequence[int], outputs: int) -> list[Term]:
    """The columns of a table as terms, those that have thresholds."""
    asked, numbers = {name[:-1]: 1 if name[-1] == "+" else -1 for name in slopes}, list[str]()
    found = list[Term]()
    for column in known.columns:
        inputs = tuple(int(j) for j in known.inputs_of(column.name) if counts[j])
        numbers += [column.name] * (column.kind in ("number", "date"))
        if inputs:
            flags = tuple(j for j in inputs if known.feature_names[j].startswith(f"{column.name} is "))
            found.append(Term(column.name, inputs, column.kind == "category", asked.get(column.name, 0), flags))
    if asked and (outputs > 2 or not asked.keys() <= {*numbers}):
        got = f"{outputs} classes" if outputs > 2 else listed(sorted(asked.keys() - {*numbers}))
        raise DataError(
            f"monotone: expected columns of numbers or dates, {listed(numbers)}, and two classes, got {got}"
        )
    return found


def rounded(fit: Fit, rows: Rows, points: int) -> tuple[Fit, float]:
    """The fit in integers times a power of two, and this.

    What the columns add is rounded, not each step, so that errors do not add up. points: the largest integer of a step;
    0: fine ones.
    """
    sums = [fit.bits[:, a:b].cumsum(1) for a, b in pairwise(rows.first)]
    digits = FINE["classification" if rows.classes else "regression"]
    if not all(np.isfinite(of).all() for of in (fit.bits, fit.bias, *fit.rules.values())):
        raise DataError("expected steps that are finite numbers, got others: is the target very large, or a weight 0?")
    while True:
        bits = np.concatenate([np.diff(np.rint(of * 2.0**digits), axis=1, prepend=0) for of in sums], 1)
        rules = {rule: np.rint(value * 2.0**digits) for rule, value in fit.rules.items()}
        if max(np.abs(bits).max(initial=0), *(np.abs(value).max() for value in rules.values()), 0) <= (points or MOST):
            break
        digits -= 1
    unit = 2.0**-digits
    kept = {rule: value * unit for rule, value in rules.items() if value.any()}
    return Fit(bits * unit, kept, np.rint(fit.bias / unit) * unit), unit


@torch.no_grad()
def place(net: MLP, fit: Fit) -> None:
    """Give a network these steps and rules, and the thresholds that they need."""
    assert isinstance(net.thermometer, Thermometer)
    first = np.cumsum([0, *net.thermometer.counts])
    read = (fit.bits != 0).any(0)
    read[[int(first[j] + cut) for rule in fit.rules for j, cut, _ in rule]] = True
    read[0] |= not read.any()  # a thermometer has a bit
    below = np.concatenate([[0], np.cumsum(read)])
    counts = [int(below[b] - below[a]) for a, b in pairwise(first)]
    thermometer = Thermometer(counts)
    thermometer.threshold.copy_(net.thermometer.threshold[torch.from_numpy(np.flatnonzero(read))])
    fewer = {tuple((j, int(below[first[j] + cut] - below[first[j]]), on) for j, cut, on in rule): value
             for rule, value in fit.rules.items()}  # fmt: skip
    net.thermometer, net.head = thermometer, nn.Linear(sum(counts), net.head.out_features)
    for of, value in ((net.head.weight, fit.bits[:, read]), (net.head.bias, fit.bias)):
        of.copy_(torch.from_numpy(for_outputs(value, len(of))))
    if fewer:
        set_leaves(net, as_bits(fewer, np.cumsum([0, *counts]), len(fit.bias)))
