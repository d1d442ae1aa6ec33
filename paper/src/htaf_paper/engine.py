"""How items of the paper are computed: cells of all of them side by side, then their outcomes.

A folder holds `cells/<key>/`, records and the networks that later cells read; `cells.jsonl`, all records in one file;
`outcomes.jsonl`, what was made of them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from htaf._ground.errors import HtafError
from htaf._ground.files import LOCK, check_output_folder, parse_json, to_json
from htaf.data.reading import DataError
from htaf.training.runs import environment
from htaf_paper.computing import Computing, Task, engine_of, finished, gather, read_cell
from htaf_paper.computing import compute as compute_cells
from htaf_paper.evidence import Evidence
from htaf_paper.outcomes import FORMAT, keep_outcomes
from htaf_paper.protocol import Found, MissingError, Outcome, PaperError, Place, Scale, Study, command_of, nearest

SHOWN = 6  # titles of cells that are missing
ROUNDS = 100  # an item that wants new cells for longer never ends


class Records:
    """Records of cells: of one folder by their keys, and those of finished studies by what they are of.

    A record of a finished study counts before one of `out`: a network that is trained again, to be measured, changes
    no table.

    Args:
        out: folder of new ones. more: folders of finished studies, see `Evidence`.
    """

    def __init__(self, out: Path, more: Sequence[Path] = ()) -> None:
        self.out, self._evidence = out, Evidence(more)

    def read(self, task: Task) -> dict[str, Any] | None:
        """The record of a cell; None when it is nowhere. Raises StudyError for a damaged one."""
        found = self._evidence.of(task)
        return read_cell(self.out, task.key, task.valid) if found is None else found


@dataclass(frozen=True)
class Ran:
    """What became of an item. status: `finished`, `failed`, or `not run: data|GPU|...`; message: why not."""

    id: str
    scale: Scale
    status: str
    message: str = ""
    cells: int = 0


def wanted(study: Study, scale: Scale, found: Found, place: Place) -> list[Task]:
    """The cells that an item wants next: those that are neither there nor failed.

    Raises:
        MissingError, DataError: it cannot be computed here, or only by hand.
    """
    setting = study.settings[scale]
    if setting.by_hand:
        raise MissingError("GPU", f"{setting.by_hand}: {setting.about}")
    if setting.gpu and not place.device.startswith("cuda"):
        raise MissingError("GPU", f"{command_of(study.id, scale, ' --device cuda')}: {setting.about}")
    tasks = {task.key: task for task in study.tasks(scale, found, place)}
    return [
        task for key, task in tasks.items() if key not in found.failed and (task not in found or _lost(task, place))
    ]


def _lost(task: Task, place: Place) -> bool:
    """Whether a network that a cell is to read is not kept here, though its training is on record."""
    return bool(task.keeps) and finished(task, place.out) is None


def run(
    studies: Sequence[Study],
    scale: Scale,
    out: Path,
    computing: Computing | None = None,
    *,
    records: Sequence[Path] = (),
    data_dir: str | None = None,
    device: str = "cpu",
    compute: bool = True,
) -> list[Ran]:
    """Compute what is not there yet, then write the outcomes.

    The same call may run at the same time elsewhere, with the same folder on a shared disk.

    Args:
        studies: the items; each at the scale that is nearest to `scale`.
        out: folder; the same call again goes on where it was.
        computing: processes, threads, and whether progress is shown.
        records: folders of finished studies whose records count too.
        data_dir: of the named data sets, else HTAF_DATA.
        device: of trainings.
        compute: False: nothing is computed; outcomes are made of the records that are there, and say which are not.

    Returns:
        of each item what became of it.

    Raises:
        StudyError: a record is damaged.
    """
    computing = computing or Computing()
    there, failed, missing = Records(out, records), dict[str, str](), dict[str, MissingError]()
    place = Place(out, data_dir, device)
    chosen: dict[str, tuple[Study, Scale]] = {s.id: (s, nearest(s.settings, scale)) for s in studies}
    found = {name: Found(there.read, failed) for name in chosen}

    def next_round() -> list[Task]:
        tasks: dict[str, Task] = {}
        for name, (study, at) in chosen.items():
            if name in missing:
                continue
            try:
                tasks |= {task.key: task for task in wanted(study, at, found[name], place)}
            except MissingError as error:
                missing[name] = error
            except DataError as error:
                missing[name] = MissingError("data", str(error))
        return [*tasks.values()]

    tasks = next_round()
    check_output_folder(out, own="study")
    out.mkdir(parents=True, exist_ok=True)
    if tasks and compute:
        with engine_of(computing) as engine:
            for _ in range(ROUNDS):
                _, failures = compute_cells(
                    tasks, out, engine, data_dir=data_dir, device=device, title=f"paper, {scale}",
                    progress=computing.progress,
                )  # fmt: skip
                failed |= failures
                tasks = next_round()
                if not tasks:
                    break
            else:
                raise PaperError(f"items still want cells after {ROUNDS} rounds: {tasks[0].title}")
        gather(out)
    made = [_finished(study, at, found[name], place, missing.get(name)) for name, (study, at) in chosen.items()]
    with FileLock(out / LOCK):  # another command may have other items
        keep_outcomes(out, [outcome for _, outcome in made])
    return [ran for ran, _ in made]


def _finished(
    study: Study, scale: Scale, found: Found, place: Place, missing: MissingError | None
) -> tuple[Ran, dict[str, Any]]:
    """What became of an item, and its outcome where its cells are there, or why there is none, as it is kept."""

    def ended(status: str, message: str = "", outcome: Outcome | None = None) -> tuple[Ran, dict[str, Any]]:
        kept = _kept(study, scale, place, status, message, outcome or Outcome(), found)
        return Ran(study.id, scale, status, message, len(found.used)), kept

    if missing is not None:
        return ended(f"not run: {missing.what}", str(missing))
    found.used.clear()
    command = command_of(study.id, scale)
    try:
        tasks = {task.key: task for task in study.tasks(scale, found, place)}
        left = [task.title for key, task in tasks.items() if key not in found.failed and task not in found]
        if len(left) > len(found.used):  # too little is there for an outcome
            return ended("not run: time", f"{command}: {_many(len(left))} missing")
        outcome = study.read(scale, found, place)
    except MissingError as error:
        return ended(f"not run: {error.what}", str(error))
    except (KeyError, HtafError):
        if not found.failed:
            raise
        return ended("failed", "; ".join(sorted(set(found.failed.values()))[:2]))
    if left:
        titles = sorted(set(left))
        shown = "; ".join(titles[:SHOWN]) + (f"; and {len(titles) - SHOWN} more" if len(titles) > SHOWN else "")
        row = (f"{_many(len(left))} missing: {shown}", "not run: time", command)
        outcome = dataclasses.replace(outcome, missing=(*outcome.missing, row))
    failures = sorted({f"{task.title}: {found.failed[key]}" for key, task in tasks.items() if key in found.failed})
    return ended("failed" if failures else "finished", "; ".join(failures), outcome)


def _many(cells: int) -> str:
    return f"{cells} cell is" if cells == 1 else f"{cells} cells are"


def _kept(
    study: Study, scale: Scale, place: Place, status: str, message: str, outcome: Outcome, found: Found
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "id": study.id,
        "title": study.title,
        "paper": study.paper,
        "scale": scale,
        "about": study.settings[scale].about,
        "status": status,
        "message": message,
        "outcome": outcome.to_json(),
        "measured": provenance(found.used) or _here(place, status),
    }


def _here(place: Place, status: str) -> list[dict[str, Any]]:
    """The commit, versions and machine of an outcome that needs no cell."""
    if status != "finished":
        return []
    return [{"cells": 0, "cpu_seconds": 0.0, **environment(), "device": place.device}]


def provenance(records: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The different commits, versions and machines that cells were measured by, most cells first."""
    names = ("commit", "versions", "platform", "threads")
    seen, cpu = Counter[str](), dict[str, float]()
    for record in records.values():
        about = {name: record.get(name) for name in names} | {"device": record.get("device", "cpu")}
        text = to_json(about)
        seen[text] += 1
        cpu[text] = cpu.get(text, 0.0) + float(record.get("cpu_seconds") or record.get("seconds") or 0.0)
    return [
        {"cells": count, "cpu_seconds": round(cpu[text], 1), **parse_json(text.encode())}
        for text, count in sorted(seen.items(), key=lambda pair: (-pair[1], pair[0]))
    ]
