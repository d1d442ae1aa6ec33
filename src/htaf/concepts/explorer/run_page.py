"""The page of a run: its codes, its images and its names, found or made, and then the page."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from htaf._ground.console import tell
from htaf._ground.errors import HtafError
from htaf.concepts.codes import Codes, ConceptError, PartName, codes_key
from htaf.concepts.explorer.build import AS_USUAL, build_page
from htaf.concepts.explorer.contents import about_run
from htaf.concepts.explorer.folder import check_folder
from htaf.concepts.explorer.shown import Heading, Shown
from htaf.concepts.extract import expect_same_weights, extract
from htaf.concepts.naming.files import read_names
from htaf.concepts.store import open_codes, open_folder, read_record
from htaf.concepts.where import Maps, Pictures
from htaf.data.attributes import supervising
from htaf.data.images import ImagePreprocessor, Images
from htaf.training.runs import Run, UnknownSourceError, content_hash
from htaf.training.runs.data import is_own

NAMES = "names.json"  # beside codes whose concepts were given as texts


class CodesNeededError(ConceptError):
    """Codes that cannot be made of a run: they must be given."""


def build_run_page(
    run: Run,
    out: str | PathLike[str],
    *,
    codes: str | Path | None = None,
    names: str | Path | None = None,
    shown: Shown = AS_USUAL,
    data_dir: str | PathLike[str] | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Write the page of a run's concepts: its codes are extracted where none are given.

    Args:
        run: of `htaf train icbm`.
        out: as for `htaf.concepts.explorer.build.build_page`, and so is shown.
        codes: a folder of codes of this run; None: OUT-codes, made or finished where needed.
        names: a file of names; None: names.json of codes whose concepts were given as texts, the attributes that a
            supervised bottleneck was trained on, else numbers alone.
        data_dir: a folder with the public sets; None: that of the training.
        progress: show bars on the error stream.

    Returns:
        As `build_page`. Where the images cannot be had, there are no thumbnails; where the network has no exact maps,
        there are none. A note says why.

    Raises:
        CodesNeededError: a plain network, or images that have changed since the training, and no codes.
        UnknownSourceError: the run does not say where its images came from, and no codes.
        ConceptError: a run without concepts, codes or names of another one, or a folder that is not free.
        RunError, DataError: of the run and its images.
    """
    out = Path(out)
    check_folder(out)  # before the work
    if names is not None:
        read_names(names)  # a file that is none is refused before the work
    preprocessor = run.preprocessor()
    if not isinstance(preprocessor, ImagePreprocessor):
        raise ConceptError(f"{run.path}: expected a run on images, got one on a table")
    named = out if out.name not in ("", "..") else out.resolve()
    folder = named.with_name(f"{named.name}-codes") if codes is None else Path(codes)
    found, own = _codes(run, folder, codes is not None, shown.part, data_dir, progress=progress)
    notes: list[str] = []
    labelled = "texts" in found.info  # its concepts were given as texts
    if names is None and labelled and (folder / NAMES).is_file():
        names = folder / NAMES
    if names is not None:
        given = read_names(names, found.concepts, codes=codes_key(found))
    else:
        given = None if labelled else _supervised(run, found, data_dir, notes)
    name, title = run.path.resolve().name, str(run.record["data"]["name"])
    seen = _pictures(run, preprocessor, found, own)

    def pixels(ids: Sequence[str]) -> np.ndarray:
        if isinstance(seen, ConceptError):
            raise seen
        return seen.pixels(ids).numpy()

    return build_page(
        found,
        out,
        pixels=pixels,
        names=given,
        margins=open_folder(folder).margins(),
        original=None if isinstance(seen, ConceptError) else seen.original,
        maps=None if isinstance(seen, ConceptError) or not shown.detailed else _maps(run, found, seen, notes),
        shown=shown,
        heading=Heading(title, about_run(run.record, name, preprocessor.size), notes),
        progress=progress,
    )


def _codes(
    run: Run, folder: Path, given: bool, part: PartName, data_dir: str | PathLike[str] | None, *, progress: bool
) -> tuple[Codes, Images | ConceptError]:
    """The codes, made where none are given; and the run's images, or the error where they cannot be had."""
    if not given and not run.has_step:
        raise CodesNeededError(
            f"{run.path} is a plain network (method relu), which has no bits: make them with htaf concepts extract and "
            "htaf paper binarise, then give that folder"
        )
    there = read_record(folder)
    whole = given or (there is not None and there["status"] == "finished")
    codes = open_codes(folder) if whole else None
    if codes is not None:
        _check_run(run, codes, folder)
    try:
        images: Any = run.data(data_dir=data_dir)
    except HtafError as error:
        if codes is None:
            raise
        return codes, ConceptError(error.said if isinstance(error, UnknownSourceError) else str(error))
    if codes is None:
        if not is_own(run, images):
            raise CodesNeededError(
                f"{images.name} has changed since {run.path} was trained on it: give codes made before"
            )
        if progress:
            tell(f"codes: {folder}")
        parts: Sequence[PartName] = ("train", "validation", "test", *(("other",) if part == "other" else ()))
        codes = extract(run, images, folder, parts=parts, progress=progress).codes()
    return codes, images


def _maps(run: Run, codes: Codes, seen: Pictures, notes: list[str]) -> Maps | None:
    """Exact maps; None, and a note, where the network has none; None where it has no bits."""
    if not run.has_step:
        return None
    try:
        maps = Maps(run, seen.of if isinstance(seen.of, Images) else None)
    except HtafError as error:
        notes.append(f"no maps over pictures: {error}")
        return None
    return maps if maps.head.shape == codes.weight.shape else None


def _check_run(run: Run, codes: Codes, folder: Path) -> None:
    """Raises ConceptError for codes of another run."""
    settings = codes.info["settings"]
    if "run" in settings:
        if settings.get("run") != run.record["key"]:
            raise ConceptError(f"expected codes of {run.path}, {folder} holds those of {codes.info.get('run')}")
        expect_same_weights(run, codes, folder)
        return
    head: Any = getattr(run.model(), "head", None)  # binarised features say nothing of their run but this
    weight = None if head is None else head.weight.detach().float().cpu().numpy()
    if weight is None or not np.array_equal(weight, codes.weight):
        raise ConceptError(f"expected codes of {run.path}, {folder} holds those of a network with another head")


def _pictures(
    run: Run, preprocessor: ImagePreprocessor, codes: Codes, images: Images | ConceptError
) -> Pictures | ConceptError:
    """The images of the codes; the error where they cannot be had, or are others than the codes'."""
    settings = codes.info["settings"]
    if settings.get("data") == "files":
        return Pictures(preprocessor)
    known = settings.get("fingerprint", run.record["data"]["fingerprint"])
    if isinstance(images, Images) and images.fingerprint != known:
        return ConceptError(f"the images found, {images.name}, are not those of the codes")
    return images if isinstance(images, ConceptError) else Pictures(images)


def _supervised(
    run: Run, codes: Codes, data_dir: str | PathLike[str] | None, notes: list[str]
) -> list[dict[str, Any]] | None:
    """The attributes that the concepts of a supervised bottleneck were trained to be; None for an implicit one."""
    recipe = run.record["recipe"]
    if recipe.get("bottleneck", "implicit") == "implicit":
        return None
    try:
        table = supervising(recipe["attributes"], data_dir=data_dir).of(codes.classes)
    except HtafError as error:
        notes.append(f"no names: the attributes that the concepts were trained on cannot be read: {error}")
        return None
    if content_hash([table.names, table.values.tolist()]) != run.record.get("attributes"):
        notes.append(f"no names: {recipe['attributes']} is not the table of attributes that the concepts learned")
        return None
    reason = "trained to be this attribute; how well it learned is not checked"
    same = {"verified": False, "reason": reason, "source": "supervised"}
    return [{"concept": number, "name": name, **same} for number, name in enumerate(table.names)]
