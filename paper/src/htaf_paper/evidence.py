"""Records of finished studies as evidence: an item says which training or cell it needs, a record says what it is of.

They are compared field by field: of a training the family, the method and all that it reads, data set, split and seed;
of another cell its function and its settings. How a record is named and where it lies do not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from htaf._ground.files import to_json
from htaf.training.families import make_recipe
from htaf.training.recipe import Recipe, Source, TableData
from htaf_paper.computing import Task
from htaf_paper.records import FILE, RecordsError, read_records

AUTO = "auto"  # the data settle the field: who asks for it asks for no value
Record = dict[str, Any]


# fields of recorded recipes that went, with what they were where they were not used
GONE = {
    "compile": False, "concept_norm": AUTO, "detach_reset": True, "exact_reset": False, "noise": 0.0,
    "learn_pair": False, "views": 0, "distil": 0.0, "harden": "end", "harden_from": 0.6, "harden_to": 0.9,
    "harden_order": "forward", "harden_unit": "layer", "harden_stages": 0, "straight_through": False, "restart": 0.3,
    "repair": True,
}  # fmt: skip
# what the recipes with `exact_from` said before that was its name
EXACT_FROM = {
    "harden": "progressive", "harden_order": "together", "straight_through": True, "restart": 0.0, "repair": False,
}  # fmt: skip


def _as_now(fields: Record) -> Record:
    """The fields of a recorded recipe by the names of now; those that went and were used stay and are refused."""
    if EXACT_FROM.items() <= fields.items():
        fields = {name: value for name, value in fields.items() if name not in EXACT_FROM}
        fields["exact_from"] = fields.pop("harden_from", GONE["harden_from"])
    return {name: value for name, value in fields.items() if name not in GONE or value != GONE[name]}


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
            recipe, split = make_recipe(**_as_now(record["recipe"])), record["data"].get("split")
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
