"""Spiking neurons, trained ReLU networks as spiking ones, and the neurons of SpikingJelly."""

from htaf.spiking.ann_to_snn import SpikingModel, to_spiking
from htaf.spiking.neurons import IF, LIF
from htaf.spiking.spikingjelly import from_spikingjelly, to_spikingjelly

__all__ = ["IF", "LIF", "SpikingModel", "from_spikingjelly", "to_spiking", "to_spikingjelly"]
