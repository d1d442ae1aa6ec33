"""What happens inside a network: statistics of its activation layers and gradient norms."""

from htaf.transform.diagnostics.gradients import GradientNorms, LayerGradient, mean_by_layer
from htaf.transform.diagnostics.layers import BINARY, LayerStatistics, layer_statistics

__all__ = ["BINARY", "GradientNorms", "LayerGradient", "LayerStatistics", "layer_statistics", "mean_by_layer"]
