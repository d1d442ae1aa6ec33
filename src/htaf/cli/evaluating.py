"""`htaf evaluate`: the smooth and the exact network of a run, measured."""

from __future__ import annotations

from typing import Annotated, Literal

from rich.table import Table as TextTable
from tyro.conf import arg

from htaf._console import Terminal, UsageError, figures, print_json, say_notes
from htaf.cli.flags import DataDir, Json, RunDir, needs_source
from htaf.cli.methods import MethodOfRun, step_of_run


def evaluate(
    run: RunDir,
    *,
    data: Annotated[
        str | None,
        arg(
            help="Other labelled data: a table with the same columns, or images of the same classes.",
            metavar="NAME_OR_PATH",
            help_behavior_hint="(default: the run's own)",
        ),
    ] = None,
    part: Annotated[
        Literal["train", "validation", "test", "all"] | None,
        arg(help="Part of the run's own data.", help_behavior_hint="(default: test)"),
    ] = None,
    data_dir: DataDir = None,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Measure the smooth and the exact network of a run, and the gap between them."""
    from htaf.runs import open_run
    from htaf.runs.metrics import LOWER_IS_BETTER

    opened = open_run(run, method=step_of_run(method))
    if data is not None:
        if part not in (None, "all"):
            raise UsageError(f"--part {part} is for the run's own data, not for --data {data}")
        part = "all"
        found = opened.other_data(data, data_dir=data_dir)
    else:
        with needs_source("give --data"):
            found = opened.data(data_dir=data_dir)
    say_notes(found.notes)
    result = opened.evaluate(part or "test", found)
    if json:
        return print_json(result)
    text = TextTable(title=f"{found.name}, {result['part']}, {result['rows']} rows", title_justify="left")
    for column in ("metric", "smooth", "exact", "gap"):
        text.add_column(column, justify="left" if column == "metric" else "right")
    for name, smooth in result["smooth"].items():
        exact = result["exact"][name] if result["exact"] else None
        text.add_row(name, *figures(smooth, exact, lower_is_better=name in LOWER_IS_BETTER))
    return Terminal().print(text)
