"""Cells that need no network: for tests of engines, locks and kills."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from htaf._ground.files import BusyError
from htaf_paper.computing import Place, Task


def square(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """Squares a number, and writes down each time that it does; may sleep, fail, end its process, or
    wait until there is a file, from a first number on."""
    number = settings["number"]
    if "log" in settings:
        with Path(settings["log"]).open("a") as file:
            file.write(f"k{number:03} {os.getpid()}\n")
    (place.folder / "checkpoint").write_text("half")
    time.sleep(settings.get("seconds", 0.0))
    while "until" in settings and number >= settings.get("first", 0) and not Path(settings["until"]).exists():
        time.sleep(0.02)
    if number in settings.get("fail", ()):
        raise ValueError(f"{number} is too small")
    if number in settings.get("die", ()):
        os._exit(9)
    if number in settings.get("busy", ()) and not (place.folder / "second").exists():
        (place.folder / "second").touch()
        raise BusyError("another process unpacks the model")
    return {"number": number, "square": number**2}


def is_square(record: Any) -> bool:
    return isinstance(record, dict) and "square" in record


def made(count: int, **more: Any) -> list[Task]:
    """So many cells."""
    return [
        Task(f"k{i:03}", {"number": i}, f"cell {i}", partial(square, {"number": i, **more}), valid=is_square)
        for i in range(count)
    ]
