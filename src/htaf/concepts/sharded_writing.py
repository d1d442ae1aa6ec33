"""Writing codes in parts: each part by `htaf.concepts.writing`, then the manifest, which makes the folder whole."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from htaf._files import expect_folder, sealed, written_whole
from htaf.concepts import store
from htaf.concepts.codes import ConceptError
from htaf.concepts.sharded import FORMAT, KIND, MANIFEST, ROWS, Part, ShardedCodes, open_sharded, plain_name
from htaf.concepts.sharded import read_manifest as read
from htaf.concepts.writing import Contents
from htaf.runs import LOCK, content_hash, environment, locked, shown, to_json, write_atomic

SAME = ("what", "run", "model_sha256", "layer", "thresholds")  # settings that parts which have them share
INFO = ("run", "method", "model")  # of concepts.json, the same in all parts
FIRST = b"htaf.first"  # in the schema of rows.parquet: the row number of the first image
GROUP = 131_072  # rows of a row group


def part_name(number: int) -> str:
    """The folder of part `number`: part-00000 is the first."""
    return f"part-{number:05d}"


def slice_of(contents: Contents, first: int, last: int) -> Contents:
    """What a part is to hold: rows first to last - 1 of what the whole is to hold.

    Its settings are those of the whole and "rows", [first, last].
    """
    rows = slice(first, last)
    return replace(
        contents,
        settings={**contents.settings, "rows": [first, last]},
        labels=contents.labels[rows],
        parts=contents.parts[rows],
        ids=contents.ids[rows],
    )


@dataclass
class PartsWriter:
    """An open folder of codes in parts; `finished`: it is whole already."""

    path: Path
    settings: Mapping[str, Any]
    finished: bool

    def folder(self, number: int) -> Path:
        """Where part `number` is to be written, by `htaf.concepts.writing.writing`."""
        return self.path / part_name(number)

    def whole(self, number: int) -> bool:
        """Whether part `number` is there, finished."""
        record = store.read_record(self.folder(number))
        return record is not None and record["status"] == "finished"

    def finish(self, count: int, info: Mapping[str, Any] | None = None) -> ShardedCodes:
        """The manifest of parts 0 to count - 1. Raises ConceptError: as `write_manifest`."""
        names = [part_name(number) for number in range(count)]
        found = write_manifest(self.path, names, settings=self.settings, info=info)
        self.finished = True
        return found


@contextmanager
def writing_parts(path: Path, settings: Mapping[str, Any]) -> Iterator[PartsWriter]:
    """Hold a folder while the block runs: a new one, or one of the same settings, which is continued.

    Until the manifest is finished it says so, and the folder opens in parts only. Other processes may write parts.

    Args:
        settings: what makes two folders the same, flat and JSON.

    Raises:
        ConceptError: the folder holds codes of other settings (the message names them) or other files, or another
            process holds it.
    """
    expect_folder(path, "the codes", ConceptError)
    with locked(path, "another process writes", ConceptError):
        for left in path.glob(f".{MANIFEST}.*"):  # of a process that was killed while it wrote the manifest
            left.unlink(missing_ok=True)
        key, here = content_hash(settings), json.loads(to_json(settings))
        record = read(path)
        if record is None:
            others = sorted(p.name for p in path.iterdir() if p.name != LOCK)
            if others:
                raise ConceptError(f"expected a new or empty folder, {path} holds {others[0]!r}: choose another --out")
            record = {"format": FORMAT, "kind": KIND, "status": "running", "key": key, "settings": here}
            write_atomic(path / MANIFEST, sealed(record))
        elif record["key"] != key:
            there = record["settings"]
            differences = [
                f"{name}: {shown(there.get(name))} there, {shown(here.get(name))} here"
                for name in sorted(there.keys() | here.keys())
                if there.get(name) != here.get(name)
            ]
            raise ConceptError(f"{path} holds other codes ({'; '.join(differences[:4])}): choose another --out")
        yield PartsWriter(path, here, record["status"] == "finished")


def write_manifest(
    out: str | Path,
    folders: Sequence[str] | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    info: Mapping[str, Any] | None = None,
) -> ShardedCodes:
    """Make finished folders of codes, directly in `out`, the parts of one: rows.parquet in each, then manifest.json.

    Only their records are read, and what rows.parquet holds; not the bits.

    Args:
        out: the folder that holds the parts.
        folders: their names, in the order of the rows; default: all that hold codes, by name.
        settings: of the whole, flat and JSON; default: those that all parts share.
        info: more for manifest.json, such as notes; run, method and model are taken from the parts.

    Returns:
        the codes, opened.

    Raises:
        ConceptError: no parts; one that is missing, damaged or not finished; or parts of different runs, classes,
            concepts, arrays or heads: the message names the part and what differs.
    """
    out = Path(out)
    names = sorted(p.parent.name for p in out.glob(f"*/{store.RECORD}")) if folders is None else list(folders)
    if not names:
        raise ConceptError(f"expected folders of codes in {out}, found none")
    if wrong := [name for name in names if not plain_name(name)] or [n for n in names if names.count(n) > 1]:
        raise ConceptError(f"expected different names of folders directly in {out}, got {wrong[0]!r}")
    records = [_finished(out / name) for name in names]
    for name, record in zip(names[1:], records[1:], strict=True):
        _agree(out / name, record, names[0], records[0])
    first, parts = 0, []
    for name, record in zip(names, records, strict=True):
        sha256 = store.sha256(out / name / store.RECORD)
        write_rows(Part(out / name, record["images"], first, sha256))
        parts.append({"folder": name, "images": record["images"], "first": first, "sha256": sha256})
        first += record["images"]
    if settings is None:
        settings = {k: v for k, v in records[0]["settings"].items() if all(r["settings"].get(k) == v for r in records)}
    said = {name: records[0][name] for name in INFO if name in records[0]}
    said["notes"] = list(dict.fromkeys(note for record in records for note in record.get("notes", [])))
    if any("unreadable" in record for record in records):
        said["unreadable"] = sum(record.get("unreadable", 0) for record in records)
        said["unreadable_files"] = [name for record in records for name in record.get("unreadable_files", [])][:100]
    manifest = {
        **said,
        **(info or {}),
        "format": FORMAT,
        "kind": KIND,
        "status": "finished",
        "key": content_hash(settings),
        "settings": json.loads(to_json(settings)),
        "images": first,
        "parts": parts,
        **{name: records[0][name] for name in ("classes", "concepts", "arrays")},
        **environment(),
    }
    write_atomic(out / MANIFEST, sealed(manifest))
    return open_sharded(out)


def _finished(folder: Path) -> dict[str, Any]:
    record = store.read_record(folder)
    if record is None:
        raise ConceptError(f"expected a folder of codes with {store.RECORD}, found none at {folder}")
    if record["status"] != "finished":
        raise ConceptError(f"{folder} is not finished: give the command that makes it again, to finish it")
    return record


def _agree(folder: Path, record: Mapping[str, Any], name: str, first: Mapping[str, Any]) -> None:
    """Raises ConceptError unless two parts are of one network."""
    values = [
        *((f"the setting {key}", record["settings"].get(key), first["settings"].get(key)) for key in SAME),
        *((key, record[key], first[key]) for key in ("classes", "concepts", "arrays")),
        ("the head", record["files"].get(store.HEAD), first["files"].get(store.HEAD)),
    ]
    for what, here, there in values:
        if here != there:
            raise ConceptError(
                f"{folder} is of other codes than {name}: expected {what} to be {shown(there):.80}, "
                f"got {shown(here):.80}"
            )


def write_rows(part: Part) -> None:
    """rows.parquet of a part, unless it is there: id, label, part, exact (-1: none) and row, its number in the whole.

    Raises:
        ConceptError: the part is damaged.
        OSError: it cannot be written.
    """
    file, mark = part.folder / ROWS, str(part.first).encode()
    if file.is_file():
        try:
            found = pq.ParquetFile(file)
            if (found.schema_arrow.metadata or {}).get(FIRST) == mark and found.metadata.num_rows == part.images:
                return
        except (OSError, pa.ArrowException):
            pass  # not whole: written again
    batch = store.read_images(part.folder, part.record)
    has_exact = "exact" in store.array_shapes(part.record)
    exact = np.array(part.array("exact")) if has_exact else np.full(part.images, -1, np.int32)
    columns = {
        "id": batch.column("id").cast(pa.string()),
        "label": batch.column("label"),
        "part": batch.column("part").cast(pa.string()),
        "exact": pa.array(exact, pa.int32()),
        "row": pa.array(np.arange(part.first, part.first + part.images, dtype=np.int64)),
    }
    table = pa.table(columns).replace_schema_metadata({FIRST: mark})
    with written_whole(file) as new:
        pq.write_table(table, new, row_group_size=GROUP, compression="zstd")
