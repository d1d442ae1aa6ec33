"""Figures of the activation itself and of its bounds: Figure "Outputs and gradients of HTAF", Proposition 3.1 and
Theorem 3.2, Figure and Table "Lower bounds of alpha0". All from `htaf_paper.bounds`, in float64, without a training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from htaf_paper import bounds
from htaf_paper.computing import Task
from htaf_paper.protocol import Drawing, Figure, Found, Outcome, Panel, Place, Scale, Series, Setting, Table
from htaf_paper.verdicts import true

EPS = 0.1
SETTINGS: Mapping[Scale, Setting] = {"full": Setting("closed forms in float64", 1.0)}


def points(low: float, high: float, count: int) -> list[float]:
    """Equally spaced, both ends in."""
    return [low + (high - low) * i / (count - 1) for i in range(count)]


@dataclass(frozen=True)
class Activation:
    """Outputs, gradient ratios, the tail against the scaled sigmoid."""

    id: str = "activation"
    title: str = "Outputs and gradients of HTAF"
    paper: str = "Figure 1 (a) to (c), Theorem 3.2"

    @property
    def settings(self) -> Mapping[Scale, Setting]:
        return SETTINGS

    def tasks(self, scale: Scale, found: Found, place: Place) -> Sequence[Task]:
        return ()

    def read(self, scale: Scale, found: Found, place: Place) -> Outcome:
        xs = points(-3, 3, 241)
        outputs = [
            Series(f"alpha1 = {b:g}", tuple(xs), tuple(bounds.derivatives(x, 1.5, b).value for x in xs))
            for b in (6.0, 12.0, 18.0, 24.0)
        ]
        base = [bounds.derivatives(x, 1.5, 1.5).x for x in xs]
        ratios = [
            Series(name, tuple(xs), tuple(bounds.derivatives(x, a, b).x / g for x, g in zip(xs, base, strict=True)))
            for name, a, b in (
                ("alpha1 = 3", 1.5, 3.0), ("alpha1 = 6", 1.5, 6.0), ("alpha0 = 2", 2.0, 1.5), ("alpha0 = 3", 3.0, 1.5)
            )
        ]  # fmt: skip
        tail = points(2, 3, 101)
        against = [bounds.derivatives(x, 1.5, 5.0).x / sigmoid_slope(7.5, x) for x in tail]
        limits = [
            (a, b, bounds.derivatives(far, a, b).x * math.exp(2 * a * far), bounds.tail_constant(a, b))
            for a, b in bounds.PAPER_PAIRS
            for far in (18.0 / a,)  # where tanh is 1 but for 1e-15
        ]
        shares = [(a, b, 100 * bounds.gradient_share(a, b)) for a, b in bounds.PAPER_PAIRS]
        worst = max(abs(measured / constant - 1) for _, _, measured, constant in limits)
        drawing = Drawing(
            "activation",
            "Outputs and gradients",
            f"(a): outputs rise from 0 to 1, steeper for larger alpha1. (b): gradients over those of (1.5, 1.5); "
            f"larger alpha0 makes the tails smaller. (c): HTAF's gradient is {against[0]:.0f} times the scaled "
            f"sigmoid's at x = 2 and {against[-1]:.0f} times at x = 3.",
            (
                Panel("(a) outputs, alpha0 = 1.5", "x", "HTAF(x)", tuple(outputs)),
                Panel("(b) gradient over that of (1.5, 1.5)", "x", "ratio", tuple(ratios), y_log=True, hline=1.0),
                Panel(
                    "(c) gradient of HTAF (1.5, 5) over scaled sigmoid 7.5", "|x|", "ratio",
                    (Series("ratio", tuple(tail), tuple(against)),), y_log=True,
                ),
            ),
        )  # fmt: skip
        best = max(shares, key=lambda row: row[2])
        claims = (
            true(
                "In the tail |x| in [2, 3] the gradient of HTAF (1.5, 5) is larger than that of the scaled sigmoid of "
                "the same slope at 0",
                "section 3.2, Figure 1 (c)", min(against) > 1,
                f"ratio {min(against):.1f} to {max(against):.0f} on 101 points",
            ),
            true(
                "The slope at 0 is alpha0 alpha1 / 4", "Theorem 3.2 (b)",
                all(abs(bounds.derivatives(0.0, a, b).x - a * b / 4) < 1e-12 * a * b for a, b in bounds.PAPER_PAIRS),
                "equal to 1e-12 for the six pairs",
            ),
            true(
                "The tail constant is C = alpha0 alpha1 sigma(alpha1) (1 - sigma(alpha1))", "Theorem 3.2 (a)",
                all(abs(measured - constant / 4) < 1e-6 * measured for _, _, measured, constant in limits),
                f"the limit is 4 C: what is measured differs from it by at most {worst:.0e} of it, for the six pairs",
            ),
            true(
                "A small alpha0 with a large alpha1 reduces vanishing gradients", "section 3.2",
                best[0] == min(a for a, _, _ in shares),
                "; ".join(f"({a:g}, {b:g}) {share:.0f}%" for a, b, share in shares)
                + " of N(0, 1) inputs have a gradient above 1e-6; the scaled sigmoid 22 has "
                f"{sigmoid_share(22.0):.0f}%",
                rule="holds if the pair with the smallest alpha0 has the largest share of inputs with a gradient above "
                "1e-6",
            ),
        )  # fmt: skip
        table = Table(
            "The paper's six pairs",
            ("pair", "slope at 0", "tail constant, measured", "4 C", "C, as printed", "inputs with gradient > 1e-6, %"),
            tuple(
                (f"({a:g}, {b:g})", Figure(bounds.slope_at_zero(a, b), digits=2), f"{m:.3e}", f"{c:.3e}",
                 f"{c / 4:.3e}", Figure(share, digits=0))
                for (a, b, m, c), (_, _, share) in zip(limits, shares, strict=True)
            ),
        )  # fmt: skip
        errata = (
            "Theorem 3.2 (a): the limit is 4 alpha0 alpha1 sigma(alpha1) (1 - sigma(alpha1)); the 4 of the proof is "
            "dropped in the statement.",
            '"Choose a small alpha0": at a finite |x| the tail gradient is about 4 P exp(-alpha1 - 2 alpha0 |x|), '
            "largest at alpha0 = sqrt(P / (2 |x|)); (0.1, 220) is numerically the scaled sigmoid 22.",
            "The Lipschitz constant of HTAF is alpha0 alpha1 / 4, not alpha0 alpha1 (appendix B).",
        )
        return Outcome((table,), (drawing,), claims, errata)


def sigmoid_slope(beta: float, x: float) -> float:
    """beta sigma' (beta x), without cancellation."""
    e = math.exp(-abs(beta * x))
    return beta * e / (1 + e) ** 2


def sigmoid_share(beta: float, threshold: float = 1e-6) -> float:
    """Share of N(0, 1) inputs, in %, whose gradient by the scaled sigmoid is above `threshold`."""
    low, high = 0.0, 100.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sigmoid_slope(beta, middle) > threshold else (low, middle)
    return 100 * math.erf(low / math.sqrt(2))


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of alpha0, and what pairs achieve."""

    id: str = "bounds"
    title: str = "Lower bounds of alpha0"
    paper: str = "Proposition 3.1, Figure 2, Table 6"

    @property
    def settings(self) -> Mapping[Scale, Setting]:
        return SETTINGS

    def tasks(self, scale: Scale, found: Found, place: Place) -> Sequence[Task]:
        return ()

    def read(self, scale: Scale, found: Found, place: Place) -> Outcome:
        rows: list[dict[str, Any]] = [*bounds.bounds_table(EPS, tuple(bounds.PAPER_BOUNDS))]
        table = Table(
            "Least alpha0 for eps = 0.1",
            ("alpha1", "exact", "rounded up", "paper", "alpha0 alpha1"),
            tuple(
                (f"{row['alpha1']:g}", f"{row['alpha0']:.5f}", str(row["rounded_up"]), str(row["paper"]),
                 Figure(row["product"], digits=3))
                for row in rows
            ),
        )  # fmt: skip
        pairs = [(a, b, bounds.achieved_eps(a, b)) for a, b in bounds.PAPER_PAIRS]
        achieved = Table(
            "What the paper's six pairs achieve",
            ("pair", "achieved eps", "within 0.1"),
            tuple((f"({a:g}, {b:g})", Figure(e, digits=4), "yes" if e <= EPS else "no") for a, b, e in pairs),
        )
        xs = [10 ** (math.log10(2.25) + (3 - math.log10(2.25)) * i / 200) for i in range(201)]
        least = [bounds.alpha0_lower_bound(x, EPS) for x in xs]
        limit = bounds.product_limit(EPS)
        drawing = Drawing(
            "bounds",
            "Lower bounds",
            f"The least alpha0 falls with alpha1; its product with alpha1 falls to {limit:.2f}.",
            (
                Panel(
                    "least alpha0, eps = 0.1", "alpha1", "alpha0", (Series("bound", tuple(xs), tuple(least)),),
                    x_log=True, y_log=True,
                ),
                Panel(
                    "alpha1 times the least alpha0", "alpha1", "product",
                    (Series("product", tuple(xs), tuple(x * y for x, y in zip(xs, least, strict=True))),),
                    x_log=True, hline=limit,
                ),
            ),
            columns=2,
        )  # fmt: skip
        wrong = [(a, b, e) for a, b, e in pairs if e > EPS]
        claims = (
            true(
                "HTAF is within eps of the step for |x| >= eps at the bound", "Proposition 3.1",
                all(bounds.achieved_eps(row["alpha0"], row["alpha1"]) <= EPS * (1 + 1e-9) for row in rows),
                f"achieved eps is 0.1 for the {len(rows)} values of alpha1, to 1e-10",
            ),
            true(
                "The product of alpha1 and the bound converges to 22 (eps = 0.1)", "section 3.2, Figure 2",
                round(limit) == 22,
                f"it converges to {limit:.3f} at eps = 0.1; {bounds.product_limit(0.05):.1f} at 0.05, "
                f"{bounds.product_limit(0.01):.1f} at 0.01",
                rule="holds if the limit is 22, rounded to a whole number",
            ),
            true(
                "The printed lower bounds of alpha0 are those of the proposition", "Table 6",
                all(row["paper"] == row["rounded_up"] for row in rows),
                f"{sum(row['paper'] == row['rounded_up'] for row in rows)} of {len(rows)} entries are the exact bound, "
                "rounded up",
                rule="holds if every printed entry is the bound rounded up to its digits",
            ),
            true(
                "The candidate pairs keep the bound at eps = 0.1", "appendix D.4", not wrong,
                "beyond it: " + ", ".join(f"({a:g}, {b:g}) {e:.4f}" for a, b, e in wrong),
            ),
        )  # fmt: skip
        errata = (
            f'The product tends to {limit:.3f} at eps = 0.1 alone: "22" is no constant of the method.',
            "Four of the six pairs miss eps = 0.1 by a little, as they have the limit's product at a finite alpha1.",
        )
        notes = (
            "The paper's table of lower bounds is rounded up throughout, as a bound must be: 2.2336 is 2.24 there.",
        )
        return Outcome((table, achieved), (drawing,), claims, errata, notes=notes)


ACTIVATION, BOUNDS = Activation(), Bounds()
