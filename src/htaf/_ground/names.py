"""The names that recipes, records and flags choose from. Needs no torch, so that the command knows them at once."""

from __future__ import annotations

import re
from typing import Literal

Method = Literal["htaf", "ste", "ss", "relu"]
SlopeName = Literal["sigmoid", "tanh", "rectangular", "atan", "approx_sign", "htaf"]
Augment = Literal["none", "crop-flip", "shift", "shift-flip"]
ThresholdMetric = Literal["f1", "balanced_accuracy", "matthews_corrcoef"]  # as scikit-learn calls them
Bottleneck = Literal["implicit", "joint", "sequential", "independent"]
# htaf's own backbones, with the fields of a recipe that each reads; others are of timm
BACKBONES: dict[str, tuple[str, ...]] = {
    "wide_resnet": ("depth", "width", "dropout"),
    "resnet": ("depth", "width", "stem"),
}


def is_outside(method: object) -> bool:
    """Whether a method is the import path of a step from outside htaf, "package.module:Class". It is only a name."""
    return isinstance(method, str) and re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", method) is not None
