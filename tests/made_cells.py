"""A kind of cells that needs no network: for tests of queues, workers and stores."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from htaf.training.queue import OtherMachineError, Place, Task
from htaf.training.results import Results

KINDS = (("made", "made_cells:MADE"),)


class MadeCells:
    """Squares a number, and writes down each time that it does; may sleep, fail, or stop its machine."""

    def key(self, payload: Mapping[str, Any], place: Place) -> str:
        if "not_on" in payload and payload["not_on"] == place.data_dir:
            raise OtherMachineError(f"the data of {place.data_dir} differ")
        return f"k{payload['number']}"

    def compute(self, payload: Mapping[str, Any], key: str, place: Place) -> dict[str, Any]:
        if "log" in payload:
            with Path(payload["log"]).open("a") as file:
                file.write(f"{key} {os.getpid()}\n")
        if payload.get("full") == place.data_dir and "full" in payload:
            raise OSError(errno.ENOSPC, "No space left on device", str(place.work / key))
        if "fails" in payload:
            raise ValueError(payload["fails"])
        time.sleep(payload.get("seconds", 0.0))
        while "until" in payload and not Path(payload["until"]).exists():
            time.sleep(0.02)
        return {"square": payload["number"] ** 2}

    def there(self, payload: Mapping[str, Any], key: str, results: Results) -> bool:
        return results.read(key, lambda record: isinstance(record, dict) and "square" in record) is not None


MADE = MadeCells()


def made(count: int, **more: Any) -> list[Task]:
    """So many tasks."""
    return [Task(f"k{i}", "made", {"number": i, **more}, f"cell {i}") for i in range(count)]
