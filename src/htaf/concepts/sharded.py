"""Codes in parts: a folder of folders of codes with a manifest, for more images than one memory or machine holds.

manifest.json         format, kind, status, key, settings, run, classes, concepts, images, arrays, and of each part its
                      folder, images, first row and the SHA-256 of its concepts.json, which holds those of its files
part-00000/ ...       folders of codes as `htaf.concepts.store` has them, each of which `open_codes` opens by itself
part-00000/rows.parquet    id, label, part, exact, row of each image, for DuckDB, pandas and Polars

`htaf.concepts.sharded_writing` writes it. Row numbers of the whole count through the parts, in the manifest's order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa
from jaxtyping import Float32, Int32, Int64, UInt8

from htaf import _files
from htaf.concepts import store
from htaf.concepts.codes import PARTS, Codes, ConceptError
from htaf.concepts.store import Features, open_codes, open_features, open_margins

FORMAT = 1
KIND = "codes in parts"
MANIFEST, ROWS = "manifest.json", "rows.parquet"
MOST = 2**31  # bytes of arrays that are put together in memory, where nothing else is said
STREAMING = (
    "go through the parts with htaf.concepts.sharded.open_sharded, score them with htaf.concepts.scores.score_parts "
    "(htaf concepts score) and search them with htaf.concepts.nearest.NearestInParts (htaf concepts neighbours)"
)


@dataclass(frozen=True)
class Part:
    """One folder of codes of several.

    Attributes:
        folder: where it is.
        images: how many it holds.
        first: the row number, in the whole, of its first image.
        sha256: of its concepts.json, which holds the SHA-256 of its other files.
    """

    folder: Path
    images: int
    first: int
    sha256: str

    @cached_property
    def record(self) -> dict[str, Any]:
        """concepts.json. Raises ConceptError: it is missing, not finished, or not the one that the manifest knows."""
        file = self.folder / store.RECORD
        record = store.read_record(self.folder)
        if record is None:
            raise store.damaged(file, "is missing")
        if store.sha256(file) != self.sha256:
            raise store.damaged(file, f"is damaged: its SHA-256 differs from the one in {MANIFEST}")
        if record["status"] != "finished" or record["images"] != self.images:
            raise store.damaged(
                file, f"is damaged: expected {self.images:,} images, finished, got {record['images']:,}"
            )
        return record

    def check(self, *, verify: bool = False) -> None:
        """See that all files are there, of the right type and size.

        Args:
            verify: read them too and compare their SHA-256.

        Raises:
            ConceptError: it names the file.
        """
        record = self.record
        store.open_arrays(self.folder, record, *store.array_shapes(record), verify=verify)
        for name in (store.IMAGES, store.HEAD):
            if not (self.folder / name).is_file():
                raise store.damaged(self.folder / name, "is missing")
            if verify:
                store.hashed(self.folder / name, record)

    def open(self, *, verify: bool = False) -> Codes:
        """The codes, as `htaf.concepts.store.open_codes`: the bits memory-mapped, the ids in memory."""
        self.record  # noqa: B018  the one of the manifest
        return open_codes(self.folder, verify=verify)

    def array(self, name: str) -> np.ndarray:
        """One array of the folder, such as "codes", memory-mapped; nothing else is read.

        Raises:
            ConceptError: the folder has none of this name, or it is missing or damaged.
        """
        if name not in store.array_shapes(self.record):
            raise ConceptError(f"expected an array of {self.folder}, got {name!r}")
        return store.open_arrays(self.folder, self.record, name, verify=False)[0]

    def labels(self) -> tuple[Int32[np.ndarray, " images"], UInt8[np.ndarray, " images"]]:
        """Labels and parts as in `Codes`, from the memory-mapped table: the ids are not read, nor is the file hashed.

        Raises:
            ConceptError: the table is missing or damaged, or a label is no class.
        """
        file = self.folder / store.IMAGES
        try:
            with pa.memory_map(str(file)) as source:
                found = pa.ipc.open_file(source)
                if not found.schema.equals(store.SCHEMA) or found.num_record_batches != 1:
                    raise ValueError("expected one table with id, label and part")
                batch = found.get_batch(0)
                label, part = batch.column("label"), batch.column("part")
                label.validate(full=True)
                part.validate(full=True)
                if batch.num_rows != self.images or label.null_count or part.null_count:
                    raise ValueError(f"expected {self.images:,} images, got {batch.num_rows:,} or empty cells")
                store.check_parts(part)
                labels = np.array(label.to_numpy(zero_copy_only=True))
                parts = np.array(part.indices.to_numpy(zero_copy_only=True))
        except FileNotFoundError:
            raise store.damaged(file, "is missing") from None
        except Exception as error:  # Arrow's readers raise nearly everything on damaged files
            raise store.damaged(file, f"is damaged: {error}") from None
        store.in_range(file, labels, -1, len(self.record["classes"]))
        return labels, parts


class Parts(Sequence[Codes]):
    """The codes of each part, opened when asked for and not kept."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return len(self._parts)

    @overload
    def __getitem__(self, index: int) -> Codes: ...
    @overload
    def __getitem__(self, index: slice) -> Parts: ...
    def __getitem__(self, index: int | slice) -> Codes | Parts:
        return Parts(self._parts[index]) if isinstance(index, slice) else self._parts[index].open()


@dataclass(frozen=True, eq=False)
class ShardedCodes:
    """Codes in parts, opened by `open_sharded`.

    Attributes:
        path: the folder with the manifest.
        folders: the parts that are usable, in order.
        left_out: of each part that is not, why; empty unless damaged parts were asked to be left out.
        info: the manifest.
        weight: float32 [K, C] and
        bias: float32 [K] of the head, which all parts share.
    """

    path: Path
    folders: tuple[Part, ...]
    left_out: tuple[str, ...]
    info: Mapping[str, Any]
    weight: Float32[np.ndarray, "classes concepts"]
    bias: Float32[np.ndarray, " classes"]

    def __len__(self) -> int:
        """Images of the usable parts."""
        return sum(part.images for part in self.folders)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the K classes."""
        return tuple(self.info["classes"])

    @property
    def concepts(self) -> int:
        """C."""
        return self.info["concepts"]

    @property
    def parts(self) -> Parts:
        """`Codes` of each usable part, opened when asked for: bits memory-mapped, ids in memory. Nothing is kept."""
        return Parts(self.folders)

    @property
    def nbytes(self) -> int:
        """Bytes that `whole` takes in memory, without ids."""
        arrays = self.info["arrays"]
        each = (self.concepts + 7) // 8 + 3 * 4 if "codes" in arrays else 4
        return len(self) * (each + 5)  # label and part

    def bits(self) -> Iterator[tuple[int, UInt8[np.ndarray, "images bytes"]]]:
        """Of each usable part its first row in the whole, and its bits, memory-mapped."""
        for part in self.folders:
            yield part.first, part.array("codes")

    def accuracies(self) -> list[dict[str, Any]]:
        """As `htaf.concepts.store.accuracies`, of all usable parts."""
        counts = np.zeros((len(PARTS), 4), np.int64)  # images, labelled, right by the smooth and by the exact network
        exact = "codes" in self.info["arrays"]
        for part in self.folders:
            labels, numbers = part.labels()
            known = labels >= 0
            found = [numbers >= 0, known, known & (part.array("smooth") == labels)]
            found.append(known & (part.array("exact") == labels) if exact else np.zeros_like(known))
            for column, chosen in enumerate(found):
                counts[:, column] += np.bincount(numbers[chosen], minlength=len(PARTS))
        return [
            {
                "part": name,
                "images": images,
                "smooth": smooth / known if known else None,
                "exact": right / known if known and exact else None,
            }
            for name, (images, known, smooth, right) in zip(PARTS, counts.tolist(), strict=True)
            if images
        ]

    def row(self, image: str) -> int:
        """The row of an image: by its id; else its row number as a text. The parts are read in order until it is found.

        Raises:
            ConceptError: there is none.
        """
        for part in self.folders:
            try:
                return part.first + part.open().ids.index(image)
            except ValueError:
                continue
        if image.isdecimal() and any(p.first <= int(image) < p.first + p.images for p in self.folders):
            return int(image)
        such = f"; ids are such as {self.parts[0].ids[0]!r}"
        raise ConceptError(
            f"expected the id of an image or a row below {self.info['images']:,} of a usable part, got {image!r}{such}"
        )

    def rows(self, numbers: Sequence[int] | Int64[np.ndarray, " rows"]) -> Codes:
        """The images of these row numbers of the whole, in this order, copied into memory.

        Raises:
            ConceptError: no such row, or one of a part that is left out.
        """
        wanted = np.asarray(numbers, dtype=np.int64).reshape(-1)
        firsts = np.array([part.first for part in self.folders], np.int64)
        ends = firsts + np.array([part.images for part in self.folders], np.int64)
        place = np.searchsorted(firsts, wanted, side="right") - 1
        bad = (place < 0) | (wanted >= ends[np.maximum(place, 0)])
        if bad.any() or not len(wanted):
            raise ConceptError(
                f"expected row numbers from 0 to {self.info['images'] - 1:,} of usable parts of {self.path}, "
                f"got {int(wanted[bad][0]) if len(wanted) else 'none'}"
            )
        taken, order = [], []
        for number in np.unique(place).tolist():
            ours = np.flatnonzero(place == number)
            taken.append(self.parts[number].take(wanted[ours] - firsts[number]))
            order.append(ours)
        return _joined(taken, self.info).take(np.argsort(np.concatenate(order), kind="stable"))

    def whole(self, *, verify: bool = False, most: int = MOST) -> Codes:
        """All images of the usable parts in one, copied into memory.

        Args:
            verify: compare the SHA-256 of every array.
            most: bytes that may be taken, `nbytes` against it.

        Raises:
            ConceptError: they take more, or a part is damaged.
        """
        self._fits(self.nbytes, most)
        if "codes" not in self.info["arrays"]:
            raise ConceptError(
                f"{self.path} holds features of a plain network, not codes: make codes of them with htaf concepts "
                "binarise"
            )
        return _joined([part.open(verify=verify) for part in self.folders], self.info)

    def whole_features(self, *, most: int = MOST) -> Features:
        """As `whole`, of the features of a plain network or those kept beside the codes."""
        self._fits(len(self) * 4 * self.concepts, most)
        for part in self.folders:
            part.record  # noqa: B018
        found = [open_features(part.folder) for part in self.folders]
        first, names = found[0], ("values", "labels", "parts", "smooth")
        return Features(
            **{name: np.concatenate([getattr(one, name) for one in found]) for name in names},
            classes=first.classes,
            ids=_Joined([one.ids for one in found]),
            weight=first.weight,
            bias=first.bias,
            info=self.info,
        )

    def whole_margins(self, *, most: int = MOST) -> np.ndarray | None:
        """float16 [N, C] as `htaf.concepts.store.open_margins`; None where a part has none, or they take more."""
        if "margins" not in self.info["arrays"] or len(self) * 2 * self.concepts > most:
            return None
        found = [open_margins(part.folder) for part in self.folders]
        there = [one for one in found if one is not None]
        return np.concatenate(there) if len(there) == len(found) else None

    def _fits(self, needed: int, most: int) -> None:
        if needed > most:
            raise ConceptError(
                f"{self.path} holds {len(self):,} images, {needed / 1e9:.1f} GB: expected at most {most / 1e9:.1f} GB "
                f"to be put together in memory; {STREAMING}"
            )


def open_sharded(path: str | Path, *, verify: bool = False, skip_damaged: bool = False) -> ShardedCodes:
    """Codes in parts; of each part concepts.json and the sizes of the arrays are checked, the bits are not read.

    Args:
        path: a folder with manifest.json.
        verify: read every file of every part and compare its SHA-256.
        skip_damaged: leave out parts that are missing or damaged, named in `left_out`; row numbers stay as they are.

    Raises:
        ConceptError: no such folder, another format, not finished, or a missing or damaged part, which it names; with
            `skip_damaged`, no part is usable.
    """
    path = Path(path)
    record = read_manifest(path)
    if record is None:
        raise ConceptError(f"expected a folder of codes in parts with {MANIFEST}, found none at {path}")
    if record["status"] != "finished":
        raise ConceptError(f"{path} is not finished: give the command that makes it again, to finish it")
    usable: list[Part] = []
    left_out: list[str] = []
    for part in parts_of(path, record):
        try:
            part.check(verify=verify)
            _agree(part, record)
        except ConceptError as error:
            if not skip_damaged:
                raise
            left_out.append(f"{part.folder.name}: {error}")
        else:
            usable.append(part)
    if not usable:
        raise ConceptError(f"{path}: no part is usable, {left_out[0]}")
    weight, bias = store.read_head(usable[0].folder, usable[0].record)
    return ShardedCodes(path, tuple(usable), tuple(left_out), record, weight, bias)


def read_manifest(path: Path) -> dict[str, Any] | None:
    """manifest.json of a folder, None where there is none. Raises ConceptError: damaged, or of another format."""
    file = path / MANIFEST
    record = _files.read_record(file, FORMAT, ConceptError)
    if record is None:
        return None
    if record.get("kind") != KIND:
        raise ConceptError(f"{file}: expected the manifest of {KIND}, got {record.get('kind')!r:.40}")
    kinds: dict[str, type] = {"status": str, "key": str, "settings": dict}
    if record.get("status") == "finished":
        kinds |= {"images": int, "concepts": int, "classes": list, "arrays": list, "parts": list}
    if wrong := sorted(name for name, kind in kinds.items() if type(record.get(name)) is not kind):
        raise ConceptError(f"{file} is damaged: it lacks {', '.join(wrong)}")
    if record["status"] == "finished":
        _check_parts(file, record)
    return record


def parts_of(path: Path, record: Mapping[str, Any]) -> list[Part]:
    """The parts of a finished manifest, in order; nothing of them is read."""
    found, first = [], 0
    for entry in record["parts"]:
        found.append(Part(path / entry["folder"], entry["images"], first, entry["sha256"]))
        first += entry["images"]
    return found


def _check_parts(file: Path, record: Mapping[str, Any]) -> None:
    kinds = {"folder": str, "images": int, "sha256": str}
    for entry in record["parts"]:
        if type(entry) is not dict or any(type(entry.get(name)) is not kind for name, kind in kinds.items()):
            raise ConceptError(f"{file} is damaged: expected folder, images and sha256 of each part")
        if not plain_name(entry["folder"]) or entry["images"] < 1:
            raise ConceptError(f"{file} is damaged: expected a folder beside it with images, got {entry['folder']!r}")
    names = [entry["folder"] for entry in record["parts"]]
    if not names or len(set(names)) != len(names):
        raise ConceptError(f"{file} is damaged: expected parts in folders of different names, got {len(names)}")
    if sum(entry["images"] for entry in record["parts"]) != record["images"] or record["concepts"] < 1:
        raise ConceptError(f"{file} is damaged: its parts do not have the {record['images']:,} images that it says")
    if not all(isinstance(name, str) for name in (*record["classes"], *record["arrays"])):
        raise ConceptError(f"{file} is damaged: expected names of classes and arrays")


def plain_name(folder: str) -> bool:
    """Whether a text names a folder directly in another: nothing outside is opened for a manifest."""
    return bool(folder) and not set(folder) & set("/\\:\0") and folder not in (".", "..")


def _agree(part: Part, record: Mapping[str, Any]) -> None:
    for name in ("classes", "concepts", "arrays"):
        if part.record[name] != record[name]:
            raise ConceptError(f"{part.folder}: its {name} differ from those of {MANIFEST}; it is of other codes")


def _joined(codes: Sequence[Codes], info: Mapping[str, Any]) -> Codes:
    """Codes of the same network one after the other, copied into memory."""
    first, names = codes[0], ("bits", "labels", "parts", "smooth", "exact", "saturated")
    return Codes(
        **{name: np.concatenate([getattr(one, name) for one in codes]) for name in names},
        concepts=first.concepts,
        classes=first.classes,
        ids=_Joined([one.ids for one in codes]),
        weight=first.weight,
        bias=first.bias,
        info=info,
    )


class _Joined(Sequence[str]):
    """Names of several parts, one after the other."""

    def __init__(self, parts: Sequence[Sequence[str]]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        number = int(np.searchsorted(self._ends, place, side="right"))
        return self._parts[number][place - (int(self._ends[number - 1]) if number else 0)]

    def index(self, value: str, start: int = 0, stop: int | None = None) -> int:
        """The first row of that name."""
        before = 0
        for part, end in zip(self._parts, self._ends.tolist(), strict=True):
            if end > start and (stop is None or before < stop):
                try:
                    within = None if stop is None else min(stop, end) - before
                    return before + part.index(value, max(start - before, 0), len(part) if within is None else within)
                except ValueError:
                    pass
            before = end
        raise ValueError(f"{value!r} is none of {len(self):,} names")
