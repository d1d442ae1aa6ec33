"""htaf pack, htaf export, and predictions by a packed file: the same as the run's, from one file."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import made_runs
from htaf import packed_runs, predictions
from htaf.packed import PackedModel, load, save


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


IMPORTED = """
import json, sys
sys.argv = ["htaf", "predict", *sys.argv[1:]]
from htaf import cli
cli.main()
names = ("lightning", "timm", "transformers", "torchvision", "sklearn", "matplotlib", "torchmetrics", "optuna")
print(json.dumps([name for name in names if name in sys.modules]), file=sys.stderr)
"""


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


def test_nothing_is_written_where_predictions_differ(
    htaf, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = PackedModel.forward
    monkeypatch.setattr(PackedModel, "forward", lambda self, x: right(self, x).roll(1, 1))
    (tmp_path / "net.packed").write_text("a former file")
    code, _, err = htaf("pack", run, "--out", tmp_path / "net.packed")
    assert code == 1
    assert "expected the same predictions as the run's exact network" in err
    assert (tmp_path / "net.packed").read_text() == "a former file"
    assert len(list(tmp_path.iterdir())) == 1
    assert htaf("pack", run, "--out", tmp_path / "other.packed", "--differing", "100000")[0] == 0


def test_export(htaf, run: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    code, text, err = htaf("export", run, "--to", "onnx", "--out", tmp_path / "net.onnx", "--json")
    assert code == 0, err
    assert json.loads(text)["same"] == json.loads(text)["rows"] > 300
    code, _, err = htaf("export", run, "--to", "nir", "--out", tmp_path / "net.nir")
    assert code in (0, 1)
    assert {p.name for p in tmp_path.iterdir()} == ({"net.onnx"} if code else {"net.onnx", "net.nir"})


def test_bad_input(htaf, run: Path, tmp_path: Path) -> None:
    for words, code, message in (
        (("pack", tmp_path, "--out", tmp_path / "x"), 1, "expected a run folder"),
        (("pack", run, "--out", tmp_path), 2, "--out must be a file"),
        (("pack", run, "--out", tmp_path / "x", "--budget", "0"), 2, "--budget must be > 0"),
        (("pack", run, "--out", tmp_path / "x", "--differing", "-1"), 2, "--differing must be >= 0"),
    ):
        found, _, err = htaf(*words)
        assert found == code
        assert message in err
        assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_agreement() -> None:
    expected = torch.tensor([[1.0, 2.0], [3.0, 0.0], [4.0, 5.0]])
    assert predictions.agreement(expected.clone(), expected).equal
    other = expected.clone()
    other[1] = torch.tensor([1.0, 2.0])
    assert not predictions.agreement(other, expected).equal
