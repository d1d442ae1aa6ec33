"""Tables by name or from a file, with every step of cleaning noted, and their splits."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import sklearn.datasets
from jaxtyping import Bool, Float64, Int64, Shaped

from htaf._ground.errors import counted, expect_seed, listed, option, suggestion
from htaf.data.cells import (
    BLANKS,
    NUMBER_BLANKS,
    TableError,
    finite_numbers,
    is_date,
    is_text,
    lost_digits,
    parts_of,
    to_number,
    to_text,
)
from htaf.data.dates import native
from htaf.data.notes import NUMBERS_AS_TEXT, Note, told, why_text
from htaf.data.order import random_order, random_words
from htaf.data.preprocess import Preprocessor, Target, numbers_as_text, one_spelling, spelled
from htaf.data.reading import MAX_CLASSES, DataError, Frame, data_folders, named, typed, with_names, without_names
from htaf.data.table_files import SUFFIXES, Numbers, read_frame

FRAME = "frame"  # the name of a data frame, which has none
MIN_ROWS = 20  # gives 14, 2 and 4 rows; a validation error over fewer says nothing
ID_LIKE = 0.95  # share of distinct values from which a text column identifies rows


Task = Literal["regression", "classification"]
Mode = Literal["random", "grouped", "stratified", "time"]
SHARES = (0.7, 0.1, 0.2)
FEW_ENDS = 4  # rows at an end of a table among which totals are looked for
MANY = 5  # rows with a value that stands for none
FEW_SUMMED = 10  # values that are not 0 in a column, from which the largest is hardly the sum of the others by chance
TOTALS = re.compile(
    r"(grand |sub-?)?totals?|sums?|average|mean|summe|gesamt|insgesamt|mittelwert|somme|moyenne|total général|totale|"
    r"media|suma|promedio|total general|razem|totaal|合计|总计|合計|max(imum)?|min(imum)?|median|std|count"
)


# ---- the sets known by name: where their files are, and what must be said of them ----

_ABALONE = "sex length diameter height whole_weight shucked_weight viscera_weight shell_weight rings"
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"


@dataclass(frozen=True)
class Named:
    """One known set.

    Attributes:
        file: its published name; "": bundled. url: where it is published.
        rows: that it must have. columns: of a file without a line of names. left_out: columns that are not of the set.
        classes: in code order. special_codes: numbers that say why a value is missing.
    """

    name: str
    file: str
    url: str
    rows: int
    target: str
    task: Literal["regression", "classification"]
    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    special_codes: tuple[float, ...] = ()


def _digits() -> pd.DataFrame:
    bunch: Any = sklearn.datasets.load_digits()
    return pd.DataFrame(bunch.data).add_prefix("pixel_").assign(digit=bunch.target)


_TEN = tuple(str(digit) for digit in range(10))
NAMED: dict[str, Named] = {
    known.name: known
    for known in (
        Named("wine", "winequality-white.csv", f"{_UCI}/wine-quality", 4898, "quality", "regression"),
        Named(
            "abalone", "abalone.data", f"{_UCI}/abalone", 4177, "rings", "regression", columns=tuple(_ABALONE.split())
        ),
        Named(
            "churn", "Telco-Customer-Churn.csv", "https://www.kaggle.com/datasets/blastchar/telco-customer-churn", 7043,
            "Churn", "classification", ("No", "Yes"), left_out=("customerID",),
        ),
        Named(
            "fico", "heloc_dataset_v1.csv", "https://community.fico.com/s/explainable-machine-learning-challenge",
            10459, "RiskPerformance", "classification", ("Good", "Bad"), special_codes=(-7.0, -8.0, -9.0),
        ),
        Named("digits", "", "", 1797, "digit", "classification", _TEN),
    )
}  # fmt: skip
BUNDLED: dict[str, Callable[[], pd.DataFrame]] = {"digits": _digits}


def lookup(name: str | os.PathLike[str]) -> Named | None:
    """Return the known set of that name, in any case; None for what may be a path."""
    return NAMED.get(os.fspath(name).lower())


def is_named(name: str | os.PathLike[str]) -> bool:
    """Return whether `load` takes this for a known set, not for a file; names go in any case."""
    return lookup(name) is not None


def read_named(known: Named, data_dir: str | os.PathLike[str] | None = None) -> tuple[pd.DataFrame, list[Note]]:
    """Read a known set as it is published, its rows counted.

    Args:
        known: one of `NAMED`.
        data_dir: searched first, then the folder in HTAF_DATA, each also under `tabular/`.
    Returns:
        the frame [rows, columns with the target], and the notes.
    Raises:
        DataError: found nowhere, or another file than the published one.
    """
    if known.name in BUNDLED:
        return BUNDLED[known.name](), [Note("source", values=("bundled with scikit-learn",))]
    folders = data_folders(data_dir)
    places = [place / known.file for folder in folders for place in (folder, folder / "tabular")]
    path = next((place for place in places if place.is_file()), None)
    where = f"download it from {known.url} into a folder that HTAF_DATA or {option('--data-dir', 'data_dir=')} names"
    if path is None:
        raise DataError(f"{known.name}: {known.file} not found in {listed(folders) or 'any folder'}; {where}")
    frame, notes = read_frame(path, names=known.columns or None)
    if len(frame) != known.rows or known.target not in frame:
        came = f"{len(frame):,} rows and the columns {listed([*frame])}"
        raise DataError(
            f"{known.name}: expected {known.rows:,} rows with {known.target!r}, got {came} from {path}; {where}"
        )
    gone = [name for name in known.left_out if name in frame]
    notes += [Note("dropped", name, values=("not part of the set",)) for name in gone]
    return frame.drop(columns=gone), notes


# ---- tables ----


@dataclass(frozen=True)
class Parting:
    """How the rows of a table are divided; as it is made without arguments: as `split` says.

    Attributes:
        shares: of training, validation and test rows; two where none test.
        group, groups: a column's name, and a number for each row; rows with the same one stay in one part.
        time, times: a column's name, and the place of each row in time; the last rows are the test part.
        test: rows that measure, chosen by the caller, who divides the table by them; None: no such rows.
    """

    shares: tuple[float, ...] = SHARES
    group: str | None = None
    groups: Int64[np.ndarray, " rows"] | None = None
    time: str | None = None
    times: Int64[np.ndarray, " rows"] | None = None
    test: Bool[np.ndarray, " rows"] | None = None

    def identity(self) -> dict[str, Any]:
        """Return what differs from a table that is divided by seed and mode alone; it is part of a training's
        identity."""
        shares = None if self.shares == SHARES else [*self.shares]
        tested = None if self.test is None else int(self.test.sum())
        found = {"shares": shares, "group": self.group, "time": self.time, "test_rows": tested}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class Table:
    """A table ready to split: raw features, a clean target and what was done to get them.

    Attributes:
        name: the set's name or the file's.
        features: raw rows in file order; float64 columns (NaN where missing), dates (datetime64[us], NaT) and text
            columns (object, None), numbers and dates among text only from `load_like`.
        target: float64 [rows] in original units for regression, int64 [rows] class codes for
            classification.
        task: "regression" or "classification".
        target_name: the target's column.
        classes: class names in code order, empty for regression.
        notes: everything that was handled; `htaf.data.notes.told` makes sentences of them.
        fingerprint: sha256 of names, kinds and content, equal on every machine.
        special_codes: numbers in the features that say why a value is missing.
        written: how the file writes the dates of a column, or the numbers of one or of the target, for
            `Preprocessor.fit`.
        ids: columns that name the rows, [rows, ids]; they are no features.
        separators: of thousands and decimals in the file, see `read_frame`.
        parting: what `split` goes by, beside seed and mode.
        weights: how much each row counts, in the training and in what is measured, all > 0; None: all alike.
        weight: the column that holds them, "" for none.
    """

    name: str
    features: pd.DataFrame
    target: Float64[np.ndarray, " rows"] | Int64[np.ndarray, " rows"]
    task: Task
    target_name: str
    classes: tuple[str, ...]
    notes: tuple[Note, ...]
    fingerprint: str
    special_codes: tuple[float, ...] = ()
    written: Mapping[str, str] = field(default_factory=dict)
    ids: pd.DataFrame = field(default_factory=pd.DataFrame)
    parting: Parting = Parting()
    weights: Float64[np.ndarray, " rows"] | None = None
    weight: str = ""
    separators: str = ""

    def weights_of(self, rows: Int64[np.ndarray, " part"]) -> Float64[np.ndarray, " part"] | None:
        """Return the weights of some rows."""
        return None if self.weights is None else self.weights[rows]

    def fit_preprocessor(self, rows: Int64[np.ndarray, " part"]) -> Preprocessor:
        """Learn the preprocessing from these rows, which must be the training part.

        Args:
            rows: int64 [part], row numbers.
        Returns:
            the fitted preprocessor.
        Raises:
            DataError: as `Preprocessor.fit`.
        """
        return Preprocessor.fit(
            self.features,
            self.target[rows],
            rows=rows,
            task=self.task,
            target_name=self.target_name,
            classes=self.classes,
            special_codes=self.special_codes,
            written=self.written,
            ids=[*map(str, self.ids.columns)],
            weights=self.weights_of(rows),
            separators=self.separators,
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
    text_as_missing: bool = False,
    exclude: Sequence[str] = (),
    ids: Sequence[str] = (),
    shares: Sequence[float] | None = None,
    group: str | None = None,
    time: str | None = None,
    weight: str | None = None,
) -> Table:
    """Load a named set, or any CSV, TSV or Parquet file with a target column.

    Named sets (`NAMED`) are looked for in `data_dir`, then in the folder that the environment variable
    HTAF_DATA names (each also under `tabular/`). In churn "Yes" is class 1, in fico "Bad" is class 1.

    A file is looked for in the working folder, then in `data_dir`, then in the folder that HTAF_DATA names. Of its
    columns, text and truth values make a classification target; whole numbers with at most 10 distinct values do too;
    other numbers are regression. Dates, as text or by their dtype, become dates. Rows without a target are dropped, as
    are columns with one value and text columns in which nearly every value is distinct; each is noted.

    Args:
        name_or_path: a set's name, or a file.
        target: the target column, needed for a file.
        task: overrides the inferred task.
        data_dir: a folder with the named sets' files, and with files that are not in the working folder.
        text_as_missing: as of `htaf.data.reading.typed`.
        exclude: columns that are left out.
        ids: columns that name the rows: no features, but kept beside predictions.
        shares: of training, validation and test rows, together 1.
        group: rows that are equal in this column stay in one part; it is no feature.
        time: the last rows by this column, of numbers or dates, are the test part, those before it the validation part.
        weight: a column of numbers >= 0, how much each row counts; it is no feature. Rows of weight 0 are dropped.
    Returns:
        the table.
    Raises:
        DataError: nothing by that name, a wrong row count, no such column, shares that are none, or data that cannot be
            used; see `read_frame` and `typed`.
    """
    given, known = os.fspath(name_or_path), lookup(name_or_path)
    if known is not None and target not in (None, known.target):
        raise DataError(
            f"{known.name}: expected its own target {known.target!r}, got {target!r}: leave target out, or give the "
            "file's path"
        )
    texts = {*ids, group}
    frame, notes = _read(given, data_dir, lambda column: column not in texts)
    name, column = (Path(given).name, target) if known is None else (known.name, known.target)
    if column is None:
        raise DataError(
            f"{given}: expected the name of the target column ({option('--target', 'target=')}), got none; columns: "
            f"{listed([*map(str, frame)])}"
        )
    _check_target(given, frame, column)
    classes, codes = ((), ()) if known is None else (known.classes, known.special_codes)
    return _table(
        name, frame, column, task or (known and known.task), notes, classes, codes, exclude=exclude, ids=ids,
        parting=Parting(_shares(shares), group, None, time), weights=weight, text_as_missing=text_as_missing,
        by_dtype=given.lower().endswith(".parquet"),  # a text file has no types
    )  # fmt: skip


def _shares(given: Sequence[float] | None) -> tuple[float, ...]:
    """Check the shares and return them."""
    shares = SHARES if given is None else tuple(float(share) for share in given)
    if len(shares) != 3 or not all(0 < s < 1 for s in shares) or abs(sum(shares) - 1) > 1e-6:
        raise DataError(
            "shares: expected those of training, validation and test rows, each above 0 and together 1, got "
            f"{' '.join(map(str, shares))}"
        )
    return shares


def _leave_out(
    name: str,
    frame: pd.DataFrame,
    target: str,
    exclude: Sequence[str],
    ids: Sequence[str],
    parting: Parting,
    weight: str | None,
    notes: list[Note],
) -> pd.DataFrame:
    """Take out of a frame the columns that are no features, and return those that are kept beside: ids, group, time,
    weight."""
    group, time = parting.group, parting.time
    own = (("exclude", exclude), ("id", ids), ("group", [group]), ("time", [time]), ("weight", [weight]))
    for what, columns in own:
        for column in columns:
            if column is not None and column not in frame:
                near = suggestion(column, [str(other) for other in frame if other != target])
                raise DataError(
                    f"{name}: {what}: expected a column{near}, got {column!r}; columns: {listed([*map(str, frame)])}"
                )
            if column == target:
                raise DataError(f"{name}: {what}: expected another column than the target, got {column!r}")
    if group is not None and time is not None:
        raise DataError(f"{name}: expected a group or a time, got both: {group!r} and {time!r}")
    beside = frame[[column for column in frame if column in {*ids, group, time, weight}]]
    why = dict.fromkeys(exclude, "excluded") | dict.fromkeys(ids, "names the rows")
    why |= {group or "": "divides the rows: equal ones are in one part"}
    gone = [str(column) for column in frame if column in why and column != weight]
    notes += [Note("asked", column, values=(why[column],)) for column in gone]
    for column in gone if weight is None else [*gone, weight]:
        del frame[column]  # of the caller's own, so that none is held twice
    return beside


def from_frame(
    frame: Frame,
    target: str | Float64[np.ndarray, " rows"] | Int64[np.ndarray, " rows"],
    *,
    task: Task | None = None,
    classes: Sequence[str] = (),
    target_name: str = "target",
    text_as_missing: bool = False,
    parting: Parting = Parting(),
    weights: str | Float64[np.ndarray, " rows"] | None = None,
) -> Table:
    """Make a table from a data frame as `load` does from a file, but take the kind of a column from its dtype.

    Numbers are numbers, nullable ones too; durations are refused. Categories are categories, and so is text
    that a reader of files would have made numbers. Other texts are what they are in a file, such as numbers with "?"
    for a missing one, or words among numbers. Any number of rows will do.

    Args:
        frame: any dtypes, [rows, columns]; of pandas, Polars or pyarrow.
        target: the name of the target column, with blanks around it or without; rows without it are dropped, and the
            task is inferred as by `load`. Or values for the rows of the frame: float64 for a regression, class codes
            for a classification; then nothing is inferred or refused.
        task: overrides the inferred task; needed with values.
        classes: with class codes, the class names in code order.
        target_name: of values.
        text_as_missing: as of `typed`.
        parting: how its rows are divided.
        weights: how much each row counts: the name of a column, which is no feature, or numbers >= 0 for the rows of
            the frame. Rows of weight 0 are dropped.
    Returns:
        the table.
    Raises:
        DataError: no such target column, repeated columns, infinite values, or data that cannot be used.
    """
    frame, notes = with_names(FRAME, named(frame))
    frame = frame.reset_index(drop=True).infer_objects()
    each: Any = weights
    if isinstance(weights, str):
        each = weights if weights in frame else weights.strip()  # as the names of the columns
    elif weights is not None and len(weights) != len(frame):
        raise DataError(f"{FRAME}: expected {len(frame):,} weights, one for each row, got {len(weights):,}")
    known = None
    if isinstance(target, str):
        target_name = target if target in frame else target.strip()
        _check_target(FRAME, frame, target_name)
    else:
        if task is None or len(target) != len(frame):
            raise DataError(f"{FRAME}: expected a task and {len(frame)} target values, got {task} and {len(target)}")
        while target_name in frame:
            target_name += "_"
        frame, known = frame.assign(**{target_name: np.asarray(target, dtype=np.float64)}), target
    return _table(
        FRAME, frame, target_name, task, notes, tuple(classes), least=1, text_as_missing=text_as_missing, known=known,
        parting=parting, weights=each,
    )  # fmt: skip


def _kept_texts(frame: pd.DataFrame) -> list[str]:
    """Return columns that are categories by their dtype, or text although a reader of files would have made them
    numbers."""

    def kept(column: pd.Series) -> bool:
        if isinstance(column.dtype, pd.CategoricalDtype):
            return True
        present = column[column.notna()]
        texts = is_text(column) and all(isinstance(value, str) for value in present)
        return texts and len(present) > 0 and bool(pd.to_numeric(present, errors="coerce").notna().all())

    return [str(name) for name in frame if kept(frame[name])]


def load_like(
    name_or_path: str | os.PathLike[str],
    *,
    target: Target,
    data_dir: str | os.PathLike[str] | None = None,
    weight: str = "",
    separators: str = "",
) -> Table:
    """Return other labelled rows for a preprocessor that is already fitted, to measure a finished run on them.

    Nothing is learned from these rows: every column is kept, one row is enough, and so is one class. Text
    columns stay text, numbers among them too, because the fitted preprocessor knows what each column is.
    Rows without a target are dropped with a note.

    Args:
        name_or_path: a set's name or a file, as for `load`.
        target: the target side of the preprocessor, `Preprocessor.target`: its name is the column that is
            read, its task is the table's, and class codes are places in its classes, found by name.
        data_dir: a folder with the named sets' files.
        weight: a column with the weights of the rows, taken where they have it.
        separators: of the preprocessor.
    Returns:
        the table; its features are for `Preprocessor.transform`.
    Raises:
        DataError: nothing by that name, no target column, no row with a target, a class that `target` does
            not know, or text where it is a number; see `read_frame`.
    """
    given, known = os.fspath(name_or_path), lookup(name_or_path)
    frame, notes = _read(given, data_dir, separators=separators)
    name = Path(given).name if known is None else known.name
    codes = () if known is None else known.special_codes
    return _like(frame, target, notes, name, given if known is None else name, codes, weight)


def frame_like(frame: Frame, *, target: Target) -> Table:
    """As `load_like`, of a data frame with the column `target.name`. Args, raises: as there."""
    frame, notes = with_names(FRAME, named(frame))
    return _like(frame, target, notes, FRAME, FRAME)


def _like(
    frame: pd.DataFrame,
    target: Target,
    notes: list[Note],
    name: str,
    where: str,
    codes: tuple[float, ...] = (),
    weight: str = "",
) -> Table:
    _check_target(where, frame, target.name)
    column, coded = frame[target.name], target.task == "classification"
    values = class_codes(name, column, target) if coded else amounts(name, column, target.unit)
    present = ~np.isnan(values)
    gone = int((~present).sum())
    if gone == len(frame):
        raise DataError(f"{name}: expected a target {target.name!r} in one row at least, got it in none of {gone:,}")
    if gone:
        notes.append(Note("no target", target.name, gone))
    weights = None
    if weight and weight in frame:
        weights = amounts_of_rows(name, frame[weight], present, notes)
        present = present & (weights > 0)
        weights, frame = weights[present], frame.drop(columns=weight)
    elif weight:
        notes.append(Note("weight missing", weight))
    values = values[present].astype(np.int64 if coded else np.float64)
    absent = [label for code, label in enumerate(target.classes) if code not in values]
    if absent:
        notes.append(Note("no rows", target.name, values=tuple(absent)))
    columns = {  # by dtype: unlike `typed`, nothing is decided from the values
        name: pd.Series(to_text(raw), dtype=object) if is_text(raw) or is_date(raw) else pd.Series(to_number(raw)[0])
        for name, raw in frame.drop(columns=target.name).items()
    }
    features = pd.DataFrame(columns, index=pd.RangeIndex(len(frame))).loc[present].reset_index(drop=True)
    digest = _fingerprint(features, values, target.name, target.task, target.classes)
    return Table(
        name, features, values, target.task, target.name, target.classes, tuple(notes), digest, codes,
        weights=weights, weight=weight,
    )  # fmt: skip


def _read(
    given: str, data_dir: str | os.PathLike[str] | None, numbers: Numbers | None = None, separators: str = ""
) -> tuple[pd.DataFrame, list[Note]]:
    """Return the raw rows of a named set or of a file, with notes; numbers, separators: as `read_frame`."""
    known = lookup(given)
    if known is not None:
        return read_named(known, data_dir)
    path = Path(given)
    looks_like_name = not path.suffix and path.name == given
    if not given or (looks_like_name and not path.exists()):  # "" would be the working folder
        near = suggestion(given, list(NAMED))
        raise DataError(
            f"{given!r}: expected one of {listed(list(NAMED))} or a file ending in {', '.join(SUFFIXES)}, "
            f"got neither{near}"
        )
    return read_frame(located(path, data_dir), numbers=numbers, separators=separators)


def located(path: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return where a file lies: in the working folder, in `data_dir` or in the folder that HTAF_DATA names; else as
    given.

    Raises:
        DataError: the file does not lie in the working folder, and `data_dir` is no folder.
    """
    if Path(path).exists():
        return Path(path)
    places = [folder / path for folder in data_folders(data_dir)]
    return next((place for place in places if place.exists()), Path(path))


def _check_target(where: str, frame: pd.DataFrame, target: str) -> None:
    names = list(frame.columns)
    if target not in names:
        raise DataError(
            f"{where}: expected a target column {target!r}{suggestion(target, names)}, got the columns {listed(names)}"
            f"{without_names(names)}"
        )


def _table(
    name: str,
    raw: pd.DataFrame,
    target: str,
    task: Task | None,
    notes: list[Note],
    classes: tuple[str, ...] = (),
    special_codes: tuple[float, ...] = (),
    *,
    exclude: Sequence[str] = (),
    ids: Sequence[str] = (),
    parting: Parting = Parting(),
    weights: Any = None,
    by_dtype: bool = True,
    text_as_missing: bool = False,
    least: int = MIN_ROWS,
    known: np.ndarray | None = None,
) -> Table:
    """Return the table of raw rows, with the arguments of `load`. weights: how much each row counts: a column, or of no
    column values. by_dtype: dtypes say which columns are text, see `_kept_texts`. known: target values, which need not
    be read from the column."""
    weight, separators = weights if isinstance(weights, str) else None, raw.attrs.get("separators", "")
    beside = _leave_out(name, raw, target, exclude, ids, parting, weight, notes)
    rows, raw_target = len(raw), raw[target]
    # before rows go, so that errors count the file's rows; none is held twice
    table, typing_notes = typed(
        raw, target=target, task=task, texts=_kept_texts(raw) if by_dtype else (), consume=True,
        text_as_missing=text_as_missing,
    )  # fmt: skip
    typing_notes += _totals(table)
    present = table[target].notna().to_numpy()
    gone = int((~present).sum())
    if gone * 2 > rows:
        raise DataError(
            f"{name}: expected target {target!r} in at least half of the rows, got it in {rows - gone} of {rows}"
        )
    if gone:
        notes.append(Note("no target", target, gone))
    weighing = seen = None
    if weights is not None:
        each = pd.Series(np.asarray(weights)) if weight is None else beside[weight]
        weighing, seen = amounts_of_rows(name, each, present, notes), table.loc[present, target]
        present = present & (weighing > 0)
        gone = int((~present).sum())
    if present.sum() < least:
        raise DataError(f"{name}: expected at least {least} rows with a target, got {present.sum()}")
    written = table.attrs["written"]
    parting, noted = _parted(name, beside, present, parting)
    notes += noted
    beside = beside.loc[present].reset_index(drop=True)
    if gone:
        table = table.loc[present].reset_index(drop=True)
    of_target = table[target]
    features = table.drop(columns=target)
    del table
    notes += typing_notes
    before = len(notes)
    if name not in NAMED:
        features = _drop_useless(features, notes)
    if not features.shape[1]:
        why = "; ".join(told(notes[before:])[:5])
        raise DataError(f"{name}: expected at least one usable column beside {target!r}, got none{why and ': ' + why}")
    if known is not None and task is not None:
        values = known[present]
    else:
        values, task, classes = infer_target(name, raw_target, of_target, task, classes, notes)
    if seen is not None and task == "classification" and known is None:
        lost = [name for name in sorted({*to_text(seen)}) if name not in {*to_text(of_target)}]
        notes += [Note("class without weight", target, values=tuple(lost))] if lost else []
    kept = None if weighing is None or np.ptp(weighing[present]) == 0 else weighing[present]  # equal ones are none
    repeated = len(values) - len(np.unique(_row_hashes({**dict(features.items()), "": pd.Series(values)})))
    if repeated:
        notes.append(Note("repeated", count=repeated))
    missing = {str(column): int(features[column].isna().sum()) for column in features}
    notes += [Note("missing", column, count) for column, count in missing.items() if count]
    digest = _fingerprint(features, values, target, task, classes, parting, kept)
    named = beside[[column for column in beside if column in {*ids}]]
    return Table(
        name,
        features,
        values,
        task,
        target,
        classes,
        tuple(notes),
        digest,
        special_codes,
        {column: how for column, how in written.items() if column in features or column == target},
        named,
        parting,
        kept,
        weight or "",
        separators,
    )


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


def _parted(name: str, beside: pd.DataFrame, present: np.ndarray, parting: Parting) -> tuple[Parting, list[Note]]:
    """Return the parting of the rows that have a target, with their groups and their order in time."""
    notes: list[Note] = []
    if parting.test is not None:
        test = parting.test[present]
        parting = replace(parting, test=test)
        if not test.any() or test.all():
            which = "training" if test.all() else "test"
            raise DataError(f"{name}: expected rows with a target in both parts, got none among the {which} rows")
    if (group := parting.group) is not None:
        texts = to_text(beside[parting.group])
        groups = pd.factorize(texts)[0]
        lone = groups < 0  # a row without a group is one of its own
        groups[lone] = groups.max() + 1 + np.arange(lone.sum())
        parting = replace(parting, groups=groups[present].astype(np.int64))
        if lone.any():
            notes.append(Note("no group", group, int(lone.sum())))
    if parting.time is not None:
        column, _ = typed(beside[[parting.time]])
        times = column[parting.time]
        if is_date(times):
            times = pd.Series(native(times))
        elif is_text(times) and not (numbers := to_number(times))[1].any():
            times = pd.Series(numbers[0])  # such as 01 to 12
        elif is_text(times):
            first = next((value for value in times if value is not None), None)
            raise DataError(f"{name}: time: expected a column of dates or numbers, got {parting.time!r} ({first!r})")
        if times.isna().any():
            row = int(np.argmax(times.isna())) + 1
            raise TableError("time: expected a value in every row, got none", parting.time, row, name)
        parting = replace(parting, times=pd.factorize(times[present].to_numpy(), sort=True)[0].astype(np.int64))
    return parting, notes


def _drop_useless(features: pd.DataFrame, notes: list[Note]) -> pd.DataFrame:
    kept: list[str] = []
    for name, column in ((str(name), column) for name, column in features.items()):
        distinct, present = column.nunique(), int(column.notna().sum())
        written = numbers_as_text(column) if distinct > 2 and is_text(column) else None
        if written:
            notes.append(Note("number as text", name, values=(written,)))
        if distinct + (present < len(column)) <= 1 or distinct == 0:
            why = "one value in every row" if present else "all values are missing"
            notes.append(Note("dropped", name, values=(why,)))
        elif is_date(column):
            kept.append(name)
            notes += _far_value(name, column)
        elif is_text(column) and distinct >= ID_LIKE * present and distinct > 2:
            why = f"text with {distinct:,} distinct values in {counted(present, 'row')}"
            notes.append(Note("dropped", name, values=(f"{why}; {NUMBERS_AS_TEXT}" if written == "" else why,)))
        else:
            kept.append(name)
            notes += [] if is_text(column) else _far_value(name, column)
    return features[kept]


def _totals(table: pd.DataFrame) -> list[Note]:
    """Notes on rows that look like the sum, the mean or another figure of the others.

    They say so at an end of the table, or one is the sum of all others in two columns of numbers, or in the only one.
    """
    rows, named = len(table), dict[int, str]()
    ends = np.unique(np.r_[: min(FEW_ENDS, rows), max(rows - FEW_ENDS, 0) : rows])
    sums, numbers = Counter[int](), 0
    for _, column in table.items():
        if is_date(column):
            continue
        if is_text(column):
            for row, text in zip(ends.tolist(), map(str, column.iloc[ends]), strict=True):
                if TOTALS.fullmatch(text.strip(" :*").casefold()) and (column == text).sum() <= 2:
                    named.setdefault(row, repr(text))
            continue
        values = np.nan_to_num(column.to_numpy())
        numbers += 1
        place = int(np.argmax(np.abs(values)))
        others = float(values.sum() - values[place])
        if np.isclose(values[place], others, rtol=1e-6, atol=0) and np.count_nonzero(values) >= FEW_SUMMED:
            sums[place] += 1
    found = [place for place, times in sums.items() if times >= min(2, numbers)]
    rows_named = named or dict.fromkeys(found[:1], "the largest value is the sum of the others")
    return [Note("total row", values=(text,), row=row + 1) for row, text in sorted(rows_named.items())]


def _far_value(name: str, column: pd.Series) -> list[Note]:
    """Return a note on a smallest or largest value that several rows have and that lies farther from all others than
    these from each other, such as -999 or the year 9999 in place of a missing value."""
    dates = is_date(column)
    values, counts = np.unique((native(column) if dates else column.to_numpy())[column.notna()], return_counts=True)
    if len(values) <= FEW_SUMMED:
        return []
    for value, count, rest in ((values[0], counts[0], values[1:]), (values[-1], counts[-1], values[:-1])):
        gap = max(rest[0] - value, value - rest[-1])
        if gap > rest[-1] - rest[0] and count >= max(MANY, counts.sum() / 200) and (dates or value):
            shown = (str(one)[:10] if dates else f"{one:g}" for one in (value, rest[0], rest[-1]))
            return [Note("far value", name, int(count), tuple(shown))]
    return []


def _fingerprint(
    features: pd.DataFrame,
    target: np.ndarray,
    target_name: str,
    task: str,
    classes: tuple[str, ...],
    parting: Parting = Parting(),
    weights: Float64[np.ndarray, " rows"] | None = None,
) -> str:
    """sha256 over little-endian float64 and JSON text, so that neither pandas nor the machine matters."""
    digest = hashlib.sha256()

    def add(name: str, values: np.ndarray) -> None:
        if values.dtype.kind == "M":
            content = json.dumps([name, "date"]).encode() + values.astype("<M8[us]").astype("<i8").tobytes()
        elif values.dtype == object:
            content = json.dumps([name, "text", values.tolist()]).encode()
        else:
            numbers = values.astype("<f8") + 0.0  # -0.0 becomes 0.0
            numbers[np.isnan(numbers)] = np.nan  # one NaN of the many
            content = json.dumps([name, "number"]).encode() + numbers.tobytes()
        digest.update(len(content).to_bytes(8, "little") + content)

    for name in features:
        add(str(name), native(features[name]) if is_date(features[name]) else features[name].to_numpy())
    add(json.dumps([target_name, task, *classes]), target)
    of_rows = {"groups": parting.groups, "times": parting.times, "test": parting.test, "weights": weights}
    for name, rows in of_rows.items():
        if rows is not None:
            add(name, rows.astype(np.float64))
    return digest.hexdigest()


def split(table: Table, seed: int, *, mode: Mode = "random") -> Split:
    """70 / 10 / 20 random rows, or other shares, the same for a seed on every machine.

    Rows are in the order of `random_order`. Plain random for classification too, as in the paper: a rare class may
    miss a part. In "grouped" mode rows of one group stay in one part: those that are equal in the table's column
    `group`, else those with equal features (whatever their target). The parts' sizes are the nearest that whole groups
    allow. "stratified" splits each class by itself; of a regression each tenth of the rows by target. "time" has no
    chance in it: the oldest rows are for training, the last ones for the test, and rows of one time stay together.

    Args:
        table: at least 20 rows; its `parting` may hold other shares.
        seed: >= 0.
        mode: "random", "grouped", "stratified", or "time" of a table with a column `time`.
    Returns:
        the row numbers of the parts.
    Raises:
        DataError: a negative seed, a mode that is none or does not go with the table, or fewer groups than
            parts.
    """
    expect_seed(seed, DataError)
    groups = _kept_together(table, mode)
    if mode == "stratified":
        part = _stratified(table, seed)
    else:
        sizes = np.bincount(groups)
        order = np.arange(len(sizes)) if mode == "time" else random_order(len(sizes), seed)
        part = _cut(sizes, order, table.parting.shares)[groups]
    return Split(*(np.flatnonzero(part == wanted).astype(np.int64) for wanted in range(3)))


def _kept_together(table: Table, mode: Mode) -> Int64[np.ndarray, " rows"]:
    """Return the number of the group of each row; rows of a group go into one part.

    Raises:
        DataError: a mode that is none or does not go with the table; fewer groups than parts, so that one would be
            empty.
    """
    parting = table.parting
    if mode != "time" and parting.times is not None:
        raise DataError(f"split: expected mode 'time' with the time {parting.time!r}, got {mode!r}")
    if mode != "grouped" and parting.groups is not None:
        raise DataError(f"split: expected mode 'grouped' with the group {parting.group!r}, got {mode!r}")
    if mode in ("random", "stratified"):
        groups = np.arange(len(table.target))
    elif mode == "grouped":
        groups = _row_hashes(table.features) if parting.groups is None else parting.groups
        groups = pd.factorize(groups)[0]
    elif mode == "time":
        if parting.times is None:
            raise DataError("split: expected a table with a column of times for mode 'time', got none")
        groups = np.unique(parting.times, return_inverse=True)[1]
    else:
        raise DataError(f"split: expected mode 'random', 'grouped', 'stratified' or 'time', got {mode!r}")
    least, count = len(parting.shares), int(groups.max()) + 1
    if count < least:
        named = f"groups in {parting.group!r}" if parting.group is not None else "distinct rows to split by groups"
        what = {"time": f"times in {parting.time!r}", "grouped": named}.get(mode, "rows")
        raise DataError(f"{table.name}: expected at least {least} {what}, one for each part, got {count}")
    return groups


def _cut(sizes: np.ndarray, order: np.ndarray, shares: tuple[float, ...]) -> Int64[np.ndarray, " groups"]:
    """Return the part of each group, 0, 1 or 2: whole groups in this order, as near to the shares as they allow."""
    ends = np.cumsum(sizes[order])  # rows up to and with each group
    rows = int(ends[-1])

    def cut(share: int, first: int, last: int) -> int:
        return int(np.clip(np.abs(ends - share).argmin() + 1, first, last))

    wanted = [int(rows * share + 1e-6) for share in shares]  # of 0.7 exactly rows * 7 // 10
    bounds, total = [0], 0
    for place, size in enumerate(wanted[:-1]):
        total += size
        bounds.append(cut(total, bounds[-1] + 1, len(sizes) - (len(shares) - 1 - place)))
    found = np.empty(len(sizes), dtype=np.int64)
    found[order] = np.repeat(np.arange(len(shares)), np.diff([*bounds, len(sizes)]))
    return found


def _stratified(table: Table, seed: int) -> Int64[np.ndarray, " rows"]:
    """Return the part of each row: rows in random order within each class, spread evenly over the whole order, then
    cut."""
    strata, count = table.target, len(table.target)
    if table.task == "regression":  # tenths of the rows
        ranks = np.argsort(np.argsort(strata, kind="stable"), kind="stable")
        strata = ranks * min(10, max(count // 10, 1)) // count
    drawn, at = random_words(count, seed), np.empty(count)
    for stratum in np.unique(strata):
        rows = np.flatnonzero(strata == stratum)
        rows = rows[np.argsort(drawn[rows], kind="stable")]
        at[rows] = (np.arange(len(rows)) + 0.5) / len(rows)
    return _cut(np.ones(count, dtype=np.int64), np.argsort(at, kind="stable"), table.parting.shares)


def _row_hashes(features: pd.DataFrame | Mapping[Any, pd.Series]) -> Shaped[np.ndarray, " rows"]:
    """uint64 [rows], equal where all features are; missing equals missing, and 0 equals -0."""
    same = {
        name: column if is_date(column) else column.fillna("") if is_text(column) else column + 0.0
        for name, column in features.items()
    }
    return pd.util.hash_pandas_object(pd.DataFrame(same), index=False).to_numpy(np.uint64)
