"""htaf harden: a run whose exact network was repaired, and every verb on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import made_runs
from htaf.runs import RunError, harden_run, open_run
from quick import slow_but


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=500), "b": rng.integers(0, 50, 500), "kind": rng.choice([*"xyz"], 500)})
    frame["value"] = np.sin(3 * frame["a"]) + 0.02 * frame["b"] + 0.1 * rng.normal(size=500)
    frame.to_csv(path := tmp_path_factory.mktemp("table") / "rows.csv", index=False)
    return path


def test_a_table(htaf: Any, table: Path, tmp_path: Path) -> None:
    run, out, packed = tmp_path / "run", tmp_path / "hard", tmp_path / "net.packed"
    words = ("--target", "value", "--out", run, "--epochs", "15", "--hidden", "40", "24", "--baselines", "False")
    assert htaf("train", "tabular", "--data", table, *words)[0] == 0
    code, said, steps = htaf("harden", run, "--out", out)
    assert code == 0
    assert "repair: validation loss" in steps
    assert "exact before" in said
    before, after = open_run(run), open_run(out)
    about = after.record["repaired"]
    assert (after.record["hardened"]["key"], about["from"]) == (before.record["key"], str(run))
    for part in ("validation", "test"):
        assert about["before"][part] == pytest.approx(before.record["metrics"]["exact"][part])
        assert after.record["metrics"]["smooth"][part] == pytest.approx(before.record["metrics"]["smooth"][part])
    assert [step["name"] for step in about["steps"]] == ["recalibrate", "repair", "recalibrate", "refit"]
    kept = [step["after"] for step in about["steps"] if step["kept"]]
    assert kept[-1] == pytest.approx(after.record["metrics"]["exact"]["validation"]["loss"])
    losses = [r.record["metrics"]["exact"]["validation"]["loss"] for r in (before, after)]
    assert losses[1] < losses[0]
    assert after.record["notes"][-1].startswith(f"hardened: the exact network of {run} after ")
    for one, two in zip(before.model(exact=False).parameters(), after.model(exact=False).parameters(), strict=True):
        assert torch.equal(one, two)
    assert not torch.equal(before.model().get_parameter("head.weight"), after.model().get_parameter("head.weight"))
    # the other verbs
    found = json.loads(htaf("evaluate", out, "--json")[1])
    for network in ("smooth", "exact"):
        assert found[network] == pytest.approx(after.record["metrics"][network]["test"], rel=1e-4)
    code, said, noted = htaf("evaluate", out, "--layers")
    assert code == 0
    assert f"exact network of this run has weights of its own: rmse {found['exact']['rmse']:.4f}" in " ".join(
        noted.split()
    )
    assert f"Layersofthesmoothnetworkof{out}:rmse" in "".join(said.split())
    layer = json.loads(htaf("evaluate", out, "--layers", "--json")[1])["layers"][0]
    row = next(line for line in said.splitlines() if layer["path"] in line)
    assert f"{layer['up_to']['rmse']:.4f}" in row  # the metric that the title names
    assert htaf("pack", out, "--out", packed)[0] == 0
    predictions = []
    for source, flags in ((out, ()), (packed, ()), (out, ("--smooth",)), (run, ("--smooth",))):
        assert htaf("predict", source, table, "--out", tmp_path / "p.csv", *flags)[0] == 0
        predictions.append(pd.read_csv(tmp_path / "p.csv")["prediction"].to_numpy())
        (tmp_path / "p.csv").unlink()
    np.testing.assert_allclose(predictions[0], predictions[1], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(predictions[2], predictions[3])
    assert np.abs(predictions[0] - predictions[2]).max() > 1e-3
    # the same command finds it done, others are refused
    assert htaf("harden", run, "--out", out)[0] == 0
    code, _, error = htaf("harden", run, "--out", out, "--steps", "refit")
    assert code != 0
    assert "holds another run (hardened.steps:" in error
    assert htaf("harden", out, "--out", tmp_path / "again", "--steps", "distil")[0] == 0
    assert open_run(tmp_path / "again").has_own_smooth


@pytest.mark.parametrize("kind", slow_but(["wide_resnet", "icbm"], "icbm"))
def test_images(htaf: Any, kind: str, tmp_path: Path) -> None:
    run = made_runs.made_run(tmp_path / "run", made_runs.digits(), kind=kind)
    out = tmp_path / "hard"
    code, said, _ = htaf("harden", tmp_path / "run", "--out", out, "--rows", "100", "--json")
    assert code == 0
    record = json.loads(said)
    assert record["metrics"]["exact"]["validation"]["loss"] < record["repaired"]["before"]["validation"]["loss"]
    repaired = next(r["report"] for r in record["repaired"]["steps"] if r["name"] == "repair")
    assert {"wide_resnet": 9, "icbm": 1}[kind] == sum("running" not in layer["note"] for layer in repaired["layers"])
    hard = open_run(out)
    assert hard.has_own_smooth
    assert torch.equal(hard.model(exact=False).get_parameter("head.weight"), run.model().get_parameter("head.weight"))
    if kind == "icbm":
        codes = tmp_path / "codes"
        assert htaf("concepts", "extract", out, "--out", codes)[0] == 0
        found = json.loads(htaf("concepts", "score", codes, "--out", tmp_path / "scores", "--json")[1])
        assert record["metrics"]["exact"]["test"]["accuracy"] == pytest.approx(
            found["accuracy"]["test"]["exact"], abs=1e-6
        )


def test_what_cannot_be_hardened(htaf: Any, tmp_path: Path) -> None:
    digits = made_runs.digits()
    plain = made_runs.made_run(tmp_path / "plain", digits, made_runs.PLAIN, kind="wide_resnet")
    with pytest.raises(RunError, match="has no exact network"):
        harden_run(plain, tmp_path / "out")
    run = made_runs.made_run(tmp_path / "run", digits, kind="wide_resnet")
    with pytest.raises(RunError, match="expected steps of recalibrate, repair, refit, distil, got none"):
        harden_run(run, tmp_path / "out", steps=())
    for flags, words in ((("--rows", "0"), "--rows must be >= 1, got 0"), (("--steps",), "--steps")):
        code, _, error = htaf("harden", tmp_path / "run", "--out", tmp_path / "out", *flags)
        assert code != 0
        assert words in error
    assert not (tmp_path / "out").exists()


def test_steps_that_cannot_be_taken_few_rows_and_the_record_of_the_training(
    htaf: Any, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = tmp_path / "run", tmp_path / "hard"
    words = ("--target", "value", "--out", run, "--epochs", "2", "--hidden", "10", "8", "--baselines", "False")
    assert htaf("train", "tabular", "--data", table, *words, "--refit", "True")[0] == 0

    def refit_head(*_: Any, **__: Any) -> Any:
        raise ValueError("expected a head whose weights can be fitted")

    monkeypatch.setattr("htaf.runs.hardening.hardening.refit_head", refit_head)
    code, _, steps = htaf("harden", run, "--out", out, "--rows", "1", "--steps", "refit", "repair")
    assert code == 0
    assert "refit: left out: expected a head whose weights can be fitted" in steps
    record = open_run(out).record
    first, second = record["repaired"]["steps"]
    error = "expected a head whose weights can be fitted"
    assert first == {"name": "refit", "before": second["before"], "error": error, "kept": False}
    assert second["name"] == "repair"
    assert record["hardening"] == open_run(run).record["hardening"]
    assert [step["name"] for step in record["hardening"]["finish"]] == ["recalibrate", "refit"]
    assert record["repaired"]["from"] == str(run)
