"""The paper's grids of hyperparameters (its appendix D.4), as fields of a recipe."""

from __future__ import annotations

from htaf_paper.bounds import PAPER_PAIRS

HTAF_PAIRS = PAPER_PAIRS
SS_BETAS = (10.0, 22.0, 50.0, 100.0)
STE_SLOPES = ("sigmoid", "tanh", "rectangular")
# of methods, in tables
NAMES = {"htaf": "HTAF", "ste": "straight-through", "ss": "scaled sigmoid", "relu": "ReLU"}
