"""Cells of the paper that are more than a training: a function of this package and its settings, as JSON."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from htaf._ground.errors import suggestion
from htaf.training.runs import content_hash, environment
from htaf_paper.computing import Place, Task
from htaf_paper.items import EXPERIMENTS
from htaf_paper.protocol import PaperError

# a process imports those alone that it computes
FUNCTIONS = {
    "vanishing": "htaf_paper.vanishing:STUDY",
    "theory": "htaf_paper.theory:STUDY",
    "language": "htaf_paper.language:CELLS",
    "ann-to-snn": "htaf_paper.ann_to_snn:STUDY",
    "icbm-scores": "htaf_paper.icbm_scores:SCORES",
    "icbm-classes": "htaf_paper.icbm_scores:CLASSES",
    "icbm-outputs": "htaf_paper.icbm_scores:OUTPUTS",
    "icbm-concepts": "htaf_paper.icbm_concepts:CELLS",
    **EXPERIMENTS,
}
NEEDED = {"cell", "commit", "platform", "threads", "versions"}


@runtime_checkable
class Cells(Protocol):
    """Cells of one kind."""

    def identity(self, settings: Mapping[str, Any], data_dir: str | None) -> dict[str, Any]:
        """What a cell is a function of, as JSON: its settings, and the fingerprints of its data. Its hash is the key.

        Raises:
            DataError: a data set is not here. ValueError, KeyError or TypeError: settings that make no sense.
        """
        ...

    def compute(self, settings: Mapping[str, Any], place: Place) -> dict[str, Any]:
        """The record, as JSON: the same for the same identity, on the same machine and with the same threads."""
        ...


@dataclass(frozen=True)
class Made:
    """A cell that an item wants. function: of `FUNCTIONS`. title: for people."""

    function: str
    settings: dict[str, Any]
    title: str

    def task(self, data_dir: str | None) -> Task:
        """As a cell of a study. Raises DataError where its data are not here."""
        key = content_hash(_cells(self.function).identity(self.settings, data_dir))
        payload = {"function": self.function, "settings": self.settings}
        made = functools.partial(_computed, self.function, self.settings)
        return Task(key, payload, self.title, made, valid=is_record)


def _computed(function: str, settings: dict[str, Any], place: Place) -> dict[str, Any]:
    own = _cells(function)
    began, spent = time.perf_counter(), time.process_time()
    record = own.compute(settings, place)
    took = {"seconds": round(time.perf_counter() - began, 2), "cpu_seconds": round(time.process_time() - spent, 2)}
    about = {"function": function, "settings": settings, "cell": own.identity(settings, place.data_dir)}
    return {**record, **took, **about, **environment()}


def is_record(record: Any) -> bool:
    """Whether it holds what every record of a cell has."""
    return isinstance(record, dict) and record.keys() >= NEEDED and isinstance(record["versions"], dict)


def _cells(function: str) -> Cells:
    if function not in FUNCTIONS:
        raise PaperError(
            f"expected a function of htaf_paper ({', '.join(sorted(FUNCTIONS))}), got {function!r}"
            f"{suggestion(function, [*FUNCTIONS])}"
        )
    module, _, name = FUNCTIONS[function].partition(":")
    return getattr(import_module(module), name)
