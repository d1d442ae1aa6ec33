"""Reads the cells of `htaf_paper.ann_to_snn`: its table, with the paper's rows beside, and claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from htaf_paper.protocol import Claim, Drawing, Outcome, Panel, Scale, Series, Table
from htaf_paper.verdicts import true, untestable

# as printed: accuracy in %, seconds; ANN-to-SNN at T = 10, 30, 50, 100, 200, then the SNN with HTAF at T = 4
PAPER = {
    "CIFAR-10": ((10.0, 93.4, 37.1, 81.0, 92.1, 91.0), (8, 27, 46, 85, 183, 3)),
    "CIFAR-100": ((1.0, 3.5, 12.8, 47.8, 68.9, 66.9), (10, 25, 40, 81, 160, 3)),
}
ERRATA = ("CIFAR-10 is not monotone in T: 10.0, 93.4, 37.1, 81.0, 92.1%; 93.4% at T = 30 is probably a misprint.",)
DEVIATIONS = (
    "SEW-ResNet-18 of width 16 on 5,000 images instead of ResNet-18 on all; three ways of balancing thresholds.",
    "Times are of one process, batch by batch in turn, one thread; compare ratios.",
)


def outcome(records: Sequence[dict[str, Any]], scale: Scale) -> Outcome:
    """The table of every way of balancing, accuracy by T, and what the paper says of it."""
    if not records:
        return Outcome(errata=ERRATA, deviations=DEVIATIONS)
    record = records[0]
    steps = record["cell"]["steps"]
    columns = ("converted ReLU network", "", *(f"T={t}" for t in steps), "SNN with HTAF", "passes it at")
    rows: list[tuple[str, ...]] = []
    for mode, cell in record["modes"].items():
        accuracy = [cell["accuracy"][str(t)] for t in steps] + [cell["snn"]["accuracy"]]
        passes = "never" if cell["passes_at"] is None else f"T={cell['passes_at']}"
        rows.append((mode, "accuracy", *(f"{100 * a:.1f}%" for a in accuracy), passes))
        if scale != "smoke":  # of so few images they say nothing
            seconds = [cell["seconds"][str(t)] for t in steps] + [cell["snn"]["seconds"]]
            rows.append(("", "time / the SNN's", *(f"{s / seconds[-1]:.1f}" for s in seconds), ""))
    if len(steps) == 5:
        for data, (accuracy, seconds) in PAPER.items():
            rows.append((f"paper, {data}", "accuracy", *(f"{a:.1f}%" for a in accuracy), ""))
            rows.append(("", "time / the SNN's", *(f"{s / seconds[-1]:.1f}" for s in seconds), ""))
    first = next(iter(record["modes"].values()))
    note = (
        f"{record['images']} test images, spread evenly over the classes. The ReLU network itself: "
        f"{100 * first['relu']['accuracy']:.1f}%. Passes it at: the first T from which on the converted network is "
        f"ahead of the SNN at every T up to {steps[-1]}. Norms folded, channels-last, the SNN with the exact step."
    )
    panel = Panel(
        "accuracy by T", "T", "%",
        (
            *(
                Series(
                    mode, tuple(float(t + 1) for t in range(len(cell["accuracy_by_step"]))),
                    tuple(100 * a for a in cell["accuracy_by_step"]),
                )
                for mode, cell in record["modes"].items()
            ),
        ),
        hline=100 * first["snn"]["accuracy"],
    )  # fmt: skip
    about = "Accuracy of the converted network by T for each way of balancing; the line is the directly trained SNN."
    drawing = Drawing("ann-to-snn", "Conversion by T", about, (panel,), columns=1)
    table = Table("ANN-to-SNN conversion and a directly trained SNN", columns, tuple(rows), note)
    return Outcome((table,), (drawing,), _claims(record, steps, scale), ERRATA, DEVIATIONS)


def _claims(record: dict[str, Any], steps: Sequence[int], scale: Scale) -> tuple[Claim, ...]:
    cells = record["modes"].values()
    best = max(cells, key=lambda cell: cell["accuracy"][str(steps[-1])])
    snn, last = best["snn"], str(steps[-1])
    passes = min((cell["passes_at"] for cell in cells if cell["passes_at"] is not None), default=None)
    few = [t for t in steps if t < (passes or 10**9)]
    ahead = "ahead at no T" if passes is None else f"ahead from T = {passes} on"
    claims = [
        true(
            "The converted network is ahead of the SNN at large T alone, here T = 200", "Table 5",
            best["accuracy"][last] > snn["accuracy"] and bool(few),
            f"T = {last}: {100 * best['accuracy'][last]:.1f}% against {100 * snn['accuracy']:.1f}%; {ahead}",
            rule="holds if it is ahead at the largest T and behind at the smallest", scale=scale,
        )
    ]  # fmt: skip
    if scale == "smoke":
        return (*claims, untestable("It then takes about 60 times the SNN's time", "Table 5", "too few images"))
    ratio = best["seconds"][last] / snn["seconds"]
    there = f"; where it passes the SNN, T = {passes}, about {ratio * passes / int(last):.0f} times" if passes else ""
    claims.append(
        true(
            "It then takes about 60 times the SNN's time", "Table 5", 30 <= ratio <= 120,
            f"{ratio:.0f} times at T = {last}{there}",
            rule="holds if the ratio of times at the largest T lies within a factor of two of 60",
        )
    )  # fmt: skip
    return tuple(claims)
