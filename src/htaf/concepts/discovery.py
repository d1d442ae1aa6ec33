"""From a folder of images to the page of its concepts, every step in one folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from htaf._ground.console import say_notes, tell
from htaf._ground.errors import HtafError
from htaf._ground.files import to_json, write_atomic
from htaf.concepts.codes import Codes
from htaf.concepts.counts import FEWEST_CLASSES
from htaf.concepts.explorer.run_page import build_run_page
from htaf.concepts.explorer.shown import Shown
from htaf.concepts.extract import extract
from htaf.concepts.known import keep_known
from htaf.concepts.run_heads import PerClass, keep_readable
from htaf.concepts.scores import score
from htaf.concepts.where import Pictures
from htaf.data.image_sets import expect_outside, is_named, load
from htaf.training.distributed import default_threads, thread_count
from htaf.training.families.icbm import FAMILY, ICBMNetwork
from htaf.training.fit import check, fit
from htaf.training.problems import resolved
from htaf.training.recipe import Recipe, Running, Source
from htaf.training.runs import Run


@dataclass(frozen=True)
class Discovery:
    """The concepts of a folder of images.

    Attributes:
        run: the trained network. codes: the bits of all images. page: open it in a browser.
        summary: as JSON values: accuracies, "dead" concepts, "steps" with the seconds of each, "names"; "example", the
            id of a test image and its file, None of a set that has no files.
    """

    run: Run
    codes: Codes
    page: Path
    summary: dict[str, Any] = field(repr=False)


def recipe_of(recipe: Recipe | str, fields: Mapping[str, Any]) -> Recipe:
    """A recipe of an ICBM, or a ready one by its name, with other values of some fields.

    Raises:
        HtafError: no such recipe, backbone or field, or a bad value; what it needs is not installed.
    """
    try:
        made = (FAMILY.ready(recipe) if isinstance(recipe, str) else recipe).replace(**fields)
    except (ValueError, OSError) as error:
        raise HtafError(str(error)) from None
    check(made)
    return made


def discover(
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    recipe: Recipe | str = "frozen",
    *,
    seed: int = 0,
    size: int | None = None,
    data_dir: str | None = None,
    name: Callable[[Codes, Path], Any] | None = None,
    per_class: PerClass | None = None,
    shown: Shown = Shown(),  # noqa: B008
    progress: bool = False,
    **fields: Any,
) -> Discovery:
    """Train an ICBM on images, keep a head that can be read, extract codes, score, name where something names, write
    the page: what `htaf demo --data` does.

        found = htaf.discover("photos", "out", concepts=64)
        found.page, found.codes.unpack(), found.run.predict_images(["a.jpg"])

    What is finished is kept: a stopped call is continued when it is made again. Writes under `out`: icbm, the run;
    codes; concepts, the scores; names.json where there are names; explorer, the page.

    Args:
        data: a folder with one folder of images for each class, or a set's name.
        recipe: of family icbm, or the name of a ready one: frozen is a head of bits on a pretrained backbone, which is
            downloaded once; small learns from these images alone.
        seed: of first weights, batches and the validation part. data_dir: a folder with the public sets.
        size: of the images, as `htaf.data.image_sets.load` takes it.
        name: finds names for the concepts of codes and writes them to a file.
        per_class: most concepts that a class draws on; "auto": 5, 10 or all, the fewest within two points of all on
            validation images; 0: the head as it was trained; None: "auto" over a frozen backbone, else 0.
        shown: how much is on the page. progress: steps, bars and notes on the error stream.
        fields: of the recipe: concepts, epochs, backbone, pretrained, depth, width, lr and others.

    Raises:
        HtafError: no such recipe or field; `out` lies in the images; else of the data, the training or the naming.
    """
    data, out = os.fspath(data), Path(out)
    recipe = recipe_of(recipe, fields)
    expect_outside(out, data)
    steps: dict[str, float] = {}

    def step(name: str, work: Callable[[], Any]) -> Any:
        begun = time.monotonic()
        if progress:
            tell(f"{name} ...")
        made = work()
        steps[name] = round(time.monotonic() - begun, 2)
        return made

    images = step("read", lambda: load(data, size=size, data_dir=data_dir))
    recipe, why = resolved(recipe, images)
    if progress:
        say_notes([*images.notes, *why, *about_names(recipe, len(images.classes))])
    source = Source(data.lower() if is_named(data) else data, size=size).remembered(data_dir, images=True)

    def train() -> Run:
        with thread_count(default_threads(recipe)):
            running = Running(progress=progress)
            return fit(recipe, images, out / "icbm", seed=seed, source=source, notes=why, running=running)

    def codes_of_run() -> Codes:
        keep_known(run, images)  # of the run with the head that it keeps
        return extract(run, images, out / "codes", progress=progress).codes()

    run: Run = step("train", train)
    settled = (
        per_class is None and "heads" not in run.record and (out / "codes").exists()
    )  # codes know their run's head
    kept = 0 if settled else kept_per_class(run, per_class, recipe)
    if kept != 0:
        run = step("heads", lambda: keep_readable(run, images, kept))
    codes = step("extract", codes_of_run)
    scores = step("score", lambda: score(codes))
    write_atomic(out / "concepts" / "scores.json", to_json(scores))
    names: Path | None = None
    if name is not None:
        names = out / "names.json"
        step("name", lambda: name(codes, names))
    page = step(
        "page",
        lambda: build_run_page(
            run, out / "codes", out / "explorer", names=names, shown=shown, data_dir=data_dir, progress=progress
        ),
    )
    if progress:
        of_explore = "htaf concepts name"  # the note that tells how to find names, with flags of other verbs
        told = [note for note in page["notes"] if note not in images.notes and of_explore not in note]
        told.sort(key=lambda note: "no concepts beyond" not in note)  # the first thing to know
        say_notes([*told, *([] if name else ["concepts have numbers, not names: --model asks a language model"])])
    tested, accuracy = codes.rows("test"), scores["accuracy"]["test"]
    example = codes.ids[int(tested[0])]
    file = Pictures(images).file(example) or next(filter(Path.is_file, [Path(data) / example]), None)
    summary = {
        "data": images.name,
        "images": len(codes),
        "test_images": len(tested),
        "classes": len(images.classes),
        "concepts": codes.concepts,
        "smooth": accuracy["smooth"],
        "exact": accuracy["exact"],
        "dead": scores["dead"]["count"],
        "weights": run.record.get("weights", {}),
        "heads": run.record.get("heads"),
        "names": {"found": page["named"], "verified": page["verified"]},
        "run": str(run.path),
        "codes": str(out / "codes"),
        "page": page["page"],
        "example": {"image": example, "file": None if file is None else str(file)},
        "steps": steps,
    }
    return Discovery(run, codes, Path(page["page"]), summary)


def no_heads(recipe: Recipe) -> str | None:
    """Why no sparse head can be fitted to the bits of a recipe; None where one can."""
    if recipe.activation.method == "relu":
        return "method relu, which has no bits"
    return None if recipe.network.supervised_by is None else "given attributes: expected bottleneck implicit"


def kept_per_class(run: Run, per_class: PerClass | None, recipe: Recipe) -> PerClass:
    """As `htaf.concepts.run_heads.keep_readable` takes it. None, nothing was asked for: what the run has, else over a
    frozen backbone "auto"; so the same command also ends a training that was killed before its head was chosen."""
    if per_class is not None:
        return per_class
    default = "auto" if recipe.flat().get("freeze") and no_heads(recipe) is None else 0
    return run.record.get("heads", {}).get("asked", default)


def about_names(recipe: Recipe, count: int) -> list[str]:
    """What is known of the names of concepts of so many classes before any is trained: few cannot check them."""
    if not isinstance(recipe.network, ICBMNetwork) or recipe.network.supervised_by is not None:
        return []
    if recipe.activation.method == "relu" or count >= FEWEST_CLASSES:  # no bits to name
        return []
    return [
        f"{count} classes: names of the concepts cannot be checked on classes, which takes {FEWEST_CLASSES}; "
        "htaf concepts name --pictures checks them on images"
    ]
