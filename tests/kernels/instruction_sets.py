"""Every instruction set of the compiled kernels that this processor runs, and how many threads run them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from htaf.core.kernels import native

INSTRUCTION_SETS: list[str] = native.extension().instruction_sets() if native.available() else []

# AMX's tiles in memory; the rest is AVX-512
EMULATED = ["amx-emulated"] if INSTRUCTION_SETS and native.extension().tables_take_fours() else []
WITH_TILES = [*INSTRUCTION_SETS, *EMULATED]


@contextmanager
def using(name: str) -> Iterator[None]:
    """Run the block with that one."""
    before = native.extension().instruction_set()
    native.extension().use_instruction_set(name)
    try:
        yield
    finally:
        native.extension().use_instruction_set(before)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Run the block on so many. What else stands in it waits for threads too, and those of PyTorch spin."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
