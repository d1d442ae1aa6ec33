"""Repairing a hardened network: fit its layers, norms and head to its own bits, without surrogate gradients.

`finish` ends a training: it takes the steps in turn and keeps those that a measure finds better. Every step takes a
hardened network and returns a new one and a report with the losses before and after. `recalibrate`, `repair` and the
ridge fit of `refit_head` have closed forms. The logistic fit of `refit_head` runs L-BFGS. `sensitivity` tells which
steps of a trained network cost most.
"""

from htaf.transform.hardening.finishing import Finish, TriedStep, finish, recalibrate
from htaf.transform.hardening.heads import refit_head
from htaf.transform.hardening.layerwise import repair
from htaf.transform.hardening.report import LayerReport, Report
from htaf.transform.hardening.trials import Change, Sensitivity, sensitivity

__all__ = [
    "Change", "Finish", "LayerReport", "Report", "Sensitivity", "TriedStep", "finish", "recalibrate", "refit_head",
    "repair", "sensitivity",
]  # fmt: skip
