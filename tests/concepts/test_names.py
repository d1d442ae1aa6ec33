"""The file of names: what is written can be read, and what is no such file is refused."""

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
from htaf.concepts.heads import edited
from htaf.concepts.naming.files import (
    RENAMED,
    earlier_names,
    read_names,
    seal_of,
    status_of,
    write_names,
)
from made_pages import made_codes

FILLED = (
    *("concept", "name", "label_1", "label_0", "verified", "status", "held_out", "p_value", "agreement", "naming"),
    *("group_a", "group_b", "mixed", "test_a", "test_b", "source", "reason", "justification", "checked_by"),
)
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
    return [{key: entry[key] for key in FILLED} for entry in names]


@settings(deadline=None, max_examples=60)  # each writes files
@given(entries())
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, names: list[dict[str, Any]]) -> None:
    file = tmp_path_factory.mktemp("names") / "names.json"
    write_names(names, file)
    assert seen(read_names(file, 51)) == names


@settings(deadline=None, max_examples=60)
@given(entries(), st.data())
def test_a_checked_name_that_is_edited_is_named_by_hand(
    tmp_path_factory: pytest.TempPathFactory, names: list[dict[str, Any]], data: st.DataObject
) -> None:
    """By whatever hand, and whatever of its three texts; a name without a check is only a name."""
    path = tmp_path_factory.mktemp("names") / "names.json"
    write_names(names, path)
    rows: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))
    edited = [data.draw(st.sampled_from(["", "name", "label_1", "label_0"])) for _ in rows]
    for row, key in zip(rows, edited, strict=True):
        if key:
            row[key] = f"{row[key] or ''}!"
    path.write_text(json.dumps(rows))
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


def test_names_of_another_network_are_refused(tmp_path: Path) -> None:
    file = "n.json"
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


def test_halves_of_surrogate_pairs_are_replaced(tmp_path: Path) -> None:
    write_names([{"concept": 0, "name": "a\ud800b😀"}], tmp_path / "n.json")
    assert read_names(tmp_path / "n.json")[0]["name"] == "a\ufffdb😀"
    (tmp_path / "e.json").write_text('[{"concept": 0, "name": "\\udcff"}]')
    assert read_names(tmp_path / "e.json")[0]["name"] == "\ufffd"


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_list_by_hand(tmp_path: Path, mark: str) -> None:
    """Unknown keys, concepts left out; never verified without a source."""
    rows = [{"name": "b", "concept": 2, "note": 1, "verified": True}, {"concept": 1, "name": "a", "verified": True}]
    (tmp_path / "n.json").write_bytes((mark + json.dumps([*rows, {"concept": 0, "name": None}])).encode())
    found = read_names(tmp_path / "n.json", 4)
    assert [(e["concept"], e["name"], e["verified"], e["source"], e["reason"]) for e in found] == [
        (0, None, False, "hand", ""),
        (1, "a", False, "hand", "named by hand, not checked"),
        (2, "b", False, "hand", "named by hand, not checked"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[{"concept": 0, "name": "\xff"}]', "n.json: expected UTF-8, got byte 0xff at 25"),
        (b'[{"concept": 0, "title": "a"}]', "entry 1: expected an object with concept and name"),
        (b"", "expected JSON"),
        (b"{}", "expected a list of objects, got dict"),
        (b"[" * 100_000, "expected JSON"),
        (b'[{"concept": 0, "name": "a"}, {"concept": 0, "name": "b"}]', "entry 2: .*, got concept 0 again"),
        (b'[{"concept": 7, "name": "a"}]', "concept in 0 to 3, got 7: are these the names of another network"),
        (b'[{"concept": "one", "name": "a"}]', "expected a whole number for concept, got 'one'"),
        (b'[{"concept": null, "name": "a"}]', "expected a whole number for concept, got None"),
        (b'[{"concept": 0, "name": "a", "held_out": NaN}]', "NaN is no number"),
        (b'[{"concept": 0, "name": "a", "held_out": "1,2"}]', "expected a number for held_out, got '1,2'"),
        (b'[{"concept": 0, "name": "a", "source": "oracle"}]', "expected a source of .*, got .oracle."),
    ],
)
def test_files_that_are_none(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "n.json").write_bytes(content)
    with pytest.raises(ConceptError, match=message):
        read_names(tmp_path / "n.json", 4)
    with pytest.raises(ConceptError, match="ends in"):
        read_names(tmp_path / "n.csv")


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
