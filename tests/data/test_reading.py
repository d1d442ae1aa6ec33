"""Reading one table: separators, encodings, blanks and every kind of bad file."""

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from htaf._ground import errors as _errors
from htaf._ground.errors import TooLargeError
from htaf.data import attributes, image_sets, images, tabular
from htaf.data.image_reading import read_each
from htaf.data.notes import told
from htaf.data.reading import DataError, to_number, to_text, typed
from htaf.data.table_files import read_frame, read_pieces
from htaf.models.build import build


def write(folder: Path, content: str | bytes, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    ints = pd.array([1, None, 3], dtype="Int64")
    pd.DataFrame({"a": ints, "b": ["x", None, "y"], "c": [True, False, True]}).to_parquet(path)
    frame = typed(read_frame(path)[0])[0]
    np.testing.assert_array_equal(frame["a"], [1, np.nan, 3])
    assert frame["b"].tolist() == ["x", None, "y"]
    assert frame["c"].tolist() == ["True", "False", "True"]
    pd.DataFrame({"a": ints}).iloc[:0].to_parquet(path)
    with pytest.raises(DataError, match="expected rows below the column names"):
        read_frame(path)


def test_a_first_line_of_numbers_is_noted(tmp_path: Path) -> None:
    path = write(tmp_path, "M,1,2\nF,3,4\n", "t.data")
    assert told(read_frame(path)[1]) == [
        "the first line looks like data, but was taken for the column names: add a line of names if it is data",
    ]
    frame, notes = read_frame(path, names=["sex", "x", "y"])
    assert (len(frame), notes) == (2, [])
    with pytest.raises(DataError, match="expected a table, got blank lines only"):
        read_frame(write(tmp_path, ",\n,\n"), names=["a", "b"])


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ("", "t.csv", "expected a table, got an empty file"),
        (",,,\n,,,", "t.csv", "expected a table, got blank lines only"),
        ("a,b\n", "t.csv", "expected rows below the column names, got the header only"),
        ("1,2,1\n1,2,3\n", "t.csv", "expected distinct column names, got '1' more than once"),
        ("a,b,y,\n1,2,3,\n1,234,5,21\n", "t.csv", "column '4', row 2: expected no value, as the column has no name"),
        ("Sales 2020\n\na;b;y\n1;2;3\n4;5;6\n", "t.csv", "delete the lines above the column names"),
        ("a,b\n1,2\n1,2,3\n", "t.CSV", "Row #3: Expected 2 columns, got 3"),
        (b"a,b\n" + b"1,2\n" * 9 + b"\n1\n", "t.csv", "Expected 2 columns, got 1"),
        (b"a,b\n1,\0\n", "t.csv", "expected text, got a binary file"),
        (b"PAR1 no more", "t.parquet", "expected a Parquet file, this one cannot be read as one"),
        (b"not gzip", "t.csv.gz", "cannot be read: Not a gzipped file"),
        (gzip.compress(b"a,b\n1,2\n" * 99, mtime=0)[:-12], "t.csv.gz", "cannot be read"),
        ("a,b\n1,2\n", "t.xlsx", "expected a file ending in .csv, .tsv,"),
    ],
)
def test_bad_files(tmp_path: Path, content: str | bytes, name: str, message: str) -> None:
    path = write(tmp_path, content, name)
    for read in (lambda: read_frame(path), lambda: [*read_pieces(path)]):
        with pytest.raises(DataError, match=re.escape(message)) as caught:
            read()
        assert "\n" not in str(caught.value)
        assert name in str(caught.value)


def test_files_that_unpack_beyond_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_errors, "_memory", lambda: 2e6)
    packed = write(tmp_path, gzip.compress(b"a,b\n" + b"1,2\n" * 500_000, mtime=0), "t.csv.gz")
    with pytest.raises(TooLargeError, match=r"t\.csv\.gz: a table of 0\.0 GB or more needs .*: take some of the rows"):
        read_frame(packed)
    plain = write(tmp_path, b"a,b\n" + "1,\xe9\n".encode("latin-1") * 500_000)
    with pytest.raises(TooLargeError, match="take some of the rows"):
        read_frame(plain)
    path = tmp_path / "t.parquet"
    pd.DataFrame({"a": np.zeros(10**6)}).to_parquet(path)
    with pytest.raises(TooLargeError, match=r"t\.parquet: a table of 1,000,000 rows and 1 columns needs 0\.0 GB"):
        read_frame(path)


def test_numbers_and_text() -> None:
    column = pd.Series(["1", " 2.5 ", "", "None", "NaN", "?", "-1e3", "1_0", "x", None, "0x1"], dtype=object)
    values, wrong = to_number(column)
    np.testing.assert_array_equal(values[:7], [1, 2.5, np.nan, np.nan, np.nan, np.nan, -1000])
    assert np.flatnonzero(wrong).tolist() == [7, 8, 10]
    apart = ["1,352", "-12,345,678.5", "1'352", "+999,000"]
    no = ["1,35", "0,352", "1,352,1", "1'352,000", "8E467", "-1e999", ",352", "1,3520", "1352,000"]
    values, wrong = to_number(pd.Series([*apart, *no, "-inf"], dtype=object))
    np.testing.assert_array_equal(values[:4], [1352, -12345678.5, 1352, 999000])
    assert np.flatnonzero(wrong).tolist() == [*range(4, 13)]
    assert values[-1] == -np.inf
    assert np.isnan(values[wrong]).all()
    assert to_text(column).tolist()[:6] == ["1", "2.5", None, "None", None, None]
    assert to_text(pd.Series([1.0, np.nan, 1.5])).tolist() == ["1", None, "1.5"]


@pytest.mark.parametrize("load", [tabular.load, image_sets.load, attributes.load])
def test_no_name_is_not_the_working_folder(load: Callable[[str], Any]) -> None:
    with pytest.raises(DataError, match=r"^'': expected .*got neither"):
        load("")


@pytest.mark.parametrize("seed", [-1, 2**63, 10**20])
def test_seeds_that_no_generator_takes(seed: int) -> None:
    with pytest.raises(DataError, match=rf"seed must be >= 0 and below 2\*\*63, got {seed}"):
        tabular.split(tabular.load("digits"), seed)
    with pytest.raises(DataError, match="seed must be"):
        images.split(image_sets.load("digits"), seed=seed)


def test_sizes_that_no_memory_holds(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"size: expected 1 to 9,459 pixels, got 30000, 13\.5 GB for one image"):
        image_sets.load(tmp_path, size=30_000)
    with pytest.raises(TooLargeError, match=r"a batch of 100000 images of 9000 x 9000 pixels needs 122 TB of memory"):
        read_each([tmp_path] * 100_000, 3, (9000, 9000))
    layers = {"in_features": 3, "hidden": [10**7, 10**7], "batch_norm": True, "activation": {"method": "relu"}}
    with pytest.raises(TooLargeError, match="this network needs 400 TB of memory, this machine has"):
        build({"kind": "mlp", "out_features": 2, **layers})
