"""Networks whose activations are 0 or 1, trained by ordinary gradient descent."""

from htaf import _compat

_compat.repair_torchvision()

from htaf import functional, surrogates, theory  # noqa: E402
from htaf.activations import HTAF, Heaviside, ScaledSigmoid, StraightThrough  # noqa: E402
from htaf.binary import BinaryConv2d, BinaryLinear  # noqa: E402
from htaf.convert import Conversion, Site, conversion, harden, replace, sites  # noqa: E402
from htaf.models.icbm import ICBM  # noqa: E402
from htaf.neurons import IF, LIF  # noqa: E402
from htaf.packed import PackedModel, pack  # noqa: E402

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
