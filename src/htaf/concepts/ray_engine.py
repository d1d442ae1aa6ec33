"""Extraction on the nodes of a Ray cluster (extra `scale`): each task reads, computes and writes one block of images.

Ray gives the blocks of a node that died to the others. A part that is there is its own checkpoint.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

from htaf._ground.console import tell
from htaf._ground.errors import HtafError, counted
from htaf.concepts.codes import ConceptError
from htaf.concepts.extract import Block, ConceptNetwork, Engine, Job, Outcome, read, write
from htaf.data.image_sets import Held

LOCAL: dict[str, Any] = {"include_dashboard": False}  # options of `ray.init` for a cluster of this machine alone
NEEDED = ("htaf", "torch", "numpy", "pillow", "pyarrow", "ray")  # packages of which all nodes have the same version

_networks: dict[str, ConceptNetwork] = {}  # in a worker: that of the folder which it works for


class RayError(ConceptError):
    """A cluster that cannot be used."""


@contextmanager
def connected(address: str | None = None) -> Iterator[Engine]:
    """Give an engine for `htaf.concepts.extract.extract` on a Ray cluster while the block runs.

    Args:
        address: HOST:PORT of the head node; "auto": of the cluster that this machine belongs to; None: a cluster of
            this machine alone, which ends with the block.

    Raises:
        RayError: Ray is not installed; nothing answers at the address, which Ray says after a while; or this machine is
            no node of that cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a warning of what will change
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # what goes wrong comes as an error too
    try:
        import ray
    except ImportError:
        raise RayError("expected Ray for --engine ray: pip install 'htaf[scale]' on every node") from None
    ours = not ray.is_initialized()
    if ours:
        try:
            own = {} if address else LOCAL
            ray.init(address=address or "local", log_to_driver=False, logging_level=logging.CRITICAL, **own)
        except Exception as error:  # Ray raises nearly everything, `Exception` itself too
            raise RayError(f"no Ray cluster can be used at {address or 'this machine'}: {_reason(error)}") from None
    try:
        yield on_cluster
    finally:
        if ours:
            ray.shutdown()


def on_cluster(job: Job, blocks: Sequence[Block]) -> Iterator[Outcome]:
    """Write each block on some node, and give what became of it; a CPU a block, of GPUs a half.

    Raises:
        RayError: a cluster without CPUs, or one that stops the work.
    """
    import ray
    from ray import exceptions

    resources = ray.cluster_resources()
    cpus, gpus = (resources.get(name, 0) for name in ("CPU", "GPU"))
    if cpus < 1:
        raise RayError(f"expected CPUs in the cluster, got {cpus:g}")
    each = max(1, cpus // (2 * gpus)) if gpus else 1  # two share a GPU: one decodes while the other computes
    nodes = counted(sum(node["Alive"] for node in ray.nodes()), "node")
    tell(f"Ray: {nodes}, {cpus:g} CPUs, {gpus:g} GPUs; {counted(len(blocks), 'part')} to make")
    task: Any = ray.remote(num_cpus=each, num_gpus=0.5 if gpus else 0, max_retries=-1)(made)
    with tempfile.NamedTemporaryFile(dir=job.out, prefix=".seen-") as mark:
        seen = [str(job.run.path / "model.safetensors"), *_first_files(blocks), mark.name]
        shared = ray.put((replace(job, device="auto", threads=int(each)), os.getcwd(), versions(), seen))
        waiting = [task.remote(shared, block) for block in blocks]
        try:
            while waiting:
                done, waiting = ray.wait(waiting)
                yield ray.get(done[0])
        except exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, HtafError | OSError) else RayError(_reason(error))) from None
        except exceptions.RayError as error:
            raise RayError(f"Ray stopped the work: {_reason(error)}") from None
        finally:
            for one in waiting:
                ray.cancel(one)


def made(shared: tuple[Job, str, dict[str, str], Sequence[str]], block: Block) -> Outcome:
    """Write a block in a worker, if that may.

    Args:
        shared: the job, the working folder of the first process, its `versions`, and files that every node must see.

    Raises:
        RayError: the node may not. And as `htaf.concepts.extract.read` and `write`.
    """
    import torch

    job, here, alike, seen = shared
    torch.set_num_threads(job.threads)
    with suppress(OSError):  # a node without this folder: reading says what it does not see
        os.chdir(here)
    if problem := unfit(alike, versions(), seen):
        raise RayError(f"{socket.gethostname()}: {problem}")

    def network() -> ConceptNetwork:
        key = job.record["key"]
        if key not in _networks:
            _networks.clear()
            _networks[key] = ConceptNetwork(job.run, job.device, job.layer)
        return _networks[key]

    return write(job, network, block, read(job, block))


@cache
def versions() -> dict[str, str]:
    """Give what must be the same on all nodes, so that a part does not depend on where it was made."""
    found = {"python": platform.python_version()} | {package: metadata.version(package) for package in NEEDED}
    source, digest = Path(__file__).parents[1], sha256()
    for file in sorted(source.rglob("*.py")):
        digest.update(file.relative_to(source).as_posix().encode() + file.read_bytes())
    return found | {"source of htaf": digest.hexdigest()[:12]}


def unfit(alike: dict[str, str], own: dict[str, str], seen: Sequence[str]) -> str:
    """Say why a node may not make parts: it has other versions, or lacks files; "" where it may."""
    if other := [f"{what} {own[what]} instead of {value}" for what, value in alike.items() if own[what] != value]:
        return f"expected the same on all nodes, got {', '.join(other)}: install the same on each"
    if missing := [path for path in seen if not os.path.exists(path)]:
        path = Path(missing[0])
        what = f"the folder {path.parent}" if path.name.startswith(".seen-") else path
        return f"this node does not see {what}: put it where all nodes see it under the same path, as on a shared disk"
    return ""


def _reason(error: BaseException) -> str:
    """Return what Ray says, on one line."""
    return " ".join(str(error).split())[:600] or type(error).__name__


def _first_files(blocks: Sequence[Block]) -> list[str]:
    """Return a file of each kind of source, that every node must see."""
    found: dict[type, str] = {}
    for image in (image for block in blocks for image in block.images if not isinstance(image.content, Held)):
        name: Any = getattr(image.content, "file", image.content)
        kind = type(image.content)
        if kind not in found and image.size >= 0 and os.path.exists(name):
            found[kind] = os.path.abspath(name)
    return list(found.values())
