"""`htaf concepts counterfactuals|edit`: bits and weights turned by hand."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated

from tyro.conf import UseAppendAction, arg

from htaf._console import UsageError, print_json, say, say_notes
from htaf.cli.concepts import CodesDir
from htaf.cli.flags import DataDir, Folder, Json, RunDir, needs_source
from htaf.cli.methods import MethodOfRun, step_of_run
from htaf.cli.tables import show

if TYPE_CHECKING:
    from htaf.concepts.codes import Codes


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
    from htaf.concepts.codes import ConceptError, class_number
    from htaf.concepts.counterfactuals import counterfactual
    from htaf.concepts.store import open_codes

    opened = open_codes(codes)
    if image is None:
        return _wrong(opened, json)
    try:
        row = opened.row(image)
    except ConceptError as error:
        raise UsageError(str(error)) from None
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
