"""One repair: the default torchvision wheel is built for CUDA and fails to import beside a CPU-only torch.

Its first import then ends in `operator torchvision::nms does not exist`, which also breaks lightning, torchmetrics
and transformers, because they import it. Declaring the two operators' schemas first mends everything but the two.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def is_mismatched() -> bool:
    """Whether torchvision was built for CUDA and torch was not; neither is imported for it but torch."""
    import torch

    if torch.version.cuda is not None or torch.version.hip is not None:
        return False
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    version = Path(spec.origin).with_name("version.py")
    return version.is_file() and "+cu" in version.read_text()


def repair_torchvision() -> bool:
    """Declare `nms` and `qnms` when torch has no CUDA and torchvision was built for it; True when it did."""
    import torch

    if "torchvision" in sys.modules or not is_mismatched():
        return False
    for name, schema in {
        "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    }.items():
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", schema)
    return True
