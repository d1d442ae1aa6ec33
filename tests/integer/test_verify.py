"""htaf export to integers and htaf verify: from the command to the last number, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from sklearn.datasets import load_iris

from htaf.cli import main
from htaf.training.runs.integer import inputs_of

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


@pytest.mark.parametrize("form", FILES)
def test_an_export_equals_the_network(
    form: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / FILES[form]
    if form == "c" and not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    if form == "verilog" and not shutil.which("iverilog"):
        pytest.skip("iverilog is not installed")
    assert htaf(monkeypatch, "export", run, "--to", form, "--out", out) == 0
    assert "rows: 0 predictions and 0 outputs differ" in capsys.readouterr().out
    target = {"c": ("--target", "host"), "verilog": ("--target", "iverilog")}.get(form, ())
    assert htaf(monkeypatch, "verify", out, run, *target, "--json") == 0
    network, export = json.loads(capsys.readouterr().out)["result"]
    assert network["rows"] == export["rows"] > 20
    assert (export["predictions"], export["outputs"], export["wrong"]) == (0, 0, "")


def test_an_export_that_says_its_inputs_wrongly_differs(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it says is applied to the raw rows."""

    def wrong(*given: Any) -> list[dict[str, Any]]:
        return [one | {"scale": 2 * one["scale"]} for one in inputs_of(*given)]

    monkeypatch.setattr("htaf.training.runs.integer.inputs_of", wrong)
    assert htaf(monkeypatch, "export", run, "--to", "integer", "--out", tmp_path / "p") == 0
    assert htaf(monkeypatch, "verify", tmp_path / "p", run) == 1
    assert "integer program: numbers differ" in capsys.readouterr().err


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
        (("--to", "c", "--stem", "int16"), "got 'stem': integers in a first layer come of training"),
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
