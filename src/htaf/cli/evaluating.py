"""`htaf evaluate` and `htaf report`: the smooth and the exact network of a run, measured, and the report of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from htaf._ground.console import UsageError, direction, figures, print_json, progress, say, say_notes, show
from htaf._ground.errors import counted, first_line
from htaf.cli.flags import (
    Baselines,
    DataDir,
    Json,
    MethodOfRun,
    Place,
    RunDir,
    Source,
    is_language_model,
    needs_source,
    opened_run,
    refuse_flags,
)
from htaf.data.notes import Note, new_sentences

if TYPE_CHECKING:
    from htaf.data.tabular import Table
    from htaf.tables.report.contents import Baseline
    from htaf.training.runs import Run
FEWEST = 3  # classes with the lowest recall that are named


def evaluate(
    run: RunDir,
    *,
    data: Place = None,
    part: Literal["train", "validation", "test", "all"] | None = None,
    data_dir: DataDir = None,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Measure the smooth and the exact network of a run, and how they differ.

    For a language model: show the scores of its run, or measure it and its original on --data.

    Args:
        data: Other labelled data: a table with the same columns, or images of the same classes; for a language model a
            text; none: the run's own.
        part: Part of the run's own data; none: test.
    """
    from htaf.training.runs.metrics import LOWER_IS_BETTER

    if is_language_model(run):
        from htaf.cli.language import evaluate_llm

        refuse_flags({"part": part, "data-dir": data_dir, "method": method}, run)
        return evaluate_llm(run, data, json)
    if run.is_file():
        raise UsageError(
            f"expected a run folder, got the file {run}: evaluate the run that it was packed from, or predict with it, "
            f"htaf predict {run} ROWS"
        )
    opened = opened_run(run, method)
    noted: list[Note] = []
    if data is not None:
        if part not in (None, "all"):
            raise UsageError(f"--part {part} is for the run's own data, not for --data {data}")
        part = "all"
        found = opened.other_data(data, data_dir=data_dir)
        noted = opened.trained_on(found, data_dir=data_dir)
    else:
        with needs_source("give --data"):
            found = opened.data(data_dir=data_dir)
    say_notes(new_sentences([*found.notes, *noted], opened.record["notes"] if data is None else ()))
    result = opened.evaluate(part or "test", found)
    if json:
        return print_json(result)
    positive = f", positive class {result['positive']!r}" if "positive" in result else ""
    rows: list[tuple[str, ...]] = []
    for metric, smooth in result["smooth"].items():
        exact = result["exact"][metric] if result["exact"] else None
        rows.append((metric, *figures(smooth, exact, lower_is_better=metric in LOWER_IS_BETTER)))
    columns = ("metric", "smooth", "exact", "exact - smooth")
    weighted = f" weighted by {result['weight']!r}" if "weight" in result else ""
    show(f"{found.name}, {result['part']}, {counted(result['rows'], 'row')}{weighted}{positive}", columns, rows)
    return _say_classes(result)


def _say_classes(result: dict[str, Any]) -> None:
    """Show the classes that are recognised least; `--json` has all of them, and the confusion matrix."""
    known = [row for row in result.get("classes", ()) if row["recall"] is not None]
    for row in sorted(known, key=lambda row: row["recall"])[:FEWEST] if len(known) > 2 else ():
        most = f", most often taken for {row['taken_for']} ({row['times']})" if row["taken_for"] else ""
        say(f"{row['class']}: {row['recall']:.1%} of {row['rows']} found{most}")


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
    from htaf.training.runs.data import rows_are_known

    if is_language_model(run):
        raise UsageError(f"{run} is a language model: expected a run of a table")
    opened = opened_run(run, method)
    if opened.takes_images:
        raise UsageError(f"{run} was trained on images: expected a run of a table")
    if not rows_are_known(opened):
        raise UsageError(
            f"{run} was trained in Python and does not know its test rows: "
            f"`htaf evaluate {run} --data FILE` measures it, `htaf explain {run} --data FILE` says what it learned"
        )
    with needs_source("give --data"):
        table = opened.data(data, data_dir=data_dir)
    assert isinstance(table, Table)
    with progress("report", 4, every=0) as advance:
        values = write_report(opened, table, baselines=baselines, progress=lambda name: advance(1, f"baseline {name}"))
    if json:
        return print_json(values)
    if baselines:
        found = kept_baselines(opened)
        say_baselines(found, opened.record)
        say_notes([f"{one.name}: {one.note}" for one in found if one.note])
    return say(f"report: {run / PAGE}")


def report_once(run: Run, table: Table, *, baselines: bool = True) -> None:
    """Write the report of a training that has just ended, unless it has one; a failure is only a note."""
    from htaf.tables.report.writing import PAGE, has_report, write_report

    if has_report(run):
        return
    try:
        with progress("report", 4, every=0) as advance:
            write_report(run, table, baselines=baselines, progress=lambda name: advance(1, f"baseline {name}"))
    except Exception as error:
        say_notes([f"no {PAGE}, the run itself is whole: {first_line(error)}; htaf report {run.path} writes it"])


def say_baselines(found: Sequence[Baseline], record: Mapping[str, Any]) -> None:
    """Show baselines on the part that was measured last, and how the exact network compares with each."""
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
    """Compare the network of a run with the best baseline, see `htaf.tables.report.contents.verdict`."""
    from htaf.tables.report.contents import verdict

    part, own = _reported(record)
    return verdict(own, part, record["headline"], found)


def _reported(record: Mapping[str, Any]) -> tuple[str, float | None]:
    """Return the part that was measured last, and the headline there, of the exact network where there is one."""
    metrics = record["metrics"]
    part = "test" if "test" in metrics["smooth"] else "validation"
    return part, (metrics["exact"] or metrics["smooth"])[part][record["headline"]]
