"""Figure "Plots of the AUROC and binarity score depends on various alpha0 and alpha1": `htaf paper run pairs`.

Churn, MLP 256-256-128 without batch norm, Adam 1e-3, 1,000 epochs; pairs at the lower bound for eps = 0.1, as the
paper prints them. Whether it tests the last epoch or a better one it does not say: at the scale `full` both are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from htaf.training.families import ready_recipe
from htaf.training.recipe import Source
from htaf_paper.bounds import PAPER_BOUNDS, gradient_share
from htaf_paper.computing import Task
from htaf_paper.plans import Plan, trained
from htaf_paper.protocol import Drawing, Figure, Found, Outcome, Panel, Place, Scale, Series, Setting, Table
from htaf_paper.trainings import name_of
from htaf_paper.verdicts import better

PAIRS = tuple((float(alpha0), float(alpha1)) for alpha1, alpha0 in PAPER_BOUNDS.items())
SPLITS = 3
MODERATE = (1.11, 20.0)  # extreme pairs are compared with it
Kept = Literal["last", "best"]
EPOCH: dict[Kept, str] = {"last": "the last epoch", "best": "the epoch of the least validation loss"}


def named(pair: tuple[float, float]) -> str:
    """The row of a pair."""
    return f"({pair[0]:g}, {pair[1]:g})"


def kept(scale: Scale) -> tuple[Kept, ...]:
    """Of which epochs the weights are tested: in few epochs the two are nearly the same."""
    return ("last", "best") if scale == "full" else ("best",)


def plan(scale: Scale, keep: Kept = "best") -> Plan:
    """A row a pair, one recipe each."""
    pairs = (PAIRS[1], MODERATE, PAIRS[-1]) if scale == "smoke" else PAIRS
    base = ready_recipe("mlp", "tabular-mlp").replace(
        epochs=1000, lr=1e-3, schedule="constant", patience=0, batch_norm=False, sharpen=False, keep=keep
    )  # as the paper words it
    if scale != "full":
        base = base.replace(epochs=4, hidden=(32, 16)) if scale == "smoke" else base.replace(epochs=100)
    rows = {named(pair): {"alpha0,alpha1": (pair,)} for pair in pairs}
    source = Source("digits" if scale == "smoke" else "churn")
    return Plan(
        (source,), rows, base, candidates=1, splits=2 if scale == "smoke" else SPLITS,
        variants=dict.fromkeys(rows, "htaf"), search_epochs=base.optimization.epochs,
    )  # fmt: skip


@dataclass(frozen=True)
class Pairs:
    """The item of the paper."""

    id: str = "pairs"
    title: str = "AUROC and binarity over pairs (alpha0, alpha1)"
    paper: str = "Figure 6, Table 6 (appendix F.1)"

    @property
    def settings(self) -> Mapping[Scale, Setting]:
        return {
            "smoke": Setting("three pairs on the bundled digits, 4 epochs, two splits", 0.8),
            "reduced": Setting(f"ten pairs on Churn, 100 epochs, {SPLITS} splits", 430.0, data=("churn",)),
            "full": Setting(
                f"ten pairs on Churn, 1,000 epochs, {SPLITS} splits, the last epoch and the best", 10000.0,
                data=("churn",),
            ),
        }  # fmt: skip

    def tasks(self, scale: Scale, found: Found, place: Place) -> Sequence[Task]:
        return [task for keep in kept(scale) for task in trained([plan(scale, keep)], found, place).wanted]

    def read(self, scale: Scale, found: Found, place: Place) -> Outcome:
        tables, tested, binary, claims = [], [], [], []
        for keep in kept(scale):
            chosen = plan(scale, keep)
            made, data = trained([chosen], found, place), name_of(chosen.sources[0])
            rows, points = [], []
            for row, grid in chosen.methods.items():
                pair: tuple[float, float] = grid["alpha0,alpha1"][0]
                exact, smooth = (Figure.of(made.values(data, row, network=n), digits=3) for n in ("exact", "smooth"))
                records = made.finals.get((data, row), {}).values()
                binarity = Figure.of([_of_units(r, "binarity") for r in records], digits=1)
                dead = Figure.of([_of_units(r, "dead") for r in records], digits=0)
                epoch = Figure.of([1.0 + r["best_epoch"] for r in records], digits=0)
                share = Figure(100 * gradient_share(*pair), digits=0)
                rows.append((row, exact, smooth, epoch, binarity, dead, share))
                points.append((pair[1], exact, smooth, binarity))
            tables.append(
                Table(
                    f"Test metric of the exact and the smooth network, binarity; {EPOCH[keep]}",
                    (
                        "pair", "exact", "smooth", "epoch", "binarity, %", "dead units, %",
                        "inputs with gradient > 1e-6, %",
                    ),
                    tuple(rows),
                    f"{self.settings[scale].about}. Binarity: share of smooth outputs above 0.99 or below 0.01, all "
                    "hidden layers. Dead: the same for every input. Last column: of N(0, 1) inputs, by "
                    "`htaf_paper.bounds.gradient_share`.",
                )
            )  # fmt: skip
            of = f", {keep} epoch" if len(kept(scale)) > 1 else ""
            tested += [_series(f"{n}{of}", [(x, p[i]) for x, *p in points]) for i, n in ((0, "exact"), (1, "smooth"))]
            binary.append(_series(f"binarity{of}", [(x, p[2]) for x, *p in points]))
            claims += [
                better(
                    text + (f" ({EPOCH[keep]})" if keep == "last" else ""), "appendix F.1, Figure 6",
                    made.differences(data, named(MODERATE), other), scale,
                    what=f"{named(MODERATE)} better than {other} by", digits=3,
                )
                for text, other in (
                    ("An excessively large alpha1 with a small alpha0 degrades prediction", named(PAIRS[-1])),
                    ("Moderate adjustments of the pair can improve prediction", next(iter(chosen.methods))),
                )
            ]  # fmt: skip
        drawing = Drawing(
            "pairs", "AUROC and binarity over alpha1", "AUROC of exact and smooth networks by alpha1 at the lower "
            "bound of alpha0; then binarity.",
            (
                Panel("test metric", "alpha1", "AUROC", tuple(tested), x_log=True),
                Panel("binarity", "alpha1", "%", tuple(binary), x_log=True),
            ),
            columns=2,
        )  # fmt: skip
        both = (
            "the last epoch and that of the least validation loss of the exact network are both tested."
            if len(kept(scale)) > 1
            else "the weights of the epoch with the least validation loss of the exact network are kept."
        )
        return Outcome(
            tuple(tables), (drawing,), tuple(claims), (),
            ("Three splits of 70/10/20; the paper does not say how many.",
             f"The paper does not say of which epoch the weights are: {both}"),
        )  # fmt: skip


def _of_units(record: dict[str, Any], name: str) -> float:
    """A share of all hidden units, in %."""
    layers = record["layers"]
    return 100 * sum(layer[name] * layer["units"] for layer in layers) / sum(layer["units"] for layer in layers)


def _series(label: str, values: Sequence[tuple[float, Figure]]) -> Series:
    known = [(x, v.mean, v.error or 0.0) for x, v in values if v.mean is not None]
    xs, means, errors = zip(*known, strict=True) if known else ((), (), ())
    return Series(label, xs, means, "line", errors)


STUDY = Pairs()
