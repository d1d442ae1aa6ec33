"""What the training uses of lightning, imported such that it leaves no trace in this process."""

from __future__ import annotations

from htaf._compat import no_trace
from htaf._errors import installed

with no_trace(), installed():
    import lightning as L
    from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
    from lightning.pytorch.callbacks import Callback, Checkpoint
    from lightning.pytorch.loggers import TensorBoardLogger
    from lightning.pytorch.utilities import rank_zero_only

__all__ = [
    "Callback",
    "Checkpoint",
    "L",
    "SLURMEnvironment",
    "TensorBoardLogger",
    "TorchCheckpointIO",
    "rank_zero_only",
]
