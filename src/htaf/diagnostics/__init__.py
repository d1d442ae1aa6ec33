"""What happens inside a network: layer statistics, gradient norms, the switch by layer, operations and energy."""

from htaf.diagnostics.gradients import GradientNorms, LayerGradient, mean_by_layer
from htaf.diagnostics.layers import BINARY, LayerStatistics, layer_statistics
from htaf.diagnostics.operation_counts import HOROWITZ_45NM, Energy, LayerOperations, Totals, operations, totals
from htaf.diagnostics.switch import SwitchedLayer, SwitchProfile, switch_profile

__all__ = [
    "BINARY",
    "HOROWITZ_45NM",
    "Energy",
    "GradientNorms",
    "LayerGradient",
    "LayerOperations",
    "LayerStatistics",
    "SwitchProfile",
    "SwitchedLayer",
    "Totals",
    "layer_statistics",
    "mean_by_layer",
    "operations",
    "switch_profile",
    "totals",
]
