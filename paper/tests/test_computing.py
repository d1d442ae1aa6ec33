"""Cells: computed once by whoever is first, by processes that die; whole records alone."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from htaf._ground.files import LOCK, hold
from htaf.training.families import make_recipe
from htaf.training.recipe import Source
from htaf.training.runs import open_run
from htaf_paper import computing as cells
from htaf_paper.computing import (
    FILE,
    Computing,
    StudyError,
    Task,
    cell_folder,
    compute,
    engine_of,
    gather,
)
from htaf_paper.records import RecordsError, read_records, write_records
from htaf_paper.trainings import Cell, run_path
from made_cells import made

COUNT = 24
RECORDS = {f"k{i:03}": {"number": i, "square": i**2} for i in range(COUNT)}
HERE = Computing(workers=0)


def computed(tasks: list[Task], study: Path, computing: Computing = HERE) -> Any:
    with engine_of(computing) as engine:
        return compute(tasks, study, engine, progress=computing.progress)


def logged(log: Path) -> list[str]:
    return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []


def test_each_cell_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tasks = made(5, log=str(log))
    records, failures = computed([*tasks, tasks[0]], tmp_path / "s")
    assert (records, failures) == ({key: RECORDS[key] for key in list(RECORDS)[:5]}, {})
    assert sorted(logged(log)) == [task.key for task in tasks]
    assert computed(tasks, tmp_path / "s") == (records, {})
    assert len(logged(log)) == 5
    assert {file.name for file in cell_folder(tmp_path / "s", "k000").iterdir()} == {"record.json"}


def test_a_cell_keeps_what_it_says(tmp_path: Path) -> None:
    """A record without what belongs to it does not count."""
    log = tmp_path / "log"
    tasks = [dataclasses.replace(task, keeps=("checkpoint",)) for task in made(2, log=str(log))]
    kept = cell_folder(tmp_path, "k000") / "checkpoint"
    for _ in range(2):
        assert computed(tasks, tmp_path)[1] == {}
        assert kept.read_text() == "half"
    assert logged(log) == ["k000", "k001"]
    kept.unlink()
    computed(tasks, tmp_path)
    assert logged(log) == ["k000", "k001", "k000"]


def test_failures_are_told_at_the_end_and_tried_again(tmp_path: Path) -> None:
    tasks = made(4, fail=(1, 2), log=str(tmp_path / "log"))
    for _ in range(2):
        records, failures = computed(tasks, tmp_path)
        assert sorted(records) == ["k000", "k003"]
        assert failures == {f"k00{i}": f"cell {i}: ValueError: {i} is too small" for i in (1, 2)}
    assert logged(tmp_path / "log").count("k001") == 2
    assert logged(tmp_path / "log").count("k000") == 1
    assert computed(made(4), tmp_path)[1] == {}


def test_a_cell_that_ends_its_process_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cells, "DEATHS", 2)  # a process takes seconds to start
    records, failures = computed(made(6, die=(0,), seconds=0.05), tmp_path, Computing(2))
    assert sorted(records) == sorted(RECORDS)[1:6]
    assert failures == {"k000": "cell 0: its process died 2 times (out of memory?)"}
    assert capsys.readouterr().err.count("a worker process died over cell 0 (out of memory?); it is tried again") == 1


def test_what_another_process_holds_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All others are computed meanwhile; who has it is said. A process that is at it may finish it, or end."""
    tasks, first = made(3, log=str(tmp_path / "log")), cell_folder(tmp_path, "k000")
    holding, let_go, results = threading.Event(), threading.Event(), list[Any]()

    def holder() -> None:
        with hold(first / LOCK, "busy"):
            holding.set()
            let_go.wait(30)

    held = threading.Thread(target=holder)
    held.start()
    assert holding.wait(30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells, "PAUSE", 0.05)
        computing = Computing(workers=0, progress=True)
        waiting = threading.Thread(target=lambda: results.append(computed(tasks, tmp_path, computing)))
        waiting.start()
        while logged(tmp_path / "log") != ["k001", "k002"]:
            time.sleep(0.02)
        time.sleep(0.6)
        assert not results
        let_go.set()
        waiting.join(30)
        held.join(30)
    assert results == [({f"k00{i}": RECORDS[f"k00{i}"] for i in range(3)}, {})]
    assert capsys.readouterr().err.count("another process computes cell 0 (process ") == 1


def test_a_cell_may_wait_for_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "PAUSE", 0.05)
    assert computed(made(2, busy=(0,)), tmp_path)[1] == {}


def test_a_damaged_record_is_named_and_kept(tmp_path: Path) -> None:
    computed(made(2), tmp_path)
    file = cell_folder(tmp_path, "k001") / "record.json"
    for text in ('{"number": 1', "[]", '{"number": 1}', '{"square": NaN}'):
        file.write_text(text)
        with pytest.raises(StudyError, match=r"k001/record.json is damaged: delete it to compute the cell again"):
            computed(made(2), tmp_path)
        assert file.read_text() == text
    file.unlink()
    assert computed(made(2), tmp_path)[1] == {}


def test_records_in_one_file(tmp_path: Path) -> None:
    """The same bytes in whatever order they came."""
    for name, order in (("a", 1), ("b", -1)):
        computed(made(9)[::order], tmp_path / name)
        gather(tmp_path / name)
    assert (tmp_path / "a" / FILE).read_bytes() == (tmp_path / "b" / FILE).read_bytes()
    lines = [json.loads(line) for line in (tmp_path / "a" / FILE).read_text().splitlines()]
    assert lines == [RECORDS[key] for key in sorted(RECORDS)[:9]]
    assert {one["square"] for one in read_records(tmp_path / "a")} == {i**2 for i in range(9)}


# ---- commands that are killed ----


def command(study: Path, log: Path, workers: int, seconds: float) -> subprocess.Popen[bytes]:
    """A process of its own that computes all cells with worker processes, as on another machine.

    The last cells, one for each process of two commands, wait for the file `over`, beside the study.
    """
    waits = {"until": str(study.parent / "over"), "first": COUNT - 2 * max(1, workers)}
    text = (
        "from pathlib import Path\nfrom made_cells import made\nfrom htaf_paper.computing import *\n"
        "if __name__ == '__main__':\n"
        f"    computing, study = Computing({workers}), Path({str(study)!r})\n"
        "    with engine_of(computing) as engine:\n"
        f"        tasks = made({COUNT}, seconds={seconds}, log={str(log)!r}, **{waits})\n"
        "        found, failed = compute(tasks, study, engine)\n"
        "    assert not failed, failed\n"
        f"    assert len(found) == {COUNT}\n"
        "    gather(study)\n"
    )
    file = study.parent / "command.py"
    file.write_text(text)
    environment = {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1", "PATH": ""}
    return subprocess.Popen([sys.executable, str(file)], env=environment, stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[bytes]) -> None:
    _, told = process.communicate(timeout=300)
    assert process.returncode == 0, told.decode()[-2000:]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes end with their parent as Linux tells it")
def test_commands_are_killed(tmp_path: Path) -> None:
    """Two commands at a time, of which one after the other is killed: every record whole, the file that of a quiet
    run."""
    kills, workers, seconds = 10, 2, 0.5
    study, log, chance = tmp_path / "s", tmp_path / "log", random.Random(3)
    computing = [command(study, log, workers, seconds) for _ in range(2)]
    killed = 0
    while killed < kills and any(one.poll() is None for one in computing):
        there = len(logged(log))
        while len(logged(log)) == there and any(one.poll() is None for one in computing):
            time.sleep(0.02)
        time.sleep(chance.uniform(0, seconds))
        number = chance.randrange(2)
        if computing[number].poll() is None:
            computing[number].kill()
            computing[number].communicate()
            computing[number] = command(study, log, workers, seconds)
            killed += 1
    (tmp_path / "over").touch()
    for one in computing:
        ended(one)
    assert killed == kills
    computed(made(COUNT), tmp_path / "quiet")
    gather(tmp_path / "quiet")
    assert (study / FILE).read_bytes() == (tmp_path / "quiet" / FILE).read_bytes()
    begun = logged(log)
    assert {*begun} == {*RECORDS}
    assert len(begun) <= COUNT + kills * max(1, workers), "only what was under way is computed twice"


def stopped(tasks: list[Task], study: Path, log: Path) -> None:
    """As Ctrl-C, when all cells are under way."""
    with engine_of(Computing(len(tasks))) as engine:
        for task in tasks:
            engine.submit(task, cells.Place(cell_folder(study, task.key)))
        while len(logged(log)) < len(tasks):
            time.sleep(0.02)
        raise KeyboardInterrupt


def test_worker_processes_end_with_their_command(tmp_path: Path) -> None:
    """And their locks with them."""
    before, log = set(multiprocessing.active_children()), tmp_path / "log"
    with pytest.raises(KeyboardInterrupt):
        stopped(made(2, until=str(tmp_path / "never"), log=str(log)), tmp_path, log)
    latest = time.monotonic() + 10
    while not set(multiprocessing.active_children()) <= before and time.monotonic() < latest:
        time.sleep(0.02)  # a thread of the executor may be the one that hears of their end
    assert set(multiprocessing.active_children()) <= before
    assert computed(made(2), tmp_path)[1] == {}


# ---- records in files ----

A, B = {"seed": 0, "metrics": {"exact": 0.5}}, {"seed": 1, "title": "é\u2028"}


def test_the_same_bytes_for_the_same_records(tmp_path: Path) -> None:
    write_records(tmp_path / "cells.jsonl", [B, A])
    written = (tmp_path / "cells.jsonl").read_bytes()
    assert written == '{"metrics":{"exact":0.5},"seed":0}\n{"seed":1,"title":"é\u2028"}\n'.encode()
    write_records(tmp_path / "cells.jsonl", [A, B, A])
    assert (tmp_path / "cells.jsonl").read_bytes() == written
    assert read_records(tmp_path) == [A, B]


def test_what_runs_is_read_too(tmp_path: Path) -> None:
    assert read_records(tmp_path) == []
    write_records(tmp_path / "cells.jsonl", [B])
    for key in ("b", "a", "unfinished"):
        (tmp_path / "cells" / key).mkdir(parents=True)
    for key in ("b", "a"):
        (tmp_path / "cells" / key / "record.json").write_text(json.dumps({"key": key}))
    assert read_records(tmp_path) == [B, {"key": "a"}, {"key": "b"}]


@pytest.mark.parametrize("damage", ["", "[1]", '{"a": NaN}', '{"a": 1'])
def test_damage_is_named(tmp_path: Path, damage: str) -> None:
    (tmp_path / "cells.jsonl").write_text(f'{{"a": 1}}\n{damage}\n{{"b": 1}}\n')
    with pytest.raises(RecordsError, match=r"cells\.jsonl, line 2 is damaged"):
        read_records(tmp_path)


def test_nothing_else_can_be_written(tmp_path: Path) -> None:
    write_records(tmp_path / "cells.jsonl", [A])
    with pytest.raises(ValueError, match="JSON compliant"):
        write_records(tmp_path / "cells.jsonl", [{"loss": float("nan")}])
    assert [file.name for file in tmp_path.iterdir()] == ["cells.jsonl"]
    assert read_records(tmp_path) == [A]


# ---- trainings as cells: keyed by content, resumed where they were stopped, kept where something reads them ----


BASE = make_recipe(hidden=(4,), epochs=1, batch_size=64, patience=0)


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


def trained(cell: Cell, out: Path, keep: bool = False) -> Any:
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
    records, failures = trained(cell, tmp_path / "out", keep=True)
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
            trained(cell, tmp_path)
    assert (run_path(tmp_path, cell.key()) / "metrics.csv").exists()
    records, _ = trained(cell, tmp_path)
    assert json.loads(record_file(tmp_path, cell).read_text()) == records[cell.key()]
    assert not run_path(tmp_path, cell.key()).exists()
