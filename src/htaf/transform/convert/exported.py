"""A hardened network as an exported program: the check and the walk that packing and every written format share."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from htaf._ground import errors as _errors
from htaf._ground.compat import no_trace
from htaf._ground.errors import HtafError
from htaf.core.contract import looks_smooth


def check_hardened(model: nn.Module, error: type[HtafError]) -> None:
    """Raises `error` for what is no module, and for one that holds smooth activations."""
    if not isinstance(model, nn.Module):
        raise error(f"expected a hardened torch.nn.Module, got {type(model).__name__}")
    smooth = [f"{type(m).__name__} {name}".strip() for name, m in model.named_modules() if looks_smooth(m)]
    if smooth:
        shown = ", ".join(smooth[:3]) + (", ..." if len(smooth) > 3 else "")
        raise error(
            f"expected a hardened model, got {type(model).__name__} with {len(smooth)} smooth activations ({shown}): "
            "give htaf.harden(model)"
        )


def export_program(
    model: nn.Module,
    inputs: tuple[Tensor, ...],
    error: type[HtafError],
    *,
    stays: Callable[[torch.fx.Node], bool] | None = None,
) -> torch.export.ExportedProgram:
    """`torch.export` of a model in eval mode, whose first dimension is dynamic.

    Args:
        stays: whether an operator can stay, none that changes its input. Where some cannot, the program is made
            functional, and the others become those of ATen's core set where they can. None: all stay.

    Raises:
        error: PyTorch does not take the model; the message is the first line of the cause.
    """
    if any(len(x) == 1 for x in inputs):  # a dimension of 1 cannot be told from one that is always 1
        inputs = tuple(torch.cat([x, x]) for x in inputs)
    try:
        dynamic = _dynamic(model, inputs)
        with quiet(), torch.no_grad():
            program = torch.export.export(model, inputs, dynamic_shapes=dynamic)
            return program if stays is None else _decomposed(program, stays)
    except Exception as cause:  # whatever the model's own code raises under tracing
        said = cause_of(cause)
        if "Constraints violated" in said and "size()[0]" in said:
            said = f"it fixes the number of rows, as len(x) does: write x.shape[0] ({said})"
        raise error(f"torch.export does not take {type(model).__name__}: {said}") from cause


def _dynamic(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Any, ...]:
    """Dimension 0 of every input, structured as the arguments of `forward`: those of `*args` are one tuple."""
    first = {0: torch.export.Dim.DYNAMIC}
    bound = inspect.signature(model.forward).bind(*inputs).arguments.values()
    return tuple(tuple(first for _ in value) if isinstance(value, tuple) else first for value in bound)


def _decomposed(
    program: torch.export.ExportedProgram, stays: Callable[[torch.fx.Node], bool]
) -> torch.export.ExportedProgram:
    """The program with the parts of every operator that cannot stay, as far as PyTorch knows them.

    Each pass over it makes it functional too.
    """
    tried: set[Any] = set()
    while missing := {n.target for n in program.graph.nodes if n.op == "call_function" and not stays(n)} - tried:
        known = torch.export.default_decompositions()
        table: dict[Any, Any] = {target: known[target] for target in missing if target in known}
        if table or not tried:
            program = program.run_decompositions(table)
        tried |= missing
    return program


@contextmanager
def quiet() -> Iterator[None]:
    """Without the exporters' own warnings and log, which say nothing of the model."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)  # with tracebacks; what bears on the model comes as an exception
    try:
        with no_trace():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def cause_of(error: BaseException) -> str:
    """The first line of the cause, which PyTorch's exporters hide below their own."""
    while error.__cause__ is not None:
        error = error.__cause__
    return _errors.first_line(error)
