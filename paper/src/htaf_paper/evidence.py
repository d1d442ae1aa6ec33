"""Records of finished studies as evidence: an item says which training or cell it needs, a record says what it is of.

They are compared field by field: of a training the family, the method and all that it reads, data set, split and seed;
of another cell its function and its settings. How a record is named and where it lies do not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from htaf._files import to_json
from htaf.training.families import make_recipe
from htaf.training.recipe import Recipe, TableData
from htaf.training.source import Source
from htaf_paper.computing import Task
from htaf_paper.records import FILE, RecordsError, read_records

AUTO = "auto"  # the data settle the field: who asks for it asks for no value
Record = dict[str, Any]


# what recorded recipes say of fields that went, which is how every training is now
ALWAYS = {"compile": False, "concept_norm": AUTO, "detach_reset": True, "exact_reset": False}


class Evidence:
    """The records in folders and in all folders below them.

    Args:
        folders: of two records of the same the one in the earlier folder counts, then the one whose path comes first.

    Raises:
        RecordsError: a file of records is damaged, or a record does not say what it is of.
    """

    def __init__(self, folders: Iterable[Path] = ()) -> None:
        self._cells: dict[str, Record] = {}
        self._trainings: dict[tuple[str, int], list[tuple[dict[str, Any], Record]]] = {}  # with what each has read
        for place in (place for folder in folders for place in _places(folder)):
            for record in read_records(place):
                try:
                    self._add(record)
                except (KeyError, TypeError, ValueError) as error:
                    reason = f"no {error}" if isinstance(error, KeyError) else str(error)
                    raise RecordsError(f"{place}: a record does not say what it is of: {reason}") from None

    def _add(self, record: Record) -> None:
        if "function" in record:
            self._cells.setdefault(_cell(record), record)
        elif "recipe" in record:
            fields = {
                name: value for name, value in record["recipe"].items() if name not in ALWAYS or value != ALWAYS[name]
            }
            recipe, split = make_recipe(**fields), record["data"].get("split")
            said = recipe.effective() | _about(recipe, split, record.get("source") or {}, record)
            self._trainings.setdefault((record["data"]["name"], record["seed"]), []).append((said, record))

    def of(self, task: Task) -> Record | None:
        """The record of what a task would compute; None where there is none."""
        asked = task.payload
        if "function" in asked:
            return self._cells.get(_cell(asked))
        recipe = make_recipe(**asked["recipe"])
        source = Source(**asked["source"])
        wanted = recipe.effective() | _about(recipe, source.mode, asked["source"], asked)
        wanted = {name: value for name, value in wanted.items() if value != AUTO}
        found = self._trainings.get((Path(source.name).stem, asked["seed"]), [])
        return next((record for said, record in found if wanted.items() <= said.items()), None)


def _about(recipe: Recipe, split: str | None, source: Record, of: Record) -> dict[str, Any]:
    """What tells two trainings apart beside recipe, data set and seed."""
    own = {"split": split} if isinstance(recipe.data, TableData) else {"size": source.get("size")}
    return own | {"test": of.get("test", True)}


def _cell(said: Mapping[str, Any]) -> str:
    return to_json([said["function"], said["settings"]])


def _places(folder: Path) -> list[Path]:
    """The folders of records in a folder."""
    files = [*folder.rglob(FILE), *(file.parents[1] for file in folder.rglob("cells/*/record.json"))]
    return sorted({file.parent for file in files})
