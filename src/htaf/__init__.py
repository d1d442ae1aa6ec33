"""Networks whose activations are 0 or 1, trained by ordinary gradient descent."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from htaf import _compat

_compat.quiet_interrupt()
_compat.repair_torchvision()

from htaf import functional, surrogates, theory  # noqa: E402
from htaf.activations import HTAF, Heaviside, ScaledSigmoid, StraightThrough  # noqa: E402
from htaf.binary import BinaryConv2d, BinaryLinear  # noqa: E402
from htaf.contract import SmoothStep  # noqa: E402
from htaf.convert import Conversion, Site, conversion, harden, replace, sites  # noqa: E402
from htaf.models.icbm import ICBM  # noqa: E402
from htaf.spiking.neurons import IF, LIF  # noqa: E402

if TYPE_CHECKING:
    from htaf import packed as packed
    from htaf.packed import PackedModel, pack

__version__ = "0.1.0"

__all__ = [
    "HTAF",
    "ICBM",
    "IF",
    "LIF",
    "BinaryConv2d",
    "BinaryLinear",
    "Conversion",
    "Heaviside",
    "PackedModel",
    "ScaledSigmoid",
    "Site",
    "SmoothStep",
    "StraightThrough",
    "conversion",
    "functional",
    "harden",
    "pack",
    "replace",
    "sites",
    "surrogates",
    "theory",
]


def __getattr__(name: str) -> Any:
    """`packed` and what comes from there: most programs need none of it."""
    if name == "packed":
        return import_module("htaf.packed")
    if name in ("PackedModel", "pack"):
        return getattr(import_module("htaf.packed"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
