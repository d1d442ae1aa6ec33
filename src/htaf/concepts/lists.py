"""Search of few of the codes: inverted lists of faiss, a file for each part (`htaf[search]`); results are approximate.

The codes of all parts are put into lists, each by the centre that is nearest to it; the centres are k-means of a sample
over all parts. A query goes over the codes of the nearest `probes` lists of each part. Their distances and order are
exact; what lies in other lists is missed. How much that is depends on the codes: measure it against
`htaf.concepts.nearest` (`benchmarks/codes_scale.py` does).

index.json         format, kind, status, key of the manifest, lists, seed; of each part its file, images and SHA-256
centres.npy        uint8 [lists, ceil(C / 8)], the centres
part-00000.faiss   an IndexBinaryIVF of faiss with the codes of the part: 8 + ceil(C / 8) bytes an image
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch  # before faiss, so that both take one OpenMP runtime and one pool of threads
from jaxtyping import Int32, Int64, UInt8

from htaf._console import progress as progress_of
from htaf._files import expect_folder, read_record, written_whole
from htaf.concepts import store
from htaf.concepts.codes import ConceptError, expect_bits
from htaf.concepts.search import faiss_module
from htaf.concepts.sharded import MANIFEST, ShardedCodes, plain_name
from htaf.runs import LOCK, locked, to_json, write_atomic

FORMAT, KIND, INDEX = 1, "inverted lists of codes in parts", "index.json"
TRAINED = 64  # images of the sample for each list
LEAST = 39  # the same, below which faiss warns
ITERATIONS = 10
ADDED = 2**18  # images at once


class NearestByLists:
    """Inverted lists on disk, opened by `open_lists`; one part is in memory at a time.

    Attributes:
        lists: how many there are.
        info: what index.json says.
    """

    def __init__(self, path: Path, codes: ShardedCodes, info: dict[str, Any]) -> None:
        self.path, self.info, self.lists = path, info, int(info["lists"])
        self._codes, self._faiss = codes, faiss_module()
        self._checked: set[str] = set()

    def query(
        self, bits: UInt8[np.ndarray, "queries bytes"], k: int, *, probes: int = 8
    ) -> tuple[Int32[np.ndarray, "queries k"], Int64[np.ndarray, "queries k"]]:
        """The k nearest images of each query among the codes of some lists.

        Args:
            bits: uint8 [q, ceil(C / 8)] as `Codes.bits`: unused bits are 0.
            k: 1 to N.
            probes: lists of each part that are gone over, 1 to `lists`: more find more and take longer. With all lists
                the distances are those of the exact search, and so are the rows but for equals at the k-th place.

        Returns:
            distances int32 [q, k] in bits, ascending, and rows int64 [q, k], ascending where distances are equal; -1
            both where the lists held fewer.

        Raises:
            ConceptError: bits of another shape or dtype, unused bits that are not 0, k or probes out of range, or a
                damaged file.
        """
        expect_bits(bits, self._codes.concepts)
        if not 1 <= k <= len(self._codes) or not 1 <= probes <= self.lists:
            raise ConceptError(
                f"expected k from 1 to {len(self._codes)} and probes from 1 to {self.lists}, got {k} and {probes}"
            )
        self._faiss.omp_set_num_threads(torch.get_num_threads())
        far = np.full((len(bits), k), np.iinfo(np.int32).max, np.int32)
        rows = np.full((len(bits), k), np.iinfo(np.int64).max, np.int64)
        for part, entry in zip(self._codes.folders, self.info["parts"], strict=True):
            index = self._read(entry)
            index.nprobe = probes
            near, places = index.search(np.ascontiguousarray(bits), min(k, part.images))
            there = places >= 0
            places = np.where(there, places + part.first, np.iinfo(np.int64).max)
            near = np.where(there, near, np.iinfo(np.int32).max)
            far, rows = np.concatenate([far, near], axis=1), np.concatenate([rows, places], axis=1)
            order = np.lexsort((rows, far), axis=1)[:, :k]
            far, rows = np.take_along_axis(far, order, 1), np.take_along_axis(rows, order, 1)
        none = rows == np.iinfo(np.int64).max
        return np.where(none, -1, far).astype(np.int32), np.where(none, -1, rows)

    def _read(self, entry: dict[str, Any]) -> Any:
        file = self.path / entry["file"]
        if entry["file"] not in self._checked:  # faiss trusts what a file says
            if store.sha256(file) != entry["sha256"]:
                raise ConceptError(f"{file} is damaged: its SHA-256 differs from the one in {INDEX}; build it again")
            self._checked.add(entry["file"])
        return self._faiss.read_index_binary(str(file))


def build_lists(
    codes: ShardedCodes,
    out: str | Path,
    *,
    lists: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> NearestByLists:
    """Put the codes of all parts into inverted lists on disk. Parts that are there are kept when it is called again.

    Memory: a sample of 64 codes a list as float32, and the codes of one part.

    Args:
        codes: in parts.
        out: a new folder, or that of a stopped call.
        lists: how many; default: the square root of the images of the largest part. At most an image in 39 of all.
        seed: of the sample and of k-means.
        progress: show a bar on the error stream.

    Raises:
        ConceptError: faiss is not installed, lists out of range, or a folder that holds something else.
    """
    out, faiss = Path(out), faiss_module()
    most = max(1, len(codes) // LEAST)
    if lists is None:
        lists = min(most, max(1, round(math.sqrt(max(part.images for part in codes.folders)))))
    if not 1 <= lists <= most:
        raise ConceptError(f"expected lists from 1 to {most:,}, one for {LEAST} images, got {lists}")
    said = {
        "format": FORMAT,
        "kind": KIND,
        "codes": _key(codes),
        "lists": lists,
        "seed": seed,
        "faiss": faiss.__version__,
    }
    expect_folder(out, "the lists", ConceptError)
    with locked(out, "another process writes", ConceptError):
        record = _record(out)
        if record is None:
            if others := sorted(p.name for p in out.iterdir() if p.name != LOCK):
                raise ConceptError(f"expected a new or empty folder, {out} holds {others[0]!r}: choose another")
            record = {**said, "status": "running", "parts": []}
        elif any(record.get(name) != value for name, value in said.items()):
            raise ConceptError(f"{out} holds lists of other codes, or of another number or seed: choose another folder")
        if record["status"] != "finished":
            centres = _centres(codes, lists, seed, out, faiss)
            done = [entry["part"] for entry in record["parts"]]
            with progress_of("images", len(codes), shown=progress, done=_images(codes, done)) as advance:
                for part in codes.folders:
                    if part.folder.name in done:
                        continue
                    index = faiss.IndexBinaryIVF(centres, centres.d, lists)
                    bits = part.array("codes")
                    for start in range(0, len(bits), ADDED):
                        index.add(np.ascontiguousarray(bits[start : start + ADDED]))
                        advance(len(bits[start : start + ADDED]))
                    file = out / f"{part.folder.name}.faiss"
                    with written_whole(file) as new:
                        faiss.write_index_binary(index, str(new))
                    entry = {"part": part.folder.name, "file": file.name, "sha256": store.sha256(file)}
                    record["parts"].append({**entry, "images": part.images})
                    write_atomic(out / INDEX, to_json(record))
            record["status"] = "finished"
            write_atomic(out / INDEX, to_json(record))
    return open_lists(out, codes)


def open_lists(path: str | Path, codes: ShardedCodes) -> NearestByLists:
    """Inverted lists that `build_lists` wrote of these codes.

    Raises:
        ConceptError: there are none, they are not finished, damaged, or of other codes.
    """
    path = Path(path)
    record = _record(path)
    if record is None:
        raise ConceptError(f"expected a folder with {INDEX}, found none at {path}")
    if record["status"] != "finished":
        raise ConceptError(f"{path} is not finished: build it again, to finish it")
    if record["codes"] != _key(codes) or [entry["part"] for entry in record["parts"]] != [
        part.folder.name for part in codes.folders
    ]:
        raise ConceptError(f"{path} is of other codes than {codes.path}, or of other parts of them: build it again")
    return NearestByLists(path, codes, record)


def _record(path: Path) -> dict[str, Any] | None:
    record = read_record(path / INDEX, FORMAT, ConceptError)
    if record is None:
        return None
    kinds = {"status": str, "codes": str, "lists": int, "parts": list}
    entry_kinds = {"part": str, "file": str, "sha256": str, "images": int}
    whole = all(type(record.get(name)) is kind for name, kind in kinds.items()) and all(
        type(entry) is dict and all(type(entry.get(n)) is kind for n, kind in entry_kinds.items())
        for entry in record["parts"]
    )
    if record.get("kind") != KIND or not whole or not all(plain_name(entry["file"]) for entry in record["parts"]):
        raise ConceptError(f"{path / INDEX} is damaged, or no {KIND}")
    return record


def _key(codes: ShardedCodes) -> str:
    """SHA-256 of the manifest; it holds those of the parts' records, and these hold those of the codes."""
    return store.sha256(codes.path / MANIFEST)


def _images(codes: ShardedCodes, folders: list[str]) -> int:
    return sum(part.images for part in codes.folders if part.folder.name in folders)


def _centres(codes: ShardedCodes, lists: int, seed: int, out: Path, faiss: Any) -> Any:
    """The centres as an index; those in a file of the folder where a stopped call has left them."""
    file = out / "centres.npy"
    d = 8 * ((codes.concepts + 7) // 8)
    flat = faiss.IndexBinaryFlat(d)
    if file.is_file():
        centres = store.map_array(file, np.dtype("u1"), (lists, d // 8))
    else:
        draw = np.random.default_rng(seed)
        some = []
        for part in codes.folders:
            share = math.ceil(TRAINED * lists * part.images / len(codes))
            rows = np.sort(draw.choice(part.images, min(part.images, share), replace=False))
            some.append(np.array(part.array("codes")[rows]))
        trained = faiss.IndexBinaryIVF(flat, d, lists)
        trained.cp.seed, trained.cp.niter, trained.cp.max_points_per_centroid = seed + 1, ITERATIONS, TRAINED
        trained.cp.verbose = False
        trained.train(np.concatenate(some))
        centres = faiss.vector_to_array(flat.xb).reshape(lists, d // 8)
        with written_whole(file) as new, new.open("wb") as stream:
            np.save(stream, centres)
        flat = faiss.IndexBinaryFlat(d)
    flat.add(np.ascontiguousarray(centres))
    return flat
