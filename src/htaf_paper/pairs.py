"""Figure "Plots of the AUROC and binarity score depends on various alpha0 and alpha1": `htaf paper run pairs`.

Churn, MLP 256-256-128 without batch norm, Adam 1e-3, 1,000 epochs; pairs at the lower bound for eps = 0.1, as the
paper prints them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from htaf.theory import PAPER_BOUNDS, gradient_share
from htaf.training.families import ready_recipe
from htaf.training.plan import Plan, Source
from htaf.training.queue import Task
from htaf_paper.plans import Trained, trained
from htaf_paper.protocol import Drawing, Figure, Found, Outcome, Panel, Place, Scale, Series, Setting, Table
from htaf_paper.verdicts import better

PAIRS = tuple((float(alpha0), float(alpha1)) for alpha1, alpha0 in PAPER_BOUNDS.items())
SPLITS = 3
MODERATE = (1.11, 20.0)  # extreme pairs are compared with it


def named(pair: tuple[float, float]) -> str:
    """The row of a pair."""
    return f"({pair[0]:g}, {pair[1]:g})"


def plan(scale: Scale) -> Plan:
    """A row a pair, one recipe each."""
    pairs = (PAIRS[1], MODERATE, PAIRS[-1]) if scale == "smoke" else PAIRS
    base = ready_recipe("mlp", "tabular-paper")
    if scale != "full":
        base = base.replace(epochs=4, hidden=(32, 16)) if scale == "smoke" else base.replace(epochs=100)
    rows = {named(pair): {"alpha0,alpha1": (pair,)} for pair in pairs}
    source = Source("digits" if scale == "smoke" else "churn")
    return Plan(
        f"pairs-{scale}", (source,), rows, base, candidates=1, splits=2 if scale == "smoke" else SPLITS,
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
            "full": Setting(f"ten pairs on Churn, 1,000 epochs, {SPLITS} splits", 5000.0, data=("churn",)),
        }

    def _trained(self, scale: Scale, found: Found, place: Place) -> tuple[Plan, Trained]:
        chosen = plan(scale)
        return chosen, trained([chosen], found, place)

    def tasks(self, scale: Scale, found: Found, place: Place) -> Sequence[Task]:
        return self._trained(scale, found, place)[1].wanted

    def read(self, scale: Scale, found: Found, place: Place) -> Outcome:
        chosen, made = self._trained(scale, found, place)
        data = chosen.sources[0].label
        rows, points = [], []
        for row, grid in chosen.methods.items():
            pair: tuple[float, float] = grid["alpha0,alpha1"][0]
            exact, smooth = (Figure.of(made.values(data, row, network=n), digits=3) for n in ("exact", "smooth"))
            records = made.finals.get((data, row), {}).values()
            binarity = Figure.of([_of_units(r, "binarity") for r in records], digits=1)
            dead = Figure.of([_of_units(r, "dead") for r in records], digits=0)
            share = Figure(100 * gradient_share(*pair), digits=0)
            rows.append((row, exact, smooth, binarity, dead, share))
            points.append((pair[1], exact, smooth, binarity))
        title = "Test metric of the exact and the smooth network, binarity"
        table = Table(
            title, ("pair", "exact", "smooth", "binarity, %", "dead units, %", "inputs with gradient > 1e-6, %"),
            tuple(rows),
            f"{self.settings[scale].about}. Binarity: share of smooth outputs above 0.99 or below 0.01, all hidden "
            "layers. Dead: the same for every input. Last column: of N(0, 1) inputs, by `htaf.theory.gradient_share`.",
        )  # fmt: skip
        drawing = Drawing(
            "pairs", "AUROC and binarity over alpha1", "AUROC of exact and smooth networks by alpha1 at the lower "
            "bound of alpha0; then binarity.",
            (
                Panel("test metric", "alpha1", "AUROC", tuple(
                    _series(label, [(x, p[i]) for x, *p in points]) for i, label in ((0, "exact"), (1, "smooth"))
                ), x_log=True),
                Panel("binarity", "alpha1", "%", (_series("binarity", [(x, p[2]) for x, *p in points]),), x_log=True),
            ),
            columns=2,
        )  # fmt: skip
        claims = tuple(
            better(
                text, "appendix F.1, Figure 6", made.differences(data, named(MODERATE), other), scale,
                what=f"{named(MODERATE)} better than {other} by", digits=3,
            )
            for text, other in (
                ("An excessively large alpha1 with a small alpha0 degrades prediction", named(PAIRS[-1])),
                ("Moderate adjustments of the pair can improve prediction", next(iter(chosen.methods))),
            )
        )  # fmt: skip
        return Outcome(
            (table,), (drawing,), claims, (),
            ("Three splits of 70/10/20; the paper does not say how many. The weights of the epoch with the least "
             "validation loss of the exact network are kept.",),
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
