"""How a training is run, beside what is trained."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Running:
    """How `fit` runs a training; no part of the identity of a run.

    Args:
        device: "auto", "cpu", "cuda" or "mps".
        workers: processes that read images from files.
        devices, nodes: processes on each machine, and machines; see docs/scaling.md for how they are started. The
            recipe's batch_size is that of all processes together.
        progress: show a bar on a terminal; elsewhere, as in the log of a job, a line now and then.
        checkpoint_seconds: least time between two checkpoints; what a kill can cost.
        tensorboard: also write what metrics.csv has, by step, into the folder tensorboard of the run.
        plot: draw loss.png.
    """

    device: str = "auto"
    workers: int = 0
    devices: int = 1
    nodes: int = 1
    progress: bool = False
    checkpoint_seconds: float = 5.0
    tensorboard: bool = False
    plot: bool = True
