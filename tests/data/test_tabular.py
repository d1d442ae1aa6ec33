"""Tables: named sets, any file, clear refusals, and splits that are disjoint, complete and stable."""

import functools
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htaf.data import tabular as named
from htaf.data.notes import told
from htaf.data.preprocess import Target
from htaf.data.reading import DataError
from htaf.data.tabular import Table, load, load_like, split
from quick import slow_but

ROOT = Path(__file__).parents[2]


def frame(rows: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "x": rng.normal(size=rows).round(4),
            "colour": rng.choice(["red", "green"], rows),
            "y": rng.normal(size=rows).round(4),
        }
    )


def saved(folder: Path, table: pd.DataFrame, name: str = "table.csv") -> Path:
    table.to_csv(folder / name, index=False)
    return folder / name


def table_of(features: pd.DataFrame) -> Table:
    target = np.arange(len(features), dtype=np.float64)
    return Table("t", features, target, "regression", "y", (), (), "")


@pytest.fixture
def without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HTAF_DATA", raising=False)


@functools.cache
def loaded(name: str, data_dir: Path) -> Table:
    """A set that several tests read and none changes."""
    return load(name, data_dir=data_dir)


# --- the real sets -----------------------------------------------------------------------------------


BUNDLED = [("digits", 1797, 64, 61, "classification", ["bundled with scikit-learn"])]
FILES = [
    ("wine", 4898, 11, 11, "regression", ["937 rows repeating an earlier row"]),
    ("abalone", 4177, 8, 10, "regression", []),
    ("churn", 7043, 19, 45, "classification", ["'customerID'", "missing values: 11 in 'TotalCharges'"]),
    (
        "fico", 10459, 23, 57, "classification",
        ["class 1 (positive) is 'Bad'"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "rows", "raw", "inputs", "task", "facts"),
    [*BUNDLED, *(pytest.param(*row, marks=pytest.mark.data) for row in FILES)],
)
def test_real_sets(
    request: pytest.FixtureRequest, name: str, rows: int, raw: int, inputs: int, task: str, facts: list[str]
) -> None:
    bundled = request.node.get_closest_marker("data") is None
    table = load(name) if bundled else loaded(name, request.getfixturevalue("data_dir"))
    assert table.features.shape == (rows, raw)
    assert table.task == task
    assert table.target.shape == (rows,)
    notes = "\n".join(told(table.notes))
    assert [fact for fact in facts if fact not in notes] == []
    parts = split(table, 0)
    preprocessor = table.fit_preprocessor(parts.train)
    train = preprocessor.transform(table.features.iloc[parts.train])
    assert train.shape == (rows * 7 // 10, inputs)
    assert train.min() >= 0
    assert train.max() <= 1
    assert np.isfinite(preprocessor.transform(table.features)).all()


def test_a_set_is_added_as_contributing_says(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    section = page[page.index("**Add a data set** of a table") :]
    code, row = (textwrap.dedent(block) for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL)[:2])
    names = dict(vars(named))
    exec(code, names)
    known = eval(row, names)
    monkeypatch.setitem(named.NAMED, "iris", known)
    monkeypatch.setitem(named.BUNDLED, "iris", names["_iris"])
    table = load("iris")
    assert table.features.shape == (150, 4)
    assert (table.classes, np.bincount(table.target).tolist()) == (("0", "1", "2"), [50, 50, 50])


@pytest.mark.data
def test_real_targets(data_dir: Path) -> None:
    wine, abalone = load("Wine", data_dir=data_dir), load("abalone", data_dir=data_dir / "tabular")
    assert np.bincount(wine.target.astype(int)).tolist() == [0, 0, 0, 20, 163, 1457, 2198, 880, 175, 5]
    assert (abalone.target.min(), abalone.target.max()) == (1, 29)
    churn, fico = loaded("churn", data_dir), loaded("fico", data_dir)
    assert (churn.classes, np.bincount(churn.target).tolist()) == (("No", "Yes"), [5174, 1869])
    assert (fico.classes, np.bincount(fico.target).tolist()) == (("Good", "Bad"), [5000, 5459])
    assert load("wine", task="classification", data_dir=data_dir).classes == ("3", "4", "5", "6", "7", "8", "9")


@pytest.mark.data
@pytest.mark.parametrize("name", slow_but(["wine", "abalone", "churn", "fico", "digits"], "wine", "abalone", "digits"))
def test_a_named_set_like_itself(data_dir: Path, name: str) -> None:
    table = loaded(name, data_dir)
    preprocessor = table.fit_preprocessor(split(table, 0).train)
    again = load_like(name.upper(), target=preprocessor.target, data_dir=data_dir)
    assert (again.name, again.task, again.classes) == (table.name, table.task, table.classes)
    np.testing.assert_array_equal(again.target, table.target)
    assert again.target.dtype == table.target.dtype
    inputs, expected = preprocessor.transform(again.features), preprocessor.transform(table.features)
    assert inputs.tobytes() == expected.tobytes()


# --- named sets: where they come from ----------------------------------------------------------------


def abalone(rows: int = 4177) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    table = pd.DataFrame(rng.random((rows, 9)).round(3), columns=list(named.NAMED["abalone"].columns))
    return table.assign(sex=rng.choice(["M", "F", "I"], rows), rings=rng.integers(1, 29, rows))


def test_folders_come_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    (first / "tabular").mkdir(parents=True)
    second.mkdir()
    saved_to = [(first / "tabular", 5), (second, 7)]
    for folder, rings in saved_to:
        abalone().assign(rings=[rings, 8] + [1] * 4175).to_csv(folder / "abalone.data", header=False, index=False)
    monkeypatch.setenv("HTAF_DATA", str(second))
    assert load("abalone", data_dir=first).target[0] == 5
    assert load("abalone").target[0] == 7
    with pytest.raises(DataError, match="data_dir: expected a folder"):
        load("abalone", data_dir=tmp_path / "absent")


def test_a_file_is_looked_for_in_the_same_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, first in (("here", 10.5), ("a", 20.5), ("b", 30.5)):
        (tmp_path / place / "more").mkdir(parents=True)
        rows = pd.DataFrame({"x": np.arange(30) % 7, "y": np.arange(30) + first})
        rows.to_csv(tmp_path / place / "more/made.csv", index=False)
    (tmp_path / "here/more/made.csv").rename(tmp_path / "here/more/own.csv")
    (tmp_path / "a/more/own.csv").write_text("damaged")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HTAF_DATA", str(tmp_path / "b"))
    assert load("more/own.csv", target="y", data_dir=tmp_path / "a").target[0] == 10.5
    assert load("more/made.csv", target="y", data_dir=tmp_path / "a").target[0] == 20.5
    assert load("more/made.csv", target="y").target[0] == 30.5
    with pytest.raises(DataError, match=r"^more/none\.csv: no such file"):
        load("more/none.csv", target="y")


def test_another_file_or_none_is_refused(tmp_path: Path, without_data: None) -> None:
    abalone(4176).to_csv(tmp_path / "abalone.data", header=False, index=False)
    with pytest.raises(DataError, match=r"expected 4,177 rows .*got 4,176 rows .* download it from https"):
        load("abalone", data_dir=tmp_path)
    with pytest.raises(DataError, match=r"heloc_dataset_v1\.csv not found in .*https.* HTAF_DATA or data_dir="):
        load("fico", data_dir=tmp_path)


def test_fico_codes_and_classes(tmp_path: Path, without_data: None) -> None:
    copy = pd.DataFrame({f"x{place}": np.arange(10459) % 7 for place in range(23)})
    copy.insert(0, "RiskPerformance", np.where(np.arange(10459) < 100, "Bad", "Good"))
    copy.iloc[:5, 1:] = -9
    copy.iloc[5, 3] = -8
    copy.to_csv(tmp_path / "heloc_dataset_v1.csv", index=False)
    table = load("fico", data_dir=tmp_path)
    assert (table.classes, table.target.sum(), table.target[0]) == (("Good", "Bad"), 100, 1)
    assert table.special_codes == (-7, -8, -9)
    names = table.fit_preprocessor(np.arange(200)).feature_names
    assert (len(names), names[-2:]) == (23 + 24, ("x21 is -9", "x22 is -9"))


def test_options_of_named_sets() -> None:
    with pytest.raises(DataError, match="wine: expected its own target 'quality', got 'pH'"):
        load("wine", target="pH")
    with pytest.raises(DataError, match=r"expected one of 'wine', .* got neither \(did you mean 'abalone'\?\)"):
        load("abalon")
    with pytest.raises(DataError, match=r"wine\.csv: no such file"):
        load("wine.csv", target="y")


# --- any file ----------------------------------------------------------------------------------------


def test_fingerprint_sees_every_part(tmp_path: Path) -> None:
    base = frame()
    variants = [base, base.rename(columns={"x": "z"}), base[["colour", "x", "y"]], base.iloc[::-1]]
    variants += [base.assign(y=base["y"] + 1), base.assign(x=base["x"].where(base.index > 0))]
    variants += [base.assign(colour=base["colour"].replace("red", "blue"))]
    prints = [load(saved(tmp_path, variant), target="y").fingerprint for variant in variants]
    assert len(set(prints)) == len(variants)


@pytest.mark.slow
def test_fingerprint_is_the_same_in_another_process(tmp_path: Path) -> None:
    path = saved(tmp_path, frame().assign(x=[-0.0, None] + [1.5] * 38))
    code = f"from htaf.data.tabular import load; print(load({str(path)!r}, target='y').fingerprint)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == load(path, target="y").fingerprint


@pytest.mark.parametrize(
    ("values", "task", "classes"),
    [
        (["no", "yes"] * 20, "classification", ("no", "yes")),
        ([True, False] * 20, "classification", ("False", "True")),
        ([1, 2, 3, 10] * 10, "classification", ("1", "2", "3", "10")),
        ([1.0, 0.0] * 20, "classification", ("0", "1")),
        (list(range(10)) * 4, "classification", tuple("0123456789")),
        ([*range(11)] * 3 + [*range(7)], "regression", ()),
        ([0.5, 1.5] * 20, "regression", ()),
    ],
)
def test_the_task_is_inferred(tmp_path: Path, values: list, task: str, classes: tuple[str, ...]) -> None:
    table = load(saved(tmp_path, frame().assign(y=values)), target="y")
    assert (table.task, table.classes) == (task, classes)
    assert table.target.dtype == (np.float64 if task == "regression" else np.int64)
    if classes:
        texts = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
        assert [classes[code] for code in table.target] == texts
    assert any(note.startswith(f"task {task} inferred") for note in told(table.notes))


def test_rows_without_a_target_are_dropped_with_a_note(tmp_path: Path) -> None:
    table = frame()
    path = saved(tmp_path, table.assign(y=table["y"].where(table.index >= 10)))
    loaded = load(path, target="y")
    assert len(loaded.target) == len(loaded.features) == 30
    np.testing.assert_array_equal(loaded.features["x"], table["x"][10:])
    assert "10 rows without a target 'y' dropped" in told(loaded.notes)
    with pytest.raises(DataError, match="expected target 'y' in at least half of the rows, got it in 19 of 40"):
        load(saved(tmp_path, table.assign(y=table["y"].where(table.index >= 21))), target="y")


@pytest.mark.parametrize("blank", ["None", "none", "NA", " "])
def test_blank_cells_among_numbers_are_no_target(tmp_path: Path, blank: str) -> None:
    numbers = frame().assign(y=[blank] * 3 + [str(value) for value in frame()["y"][3:]])
    table = load(saved(tmp_path, numbers), target="y")
    np.testing.assert_array_equal(table.target, frame()["y"][3:])
    assert "3 rows without a target 'y' dropped" in told(table.notes)
    codes = load(saved(tmp_path, frame().assign(y=[blank] * 4 + ["1", "2"] * 18)), target="y")
    assert (codes.task, codes.classes, np.bincount(codes.target).tolist()) == ("classification", ("1", "2"), [18, 18])
    asked = load(saved(tmp_path, frame().assign(y=[blank] * 4 + ["1.5", "2"] * 18)), target="y", task="classification")
    assert asked.classes == ("1.5", "2")


def test_notes_on_repeats_blanks_and_lone_classes(tmp_path: Path) -> None:
    table = pd.concat([frame(), frame()[:3]]).assign(y=["a"] * 20 + ["b"] * 19 + ["lone"] + ["a"] * 3)
    table.iloc[5, 0] = None
    notes = told(load(saved(tmp_path, table), target="y").notes)
    assert "3 rows repeating an earlier row; a grouped split keeps them on one side" in notes
    assert "missing values: 1 in 'x'" in notes
    assert "target 'y': one row only of 'lone'; it can be in one part of a split only" in notes


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (frame(), {}, "expected the name of the target column (target=), got none; columns: 'x', 'colour', 'y'"),
        (frame(), {"target": "color"}, "'color' (did you mean 'colour'?), got the columns 'x', 'colour', 'y'"),
        (frame(19), {"target": "y"}, "expected at least 20 rows with a target, got 19"),
        (frame().assign(y=1.5), {"target": "y"}, "expected a target 'y' that varies, got 1.5 in every row"),
        (frame().assign(y="a"), {"target": "y"}, "expected at least two classes in target 'y', got 'a' only"),
        (frame().assign(y=3), {"target": "y"}, "expected at least two classes in target 'y', got '3' only"),
        (frame(), {"target": "y", "task": "classification"}, "got 40 distinct values in 40 rows"),
        (
            frame(),
            {"target": "colour", "task": "regression"},
            "column 'colour', row 1: expected a number in the target",
        ),
        (
            frame().assign(y=["1", "2"] * 19 + ["x", "2"]),
            {"target": "y", "task": "regression"},
            "column 'y', row 39: expected a number in the target of a regression, got 'x'",
        ),
        (frame().assign(y=[np.inf] + [0.5] * 39), {"target": "y"}, "column 'y', row 1: expected a finite number"),
        (frame()[["y"]], {"target": "y"}, "expected at least one usable column beside 'y', got none"),
    ],
)
def test_bad_tables_give_one_line(tmp_path: Path, table: pd.DataFrame, options: dict, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        load(saved(tmp_path, table), **options)
    assert "\n" not in str(caught.value)


# --- other labelled rows for a finished run ------------------------------------------------------------


KINDS = Target("y", "classification", classes=("no", "perhaps", "yes"))
GRADES = Target("y", "classification", classes=("2", "1"))
AMOUNT = Target("y", "regression", 5.0, 2.0)


def test_one_row_is_enough(tmp_path: Path) -> None:
    path = saved(tmp_path, pd.DataFrame({"x": [1.5], "key": ["k0"], "y": ["perhaps"]}))
    table = load_like(path, target=KINDS)
    assert (table.name, table.target_name, table.task, table.classes) == (
        *("table.csv", "y", "classification"),
        KINDS.classes,
    )
    assert (table.target.tolist(), table.target.dtype) == ([1], np.int64)
    assert list(table.features) == ["x", "key"]
    assert told(table.notes) == ["target 'y': no rows of 'no', 'yes'"]
    number = load_like(saved(tmp_path, pd.DataFrame({"x": [1.5], "y": [7]})), target=AMOUNT)
    assert (number.target.tolist(), number.target.dtype, number.classes) == ([7.0], np.float64, ())


def test_rows_are_read_as_in_training_whatever_else_the_file_holds(tmp_path: Path) -> None:
    raw = frame().assign(size=["1", "2", "None", "big"] * 10, y=["yes", "no"] * 20)
    table = load(saved(tmp_path, raw), target="y")
    preprocessor = table.fit_preprocessor(np.arange(40))
    expected = preprocessor.transform(table.features)
    for row in range(4):  # alone, size would be a number or missing
        one = load_like(saved(tmp_path, raw[row : row + 1].assign(more=np.inf)), target=preprocessor.target)
        np.testing.assert_array_equal(preprocessor.transform(one.features), expected[row : row + 1])
        assert one.target[0] == table.target[row]


def test_classes_go_by_name(tmp_path: Path) -> None:
    table = load_like(saved(tmp_path, pd.DataFrame({"x": range(3), "y": ["yes", "no", "yes"]})), target=KINDS)
    assert table.target.tolist() == [2, 0, 2]
    for values in ([1, 2, 1], [1.0, 2.0, 1.0], ["1", "2.0", " 1 "]):
        table = load_like(saved(tmp_path, pd.DataFrame({"x": range(3), "y": values})), target=GRADES)
        assert table.target.tolist() == [1, 0, 1]
    padded = Target("y", "classification", classes=("01", "02", "x"))
    assert load_like(saved(tmp_path, pd.DataFrame({"x": [1], "y": ["02"]})), target=padded).target.tolist() == [1]
    path = tmp_path / "truth.parquet"
    pd.DataFrame({"x": [1.0, 2.0], "y": [True, False]}).to_parquet(path)
    truth = Target("y", "classification", classes=("False", "True"))
    assert load_like(path, target=truth).target.tolist() == [1, 0]


def test_rows_without_a_label_are_dropped_with_a_note(tmp_path: Path) -> None:
    for target, values, expected in (
        (AMOUNT, [None, "None", "3"], [3.0]),
        (GRADES, ["none", "NA", "2"], [0]),
        (KINDS, ["?", "", "yes"], [2]),
    ):
        table = load_like(saved(tmp_path, pd.DataFrame({"x": [1, 2, 3], "y": values})), target=target)
        assert table.target.tolist() == expected
        assert table.features["x"].tolist() == ["3"]  # as the file holds it: the preprocessor reads it
        assert "2 rows without a target 'y' dropped" in told(table.notes)
    some = Target("y", "classification", classes=("None", "some"))
    assert load_like(saved(tmp_path, pd.DataFrame({"x": [1], "y": ["None"]})), target=some).target.tolist() == [0]


@pytest.mark.parametrize(
    ("values", "target", "message"),
    [
        (
            ["no", "maybe"],
            KINDS,
            "column 'y', row 2: expected the classes 'no', 'perhaps', 'yes' of the target, got 'maybe' too",
        ),
        (["1", "3"], GRADES, "row 2: expected the classes '2', '1' of the target, got '3' too"),
        (["a few", "2"], AMOUNT, "column 'y', row 1: expected a number in the target of a regression, got 'a few'"),
        (
            ["1", "-inf"],
            AMOUNT,
            "column 'y', row 2: expected a finite number in the target of a regression, got '-inf'",
        ),
        (["?", "?"], AMOUNT, "expected a target 'y' in one row at least, got it in none of 2"),
        (["1", "2"], Target("Y2", "regression"), "expected a target column 'Y2'"),
    ],
)
def test_other_rows_that_cannot_be_used(tmp_path: Path, values: list, target: Target, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        load_like(saved(tmp_path, pd.DataFrame({"x": [1, 2], "y": values})), target=target)
    assert "\n" not in str(caught.value)
    assert "table.csv" in str(caught.value)


# --- splits ------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(20, 300), values=st.integers(3, 40), seed=st.integers(0, 2**32), grouped=st.booleans())
def test_splits_are_disjoint_and_complete(rows: int, values: int, seed: int, grouped: bool) -> None:
    x = np.arange(rows) % values
    features = pd.DataFrame({"x": x / 2, "c": pd.Series([f"c{value % 3}" for value in x], dtype=object)})
    table = table_of(features)
    parts = split(table, seed, mode="grouped" if grouped else "random")
    pieces = [parts.train, parts.validation, parts.test]
    assert np.array_equal(np.sort(np.concatenate(pieces)), np.arange(rows))
    assert all(len(piece) and np.array_equal(piece, np.sort(piece)) for piece in pieces)
    if grouped:
        sides = [set(x[piece]) for piece in pieces]
        assert sum(map(len, sides)) == len(set(x))
    else:
        assert (len(parts.train), len(parts.validation)) == (rows * 7 // 10, rows // 10)


def test_a_split_does_not_follow_what_the_same_seed_draws() -> None:
    for seed in range(5):
        drawn = np.random.default_rng(seed).random(2000)
        parts = split(table_of(pd.DataFrame({"x": drawn})), seed)
        assert [drawn[rows].mean() for rows in (parts.train, parts.test)] == pytest.approx([0.5, 0.5], abs=0.05)


def test_splits_never_change() -> None:
    table = table_of(pd.DataFrame({"x": np.arange(20.0)}))
    parts = split(table, 0)
    assert parts.validation.tolist() == [2, 7]
    assert parts.test.tolist() == [3, 8, 9, 11]
    assert split(table, 0).train.tolist() == parts.train.tolist()
    assert split(table, 1).train.tolist() != parts.train.tolist()


def test_grouping_takes_missing_and_signed_zero_as_equal() -> None:
    rows = [[0.0, None], [-0.0, None], [np.nan, "a"], [np.nan, "a"], [1.0, "a"], [1.0, "a"], [2.0, "b"], [2.0, "b"]]
    features = pd.DataFrame({"x": [row[0] for row in rows], "c": pd.Series([row[1] for row in rows], dtype=object)})
    for seed in range(10):
        parts = split(table_of(features), seed, mode="grouped")
        for part in (parts.train, parts.validation, parts.test):
            assert len(part) % 2 == 0
            assert (np.diff(part)[::2] == 1).all()


def test_whole_numbers_beyond_float64_are_not_merged(tmp_path: Path) -> None:
    """2^53 + 1 becomes 2^53 in float64: classes that differ there are refused."""
    table = frame().assign(y=[2**53 + row % 5 for row in range(40)])
    for name in ("table.csv", "table.parquet"):
        path = tmp_path / name
        table.to_csv(path, index=False) if name.endswith("csv") else table.to_parquet(path)
        with pytest.raises(DataError, match=f"column 'y', row 2: .* float64 can hold, .*, got {2**53 + 1}:"):
            load(path, target="y")
    spread = frame().assign(y=[2**63 + row * 10**15 + 1 for row in range(40)])
    assert load(saved(tmp_path, spread), target="y").task == "regression", "rounded, which a note says"
    feature = saved(tmp_path, frame().assign(x=[2**63 + row for row in range(40)]))
    notes = told(load(feature, target="y").notes)
    assert any(
        f"column 'x': whole numbers beyond 2^53 are rounded (first {2**63 + 1}, row 2)" in note for note in notes
    )


@pytest.mark.parametrize("scale", [1e300, -1e300, 1e-300])
def test_targets_too_large_or_small_to_square(tmp_path: Path, scale: float) -> None:
    table = load(saved(tmp_path, frame().assign(y=np.linspace(1, 2, 40) * scale)), target="y")
    with pytest.raises(DataError, match=r"expected values whose squares float64 can hold .* change the unit"):
        table.fit_preprocessor(np.arange(40))


def test_a_target_of_truth_values_is_not_text(tmp_path: Path) -> None:
    table = frame().assign(late=[row % 2 == 0 for row in range(40)])
    table.to_parquet(tmp_path / "table.parquet")
    for path in (tmp_path / "table.parquet", saved(tmp_path, table)):
        notes = told(load(path, target="late").notes)
        assert "task classification inferred: target 'late' holds true and false" in notes
    table["late"] = [f"a{row}" for row in range(40)]
    with pytest.raises(DataError, match=r"40 distinct values in 40 rows: choose another column$"):
        load(saved(tmp_path, table), target="late")  # text has no regression
    table["late"] = [f"${row},000" for row in range(100, 140)]
    assert load(saved(tmp_path, table), target="late").target.tolist()[:2] == [100_000, 101_000]
    table.loc[39, "late"] = "€5"  # in two units
    with pytest.raises(DataError, match=r"40 distinct values in 40 rows: .* write all in one unit"):
        load(saved(tmp_path, table), target="late")
