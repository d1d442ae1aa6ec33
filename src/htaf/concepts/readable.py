"""Which head a run keeps: the sparsest that is nearly as accurate as the dense one, so that decisions can be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from htaf._files import sealed, write_atomic
from htaf.concepts.codes import ConceptError
from htaf.concepts.counts import labelled, pair_counts
from htaf.concepts.edit_head import measured_run, write_with_head
from htaf.concepts.extract import extract
from htaf.concepts.heads import Head, correct, scored_heads
from htaf.concepts.redundancy import same_bits
from htaf.data.images import Images
from htaf.runs import HASHED, RECORD, Run, RunError

PerClass = int | Literal["auto"]
TRIED = (5, 10)  # most concepts of a class
NEAR = 0.02  # of accuracy on validation images, that reading a decision may cost; and twice that, with a standard error
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
        "validation", "test", "nec", "ncc", "kept", "cost" (of validation accuracy, beside the best dense head) and its
        standard "error".

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
        result, heads = scored_heads(codes, (*targets, None), seed=run.record["seed"])
        training = labelled(codes, "train")
        same = same_bits(pair_counts(training), len(training))
        own = Head(*same.folded(codes.weight.astype(np.float64), codes.bias.astype(np.float64)))
        held = labelled(codes, "validation")
        right = [correct(held, head) for head in (own, *(head.head for head in heads))]
        trained = {"kind": "trained", "target": None, "validation": float(right[0].mean())}
        rows: list[dict[str, Any]] = [
            {**one, **{name: of[name] for name in ("nec", "ncc")}, "test": of["accuracy"]}
            for one, of in (
                (trained, result["own_head"]),
                *(
                    ({"kind": "fitted", "target": head.target, "validation": head.validation}, row)
                    for head, row in zip(heads, result["rows"], strict=True)
                ),
            )
        ]
        dense = max((row["validation"], -number) for number, row in enumerate(rows) if row["target"] is None)[1]
        dense = -dense  # of equals the trained one
        for row, hits in zip(rows, right, strict=True):
            less = right[dense].astype(np.float64) - hits
            row["cost"], row["error"] = float(less.mean()), float(less.std() / np.sqrt(len(less)))
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


def _is_near(row: Mapping[str, Any]) -> bool:
    """Whether a head costs no more than reading is worth, as far as its images say."""
    return row["cost"] <= NEAR + 1e-9 and row["cost"] + row["error"] <= 2 * NEAR


def _with_head(
    run: Run, images: Images, head: Head, about: Mapping[str, Any], said: Mapping[str, Any], aside: Path
) -> Run:
    """The run with another head, made aside and then written over it."""
    made = measured_run(run, aside, lambda out, m: write_with_head(run, out, head, about, "", m), images)
    record = {**run.record, "metrics": made.record["metrics"], "heads": said}
    record |= {entry: made.record[entry] for entry in HASHED.values() if entry in made.record}
    write_atomic(run.path / RECORD, sealed({**run.record, "status": "running"}))  # files and record change together
    return replace(made.in_memory(), record=record).save(run.path)


def about_heads(heads: Mapping[str, Any]) -> str:
    """Which head a run kept, and what that costs or would have cost, in a sentence."""
    rows, count = heads["rows"], heads["images"]
    of = f"of {count:,} validation images"

    def cost(row: Mapping[str, Any]) -> str:
        less, error = max(row["cost"], 0.0), row["error"]
        if count < POINTS:
            return f"{round(less * count)} (standard error {error * count:.1f})"
        return f"{100 * less:.1f} points (standard error {100 * error:.1f})"

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
