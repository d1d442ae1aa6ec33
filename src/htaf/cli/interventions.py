"""`htaf concepts counterfactuals|intervene|edit|neighbours`: bits turned by hand, and images alike in them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import UseAppendAction, arg

from htaf._console import UsageError, print_json, say, say_notes
from htaf.cli.concepts import CodesDir, ScoredPart, offering_parts
from htaf.cli.flags import DataDir, Folder, Json, RunDir, needs_source
from htaf.cli.methods import MethodOfRun, step_of_run
from htaf.cli.tables import show

if TYPE_CHECKING:
    from htaf.concepts.codes import Codes


def _row(codes: Codes, image: str) -> int:
    """The row of an image."""
    from htaf.concepts.codes import ConceptError

    try:
        return codes.row(image)
    except ConceptError as error:
        raise UsageError(str(error)) from None


def counterfactuals(
    codes: CodesDir,
    *,
    image: Annotated[str | None, arg(metavar="ID")] = None,
    target: Annotated[str | None, arg(metavar="CLASS")] = None,
    seconds: float = 10.0,
    json: Json = False,
) -> None:
    """Find the counterfactual of an image: the fewest bits to flip so that another class has the highest logit.
    Without --image: list images whose class the exact network gets wrong.

    Args:
        image: Id of an image, as the codes have it, or its row number; none: list the misclassified test images.
        target: Class to reach, by name or number; none: the image's label.
        seconds: Most seconds to search for a smaller set of flips.
    """
    from htaf.concepts.codes import class_number
    from htaf.concepts.counterfactuals import counterfactual
    from htaf.concepts.store import open_codes

    opened = open_codes(codes)
    if image is None:
        return _wrong(opened, json)
    row = _row(opened, image)
    wanted = None if target is None else class_number(opened.classes, target)
    found = counterfactual(opened, row, wanted, time_limit=seconds)
    result = found.to_json(opened)
    if json:
        return print_json(result)
    if result["flips"] is None:
        known = "no flips reach it" if found.feasible is False else f"none found; at least {found.lower} are needed"
        return say(f"{result['image']}: {result['predicted']} -> {result['target']}: {known}")
    how = "proven the fewest" if found.proven else f"at least {found.lower} are needed"
    count = len(result["flips"])
    said = "is already reached" if not count else f"takes {count} {'flip' if count == 1 else 'flips'}, {how}"
    title = f"{result['image']}: predicted {result['predicted']}; {result['target']} {said}"
    return show(title, ("concept", "from", "to"), [tuple(flip.values()) for flip in result["flips"]])


MOST_WRONG = 20


def _wrong(codes: Codes, json: bool) -> None:
    """The misclassified test images."""
    found = [
        {
            "image": codes.ids[row],
            "true": codes.classes[codes.labels[row]],
            "predicted": codes.classes[codes.exact[row]],
        }
        for row in codes.misclassified("test").tolist()
    ]
    if json:
        return print_json(found)
    title = f"{len(found)} misclassified test images" + (f", the first {MOST_WRONG}" if len(found) > MOST_WRONG else "")
    return show(title, ("image", "true", "predicted"), [tuple(entry.values()) for entry in found[:MOST_WRONG]])


def intervene(
    codes: CodesDir,
    *,
    order: Literal["random", "importance"] = "random",
    points: Annotated[tuple[int, ...], arg(metavar="N ...", help_behavior_hint="(default: 0 1 2 4 ...)")] = (),
    seeds: int = 5,
    part: ScoredPart = "test",
    json: Json = False,
) -> None:
    """Set bits to what most images of the true class have, and see what that does to the accuracy.

    Args:
        order: Order in which bits are set; importance: largest weight first.
        points: How many bits are set, for each row.
        seeds: Random orders to average over.
    """
    from htaf.concepts.intervene import doubling, intervention_curve
    from htaf.concepts.store import open_codes

    opened = open_codes(codes)
    chosen = points or doubling(opened.concepts)
    with offering_parts(part):
        curve = intervention_curve(opened, order=order, seeds=seeds, points=chosen, scored=part).to_json()
    if json:
        return print_json(curve)
    columns = ("points", "accuracy", "accuracy_sd", "changed")
    rows = list(zip(*(curve[column] for column in columns), strict=True))
    title = f"{curve['images']:,} images, {order} order"
    return show(title, ("bits set", "accuracy", "sd over seeds", "bits changed"), rows)


def edit(
    run: RunDir,
    *,
    off: Annotated[
        UseAppendAction[tuple[tuple[str, ...], ...]], arg(metavar="CLASS:CONCEPT ...", help_behavior_hint="(required)")
    ],
    out: Folder,
    data_dir: DataDir = None,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Write a new run whose head has some weights at 0, measured again on validation and test images.

    Args:
        off: Weight of a class, by name or number, and a concept, to be 0. May be given again. A class that begins with
            -: --off=-NAME:CONCEPT.
        out: New run folder.
    """
    edits: list[tuple[int | str, int]] = []
    for text in itertools.chain(*off):
        label, colon, concept = text.rpartition(":")
        if not colon or not label or not concept.isdecimal():
            raise UsageError(f"--off: expected CLASS:CONCEPT with the concept's number, such as 3:17, got {text!r}")
        edits.append((label, int(concept)))
    if not edits:
        raise UsageError("--off: expected at least one CLASS:CONCEPT, got none")
    from htaf.concepts.edit_head import edit_run
    from htaf.runs import open_run

    opened = open_run(run, method=step_of_run(method))
    with needs_source("edit it in Python, with htaf.concepts.edit_head.edit_run"):
        made = edit_run(opened, out, edits, data_dir=data_dir)
    if json:
        return print_json(made.record)
    primary, before, metrics = made.record["headline"], opened.record["metrics"], made.record["metrics"]
    kind = "exact" if opened.has_step else "smooth"
    rows = [(part, before[kind][part][primary], metrics[kind][part][primary]) for part in ("validation", "test")]
    show(f"{primary} ({kind}), {len(edits)} weights set to 0", ("part", "before", "after"), rows)
    say_notes(made.record["notes"][-1:])
    return say(f"run folder: {out}")


def neighbours(
    codes: CodesDir,
    *,
    image: Annotated[str, arg(metavar="ID")],
    k: Annotated[int, arg(aliases=("-k",))] = 10,
    json: Json = False,
) -> None:
    """List the images whose bits differ least from those of an image.

    Args:
        image: Id of an image, as the codes have it, or its row number.
        k: How many images to list.
    """
    from htaf.concepts.nearest import nearest_to
    from htaf.concepts.store import open_codes

    opened = open_codes(codes)
    distances, rows = nearest_to(opened, _row(opened, image), k)
    found = [
        {
            "image": opened.ids[row],
            "row": row,
            "distance": distance,
            "class": opened.classes[opened.labels[row]] if opened.labels[row] >= 0 else None,
            "predicted": opened.classes[opened.exact[row]],
        }
        for distance, row in zip(distances.tolist(), rows.tolist(), strict=True)
    ]
    if json:
        return print_json(found)
    rows_ = [tuple(entry.values()) for entry in found]
    return show(f"nearest to {image}", ("image", "row", "bits that differ", "class", "predicted"), rows_)
