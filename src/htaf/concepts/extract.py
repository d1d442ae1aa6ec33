"""The concepts of images under a run, on disk: one pass over the network, of any number of images.

The images are cut into blocks, each of which becomes one part of the folder. An engine maps `read` and `write` over the
blocks: `in_this_process`, or `htaf.concepts.ray_engine` on the nodes of a Ray cluster. Both give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float16, Float32, UInt8
from torch import Tensor, nn

from htaf._ground.console import progress as progress_of
from htaf._ground.errors import HtafError, expect_memory
from htaf.concepts.codes import PARTS, ConceptError, PartName
from htaf.concepts.heads import Head as LinearHead
from htaf.concepts.store import (
    CHUNK,
    PART_IMAGES,
    CodesFolder,
    Head,
    OpenFolder,
    open_folder,
    part_file,
    read_record,
    write_part,
    writing_folder,
)
from htaf.core.activations import BINARY_ABOVE, BINARY_BELOW
from htaf.core.functional import pack_bits
from htaf.data.image_reading import threads as cores
from htaf.data.image_sets import Decoded, Held, Image, read_block, source
from htaf.data.images import FilePart, ImagePreprocessor, Images, Part
from htaf.data.reading import DataError
from htaf.training.runs import Run
from htaf.training.runs.features import FeatureStore, key_of
from htaf.training.runs.run import is_own, rows_of
from htaf.transform import convert

Device = Literal["auto", "cpu", "cuda", "mps"]
Layer = Literal["concepts", "backbone"]
LARGEST, SMALLEST = np.float16(65504), np.float16(2**-24)
Keep = Literal["features", "backbone"]
OWN: tuple[PartName, ...] = ("train", "validation", "test")
NAMED = 100  # unreadable files that concepts.json names
MARGINS = 2**28  # bytes of margins that are kept without being asked for
DECODED = 2**28  # bytes of pixels of a part, where its size is not given
OTHER = PARTS.index("other")


def kept_store(run: Run, part: Part, rows: Tensor) -> FeatureStore | None:
    """Return what has the features of these rows by the frozen backbone of a run; None where not all are kept."""
    net: Any = run.model(exact=False)
    known: Any = run.preprocessor()
    return FeatureStore.kept(key_of(net, run.record["model"], known, part, part.fingerprint()), rows)


class ConceptNetwork:
    """The network of a run, as extraction uses it.

    Attributes:
        plain: whether it has no step, and so no bits.
        layer: "backbone": what the backbone gives is read, in place of bits and pre-activations.
        weight: float32 [K, C]. bias: float32 [K]. Of a backbone, which has no head of its own, both 0.

    Raises:
        ConceptError: a run without concepts.
    """

    def __init__(self, run: Run, device: Device = "auto", layer: Layer = "concepts") -> None:
        smooth: Any = run.model(exact=False)
        preprocessor = run.preprocessor()
        if not hasattr(smooth, "pre_activations") or not isinstance(preprocessor, ImagePreprocessor):
            family = run.record["recipe"].get("family", run.record["model"].get("kind"))
            raise ConceptError(
                f"expected a run with concepts, as `htaf train icbm` makes it, got one of family {family} at {run.path}"
            )
        self.preprocessor, self.plain = preprocessor, not run.has_step
        self.layer: Layer = layer
        self.device = choose_device(device)
        self.smooth: Any = smooth.to(self.device).eval()
        self.exact: Any = None
        if not self.plain:
            if getattr(smooth.act, "bipolar", False):
                raise ConceptError(f"expected concepts of 0 and 1, {run.path} has -1 and 1")
            hard = convert.harden(smooth, share=True)
            if run.has_own_smooth:
                hard = run.model().to(self.device)
            if run.has_own_smooth or {site.path for site in convert.conversion(hard).replaced} != {"act"}:
                self.exact = hard.eval()  # its weights differ or its backbone has steps: a pass of its own
        self.head: Any = (self.smooth if self.exact is None else self.exact).head  # which reads the bits

    def deciding(self, run: Run) -> tuple[Any, LinearHead]:
        """The network that decides the bits, and its head. Raises ConceptError: a plain network."""
        if self.plain:
            raise ConceptError(f"expected a run with bits, {run.path} is a plain network (method relu)")
        head = LinearHead(self.weight.astype(np.float64), self.bias.astype(np.float64))
        return self.smooth if self.exact is None else self.exact, head

    def kept(self, run: Run, segments: Sequence[tuple[Part, Tensor]]) -> tuple[FeatureStore, ...]:
        """What the frozen backbone of a run gives of parts of a set; empty where not all of it is at hand."""
        if self.exact is not None or not run.record["model"].get("freeze"):
            return ()
        found: list[FeatureStore] = []
        for part, rows in segments:
            store = kept_store(run, part, rows)
            if store is None:
                return ()
            found.append(store)
        return tuple(found)

    @property
    def weight(self) -> Float32[np.ndarray, "classes concepts"]:
        if self.layer == "backbone":
            size = (2, self.preprocessor.channels, *self.preprocessor.size)
            with torch.no_grad():
                features = self.smooth.features(torch.zeros(size, device=self.device)).shape[1]
            return np.zeros((len(self.head.weight), features), np.float32)
        return self.head.weight.detach().float().cpu().numpy()

    @property
    def bias(self) -> Float32[np.ndarray, " classes"]:
        head: nn.Linear = self.head
        if head.bias is None or self.layer == "backbone":
            return np.zeros(len(head.weight), np.float32)
        return head.bias.detach().float().cpu().numpy()

    def __call__(
        self,
        ids: Sequence[str],
        pixels: UInt8[np.ndarray, "n c h w"] | Float32[np.ndarray, "n f"],
        batch: int,
        kept: Sequence[str],
    ) -> dict[str, np.ndarray]:
        """Columns of `htaf.concepts.store` for some images.

        Args:
            ids: their names.
            pixels: or float32 [n, F], what the frozen backbone gives of them.
            batch: images at once; a new batch begins at each thousand.
            kept: of "features" and "margins".

        Raises:
            ConceptError: the network gives NaN; it names the image.
        """
        found: list[dict[str, np.ndarray]] = []
        for first in range(0, len(ids), CHUNK):
            last = min(first + CHUNK, len(ids))
            for start in range(first, last, batch):
                rows = slice(start, min(start + batch, last))
                found.append(self._batch(torch.from_numpy(pixels[rows]), ids[rows], kept))
        return {name: np.concatenate([arrays[name] for arrays in found]) for name in found[0]}

    @torch.no_grad()
    def _batch(self, pixels: Tensor, ids: Sequence[str], kept: Sequence[str]) -> dict[str, np.ndarray]:
        x = pixels.to(self.device)
        if x.ndim == 4:
            x = self.preprocessor.normalise(x)
        # a GPU's shorter mantissas would turn bits near the threshold
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            if self.layer == "backbone":
                return self._of_backbone(x, ids)
            before: Tensor = self.smooth.pre_activations(x)
            deciding: Tensor = before if self.exact is None else self.exact.pre_activations(x)
        if (bad := (before.isnan() | deciding.isnan()).any(1)).any():
            raise ConceptError(
                f"expected numbers as pre-activations, got NaN for the image {ids[int(bad.int().argmax())]}"
            )
        after: Tensor = self.smooth.act(before)
        arrays = {"smooth": self.smooth.head(after).argmax(1)}
        if not self.plain:
            arrays["exact"] = self.head((deciding >= 0).to(after.dtype)).argmax(1)
            arrays["saturated"] = ((after > BINARY_ABOVE) | (after < BINARY_BELOW)).sum(1)
        made = {name: values.to(torch.int32).cpu().numpy() for name, values in arrays.items()}
        if not self.plain:
            made["bits"] = pack_bits(deciding.float().cpu()).numpy()
        values = deciding.float().cpu().numpy() if kept else np.empty(0, np.float32)
        forms = {"features": lambda: values, "margins": lambda: as_margins(values)}
        return made | {name: forms[name]() for name in kept}

    def _of_backbone(self, x: Tensor, ids: Sequence[str]) -> dict[str, np.ndarray]:
        """What the backbone of the network that gives the bits makes of a batch, and what the smooth one predicts."""

        def of(net: Any) -> Tensor:
            return x if x.ndim == 2 else net.features(x)

        features = of(self.smooth if self.exact is None else self.exact)
        if (bad := features.isnan().any(1)).any():
            raise ConceptError(f"expected numbers as features, got NaN for the image {ids[int(bad.int().argmax())]}")
        net, own = self.smooth, features if self.exact is None else of(self.smooth)
        logits = net.head(net.act(net.norm(net.projection(own))))
        return {
            "smooth": logits.argmax(1).to(torch.int32).cpu().numpy(),
            "features": features.float().cpu().numpy(),
        }


def as_margins(values: Float32[np.ndarray, "n concepts"]) -> Float16[np.ndarray, "n concepts"]:
    """Pre-activations as float16 that are >= 0 where the bit is 1 and only there: large ones are cut."""
    margins = values.clip(-LARGEST, LARGEST).astype(np.float16)
    margins[(values < 0) & (margins == 0)] = -SMALLEST
    return margins


def choose_device(device: Device) -> torch.device:
    """auto: a GPU where there is one.

    Raises:
        ConceptError: a device that is not there.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return torch.device(next(name for name, found in there.items() if found))
    if not there[device]:
        raise ConceptError(
            f"expected a device of this machine ({', '.join(k for k, v in there.items() if v)}), got {device}"
        )
    return torch.device(device)


@dataclass(frozen=True)
class Job:
    """What all blocks of an extraction share; it is sent to the processes that do them.

    out, record: the folder, as `htaf.concepts.store.OpenFolder` has them. kept: of "features" and "margins".
    threads: that decode. The rest as in `extract`.
    """

    run: Run
    out: Path
    record: dict[str, Any]
    layer: Layer
    kept: tuple[str, ...]
    batch: int
    device: Device
    threads: int = 1


@dataclass(frozen=True)
class Block:
    """Images of the list, which become part `number`."""

    number: int
    images: tuple[Image, ...]

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class Outcome:
    """What became of a block.

    images: that the part holds; 0: none can be read, and there is no part. problems: images left out, and why.
    """

    number: int
    images: int = 0
    problems: tuple[str, ...] = ()


Engine = Callable[[Job, Sequence[Block]], Iterator[Outcome]]  # `write` of each block, as they come; errors are raised


def in_this_process(job: Job, blocks: Sequence[Block]) -> Iterator[Outcome]:
    """Write one block after the other; the next is read while one is computed."""
    job = replace(job, threads=cores())
    network = ConceptNetwork(job.run, job.device, job.layer)
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(read, job, blocks[0])
        for here, ahead in zip(blocks, [*blocks[1:], None], strict=True):
            decoded = coming.result()
            if ahead is not None:
                coming = reader.submit(read, job, ahead)
            yield write(job, lambda: network, here, decoded)


def extract(
    run: Run,
    images: Images | Sequence[str | Path],
    out: str | Path,
    *,
    keep: Sequence[Keep] = (),
    parts: Sequence[PartName] | None = None,
    part_images: int | None = None,
    engine: Engine = in_this_process,
    device: Device = "auto",
    batch: int = 250,
    progress: bool = False,
) -> CodesFolder:
    """The bits of images, with what the smooth and the exact network predict, in a folder. Of a plain network, method
    relu, which has no bits, the pre-activations that its head reads.

    An extraction that was stopped, or killed, is continued when it is called again with the same run, images, parts,
    part_images and keep: parts that are there are not computed again, and it ends with the same bytes. Batch, engine
    and threads may differ, which can turn the last bit of a pre-activation. Memory: the network and two blocks.

    Args:
        run: of `htaf train icbm`.
        images: those of the run, or others of the same classes and size; or paths of images that are no set, as
            `htaf.data.image_sets.source` takes them: part "other", ids their paths, labels where Parquet files have
            some. Of these, images that cannot be read are left out; the record counts them as "unreadable" and
            names the first hundred.
        out: a new folder, the same one to resume, or a finished one, which is only opened.
        keep: "features": the pre-activations too, 4 C bytes an image. The same in 2 C bytes, to order images by, are
            kept where they take at most 256 MB in all. "backbone": in place of bits what the backbone gives, [N, F]; it
            has no head, whose weights are 0 here.
        parts: of the run's own images, default train, validation and test; "other" are those training images that the
            recipe left out. Images that are not the run's own are all "other".
        part_images: of each part but the last, a multiple of 1,000, so that batches hold the same images whatever the
            parts; default: 10,000, or so many that their pixels take 256 MiB.
        engine: default: this process. device: where the network runs in it; auto: a GPU where there is one.
        batch: images at once.
        progress: show a bar on the error stream.

    Returns:
        the folder, opened.

    Raises:
        ConceptError: a run without concepts; a folder that holds something else; no images; a network that gives NaN;
            arguments out of range; a full disk.
        DataError: other classes, images of another size, or none that can be read.
    """
    if batch < 1:
        raise ConceptError(f"batch must be >= 1, got {batch}")
    layer: Layer = "backbone" if "backbone" in keep else "concepts"
    network = ConceptNetwork(run, device, layer)
    known, concepts = network.preprocessor, network.weight.shape[1]
    size = _part_size(part_images, known)
    if isinstance(images, Images):
        listed, settings = _of_set(run, network, images, parts)
        notes = list(images.notes)
    else:
        listed, notes = source([str(one) for one in images])
        settings = _listing(listed, known)
    features, margins = _kept(keep, network, len(listed) * concepts, Path(out))
    record = run.record
    settings = {
        "what": "extraction",
        "run": record["key"],
        "model_sha256": record["model_sha256"],
        **settings,
        "features": features,
        "layer": layer,
        "margins": margins,
        "part_images": size,
    }
    bits = ("exact", "saturated", "bits") if not network.plain and layer == "concepts" else ()
    kept = tuple(name for name, asked in (("margins", margins), ("features", features)) if asked)
    columns = ("id", "label", "part", "smooth", *bits, *kept)
    info = {"run": str(run.path.resolve()), "method": record["recipe"]["method"], "model": record["model"]}
    head = Head(settings, known.classes, columns, network.weight, network.bias, info=info)
    cut = [Block(number, tuple(listed[at : at + size])) for number, at in enumerate(range(0, len(listed), size))]
    with writing_folder(Path(out), head) as folder:
        job = Job(run, folder.path, folder.record, layer, kept, batch, device)
        there = folder.there()
        waiting = [block for block in cut if block.number not in there]
        if folder.record["status"] != "finished" or waiting:
            found = _run(engine, job, waiting, sum(map(len, cut)), progress)
            _finish(folder, known, None if isinstance(images, Images) else cut, found, notes)
    return open_folder(out)


def read(job: Job, block: Block) -> Decoded:
    """The images of a block, decoded. Raises DataError, OSError: an image of a set cannot be read."""
    known: Any = job.run.preprocessor()
    return read_block(block.images, known.channels, known.size, known.classes, OTHER, threads=job.threads)


def write(job: Job, network: Callable[[], ConceptNetwork], block: Block, decoded: Decoded) -> Outcome:
    """Compute the bits of a block and write them as a part, whole or not at all.

    network: what makes it, which is called only where there are images.

    Raises:
        ConceptError: the network gives NaN, or the part cannot be written.
    """
    if not decoded.ids:
        return Outcome(block.number, problems=decoded.problems)
    said: dict[str, Any] = {"notes": list(decoded.notes[:NAMED]), "unknown": decoded.unknown}
    said |= {"unreadable": len(decoded.problems), "unreadable_files": list(decoded.problems[:NAMED])}
    images: dict[str, Any] = {"id": decoded.ids, "label": decoded.labels, "part": decoded.parts}
    values = network()(decoded.ids, decoded.pixels, job.batch, job.kept)
    try:
        write_part(job.out, job.record, block.number, {**images, **values}, **said)
    except OSError as error:
        place = part_file(job.out, block.number)
        free = f"{shutil.disk_usage(job.out).free:,} bytes free"
        raise ConceptError(f"{place} cannot be written: {error.strerror or error}, {free}") from None
    return Outcome(block.number, len(decoded.ids), decoded.problems[:NAMED])


def _part_size(asked: int | None, known: ImagePreprocessor) -> int:
    each = known.channels * known.size[0] * known.size[1]
    if asked is None:
        return min(max(DECODED // each // CHUNK, 1) * CHUNK, PART_IMAGES)
    if asked < 1 or asked % CHUNK:
        raise ConceptError(
            f"part_images must be a multiple of {CHUNK:,}, the images that go through the network by themselves, got "
            f"{asked:,}"
        )
    expect_memory(2 * asked * each, f"a part of {asked:,} decoded images", "choose fewer --part-images")
    return asked


def _kept(keep: Sequence[Keep], network: ConceptNetwork, values: int, out: Path) -> tuple[bool, bool]:
    """Whether features and margins are kept, of so many values."""
    if unknown := sorted(set(keep) - set(get_args(Keep))):
        raise ConceptError(f"expected to keep {', '.join(get_args(Keep))}, got {unknown[0]!r}")
    if network.layer == "backbone" and len(set(keep)) > 1:
        raise ConceptError(f"expected to keep the backbone's features alone, got {', '.join(keep)}")
    if network.layer == "backbone" or network.plain:
        return True, False
    there = read_record(out)
    small = 2 * values <= MARGINS if there is None else "margins" in there["columns"]
    return "features" in keep, small


def _of_set(
    run: Run, network: ConceptNetwork, images: Images, parts: Sequence[PartName] | None
) -> tuple[list[Image], dict[str, Any]]:
    """The chosen images of a set, in the order of PARTS, and the settings that say which they are."""
    known = network.preprocessor
    if images.classes != known.classes:
        unknown = sorted(set(images.classes) - set(known.classes))
        raise DataError(f"expected the {len(known.classes)} classes of the run, got {unknown[:5] or 'fewer'}")
    for part in (images.train, images.test):
        if (came := (part.channels, *part.size)) != (expected := (known.channels, *known.size)):
            raise DataError(f"expected images of [channels, height, width] {expected}, got {came}")
    own = is_own(run, images)
    chosen = _chosen(parts, own, images.name, run)
    sides = (
        [(part, *rows_of(run, images)[part]) for part in PARTS]
        if own
        else [("other", side, torch.arange(len(getattr(images, side)))) for side in ("train", "test")]
    )
    of_part = [entry for entry in sides if entry[0] in chosen and len(entry[2])]
    if not of_part:
        raise ConceptError(f"{images.name}: expected images of the parts {', '.join(chosen)}, got none")
    segments = tuple((getattr(images, side), rows) for _, side, rows in of_part)
    kept = network.kept(run, segments) or (None,) * len(segments)
    in_files = kept[0] is None and all(isinstance(part, FilePart) for part, _ in segments)
    found: list[Image] = []
    for (name, side, rows), (part, _), features in zip(of_part, segments, kept, strict=True):
        number = PARTS.index(name)
        each = zip(ids_of(part, side, rows), rows.tolist(), part.labels[rows].tolist(), strict=True)
        if in_files and isinstance(part, FilePart):
            found += [
                Image(one, part.folder / part.names[row], label, number, size=0, zeros=True) for one, row, label in each
            ]
        else:
            held = part if features is None else features
            found += [Image(one, Held(held, row), label, number) for one, row, label in each]
    listing = hashlib.sha256(json.dumps([image.id for image in found]).encode()).hexdigest()[:16]
    settings = {"data": images.name, "fingerprint": images.fingerprint, "parts": list(chosen), "images": listing}
    return found, settings


def _chosen(parts: Sequence[PartName] | None, own: bool, name: str, run: Run) -> tuple[PartName, ...]:
    if unknown := sorted(set(parts or ()) - set(PARTS)):
        raise ConceptError(f"parts must be of {PARTS}, got {unknown[0]!r}")
    if not own:
        if set(parts or ()) - {"other"}:
            raise ConceptError(f"{run.path} was trained on other images than {name}: they are all of the part 'other'")
        return ("other",)
    return tuple(part for part in PARTS if part in (OWN if parts is None else parts))


def ids_of(part: Part, side: str, rows: Tensor) -> list[str]:
    """Paths within the set's folder; of images that are no files the side and row number."""
    return [f"{side}/{row}" if part.names is None else part.names[row] for row in rows.tolist()]


def _listing(images: Sequence[Image], known: ImagePreprocessor) -> dict[str, Any]:
    """Settings that tell these images from others."""
    digest = hashlib.sha256(json.dumps(["files", known.channels, *known.size]).encode())
    for image in images:
        digest.update(json.dumps([image.id, image.size, image.label]).encode())
    return {"data": "files", "fingerprint": digest.hexdigest(), "parts": ["other"]}


def _run(engine: Engine, job: Job, waiting: Sequence[Block], total: int, progress: bool) -> list[Outcome]:
    """Raises ConceptError, DataError: the first that went wrong; parts that are written stay."""
    if not waiting:
        return []
    sizes = {block.number: len(block) for block in waiting}
    found: list[Outcome] = []
    with progress_of("images", total, shown=progress, done=total - sum(sizes.values())) as advance:
        try:
            for outcome in engine(job, waiting):
                found.append(outcome)
                advance(sizes[outcome.number])
        except (HtafError, OSError) as error:
            kind = DataError if isinstance(error, DataError) else ConceptError
            said = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
            raise kind(f"{said}; finished parts are kept, the same command continues them") from None
    if len(found) != len(waiting):
        raise ConceptError(f"expected {len(waiting):,} parts, got {len(found):,}: give the same command again")
    return found


def _finish(
    folder: OpenFolder,
    known: ImagePreprocessor,
    cut: Sequence[Block] | None,
    found: Sequence[Outcome],
    notes: list[str],
) -> None:
    """Write the record, over parts that have images. cut: the blocks of files, which may be unreadable; None: a set."""
    said = [one for _, one in sorted(folder.there().items())]
    bare = [outcome for outcome in found if not outcome.images]
    if not said:
        raise DataError(f"expected image files, got {next((p for outcome in bare for p in outcome.problems), 'none')}")
    notes = [*notes, *(note for one in said for note in one.get("notes", ()))]
    if cut is None:
        folder.finish(notes=list(dict.fromkeys(notes))[:NAMED])
        return
    count = sum(one["unreadable"] for one in said) + sum(len(outcome.problems) for outcome in bare)
    bad = [name for one in said for name in one["unreadable_files"]]
    bad += [problem for outcome in bare for problem in outcome.problems]
    if count:
        notes.append(f"{count:,} of {sum(map(len, cut)):,} files cannot be read and are left out")
    if unknown := sum(one["unknown"] for one in said):
        notes.append(f"{unknown:,} labels are none of the {len(known.classes)} classes of the run: they are -1")
    folder.finish(
        notes=list(dict.fromkeys(notes))[:NAMED],
        unreadable=count,
        unreadable_files=bad[:NAMED],
    )
