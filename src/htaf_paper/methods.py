"""The paper's grids of hyperparameters (its appendix D.4), as fields of a recipe."""

from __future__ import annotations

HTAF_PAIRS = ((0.1, 220.0), (0.5, 44.0), (1.0, 22.0), (2.0, 11.0), (3.0, 7.3), (5.0, 4.4))
SS_BETAS = (10.0, 22.0, 50.0, 100.0)
STE_SLOPES = ("sigmoid", "tanh", "rectangular")
