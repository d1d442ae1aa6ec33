"""Networks whose activations are 0 or 1, trained by ordinary gradient descent."""

from typing import TYPE_CHECKING

from htaf._ground import compat as _compat
from htaf._ground.compat import lazy

_compat.quiet_interrupt()
_compat.repair_torchvision_when_imported()

if TYPE_CHECKING:
    from htaf import functional, surrogates
    from htaf.concepts.discovery import discover
    from htaf.concepts.embeddings import ConceptBottleneck
    from htaf.core.activations import HTAF, Heaviside, ScaledSigmoid, StraightThrough, sharpen
    from htaf.core.binary import BinaryConv2d, BinaryLinear
    from htaf.core.contract import SmoothStep
    from htaf.models.icbm import ICBM
    from htaf.models.logic import GroupSum, LogicNet, LUTLayer, Patches
    from htaf.program import integer as integer
    from htaf.program import packed as packed
    from htaf.program.packed import PackedModel, pack
    from htaf.sharing import load, push_to_hub
    from htaf.tables.estimators import HtafClassifier, HtafRegressor, fit
    from htaf.transform.convert import Conversion, Site, conversion, harden, replace, sites
    from htaf.transform.grid import on_grid
    from htaf.transform.hardening import Finish, Sensitivity, finish, recalibrate, refit_head, repair, sensitivity
    from htaf.transform.spiking.neurons import IF, LIF

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
    "GroupSum",
    "Heaviside",
    "HtafClassifier",
    "HtafRegressor",
    "LUTLayer",
    "LogicNet",
    "PackedModel",
    "Patches",
    "ScaledSigmoid",
    "Sensitivity",
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
    "sensitivity",
    "sharpen",
    "sites",
    "surrogates",
]


_ROOMS = {
    "export": "htaf.program.export",
    "functional": "htaf.core.functional",
    "inspection": "htaf.tables.inspection",
    "integer": "htaf.program.integer",
    "packed": "htaf.program.packed",
    "runs": "htaf.training.runs",
    "spiking": "htaf.transform.spiking",
    "surrogates": "htaf.core.surrogates",
    "models": "htaf.models",
}
__getattr__, __dir__ = lazy(
    __name__,
    _ROOMS
    | dict.fromkeys(("HTAF", "Heaviside", "ScaledSigmoid", "StraightThrough", "sharpen"), "htaf.core.activations")
    | dict.fromkeys(("BinaryConv2d", "BinaryLinear"), "htaf.core.binary")
    | dict.fromkeys(("Conversion", "Site", "conversion", "harden", "replace", "sites"), "htaf.transform.convert")
    | dict.fromkeys(("GroupSum", "LUTLayer", "LogicNet", "Patches"), "htaf.models.logic")
    | dict.fromkeys(("HtafClassifier", "HtafRegressor", "fit"), "htaf.tables.estimators")
    | dict.fromkeys(
        ("Finish", "Sensitivity", "finish", "recalibrate", "refit_head", "repair", "sensitivity"),
        "htaf.transform.hardening",
    )
    | dict.fromkeys(("PackedModel", "pack"), "htaf.program.packed")
    | dict.fromkeys(("load", "push_to_hub"), "htaf.sharing")
    | dict.fromkeys(("IF", "LIF"), "htaf.transform.spiking.neurons")
    | {
        "ConceptBottleneck": "htaf.concepts.embeddings",
        "ICBM": "htaf.models.icbm",
        "SmoothStep": "htaf.core.contract",
        "discover": "htaf.concepts.discovery",
        "on_grid": "htaf.transform.grid",
    },
)
_compat.declare_operators()  # at the end: they belong to this package
