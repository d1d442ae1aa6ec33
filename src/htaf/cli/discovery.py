"""From a set or a folder of images to the page of its concepts, every step in one folder: what `htaf demo` does."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from htaf._console import err, say_notes
from htaf.cli.training import about_names, kept_per_class
from htaf.concepts.codes import Codes
from htaf.concepts.extract import extract
from htaf.concepts.known import keep_known
from htaf.concepts.pixels import Pictures
from htaf.concepts.readable import PerClass, keep_readable
from htaf.concepts.report import write_report
from htaf.concepts.scores import score
from htaf.data.images import Images, is_named, load
from htaf.explorer.run_page import build_run_page
from htaf.explorer.shown import Shown
from htaf.runs import Run
from htaf.training.distributed import default_threads, thread_count
from htaf.training.families.icbm import FAMILY
from htaf.training.fit import fit
from htaf.training.plan import Source
from htaf.training.problems import resolved
from htaf.training.recipe import Recipe
from htaf.training.running import Running

EVERY = 10  # epochs between two lines of a training without a terminal: notes are found between them


def recipe_for(pretrained: str, backbone: str | None, concepts: int | None, epochs: int | None, enlarge: int) -> Recipe:
    """The recipe frozen of an ICBM over these weights.

    Args:
        pretrained: as the recipe takes it. backbone, concepts, epochs: None: the recipe's.

    Raises:
        ValueError: no such backbone, or a bad number.
    """
    recipe = FAMILY.ready("frozen")
    if backbone:
        recipe, _ = FAMILY.adapt(recipe, {"backbone": backbone})
    given: dict[str, Any] = {"pretrained": pretrained, "enlarge": enlarge}
    given |= {name: value for name, value in (("concepts", concepts), ("epochs", epochs)) if value is not None}
    return recipe.replace(**given)


def discover(
    out: Path,
    data: str,
    recipe: Recipe,
    *,
    seed: int = 0,
    size: int | None = None,
    data_dir: str | None = None,
    name: Callable[[Codes, Path], Any] | None = None,
    per_class: PerClass | None = None,
    shown: Shown = Shown(),  # noqa: B008
    quiet: bool = False,
) -> dict[str, Any]:
    """Train an ICBM, keep a head that can be read, extract codes, score, name where something names, write the page.

    What is finished is kept: a stopped call is continued when it is made again. Writes under `out`: icbm, the run;
    codes; concepts, the scores; names.json where there are names; explorer, the page.

    Args:
        data: a set's name or a folder. size: of the images, as `htaf.data.images.load` takes it.
        per_class: most concepts of a class, as `kept_per_class` takes it.
        name: finds names for the concepts of codes and writes them to a file. shown: how much is on the page.
        quiet: without progress and notes.

    Returns:
        The summary: accuracies, scores, "page", "steps" with the seconds of each, "names"; "example", the id of a test
        image and its file, None of a set that has no files.

    Raises:
        HtafError: of the data, the training or the naming.
    """
    steps: dict[str, float] = {}

    def step(name: str, work: Callable[[], Any]) -> Any:
        begun = time.monotonic()
        if not quiet:
            err.print(f"{name} ...")
        made = work()
        steps[name] = round(time.monotonic() - begun, 2)
        return made

    images: Images = step("read", lambda: load(data, size=size, data_dir=data_dir))
    recipe, why = resolved(recipe, images)
    if not quiet:
        say_notes([*images.notes, *images.look_alikes, *why, *about_names(recipe, images)])
    source = Source(data.lower() if is_named(data) else data, size=size).remembered(data_dir, images=True)

    def train() -> Run:
        with thread_count(default_threads(recipe)):
            running = Running(progress=not quiet, every=EVERY)
            run = fit(recipe, images, out / "icbm", seed=seed, source=source, notes=why, running=running)
            keep_known(run, images)
            return run

    run: Run = step("train", train)
    settled = (
        per_class is None and "heads" not in run.record and (out / "codes").exists()
    )  # codes know their run's head
    kept = 0 if settled else kept_per_class(run, per_class, recipe)
    if kept != 0:
        run = step("heads", lambda: keep_readable(run, images, kept))
    codes = step("extract", lambda: extract(run, images, out / "codes", progress=not quiet).codes())
    scores = step("score", lambda: score(codes))
    write_report(scores, out / "concepts", title=f"Concepts of {images.name}")
    names: Path | None = None
    if name is not None:
        names = out / "names.json"
        step("name", lambda: name(codes, names))
    page = step(
        "page",
        lambda: build_run_page(
            run, out / "explorer", codes=out / "codes", names=names, shown=shown, data_dir=data_dir, progress=not quiet
        ),
    )
    if not quiet:
        of_explore = "htaf concepts name"  # the note that tells how to find names, with flags of other verbs
        told = [note for note in page["notes"] if note not in images.notes and of_explore not in note]
        say_notes([*told, *([] if name else ["concepts have numbers, not names: --model asks a language model"])])
    tested, accuracy, concept = codes.rows("test"), scores["accuracy"]["test"], scores["concept_accuracy"]
    example = codes.ids[int(tested[0])]
    file = Pictures(images).file(example) or next(filter(Path.is_file, [Path(data) / example]), None)
    return {
        "data": images.name,
        "images": len(codes),
        "test_images": len(tested),
        "classes": len(images.classes),
        "concepts": codes.concepts,
        "smooth": accuracy["smooth"],
        "exact": accuracy["exact"],
        "binarity": scores["binarity"],
        "concept_accuracy": concept["mean"],
        "balanced": concept["balanced"],
        "trivial": concept["trivial"],
        "dead": scores["dead"]["count"],
        "bytes": {"packed": codes.bits.nbytes, "float32": 4 * len(codes) * codes.concepts},
        "weights": run.record.get("weights", {}),
        "heads": run.record.get("heads"),
        "names": {"found": page["named"], "verified": page["verified"]},
        "run": str(run.path),
        "codes": str(out / "codes"),
        "page": page["page"],
        "example": {"image": example, "file": None if file is None else str(file)},
        "steps": steps,
    }
