"""Spiking neurons, and trained ReLU networks as spiking ones."""

from htaf.spiking.ann_to_snn import SpikingModel, to_spiking
from htaf.spiking.neurons import IF, LIF

__all__ = ["IF", "LIF", "SpikingModel", "to_spiking"]
