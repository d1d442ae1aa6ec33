"""htaf export to integers and htaf verify: from the command to the last number, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
from sklearn.datasets import load_iris
from tests.integer.made import KINDS, random_program

from htaf.cli import main
from htaf.core.kernels import native
from htaf.data.preprocess import Preprocessor
from htaf.program.export.integer import to_integer_onnx
from htaf.program.integer import exports
from htaf.program.integer.c import to_c
from htaf.program.integer.execute import run_program
from htaf.program.integer.ops import Linear, Steps
from htaf.program.integer.program import Input, IntegerProgram
from htaf.program.integer.raw import raw
from htaf.program.integer.verilog import to_verilog
from htaf.training.runs.packing import inputs_of, prepared

FILES = {"integer": "p.safetensors", "c": "c", "verilog": "v", "onnx-integer": "p.onnx"}


def htaf(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr("sys.argv", ["htaf", *map(str, words)])
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    load_iris(as_frame=True).frame.to_csv(folder / "iris.csv", index=False)
    words = ("train", "tabular", "--data", folder / "iris.csv", "--target", "target", "--recipe", "tabular-members")
    with pytest.MonkeyPatch.context() as patch:
        logic = ("train", "logic", *words[2:6], "--luts", 12, "--epochs", 2, "--baselines", False)
        assert htaf(patch, *logic, "--out", folder / "logic") == 0
        small = ("--hidden", 8, "--members", 2, "--thresholds", 5, "--epochs", 5, "--weights", "int8")
        assert htaf(patch, *words, *small, "--baselines", False, "--out", folder / "run") == 0
        assert (
            htaf(
                patch,
                *words,
                "--hidden",
                8,
                "--members",
                2,
                "--epochs",
                1,
                "--baselines",
                False,
                "--out",
                folder / "real",
            )
            == 0
        )
    return folder / "run"


@pytest.mark.parametrize("name", ["run", "logic"])
@pytest.mark.parametrize("form", FILES)
def test_an_export_equals_the_network(
    form: str, name: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run.parent / name
    out = tmp_path / FILES[form]
    if form == "c" and not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    if form == "verilog" and not shutil.which("iverilog"):
        pytest.skip("iverilog is not installed")
    assert htaf(monkeypatch, "export", run, "--to", form, "--out", out) == 0
    assert "predicted as by the run's exact network" in capsys.readouterr().out
    target = {"c": ("--target", "host"), "verilog": ("--target", "iverilog")}.get(form, ())
    assert htaf(monkeypatch, "verify", out, run, *target, "--json") == 0
    network, *others = json.loads(capsys.readouterr().out)["result"]
    assert len(others) == 1 + (name == "logic" and not target and native.available())  # its circuit too
    for one in others:
        assert network["rows"] == one["rows"] > 20
        assert (one["predictions"], one["outputs"], one["wrong"]) == (0, 0, "")


def test_an_export_that_says_its_inputs_wrongly_differs(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it says is applied to the raw rows."""

    def wrong(*given: Any) -> list[dict[str, Any]]:
        return [one | {"scale": 2 * one["scale"]} for one in inputs_of(*given)]

    monkeypatch.setattr("htaf.training.runs.packing.inputs_of", wrong)
    assert htaf(monkeypatch, "export", run, "--to", "integer", "--out", tmp_path / "p") == 0
    assert htaf(monkeypatch, "verify", tmp_path / "p", run) == 1
    assert "integer program: numbers differ" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "offered"), [("run", True), ("logic", False)])
def test_a_large_program_of_a_table_offers_the_readable_one(
    name: str, offered: bool, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("htaf.training.runs.packing.LARGE", 10)
    assert htaf(monkeypatch, "export", run.parent / name, "--to", "c", "--out", tmp_path / "c") == 0
    assert ("--recipe readable" in capsys.readouterr().out) == offered


def test_a_program_of_raw_columns_that_differs_is_not_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "p"
    assert htaf(monkeypatch, "export", run.parent / "logic", "--to", "c", "--out", out) == 0
    header = (out / "network.h").read_text("utf-8")
    assert {one["kind"] for one in exports.read(header)} == {"fixed"}
    assert "NETWORK_CLASS_2 = 2" in header
    shutil.rmtree(out)

    def wrong(*given: Any) -> IntegerProgram:
        made = raw(*given)
        negated = Linear("negated", made.output, -np.eye(3, dtype=int), None)
        return IntegerProgram(made.input, (*made.ops, negated), len(made.ops) + 1, made.unit, made.about)

    monkeypatch.setattr("htaf.training.runs.packing.raw_program", wrong)
    assert htaf(monkeypatch, "export", run.parent / "logic", "--to", "c", "--out", out) == 1
    assert "nothing is written" in capsys.readouterr().err
    assert not out.exists()


def test_an_onnx_file_of_others_was_not_changed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.onnx").write_bytes(b"\x08\x0a\x12\x04test")
    assert htaf(monkeypatch, "verify", tmp_path / "p.onnx", run) == 1
    said = capsys.readouterr().err
    assert "without its digest" in said
    assert "changed" not in said


def test_a_packed_file_is_of_its_run(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert htaf(monkeypatch, "pack", run, "--out", tmp_path / "p.packed") == 0
    capsys.readouterr()
    assert htaf(monkeypatch, "verify", tmp_path / "p.packed", run, "--json") == 0
    assert [(one["where"], one["outputs"]) for one in json.loads(capsys.readouterr().out)["result"]] == [
        ("network in PyTorch", 0),
        ("packed", 0),
    ]


def test_edited_and_foreign_exports_are_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert htaf(monkeypatch, "export", run, "--to", "c", "--out", tmp_path / "c") == 0
    source = tmp_path / "c" / "network.c"
    text = source.read_text()
    source.write_text(text.replace("static", "static ", 1))
    assert htaf(monkeypatch, "verify", tmp_path / "c", run) == 1
    assert "got one that was changed" in capsys.readouterr().err
    digest = text.split("program sha256: ")[1][:64]
    source.write_text(text)
    test = tmp_path / "c" / "test" / "test.c"
    test.write_text(test.read_text().replace("ROWS 16", "ROWS 15"))
    assert htaf(monkeypatch, "verify", tmp_path / "c", run) == 1
    assert "test.c: expected a file as it was written, got one that was changed" in capsys.readouterr().err
    source.write_text(text.replace(digest, "0" * 64))
    assert htaf(monkeypatch, "verify", tmp_path / "c", run) == 1
    assert f"expected the program {digest[:12]} of the run, got 000000000000" in capsys.readouterr().err
    assert htaf(monkeypatch, "verify", tmp_path / "none", run) == 1
    assert "there is none at" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["onnx-integer", "integer"])
def test_an_edited_file_is_refused(
    form: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One bit of one number."""
    out = tmp_path / ("p.program" if form == "integer" else "p.onnx")
    assert htaf(monkeypatch, "export", run, "--to", form, "--out", out) == 0
    written = bytearray(out.read_bytes())
    written[-100 if form == "integer" else len(written) // 2] ^= 1
    out.write_bytes(written)
    capsys.readouterr()
    assert htaf(monkeypatch, "verify", out, run) == 1
    assert "expected a file as it was written, got one that was changed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--to", "c", "--name", "a b"), "expected a name in C"),
        (("--to", "onnx-integer", "--name", "a"), "--to onnx-integer does not read --name"),
        (("--to", "verilog", "--luts", "5"), "expected at most 5 LUTs, got about"),
        (("--to", "verilog", "--luts", "0"), "--luts must be > 0, got 0"),
        (("--to", "c", "--luts", "5"), "--to c does not read --luts"),
    ],
)
def test_options_that_cannot_be_met(
    words: tuple[str, ...],
    message: str,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert htaf(monkeypatch, "export", run, *words, "--out", tmp_path / "made") in (1, 2)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_real_weights_are_refused_with_what_to_do(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert htaf(monkeypatch, "export", run.parent / "real", "--to", "c", "--out", tmp_path / "c") == 1
    assert "--weights int8" in capsys.readouterr().err


# ---- integer programs as ONNX: 0 numbers of random programs differ in onnxruntime ----


SEEDS = 6


def run_integers(file: Path, x: np.ndarray) -> np.ndarray:
    session: Any = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    return session.run(None, {"input": x.astype({"tensor(uint8)": np.uint8, "tensor(int32)": np.int32}[given.type])})[0]


@pytest.mark.parametrize("kind", KINDS)
def test_integer_onnx_gives_the_same_integers(kind: str, tmp_path: Path) -> None:
    for seed in range(SEEDS):
        program, x = random_program(seed, kind)
        to_integer_onnx(program, tmp_path / "p.onnx")
        y = run_integers(tmp_path / "p.onnx", x)
        assert y.dtype == np.int64
        np.testing.assert_array_equal(y, program.run(x))
        for some in (x[:1], x[:0]):
            np.testing.assert_array_equal(run_integers(tmp_path / "p.onnx", some), program.run(some))
        if program.input.kind == "columns":
            far = np.where(x > 0, 2**31 - 1, -(2**31))
            clamped = program.run(far.clip(program.input.low, program.input.high))
            np.testing.assert_array_equal(run_integers(tmp_path / "p.onnx", far), clamped)


def _one(given: Input, *ops: Any) -> IntegerProgram:
    return IntegerProgram(given, ops, len(ops))


def test_files_name_the_program(tmp_path: Path) -> None:
    fc = Linear("fc", 0, np.array([[3, -7], [1, 4]]), None)
    act = Steps("act", 1, np.array([[5], [-2]]), np.array([1, -1]), -1, 2)
    program = _one(Input("columns", (2,), -8, 7, 3), fc, act)
    to_integer_onnx(program, tmp_path / "i.onnx")
    said = {one.key: one.value for one in onnx.load(tmp_path / "i.onnx").metadata_props}
    assert said["program_sha256"] == program.digest
    assert json.loads(said["unit"]) == [0, 1]
    assert json.loads(said["input"])["exponent"] == 3


def test_bytes_are_multiplied_only_where_no_kernel_saturates(tmp_path: Path) -> None:
    """Kernels for AVX2 add two products of bytes in 16 bits: 2 * 255 * 127 would be cut to 32,767."""
    for high, weight, operator in ((128, 127, "MatMulInteger"), (255, 127, "MatMul"), (128, 128, "MatMul")):
        program = _one(Input("columns", (2,), 0, high), Linear("fc", 0, np.full((1, 2), weight), None))
        to_integer_onnx(program, tmp_path / "p.onnx")
        assert operator in [node.op_type for node in onnx.load(tmp_path / "p.onnx").graph.node]
        assert run_integers(tmp_path / "p.onnx", np.full((1, 2), high)).tolist() == [[2 * high * weight]]


# ---- how raw values become the inputs of an export ----


CODE = -9.0


def frame(rows: int, seed: int) -> pd.DataFrame:
    """Numbers with codes and blanks, few and many categories, blanks in them, odd names, dates."""
    rng = np.random.default_rng(seed)
    city = np.array([f"City {i}" for i in range(30)], object)[rng.integers(0, 30, rows)]
    sex = np.array(["male", "female", None, "Ärztin", "*/ y"], object)[rng.integers(0, 5, rows)]
    rare = np.where(rng.random(rows) < 0.04, [f"r{i % 3}" for i in range(rows)], "often")
    age = np.where(rng.random(rows) < 0.1, np.nan, rng.uniform(17, 90, rows))
    day = pd.Timestamp("2019-01-01") + pd.to_timedelta(rng.integers(0, 10**5, rows), "h")
    table = {"age": age, "wage /* \u2028": np.where(rng.random(rows) < 0.1, CODE, rng.normal(size=rows))}
    table |= {"sex": sex, "city": city, "rare": rare, "day": day.where(rng.random(rows) > 0.1)}
    return pd.DataFrame(table)


@pytest.fixture(scope="module")
def made() -> tuple[Preprocessor, IntegerProgram]:
    train = frame(300, 0)
    known = Preprocessor.fit(
        train, np.nan_to_num(train["age"].to_numpy(float), nan=200), task="regression", special_codes=(CODE,)
    )
    given = Input("columns", (len(known.feature_names),), -(2**24), 2**24, 20)
    about = {"columns": inputs_of(known, given), "target": {"task": "regression", "mean": 3.0, "std": 2.0}}
    fc = Linear("fc", 0, np.ones((1, len(known.feature_names)), int), None)
    return known, IntegerProgram(given, (fc,), 1, (0, 1), about)


def said_by(form: str, program: IntegerProgram, folder: Path) -> str:
    if form == "c":
        to_c(program, folder)
        return (folder / "network.h").read_text("utf-8")
    if form == "verilog":
        to_verilog(program, folder)
        return (folder / "network.v").read_text("utf-8")
    to_integer_onnx(program, folder / "p.onnx")
    return {one.key: one.value for one in onnx.load(str(folder / "p.onnx")).metadata_props}["columns"]


@pytest.mark.parametrize("form", ["c", "verilog", "onnx-integer"])
def test_raw_values_become_the_inputs_by_what_an_export_says(
    form: str, made: tuple[Preprocessor, IntegerProgram], tmp_path: Path
) -> None:
    known, program = made
    text = said_by(form, program, tmp_path)
    said = exports.read(text)
    assert [one["name"] for one in said] == [*known.feature_names]
    assert {one["kind"] for one in said} == {"number", "code", "missing", "date", "encoded", "category", "other"}
    rows: Any = frame(200, 1)
    rows.loc[:3, ["sex", "city"]] = [["MALE", "city 3"], ["unseen", "unseen"], ["?", "N/A"], [" female ", "City 1"]]
    rows.loc[4, "age"] = 1e6  # beyond the training, and clamped
    np.testing.assert_array_equal(prepared(said, program.input, rows), program.input.quantised(known.transform(rows)))
    assert '"std" + "mean"' in text


def test_names_neither_end_a_comment_nor_begin_one(made: tuple[Preprocessor, IntegerProgram], tmp_path: Path) -> None:
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    to_c(made[1], tmp_path)
    assert run_program(tmp_path, tmp_path / "test" / "test.c").startswith("0 of ")
