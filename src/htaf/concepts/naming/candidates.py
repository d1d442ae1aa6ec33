"""Lists of concepts that a language model chooses names from: CUB's attributes, Label-free CBM's sets, one's own."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from htaf._errors import counted, first_line, suggestion
from htaf.concepts.codes import ConceptError
from htaf.concepts.naming.files import LONGEST, read_text, valid_text
from htaf.data.attributes import load
from htaf.data.notes import told
from htaf.data.reading import listed
from htaf.data.table_files import read_frame

COLUMNS = ("concept", "name", "attribute")
TABLES = (".csv", ".tsv")


@dataclass(frozen=True)
class CandidateList:
    """Distinct phrases of 1 to 200 characters, and notes on what was left out."""

    names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def read_candidates(
    name: str | os.PathLike[str],
    *,
    column: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
) -> CandidateList:
    """Candidates from a public set or a file.

    Args:
        name: "cub", in any case, for the names of its 312 attributes; or a file: .txt with a concept a line, as the
            concept sets of Label-free CBM (data/concept_sets/*.txt) are; .json with a list of texts, or an object of
            such lists, as that project's gpt3_init/*.json are; .csv or .tsv with a column of them.
        column: of a .csv; default: concept, name or attribute, or the only column.
        data_dir: a folder with the public sets.
    Returns:
        the candidates in the order of the list. Blank lines, repetitions (in any case) and texts of more than 200
        characters are left out; the last two with a note.
    Raises:
        ConceptError: no such file, another kind of file, or no candidate in it. DataError: CUB or the table cannot be
            read.
    """
    given = os.fspath(name)
    if given.lower() == "cub":
        return CandidateList(load("cub", data_dir=data_dir).names)
    path = Path(given)
    kind = path.suffix.lower()
    if column is not None and kind not in TABLES:
        raise ConceptError(f"{path}: expected a .csv file for the column {column!r}")
    if kind in TABLES and path.is_file():
        texts, notes = _column(path, column)
    elif kind in (".txt", ".json") and path.is_file():
        texts, notes = (_lines if kind == ".txt" else _items)(path), ()
    else:
        raise ConceptError(
            f"expected cub or a .txt, .json or .csv file of candidates, got {given!r}{suggestion(given, ['cub'])}"
        )
    return _clean(texts, path, notes)


def _clean(texts: Sequence[str], path: Path, notes: tuple[str, ...]) -> CandidateList:
    found: dict[str, str] = {}
    repeated = long = 0
    for text in texts:
        phrase = " ".join(valid_text(text).split())
        if len(phrase) > LONGEST:
            long += 1
        elif phrase.casefold() in found:
            repeated += 1
        elif phrase:
            found[phrase.casefold()] = phrase
    if not found:
        raise ConceptError(f"{path}: expected one candidate or more, got none")
    if repeated:
        notes += (f"{path.name}: {counted(repeated, 'repeated candidate')} left out",)
    if long:
        notes += (f"{path.name}: {counted(long, 'candidate')} of more than {LONGEST} characters left out",)
    return CandidateList(tuple(found.values()), notes)


def _lines(path: Path) -> list[str]:
    return read_text(path).splitlines()


def _items(path: Path) -> list[str]:
    try:
        data: Any = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ConceptError(f"{path}: expected JSON, got something else: {first_line(error)}") from None
    lists = list(data.values()) if isinstance(data, dict) else [data]
    if not all(isinstance(each, list) and all(isinstance(text, str) for text in each) for each in lists):
        raise ConceptError(f"{path}: expected a list of texts, or an object of such lists")
    return [text for each in lists for text in each]


def _column(path: Path, column: str | None) -> tuple[list[str], tuple[str, ...]]:
    frame, notes = read_frame(path)
    names = [str(name) for name in frame.columns]
    usual = [name for name in names if name.lower() in COLUMNS]
    chosen = column or (usual or names)[0]
    if chosen not in names or (column is None and not usual and len(names) > 1):
        raise ConceptError(f"{path}: expected a column {column or ' or '.join(COLUMNS)}, got {listed(names, 10)}")
    return [str(value) for value in frame[chosen].dropna()], tuple(told(notes))
