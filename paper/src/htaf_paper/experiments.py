"""Studies that are a plan of cells, what each computes, and a reader of their records.

An experiment is an item (`htaf_paper.protocol.Study`) and a kind of cells. `htaf paper run` computes it. Those that are
no table or figure of the paper have a report of their own, `htaf_paper.reports`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from htaf_paper.cells import Made
from htaf_paper.computing import Place as CellPlace
from htaf_paper.computing import Task
from htaf_paper.protocol import Found, Outcome, Place, Scale, Setting

Settings = dict[str, Any]
Record = dict[str, Any]


def no_data(settings: Mapping[str, Any], data_dir: str | None) -> None:
    """Of cells that are functions of their settings alone."""


def no_records(folder: Path) -> list[Record]:
    """Of studies that no other program adds to."""
    return []


@dataclass(frozen=True)
class Experiment:
    """A study.

    id: its name in `htaf paper`, and of its cells. title: of its report. settings: what is done at each scale.
    plan: the settings of all cells at a scale, as JSON. cell: computes one. outcome: of the records that are there;
    its notes stand before the tables. fingerprint: of the data that a cell is a function of; raises DataError where
    they are not here. beside: records of other programs, in the folder `OUT/<id>`.
    """

    id: str
    title: str
    settings: Mapping[Scale, Setting]
    plan: Callable[[Scale], list[Settings]]
    cell: Callable[[Settings, CellPlace], Record]
    outcome: Callable[[Sequence[Record], Scale], Outcome]
    fingerprint: Callable[[Mapping[str, Any], str | None], Any] = no_data
    beside: Callable[[Path], list[Record]] = no_records
    paper: str = "not in the paper"

    def identity(self, settings: Mapping[str, Any], data_dir: str | None) -> dict[str, Any]:
        """As `htaf_paper.cells.Cells.identity`."""
        return {"experiment": self.id, **settings, "fingerprint": self.fingerprint(settings, data_dir)}

    def compute(self, settings: Mapping[str, Any], place: CellPlace) -> Record:
        """As `htaf_paper.cells.Cells.compute`."""
        return self.cell(dict(settings), place)

    def tasks(self, scale: Scale, found: Found, place: Place) -> Sequence[Task]:
        """As `htaf_paper.protocol.Study.tasks`."""
        return [Made(self.id, one, f"{self.id}, {_spoken(one)}").task(place.data_dir) for one in self.plan(scale)]

    def read(self, scale: Scale, found: Found, place: Place) -> Outcome:
        """As `htaf_paper.protocol.Study.read`."""
        records = [found.get(task) for task in self.tasks(scale, found, place)]
        known = [record for record in records if record is not None]
        return self.outcome([*known, *self.beside(place.out / self.id)], scale)


def _spoken(settings: Settings) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items() if not isinstance(value, dict | list))
