"""`htaf concepts edit`: weights turned off by hand."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated

from tyro.conf import UseAppendAction, arg

from htaf._ground.console import UsageError, print_json, say, say_notes
from htaf.cli.flags import DataDir, Folder, Json, RunDir, needs_source
from htaf.cli.methods import MethodOfRun, step_of_run
from htaf.cli.tables import show

if TYPE_CHECKING:
    pass


def edit(
    run: RunDir,
    *,
    off: Annotated[
        UseAppendAction[tuple[tuple[str, ...], ...]], arg(metavar="CLASS:CONCEPT ...", help_behavior_hint="(required)")
    ],
    out: Folder,
    data_dir: DataDir = None,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Write a new run whose head has some weights at 0, measured again on validation and test images.

    Args:
        off: Weight of a class, by name or number, and a concept, to be 0. May be given again. A class that begins with
            -: --off=-NAME:CONCEPT.
        out: New run folder.
    """
    edits: list[tuple[int | str, int]] = []
    for text in itertools.chain(*off):
        label, colon, concept = text.rpartition(":")
        if not colon or not label or not concept.isdecimal():
            raise UsageError(f"--off: expected CLASS:CONCEPT with the concept's number, such as 3:17, got {text!r}")
        edits.append((label, int(concept)))
    if not edits:
        raise UsageError("--off: expected at least one CLASS:CONCEPT, got none")
    from htaf.concepts.run_heads import edit_run
    from htaf.training.runs import open_run

    opened = open_run(run, method=step_of_run(method))
    with needs_source("edit it in Python, with htaf.concepts.run_heads.edit_run"):
        made = edit_run(opened, out, edits, data_dir=data_dir)
    if json:
        return print_json(made.record)
    primary, before, metrics = made.record["headline"], opened.record["metrics"], made.record["metrics"]
    kind = "exact" if opened.has_step else "smooth"
    rows = [(part, before[kind][part][primary], metrics[kind][part][primary]) for part in ("validation", "test")]
    show(f"{primary} ({kind}), {len(edits)} weights set to 0", ("part", "before", "after"), rows)
    say_notes(made.record["notes"][-1:])
    return say(f"run folder: {out}")
