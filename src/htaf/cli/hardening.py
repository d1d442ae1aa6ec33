"""`htaf harden`: repair the exact network of a finished run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from htaf._console import UsageError, print_json, say, tell
from htaf.cli.flags import DataDir, Folder, Json, RunDir, Source, needs_source
from htaf.cli.methods import MethodOfRun, step_of_run
from htaf.cli.tables import show

if TYPE_CHECKING:
    from htaf.hardening import Taken


def harden(
    run: RunDir,
    *,
    out: Folder,
    steps: Annotated[tuple[Literal["recalibrate", "repair", "refit", "distil"], ...], arg(metavar="STEP ...")] = (
        "recalibrate",
        "repair",
        "recalibrate",
        "refit",
    ),
    rows: int = 2000,
    data: Source = None,
    data_dir: DataDir = None,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Repair the exact network of a run into a new one: norms, weights and head, without a surrogate gradient.

    Args:
        out: New run folder.
        steps: In this order, each kept where it lowers the validation loss. recalibrate: statistics of batch norms;
            repair: all layers by least squares, towards the smooth network; refit: the head by ridge or logistic
            regression; distil: what is above the last step, by gradient descent on the smooth network's outputs.
        rows: Training rows or images that repair looks at.
    """
    if not steps:
        raise UsageError("--steps: expected one step or more, got none")
    if rows < 1:
        raise UsageError(f"--rows must be >= 1, got {rows}")
    from htaf.runs import harden_run, open_run

    def told(taken: Taken) -> None:
        for line in (taken.of_loss(), *(f"  {note}" for note in (taken.report.notes if taken.report else ()))):
            tell(line)

    opened = open_run(run, method=step_of_run(method))
    with needs_source("give --data"):
        made = harden_run(opened, out, steps=steps, rows=rows, data=data, data_dir=data_dir, told=told)
    if json:
        return print_json(made.record)
    name, metrics = made.record["headline"], made.record["metrics"]
    table = [
        (part, metrics["smooth"][part][name], before[name], metrics["exact"][part][name])
        for part, before in made.record["repaired"]["before"].items()
    ]
    show(name, ("part", "smooth", "exact before", "exact now"), table)
    return say(f"run folder: {out}")
