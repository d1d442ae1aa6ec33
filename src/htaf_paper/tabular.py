"""Table "Results of prediction performance on various tabular datasets" (appendix E.3): `htaf study tabular`.

Deep Heaviside networks 256-256-128 on Abalone, Wine (white), Churn and FICO by HTAF, straight-through (STE), scaled
sigmoid
(SS) and, real-valued, ReLU. Every method gets the same budget: 12 candidates drawn once from its grid (the paper's
parameters x learning rate x batch norm x sharpening; ReLU's grid has 4), chosen on validation on the first split,
then five
splits of 70/10/20.
"""

from __future__ import annotations

from htaf.training.families import make_recipe
from htaf.training.plan import Grid, Plan, Source
from htaf_paper.methods import HTAF_PAIRS, SS_BETAS, STE_SLOPES

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


def plan() -> Plan:
    """The whole table, and Wine once more with repeated rows kept on one side of a split."""
    return Plan(
        name="tabular",
        sources=(*(Source(name) for name in PAPER), Source("wine", split="grouped")),
        methods=METHODS,
        base=make_recipe(epochs=100, patience=20),
        candidates=12,
        splits=5,
        reference={(data, method): figure for data, row in PAPER.items() for method, figure in row.items()},
    )
