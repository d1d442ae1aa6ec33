"""What stands beside the bits of a network for tables, a linear part and leaves of boosted trees: fitted before the
bits learn what these leave. At the end the validation rows choose by how much the bits count.

The trees ask for bits of a thermometer, and their leaves become hidden units.
scikit-learn's HistGradientBoosting takes no outputs to begin from, and its trees cannot be read by a public way.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Sequence
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
Outputs = Float64[np.ndarray, " outputs"]


@dataclass(frozen=True)
class Known:
    """Rows that trees learn from, or that say when they have learned enough.

    codes: how many thresholds of each column a row reaches. start: the outputs that the trees are added to. y: numbers
    [rows, 1], or class codes [rows]. weights: of mean 1; None: all rows count alike.
    """

    codes: Integer[np.ndarray, "rows columns"]
    start: Float64[np.ndarray, "rows outputs"]
    y: Shaped[np.ndarray, "rows ..."]
    weights: Float64[np.ndarray, " rows"] | None = None

    def loss(self, outputs: Float64[np.ndarray, "rows outputs"]) -> float:
        """The mean squared error, or the mean cross-entropy."""
        task = "regression" if self.y.ndim == 2 else "classification"
        weights = None if self.weights is None else torch.from_numpy(self.weights)
        y = self.y.astype(np.float64 if self.y.ndim == 2 else np.int64, copy=False)
        return float(loss_function(task)(torch.from_numpy(outputs), torch.from_numpy(y), weights))

    def derivatives(
        self, outputs: Float64[np.ndarray, "rows outputs"]
    ) -> tuple[Float64[np.ndarray, "rows outputs"], Float64[np.ndarray, "rows outputs"]]:
        """The first and second ones of each row's loss (of half the squared error), times its weight."""
        if self.y.ndim == 2:
            slope, curve = outputs - self.y, np.ones_like(outputs)
        else:
            slope = np.exp(outputs - np.logaddexp.reduce(outputs, axis=1)[:, None])
            curve = np.maximum(slope * (1 - slope), 1e-6)
            slope[np.arange(len(outputs)), self.y] -= 1
        if self.weights is None:
            return slope, curve
        return slope * self.weights[:, None], curve * self.weights[:, None]


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
class _Tree:
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


def boosted(train: Known, validation: Known, counts: Sequence[int], most: int, seed: int) -> Ands:
    """The leaves of trees that each lower the loss of those before: Newton's steps, as many trees as are best on the
    validation rows.

    Args:
        counts: thresholds of each column; the bits are those of the first column, of the second, and so on.
        most: leaves; equal ones of several trees are one.

    Source: Friedman 2001, "Greedy function approximation"; second order as Chen and Guestrin 2016.
    """
    rng, bins, classes = np.random.default_rng(seed), np.array(counts) + 1, train.start.shape[1]
    asked, least = np.flatnonzero(bins > 1), least_rows(sum(counts), len(train.start))
    now, seen = train.start.copy(), validation.start.copy()
    best, rounds, kept = validation.loss(seen), 0, 0
    found = dict[And, list[tuple[int, Outputs]]]()
    while rounds < min(kept + PATIENCE, MOST_TREES):
        slope, curve = train.derivatives(now)
        if classes == 2:
            slope, curve = slope[:, 1:], curve[:, 1:]  # those of the first class are the same with another sign
        columns = _columns(rng, asked, min(len(now), MOST_ROWS) * slope.shape[1])
        rows = _rows(rng, len(now))
        tree = _grown(train.codes[rows], slope[rows], curve[rows], bins, columns, least)
        if classes > 1:  # with all classes' curvatures along the diagonal a step goes too far
            value = tree.value * (classes - 1) / classes
            tree = _Tree(tree.levels, np.hstack([-value, value]) if classes == 2 else value)
        paths = tree.paths()
        if len(found) + len(paths.keys() - found.keys()) > most:
            break
        for path, value in paths.items():
            found.setdefault(path, []).append((rounds, value))
        now += tree.of(train.codes)
        seen += tree.of(validation.codes)
        rounds += 1
        if (loss := validation.loss(seen)) < best:
            best, kept = loss, rounds
    values = {path: [value for at, value in each if at < kept] for path, each in found.items()}
    return as_bits({path: np.sum(each, 0) for path, each in values.items() if each}, np.cumsum([0, *counts]), classes)


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


def _grown(
    codes: Integer[np.ndarray, "rows columns"],
    slope: Float64[np.ndarray, "rows outputs"],
    curve: Float64[np.ndarray, "rows outputs"],
    bins: Int64[np.ndarray, " columns"],
    columns: Int64[np.ndarray, " some"],
    least: int,
) -> _Tree:
    """The tree that lowers the loss most, node by node, of these columns, with so many rows in a leaf or more."""
    cuts = _Cuts.of(bins[columns])
    flat = codes[:, columns] + cuts.first
    plain, rows = bool((curve == 1).all()), np.arange(len(codes))
    node, levels = np.zeros(len(codes), np.int64), []
    for depth in range(DEPTH):
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
    sums = [
        np.stack([np.bincount(node, v[:, k], 1 << DEPTH) for k in range(slope.shape[1])], 1) for v in (slope, curve)
    ]
    return _Tree(levels, -RATE * sums[0] / (sums[1] + RIDGE))


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
    found = boosted(train, validation, net.thermometer.counts, net.leaves.count, seed)
    if len(found.needed):
        weight, needed, value = (torch.from_numpy(v).float() for v in (found.weight, found.needed, found.value))
        net.leaves.place(weight, needed, value)
    else:
        net.leaves = None


def known(net: MLP, part: Part) -> Known:
    """Read a part as trees take it, in chunks."""
    assert isinstance(net.thermometer, Thermometer)
    asked = [j for j, count in enumerate(net.thermometer.counts) if count]
    first = np.cumsum([0, *(net.thermometer.counts[j] for j in asked)])[:-1]
    codes, starts, ys = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    with torch.no_grad():
        for given, y in part:
            x = net.columns(given)
            reached = np.zeros((len(x), len(net.thermometer.counts)), np.int16)
            reached[:, asked] = np.add.reduceat(net.thermometer(x).numpy(), first, axis=1)
            codes.append(reached)
            plain = torch.zeros(len(x), net.head.out_features) if net.direct is None else net.direct(x)
            starts.append(plain.double().numpy())
            ys.append(y.numpy())
    y = np.concatenate(ys)
    weights = None if part.weights is None else part.weights.double().numpy()
    return Known(np.concatenate(codes), np.concatenate(starts), y, weights)


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
