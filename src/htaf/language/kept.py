"""What is computed once and kept on disk: tensors with what is said of them, in one sealed file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
from filelock import FileLock
from torch import Tensor

from htaf._ground.files import read_seal, sealed_tensors, write_atomic


class Kept(NamedTuple):
    """Tensors, mapped from their file, and what is said of them; made: whether they were computed just now."""

    tensors: dict[str, Tensor]
    about: Any
    made: bool


def kept(file: Path, make: Callable[[], tuple[Mapping[str, Tensor], Any]]) -> Kept:
    """Read a file of tensors, or compute it where it is missing or damaged. Other processes wait meanwhile.

    Args:
        make: gives the tensors, contiguous, and what is said of them, which JSON can hold.

    Raises:
        OSError: the disk is full.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock")):
        try:
            with file.open("rb") as opened:
                made = not read_seal(opened)[1]
        except (OSError, ValueError):
            made = True
        if made:
            tensors, about = make()
            write_atomic(file, sealed_tensors(tensors, {"about": json.dumps(about)}))
        with safetensors.safe_open(file, "pt") as opened:
            read = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            return Kept(read, json.loads(opened.metadata()["about"]), made)
