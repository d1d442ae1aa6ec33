"""Readable networks of tables: a bias, step functions of the columns and a few rules of two of them.

    y = bias + sum over columns of f(column) + rules

Every f is a sum of steps at thresholds of a thermometer. They are fitted in four stages, each in closed form:

1. `smooth`: all steps at once, each shrunk by the variance of its column's steps, which the rows say (evidence).
2. `segments`: neighbouring values of f are fused while the loss rises by less than a price for each step.
3. `rules_of`: small trees over two columns, fitted to what the columns leave; a leaf is a rule.
4. `learned`: the steps that are left are fitted anew; price and number of rules are chosen out of fold.

At the end all numbers are integers times one power of two, so that sums are exact.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from torch import nn

from htaf.data.preprocess import Preprocessor
from htaf.data.reading import DataError, listed
from htaf.models.mlp import MLP, Thermometer
from htaf.program.integer.program import Input
from htaf.training.boosting import And, Rows, Values, as_bits, for_outputs, grown, holds, known, set_leaves
from htaf.training.problems import Problem
from htaf.training.runs.integer import inputs_of

FOLDS = 4
ROUNDS, FOLD_ROUNDS, REFIT_ROUNDS = 12, 4, 6  # of the variances; a fold begins with those of all rows
PRICES = tuple(0.05 * 2**k for k in range(9))  # of a step, in nats of the loss
MORE = tuple(0.05 * 2**k for k in range(9, 17))  # where there are to be few
SOME = (2,)  # pairs of columns that have rules; else as many as there may be
TRIED, RULE = 12, 1.0  # columns that are paired, and the price of a rule, in nats
WEAK = 0.5, 0.001  # of the variances before any rows are seen: what a term adds is never thought to be 0
LEVEL = 0.1  # standard errors by which fewer steps may be worse out of fold
DEPTH = 3  # questions of a rule
FEWEST = 10  # rows of a rule
SHARE = 0.005  # of the rows
WORK = 4e10  # rows times bits squared, at most: of more rows some are fitted
FINE = {"regression": 12, "classification": 10}  # binary digits behind the point
MOST = 2**15 - 1  # of an integer

Group = tuple[int, ...]  # bits with one height
Bits = Float32[np.ndarray, "rows bits"]


@dataclass(frozen=True)
class Term:
    """A column: its name, its inputs of a network, and whether these are the values of a category, one of which is
    1. slope: 1 or -1 where its function must not fall or not rise, else 0."""

    name: str
    inputs: tuple[int, ...]
    category: bool = False
    slope: int = 0

    def slope_of(self, j: int, counts: Sequence[int]) -> int:
        """Of an input: a flag beside a number has none."""
        return self.slope if counts[j] > 1 or len(self.inputs) == 1 else 0


@dataclass(frozen=True)
class Options:
    """How a readable network is made, as fields of a recipe say it, see `htaf.training.families.mlp.MLPNetwork`."""

    terms: int = 30
    steps: int = 0
    pairs: int = 5
    points: int = 0
    monotone: tuple[str, ...] = ()


@dataclass(frozen=True)
class Smooth:
    """Heights of bits, [outputs, 1 + bits], the bias first. spread: penalty of each term's heights, [outputs, terms].
    noise: variance of a number around its prediction, 1 of classes."""

    heights: Float64[np.ndarray, "outputs bits"]
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
            inverse = torch.linalg.inv(gram + torch.diag(penalty))
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
    values: Float64[np.ndarray, " cells"], weights: Float64[np.ndarray, " cells"], price: float
) -> Float64[np.ndarray, " cells"]:
    """The step function with the least sum of weights (values - it)^2 / 2 and the price of each step."""
    sums = [np.concatenate([[0.0], np.cumsum(v)]) for v in (weights, weights * values, weights * values**2)]
    best, start = np.zeros(len(values) + 1), np.zeros(len(values), np.int64)
    best[0] = -price
    for end in range(1, len(values) + 1):
        mass, first, second = (of[end] - of[:end] for of in sums)
        cost = best[:end] + price + (second - first**2 / np.maximum(mass, 1e-12)) / 2
        start[end - 1] = cost.argmin()
        best[end] = cost[start[end - 1]]
    made, end = np.empty(len(values)), len(values)
    while end:
        begin = start[end - 1]
        made[begin:end] = np.average(values[begin:end], weights=weights[begin:end] + 1e-12)
        end = begin
    return made


def fused(rows: Rows, terms: Sequence[Term], found: Smooth, curve: Values, price: float) -> list[Group]:
    """What is left of the bits: of an input the steps that are not fused, each alone; of a category those of one value
    together, without those of the most frequent one."""
    first, groups = np.cumsum([0, *rows.counts]), dict[Group, None]()
    for k in range(rows.outputs):
        heights, mass = found.heights[k, 1:], curve[:, k] / found.noise
        for one in terms:
            if one.category:
                places = np.array([first[j] for j in one.inputs])
                share = np.array([mass @ rows.codes[:, j] for j in one.inputs])
                order = np.argsort(heights[places], kind="stable")
                made = segments(heights[places][order], share[order], price)
                alike = [order[made == value] for value in np.unique(made)]
                usual = max(range(len(alike)), key=lambda i: share[alike[i]].sum())
                groups |= {tuple(sorted(places[of].tolist())): None for i, of in enumerate(alike) if i != usual}
                continue
            for j in one.inputs:
                values = np.concatenate([[0.0], np.cumsum(heights[first[j] : first[j + 1]])])
                weights = np.bincount(rows.codes[:, j], mass, rows.counts[j] + 1)
                made = segments(monotone(values, weights, one.slope_of(j, rows.counts)), weights, price)
                groups |= {(int(first[j] + cut),): None for cut in np.flatnonzero(np.diff(made))}
    return sorted(groups)


def monotone(values: np.ndarray, weights: np.ndarray, slope: int) -> np.ndarray:
    """The nearest values that do not fall (slope 1) or do not rise (-1); 0: as they are."""
    from sklearn.isotonic import isotonic_regression

    return isotonic_regression(values, sample_weight=weights + 1e-9, increasing=slope > 0) if slope else values


def rules_of(rows: Rows, terms: Sequence[Term], f: Values, noise: float, strength: np.ndarray) -> list[list[And]]:
    """Leaves of small trees, each over two columns, for what f leaves: of each pair the leaves but the largest one; the
    pairs by how much they lower the loss beyond the price of their leaves.

    noise: see `Smooth`. strength: of each term; the strongest `TRIED` are looked at.
    """
    slope, curve = (np.broadcast_to(of, f.shape) for of in rows.slopes(f))
    bins, before = np.array(rows.counts) + 1, rows.losses(f)
    strongest = [i for i in np.argsort(-strength)[:TRIED].tolist() if not terms[i].slope]
    least, found = max(FEWEST, round(SHARE * len(f))), list[tuple[float, list[And]]]()
    for a, b in combinations(sorted(strongest), 2):
        columns = {terms[a].inputs, terms[b].inputs}
        tree = grown(rows.codes, slope, curve, bins, np.array([*terms[a].inputs, *terms[b].inputs]), least, DEPTH)
        leaves = [*tree.paths()]
        gain = (before - rows.losses(f + tree.of(rows.codes))).sum() / noise - RULE * len(leaves)
        if gain > 0 and all(any(j in own for path in leaves for j, *_ in path) for own in columns):
            usual = max(leaves, key=lambda path: holds(path, rows.codes).sum())
            found.append((gain, [path for path in leaves if path != usual]))
    return [leaves for _, leaves in sorted(found, key=lambda one: -one[0])]


@dataclass(frozen=True)
class Fit:
    """A readable model: heights, [outputs, 1 + groups + rules], the bias first, of groups of bits and of rules."""

    groups: tuple[Group, ...]
    rules: tuple[And, ...]
    heights: Float64[np.ndarray, "outputs features"]

    @property
    def steps(self) -> int:
        """Steps and rules."""
        return len(self.groups) + len(self.rules)

    def features(self, rows: Rows, bits: Bits) -> Bits:
        made = [bits[:, list(group)].sum(1) for group in self.groups]
        made += [holds(rule, rows.codes).astype(np.float32) for rule in self.rules]
        return np.stack(made, 1) if made else np.zeros((len(bits), 0), np.float32)

    def of(self, rows: Rows, bits: Bits) -> Values:
        return self.heights[:, 0] + self.features(rows, bits) @ self.heights[:, 1:].T


def refitted(
    rows: Rows,
    bits: Bits,
    terms: Sequence[Term],
    term: np.ndarray,
    groups: Sequence[Group],
    pairs: Sequence[list[And]],
    before: Smooth,
) -> tuple[Fit, Smooth, Values]:
    """Fit the heights of what is left anew, without steps against the slope of their column; what it gives is the fit,
    all heights by bit, and the outputs.

    term: of each bit. before: whose penalties it begins with.
    """
    groups, started = [*groups], before.spread[:, : len(terms)]
    started = np.concatenate([started, np.full((rows.outputs, len(pairs)), started.min())], 1)
    while True:
        made = Fit(tuple(groups), tuple(rule for rules in pairs for rule in rules), np.zeros((0, 0)))
        x = made.features(rows, bits)
        own = [int(term[group[0]]) for group in groups]
        own += [len(terms) + i for i, rules in enumerate(pairs) for _ in rules]
        found = smooth(rows, x, np.array(own, np.int64), started, REFIT_ROUNDS, before.noise)
        slopes = np.array([terms[term[group[0]]].slope for group in groups])
        against = (found.heights[0, 1 : 1 + len(groups)] * slopes < 0) if len(groups) else np.zeros(0, bool)
        if not against.any():
            break
        groups = [group for group, bad in zip(groups, against, strict=True) if not bad]
    every = np.zeros((rows.outputs, 1 + bits.shape[1]))
    for place, group in enumerate(groups):
        every[:, [1 + bit for bit in group]] = found.heights[:, [1 + place]]
    return replace(made, heights=found.heights), replace(found, heights=every), found.of(x)


def path(
    rows: Rows, terms: Sequence[Term], options: Options, before: Smooth | None = None
) -> tuple[dict[tuple[float, int], Fit], Smooth]:
    """Fits by the price of a step and the number of pairs that have rules, and the smooth one from which they come."""
    bits, first = rows.bits(), np.cumsum([0, *rows.counts])
    term = np.empty(first[-1], np.int64)
    for place, one in enumerate(terms):
        for j in one.inputs:
            term[first[j] : first[j + 1]] = place
    if before is None:
        start = smooth(rows, bits, term, None, ROUNDS)
    else:
        start = smooth(rows, bits, term, before.spread, FOLD_ROUNDS, before.noise)
    f = start.of(bits)
    strength = np.array([_moved(start, bits, term == place) for place in range(len(terms))])
    kept = np.sort(np.argsort(-strength, kind="stable")[: options.terms - options.pairs])
    pairs = rules_of(rows, terms, f, start.noise, strength)[: options.pairs] if options.pairs else []
    fits, now = dict[tuple[float, int], Fit](), start
    for price in (*PRICES, *(MORE if options.steps else ())):
        groups = fused(rows, [terms[place] for place in kept], now, rows.slopes(f)[1], price)
        for some in {options.pairs, *(few for few in SOME if 0 < few <= options.pairs)} - {0}:
            fits[price, some] = refitted(rows, bits, terms, term, groups, pairs[:some], now)[0]
        fits[price, 0], now, f = refitted(rows, bits, terms, term, groups, [], now)
    return fits, start


def _moved(found: Smooth, bits: Bits, own: np.ndarray) -> float:
    """How much a term moves the outputs."""
    return float((bits[:, own] @ found.heights[:, 1:][:, own].T).std(0).sum())


def learned(rows: Rows, terms: Sequence[Term], options: Options) -> Fit:
    """The fit with the fewest steps that is as good as the best one out of fold, but for `LEVEL` standard errors."""
    most = max(8192, int(WORK / sum(rows.counts) ** 2))
    if len(rows.y) > most:
        rows = rows.some(np.linspace(0, len(rows.y) - 1, most).astype(np.int64))
    fits, start = path(rows, terms, options)
    order, losses = np.random.default_rng(0).permutation(len(rows.y)), {key: np.empty(len(rows.y)) for key in fits}
    for fold in range(FOLDS):
        held = np.sort(order[fold::FOLDS])
        outside, inside = rows.some(held), rows.some(np.setdiff1d(order, held))
        bits = outside.bits()
        for key, fit in path(inside, terms, options, start)[0].items():
            losses[key][held] = outside.losses(fit.of(outside, bits))
    fitting = [key for key, fit in fits.items() if not options.steps or fit.steps <= options.steps]
    fitting = fitting or [min(fits, key=lambda key: fits[key].steps)]
    best = min(fitting, key=lambda key: losses[key].mean())
    if options.steps:
        return fits[best]
    level = [key for key in fitting if _worse(losses[key] - losses[best]) <= LEVEL]
    return fits[min(level, key=lambda key: fits[key].steps)]


def _worse(by: Float64[np.ndarray, " rows"]) -> float:
    """How many standard errors a mean lies above 0."""
    return float(by.mean() / (by.std() / len(by) ** 0.5 + 1e-12))


# ---- as a network ----


def fit_readable(net: MLP, posed: Problem, options: Options) -> None:
    """Make a network without hidden layers a readable one, by all rows of training and validation.

    Raises:
        DataError: monotone names a column that is no number, or there are more than two classes.
    """
    assert isinstance(net.thermometer, Thermometer)
    assert isinstance(posed.preprocessor, Preprocessor)
    net.thermometer.threshold.copy_(short_thresholds(net, posed.examples(sys.maxsize), posed.preprocessor))
    rows = known(net, posed.fitting(), posed.choosing())
    terms = terms_of(posed.preprocessor, options.monotone, net.thermometer.counts, posed.outputs)
    place(net, rounded(learned(rows, terms, options), rows, options.points))


def short_thresholds(net: MLP, x: torch.Tensor, known: Preprocessor) -> torch.Tensor:
    """Thresholds of the same rows that have few digits in the unit of their column, of numbers and parts of dates.

    Each is a value that the network reads, between two of the rows.
    """
    assert isinstance(net.thermometer, Thermometer)
    made, columns, unit = (
        net.thermometer.threshold.clone(),
        inputs_of(known, Input("columns", (1,), 0, 1)),
        2**net.columns.exponent,
    )
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
    asked, numbers = {name[1:]: 1 if name[0] == "+" else -1 for name in slopes}, list[str]()
    found = list[Term]()
    for column in known.columns:
        inputs = tuple(int(j) for j in known.inputs_of(column.name) if counts[j])
        numbers += [column.name] * (column.kind in ("number", "date"))
        if inputs:
            found.append(Term(column.name, inputs, column.kind == "category", asked.get(column.name, 0)))
    if asked and (outputs > 2 or not asked.keys() <= {*numbers}):
        got = f"{outputs} classes" if outputs > 2 else listed(sorted(asked.keys() - {*numbers}))
        raise DataError(
            f"monotone: expected columns of numbers or dates, {listed(numbers)}, and two classes, got {got}"
        )
    return found


@dataclass(frozen=True)
class Points:
    """A fit in integers times `unit`, a power of two: heights of each bit and rule, and the bias, [outputs, ...]."""

    unit: float
    bits: Int64[np.ndarray, "outputs bits"]
    rules: dict[And, Int64[np.ndarray, " outputs"]]
    bias: Int64[np.ndarray, " outputs"]
    counts: tuple[int, ...]


def rounded(fit: Fit, rows: Rows, points: int) -> Points:
    """Round what the columns add, not each step, so that errors do not add up."""
    first, heights = np.cumsum([0, *rows.counts]), np.zeros((rows.outputs, sum(rows.counts)))
    for group, height in zip(fit.groups, fit.heights[:, 1:].T, strict=False):
        heights[:, [*group]] = height[:, None]
    sums = np.concatenate([heights[:, a:b].cumsum(1) for a, b in pairwise(first)], 1)
    of_rules = fit.heights[:, 1 + len(fit.groups) :]
    digits = FINE["classification" if rows.classes else "regression"]
    while True:
        made = np.rint(sums * 2.0**digits).astype(np.int64)
        bits = np.concatenate([np.diff(made[:, a:b], axis=1, prepend=0) for a, b in pairwise(first)], 1)
        rules, bias = (np.rint(one * 2.0**digits).astype(np.int64) for one in (of_rules, fit.heights[:, 0]))
        if max(np.abs(bits).max(initial=0), np.abs(rules).max(initial=0)) <= (points or MOST):
            break
        digits -= 1
    kept = {rule: rules[:, i] for i, rule in enumerate(fit.rules) if rules[:, i].any()}
    return Points(2.0**-digits, bits, kept, bias, rows.counts)


@torch.no_grad()
def place(net: MLP, points: Points) -> None:
    """Give a network these steps and rules, and the thresholds that they need."""
    assert isinstance(net.thermometer, Thermometer)
    first = np.cumsum([0, *points.counts])
    read = (points.bits != 0).any(0)
    read[[int(first[j] + cut) for rule in points.rules for j, cut, _ in rule]] = True
    read[0] |= not read.any()  # a thermometer has a bit
    below = np.concatenate([[0], np.cumsum(read)])
    counts = [int(below[b] - below[a]) for a, b in pairwise(first)]
    thermometer = Thermometer(counts)
    thermometer.threshold.copy_(net.thermometer.threshold[torch.from_numpy(np.flatnonzero(read))])
    fewer = {tuple((j, int(below[first[j] + cut] - below[first[j]]), on) for j, cut, on in rule): value
             for rule, value in points.rules.items()}  # fmt: skip
    net.thermometer, net.head = thermometer, nn.Linear(sum(counts), net.head.out_features)
    for of, value in ((net.head.weight, points.bits[:, read]), (net.head.bias, points.bias)):
        of.copy_(torch.from_numpy(for_outputs(value * points.unit, len(of))))
    if fewer:
        set_leaves(net, as_bits(fewer, np.cumsum([0, *counts]), len(points.bias)), points.unit)
