"""Inference over packed bits: `pack` a hardened model, `verify` it, `save` and `load` it.

What only `pack` and `verify` need, `torch.export` among it, is imported when they are: a saved model starts without.
"""

from typing import TYPE_CHECKING

from htaf._lazy import lazy

if TYPE_CHECKING:
    from htaf.packed.errors import PackedError
    from htaf.packed.files import load, save
    from htaf.packed.graph import Traced, trace
    from htaf.packed.lowering import pack
    from htaf.packed.model import PackedModel
    from htaf.packed.report import Report, Row
    from htaf.packed.verification import Flip, LayerCheck, Verification, verify

__all__ = [
    "Flip",
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

_VERIFICATION = dict.fromkeys(("Flip", "LayerCheck", "Verification", "verify"), "htaf.packed.verification")
__getattr__, __dir__ = lazy(
    __name__,
    {
        "PackedError": "htaf.packed.errors",
        "PackedModel": "htaf.packed.model",
        "Report": "htaf.packed.report",
        "Row": "htaf.packed.report",
        "Traced": "htaf.packed.graph",
        "load": "htaf.packed.files",
        "pack": "htaf.packed.lowering",
        "save": "htaf.packed.files",
        "trace": "htaf.packed.graph",
        **_VERIFICATION,
    },
)
