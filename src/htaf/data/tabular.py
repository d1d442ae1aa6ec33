"""Tables by name or from a file, with every step of cleaning noted, and their splits."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from jaxtyping import Float64, Int64, Shaped

from htaf._errors import expect_seed, suggestion
from htaf.data.columns import Target
from htaf.data.named import NAMED, lookup, read_named
from htaf.data.preprocess import Preprocessor
from htaf.data.reading import (
    SUFFIXES,
    DataError,
    counted,
    is_text,
    listed,
    read_frame,
    to_number,
    to_text,
    typed,
)
from htaf.data.targets import Task, amounts, class_codes, infer_target

MIN_ROWS = 20  # gives 14, 2 and 4 rows; a validation error over fewer says nothing
ID_LIKE = 0.95  # share of distinct values from which a text column identifies rows


@dataclass(frozen=True)
class Table:
    """A table ready to split: raw features, a clean target and what was done to get them.

    Attributes:
        name: the set's name or the file's.
        features: raw rows in file order; float64 columns (NaN where missing) and text columns (object,
            None where missing), numbers among text only from `load_like`.
        target: float64 [rows] in original units for regression, int64 [rows] class codes for
            classification.
        task: "regression" or "classification".
        target_name: the target's column.
        classes: class names in code order, empty for regression.
        notes: everything that was handled, one line each.
        fingerprint: sha256 of names, kinds and content, equal on every machine.
        special_codes: numbers in the features that say why a value is missing.
    """

    name: str
    features: pd.DataFrame
    target: Float64[np.ndarray, " rows"] | Int64[np.ndarray, " rows"]
    task: Task
    target_name: str
    classes: tuple[str, ...]
    notes: tuple[str, ...]
    fingerprint: str
    special_codes: tuple[float, ...] = ()

    def fit_preprocessor(self, rows: Int64[np.ndarray, " part"]) -> Preprocessor:
        """The preprocessing learned from these rows, which are to be the training part.

        Args:
            rows: int64 [part], row numbers.
        Returns:
            the fitted preprocessor.
        Raises:
            DataError: as `Preprocessor.fit`.
        """
        return Preprocessor.fit(
            self.features.iloc[rows],
            self.target[rows],
            task=self.task,
            target_name=self.target_name,
            classes=self.classes,
            special_codes=self.special_codes,
        )


@dataclass(frozen=True)
class Split:
    """Row numbers of the three parts, ascending, disjoint and complete; int64 [rows of the part] each."""

    train: Int64[np.ndarray, " train"]
    validation: Int64[np.ndarray, " validation"]
    test: Int64[np.ndarray, " test"]


def load(
    name_or_path: str | os.PathLike[str],
    *,
    target: str | None = None,
    task: Task | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    drop_empty: bool = False,
) -> Table:
    """A named set, or any CSV, TSV or Parquet file with a target column.

    Named sets ("wine", "abalone", "churn", "fico", "digits") are looked for in `data_dir`, then in the
    folder that the environment variable HTAF_DATA names (each also under `tabular/`), then on OpenML; the
    row count is checked. In churn "Yes" is class 1, in fico "Bad" is class 1.

    A file is looked for in the working folder, then in `data_dir`, then in the folder that HTAF_DATA names. Of its
    columns, text and truth values make a classification target; whole numbers with at most 10 distinct values do too;
    other numbers are regression. Rows without a target are dropped, as are columns with one value and text columns in
    which nearly every value is distinct; each is noted.

    Args:
        name_or_path: a set's name, or a file.
        target: the target column, needed for a file.
        task: overrides the inferred task.
        data_dir: a folder with the named sets' files, and with files that are not in the working folder.
        drop_empty: fico only: leaves out the 588 rows that are -9 throughout.
    Returns:
        the table.
    Raises:
        DataError: nothing by that name, a wrong row count, or data that cannot be used; see `read_frame`
            and `typed`.
    """
    given, known = os.fspath(name_or_path), lookup(name_or_path)
    if known is not None and target not in (None, known.target):
        raise DataError(
            f"{known.name}: expected its own target {known.target!r}, got {target!r}: leave target out, or give the "
            "file's path"
        )
    frame, notes = _read(given, data_dir, drop_empty)
    if known is not None:
        return _table(known.name, frame, known.target, task or known.task, notes, known.classes, known.special_codes)
    if target is None:
        raise DataError(
            f"{given}: expected the name of the target column (--target), got none; columns: "
            f"{listed([*map(str, frame)])}"
        )
    _check_target(given, frame, target)
    return _table(Path(given).name, frame, target, task, notes)


def from_frame(
    frame: pd.DataFrame,
    target: str | Float64[np.ndarray, " rows"] | Int64[np.ndarray, " rows"],
    *,
    task: Task | None = None,
    classes: Sequence[str] = (),
    name: str = "frame",
    target_name: str = "target",
) -> Table:
    """A data frame as a table, treated as `load` treats a file, but that what a column is follows from its dtype.

    Numbers are numbers, nullable ones too. Text, categories and truth values are categories, also where they read as
    numbers. A column of objects is what its values are: numbers, or else text. Any number of rows will do.

    Args:
        frame: any dtypes, [rows, columns].
        target: the name of the target column; rows without it are dropped, and the task is inferred as by `load`. Or
            values for the rows of the frame: float64 for a regression, class codes for a classification; then nothing
            is inferred or refused.
        task: overrides the inferred task; needed with values.
        classes: with class codes, the class names in code order.
        name: of the table, for messages and records.
        target_name: of values.
    Returns:
        the table.
    Raises:
        DataError: no such target column, repeated columns, infinite values, or data that cannot be used.
    """
    frame = frame.set_axis([str(column) for column in frame], axis=1)
    repeated = frame.columns[frame.columns.duplicated()].unique().tolist()
    if repeated:
        raise DataError(f"{name}: expected distinct column names, got {listed(repeated)} more than once")
    if isinstance(target, str):
        _check_target(name, frame, target)
        return _table(name, frame.reset_index(drop=True), target, task, [], reading=_by_kind, least=1)
    if task is None or len(target) != len(frame):
        raise DataError(f"{name}: expected a task and {len(frame)} target values, got {task} and {len(target)}")
    while target_name in frame:
        target_name += "_"
    raw = frame.reset_index(drop=True).assign(**{target_name: np.asarray(target, dtype=np.float64)})
    known = target, task, tuple(classes)
    return _table(name, raw, target_name, task, [], reading=_by_kind, least=1, known=known)


def _by_kind(frame: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """As `typed`, but text and categories stay what they are where some of their values read as numbers."""
    columns, notes = {}, list[str]()
    for name in frame:
        column = frame[name].infer_objects()
        kept = isinstance(column.dtype, pd.CategoricalDtype)
        if not kept and is_text(column) and not pd.api.types.is_datetime64_any_dtype(column):
            kept = not np.isnan(to_number(column)[0]).all()
        if kept:
            columns[name] = pd.Series(to_text(column), dtype=object)
        else:
            read, told = typed(column.to_frame())
            columns[name], notes = read[name], [*notes, *told]
    return pd.DataFrame(columns, index=pd.RangeIndex(len(frame))), tuple(notes)


def load_like(
    name_or_path: str | os.PathLike[str],
    *,
    target: Target,
    data_dir: str | os.PathLike[str] | None = None,
    drop_empty: bool = False,
) -> Table:
    """Other labelled rows for a preprocessor that is already fitted, to measure a finished run on them.

    Nothing is learned from these rows: every column is kept, one row is enough, and so is one class. Text
    columns stay text, numbers among them too, because the fitted preprocessor knows what each column is.
    Rows without a target are dropped with a note.

    Args:
        name_or_path: a set's name or a file, as for `load`.
        target: the target side of the preprocessor, `Preprocessor.target`: its name is the column that is
            read, its task is the table's, and class codes are places in its classes, found by name.
        data_dir: a folder with the named sets' files.
        drop_empty: fico only: leaves out the 588 rows that are -9 throughout.
    Returns:
        the table; its features are for `Preprocessor.transform`.
    Raises:
        DataError: nothing by that name, no target column, no row with a target, a class that `target` does
            not know, or text where it is a number; see `read_frame`.
    """
    given, known = os.fspath(name_or_path), lookup(name_or_path)
    frame, notes = _read(given, data_dir, drop_empty)
    name = Path(given).name if known is None else known.name
    _check_target(given if known is None else name, frame, target.name)
    column, coded = frame[target.name], target.task == "classification"
    values = class_codes(name, column, target) if coded else amounts(name, column)
    present = ~np.isnan(values)
    gone = int((~present).sum())
    if gone == len(frame):
        raise DataError(f"{name}: expected a target {target.name!r} in one row at least, got it in none of {gone:,}")
    if gone:
        notes.append(f"{counted(gone, 'row')} without a target {target.name!r} dropped")
    values = values[present].astype(np.int64 if coded else np.float64)
    absent = [label for code, label in enumerate(target.classes) if code not in values]
    if absent:
        notes.append(f"target {target.name!r}: no rows of {listed(absent)}")
    features = _by_dtype(frame.drop(columns=target.name)).loc[present].reset_index(drop=True)
    digest = _fingerprint(features, values, target.name, target.task, target.classes)
    codes = () if known is None else known.special_codes
    return Table(name, features, values, target.task, target.name, target.classes, tuple(notes), digest, codes)


def _by_dtype(frame: pd.DataFrame) -> pd.DataFrame:
    """Number columns as float64, all others as text; unlike `typed`, nothing is decided from the values."""
    columns = {
        name: pd.Series(to_text(frame[name]), dtype=object)
        if is_text(frame[name])
        else pd.Series(to_number(frame[name])[0])
        for name in frame
    }
    return pd.DataFrame(columns, index=pd.RangeIndex(len(frame)))


def _read(given: str, data_dir: str | os.PathLike[str] | None, drop_empty: bool) -> tuple[pd.DataFrame, list[str]]:
    """The raw rows of a named set or of a file, with notes."""
    known = lookup(given)
    if known is not None:
        return read_named(known, data_dir, drop_empty=drop_empty)
    if drop_empty:
        raise DataError(f"{given}: leave drop_empty out, it is for 'fico' alone")
    path = Path(given)
    looks_like_name = not path.suffix and path.name == given
    if not given or (looks_like_name and not path.exists()):  # "" would be the working folder
        near = suggestion(given, list(NAMED))
        raise DataError(
            f"{given!r}: expected one of {listed(list(NAMED))} or a file ending in {', '.join(SUFFIXES)}, "
            f"got neither{near}"
        )
    folders = [Path(folder) for folder in (data_dir, os.environ.get("HTAF_DATA")) if folder]
    places = [path, *(folder / path for folder in folders)]
    frame, notes = read_frame(next((place for place in places if place.exists()), path))
    return frame, list(notes)


def _check_target(where: str, frame: pd.DataFrame, target: str) -> None:
    names = list(frame.columns)
    if target not in names:
        raise DataError(
            f"{where}: expected a target column {target!r}{suggestion(target, names)}, got the columns {listed(names)}"
        )


def _table(
    name: str,
    raw: pd.DataFrame,
    target: str,
    task: Task | None,
    notes: Sequence[str],
    classes: tuple[str, ...] = (),
    special_codes: tuple[float, ...] = (),
    *,
    reading: Callable[[pd.DataFrame], tuple[pd.DataFrame, tuple[str, ...]]] = typed,
    least: int = MIN_ROWS,
    known: tuple[np.ndarray, Task, tuple[str, ...]] | None = None,
) -> Table:
    """The table of raw rows; known: target values, task and classes where they need not be read from the column."""
    notes = list(notes)
    table, typing_notes = reading(raw)  # before rows go, so that errors count the file's rows
    present = table[target].notna().to_numpy()
    gone = int((~present).sum())
    if gone * 2 > len(raw):
        raise DataError(
            f"{name}: expected target {target!r} in at least half of the rows, got it in {len(raw) - gone} of "
            f"{len(raw)}"
        )
    if gone:
        notes.append(f"{counted(gone, 'row')} without a target {target!r} dropped")
    if present.sum() < least:
        raise DataError(f"{name}: expected at least {least} rows with a target, got {present.sum()}")
    table = table.loc[present].reset_index(drop=True)
    features = table.drop(columns=target)
    notes += typing_notes
    told = len(notes)
    if name not in NAMED:
        features = _drop_useless(features, notes)
    if not features.shape[1]:
        why = "; ".join(notes[told:][:5])
        raise DataError(f"{name}: expected at least one usable column beside {target!r}, got none{why and ': ' + why}")
    values, task, classes = known or infer_target(name, raw[target], table[target], task, classes, notes)
    repeated = int(features.assign(**{"\0target": values}).duplicated().sum())
    if repeated:
        notes.append(f"{counted(repeated, 'row')} repeating an earlier row; a grouped split keeps them on one side")
    missing = {column: int(features[column].isna().sum()) for column in features}
    notes += [f"column {column!r}: {counted(count, 'missing value')}" for column, count in missing.items() if count]
    digest = _fingerprint(features, values, target, task, classes)
    return Table(name, features, values, task, target, classes, tuple(notes), digest, special_codes)


def _drop_useless(features: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    kept: list[str] = []
    for name in features:
        column = features[name]
        distinct, present = column.nunique(), int(column.notna().sum())
        if distinct + (present < len(column)) <= 1 or distinct == 0:
            notes.append(f"column {name!r} dropped: one value in every row")
        elif is_text(column) and distinct >= ID_LIKE * present and distinct > 2:
            notes.append(f"column {name!r} dropped: text with {distinct:,} distinct values in {present:,} rows")
        else:
            kept.append(str(name))
            if not is_text(column) and distinct == len(column) == column.max() - column.min() + 1:
                notes.append(
                    f"column {name!r} looks like a row number and is kept: delete it from the file if it is one"
                )
    return features[kept]


def _fingerprint(
    features: pd.DataFrame, target: np.ndarray, target_name: str, task: str, classes: tuple[str, ...]
) -> str:
    """sha256 over little-endian float64 and JSON text, so that neither pandas nor the machine matters."""
    digest = hashlib.sha256()

    def add(name: str, values: np.ndarray) -> None:
        if values.dtype == object:
            content = json.dumps([name, "text", values.tolist()]).encode()
        else:
            numbers = values.astype("<f8") + 0.0  # -0.0 becomes 0.0
            numbers[np.isnan(numbers)] = np.nan  # one NaN of the many
            content = json.dumps([name, "number"]).encode() + numbers.tobytes()
        digest.update(len(content).to_bytes(8, "little") + content)

    for name in features:
        add(str(name), features[name].to_numpy())
    add(json.dumps([target_name, task, *classes]), target)
    return digest.hexdigest()


def split(table: Table, seed: int, *, mode: Literal["random", "grouped"] = "random") -> Split:
    """70 / 10 / 20 random rows, the same for a seed on every machine.

    Rows are ordered by raw PCG64 words, which numpy keeps stable across versions, as it does not for
    permutations. Plain random for classification too, as in the paper: a rare class may miss a part. In
    "grouped" mode rows with equal features (whatever their target) stay in one part, and the parts' sizes
    are the nearest that whole groups allow.

    Args:
        table: at least 20 rows.
        seed: >= 0.
        mode: "random" or "grouped".
    Returns:
        the row numbers of the parts.
    Raises:
        DataError: a negative seed, an unknown mode, or fewer than three groups.
    """
    expect_seed(seed, DataError)
    rows = len(table.target)
    if mode == "random":
        groups = np.arange(rows)
    elif mode == "grouped":
        groups = _groups(table.features)
    else:
        raise DataError(f"split: expected mode 'random' or 'grouped', got {mode!r}")
    sizes = np.bincount(groups)
    if len(sizes) < 3:
        raise DataError(f"{table.name}: expected at least 3 distinct rows to split by groups, got {len(sizes)}")
    order = np.argsort(np.random.PCG64(seed).random_raw(len(sizes)), kind="stable")
    ends = np.cumsum(sizes[order])  # rows up to and with each group

    def cut(share: int, first: int, last: int) -> int:
        return int(np.clip(np.abs(ends - share).argmin() + 1, first, last))

    train_end = cut(rows * 7 // 10, 1, len(sizes) - 2)
    validation_end = cut(rows * 7 // 10 + rows // 10, train_end + 1, len(sizes) - 1)
    place = np.empty(len(sizes), dtype=np.int64)
    place[order] = np.repeat([0, 1, 2], np.diff([0, train_end, validation_end, len(sizes)]))
    part = place[groups]
    return Split(*(np.flatnonzero(part == wanted).astype(np.int64) for wanted in range(3)))


def _groups(features: pd.DataFrame) -> Shaped[np.ndarray, " rows"]:
    """Group numbers in order of first appearance; equal features share one, missing equals missing."""
    same = {
        str(place): column.fillna("") if is_text(column) else column + 0.0
        for place, (_, column) in enumerate(features.items())
    }
    return pd.factorize(pd.util.hash_pandas_object(pd.DataFrame(same), index=False))[0]
