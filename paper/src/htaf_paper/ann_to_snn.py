"""Table "prediction accuracy and inference time comparison between ANN-to-SNN conversion and our method".

`htaf paper run ann-to-snn`. A ReLU network converted by threshold balancing, at five T and every way of balancing,
against a network trained as a spiking one with HTAF and run with the exact step, on the same images. Everything is
timed in one process, batch by batch in turn, on the networks as fast as they get here: batch normalisation folded into
the convolutions, channels-last layout, no gradients. Thresholds come from training images only.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from htaf.data.image_sets import load
from htaf.data.images import ImagePreprocessor, Images, shuffled_by_class
from htaf.training.families import make_recipe, ready_recipe
from htaf.training.fit import fit
from htaf.training.recipe import Running
from htaf.training.runs import Run
from htaf.training.runs.run import is_own, rows_of
from htaf_paper import ann_to_snn_report
from htaf_paper.ann_to_snn_measure import ComparisonError, Pair, compare
from htaf_paper.balanced import STEPS
from htaf_paper.computing import Place
from htaf_paper.experiments import Experiment, Settings
from htaf_paper.protocol import Scale, Setting

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


def fingerprint(settings: Mapping[str, Any], data_dir: str | None) -> list[Any]:
    """Of the images, and what is trained on them. Raises DataError where they are not here."""
    return [load(settings["data"], data_dir=data_dir).fingerprint, recipes(settings["data"])]


def compute(settings: Settings, place: Place) -> dict[str, Any]:
    """A ReLU network and a spiking one, trained and compared. Times in the record are of this machine."""
    found, networks = load(settings["data"], data_dir=place.data_dir), recipes(settings["data"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seed, running = settings["seed"], Running(place.device)
        runs = {
            name: fit(make_recipe(**recipe), found, place.folder / name, seed=seed, running=running)
            for name, recipe in networks.items()
        }
        pair = pair_of(runs["relu"], runs["snn"], found, test=settings["images"], calibration=settings["calibration"])
        how = {name: settings[name] for name in ("steps", "batch_size", "repeats")}
        modes = {mode: compare(pair, MODES[mode], **how) for mode in settings["modes"]}
        return {"images": len(pair.labels), "modes": modes, "runs": _account(runs)}


def recipes(data: str) -> dict[str, dict[str, Any]]:
    """The ReLU network and the spiking one, as the study `images-snn` chose it, reduced to two cores."""
    base = ready_recipe("snn", "reduced")
    if data == "digits":
        base = base.replace(epochs=1, width=4, train_images=256, validation_images=128)
    snn = base.replace(method="htaf", alpha0=1.0, alpha1=5.0, sharpen=True, start=(0.5, 2.0))
    return {"relu": base.replace(method="relu", epochs=base.optimization.epochs * 3).flat(), "snn": snn.flat()}


def plan(scale: Scale) -> list[Settings]:
    """One comparison."""
    smoke = scale == "smoke"
    return [{
        "data": "digits" if smoke else "cifar10", "seed": 0, "images": 100 if smoke else 500,
        "calibration": 100 if smoke else 1000, "batch_size": 100, "repeats": 1 if smoke else 3,
        "steps": [1, 2, 4] if smoke else list(STEPS),
        "modes": ["max"] if smoke else ["max", "percentile 99.9", "fraction 0.7"],
    }]  # fmt: skip


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


STUDY = Experiment(
    "ann-to-snn",
    "ANN-to-SNN conversion against a network trained as a spiking one",
    {
        "smoke": Setting("the bundled digits, one epoch, T up to 4", 1.2),
        "reduced": Setting(
            "SEW-ResNet-18 of width 16 on 5,000 images of CIFAR-10; 500 test images, T up to 200", 1700.0,
            data=("cifar10",),
        ),
        "full": Setting(
            "ResNet-18 on both sets at full length", 2e6, gpu=True, data=("cifar10", "cifar100"), by_hand=BY_HAND
        ),
    },
    plan,
    compute,
    ann_to_snn_report.outcome,
    fingerprint,
    paper="Table 5 (appendix E)",
)  # fmt: skip
