"""Write the report of a run: report.json, its figures, and report.html, the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from htaf._ground.compat import free_start_method
from htaf._ground.files import parse_json, to_json, write_atomic
from htaf.data import stored
from htaf.data.reading import DataError
from htaf.data.tabular import Table
from htaf.tables.report.baselines import Baseline, fit_baselines
from htaf.tables.report.contents import FORMAT, Measured, contents
from htaf.tables.report.page import page
from htaf.training.distributed import thread_count
from htaf.training.families import make_recipe
from htaf.training.problems import class_weights, row_weights
from htaf.training.recipe import TableData
from htaf.training.runs import Run, locked
from htaf.training.runs.run import table_rows

PAGE, VALUES = "report.html", "report.json"


def write_report(
    run: Run, table: Table | None = None, *, baselines: bool = True, progress: Callable[[str], Any] = lambda name: None
) -> dict[str, Any]:
    """Write report.json and report.html into the folder of a finished run of a table.

    The same run gives the same bytes: baselines, with the seconds that they took, are taken from a report of the same
    weights that is there.

    Args:
        run: finished. table: the one that it was trained on; None: `run.data()`, which reads it.
        baselines: also those of `fit_baselines`.
        progress: called with the name of each baseline before it is fitted.

    Returns:
        The figures, as they stand in report.json.

    Raises:
        RunError: other data, a damaged run, or another process writes in its folder. DataError: a run of images.
            OSError: it cannot be written.
    """
    table = run.data() if table is None else table  # pyright: ignore[reportAssignmentType]
    if not isinstance(table, Table):
        raise DataError(f"expected a run of a table, {run.path} was trained on images")
    with locked(run.path, "another process writes in"), free_start_method(), thread_count(run.record["threads"]):
        measured, found = Measured.of(run, table), None
        if baselines:
            rows = vars(table_rows(run, table))
            used = {"train", *run.record["metrics"]["smooth"]}
            rows = {name: rows[name] for name in ("train", "validation", "test") if name in used}
            options = make_recipe(**run.record["recipe"]).data
            assert isinstance(options, TableData)
            train = rows["train"]
            found = kept_baselines(run) or fit_baselines(
                table,
                rows,
                measured.preprocessor,
                threads=run.record["threads"],
                progress=progress,
                weights=row_weights(table, train, class_weights(options, table, train)),
                beside=(measured.part, measured.drawn),
            )
        text = to_json(contents(run, table, measured, baselines=found))
        values = parse_json(text)  # in the order of the file, whether the record was read or has just been made
        write_atomic(run.path / VALUES, text)
        write_atomic(run.path / PAGE, page(values))
    return values


def has_report(run: Run) -> bool:
    """Say whether the folder has a report of this run, of these weights; the page is written last."""
    return own_values(run) is not None and (run.path / PAGE).is_file()


def own_values(run: Run) -> dict[str, Any] | None:
    """Read the figures in the folder; None where they are of other weights, damaged or not there."""
    try:
        values = parse_json((run.path / VALUES).read_bytes())
        own = (FORMAT, run.record["key"], run.record["model_sha256"])
        return values if (values["format"], values["key"], values["model_sha256"]) == own else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def kept_baselines(run: Run) -> list[Baseline]:
    """The baselines of a report that is in the folder; none where it is of other weights, damaged or without them."""
    values = own_values(run)
    try:
        return [] if values is None else [stored.read(Baseline, one, "") for one in values["baselines"] or ()]
    except (ValueError, TypeError, KeyError, AttributeError):
        return []
