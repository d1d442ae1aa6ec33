"""The whole of `htaf paper` at its smallest scale, without data; and processes of it killed at random."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from htaf_paper.items import ITEMS
from htaf_paper.outcomes import OUTCOMES, without_times
from htaf_paper.protocol import SCALES
from htaf_paper.records import read_lines
from htaf_paper.writing import write_report

KILLS = 10
SOME = ("bounds", "vanishing", "pairs", "tabular", "theory")
REPORTS = ("report.md", "report.html", "claims.csv", "claims.json")

pytestmark = pytest.mark.slow


def started(out: Path, names: tuple[str, ...], work: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "htaf", "paper", "run", *names, "--scale", "smoke", "--out", str(out)]
    words += ["--workers", "2"]
    environment = {k: v for k, v in os.environ.items() if k != "HTAF_DATA"}
    environment |= {"XDG_CACHE_HOME": str(work), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def ended(process: subprocess.Popen[bytes]) -> None:
    told, _ = process.communicate(timeout=900)
    assert process.returncode == 0, told.decode()[-2000:]


def test_everything_at_smoke_scale(tmp_path: Path) -> None:
    """From nothing to the report; the second call computes nothing."""
    out = tmp_path / "out"
    ended(started(out, ("all",), tmp_path / "cache"))
    there = {file: file.stat().st_mtime_ns for file in out.glob("cells/*/record.json")}
    found = {one["id"]: one for one in read_lines(out / OUTCOMES)}
    assert found.keys() == ITEMS.keys()
    assert {value["status"] for value in found.values()} == {"finished"}
    assert {value["scale"] for value in found.values()} <= set(SCALES)
    page = write_report(out).read_text()
    assert all(name in page for name in ITEMS)
    ended(started(out, ("all",), tmp_path / "cache"))
    assert {file: file.stat().st_mtime_ns for file in out.glob("cells/*/record.json")} == there


def children(pid: int) -> list[int]:
    """Processes that a process started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
            except OSError:  # it has ended
                continue
            if int(parent) == pid:
                found.append(int(entry.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes as Linux has them")
def test_processes_are_killed_at_random(tmp_path: Path) -> None:
    """Ten kills, of the command or of a worker: the report is the same but for times."""
    quiet, out, chance = tmp_path / "quiet", tmp_path / "out", random.Random(0)
    ended(started(quiet, SOME, tmp_path / "cache-quiet"))
    kills = 0
    process = started(out, SOME, tmp_path / "cache")
    while kills < KILLS:
        time.sleep(chance.uniform(2.0, 6.0))
        if process.poll() is not None:  # it was faster than the kills
            break
        one = chance.choice([process.pid, *children(process.pid)])
        os.kill(one, signal.SIGKILL)
        kills += 1
        if one == process.pid:
            process.communicate()
            process = started(out, SOME, tmp_path / "cache")
    ended(process)
    ended(started(out, SOME, tmp_path / "cache"))  # what a last kill left undone
    assert kills >= KILLS // 2
    for folder in (quiet, out):
        write_report(folder)
    assert {f.name for f in (quiet / "cells").iterdir()} == {f.name for f in (out / "cells").iterdir()}
    for name in REPORTS:
        assert without_times((quiet / name).read_text()) == without_times((out / name).read_text())
