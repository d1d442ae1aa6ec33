"""Tables: `htaf study tabular` and, for what helps the exact network, `htaf study tabular-exact`.

`tabular` is the paper's "Results of prediction performance on various tabular datasets" (appendix E.3).

Deep Heaviside networks 256-256-128 on Abalone, Wine (white), Churn and FICO by HTAF, straight-through (STE), scaled
sigmoid (SS) and, real-valued, ReLU. Every method gets the same budget: 12 candidates drawn once from its grid (the
paper's parameters x learning rate x batch norm x sharpening; ReLU's grid has 4), chosen on validation on the first
split, then five splits of 70/10/20.

`tabular-exact` asks which parts of a recipe make the exact network better, and whether the curve or the recipe does:
the four tables and eight of `more_tables`, and the same budget for every row but those named
fixed, which have one recipe for all tables.
"""

from __future__ import annotations

from htaf.training.families import make_recipe
from htaf.training.plan import Grid, Plan, Source
from htaf_paper.methods import HTAF_PAIRS, SS_BETAS, STE_SLOPES
from htaf_paper.more_tables import TABLES

SHARED: Grid = {"lr": (1e-3, 3e-3), "batch_norm": (False, True)}
METHODS: dict[str, Grid] = {
    "htaf": {"alpha0,alpha1": HTAF_PAIRS, "sharpen": (False, True), **SHARED},
    "ste": {"slope": STE_SLOPES, **SHARED},
    "ss": {"beta": SS_BETAS, "sharpen": (False, True), **SHARED},
    "relu": SHARED,
}
# data -> method -> (mean, standard error), as printed: RMSE for Abalone and Wine, AUROC for Churn and FICO
PAPER = {
    "abalone": {"relu": (2.003, 0.02), "htaf": (2.106, 0.02), "ss": (2.403, 0.08), "ste": (2.620, 0.07)},
    "wine": {"relu": (0.693, 0.01), "htaf": (0.730, 0.01), "ss": (0.745, 0.01), "ste": (0.794, 0.01)},
    "churn": {"relu": (0.831, 0.01), "htaf": (0.828, 0.01), "ss": (0.828, 0.02), "ste": (0.816, 0.01)},
    "fico": {"relu": (0.787, 0.01), "htaf": (0.778, 0.01), "ss": (0.778, 0.01), "ste": (0.773, 0.01)},
}
REFERENCE = {(data, method): figure for data, row in PAPER.items() for method, figure in row.items()}


def plan() -> Plan:
    """The whole table, and Wine once more with repeated rows kept on one side of a split."""
    return Plan(
        name="tabular",
        sources=(*(Source(name) for name in PAPER), Source("wine", split="grouped")),
        methods=METHODS,
        base=make_recipe(epochs=100, patience=20),
        candidates=12,
        splits=5,
        reference=REFERENCE,
    )


# end, whether and from where it moves, over which share of the epochs; SS has HTAF's slopes at 0 while it moves
CURVES: dict[str, Grid] = {
    "htaf": {
        "alpha0,alpha1,sharpen,start,sharpen_fraction": (
            (1.0, 8.0, True, (0.5, 4.0), 0.3),
            (2.0, 11.0, True, (1.0, 2.0), 0.3),
            (2.0, 11.0, True, (1.0, 2.0), 0.7),
            (1.0, 22.0, False, None, 0.7),
        )
    },
    "ss": {
        "beta,sharpen,start,sharpen_fraction": (
            (8.0, True, (2.0,), 0.3),
            (22.0, True, (2.0,), 0.3),
            (22.0, True, (2.0,), 0.7),
            (50.0, False, None, 0.7),
        )
    },
}
RATES: Grid = {"lr": (1e-3, 3e-3)}
FINISH: Grid = {"recalibrate": (True,), "refit": (True,)}
PROGRESSIVE: Grid = {"harden": ("progressive",), "repair": (True,), **FINISH}
NOISE: Grid = {"noise": (0.2, 0.5)}
PARTS: dict[str, Grid] = {
    "": {},
    " finish": FINISH,
    " progressive": PROGRESSIVE,
    " progressive noise": PROGRESSIVE,
}
# of the further tables those of up to 5,000 rows, so that the whole study takes two hours of a core
MORE = ("ames", "concrete", "credit", "cells", "email", "hpc", "leaf", "chile")
SLOPES: Grid = {"slope": ("sigmoid", "tanh", "rectangular", "approx_sign", "htaf")}
# one recipe for all tables: the candidate of a method that was nearest to the best validation result of each, split 0
FIXED: dict[str, Grid] = {
    "htaf fixed": {
        "alpha0,alpha1,sharpen,start,sharpen_fraction": ((1.0, 8.0, True, (0.5, 4.0), 0.3),), **FINISH, "lr": (3e-3,),
    },
    "htaf progressive fixed": {
        "alpha0,alpha1,sharpen,start,sharpen_fraction": ((2.0, 11.0, True, (1.0, 2.0), 0.7),),
        **PROGRESSIVE, "noise": (0.2,), "lr": (3e-3,),
    },
    "ss progressive fixed": {
        "beta,sharpen,start,sharpen_fraction": ((22.0, True, (2.0,), 0.7),), **PROGRESSIVE, "lr": (3e-3,),
    },
    "ste fixed": {"slope": ("approx_sign",), **FINISH, "lr": (3e-3,)},
}  # fmt: skip


def exact() -> Plan:
    """Every method without and with every part, each row with 8 candidates (ReLU's grid has 2); and `FIXED`."""
    smooth = {
        method + part: {**grid, **curves, **RATES, **(NOISE if "noise" in part else {})}
        for method, curves in CURVES.items()
        for part, grid in PARTS.items()
    }
    straight = {"ste": {**SLOPES, **RATES}, "ste finish": {**SLOPES, **FINISH, **RATES}}
    more = [Source(f"extra/{table.name}.csv", target=table.target) for table in TABLES if table.name in MORE]
    return Plan(
        name="tabular-exact",
        sources=(*(Source(name) for name in PAPER), *more),
        methods={**smooth, **straight, **FIXED, "relu": RATES},
        base=make_recipe(epochs=30, patience=0, batch_norm=True),
        candidates=8,
        splits=5,
        reference=REFERENCE,
        variants={row: row.split()[0] for row in (*smooth, *straight, *FIXED) if " " in row},
        compare=("ste", "ste finish", "ste fixed", "htaf"),
    )
