"""Cautions about a table and its parts before a training: columns that give the target away, values that repeat,
and dates."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64, Int64

from htaf._ground.compat import free_start_method
from htaf.data.dates import native
from htaf.data.notes import Note
from htaf.data.order import random_order
from htaf.data.reading import is_date, is_text
from htaf.data.tabular import Mode, Split, Table

MOST_ROWS = 4_000  # of the training part that are looked at, evenly spread
MOST_CELLS = 10_000_000  # rows x columns
FEWEST_ROWS = 40
FEWEST_OF_CLASS = 5  # of the rows that are guessed
MOST_PAIRED = 500  # columns of which each pair is tried
SHUFFLED = 4_517_032  # seeds the halves: neighbours in a file are alike
GIVEN_AWAY = 0.99  # of balanced accuracy, or of R2 of ranks
ALL_DIFFERENT = 0.95  # share of distinct values from which each row has a date of its own
NEARLY = 0.95  # as GIVEN_AWAY, of columns without which the error is many times as large
TIMES = 4.0  # of 57 real tables the highest was 2
MOST_FITTED = 400_000  # rows x columns of a forest
TREES = 30
MEASURES = "R2 of the ranks", "balanced accuracy"
MOST_OF_SMALL = 3  # columns of a table in which it is no wonder that two say the target
FEWEST_VALUES = 16  # of a column that numbers or names what has several rows
MOST_OF_VALUE = 20  # rows
TOLD = 0.02  # share of the accuracy
EXPLAINED = 0.1  # of the target's variance by the means of its values
SMOOTH = 0.6  # share of this that four ranges of a number explain: its order says something, so it numbers nothing
TWICE = 2.0  # so many times the squared error on values not seen before, or as much less of the variance explained


def cautions(table: Table, parts: Split, mode: Mode | None) -> list[Note]:
    """Return the notes on a table and its parts; nothing is changed.

    Args:
        table: with its features and target. parts: its rows.
        mode: by which they were drawn; None: they were given.
    """
    features = {str(name): column for name, column in table.features.items()}
    by_chance = mode in ("random", "stratified") and table.parting.test is None
    with free_start_method():  # which joblib settles for a forest
        return [
            *(_given_away(features, table, parts.train) or _say_most(features, table, parts.train)),
            *_repeated(features, table, parts),
            *(rows_in_time(table) if by_chance else []),
        ]


def rows_in_time(table: Table) -> list[Note]:
    """Note dates that differ in each row; it matters where rows are divided by chance."""
    dates = ((str(name), len(column), column.dropna()) for name, column in table.features.items() if is_date(column))
    counts = ((name, rows, len(known), known.nunique()) for name, rows, known in dates)
    return [Note("rows in time", name, n) for name, rows, k, n in counts if k * 2 > rows and n >= ALL_DIFFERENT * k]


def _given_away(features: dict[str, pd.Series], table: Table, train: Int64[np.ndarray, " train"]) -> list[Note]:
    """Note columns that alone give the target almost without error. Each row of one half of the training part is
    guessed from the row of the other half whose value is nearest."""
    count = min(len(train), MOST_ROWS, max(FEWEST_ROWS, MOST_CELLS // max(1, len(features))))
    rows, score = _drawn(table, train, count)
    if score is None:
        return []
    known, asked = rows[: count // 2], rows[count // 2 :]
    notes: list[Note] = []
    for name, column in features.items():
        values = _as_numbers(column.iloc[rows])
        guessed = _nearest(values[: len(known)], values[len(known) :])
        found = score(table.target[known][guessed])
        if found >= GIVEN_AWAY:
            what = (MEASURES[bool(table.classes)], round(found, 4), table.target_name)
            notes.append(Note("gives the target away", name, len(asked), what))
    return notes


def _say_most(features: dict[str, pd.Series], table: Table, train: Int64[np.ndarray, " train"]) -> list[Note]:
    """Note one or two columns that give the target nearly without error where all others have far more error: a flag
    that is wrong now and then, or two columns whose sum, difference, product or ratio is the target."""
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    count = min(len(train), MOST_ROWS, MOST_FITTED // max(1, len(features)))
    rows, score = _drawn(table, train, count)
    if score is None:
        return []
    names, half, target = [*features], count // 2, table.target[rows]
    values = np.stack([_as_numbers(column.iloc[rows]) for column in features.values()], 1)
    known = target[:, None]  # of classes 0 and 1 for each
    outputs = (known == np.arange(len(table.classes)) if table.classes else known).astype(np.float64)

    def forest(inputs: np.ndarray) -> float:
        of = _forest(table).set_params(**{"class_weight": "balanced"} if table.classes else {})
        return score(of.fit(inputs[:half], target[:half]).predict(inputs[half:])) if inputs.shape[1] else 0.0

    small: Any = DecisionTreeRegressor(max_leaf_nodes=16, random_state=0)
    if table.classes:
        small = DecisionTreeClassifier(max_leaf_nodes=len(table.classes), class_weight="balanced", random_state=0)

    def alone(place: int) -> float:
        return score(small.fit(values[:half, [place]], target[:half]).predict(values[half:, [place]]))

    root = int(small.fit(values[:half], target[:half]).tree_.feature[0])
    found: list[tuple[tuple[int, ...], float]] = [] if root < 0 else [((root,), alone(root))]
    positive = np.flatnonzero((values > 0).all(0))
    logged = bool(not table.classes and (target > 0).all())
    for places, inputs, wanted in (
        (np.arange(len(names)), values, outputs),
        (positive, np.log(values[:, positive]), np.log(outputs) if logged else outputs),
    ):
        if len(names) > MOST_OF_SMALL and (pair := _pair(inputs[:half], wanted[:half])) is not None:
            sums = inputs[:, pair[0]] @ pair[1]
            one, other = (int(places[place]) for place in pair[0])
            said = score(target[:half][_nearest(sums[:half], sums[half:])])
            if said >= NEARLY and TIMES * (1 - said) <= 1 - max(alone(one), alone(other)):
                found.append(((one, other), said))
    chosen, said = max(found, key=lambda one: one[1], default=((), 0.0))
    if said < NEARLY or TIMES * (1 - said) > 1 - (rest := forest(np.delete(values, chosen, axis=1))):
        return []
    what, own = MEASURES[bool(table.classes)], tuple(names[place] for place in sorted(chosen))
    return [Note("say most", table.target_name, count - half, (own, what, round(said, 4), round(rest, 4)))]


def _forest(table: Table) -> Any:
    from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

    return (ExtraTreesClassifier if table.classes else ExtraTreesRegressor)(TREES, min_samples_leaf=2, random_state=0)


def _pair(
    inputs: Float64[np.ndarray, "rows columns"], outputs: Float64[np.ndarray, "rows outputs"]
) -> tuple[list[int], Float64[np.ndarray, " two"]] | None:
    """Find the two columns whose weighted sum is nearest to an output, and the weights; None where there are none.

    With more than 500 columns, only those that are nearest alone are tried."""
    apart, wanted = inputs - inputs.mean(0), outputs - outputs.mean(0)
    with np.errstate(over="ignore", invalid="ignore"):
        sizes, wanted = np.linalg.norm(apart, axis=0), wanted / np.linalg.norm(wanted, axis=0).clip(1e-300)
        usable = np.flatnonzero((sizes > 1e-9 * np.abs(inputs).max(0, initial=0)) & np.isfinite(sizes))
        unit = apart[:, usable] / sizes[usable]
    near = np.argsort(-np.abs(unit.T @ wanted).max(1, initial=0), kind="stable")[:MOST_PAIRED]
    unit, usable = unit[:, near], usable[near]
    if len(usable) < 2:
        return None
    alike, to = unit.T @ unit, unit.T @ wanted
    free = 1 - alike**2
    free[free < 1e-9] = np.inf
    explained = [(r[:, None] ** 2 + r**2 - 2 * np.outer(r, r) * alike) / free for r in to.T]
    output = int(np.argmax([each.max() for each in explained]))
    pair = [int(usable[place]) for place in divmod(int(explained[output].argmax()), len(usable))]
    return pair, np.linalg.lstsq(apart[:, pair], wanted[:, output], rcond=None)[0]


def _repeated(features: dict[str, pd.Series], table: Table, parts: Split) -> list[Note]:
    """Note a column of names or whole numbers whose values repeat, such as patients with several visits, where the
    measuring rows share values with training and a model has far more error on new values."""
    found = list[tuple[float, str, np.ndarray, np.ndarray, int]]()
    most, rows = min(MOST_ROWS, MOST_FITTED // max(1, len(features))), parts.train
    if table.parting.groups is not None:  # the caller says what belongs together
        return []
    rows, measured = rows[random_order(len(rows), SHUFFLED)], np.concatenate([parts.validation, parts.test])
    for name, column in features.items():
        if is_date(column) or not (is_text(column) or (column.dropna() % 1 == 0).all()):
            continue
        at, values = pd.factorize(column.iloc[rows], use_na_sentinel=False)
        if not FEWEST_VALUES <= len(values) <= len(rows) / 2 or column.iloc[measured].isin(values).mean() < 0.5:
            continue
        few = np.flatnonzero(pd.Series(at).groupby(at).cumcount() < MOST_OF_VALUE)
        place = np.argsort(random_order(len(values), SHUFFLED, len(found)))[at[few]]
        whole = np.sort(np.argsort(place, kind="stable")[:most])  # of each value all its rows
        chosen, place = rows[few[whole]], place[whole]
        explained, ranges = _explained(place, _as_numbers(column.iloc[chosen]), table, chosen)
        if explained >= EXPLAINED and (is_text(column) or ranges < SMOOTH * explained):
            found.append((explained, name, chosen, place, len(values)))
    for _, name, rows, place, count in sorted(found, key=lambda one: -one[0])[:3]:
        others = [_as_numbers(column.iloc[rows]) for column in features.values()]
        (seen, unseen), whole = _errors(np.stack([place, *others], 1), table, rows)
        says = whole - seen >= EXPLAINED * whole
        if unseen >= TWICE * seen or (says and whole - seen >= TWICE * (whole - unseen)):
            what, both = ("accuracy", (1 - seen, 1 - unseen)) if table.classes else ("RMSE", (seen**0.5, unseen**0.5))
            if abs(both[0] - both[1]) >= TOLD * both[0]:
                return [Note("repeated values", name, count, (len(rows), what, *both))]
    return []


def _explained(
    place: Int64[np.ndarray, " rows"], numbers: Float64[np.ndarray, " rows"], table: Table, rows: np.ndarray
) -> tuple[float, float]:
    """Return the shares of the target's variance explained by the mean of each value, and by that of each of four
    ranges. Of classes the most frequent one is the target."""
    from sklearn.linear_model import LinearRegression
    from sklearn.model_selection import KFold, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import TargetEncoder
    from sklearn.tree import DecisionTreeRegressor

    truth = table.target[rows].astype(np.float64)
    if table.classes:
        truth = (truth == np.bincount(table.target[rows]).argmax()).astype(np.float64)
    folds: Any = KFold(5, shuffle=True, random_state=0)
    of_value = make_pipeline(TargetEncoder(target_type="continuous", cv=folds), LinearRegression())
    of_range = DecisionTreeRegressor(max_leaf_nodes=4, random_state=0)
    by = ((of_value, place), (of_range, numbers))
    own, other = (cross_val_score(model, values[:, None], truth, cv=2, scoring="r2").mean() for model, values in by)
    return float(own), float(other)


def _errors(
    inputs: Float64[np.ndarray, "rows columns"], table: Table, rows: Int64[np.ndarray, " rows"]
) -> tuple[tuple[float, float], float]:
    """Return the squared error of a forest, or its share of wrong classes, on rows whose value in the first column it
    has seen and on rows of other values, and that of a constant."""
    from sklearn.compose import ColumnTransformer
    from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import TargetEncoder

    truth = table.target[rows]
    folds: Any = (StratifiedKFold if table.classes else KFold)(5, shuffle=True, random_state=0)
    value = ColumnTransformer([("value", TargetEncoder(cv=folds), [0])], remainder="passthrough")
    model = make_pipeline(value, _forest(table))

    def error(guess: Any) -> float:
        return float((guess != truth).mean() if table.classes else ((guess - truth) ** 2).mean())

    by_chance = KFold(2).split(inputs)
    halves = (by_chance, GroupKFold(2).split(inputs, truth, inputs[:, 0]))
    seen, unseen = (error(cross_val_predict(model, inputs, truth, cv=[*cv])) for cv in halves)
    return (seen, unseen), error(np.bincount(truth).argmax() if table.classes else truth.mean())


def _drawn(
    table: Table, train: Int64[np.ndarray, " train"], count: int
) -> tuple[Int64[np.ndarray, " rows"], Callable[[Any], float] | None]:
    """Return so many rows, evenly spread, in random order, and a score of guesses of their second half."""
    rows = train[np.linspace(0, len(train) - 1, count).astype(np.int64)]
    rows = rows[random_order(len(rows), SHUFFLED)]
    return rows, _score(table, rows[count // 2 :]) if count >= FEWEST_ROWS else None


def _as_numbers(column: pd.Series) -> Float64[np.ndarray, " rows"]:
    """Return a column as numbers: categories in any order, missing values below all others."""
    if is_text(column):
        return pd.factorize(column)[0].astype(np.float64)
    values = native(column) if is_date(column) else column.to_numpy()
    missing = np.isnat(values) if is_date(column) else np.isnan(values)
    values = values.astype(np.int64).astype(np.float64) if is_date(column) else values
    lowest = values[~missing].min() if not missing.all() else 0.0
    return np.where(missing, lowest - 1 - abs(lowest), values)


def _nearest(known: Float64[np.ndarray, " known"], asked: Float64[np.ndarray, " asked"]) -> Int64[np.ndarray, " asked"]:
    """Return for each value the place of the nearest known one."""
    order = np.argsort(known, kind="stable")
    ordered = known[order]
    right = np.searchsorted(ordered, asked).clip(0, len(ordered) - 1)
    left = (right - 1).clip(0)
    return order[np.where(asked - ordered[left] < ordered[right] - asked, left, right)]


def _score(table: Table, asked: Int64[np.ndarray, " asked"]) -> Callable[[Any], float] | None:
    """Return a score of guesses of the target, 1 at best; None where too few rows can tell."""
    truth = table.target[asked]
    if table.task == "classification":
        classes, place, counts = np.unique(truth, return_inverse=True, return_counts=True)
        enough = counts >= FEWEST_OF_CLASS
        if enough.sum() < 2:
            return None

        def balanced(guessed: np.ndarray) -> float:
            right = np.bincount(place, weights=guessed == truth, minlength=len(classes))
            return float((right / counts)[enough].mean())

        return balanced
    ordered = np.sort(truth)
    if ordered[0] == ordered[-1]:
        return None

    def ranks(values: np.ndarray) -> np.ndarray:
        return (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")) / 2

    of_truth = ranks(truth)

    def explained(guessed: np.ndarray) -> float:
        return float(1 - ((ranks(guessed) - of_truth) ** 2).mean() / of_truth.var())

    return explained
