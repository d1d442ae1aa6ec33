"""A command that is stopped at any moment and given again ends as if nothing had happened.

The moments are the changes that a command makes to files, so a seed gives the same ones again; between two of them the
disk stays as it is. A checkpoint that is half written, because the system stops as well, is made by hand.

    pytest tests/stress/test_kills.py --hypothesis-profile stress --hypothesis-seed 0
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from world import FORK, cases, command, make_world, warm, words_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="each command runs in a fork"),
]

OFTEN = "--checkpoint-seconds 0 --device cpu"
IMAGES = "--width 4 --steps 2 --batch-size 20 --train-images 40 --validation-images 20 --augment crop-flip"
FOLDERS = {  # of those that go on where they were stopped, and keep their folder clean
    "a table": f"train tabular --data W/rows.csv --target label --out out --hidden 4 --epochs 5 {OFTEN}",
    "images": f"train snn --data digits --out out --epochs 3 --precision bfloat16 {IMAGES} {OFTEN}",
    "a language model": " ".join(words_of("train llm")),
    "codes": "concepts extract W/run --out out --part-images 1000",
    "a page": "explore W/run --codes W/codes --out out --detailed 2",
}
COMMANDS = FOLDERS | {
    "scores": "concepts score W/codes --out out",
    "names": "concepts name W/codes --attributes W/attributes.csv --out out.json",
    "predictions": "predict W/table-run W/rows.csv --out out.csv",
    "a packed file": "pack W/run --out out.packed",
}
CHANGES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate", "shutil.rmtree"}
STOPS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
ENDS = {0, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM, 128 + signal.SIGINT}
TIMES = re.compile(rb'seconds"|"sha256"')  # lines of JSON that no two runs have in common
SCRAP = re.compile(
    r"(^|/)\.[^/]+\.[a-z0-9_]{8}$"
)  # a temporary file, of which a kill leaves one where no folder is owned
PLACE: list[Path] = []


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    warm()
    PLACE[:] = [tmp_path_factory.mktemp("kills")]
    make_world(PLACE[0] / "world")
    yield
    whole.cache_clear()


class Stop:
    """Stops this process before a change of a file in its folder, and counts the changes until then."""

    def __init__(self, folder: Path, moment: int, how: int) -> None:
        self.folder, self.moment, self.how, self.count = str(folder), moment, how, 0
        sys.addaudithook(self)

    def __call__(self, event: str, given: tuple[Any, ...]) -> None:
        if event not in CHANGES or not isinstance(given[0], (str, bytes, os.PathLike)):
            return
        reads = event == "open" and not (given[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if not reads and os.path.abspath(os.fsdecode(given[0])).startswith(self.folder):
            self.count += 1
            if self.count == self.moment:
                os.kill(os.getpid(), self.how)


def child(name: str, folder: Path, moment: int, how: int) -> None:
    stop = Stop(folder, moment, how)
    try:
        code, said = command(tuple(COMMANDS[name].split()), folder, PLACE[0] / "world")
    except KeyboardInterrupt:
        code, said = 128 + signal.SIGINT, ""
    (PLACE[0] / "said").write_text(f"{stop.count} {said}")
    os._exit(code)


def run(name: str, folder: Path, moment: int = 0, how: int = signal.SIGKILL) -> tuple[int, str]:
    """The exit code (negative: the signal) of a command that is stopped at a moment, and what it said."""
    (PLACE[0] / "said").write_text("")
    process = FORK.Process(target=child, args=(name, folder, moment, how))
    process.start()
    process.join(300)
    assert process.exitcode is not None, f"{name} does not end"
    return process.exitcode, (PLACE[0] / "said").read_text()


def contents(folder: Path) -> dict[str, bytes]:
    """The files as they must be again. A report's page shows times."""
    found = {}
    for path in sorted(folder.rglob("*")):
        data = b"" if path.is_dir() or path.name == "report.html" else path.read_bytes()
        lines = data.split(b"\n") if path.suffix == ".json" else [data]
        found[str(path.relative_to(folder))] = b"\n".join(line for line in lines if not TIMES.search(line))
    return found


@cache
def whole(name: str) -> tuple[int, dict[str, bytes]]:
    """How many changes a command makes when nobody stops it, and what it leaves."""
    folder = PLACE[0] / f"whole {name}"
    folder.mkdir()
    code, said = run(name, folder)
    assert code == 0, said
    return int(said.split()[0]), contents(folder)


class Kills(RuleBasedStateMachine):
    """One command in one folder, stopped some times, in the end left alone."""

    name = ""

    @initialize(name=st.sampled_from(sorted(COMMANDS)))
    def chosen(self, name: str) -> None:
        self.name, self.folder, self.torn = name, PLACE[0] / "work", False
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()

    @rule(data=st.data(), how=st.sampled_from(STOPS))
    def stopped(self, data: st.DataObject, how: int) -> None:
        code, said = run(self.name, self.folder, data.draw(st.integers(1, whole(self.name)[0])), how)
        note(f"ended with {code}")
        assert code in ENDS, said

    @precondition(lambda self: not self.torn and self.checkpoints())
    @rule()
    def tears_the_last_checkpoint(self) -> None:
        last, self.torn = self.checkpoints()[-1], True
        last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])

    def checkpoints(self) -> list[Path]:
        return sorted(self.folder.rglob("*.ckpt"))

    def teardown(self) -> None:
        if not self.name:
            return
        known = self.checkpoints()
        code, said = run(self.name, self.folder)
        assert code == 0, said
        if known and not self.torn:
            assert f"resumed after {int(known[-1].stem[-6:]) + 1} epoch" in said, said
        made, wanted = contents(self.folder), whole(self.name)[1]
        assert sorted(n for n in made if self.name in FOLDERS or not SCRAP.search(n)) == sorted(wanted)
        assert [n for n in wanted if made[n] != wanted[n]] == []


Kills.TestCase.settings = cases(5, stateful_step_count=3, phases=[Phase.explicit, Phase.reuse, Phase.generate])
TestKills = Kills.TestCase
