"""The exact network of a run as an integer program, and its inputs: as data, and made of raw rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int64

from htaf._ground.errors import option
from htaf.data.images import ImagePreprocessor, pixel_table
from htaf.data.preprocess import Column, Preprocessor, spelled
from htaf.program.integer.build import integer_program
from htaf.program.integer.ops import Array, IntegerError
from htaf.program.integer.program import PACKED, Input, IntegerProgram
from htaf.program.integer.raw import TEXTS, prepared_column
from htaf.program.packed.graph import trace
from htaf.training.runs.folder import HASHED, MODEL, RunError
from htaf.training.runs.packed import RUN, extra_of
from htaf.training.runs.run import Run


def inputs_of(known: Preprocessor, given: Input) -> list[dict[str, Any]]:
    """Each input of a program as JSON values: its place and name, the raw column, and by its kind how it is made of it;
    `htaf.integer.columns` says what they mean."""
    made = dict[int, dict[str, Any]]()
    for column in known.columns:
        places = known.inputs_of(column.name).tolist()
        made |= zip(places, _made_of(column, known.special_codes, given), strict=True)
    return [{"x": x, "name": name, **made[x]} for x, name in enumerate(known.feature_names)]


def _made_of(column: Column, codes: Sequence[float], given: Input) -> Iterator[dict[str, Any]]:
    own = {"column": column.name}
    own |= {key: getattr(column, key) for key in ("unit", "order", "zoned") if getattr(column, key)}
    if column.kind == "number" and column.high > column.low:
        scale, ends = 1 / (column.high - column.low), {"low": column.low, "high": column.high}
        shift = {"scale": scale, "offset": 0 - column.low * scale}
        yield {"kind": "number", **own, **shift, **ends, "fill": column.fill, "codes": [*codes]}
    for code in column.codes:
        yield {"kind": "code", **own, "code": code}
    if column.missing:
        yield {"kind": "missing", **own}
    lows, highs = np.array(column.lows), np.array(column.highs)
    table = np.array([*column.values, column.otherwise]) if column.kind == "encoded" else lows
    table = given.quantised(((table - lows) / np.where(highs > lows, highs - lows, 1)).astype(np.float32))
    for place, output in enumerate(column.outputs):
        if column.kind == "date":
            ends = {"low": column.lows[place], "high": column.highs[place]}
            yield {"kind": "date", **own, "part": output, **ends, "first": column.first, "fill": column.filled}
        else:
            *values, otherwise = table[:, place].tolist()
            values = dict(zip(column.categories, values, strict=True))
            yield {"kind": "encoded", **own, "values": values, "otherwise": otherwise}
    if column.kind == "category":
        yield from ({"kind": "category", **own, "text": text} for text in column.categories)
        if column.other:
            yield {"kind": "other", **own, "texts": [*column.categories]}


def prepared(columns: Sequence[dict[str, Any]], given: Input, rows: pd.DataFrame) -> Int64[Array, "rows inputs"]:
    """Say what a program takes for raw rows, by what an export says of its inputs alone.

    Args:
        columns: as `inputs_of` or `raw_inputs` makes them. rows: of any dtypes, with the raw columns.

    Raises:
        DataError: a column is not there, or holds other values than those of its kind.
    """
    raw = values_of(columns, rows)
    return np.stack([prepared_column(one, raw[one["column"]], given) for one in columns], 1)


def values_of(columns: Sequence[dict[str, Any]], rows: pd.DataFrame) -> dict[str, Array]:
    """The raw columns that lines name, by name: float64 with NaN, datetime64[us], or texts as `spelled`."""
    from htaf.program.export.tables import raw_columns

    asked = {
        one["column"]: {
            "name": one["column"],
            "dtype": "string" if one["kind"] in TEXTS else "int64" if "order" in one else "float64",
            **{key: one[key] for key in ("unit", "order", "zoned") if key in one},
        }
        for one in columns
    }
    found = {name: column[:, 0] for name, column in raw_columns(rows, [*asked.values()]).items()}
    for name, said in asked.items():
        if said["dtype"] == "string":
            found[name] = np.array([spelled(text) for text in found[name]], object)
        elif said["dtype"] == "int64":
            found[name] = found[name].astype("datetime64[us]")
    return found


def build_run(run: Run) -> IntegerProgram:
    """Build the integer program of a run that was trained with weights on a grid.

    A program of images takes their pixels, as read and resized; one of a table takes prepared columns as integers, see
    `Input.quantised`. about: the run's key, the SHA-256 of its weights, its classes and its target; of a table
    "columns", how each input is made of raw values, see `inputs_of`; "packed", what `open_packed` needs besides.

    Raises:
        RunError: a run without steps, or a damaged one.
        IntegerError: the network has no integer form; the message names the layer and says what to do.
    """
    if not run.has_step:
        raise RunError(f"expected a run with steps, {run.path} is a plain network (method relu)")
    exact = run.is_readable or run.record["model"]["kind"] == "logic"
    if not exact and run.record["recipe"].get("weights", "float") == "float":
        flag = option("--weights int8", 'weights="int8"')
        raise IntegerError(f"expected a run with integer weights, {run.path} has real ones: train with {flag}")
    model, known, about = run.model(), run.preprocessor(), dict[str, Any]()
    if isinstance(known, ImagePreprocessor):
        shape = (known.channels, *known.size)
        program = integer_program(
            model,
            known.normalise(torch.zeros(2, *shape, dtype=torch.uint8)),
            input=Input("pixels", shape),
            table=pixel_table(known),
        )
        classes = known.classes
        about["target"] = {"task": "classification", "classes": [*classes]}
    else:
        example = torch.zeros(2, len(known.feature_names))
        traced = trace(model, example)
        program = integer_program(traced, example)
        classes, target = known.target.classes or (), known.target
        kept = ("mean", "std", "unit") if target.task == "regression" else ("classes", "threshold")
        about["target"] = {"task": target.task, "name": target.name} | {key: getattr(target, key) for key in kept}
        about["columns"] = inputs_of(known, program.input)
    about |= {"run": run.record["key"], HASHED[MODEL]: run.record[HASHED[MODEL]], "classes": [*map(str, classes)]}
    about |= {PACKED: extra_of(run)[RUN]}
    return IntegerProgram(program.input, program.ops, program.output, program.unit, {**program.about, **about})
