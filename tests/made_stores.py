"""Servers for tests: PostgreSQL in a folder of its own, and Optuna's gRPC proxy before it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}
ARGUMENTS = ("-c", "fsync=off", "-c", "max_connections=50", "-c", "listen_addresses=127.0.0.1")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Postgres:
    """A server of Debian's PostgreSQL; as root it runs as the user postgres, for it refuses root."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs, self.folder, self.port = programs, folder, free_port()
        self.user: dict[str, Any] = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
        subprocess.run(
            [programs / "initdb", "-D", folder / "db", "-U", "htaf", "--auth=trust", "--no-sync"],
            check=True, capture_output=True, cwd=folder, **self.user,
        )  # fmt: skip
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://htaf@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        words = [self.programs / "postgres", "-D", self.folder / "db", "-p", str(self.port), "-k", self.folder]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([*words, *ARGUMENTS], stdout=log, stderr=log, cwd=self.folder, **self.user)
        wait_for(self.port)

    def stop(self) -> None:
        """As an administrator does: connections end at once."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)

    def fresh(self) -> str:
        """The address of a new database."""
        import psycopg

        name = f"d{time.monotonic_ns()}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")  # pyright: ignore[reportArgumentType]
        return f"postgresql://htaf@127.0.0.1:{self.port}/{name}"


def wait_for(port: int) -> None:
    """Until something listens."""
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise TimeoutError(f"nothing listens at port {port}")


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    """A server while the block runs; skips with a reason where none can be started, but in CI."""
    places = [*Path("/usr/lib/postgresql").glob("*/bin"), *(Path(p).parent for p in [shutil.which("initdb")] if p)]
    there = [place for place in sorted(places) if (place / "initdb").exists()]
    reason = "" if there else "PostgreSQL must be installed: apt-get install postgresql"
    if not reason and os.geteuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            reason = "PostgreSQL does not run as root: expected a user postgres"
    if reason:
        pytest.fail(reason) if IN_CI else pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="htaf-postgres-"))
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
    server = Postgres(there[-1], folder)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


def serve_proxy(url: str, port: int) -> None:
    """Optuna's proxy, as docs/scaling.md starts it."""
    from optuna.storages import get_storage, run_grpc_proxy_server

    run_grpc_proxy_server(
        get_storage(url.replace("postgresql://", "postgresql+psycopg://")), host="127.0.0.1", port=port
    )


class Proxy:
    """The gRPC proxy before a server, in a process of its own."""

    def __init__(self, url: str) -> None:
        self.url, self.port = url, free_port()
        self.start()

    @property
    def address(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=serve_proxy, args=(self.url, self.port), daemon=True)
        self.process.start()
        wait_for(self.port)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
