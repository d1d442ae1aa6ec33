"""Several processes that train one network, each on its share of every step, started by torchrun."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from htaf.language.errors import LanguageError


@dataclass(frozen=True)
class Ranks:
    """Which of `size` processes this one is."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0

    def wait(self) -> None:
        """Until all are here."""
        if self.size > 1:
            dist.barrier()

    def share(self, rows: Tensor) -> Tensor:
        """This process's part of the blocks of a step.

        Raises:
            LanguageError: they cannot be shared evenly.
        """
        if len(rows) % self.size:
            raise LanguageError(f"expected blocks in a step for {self.size} processes alike, got {len(rows)}")
        return rows[self.rank :: self.size]

    def average(self, tensors: Sequence[Tensor | None]) -> None:
        """The mean over all processes, in place."""
        if self.size == 1:
            return
        for tensor in tensors:
            if tensor is not None:
                dist.all_reduce(tensor)
                tensor /= self.size


ALONE = Ranks()


@contextmanager
def joined(device: str) -> Iterator[tuple[Ranks, str]]:
    """Join the processes of torchrun while it is open; alone where there are none. Also gives this process's device."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE, device
        return
    if device == "cuda":
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(device)
    # the first one scores while the others wait
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo", timeout=timedelta(hours=4))
    try:
        yield Ranks(dist.get_rank(), size), device
    finally:
        dist.destroy_process_group()
