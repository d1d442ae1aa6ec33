"""What stands beside the bits of a network for tables, a linear part and leaves of boosted trees: fitted before the
bits learn what these leave. At the end the validation rows choose by how much the bits count.

The trees ask for bits of a thermometer, and their leaves become hidden units.
scikit-learn's HistGradientBoosting takes no outputs to begin from, and its trees cannot be read by a public way.
"""

from __future__ import annotations

import copy
import itertools
import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64, Integer, Shaped
from torch import nn

from htaf.data.parts import Part, TableBatches
from htaf.models.mlp import MLP, Leaves, Thermometer
from htaf.training.finish import refitted
from htaf.training.problems import Problem
from htaf.training.runs.metrics import loss_function
from htaf.transform import hardening

RATE = 0.15  # of what a tree says
DEPTH = 4
LEAST, MOST_LEAST = 3, 20  # rows of a leaf: more where a tree has many cuts to choose from, each with few rows
RIDGE = 1.0  # added to the curvature of a leaf
SHARE = 0.75  # of the columns, for each tree
PATIENCE = 30  # trees without a better validation loss
MOST_TREES = 1000
MOST_ROWS = 16_384  # for each tree
MOST_CELLS = 2**20  # rows times columns times outputs of a tree; at least the square root of the columns is seen

SHARES = tuple(k / 20 for k in range(21))  # by which the bits may count
CHUNK = 8192  # rows at once where nothing is learned

And = tuple[tuple[int, int, bool], ...]  # column, threshold, and whether it is reached
Values = Float64[np.ndarray, "rows outputs"]
Outputs = Float64[np.ndarray, " outputs"]


@dataclass(frozen=True)
class Rows:
    """What trees and readable networks learn from.

    codes: how many thresholds of each column a row reaches. counts: thresholds of each column; the bits are those of
    the first column, of the second, and so on. y: numbers [rows], or class codes. classes: 0 of numbers. weights: of
    mean 1. start: the outputs that trees are added to.
    """

    codes: Integer[np.ndarray, "rows columns"]
    counts: tuple[int, ...]
    y: Shaped[np.ndarray, " rows"]
    classes: int
    weights: Float64[np.ndarray, " rows"]
    start: Values

    @property
    def outputs(self) -> int:
        """Scores of a row; of two classes the second alone has one."""
        return 1 if self.classes < 3 else self.classes

    @property
    def first(self) -> Int64[np.ndarray, " columns"]:
        """The place of each column's first bit, and the number of bits."""
        return np.cumsum([0, *self.counts])

    def some(self, rows: np.ndarray) -> Rows:
        """Take these rows alone."""
        taken = {name: getattr(self, name)[rows] for name in ("codes", "y", "weights", "start")}
        return replace(self, **taken)

    def bits(self) -> Float32[np.ndarray, "rows bits"]:
        """The thermometer."""
        made = [self.codes[:, j : j + 1] > np.arange(count) for j, count in enumerate(self.counts)]
        return np.concatenate(made, 1).astype(np.float32)

    def slopes(self, f: Values) -> tuple[Values, Values]:
        """Of each row's likelihood, and its curvature, both times the row's weight; numbers have a variance of 1."""
        if not self.classes:
            return (self.y[:, None] - f) * self.weights[:, None], self.weights[:, None]
        p = 1 / (1 + np.exp(-f)) if self.outputs == 1 else np.exp(f - np.logaddexp.reduce(f, axis=1)[:, None])
        is_class = self.y[:, None] == (np.ones(1) if self.outputs == 1 else np.arange(self.classes))
        return (is_class - p) * self.weights[:, None], np.maximum(p * (1 - p), 1e-4) * self.weights[:, None]

    def losses(self, f: Values) -> Float64[np.ndarray, " rows"]:
        """Of each row: half of the squared error, or the cross-entropy."""
        if not self.classes:
            return (self.y - f[:, 0]) ** 2 / 2 * self.weights
        if self.outputs == 1:
            return (np.logaddexp(0, f[:, 0]) - self.y * f[:, 0]) * self.weights
        return (np.logaddexp.reduce(f, axis=1) - f[np.arange(len(f)), self.y]) * self.weights


@dataclass(frozen=True)
class Ands:
    """Leaves as ands of bits: one is on where `weight @ bits` is `needed`, and below it elsewhere.

    weight: 1 for a bit that must be 1, -1 for one that must be 0. needed: how many bits must be 1. value: what a leaf
    adds to each output.
    """

    weight: Float32[np.ndarray, "leaves bits"]
    needed: Int64[np.ndarray, " leaves"]
    value: Float64[np.ndarray, "outputs leaves"]


@dataclass(frozen=True)
class Tree:
    """A tree of full depth: by level, of each node, the column that it asks, the threshold, and whether it asks at all,
    else all rows go left; and what each leaf says."""

    levels: list[tuple[Int64[np.ndarray, " _"], Int64[np.ndarray, " _"], Bool[np.ndarray, " _"]]]
    value: Float64[np.ndarray, "leaves outputs"]

    def of(self, codes: Integer[np.ndarray, "rows columns"]) -> Float64[np.ndarray, "rows outputs"]:
        node, rows = np.zeros(len(codes), np.int64), np.arange(len(codes))
        for column, cut, asks in self.levels:
            node = 2 * node + ((codes[rows, column[node]] > cut[node]) & asks[node])
        return self.value[node]

    def paths(self) -> dict[And, Outputs]:
        """Of each leaf that rows can reach the answers on the way, without those that another one implies; and what the
        leaf says."""
        found = dict[And, Outputs]()
        for leaf, turns in enumerate(itertools.product((False, True), repeat=len(self.levels))):
            node, tightest, empty = 0, dict[tuple[int, bool], int](), False
            for (column, cut, asks), right in zip(self.levels, turns, strict=True):
                if asks[node]:
                    key, now = (int(column[node]), right), int(cut[node])
                    tightest[key] = (max if right else min)(tightest.get(key, now), now)
                else:
                    empty |= right
                node = 2 * node + right
            if not empty:
                found[tuple(sorted((column, cut, right) for (column, right), cut in tightest.items()))] = self.value[
                    leaf
                ]
        return found


def boosted(train: Rows, validation: Rows, most: int, seed: int) -> Ands:
    """The leaves of trees that each lower the loss of those before: Newton's steps, as many trees as are best on the
    validation rows.

    Args:
        most: leaves; equal ones of several trees are one.

    Source: Friedman 2001, "Greedy function approximation"; second order as Chen and Guestrin 2016.
    """
    rng, bins, outputs = np.random.default_rng(seed), np.array(train.counts) + 1, train.outputs
    asked, least = np.flatnonzero(bins > 1), least_rows(sum(train.counts), len(train.start))
    rate = RATE if outputs == 1 else RATE * (outputs - 1) / outputs  # curvatures of a diagonal alone: too far a step
    now, seen = train.start.copy(), validation.start.copy()
    best, rounds, kept = validation.losses(seen).mean(), 0, 0
    found = dict[And, list[tuple[int, Outputs]]]()
    while rounds < min(kept + PATIENCE, MOST_TREES):
        slope, curve = (np.broadcast_to(of, now.shape) for of in train.slopes(now))
        columns = _columns(rng, asked, min(len(now), MOST_ROWS) * outputs)
        rows = _rows(rng, len(now))
        tree = grown(train.codes[rows], slope[rows], curve[rows], bins, columns, least)
        tree = replace(tree, value=rate * tree.value)
        paths = tree.paths()
        if len(found) + len(paths.keys() - found.keys()) > most:
            break
        for path, value in paths.items():
            found.setdefault(path, []).append((rounds, value))
        now += tree.of(train.codes)
        seen += tree.of(validation.codes)
        rounds += 1
        if (loss := validation.losses(seen).mean()) < best:
            best, kept = loss, rounds
    values = {path: [value for at, value in each if at < kept] for path, each in found.items()}
    return as_bits({path: np.sum(each, 0) for path, each in values.items() if each}, train.first, outputs)


def least_rows(cuts: int, rows: int) -> int:
    """Of a leaf: with 48 cuts of 200 columns and 300 rows the best of them all is one by chance, and more so the fewer
    rows it parts off."""
    return min(max(LEAST, cuts // rows), MOST_LEAST)


def _columns(rng: np.random.Generator, asked: Int64[np.ndarray, " columns"], cells: int) -> Int64[np.ndarray, " some"]:
    fit = MOST_CELLS // cells  # of a column
    count = min(round(len(asked) * SHARE + 0.5), max(fit, round(len(asked) ** 0.5)), len(asked))
    return np.sort(rng.choice(asked, count, replace=False))


def _rows(rng: np.random.Generator, rows: int) -> Int64[np.ndarray, " some"] | slice:
    return slice(None) if rows <= MOST_ROWS else np.sort(rng.choice(rows, MOST_ROWS, replace=False))


@dataclass(frozen=True)
class _Cuts:
    """The places where a node may divide its rows: behind every bin of a column but its last.

    first: the bin in which each column begins, of all columns one after another. bins: how many there are. bin, column:
    of each cut.
    """

    first: Int64[np.ndarray, " columns"]
    bins: int
    bin: Int64[np.ndarray, " cuts"]
    column: Int64[np.ndarray, " cuts"]

    @classmethod
    def of(cls, sizes: Int64[np.ndarray, " columns"]) -> _Cuts:
        last, column = np.cumsum(sizes) - 1, np.repeat(np.arange(len(sizes)), sizes)
        inner = np.delete(np.arange(len(column)), last)
        return cls(last + 1 - sizes, len(column), inner, column[inner])

    def below(
        self, values: Float64[np.ndarray, " rows"], place: Int64[np.ndarray, "rows columns"], nodes: int
    ) -> Float64[np.ndarray, "nodes cuts"]:
        """Sums over the rows of each node that lie in the bin of a cut, or in one of its column before it.

        place: node * bins + bin, of each row and column.
        """
        each = np.repeat(values, place.shape[1])
        sums = np.bincount(place.ravel(), each, nodes * self.bins).reshape(nodes, self.bins).cumsum(1)
        sums = np.hstack([np.zeros((nodes, 1)), sums])
        return sums[:, self.bin + 1] - sums[:, self.first[self.column]]


def grown(
    codes: Integer[np.ndarray, "rows columns"],
    slope: Float64[np.ndarray, "rows outputs"],
    curve: Float64[np.ndarray, "rows outputs"],
    bins: Int64[np.ndarray, " columns"],
    columns: Int64[np.ndarray, " some"],
    least: int,
    most: int = DEPTH,
) -> Tree:
    """The tree that lowers the loss most, node by node, of these columns, with so many rows in a leaf or more.

    slope, curve: see `Rows.slopes`. bins: of each column. most: its depth.
    """
    cuts = _Cuts.of(bins[columns])
    flat = codes[:, columns] + cuts.first
    plain, rows = bool((curve == 1).all()), np.arange(len(codes))
    node, levels = np.zeros(len(codes), np.int64), []
    for depth in range(most):
        nodes = 1 << depth
        place = flat + (node * cuts.bins)[:, None]
        gain, count = np.zeros((nodes, len(cuts.bin))), np.zeros((nodes, len(cuts.bin)))
        for k in range(slope.shape[1]):
            left, left_curve = (cuts.below(v[:, k], place, nodes) for v in (slope, curve))
            whole, whole_curve = (np.bincount(node, v[:, k], nodes)[:, None] for v in (slope, curve))
            gain += left**2 / (left_curve + RIDGE) + (whole - left) ** 2 / (whole_curve - left_curve + RIDGE)
            gain -= whole**2 / (whole_curve + RIDGE)
            if k == 0:
                count = left_curve if plain else cuts.below(np.ones(len(codes)), place, nodes)
        few = np.minimum(count, np.bincount(node, minlength=nodes)[:, None] - count) < least
        gain[few] = -np.inf
        chosen = gain.argmax(1)
        asks = gain[np.arange(nodes), chosen] > 1e-12
        column, cut = columns[cuts.column[chosen]], cuts.bin[chosen] - cuts.first[cuts.column[chosen]]
        levels.append((column, cut, asks))
        node = 2 * node + ((codes[rows, column[node]] > cut[node]) & asks[node])
    sums = [np.stack([np.bincount(node, v, 1 << most) for v in of.T], 1) for of in (slope, curve)]
    return Tree(levels, sums[0] / (sums[1] + RIDGE))


def holds(rule: And, codes: np.ndarray) -> np.ndarray:
    """Whether a rule holds, by row."""
    return np.all([(codes[:, j] > cut) == reached for j, cut, reached in rule], axis=0)


def as_bits(
    values: dict[And, Outputs],
    first: Int64[np.ndarray, " columns"],
    outputs: int,
) -> Ands:
    """Write ands as weights of bits; first: the place of each column's first bit, and the number of bits."""
    weight, value = np.zeros((len(values), first[-1]), np.float32), np.zeros((outputs, len(values)))
    for leaf, (path, output) in enumerate(values.items()):
        for column, cut, reached in path:
            weight[leaf, first[column] + cut] = 1 if reached else -1
        value[:, leaf] = output
    return Ands(weight, (weight > 0).sum(1), value)


def fit_direct(net: MLP, posed: Problem) -> None:
    """Make the linear layer of the inputs the linear model that is best on the validation rows; the head's bias, which
    no constant is left for, starts as zeros."""
    assert net.direct is not None
    made, _ = refitted(net.direct, posed)
    net.direct.load_state_dict(made.state_dict())
    nn.init.zeros_(net.head.bias)


def fit_leaves(net: MLP, posed: Problem) -> None:
    """Make the leaves those of boosted trees on what the linear model leaves."""
    assert isinstance(net.thermometer, Thermometer)
    assert isinstance(net.leaves, Leaves)
    nn.init.zeros_(net.head.bias)  # the trees begin from the linear part, or from 0
    seed = torch.initial_seed()  # the training's: what is drawn next depends on the size that the network had before
    train, validation = known(net, posed.fitting()), known(net, posed.choosing())
    found = boosted(train, validation, net.leaves.count, seed)
    if len(found.needed):
        set_leaves(net, found)
    else:
        net.leaves = None


def set_leaves(net: MLP, ands: Ands) -> None:
    """Give a network these leaves."""
    outputs = net.head.out_features
    net.leaves = Leaves(ands.weight.shape[1], len(ands.needed), outputs)
    value = for_outputs(ands.value, outputs)
    net.leaves.place(*(torch.from_numpy(of).float() for of in (ands.weight, ands.needed, value)))


def for_outputs(values: Float64[np.ndarray, "scores ..."], outputs: int) -> Float64[np.ndarray, "outputs ..."]:
    """Values of scores as a network has them: of two classes the first one has zeros."""
    return values if len(values) == outputs else np.concatenate([np.zeros_like(values), values])


def known(net: MLP, *parts: Part) -> Rows:
    """Read parts as trees take them, in chunks."""
    assert isinstance(net.thermometer, Thermometer)
    counts, outputs = net.thermometer.counts, net.head.out_features
    asked = [j for j, count in enumerate(counts) if count]
    first = np.cumsum([0, *(counts[j] for j in asked)])[:-1]
    read = list[tuple[np.ndarray, np.ndarray, np.ndarray]]()
    with torch.no_grad():
        for given, y in itertools.chain(*parts):
            x = net.columns(given)
            reached = np.zeros((len(x), len(counts)), np.int16)
            reached[:, asked] = np.add.reduceat(net.thermometer(x).numpy(), first, axis=1)
            plain = torch.zeros(len(x), outputs) if net.direct is None else net.direct(x)
            read.append((reached, plain.double().numpy(), y.numpy()))
    codes, start, y = (np.concatenate(each) for each in zip(*read, strict=True))
    weights = [np.ones(len(one)) if one.weights is None else one.weights.double().numpy() for one in parts]
    classes, y = (0, y[:, 0].astype(np.float64)) if y.ndim == 2 else (outputs, y.astype(np.int64))
    start = start[:, 1:] - start[:, :1] if classes == 2 else start
    return Rows(codes, counts, y, classes, np.concatenate(weights), start)


@torch.no_grad()
def shrunk(net: nn.Module, posed: Problem) -> tuple[nn.Module, hardening.Report]:
    """The network with what its bits add to what was fitted before them, a linear part and leaves of trees, times a
    share.

    The share is the mean of `SHARES`, each weighted by the likelihood of the validation rows with it, where numbers are
    normal around their predictions: with few rows the choice is soft, and small.
    """
    begin, made, part = time.perf_counter(), copy.deepcopy(net), posed.choosing()
    assert isinstance(made, MLP)
    device, loss = made.head.weight.device, loss_function(posed.task)
    rows = [(x.to(device), y.to(device)) for x, y in part]
    whole = torch.cat([net(x).double() for x, _ in rows])
    learned = torch.cat([made.head(made.hidden(made.thermometer(made.columns(x)))).double() for x, _ in rows])
    plain, y = whole - learned, torch.cat([y for _, y in rows])
    weights = None if part.weights is None else part.weights.to(device)
    of_y = y.double() if y.is_floating_point() else y
    losses = torch.stack([loss(plain + share * (whole - plain), of_y, weights) for share in SHARES]).cpu()
    unit = 2 * float(losses.min()) if posed.task == "regression" else 1.0
    likely = torch.softmax(-losses * len(part) / max(unit, 1e-12), 0)
    share = float(likely @ torch.tensor(SHARES, dtype=torch.float64))
    for parameter in made.head.parameters():
        parameter *= share
    note = (f"what the bits add to what was fitted before them counts {share:.2f}",)
    return made, hardening.Report("shrink", time.perf_counter() - begin, None, None, (), note)


def given_once(posed: Problem, net: MLP) -> Problem:
    """The same problem, in which what is added to the outputs of the bits follows the columns of the inputs.

    Args:
        net: with a thermometer and a linear layer, leaves, or both, that do not learn; changed in place: while
            `net.given` it takes such inputs alone.
    """
    seen: dict[int, TableBatches] = {}

    @torch.no_grad()
    def wider(part: Part) -> Part:
        data = part.data
        assert isinstance(data, TableBatches)
        if id(data) not in seen:
            found = (net.beside(x, net.thermometer(x)) for x in map(net.columns, data.x.split(CHUNK)))
            added = torch.cat([outputs.to(data.x) for outputs in found if outputs is not None])
            seen[id(data)] = replace(data, beside=added)
        return replace(part, data=seen[id(data)])

    parts = {name: getattr(posed, name) for name in ("train", "validation", "test", "statistics", "plain")}
    posed = replace(posed, **{name: wider(part) for name, part in parts.items() if part is not None})
    net.given = True
    return posed
