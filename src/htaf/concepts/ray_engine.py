"""Extraction on the nodes of a Ray cluster (extra `ray`): actors read, compute and write one block of images each.

The plan is a list of blocks; each is one block of a Ray Data pipeline, which a pool of actors, each with one network,
takes in turn. Ray Data gives the blocks of a node that died to the others.

A part that is there is its own checkpoint. Ray Data's own (`ray.data.checkpoint`) is not used: it keeps names of rows
that were written, which says nothing of what became of the files, and would be a second truth.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa

from htaf._console import tell
from htaf._errors import counted, first_line
from htaf.concepts.codes import ConceptError
from htaf.concepts.extract import Block, Job, Outcome, machine, read, write
from htaf.concepts.passes import ConceptNetwork, Device

REACHED = 5.0  # seconds for an address to take a connection,
ANSWERED = 40.0  # and for Ray to answer there
OWN: dict[str, Any] = {"include_dashboard": False}  # options of `ray.init` for a cluster of this machine alone
NEEDED = ("htaf", "torch", "numpy", "pillow", "pyarrow", "ray")  # packages of which all nodes have the same version


class RayError(ConceptError):
    """A cluster that cannot be used."""


class RayEngine:
    """An engine for `htaf.concepts.extract.extract`, made by `connected`.

    On CPUs there are as many actors as CPUs; where the cluster has GPUs two share each, so that one decodes while the
    other computes.
    """

    device: Device = "cpu"  # of this process

    def prepare(self, job: Job, blocks: Sequence[Block]) -> None:
        """Say which nodes there are. Raises RayError: there is no room for an actor."""
        import ray

        nodes = [node for node in ray.nodes() if node["Alive"]]
        self.actors, self.cpus, self.gpus = sized([node["Resources"] for node in nodes], len(blocks))
        of_nodes = ", ".join(f"{node['NodeName']} ({_resources(node)})" for node in nodes)
        gpu = f" and {self.gpus:g} GPU" if self.gpus else ""
        tell(
            f"Ray: {counted(len(nodes), 'node')}: {of_nodes}; 1 to {self.actors} actors with {self.cpus:g} CPU{gpu} "
            f"each; {counted(len(blocks), 'part')} to make"
        )

    def outcomes(self, job: Job, blocks: Sequence[Block]) -> Iterator[Outcome]:
        import ray.data
        from ray import exceptions
        from ray.data import ActorPoolStrategy

        job = replace(job, device="auto", threads=max(1, int(self.cpus)))
        tables = [pa.table({"block": pa.array([pickle.dumps(block)], pa.large_binary())}) for block in blocks]
        with _quiet(), tempfile.NamedTemporaryFile(dir=job.out, prefix=".seen-") as mark:
            seen = [str(job.run.path / "model.safetensors"), *_first_files(blocks), mark.name]
            made: Any = ray.data.from_arrow(tables).map_batches(
                _Parts,
                fn_constructor_kwargs={"job": job, "here": os.getcwd(), "alike": versions(), "seen": seen},
                compute=ActorPoolStrategy(min_size=1, max_size=self.actors),
                batch_size=None,
                batch_format="pyarrow",
                num_gpus=self.gpus or None,
                num_cpus=None if self.gpus else self.cpus,
            )
            try:
                for table in made.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
                    for text in table.column("outcome").to_pylist():
                        found = json.loads(text)
                        yield Outcome(**{**found, "problems": tuple(found["problems"])})
            except exceptions.RayError as error:
                raise RayError(
                    f"Ray stopped the work: {_reason(error)}; finished parts are kept, the same command continues them"
                ) from None


def sized(nodes: Sequence[dict[str, float]], blocks: int) -> tuple[int, float, float]:
    """How many actors there are at most for so many blocks, and CPUs and GPUs of each. nodes: their resources.

    Raises:
        RayError: no CPU.
    """
    cpus, gpus = (sum(node.get(name, 0) for node in nodes) for name in ("CPU", "GPU"))
    if cpus < 1:
        raise RayError(f"expected CPUs in the cluster, got {cpus:g}")
    most = max(1, min(int(2 * gpus or cpus), blocks))
    return (most, max(1.0, cpus // most), 0.5) if gpus else (most, 1.0, 0.0)


def versions() -> dict[str, str]:
    """What must be the same on all nodes, so that a part does not depend on where it was made."""
    found = {"python": platform.python_version()}
    for package in NEEDED:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    source, digest = Path(__file__).parents[1], sha256()
    for file in sorted(source.rglob("*.py")):
        digest.update(file.relative_to(source).as_posix().encode() + file.read_bytes())
    return found | {"source of htaf": digest.hexdigest()[:12]}


class _Parts:
    """In an actor: the network, made when the first block comes, so that what fails there is told.

    here: the working folder of the first process. alike: its `versions`. seen: files that every node must see.
    """

    def __init__(self, job: Job, here: str, alike: dict[str, str], seen: Sequence[str]) -> None:
        import torch

        torch.set_num_threads(job.threads)
        with suppress(OSError):  # a node without this folder: reading says what it does not see
            os.chdir(here)
        self.job, self.problem = job, unfit(alike, versions(), seen)
        self.made: ConceptNetwork | None = None

    def network(self) -> ConceptNetwork:
        if self.made is None:
            self.made = ConceptNetwork(self.job.run, self.job.device, self.job.layer)
        return self.made

    def __call__(self, table: pa.Table) -> pa.Table:
        found: list[str] = []
        for pickled in table.column("block"):
            block = pickle.loads(pickled.as_py())  # of the process that made the plan
            if self.problem:
                outcome = Outcome(block.number, where=machine(), error=self.problem, kind="RayError")
            else:
                outcome = write(self.job, self.network, block, read(self.job, block))
            found.append(json.dumps(asdict(outcome)))
        return pa.table({"outcome": found})


def unfit(alike: dict[str, str], own: dict[str, str], seen: Sequence[str]) -> str:
    """Why a node may not make parts: it has other versions, or lacks files; "" where it may."""
    if other := [f"{what} {own[what]} instead of {value}" for what, value in alike.items() if own[what] != value]:
        return f"expected the same on all nodes, got {', '.join(other)}: install the same on each"
    if missing := [path for path in seen if not os.path.exists(path)]:
        path = Path(missing[0])
        what = f"the folder {path.parent}" if path.name.startswith(".seen-") else path
        return f"this node does not see {what}: put it where all nodes see it under the same path, as on a shared disk"
    return ""


@contextmanager
def connected(address: str | None = None) -> Iterator[RayEngine]:
    """An engine on a Ray cluster while the block runs.

    Args:
        address: HOST:PORT of the head node; "auto": of the cluster that this machine belongs to; None: a cluster of
            this machine alone, which ends with the block.

    Raises:
        RayError: Ray is not installed; nothing answers at the address within 45 seconds; or this machine is no node of
            that cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a warning of what will change
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # what goes wrong comes as an error too
    try:
        import ray
    except ImportError:
        raise RayError("expected Ray for --engine ray: pip install 'htaf[scale]' on every node") from None
    if address is not None and address != "auto":
        _reach(address)
    ours = not ray.is_initialized()
    if ours:
        with _quiet():
            try:
                own = {} if address else OWN
                ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
            except Exception as error:  # Ray raises nearly everything, `Exception` itself too
                raise RayError(f"no Ray cluster can be used at {address or 'this machine'}: {_reason(error)}") from None
    try:
        yield RayEngine()
    finally:
        if ours:
            with _quiet():
                ray.shutdown()


def _reach(address: str) -> None:
    """Raises RayError unless a Ray cluster answers at HOST:PORT: `ray.init` would wait for minutes."""
    host, colon, port = address.removeprefix("[").replace("]:", ":").rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536 or "//" in address:
        raise RayError(f"expected auto or HOST:PORT of the head node, such as 10.0.0.1:6379, got {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=REACHED).close()
    except OSError as error:
        raise RayError(
            f"{address} does not answer ({error.strerror or first_line(error)}): is Ray running there? "
            f"ray start --head --port {port}"
        ) from None
    asked = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--skip-version-check", "--address", address]
    try:
        done = subprocess.run(asked, capture_output=True, timeout=ANSWERED, check=False)
    except subprocess.TimeoutExpired:
        done = None
    if done is None or done.returncode:
        raise RayError(
            f"{address} takes connections, but no Ray answers there: expected the address of the head node, which "
            "`ray start --head` prints; a cluster with a token needs RAY_AUTH_MODE=token and ~/.ray/auth_token here"
        )


def _reason(error: BaseException) -> str:
    """What Ray says, on one line: the last lines of its texts hold the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in lines:
        if "version mismatch" in line.lower():
            return " ".join(lines)[:600]
    return " ".join(lines)[:400] or type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Ray says what goes wrong by its errors; its own bars and reports on plans are left out."""
    import ray

    before = {}
    for name in ("ray", "ray.data", "ray.tune", "ray.serve", "ray.train"):
        logger = logging.getLogger(name)
        before[name] = logger.level
        logger.setLevel(logging.CRITICAL)
    with suppress(ImportError, AttributeError):
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        context.verbose_stats_logs = False
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def _resources(node: dict[str, Any]) -> str:
    found = {name: node["Resources"].get(name, 0) for name in ("CPU", "GPU")}
    return ", ".join(f"{count:g} {name}" for name, count in found.items() if count or name == "CPU")


def _first_files(blocks: Sequence[Block]) -> list[str]:
    """A file of each kind of source, that every node must see."""
    found: dict[type, str] = {}
    for one in (one for block in blocks for one in block.images):
        name = one.first()
        if name and os.path.exists(name):
            found.setdefault(type(one), os.path.abspath(name))
    return list(found.values())
