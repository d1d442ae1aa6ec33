"""Every instruction set of the compiled kernels that this processor runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from htaf.kernels import native

INSTRUCTION_SETS: list[str] = native.extension().instruction_sets() if native.available() else []


@contextmanager
def using(name: str) -> Iterator[None]:
    """Run the block with that one."""
    before = native.extension().instruction_set()
    native.extension().use_instruction_set(name)
    try:
        yield
    finally:
        native.extension().use_instruction_set(before)
