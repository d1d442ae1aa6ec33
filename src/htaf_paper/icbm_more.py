"""Two more comparisons of implicit concept bottleneck models on CUB, reduced: pretrained backbones, given attributes.

`python -m htaf_paper.icbm_more pretrained --out DIR`: a plain ResNet-18 of width 16 is trained on 5,000 images of
CIFAR-10; its run folder is the `pretrained` of an ICBM that is fine-tuned on CUB at 64 pixels, beside one from scratch.

`python -m htaf_paper.icbm_more attributes --out DIR`: the concept bottleneck with 112 attributes of CUB (joint,
sequential, independent; Koh et al. 2020) on the network and with the recipe of `htaf_paper.icbm`, whose ICBM and plain
network it stands beside.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from htaf._console import plain_errors
from htaf.data.images import Images, load
from htaf.runs import Run, to_json, write_atomic
from htaf.training.fit import fit
from htaf.training.problems import supervision
from htaf.training.recipe import Recipe
from htaf_paper.icbm import CUB_SIZE, recipe

TRANSFER_SIZE = 64


def pretrained(out: Path, seeds: int, data_dir: str | None) -> Iterator[tuple[str, Run]]:
    """A backbone from CIFAR-10, then CUB with and without it."""
    plain = recipe("resnet", "cifar10").replace(method="relu")
    first = fit(plain, load("cifar10", data_dir=data_dir), out / "cifar10", progress=True)
    yield "plain on CIFAR-10", first
    cub = load("cub", data_dir=data_dir, size=TRANSFER_SIZE)
    base = recipe("resnet", "cub").replace(stem="cifar", epochs=10)
    start = str(first.path)
    for name, chosen in (
        ("ICBM on CUB, from scratch", base),
        ("ICBM on CUB, pretrained", base.replace(pretrained=start)),
        ("ICBM on CUB, pretrained and frozen", base.replace(pretrained=start, freeze=True)),
    ):
        for seed in range(seeds):
            yield name, fit(chosen, cub, out / f"{name.split(', ')[1]}-{seed}", seed=seed, progress=True)


def attributes(out: Path, seeds: int, data_dir: str | None) -> Iterator[tuple[str, Run]]:
    """Bottlenecks with given attributes."""
    cub: Images = load("cub", data_dir=data_dir, size=CUB_SIZE)
    for kind in ("joint", "sequential", "independent"):
        chosen: Recipe = recipe("resnet", "cub").replace(method="relu", bottleneck=kind)
        table = supervision(chosen, data_dir)
        for seed in range(seeds):
            yield kind, fit(chosen, cub, out / f"{kind}-{seed}", seed=seed, attributes=table, progress=True)


NOTES = {
    "pretrained": "CIFAR-10: 5,000 images, 10 epochs. CUB: 50 classes at 64 pixels, 10 epochs. Nothing was tuned.",
    "attributes": (
        "The recipe of `htaf_paper.icbm`, untuned; the paper trains a WideResNet with SGD 1e-4 (72.5% on 200 classes). "
        "Predictor and head are trained at once; sequential and independent have no gradient from head to predictor."
    ),
}
EXPERIMENTS = {"pretrained": pretrained, "attributes": attributes}


def table(which: str, out: Path, *, seeds: int, data_dir: str | None) -> str:
    """Train what is not there yet; writes WHICH.json and WHICH.md into `out`, returns the latter."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for name, run in EXPERIMENTS[which](out / which, seeds, data_dir):
        metrics, record = run.record["metrics"], run.record
        found = {k: None if metrics[k] is None else metrics[k]["test"]["accuracy"] for k in ("smooth", "exact")}
        kept = ("seed", "commit", "cpu_seconds", "recipe")
        rows.setdefault(name, []).append(found | {field: record[field] for field in kept})
        write_atomic(out / f"{which}.json", to_json(rows))
    lines = [f"`python -m htaf_paper.icbm_more {which} --out DIR`: test accuracy in %, mean (standard error).", ""]
    lines += ["| | smooth | exact | seeds | CPU seconds a run |", "|---|---|---|---|---|"]
    for name, values in rows.items():
        cells = [_percent([value[k] for value in values]) for k in ("smooth", "exact")]
        seconds = statistics.fmean(value["cpu_seconds"] for value in values)
        lines.append(f"| {name} | {' | '.join(cells)} | {len(values)} | {seconds:.0f} |")
    lines += ["", NOTES[which]]
    text = "\n".join(lines) + "\n"
    write_atomic(out / f"{which}.md", text)
    return text


def _percent(values: list[float | None]) -> str:
    known = [100 * value for value in values if value is not None]
    if not known:
        return "-"
    error = f" ({statistics.stdev(known) / len(known) ** 0.5:.1f})" if len(known) > 1 else ""
    return f"{statistics.fmean(known):.1f}{error}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m htaf_paper.icbm_more", description="ICBMs on CUB, reduced.")
    parser.add_argument("which", choices=sorted(EXPERIMENTS))
    parser.add_argument("--out", type=Path, required=True, help="folder of the results; continues where it stopped")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data-dir", help="folder of the data sets (else HTAF_DATA or a download)")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with plain_errors():
        print(table(given.which, given.out, seeds=given.seeds, data_dir=given.data_dir), end="")


if __name__ == "__main__":
    main()
