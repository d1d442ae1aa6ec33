"""The page of a run: its codes, its images and its names, and then the page."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from htaf._ground.errors import HtafError
from htaf.concepts.codes import Codes, ConceptError, codes_key
from htaf.concepts.explorer.build import AS_USUAL, build_page
from htaf.concepts.explorer.contents import about_run
from htaf.concepts.explorer.folder import check_folder
from htaf.concepts.explorer.shown import Heading, Shown
from htaf.concepts.known import kept_features
from htaf.concepts.naming.files import read_names
from htaf.concepts.store import open_codes, open_folder
from htaf.concepts.where import Maps, Pictures
from htaf.data.images import ImagePreprocessor, Images
from htaf.training.runs import Run, UnknownSourceError


def build_run_page(
    run: Run,
    codes: str | PathLike[str],
    out: str | PathLike[str],
    *,
    names: str | Path | None = None,
    shown: Shown = AS_USUAL,
    data_dir: str | PathLike[str] | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Write the page of a run's concepts.

    Args:
        run: of `htaf train icbm`.
        codes: a folder of codes of this run.
        out: as for `htaf.concepts.explorer.build.build_page`, and so is shown.
        names: a file of names; None: numbers alone.
        data_dir: a folder with the public sets; None: that of the training.
        progress: show bars on the error stream.

    Returns:
        As `build_page`. Where the images cannot be had, there are no thumbnails; where the network has no exact maps,
        there are none. A note says why.

    Raises:
        ConceptError: a run without concepts, codes or names of another one, or a folder that is not free.
        RunError, DataError: of the run and its images.
    """
    out, folder = Path(out), Path(codes)
    check_folder(out)  # before the work
    preprocessor = run.preprocessor()
    if not isinstance(preprocessor, ImagePreprocessor):
        raise ConceptError(f"{run.path}: expected a run on images, got one on a table")
    found, notes = open_codes(folder), list[str]()
    _check_run(run, found, folder)
    given = None if names is None else read_names(names, found.concepts, codes=codes_key(found))
    name, title = run.path.resolve().name, str(run.record["data"]["name"])
    seen = _pictures(run, preprocessor, found, data_dir)

    margins = open_folder(folder).margins()
    kept = None if isinstance(seen, ConceptError) else kept_features(run, seen, found.ids)

    def pixels(ids: Sequence[str]) -> np.ndarray:
        if isinstance(seen, ConceptError):
            raise seen
        return seen.pixels(ids).numpy()

    return build_page(
        found,
        out,
        pixels=pixels,
        names=given,
        margins=margins,
        features=margins if kept is None else kept,
        original=None if isinstance(seen, ConceptError) else seen.original,
        maps=None if isinstance(seen, ConceptError) or not shown.detailed else _maps(run, found, seen, notes),
        shown=shown,
        heading=Heading(title, about_run(run.record, name, preprocessor.size), notes),
        progress=progress,
    )


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
    """Raise ConceptError for codes of another run."""
    settings = codes.info["settings"]
    if "run" in settings:
        if settings.get("run") != run.record["key"]:
            raise ConceptError(f"expected codes of {run.path}, {folder} holds those of {codes.info.get('run')}")
        if settings.get("model_sha256", run.record["model_sha256"]) != run.record["model_sha256"]:
            raise ConceptError(
                f"expected codes of {run.path}, {folder} holds codes of other weights of it: extract them again, into "
                "another folder"
            )
        return
    head: Any = getattr(run.model(), "head", None)  # binarised features say nothing of their run but this
    weight = None if head is None else head.weight.detach().float().cpu().numpy()
    if weight is None or not np.array_equal(weight, codes.weight):
        raise ConceptError(f"expected codes of {run.path}, {folder} holds those of a network with another head")


def _pictures(
    run: Run, preprocessor: ImagePreprocessor, codes: Codes, data_dir: str | PathLike[str] | None
) -> Pictures | ConceptError:
    """Return the images of the codes; the error where they cannot be had, or are others than the codes'."""
    settings = codes.info["settings"]
    if settings.get("data") == "files":
        return Pictures(preprocessor)
    try:
        images: Any = run.data(data_dir=data_dir)
    except HtafError as error:
        return ConceptError(error.said if isinstance(error, UnknownSourceError) else str(error))
    if images.fingerprint != settings.get("fingerprint", run.record["data"]["fingerprint"]):
        return ConceptError(f"the images found, {images.name}, are not those of the codes")
    return Pictures(images)
