"""What is to be said of a table and its parts before a training: columns that give the target away, dates, skewness."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64, Int64

from htaf.data.dates import native
from htaf.data.notes import Note
from htaf.data.reading import is_date, is_text
from htaf.data.tabular import Mode, Split, Table

MOST_ROWS = 4_000  # of the training part that are looked at, evenly spread
MOST_CELLS = 10_000_000  # rows x columns
FEWEST_ROWS = 40
FEWEST_OF_CLASS = 5  # of the rows that are guessed
MOST_INPUTS = 500  # of a linear model
SKEWED = 2.0  # skewness, that of an exponential distribution
WORTH = 0.1  # share of the error of a linear model that a logarithm of the target takes away
SHUFFLED = 4_517_032  # seeds the halves: neighbours in a file are alike, and made tables use small seeds
GIVEN_AWAY = 0.99  # of balanced accuracy, or of R2 of ranks
ALL_DIFFERENT = 0.95  # share of distinct values from which each row has a date of its own


def cautions(table: Table, parts: Split, mode: Mode | None) -> list[Note]:
    """Notes on a table that is divided; none of it changes anything.

    Args:
        table: with its features and target. parts: its rows.
        mode: by which they were drawn; None: they were given.
    """
    features = {str(name): column for name, column in table.features.items()}
    moments = {name: column for name, column in features.items() if is_date(column)}
    return [
        *_given_away(features, table, parts.train),
        *_dates(moments, table, parts, mode),
        *_skewed(table, parts.train),
    ]


def _dates(moments: dict[str, pd.Series], table: Table, parts: Split, mode: Mode | None) -> list[Note]:
    """Dates of their own in rows that are divided by chance, and dates of the test part that training has not."""
    notes: list[Note] = []
    for name, column in moments.items():
        values = native(column)
        if mode in ("random", "stratified") and table.parting.test is None and (distinct := _times(column)):
            notes.append(Note("rows in time", name, distinct))
        train, test = (part[~np.isnat(part)] for part in (values[parts.train], values[parts.test]))
        if not len(train) or not len(test):
            continue
        low, high = train.min(), train.max()
        outside = int(((test < low) | (test > high)).sum())
        if outside:
            days = [str(day.astype("M8[D]")) for day in (test.min(), test.max(), low, high)]
            notes.append(Note("test dates outside", name, outside, (len(test), *days)))
    return notes


def drawn_in_time(table: Table) -> list[Note]:
    """Dates of their own in rows of which those that validate are drawn by chance."""
    moments = {str(name): column for name, column in table.features.items() if is_date(column)}
    return [Note("drawn in time", name, count) for name, column in moments.items() if (count := _times(column))]


def _times(column: pd.Series) -> int:
    """How many different dates there are, where about each row has one of its own; else 0."""
    known, distinct = int(column.notna().sum()), int(column.nunique())
    return distinct if known * 2 > len(column) and distinct >= ALL_DIFFERENT * known else 0


def _given_away(features: dict[str, pd.Series], table: Table, train: Int64[np.ndarray, " train"]) -> list[Note]:
    """Columns that alone say the target almost without error: half of the training rows are guessed by that row of the
    other half whose value is the nearest."""
    count = min(len(train), MOST_ROWS, max(FEWEST_ROWS, MOST_CELLS // max(1, len(features))))
    if count < FEWEST_ROWS:
        return []
    rows = _shuffled(train, count)
    known, asked = rows[: count // 2], rows[count // 2 :]
    score = _score(table, asked)
    if score is None:
        return []
    notes: list[Note] = []
    for name, column in features.items():
        values = _as_numbers(column.iloc[rows])
        guessed = _nearest(values[: len(known)], values[len(known) :])
        found = score(table.target[known][guessed])
        if found >= GIVEN_AWAY:
            what = "R2 of the ranks" if table.task == "regression" else "balanced accuracy"
            notes.append(Note("gives the target away", name, len(asked), (what, round(found, 4), table.target_name)))
    return notes


def _skewed(table: Table, train: Int64[np.ndarray, " train"]) -> list[Note]:
    """Whether a linear model of the logarithm of a skewed target has less error, in units of the target, than one of
    the target itself: each half of the training rows is predicted from the other one."""
    if table.task != "regression" or len(train) < FEWEST_ROWS or (known := table.target[train]).min() < 0:
        return []
    apart = known - known.mean()
    skewness = float((apart**3).mean() / max((apart**2).mean() ** 1.5, 1e-300))
    if skewness < SKEWED:
        return []
    from sklearn.linear_model import RidgeCV

    plain = logged = 0.0
    rows = _shuffled(train, MOST_ROWS)
    halves = np.array_split(rows, 2)
    for fitted, asked in (halves, halves[::-1]):
        preprocessor, y, truth = table.fit_preprocessor(fitted), table.target[fitted], table.target[asked]
        inputs, others = (preprocessor.transform(table.features, part) for part in (fitted, asked))
        if inputs.shape[1] > MOST_INPUTS:
            return []
        model = RidgeCV(np.logspace(-3, 3, 7))
        plain += ((model.fit(inputs, y).predict(others) - truth) ** 2).sum()
        with np.errstate(over="ignore"):  # far from its rows the exponential of a line explodes
            logged += ((np.expm1(model.fit(inputs, np.log1p(y)).predict(others)) - truth) ** 2).sum()
    better = 1 - (logged / plain) ** 0.5 if plain else 0.0
    return [Note("skewed", table.target_name, len(rows), (skewness, float(better)))] if better >= WORTH else []


def _shuffled(train: Int64[np.ndarray, " train"], most: int) -> Int64[np.ndarray, " rows"]:
    """At most so many rows, evenly spread, in an order that is drawn."""
    rows = train[np.linspace(0, len(train) - 1, min(len(train), most)).astype(np.int64)]
    return rows[np.argsort(np.random.PCG64(SHUFFLED).random_raw(len(rows)), kind="stable")]


def _as_numbers(column: pd.Series) -> Float64[np.ndarray, " rows"]:
    """Numbers and dates in their order, categories in any; missing ones are alike and below all others."""
    if is_text(column) and not is_date(column):
        return pd.factorize(column)[0].astype(np.float64)
    values = native(column) if is_date(column) else column.to_numpy()
    missing = np.isnat(values) if is_date(column) else np.isnan(values)
    values = values.astype(np.int64).astype(np.float64) if is_date(column) else values
    lowest = values[~missing].min() if not missing.all() else 0.0
    return np.where(missing, lowest - 1 - abs(lowest), values)


def _nearest(known: Float64[np.ndarray, " known"], asked: Float64[np.ndarray, " asked"]) -> Int64[np.ndarray, " asked"]:
    """For each value the place of the nearest known one."""
    order = np.argsort(known, kind="stable")
    ordered = known[order]
    right = np.searchsorted(ordered, asked).clip(0, len(ordered) - 1)
    left = (right - 1).clip(0)
    return order[np.where(asked - ordered[left] < ordered[right] - asked, left, right)]


def _score(table: Table, asked: Int64[np.ndarray, " asked"]) -> Callable[[Any], float] | None:
    """How good guesses of the target are, 1 at best; None where too few rows can tell."""
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
