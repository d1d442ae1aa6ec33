"""Table "prediction accuracy and inference time comparison between ANN-to-SNN conversion and our method".

`htaf paper run ann-to-snn`. A ReLU network converted by threshold balancing, at five T and every way of balancing,
against a network trained as a spiking one with HTAF and run with the exact step, on the same images. Everything is
timed in one process, batch by batch in turn, on the networks as fast as they get here: batch normalisation folded into
the convolutions, channels-last layout, no gradients. Thresholds come from training images only.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from htaf.data.image_folders import shuffled_by_class
from htaf.data.image_preprocess import ImagePreprocessor
from htaf.data.images import Images, load
from htaf.runs import Run
from htaf.runs.data import is_own, rows_of
from htaf.spiking.ann_to_snn import STEPS
from htaf.training.cells import Place as CellPlace
from htaf.training.cells import Task
from htaf.training.families import make_recipe, ready_recipe
from htaf.training.fit import fit
from htaf.training.running import Running
from htaf_paper import ann_to_snn_report
from htaf_paper.ann_to_snn_measure import ComparisonError, Pair, compare
from htaf_paper.cells import Made
from htaf_paper.protocol import Found, Outcome, Place, Scale, Setting

MODES: dict[str, dict[str, Any]] = {
    "max": {"mode": "max"},
    "percentile 99.9": {"mode": "percentile", "percentile": 99.9},
    "fraction 0.5": {"mode": 0.5},
    "fraction 0.7": {"mode": 0.7},
}


def balanced_rows(labels: Int64[Tensor, " n"], classes: int, count: int, seed: int = 0) -> Int64[Tensor, " rows"]:
    """`count` row numbers, ascending, spread evenly over the classes: a function of the seed; 0 takes all rows.

    Raises:
        ComparisonError: a class has too few, or the count is below the number of classes.
    """
    if not count:
        return torch.arange(len(labels))
    if count < classes:
        raise ComparisonError(f"expected one image of each of the {classes} classes or more, got {count}")
    chosen = []
    for number, rows in enumerate(shuffled_by_class(labels, classes, seed)):
        wanted = count // classes + (number < count % classes)
        if len(rows) < wanted:
            raise ComparisonError(f"expected {wanted} images of class {number}, got {len(rows)}")
        chosen.append(rows[:wanted])
    return torch.cat(chosen).sort().values


def pair_of(relu: Run, snn: Run, images: Images, *, test: int, calibration: int) -> Pair:
    """The pair of two runs on a seeded, class-balanced subset of the test images (0: all), with training images.

    Raises:
        ComparisonError: the runs are not a ReLU network and a spiking one with an exact step, or not of these images.
    """
    if relu.has_step:
        method = relu.record["recipe"]["method"]
        raise ComparisonError(f"{relu.path}: expected a run of method relu, got {method}")
    family = snn.record["recipe"].get("family", "mlp")
    if family != "snn" or not snn.has_step:
        raise ComparisonError(f"{snn.path}: expected a spiking run (htaf train snn), got family {family}")
    for run in (relu, snn):
        if not is_own(run, images):
            raise ComparisonError(f"{run.path} was trained on other data than {images.name}")
    rows = balanced_rows(images.test.labels, len(images.classes), test)
    _, known = rows_of(relu, images)["train"]
    balanced = balanced_rows(images.train.labels[known], len(images.classes), min(calibration, len(known)))
    ours, theirs = _preprocessor(relu), _preprocessor(snn)
    pixels = images.test.batch(rows)
    return Pair(
        relu=relu.model(),
        snn=snn.model(exact=True),
        relu_images=ours.normalise(pixels),
        snn_images=theirs.normalise(pixels),
        labels=images.test.labels[rows],
        # shuffled: the moving average of the thresholds weighs the first batch and the last ones more
        calibration=ours.normalise(images.train.batch(known[balanced][_order(len(balanced))])),
    )


def _order(n: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))


def _preprocessor(run: Run) -> ImagePreprocessor:
    found = run.preprocessor()
    if not isinstance(found, ImagePreprocessor):
        raise ComparisonError(f"{run.path}: expected a run on images, got one on a table")
    return found


BY_HAND = (
    "htaf train snn --recipe cifar10 --method relu --device cuda --out A, the same with --method htaf --out B, then "
    "htaf_paper.ann_to_snn.pair_of and htaf_paper.ann_to_snn_measure.compare"
)


class ComparisonCells:
    """A ReLU network and a spiking one, trained and compared, for `htaf_paper.cells`."""

    def identity(self, settings: Mapping[str, Any], data_dir: str | None) -> dict[str, Any]:
        """As `htaf_paper.cells.Cells.identity`."""
        found = load(settings["data"], data_dir=data_dir)
        return {"function": "ann-to-snn", **settings, **recipes(settings["data"]), "fingerprint": found.fingerprint}

    def compute(self, settings: Mapping[str, Any], place: CellPlace) -> dict[str, Any]:
        """As `htaf_paper.cells.Cells.compute`. Times in the record are of this machine."""
        found, networks = load(settings["data"], data_dir=place.data_dir), recipes(settings["data"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seed, running = settings["seed"], Running(place.device)
            runs = {
                name: fit(make_recipe(**recipe), found, place.folder / name, seed=seed, running=running)
                for name, recipe in networks.items()
            }
            pair = pair_of(
                runs["relu"], runs["snn"], found, test=settings["images"], calibration=settings["calibration"]
            )
            modes = {
                mode: compare(
                    pair, MODES[mode], steps=settings["steps"], batch_size=settings["batch_size"],
                    repeats=settings["repeats"],
                )
                for mode in settings["modes"]
            }  # fmt: skip
            return {"images": len(pair.labels), "modes": modes, "runs": _account(runs)}


CELLS = ComparisonCells()


def recipes(data: str) -> dict[str, dict[str, Any]]:
    """The ReLU network and the spiking one, as the study `images-snn` chose it, reduced to two cores."""
    base = ready_recipe("snn", "reduced")
    if data == "digits":
        base = base.replace(epochs=1, width=4, train_images=256, validation_images=128)
    snn = base.replace(method="htaf", alpha0=1.0, alpha1=5.0, sharpen=True, start=(0.5, 2.0))
    return {"relu": base.replace(method="relu", epochs=base.optimization.epochs * 3).flat(), "snn": snn.flat()}


@dataclass(frozen=True)
class AnnToSnn:
    """The item of the paper."""

    id: str = "ann-to-snn"
    title: str = "ANN-to-SNN conversion against a network trained as a spiking one"
    paper: str = "Table 5 (appendix E)"

    @property
    def settings(self) -> Mapping[Scale, Setting]:
        return {
            "smoke": Setting("the bundled digits, one epoch, T up to 4", 1.2),
            "reduced": Setting(
                "SEW-ResNet-18 of width 16 on 5,000 images of CIFAR-10; 500 test images, T up to 200", 1700.0,
                data=("cifar10",),
            ),
            "full": Setting(
                "ResNet-18 on both sets at full length", 2e6, gpu=True, data=("cifar10", "cifar100"), by_hand=BY_HAND
            ),
        }  # fmt: skip

    def made(self, scale: Scale) -> list[Made]:
        """Its cells."""
        smoke = scale == "smoke"
        data = "digits" if smoke else "cifar10"
        shared: dict[str, Any] = {
            "data": data, "seed": 0, "images": 100 if smoke else 500, "calibration": 100 if smoke else 1000,
            "batch_size": 100, "repeats": 1 if smoke else 3, "steps": [1, 2, 4] if smoke else list(STEPS),
            "modes": ["max"] if smoke else ["max", "percentile 99.9", "fraction 0.7"],
        }  # fmt: skip
        return [Made("ann-to-snn", shared, f"ANN-to-SNN, {data}")]

    def tasks(self, scale: Scale, found: Found, place: Place) -> Sequence[Task]:
        return [made.task(place.data_dir) for made in self.made(scale)]

    def read(self, scale: Scale, found: Found, place: Place) -> Outcome:
        records = [record for task in self.tasks(scale, found, place) if (record := found.get(task)) is not None]
        return ann_to_snn_report.outcome(records, scale)


STUDY = AnnToSnn()


def _account(runs: Mapping[str, Run]) -> dict[str, Any]:
    """What the report says of the two runs."""
    return {
        name: {
            "recipe": run.record["recipe"],
            "seed": run.record["seed"],
            "test_accuracy": _test_accuracy(run),
            "parameters": run.record.get("parameters"),
        }
        for name, run in runs.items()
    }


def _test_accuracy(run: Run) -> float | None:
    """On all test images, as the record has it."""
    metrics = run.record["metrics"]["exact" if run.has_step else "smooth"]
    return metrics.get("test", {}).get("accuracy")
