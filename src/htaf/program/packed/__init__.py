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

_VERIFICATION = dict.fromkeys(("LayerCheck", "Verification", "verify"), "htaf.program.packed.verification")
__getattr__, __dir__ = lazy(
    __name__,
    {
        "PackedError": "htaf.program.packed.errors",
        "PackedModel": "htaf.program.packed.model",
        "Report": "htaf.program.packed.report",
        "Row": "htaf.program.packed.report",
        "Traced": "htaf.program.packed.graph",
        "load": "htaf.program.packed.files",
        "pack": "htaf.program.packed.lowering",
        "save": "htaf.program.packed.files",
        "trace": "htaf.program.packed.graph",
        **_VERIFICATION,
    },
)
