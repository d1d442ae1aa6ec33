"""Cells as tasks of a Ray cluster (extra `ray`): Ray chooses the nodes, and tries again what died with its node."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch

from htaf._errors import first_line, installed
from htaf.training.cells import DEATHS, Ended, Place, StudyError, Task, attempt


class RayTasks:
    """An engine for `htaf.training.cells.compute`, made by `connected`."""

    at_once = 1000  # Ray begins as many as there is room for; those that wait make a cluster grow

    def __init__(self, threads: int, device: str) -> None:
        import ray

        gpus = 1 if device == "cuda" or (device == "auto" and ray.cluster_resources().get("GPU")) else 0
        options: Any = {"num_cpus": threads, "num_gpus": gpus, "max_retries": DEATHS}
        self._task, self._threads, self._here = ray.remote(_attempt).options(**options), threads, os.getcwd()

    def submit(self, task: Task, place: Place) -> Future[Ended]:
        place = replace(place, folder=place.folder.absolute())
        return self._task.remote(task, place, self._threads, self._here).future()


def _attempt(task: Task, place: Place, threads: int, here: str) -> Ended:
    """On a node: as `attempt`, in the folder to which relative paths of data are relative."""
    with suppress(OSError):  # a node without it: reading says what it does not see
        os.chdir(here)
    if not place.study.is_dir():
        name = socket.gethostname()
        return Ended(error=f"the node {name} does not see {place.study}: expected a folder that all nodes share")
    torch.set_num_threads(threads)
    return attempt(task, place)


@contextmanager
def connected(address: str | None, threads: int, device: str) -> Iterator[RayTasks]:
    """An engine on a Ray cluster while the block runs; what is under way at its end ends too.

    Args:
        address: HOST:PORT of the head node; auto: of the cluster of this machine; None: one of this machine alone.
        threads: CPUs and threads of each cell. device: cuda: each has a GPU too.

    Raises:
        StudyError: no cluster can be used at the address. MissingError: Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a warning of what will change
    with installed():
        import ray
    ours = not ray.is_initialized()
    if ours:
        given: dict[str, Any] = {} if address else {"include_dashboard": False}
        try:
            ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **given)
        except Exception as error:  # Ray raises nearly everything, `Exception` itself too
            where = address or "this machine"
            raise StudyError(f"no Ray cluster can be used at {where}: {first_line(error)}") from None
    try:
        yield RayTasks(threads, device)
    finally:
        if ours:
            ray.shutdown()
