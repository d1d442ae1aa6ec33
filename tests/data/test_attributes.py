"""Attributes of classes: CUB's layout, tables, rows by name, the rule of the concept bottleneck paper."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from htaf.data.attributes import Attributes, load, read_cub_attributes, supervising
from htaf.data.reading import DataError


def write_cub(folder: Path, values: str = "0 50 100\n12.5 49.9 0\n1 2 3\n", beside: bool = False) -> Path:
    folder = folder / "CUB_200_2011"
    (folder / "attributes").mkdir(parents=True)
    (folder / "classes.txt").write_text("1 001.Black_footed_Albatross\n2 002.Laysan_Albatross\n")
    names = "1 has_bill_shape::dagger\n2 has_wing_color::blue\n3 has_size::large_(16_-_32_in)\n"
    ((folder.parent if beside else folder) / "attributes.txt").write_text(names)
    (folder / "attributes" / "class_attribute_labels_continuous.txt").write_text(values)
    return folder


@pytest.mark.parametrize("beside", [False, True], ids=["in the folder", "beside it"])
def test_cub_layout(tmp_path: Path, beside: bool) -> None:
    write_cub(tmp_path, beside=beside)
    found = load("CUB", data_dir=tmp_path)
    assert found.names == ("has_bill_shape::dagger", "has_wing_color::blue", "has_size::large_(16_-_32_in)")
    assert found.classes == ("001.Black_footed_Albatross", "002.Laysan_Albatross", "003")
    assert found.values.dtype == np.float32
    np.testing.assert_array_equal(found.values, np.array([[0, 0.5, 1], [0.125, 0.499, 0], [0.01, 0.02, 0.03]], "f4"))
    np.testing.assert_array_equal(found.binary(), [[False, True, True], [False] * 3, [False] * 3])
    assert found.notes == ("1 of 3 classes are not in classes.txt: they go by number",)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("0 50 100\n1 2\n", "from 3 to 2 at row 2"),
        ("0 50 x\n1 2 3\n", "numbers .*'x'"),
        ("0 50 101\n1 2 3\n", "percents of 3 attributes, got .* 0.0 to 101.0"),
        ("0 50 100\n", "a line for each of 2 classes, .* got 1 lines"),
        ("", "got 0 lines"),
    ],
)
def test_cub_with_wrong_values(tmp_path: Path, values: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_cub_attributes(write_cub(tmp_path, values))


def test_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HTAF_DATA", raising=False)
    with pytest.raises(DataError, match="cub: expected the folder CUB_200_2011, got none: download http"):
        load("cub")
    with pytest.raises(DataError, match=r"'cubs': expected 'cub', 'digits' or a CSV .*did you mean 'cub'"):
        load("cubs")


def test_digits() -> None:
    found = load("Digits")
    assert (len(found.names), found.classes) == (11, tuple("0123456789"))
    loops = found.values[:, found.names.index("closed loop")]
    assert [digit for digit, has in zip(found.classes, loops, strict=True) if has] == list("0689")
    assert len({tuple(row) for row in found.values.tolist()}) == 10, "each digit has strokes of its own"


@pytest.mark.data
def test_cub_here(data_dir: Path) -> None:
    cub = load("cub", data_dir=data_dir)
    assert (len(cub.names), len(cub.classes)) == (312, 200)
    raw = np.loadtxt(data_dir / "CUB_200_2011/attributes/class_attribute_labels_continuous.txt")
    np.testing.assert_allclose(cub.values, raw / 100, atol=1e-7)
    assert len(supervising("cub", data_dir=data_dir).names) == 112
    albatross = cub.of(["Black-footed albatross"])
    assert albatross.values[0, cub.names.index("has_bill_shape::hooked_seabird")] > 0.5


@pytest.mark.parametrize("kind", ["numbers.csv", "truth.csv", "semicolons.csv", "shares.parquet", "truth.parquet"])
def test_tables(tmp_path: Path, kind: str) -> None:
    values = np.array([[1, 0], [0, 1], [1, 1]], dtype=bool)
    frame = pd.DataFrame(values, columns=["has wings", "swims"])
    if kind in ("numbers.csv", "shares.parquet"):
        frame = frame.astype(float) * (0.25 if kind == "shares.parquet" else 1)
    if kind == "semicolons.csv":
        frame = frame.map(lambda value: "yes" if value else "FALSE")
    frame.insert(0, "Class", ["kiwi", "gull", "duck"])
    if kind.endswith("csv"):
        frame.to_csv(tmp_path / kind, index=False, sep=";" if kind == "semicolons.csv" else ",")
    else:
        frame.to_parquet(tmp_path / kind)
    found = load(tmp_path / kind)
    assert (found.names, found.classes) == (("has wings", "swims"), ("kiwi", "gull", "duck"))
    np.testing.assert_array_equal(found.values, values * np.float32(0.25 if kind == "shares.parquet" else 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,a\nx,1\n", "expected the first column 'class' .* got 'name'"),
        ("class,a\nx,1\nx,0\n", "expected distinct classes, got 'x' more than once"),
        ("class,a\n,1\n", "expected a class in each row, got none in row 1"),
        ("class,a\nx,\n", "column 'a', class 'x': expected 0 or 1, .* got ''"),
        ("class,a\nx,maybe\n", "got 'maybe'"),
        ("class,a\nx,0.5\ny,1.5\n", "class 'y': .* got '1.5'; divide percent by 100"),
        ("class,a\n", "header only"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        load(tmp_path / "t.csv")


def small() -> Attributes:
    values = np.array([[0.5, 0.1], [0.9, 0.2], [0.0, 0.8]], dtype=np.float32)
    return Attributes(("a", "b"), ("001.Gray_Catbird", "snow goose", "3"), values)


def test_rows_by_name() -> None:
    found = small().of(["Snow_Goose", "3", "gray catbird"])
    assert found.classes == ("Snow_Goose", "3", "gray catbird")
    np.testing.assert_array_equal(found.values, small().values[[1, 2, 0]])
    with pytest.raises(DataError, match=r"got none of 'snow gose', 'x' .did you mean 'snow goose'"):
        small().of(["3", "snow gose", "x"])


def test_a_name_that_two_classes_share_is_not_guessed() -> None:
    both = Attributes(("a",), ("1.crow", "2.crow"), np.array([[0.0], [1.0]], dtype=np.float32))
    with pytest.raises(DataError, match="got none of 'crow'"):
        both.of(["crow"])
    assert both.of(["2.crow"]).values[0, 0] == 1
