"""Inference over packed bits: `pack` a hardened model, `verify` it, `save` and `load` it."""

from htaf.packed.files import load, save
from htaf.packed.model import PackedModel
from htaf.packed.packing import pack
from htaf.packed.program import PackedError

__all__ = ["PackedError", "PackedModel", "load", "pack", "save"]
