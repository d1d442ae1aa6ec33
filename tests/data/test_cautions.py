"""What makes the figures of a training too good is told before it: repeated values, and columns that say the target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_iris

from htaf import fit as htaf_fit
from htaf.data.notes import Note
from htaf.data.tabular import from_frame, load
from htaf.training.problems import divided_notes


def said(frame: pd.DataFrame, mode: str = "random", target: str = "y") -> list[Note]:
    found = divided_notes(from_frame(frame, target), 0, mode)
    return [note for note in found if isinstance(note, Note)]


def visits(patients: int = 200, each: int = 6) -> pd.DataFrame:
    """A number that belongs to the patient, at each of its visits."""
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(patients), each)
    effect = rng.normal(size=patients)[patient]
    frame = pd.DataFrame(
        {"patient": patient, "visit": np.tile(np.arange(each), patients), "x": rng.normal(size=len(patient))}
    )
    return frame.assign(age=rng.integers(20, 90, patients)[patient], y=effect + 0.2 * rng.normal(size=len(patient)))


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("classes", [False, True])
def test_values_that_repeat_are_told_with_the_error_on_others(named: bool, classes: bool) -> None:
    frame = visits()
    if named:
        frame["patient"] = [f"P{number:03d}" for number in frame["patient"]]
    if classes:
        frame["y"] = np.where(frame["y"] > 0, "ill", "well")
    (note,) = said(frame)
    rows, what, seen, unseen = note.values
    assert (note.kind, note.column, note.count, rows) == ("repeated values", "patient", 200, 840)
    assert what == ("accuracy" if classes else "RMSE")
    assert (unseen < 0.65 < 0.75 < seen) if classes else (seen < 0.7 < 0.9 < unseen)


def test_values_of_many_rows_and_many_values_are_told() -> None:
    for patients, each in ((40, 300), (6_000, 4)):
        (note,) = said(visits(patients, each).sample(frac=1, random_state=0).reset_index(drop=True))
        assert (note.kind, note.column) == ("repeated values", "patient")


def test_values_that_are_in_one_part_are_not_told(tmp_path: Path) -> None:
    frame = visits()
    frame.to_csv(tmp_path / "visits.csv", index=False)
    table = load(tmp_path / "visits.csv", target="y", group="patient")
    assert [n for n in divided_notes(table, 0, "grouped") if isinstance(n, Note) and n.kind == "repeated values"] == []


def test_ordinary_columns_that_repeat_are_not_told() -> None:
    """Ages, whose order says the target; towns, which say little beside the others; ranges of numbers."""
    rng = np.random.default_rng(0)
    age, town, size = rng.integers(18, 90, 2_000), rng.integers(0, 40, 2_000), rng.normal(size=2_000)
    y = age / 20 + size + rng.normal(size=40)[town] / 5 + rng.normal(size=2_000) / 2
    frame = pd.DataFrame({"age": age, "town": [f"t{one}" for one in town], "size": size, "y": y})
    assert said(frame) == []


def frame_of(**columns: Any) -> pd.DataFrame:
    """Columns beside three that say nothing."""
    noise = np.random.default_rng(1).normal(size=(len(columns["y"]), 3))
    return pd.DataFrame(noise).add_prefix("n").assign(**columns)


def leaks() -> dict[str, tuple[pd.DataFrame, tuple[str, ...]]]:
    rng = np.random.default_rng(0)
    a, b, y = rng.normal(size=800), rng.normal(size=800), rng.random(800) < 0.3
    flag, labels = np.where(rng.random(800) < 0.97, y, ~y), np.where(y, "yes", "no")
    near = 0.1 * rng.normal(size=800)
    return {
        "sum says the class": (frame_of(a=3 * a, b=y - 3 * a + near, y=labels), ("a", "b")),
        "difference": (frame_of(a=a, b=b, y=a - b), ("a", "b")),
        "product": (frame_of(a=np.exp(a), b=np.exp(b), y=np.exp(a + b)), ("a", "b")),
        "ratio above 1": (frame_of(a=np.exp(a), b=np.exp(b), y=np.where(a > b, "yes", "no")), ("a", "b")),
        "flag with errors": (frame_of(a=a + y, flag=np.where(flag, "x", "z"), y=labels), ("flag",)),
    }


@pytest.mark.parametrize("name", leaks())
def test_one_or_two_columns_that_say_the_target(name: str) -> None:
    frame, columns = leaks()[name]
    (note,) = said(frame)
    assert (note.kind, note.column, note.values[0]) == ("say most", "y", columns)
    assert note.values[2] >= 0.95 > 0.8 > note.values[3]


def test_the_caller_and_the_page_are_warned(tmp_path: Any, htaf: Any) -> None:
    frame = leaks()["sum says the class"][0]
    with pytest.warns(UserWarning, match="columns 'a', 'b' together predict the target 'y'"):
        htaf_fit(frame, "y", hidden=(4,), epochs=1)
    frame.to_csv(tmp_path / "t.csv", index=False)
    words = ("--epochs", 1, "--hidden", 4, "--baselines", "False", "--out", tmp_path / "run")
    assert htaf("train", "tabular", "--data", tmp_path / "t.csv", "--target", "y", *words)[0] == 0
    above, _, _ = (tmp_path / "run" / "report.html").read_text("utf-8").partition("Which columns matter")
    assert "together predict the target" in above


def test_real_tables_whose_columns_are_good_are_not_told() -> None:
    for made in (load_iris, load_breast_cancer):
        frame = made(as_frame=True).frame  # pyright: ignore[reportAttributeAccessIssue]
        frame["target"] = frame["target"].astype(str) + "."
        assert said(frame, target="target") == []
