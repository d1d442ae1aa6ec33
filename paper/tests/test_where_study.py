"""The planted-spot experiment: what is planted, its scores, and its report on a tiny setting."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from htaf.concepts.regions import Map
from htaf_paper import where
from htaf_paper.kept import KeptError
from htaf_paper.where import (
    SIZE,
    SPOT,
    covered,
    most_possible,
    overlap,
    planted,
    run,
    scored,
    textures,
    without_constant,
)
from htaf_paper.where_report import METHODS


def test_spots_lie_where_the_boxes_say() -> None:
    data = planted(40, np.random.default_rng(0))
    assert data.images.shape == (40, 3, SIZE, SIZE)
    assert 0.3 < data.bits.mean() < 0.7
    for i, kind in zip(*np.nonzero(data.bits), strict=True):
        left, top, right, bottom = data.boxes[i, kind]
        assert 0 <= left < right <= SIZE
        assert 0 <= top < bottom <= SIZE
        seen = data.images[i, :, top:bottom, left:right].mean(0).numpy()
        assert np.abs(seen - textures()[kind]).max() < 1
    for boxes in data.boxes[:5]:
        assert all(overlap(tuple(a), tuple(b)) == 0 for k, a in enumerate(boxes) for b in boxes[:k])


def test_scores() -> None:
    assert overlap((0, 0, 4, 4), (2, 0, 6, 4)) == pytest.approx(8 / 24)
    assert overlap((0, 0, 2, 2), (2, 2, 4, 4)) == 0
    values = np.full((4, 4), -1.0)
    values[0, 0], values[2, 2] = 3.0, 1.0
    found = Map(0, values, float(values.sum()), -16.0, "exact", (SIZE, SIZE))
    spot = (0, 0, SPOT, SPOT)
    assert scored([found], [spot]) == pytest.approx({"mass": 0.75, "pointing": 1.0, "iou": 1.0})
    assert scored([found], [(12, 12, 18, 18)]) == pytest.approx({"mass": 0.25, "pointing": 0.0, "iou": 0.0})
    np.testing.assert_array_equal(without_constant(found).values, values + 1)
    assert most_possible((4, 4), [spot]) == 1
    assert most_possible((4, 4), [(3, 0, 9, 6)]) == pytest.approx(0.5)
    assert most_possible((2, 2), [spot]) == pytest.approx(0.25)


class Sum(torch.nn.Module):
    """Its bit needs the upper left corner."""

    def pre_activations(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 0, :SPOT, :SPOT].sum((1, 2))[:, None] - 1


def test_what_covering_the_box_does() -> None:
    data = where.Planted(torch.ones(1, 3, SIZE, SIZE), np.ones((1, 1), bool), np.array([[[0, 0, SPOT, SPOT]]]))
    values = np.zeros((4, 4))
    values[0, 0] = 1
    found = Map(0, values, 1.0, 0.0, "exact", (SIZE, SIZE))
    assert covered(Sum(), data, [(0, 0)], [found], np.random.default_rng(0)) == {"box": 1.0, "elsewhere": 0.0}


@pytest.mark.slow
def test_the_run_writes_record_report_and_picture_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("captum")  # an extra
    for name, value in {"TRAINING": 240, "EPOCHS": 2, "IMAGES": 3}.items():
        monkeypatch.setattr(where, name, value)
    text = run(tmp_path, ["WideResNet-10-1"], [0])
    record = json.loads((tmp_path / "report.json").read_text())
    assert [(each["network"], each["seed"], each["grid"]) for each in record["cells"]] == [
        ("WideResNet-10-1", 0, [6, 6])
    ]
    assert record["cells"][0]["largest_difference"] < 1e-4
    assert (tmp_path / "report.md").read_text() == text
    assert "## WideResNet-10-1: maps of 6 x 6 places" in text
    assert "| gradient x input | " in text
    assert (tmp_path / "where.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(where, "cell", lambda *_: pytest.fail("a cell that is done"))
    assert run(tmp_path, ["WideResNet-10-1"], [0]) == text


def a_cell() -> dict[str, Any]:
    methods = {method: {"mass": 0.5, "pointing": 1.0, "iou": 0.25} for method in METHODS}
    return {
        "network": "WideResNet-10-1", "seed": 0, "grid": [6, 6], "cases": 9, "accuracy": 1.0, "methods": methods,
        "most_possible": 0.9, "area": 0.1, "largest_difference": 1e-6, "covered": {"box": 1.0, "elsewhere": 0.0},
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-9],
        lambda data: b'{"settings": null}',
        lambda data: b"7",
        lambda data: b"NaN",
        lambda data: data.replace(b'"cells"', b'"rows"'),
        lambda data: data.replace(b'"covered"', b'"hidden"'),
        lambda data: data.replace(b'"mass": 0.5', b'"mass": "x"'),
        lambda data: data.replace(b'"WideResNet-10-1"', b"{}"),
        lambda data: data.replace(b'"cpu_seconds": 0', b'"cpu_seconds": null'),
    ],
)
def test_a_damaged_report_is_one_clear_error_of_where(
    change: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, "cell", lambda *_: a_cell())
    run(tmp_path, ["WideResNet-10-1"], [0])
    file = tmp_path / "report.json"
    damaged = change(file.read_bytes())
    assert damaged != file.read_bytes()
    file.write_bytes(damaged)
    monkeypatch.setattr("sys.argv", ["where", "--out", str(tmp_path), "--networks", "WideResNet-10-1", "--seeds", "0"])
    with pytest.raises(KeptError, match=r"report\.json: expected results that this command wrote.*choose another"):
        run(tmp_path, ["WideResNet-10-1"], [0])
    with pytest.raises(SystemExit) as stopped:
        where.main()
    assert stopped.value.code == 1
    assert file.read_bytes() == damaged


def test_results_of_other_settings_are_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, "cell", lambda *_: a_cell())
    (tmp_path / "report.json").write_text('{"settings": {"size": 3}, "cells": []}')
    run(tmp_path, ["WideResNet-10-1"], [0])
    assert json.loads((tmp_path / "report.json").read_text())["settings"]["size"] == SIZE


@pytest.mark.parametrize("seed", ["-1", "99999999999"])
def test_seeds_out_of_range(seed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["where", "--out", str(tmp_path / "out"), "--seeds", seed])
    with pytest.raises(SystemExit) as stopped:
        where.main()
    assert stopped.value.code == 2
    assert not (tmp_path / "out").exists()
