"""Extraction in blocks of images, each of which becomes one part: the plan, and what is done with one block.

`extract_blocks` runs it in this process; `htaf.concepts.ray_engine` in the tasks and actors of a Ray cluster. Both call
`read` and `write_part` below, so the bytes are the same.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from htaf._console import progress as progress_of
from htaf._errors import HtafError, expect_memory
from htaf.concepts import store
from htaf.concepts.codes import PARTS, ConceptError, PartName
from htaf.concepts.extract import NAMED, images_of_set, keeps_margins, network_of, settings_of
from htaf.concepts.passes import ConceptNetwork, Device, Layer, Piece
from htaf.concepts.sharded import Part, ShardedCodes, open_sharded
from htaf.concepts.sharded_writing import part_name, write_manifest, writing_parts
from htaf.concepts.store import CHUNK
from htaf.concepts.writing import Contents, writing
from htaf.data.image_reading import threads as cores
from htaf.data.image_sources import Decoded, Files, Pixels, Stretch, blocks, read_block, source
from htaf.data.images import FilePart, ImagePreprocessor, Images
from htaf.data.reading import DataError
from htaf.runs import Run, content_hash

__all__ = ["Block", "InProcess", "Job", "Outcome", "extract_blocks", "read", "write_part"]

DECODED = 2**28  # bytes of pixels of a block, where its size is not given
OTHER = PARTS.index("other")
MOST_IMAGES = 100_000  # of such a block


@dataclass(frozen=True)
class Job:
    """What all blocks of an extraction share; it is sent to the processes that do them.

    out: the folder of the parts. settings, info: as in `htaf.concepts.writing.Contents`. files: whether images that
    cannot be decoded are left out and counted. threads: that decode. The rest as in `extract_blocks`.
    """

    run: Run
    out: Path
    settings: Mapping[str, Any]
    info: Mapping[str, Any]
    layer: Layer
    features: bool
    margins: bool
    strict: bool
    files: bool
    batch: int
    device: Device
    threads: int = 1

    @property
    def kept(self) -> list[str]:
        """Of "features" and "margins"."""
        return [name for name, asked in (("features", self.features), ("margins", self.margins)) if asked]


@dataclass(frozen=True)
class Block:
    """Images first to last - 1 of the list, which become part `number`."""

    number: int
    first: int
    last: int
    images: tuple[Stretch, ...]


@dataclass(frozen=True)
class Outcome:
    """What became of a block.

    images: that the part holds; 0: none can be read, and there is no part. problems: images left out, and why.
    where: the machine. error: why there is no part, and kind: the name of that error's class.
    """

    number: int
    images: int = 0
    problems: tuple[str, ...] = ()
    where: str = ""
    error: str = ""
    kind: str = ""


@runtime_checkable
class Engine(Protocol):
    """What runs the blocks."""

    device: Device  # on which this process builds the network, to know its size

    def mapped(self, function: Callable[[str], Stretch], names: list[str]) -> Iterable[Stretch]:
        """A function of each name, in order."""
        ...

    def prepare(self, job: Job, blocks: Sequence[Block]) -> None:
        """Checks before the work. Raises ConceptError."""
        ...

    def outcomes(self, job: Job, blocks: Sequence[Block]) -> Iterator[Outcome]:
        """Of each block, as they come."""
        ...


class InProcess:
    """One block after the other in this process; the next is read while one is computed."""

    def __init__(self, device: Device = "auto") -> None:
        self.device: Device = device

    def mapped(self, function: Callable[[str], Stretch], names: list[str]) -> Iterable[Stretch]:
        with ThreadPoolExecutor(min(16, len(names) or 1)) as pool:
            return list(pool.map(function, names))

    def prepare(self, job: Job, blocks: Sequence[Block]) -> None:
        pass

    def outcomes(self, job: Job, blocks: Sequence[Block]) -> Iterator[Outcome]:
        job = replace(job, threads=cores())
        network = ConceptNetwork(job.run, job.device, job.layer)
        with ThreadPoolExecutor(1) as reader:
            coming = reader.submit(read, job, blocks[0])
            for here, ahead in zip(blocks, [*blocks[1:], None], strict=True):
                decoded = coming.result()
                if ahead is not None:
                    coming = reader.submit(read, job, ahead)
                yield write_part(job, network, here, decoded)


def extract_blocks(
    run: Run,
    images: Images | Sequence[str],
    out: str | Path,
    part_images: int | None = None,
    *,
    engine: Engine | None = None,
    parts: Sequence[PartName] | None = None,
    layer: Layer = "concepts",
    features: bool = False,
    margins: bool | None = None,
    strict: bool = False,
    column: str | None = None,
    batch: int = 250,
    progress: bool = False,
) -> ShardedCodes:
    """As `htaf.concepts.extract.extract_parts`, by any engine, and of Parquet files, tar shards and addresses too.

    A part is written beside its place and renamed when it is whole. When it is called again, parts whose files have
    the SHA-256 that their record says are kept, all others are made. The arrays of all parts together are those of one
    folder, to the byte where every image can be decoded.

    Args:
        images: of a set; or paths and addresses, as `htaf.data.image_sources.source` takes them.
        part_images: of each part but the last, a multiple of 1,000, so that batches hold what they hold in one folder;
            default: so many that their pixels take 256 MiB, at most 100,000.
        engine: default: this process.
        strict: of paths and addresses: raise for an image that cannot be decoded; else it is left out and counted.
        column: of the images, in Parquet files that have several columns of bytes.

    Other arguments, the result and errors as `extract_parts`.

    Raises:
        ConceptError: part_images that are no multiple of 1,000; a full disk.
        DataError: as `source` and `read_block`.
    """
    engine = engine or InProcess()
    if batch < 1:
        raise ConceptError(f"batch must be >= 1, got {batch}")
    plain = isinstance(images, Images) and not run.has_step
    network = (
        ConceptNetwork(run, engine.device, layer)
        if layer == "backbone" or plain
        else network_of(run, engine.device, plain=False)
    )
    known, concepts = network.preprocessor, len(network.weight[0])
    size = _block_size(part_images, known)
    features = features or plain or layer == "backbone"
    keeps = keeps_margins(margins, out) if network.layer == "concepts" and not plain else lambda *_: False
    if isinstance(images, Images):
        contents, sequence = images_of_set(run, network, images, parts, features, keeps)
        stretches = list(_stretches(sequence.segments, sequence.ids, contents.parts))
        settings, info, total = contents.settings, contents.info, len(contents.labels)
    else:
        stretches, notes = source(images, column=column, mapped=engine.mapped)
        total = sum(map(len, stretches))
        with_margins = keeps(total, concepts)
        settings, info = settings_of(run, network, _listing(stretches, known), features, with_margins)
        info = {**info, "notes": notes}
    settings = {**settings, "part_images": size}
    job = Job(
        run=run,
        out=Path(out),
        settings=settings,
        info=info,
        layer=layer,
        features=features,
        margins=bool(settings.get("margins")),
        strict=strict,
        files=not isinstance(images, Images),
        batch=batch,
        device=engine.device,
    )
    cut = [
        Block(number, number * size, min(total, (number + 1) * size), block)
        for number, block in enumerate(blocks(stretches, size))
    ]
    with writing_parts(Path(out), settings) as writer:
        if not writer.finished:
            _clean(writer.path)
            waiting, notes = _waiting(job, cut)
            done = total - sum(block.last - block.first for block in waiting)
            found = _run(engine, job, waiting, total, done, progress) if waiting else []
            _clean(writer.path)  # of a node that died on the way
            _finish(job, cut, found, notes)
    return open_sharded(out)


def read(job: Job, block: Block) -> Decoded | Outcome:
    """The images of a block, decoded; or why not."""
    try:
        known = _preprocessor(job.run)
        return read_block(
            block.images, known.channels, known.size, known.classes, OTHER, threads=job.threads, strict=job.strict
        )
    except (HtafError, OSError) as error:
        return _failed(block, error)


def write_part(
    job: Job, network: ConceptNetwork | Callable[[], ConceptNetwork], block: Block, decoded: Decoded | Outcome
) -> Outcome:
    """Compute the bits of a block and write them as a part, whole or not at all; or say why not.

    network: or what makes it, which is called only where there are images.
    """
    if isinstance(decoded, Outcome):
        return decoded
    if not len(decoded.ids):
        return Outcome(block.number, problems=decoded.problems, where=machine())
    place = job.out / part_name(block.number)
    beside = job.out / f".{place.name}.{machine()}-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        used = network if isinstance(network, ConceptNetwork) else network()
        with writing(beside, contents_of(job, used, block, decoded)) as writer:
            for chunk in list(writer.pending):
                rows = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
                piece = Piece(decoded.ids[rows], decoded.pixels[rows])
                writer.write(chunk, used(piece, job.batch, job.kept))
            writer.finish()
        _put(beside, place)
    except (HtafError, OSError) as error:
        return _failed(block, error, place)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return Outcome(block.number, len(decoded.ids), decoded.problems[:NAMED], machine())


def contents_of(job: Job, network: ConceptNetwork, block: Block, decoded: Decoded) -> Contents:
    """What the part of a block is to hold."""
    info = {**job.info, "notes": [*job.info.get("notes", []), *decoded.notes[:NAMED]]}
    if decoded.unknown:
        info["unknown_labels"] = decoded.unknown
    if job.files:
        info |= {"unreadable": len(decoded.problems), "unreadable_files": list(decoded.problems[:NAMED])}
    return Contents(
        _settings_of_block(job, block),
        network.preprocessor.classes,
        decoded.labels,
        decoded.parts,
        decoded.ids,
        network.weight,
        network.bias,
        codes=not network.plain and network.layer == "concepts",
        features=job.features,
        margins=job.margins,
        info=info,
    )


def machine() -> str:
    """This machine's name."""
    return socket.gethostname()


def _settings_of_block(job: Job, block: Block) -> dict[str, Any]:
    return {**job.settings, "rows": [block.first, block.last]}


def _put(beside: Path, place: Path) -> None:
    """Rename a whole part to its place. What is there is not whole, or the same from a process thought dead."""
    for _ in range(3):
        try:
            return os.rename(beside, place)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if (there := store.read_record(place)) and there["status"] == "finished":
            return None
        shutil.rmtree(place, ignore_errors=True)
    raise ConceptError(f"{place} is written by another process: stop it, and give the command again")


def _failed(block: Block, error: HtafError | OSError, place: Path | None = None) -> Outcome:
    words = str(error)
    if isinstance(error, OSError):
        name = place or error.filename or "a file"
        words = f"{name}: {error.strerror or error}"
        if place is not None:
            words = f"{place} cannot be written: {error.strerror or error}, {_free(place)} free"
    return Outcome(block.number, where=machine(), error=words, kind=type(error).__name__)


def _free(place: Path) -> str:
    try:
        return f"{shutil.disk_usage(place.parent).free:,} bytes"
    except OSError:
        return "an unknown number of bytes"


def _preprocessor(run: Run) -> ImagePreprocessor:
    found = run.preprocessor()
    assert isinstance(found, ImagePreprocessor)  # `ConceptNetwork` takes no other run
    return found


def _block_size(asked: int | None, known: ImagePreprocessor) -> int:
    each = known.channels * known.size[0] * known.size[1]
    if asked is None:
        return min(max(DECODED // each // CHUNK, 1) * CHUNK, MOST_IMAGES)
    if asked < 1 or asked % CHUNK:
        raise ConceptError(
            f"part_images must be a multiple of {CHUNK:,}, the images that are written at once, got {asked:,}"
        )
    expect_memory(2 * asked * each, f"a part of {asked:,} decoded images", "choose fewer --part-images")
    return asked


def _stretches(segments: Sequence[Any], ids: Sequence[str], parts: np.ndarray) -> Iterator[Stretch]:
    """The images of a set: files as they are; others with their pixels."""
    first = 0
    for part, rows in segments:
        last = first + len(rows)
        names, numbers = tuple(ids[i] for i in range(first, last)), tuple(parts[first:last].tolist())
        labels = tuple(part.labels[rows].tolist())
        if isinstance(part, FilePart):
            paths = tuple(str(part.folder / part.names[row]) for row in rows.tolist())
            yield Files(paths, (0,) * len(paths), names, labels, numbers, zeros=True)
        else:
            yield Pixels(part.batch(rows).numpy(), names, labels, numbers)
        first = last


def _listing(stretches: Sequence[Stretch], known: ImagePreprocessor) -> dict[str, Any]:
    """Settings that tell these images from others; of image files those of `extract_files`, if all can be read."""
    digest, ids = hashlib.sha256(json.dumps(["files", known.channels, *known.size]).encode()), hashlib.sha256()
    for stretch in stretches:
        for entry in stretch.names():
            digest.update(json.dumps(entry).encode())
    if all(isinstance(one, Files) for one in stretches):
        names = [name for one in stretches if isinstance(one, Files) for name in one.paths]
        ids.update(json.dumps(names).encode())
    else:
        ids = digest
    return {
        "data": "files",
        "fingerprint": digest.hexdigest(),
        "parts": ["other"],
        "images": ids.hexdigest()[:16],
    }


def _clean(out: Path) -> None:
    """Remove what processes that were killed left beside the parts."""
    for left in out.glob(".part-*"):
        shutil.rmtree(left, ignore_errors=True)


def _waiting(job: Job, cut: Sequence[Block]) -> tuple[list[Block], list[str]]:
    """Blocks without a whole part; and notes on parts that are damaged, which are removed.

    Raises:
        ConceptError: a part of other codes.
    """

    def whole(block: Block) -> tuple[bool, str]:
        folder = job.out / part_name(block.number)
        try:
            record = store.read_record(folder)
            if record is None or record["status"] != "finished":
                shutil.rmtree(folder, ignore_errors=True)
                return False, ""
            Part(folder, record["images"], 0, store.sha256(folder / store.RECORD)).check(verify=True)
        except ConceptError as error:
            shutil.rmtree(folder, ignore_errors=True)
            return False, f"{folder.name} was damaged and is made again: {error}"
        if record["key"] != content_hash(_settings_of_block(job, block)):
            raise ConceptError(f"{folder} holds other codes: choose another --out")
        return True, ""

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(whole, cut))
    waiting = [block for block, (there, _) in zip(cut, found, strict=True) if not there]
    return waiting, [note for _, note in found if note]


def _run(engine: Engine, job: Job, waiting: Sequence[Block], total: int, done: int, progress: bool) -> list[Outcome]:
    """Raises ConceptError, DataError: the first that went wrong; parts that are written stay."""
    engine.prepare(job, waiting)
    sizes = {block.number: block.last - block.first for block in waiting}
    found: list[Outcome] = []
    with progress_of("images", total, shown=progress, done=done) as advance:
        for outcome in engine.outcomes(job, waiting):
            if outcome.error:
                kind = DataError if outcome.kind == "DataError" else ConceptError
                raise kind(
                    f"on {outcome.where}: {outcome.error}; finished parts are kept, the same command continues them"
                )
            found.append(outcome)
            advance(sizes[outcome.number])
    if len(found) != len(waiting):
        raise ConceptError(f"expected {len(waiting):,} parts, got {len(found):,}: give the same command again")
    return found


def _finish(job: Job, cut: Sequence[Block], found: Sequence[Outcome], notes: list[str]) -> None:
    """manifest.json, over parts that have images."""
    names = [name for block in cut if (job.out / (name := part_name(block.number)) / store.RECORD).exists()]
    if not names:
        problem = next((problem for outcome in found for problem in outcome.problems), "none")
        raise DataError(f"expected image files, got {problem}")
    records = [store.read_record(job.out / name) or {} for name in names]
    said = dict.fromkeys([*job.info.get("notes", []), *notes, *(note for r in records for note in r.get("notes", []))])
    info: dict[str, Any] = {}
    if job.files:
        bare = [outcome for outcome in found if not outcome.images]
        count = sum(r.get("unreadable", 0) for r in records) + sum(len(outcome.problems) for outcome in bare)
        bad = [name for r in records for name in r.get("unreadable_files", [])]
        bad += [problem for outcome in bare for problem in outcome.problems]
        info |= {"unreadable": count, "unreadable_files": bad[:NAMED]}
        total = sum(block.last - block.first for block in cut)
        if count:
            said[f"{count:,} of {total:,} files cannot be read and are left out"] = None
        if unknown := sum(r.get("unknown_labels", 0) for r in records):
            classes = len(_preprocessor(job.run).classes)
            said[f"{unknown:,} labels are none of the {classes} classes of the run: they are -1"] = None
    write_manifest(job.out, names, settings=job.settings, info={**info, "notes": list(said)[:NAMED]})
