"""How a training is run, beside what is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Strategy = Literal["auto", "ddp", "fsdp"]
LoggerName = Literal["tensorboard", "wandb"]


@dataclass(frozen=True)
class Running:
    """How `fit` runs a training. Only `gradients` can have a part in the identity of a run, as some networks are
    computed in another order where they are watched.

    Args:
        device: "auto", "cpu", "cuda" or "mps".
        workers: processes that read images from files.
        devices, nodes: processes on each machine, and machines; see docs/scaling.md for how they are started. The
            recipe's batch_size is that of all processes together.
        strategy: "ddp" (each process holds the network), "fsdp" (each holds a share of the parameters), "auto": ddp.
        sync_batch_norm: normalise over the whole batch instead of each process's share; GPUs only.
        progress: show a bar on a terminal; elsewhere, as in the log of a job, a line now and then.
        every: without a terminal, a line every so many epochs, and one for the last; None: about ten lines.
        checkpoint_seconds: least time between two checkpoints; what a kill can cost.
        logger: "tensorboard", "wandb": beside metrics.csv, into folders of these names in the run's.
        gradients: write gradients.csv and gradients.png, see `htaf.training.gradient_log`.
        plot: draw loss.png.
    """

    device: str = "auto"
    workers: int = 0
    devices: int = 1
    nodes: int = 1
    strategy: Strategy = "auto"
    sync_batch_norm: bool = False
    progress: bool = False
    every: int | None = None
    checkpoint_seconds: float = 5.0
    logger: tuple[LoggerName, ...] = ()
    gradients: bool = False
    plot: bool = True
