"""The sets known by name: where their files are, and what must be said of them."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
import sklearn.datasets

from htaf._ground.errors import listed, option
from htaf.data.notes import Note
from htaf.data.reading import DataError, data_folders
from htaf.data.table_files import read_frame

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
