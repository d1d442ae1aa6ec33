"""Tables as people export them: each fault that use found, by its smallest input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import htaf
from htaf.data.notes import told
from htaf.data.preprocess import Preprocessor
from htaf.data.reading import DataError, to_number
from htaf.data.table_files import read_frame, read_pieces
from htaf.data.tabular import from_frame, load

ROWS = 40


def table(of_row: Callable[[int], object], *, european: bool = False, more: str = "") -> str:
    mark, target = (";", "{},25") if european else (",", "{}.25")
    lines = (mark.join((str(7 * i % 41), str(of_row(i)), target.format(i % 7))) for i in range(ROWS))
    return "\n".join((mark.join("axy"), *lines)) + "\n" + more


def read(text: str, folder: Path) -> tuple[pd.DataFrame, str]:
    path = folder / "t.csv"
    path.write_bytes(text.encode())
    found = load(str(path), target="y")
    return found.features, "\n".join(told(found.notes))


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (table(lambda i: ("812", "1.234")[i % 2], european=True), [812, 1234]),
        (table(lambda i: f"{i + 52},5 %", european=True), [52.5, 53.5]),
        (table(lambda i: f"1\u00a0{234 + i},50", european=True), [1234.5, 1235.5]),
        (table(lambda i: f"1\u202f{234 + i},50", european=True), [1234.5, 1235.5]),
        (table(lambda i: f"{1347 + i},66 E", european=True), [1347.66, 1348.66]),
        (table(lambda i: f"-{1 + i}.200,66 \u20ac", european=True), [-1200.66, -2200.66]),
        (table(lambda i: f'"{i},5"'), [0.5, 1.5]),
        (table(lambda i: f"({2751 + i}.47)"), [-2751.47, -2752.47]),
        (table(lambda i: f"{1 + i % 12}:42 PM"), [13.7, 14.7]),
        (table(lambda i: f"\u2212{i}.5"), [-0.5, -1.5]),
        (table(lambda i: f"CHF 1\u2019{234 + i}.50"), [1234.5, 1235.5]),
        (table(lambda i: f"1:0{i % 9}:30" if i % 2 else f"{i % 20}:15"), [0.25, 1 + 1.5 / 60]),
        (table(lambda i: f"-0{i % 9}:30" if i % 2 else "00:15"), [0.25, -1.5]),
    ],
)
def test_numbers_as_people_write_them(text: str, first: list[float], tmp_path: Path) -> None:
    features, notes = read(text, tmp_path)
    np.testing.assert_allclose(features["x"][:2], first)
    assert "'x'" in notes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (table(lambda i: f"{i % 9:02}"), "begins with 0"),
        (table(lambda i: f"{i % 28 + 1}.12.8{i % 9}"), "is no plain number or date"),
        (table(lambda i: f"{i % 28 + 1}. März 20{i % 9}1"), "is no plain number or date"),
        (table(lambda i: f"{i % 24}h{i % 57:02}"), "is no plain number or date"),
        (table(lambda i: f"{i * 37 % 900} 3/8"), "is no plain number or date"),
        (table(lambda i: str(-999 if i % 8 == 0 else i % 20)), "with -999, far from all others (0 to 19)"),
        (table(lambda i: f"{i % 6}.4 {('kmpl', 'km/kg')[i % 9 == 0]}"), "'x' is text"),
        (
            "s,x,y\n" + "".join(f"n{i % 5},{i},{i % 7}.5\n" for i in range(ROWS)) + "Total,780,137\n",
            "row 41 looks like",
        ),
        (table(lambda i: f"n{i % 5}").replace("a,x,y", "x,x,y"), "'x.1'"),
    ],
)
def test_what_is_no_number_is_said(text: str, said: str, tmp_path: Path) -> None:
    assert said in read(text, tmp_path)[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b,y,\n" + "".join(f"{i},{i},{i % 7},\n" for i in range(ROWS)) + "1,234,5,21\n", "row 41"),
        ("Sales of 2024\n\n" + table(lambda i: i), "delete the lines above"),
        ("a,y\n" + "".join(f"{i},{3 * i if i % 9 else '10-20'}\n" for i in range(ROWS)), "row 1"),
    ],
)
def test_what_would_be_read_wrongly_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        read(text, tmp_path)


def commas(kind: str) -> str:
    form = {",": "{},25", ".,": "1.{:03},50", ".": "{}.25", "": "{}"}[kind]
    return table(lambda i: form.format(i + 2), european=True).replace(",25\n", "\n")


@pytest.mark.parametrize(
    ("trained", "new", "value"),
    [
        (".,", "1.500", 1500),
        (".,", "1.5", 1.5),
        (".,", "1.500,25", 1500.25),
        (",", "1.500", None),
        (",", "1,500", 1.5),
        (".", "1.500", 1.5),
        (".", "1,500", 1500),
        ("", "1.500", 1.5),
    ],
)
def test_new_rows_have_the_number_format_of_training(
    trained: str, new: str, value: float | None, tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(commas(trained))
    known = load(str(path), target="y")
    fitted = Preprocessor.from_json(known.fit_preprocessor(np.arange(ROWS)).to_json())
    path.write_text(f"a;x\n1;{new}\n")
    options: Any = {"numbers": "ax".__contains__, "separators": fitted.separators}
    if value is None:
        with pytest.raises(DataError, match="write 1500 or 1,500"):
            next(read_pieces(path, **options))
        return
    ((rows, _),) = read_pieces(path, **options)
    assert to_number(rows["x"])[0].tolist() == [value]


@pytest.mark.parametrize(
    ("of_row", "new", "said"),
    [
        (lambda i: f"{i} kg", {"x": "12 KG"}, "write numbers as 1234.5kg"),
        (lambda i: f"{i} kg", {"x": "12 g"}, "write numbers as 1234.5kg"),
        (lambda i: f"{i}.5", {"x": "12,5"}, "write numbers as 1234.5"),
        (lambda i: f"{1 + i % 28:02}.01.2024", {"x": "May 3, 24"}, "write 31.01.2012 or 2012-01-31"),
        (lambda i: f"{i}.5", {"X": "12.5"}, "did you mean 'X'"),
    ],
)
def test_a_refusal_says_how_to_write_it(
    of_row: Callable[[int], object], new: dict[str, str], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(table(of_row))
    fitted = load(str(path), target="y").fit_preprocessor(np.arange(ROWS))
    with pytest.raises(DataError, match=said):
        fitted.transform(pd.DataFrame({"a": ["1"], **{name: [text] for name, text in new.items()}}))


@pytest.mark.parametrize(
    ("of_row", "said"),
    [
        (lambda i: f"{i} kg" if i % 2 else f"{i}00 g", "write all in one unit"),
        (lambda i: f"2024-05-{1 + i % 28:02} 12:00 CEST", "is no plain number or date"),
        (lambda i: f"{i},5", "decimal=','"),
        (lambda i: f"{i % 9},5", "decimal=','"),
    ],
)
def test_texts_that_are_nearly_numbers_are_named(of_row: Callable[[int], object], said: str) -> None:
    frame = pd.DataFrame({"a": range(ROWS), "x": [of_row(i) for i in range(ROWS)], "y": np.arange(ROWS) % 7 / 4})
    assert said in "\n".join(told(from_frame(frame, "y").notes))


@pytest.fixture(scope="module")
def model() -> Any:
    frame = pd.DataFrame({"when": pd.date_range("2024-01-01", periods=60, freq="7h", tz="Europe/Berlin")})
    frame["flag"] = np.arange(60) % 3 == 0
    frame["y"] = (frame["when"].dt.hour > 12) | frame["flag"]
    return htaf.fit(frame, "y", epochs=1, leaves=0, members=1), frame.drop(columns="y")


def test_times_of_another_zone_are_the_same_times(model: Any) -> None:
    fitted, rows = model
    expected = fitted.predict_proba(rows)
    other = rows.assign(when=rows["when"].dt.tz_convert("Asia/Tokyo"))
    np.testing.assert_array_equal(fitted.predict_proba(other), expected)
    with pytest.raises(DataError, match="with a time zone"):
        fitted.predict_proba(rows.assign(when=rows["when"].dt.tz_localize(None)))


def test_truth_values_and_0_and_1_are_one(model: Any) -> None:
    fitted, rows = model
    np.testing.assert_array_equal(
        fitted.predict_proba(rows.assign(flag=rows["flag"].astype(int))), fitted.predict_proba(rows)
    )


def test_a_query_that_is_yet_to_run_is_named() -> None:
    class LazyFrame:
        def collect(self) -> pd.DataFrame:
            raise AssertionError

    with pytest.raises(DataError, match=r"LazyFrame.*collect"):
        htaf.fit(LazyFrame(), "y")


def test_sizes_of_numpy() -> None:
    rows = np.random.default_rng(0).normal(size=(40, 2))
    htaf.HtafRegressor(hidden=(np.int64(8),), recipe={"members": 1, "leaves": 0}, epochs=1).fit(rows, rows[:, 0])


@pytest.mark.parametrize("pair", ["false true", "no yes", "N Y", "off on", "0 1", "0.0 1.0", "F T"])
@pytest.mark.parametrize("trained", ["false true", "No Yes", "n y", "0 1"])
def test_truth_has_every_spelling(trained: str, pair: str) -> None:
    which = [i % 3 % 2 for i in range(ROWS)]
    target = np.array(which) * 1.0
    made = {words: pd.DataFrame({"x": [words.split()[side] for side in which]}) for words in (trained, pair)}
    given = made[trained].astype(float) if trained == "0 1" else made[trained]
    learned = Preprocessor.fit(given, target, task="regression", target_name="y")
    np.testing.assert_array_equal(learned.transform(made[pair]), learned.transform(given))


def test_rows_without_any_value_are_told(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n,\n3,4\n , \n")
    frame, notes = read_frame(path)
    assert len(frame) == 2
    assert [(note.kind, note.count) for note in notes] == [("empty rows", 2)]
    assert [note.count for _, notes in read_pieces(path) for note in notes] == [2]
