"""The sets known by name: where their files are, what they must hold and what is done to them."""

import http.client
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
import sklearn.datasets

from htaf._ground.errors import first_line, listed, option
from htaf.data.notes import Note
from htaf.data.reading import DataError, data_folders
from htaf.data.table_files import read_frame

_ABALONE = "sex length diameter height whole_weight shucked_weight viscera_weight shell_weight rings"
_WINE = (
    "fixed acidity,volatile acidity,citric acid,residual sugar,chlorides,free sulfur dioxide,"
    "total sulfur dioxide,density,pH,sulphates,alcohol,quality"
)
_CHURN = (
    "gender SeniorCitizen Partner Dependents tenure PhoneService MultipleLines InternetService "
    "OnlineSecurity OnlineBackup DeviceProtection TechSupport StreamingTV StreamingMovies "
    "Contract PaperlessBilling PaymentMethod MonthlyCharges TotalCharges Churn"
)
_FICO = (
    "RiskPerformance ExternalRiskEstimate MSinceOldestTradeOpen MSinceMostRecentTradeOpen AverageMInFile "
    "NumSatisfactoryTrades NumTrades60Ever2DerogPubRec NumTrades90Ever2DerogPubRec PercentTradesNeverDelq "
    "MSinceMostRecentDelq MaxDelq2PublicRecLast12M MaxDelqEver NumTotalTrades NumTradesOpeninLast12M "
    "PercentInstallTrades MSinceMostRecentInqexcl7days NumInqLast6M NumInqLast6Mexcl7days "
    "NetFractionRevolvingBurden NetFractionInstallBurden NumRevolvingTradesWBalance NumInstallTradesWBalance "
    "NumBank2NatlTradesWHighUtilization PercentTradesWBalance"
)

_DIGITS = (*(f"pixel_{place}" for place in range(64)), "digit")


@dataclass(frozen=True)
class Named:
    """One known set: its file, its public copy and what it must hold."""

    name: str
    file: str
    openml: int
    rows: int
    columns: tuple[str, ...]
    target: str
    task: Literal["regression", "classification"]
    classes: tuple[str, ...] = ()
    header: bool = True
    special_codes: tuple[float, ...] = ()

    @property
    def supply(self) -> str:
        """What to do where no usable copy was found."""
        return f"put {self.file} into a folder and name the folder in HTAF_DATA or {option('--data-dir', 'data_dir=')}"


def _digits() -> pd.DataFrame:
    bunch: Any = sklearn.datasets.load_digits()
    return pd.DataFrame(bunch.data, columns=list(_DIGITS[:-1])).assign(digit=bunch.target)


_TEN = tuple(str(digit) for digit in range(10))
NAMED: dict[str, Named] = {
    known.name: known
    for known in (
        Named("wine", "winequality-white.csv", 44971, 4898, tuple(_WINE.split(",")), "quality", "regression"),
        Named(
            "abalone",
            "abalone.data",
            44956,
            4177,
            tuple(_ABALONE.split()),
            "rings",
            "regression",
            header=False,
        ),
        Named(
            "churn",
            "Telco-Customer-Churn.csv",
            42178,
            7043,
            tuple(_CHURN.split()),
            "Churn",
            "classification",
            classes=("No", "Yes"),
        ),
        Named(
            "fico",
            "heloc_dataset_v1.csv",
            46932,
            10459,
            tuple(_FICO.split()),
            "RiskPerformance",
            "classification",
            classes=("Good", "Bad"),
            special_codes=(-7.0, -8.0, -9.0),
        ),
        Named("digits", "", 0, 1797, _DIGITS, "digit", "classification", classes=_TEN),
    )
}
BUNDLED: dict[str, Callable[[], pd.DataFrame]] = {"digits": _digits}


def lookup(name: str | os.PathLike[str]) -> Named | None:
    """Return the known set of that name, in any case; None for what may be a path."""
    return NAMED.get(os.fspath(name).lower())


def is_named(name: str | os.PathLike[str]) -> bool:
    """Return whether `load` takes this for a known set, not for a file; names go in any case."""
    return lookup(name) is not None


def read_named(known: Named, data_dir: str | os.PathLike[str] | None = None) -> tuple[pd.DataFrame, list[Note]]:
    """Read a known set from a folder or from OpenML, its columns in the published order, its rows counted.

    Args:
        known: one of `NAMED`.
        data_dir: searched first, then the folder in HTAF_DATA, each also under `tabular/`.
    Returns:
        the frame [rows, columns with the target], and the notes.
    Raises:
        DataError: found nowhere, another row count, or missing columns.
    """
    frame, source, notes = _find(known, data_dir)
    if len(frame) != known.rows:
        raise DataError(f"{known.name}: expected {known.rows:,} rows, got {len(frame):,} from {source}; {known.supply}")
    spelled = {_plain(str(name)): name for name in frame.columns}
    absent = [name for name in known.columns if _plain(name) not in spelled]
    if absent:
        raise DataError(
            f"{known.name}: expected the columns {listed(absent)} too, got only {listed([*map(str, frame)])} "
            f"from {source}; {known.supply}"
        )
    extra = [str(name) for name in frame.columns if _plain(str(name)) not in map(_plain, known.columns)]
    notes += [Note("dropped", name, values=("not part of the set",)) for name in extra]
    frame = frame[[spelled[_plain(name)] for name in known.columns]].set_axis(list(known.columns), axis=1)
    return frame, notes


def _plain(name: str) -> str:
    """Public copies spell one name as "fixed acidity", "fixed.acidity" or "Fixed_acidity"."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _find(known: Named, data_dir: str | os.PathLike[str] | None) -> tuple[pd.DataFrame, str, list[Note]]:
    if known.name in BUNDLED:
        return BUNDLED[known.name](), "scikit-learn", [Note("source", values=("bundled with scikit-learn",))]
    folders = data_folders(data_dir)
    for folder in folders:
        for path in (folder / known.file, folder / "tabular" / known.file):
            if path.is_file():
                frame, notes = read_frame(path, names=None if known.header else known.columns)
                return frame, str(path), notes
    try:
        bunch: Any = sklearn.datasets.fetch_openml(data_id=known.openml, as_frame=True, n_retries=1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        looked = listed([str(folder) for folder in folders]) or "any folder"
        raise DataError(
            f"{known.name}: {known.file} not found in {looked} and OpenML set {known.openml} not reached "
            f"({first_line(error)}); {known.supply}"
        ) from error
    return bunch.frame, f"OpenML set {known.openml}", [Note("source", values=(f"from OpenML, set {known.openml}",))]
