"""htaf pack, htaf export, and predictions by a packed file: the same as the run's, from one file."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import made_runs
from htaf import cli
from htaf.program.packed import PackedModel, load, save
from htaf.training.runs import packed as packed_runs
from quick import slow_but


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    made_runs.made_run(out, made_runs.digits(), kind="wide_resnet")
    return out


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for i in range(3):
        Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(folder / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=400), "b": rng.integers(0, 50, 400), "kind": rng.choice([*"xyz"], 400)})
    frame["label"] = np.where(frame["a"] + 0.05 * frame["b"] > 1.2, "yes", "no")
    frame["value"] = 3 * frame["a"] + frame["b"]
    frame.loc[::37, "a"] = np.nan
    frame.to_csv(path := tmp_path_factory.mktemp("table") / "rows.csv", index=False)
    return path


@pytest.fixture(scope="module")
def table_runs(table: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Trained networks of a class and of a number, by target."""
    folder = tmp_path_factory.mktemp("table-runs")
    for target in ("label", "value"):
        words = ("--data", table, "--target", target, "--out", folder / target, "--epochs", 12, "--hidden", 40, 24)
        words = (*words, "--baselines", False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["htaf", "train", "tabular", *map(str, words)])
            cli.main()
    return {target: folder / target for target in ("label", "value")}


IMPORTED = """
import json, sys
sys.argv = ["htaf", "predict", *sys.argv[1:]]
from htaf import cli
cli.main()
names = ("lightning", "timm", "transformers", "torchvision", "sklearn", "matplotlib", "torchmetrics")
print(json.dumps([name for name in names if name in sys.modules]), file=sys.stderr)
"""


def test_a_packed_file_is_not_evaluated(htaf, tmp_path: Path) -> None:
    (tmp_path / "net.packed").touch()
    code, _, err = htaf("evaluate", tmp_path / "net.packed")
    assert code == 2
    assert f"predict with it, htaf predict {tmp_path / 'net.packed'} ROWS" in err


def test_pack_and_predict(htaf, run: Path, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "net.packed"
    code, text, err = htaf("pack", run, "--out", out, "--json")
    assert code == 0, err
    told = json.loads(text)
    assert told["rows"] == told["same"] > 300
    assert told["bytes"] == out.stat().st_size
    assert any(row[3].startswith("packed") for row in told["report"]["rows"])
    assert [p.name for p in out.parent.iterdir()] == ["net.packed"]

    expected = pd.read_csv(io.StringIO(htaf("predict", run, images)[1]))
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, str(out), str(images)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(done.stdout)), expected, atol=1e-5)
    assert json.loads(done.stderr.strip().splitlines()[-1]) == []
    code, _, err = htaf("predict", out, images, "--smooth")
    assert code == 2
    assert "holds the exact network alone" in err

    opened = packed_runs.open_packed(out)
    with pytest.raises(packed_runs.packed.PackedError, match="trained on images"):
        opened.predict(pd.DataFrame({"a": [1.0]}))
    assert opened.about["checked"]["rows"] == told["rows"]
    save(load(out), tmp_path / "alone.packed", extra={})
    code, _, err = htaf("predict", tmp_path / "alone.packed", images)
    assert code == 1
    assert "holds no preprocessing" in err
    out.write_bytes(out.read_bytes()[:-7])
    assert htaf("predict", out, images)[0] == 1


def test_images_that_cannot_be_read_keep_their_row(htaf, run: Path, images: Path, tmp_path: Path) -> None:
    good, packed = [images / f"{i}.png" for i in range(2)], tmp_path / "net.packed"
    assert htaf("pack", run, "--out", packed)[0] == 0
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "empty.png").touch()
    files = [good[0], tmp_path / "text.png", good[1], tmp_path / "gone.png", tmp_path / "empty.png"]
    for model in (run, packed):
        code, out, err = htaf("predict", model, *files)
        assert code == 3
        frame = pd.read_csv(io.StringIO(out))
        assert frame["image"].tolist() == [str(file) for file in files], "in the order that was given"
        read = frame["error"].isna()
        assert read.tolist() == [True, False, True, False, False]
        assert frame.loc[~read].drop(columns=["image", "error"]).isna().all(axis=None)
        assert frame.loc[3, "error"] == "expected an image, got No such file or directory"
        alone = pd.read_csv(io.StringIO(htaf("predict", model, *good)[1]))
        pd.testing.assert_frame_equal(frame[read].reset_index(drop=True), alone, atol=1e-6, check_dtype=False)
        assert err.count("not read: ") == 3
        assert "3 of 5 files cannot be read; all others are done" in err
        for suffix, read_back in ((".csv", pd.read_csv), (".parquet", pd.read_parquet)):
            assert htaf("predict", model, *files, "--out", tmp_path / f"out{suffix}")[0] == 3
            assert read_back(tmp_path / f"out{suffix}")["error"].isna().tolist() == read.tolist()
        code, out, _ = htaf("predict", model, *files, "--json")
        assert code == 3
        rows = json.loads(out)
        assert rows[1]["prediction"] is None
        assert rows[0]["error"] is None
        for words in (files[1:2], files[3:4], [*files, "--strict"]):
            code, out, err = htaf("predict", model, *words, "--out", tmp_path / "none.csv")
            assert code == 1
            assert words[0].name in err or "text.png" in err
            assert not (tmp_path / "none.csv").exists()
        code, _, err = htaf("predict", model)
        assert code == 2
        assert "expected INPUT" in err


def test_outputs_over_what_is_read(htaf, run: Path, images: Path, tmp_path: Path) -> None:
    weights = (run / "model.safetensors").read_bytes()
    for verb in (("pack", run), ("export", run, "--to", "onnx"), ("export", run, "--to", "nir")):
        for name in ("model.safetensors", "record.json"):
            code, _, err = htaf(*verb, "--out", run / name)
            assert code == 2
            assert "is a file of the run" in err
        data = tmp_path / "data.csv"
        data.write_text("a\n1\n")
        code, _, err = htaf(*verb, "--data", data, "--out", data)
        assert code == 2
        assert "same file as the input" in err
    assert (run / "model.safetensors").read_bytes() == weights
    assert data.read_text() == "a\n1\n"


@pytest.mark.parametrize("target", ["label", "value"])
def test_a_packed_table(htaf, table_runs: dict[str, Path], table: Path, target: str, tmp_path: Path) -> None:
    out, run = tmp_path / "net.packed", table_runs[target]
    code, text, err = htaf("pack", run, "--out", out, "--json")
    assert code == 0, err
    told = json.loads(text)
    assert told["rows"] == told["same"] == 80
    assert told["layers"]["rows"] == 80
    assert told["layers"]["bits"] == 80 * (40 + 24)
    expected = pd.read_csv(io.StringIO(htaf("predict", run, table)[1]))
    code, found, err = htaf("predict", out, table)
    assert code == 0, err
    assert "set to the training median" in err
    found = pd.read_csv(io.StringIO(found))
    if target == "label":
        assert (found["prediction"] == expected["prediction"]).all()
        assert set(found["prediction"]) == {"yes", "no"}
    else:
        np.testing.assert_allclose(found["prediction"], expected["prediction"], rtol=1e-3, atol=1e-2)
    pd.testing.assert_frame_equal(found, expected, rtol=1e-4)


def test_packed_on_training_rows_and_verified_on_others(htaf, run: Path, tmp_path: Path, monkeypatch) -> None:
    from htaf.data.images import split
    from htaf.program import packed

    seen: dict[str, torch.Tensor] = {}
    pack, verify = packed.pack, packed.verify

    def packing(model, example, **options):
        seen["example"] = example
        return pack(model, example, **options)

    def verifying(made, model, inputs, **options):
        seen["verified"] = inputs
        return verify(made, model, inputs, **options)

    monkeypatch.setattr(packed, "pack", packing)
    monkeypatch.setattr(packed, "verify", verifying)
    code, text, _ = htaf("pack", run, "--out", tmp_path / "net.packed")
    assert code == 0
    assert "bits in" in text
    images = made_runs.digits()
    rows = split(images, train=made_runs.FEW["train_images"], validation=made_runs.FEW["validation_images"])
    preprocessor = packed_runs.open_packed(tmp_path / "net.packed").preprocessor()
    training = {x.numpy().tobytes() for x in preprocessor.normalise(images.train.batch(rows.train))}
    test = {x.numpy().tobytes() for x in preprocessor.normalise(images.test.batch(torch.arange(len(images.test))))}
    assert {x.numpy().tobytes() for x in seen["example"]} <= training - test
    assert {x.numpy().tobytes() for x in seen["verified"]} <= test
    assert (len(seen["example"]), len(seen["verified"])) == (64, 250)


def corrupted(made: PackedModel) -> PackedModel:
    """With the first of its large tensors of numbers turned around."""
    tensors = dict(made.program.tensors)
    name = next(n for n, t in tensors.items() if t.is_floating_point() and t.numel() > 8)
    tensors[name] = -tensors[name]
    return PackedModel(replace(made.program, tensors=tensors), made.report)


@pytest.mark.parametrize("differing", slow_but(["0", "100000"], "0"))
def test_a_wrong_weight_is_refused(htaf, run: Path, differing: str, tmp_path: Path, monkeypatch) -> None:
    """Where predictions may differ, the layers may not."""
    from htaf.program import packed

    right = packed.pack
    monkeypatch.setattr(packed, "pack", lambda *args, **options: corrupted(right(*args, **options)))
    out = tmp_path / "new" / "net.packed"
    code, _, err = htaf("pack", run, "--out", out, "--differing", differing)
    assert code == 1
    assert "nothing is written" in err
    assert "Traceback" not in err
    assert ("expected every layer" in err) == (differing != "0")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_where_predictions_differ(
    htaf, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = PackedModel.forward
    monkeypatch.setattr(PackedModel, "forward", lambda self, x: right(self, x).roll(1, 1))
    (tmp_path / "net.packed").write_text("a former file")
    code, _, err = htaf("pack", run, "--out", tmp_path / "net.packed")
    assert code == 1
    assert "expected the predictions of the run's exact network but for at most 1" in err
    assert (tmp_path / "net.packed").read_text() == "a former file"
    assert len(list(tmp_path.iterdir())) == 1


def test_export(htaf, run: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    code, text, err = htaf("export", run, "--to", "onnx", "--out", tmp_path / "net.onnx", "--json")
    assert code == 0, err
    assert json.loads(text)["same"] == json.loads(text)["rows"] > 300
    assert json.loads(text)["bytes"] == (tmp_path / "net.onnx").stat().st_size
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]


@pytest.mark.slow
def test_a_wrong_onnx_file_is_refused(htaf, run: Path, tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("onnxruntime")
    import htaf.program.export as writers

    right = writers.onnx_network
    monkeypatch.setattr(writers, "onnx_network", lambda path: lambda x: right(path)(x).roll(1, 1))
    code, _, err = htaf("export", run, "--to", "onnx", "--out", tmp_path / "net.onnx")
    assert code == 1
    assert "expected the predictions of the run's exact network" in err
    assert list(tmp_path.iterdir()) == []


def test_export_to_nir(htaf, run: Path, table_runs: dict[str, Path], tmp_path: Path) -> None:
    nir = pytest.importorskip("nir")
    code, text, err = htaf("export", table_runs["label"], "--to", "nir", "--out", tmp_path / "net.nir")
    assert code == 0, err
    assert "not compared: other libraries run NIR" in text
    kinds = {type(node).__name__ for node in nir.read(tmp_path / "net.nir").nodes.values()}
    assert {"Affine", "Threshold"} <= kinds


def test_bad_input(htaf, run: Path, tmp_path: Path) -> None:
    for words, code, message in (
        (("pack", tmp_path, "--out", tmp_path / "x"), 1, "expected a run folder"),
        (("pack", run, "--out", tmp_path), 2, "--out must be a file"),
        (("pack", run, "--out", tmp_path / "x", "--differing", "-1"), 2, "--differing must be >= 0"),
    ):
        found, _, err = htaf(*words)
        assert found == code
        assert message in err
        assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []
