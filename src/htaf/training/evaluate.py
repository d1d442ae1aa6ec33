"""Measuring a network: the smooth and the exact one side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from htaf.data.preprocess import Preprocessor
from htaf.data.reading import DataError
from htaf.data.tabular import Table, split
from htaf.runs import Run, RunError, forward
from htaf.training.metrics import as_tensors, metrics


def measure(
    smooth: nn.Module, exact: nn.Module | None, parts: Mapping[str, tuple[Tensor, Tensor]], task: str, scale: float
) -> dict[str, Any]:
    """Metrics of the smooth and the exact network on each part; "exact" is None where no step exists."""

    def of(model: nn.Module) -> dict[str, Any]:
        return {name: metrics(forward(model, x), y, task, scale) for name, (x, y) in parts.items()}

    return {"smooth": of(smooth), "exact": None if exact is None else of(exact)}


def evaluate(run: Run, table: Table, *, part: str = "test") -> dict[str, Any]:
    """The smooth and the exact network of a run on labelled rows, and the gap between them.

    Args:
        run: from `htaf.runs.open_run`.
        table: the data of the run, or another table with the same columns.
        part: "train", "validation" or "test" of the run's own split; "all" rows, for other data.

    Returns:
        {"headline", "rows", "smooth": {...}, "exact": {...} or None, "gap": exact minus smooth or None}.

    Raises:
        RunError: a part is asked for and the table is not the one that the run was trained on.
        DataError: another task, or classes that the run does not know.
    """
    preprocessor, record = run.preprocessor(), run.record
    if table.task != preprocessor.target.task:
        raise DataError(f"expected a table for {preprocessor.target.task}, got one for {table.task}")
    if part == "all":
        rows = np.arange(len(table.target))
    elif table.fingerprint != record["data"]["fingerprint"]:
        raise RunError(
            f"{run.path} was trained on other data than {table.name}: its parts are only known for its own data"
        )
    else:
        rows = getattr(split(table, record["seed"], mode=record["data"]["split"]), part)
    data = {part: tensors(table, preprocessor, rows)}
    smooth, exact = run.model(exact=False), run.model() if run.has_step else None
    results = measure(smooth, exact, data, preprocessor.target.task, preprocessor.target.std)
    name = record["headline"]
    of_smooth, of_exact = results["smooth"][part], results["exact"][part] if exact is not None else None
    known = of_exact is not None and of_exact[name] is not None and of_smooth[name] is not None
    gap = of_exact[name] - of_smooth[name] if of_exact is not None and known else None
    return {"headline": name, "part": part, "rows": len(rows), "smooth": of_smooth, "exact": of_exact, "gap": gap}


def tensors(table: Table, preprocessor: Preprocessor, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    """Rows of a table as a network takes them: inputs float32 [rows, columns], and targets as `as_tensors` makes them.

    Raises:
        DataError: columns or values that the preprocessing cannot use, or classes that it does not know.
    """
    x, y, known = preprocessor.transform(table.features.iloc[rows]), table.target[rows], preprocessor.target.classes
    if table.classes != known:  # codes follow the classes that a table holds, and other data may lack some
        if unknown := set(table.classes) - set(known):
            raise DataError(f"expected the classes {', '.join(known)}, got {', '.join(sorted(unknown))} too")
        y = np.array([known.index(name) for name in table.classes])[y]
    return as_tensors(x, preprocessor.encode_target(y), preprocessor.target.task)
