"""Inference over packed bits: `pack` a hardened model, `verify` it, `save` and `load` it."""

from htaf.packed.files import load, save
from htaf.packed.model import PackedModel
from htaf.packed.packing import pack
from htaf.packed.program import PackedError
from htaf.packed.report import Report, Row
from htaf.packed.verify import Flip, LayerCheck, Verification, verify

__all__ = [
    "Flip",
    "LayerCheck",
    "PackedError",
    "PackedModel",
    "Report",
    "Row",
    "Verification",
    "load",
    "pack",
    "save",
    "verify",
]
