"""`htaf concepts find`: a concept of one's own, from images with it and images without."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from htaf._ground.console import UsageError, print_json, say, say_notes, say_unread
from htaf._ground.files import check_output_folder
from htaf.cli.concepts import of_images
from htaf.cli.flags import Device, Json, RunDir
from htaf.cli.methods import MethodOfRun, step_of_run


def find(
    run: RunDir,
    *,
    with_: Annotated[tuple[Path, ...], arg(name="with", metavar="INPUT ...", help_behavior_hint="(required)")],
    without: Annotated[tuple[Path, ...], arg(metavar="INPUT ...", help_behavior_hint="(required)")],
    out: Annotated[Path | None, arg(metavar="DIR")] = None,
    device: Device = "auto",
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Find a concept of your own: the bit or the direction that follows it, by chance or not, and whether it is used.

    Args:
        with_: Images with the concept: files or folders, 20 or so. The same names on both sides make pairs.
        without: Images without it.
        out: Also write found.json and images.png.
        device: Where the network runs.
    """
    for flag, given in (("--with", with_), ("--without", without)):
        if not given:
            raise UsageError(f"expected image files or folders for {flag}, got none")
    if out is not None:
        from htaf.data.image_sets import expect_outside

        check_output_folder(out, [run, *with_, *without], own="found concept")
        for flag, given in (("--with", with_), ("--without", without)):
            for place in given:
                expect_outside(out, str(place.absolute()), flag)  # a folder may have the name of a set
    from htaf.concepts.finding_report import RECORD, find_in_run, read_sides
    from htaf.training.runs import open_run

    opened = of_images(open_run(run, method=step_of_run(method)))
    sides = read_sides(opened, with_, without)
    say_notes(sides.notes)
    result = find_in_run(opened, sides, out, device=device)
    say_notes(result["notes"])
    if json:
        print_json(result)
    else:
        for name, line in result["answers"].items():
            say(f"{name}: {line}")
        if out is not None:
            say(f"result: {out / RECORD}")
    say_unread(sides.unread, len(sides.names) + len(sides.unread))
