"""What happens inside a network: statistics of its activation layers and gradient norms."""

from htaf.diagnostics.gradients import GradientNorms, LayerGradient, mean_by_layer
from htaf.diagnostics.layers import BINARY, LayerStatistics, layer_statistics

__all__ = ["BINARY", "GradientNorms", "LayerGradient", "LayerStatistics", "layer_statistics", "mean_by_layer"]
