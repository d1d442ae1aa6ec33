"""Serve a packed run over HTTP: an image file, or rows of a table as JSON, in; predictions as JSON out.

    htaf pack RUN --out net.packed
    python examples/serve/serve.py net.packed --workers 2 --port 8000
    curl --data-binary @photo.jpg localhost:8000/predict
    curl --data '[{"age": 31, "plan": "basic"}]' localhost:8000/predict

A model of your own, written by htaf.packed.save, takes inputs as nested lists or as an npz file, and gives its outputs
so: rows of one input as a list, several inputs as an object or file of "arr_0", "arr_1" ... as numpy.savez names them.

    curl --data '[[0.1, -2.0, 0.5]]' localhost:8000/predict
    curl --data-binary @inputs.npz localhost:8000/predict > outputs.npz

GET / answers 200 once all workers are ready, GET /metrics is for Prometheus. SIGTERM ends what is begun, then stops.
"""

import io
import json
import os
import zipfile
from pathlib import Path

from mosec import ServerError, ValidationError, Worker, get_logger
from mosec.args import build_arguments_parser

LARGEST = 1 << 28  # bytes of the arrays of one npz file, which may be compressed


class Predict(Worker):
    """Answers a batch of requests by one pass of the network."""

    def __init__(self):
        super().__init__()
        import torch  # here: the process that starts the workers needs neither torch nor htaf

        torch.set_num_threads(int(os.environ["HTAF_SERVE_THREADS"]))
        self.options = {"bits": True} if os.environ["HTAF_SERVE_BITS"] else {}
        self.run = self.open(Path(os.environ["HTAF_SERVE_FILE"]))
        self.columns = []
        if isinstance(self.run, torch.nn.Module):
            self.found, self.by_rows = self.tensors, are_by_rows(self.run.program)
        elif self.run.takes_images:
            self.found = self.images
        else:
            self.found = self.tables
            columns = self.run.preprocessor().columns
            self.columns = [column.name for column in columns if column.kind != "dropped"]

    def open(self, path):
        import torch

        from htaf.program.packed import load
        from htaf.training.runs.packed import as_run

        model = load(path)
        if "run" in model.extra:
            if self.options:  # here rather than by each request, where the network has none
                model.with_bits(torch.zeros([size or 1 for size in model.program.inputs[0].sizes]))
            return as_run(model, path)
        if self.options:
            raise ValueError("expected no --bits with a model of your own, or a file of htaf pack")
        return model

    def deserialize(self, data):
        return bytes(data)  # no more: mosec would answer the whole batch with an error of one request

    def serialize_ipc(self, data):
        return data

    def forward(self, data):
        return self.answers(data) if self.max_batch_size > 1 else self.answers([data])[0]

    def answers(self, bodies):
        """Status and body of each request. Where one fails, halves are tried, so that no other fails with it."""
        from htaf.data.reading import DataError
        from htaf.program.packed import PackedError

        try:
            return [b"200" + written(one) for one in self.found(bodies)]
        except (DataError, PackedError) as error:  # PackedError: of a batch that the network does not take
            refused = b"422" + str(error)[:1000].encode(errors="replace")
        except Exception:
            if len(bodies) == 1:
                get_logger().exception("a request could not be answered")
            refused = b"500" + b"see the log of the server"
        if len(bodies) == 1:
            return [refused]
        return self.answers(bodies[: len(bodies) // 2]) + self.answers(bodies[len(bodies) // 2 :])

    def images(self, bodies):
        return self.run.predict_images(bodies, **self.options).to_dict("records")

    def tables(self, bodies):
        import pandas as pd

        rows = [self.rows(body) for body in bodies]
        cells = [[row[name] for name in self.columns] for some in rows for row in some]
        frame = pd.DataFrame(cells, columns=self.columns, dtype=object)
        answers = iter(self.run.predict(frame, **self.options).to_dict("records"))
        return [[next(answers) for _ in some] for some in rows]

    def tensors(self, bodies):
        import torch
        from torch.utils import _pytree as pytree

        given = [self.inputs(body) for body in bodies]
        if not self.by_rows:  # as of a number for all rows
            found = [self.run(*inputs) for inputs in given]
        else:
            sizes = [len(inputs[0]) for inputs in given]
            outputs, form = pytree.tree_flatten(self.run(*map(torch.cat, zip(*given, strict=True))))
            parts = [[None] * len(sizes) if y is None else y.split(sizes) for y in outputs]
            found = [pytree.tree_unflatten(part, form) for part in zip(*parts, strict=True)]
        return [arrays(y) if is_npz(body) else pytree.tree_map(lists, y) for y, body in zip(found, bodies, strict=True)]

    def inputs(self, body):
        """The tensors of one request, in order."""
        import torch

        from htaf.data.reading import DataError

        try:
            found = read_npz(body) if is_npz(body) else json.loads(body)
            found = found if isinstance(found, dict) else {"arr_0": found}
            found = {name: torch.as_tensor(value) for name, value in found.items()}
        except (ValueError, TypeError, RuntimeError, RecursionError, OSError, zipfile.BadZipFile) as error:
            raise DataError(f"expected JSON lists of numbers, or an npz file of arrays, got {error}") from None
        sizes = {f"arr_{number}": list(one.sizes) for number, one in enumerate(self.run.program.inputs)}
        if found.keys() != sizes.keys():
            raise DataError(f"expected the inputs {[*sizes]}, got {[*found]}")
        for (name, wanted), (_, dtype) in zip(sizes.items(), self.run.program.inputs, strict=True):
            given = found[name]
            found[name] = x = given.to(dtype)
            if dtype != torch.float32 and not torch.equal(x.to(given.dtype), given):
                raise DataError(f"expected numbers that {dtype} holds in {name}, got others")
            if not x.ndim or not len(x) or list(x.shape[1:]) != wanted[1:] or not bool(x.isfinite().all()):
                got = f"shape {list(x.shape)}" if len(sizes) == 1 else f"{name} of shape {list(x.shape)}"
                raise DataError(f"expected a list of inputs of shape {wanted[1:]}, finite numbers, got {got}")
        if len({len(x) for x in found.values()}) > 1:
            raise DataError(f"expected as many rows of every input, got {[len(x) for x in found.values()]}")
        return [found[name] for name in sizes]

    def rows(self, body):
        """The rows of one request; checked here for what rows of others beside them would hide."""
        from htaf.data.reading import DataError

        try:
            rows = json.loads(body)
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


def are_by_rows(program):
    """Whether every output has a row for each row of the inputs, told from the sizes of two batches."""
    from htaf.program.packed.program import check

    two, three = (check(program, rows) for rows in (2, 3))
    pairs = [(list(two[value].shape), list(three[value].shape)) for value in program.returned()]
    return all(small[:1] == [2] and large == [3, *small[1:]] for small, large in pairs)


def lists(output):
    return None if output is None else output.tolist()


def is_npz(body):
    return body[:2] == b"PK"


def read_npz(body):
    """The arrays of an npz file by name, whose sizes are looked at before they are read."""
    import numpy as np

    size = sum(entry.file_size for entry in zipfile.ZipFile(io.BytesIO(body)).infolist())
    if size > LARGEST:
        raise ValueError(f"arrays of {size:,} bytes, more than {LARGEST:,}")
    with np.load(io.BytesIO(body), allow_pickle=False) as file:
        return {name: np.asarray(file[name]) for name in file.files}


def arrays(outputs):
    """Outputs as the content of an npz file: "arr_0" ..., or by the names that the model gives them."""
    import numpy as np
    import torch
    from torch.utils import _pytree as pytree

    leaves = [(path, y) for path, y in pytree.tree_leaves_with_path(outputs) if isinstance(y, torch.Tensor)]
    names = [".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path) for path, _ in leaves]
    named = {
        name if name and not name.isdigit() else f"arr_{name or 0}": y.numpy()
        for name, (_, y) in zip(names, leaves, strict=True)
    }
    np.savez(file := io.BytesIO(), **named)
    return file.getvalue()


def written(answer):
    return answer if isinstance(answer, bytes) else json.dumps(answer, ensure_ascii=False).encode()


class Answer(Worker):
    """Gives each request its own status: mosec gives one to all requests of a batch, and here are no batches."""

    def deserialize_ipc(self, data):
        return bytes(data)

    def serialize(self, data):
        return data

    def forward(self, data):
        status, body = data[:3], data[3:]
        if status != b"200":
            raise (ValidationError if status == b"422" else ServerError)(body.decode())
        return body


def routes(server, given):
    server.append_worker(Predict, given.workers, given.batch, given.batch_wait, route="/predict")
    server.append_worker(Answer, route="/predict")


def main(routes=routes):
    from mosec import Server

    parser = build_arguments_parser()
    parser.add_argument("file", type=Path, help="a file of htaf pack")
    parser.add_argument("--workers", type=int, default=1, help="processes with the network")
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("--batch", type=int, default=32, help="most requests of one pass; 1: each alone")
    parser.add_argument("--batch-wait", type=int, default=1, help="most milliseconds that a request waits for others")
    parser.add_argument("--bits", action="store_true", help="answer with the concepts or the last hidden layer too")
    os.environ.setdefault("MOSEC_ADDRESS", "127.0.0.1")
    os.environ.setdefault("MOSEC_NAMESPACE", "htaf")
    given = parser.parse_args()
    if not given.file.exists():
        parser.error(f"expected a file of htaf pack, {given.file} does not exist")
    os.environ |= {"HTAF_SERVE_FILE": str(given.file), "HTAF_SERVE_THREADS": str(given.threads)}
    os.environ["HTAF_SERVE_BITS"] = "1" if given.bits else ""
    server = Server()
    routes(server, given)
    server.run()


if __name__ == "__main__":
    main()
