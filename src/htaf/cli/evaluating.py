"""`htaf evaluate` and `htaf explain`: the networks of a run, measured, and what one says about a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from htaf._ground.console import UsageError, direction, figures, print_json, progress, say, say_notes, show
from htaf._ground.errors import counted, first_line
from htaf.cli.flags import (
    DataDir,
    Json,
    MethodOfRun,
    Place,
    RunDir,
    is_language_model,
    needs_source,
    opened_run,
)
from htaf.data.notes import Note, new_sentences, told

if TYPE_CHECKING:
    import pandas as pd

    from htaf.data.preprocess import Preprocessor, Target
    from htaf.data.tabular import Table
    from htaf.tables.inspection import Importance, RowReasons
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

    Args:
        data: Other labelled data: a table with the same columns, or images of the same classes; none: the run's own.
        part: Part of the run's own data; none: test.
    """
    from htaf.training.runs.metrics import LOWER_IS_BETTER

    if is_language_model(run):
        raise UsageError(f"{run} is a language model: the command that trained it shows its scores again")
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


def report_once(run: Run, table: Table, *, baselines: bool = True) -> None:
    """Write the report of a training that has just ended, unless it has one; a failure is only a note."""
    from htaf.tables.report.writing import PAGE, has_report, write_report

    if has_report(run):
        return
    try:
        with progress("report", 4, every=0) as advance:
            write_report(run, table, baselines=baselines, progress=lambda name: advance(1, f"baseline {name}"))
    except Exception as error:
        say_notes([f"no {PAGE}, the run itself is whole: {first_line(error)}; the same command writes it again"])


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


HEADERS = {"rmse": "RMSE", "auroc": "AUROC"}  # other metrics are shown by their names
COLUMNS_SHOWN = 12


def explain(
    run: RunDir,
    rows: Annotated[Positional[Path | None], arg(metavar="[ROWS]")] = None,
    *,
    row: int | None = None,
    data: Place = None,
    data_dir: DataDir = None,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Say what a table's network does: importance of the columns, what they add to a row.

    Args:
        rows: A CSV or Parquet file with the raw columns, to explain one of its rows; none: importance of columns.
        row: Which row of ROWS, from 1; none: the first.
        data: Where the run's own table is now; for a run on a data frame any rows with the target; none: where it was
            at the training.
    """
    if row is not None and row < 1:
        raise UsageError(f"--row must be >= 1, got {row}")
    if row is not None and rows is None:
        raise UsageError("--row is one of ROWS: give ROWS, a file with the raw columns")
    row = row or 1
    if is_language_model(run):
        raise UsageError(f"expected a run of a table, {run} is a language model")
    if run.is_file():
        raise UsageError(f"expected a run folder of a table, got the file {run}: give the run that it was packed from")
    from htaf.tables.inspection import importance, reasons, table_of
    from htaf.training.runs.run import rows_are_known

    opened, preprocessor = table_of(opened_run(run, method))  # before any data are read
    target, given = preprocessor.target, None if rows is None else _row(rows, row, preprocessor)
    table = _table(opened, data, data_dir)
    if not rows_are_known(opened):
        say_notes([f"the rows of the training are not known: figures are of the rows of {data}"])
    answers: dict[str, Any] = {"run": str(run), "table": table.name}
    if target.threshold is not None:
        answers["threshold"] = target.threshold
    if given is None:
        shuffled = importance(opened, table)
        if json:
            return print_json(answers | {"importance": shuffled.to_json()})
        _say_threshold(target)
        return _show_importance(shuffled)
    found = reasons(opened, given, table)
    answers |= {"row": row, "reasons": vars(found) | {"columns": found.columns.reset_index().to_dict("records")}}
    if json:
        return print_json(answers)
    _say_threshold(target)
    _show_decision(found, target, row)
    return _show_columns(found, given)


def _say_threshold(target: Target) -> None:
    if target.threshold is not None:
        say(f"threshold: {target.classes[1]!r} is predicted from a probability of {target.threshold:.4g}")


def _row(path: Path, row: int, preprocessor: Preprocessor) -> pd.DataFrame:
    from htaf.data.table_files import read_frame

    frame, notes = read_frame(path, separators=preprocessor.separators)
    if row > len(frame):
        raise UsageError(f"--row must be in 1 to {len(frame)}, the rows of {path}, got {row}")
    say_notes(told(notes))
    return frame.iloc[[row - 1]]


def _table(run: Run, data: str | None, data_dir: str | None) -> Table:
    if data is not None and not data.strip():
        raise UsageError("--data: expected a name or a path, got ''")
    with needs_source("give --data"):
        return run.data(data, data_dir=data_dir)  # pyright: ignore[reportReturnType]


def _show_importance(found: Importance) -> None:
    name = HEADERS.get(found.metric, found.metric)
    rows = [(c, f"{of['worse']:.4g}", f"{of['std']:.2g}") for c, of in found.columns.iterrows()]
    times = f"each column shuffled {found.repeats} times on {found.rows:,} rows"
    columns = ("column", f"{name} worse by", "spread")
    show(f"Importance: {times}, {name} {found.value:.4g}", columns, rows[:COLUMNS_SHOWN])
    if len(rows) > COLUMNS_SHOWN:
        say(f"columns of less importance: {len(rows) - COLUMNS_SHOWN:,}")


def _show_decision(reasons: RowReasons, target: Target, row: int) -> None:
    """What is predicted."""
    said = (
        f"{reasons.prediction:.6g}"
        if reasons.instead is None
        else f"{reasons.prediction} rather than {reasons.instead}"
    )
    say(f"row {row}: {target.name} = {said}")


def _show_columns(reasons: RowReasons, given: pd.DataFrame) -> None:
    """What each column adds."""
    what = "prediction" if reasons.instead is None else "difference of the logits"
    rows = [
        (column, _value(given[column].iloc[0]), f"{of['adds']:+.4g}", f"{of['std']:.2g}")
        for column, of in reasons.columns.head(COLUMNS_SHOWN).iterrows()
    ]
    title = f"What its values add: {what} {reasons.decision:.6g} minus the mean with the values of other rows, one"
    show(f"{title} column at a time", ("column", "value", "adds", "spread"), rows)
    if len(reasons.columns) > COLUMNS_SHOWN:
        say(f"columns that add less: {len(reasons.columns) - COLUMNS_SHOWN:,}")


def _value(value: Any) -> str:
    """A value of a column; NaN, None and "" are missing."""
    if isinstance(value, float):
        return "missing" if value != value else f"{value:.6g}"
    return "missing" if value is None or str(value) in ("", "NaT", "<NA>") else str(value)
