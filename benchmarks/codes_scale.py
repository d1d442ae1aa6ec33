"""Codes at scale: time and memory of scores and exact search over a folder, and over other kinds of files.

The same synthetic codes are written as a folder of `htaf.concepts.store` (Parquet, bits uncompressed), as packed arrays
of NumPy and as Arrow files, both memory-mapped, and as Parquet with zstd. Each side reads all bits once, searches for
the nearest of one query and of many, and all give the same results before they are timed. Scores are those of the
folder and of codes in memory. Sides take turns. Seconds of the processor stand beside those of the clock.

Bits are independent, each concept with a rate of its own. The files are removed in the end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import measuring
import memory
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from threadpoolctl import threadpool_limits

from htaf.concepts.codes import PARTS
from htaf.concepts.nearest import NearestImages
from htaf.concepts.scores import score
from htaf.concepts.store import CodesFolder, open_folder
from htaf.concepts.writing import Head, write_part, writing_folder
from htaf.kernels import native

NEAREST = 10
ROWS = 2**17  # of a piece
Pieces = Callable[[], Iterator[tuple[int, np.ndarray]]]


def part_bits(number: int, images: int, concepts: int) -> np.ndarray:
    """uint8 [images, ceil(concepts / 8)]; concept j is 1 in 1/4, 1/2 or 3/4 of the images, by j modulo 3."""
    draw = np.random.default_rng([number, images])
    width = (concepts + 7) // 8
    bits, other = (np.frombuffer(bytearray(draw.bytes(images * width)), np.uint8).reshape(images, width) for _ in "ab")
    kinds = np.arange(8 * width) % 3
    rare, often = (np.packbits(kinds == kind, bitorder="little") for kind in (1, 2))
    bits &= other | ~rare
    bits |= other & often
    if concepts % 8:
        bits[:, -1] &= (1 << concepts % 8) - 1
    return bits


def make(root: Path, args: argparse.Namespace) -> CodesFolder:
    """The folder, and the same bits in files of other kinds beside it."""
    draw = np.random.default_rng(0)
    classes, concepts = args.classes, args.concepts
    weight = draw.normal(size=(classes, concepts)).astype(np.float32)
    named = tuple(map(str, range(classes)))
    columns = ("id", "label", "part", "smooth", "exact", "saturated", "bits")
    head = Head({"what": "synthetic"}, named, columns, weight, np.zeros(classes, np.float32))
    with writing_folder(root / "codes", head) as folder:
        for number, first in enumerate(range(0, args.images, args.part_images)):
            size = min(args.part_images, args.images - first)
            bits, labels = part_bits(number, size, concepts), draw.integers(0, classes, size, dtype=np.int32)
            values = {
                "id": [f"{first + row:x}" for row in range(size)],
                "label": labels,
                "part": np.where(np.arange(size) % 5 == 0, PARTS.index("test"), 0).astype(np.uint8),
                "smooth": labels,
                "exact": np.where(np.arange(size) % 50, labels, 0).astype(np.int32),
                "saturated": np.full(size, concepts // 2, np.int32),
                "bits": bits,
            }
            write_part(folder.path, folder.record, number, values)
            np.save(root / f"{number}.npy", bits)
            kind = pa.binary(bits.shape[1])
            column = pa.Array.from_buffers(kind, size, [None, pa.py_buffer(bits)])
            table = pa.table([column], schema=pa.schema([pa.field("bits", kind, nullable=False)]))
            with pa.ipc.new_file(root / f"{number}.arrow", table.schema) as file:
                file.write_table(table, max_chunksize=ROWS)
            plain: Any = {"use_dictionary": False, "write_statistics": False, "row_group_size": ROWS}
            pq.write_table(table, root / f"{number}.parquet", compression="zstd", **plain)
        folder.finish()
    return open_folder(root / "codes")


def of_bytes(column: pa.Array) -> np.ndarray:
    width = column.type.byte_width
    data = np.frombuffer(column.buffers()[1], np.uint8, len(column) * width, column.offset * width)
    return data.reshape(-1, width)


def kinds(root: Path, codes: CodesFolder) -> dict[str, Pieces]:
    """What gives the bits of each kind of file, piece by piece."""

    def folder() -> Iterator[tuple[int, np.ndarray]]:
        return ((first, found["bits"]) for first, found in codes.pieces("bits"))

    def arrays() -> Iterator[tuple[int, np.ndarray]]:
        for number, part in enumerate(codes.parts):
            mapped = np.load(root / f"{number}.npy", mmap_mode="r")
            for start in range(0, len(mapped), ROWS):
                yield part.first + start, mapped[start : start + ROWS]

    def arrow() -> Iterator[tuple[int, np.ndarray]]:
        for number, part in enumerate(codes.parts):
            first = part.first
            with pa.memory_map(str(root / f"{number}.arrow")) as source:
                file = pa.ipc.open_file(source)
                for batch in range(file.num_record_batches):
                    bits = of_bytes(file.get_batch(batch).column("bits"))
                    yield first, bits
                    first += len(bits)

    def compressed() -> Iterator[tuple[int, np.ndarray]]:
        for number, part in enumerate(codes.parts):
            first, file = part.first, pq.ParquetFile(root / f"{number}.parquet")
            for group in range(file.num_row_groups):
                bits = of_bytes(file.read_row_group(group).column("bits").combine_chunks())
                yield first, bits
                first += len(bits)

    return {"folder (Parquet)": folder, "NumPy, mapped": arrays, "Arrow, mapped": arrow, "Parquet, zstd": compressed}


class Search(NearestImages):
    """The search over other pieces."""

    def __init__(self, codes: CodesFolder, pieces: Pieces) -> None:
        super().__init__(codes)
        self._pieces = pieces


def read_all(pieces: Pieces) -> int:
    """One pass that only reads: the exclusive or of all words."""
    found = np.uint64(0)
    for _, bits in pieces():
        flat = bits.reshape(-1)
        found ^= np.bitwise_xor.reduce(flat[: len(flat) // 8 * 8].view(np.uint64))
    return int(found)


def timed(function: Callable[[], object]) -> Callable[[], tuple[float, float]]:
    """Seconds of the clock and of the processor."""

    def sample() -> tuple[float, float]:
        wall, spent = time.perf_counter(), time.process_time()
        function()
        return time.perf_counter() - wall, time.process_time() - spent

    return sample


def rows_of(what: str, sides: dict[str, Callable[[], object]], args: argparse.Namespace) -> list[dict[str, Any]]:
    times = measuring.alternate({n: timed(f) for n, f in sides.items()}, args.rounds, warm_up=args.warm_up)
    rows: list[dict[str, Any]] = []
    for side, samples in times.items():
        wall, spent = (measuring.spread(sample[i] for sample in samples) for i in (0, 1))
        print(f"{what:14} {side:20} {wall} s, processor {spent.median:.2f} s", flush=True)
        rows.append({"what": what, "side": side, "seconds": wall, "processor": spent})
    return rows


def peak(folder: Path, what: str) -> dict[str, int]:
    """Bytes of the scores, or of a search, beside those of an idle process; run in a process of its own."""
    codes = open_folder(folder)
    query = codes.rows([0]).bits
    memory._trim()
    idle = memory._status("VmRSS")
    if not memory._reset_peak():
        sys.exit("the most memory of a process is known on Linux only")
    score(codes) if what == "scores" else NearestImages(codes).query(query, NEAREST)
    return {"peak": memory._status("VmHWM") - idle, "idle": idle}


def main() -> None:
    parser = measuring.parser(__doc__, rounds=3)
    add = parser.add_argument
    add("--images", type=measuring.at_least_one, default=10_000_000, help="default: 10,000,000")
    add("--concepts", type=measuring.at_least_one, default=512, help="default: 512")
    add("--classes", type=measuring.at_least_one, default=10, help="default: 10")
    add("--part-images", type=measuring.at_least_one, default=1_000_000, help="images of a part; default: 1,000,000")
    add("--queries", type=measuring.at_least_one, default=100, help="default: 100")
    add("--threads", type=measuring.at_least_one, default=os.cpu_count(), help="default: those of the machine")
    add("--warm-up", type=int, default=1, help="rounds that do not count; default: 1")
    add("--peak-of", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with threadpool_limits(args.threads):
        if args.peak_of:
            print(json.dumps(peak(Path(args.peak_of[0]), args.peak_of[1])))
            return
        if not args.no_test:
            measuring.test_first("kernels/test_nearest.py", "concepts/test_tally.py", "concepts/test_store.py")
        measuring.warn_when_busy()
        with tempfile.TemporaryDirectory() as work:
            codes = make(Path(work), args)
            pieces = kinds(Path(work), codes)
            searches = {name: Search(codes, some) for name, some in pieces.items()}
            queries = codes.rows(np.linspace(0, len(codes) - 1, args.queries).astype(np.int64)).bits
            queries ^= np.random.default_rng(3).choice([0, 1, 8], queries.shape).astype(np.uint8)
            found = [(read_all(pieces[name]), *one.query(queries, NEAREST)) for name, one in searches.items()]
            if any(not np.array_equal(a, b) for other in found for a, b in zip(found[0], other, strict=True)):
                sys.exit("the kinds of files give different results, so nothing is timed")
            rows = rows_of("reading", {n: lambda n=n: read_all(pieces[n]) for n in pieces}, args)
            for count in (1, args.queries):
                asked = queries[:count]
                sides = {n: lambda n=n, asked=asked: searches[n].query(asked, NEAREST) for n in searches}
                rows += rows_of(f"{count} queries", sides, args)
            sides = {"folder (Parquet)": partial(score, codes), "in memory": partial(score, codes.codes())}
            rows += rows_of("scores", sides, args)
            for what in ("scores", "search"):
                words = [sys.executable, __file__, "--peak-of", str(codes.path), what, f"--threads={args.threads}"]
                most = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
                more, idle = (most[name] / 2**20 for name in ("peak", "idle"))
                print(f"{what:14} memory {more:.0f} MiB beside {idle:.0f} MiB of an idle process")
                rows.append({"what": what, "side": "memory", **most})
            size = sum(part.file.stat().st_size for part in codes.parts)
        said = {"images": args.images, "concepts": args.concepts, "classes": args.classes, "queries": args.queries}
        said |= {"threads": args.threads, "bytes": size, "compiled": native.available()}
        rows = [{**said, **row} for row in rows]
    measuring.end(args, rows)


if __name__ == "__main__":
    main()
