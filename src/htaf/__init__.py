"""Networks whose activations are 0 or 1, trained by ordinary gradient descent."""

from typing import TYPE_CHECKING

from htaf import _compat
from htaf._lazy import lazy

_compat.quiet_interrupt()
_compat.repair_torchvision_when_imported()

if TYPE_CHECKING:
    from htaf import functional, surrogates
    from htaf import integer as integer
    from htaf import packed as packed
    from htaf.activations import HTAF, Heaviside, ScaledSigmoid, StraightThrough, sharpen
    from htaf.binary import BinaryConv2d, BinaryLinear
    from htaf.contract import SmoothStep
    from htaf.convert import Conversion, Site, conversion, harden, replace, sites
    from htaf.discovery import discover
    from htaf.embeddings.bottleneck import ConceptBottleneck
    from htaf.estimators import HtafClassifier, HtafRegressor, fit
    from htaf.grid import on_grid
    from htaf.hardening import Finish, finish, recalibrate, refit_head, repair
    from htaf.models.icbm import ICBM
    from htaf.packed import PackedModel, pack
    from htaf.sharing import load, push_to_hub
    from htaf.spiking.neurons import IF, LIF

__version__ = "0.1.0"

__all__ = [
    "HTAF",
    "ICBM",
    "IF",
    "LIF",
    "BinaryConv2d",
    "BinaryLinear",
    "ConceptBottleneck",
    "Conversion",
    "Finish",
    "Heaviside",
    "HtafClassifier",
    "HtafRegressor",
    "PackedModel",
    "ScaledSigmoid",
    "Site",
    "SmoothStep",
    "StraightThrough",
    "conversion",
    "discover",
    "finish",
    "fit",
    "functional",
    "harden",
    "load",
    "on_grid",
    "pack",
    "push_to_hub",
    "recalibrate",
    "refit_head",
    "repair",
    "replace",
    "sharpen",
    "sites",
    "surrogates",
]


_ROOMS = (
    "activations",
    "binary",
    "convert",
    "functional",
    "grid",
    "hardening",
    "integer",
    "models",
    "packed",
    "rules",
    "spiking",
    "surrogates",
)
__getattr__, __dir__ = lazy(
    __name__,
    {room: f"htaf.{room}" for room in _ROOMS}
    | dict.fromkeys(("HTAF", "Heaviside", "ScaledSigmoid", "StraightThrough", "sharpen"), "htaf.activations")
    | dict.fromkeys(("BinaryConv2d", "BinaryLinear"), "htaf.binary")
    | dict.fromkeys(("Conversion", "Site", "conversion", "harden", "replace", "sites"), "htaf.convert")
    | dict.fromkeys(("HtafClassifier", "HtafRegressor", "fit"), "htaf.estimators")
    | dict.fromkeys(("Finish", "finish", "recalibrate", "refit_head", "repair"), "htaf.hardening")
    | dict.fromkeys(("PackedModel", "pack"), "htaf.packed")
    | dict.fromkeys(("load", "push_to_hub"), "htaf.sharing")
    | dict.fromkeys(("IF", "LIF"), "htaf.spiking.neurons")
    | {
        "ConceptBottleneck": "htaf.embeddings.bottleneck",
        "ICBM": "htaf.models.icbm",
        "SmoothStep": "htaf.contract",
        "discover": "htaf.discovery",
        "on_grid": "htaf.grid",
    },
)
_compat.declare_operators()  # at the end: they belong to this package
