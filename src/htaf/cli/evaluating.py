"""`htaf evaluate`: the smooth and the exact network of a run, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import arg

from htaf._ground.console import UsageError, figures, print_json, say, say_notes
from htaf._ground.errors import counted
from htaf._ground.files import check_output_folder
from htaf.cli.flags import DataDir, Json, Place, RunDir, is_language_model, needs_source, refuse_flags
from htaf.cli.methods import MethodOfRun, step_of_run
from htaf.cli.tables import show
from htaf.data.notes import Note, new_sentences


def evaluate(
    run: RunDir,
    *,
    data: Place = None,
    part: Literal["train", "validation", "test", "all"] | None = None,
    data_dir: DataDir = None,
    method: MethodOfRun = None,
    out: Annotated[Path | None, arg(metavar="DIR")] = None,
    json: Json = False,
) -> None:
    """Measure the smooth and the exact network of a run, and how they differ.

    Of a language model: show the scores of its run, or measure it and its original on --data.

    Args:
        data: Other labelled data: a table with the same columns, or images of the same classes; of a language model
            text; none: the run's own.
        part: Part of the run's own data; none: test.
        out: Classes: write confusion.csv, confusion.png and classes.csv (recall, precision, F1) of the exact network
            into this folder.
    """
    from htaf.training.runs import open_run
    from htaf.training.runs.metrics import LOWER_IS_BETTER

    if is_language_model(run):
        from htaf.cli.language import evaluate_llm

        refuse_flags({"part": part, "data-dir": data_dir, "method": method, "out": out}, run)
        return evaluate_llm(run, data, json)
    if run.is_file():
        raise UsageError(
            f"expected a run folder, got the file {run}: evaluate the run that it was packed from, or predict with it, "
            f"htaf predict {run} ROWS"
        )
    opened = open_run(run, method=step_of_run(method))
    if out is not None and opened.record["data"].get("task") != "classification":
        raise UsageError("--out is for classes, this run's network predicts numbers")
    if out is not None:
        check_output_folder(out, [run, *([] if data is None else [data])])
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
    if out is not None:
        _write_classes(result, out, f"{found.name}, {result['part']}")
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
    return _say_classes(result, out)


FEWEST = 3  # classes with the lowest recall that are named


def _write_classes(result: dict[str, Any], out: Path, title: str) -> None:
    """The figures of classes as files."""
    import numpy as np

    from htaf._ground.files import write_atomic
    from htaf.training.runs import metrics as room

    matrix, names = np.array(result["confusion"]), [row["class"] for row in result["classes"]]
    write_atomic(out / "confusion.csv", room.matrix_csv(matrix, names))
    write_atomic(out / "classes.csv", room.classes_csv(result["classes"]))
    write_atomic(out / "confusion.png", room.confusion_picture(matrix, names, title))


def _say_classes(result: dict[str, Any], out: Path | None) -> None:
    """The classes that are found least, and where all of them are."""
    known = [row for row in result.get("classes", ()) if row["recall"] is not None]
    for row in sorted(known, key=lambda row: row["recall"])[:FEWEST] if len(known) > 2 else ():
        most = f", most often taken for {row['taken_for']} ({row['times']})" if row["taken_for"] else ""
        say(f"{row['class']}: {row['recall']:.1%} of {row['rows']} found{most}")
    if out is not None:
        say(f"confusion matrix and all classes: {out}")
