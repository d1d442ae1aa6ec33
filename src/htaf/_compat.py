"""What must happen before torch is imported.

Ctrl-C during the seconds of imports ends the command without a traceback.

One repair: the default torchvision wheel is built for CUDA and fails to import beside a CPU-only torch.

Its first import then ends in `operator torchvision::nms does not exist`, which also breaks lightning, torchmetrics
and transformers, because they import it. Declaring the two operators' schemas first mends everything but the two.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path


def quiet_interrupt() -> None:
    """Let Ctrl-C end the command `htaf` at once while it imports; `htaf.cli.main` takes the signal over."""
    if Path(sys.argv[0]).stem == "htaf" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:

        def stop(*_: object) -> None:
            os.write(2, b"htaf: error: stopped\n")
            os._exit(130)  # an exception would pass through the imports of others, some of which catch it

        signal.signal(signal.SIGINT, stop)


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
