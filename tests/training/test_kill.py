"""A training killed at any moment and started again by the same command ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

EPOCHS = 40
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(data: Path, out: Path) -> list[str]:
    flags = f"--target y --epochs {EPOCHS} --hidden 8 --batch-size 16 --checkpoint-seconds 0 --device cpu --json"
    return [
        sys.executable,
        "-m",
        "htaf",
        "train",
        "tabular",
        "--data",
        str(data),
        "--out",
        str(out),
        *flags.split(),
    ]


def run(data: Path, out: Path) -> dict[str, Any]:
    return finished(command(data, out))


def finished(words: list[str]) -> dict[str, Any]:
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["result"]


def outcome(out: Path) -> tuple[Any, ...]:
    record = json.loads((out / "record.json").read_text())
    names = ("status", "metrics", "layers", "model_sha256", "best_epoch", "epochs_run")
    return (*(record[name] for name in names), (out / "metrics.csv").read_bytes())


def wait_until(process: subprocess.Popen[bytes], condition: Any) -> None:
    while process.poll() is None and not condition():
        time.sleep(0.001)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, float]:
    """The data, an uninterrupted run, and how long it took."""
    folder = tmp_path_factory.mktemp("whole")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=200), "b": rng.normal(size=200)})
    frame["y"] = 10 * (frame["a"] > 0) + frame["b"] + rng.normal(size=200)
    frame.to_csv(folder / "made.csv", index=False)
    began = time.monotonic()
    run(folder / "made.csv", folder / "run")
    return folder / "made.csv", folder / "run", time.monotonic() - began


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["start-up", "claiming", "first epochs", "later epochs", "final writing"])
def test_killed_and_resumed(whole: tuple[Path, Path, float], tmp_path: Path, moment: str) -> None:
    data, uninterrupted, seconds = whole
    out, rng = tmp_path / "run", random.Random(moment)

    def reached(epoch: int) -> bool:
        return (out / "checkpoints" / f"epoch-{epoch:06d}.ckpt").exists()

    process = subprocess.Popen(
        command(data, out), env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    match moment:
        case "start-up":
            time.sleep(rng.uniform(0.1, 0.5) * seconds)
        case "claiming":
            wait_until(process, out.exists)
        case "first epochs" | "later epochs":
            epoch = rng.randrange(0, 10) if moment == "first epochs" else rng.randrange(10, EPOCHS - 1)
            wait_until(process, lambda: reached(epoch))
            time.sleep(rng.uniform(0.0, 0.02))  # anywhere in the epoch or in its writing
        case _:
            wait_until(process, (out / "model.safetensors").exists)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    run(data, out)
    assert outcome(out) == outcome(uninterrupted)
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in uninterrupted.iterdir())


IMAGES = (
    "train snn --data digits --recipe reduced --width 4 --steps 2 --epochs 3 --batch-size 50 --train-images 200 "
    "--validation-images 100 --augment crop-flip --precision bfloat16 --checkpoint-seconds 0 --device cpu --json"
)


@pytest.mark.slow
def test_an_image_training_killed_and_resumed(tmp_path: Path) -> None:
    """Augmented, in mixed precision; the last checkpoint is cut short as well."""

    def words(out: Path) -> list[str]:
        return [sys.executable, "-m", "htaf", *IMAGES.split(), "--out", str(out)]

    whole, out = tmp_path / "whole", tmp_path / "run"
    finished(words(whole))
    process = subprocess.Popen(words(out), env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    last = out / "checkpoints" / "epoch-000001.ckpt"
    wait_until(process, last.exists)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])
    done = subprocess.run(words(out), env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "is damaged" in done.stderr
    assert "going back to the one before" in done.stderr
    assert outcome(out) == outcome(whole)
