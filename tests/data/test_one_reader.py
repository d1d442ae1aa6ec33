"""One reader, one rule: a CSV file is the same table by the command and from a data frame of pandas."""

import csv
import gzip
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from htaf.data import table_files
from htaf.data.notes import told
from htaf.data.preprocess import Column
from htaf.data.reading import DataError, named
from htaf.data.table_files import read_pieces
from htaf.data.tabular import Table, from_frame, load

ROWS = 60


@dataclass(frozen=True)
class File:
    """A file: its columns of texts or its content, beside a column of numbers and the target "y".

    Attributes:
        columns: name and values, repeated up to `ROWS`. options: with which pandas has to be told how to read it.
        said: a part of what is said of it, by both; refused: it is an error.
    """

    columns: dict[str, Sequence[str]] = field(default_factory=dict)
    separator: str = ","
    quoting: Any = csv.QUOTE_MINIMAL
    ends: str = "\n"
    encoding: str = "utf-8"
    before: str = ""
    target: Sequence[str] = ("up", "down", "down")
    header: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    said: str = ""
    refused: bool = False
    packed: bool = False

    def write(self, folder: Path) -> Path:
        names = {**self.columns, "n": each("{}7")[1:], "y": self.target}
        stream = io.StringIO()
        writer = csv.writer(stream, delimiter=self.separator, quoting=self.quoting, lineterminator=self.ends)
        if self.header:
            writer.writerow(names)
        writer.writerows(islice(zip(*map(cycle, names.values()), strict=True), ROWS))
        content = (self.before + stream.getvalue()).encode(self.encoding)
        path = folder / f"table.csv{'.gz' if self.packed else ''}"
        path.write_bytes(gzip.compress(content, mtime=0) if self.packed else content)
        return path


def each(form: str, count: int = ROWS) -> list[str]:
    return [form.format(row) for row in range(count)]


def mixed(words: int, of: int = ROWS) -> list[str]:
    """So many words among numbers, all different."""
    return [f"A/5 {row}" if row < words else f"{20_000 + row * 7}" for row in range(of)]


FRUIT = ("apple", "pear", "fig", "apple")
EURO = {"sep": ";", "decimal": ","}
FILES = {
    # numbers
    "whole numbers": File({"x": each("{}")}),
    "decimals": File({"x": each("{}.25"), "z": ("-1.5", "2e-3", "+7", "1E5")}),
    "blanks before values": File({"x": each(" {} "), "c": (" red", "blue ", "red")}),
    "blanks around names": File({" x ": each("{}"), " c": FRUIT}),
    "missing numbers": File({"x": ("1", "", "3", "NA", "N/A", "nan", "NULL", "7")}),
    "question marks": File({"x": ["?", *each("{}", 29)], "z": ("1", "2", "?")}),
    "blanks of several kinds": File({"x": ["#N/A", "?", "null", "<NA>", "n/a", "", *each("{}", 30)]}),
    "None among numbers": File({"x": ["None", *each("{}", 29)]}),
    "dots of databases": File({"x": ("1", ".", "3")}, said="mixes"),
    "thousands": File({"x": each("{0},{0:0>3}.5")[1:], "z": ("1,352", "999", "-12,000,001")}, said="'1,352' read as"),
    "thousands with apostrophes": File({"x": ["1'352", "17", *each("{}", 29)]}, said="as people write them"),
    "thousands and blanks": File({"x": ["1,352", "", "?", *each("{}", 29)]}),
    "no thousands": File({"x": [*each("1,{}"), "12,5"]}, options={"decimal": ","}, said="decimal commas"),
    "large whole numbers": File({"x": each("90071992547409{:0>2}1")}, said="beyond 2^53"),
    "one value": File({"x": ["7"]}, said="'x' dropped: one value"),
    "nothing": File({"x": [""]}, said="'x' dropped: all values are missing"),
    "one value or none": File({"x": ["7", ""]}),
    "leading zeros": File({"x": (*each("0{}", 4), "1", "10")}, options={"dtype": {"x": str}}, said="'x' is text: '00'"),
    "times": File({"x": each("{0}:30", 24), "z": ("12:42 PM", "1:05 am")}, said="numbers in '#:#', '0:30' read as 0.5"),
    "brackets": File({"x": [*each("({}751.47)"), "5"]}, said="'(0751.47)' read as -751.47"),
    "units of two kinds": File({"x": [*each("{}.4 kmpl", 30), *each("{}.4 km/kg", 30)]}, said="write all in one unit"),
    "minus behind": File({"x": [*each("{}751.47-"), "5"]}, said="'0751.47-' read as -751.47"),
    "lakhs": File({"x": each("{},00,000")[1:]}, said="'1,00,000' read as 100000"),
    "intervals": File(
        {"x": each("2024-01-{:0>2} - 2024-02-01", 29)[1:], "z": ("10-20", "20-30", "30+", "<10")},
        said="'2024-01-01 - 2024-02-01' is no plain",
    ),
    "names again": File({"x": each("{}"), "x.1": FRUIT}),
    "a total": File({"c": [*each("town {}", 59), "Total"]}, said="row 60 looks like a total of the others ('Total')"),
    "a plus": File({"x": each("+{}")}),
    "infinite": File({"x": [*each("{}", 30), "inf"]}, said="expected a finite number, got 'inf'", refused=True),
    "no float": File({"x": [*each("{}", 30), "1_000"]}, said="got '1_000'", refused=True),
    "percent": File({"x": each("{} %")}, said="numbers in '#%', '0 %' read as 0"),
    "euros": File({"x": [*each("{0},1{0:0>2}.5 €")[1:], "", "1 €"]}, said="'1,101.5 €' read as 1101.5"),
    "dollars": File({"x": each("-${}.46")}, said="numbers in"),
    "kilograms": File({"x": each("{} kg"), "y2": ("1 km/h", "2km/h")}, said="numbers in '#kg'"),
    "two units": File({"x": [*each("{} kg", 59), "2 lb"]}),
    "a unit and none": File({"x": [*each("{} kg", 30), *each("{}", 30)]}, said="mixes"),
    # words
    "few categories": File({"c": FRUIT}),
    "None as a category": File({"c": (*FRUIT, "None")}, options={"keep_default_na": False}),
    "missing categories": File({"c": (*FRUIT, "", "NA", "?")}),
    "many categories": File({"c": each("town {}", 25)}),
    "spellings": File({"c": ("Yes", "yes", "no", "YES", "No")}),
    "rare categories": File({"c": [*["a", "b"] * 28, "c", "d", "e", "f"]}),
    "ids": File({"c": each("K-{}")}, said="'c' dropped: text with 60 distinct values"),
    "hexadecimal": File({"c": each("{:x}f")}),
    "codes and one number": File({"c": [*each("A{}", 30), "8E467"]}),
    "codes and numbers": File({"c": [*each("{}F", 20), *each("{}E2", 20)]}, said="mixes"),
    "codes and infinity": File({"c": [*each("A{}", 20), "INF"]}),
    "a code among numbers": File({"c": [*each("{}47"), "8E467"][1:]}, refused=True),
    "tickets": File({"Ticket": mixed(16)}, said="mixes 44 numbers with 16 texts"),
    "a quarter of words": File({"x": mixed(15)}, said="mixes 45 numbers with 15 texts"),
    "less than a quarter": File({"x": mixed(14)}, said="row 1: expected a number as in 46 other rows", refused=True),
    "one word": File({"x": ["unknown", *each("{}", 59)]}, said="got 'unknown' (1 such rows)", refused=True),
    "few values and a word": File({"x": ("1", "2", "few")}, said="mixes 40 numbers with 20 texts (first 'few', row 3)"),
    "words and a number": File({"x": [*each("flat {}", 30), "7"]}, said="mixes"),
    "quotes and line ends": File({"c": ('say "so"', "two\nlines", "a,b")}),
    "accents": File({"c": ("café", "thé", "日本")}),
    "long texts": File({"c": each("{} " + "x" * 500)}, said="dropped"),
    # truth values and dates
    "truth values": File({"b": ("True", "False", "False")}),
    "missing truth values": File({"b": ("True", "", "False")}),
    "TRUE": File({"b": ("TRUE", "FALSE", "FALSE")}),
    "yes and no": File({"b": ("yes", "no")}),
    "zero and one": File({"b": ("0", "1", "1")}),
    "dates": File({"d": each("2012-01-{:0>2}", 29)[1:]}, said="column 'd': dates"),
    "days first": File({"d": each("{:0>2}.03.2012", 29)[1:]}, said="day-month-year"),
    "months by name": File({"d": each("Mar {}, 2012", 29)[1:]}),
    "dates with times": File({"d": each("2012-03-01T{:0>2}:30:00Z", 24), "t": each("2012-03-01 {:0>2}:30", 24)}),
    "missing dates": File({"d": ["2012-01-31", "", "2013-02-01", "?"]}),
    "dates of two forms": File({"d": ["2012-01-31", "31.01.2013"]}, said="dates of one form", refused=True),
    "a word among dates": File({"d": ["soon", *each("2012-01-{:0>2}", 31)[1:]]}, refused=True),
    "years": File({"d": ("2011", "2012", "2013")}),
    # targets
    "a target of numbers": File({"x": each("{}")}, target=each("{}.5")),
    "a target of whole numbers": File({"x": each("{}")}, target=("1", "2", "3")),
    "a target of truth values": File({"x": each("{}")}, target=("True", "False")),
    "a target of dates": File({"x": each("{}")}, target=("2012-01-31", "2013-01-31")),
    "a target with blanks": File({"x": each("{}")}, target=("up", "down", "", "down")),
    "a target of numbers and a word": File({"x": each("{}")}, target=("1", "2", "x"), said="read as a category"),
    "a target with thousands": File({"x": each("{}")}, target=each("1,{:0>3}.5")),
    # files
    "semicolons": File({"c": FRUIT, "x": each("{}")}, separator=";", options={"sep": ";"}),
    "bars": File({"c": FRUIT}, separator="|", options={"sep": "|"}),
    "tabs": File({"c": FRUIT}, separator="\t", options={"sep": "\t"}),
    "decimal commas": File(
        {"x": each("{},5"), "c": ("x,y", "z")}, separator=";", options=EURO, said="'x': decimal commas read as points"
    ),
    "decimal commas, thousands": File({"x": each("1.{:0>3},5")}, separator=";", options=EURO | {"thousands": "."}),
    "quotes around all": File({"c": FRUIT, "x": each("{}")}, quoting=csv.QUOTE_ALL),
    "line ends of Windows": File({"c": FRUIT}, ends="\r\n"),
    "a mark": File({"c": FRUIT}, encoding="utf-8-sig"),
    "UTF-16": File({"c": ("é", "日")}, encoding="utf-16", options={"encoding": "utf-16"}),
    "Windows-1252": File(
        {"c": ("é", "50 €")}, encoding="cp1252", options={"encoding": "cp1252"}, said="not UTF-8: read as Windows-1252"
    ),
    "Latin-1": File(
        {"c": ("é", "\x81")}, encoding="latin-1", options={"encoding": "latin-1"}, said="not UTF-8: read as Latin-1"
    ),
    "packed": File({"c": FRUIT}, packed=True),
    "blank lines": File({"c": FRUIT}, before="\n\n"),
    "a saved index": File({"": each("{}"), "c": FRUIT}, said="left out, having no name: column 1 of 4"),
    "a saved index, twice": File({"": each("{}"), "Unnamed: 0": each("{}")}, said="having no name: column 1, 2 of 4"),
    "numbers for names": File({"0": each("{}"), "1": FRUIT}),
    # what to do is said
    "a line for Excel": File({"c": FRUIT}, separator=";", before="sep=;\n", said="delete the lines", refused=True),
    "no names": File({"x": each("{}")}, header=False, said="add a line of names", refused=True),
    "blanks for separators": File({"c": FRUIT}, separator=" ", said="got the columns 'c n y'", refused=True),
}  # fmt: skip
ABOUT_FILES = {"encoding", "decimal commas", "header of numbers"}  # pandas is told of them
OTHERWISE = {"a line for Excel", "blanks for separators", "a code among numbers"}  # by pandas


def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "PIECE", 560)  # the longest line has 520
    monkeypatch.setattr(table_files, "WIDE", 0)


def learned(table: Table) -> tuple[Any, ...]:
    """Everything that a network is told of a table, and why."""
    preprocessor = table.fit_preprocessor(np.arange(len(table.target)))
    notes = [note for note in table.notes if note.kind not in ABOUT_FILES]
    target = (table.task, [*map(str.lower, table.classes)], table.target.tolist())
    return [_told(column) for column in preprocessor.columns], target, notes


def _told(column: Column) -> tuple[Any, ...]:
    """Of truth values without their case, which pandas does not keep."""
    truth = {name.lower() for name in column.categories} - {""} == {"true", "false"}
    names = tuple(map(str.lower, column.categories)) if truth else column.categories
    return column.name, column.kind, names, column.outputs, column.lows, column.highs, (column.low, column.high)


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_the_same_table_by_command_and_from_a_frame(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command whole and in pieces."""
    file = FILES[name]
    path = file.write(tmp_path)
    if file.refused:
        with pytest.raises(DataError) as caught:
            load(path, target="y")
        assert file.said in str(caught.value)
        with pytest.raises(DataError) as again:
            from_frame(pd.read_csv(path, **file.options), "y")
        if name not in OTHERWISE:
            assert str(again.value).removeprefix("frame: ") in str(caught.value)
        small_pieces(monkeypatch)
        with pytest.raises(DataError) as small:
            load(path, target="y")
        assert str(small.value) == str(caught.value)
        return
    frame = pd.read_csv(path, **file.options)
    read, given = load(path, target="y"), from_frame(frame, "y")
    assert learned(given) == learned(read)
    assert file.said in "\n".join(told(read.notes))
    preprocessor = read.fit_preprocessor(np.arange(len(read.target)))
    inputs = preprocessor.transform(read.features)
    present = (named(frame)["y"].notna()).to_numpy()
    assert np.array_equal(preprocessor.transform(frame)[present], inputs)
    small_pieces(monkeypatch)
    again = load(path, target="y")
    assert (again.fingerprint, again.notes) == (read.fingerprint, read.notes)
    for numbers in (None, {column.name for column in preprocessor.columns if column.kind == "number"}.__contains__):
        pieces = [preprocessor.transform(piece) for piece, _ in read_pieces(path, numbers=numbers)]
        assert len(pieces) > (path.stat().st_size > 600)
        assert np.array_equal(np.concatenate(pieces)[present], inputs)


def test_a_file_has_one_format_of_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one column has decimal commas, dots set thousands apart in the others, in every way to write a number."""
    columns: dict[str, Sequence[str]] = {
        "a": ["812", "1.234", "15.300"], "b": ["12,5", "3,25", "k.A."] + ["0,5"] * 9, "c": ["52,5 %", "7 %", "1,25 %"],
        "d": ["1\u00a0234,50", "2\u202f000,25", "5"], "e": ["(2751,47)", "3", "-1,5"],
        "f": ["1347,66 E", "2.347,00 E", "5 E"], "g": ["0.55", "12.5", "3.25"],
    }  # fmt: skip
    wanted = {
        "a": [812, 1234, 15300], "c": [52.5, 7, 1.25], "d": [1234.5, 2000.25, 5], "e": [-2751.47, 3, -1.5],
        "f": [1347.66, 2347, 5], "g": [0.55, 12.5, 3.25],
    }  # fmt: skip
    for separator in (";", ","):
        path = File(columns, separator=separator).write(tmp_path)
        for _ in range(2):
            table = load(path, target="y", text_as_missing=True)
            assert {name: table.features[name][:3].tolist() for name in wanted} == wanted
            assert table.features["b"][:2].tolist() == [12.5, 3.25]
            assert "column 'a': numbers as people write them, '1.234' read as 1234" in told(table.notes)
            small_pieces(monkeypatch)
    path = File({"a": ["812", "1.234", "15.300"]}, separator=";").write(tmp_path)
    assert any("'1.234' read as a decimal number; write 1234 if" in line for line in told(load(path, target="y").notes))


def test_names_that_come_again_are_numbered_as_by_pandas(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,b,a,a.1,a\n" + "".join(f"{row},{row % 2},{row * 3},{row * 5},{row * 7}\n" for row in range(30)))
    frame, notes = table_files.read_frame(path)
    assert [*frame] == [*pd.read_csv(path)]
    assert "duplicate column name: column 3, 'a', is called 'a.2'" in told(notes)


def test_texts_of_parquet_stay_text(tmp_path: Path) -> None:
    """So a column is declared to be text: by its type, of a file as of a frame."""
    frame = pd.DataFrame({"zip": ["1067", "2099"] * 20, "n": range(40), "y": ["up", "down"] * 20})
    path = tmp_path / "table.parquet"
    frame.to_parquet(path)
    assert learned(load(path, target="y")) == learned(from_frame(frame, "y"))
    assert load(path, target="y").features["zip"][0] == "1067"


@pytest.mark.parametrize(("encoding", "word", "shown"), [("cp1250", "żółw", "¿ó³w"), ("cp1252", "Köln", "Köln")])
def test_other_encodings_are_shown(encoding: str, word: str, shown: str, tmp_path: Path) -> None:
    path = File({"c": (word, "x")}, encoding=encoding).write(tmp_path)
    assert f"as in {shown!r}" in "\n".join(told(load(path, target="y").notes))


@pytest.mark.parametrize(
    ("train", "new"), [((True, False), (1, 0)), ((1.0, 0.0), ("True", "false")), (("1", "0"), (True, False))]
)
def test_truth_values_are_one_and_zero(train: tuple[Any, ...], new: tuple[Any, ...]) -> None:
    frame = pd.DataFrame({"b": [*train] * 10, "n": range(20), "y": ["up", "down"] * 10})
    preprocessor = from_frame(frame, "y").fit_preprocessor(np.arange(20))
    inputs, notes = preprocessor.transform_with_notes(
        frame.drop(columns="y").assign(b=pd.Series([*new] * 10, dtype=object))
    )
    assert np.array_equal(inputs, preprocessor.transform(frame))
    assert not notes


def test_a_target_of_numbers_and_ranges_is_no_classification() -> None:
    frame = pd.DataFrame({"n": range(60), "y": [f"{row % 14} kg" if row % 15 else "3-5 kg" for row in range(60)]})
    with pytest.raises(DataError, match=r"no plain number.*or choose task classification"):
        from_frame(frame, "y")
    assert from_frame(frame, "y", task="classification").task == "classification"


def test_the_sum_of_the_others_is_told() -> None:
    frame = pd.DataFrame({"a": [*range(1, 31), 465.0], "b": [*range(2, 32), 495.0], "y": [0, 1] * 15 + [1]})
    assert "row 31 looks like a total" in "\n".join(told(from_frame(frame, "y").notes))
    assert not any("total" in line for line in told(from_frame(frame.iloc[:-1], "y").notes))


def test_names_that_differ_by_blanks_alone(tmp_path: Path) -> None:
    """A file has one of them twice, numbered. A frame has two columns, each is found, and the target is one of them."""
    path = File({"x": each("{}"), "x ": each("{}5")}).write(tmp_path)
    assert "duplicate column name: column 2, 'x', is called 'x.1'" in told(load(path, target="y").notes)
    frame = pd.read_csv(path).rename(columns={"n": " n", "y": " y"})
    table = from_frame(frame, " y")
    assert (table.target_name, [*table.features]) == ("y", ["x", "x ", "n"])
    preprocessor = table.fit_preprocessor(np.arange(ROWS))
    inputs = preprocessor.transform(table.features)
    assert inputs.shape == (ROWS, 3)
    for rows in (frame, frame.iloc[:, ::-1], frame.drop(columns=" y")):
        assert np.array_equal(preprocessor.transform(rows), inputs)
    alone = from_frame(frame.drop(columns="x "), " y").fit_preprocessor(np.arange(ROWS))
    assert np.array_equal(alone.transform(frame), inputs[:, [0, 2]]), "the other one is ignored"
    constant = from_frame(frame.assign(x=1.0), " y").fit_preprocessor(np.arange(ROWS))
    assert np.array_equal(constant.transform(frame.drop(columns="x")), inputs[:, 1:])
    with pytest.raises(DataError, match="got 'x ' more than once"):
        from_frame(frame.set_axis(["x ", "x ", " n", " y"], axis=1), " y")
