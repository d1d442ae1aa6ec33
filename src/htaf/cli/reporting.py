"""`htaf report`: the report of a run of a table, written anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from htaf._ground.console import UsageError, direction, print_json, progress, say, say_notes
from htaf._ground.errors import first_line
from htaf.cli.flags import Baselines, DataDir, Json, Source, is_language_model, needs_source
from htaf.cli.methods import MethodOfRun, step_of_run
from htaf.cli.tables import show

if TYPE_CHECKING:
    from htaf.data.tabular import Table
    from htaf.tables.report.baselines import Baseline
    from htaf.training.runs import Run


def report(
    run: Annotated[Positional[Path], arg(help="Run folder, into which it is written.", metavar="RUN")],
    *,
    data: Source = None,
    baselines: Baselines = True,
    data_dir: DataDir = None,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Write the report of a run of a table: report.html, a page of one file, and its figures, report.json.

    `htaf train` writes it when it ends; this writes it anew. Baselines that stand in report.json are kept."""
    from htaf.data.tabular import Table
    from htaf.tables.report.writing import PAGE, kept_baselines, write_report
    from htaf.training.runs import open_run
    from htaf.training.runs.data import rows_are_known

    if is_language_model(run):
        raise UsageError(f"{run} is a language model: expected a run of a table")
    opened = open_run(run, method=step_of_run(method))
    if opened.takes_images:
        raise UsageError(f"{run} was trained on images: expected a run of a table")
    if not rows_are_known(opened):
        raise UsageError(
            f"{run} was trained in Python, on rows that it does not name, so none are known as test rows: "
            f"`htaf evaluate {run} --data FILE` measures it, `htaf explain {run} --data FILE` says what it learned"
        )
    with needs_source("give --data"):
        table = opened.data(data, data_dir=data_dir)
    assert isinstance(table, Table)
    with progress("report", 4) as advance:
        values = write_report(opened, table, baselines=baselines, progress=lambda name: advance(1, f"baseline {name}"))
    if json:
        return print_json(values)
    if baselines:
        found = kept_baselines(opened)
        say_baselines(found, opened.record)
        say_notes([f"{one.name}: {one.note}" for one in found if one.note])
    return say(f"report: {run / PAGE}")


def report_once(run: Run, table: Table, *, baselines: bool = True, shown: bool = True) -> None:
    """The report of a training that has just ended, where it has none; a failure is a note, and costs nothing."""
    from htaf.tables.report.writing import PAGE, has_report, write_report

    if has_report(run):
        return
    try:
        with progress("report", 4, shown=shown) as advance:
            write_report(run, table, baselines=baselines, progress=lambda name: advance(1, f"baseline {name}"))
    except Exception as error:
        say_notes([f"no {PAGE}, the run itself is whole: {first_line(error)}; htaf report {run.path} writes it"])


def say_baselines(found: Sequence[Baseline], record: Mapping[str, Any]) -> None:
    """A table of baselines on the part that was measured last, and how the exact network stands to each."""
    from htaf.training.runs.metrics import LOWER_IS_BETTER

    metrics, name = record["metrics"], record["headline"]
    part, own = _reported(record)
    which = "exact network" if metrics["exact"] else "network"
    rows: list[tuple[object, ...]] = []
    for one in found:
        value = one.metrics.get(part, {}).get(name)
        if value is None:
            rows.append((one.name, None, one.note, f"{one.seconds:.1f}"))
            continue
        digits = 1 if abs(value) >= 1000 else 4
        gap = None if own is None else round(own - value, digits)
        way = "" if gap is None else direction(gap, lower_is_better=name in LOWER_IS_BETTER) or "the same"
        way += f" by {abs(gap):.{digits}f}" if gap else ""
        note = f" ({one.note})" if one.note else ""
        rows.append((one.name, f"{value:.{digits}f}", way + note, f"{one.seconds:.1f}"))
    stands = f"the {which} is"
    title = f"baselines of scikit-learn on the {part} part, fitted on the same training rows:"
    show(title, ("baseline", name, stands, "seconds"), rows, left=("baseline", stands))
    if beside := beside_the_best(found, record):
        say(beside["text"])


def beside_the_best(found: Sequence[Baseline], record: Mapping[str, Any]) -> dict[str, Any] | None:
    """How the network of a run stands to the best baseline, see `htaf.tables.report.contents.verdict`."""
    from htaf.tables.report.contents import verdict

    part, own = _reported(record)
    return verdict(own, part, record["headline"], found)


def _reported(record: Mapping[str, Any]) -> tuple[str, float | None]:
    """The part that was measured last, and the headline there, of the exact network where there is one."""
    metrics = record["metrics"]
    part = "test" if "test" in metrics["smooth"] else "validation"
    return part, (metrics["exact"] or metrics["smooth"])[part][record["headline"]]
