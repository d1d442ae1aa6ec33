"""Candidates for names: what the files of others look like, and what is left out of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from htaf.concepts.codes import ConceptError
from htaf.concepts.naming import read_candidates
from htaf.data.reading import DataError


def test_a_concept_set_of_label_free_cbm(tmp_path: Path) -> None:
    """A line a concept, with quotes and commas in them."""
    lines = ['black cap and white "eyeline"', "a long, thin beak", "a black beak", "rufous (red-brown) color"]
    (tmp_path / "cub_filtered.txt").write_text("\n".join(lines))
    found = read_candidates(tmp_path / "cub_filtered.txt")
    assert (found.names, found.notes) == (tuple(lines), ())


def test_blank_repeated_and_endless_lines(tmp_path: Path) -> None:
    text = "\ufeffa red eye\r\n\r\n  A  red eye \r\n" + "x" * 10_000 + "\r\na\tblue\tback\r\n   \r\n"
    (tmp_path / "own.txt").write_text(text, newline="")
    found = read_candidates(tmp_path / "own.txt")
    assert found.names == ("a red eye", "a blue back")
    assert found.notes == (
        "own.txt: 1 repeated candidate left out",
        "own.txt: 1 candidate of more than 200 characters left out",
    )


def test_json_lists_and_objects_of_lists(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(["x", "y", "x"]))
    assert read_candidates(tmp_path / "a.json").names == ("x", "y")
    (tmp_path / "b.json").write_text(json.dumps({"Crow": ["black feathers", "loud caw"], "Ani": ["loud caw"]}))
    found = read_candidates(tmp_path / "b.json")
    assert found.names == ("black feathers", "loud caw")
    assert found.notes == ("b.json: 1 repeated candidate left out",)


def test_a_column_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,Concept,other\n1,red eye,p\n2,,q\n3,blue back,r\n")
    assert read_candidates(path).names == ("red eye", "blue back")
    assert read_candidates(path, column="other").names == ("p", "q", "r")
    path.write_text("phrases\nred eye\nblue back\n")
    assert read_candidates(path).names == ("red eye", "blue back")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "\n \n", "expected one candidate or more, got none"),
        ("a.json", '{"a": "b"}', "expected a list of texts, or an object of such lists"),
        ("a.json", "[" * 100_000, "expected JSON, got something else"),
        ("a.csv", "x,y\n1,2\n", "expected a column concept or name or attribute, got 'x', 'y'"),
        ("a.pdf", "x", "expected cub or a .txt, .json or .csv file of candidates"),
    ],
)
def test_files_that_are_no_lists(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConceptError, match=message):
        read_candidates(tmp_path / name)


def test_other_bad_lists(tmp_path: Path) -> None:
    with pytest.raises(ConceptError, match=r"expected cub or a .txt, .json or .csv file of candidates, got 'birds'"):
        read_candidates("birds")
    (tmp_path / "a.txt").write_bytes(b"r\xe9d\n")
    with pytest.raises(ConceptError, match="expected UTF-8, got byte 0xe9 at 1"):
        read_candidates(tmp_path / "a.txt")
    with pytest.raises(ConceptError, match=r"expected a .csv file for the column 'x'"):
        read_candidates(tmp_path / "a.txt", column="x")
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    with pytest.raises(ConceptError, match="expected a column z, got 'x', 'y'"):
        read_candidates(tmp_path / "a.csv", column="z")
    with pytest.raises(DataError):
        read_candidates("cub", data_dir=tmp_path / "nowhere")


@pytest.mark.data
def test_cub(data_dir: Path) -> None:
    found = read_candidates("CUB", data_dir=data_dir)
    assert len(found.names) == 312
    assert found.names[0] == "has_bill_shape::curved_(up_or_down)"
