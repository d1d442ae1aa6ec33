"""The study over a pretrained backbone: its plan, its figures from known answers, and one cell of each kind, tiny."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from htaf.data.images import Images, load
from htaf.training.families import ready_recipe
from htaf.training.recipe import Recipe
from htaf_paper import pretrained
from htaf_paper.kept import KeptError
from htaf_paper.pretrained import SPARSE_AT, Cell, cells, recipe, run_cell
from htaf_paper.pretrained_report import no_loss, report, right


def measured(method: str, smooth: list[int], exact: list[int], *, seed: int = 0, **more: Any) -> dict[str, Any]:
    hexed = {name: np.packbits(v).tobytes().hex() for name, v in (("smooth", smooth), ("exact", exact))}
    return {
        "data": "cub", "concepts": 32, "method": method, "seed": seed, "finetune": False, "images": len(smooth),
        "smooth": float(np.mean(smooth)), "exact": float(np.mean(exact)), "right": hexed, **more,
    }  # fmt: skip


def test_the_plan() -> None:
    every = list(cells())
    assert len(every) == len(set(every)) == 2 * 3 * 4 * 3
    assert len({cell.name for cell in every}) == len(every)
    tuned = list(cells(finetune=True))
    assert {(cell.data, cell.concepts, cell.finetune) for cell in tuned} == {("cub", SPARSE_AT, True)}
    assert len({cell.name for cell in [*every, *tuned]}) == len(every) + len(tuned)
    for cell in [*every, *tuned]:
        own = recipe(cell, "weights.bin").flat()
        assert (own["method"], own["concepts"]) == (cell.method, cell.concepts)
        assert own["freeze"] == (not cell.finetune)
        assert own["backbone"] == "tf_efficientnet_lite0"
    assert recipe(Cell("cifar10", 32, "ss", 0), "w").activation.start == (1.0,)


def test_exact_less_plain() -> None:
    one = measured("htaf", [1, 1, 1, 1, 1], [1, 1, 0, 0, 1])
    two = measured("htaf", [1, 1, 1, 1, 1], [1, 1, 0, 1, 1], seed=1)
    plain = measured("relu", [1, 0, 1, 1, 1], [0, 0, 0, 0, 1])
    assert right(one, "exact").tolist() == [1, 1, 0, 0, 1]
    less = no_loss([one, two, plain], 32)
    assert less is not None
    assert less["difference"] == pytest.approx(np.mean([0, 1, -1, -0.5, 0]))
    assert less["interval"][0] < less["difference"] < less["interval"][1]
    bits = no_loss([one, plain], 32, "bm")
    assert bits is not None
    assert bits["difference"] == pytest.approx(0.2 - 0.8)
    assert no_loss([one], 32) is None


def test_the_report(tmp_path: Path) -> None:
    summary = [{"bits": "these", "target": 5, "accuracy": 0.5}, {"bits": "these", "target": None, "accuracy": 0.75}]
    random = [{**row, "bits": "random hyperplanes", "accuracy": 0.25} for row in summary]
    rows = [
        measured("relu", [1, 1, 1, 1], [0, 1, 0, 0], sparse={"summary": summary}),
        measured("htaf", [1, 1, 1, 1], [1, 1, 0, 1], sparse={"summary": [*summary, *random]}),
        measured("htaf", [1, 1, 1, 0], [1, 1, 1, 1], seed=1, sparse={"summary": summary}),
        measured("htaf", [1, 1, 1, 0], [1, 1, 1, 1], concepts=128),
    ]
    (tmp_path / "measured").mkdir()
    for number, row in enumerate(rows):
        (tmp_path / "measured" / f"{number}.json").write_text(json.dumps({**row, "recipe": {}}))
    text = report(tmp_path).read_text()
    assert "## CUB, 50 classes, frozen" in text
    assert "| HTAF | 87.5 (17.7) | 87.5 (17.7) | 75.0 | 100.0 |" in text
    assert "| plain | 100.0 |  | - |  |" in text
    assert "| median (BM) |  | 25.0 |  | - |" in text
    assert "| HTAF | 50.0 (0.0) | 75.0 (0.0) |" in text
    assert "| random hyperplanes | 25.0 | 25.0 |" in text
    assert "fine-tuned" not in text.split("##", 1)[1]
    kept = json.loads((tmp_path / "report.json").read_text())
    assert len(kept) == 4
    assert not any({"right", "recipe"} & {*row} for row in kept)


@pytest.mark.slow
def test_cells_on_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tiny(cell: Cell, weights: str) -> Recipe:
        return ready_recipe("icbm", "frozen").replace(
            backbone="wide_resnet", depth=10, pretrained="", concepts=12, method=cell.method, epochs=2, batch_size=50,
            train_images=200, validation_images=100,
        )  # fmt: skip

    monkeypatch.setattr(pretrained, "recipe", tiny)
    monkeypatch.setattr(pretrained, "RANDOM_SEEDS", 1)
    digits: Images = load("digits")
    found = {
        method: run_cell(Cell("cub", SPARSE_AT, method, 0), "", digits, tmp_path, None) for method in ("relu", "htaf")
    }
    assert found["htaf"]["exact"] == pytest.approx(right(found["htaf"], "exact").mean())
    assert {row["bits"] for row in found["htaf"]["sparse"]["summary"]} == {"these", "random hyperplanes"}
    assert {row["bits"] for row in found["relu"]["sparse"]["summary"]} == {"these"}
    assert "## CUB" in report(tmp_path).read_text()
    monkeypatch.setattr(pretrained, "fit", None)  # what is measured is not computed again
    assert run_cell(Cell("cub", SPARSE_AT, "htaf", 0), "", digits, tmp_path, None) == found["htaf"]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-4],
        lambda text: "[]",
        lambda text: "",
        lambda text: text.replace('"exact": 0.5', '"exact": "half"'),
        lambda text: text.replace('"right"', '"wrong"'),
        lambda text: text.replace('"images": 4', '"images": 40'),
        lambda text: text.replace('"smooth": "f0"', '"smooth": "xyz"'),
        lambda text: text.replace('"cub"', '"cup"'),
        lambda text: text.replace('"sparse": {}', '"sparse": {"summary": [{"bits": "these"}]}'),
        lambda text: text.replace('"finetune": false', '"finetune": []'),
    ],
)
def test_a_damaged_measurement_is_one_clear_error(change: Callable[[str], str], tmp_path: Path) -> None:
    cell = Cell("cub", 32, "htaf", 0)
    file = tmp_path / "measured" / f"{cell.name}.json"
    file.parent.mkdir()
    own = measured("htaf", [1, 1, 1, 1], [1, 1, 0, 0])
    good = json.dumps(own | {"sparse": {}})
    assert change(good) != good
    file.write_text(change(good))
    unused: Any = None
    for read in (lambda: report(tmp_path), lambda: run_cell(cell, "", unused, tmp_path, None)):
        with pytest.raises(KeptError, match=rf"{cell.name}\.json: expected results that this command wrote"):
            read()
    assert not (tmp_path / "report.md").exists()
    file.write_text(json.dumps(own | {"seed": 1}))
    with pytest.raises(KeptError, match="cub-032-htaf-1 instead of cub-032-htaf-0"):
        run_cell(cell, "", unused, tmp_path, None)
    file.write_text(json.dumps(own))
    assert run_cell(cell, "", unused, tmp_path, None) == own


def test_measurements_of_other_images_do_not_belong_together(tmp_path: Path) -> None:
    (tmp_path / "measured").mkdir()
    for seed, n in enumerate((3, 5)):
        for method in ("relu", "htaf"):
            row = measured(method, [1] * n, [1] * n, seed=seed)
            (tmp_path / "measured" / f"{method}-{seed}.json").write_text(json.dumps(row))
    with pytest.raises(KeptError, match="measured: expected results"):
        report(tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ("--share", "x"),
        ("--share", "0/1"),
        ("--share", "3/2"),
        ("--share", "1"),
        ("--share", "-1/2"),
        ("--threads", "0"),
        ("--seeds", "0"),
    ],
)
def test_bad_flags_of_the_study(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["pretrained", "--out", str(tmp_path / "out"), "--weights", "w", "=".join(words)])
    with pytest.raises(SystemExit) as stopped:
        pretrained.main()
    assert stopped.value.code == 2
