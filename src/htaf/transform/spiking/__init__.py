"""Spiking neurons, and those of SpikingJelly."""

from htaf.transform.spiking.neurons import IF, LIF
from htaf.transform.spiking.spikingjelly import from_spikingjelly

__all__ = ["IF", "LIF", "from_spikingjelly"]
