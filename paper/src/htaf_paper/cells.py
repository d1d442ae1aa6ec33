"""Cells of the paper that are more than a training: a function of this package and its settings, as JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import torch

from htaf._errors import suggestion
from htaf.data.reading import DataError
from htaf.runs import content_hash, environment
from htaf.training.queue import OtherMachineError, Place, Task
from htaf.training.results import Results
from htaf_paper.items import EXPERIMENTS

# what a task may name: nothing else that is read from a store is imported
FUNCTIONS = {
    "vanishing": "htaf_paper.vanishing:CELLS",
    "theory": "htaf_paper.theory:CELLS",
    "language": "htaf_paper.language:CELLS",
    "ann-to-snn": "htaf_paper.ann_to_snn:CELLS",
    "icbm-scores": "htaf_paper.icbm_scores:SCORES",
    "icbm-classes": "htaf_paper.icbm_scores:CLASSES",
    "icbm-outputs": "htaf_paper.icbm_scores:OUTPUTS",
    "icbm-concepts": "htaf_paper.icbm_concepts:CELLS",
    **EXPERIMENTS,
}
NEEDED = {"cell", "commit", "platform", "threads", "versions"}


class Cells(Protocol):
    """Cells of one kind."""

    def identity(self, settings: Mapping[str, Any], data_dir: str | None) -> dict[str, Any]:
        """What a cell is a function of, as JSON: its settings, and the fingerprints of its data. Its hash is the key.

        Raises:
            DataError: a data set is not here. ValueError, KeyError or TypeError: settings that make no sense.
        """
        ...

    def compute(self, settings: Mapping[str, Any], key: str, place: Place) -> dict[str, Any]:
        """The result, as JSON: the same for the same identity, on the same machine and with the same threads."""
        ...


@dataclass(frozen=True)
class Made:
    """A cell that an item wants. function: of `FUNCTIONS`. title: for people."""

    function: str
    settings: dict[str, Any]
    title: str

    def task(self, data_dir: str | None) -> Task:
        """As a task of a queue. Raises DataError where its data are not here."""
        key = content_hash(_cells(self.function).identity(self.settings, data_dir))
        return Task(key, "paper", {"function": self.function, "settings": self.settings}, self.title)


class PaperCells:
    """The kind of cells, for workers."""

    def key(self, payload: Mapping[str, Any], place: Place) -> str:
        function, settings = _payload(payload)
        try:
            return content_hash(_cells(function).identity(settings, place.data_dir))
        except DataError as error:
            raise OtherMachineError(str(error)) from None
        except (KeyError, TypeError) as error:
            raise ValueError(f"a cell of {function} that is damaged: {type(error).__name__}: {error}") from None

    def compute(self, payload: Mapping[str, Any], key: str, place: Place) -> dict[str, Any]:
        function, settings = _payload(payload)
        own = _cells(function)
        torch.set_num_threads(place.threads)
        began, spent = time.perf_counter(), time.process_time()
        record = own.compute(settings, key, place)
        took = {
            "seconds": round(time.perf_counter() - began, 2),
            "cpu_seconds": round(time.process_time() - spent, 2),
        }
        about = {"function": function, "settings": settings, "cell": own.identity(settings, place.data_dir)}
        return {**record, **took, **about, **environment()}

    def there(self, payload: Mapping[str, Any], key: str, results: Results) -> bool:
        return results.read(key, is_record) is not None


PAPER = PaperCells()


def is_record(record: Any) -> bool:
    """Whether it holds what every record of a cell has."""
    return isinstance(record, dict) and record.keys() >= NEEDED and isinstance(record["versions"], dict)


def _payload(payload: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Raises ValueError for a payload that makes no sense."""
    function, settings = payload.get("function"), payload.get("settings")
    if not isinstance(function, str) or not isinstance(settings, dict):
        raise ValueError(f"expected a cell with a function and settings, got {sorted(payload)}")
    return function, settings


def _cells(function: str) -> Cells:
    if function not in FUNCTIONS:
        raise OtherMachineError(
            f"expected a function of htaf_paper ({', '.join(sorted(FUNCTIONS))}), got {function!r}"
            f"{suggestion(function, [*FUNCTIONS])}"
        )
    module, _, name = FUNCTIONS[function].partition(":")
    return getattr(import_module(module), name)
