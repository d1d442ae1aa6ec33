"""A slice of the changed files; `make stress` runs a hundred thousand."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path

import mutations
import pytest

QUICK = {"run of a table", "codes", "names", "name tables"}


def test_changed_files_are_refused_or_used() -> None:
    said: list[str] = []
    found = mutations.stress(300, 1, workers=1, kinds=QUICK, say=said.append)
    assert found["failures"] == []
    assert found["cases"] == 300
    assert found["kinds"].keys() == QUICK
    assert all(each.keys() == {"refused", "used"} for each in found["kinds"].values())


def test_each_way_to_fail_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    evil: list[bytes] = []

    class Trapped(mutations.Place):
        def __post_init__(self) -> None:
            super().__post_init__()
            evil[:] = [pickle.dumps(mutations.Canary(self.ran))]

    def read(folder: Path) -> None:
        file = folder / "file"
        data = file.read_bytes() if file.exists() else b""
        if data != b"0123456789":
            (
                lambda: os.kill(os.getpid(), signal.SIGKILL),
                lambda: pickle.loads(evil[0]),
                lambda: {}["x"],
                lambda: None,
            )[len(data) % 4]()

    monkeypatch.setattr(mutations, "made_kinds", lambda *_: {"made": mutations.Kind({"file": b"0123456789"}, read, 1)})
    monkeypatch.setattr(mutations, "Place", Trapped)
    found = mutations.stress(40, 0, workers=1, say=lambda _: None)
    assert found["cases"] == 40
    told = [failure["why"].split(":")[0] for failure in found["failures"]]
    assert {"the process ended", "it reached out", "KeyError at test_mutations.py"} == set(told)
