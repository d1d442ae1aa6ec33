"""Inference over packed bits: `pack` a hardened model, `verify` it, `save` and `load` it.

What only `pack` and `verify` need, `torch.export` among it, is imported when they are: a saved model starts without.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from htaf.packed.files import load, save
from htaf.packed.model import PackedModel
from htaf.packed.program import PackedError
from htaf.packed.report import Report, Row

if TYPE_CHECKING:
    from htaf.packed.packing import pack
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

_LATER = {"pack": "packing"} | dict.fromkeys(("Flip", "LayerCheck", "Verification", "verify"), "verify")


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        # an import of verify.py would put the module in the place of the function
        super().__setattr__(name, value.verify if name == "verify" and isinstance(value, ModuleType) else value)


sys.modules[__name__].__class__ = _Package
