"""Editing the linear head: what a class may no longer draw on; and runs with another head."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from htaf._errors import listed
from htaf.concepts.codes import Codes, ConceptError, class_number
from htaf.concepts.heads import Head
from htaf.data.images import ImagePreprocessor, Images
from htaf.data.parts import Data, Part
from htaf.models.icbm import ICBM
from htaf.runs import HASHED, Run, claim, finish_run, finished_run
from htaf.runs.data import rows_of
from htaf.runs.features import FeatureBatches, FeatureStore, key_of
from htaf.runs.predictions import measure

GIVEN = ("attributes", "pretrained_sha256", "backbone_sha256")  # of the identity of a training, where they are
Edit = tuple[int | str | np.integer, int | np.integer]  # class (name or number), concept


def edited(codes: Codes, off: Sequence[Edit]) -> Codes:
    """The codes with head weights w[class, concept] = 0, and the exact network's predictions after that.

    Args:
        off: (class, concept) pairs; a class is its name or its number.
    Raises:
        ConceptError: a class or concept that is not there.
    """
    weight = codes.weight.copy()
    pairs = _pairs(off, codes.classes, codes.concepts)
    for label, concept in pairs:
        weight[label, concept] = 0
    changed = replace(codes, weight=weight, smooth=np.full(len(codes), -1, dtype=np.int32))
    return replace(changed, exact=changed.predictions(), info={**codes.info, "off": [list(pair) for pair in pairs]})


def write_edited(run: Run, out: str | Path, off: Sequence[Edit], metrics: Mapping[str, Any]) -> Run:
    """A new run folder: the same network with head weights w[class, concept] = 0.

    Args:
        run: of an implicit concept bottleneck model.
        out: a new or empty folder, or one that holds the same edit of the same run (returned as it is).
        off: as for `edited`.
        metrics: of the edited network, in the form of a record's `metrics`; {} where nothing was measured again.
    Returns:
        the new run; its record says "edited": {"from", "key", "off"}.
    Raises:
        ConceptError: another network, or an edit that is not there. RunError: the folder holds another run.
    """
    preprocessor, size = _head_of(run)
    pairs = _pairs(off, preprocessor.classes, size)

    def change(head: nn.Linear) -> None:
        for label, concept in pairs:
            head.weight[label, concept] = 0

    shown = ", ".join(f"concept {concept} of class {label}" for label, concept in pairs)
    note = f"head of the run at {run.path} edited: no weight for {shown}{_still_used(run, pairs, preprocessor.classes)}"
    return _write_changed(run, out, change, "edited", {"off": [list(pair) for pair in pairs]}, note, metrics)


def _still_used(run: Run, off: Sequence[tuple[int, int]], classes: Sequence[str]) -> str:
    """That the weights were 0 before, or which other classes keep a weight on these concepts; "" for neither."""
    head: Any = run.model(exact=run.has_own_smooth).get_submodule("head")
    used = head.weight.detach().cpu().numpy() != 0
    if not any(used[label, concept] for label, concept in off):
        return "; it had none before"
    for label, concept in off:
        used[label, concept] = False
    kept = np.flatnonzero(used[:, sorted({concept for _, concept in off})].any(1)).tolist()
    return f"; still used by {listed([classes[one] for one in kept], 3)}" if kept else ""


def write_with_head(
    run: Run, out: str | Path, head: Head, about: Mapping[str, Any], note: str, metrics: Mapping[str, Any]
) -> Run:
    """A new run folder: the same network with another head, which both its networks get.

    Args:
        run, out, metrics: as `write_edited`.
        head: weight [K, C] of bits, bias [K].
        about: what it is, for the record's "new_head" and the run's identity. note: for the record.
    Raises:
        ConceptError: another network, or a head of another size. RunError: the folder holds another run.
    """
    preprocessor, size = _head_of(run)
    expected = (len(preprocessor.classes), size)
    if head.weight.shape != expected or head.bias.shape != expected[:1]:
        raise ConceptError(
            f"expected a head of weight {expected} and bias {expected[:1]}, "
            f"got {head.weight.shape} and {head.bias.shape}"
        )
    weight, bias = (torch.from_numpy(values.astype(np.float32)) for values in (head.weight, head.bias))

    def change(layer: nn.Linear) -> None:
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)

    digest = hashlib.sha256(weight.numpy().tobytes() + bias.numpy().tobytes()).hexdigest()
    return _write_changed(run, out, change, "new_head", {**about, "head_sha256": digest}, note, metrics)


def _head_of(run: Run) -> tuple[ImagePreprocessor, int]:
    """The preprocessing of a run, and how many concepts its head reads."""
    model, preprocessor = run.model(exact=run.has_own_smooth), run.preprocessor()
    if not isinstance(model, ICBM):
        raise ConceptError(f"{run.path}: expected an implicit concept bottleneck model, got {type(model).__name__}")
    if not isinstance(preprocessor, ImagePreprocessor):
        raise ConceptError(f"{run.path}: expected a run on images, got one on a table")
    return preprocessor, model.size


def _write_changed(
    run: Run,
    out: str | Path,
    change: Callable[[nn.Linear], None],
    kind: str,
    about: Mapping[str, Any],
    note: str,
    metrics: Mapping[str, Any],
) -> Run:
    """A run whose networks' heads were changed in place; its record and identity say so under `kind`."""
    model: Any = run.model(exact=run.has_own_smooth)
    smooth: Any = run.model(exact=False) if run.has_own_smooth else None
    preprocessor = run.preprocessor()
    with torch.no_grad():
        for network in (model,) if smooth is None else (model, smooth):
            change(network.head)
    edit = {"key": run.record["key"], "sha256": run.record["model_sha256"], **about}
    identity = {name: run.record[name] for name in ("recipe", "seed", "data")}
    identity |= {name: run.record[name] for name in GIVEN if name in run.record} | {kind: edit}
    with claim(Path(out), identity) as record:
        if record["status"] == "finished":
            return finished_run(Path(out), record, run.step)
        kept = {name: value for name, value in run.record.items() if name not in record and name not in HASHED.values()}
        notes = [*run.record["notes"], note]
        record |= kept | {"metrics": dict(metrics), "notes": notes, kind: edit | {"from": str(run.path)}}
        return finish_run(Path(out), record, model, preprocessor, run.step, smooth=smooth)


def edit_run(
    run: Run, out: str | Path, off: Sequence[Edit], *, data: Data | None = None, data_dir: str | None = None
) -> Run:
    """As `write_edited`, with both networks measured again on validation and test images before it is written.

    Args:
        data: the run's own, from `run.data()`; None: read them.
        data_dir: a folder with the public sets.
    Raises:
        RunError: other data than the run's own; UnknownSourceError: it does not say where they came from.
        DataError: they cannot be read. ConceptError, RunError: as `write_edited`.
    """
    return measured_run(run, out, lambda place, found: write_edited(run, place, off, found), data, data_dir)


def measured_run(
    run: Run,
    out: str | Path,
    write: Callable[[str | Path, Mapping[str, Any]], Run],
    data: Data | None = None,
    data_dir: str | None = None,
) -> Run:
    """What `write(folder, metrics)` makes of a run, with both networks measured again on validation and test images.

    Arguments and errors: as `edit_run`.
    """
    with TemporaryDirectory() as folder:
        trial = write(Path(folder) / "run", {})  # a change that cannot be is refused before reading
        own = run.data(data_dir=data_dir) if data is None else data
        found = {part: _figures(trial, part, own) for part in ("validation", "test")}
    metrics = {kind: {part: result[kind] for part, result in found.items()} for kind in ("smooth", "exact")}
    return write(out, metrics if run.has_step else metrics | {"exact": None})


def _figures(run: Run, part: Literal["validation", "test"], data: Data) -> dict[str, Any]:
    """As `Run.evaluate` of both networks: on what the frozen backbone gave of the images, where that is kept."""
    preprocessor = run.preprocessor()
    if run.record["model"].get("freeze") and run.has_step and not run.has_own_smooth and isinstance(data, Images):
        assert isinstance(preprocessor, ImagePreprocessor)
        side, rows = rows_of(run, data)[part]
        of = data.train if side == "train" else data.test
        key = key_of(run.model(exact=False), run.record["model"], preprocessor, of, of.fingerprint())
        if (store := FeatureStore.kept(key, rows)) is not None:
            nets: list[Any] = [run.model(exact=False), run.model()]
            for net in nets:
                net.backbone = nn.Identity()
            seen = Part(FeatureBatches(store, of.labels), rows)
            found = measure(nets[0], nets[1], {part: seen}, "classification")
            return {kind: found[kind][part] for kind in ("smooth", "exact")}
    return run.evaluate(part, data)


def edits_of(off: Any) -> list[tuple[Any, Any]]:
    """What was given as (class, concept) pairs. Raises ConceptError where it is something else."""
    try:
        return [(label, concept) for label, concept in off]
    except (TypeError, ValueError):
        raise ConceptError(f"expected pairs of a class and a concept, such as [(3, 6)], got {off!r:.80}") from None


def _pairs(off: Sequence[Edit], classes: Sequence[str], concepts: int) -> list[tuple[int, int]]:
    """Edits as distinct (class number, concept), ascending."""
    found = set()
    for label, concept in edits_of(off):
        number = class_number(classes, label)
        if not 0 <= concept < concepts:
            raise ConceptError(f"expected a concept in 0 to {concepts - 1}, got {concept}")
        found.add((number, int(concept)))
    if not found:
        raise ConceptError("expected one (class, concept) or more, got none")
    return sorted(found)
