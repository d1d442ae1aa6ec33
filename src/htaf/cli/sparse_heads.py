"""`htaf concepts sparse`: heads in which each class draws on few concepts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from htaf._ground.console import UsageError, check_seed, print_json, say, say_notes, tell
from htaf._ground.files import check_output_folder
from htaf.cli.concepts import ScoredPart, of_images, own_images
from htaf.cli.flags import CodesOf, DataDir, Folder, Json, RunDir
from htaf.cli.methods import MethodOfRun, step_of_run
from htaf.cli.tables import Rows, show

if TYPE_CHECKING:
    from htaf.concepts.codes import Codes
    from htaf.concepts.heads import SparseHead
    from htaf.training.runs import Run

RESULT, CODES = "sparse.json", "codes"
DEFAULT = (5, 10)
CHOOSING = {"train": "fits", "validation": "chooses"}  # parts whose accuracy says too much


def sparse(
    run: RunDir,
    *,
    out: Folder,
    codes: CodesOf = None,
    nec: Annotated[tuple[int, ...], arg(metavar="N ...", help_behavior_hint="(default: 5 10)")] = (),
    seed: int = 0,
    part: ScoredPart = "test",
    save_run: Annotated[Path | None, arg(metavar="DIR")] = None,
    data_dir: DataDir = None,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Fit heads in which each class draws on few concepts.

    Says NEC (concepts of a class), NCC (concepts that make up 95% of a logit) and the accuracy at each size.

    Args:
        out: Folder of the result: a new one, or an earlier one.
        codes: Codes of this run; none: DIR/codes, made or finished where needed.
        nec: Most concepts of a class; all of them are tried besides.
        seed: Of the training images that a head is fitted to, where there are many.
        save_run: Also write a run with the sparse head of the first --nec.
    """
    check_seed(seed)
    check_output_folder(out, [run, *([codes] if codes else [])], own="folder of sparse heads")
    if save_run is not None:
        check_output_folder(save_run, [run, out], own="run", flag="--save-run")
    from htaf._ground.files import to_json, write_atomic
    from htaf.concepts.heads import scored_heads
    from htaf.training.runs import open_run

    opened = of_images(open_run(run, method=step_of_run(method)))
    limits = limits_of(opened, nec)
    images: Any = None
    if codes is None or save_run is not None:
        images = own_images(opened, data_dir, "give --codes alone, without --save-run")
    own = codes_of_run(opened, codes, images, out / CODES, True)
    say_choosing(part)
    found, heads = scored_heads(own, (*limits, None), part=part, seed=seed, progress=tell)
    result = {"run": str(run), "key": opened.record["key"], **found}
    write_atomic(out / RESULT, to_json(result))
    saved = None if save_run is None else _saved(opened, save_run, heads[0], images)
    if json:
        return print_json(result | ({} if saved is None else {"save_run": saved}))
    _shown(result)
    if saved is not None:
        say(f"run folder: {save_run}; accuracy on test (exact): {saved['exact']['test']['accuracy']:.4f}")
    return say(f"result: {out / RESULT}")


def limits_of(run: Run, nec: tuple[int, ...]) -> list[int]:
    """Most concepts of a class: those that are given, or 5 and 10 where there are more concepts.

    Raises:
        UsageError: fewer than one, or more than there are.
    """
    if min(nec, default=1) < 1:
        raise UsageError(f"--nec must be numbers >= 1, got {' '.join(map(str, nec))}")
    size = getattr(run.model(), "size", max(nec, default=1))
    if max(nec, default=1) > size:
        raise UsageError(f"--nec must be in 1 to {size}, the number of concepts, got {max(nec)}")
    return [*dict.fromkeys(nec or [n for n in DEFAULT if n < size] or [size])]


def codes_of_run(run: Run, given: Path | None, images: Any, out: Path, progress: bool) -> Codes:
    """The codes that are given, or those of the run's images, made or finished in a folder.

    Raises:
        UsageError: codes of another run, or of other concepts than its own.
    """
    from htaf.concepts.codes import ConceptError
    from htaf.concepts.extract import expect_same_weights, extract
    from htaf.concepts.store import open_codes

    if not run.has_step:
        raise ConceptError(
            f"{run.path} is a plain network (method relu), which has no bits: expected a run of a method with a step"
        )
    if given is None:
        return extract(run, images, out, progress=progress).codes()
    codes = open_codes(given)
    settings = codes.info.get("settings", {})
    if settings.get("what") != "extraction" or settings.get("run") != run.record["key"]:
        raise UsageError(
            f"--codes: expected the run's own concepts, codes of the run {run.path}, got codes of another, or of other "
            "concepts: extract them from this one"
        )
    expect_same_weights(run, codes, given)
    return codes


def say_choosing(part: str) -> None:
    """A note where the images of a part choose the heads."""
    if part in CHOOSING:
        say_notes([f"the {part} part {CHOOSING[part]} the heads: its accuracy is too high, the test part's is not"])


def _saved(run: Run, out: Path, found: SparseHead, images: Any) -> dict[str, Any]:
    """Write a run with a sparse head; its metrics."""
    from htaf.concepts.run_heads import measured_run, write_with_head

    about = {"what": "sparse", "target": found.target, "strength": found.strength, "ridge": found.ridge}
    note = f"head of the run at {run.path} replaced by a sparse one: at most {found.target} concepts a class"
    made = measured_run(run, out, lambda place, m: write_with_head(run, place, found.head, about, note, m), images)
    return made.record["metrics"]


def show_heads(heads: Mapping[str, Any]) -> None:
    """The heads that were tried for a run, and which one it has: what `htaf.concepts.run_heads` records."""
    from htaf.concepts.run_heads import about_heads

    rows: Rows = [
        (
            row["kind"],
            row["target"] or "all",
            row["validation"],
            row["test"],
            f"{row['nec']:.1f}",
            "kept" if row["kept"] else "",
        )
        for row in heads["rows"]
    ]
    columns = ("head", "at most, a class", "validation", "test", "concepts a class", "")
    show("How many concepts a class draws on, and the accuracy with exact bits", columns, rows)
    say(about_heads(heads))


def _shown(result: Mapping[str, Any]) -> None:
    own = result["own_head"]
    rows: Rows = [
        ("own head", "all", own["accuracy"], own["nec"], own["ncc"]),
        *(("sparse", row["target"] or "all", row["accuracy"], row["nec"], row["ncc"]) for row in result["rows"]),
    ]
    title = f"{result['concepts']} concepts, {result['classes']} classes, part {result['part']}"
    show(title, ("head", "concepts a class", "accuracy", "NEC", "NCC"), rows)
