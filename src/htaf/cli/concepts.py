"""`htaf concepts extract|score`: what the bits of a run of `htaf train icbm` mean."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from htaf._ground.console import UsageError, print_json, say, say_notes, say_unread
from htaf._ground.files import LOCK, check_output_folder, check_place, to_json, write_atomic
from htaf.cli.flags import NONE, DataDir, Json, Place, RunDir, needs_source
from htaf.cli.methods import MethodOfRun, step_of_run
from htaf.cli.tables import show
from htaf.concepts.codes import ConceptError, MissingPartError, PartName
from htaf.data.notes import new_sentences

if TYPE_CHECKING:
    from htaf.concepts.store import CodesFolder
    from htaf.training.runs import Run

SCORES = "scores.json"
CodesDir = Annotated[
    Positional[Path], arg(help="Folder of codes, the bits of each image, as extract writes it.", metavar="CODES")
]
Out = Annotated[Path, arg(help="Folder: a new one, or that of a stopped command, to continue it.", metavar="DIR")]
ScoredPart = Annotated[PartName, arg(help="Which images are scored.")]


@contextlib.contextmanager
def offering_parts(part: PartName) -> Iterator[None]:
    """Where codes lack the part that --part says, say which they have."""
    try:
        yield
    except MissingPartError as error:
        if error.part != part or not error.present:
            raise
        raise ConceptError(f"{error}: give --part {' or '.join(error.present)}") from None


def of_images(run: Run) -> Run:
    """The run, if it was trained on images."""
    if not run.takes_images:
        raise UsageError(f"expected a run of `htaf train icbm`, {run.path} was trained on a table")
    return run


def own_images(run: Run, data_dir: str | None, instead: str) -> Any:
    """The images that a run was trained on; where it does not say which, the error says what to do instead."""
    with needs_source(instead):
        return of_images(run).data(data_dir=data_dir)


def extract(
    run: RunDir,
    *,
    out: Out,
    data: Place = None,
    files: Annotated[tuple[str, ...], arg(metavar="FILE ...", help_behavior_hint=NONE)] = (),
    parts: Annotated[tuple[PartName, ...], arg(help_behavior_hint="(default: train validation test)")] = (),
    keep: Annotated[
        tuple[Literal["bits", "margins", "features", "backbone"], ...],
        arg(help_behavior_hint="(default: margins up to 256 MB)"),
    ] = (),
    part_images: Annotated[int | None, arg(metavar="N")] = None,
    engine: Literal["local", "ray"] = "local",
    batch: int = 250,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Write the bits of images, and both networks' predictions, to a folder. Of a plain network (relu) its features.

    Of --files those that cannot be read are left out; the exit code is then 3.

    Args:
        data: Other labelled images of the same classes; none: the run's own.
        files: Images that are no set: files, folders of them, Parquet files.
        parts: Parts of the run's own images; other: training images that its recipe left out.
        keep: Beside the bits: features: pre-activations, 4 bytes for each concept and image; margins: the same in 2
            bytes, to order images by; bits: neither. backbone: no bits, but what the backbone gives.
        part_images: Images of a part, a multiple of 1,000; none: up to 10,000. A stopped command loses the part under
            way.
        engine: ray: on the nodes of the Ray cluster at RAY_ADDRESS, else on one of this machine alone.
        batch: Images at once.
    """
    if batch < 1:
        raise UsageError(f"--batch must be >= 1, got {batch}")
    if part_images is not None and part_images < 1:
        raise UsageError(f"--part-images must be >= 1, got {part_images}")
    if bool(data) + bool(files) + bool(parts) > 1:
        raise UsageError(
            "expected at most one of --data, --files and --parts, got more (--parts are of the run's own images)"
        )
    check_place(out / LOCK)
    from htaf.concepts import extract as room
    from htaf.training.runs import open_run

    opened = of_images(open_run(run, method=step_of_run(method)))
    images: Any = files
    if not files:
        images = own_images(opened, None, "give --data") if data is None else opened.other_data(data)
        say_notes(new_sentences(images.notes, opened.record["notes"]) if data is None else images.notes)
    with ExitStack() as stack:
        used, device = room.in_this_process, "auto"
        if engine == "ray":
            from htaf.concepts.ray_engine import connected

            used, device = stack.enter_context(connected(os.environ.get("RAY_ADDRESS") or None)), "cpu"
        found = room.extract(
            opened, images, out, keep=keep, parts=parts or None, part_images=part_images, engine=used, device=device,
            batch=batch, progress=True,
        )  # fmt: skip
    if files:
        say_notes(found.info["notes"])
    show_accuracies(found, out, json)
    left_out = found.info.get("unreadable", 0)
    say_unread(found.info.get("unreadable_files", []), len(found) + left_out, left_out)


def show_accuracies(found: CodesFolder, out: Path, json: bool) -> None:
    """Accuracy of each part of codes or features."""
    rows = found.accuracies()
    result = {"out": str(out), "images": len(found), "concepts": found.concepts, "parts": rows}
    if json:
        return print_json(result | {"notes": found.info.get("notes", [])})
    of = "concepts" if "bits" in found.columns else "features"
    title = f"{result['images']:,} images, {result['concepts']} {of}: accuracy"
    show(title, ("part", "images", "smooth", "exact"), [tuple(row.values()) for row in rows])
    return say(f"folder: {out}")


def score(
    codes: Annotated[Positional[Path], arg(help="Codes; or a run, whose codes are made in --out.", metavar="CODES")],
    *,
    part: ScoredPart = "test",
    out: Annotated[Path | None, arg(metavar="DIR")] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Score concepts: accuracy, dead concepts, concept accuracy, class specificity, redundancy, sparsity.

    Args:
        out: Also write scores.json to this folder.
    """
    from htaf.concepts.scores import score as scores_of
    from htaf.concepts.scores import shown, summary
    from htaf.concepts.store import open_folder
    from htaf.training.runs import open_run

    if out is not None:
        check_output_folder(out, [codes], own="folder of scores")
    with offering_parts(part):
        if not (codes / "record.json").is_file():
            own = open_folder(codes)
        elif out is None:
            raise UsageError(
                f"{codes} is a run: expected --out, where its codes are made, or codes of htaf concepts extract"
            )
        elif part == "other":  # which the recipe of a run leaves out
            raise MissingPartError(part, ("train", "validation", "test"))
        else:
            from htaf.concepts.extract import extract as make

            run = of_images(open_run(codes))
            own = make(run, own_images(run, data_dir, "give a folder of codes"), out / "codes", progress=True)
        scores = scores_of(own, scored=part)
    if out is not None:
        write_atomic(out / SCORES, to_json(scores))
    if json:
        return print_json(scores)
    rows = [(row["label"], shown(row)) for row in summary(scores)]
    show(f"{scores['concepts']} concepts, part {part}", ("score", "value"), rows)
    if out is not None:
        say(out / SCORES)
    return None
