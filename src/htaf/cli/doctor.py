"""`htaf doctor`: what this machine can do with the library."""

from __future__ import annotations

import importlib.util
import os
import platform
from pathlib import Path
from typing import Any

from htaf._ground.compat import is_mismatched
from htaf._ground.console import print_json, say
from htaf.cli.flags import Json

MISMATCH = (
    "built for CUDA beside a CPU-only torch, so importing timm, torchvision, lightning or transformers before htaf "
    "fails (operator torchvision::nms does not exist): import htaf first, or install torchvision from PyTorch's CPU "
    "index"
)
EXTRAS = ("timm", "torchvision", "transformers", "triton")


def doctor(*, json: Json = False) -> None:
    """Say what this machine can do: versions, processor, accelerator, kernels, data sets."""
    from htaf.training.runs import short_commit

    found = report()
    if json:
        return print_json(found)
    found["commit"] = short_commit(found["commit"])
    width = max(map(len, found))
    for name, value in found.items():
        shown = (
            ", ".join(f"{k}: {'yes' if v else 'no'}" for k, v in value.items()) if isinstance(value, dict) else value
        )
        say(f"{name:<{width}}  {shown}")
    return None


def report() -> dict[str, Any]:
    """Versions, processor, accelerator, kernels, data sets and optional packages, as plain values."""
    import torch

    from htaf.training.runs import environment

    env = environment()
    folder = os.environ.get("HTAF_DATA")
    return {
        **env["versions"],
        "commit": env["commit"],
        "platform": platform.platform(),
        "processor": f"{platform.machine()}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}",
        "threads": env["threads"],
        "accelerator": _accelerator(),
        **_kernels(),
        "HTAF_DATA": "not set: named data sets come from --data-dir" if not folder else _data(Path(folder)),
        **({"torchvision": MISMATCH} if is_mismatched() else {}),
        "optional": {name: importlib.util.find_spec(name) is not None for name in EXTRAS},
    }


def _kernels() -> dict[str, str]:
    from htaf.core.kernels import native
    from htaf.core.kernels.registration import has_triton

    module, why_not = native.load()
    cuda = f"; CUDA: {'Triton' if has_triton() else 'reference, Triton is not installed'}"
    if module is None:
        return {"kernels": f"CPU: reference (plain PyTorch, slow): {why_not}{cuda}"}
    others = [name for name in module.instruction_sets() if name != module.instruction_set()]
    compiled = f"CPU: compiled, {module.instruction_set()} (also here: {', '.join(others) or 'none'}){cuda}"
    return {"kernels": compiled, "layers over bits": module.layers()}


def _accelerator() -> str:
    import torch

    if torch.cuda.is_available():
        return ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return "mps" if torch.backends.mps.is_available() else "none: everything runs on the CPU"


def _data(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} is not a folder"
    return f"{folder}: {', '.join(sorted(p.name for p in folder.iterdir())) or 'empty'}"
