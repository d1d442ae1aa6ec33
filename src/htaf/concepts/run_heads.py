"""Runs with another head: edited by hand, or the sparsest that is nearly as accurate as the dense one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from htaf._ground.files import sealed, write_atomic
from htaf.concepts.codes import ConceptError
from htaf.concepts.counts import labelled, pair_counts, same_bits
from htaf.concepts.extract import extract, kept_store
from htaf.concepts.heads import Edit, Head, correct, edit_pairs, effective, fewer_right, sparse_heads
from htaf.data.images import ImagePreprocessor, Images
from htaf.data.parts import Data, Part
from htaf.models.icbm import ICBM
from htaf.training.runs import HASHED, MODEL, RECORD, SMOOTH, Run, RunError, content_hash
from htaf.training.runs.features import FeatureBatches
from htaf.training.runs.predictions import measure
from htaf.training.runs.run import rows_of


def with_head(run: Run, change: Callable[[Tensor, Tensor], None], **record: Any) -> Run:
    """A run in memory with the same networks, whose heads were changed.

    Args:
        run: of an implicit concept bottleneck model.
        change: changes weight [K, C] and bias [K] in place, of the exact network and of a smooth one with weights of
            its own. record: more for its record.
    """
    files = dict(run.in_memory().held or {})
    for name in files.keys() & {MODEL, SMOOTH}:
        state = safetensors.torch.load(files[name])
        change(state["head.weight"], state["head.bias"])
        files[name] = safetensors.torch.save(state)
    hashes = {entry: hashlib.sha256(files[name]).hexdigest() for name, entry in HASHED.items() if name in files}
    return Run(Path("in memory"), {**run.record, **record, **hashes}, run.step, files)


def edited_run(run: Run, off: Sequence[Edit]) -> Run:
    """A run in memory: the same network with head weights w[class, concept] = 0, not measured again.

    Args:
        run: of an implicit concept bottleneck model. off: as for `edited`.

    Returns:
        the new run; its record says "edited": {"from", "key", "off"}.

    Raises:
        ConceptError: another network, or an edit that is not there.
    """
    known, model = run.preprocessor(), run.model(exact=run.has_own_smooth)
    if not isinstance(known, ImagePreprocessor) or not isinstance(model, ICBM):
        got = type(model).__name__
        raise ConceptError(f"{run.path}: expected an implicit concept bottleneck model on images, got {got}")
    pairs = edit_pairs(off, known.classes, model.size)

    def change(weight: Tensor, bias: Tensor) -> None:
        for label, concept in pairs:
            weight[label, concept] = 0

    shown = ", ".join(f"concept {concept} of class {label}" for label, concept in pairs)
    none = "" if any(model.head.weight[pair] for pair in pairs) else "; it had none before"
    note = f"head of the run at {run.path} edited: no weight for {shown}{none}"
    edit = {"key": run.record["key"], "sha256": run.record["model_sha256"], "off": [list(pair) for pair in pairs]}
    return with_head(
        run, change, key=content_hash(edit), edited=edit | {"from": str(run.path)}, notes=[*run.record["notes"], note]
    )


def edit_run(
    run: Run, out: str | Path, off: Sequence[Edit], *, data: Data | None = None, data_dir: str | None = None
) -> Run:
    """Write `edited_run` to a folder, with both networks measured again on validation and test images.

    Args:
        run, off: as `edited_run`.
        out: a new or empty folder, or one that holds the same edit of the same run.
        data: the run's own, from `run.data()`; None: read them.
        data_dir: a folder with the public sets.
    Raises:
        RunError: other data than the run's own, or a folder that holds another run; UnknownSourceError: the run does
            not say where its data came from. DataError: they cannot be read. ConceptError: as `edited_run`.
    """
    made = edited_run(run, off)  # an edit that cannot be is refused before reading
    return measured_again(made, run.data(data_dir=data_dir) if data is None else data).save(out)


def measured_again(run: Run, data: Data) -> Run:
    """The run, with both networks measured on validation and test images."""
    found = {part: _figures(run, part, data) for part in ("validation", "test")}
    metrics = {kind: {part: result[kind] for part, result in found.items()} for kind in ("smooth", "exact")}
    metrics |= {} if run.has_step else {"exact": None}
    return replace(run, record={**run.record, "metrics": metrics})


def _figures(run: Run, part: Literal["validation", "test"], data: Data) -> dict[str, Any]:
    """As `Run.evaluate` of both networks: on what the frozen backbone gave of the images, where that is kept."""
    if run.record["model"].get("freeze") and run.has_step and not run.has_own_smooth and isinstance(data, Images):
        side, rows = rows_of(run, data)[part]
        of = data.train if side == "train" else data.test
        if (store := kept_store(run, of, rows)) is not None:
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
POINTS = 100  # validation images: of fewer, images are told in place of points
FEWEST = 10  # validation images
ENOUGH = 500  # training images: of fewer, bits that correlate need not do so on others


def keep_readable(run: Run, images: Images, per_class: PerClass = "auto") -> Run:
    """Fit heads of few and of all concepts a class to the exact bits of a run, and give the run one of them.

    Bits that say the same of the training images are one concept (`same_bits`), which one of them stands for: the
    others get no weight, in the head as it was trained neither, where there are `ENOUGH` images to say so.

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
        "validation", "test", "nec", "kept", and `fewer_right` of validation images beside the best dense head.

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
        codes = extract(run, images, Path(folder) / "codes").codes()
        heads = sparse_heads(codes, (*targets, None), seed=run.record["seed"])
        training = labelled(codes, "train")
        same = same_bits(pair_counts(training), len(training))
        before = Head(codes.weight.astype(np.float64), codes.bias.astype(np.float64))
        own = Head(*same.folded(before.weight, before.bias)) if len(training) >= ENOUGH else before
        held = labelled(codes, "validation")
        right = [correct(held, own), *(head.right for head in heads)]
        tested = labelled(codes, "test")
        rows: list[dict[str, Any]] = [{"kind": "trained", "target": None, "validation": float(right[0].mean())}]
        rows += [{"kind": "fitted", "target": head.target, "validation": head.validation} for head in heads]
        for row, head in zip(rows, (own, *(head.head for head in heads)), strict=True):
            row |= {"nec": effective(head.weight), "test": float(correct(tested, head).mean())}
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
        if kept["kind"] == "trained" and (own is before or distinct == codes.concepts):
            record = {**run.record, "heads": said}
            write_atomic(run.path / RECORD, sealed(record))
            return replace(run, record=record)
        fitted = {head.target: head.head for head in heads}
        return _with_head(run, images, own if kept["kind"] == "trained" else fitted[kept["target"]], said)


def keep_trained(run: Run) -> Run:
    """The run, whose record says that its head was asked to stay as it was trained."""
    record = {**run.record, "heads": {"asked": 0, "rows": []}}
    write_atomic(run.path / RECORD, sealed(record))
    return replace(run, record=record)


def _is_near(row: Mapping[str, Any]) -> bool:
    """Whether a head costs no more than reading is worth, as far as its images say."""
    return row["cost"] <= NEAR + 1e-9 and row["cost"] + row["error"] <= 2 * NEAR


def _with_head(run: Run, images: Images, head: Head, said: Mapping[str, Any]) -> Run:
    """The run with another head, made in memory and then written over it."""

    def change(weight: Tensor, bias: Tensor) -> None:
        weight.copy_(torch.from_numpy(head.weight))
        bias.copy_(torch.from_numpy(head.bias))

    made = measured_again(with_head(run, change, heads=said), images)
    write_atomic(run.path / RECORD, sealed({**run.record, "status": "running"}))  # files and record change together
    return made.save(run.path)


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
    choice = "--concepts-per-class takes one all the same"
    if heads["images"] < FEWEST:
        few = f"{heads['images']} validation images are too few to choose a sparser head by, it takes {FEWEST}"
        return f"each class draws on all concepts: {few}; {choice}"
    sparse = [row for row in rows if row["target"] is not None]
    would = ", ".join(f"with at most {row['target']}, {cost(row)} fewer" for row in sparse)
    near = any(row["cost"] <= NEAR for row in sparse)
    why = ", which so few images do not tell from more than that" if near else ""
    return f"each class draws on all concepts: {of} {would} would be right{why}; {choice}"
