"""One training in several processes: shares of a batch, what they agree on, and that none is left behind.

The first process holds the run folder and writes in it; the others take part in the training alone.
"""

from __future__ import annotations

import atexit
import inspect
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final, get_args

import torch
import torch.distributed as dist
from threadpoolctl import threadpool_limits
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.nn.modules.batchnorm import _BatchNorm

from htaf._errors import HtafError, option
from htaf.data.notes import Note
from htaf.runs import read_record, shown
from htaf.training._lightning import Callback, L, ModelParallelStrategy, SLURMEnvironment, rank_zero_only
from htaf.training.recipe import Recipe, TableData
from htaf.training.running import Running, Strategy


class TrainingError(HtafError):
    """A training that cannot start or go on."""


class PeerError(TrainingError):
    """Another process of the same training failed; its own message says why."""


MOST_PROCESSES = 65_536  # of one training


@final
@dataclass(frozen=True)
class Processes:
    """How many processes train together, one a device.

    devices: on each machine. nodes: machines. strategy: ddp (every process holds the network) or fsdp (each holds a
    share of its parameters); auto is ddp. sync_batch_norm: normalise over the whole batch, not over a process's share.
    """

    devices: int = 1
    nodes: int = 1
    strategy: Strategy = "auto"
    sync_batch_norm: bool = False

    @property
    def world(self) -> int:
        return self.devices * self.nodes

    @property
    def sharded(self) -> bool:
        return self.world > 1 and self.strategy == "fsdp"

    def recorded(self) -> dict[str, Any]:
        """As it stands in a record; nothing that one process does not read."""
        if self.world == 1:
            return {"devices": 1}
        kind = "fsdp" if self.sharded else "ddp"
        return {"devices": self.world, "strategy": kind, "sync_batch_norm": self.sync_batch_norm}

    def check(self, device: str, compiled: bool) -> None:
        """Raises TrainingError where this machine, or PyTorch, cannot do it."""
        if min(self.devices, self.nodes) < 1 or self.world > MOST_PROCESSES:
            got = f"got {self.devices} and {self.nodes}"
            raise TrainingError(
                f"devices and nodes must be >= 1, and at most {MOST_PROCESSES:,} processes in all, {got}"
            )
        if self.strategy not in get_args(Strategy):
            raise TrainingError(f"expected strategy auto, ddp or fsdp, got {self.strategy!r}")
        there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        if device not in ("auto", "cpu", *there):
            raise TrainingError(f"expected device auto, cpu, cuda or mps, got {device!r}")
        if not there.get(device, True):
            raise TrainingError(f"expected a {device} device, this machine has none: use cpu or auto")
        if self.world == 1:
            return
        cuda = there["cuda"] and device != "cpu"
        if device == "mps" or (device == "auto" and there["mps"] and not cuda):
            raise TrainingError(
                "several processes train on cpu or cuda, not on mps: use " + option("--device cpu", "device='cpu'")
            )
        if cuda and self.devices > torch.cuda.device_count():
            raise TrainingError(f"expected {self.devices} GPUs, this machine has {torch.cuda.device_count()}")
        if self.sync_batch_norm and not cuda:
            raise TrainingError("PyTorch's SyncBatchNorm needs GPUs: leave sync_batch_norm out on the CPU")
        if self.sharded and (self.sync_batch_norm or compiled):
            raise TrainingError("strategy fsdp goes with neither sync_batch_norm nor compile: use ddp")

    def options(self, device: str, *plugins: Any) -> dict[str, Any]:
        """Arguments of Lightning's trainer; plugins: of one's own."""
        accelerator = "gpu" if device == "cuda" else device
        # a job that SLURM starts again is resumed by its own command, from the checkpoints in the run folder
        cluster = [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else []
        shared = {"accelerator": accelerator, "devices": self.devices, "num_nodes": self.nodes}
        shared["plugins"] = [*cluster, *plugins]
        if self.world == 1:
            return shared
        strategy = ModelParallelStrategy(self.world, 1, save_distributed_checkpoint=False) if self.sharded else "ddp"
        return shared | {"strategy": strategy, "sync_batchnorm": self.sync_batch_norm}

    def least(self, net: nn.Module) -> int:
        """The smallest batch that gives every process a row, two where it normalises its share alone."""
        alone = not self.sync_batch_norm and any(isinstance(m, _BatchNorm) for m in net.modules())
        return max(2, self.world * (1 + alone))

    def enough(self, net: nn.Module, batch_size: int, train: int, validation: int) -> None:
        """Raises TrainingError when a process would be left without rows."""
        least = self.least(net)
        if self.world > 1 and min(batch_size, train) < least:
            what = "batch_size" if batch_size < least else "training part"
            raise TrainingError(
                f"{what} must be >= {least} for {self.world} processes ({least // self.world} each), "
                f"got {min(batch_size, train)}"
            )
        if validation < self.world:
            raise TrainingError(f"validation part must be >= {self.world}, one row a process, got {validation}")


def processes_of(running: Running) -> Processes:
    """How many processes a training has."""
    return Processes(running.devices, running.nodes, running.strategy, running.sync_batch_norm)


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


BUSY = 0.95  # of the cores; a training that has just ended can leave as much in the load average


def waiting(number: int, instead: str) -> Note | None:
    """What is to be said where other processes keep the cores busy that so many threads of a training would use.

    instead: what to do.
    """
    try:
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
    except (OSError, AttributeError):  # not on every system
        return None
    return Note("busy", values=(load, cores, instead)) if number > 1 and load >= BUSY * cores else None


@contextmanager
def threads(processes: Processes) -> Iterator[None]:
    """The machine's cores shared among its processes, unless OMP_NUM_THREADS says how many threads."""
    before = torch.get_num_threads()
    if processes.devices > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes.devices))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def pooled(means: Tensor, rows: int) -> tuple[Tensor, int]:
    """Means over the rows of all processes, the same in each, and how many rows those are.

    Args:
        means: float [values], over the `rows` rows of this process.
    """
    sums = torch.cat([means.detach().double() * rows, means.new_tensor([rows], dtype=torch.float64)])
    dist.all_reduce(sums)
    return (sums[:-1] / sums[-1]).to(means.dtype), round(sums[-1].item())


def first_cause(finite: bool, cause: str) -> str:
    """What the first process whose loss is not finite has found; all must call it."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, None if finite else cause)
    rank = next(i for i, text in enumerate(found) if text is not None)
    return f"in process {rank}, {found[rank]}"


def share_buffers(net: nn.Module) -> None:
    """Give every process the buffers of the first, such as the running means of batch norm."""
    for buffer in net.buffers():
        dist.broadcast(buffer, 0)


def shard(net: nn.Module, mesh: Any, called: Callable[..., Any]) -> None:
    """Split the parameters over the processes: block by block, then what is left.

    called: what a training step calls, the network or a method of it (`Network.called`), which gathers them too.
    """
    net.to(memory_format=torch.contiguous_format)  # pyright: ignore[reportCallIssue]  # fully_shard takes no other
    for block in _blocks(net):
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    if inspect.ismethod(called):
        register_fsdp_forward_method(net, called.__name__)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, nn.Sequential | nn.ModuleList):
            yield from _blocks(child)
        elif any(True for _ in child.children()) and any(True for _ in child.parameters()):
            yield child


def whole_state(net: nn.Module, *, everywhere: bool = False) -> dict[str, Tensor]:
    """The full weights of a sharded network: on the CPU of the first process, or on the device of every one."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=not everywhere)
    return get_model_state_dict(net, options=options)  # pyright: ignore[reportReturnType]


@final
class Together(Callback):
    """Before the first step: that every process trains the same run from the same point, with the same threads."""

    def __init__(self, processes: Processes, key: str, number: int) -> None:
        self.processes, self.key, self.threads = processes, key, number
        self.sigterm = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self.sigterm)  # Lightning's handler goes on, and can wait for other processes
        if self.processes.world == 1:
            return
        _end_with_parent(trainer.local_rank)
        torch.set_num_threads(trainer.strategy.broadcast(self.threads))  # Lightning's launcher sets its own number
        mine = {"run": self.key, "epoch": trainer.current_epoch, **asdict(self.processes)}
        found: list[Any] = [None] * self.processes.world
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


def lost(error: BaseException) -> bool:
    """Whether an exception is what is seen of another process's end."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


@contextmanager
def telling(processes: Processes) -> Iterator[list[dict[str, Any]]]:
    """In the first process: the record that the block appends goes to all others, or that the block failed."""
    told: list[dict[str, Any]] = []
    try:
        yield told
    finally:
        if processes.world > 1:
            try:
                dist.broadcast_object_list([told[0] if told else None], 0)
                _leave_at_exit()
            except RuntimeError as error:  # what ended before it was told cannot undo what is written
                if not lost(error):
                    raise


def wait() -> dict[str, Any]:
    """In the others: the finished record of the first process, once it has written it.

    Raises:
        PeerError: the first process failed.
    """
    told: list[Any] = [None]
    try:
        dist.broadcast_object_list(told, 0)
    except RuntimeError as error:
        if not lost(error):
            raise
    if told[0] is None:
        raise PeerError("the first process of this training failed; its own message says why")
    _leave_at_exit()
    return told[0]


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
