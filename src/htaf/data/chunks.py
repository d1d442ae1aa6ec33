"""Tables in pieces of bounded size, for files that are larger than what memory should hold; see `reading`."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from htaf._errors import first_line
from htaf.data.reading import (
    DataError,
    check_names,
    commas_in,
    named,
    read_frame,
    separator_of,
)

ROWS = 65_536  # of a piece
LONGEST = 64 << 20  # characters of a line
WHOLE = 8 << 20  # bytes of a text file that is read at once; in memory it is about ten times as large


def read_chunks(path: str | os.PathLike[str]) -> Iterator[tuple[pd.DataFrame, list[str]]]:
    """The raw rows of a file in pieces, with notes of each; small files are one piece, as `read_frame` gives it.

    Text stays text, and the separator, the encoding and decimal commas are found as there. A column has decimal commas
    by all of its values, for which the file is read through once more; so every piece is read in the same way.

    Args:
        path: as `read_frame` takes it.

    Yields:
        A frame [rows, columns] with a fresh index, and notes; those of the whole file come with the first.

    Raises:
        DataError: as `read_frame`, when the piece is read where it is.
    """
    path = Path(path)
    name = path.name.lower()
    try:
        size = path.stat().st_size if path.is_file() else 0
    except (OSError, ValueError):
        size = 0
    if name.endswith(".parquet") and size:
        yield from _parquet(path)
    elif size <= (WHOLE // 8 if name.endswith(".gz") else WHOLE):
        frame, notes = read_frame(path)
        yield frame, list(notes)
    else:
        yield from _text(path)


def _parquet(path: Path) -> Iterator[tuple[pd.DataFrame, list[str]]]:
    from pyarrow import Table
    from pyarrow import parquet as arrow

    try:
        with arrow.ParquetFile(path) as file:
            if not file.metadata.num_rows:
                read_frame(path)  # says what is wrong
            for i, piece in enumerate(file.iter_batches(ROWS)):
                # whole numbers beside missing ones stay whole: they may be ids
                frame = Table.from_batches([piece]).to_pandas(integer_object_nulls=True).reset_index(drop=True)
                frame = named(frame)
                kept, notes = check_names(str(path), [*frame.columns])
                yield frame.loc[:, kept], [] if i else notes
    except DataError:
        raise
    except Exception as error:  # Arrow's readers raise nearly everything on damaged files
        raise DataError(
            f"{path}: expected a Parquet file, this one cannot be read as one ({first_line(error)})"
        ) from error


def _text(path: Path) -> Iterator[tuple[pd.DataFrame, list[str]]]:
    notes: list[str] = []
    try:
        encoding = _encoding(path, notes)
        with _opened(path) as raw, _decoded(raw, encoding) as file:
            separator = separator_of(path, file.read(100_000))
        commas = frozenset[int]()
        if separator != ",":
            with _opened(path) as raw, _decoded(raw, encoding) as file:
                commas = _decimal_commas(csv.reader(_lines(path, file), delimiter=separator))
        with _opened(path) as raw, _decoded(raw, encoding) as file:
            yield from _pieces(path, csv.reader(_lines(path, file), delimiter=separator), separator, commas, notes)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {first_line(error)}") from error


def _decimal_commas(reader: Any) -> frozenset[int]:
    """The places of the columns whose values, all of them, are numbers with decimal commas."""
    names: list[str] = []
    rows: list[list[str]] = []
    may, some = set[int](), set[int]()

    def look() -> None:
        for place in [*may]:
            found, all_may = commas_in(row[place] for row in rows)
            some.update([place] * found)
            may.difference_update([place] * (not all_may))
        rows.clear()

    try:
        for row in reader:
            if not any(field.strip() for field in row):
                continue
            if not names:
                names = row
                may.update(range(len(names)))
                continue
            if len(row) != len(names):
                break  # an error, which is said when the rows are read
            rows.append(row)
            if len(rows) == ROWS:
                look()
    except csv.Error:  # as above
        pass
    look()
    return frozenset(may & some)


def _pieces(
    path: Path, reader: Any, separator: str, commas: frozenset[int], notes: list[str]
) -> Iterator[tuple[pd.DataFrame, list[str]]]:
    """commas: places of the columns with decimal commas."""
    names: list[str] = []
    kept: list[bool] = []
    rows: list[list[str]] = []

    def piece() -> pd.DataFrame:
        columns: dict[str, pd.Series] = {}
        for place, name in enumerate(names):
            values = np.array([row[place] for row in rows], dtype=object)
            if place in commas:
                values[:] = [value.replace(".", "").replace(",", ".") for value in values]
            if kept[place]:
                columns[name] = pd.Series(values, dtype=object)
        return pd.DataFrame(columns)

    given = False
    try:
        for row in reader:
            if not any(field.strip() for field in row):
                continue  # blank lines, most often the last
            if not names:
                names = [field.strip() for field in row]
                kept, told = check_names(str(path), names)
                notes += told
                notes += [f"column {names[place]!r}: decimal commas read as points" for place in sorted(commas)]
                continue
            if len(row) != len(names):
                raise DataError(
                    f"{path}, line {reader.line_num}: expected {len(names)} fields separated by {separator!r}, "
                    f"got {len(row)}"
                )
            rows.append(row)
            if len(rows) == ROWS:
                frame, given = piece(), True
                rows = []
                yield frame, notes
                notes = []
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from error
    if rows:
        yield piece(), notes
    elif not given:
        expected = "rows below the column names, got the header only" if names else "a table, got blank lines only"
        raise DataError(f"{path}: expected {expected}")


def _opened(path: Path) -> io.BufferedIOBase:
    return gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb")


def _decoded(raw: Any, encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(raw, encoding, errors="replace", newline="")


def _lines(path: Path, file: io.TextIOWrapper) -> Iterator[str]:
    """The lines of a file, with their ends; none is held that is longer than a table's may be."""
    while line := file.readline(LONGEST):
        if len(line) == LONGEST:
            raise DataError(f"{path}: expected lines of less than {LONGEST:,} characters, got a longer one")
        yield line


def _encoding(path: Path, notes: list[str]) -> str:
    """UTF-8 with or without a mark, UTF-16 with one, else Latin-1; the file is read through once."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with _opened(path) as file:
        block = file.read(1 << 20)
        if block.startswith((b"\xff\xfe", b"\xfe\xff")):
            notes.append("read as UTF-16")
            return "utf-16"
        try:
            while block:
                if b"\0" in block:
                    raise DataError(f"{path}: expected text, got a binary file")
                decoder.decode(block)
                block = file.read(1 << 20)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            notes.append("not UTF-8: read as Latin-1")
            return "latin-1"
    return "utf-8-sig"
