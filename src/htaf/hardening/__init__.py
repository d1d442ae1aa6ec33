"""What a network lost when it was hardened is made good: least squares and statistics on its own bits, no surrogate.

Every step takes a hardened network and returns a new one and a report of what it brought.
"""

from htaf.hardening.distillation import distil
from htaf.hardening.heads import refit_head
from htaf.hardening.layerwise import repair
from htaf.hardening.norms import recalibrate
from htaf.hardening.report import LayerReport, Report

__all__ = ["LayerReport", "Report", "distil", "recalibrate", "refit_head", "repair"]
