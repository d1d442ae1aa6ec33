"""`htaf serve`: a packed file over HTTP, by mosec; an image file or rows in, predictions as JSON out.

GET / answers 200 once all workers are ready, GET /metrics is for Prometheus. SIGTERM ends what is begun, then stops.
"""

from __future__ import annotations

import json as json_text
import os
import socket
import sys
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from htaf._ground.console import UsageError, print_json
from htaf.cli.flags import Json

given, sys.argv = sys.argv, sys.argv[:1]  # mosec parses the command line as it is imported
try:
    from mosec import Server, ServerError, ValidationError, Worker, get_logger
except ImportError:
    raise UsageError("htaf serve needs mosec (Linux, macOS): pip install 'htaf[scale]'") from None
finally:
    sys.argv = given

if TYPE_CHECKING:
    from htaf.training.runs import PackedRun

FILE, THREADS, BITS = "HTAF_SERVE_FILE", "HTAF_SERVE_THREADS", "HTAF_SERVE_BITS"  # read by the workers


class Predict(Worker):
    """Answers a batch of requests by one pass of the network."""

    def __init__(self) -> None:
        super().__init__()
        import torch

        torch.set_num_threads(int(os.environ[THREADS]))
        self.options: dict[str, Any] = {"bits": True} if os.environ[BITS] else {}
        self.run = self.open(Path(os.environ[FILE]))
        self.found: Callable[[Sequence[bytes]], list[Any]] = self.images if self.run.takes_images else self.tables
        known: Any = self.run.preprocessor()
        self.columns = [] if self.run.takes_images else [one.name for one in known.columns if one.kind != "dropped"]

    def open(self, path: Path) -> PackedRun:
        return opened(path, bits=bool(self.options))

    def deserialize(self, data: Any) -> bytes:
        return bytes(data)  # no more: mosec would answer the whole batch with an error of one request

    def serialize_ipc(self, data: Any) -> bytes:
        return data

    def forward(self, data: Any) -> Any:
        return self.answers(data) if self.max_batch_size > 1 else self.answers([data])[0]

    def answers(self, bodies: Sequence[bytes]) -> list[bytes]:
        """Return status and body of each request. Where one fails, halves are tried, so that no other fails with it."""
        from htaf.data.reading import DataError
        from htaf.program.packed import PackedError

        try:
            return [b"200" + json_text.dumps(one, ensure_ascii=False).encode() for one in self.found(bodies)]
        except (DataError, PackedError) as error:  # PackedError: of a batch that the network does not take
            refused = b"422" + str(error)[:1000].encode(errors="replace")
        except Exception:
            if len(bodies) == 1:
                get_logger().exception("a request could not be answered")
            refused = b"500" + b"see the log of the server"
        if len(bodies) == 1:
            return [refused]
        return self.answers(bodies[: len(bodies) // 2]) + self.answers(bodies[len(bodies) // 2 :])

    def images(self, bodies: Sequence[bytes]) -> list[Any]:
        return self.run.predict_images(bodies, **self.options).to_dict("records")

    def tables(self, bodies: Sequence[bytes]) -> list[Any]:
        import pandas as pd

        rows = [self.rows(body) for body in bodies]
        cells = [[row[name] for name in self.columns] for some in rows for row in some]
        frame = pd.DataFrame(cells, columns=self.columns, dtype=object)
        answers = iter(self.run.predict(frame, **self.options).to_dict("records"))
        return [[next(answers) for _ in some] for some in rows]

    def rows(self, body: bytes) -> list[dict[str, Any]]:
        """Return the rows of one request, checked for what rows of others beside them would hide."""
        from htaf.data.reading import DataError

        try:
            rows = json_text.loads(body)
        except (ValueError, RecursionError) as error:
            raise DataError(f"expected JSON, got {error}") from None
        if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
            raise DataError("expected a JSON list of rows, each an object of columns and values")
        for number, row in enumerate(rows, start=1):
            if missing := [name for name in self.columns if name not in row]:
                raise DataError(f"row {number}: expected the columns {missing} too, got {[*row]}")
            if nested := [name for name in self.columns if isinstance(row[name], list | dict)]:
                raise DataError(f"row {number}: expected a text, a number, true, false or null in {nested}")
        return rows


def opened(path: Path, *, bits: bool) -> PackedRun:
    """Return the run of a packed file; an error where it is to answer with bits and has none."""
    import torch

    from htaf.program.integer.model import IntegerModel
    from htaf.training.runs import open_packed

    run = open_packed(path)
    if bits:  # here rather than by each request
        sizes = () if isinstance(run.model, IntegerModel) else run.model.program.inputs[0].sizes
        run.model.with_bits(torch.zeros([size or 1 for size in sizes]))
    return run


class Answer(Worker):
    """Gives each request its own status: mosec gives one to all requests of a batch, and here are no batches."""

    def deserialize_ipc(self, data: Any) -> bytes:
        return bytes(data)

    def serialize(self, data: Any) -> bytes:
        return data

    def forward(self, data: Any) -> Any:
        status, body = data[:3], data[3:]
        if status != b"200":
            raise (ValidationError if status == b"422" else ServerError)(body.decode())
        return body


def check_place(address: str, port: int) -> None:
    """Refuse an address and a port on which a server cannot listen."""
    try:
        socket.create_server((str(ip_address(address)), port)).close()
    except (OSError, OverflowError, ValueError) as error:
        said = f"expected a free --port of an --address of this machine, got {port} of {address!r}: {error}"
        raise UsageError(said) from None


def prepared(file: Path, *, threads: int = 1, bits: bool = False, address: str = "127.0.0.1", port: int = 8000) -> None:
    """Tell the workers and mosec what to do, before a server is made."""
    sys.argv = sys.argv[:1]  # mosec reads it
    os.environ.setdefault("MOSEC_NAMESPACE", "htaf")
    os.environ |= {FILE: str(file), THREADS: str(threads), BITS: "1" if bits else ""}
    os.environ |= {"MOSEC_ADDRESS": address, "MOSEC_PORT": str(port)}


def serve(
    file: Annotated[Positional[Path], arg(help="A packed file.", metavar="FILE")],
    *,
    port: int = 8000,
    address: str = "127.0.0.1",
    workers: int = 1,
    threads: int = 1,
    batch: int = 32,
    batch_wait: int = 1,
    bits: bool = False,
    json: Json = False,
) -> None:
    """Serve a packed file over HTTP: an image file, or rows as JSON, in; predictions as JSON out.

    MOSEC_TIMEOUT, MOSEC_CAPACITY and MOSEC_MAX_REQUEST_SIZE set mosec's limits.

    Args:
        port: Port of the server.
        address: Address it listens on; 0.0.0.0 is every network of this machine.
        workers: How many processes hold the network.
        threads: Threads of each worker.
        batch: Most requests answered in one pass; 1 answers each alone.
        batch_wait: Milliseconds a request waits for others, at most.
        bits: Also answer with the concepts, or with the last hidden layer of a table's network.
    """
    for flag, least, most, got in (
        ("--port", 1, 65_535, port),
        ("--workers", 1, 1024, workers),
        ("--threads", 1, 1024, threads),
        ("--batch", 1, 65_536, batch),
        ("--batch-wait", 0, 60_000, batch_wait),
    ):
        if not least <= got <= most:
            raise UsageError(f"expected {flag} from {least:,} to {most:,}, got {got}")
    check_place(address, port)
    prepared(file, threads=threads, bits=bits, address=address, port=port)
    opened(file, bits=bits)  # mosec ends with 0 where its workers cannot start
    server = Server()
    server.append_worker(Predict, workers, batch, batch_wait, route="/predict")
    server.append_worker(Answer, route="/predict")
    server.run()
    if json:
        print_json({"file": file, "address": address, "port": port})
