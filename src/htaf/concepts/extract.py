"""The concepts of images under a run, on disk: one pass over the backbone, of any number of images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from htaf._console import progress as progress_of
from htaf.concepts import store
from htaf.concepts.codes import PARTS, Codes, ConceptError, PartName
from htaf.concepts.passes import ConceptNetwork, Device, ImageSequence, Job, Layer, Piece, in_order, in_processes
from htaf.concepts.sharded import ShardedCodes, open_sharded
from htaf.concepts.sharded_writing import PartsWriter, slice_of, writing_parts
from htaf.concepts.store import CHUNK, Features, known_record, open_codes, open_features
from htaf.concepts.writing import Contents, Writer, writing
from htaf.data.image_reading import MOST_WORKERS, look_all
from htaf.data.images import FilePart, ImagePreprocessor, Images, Part
from htaf.data.reading import DataError
from htaf.runs import Run
from htaf.runs.data import is_own, rows_of

__all__ = ["extract", "extract_features", "extract_files", "extract_parts", "open_codes", "open_features"]

OWN: tuple[PartName, ...] = ("train", "validation", "test")
NAMED = 100  # unreadable files that concepts.json names
MARGINS = 2**28  # bytes of margins that are kept without being asked for


def extract(
    run: Run,
    images: Images,
    out: str | Path,
    *,
    parts: Sequence[PartName] | None = None,
    features: bool = False,
    margins: bool | None = None,
    batch: int = 250,
    workers: int = 1,
    device: Device = "auto",
    progress: bool = False,
) -> Codes:
    """The bits of images, with what the smooth and the exact network predict, in a folder.

    An extraction that was stopped, or killed, is continued when it is called again with the same run, images, parts
    and features, and ends with the same bytes; batch, workers, device and threads may differ, which can turn the last
    bit of a pre-activation. Memory: the network, and a few batches.

    Args:
        run: of `htaf train icbm`, smooth or straight-through.
        images: those of the run, or others of the same classes and size.
        out: a new folder, the same one to resume, or a finished one, which is only opened.
        parts: of the run's own images, default train, validation and test; "other" are those training images that the
            recipe left out. Images that are not the run's own are all "other".
        features: also keep the pre-activations, 4 C bytes an image.
        margins: keep them as float16, 2 C bytes an image, to order images by (`htaf.concepts.store.open_margins`);
            None: where they take at most 256 MB in all, and of a folder that is there already, as it is.
        batch: images at once.
        workers: processes; they share the threads of this one.
        device: where the network runs; auto: a GPU where there is one.
        progress: show a bar on the error stream.

    Returns:
        the codes, memory-mapped.

    Raises:
        ConceptError: a run without concepts or without a step (see `extract_features`); a folder that holds something
            else; no images; or a network that gives NaN.
        DataError: other classes, or images of another size.
    """
    network = network_of(run, device, plain=False)
    contents, source = images_of_set(run, network, images, parts, features, keeps_margins(margins, out))
    _write(run, network, contents, source, out, batch, workers, device, progress)
    return open_codes(out)


def extract_features(
    run: Run,
    images: Images,
    out: str | Path,
    *,
    parts: Sequence[PartName] | None = None,
    layer: Layer = "concepts",
    batch: int = 250,
    workers: int = 1,
    device: Device = "auto",
    progress: bool = False,
) -> Features:
    """Features that `htaf.concepts.binarise` makes codes of: of a plain network, method relu, what its head reads.

    Args:
        layer: "backbone": what the backbone of any run with concepts gives, [N, F]; there is no head to it, so its
            weights are 0. `smooth` is what the smooth network predicts.

    Other arguments, resuming and errors as `extract`.
    """
    network = ConceptNetwork(run, device, layer) if layer == "backbone" else network_of(run, device, plain=True)
    contents, source = images_of_set(run, network, images, parts, True, lambda *_: False)
    _write(run, network, contents, source, out, batch, workers, device, progress)
    return open_features(out)


def extract_files(
    run: Run,
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    features: bool = False,
    margins: bool | None = None,
    strict: bool = False,
    batch: int = 250,
    workers: int = 1,
    device: Device = "auto",
    progress: bool = False,
) -> Codes:
    """As `extract`, of image files without labels: label -1, part "other", the path as id.

    Files that cannot be read are left out; concepts.json counts them as "unreadable" and names the first hundred.

    Args:
        paths: image files of the kinds in `htaf.data.image_reading.FORMATS`; they are scaled as those of the
            training were.
        strict: raise for a file that cannot be read.

    Raises:
        DataError: no file can be read, or, with `strict`, one cannot.
    """
    network = network_of(run, device, plain=False)
    contents, source = _of_files(run, network, paths, features, keeps_margins(margins, out), strict)
    _write(run, network, contents, source, out, batch, workers, device, progress)
    return open_codes(out)


def extract_parts(
    run: Run,
    images: Images | Sequence[str | Path],
    out: str | Path,
    part_images: int,
    *,
    parts: Sequence[PartName] | None = None,
    layer: Layer = "concepts",
    features: bool = False,
    margins: bool | None = None,
    strict: bool = False,
    batch: int = 250,
    workers: int = 1,
    device: Device = "auto",
    progress: bool = False,
) -> ShardedCodes:
    """As `extract`, `extract_features` or `extract_files`, in parts: `htaf.concepts.sharded` has the format.

    Finished parts are kept when it is called again. The parts together hold the same arrays as one folder, to the byte
    where `part_images` is a multiple of 1,000, the images that are written at once.

    Args:
        images: of the run, or others of the same classes and size; or files of images without labels.
        part_images: of each part but the last.

    Returns:
        the parts, opened.

    Raises:
        ConceptError: part_images < 1; and as `extract`.
        DataError: as `extract` and `extract_files`.
    """
    if part_images < 1:
        raise ConceptError(f"expected part_images >= 1, got {part_images}")
    _check(batch, workers)
    if not isinstance(images, Images):
        network = network_of(run, device, plain=False)
        contents, source = _of_files(run, network, images, features, keeps_margins(margins, out), strict)
    elif run.has_step and layer == "concepts":
        network = network_of(run, device, plain=False)
        contents, source = images_of_set(run, network, images, parts, features, keeps_margins(margins, out))
    else:
        network = ConceptNetwork(run, device, layer)
        contents, source = images_of_set(run, network, images, parts, True, lambda *_: False)
    n = len(contents.labels)
    contents = replace(contents, settings={**contents.settings, "part_images": part_images})
    starts = range(0, n, part_images)
    slices = [slice_of(contents, first, min(n, first + part_images)) for first in starts]
    with writing_parts(Path(out), contents.settings) as writer:
        if not writer.finished:
            _write_parts(run, network, slices, source, writer, batch, workers, device, progress)
            writer.finish(len(slices), contents.info)
    return open_sharded(out)


def network_of(run: Run, device: Device, *, plain: bool) -> ConceptNetwork:
    """The network of a run. Raises ConceptError: it has bits, where plain ones are expected, or has none."""
    network = ConceptNetwork(run, device)
    if network.plain and not plain:
        raise ConceptError(
            f"{run.path} is a plain network (method relu), which has no bits: extract its features, then make bits of "
            "them with htaf concepts binarise"
        )
    if plain and not network.plain:
        raise ConceptError(f"expected a plain network (method relu), {run.path} has bits: extract(..., features=True)")
    return network


def _of_files(
    run: Run,
    network: ConceptNetwork,
    paths: Sequence[str | Path],
    features: bool,
    margins: Callable[[int, int], bool],
    strict: bool,
) -> tuple[Contents, ImageSequence]:
    """The files that can be read."""
    part, info = _files([Path(path) for path in paths], network.preprocessor, strict)
    ids = [str(part.folder / name) for name in part.names]
    contents = _contents(
        run,
        network,
        {"data": "files", "fingerprint": part.fingerprint(), "parts": ["other"]},
        features,
        margins(len(part), len(network.weight[0])),
        labels=part.labels,
        numbers=np.full(len(part), PARTS.index("other"), np.uint8),
        ids=ids,
        info=info,
    )
    return contents, ImageSequence(((part, torch.arange(len(part))),), ids)


def images_of_set(
    run: Run,
    network: ConceptNetwork,
    images: Images,
    parts: Sequence[PartName] | None,
    features: bool,
    margins: Callable[[int, int], bool],
) -> tuple[Contents, ImageSequence]:
    """The chosen images of a set, in the order of PARTS."""
    known = network.preprocessor
    if images.classes != known.classes:
        unknown = sorted(set(images.classes) - set(known.classes))
        raise DataError(f"expected the {len(known.classes)} classes of the run, got {unknown[:5] or 'fewer'}")
    for part in (images.train, images.test):
        if (came := (part.channels, *part.size)) != (expected := (known.channels, *known.size)):
            raise DataError(f"expected images of [channels, height, width] {expected}, got {came}")
    own = is_own(run, images)
    chosen = _chosen(parts, own, images.name, run)
    of_part = (
        _own_rows(run, images)
        if own
        else [("other", "train", _all(images.train)), ("other", "test", _all(images.test))]
    )
    of_part = [entry for entry in of_part if entry[0] in chosen and len(entry[2])]
    if not of_part:
        raise ConceptError(f"{images.name}: expected images of the parts {', '.join(chosen)}, got none")
    segments = tuple((getattr(images, side), rows) for _, side, rows in of_part)
    ids = [name for _, side, rows in of_part for name in _ids(getattr(images, side), side, rows)]
    numbers = [np.full(len(rows), PARTS.index(part), np.uint8) for part, _, rows in of_part]
    contents = _contents(
        run,
        network,
        {"data": images.name, "fingerprint": images.fingerprint, "parts": list(chosen)},
        features,
        margins(len(ids), len(network.weight[0])),
        labels=torch.cat([part.labels[rows] for part, rows in segments]),
        numbers=np.concatenate(numbers),
        ids=ids,
        info={"notes": list(images.notes)},
    )
    return contents, ImageSequence(segments, ids, network.kept(run, segments))


def keeps_margins(asked: bool | None, out: str | Path) -> Callable[[int, int], bool]:
    """A function that says whether margins are kept, of so many images and concepts."""

    def kept(images: int, concepts: int) -> bool:
        if asked is not None:
            return asked
        there = known_record(Path(out))
        if there is None:
            return 2 * images * concepts <= MARGINS
        return "margins" in there["arrays"] if "arrays" in there else there["settings"].get("margins", False)

    return kept


def _chosen(parts: Sequence[PartName] | None, own: bool, name: str, run: Run) -> tuple[PartName, ...]:
    if unknown := sorted(set(parts or ()) - set(PARTS)):
        raise ConceptError(f"parts must be of {PARTS}, got {unknown[0]!r}")
    if not own:
        if set(parts or ()) - {"other"}:
            raise ConceptError(f"{run.path} was trained on other images than {name}: they are all of the part 'other'")
        return ("other",)
    return tuple(part for part in PARTS if part in (OWN if parts is None else parts))


def _own_rows(run: Run, images: Images) -> list[tuple[PartName, str, Tensor]]:
    """(part, side of the set, row numbers) of each part."""
    found = rows_of(run, images)
    return [(part, *found[part]) for part in PARTS]


def _all(part: Part) -> Tensor:
    return torch.arange(len(part))


def _ids(part: Part, side: str, rows: Tensor) -> list[str]:
    """Paths within the set's folder; of images that are no files the side and row number."""
    return [f"{side}/{row}" if part.names is None else part.names[row] for row in rows.tolist()]


def _files(paths: list[Path], preprocessor: ImagePreprocessor, strict: bool) -> tuple[FilePart, dict[str, Any]]:
    """Those files that can be read, and what is to be said of the others."""
    looks = look_all(paths)
    bad = [f"{path} ({seen.problem})" for path, seen in zip(paths, looks, strict=True) if seen.problem]
    names = tuple(str(path) for path, seen in zip(paths, looks, strict=True) if not seen.problem)
    if not names or (strict and bad):
        raise DataError(f"expected image files, got {bad[0] if bad else 'none'}")
    labels = torch.full((len(names),), -1, dtype=torch.int64)
    info: dict[str, Any] = {"unreadable": len(bad), "unreadable_files": bad[:NAMED]}
    info["notes"] = [f"{len(bad):,} of {len(paths):,} files cannot be read and are left out"] if bad else []
    return FilePart(Path(), names, labels, preprocessor.size, preprocessor.channels), info


def _contents(
    run: Run,
    network: ConceptNetwork,
    settings: dict[str, Any],
    features: bool,
    margins: bool,
    *,
    labels: Tensor,
    numbers: np.ndarray,
    ids: Sequence[str],
    info: dict[str, Any],
) -> Contents:
    listing = hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()
    settings, told = settings_of(run, network, {**settings, "images": listing[:16]}, features, margins)
    return Contents(
        settings,
        network.preprocessor.classes,
        labels.numpy().astype(np.int32),
        numbers,
        ids,
        network.weight,
        network.bias,
        codes=not network.plain and network.layer == "concepts",
        features=features,
        margins=margins,
        info={**told, **info},
    )


def settings_of(
    run: Run, network: ConceptNetwork, listing: dict[str, Any], features: bool, margins: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """settings and info of `Contents`; listing: those settings that say which images."""
    record = run.record
    settings = {
        "what": "extraction",
        "run": record["key"],
        "model_sha256": record["model_sha256"],
        **listing,
        "features": features,
        **({"layer": network.layer} if network.layer != "concepts" else {}),
        **({"margins": True} if margins else {}),  # folders from before there were margins keep their keys
    }
    return settings, {"run": str(run.path.resolve()), "method": record["recipe"]["method"], "model": record["model"]}


def _write(
    run: Run,
    network: ConceptNetwork,
    contents: Contents,
    source: ImageSequence,
    out: str | Path,
    batch: int,
    workers: int,
    device: Device,
    progress: bool,
) -> None:
    _check(batch, workers)
    n = len(contents.labels)
    with writing(Path(out), contents) as writer:
        before = min(n, max(0, n - len(writer.pending) * CHUNK))
        jobs = [(k, _piece(source, k * CHUNK, min(n, (k + 1) * CHUNK))) for k in writer.pending]
        results = _passes(run, network, contents, jobs, batch, workers, device)
        with progress_of("images", n, shown=progress, done=before) as advance:
            for chunk, arrays in results:
                writer.write(chunk, arrays)
                advance(len(arrays["smooth"]))
        writer.finish()


def _write_parts(
    run: Run,
    network: ConceptNetwork,
    slices: Sequence[Contents],
    source: ImageSequence,
    parts: PartsWriter,
    batch: int,
    workers: int,
    device: Device,
    progress: bool,
) -> None:
    """All chunks of all parts as one list of jobs: worker processes live through the parts."""
    jobs: list[Job] = []
    places: list[tuple[int, int]] = []  # part and chunk of each job
    before, done = 0, 0
    for number, contents in enumerate(slices):
        images = len(contents.labels)
        pending = range(-(-images // CHUNK))
        if store.read_record(parts.folder(number)) is not None:
            with writing(parts.folder(number), contents) as writer:  # refuses a part of other codes, before the work
                pending = list(writer.pending)
                if not pending:
                    writer.finish()
        for chunk in pending:
            first, last = before + chunk * CHUNK, before + min(images, (chunk + 1) * CHUNK)
            jobs.append((len(places), _piece(source, first, last)))
            places.append((number, chunk))
            done -= last - first
        before += images
        done += images
    results = _passes(run, network, slices[0], jobs, batch, workers, device)
    with ExitStack() as open_ones, progress_of("images", before, shown=progress, done=done) as advance:
        held: dict[int, tuple[ExitStack, Writer]] = {}
        for job, arrays in results:
            number, chunk = places[job]
            if number not in held:
                stack = open_ones.enter_context(ExitStack())
                held[number] = (stack, stack.enter_context(writing(parts.folder(number), slices[number])))
            stack, writer = held[number]
            writer.write(chunk, arrays)
            advance(len(arrays["smooth"]))
            if not writer.pending:
                writer.finish()
                stack.close()
                del held[number]


def _check(batch: int, workers: int) -> None:
    if batch < 1 or not 1 <= workers <= MOST_WORKERS:
        raise ConceptError(f"batch must be >= 1 and workers in 1 to {MOST_WORKERS}, got {batch} and {workers}")


def _piece(source: ImageSequence, first: int, last: int) -> Callable[[], Piece]:
    return lambda: source.piece(first, last)


def _passes(
    run: Run,
    network: ConceptNetwork,
    contents: Contents,
    jobs: list[Job],
    batch: int,
    workers: int,
    device: Device,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, arrays) of each job, in this process or in several."""
    kept = [name for name, asked in (("features", contents.features), ("margins", contents.margins)) if asked]
    if workers > 1 and len(jobs) > 1:
        return in_processes(run, jobs, batch, kept, device, workers, network.layer)
    return in_order(network, jobs, batch, kept)
