"""Trees over raw columns, fitted on training rows: a short rule for each bit, and one tree for the whole network."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float64, Int64
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from htaf.data.columns import Target
from htaf.data.order import random_order
from htaf.data.preprocess import Preprocessor
from htaf.data.tabular import Table
from htaf.tables.rules.bits import MOST_ROWS, Fitted, answers, decided_values, drawn, own_table, table_of
from htaf.tables.rules.conditions import Condition, Encoded, RawColumns, Rule, Values, both, sides, simplified
from htaf.training.runs import Run
from htaf.training.runs.data import rows_for_looking
from htaf.training.runs.metrics import Interval, Weights, bootstrap, interval, metrics_by_weight

DEEPEST = 3
LEAST_LEAF = 5  # training rows
WITHIN = 0.01  # of balanced accuracy: a shallower tree this near to the best is taken
FAITHFUL = 0.9  # balanced accuracy, agreement or R2 from which a rule describes its bit, or the tree the network
LEAVES = 8
SHORT = 6  # conditions of a rule that is said in one sentence
METRICS = {"r2": "R2", "auroc": "AUROC"}
Side = tuple[tuple[Condition, ...], ...]


@dataclass(frozen=True)
class Fidelity:
    """How well a rule says what its bit does, on rows that did not make the rule.

    Attributes:
        rows: how many. accuracy: share of rows in which rule and bit agree.
        balanced: mean of the shares among rows where the bit is on and among those where it is off; None where the bit
            never changes in these rows.
        majority: the accuracy of always saying the more frequent value of the training rows.
    """

    rows: int
    accuracy: float
    balanced: float | None
    majority: float

    @property
    def faithful(self) -> bool | None:
        """Whether `balanced` is at least 0.9; None where it is not known."""
        return None if self.balanced is None else self.balanced >= FAITHFUL


def fidelity(said: Bool[np.ndarray, " rows"], bit: Bool[np.ndarray, " rows"], usual: bool) -> Fidelity:
    """Compare what a rule says with the bit; usual: the bit's more frequent value in the training rows."""
    agree = said == bit
    return Fidelity(len(bit), float(agree.mean()), _balanced(said, bit), float((bit == usual).mean()))


def _balanced(said: np.ndarray, bit: np.ndarray) -> float | None:
    if bit.all() or not bit.any():
        return None
    agree = said == bit
    return float((agree[bit].mean() + agree[~bit].mean()) / 2)


def fit_rule(encoded: Encoded, bit: Bool[np.ndarray, " rows"]) -> tuple[Rule, int]:
    """Fit the rule of a bit, and find the depth of its tree.

    A tree of scikit-learn, both values of the bit weighted alike, of depth 1 to 3: the shallowest whose balanced
    accuracy on a quarter of these rows, fitted on the others, is within 0.01 of the best. Then fitted on all.

    Args:
        encoded: training rows, from `RawColumns.encode`. bit: on or off in each; both occur.
    """
    shuffled = random_order(len(bit), 0, 1)
    depth = _depth(encoded, bit, shuffled[len(bit) // 4 :], shuffled[: len(bit) // 4])
    inputs, orders = encoded.ordered(bit, np.arange(len(bit)))
    tree: Any = _tree(depth).fit(inputs, bit).tree_
    splits = conditions_of(tree, inputs, encoded, orders)

    def alternatives(value: bool) -> Side:
        return simplified(paths(tree, 0, lambda leaf: _on(tree, leaf) == value, splits.__getitem__))

    on, off = Rule(True, alternatives(True)), Rule(False, alternatives(False))
    return (off if _length(off) < _length(on) else on), depth


def _length(rule: Rule) -> tuple[int, int]:
    return sum(map(len, rule.alternatives)), len(rule.alternatives)


def _tree(depth: int) -> DecisionTreeClassifier:
    return DecisionTreeClassifier(max_depth=depth, min_samples_leaf=LEAST_LEAF, class_weight="balanced", random_state=0)


def _depth(
    encoded: Encoded, bit: np.ndarray, fitted: Int64[np.ndarray, " most"], kept: Int64[np.ndarray, " few"]
) -> int:
    """The depth by the rows kept aside; a shallower tree is the deepest one cut off, as splits are chosen greedily."""
    if bit[fitted].all() or not bit[fitted].any() or bit[kept].all() or not bit[kept].any():
        return 1
    inputs, _ = encoded.ordered(bit, fitted)
    tree: Any = _tree(DEEPEST).fit(inputs[fitted], bit[fitted]).tree_
    says = np.array([_on(tree, node) for node in range(tree.node_count)])
    passed = tree.decision_path(inputs[kept])  # of each row its nodes, from the root to a leaf
    scores = []
    for depth in range(1, DEEPEST + 1):
        at = passed.indices[passed.indptr[:-1] + np.minimum(depth, np.diff(passed.indptr) - 1)]
        scores.append(_balanced(says[at], bit[kept]) or 0.0)
    return 1 + next(place for place, score in enumerate(scores) if score >= max(scores) - WITHIN)


def _on(tree: Any, node: int) -> bool:
    off, on = tree.value[node][0]
    return bool(on > off)


def conditions_of(
    tree: Any, inputs: np.ndarray, encoded: Encoded, orders: dict[int, np.ndarray]
) -> dict[int, tuple[Condition, Condition]]:
    """Say of each inner node where it goes left, and where it goes right."""
    reached = {0: np.arange(len(inputs))}
    found = {}
    for node in range(tree.node_count):  # parents come before their children
        if tree.children_left[node] < 0:
            continue
        place, threshold, left = (
            int(tree.feature[node]),
            float(tree.threshold[node]),
            bool(tree.missing_go_to_left[node]),
        )
        rows, column = reached[node], encoded.names[place][0]
        here = inputs[rows, place].astype(np.float64)
        goes = np.where(np.isnan(here), left, here <= threshold)
        reached[int(tree.children_left[node])], reached[int(tree.children_right[node])] = rows[goes], rows[~goes]
        if math.isinf(threshold):  # rows without a value on one side, all others on the other
            gone, there = (Condition(column.name, "missing", negated=negated) for negated in (False, True))
            found[node] = (gone, there) if left else (there, gone)
            continue
        order = orders.get(place)
        between = (int(here[here <= threshold].max()), int(here[here > threshold].min()))
        found[node] = sides(*encoded.names[place], between, left, None if order is None else order.tolist())
    return found


def paths(
    tree: Any, node: int, wanted: Callable[[int], bool], split: Callable[[int], tuple[Condition, Condition]]
) -> list[tuple[Condition, ...]]:
    """Conjunctions that hold in the leaves that are wanted. A side that is all wanted needs no condition beside it."""
    left, right = int(tree.children_left[node]), int(tree.children_right[node])
    if left < 0:
        return [()] if wanted(node) else []
    below = (paths(tree, left, wanted, split), paths(tree, right, wanted, split))
    if below[0] == below[1] and below[0] in ([], [()]):
        return below[0]  # both leaves say the same
    one, other = split(node)
    if below[0] == [()]:
        return [(one,), *below[1]]
    if below[1] == [()]:
        return [(other,), *below[0]]
    return [(one, *path) for path in below[0]] + [(other, *path) for path in below[1]]


# ---- one tree for the network ----


@dataclass(frozen=True)
class Figure:
    """A figure of the held-out rows, with its 95% interval by the bootstrap over them; None: it is not defined."""

    value: float
    interval: Interval | None


@dataclass(frozen=True)
class Branch:
    """A line of the tree: a condition, and below it other branches or what is said where it holds.

    Attributes:
        depth: conditions above it. condition: of raw rows that have come so far, joined with those above it on the same
            column; None of a tree of one leaf.
        says: at a leaf a class, or the mean prediction of the network; None where branches follow.
        chance: of a leaf of classes the mean probability that the network gives to `Surrogate.risk`, else to `says`.
        rows: share of the held-out rows that come here.
    """

    depth: int
    condition: Condition | None
    says: str | float | None
    chance: float | None
    rows: float

    @property
    def text(self) -> str:
        """The condition in words."""
        said = "always" if self.condition is None else str(self.condition)
        return said[1:-1] if said.startswith("(") and said.endswith("or missing)") else said

    def to_json(self) -> dict[str, Any]:
        """Write as plain JSON values."""
        return vars(self) | {"condition": self.condition and self.condition.to_json(), "text": self.text}


@dataclass(frozen=True)
class Surrogate:
    """A tree of at most eight leaves that was fitted to what a network says, and is measured on rows held out.

    Attributes:
        branches: of the tree, each before those below it. leaves: how many. columns: that it asks for.
        rule: in words, of two classes: when one of them is said; "" of others, and where it takes many words.
        measure: "agreement", the share of the rows in which tree and network say the same class; or "r2" of the
            network's numbers, or of its probabilities where all leaves say the same class.
        fidelity: that measure. usual: of always saying the class, or the number, that the network says most.
        metric: "accuracy" or "r2", against the labels; "auroc" where all leaves say the same class. network, tree: that
            metric. rows: held out.
        risk: of two classes the one that no leaf says, as it is rare, whose probability the leaves show; else "".
    """

    branches: tuple[Branch, ...]
    leaves: int
    columns: tuple[str, ...]
    rule: str
    measure: str
    fidelity: Figure
    usual: float
    metric: str
    network: Figure
    tree: Figure
    rows: int
    risk: str = ""

    @property
    def chance(self) -> str:
        """What `Branch.chance` is of, in words."""
        return f"probability of {self.risk}" if self.risk else "probability"

    @property
    def faithful(self) -> bool:
        """Whether the tree stands for the network: a fidelity of at least 0.9, and at most half of the rows wrong that
        one answer for all has wrong."""
        wrong = 1 - self.fidelity.value
        return bool(wrong <= 1 - FAITHFUL and wrong <= (1 - self.usual) / 2)

    @property
    def text(self) -> str:
        """How far the tree agrees with the network, and how right both are: a line for each sentence."""
        fidelity, one = self.fidelity, "1 leaf" if self.leaves == 1 else f"{self.leaves} leaves"
        if self.measure == "agreement":
            same = f"says the same class as the network in {_percent(fidelity)} of {self.rows:,} test rows"
            same += f" (one answer for all rows: {self.usual:.1%})"
        else:
            what = "predictions" if self.metric == "r2" else "probabilities"
            same = f"explains {_percent(fidelity)} of the variance of the network's {what} on {self.rows:,} test rows"
        said = f"A tree of {one} {same}"
        if not self.faithful:
            short = FAITHFUL - fidelity.value
            why = (
                f"{100 * short:.1f} points below {FAITHFUL:.0%}"
                if short > 0
                else "hardly better than one answer for all"
            )
            said += f".\nIt is not faithful ({why}): it hints at what the network does and no more"
        metric, own = METRICS.get(self.metric, self.metric), (self.tree, self.network)
        tree, network = (f"{one.value:.3f}{_within(one.interval)}" for one in own)
        return f"{said}.\nAgainst the true values: {metric} {tree} of the tree, {network} of the network."

    def to_json(self) -> dict[str, Any]:
        """Write as plain JSON values."""
        own = dataclasses.asdict(dataclasses.replace(self, branches=()))
        return own | {
            "branches": [b.to_json() for b in self.branches],
            "chance": self.chance,
            "faithful": self.faithful,
            "limit": FAITHFUL,
            "text": self.text,
        }


def percent(value: float) -> str:
    """Write a share in percents, whole ones where it is not small."""
    return f"{value:.0%}" if value >= 0.1 else f"{value:.1%}"


def _percent(figure: Figure) -> str:
    within = "" if figure.interval is None else f" [{100 * figure.interval[0]:.1f}, {100 * figure.interval[1]:.1f}]"
    return f"{figure.value:.1%}{within}"


def _within(interval: Interval | None) -> str:
    return "" if interval is None else f" [{interval[0]:.3f}, {interval[1]:.3f}]"


def surrogate(model: Run | Fitted, data: Table | pd.DataFrame | None = None) -> Surrogate:
    """One tree for the whole network (Craven and Shavlik 1996), of scikit-learn over raw columns.

    It is fitted on at most 10,000 training rows to the exact network's probabilities or numbers; of a run without a
    step, method relu, to those of its network. Of two to eight leaves it has as few as bring its R2 within 0.01 of the
    best on a quarter of these rows. Leaves of one parent that say the same class are one; where all do, as of a rare
    class, they stay apart by their probabilities, and fidelity is the R2 of these. All figures are of test rows. Rows
    count by their weights.

    Args:
        model, data: as `htaf.rules.explain` takes them.

    Raises:
        RulesError: a run of images. RunError: another table than that of the training.
    """
    run, preprocessor = table_of(model)
    table = own_table(run, data)
    parts = rows_for_looking(run, table)
    network = run.model(exact=run.has_step)
    chosen = [drawn(rows, MOST_ROWS) for rows in (parts.train, parts.test)]
    of_train, of_test = (table.features.iloc[rows] for rows in chosen)
    said = [answers(network, preprocessor, preprocessor.transform(rows)) for rows in (of_train, of_test)]
    weights = None if table.weights is None else (table.weights[chosen[0]], table.weights[chosen[1]])
    columns, labels = RawColumns.learn(preprocessor, of_train), table.target[chosen[1]]
    return fit_surrogate(columns, preprocessor, (of_train, of_test), (said[0], said[1]), labels, weights=weights)


def fit_surrogate(
    columns: RawColumns,
    preprocessor: Preprocessor,
    rows: tuple[pd.DataFrame, pd.DataFrame],
    predicted: tuple[Float64[np.ndarray, "train outputs"], Float64[np.ndarray, "test outputs"]],
    labels: Float64[np.ndarray, " test"] | Int64[np.ndarray, " test"],
    *,
    weights: tuple[Weights, Weights] | None = None,
) -> Surrogate:
    """`surrogate` of what a network says of rows.

    Args:
        rows: raw, of the training and held out. predicted: by the network of both, see `htaf.rules.bits.answers`.
        labels: of the rows held out. weights: how much each of both counts; None: all alike.
    """
    train, test = predicted
    of_train, of_test = (np.ones(len(train)), np.ones(len(test))) if weights is None else weights
    of_train = of_train / of_train.mean()
    encoded, values = columns.encode(columns.read(rows[0])), columns.read(rows[1])
    shuffled = random_order(len(train), 0, 4)
    cut = len(train) // 4
    leaves = _leaves(encoded, train, of_train, shuffled[cut:], shuffled[:cut])
    tree, inputs, orders = _fitted(encoded, train, of_train, np.arange(len(train)), leaves)
    conditions = conditions_of(tree, inputs, encoded, orders)
    target = preprocessor.target
    number, two = target.task == "regression", len(target.classes) == 2
    single = _single(tree, target)
    by_chance = not number and 0 in single and tree.node_count > 1
    if by_chance:
        single = set(np.flatnonzero(tree.children_left < 0).tolist())
    place = 1 - _place(tree, 0, target) if by_chance and two else None
    branches, of_tree = _branches(tree, single, conditions, values, test, of_test, target, place)
    learned, of_network, by_tree = (decided_values(of, target) for of in (train, test, of_tree))
    usual = 0.0
    if not (number or by_chance):
        usual = float(np.average(of_network == np.bincount(learned, of_train).argmax(), weights=of_test))
    metric = "auroc" if place is not None and len(np.unique(labels)) == 2 else "r2" if number else "accuracy"

    def right(said: np.ndarray, chances: Float64[np.ndarray, "test outputs"]) -> Figure:
        if metric == "auroc":
            return _auroc(chances, labels, of_test)
        return _figure(said, labels, of_test, number)

    names = (b.condition.column for b in branches if b.condition is not None)
    return Surrogate(
        branches,
        sum(b.says is not None for b in branches),
        tuple(dict.fromkeys(names)),
        _rule(tree, conditions, target, place) if two else "",
        "r2" if number or by_chance else "agreement",
        _figure(*((of_tree, test) if by_chance else (by_tree, of_network)), of_test, number or by_chance),
        usual,
        metric,
        right(of_network, test),
        right(by_tree, of_tree),
        len(test),
        "" if place is None else target.classes[place],
    )


def _along(said: Float64[np.ndarray, "rows outputs"], weights: Weights) -> Float64[np.ndarray, " rows"]:
    """One number for what is said of each row, by which categories are ordered: the first principal component."""
    centred = said - np.average(said, axis=0, weights=weights)
    return centred @ np.linalg.eigh(centred.T @ (weights[:, None] * centred))[1][:, -1]


def _fitted(
    encoded: Encoded, said: np.ndarray, weights: Weights, rows: np.ndarray, leaves: int
) -> tuple[Any, Any, Any]:
    inputs, orders = encoded.ordered(_along(said, weights), rows, weights)
    least = min(max(LEAST_LEAF, len(rows) // 200), max(1, len(rows) // 2))
    model = DecisionTreeRegressor(max_leaf_nodes=leaves, min_samples_leaf=least, random_state=0)
    return model.fit(inputs[rows], said[rows], sample_weight=weights[rows]).tree_, inputs, orders


def _leaves(encoded: Encoded, said: np.ndarray, weights: Weights, fitted: np.ndarray, kept: np.ndarray) -> int:
    """How many leaves, by the R2 of the rows kept aside. The best split is made first, so the tree of k leaves is the
    largest one without the nodes beyond 2 (k - 1)."""
    if not len(kept):
        return LEAVES
    tree, inputs, _ = _fitted(encoded, said, weights, fitted, LEAVES)
    passed, scores = tree.decision_path(inputs[kept]), list[float]()  # of each row its nodes, from the root to a leaf
    for leaves in range(1, (tree.node_count + 1) // 2 + 1):
        there = np.asarray(passed[:, : 2 * leaves - 1].sum(1)).ravel().astype(np.int64)
        at = passed.indices[passed.indptr[:-1] + there - 1]
        scores.append(_r2(tree.value[at, :, 0], said[kept], weights[kept]))
    return max(2, 1 + next((place for place, score in enumerate(scores) if score >= max(scores) - WITHIN), 0))


def _r2(predicted: np.ndarray, truth: np.ndarray, weights: Weights) -> float:
    """The share of the variance that is explained, of several outputs of all together; NaN where there is none."""
    off, centred = ((predicted - truth) ** 2).reshape(len(truth), -1), (truth - truth.mean(0)).reshape(len(truth), -1)
    spread = (weights @ centred**2 - (weights @ centred) ** 2 / weights.sum()).sum()
    return float(1 - (weights @ off).sum() / spread) if spread > 0 else np.nan


def _figure(predicted: np.ndarray, truth: np.ndarray, own: Weights, numbers: bool) -> Figure:
    """Agreement of classes, or R2 of numbers; own: weights of the rows."""
    same = (predicted == truth).astype(np.float64)

    def figure(drawn: Weights) -> Mapping[str, float]:
        weights = drawn * own
        return {"": _r2(predicted, truth, weights) if numbers else float(weights @ same / weights.sum())}

    return Figure(float(figure(np.ones(len(same)))[""]), interval(bootstrap(len(same), figure)[""]))


def _auroc(said: Float64[np.ndarray, "rows classes"], labels: Int64[np.ndarray, " rows"], own: Weights) -> Figure:
    """Of probabilities."""
    of = metrics_by_weight(torch.tensor(np.log(said.clip(1e-300))), torch.tensor(labels), "classification", weights=own)
    whole, drawn = of(np.ones(len(said))), bootstrap(len(said), lambda times: {"": of(times)["auroc"]})[""]
    return Figure(whole["auroc"], interval(drawn))


def _branches(
    tree: Any,
    single: Collection[int],
    conditions: Mapping[int, tuple[Condition, Condition]],
    values: Values,
    said: Float64[np.ndarray, "rows outputs"],
    weights: Weights,
    target: Target,
    place: int | None,
) -> tuple[tuple[Branch, ...], Float64[np.ndarray, "rows outputs"]]:
    """The lines of a tree down to the nodes `single`, and what it says of held-out rows.

    Args:
        said: by the network of these. place: the class whose probability the leaves have; None: the one they say.
    """
    of_tree, found = np.zeros_like(said), list[Branch]()

    def walk(node: int, above: tuple[Condition, ...], here: np.ndarray) -> None:
        condition, depth = (above[-1], len(above) - 1) if above else (None, 0)
        share = float(np.average(here, weights=weights))
        if node in single:
            of_tree[here] = tree.value[node, :, 0]
            found.append(Branch(depth, condition, *_answer(tree, node, target, place), share))
            return
        if condition is not None:
            found.append(Branch(depth, condition, None, None, share))
        sides = zip((tree.children_left[node], tree.children_right[node]), conditions[node], strict=True)
        for child, side in sides:
            whole = side
            for before in above:
                if not (before.negated and side.negated):  # what is left out is not named again
                    whole = both(before, whole) or whole
            walk(int(child), (*above, whole), here & side.holds(values))

    walk(0, (), np.ones(len(said), bool))
    return tuple(found), of_tree


def _place(tree: Any, node: int, target: Target) -> int:
    """The class that a node says."""
    return int(decided_values(tree.value[node, :, 0][None], target)[0])


def _same(tree: Any, left: int, right: int, target: Target) -> bool:
    return _place(tree, left, target) == _place(tree, right, target)


def _answer(tree: Any, node: int, target: Target, place: int | None) -> tuple[str | float, float | None]:
    """What a leaf says, and how likely to the network that class is, or the one at `place`."""
    if target.task == "regression":
        return float(tree.value[node, 0, 0]), None
    said = _place(tree, node, target)
    return target.classes[said], float(tree.value[node, said if place is None else place, 0])


def _single(tree: Any, target: Target) -> set[int]:
    """The nodes below which one answer is given: leaves, and of classes those whose leaves say the same one."""
    found: set[int] = set()
    for node in reversed(range(tree.node_count)):  # children come after their parents
        left, right = int(tree.children_left[node]), int(tree.children_right[node])
        if left < 0 or (target.task != "regression" and {left, right} <= found and _same(tree, left, right, target)):
            found.add(node)
    return found


def _rule(tree: Any, conditions: Mapping[int, tuple[Condition, Condition]], target: Target, risk: int | None) -> str:
    """Of two classes, when the tree says the one of which that takes fewer conditions; "" where it takes many.

    risk: the class that no leaf says: where it is likeliest.
    """

    def where(wanted: Callable[[int], bool]) -> list[tuple[Condition, ...]]:
        return [*simplified(paths(tree, 0, wanted, conditions.__getitem__))]

    def conditions_for(place: int) -> list[tuple[Condition, ...]]:
        return where(lambda leaf: _place(tree, leaf, target) == place)

    if risk is not None:
        leaves = np.flatnonzero(tree.children_left < 0)
        top = leaves[tree.value[leaves, risk, 0].argmax()]
        (path,) = where(lambda leaf: leaf == top)
        chance, said = tree.value[top, risk, 0], target.classes[1 - risk]
        likeliest = f"{target.classes[risk]} is likeliest, {percent(chance)}, where {' and '.join(map(str, path))}"
        return f"always {said}; {likeliest}" if len(path) <= SHORT else f"always {said}"

    by_class = {place: conditions_for(place) for place in (1, 0)}
    for place, alternatives in by_class.items():
        if not all(alternatives):  # a condition that always holds
            return f"always {target.classes[place]}"
    place = min(by_class, key=lambda p: (sum(map(len, by_class[p])), len(by_class[p])))
    if sum(map(len, by_class[place])) > SHORT:
        return ""
    return f"{target.classes[place]} if " + "; or ".join(" and ".join(map(str, every)) for every in by_class[place])
