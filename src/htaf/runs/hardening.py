"""The steps of `htaf.hardening` on a finished run: each is kept where it lowers the validation loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from htaf import hardening
from htaf.data.images import ImagePreprocessor
from htaf.data.parts import Part
from htaf.diagnostics import layer_statistics
from htaf.diagnostics.layers import BINARY
from htaf.hardening import Report, Taken
from htaf.hardening.finishing import kept_where_better
from htaf.hardening.report import measured
from htaf.runs.evaluation import measure
from htaf.runs.folder import HASHED, RunError, claim
from htaf.runs.run import Run, finish_run, finished_run

if TYPE_CHECKING:
    from htaf.data.parts import Data
    from htaf.runs.data import Place, RunPart

Step = Literal["recalibrate", "repair", "refit", "distil"]
STEPS: tuple[Step, ...] = ("recalibrate", "repair", "recalibrate", "refit")
ROWS = 2000  # of the training part, for repair: each layer goes through them twice
GIVEN = ("attributes", "pretrained_sha256", "backbone_sha256", "test")  # of the identity of a training, where they are


@dataclass(frozen=True)
class _Parts:
    """The run's data as the steps take them, on the device of its networks."""

    train: Any
    sample: list[tuple[Tensor, Tensor]]
    validation: list[tuple[Tensor, Tensor]]


def harden_run(
    run: Run,
    out: str | PathLike[str],
    *,
    steps: Sequence[Step] = STEPS,
    rows: int = ROWS,
    data: Data | Place | None = None,
    data_dir: Place | None = None,
    told: Callable[[Taken], None] = lambda taken: None,
) -> Run:
    """A new run whose exact network was repaired; its smooth network is that of the run.

    The steps are taken in order, each on what the one before gave, and kept where it lowers the exact network's loss on
    the validation part. They see the training part, not augmented. Both networks are measured again.

    Args:
        run: finished, of any family, not of method relu.
        out: a new or empty folder, or one that holds the same (which is returned).
        steps: of "recalibrate" (norms), "repair" (all layers), "refit" (the head), "distil"; any order, any number.
        rows: of the training part that repair looks at.
        data: the run's own, from `run.data()`, or where they are now; None: where they were at the training.
        data_dir: a folder with the public sets.
        told: called after each step.

    Returns:
        The run; its record has "hardened": {"key", "sha256", "steps", "rows"}, which is part of its key, and
        "repaired": {"from": path of the run, "before": metrics of its exact network, "steps": of each step its entry
        (`Taken`), whose measure is the validation loss}. "hardening" stays that of the training.

    Raises:
        RunError: a run without steps, other data than its own, or a folder that holds something else.
        UnknownSourceError: it does not say where its data came from. DataError: they cannot be read.
    """
    out = Path(out)
    if not run.has_step:
        raise RunError(f"{run.path} has no exact network (method relu): expected a run with steps")
    unknown = [step for step in steps if step not in get_args(Step)]
    if unknown or not steps:
        raise RunError(f"expected steps of {', '.join(get_args(Step))}, got {', '.join(unknown) if steps else 'none'}")
    if rows < 1:
        raise RunError(f"expected rows >= 1, got {rows}")
    recipe = run.record["recipe"]
    weighed = bool(recipe.get("class_weight")) or "weight" in run.record["data"]
    if weighed or isinstance(recipe.get("threshold"), str):
        what = "weights of rows or classes" if weighed else "a threshold that was chosen for its exact network"
        raise RunError(f"expected a run without weights and chosen threshold, {run.path} has {what}: train with refit")
    before = {"key": run.record["key"], "sha256": run.record["model_sha256"], "steps": list(steps), "rows": rows}
    identity = {name: run.record[name] for name in ("recipe", "seed", "data")}
    identity |= {name: run.record[name] for name in GIVEN if name in run.record} | {"hardened": before}
    with claim(out, identity) as record:
        if record["status"] == "finished":
            return finished_run(out, record, run.step)
        found = (
            data if data is not None and not isinstance(data, (str, PathLike)) else run.data(data, data_dir=data_dir)
        )
        parts = _parts(run, found, rows)
        smooth, exact = run.model(exact=False), run.model()

        def loss(net: nn.Module) -> float:
            return (measured(net, parts.validation) or {})["loss"]

        todo = [(step, partial(_step, step, smooth=smooth, parts=parts)) for step in steps]
        net, taken = kept_where_better(exact, todo, loss, told)
        kept = {name: value for name, value in run.record.items() if name not in record and name not in HASHED.values()}
        record |= kept | _measured(run, found, smooth, exact, net, parts)
        names = [one.name for one in taken if one.kept]
        record["repaired"] = {"from": str(run.path), "before": record.pop("before")}
        record["repaired"]["steps"] = [one.entry() for one in taken]
        said = f"the exact network of {run.path} after {', '.join(names)}" if names else "no step lowered the loss"
        record["notes"] = [*run.record["notes"], f"hardened: {said}"]
        own = smooth if names or run.has_own_smooth else None
        return finish_run(out, record, net, run.preprocessor(), run.step, smooth=own)


def _step(step: Step, net: nn.Module, smooth: nn.Module, parts: _Parts) -> tuple[nn.Module, Report]:
    match step:
        case "recalibrate":
            return hardening.recalibrate(net, parts.train)
        case "repair":
            return hardening.repair(net, smooth, parts.sample)
        case "refit":
            return hardening.refit_head(net, parts.train, validation=parts.validation)
        case "distil":
            return hardening.distil(net, smooth, parts.train, validation=parts.validation)


def _parts(run: Run, data: Data, rows: int) -> _Parts:
    """The training part, a sample of it that is the same each time, and the validation part."""
    train = run.part("train", data)
    piece = train.pieces[0]
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(piece), generator=generator)[: min(rows, len(piece))]
    some = Part(piece.data, piece.rows[chosen], min(piece.chunk, max(1, len(chosen) // 2)))
    return _Parts(train, list(some), list(run.part("validation", data)))


def _measured(
    run: Run, data: Data, smooth: nn.Module, exact: nn.Module, net: nn.Module, parts: _Parts
) -> dict[str, Any]:
    """Of a record: metrics of both networks, those of the exact one before, and statistics of its layers."""
    preprocessor, task = run.preprocessor(), run.record["data"]["task"]
    scale, threshold = 1.0, None
    if not isinstance(preprocessor, ImagePreprocessor):
        scale, threshold = preprocessor.target.std, preprocessor.target.threshold
    measured: dict[str, RunPart | list[tuple[Tensor, Tensor]]] = {"validation": parts.validation}
    if run.record.get("test", True):  # a candidate of a search was not measured on it, and is not now
        measured["test"] = run.part("test", data)
    before, after = (measure(smooth, one, measured, task, scale, threshold=threshold) for one in (exact, net))
    found: dict[str, Any] = {"metrics": after, "before": before["exact"]}
    if any(isinstance(m, BINARY) for m in net.modules()):
        statistics = layer_statistics(smooth, net, (x for x, _ in parts.validation))
        found["layers"] = [asdict(layer) for layer in statistics]
    return found
