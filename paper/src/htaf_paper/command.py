"""`htaf paper`: the tables and figures of the paper by one command, and whether its claims hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from rich.table import Table as TextTable
from tyro.conf import FlagConversionOff, Positional, arg

from htaf._ground.console import FAILED, UsageError, fail, print_json, say, terminal
from htaf.cli.flags import DataDir, Device, Json
from htaf_paper.items import EXPERIMENTS, ITEMS, items
from htaf_paper.protocol import ABOUT_SCALES, SCALES, PaperError, Scale, Study, nearest

Items = Annotated[
    Positional[tuple[str, ...]],
    arg(help="Items of the paper, or all.", metavar="ID ...", help_behavior_hint="(required)"),
]
ScaleFlag = Annotated[Scale, arg(help="; ".join(f"{name}: {ABOUT_SCALES[name]}" for name in SCALES) + ".")]
Out = Annotated[Path, arg(help="Folder of the results; the same command again goes on.", metavar="DIR")]
RecordFolders = Annotated[
    tuple[Path, ...],
    arg(
        help="Folders of finished studies whose records count too, such as results of this repository.",
        metavar="DIR ...",
        help_behavior_hint="(default: none)",
    ),
]


def list_items(*, json: Json = False) -> None:
    """List the tables and figures of the paper, and our own studies, and at which scales each can be run."""
    found = [
        {
            "id": study.id,
            "title": study.title,
            "paper": study.paper,
            "scales": {
                scale: {
                    "about": s.about,
                    "cpu_seconds": s.cpu_seconds,
                    "gpu": s.gpu,
                    "data": list(s.data),
                }
                for scale in SCALES
                if (s := study.settings.get(scale)) is not None
            },
        }
        for study in items(("all", *EXPERIMENTS))
    ]
    if json:
        return print_json(found)
    text = TextTable(title="Items of the paper", title_justify="left")
    for column in ("id", "what", "in the paper", "scales"):
        text.add_column(column)
    for row in found:
        text.add_row(row["id"], row["title"], row["paper"], ", ".join(row["scales"]))
    terminal().print(text)
    say("; ".join(f"{name}: {ABOUT_SCALES[name]}" for name in SCALES))
    return say("htaf paper run ID ... --scale SCALE --out DIR, then htaf paper report --out DIR")


def run(
    ids: Items,
    *,
    out: Out,
    scale: ScaleFlag = "smoke",
    workers: int = 1,
    threads: int = 1,
    device: Device = "cpu",
    data_dir: DataDir = None,
    records: RecordFolders = (),
    compute: Annotated[
        FlagConversionOff[bool],
        arg(help="False: make the outcomes of the records that are there, and say which are not."),
    ] = True,
    json: Json = False,
) -> None:
    """Compute tables and figures of the paper; what is finished is never computed again.

    Args:
        workers: Processes that compute, a cell at a time each; 0: in the process of the command.
        threads: Threads of each process.
        device: Where to train.
    """
    studies = _items(ids)
    if workers < 0 or threads < 1:
        raise UsageError(f"--workers must be >= 0 and --threads >= 1, got {workers} and {threads}")
    if missing := [str(folder) for folder in records if not folder.is_dir()]:
        raise UsageError(f"--records: expected folders, got {', '.join(missing)}")
    from htaf_paper.computing import Computing
    from htaf_paper.engine import run as run_items

    found = run_items(
        studies,
        scale,
        out,
        Computing(workers, threads, progress=True),
        records=records,
        data_dir=data_dir,
        device="cuda" if device == "auto" and _has_cuda() else "cpu" if device == "auto" else device,
        compute=compute,
    )
    if json:
        print_json([vars(one) for one in found])
    else:
        for one in found:
            of = f", {one.cells} {'cell' if one.cells == 1 else 'cells'}" if one.cells else ""
            say(f"{one.id}, {one.scale}: {one.status}{of}{': ' + one.message if one.message else ''}")
        say(f"htaf paper report --out {out}")
    if failed := [one.id for one in found if one.status == "failed"]:
        fail(f"{', '.join(failed)} failed; give the same command again to retry", FAILED)


def report(*, out: Out, json: Json = False) -> None:
    """Write report.html and report.md: ours beside the paper's, and a verdict on each claim."""
    from htaf_paper.writing import write_report

    path = write_report(out)
    if json:
        return print_json({"report": str(path)})
    return say(f"report: {path}")


def cost(
    ids: Items,
    *,
    scale: Annotated[
        Scale | None, arg(help="At one scale.", help_behavior_hint="(default: every scale that an item has)")
    ] = None,
    workers: Annotated[int, arg(help="Processes that would compute.")] = 1,
    speed: Annotated[
        float | None,
        arg(
            help="Of a core of this machine, 1 is the one on which the costs were measured.",
            help_behavior_hint="(default: measured, 2 seconds)",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Say how long items take on this machine, before anything is computed."""
    studies = _items(ids)
    if workers < 1 or (speed is not None and not 0 < speed < float("inf")):
        raise UsageError(f"--workers must be >= 1 and --speed > 0, got {workers} and {speed}")
    from htaf_paper.costs import machine_speed

    factor = machine_speed() if speed is None else speed
    rows: list[dict[str, Any]] = []
    common: dict[tuple[str, Scale], list[float]] = {}
    for study in studies:
        for one in SCALES if scale is None else (nearest(study.settings, scale),):
            if (setting := study.settings.get(one)) is not None:
                seconds = setting.cpu_seconds / factor
                rows.append(
                    {"id": study.id, "scale": one, "cpu_seconds": seconds, "gpu": setting.gpu, "about": setting.about}
                )
                group, shared = setting.shared
                if group and not setting.gpu:
                    common.setdefault((group, one), []).append(min(shared, setting.cpu_seconds) / factor)
    twice = sum(sum(some) - max(some) for some in common.values())  # cells that items share are computed once
    total = sum(row["cpu_seconds"] for row in rows if not row["gpu"]) - twice
    if json:
        return print_json({"speed": factor, "items": rows, "cpu_seconds": total, "seconds": total / workers})
    text = TextTable(title=f"Cost, a core of this machine {factor:.2f} times the reference", title_justify="left")
    for column in ("id", "scale", "CPU time", "what is done"):
        text.add_column(column)
    for row in rows:
        text.add_row(row["id"], row["scale"], "a GPU" if row["gpu"] else _spoken(row["cpu_seconds"]), row["about"])
    terminal().print(text)
    once = f"; {_spoken(twice)} less than the sum, as items share cells" if twice else ""
    return say(f"in all {_spoken(total)} of one core, {_spoken(total / workers)} with --workers {workers}{once}")


def _spoken(seconds: float) -> str:
    """A time for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _items(ids: tuple[str, ...]) -> list[Study]:
    """Raises UsageError for no name, and for one that is no item."""
    if not ids:
        raise UsageError(f"expected items of the paper ({', '.join(ITEMS)}) or all, got none")
    try:
        return items(ids)
    except PaperError as error:
        raise UsageError(str(error)) from None


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
