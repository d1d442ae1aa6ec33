"""The exact network of a run as an integer program."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from htaf._errors import option
from htaf.data.image_preprocess import ImagePreprocessor
from htaf.integer.build import integer_program
from htaf.integer.ops import IntegerError
from htaf.integer.program import Input, IntegerProgram
from htaf.packed.graph import trace
from htaf.runs.columns import inputs_of
from htaf.runs.folder import HASHED, MODEL, RunError
from htaf.runs.run import Run


def build_run(run: Run) -> IntegerProgram:
    """The integer program of a run that was trained with weights on a grid.

    A program of images takes their pixels, as read and resized; one of a table takes prepared columns as integers, see
    `Input.quantised`. about: the run's key, the SHA-256 of its weights, its classes and its target; of a table
    "columns", how each input is made of raw values, see `htaf.runs.columns`.

    Raises:
        RunError: a run without steps, or a damaged one.
        IntegerError: the network has no integer form; the message names the layer and says what to do.
    """
    if not run.has_step:
        raise RunError(f"expected a run with steps, {run.path} is a plain network (method relu)")
    if run.record["recipe"].get("weights", "float") == "float":
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
    return IntegerProgram(program.input, program.ops, program.output, program.unit, {**program.about, **about})


def pixel_table(known: ImagePreprocessor) -> Tensor:
    """float32 [channels, 256]: what the network is given for each pixel."""
    each = torch.arange(256, dtype=torch.uint8).expand(1, known.channels, 1, 256)
    return known.normalise(each)[0, :, 0]
