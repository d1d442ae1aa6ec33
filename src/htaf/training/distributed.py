"""One training in several processes: shares of a batch, what they agree on, and that none is left behind.

The first process holds the run folder and writes in it; the others take part in the training alone.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import torch
import torch.distributed as dist
from threadpoolctl import threadpool_limits
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from htaf._ground.compat import no_trace
from htaf._ground.errors import HtafError, installed, option
from htaf.training.recipe import Recipe, Running, TableData
from htaf.training.runs import read_record, shown

with no_trace(), installed():
    import lightning as L
    from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.utilities import rank_zero_only


class TrainingError(HtafError):
    """A training that cannot start or go on."""


class PeerError(TrainingError):
    """Another process of the same training failed; its own message says why."""


MOST_PROCESSES = 65_536  # of one training


def check_processes(running: Running) -> None:
    """Raises TrainingError where this machine, or PyTorch, cannot train in so many processes, or on such a device."""
    devices, nodes, device = running.devices, running.nodes, running.device
    if min(devices, nodes) < 1 or running.world > MOST_PROCESSES:
        got = f"got {devices} and {nodes}"
        raise TrainingError(f"devices and nodes must be >= 1, and at most {MOST_PROCESSES:,} processes in all, {got}")
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device not in ("auto", "cpu", *there):
        raise TrainingError(f"expected device auto, cpu, cuda or mps, got {device!r}")
    if not there.get(device, True):
        raise TrainingError(f"expected a {device} device, this machine has none: use cpu or auto")
    if running.world == 1:
        return
    cuda = there["cuda"] and device != "cpu"
    if device == "mps" or (device == "auto" and there["mps"] and not cuda):
        raise TrainingError(
            "several processes train on cpu or cuda, not on mps: use " + option("--device cpu", "device='cpu'")
        )
    if cuda and devices > torch.cuda.device_count():
        raise TrainingError(f"expected {devices} GPUs, this machine has {torch.cuda.device_count()}")


def trainer_options(running: Running, *plugins: Any) -> dict[str, Any]:
    """Arguments of Lightning's trainer; plugins: of one's own."""
    accelerator = "gpu" if running.device == "cuda" else running.device
    # a job that SLURM starts again is resumed by its own command, from the checkpoints in the run folder
    cluster = [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else []
    shared = {"accelerator": accelerator, "devices": running.devices, "num_nodes": running.nodes}
    shared["plugins"] = [*cluster, *plugins]
    return shared if running.world == 1 else shared | {"strategy": "ddp"}


def smallest_batch(world: int, net: nn.Module) -> int:
    """The smallest batch that gives every process a row, two where it normalises its share."""
    normalised = any(isinstance(m, _BatchNorm) for m in net.modules())
    return max(2, world * (1 + normalised))


def expect_rows_for_all(world: int, net: nn.Module, batch_size: int, train: int, validation: int) -> None:
    """Raises TrainingError when a process would be left without rows."""
    least = smallest_batch(world, net)
    if world > 1 and min(batch_size, train) < least:
        what = "batch_size" if batch_size < least else "training part"
        raise TrainingError(
            f"{what} must be >= {least} for {world} processes ({least // world} each), got {min(batch_size, train)}"
        )
    if validation < world:
        raise TrainingError(f"validation part must be >= {world}, one row a process, got {validation}")


def first_process() -> bool:
    """Whether this is the first of the processes that train together, as far as Lightning can tell by now."""
    return rank_zero_only.rank == 0  # pyright: ignore[reportFunctionMemberAccess]


@contextmanager
def thread_count(number: int) -> Iterator[None]:
    """PyTorch and the BLAS of NumPy and SciPy on so many threads, for the block.

    SciPy's fit of a last layer calls BLAS for vectors so short that threads mostly wait for one another.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        with threadpool_limits(number, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


def default_threads(recipe: Recipe) -> int:
    """Threads of a training in one process: PyTorch's number; of a table 1, unless OMP_NUM_THREADS is set.

    The steps of an MLP are so short that threads mostly wait for one another, and for long where another process has
    their core.
    """
    table = recipe.network.data is TableData
    return 1 if table and "OMP_NUM_THREADS" not in os.environ else torch.get_num_threads()


def pooled(means: Tensor, rows: int) -> tuple[Tensor, int]:
    """Means over the rows of all processes, the same in each, and how many rows those are.

    Args:
        means: float [values], over the `rows` rows of this process.
    """
    sums = torch.cat([means.detach().double() * rows, means.new_tensor([rows], dtype=torch.float64)])
    dist.all_reduce(sums)
    return (sums[:-1] / sums[-1]).to(means.dtype), round(sums[-1].item())


def share_buffers(net: nn.Module) -> None:
    """Give every process the buffers of the first, such as the running means of batch norm."""
    for buffer in net.buffers():
        dist.broadcast(buffer, 0)


@final
class SameTraining(Callback):
    """Before the first step: that every process trains the same run from the same point, with the same threads."""

    def __init__(self, running: Running, key: str, number: int) -> None:
        self.running, self.key, self.threads = running, key, number
        self.sigterm = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self.sigterm)  # Lightning's handler goes on, and can wait for other processes
        if self.running.world == 1:
            return
        _end_with_parent(trainer.local_rank)
        torch.set_num_threads(trainer.strategy.broadcast(self.threads))  # Lightning's launcher sets its own number
        counts = {"devices": self.running.devices, "nodes": self.running.nodes}
        mine = {"run": self.key, "epoch": trainer.current_epoch, **counts}
        found: list[Any] = [None] * self.running.world
        dist.all_gather_object(found, mine)
        for rank, other in enumerate(found):
            if other != found[0]:
                differ = ", ".join(
                    f"{k} {shown(other[k])} instead of {shown(v)}" for k, v in found[0].items() if other[k] != v
                )
                raise TrainingError(
                    f"process {rank} has {differ}: all must be given the same command, the same data and one run folder"
                )


def _end_with_parent(local_rank: int) -> None:
    """End a process whose launcher is gone: it may wait in a collective of a GPU, where nothing else would end it."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    if local_rank > 0:
        threading.Thread(target=watch, daemon=True, name="launcher-watch").start()


def end_others(trainer: L.Trainer) -> None:
    """End the processes that Lightning's launcher started, as the first one fails, and wait for them."""
    started: list[Any] = getattr(trainer.strategy.launcher, "procs", [])
    for process in started:
        process.kill()
    for process in started:
        process.wait()
    started.clear()  # else Lightning's observer finds them ended and kills this process before it can say why


def is_lost_peer(error: BaseException) -> bool:
    """Whether an exception is what is seen of another process's end."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


@contextmanager
def sharing_record(world: int) -> Iterator[list[dict[str, Any]]]:
    """In the first process: send the record that the block appends to all others, or that the block failed."""
    records: list[dict[str, Any]] = []
    try:
        yield records
    finally:
        if world > 1:
            try:
                dist.broadcast_object_list([records[0] if records else None], 0)
                _leave_at_exit()
            except RuntimeError as error:  # what ended before it was told cannot undo what is written
                if not is_lost_peer(error):
                    raise


def received_record() -> dict[str, Any]:
    """In the others: wait for the finished record of the first process.

    Raises:
        PeerError: the first process failed.
    """
    records: list[Any] = [None]
    try:
        dist.broadcast_object_list(records, 0)
    except RuntimeError as error:
        if not is_lost_peer(error):
            raise
    if records[0] is None:
        raise PeerError("the first process of this training failed; its own message says why")
    _leave_at_exit()
    return records[0]


def _leave_at_exit() -> None:
    """End gloo's threads before Python ends: one that still frees a tensor then would abort the process.

    Lightning does so for NCCL only. Not after a failure, where a collective may be under way that never ends.
    """
    atexit.unregister(_leave)
    atexit.register(_leave)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def share(rows: Tensor, rank: int, world: int, chunk: int) -> Sequence[Tensor]:
    """A process's rows in chunks of at most `chunk` >= 2: as many chunks in every process, none of them empty."""
    if world == 1:
        return rows.split(chunk)
    largest = -(-len(rows) // world)
    return rows[rank::world].tensor_split(-(-largest // chunk))


def finished_elsewhere(out: Path, key: str) -> dict[str, Any] | None:
    """The record of the run when it was finished before; for processes that must not write."""
    record = read_record(out)
    if record is not None and record["key"] != key:
        raise PeerError(f"{out} holds another run")
    return record if record is not None and record["status"] == "finished" else None
