"""Table "prediction accuracy and inference time comparison between ANN-to-SNN conversion and our method".

    python -m htaf_paper.ann_to_snn --relu RUN --snn RUN --out DIR [--data-dir DIR] [--images 2000] [--threads 1]

A ReLU network converted by threshold balancing, at five T and every way of balancing, against a network trained as a
spiking one with HTAF and run with the exact step. Both are runs of `htaf train snn` on the same images. Everything is
timed in one process, batch by batch in turn, on the networks as fast as they get here: batch normalisation folded into
the convolutions, channels-last layout, no gradients. Thresholds come from training images only.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from htaf._console import plain_errors
from htaf.data.image_folders import shuffled_by_class
from htaf.data.image_preprocess import ImagePreprocessor
from htaf.data.images import Images
from htaf.runs import Run, content_hash, environment, open_run, to_json, write_atomic
from htaf.runs.data import is_own, rows_of
from htaf.spiking.ann_to_snn import STEPS
from htaf.training.distributed import thread_count
from htaf_paper.ann_to_snn_measure import ComparisonError, Pair, compare
from htaf_paper.ann_to_snn_report import markdown

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


def table(
    relu: str | Path,
    snn: str | Path,
    out: str | Path,
    *,
    data_dir: str | None = None,
    images: int = 2000,
    calibration: int = 5000,
    batch_size: int = 100,
    threads: int = 1,
    steps: Sequence[int] = STEPS,
    progress: Callable[[str], None] = lambda _: None,
) -> str:
    """The whole table: one JSON a way of balancing, those at hand are not computed again; and report.md, returned.

    Args:
        relu, snn: run folders.
        out: folder of the results.
        data_dir: folder of the data sets; None: where the ReLU run's came from.
        images: test images, spread over the classes; 0: all.
        calibration: training images for the thresholds.
        batch_size, threads: of all networks.
        steps: values of T, increasing; the last one bounds the search for the T that passes the SNN.

    Raises:
        ComparisonError: the runs do not fit, or `out` holds results of another comparison.
        RunError, DataError: of the runs and their data.
    """
    out, runs = Path(out), {"relu": open_run(relu), "snn": open_run(snn)}
    found = runs["relu"].data(data_dir=data_dir)
    if not isinstance(found, Images):
        raise ComparisonError(f"{relu}: expected a run on images, got one on a table")
    pair = pair_of(runs["relu"], runs["snn"], found, test=images, calibration=calibration)
    about = {
        "relu": runs["relu"].record["model_sha256"],
        "snn": runs["snn"].record["model_sha256"],
        "data": found.fingerprint,
        "images": len(pair.labels),
        "calibration": len(pair.calibration),
        "batch_size": batch_size,
        "threads": threads,
        "steps": list(steps),
    }
    cells = {}
    with thread_count(threads):
        for mode, options in MODES.items():
            file = out / f"{mode.replace(' ', '-')}.json"
            cell = read_cell(file, about)
            if cell is None:
                said = f"{mode}: "
                result = compare(
                    pair,
                    options,
                    steps=steps,
                    batch_size=batch_size,
                    progress=lambda text, said=said: progress(said + text),
                )
                cell = {"key": content_hash(about), "about": about, "mode": mode, "options": options, **result}
                cell |= {"environment": environment(), "data": found.name, "runs": _account(runs)}
                write_atomic(file, to_json(cell))
            cells[mode] = cell
    text = markdown(list(cells.values()))
    write_atomic(out / "report.md", text)
    return text


def read_cell(file: Path, about: Mapping[str, Any]) -> dict[str, Any] | None:
    """A result at hand, None where there is none.

    Raises:
        ComparisonError: it is damaged, or of another comparison.
    """
    try:
        cell = json.loads(file.read_bytes())
        there, key = cell["about"], cell["key"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise ComparisonError(f"{file} is damaged: delete it to compute it again") from None
    if key != content_hash(about):
        differ = [f"{k}: {there.get(k)!r} there, {v!r} here" for k, v in about.items() if there.get(k) != v]
        raise ComparisonError(f"{file} holds another comparison ({'; '.join(differ)}): choose another --out")
    return cell


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


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m htaf_paper.ann_to_snn", description="ANN-to-SNN conversion.")
    parser.add_argument("--relu", required=True, help="run folder of the ReLU network (htaf train snn --method relu)")
    parser.add_argument("--snn", required=True, help="run folder of the spiking network (htaf train snn)")
    parser.add_argument("--out", required=True, help="folder of the results; continues where it stopped")
    parser.add_argument("--data-dir", help="folder of the data sets (else the run's, HTAF_DATA or a download)")
    parser.add_argument("--images", type=int, default=2000, help="test images, spread over the classes; 0: all")
    parser.add_argument("--calibration", type=int, default=5000, help="training images for the thresholds")
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--steps", type=int, nargs="+", default=list(STEPS), help="values of T, increasing")
    parser.add_argument("--threads", type=int, default=1)
    chosen = vars(parser.parse_args())
    with plain_errors():
        print(table(chosen.pop("relu"), chosen.pop("snn"), chosen.pop("out"), **chosen, progress=_say))


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
