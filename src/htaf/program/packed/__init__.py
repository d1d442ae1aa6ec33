"""Inference over packed bits: `pack` a hardened model, `verify` it, `save` and `load` it.

What only `pack` and `verify` need, `torch.export` among it, is imported when they are: a saved model starts without.
"""

from typing import TYPE_CHECKING

from htaf._ground.compat import lazy

if TYPE_CHECKING:
    from htaf.program.packed.errors import PackedError
    from htaf.program.packed.files import load, save
    from htaf.program.packed.graph import Traced, trace
    from htaf.program.packed.lowering import pack
    from htaf.program.packed.model import PackedModel
    from htaf.program.packed.report import Report, Row
    from htaf.program.packed.verification import LayerCheck, Verification, verify

__all__ = [
    "LayerCheck",
    "PackedError",
    "PackedModel",
    "Report",
    "Row",
    "Traced",
    "Verification",
    "load",
    "pack",
    "save",
    "trace",
    "verify",
]

_HOMES = {
    "htaf.program.packed.errors": ("PackedError",),
    "htaf.program.packed.files": ("load", "save"),
    "htaf.program.packed.graph": ("Traced", "trace"),
    "htaf.program.packed.lowering": ("pack",),
    "htaf.program.packed.model": ("PackedModel",),
    "htaf.program.packed.report": ("Report", "Row"),
    "htaf.program.packed.verification": ("LayerCheck", "Verification", "verify"),
}
__getattr__, __dir__ = lazy(__name__, {name: module for module, names in _HOMES.items() for name in names})
