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
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa

from htaf._console import tell
from htaf._errors import first_line
from htaf._files import nearest
from htaf.concepts.codes import ConceptError
from htaf.concepts.extract import Block, Job, Outcome, machine, read, write
from htaf.concepts.passes import ConceptNetwork, Device

REACHED = 5.0  # seconds for an address to take a connection,
ANSWERED = 40.0  # and for Ray to answer there
OWN: dict[str, Any] = {"include_dashboard": False}  # options of `ray.init` for a cluster of this machine alone
SEEN = 120.0  # seconds for every node to say what it has
NEEDED = ("htaf", "source", "torch", "numpy", "pillow", "pyarrow", "ray", "python")  # which all nodes have alike


class RayError(ConceptError):
    """A cluster that cannot be used."""


@dataclass(frozen=True)
class Actors:
    """least, most: how many networks run at once; most 0: as many as the cluster has room for.

    cpus: of each, also its threads, which decode images too; None: 1, or with GPUs those of the cluster divided evenly.
    gpus: of each; None: 0.5 where the cluster has some, so that one actor decodes while another computes, else none.
    """

    least: int = 1
    most: int = 0
    cpus: float | None = None
    gpus: float | None = None

    def __post_init__(self) -> None:
        if self.least < 1 or (self.most and self.most < self.least):
            raise ConceptError(f"expected actors from 1 on, the least before the most, got {self.least} {self.most}")
        if not 0 < (1 if self.cpus is None else self.cpus) < float("inf") or not 0 <= (self.gpus or 0) < float("inf"):
            raise ConceptError(f"expected cpus > 0 and gpus >= 0 for each actor, got {self.cpus} and {self.gpus}")


@dataclass(frozen=True)
class Size:
    """Of a pool of actors: least and most of them, and CPUs and GPUs of each."""

    least: int
    most: int
    cpus: float
    gpus: float


class RayEngine:
    """An engine for `htaf.concepts.extract.extract`, made by `connected`."""

    def __init__(self, actors: Actors, device: Device, *, told: bool) -> None:
        self.actors, self.told = actors, told
        self.device: Device = "cpu"  # of this process
        self.of_actors: Device = device
        self.alike: dict[str, str] = {}  # what all nodes have

    def prepare(self, job: Job, blocks: Sequence[Block]) -> None:
        """See that all nodes have the same versions, and the run, the images and the folder for the parts.

        Raises:
            RayError: which node has what.
        """
        nodes = self._nodes()
        mark = tempfile.NamedTemporaryFile(dir=job.out, prefix=".seen-")  # noqa: SIM115
        with mark:
            paths = [str(job.run.path / "model.safetensors"), *_first_files(blocks), mark.name]
            answers = _answers(nodes, paths, str(job.out))
        check_alike(answers)
        check_seen(answers, paths, job.out)
        self.alike = {what: next(iter(answers.values()))[what] for what in NEEDED}
        self.size = size = self.sized(nodes, len(blocks))
        if self.told:
            of_nodes = ", ".join(f"{n['NodeName']} ({_resources(n)})" for n in nodes)
            gpu = f" and {size.gpus:g} GPU" if size.gpus else ""
            parts = "1 part" if len(blocks) == 1 else f"{len(blocks):,} parts"
            tell(
                f"Ray: {len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}: {of_nodes}; {size.least} to {size.most} "
                f"actors with {size.cpus:g} CPU{gpu} each; {parts} to make"
            )

    def outcomes(self, job: Job, blocks: Sequence[Block]) -> Iterator[Outcome]:
        import ray.data
        from ray import exceptions
        from ray.data import ActorPoolStrategy

        job = replace(job, device=self.of_actors)
        here = os.getcwd()  # which relative paths are relative to
        tables = [pa.table({"block": pa.array([pickle.dumps(block)], pa.large_binary())}) for block in blocks]
        size = self.size
        with _quiet():
            made: Any = ray.data.from_arrow(tables).map_batches(
                _Parts,
                fn_constructor_kwargs={
                    "job": job,
                    "here": here,
                    "threads": max(1, int(size.cpus)),
                    "alike": self.alike,
                },
                compute=ActorPoolStrategy(min_size=size.least, max_size=size.most),
                batch_size=None,
                batch_format="pyarrow",
                num_gpus=size.gpus or None,
                num_cpus=None if size.gpus else size.cpus,
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

    def _nodes(self) -> list[dict[str, Any]]:
        import ray

        return [node for node in ray.nodes() if node["Alive"]]

    def sized(self, nodes: Sequence[dict[str, Any]], blocks: int) -> Size:
        """How many actors there are for so many blocks, and what each has."""
        cpus, gpus = (sum(node["Resources"].get(name, 0) for node in nodes) for name in ("CPU", "GPU"))
        asked = self.actors
        found = 0.5 if gpus > 0 and self.of_actors in ("auto", "cuda") else 0.0
        wanted = found if asked.gpus is None else asked.gpus
        if wanted > gpus:
            raise RayError(f"expected {wanted:g} GPU for an actor, the cluster has {gpus:g}")
        if self.of_actors == "cuda" and not wanted:
            raise RayError("expected GPUs in the cluster for the device cuda, got none: ray start ... --num-gpus N")
        each = 1.0 if asked.cpus is None else asked.cpus
        room = int(gpus / wanted) if wanted else int(cpus / each)
        if cpus < 1 or room < 1:
            raise RayError(f"expected {each:g} CPUs in the cluster, got {cpus:g}")
        most = min(asked.most or room, max(blocks, 1))
        if wanted and asked.cpus is None:
            each = max(1.0, cpus // most)
        return Size(min(asked.least, most), most, each, wanted)


def _has(paths: list[str], out: str) -> dict[str, Any]:
    """In a task: versions of this node, which of the files it sees, and whether it may write to a folder."""
    found: dict[str, Any] = {"python": platform.python_version()}
    for package in ("htaf", "torch", "numpy", "pillow", "pyarrow", "ray"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    source, digest = Path(__file__).parents[1], sha256()
    for file in sorted(source.rglob("*.py")):
        digest.update(file.relative_to(source).as_posix().encode() + file.read_bytes())
    found |= {"source": digest.hexdigest()[:12], "seen": [os.path.exists(path) for path in paths]}
    return found | {"writes": os.access(out, os.W_OK | os.X_OK)}


class _Parts:
    """In an actor: the network, made when the first block comes, so that what fails there is told."""

    def __init__(self, job: Job, here: str, threads: int, alike: dict[str, str]) -> None:
        import torch

        torch.set_num_threads(threads)
        with suppress(OSError):  # a node without this folder: reading says what it does not see
            os.chdir(here)
        self.job, self.alike = replace(job, threads=threads), alike
        self.made: ConceptNetwork | None = None

    def network(self) -> ConceptNetwork:
        if self.made is None:
            here = _has([], str(self.job.out))  # of a node that may have joined since the others were asked
            check_alike({"the first nodes": self.alike, machine(): here})
            self.made = ConceptNetwork(self.job.run, self.job.device, self.job.layer)
        return self.made

    def __call__(self, table: pa.Table) -> pa.Table:
        found: list[str] = []
        for pickled in table.column("block"):
            block = pickle.loads(pickled.as_py())  # of the process that made the plan
            found.append(json.dumps(asdict(write(self.job, self.network, block, read(self.job, block)))))
        return pa.table({"outcome": found})


@contextmanager
def connected(
    address: str | None = None, actors: Actors | None = None, *, device: Device = "auto", told: bool = True, **own: Any
) -> Iterator[RayEngine]:
    """An engine on a Ray cluster while the block runs.

    Args:
        address: HOST:PORT of the head node; "auto": of the cluster that this machine belongs to; None: a cluster of
            this machine alone, which ends with the block.
        actors: default: one to as many as there is room for.
        device: where the networks run.
        told: name nodes and actors on the error stream.
        own: for a cluster of this machine alone: num_cpus, object_store_memory (bytes) and others of `ray.init`.

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
    if address is not None:
        address = _reached(address)
    given: dict[str, Any] = {} if address else {**OWN, **own}
    ours = not ray.is_initialized()
    if ours:
        with _quiet(), _silent():
            try:
                ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **given)
            except Exception as error:  # Ray raises nearly everything, `Exception` itself too
                raise RayError(f"no Ray cluster can be used at {address or 'this machine'}: {_reason(error)}") from None
    try:
        yield RayEngine(actors or Actors(), device, told=told)
    finally:
        if ours:
            with _quiet():
                ray.shutdown()


def _reached(address: str) -> str:
    """HOST:PORT of a Ray cluster that answers."""
    if address == "auto":
        from ray._private.services import find_gcs_addresses  # those of this machine, with RAY_ADDRESS before them

        found = [os.environ["RAY_ADDRESS"]] if os.environ.get("RAY_ADDRESS") else sorted(find_gcs_addresses())
        if not found:
            raise RayError(
                "auto: expected this machine to be a node of a Ray cluster, got none: "
                "ray start --head, or ray start --address HOST:PORT"
            )
        address = found[0]
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
        if done is not None and b"token" in (done.stdout + done.stderr).lower():
            raise RayError(
                f"the Ray cluster at {address} asks for its token, which this process did not show: expected "
                "RAY_AUTH_MODE=token in the environment, and the head node's ~/.ray/auth_token on this machine"
            )
        raise RayError(
            f"{address} takes connections, but no Ray answers there: expected the address of the head node, which "
            "`ray start --head` prints"
        )
    return address


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


@contextmanager
def _silent() -> Iterator[None]:
    """Without what the C++ of Ray writes to the error stream while it starts; errors come as exceptions."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


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


def _answers(nodes: Sequence[dict[str, Any]], paths: Sequence[str], out: str) -> dict[str, dict[str, Any]]:
    """Of each node what it has and sees, by its name and address."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    names: dict[str, str] = {}
    for number, node in enumerate(nodes):
        name = f"{node['NodeName']} ({node['NodeManagerAddress']})"
        names[node["NodeID"]] = name if name not in names.values() else f"{name}, node {number + 1}"
    asked = {
        name: ray.remote(num_cpus=0, max_retries=0)(_has)
        .options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
        .remote(list(paths), out)
        for node, name in names.items()
    }
    _, silent = ray.wait(list(asked.values()), num_returns=len(asked), timeout=SEEN)
    found: dict[str, dict[str, Any]] = {}
    for name, ref in asked.items():
        if ref in silent:
            raise RayError(f"node {name} did not answer within {SEEN:.0f} seconds: take it out, or start it again")
        try:
            found[name] = ray.get(ref)
        except Exception as error:  # whatever a foreign node raises
            if "No module named 'htaf'" in str(error):
                raise RayError(f"node {name} has no htaf: pip install 'htaf[scale]' there") from None
            raise RayError(f"node {name} cannot run a task of this htaf: {_reason(error)}") from None
    return found


def check_alike(answers: dict[str, dict[str, Any]]) -> None:
    """Raises RayError, with what each node has, unless all have the same versions."""
    for what in NEEDED:
        found: dict[str, list[str]] = {}
        for name, answer in answers.items():
            found.setdefault(str(answer[what]), []).append(name)
        if len(found) > 1:
            title = "source of htaf" if what == "source" else what
            each = "; ".join(f"{value} on {', '.join(nodes)}" for value, nodes in found.items())
            raise RayError(f"expected the same {title} on all nodes, got {each}: install the same on each")


def check_seen(answers: dict[str, dict[str, Any]], paths: Sequence[str], out: Path) -> None:
    """Raises RayError where a node does not see a file, or cannot write to the folder of the parts."""
    for name, answer in answers.items():
        for path, seen in zip(paths, answer["seen"], strict=True):
            if not seen:
                what = f"the folder {out}" if Path(path).name.startswith(".seen-") else path
                raise RayError(
                    f"node {name} does not see {what}, which this machine does: "
                    f"put it where all nodes see it under the same path, such as a shared disk"
                )
        if not answer["writes"]:
            raise RayError(f"node {name} cannot write to {nearest(out)}: give it the right to")


__all__ = ["Actors", "RayEngine", "RayError", "Size", "check_alike", "check_seen", "connected"]
