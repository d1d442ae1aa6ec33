"""Runs with another head: edited by hand, or the sparsest that is nearly as accurate as the dense one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool
from torch import nn

from htaf._ground.files import sealed, write_atomic
from htaf.concepts.codes import ConceptError
from htaf.concepts.counts import labelled, pair_counts, same_bits, training_means
from htaf.concepts.extract import extract
from htaf.concepts.heads import Edit, Head, correct, edit_pairs, measured, sparse_heads
from htaf.data.images import ImagePreprocessor, Images
from htaf.data.parts import Data, Part
from htaf.models.icbm import ICBM
from htaf.training.runs import HASHED, RECORD, Run, RunError, claim, finish_run, finished_run
from htaf.training.runs.data import rows_of
from htaf.training.runs.features import FeatureBatches, FeatureStore, key_of
from htaf.training.runs.predictions import measure

GIVEN = ("attributes", "pretrained_sha256", "backbone_sha256")  # of the identity of a training, where they are


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
    pairs = edit_pairs(off, preprocessor.classes, size)

    def change(head: nn.Linear) -> None:
        for label, concept in pairs:
            head.weight[label, concept] = 0

    shown = ", ".join(f"concept {concept} of class {label}" for label, concept in pairs)
    before: Any = run.model(exact=run.has_own_smooth).get_submodule("head")
    none = "" if any(before.weight[pair] for pair in pairs) else "; it had none before"
    note = f"head of the run at {run.path} edited: no weight for {shown}{none}"
    return _write_changed(run, out, change, "edited", {"off": [list(pair) for pair in pairs]}, note, metrics)


def write_with_head(run: Run, out: str | Path, head: Head, about: Mapping[str, Any], metrics: Mapping[str, Any]) -> Run:
    """A new run folder: the same network with another head, which both its networks get.

    Args:
        run, out, metrics: as `write_edited`.
        head: weight [K, C] of bits, bias [K].
        about: what it is, for the record's "new_head" and the run's identity.
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
    return _write_changed(run, out, change, "new_head", {**about, "head_sha256": digest}, "head replaced", metrics)


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


PerClass = int | Literal["auto"]
TRIED = (5, 10)  # most concepts of a class
NEAR = 0.02  # of accuracy on validation images, that reading a decision may cost; and twice that, with a standard error
INTERVAL = 1.96  # standard errors: 95%
POINTS = 100  # validation images: of fewer, images are told in place of points
FEWEST = 10  # validation images


def keep_readable(run: Run, images: Images, per_class: PerClass = "auto") -> Run:
    """Fit heads of few and of all concepts a class to the exact bits of a run, and give the run one of them.

    Bits that say the same of the training images are one concept (`same_bits`), which one of them stands for: the
    others get no weight, in the head as it was trained neither.

    The sparsest is kept whose accuracy on validation images is within `NEAR` of the best dense head's, and within twice
    that one standard error further: on few images a bad head is near by luck. Where there is none, the best dense head
    is kept, fitted or as it was trained; with fewer than `FEWEST` such images the trained one. The run stays in its
    folder, under its key, measured again with that head. A kill before the last file is written leaves a training that
    the same command makes again.

    Args:
        run: of an implicit concept bottleneck model with a step, in a folder.
        images: those that it was trained on.
        per_class: most concepts of a class, whatever that costs; "auto": as above, of `TRIED`; 0: nothing is done.

    Returns:
        The run. Its record's "heads" has "asked", "near", "images", "distinct" (bits that are a concept of their own)
        and "rows": of each head its "kind" (trained or fitted), "target" (most concepts of a class, None: all),
        "validation", "test", "nec", "ncc", "kept", and `fewer_right` of validation images beside the best dense head.

    Raises:
        ConceptError: a run without concepts, or fewer of them than asked for. RunError: it has another such head.
    """
    there = run.record.get("heads")
    if there is not None:
        if per_class != there["asked"]:
            raise RunError(
                f"{run.path} holds this training with the head of --concepts-per-class {there['asked']}, not "
                f"{per_class}: choose another --out"
            )
        return run
    if per_class == 0:
        return run
    size = int(run.record["model"].get("concepts") or getattr(run.model(), "size", 0))
    if per_class != "auto" and not 0 < per_class <= size:
        raise ConceptError(f"--concepts-per-class must be auto or in 0 to {size}, the concepts, got {per_class}")
    targets = [n for n in TRIED if n < size] if per_class == "auto" else [per_class]
    if not targets:
        return run
    with TemporaryDirectory() as folder:
        codes = extract(run, images, Path(folder) / "codes", keep=("bits",)).codes()
        heads = sparse_heads(codes, (*targets, None), seed=run.record["seed"])
        training = labelled(codes, "train")
        same = same_bits(pair_counts(training), len(training))
        before = Head(codes.weight.astype(np.float64), codes.bias.astype(np.float64))
        own = Head(*same.folded(before.weight, before.bias))
        held = labelled(codes, "validation")
        right = [correct(held, head) for head in (own, *(head.head for head in heads))]
        tested, means = labelled(codes, "test"), training_means(codes)
        rows: list[dict[str, Any]] = [{"kind": "trained", "target": None, "validation": float(right[0].mean())}]
        rows += [{"kind": "fitted", "target": head.target, "validation": head.validation} for head in heads]
        for row, head in zip(rows, (before, *(head.head for head in heads)), strict=True):
            of = measured(tested, head, means)[1]
            row |= {"nec": of["nec"], "ncc": of["ncc"], "test": of["accuracy"]}
        dense = max((row["validation"], -number) for number, row in enumerate(rows) if row["target"] is None)[1]
        dense = -dense  # of equals the trained one
        for row, hits in zip(rows, right, strict=True):
            row |= fewer_right(right[dense], hits)
        sparse = [row for row in rows if row["target"] is not None]
        enough = len(held) >= FEWEST
        if per_class == "auto":
            sparse = [row for row in sparse if enough and _is_near(row)]
        kept = sparse[0] if sparse else rows[dense if enough else 0]
        rows = [{**row, "kept": row is kept} for row in rows]
        distinct = int(same.distinct.sum())
        said = {"asked": per_class, "near": NEAR, "images": len(held), "distinct": distinct, "rows": rows}
        if kept["kind"] == "trained" and distinct == codes.concepts:
            record = {**run.record, "heads": said}
            write_atomic(run.path / RECORD, sealed(record))
            return replace(run, record=record)
        if kept["kind"] == "trained":
            return _with_head(run, images, own, {"what": "one weight a concept"}, said, Path(folder) / "run")
        (chosen,) = (head for head in heads if head.target == kept["target"])
        about = {"what": "sparse", "target": chosen.target, "strength": chosen.strength, "ridge": chosen.ridge}
        return _with_head(run, images, chosen.head, about, said, Path(folder) / "run")


def keep_trained(run: Run) -> Run:
    """The run, whose record says that its head was asked to stay as it was trained."""
    record = {**run.record, "heads": {"asked": 0, "rows": []}}
    write_atomic(run.path / RECORD, sealed(record))
    return replace(run, record=record)


def fewer_right(dense: Bool[np.ndarray, " images"], other: Bool[np.ndarray, " images"]) -> dict[str, Any]:
    """How much less accurate one head is than another on the same images, with a 95% interval.

        (b - c) / (n + 2) +- 1.96 sqrt(b + c + 1 - (b - c)^2 / (n + 2)) / (n + 2)

    b of the n images only the first head gets right, c only the other. Heads that agree on few images are not the same
    for sure: half an image is added to each of the four cases.

    Args:
        dense, other: whether each head is right on each image.

    Returns:
        "cost", (b - c) / n; "error", the square root above, of n + 2; "interval", its two ends.

    Source: Agresti and Min 2005.
    """
    lost, gained, count = int((dense & ~other).sum()), int((other & ~dense).sum()), len(dense) + 2
    less = (lost - gained) / count
    error = sqrt(lost + gained + 1 - less * (lost - gained)) / count
    cost = (lost - gained) / len(dense)
    return {"cost": cost, "error": error, "interval": [less - INTERVAL * error, less + INTERVAL * error]}


def _is_near(row: Mapping[str, Any]) -> bool:
    """Whether a head costs no more than reading is worth, as far as its images say."""
    return row["cost"] <= NEAR + 1e-9 and row["cost"] + row["error"] <= 2 * NEAR


def _with_head(
    run: Run, images: Images, head: Head, about: Mapping[str, Any], said: Mapping[str, Any], aside: Path
) -> Run:
    """The run with another head, made aside and then written over it."""
    made = measured_run(run, aside, lambda out, m: write_with_head(run, out, head, about, m), images)
    record = {**run.record, "metrics": made.record["metrics"], "heads": said}
    record |= {entry: made.record[entry] for entry in HASHED.values() if entry in made.record}
    write_atomic(run.path / RECORD, sealed({**run.record, "status": "running"}))  # files and record change together
    return replace(made.in_memory(), record=record).save(run.path)


def about_heads(heads: Mapping[str, Any]) -> str:
    """Which head a run kept, and what that costs or would have cost, in a sentence."""
    rows, count = heads["rows"], heads["images"]
    of = f"of {count:,} validation images"

    def cost(row: Mapping[str, Any]) -> str:
        less, (low, high) = max(row["cost"], 0.0), row["interval"]
        if count < POINTS:
            return f"{round(less * count)} (95% interval {low * count:.0f} to {high * count:.0f})"
        return f"{100 * less:.1f} points (95% interval {100 * low:.1f} to {100 * high:.1f})"

    kept = next(row for row in rows if row["kept"])
    if kept["target"] is not None:
        less = cost(kept) if kept["cost"] > 0 else "no"
        return f"each class draws on at most {kept['target']} concepts: {less} fewer {of} right than with all"
    if heads["images"] < FEWEST:
        few = f"{heads['images']} validation images are too few to choose a sparser head by, it takes {FEWEST}"
        return f"each class draws on all concepts: {few}; --concepts-per-class {TRIED[0]} takes one all the same"
    sparse = [row for row in rows if row["target"] is not None]
    would = ", ".join(f"with at most {row['target']}, {cost(row)} fewer" for row in sparse)
    near = any(row["cost"] <= NEAR for row in sparse)
    why = ", which so few images do not tell from more than that" if near else ""
    choice = "--concepts-per-class takes one all the same"
    return f"each class draws on all concepts: {of} {would} would be right{why}; {choice}"
