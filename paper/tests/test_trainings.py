"""Trainings as cells: keyed by content, resumed where they were stopped, kept where something reads them."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from htaf.training.families import make_recipe
from htaf.training.runs import open_run
from htaf.training.source import Source
from htaf_paper.computing import Computing, Place, StudyError, cell_folder, compute, engine_of
from htaf_paper.trainings import Cell, run_path

BASE = make_recipe(hidden=(4,), epochs=1, batch_size=64, patience=0)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Small trainings on many threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return Source(str(write_csv(tmp_path_factory.mktemp("data") / "made.csv")), target="y")


def write_csv(path: Path) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "b": rng.normal(size=60)})
    frame["y"] = 10 * (frame["a"] > 0) + frame["b"]
    frame["t"] = np.where(frame["y"] > 5, "high", "low")
    frame.to_csv(path, index=False)
    return path


def computed(cell: Cell, out: Path, keep: bool = False) -> Any:
    with engine_of(Computing(workers=0)) as engine:
        return compute([cell.task(keep)], out, engine)


def record_file(out: Path, cell: Cell) -> Path:
    return cell_folder(out, cell.key()) / "record.json"


def test_keys(source: Source, tmp_path: Path) -> None:
    key = Cell(BASE, 0, source).key()
    moved = dataclasses.replace(source, name=str(write_csv(tmp_path / "made.csv")))
    assert Cell(BASE, 0, moved).key() == key  # where the data lie does not matter
    others = [
        Cell(BASE, 1, source),
        Cell(BASE.replace(lr=0.5), 0, source),
        Cell(BASE, 0, dataclasses.replace(source, split="grouped")),
        Cell(BASE, 0, source, test=False),
        Cell(BASE, 0, dataclasses.replace(source, target="t")),
    ]
    assert len({key, *(cell.key() for cell in others)}) == 6


def test_a_change_of_attributes_is_another_cell(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    recipe = make_recipe("icbm", depth=10, width=1, bottleneck="joint", method="relu", attributes=str(file))
    keys = set()
    for value in (0, 1):
        file.write_text("class,a,b\n" + "".join(f"{i},{value},{i % 2}\n" for i in range(10)))
        keys.add(Cell(recipe, 0, Source("digits")).key())
    assert len(keys) == 2


def test_a_kept_run_reads_its_rows_again(tmp_path: Path) -> None:
    rows = pd.read_csv(write_csv(tmp_path / "made.csv"))
    rows.assign(day=[f"2012-01-{1 + i % 30:02}" for i in range(60)], t=range(60)).to_csv(
        tmp_path / "made.csv", index=False
    )
    source = Source("made.csv", target="y", exclude=("b",), ids=("t",), shares=(0.5, 0.25, 0.25), time="day")
    cell = Cell(BASE, 0, source, data_dir=str(tmp_path))
    records, failures = computed(cell, tmp_path / "out", keep=True)
    assert not failures
    run = open_run(run_path(tmp_path / "out", cell.key()))
    assert [len(run.part(part)) for part in ("train", "validation", "test")] == [30, 14, 16]  # whole days
    assert {"b", "t"}.isdisjoint(run.data().features)
    assert run.evaluate("test")["smooth"] == pytest.approx(records[cell.key()]["metrics"]["smooth"]["test"])


def test_a_cell_goes_on_from_its_checkpoint(source: Source, tmp_path: Path) -> None:
    """The folder of a stopped cell has a run folder, which is resumed."""
    cell = Cell(BASE.replace(epochs=2), 0, source)
    fit_module = sys.modules["htaf.training.fit"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_module, "finish_run", lambda *args, **named: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            computed(cell, tmp_path)
    assert (run_path(tmp_path, cell.key()) / "metrics.csv").exists()
    records, _ = computed(cell, tmp_path)
    assert json.loads(record_file(tmp_path, cell).read_text()) == records[cell.key()]
    assert not run_path(tmp_path, cell.key()).exists()


def test_a_record_that_is_none_is_named_and_kept(source: Source, tmp_path: Path) -> None:
    cell = Cell(BASE, 0, source)
    assert cell.task().valid(cell.task().compute(Place(cell_folder(tmp_path / "other", cell.key()))))
    file = record_file(tmp_path, cell)
    file.parent.mkdir(parents=True)
    file.write_text('{"metrics": {}}')
    with pytest.raises(StudyError, match=r"record.json is damaged: delete it to compute the cell again"):
        computed(cell, tmp_path)
    assert file.read_text() == '{"metrics": {}}'
