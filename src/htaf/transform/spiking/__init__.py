"""Spiking neurons."""

from htaf.transform.spiking.neurons import IF, LIF

__all__ = ["IF", "LIF"]
