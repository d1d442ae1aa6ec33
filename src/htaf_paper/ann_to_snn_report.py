"""The report of `htaf_paper.ann_to_snn`: its table, with the paper's rows beside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# as printed: accuracy in %, seconds; ANN-to-SNN at T = 10, 30, 50, 100, 200, then the SNN with HTAF at T = 4
PAPER = {
    "CIFAR-10": ((10.0, 93.4, 37.1, 81.0, 92.1, 91.0), (8, 27, 46, 85, 183, 3)),
    "CIFAR-100": ((1.0, 3.5, 12.8, 47.8, 68.9, 66.9), (10, 25, 40, 81, 160, 3)),
}


def markdown(cells: Sequence[dict[str, Any]]) -> str:
    """The results of every way of balancing as a table that people read; cells as `table` writes them."""
    first = cells[0]
    about, environment, runs = first["about"], first["environment"], first["runs"]
    columns = [f"T={t}" for t in about["steps"]]
    snn_steps = runs["snn"]["recipe"]["steps"]
    header = ["converted ReLU network", "", *columns, f"SNN with HTAF, T={snn_steps}", "passes it at"]
    lines = ["# ANN-to-SNN conversion and a directly trained SNN", "", _row(header), _row(["---"] * len(header))]
    for cell in cells:
        accuracy = [cell["accuracy"][str(t)] for t in about["steps"]] + [cell["snn"]["accuracy"]]
        seconds = [cell["seconds"][str(t)] for t in about["steps"]] + [cell["snn"]["seconds"]]
        passes = "never" if cell["passes_at"] is None else f"T={cell['passes_at']}"
        lines += [
            _row([cell["mode"], "accuracy", *(f"{100 * a:.1f}%" for a in accuracy), passes]),
            _row(["", "time", *(f"{s:.3g} s" for s in seconds), ""]),
            _row(["", "time / the SNN's", *(f"{s / seconds[-1]:.1f}" for s in seconds), ""]),
        ]
    if tuple(about["steps"]) == (10, 30, 50, 100, 200):
        for data, (accuracy, seconds) in PAPER.items():
            lines += [
                _row([f"paper, {data}", "accuracy", *(f"{a:.1f}%" for a in accuracy), ""]),
                _row(["", "time", *(f"{s} s" for s in seconds), ""]),
                _row(["", "time / the SNN's", *(f"{s / seconds[-1]:.1f}" for s in seconds), ""]),
            ]
    relu = first["relu"]
    lines += [
        "",
        f"{first['data']}, {first['images']} test images, spread evenly over the classes. The ReLU network itself: "
        f"{100 * relu['accuracy']:.1f}% in {relu['seconds']:.3g} s.",
        f"On the whole test part the records say: ReLU {_percent(runs['relu']['test_accuracy'])}, "
        f"SNN {_percent(runs['snn']['test_accuracy'])}.",
        f"Thresholds from {about['calibration']} training images. Batches of {about['batch_size']}, "
        f"{about['threads']} thread(s); a row's times come from one process, the networks in turn on every batch.",
        "All networks have batch normalisation folded into their convolutions and channels-last layout. The SNN is run "
        "with the exact step.",
        '"passes it at": the first T from which on the converted network is ahead of the SNN at every T up to '
        f"{about['steps'][-1]}.",
        "The paper's CIFAR-10 row is not monotone in T (93.4% at T=30); its times are those of another machine and of "
        "10,000 images, so compare ratios.",
        "",
        f"Commit {environment['commit']}, {environment['platform']}, "
        + ", ".join(f"{name} {version}" for name, version in sorted(environment["versions"].items()))
        + ".",
    ]
    return "\n".join(lines) + "\n"


def _row(entries: Sequence[str]) -> str:
    return "| " + " | ".join(entries) + " |"


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.1f}%"
