"""Scores over many images: packed bits against NumPy on float32 features, on one core.

(a) class counts, pair counts, proportions and firing rates, from bits and from features >= 0 (0 and 1 as float32, whose
    matrix products NumPy leaves to BLAS, a part of the rows at a time); every score of `htaf.concepts.scores.score`.
(b) bytes an image, and the most memory that each side takes, in a process of its own.

Both sides are compared before they are timed, and take turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import measuring
import memory
import numpy as np
import torch
from threadpoolctl import threadpool_limits

from htaf.concepts import counts
from htaf.concepts.codes import Codes, codes_of
from htaf.concepts.scores import score
from htaf.core.functional import pack_bits

PART = 16_384  # rows at a time, of every kind

Counts = dict[str, np.ndarray]


def features(rows: int, concepts: int) -> np.ndarray:
    """float32 [rows, concepts], normal, each concept with its own mean: firing rates of 2% to 98%."""
    draw = np.random.default_rng(0)
    means = draw.uniform(-2, 2, concepts).astype(np.float32)
    found = np.empty((rows, concepts), dtype=np.float32)
    for start in range(0, rows, PART):
        part = found[start : start + PART]
        draw.standard_normal(dtype=np.float32, out=part)
        part += means
    return found


def labels_of(rows: int, classes: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, classes, rows, dtype=np.int32)


def packed(rows: int, concepts: int, classes: int, values: np.ndarray | None = None) -> Codes:
    """The codes of the same images; without `values` they are made a part at a time."""
    bits = np.empty((rows, (concepts + 7) // 8), dtype=np.uint8)
    draw = np.random.default_rng(0)
    means = draw.uniform(-2, 2, concepts).astype(np.float32)
    for start in range(0, rows, PART):
        if values is None:
            part = draw.standard_normal((min(PART, rows - start), concepts), dtype=np.float32) + means
        else:
            part = values[start : start + PART]
        bits[start : start + PART] = pack_bits(torch.from_numpy(part)).numpy()
    head = np.random.default_rng(2).standard_normal((classes, concepts))
    one = codes_of(np.zeros((1, concepts)), [0], head, np.zeros(classes))
    none = np.full(rows, -1, dtype=np.int32)
    labels = labels_of(rows, classes)
    parts = (np.arange(rows) % 5 == 0).astype(np.uint8) * 2  # a fifth is tested
    parts.sort()
    names: Any = range(rows)  # nobody looks at them
    return replace(
        one, bits=bits, labels=labels, parts=parts, ids=names, exact=labels, smooth=none, saturated=none
    )  # fmt: skip


def from_bits(codes: Codes) -> Counts:
    by_class, sizes, pairs = counts.class_counts(codes), counts.class_sizes(codes), counts.pair_counts(codes)
    return {
        "class counts": by_class,
        "pair counts": pairs,
        "proportions": counts.shares(by_class, sizes),
        "firing rates": pairs.diagonal() / len(codes),
    }


def from_floats(values: np.ndarray, labels: np.ndarray, classes: int) -> Counts:
    concepts = values.shape[1]
    by_class, pairs = np.zeros((concepts, classes)), np.zeros((concepts, concepts))
    members = np.eye(classes, dtype=np.float32)
    for start in range(0, len(values), PART):  # float32 counts exactly up to 2^24
        bits = (values[start : start + PART] >= 0).astype(np.float32)
        pairs += bits.T @ bits  # of a matrix with itself: half of the work, as NumPy knows
        by_class += bits.T @ members[labels[start : start + PART]]
    sizes = np.bincount(labels, minlength=classes)
    return {
        "class counts": by_class.astype(np.int64),
        "pair counts": pairs.astype(np.int64),
        "proportions": by_class / sizes,
        "firing rates": pairs.diagonal() / len(values),
    }


def timed(function: Callable[[], object], scale: float = 1e3) -> Callable[[], measuring.Sample]:
    """One call in ms."""
    return lambda: (measuring.once(function) * scale,)


def row(what: str, side: str, times: list[measuring.Sample], sizes: dict[str, int], **more: Any) -> dict[str, Any]:
    spread = measuring.spread(t[0] for t in times)
    print(f"{what:16} {side:24} {spread} ms", flush=True)
    return {"what": what, "side": side, **sizes, "threads": 1, "ms": spread, **more}


def peak(side: str, rows: int, concepts: int, classes: int) -> dict[str, int]:
    """Bytes while counting beside those of an idle process, and of them the data; run in a process of its own."""
    small = packed(64, concepts, classes)  # so that code is there
    from_bits(small)
    from_floats(features(64, concepts), labels_of(64, classes), classes)
    memory._trim()
    idle = memory._status("VmRSS")
    if side == "bits":
        codes = packed(rows, concepts, classes)
        data, count = codes.bits.nbytes, lambda: from_bits(codes)
    else:
        values, labels = features(rows, concepts), labels_of(rows, classes)
        data, count = values.nbytes, lambda: from_floats(values, labels, classes)
    memory._trim()
    if not memory._reset_peak():
        sys.exit("the most memory of a process is known on Linux only")
    count()
    return {"peak": memory._status("VmHWM") - idle, "data": data}


def own_process(side: str, args: argparse.Namespace) -> dict[str, int]:
    sizes = [f"--{name}={getattr(args, name)}" for name in ("rows", "concepts", "classes")]
    done = subprocess.run(
        [sys.executable, __file__, f"--peak-of={side}", *sizes], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    sizes = {name: getattr(args, name) for name in ("rows", "concepts", "classes")}
    rows: list[dict[str, Any]] = []
    for side in ("bits", "float32"):  # before this process holds both
        found = own_process(side, args)
        each = found["data"] / args.rows
        print(f"{side:8} {each:g} bytes an image, peak {found['peak'] / 2**20:.0f} MiB", flush=True)
        rows.append({"what": "memory", "side": side, **sizes, "bytes_per_image": each, "peak_bytes": found["peak"]})

    values = features(args.rows, args.concepts)
    codes = packed(args.rows, args.concepts, args.classes, values)
    left, right = from_bits(codes), from_floats(values, codes.labels, args.classes)
    for name in left:
        if not np.array_equal(left[name], right[name], equal_nan=True):
            sys.exit(f"{name}: bits and float32 differ, so nothing is timed")
    sides = {
        "bits": timed(lambda: from_bits(codes)),
        "float32": timed(lambda: from_floats(values, codes.labels, args.classes)),
    }
    times = measuring.alternate(sides, args.rounds)
    rows += [row("counts", side, spent, sizes) for side, spent in times.items()]
    faster = measuring.ratio(times["float32"], times["bits"])
    print(f"{'':16} float32 / bits: {faster}")
    rows.append({"what": "counts", "side": "float32 / bits", **sizes, "ratio": faster})
    pack = {"pack_bits": timed(lambda: packed(args.rows, args.concepts, args.classes, values))}
    rows += [row("packing, once", side, spent, sizes) for side, spent in measuring.alternate(pack, 3).items()]
    every = {"score()": timed(lambda: score(codes))}
    rows += [row("all scores", side, spent, sizes) for side, spent in measuring.alternate(every, 1).items()]
    return rows


def main() -> None:
    parser = measuring.parser(__doc__, rounds=7)
    parser.add_argument("--rows", type=measuring.at_least_one, default=1_000_000, help="images; default: 1,000,000")
    parser.add_argument("--concepts", type=measuring.at_least_one, default=512, help="default: 512")
    parser.add_argument("--classes", type=measuring.at_least_one, default=10, help="default: 10")
    parser.add_argument("--peak-of", choices=("bits", "float32"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        if args.peak_of:
            print(json.dumps(peak(args.peak_of, args.rows, args.concepts, args.classes)))
            return
        if not args.no_test:
            measuring.test_first("kernels/test_bit_counts.py", "concepts/test_counts.py")
        measuring.warn_when_busy()
        rows = run(args)
    measuring.end(args, rows)


if __name__ == "__main__":
    main()
