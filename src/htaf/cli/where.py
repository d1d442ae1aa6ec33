"""`htaf concepts where`: maps over pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from htaf._ground.console import UsageError, print_json, say
from htaf._ground.files import check_output_folder
from htaf.cli.concepts import Out, ScoredPart, of_images, own_images
from htaf.cli.flags import Concepts, DataDir, Device, Json, Place, RunDir
from htaf.cli.methods import MethodOfRun, step_of_run
from htaf.cli.tables import show


def where(
    run: RunDir,
    *,
    codes: Annotated[Path, arg(metavar="CODES")],
    out: Out,
    concept: Concepts = (),
    image: Annotated[str | None, arg(metavar="ID")] = None,
    count: int = 12,
    part: ScoredPart = "test",
    data: Place = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Draw where in its images a concept is seen, from the strongest to the barely on; with an index.

    Args:
        codes: Codes of the run, from extract.
        concept: Numbers of concepts; none: the five most important.
        image: Id or row of an image: its concepts instead of a concept's images.
        count: Images of each concept, or concepts of the image.
        data: The images, where the codes are not of the run's own; none: the run's own.
        device: Where the network runs.
    """
    if count < 1:
        raise UsageError(f"--count must be >= 1, got {count}")
    from htaf.concepts.sparsity import most_important
    from htaf.concepts.store import open_codes
    from htaf.concepts.where import INDEX, write_where
    from htaf.training.runs import open_run

    check_output_folder(out, [codes, run], own="folder of maps")
    known = open_codes(codes)
    if image is not None:
        known.row(image)  # before anything slow
    opened = of_images(open_run(run, method=step_of_run(method)))
    images: Any = None
    if data is not None:
        images = opened.other_data(data, data_dir=data_dir)
    elif known.info.get("settings", {}).get("data") != "files":
        images = own_images(opened, data_dir, "give --data")
    chosen = concept or (() if image is not None else tuple(most_important(known)[:5].tolist()))
    lines = write_where(
        opened, images, codes, out, concepts=chosen, image=image, count=count, part=part, device=device, progress=True
    )
    if json:
        return print_json(lines)
    rows = [(line["concept"], line["image"], line["margin"], line["share"]) for line in lines]
    show("maps", ("concept", "image", "margin", "share in box"), rows[:40])
    if len(rows) > 40:
        say(f"{len(rows) - 40:,} more")
    return say(f"index: {out / INDEX}")
