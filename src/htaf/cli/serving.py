"""`htaf serve`: a packed file over HTTP, by mosec; an image file, rows or inputs in, predictions as JSON out.

GET / answers 200 once all workers are ready, GET /metrics is for Prometheus. SIGTERM ends what is begun, then stops.
"""

from __future__ import annotations

import io
import json as json_text
import os
import socket
import sys
import zipfile
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

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
    import numpy as np
    from torch import Tensor

    from htaf.data.preprocess import Preprocessor
    from htaf.program.packed import PackedModel
    from htaf.program.packed.program import Program
    from htaf.training.runs import PackedRun

LARGEST = 1 << 28  # bytes of the arrays of one npz file, which may be compressed
FILE, THREADS, BITS = "HTAF_SERVE_FILE", "HTAF_SERVE_THREADS", "HTAF_SERVE_BITS"  # read by the workers


class Predict(Worker):
    """Answers a batch of requests by one pass of the network."""

    def __init__(self) -> None:
        super().__init__()
        import torch

        torch.set_num_threads(int(os.environ[THREADS]))
        self.options: dict[str, Any] = {"bits": True} if os.environ[BITS] else {}
        self.run = self.open(Path(os.environ[FILE]))
        self.found: Callable[[Sequence[bytes]], list[Any]] = self.tensors
        if isinstance(self.run, torch.nn.Module):
            self.by_rows = are_by_rows(self.run.program)
        elif self.run.takes_images:
            self.found = self.images
        else:
            self.found = self.tables
            columns = cast("Preprocessor", self.run.preprocessor()).columns
            self.columns = [column.name for column in columns if column.kind != "dropped"]

    def open(self, path: Path) -> PackedModel | PackedRun:
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
        return cast("PackedRun", self.run).predict_images(bodies, **self.options).to_dict("records")

    def tables(self, bodies: Sequence[bytes]) -> list[Any]:
        import pandas as pd

        rows = [self.rows(body) for body in bodies]
        cells = [[row[name] for name in self.columns] for some in rows for row in some]
        frame = pd.DataFrame(cells, columns=self.columns, dtype=object)
        answers = iter(cast("PackedRun", self.run).predict(frame, **self.options).to_dict("records"))
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

    def tensors(self, bodies: Sequence[bytes]) -> list[Any]:
        import torch
        from torch.utils import _pytree as pytree

        model, given = cast("PackedModel", self.run), [self.inputs(body) for body in bodies]
        if not self.by_rows:  # as of a number for all rows
            found = [model(*inputs) for inputs in given]
        else:
            sizes = [len(inputs[0]) for inputs in given]
            outputs, form = pytree.tree_flatten(model(*map(torch.cat, zip(*given, strict=True))))
            parts = [[None] * len(sizes) if y is None else y.split(sizes) for y in outputs]
            found = [pytree.tree_unflatten(part, form) for part in zip(*parts, strict=True)]
        return [pytree.tree_map(lambda y: None if y is None else y.tolist(), one) for one in found]

    def inputs(self, body: bytes) -> list[Tensor]:
        """Return the tensors of one request, in order."""
        import torch

        from htaf.data.reading import DataError

        inputs = cast("PackedModel", self.run).program.inputs
        try:
            read = read_npz(body) if body[:2] == b"PK" else json_text.loads(body)
            read = read if isinstance(read, dict) else {"arr_0": read}
            found = {name: torch.as_tensor(value) for name, value in read.items()}
        except (ValueError, TypeError, RuntimeError, RecursionError, OSError, zipfile.BadZipFile) as error:
            raise DataError(f"expected JSON lists of numbers, or an npz file of arrays, got {error}") from None
        sizes = {f"arr_{number}": list(one.sizes) for number, one in enumerate(inputs)}
        if found.keys() != sizes.keys():
            raise DataError(f"expected the inputs {[*sizes]}, got {[*found]}")
        for (name, wanted), (_, dtype) in zip(sizes.items(), inputs, strict=True):
            given = found[name]
            found[name] = x = given.to(dtype)
            if dtype != torch.float32 and not torch.equal(x.to(given.dtype), given):
                raise DataError(f"expected numbers in {name} that fit {dtype}, got others")
            if not x.ndim or not len(x) or list(x.shape[1:]) != wanted[1:] or not bool(x.isfinite().all()):
                got = f"shape {list(x.shape)}" if len(sizes) == 1 else f"{name} of shape {list(x.shape)}"
                raise DataError(f"expected a list of inputs of shape {wanted[1:]}, finite numbers, got {got}")
        if len({len(x) for x in found.values()}) > 1:
            raise DataError(f"expected as many rows of every input, got {[len(x) for x in found.values()]}")
        return [found[name] for name in sizes]


def opened(path: Path, *, bits: bool) -> PackedModel | PackedRun:
    """Return the run of a packed file, or the model of one that holds no run."""
    import torch

    from htaf.program.packed import load
    from htaf.training.runs.packed import as_run

    model = load(path)
    if "run" in model.extra:
        if bits:  # here rather than by each request, where the network has none
            model.with_bits(torch.zeros([size or 1 for size in model.program.inputs[0].sizes]))
        return as_run(model, path)
    if bits:
        raise UsageError("expected no --bits with a model of your own, only with a file of htaf pack")
    return model


def are_by_rows(program: Program) -> bool:
    """Return whether every output has a row for each row of the inputs, told from the sizes of two batches."""
    from htaf.program.packed.program import check

    two, three = (check(program, rows) for rows in (2, 3))
    pairs = [(list(two[value].shape), list(three[value].shape)) for value in program.returned()]
    return all(small[:1] == [2] and large == [3, *small[1:]] for small, large in pairs)


def read_npz(body: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of an npz file by name, whose sizes are looked at before they are read."""
    import numpy as np

    size = sum(entry.file_size for entry in zipfile.ZipFile(io.BytesIO(body)).infolist())
    if size > LARGEST:
        raise ValueError(f"arrays of {size:,} bytes, more than {LARGEST:,}")
    with np.load(io.BytesIO(body), allow_pickle=False) as file:
        return {name: np.asarray(file[name]) for name in file.files}


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
