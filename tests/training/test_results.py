"""Where results of cells lie: whole, once, in a folder or through fsspec."""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path

import pytest

from htaf.training.results import Results, StudyError


@pytest.fixture(params=["folder", "memory", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {"folder": str(tmp_path), "memory": f"memory://{uuid.uuid4().hex}", "file": f"file://{tmp_path}"}[
        request.param
    ]


def test_the_first_result_counts(place: str) -> None:
    results = Results(place)
    assert results.read("a") is None
    assert results.write("a", {"x": 1.5})
    assert not Results(place).write("a", {"x": 2.5})
    assert Results(place).read("a") == {"x": 1.5}


def test_a_damaged_result_is_named_and_kept(place: str) -> None:
    results = Results(place, lambda record: isinstance(record, dict) and "x" in record)
    results.write("a", {"y": 1})
    with pytest.raises(StudyError, match=r"cells/a.json is damaged: delete it to compute the cell again"):
        results.read("a")
    results._write_new("cells/b.json", b'{"x": 1')
    with pytest.raises(StudyError, match=r"cells/b.json is damaged"):
        results.read("b")
    assert results._read("cells/b.json") == b'{"x": 1'


def test_results_of_another_study(place: str) -> None:
    results = Results(place)
    with pytest.raises(StudyError, match=r"there is no queue.json; expected the folder or address"):
        results.expect_same("mine", "the store")
    assert results.token("mine") == "mine"
    assert results.token("later") == "mine"
    results.expect_same("mine", "the store")
    with pytest.raises(StudyError, match=r"another study than the queue in the store: expected token yours, got mine"):
        results.expect_same("yours", "the store")


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = Results(tmp_path)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device.*cells/a.json"):
        results.write("a", {})
    assert list((tmp_path / "cells").iterdir()) == []
    monkeypatch.undo()
    assert results.write("a", {})


def test_a_disk_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    assert Results(tmp_path).write("a", {"x": 1})
    assert [file.name for file in (tmp_path / "cells").iterdir()] == ["a.json"]


def test_an_address_of_no_file_system() -> None:
    with pytest.raises(StudyError, match=r"expected a folder or an address of fsspec, got what://x"):
        Results("what://x")
