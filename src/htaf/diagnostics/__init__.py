"""What happens inside a network: layer statistics, gradient norms, the switch by layer, operations and energy."""

from htaf.diagnostics.gap_bound import GapBound, GapLayer, dhn_gap_bound
from htaf.diagnostics.gradients import GradientNorms, LayerGradient, mean_by_layer, vanishes
from htaf.diagnostics.layers import BINARY, LayerStatistics, layer_statistics
from htaf.diagnostics.operation_counts import HOROWITZ_45NM, Energy, LayerOperations, Totals, operations, totals
from htaf.diagnostics.switch import SwitchedLayer, SwitchProfile, switch_profile

__all__ = [
    "BINARY",
    "HOROWITZ_45NM",
    "Energy",
    "GapBound",
    "GapLayer",
    "GradientNorms",
    "LayerGradient",
    "LayerOperations",
    "LayerStatistics",
    "SwitchProfile",
    "SwitchedLayer",
    "Totals",
    "dhn_gap_bound",
    "layer_statistics",
    "mean_by_layer",
    "operations",
    "switch_profile",
    "totals",
    "vanishes",
]
