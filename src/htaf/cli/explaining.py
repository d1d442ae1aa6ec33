"""`htaf explain`: what a network says about a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from htaf._ground.console import UsageError, print_json, say, say_notes, show
from htaf.cli.flags import DataDir, Json, MethodOfRun, Place, RunDir, is_language_model, needs_source, opened_run
from htaf.data.notes import told

if TYPE_CHECKING:
    import pandas as pd

    from htaf.data.preprocess import Preprocessor, Target
    from htaf.data.tabular import Table
    from htaf.tables.inspection import Importance, RowReasons
    from htaf.training.runs import Run

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
    from htaf.training.runs.data import rows_are_known

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
