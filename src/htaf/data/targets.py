"""The target column: which task it is, and its values as numbers."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64

from htaf._ground.errors import listed
from htaf.data.cells import (
    BLANKS,
    NUMBER_BLANKS,
    TableError,
    finite_numbers,
    is_text,
    lost_digits,
    parts_of,
    to_number,
    to_text,
)
from htaf.data.notes import NUMBERS_AS_TEXT, Note, why_text
from htaf.data.preprocess import Target, numbers_as_text, one_spelling, spelled
from htaf.data.reading import MAX_CLASSES, DataError

Task = Literal["regression", "classification"]


def infer_target(
    name: str,
    raw: pd.Series,
    column: pd.Series,
    task: Task | None,
    classes: tuple[str, ...],
    notes: list[Note],
) -> tuple[np.ndarray, Task, tuple[str, ...]]:
    """Infer the task of a target column, unless it is given, and return its values and classes.

    Args:
        name: of the table, for messages.
        raw: the column as it was read; column: the same without missing rows, numbers as numbers.
        task: "regression" or "classification"; None infers it: text, or whole numbers of at most 10 distinct values,
            are classes.
        classes: in code order when they are known, else () for the order of size or spelling.
        notes: what was decided is added.
    Returns:
        float64 [rows] values and () for a regression, int64 [rows] codes and the classes for a classification.
    Raises:
        DataError: text in a regression, a constant target, one class only, more classes than half the rows, or whole
            numbers that float64 cannot tell apart.
    """
    target, text, inferred = str(raw.name), is_text(column), task is None
    distinct = column.nunique()
    if task is None:
        whole = not text and bool((column % 1 == 0).all())
        task = "classification" if text or (whole and distinct <= MAX_CLASSES) else "regression"
        kind = f"{distinct:,} distinct {'whole ' if whole else ''}numbers"
        if text:
            kind = "true and false" if set(column.str.lower()) <= {"true", "false"} else "text"
        notes.append(Note("task", target, values=(task, kind)))
    lost = None if text or task == "regression" else lost_digits(raw, to_number(raw)[0])
    if lost is not None:
        raise TableError(
            f"expected classes that float64 can hold, as whole numbers up to 2^53, got {raw.iloc[lost]}: put a letter "
            "before each",
            target,
            lost + 1,
            name,
        )
    if task == "regression":
        if text:
            amounts(name, raw)  # says which row is none
            said = f"expected numbers in the target of a regression, got text that reads as numbers: {raw.iloc[0]!r}"
            raise TableError(said, target, 1, name)
        if distinct < 2:
            raise DataError(f"{name}: expected a target {target!r} that varies, got {column.iloc[0]:g} in every row")
        return column.to_numpy(np.float64), task, ()
    if text:
        chosen, several = one_spelling(to_text(column))
        if several:
            notes.append(Note("one category", target, values=several))
            column = column.map(chosen)
    found = sorted(column.unique())  # numbers by size, text by code point
    labels = to_text(pd.Series(found, dtype=column.dtype)).tolist()
    if len(found) < 2:
        raise DataError(f"{name}: expected at least two classes in target {target!r}, got {labels[0]!r} only")
    written = numbers_as_text(column) if text else None
    of_numbers = written is not None and parts_of(written or labels[0]) is not None
    many = len(found) * 2 > len(column)
    if many or (inferred and len(found) > MAX_CLASSES and of_numbers):
        hint = "choose another column" if text else "choose another column, or task regression"
        if written is not None:
            hint = why_text(written) if written else NUMBERS_AS_TEXT
            hint += "" if many else "; or choose task classification"
        raise DataError(
            f"{name}: expected classes in target {target!r}, got {len(found):,} distinct values in "
            f"{len(column):,} rows: {hint}"
        )
    if classes:
        if set(classes) != set(labels):
            raise DataError(f"{name}: expected the classes {listed(classes)} in {target!r}, got {listed(labels)}")
        labels = list(classes)
    values = np.array([labels.index(label) for label in to_text(column)], dtype=np.int64)
    single = [label for label, count in zip(labels, np.bincount(values), strict=True) if count == 1]
    if single:
        notes.append(Note("one row", target, values=tuple(single)))
    if len(labels) == 2:
        notes.append(Note("positive", target, values=tuple(labels)))
    return values, task, tuple(labels)


def class_codes(name: str, column: pd.Series, target: Target) -> Float64[np.ndarray, " rows"]:
    """Return class codes by name, NaN where missing; a number is the class "2" however it is written."""
    numeric = not np.isnan(to_number(pd.Series(target.classes, dtype=object))[0]).any()
    labels = to_text(column, NUMBER_BLANKS if numeric else BLANKS)
    numbers = to_text(pd.Series(to_number(pd.Series(labels, dtype=object))[0]))
    codes = {label: code for code, label in enumerate(target.classes)}
    alike = {spelled(label): code for label, code in codes.items()}
    alike = alike if len(alike) == len(codes) else {}  # classes that differ in case
    values, wrong = np.full(len(labels), np.nan), []
    for row, (label, number) in enumerate(zip(labels, numbers, strict=True)):
        code = codes.get(label, codes.get(number))
        if code is None and label is not None:
            code = alike.get(spelled(label))
        if code is not None:
            values[row] = code
        elif label is not None:
            wrong.append(row)
    if wrong:
        unknown = list(dict.fromkeys(labels[wrong]))
        raise TableError(
            f"expected the classes {listed(target.classes)} of the target, got {listed(unknown, 5)} too",
            target.name,
            wrong[0] + 1,
            name,
        )
    return values


def amounts_of_rows(
    name: str, column: pd.Series, present: Bool[np.ndarray, " rows"], notes: list[Note]
) -> Float64[np.ndarray, " rows"]:
    """Return how much each row counts.

    Args:
        name: of the table, for messages.
        column: [rows]; without a name it is called sample_weight.
        present: rows that are looked at; the others have weight 0.
        notes: what was found is added.
    Returns:
        float64 [rows], >= 0 and not all 0.
    Raises:
        TableError: a weight that is missing, negative, infinite or no number. DataError: no row has one above 0.
    """
    called = "sample_weight" if column.name is None else str(column.name)
    column = column.astype(float) if pd.api.types.is_bool_dtype(column) else column  # rows to take
    values = finite_numbers(column, called, table=name)
    for bad, what in ((np.isnan(values), "none"), (values < 0, "a negative one")):
        if (bad & present).any():
            row = int(np.argmax(bad & present))
            came = "" if np.isnan(values[row]) else f", {values[row]:g}"
            why = f"expected a weight >= 0 in every row, got {what}{came}: give 0 to leave a row out"
            raise TableError(why, called, row + 1, name)
    values = np.where(present, values, 0.0)
    counted = values > 0
    if not counted.any():
        raise DataError(f"{name}: expected weights {called!r} above 0 in some rows, got zero in all of them")
    if none := int((present & ~counted).sum()):
        notes.append(Note("no weight", called, none))
    if np.ptp(values[counted]) > 0:
        found = values[counted]
        notes.append(Note("weights", called, len(found), (float(found.min()), float(found.max()))))
    return values


def amounts(name: str, column: pd.Series, unit: str = "") -> Float64[np.ndarray, " rows"]:
    """Return numbers of a target, NaN where missing; unit: that its texts may have. Raises TableError: text, a truth
    value, an infinite number."""
    if pd.api.types.is_bool_dtype(column):
        column = column.astype(str)
    return finite_numbers(column, str(column.name), " in the target of a regression", name, unit)


def read_labels(texts: Sequence[str]) -> np.ndarray:
    """Read names of classes as a reader of the file has them: whole numbers, other numbers, truth values or text."""
    if {*texts} <= {"True", "False"}:
        return np.array([text == "True" for text in texts])
    for kind in (int, float):
        try:
            values = [kind(text) for text in texts]
        except ValueError:
            continue
        if [str(value) for value in values] == [*texts]:
            return np.array(values)
    return np.array(texts, dtype=object)


LABELS = (str, int, float, bool)


def labels_of(record: Mapping[str, Any]) -> list[Any] | None:
    """Return the classes in the type of the target of an estimator that was saved; None: of a run of the command, of
    dates."""
    entry = record.get("estimator") or {}
    return entry.get("classes") if entry.get("dtype", "M").lstrip("<>=|")[:1] in "Obiuf" else None


def relabelled(found: pd.DataFrame, classes: Sequence[str], labels: Any = None) -> pd.DataFrame:
    """Return predictions with the classes in the type of the training's target, so that they can be compared with it.

    Args:
        found: `prediction` holds classes as text; not changed.
        classes: as the preprocessing names them; none of a regression.
        labels: a list of one for each, as `labels_of`; anything else: as `read_labels` reads them.
    """
    known = isinstance(labels, list) and len(labels) == len(classes) and all(type(v) in LABELS for v in labels)
    values = pd.Series(labels).to_numpy() if known else read_labels(classes)
    if not len(classes) or values.dtype == object:
        return found
    return found.assign(prediction=values[pd.Index(classes).get_indexer(pd.Index(found["prediction"]))])
