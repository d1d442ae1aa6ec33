"""Codes in parts at scale: time against one pass over the files, on synthetic codes; recall of lists on real ones.

(a) scores of `htaf.concepts.scores.score_parts` against one pass over the codes that only reads them, and one that
    counts their bits by NumPy; with the most memory that the scores take, in a process of its own.
(b) `htaf.concepts.nearest` against faiss's IndexBinaryFlat, a batch of queries and one query: seconds, share of the
    bandwidth of reading alone, and of the popcounts that the processor can do on registers.
(c) `htaf.concepts.lists`: recall@k and time for each number of probes, on codes of features that are given (random
    hyperplanes, as `htaf concepts binarise --how random` makes them) and on random bits, the worst case.

With --times N the parts are gone over N times, as over N times as many images: no disk is needed, but the processor's
last cache may hold a part of them.

The codes are written to --folder and kept there for the next call. Bits are independent, each concept with a rate of
its own; labels, predictions and ids are those of the first part in all parts (hard links): 1e8 images take 7.5 GB.
All sides are compared before they are timed, and take turns. Seconds of the processor stand beside those of the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import measuring
import memory
import numpy as np
import torch
from threadpoolctl import threadpool_limits

from htaf.concepts import sharded_writing, store
from htaf.concepts.binarise import bits_of
from htaf.concepts.lists import build_lists
from htaf.concepts.nearest import NearestInParts
from htaf.concepts.scores import score_parts
from htaf.concepts.sharded import ShardedCodes, open_sharded
from htaf.concepts.sharded_writing import part_name, write_manifest
from htaf.concepts.store import Features
from htaf.concepts.writing import Contents, writing
from htaf.kernels import native
from htaf.runs import to_json, write_atomic

NEAREST = 10
CHUNK = 2**24  # bytes of a pass at a time
PEAK_STEPS, SPINS = 20_000, 500
ROOT = Path(__file__).resolve().parents[1]


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


def make(folder: Path, images: int, part_images: int, concepts: int, classes: int) -> ShardedCodes:
    """Synthetic codes in parts; parts that are there are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    sizes = [min(part_images, images - first) for first in range(0, images, part_images)]
    settings = {"what": "synthetic", "images": images, "concepts": concepts, "part_images": part_images}
    if (folder / "manifest.json").is_file():
        found = open_sharded(folder)
        if dict(found.info["settings"]) == settings:
            return found
        sys.exit(f"{folder} holds other codes: choose another --folder")
    weight = draw.normal(size=(classes, concepts)).astype(np.float32)
    begin = time.monotonic()
    for number, size in enumerate(sizes):
        out = folder / part_name(number)
        if (out / store.RECORD).is_file() and store.read_record(out)["status"] == "finished":  # pyright: ignore
            continue
        bits = part_bits(number, size, concepts)
        if size == sizes[0] and number:
            linked(folder / part_name(0), out, bits)
            continue
        some = np.random.default_rng([1, size])
        labels = some.integers(0, classes, size, dtype=np.int32)
        parts = np.where(np.arange(size) % 5 == 0, 2, 0).astype(np.uint8)
        contents = Contents(
            settings, tuple(map(str, range(classes))), labels, np.sort(parts), [f"{i:x}" for i in range(size)], weight,
            np.zeros(classes, np.float32),
        )  # fmt: skip
        arrays = {
            "codes": bits,
            "smooth": labels,
            "exact": np.where(np.arange(size) % 50, labels, 0).astype(np.int32),
            "saturated": np.full(size, concepts // 2, np.int32),
        }
        with writing(out, contents) as writer:
            for chunk in list(writer.pending):
                rows = slice(chunk * store.CHUNK, (chunk + 1) * store.CHUNK)
                writer.write(chunk, {name: array[rows] for name, array in arrays.items()})
            writer.finish()
    found = write_manifest(folder, [part_name(number) for number in range(len(sizes))], settings=settings)
    print(f"{images:,} images in {len(sizes)} parts written in {time.monotonic() - begin:.0f} s", flush=True)
    return found


def repeated(codes: ShardedCodes, times: int) -> ShardedCodes:
    """The same parts several times over, as parts of their own: nothing is written."""
    parts = [replace(part, first=part.first + i * len(codes)) for i in range(times) for part in codes.folders]
    return replace(codes, folders=tuple(parts), info={**codes.info, "images": times * len(codes)})


def linked(like: Path, out: Path, bits: np.ndarray) -> None:
    """A part with codes of its own; its other files are those of another part."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    record = json.loads((like / store.RECORD).read_text())
    for name in record["files"]:
        if name != "codes.npy":
            os.link(like / name, out / name)
    np.save(out / "codes.npy", bits)
    record["files"]["codes.npy"] = store.sha256(out / "codes.npy")
    write_atomic(out / store.RECORD, to_json(record))


def timed(function: Callable[[], object]) -> Callable[[], tuple[float, float]]:
    """Seconds of the clock and of the processor."""

    def sample() -> tuple[float, float]:
        wall, spent = time.perf_counter(), time.process_time()
        function()
        return time.perf_counter() - wall, time.process_time() - spent

    return sample


def chunks(codes: ShardedCodes) -> Iterator[np.ndarray]:
    for _, bits in codes.bits():
        flat = bits.reshape(-1)
        for start in range(0, len(flat), CHUNK):
            yield flat[start : start + CHUNK]


def read_all(codes: ShardedCodes) -> int:
    """One pass that only reads: the exclusive or of all words."""
    found = np.uint64(0)
    for some in chunks(codes):
        found ^= np.bitwise_xor.reduce(some[: len(some) // 8 * 8].view(np.uint64))
    return int(found)


def count_all(codes: ShardedCodes) -> int:
    """One pass that counts bits, by NumPy."""
    return sum(
        int(np.bitwise_count(some[: len(some) // 8 * 8].view(np.uint64)).sum(dtype=np.int64)) for some in chunks(codes)
    )


def row(what: str, side: str, times: list[measuring.Sample], **more: Any) -> dict[str, Any]:
    wall, spent = (measuring.spread(t[i] for t in times) for i in (0, 1))
    print(f"{what:24} {side:28} {wall} s, processor {spent.median:.2f} s", flush=True)
    return {"what": what, "side": side, "seconds": wall, "processor": spent, **more}


def peak(folder: Path, times: int) -> dict[str, int]:
    """Bytes of the scores beside those of an idle process; run in a process of its own."""
    codes = repeated(open_sharded(folder), times)
    memory._trim()
    idle = memory._status("VmRSS")
    if not memory._reset_peak():
        sys.exit("the most memory of a process is known on Linux only")
    score_parts(codes)
    return {"peak": memory._status("VmHWM") - idle, "idle": idle}


def scores(codes: ShardedCodes, args: argparse.Namespace, sizes: dict[str, int]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    sides = {
        "reading alone": timed(lambda: read_all(codes)),
        "NumPy bitwise_count": timed(lambda: count_all(codes)),
        "score_parts": timed(lambda: score_parts(codes)),
    }
    times = measuring.alternate(sides, args.rounds, warm_up=args.warm_up)
    total = len(codes) * ((codes.concepts + 7) // 8)
    for side, spent in times.items():
        rows.append(row("scores", side, spent, **sizes, bytes=total))
    for side in ("reading alone", "NumPy bitwise_count"):
        wall, spent = (measuring.ratio(times["score_parts"], times[side], i) for i in (0, 1))
        print(f"{'':24} score_parts / {side}: {wall}, processor {spent.median:.1f}")
        rows.append({"what": "scores", "side": f"score_parts / {side}", **sizes, "ratio": wall, "processor": spent})
    done = subprocess.run(
        [sys.executable, __file__, f"--peak-of={codes.path}", f"--threads={args.threads}", f"--times={args.times}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    most, idle = (found[name] / 2**20 for name in ("peak", "idle"))
    print(f"{'scores':24} most memory {most:.0f} MiB beside {idle:.0f} MiB of an idle process")
    return [*rows, {"what": "scores", "side": "memory", **sizes, **found}]


def search(codes: ShardedCodes, args: argparse.Namespace, sizes: dict[str, int]) -> list[dict[str, Any]]:
    index, draw = NearestInParts(codes), np.random.default_rng(3)
    chosen = np.sort(draw.choice(len(codes), args.queries, replace=False))
    flips = [draw.choice([0, 1, 8], (args.queries, (codes.concepts + 7) // 8)).astype(np.uint8) for _ in "a"]
    queries = np.array(codes.rows(chosen).bits) ^ flips[0]
    sides: dict[str, Callable[[], tuple[float, float]]] = {
        "reading alone": timed(lambda: read_all(codes)),
        "htaf, all queries": timed(lambda: index.query(queries, NEAREST)),
        "htaf, one query": timed(lambda: index.query(queries[:1], NEAREST)),
    }
    total = len(codes) * queries.shape[1]
    if total <= args.faiss_bytes:
        import faiss

        flat = faiss.IndexBinaryFlat(8 * queries.shape[1])
        for _, bits in codes.bits():
            flat.add(np.ascontiguousarray(bits))
        faiss.omp_set_num_threads(args.threads)
        for one, other in zip(index.query(queries, NEAREST), flat.search(queries, NEAREST), strict=True):
            if not np.array_equal(one, other):
                sys.exit("htaf and faiss find other images, so nothing is timed")
        sides["faiss, all queries"] = timed(lambda: flat.search(queries, NEAREST))
        sides["faiss, one query"] = timed(lambda: flat.search(queries[:1], NEAREST))
    times = measuring.alternate(sides, args.rounds, warm_up=args.warm_up)
    words = -(-codes.concepts // 64)
    more = {**sizes, "nearest": NEAREST, "queries": args.queries, "bytes": total}
    rows = [row("search", side, spent, **more) for side, spent in times.items()]
    share = measuring.ratio(times["reading alone"], times["htaf, all queries"])
    # short spins, the best of many: other work on the machine stops some of them
    spins = [native.extension().popcount_peak(PEAK_STEPS) for _ in range(SPINS)] if native.load()[0] else [0.0]
    peak_words = max(spins) / 2 / 64
    wanted = len(codes) * words * args.queries
    done = wanted / measuring.spread(t[1] for t in times["htaf, all queries"]).median
    print(f"{'':24} {args.queries} queries: {100 * share.median:.1f}% of the bandwidth of reading alone;")
    reached = f"{100 * done / peak_words:.0f}% of the peak on registers" if peak_words else "no compiled kernels"
    print(f"{'':24} {done / 1e9:.1f}e9 words a second of a core, {reached}")
    rows.append(
        {"what": "search", "side": "share", **more, "of_reading": share, "words": wanted, "words_a_second": done,
         "peak_words_a_second": peak_words}
    )  # fmt: skip
    if "faiss, all queries" in times:
        for kind in ("all queries", "one query"):
            wall, spent = (measuring.ratio(times[f"faiss, {kind}"], times[f"htaf, {kind}"], i) for i in (0, 1))
            print(f"{'':24} faiss / htaf, {kind}: {wall}, processor {spent.median:.2f}")
            rows.append({"what": "search", "side": f"faiss / htaf, {kind}", **more, "ratio": wall, "processor": spent})
    return rows


def of_features(files: list[Path], concepts: int) -> tuple[np.ndarray, np.ndarray]:
    """Bits of the features of one network: of the first file to be found, of the last to search with."""
    values = [np.load(file, mmap_mode="r") for file in files]
    n, size = sum(len(one) for one in values), values[0].shape[1]
    nothing = np.full(n, -1, np.int32)
    features = Features(
        np.concatenate(values), ("one",), nothing, np.zeros(n, np.uint8), range(n),  # pyright: ignore
        np.zeros((1, size), np.float32), np.zeros(1, np.float32), nothing, {},
    )  # fmt: skip
    bits = bits_of(features, np.arange(len(values[0])), "random", concepts=concepts).bits
    return bits[: len(values[0])], bits[n - len(values[-1]) :]


def parted(folder: Path, bits: np.ndarray, concepts: int, parts: int) -> ShardedCodes:
    """Codes in parts of bits at hand."""
    for number, rows in enumerate(np.array_split(np.arange(len(bits)), parts)):
        n = len(rows)
        contents = Contents(
            {"what": "bits"}, ("one",), np.full(n, -1, np.int32), np.full(n, 3, np.uint8), [str(i) for i in rows],
            np.zeros((1, concepts), np.float32), np.zeros(1, np.float32),
        )  # fmt: skip
        none = np.full(n, -1, np.int32)
        with writing(folder / part_name(number), contents) as writer:
            for chunk in list(writer.pending):
                some = slice(chunk * store.CHUNK, min(n, (chunk + 1) * store.CHUNK))
                arrays = {
                    "codes": bits[rows[some]],
                    "smooth": none[some],
                    "exact": none[some] + 1,
                    "saturated": none[some],
                }
                writer.write(chunk, arrays)
            writer.finish()
    return write_manifest(folder)


def lists(name: str, bits: np.ndarray, queries: np.ndarray, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Recall@k: the share of the k nearest that are found; one as near as the k-th counts as found."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=args.folder.parent) as work:
        codes = parted(Path(work) / "codes", bits, args.concepts, args.list_parts)
        begin, spent = time.perf_counter(), time.process_time()
        index = build_lists(codes, Path(work) / "lists", lists=args.lists)
        built = {"seconds": time.perf_counter() - begin, "processor": time.process_time() - spent}
        exact, _ = NearestInParts(codes).query(queries, NEAREST)
        sizes = {"images": len(bits), "concepts": args.concepts, "queries": len(queries), "lists": index.lists}
        sizes |= {"parts": args.list_parts, "nearest": NEAREST}
        print(f"{name}: {len(bits):,} codes, {index.lists} lists, {built['processor']:.1f} s of the processor")
        far = {"nearest": float(exact[:, 0].mean()), "last": float(exact[:, -1].mean())}
        print(f"{name}: mean distance of the nearest {far['nearest']:.1f} bits, of the {NEAREST}th {far['last']:.1f}")
        rows.append({"what": "lists", "codes": name, "side": "build", **sizes, **built, "distances": far})
        everything = timed(lambda: NearestInParts(codes).query(queries, NEAREST))()
        for probes in [p for p in args.probes if p <= index.lists]:
            distances, found = index.query(queries, NEAREST, probes=probes)
            recall = float(((found >= 0) & (distances <= exact[:, -1:])).mean())
            wall, cpu = timed(lambda probes=probes: index.query(queries, NEAREST, probes=probes))()
            print(f"{'lists':24} {name:14} probes {probes:4}: recall@{NEAREST} {recall:.4f}, processor {cpu:.2f} s, "
                  f"exact {everything[1]:.2f} s", flush=True)  # fmt: skip
            more = {"probes": probes, "recall": recall, "seconds": wall, "processor": cpu}
            rows.append({"what": "lists", "codes": name, "side": "query", **sizes, **more, "exact": everything})
    return rows


def main() -> None:
    parser = measuring.parser(__doc__, rounds=3)
    add = parser.add_argument
    add("--folder", type=Path, help="where the codes are; default: a new temporary folder, removed in the end")
    add("--images", type=measuring.at_least_one, default=10_000_000, help="default: 10,000,000")
    add("--times", type=measuring.at_least_one, default=1, help="go over the parts so often, as over more; default: 1")
    add("--concepts", type=measuring.at_least_one, default=512, help="default: 512")
    add("--classes", type=measuring.at_least_one, default=10, help="default: 10")
    add("--part-images", type=measuring.at_least_one, default=1_000_000, help="images of a part; default: 1,000,000")
    add("--queries", type=measuring.at_least_one, default=100, help="default: 100")
    add("--threads", type=measuring.at_least_one, default=os.cpu_count(), help="default: those of the machine")
    add("--warm-up", type=int, default=1, help="rounds that do not count; default: 1")
    add("--faiss-bytes", type=int, default=2 * 10**9, help="codes that are copied for faiss; default: up to 2e9 bytes")
    add(
        "--features",
        type=Path,
        nargs="+",
        default=[],
        metavar="NPY",
        help="features: those to be found, and the queries",
    )
    add("--lists", type=measuring.at_least_one, help="default: the square root of the images of a part")
    add("--list-parts", type=measuring.at_least_one, default=2, help="parts of the codes in lists; default: 2")
    add("--probes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128], help="default: 1 to 128")
    add("--only", nargs="+", choices=("scores", "search", "lists"), default=["scores", "search", "lists"])
    add("--peak-of", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sharded_writing.GROUP = 2**20
    with threadpool_limits(args.threads):
        if args.peak_of:
            print(json.dumps(peak(args.peak_of, args.times)))
            return
        if not args.no_test:
            measuring.test_first("kernels/test_nearest.py", "concepts/test_tally.py", "concepts/test_lists.py")
        measuring.warn_when_busy()
        rows: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory() as work:
            args.folder = args.folder or Path(work) / "codes"
            sizes = {"images": args.images, "concepts": args.concepts, "classes": args.classes, "threads": args.threads}
            if {"scores", "search"} & set(args.only):
                codes = make(args.folder, args.images, args.part_images, args.concepts, args.classes)
                codes, sizes["images"] = repeated(codes, args.times), args.times * args.images
                sizes["distinct"] = args.images
                rows += scores(codes, args, sizes) if "scores" in args.only else []
                rows += search(codes, args, sizes) if "search" in args.only else []
            if "lists" in args.only:
                if args.features:
                    found, queries = of_features(args.features, args.concepts)
                    rows += lists("features", found, queries[:: max(1, len(queries) // 1000)], args)
                    count = len(found)
                else:
                    count = min(args.images, 50_000)
                random = np.random.default_rng(5).integers(0, 256, (count + 1000, (args.concepts + 7) // 8), np.uint8)
                if args.concepts % 8:
                    random[:, -1] &= (1 << args.concepts % 8) - 1
                rows += lists("random bits", random[:count], random[count:], args)
    print(measuring.one_line())
    measuring.write(args.json, rows)


if __name__ == "__main__":
    main()
