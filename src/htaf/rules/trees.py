"""A short rule for a bit: a shallow decision tree over raw columns, fitted on training rows, and its fidelity."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64
from sklearn.tree import DecisionTreeClassifier

from htaf.data.order import random_order
from htaf.rules.conditions import Condition, Rule, simplified
from htaf.rules.raw_columns import Encoded, sides

DEEPEST = 3
LEAST_LEAF = 5  # training rows
WITHIN = 0.01  # of balanced accuracy: a shallower tree this near to the best is taken
FAITHFUL = 0.9  # balanced accuracy from which a rule is said to describe its bit
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


def fit_rule(encoded: Encoded, bit: Bool[np.ndarray, " rows"], seed: int = 0) -> tuple[Rule, int]:
    """The rule of a bit, and the depth of its tree.

    A tree of scikit-learn, both values of the bit weighted alike, of depth 1 to 3: the shallowest whose balanced
    accuracy on a quarter of these rows, fitted on the others, is within 0.01 of the best. Then fitted on all.

    Args:
        encoded: training rows, from `RawColumns.encode`. bit: on or off in each; both occur.
        seed: of the quarter, and of the choice between splits that are equally good.
    """
    shuffled = random_order(len(bit), seed, 1)
    depth = _depth(encoded, bit, shuffled[len(bit) // 4 :], shuffled[: len(bit) // 4], seed)
    inputs, orders = encoded.ordered(bit, np.arange(len(bit)))
    tree: Any = _tree(depth, seed).fit(inputs, bit).tree_
    splits = conditions_of(tree, inputs, encoded, orders)

    def alternatives(value: bool) -> Side:
        return simplified(paths(tree, 0, lambda leaf: _on(tree, leaf) == value, splits.__getitem__))

    on, off = Rule(True, alternatives(True)), Rule(False, alternatives(False))
    return (off if _length(off) < _length(on) else on), depth


def _length(rule: Rule) -> tuple[int, int]:
    return sum(map(len, rule.alternatives)), len(rule.alternatives)


def _tree(depth: int, seed: int) -> DecisionTreeClassifier:
    return DecisionTreeClassifier(
        max_depth=depth, min_samples_leaf=LEAST_LEAF, class_weight="balanced", random_state=seed % 2**32
    )


def _depth(
    encoded: Encoded, bit: np.ndarray, fitted: Int64[np.ndarray, " most"], kept: Int64[np.ndarray, " few"], seed: int
) -> int:
    """The depth by the rows kept aside; a shallower tree is the deepest one cut off, as splits are chosen greedily."""
    if bit[fitted].all() or not bit[fitted].any() or bit[kept].all() or not bit[kept].any():
        return 1
    inputs, _ = encoded.ordered(bit, fitted)
    tree: Any = _tree(DEEPEST, seed).fit(inputs[fitted], bit[fitted]).tree_
    above: dict[int, tuple[int, ...]] = {0: (0,)}
    for node in range(tree.node_count):  # parents come before their children
        for child in (tree.children_left[node], tree.children_right[node]):
            if child >= 0:
                above[int(child)] = (*above[node], int(child))
    leaves = tree.apply(inputs[kept])
    scores = []
    for depth in range(1, DEEPEST + 1):
        says = np.array([_on(tree, above[node][min(depth, len(above[node]) - 1)]) for node in range(tree.node_count)])
        scores.append(_balanced(says[leaves], bit[kept]) or 0.0)
    return 1 + next(place for place, score in enumerate(scores) if score >= max(scores) - WITHIN)


def _on(tree: Any, node: int) -> bool:
    off, on = tree.value[node][0]
    return bool(on > off)


def conditions_of(
    tree: Any, inputs: np.ndarray, encoded: Encoded, orders: dict[int, np.ndarray]
) -> dict[int, tuple[Condition, Condition]]:
    """Of each inner node where it goes left, and where it goes right."""
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
