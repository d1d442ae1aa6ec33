"""The exact network of a run as an integer program."""

from __future__ import annotations

import torch
from torch import Tensor

from htaf._errors import option
from htaf.data.image_preprocess import ImagePreprocessor
from htaf.integer.build import integer_program
from htaf.integer.ops import IntegerError
from htaf.integer.program import Input, IntegerProgram
from htaf.packed.graph import trace
from htaf.runs.folder import HASHED, MODEL, RunError
from htaf.runs.run import Run


def build_run(run: Run) -> IntegerProgram:
    """The integer program of a run that was trained with weights on a grid.

    A program of images takes their pixels, as read and resized; one of a table takes prepared columns as integers, see
    `Input.quantised`. about: the run's key, the SHA-256 of its weights, and its classes.

    Raises:
        RunError: a run without steps, or a damaged one.
        IntegerError: the network has no integer form; the message names the layer and says what to do.
    """
    if not run.has_step:
        raise RunError(f"expected a run with steps, {run.path} is a plain network (method relu)")
    if run.record["recipe"].get("weights", "float") == "float":
        flag = option("--weights int8", 'weights="int8"')
        raise IntegerError(f"expected a run with integer weights, {run.path} has real ones: train with {flag}")
    model, known = run.model(), run.preprocessor()
    if isinstance(known, ImagePreprocessor):
        shape = (known.channels, *known.size)
        program = integer_program(
            model,
            known.normalise(torch.zeros(2, *shape, dtype=torch.uint8)),
            input=Input("pixels", shape),
            table=pixel_table(known),
        )
        classes = known.classes
    else:
        example = torch.zeros(2, len(known.feature_names))
        traced = trace(model, example)
        program = integer_program(traced, example)
        classes = known.target.classes or ()
    about = {"run": run.record["key"], HASHED[MODEL]: run.record[HASHED[MODEL]], "classes": [*map(str, classes)]}
    return IntegerProgram(program.input, program.ops, program.output, program.unit, {**program.about, **about})


def pixel_table(known: ImagePreprocessor) -> Tensor:
    """float32 [channels, 256]: what the network is given for each pixel."""
    each = torch.arange(256, dtype=torch.uint8).expand(1, known.channels, 1, 256)
    return known.normalise(each)[0, :, 0]
