"""The file of names: what is written can be read, as JSON and as CSV, and what is no such file is refused."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htaf.concepts.codes import ConceptError, codes_key
from htaf.concepts.edit_head import edited
from htaf.concepts.naming.files import (
    COLUMNS,
    RENAMED,
    TEXTS,
    earlier_names,
    read_names,
    seal_of,
    status_of,
    write_names,
)
from made_pages import made_codes

HOSTILE = ("=1+1", "'=1+1", "''=x", "+x", "-x", "@x", "\tx", "\rx", "'tis", "'", 'a"b,c;d', "a\r\nb\nc\rd", "\u202eabc")
texts = st.none() | st.text(min_size=1, max_size=20) | st.sampled_from(HOSTILE)
shares = st.none() | st.floats(0, 1)
counts = st.none() | st.integers(0, 10**6)


@st.composite
def entries(draw: st.DrawFn) -> list[dict[str, Any]]:
    """What every kind of naming fills."""
    numbers = draw(st.lists(st.integers(0, 50), unique=True, max_size=4))
    found = []
    for number in sorted(numbers):
        entry: dict[str, Any] = {"concept": number, "name": draw(texts), "label_1": draw(texts), "label_0": draw(texts)}
        entry |= {"verified": entry["name"] is not None and draw(st.booleans()), "reason": draw(texts) or ""}
        entry |= {key: draw(shares) for key in ("held_out", "p_value", "agreement", "naming", "test_a", "test_b")}
        entry |= {key: draw(counts) for key in ("group_a", "group_b", "mixed")}
        entry |= {"justification": draw(texts), "source": draw(st.sampled_from(["attributes", "model", "hand"]))}
        entry |= {"checked_by": draw(texts)}
        entry |= {"status": status_of(entry)}
        found.append(entry)
    return found


def seen(names: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: entry[key] for key in COLUMNS if key not in ("codes", "seal")} for entry in names]


@settings(deadline=None, max_examples=60)  # each writes files
@given(entries())
def test_json_and_csv_say_the_same(tmp_path_factory: pytest.TempPathFactory, names: list[dict[str, Any]]) -> None:
    folder = tmp_path_factory.mktemp("names")
    for name in ("names.json", "names.csv"):
        write_names(names, folder / name)
        assert seen(read_names(folder / name, 51)) == names
    write_names(read_names(folder / "names.csv"), folder / "again.json")
    assert seen(read_names(folder / "again.json")) == names


@settings(deadline=None, max_examples=60)
@given(entries(), st.data())
def test_a_checked_name_that_is_edited_is_named_by_hand(
    tmp_path_factory: pytest.TempPathFactory, names: list[dict[str, Any]], data: st.DataObject
) -> None:
    """In whatever file, by whatever hand, and whatever of its three texts; a name without a check is only a name."""
    for file in ("names.json", "names.csv"):
        path = tmp_path_factory.mktemp("names") / file
        write_names(names, path)
        rows: list[dict[str, Any]] = (
            json.loads(path.read_text("utf-8")) if path.suffix == ".json" else _table(path.read_bytes().decode())
        )
        edited = [data.draw(st.sampled_from(["", "name", "label_1", "label_0"])) for _ in rows]
        for row, key in zip(rows, edited, strict=True):
            if key:
                row[key] = f"{row[key] or ''}!"
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, COLUMNS)
        table.writeheader()
        if path.suffix == ".csv":
            table.writerows(rows)
        path.write_bytes((json.dumps(rows) if path.suffix == ".json" else text.getvalue()).encode())
        for before, row, key in zip(names, read_names(path), edited, strict=True):
            if not key:
                assert seen([row]) == [before]
            elif before["held_out"] is None and not before["verified"]:
                assert (row["source"], row["verified"]) == (before["source"], False)
            else:
                assert (row["source"], row["verified"], row["reason"]) == ("hand", False, RENAMED)
                gone = ("held_out", "p_value", "agreement", "naming", "checked_by", "justification", "model")
                assert [row.get(what) for what in gone] == [None] * 7
                assert [row[what] for what in ("group_a", "group_b")] == [before["group_a"], before["group_b"]]
            assert "seal" not in row


def _table(text: str) -> list[dict[str, Any]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_a_check_needs_its_seal(tmp_path: Path) -> None:
    entry = {"concept": 0, "name": "x", "verified": True, "held_out": 0.9, "source": "model", "model": "m"}
    for more in ({}, {"seal": None}, {"seal": "abcdefghijkl"}, {"verified": False}):
        (tmp_path / "n.json").write_text(json.dumps([entry | more]))
        (found,) = read_names(tmp_path / "n.json")
        assert [found.get(key) for key in ("source", "verified", "reason", "held_out", "model")] == [
            *("hand", False, "renamed since it was checked", None, None)
        ]
    write_names([entry], tmp_path / "n.json")
    (kept,) = json.loads((tmp_path / "n.json").read_text())
    assert re.fullmatch("[a-p]{12}", kept["seal"])
    assert seal_of(entry) == seal_of(entry | {"label_1": ""}) == kept["seal"] != seal_of(entry | {"label_1": "y"})
    assert seal_of({"concept": 0, "name": "x"}) is None


@pytest.mark.parametrize("file", ["n.json", "n.csv"])
def test_names_of_another_network_are_refused(tmp_path: Path, file: str) -> None:
    ours, theirs = (codes_key(made_codes(seed=seed)) for seed in (0, 1))
    entry = {"concept": 0, "name": "x", "verified": True, "held_out": 0.9, "source": "model"}
    write_names([entry], tmp_path / file, codes=theirs)
    with pytest.raises(ConceptError, match=f"names of this network's concepts .{ours}., got .* .{theirs}.: "):
        read_names(tmp_path / file, 4, codes=ours)
    for same in (theirs, None):
        (found,) = read_names(tmp_path / file, codes=same)
        assert found["verified"]
        assert "codes" not in found
    write_names([entry], tmp_path / file)  # as by hand: it does not say
    assert read_names(tmp_path / file, codes=ours)[0]["name"] == "x"


def test_codes_are_known_by_their_network() -> None:
    """Other images, another split or an edited head change no concept; another training or other thresholds do."""
    codes = made_codes()
    key = codes_key(codes)
    assert re.fullmatch("[a-p]{12}", key)
    assert codes_key(codes.part("test")) == codes_key(edited(codes, [(0, 3)])) == key
    binarised = [replace(codes, info={"settings": {"thresholds": text}}) for text in ("a", "b")]
    blank = [replace(one, bias=np.zeros_like(one.bias)) for one in (codes, made_codes(seed=1))]
    others = [made_codes(seed=1), made_codes(concepts=20), made_codes(names=tuple("abcde")), *binarised, *blank]
    assert len({key, *map(codes_key, others)}) == 8


@pytest.mark.parametrize("cell", HOSTILE)
def test_no_cell_is_a_formula(tmp_path: Path, cell: str) -> None:
    write_names([{"concept": 0, "name": cell, "reason": cell, "justification": cell}], tmp_path / "n.csv")
    with (tmp_path / "n.csv").open(newline="", encoding="utf-8") as file:
        row = next(csv.DictReader(file))
    assert all(row[key][:1] not in ("=", "+", "-", "@", "\t", "\r") for key in TEXTS if row.get(key))
    assert read_names(tmp_path / "n.csv")[0]["name"] == cell


def test_halves_of_surrogate_pairs_are_replaced(tmp_path: Path) -> None:
    for name in ("n.json", "n.csv"):
        write_names([{"concept": 0, "name": "a\ud800b😀"}], tmp_path / name)
        assert read_names(tmp_path / name)[0]["name"] == "a\ufffdb😀"
    (tmp_path / "e.json").write_text('[{"concept": 0, "name": "\\udcff"}]')
    assert read_names(tmp_path / "e.json")[0]["name"] == "\ufffd"


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_table_by_hand(tmp_path: Path, separator: str, mark: str) -> None:
    """Any order, unknown columns, blank lines, concepts left out; never verified without a source."""
    lines = ["Name,concept,note,verified", "b,2,?,true", "", "a, 1 ,?,TRUE", ",0,?,"]
    (tmp_path / "n.csv").write_bytes((mark + "\n".join(lines).replace(",", separator) + "\n").encode())
    found = read_names(tmp_path / "n.csv", 4)
    assert [(e["concept"], e["name"], e["verified"], e["source"], e["reason"]) for e in found] == [
        (0, None, False, "hand", ""),
        (1, "a", False, "hand", "named by hand, not checked"),
        (2, "b", False, "hand", "named by hand, not checked"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"concept,name\n0,\xff\n", r"n.csv: expected UTF-8, got byte 0xff at 15"),
        (b"concept,title\n0,a\n", "expected the columns concept and name, name missing"),
        (b"", "concept and name missing"),
        (b"concept,name,name\n0,a,b\n", "expected each column once, got name again"),
        (b"concept,name\n0,a\n0,b\n", "line 3: expected one entry for each concept, got concept 0 again"),
        (b"concept,name\n7,a\n", "line 2: expected a concept in 0 to 3, got 7: are these the names of another network"),
        (b"concept,name\none,a\n", "expected a whole number for concept, got 'one'"),
        (b"concept,name\n,a\n", "expected a whole number for concept, got None"),
        (b"concept,name\n0,a,b\n", "line 2: expected 2 cells, got 3"),
        (b"concept,name,held_out\n0,a,nan\n", "expected a number for held_out, got nan"),
        (b'concept,name,held_out\n0,a,"1,2,3"\n', "expected a number for held_out, got '1,2,3'"),
        (
            b"concept,name,source\n0,a,oracle\n",
            "expected a source of .*, got .oracle.",
        ),
        (b"concept,name\n0," + b"a" * 200_000, "expected CSV: field larger"),
    ],
)
def test_tables_that_are_none(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "n.csv").write_bytes(content)
    with pytest.raises(ConceptError, match=message):
        read_names(tmp_path / "n.csv", 4)


@pytest.mark.parametrize(
    ("source", "checked", "kept"),
    [("model", None, True), ("hand", None, False), ("pictures", None, False), ("hand", "m", False)],
)
def test_names_of_another_source_are_not_written_over(
    tmp_path: Path, source: str, checked: str | None, kept: bool
) -> None:
    path = tmp_path / "n.json"
    assert earlier_names(path, "model", 5, None) == []
    write_names([{"concept": 1, "name": "x", "source": source, "checked_by": checked}], path)
    if kept:
        assert [entry["name"] for entry in earlier_names(path, "model", 5, None)] == ["x"]
    else:
        with pytest.raises(ConceptError, match="which would be lost: choose another --out"):
            earlier_names(path, "model", 5, None)
    if checked:
        assert [entry["name"] for entry in earlier_names(path, None, 5, None)] == ["x"]
    else:
        with pytest.raises(ConceptError, match="expected a new file or names of an earlier check"):
            earlier_names(path, None, 5, None)
