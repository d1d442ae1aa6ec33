"""A command that is stopped at any moment and given again ends as if nothing had happened.

The moments are the changes that the command makes to files, so a seed gives the same moments again. Between two of them
the disk is as it was: what a kill leaves there is tried too, but for a file that is half written, which `torn` is for.

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

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="each command runs in a fork")

OFTEN = "--checkpoint-seconds 0 --device cpu"
COMMANDS = {  # of those that go on where they were stopped, and of those that write one file
    "a table": (
        "train",
        "tabular",
        *f"--data W/rows.csv --target label --out out --hidden 4 --epochs 5 {OFTEN}".split(),
    ),
    "images": (
        *[
            "train",
            "snn",
            "--data",
            "digits",
            "--width",
            "4",
            "--steps",
            "2",
            "--epochs",
            "3",
            "--batch-size",
            "20",
            "--train-images",
            "40",
            "--out",
            "out",
        ],
        *f"--validation-images 20 --augment crop-flip --precision bfloat16 {OFTEN}".split(),
    ),
    "a language model": words_of("train llm"),
    "codes": (*words_of("concepts extract"), "--part-images", "1000"),
    "scores": words_of("concepts score"),
    "sparse heads": words_of("concepts sparse"),
    "a page": (*words_of("explore"), "--maps", "2"),
    "names": words_of("concepts name"),
    "predictions": words_of("predict"),
    "a packed file": words_of("pack"),
}
CHANGES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate", "shutil.rmtree"}
ENDS = (0, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM, 128 + signal.SIGINT)
PLACE: list[Path] = []  # of the inputs, of what each command makes when nobody stops it, of the current example
SCRAP = re.compile(r"(^|/)\.[^/]+\.[a-z0-9_]{8}$")
TIMES = re.compile(rb'seconds"|"sha256"')  # lines of JSON that no two runs have in common


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    warm()
    PLACE[:] = [tmp_path_factory.mktemp("kills")]
    make_world(PLACE[0] / "world")
    yield
    whole.cache_clear()


class Stop:
    """Stops this process before a change of a file in its folder; counts the changes until then."""

    def __init__(self, folder: Path, moment: int, how: int) -> None:
        self.folder, self.left, self.how = str(folder), moment, how
        sys.addaudithook(self)

    def __call__(self, event: str, given: tuple[Any, ...]) -> None:
        if event not in CHANGES or not isinstance(given[0], (str, bytes, os.PathLike)):
            return
        reads = event == "open" and not (given[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if reads or not os.path.abspath(os.fsdecode(given[0])).startswith(self.folder):
            return
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.how)


def child(name: str, folder: Path, moment: int, how: int) -> None:
    stop = Stop(folder, moment, how)
    try:
        code, said = command(COMMANDS[name], folder, PLACE[0] / "world")
    except KeyboardInterrupt:
        code, said = 128 + signal.SIGINT, ""
    Path(f"{folder}.said").write_text(f"{moment - stop.left} {said}")
    os._exit(code)


def run(name: str, folder: Path, moment: int = -1, how: int = signal.SIGKILL) -> tuple[int, str]:
    """The exit code (negative: the signal) of a command that is stopped at a moment, and what it said."""
    process = FORK.Process(target=child, args=(name, folder, moment, how))
    Path(f"{folder}.said").unlink(missing_ok=True)
    process.start()
    process.join(300)
    said = Path(f"{folder}.said")
    assert process.exitcode is not None, f"{name} does not end"
    return process.exitcode, said.read_text() if said.exists() else ""


def contents(folder: Path) -> dict[str, bytes]:
    """Files as they must be again. Figures of a report's page hold times."""
    found = {}
    for path in sorted(folder.rglob("*")):
        data = b"" if path.is_dir() or path.name == "report.html" else path.read_bytes()
        lines = data.split(b"\n") if path.suffix in (".json", ".md") else [data]
        found[str(path.relative_to(folder))] = b"\n".join(line for line in lines if not TIMES.search(line))
    return found


@cache
def whole(name: str) -> tuple[int, dict[str, bytes]]:
    """How many changes a command makes when nobody stops it, and what it leaves."""
    folder = PLACE[0] / f"whole-{list(COMMANDS).index(name)}"
    folder.mkdir()
    code, said = run(name, folder)
    assert code == 0, said
    return int(said.split()[0]), contents(folder)


class Kills(RuleBasedStateMachine):
    """One command in one folder, stopped some times, in the end left alone."""

    @initialize(name=st.sampled_from(sorted(COMMANDS)))
    def chosen(self, name: str) -> None:
        self.name, self.folder = name, PLACE[0] / "work"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.ended = False

    @rule(data=st.data(), how=st.sampled_from([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
    def stopped(self, data: st.DataObject, how: int) -> None:
        moment = data.draw(st.integers(1, whole(self.name)[0]))
        code, said = run(self.name, self.folder, moment, how)
        assert code in ENDS, said
        note(f"ended with {code}")
        self.ended = self.ended or code == 0

    @precondition(lambda self: any(self.checkpoints()))
    @rule()
    def torn(self) -> None:
        """The system stops as well: the last checkpoint is cut short."""
        last = self.checkpoints()[-1]
        last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])

    def checkpoints(self) -> list[Path]:
        return sorted(self.folder.rglob("*.ckpt"))

    def teardown(self) -> None:
        if not hasattr(self, "name"):
            return
        code, said = run(self.name, self.folder)
        assert code == 0, said
        made, wanted = contents(self.folder), whole(self.name)[1]
        made = {k: v for k, v in made.items() if not SCRAP.search(k)}
        assert sorted(made) == sorted(wanted)
        assert [name for name in wanted if made[name] != wanted[name]] == []


Kills.TestCase.settings = cases(6, stateful_step_count=3, phases=[Phase.explicit, Phase.reuse, Phase.generate])
TestKills = Kills.TestCase
