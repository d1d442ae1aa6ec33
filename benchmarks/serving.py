"""Requests a second and latency of `htaf serve`: packed beside the same network in float32, with and without batches.

    python benchmarks/serving.py [--nets bireal18 wrn-40-2 table] [--clients 1 8 32] [--seconds 0.6] [--rounds 3]
                                 [--starts 1] [--no-test] [--out FOLDER]

--out: serving.json and serving.md are written there; --json names a file for the former alone.

The server is the same for all sides, with one worker of one thread for each way: packed; PyTorch eager (binary weights
as constants, channels last); onnxruntime. Networks are not trained: time does not depend on the weights. bireal18 and
wrn-40-2 take PNG files of 32 x 32 pixels, table one row of 11 numbers as JSON (as wine), for an MLP 256-256-128.

Each client is a thread of this process with a connection of its own, which sends its next request once it has the
answer. Clients and servers share the cores. `empty` is the same way through the server without a network: no network
can be faster. A round takes every side once, in reversed order every other round; a ratio is the median over rounds of
the requests a second over those of eager with the same clients and batches in the same round. p50 and p99 are over all
requests of all rounds. Start: from the command to the first 200 of GET /, of the example alone; memory: the sum of what
its processes hold in proportion (PSS) after 32 requests, Linux only.

Last, what it costs to read an image in forms that a request could hold: a file, npy, or JSON.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import measuring
import numpy as np
import pandas as pd
import psutil
import torch
from measuring import at_least_one, spread
from PIL import Image

from htaf.data.image_reading import decode
from htaf.data.images import ImagePreprocessor
from htaf.data.preprocess import Preprocessor
from htaf.models.build import build
from htaf.program.export import to_onnx
from htaf.program.packed import pack, save
from htaf.training.runs import finish_run, open_packed, open_run, start_run
from htaf.training.runs.packed import run_extra

SERVED = Path(__file__).with_name("served.py")
SIDES = ("packed", "eager", "onnxruntime")
BASE = "eager"
HTAF = {"method": "htaf", "alpha0": 2.0, "alpha1": 11.0}
NETS = {
    "bireal18": {"kind": "bireal", "depth": 18, "width": 64, "stem": "cifar", "activation": HTAF | {"bipolar": True}},
    "wrn-40-2": {"kind": "wide_resnet", "depth": 40, "width": 2, "dropout": 0.0, "activation": HTAF},
    "table": {"kind": "mlp", "hidden": [256, 256, 128], "batch_norm": True, "activation": HTAF},
}


def finished(folder: Path, description: dict[str, Any], preprocessor: Any, x: torch.Tensor) -> tuple[Path, Path]:
    """A run folder of a network that nobody trained, and the packed file of the same network."""
    torch.manual_seed(0)
    net = build(description).train()
    with torch.no_grad():
        for _ in range(5):
            net(x)
    identity = {
        "recipe": {"method": "htaf", "train_images": 0, "validation_images": 0.1},
        "seed": 0,
        "data": {"name": "made", "fingerprint": "", "task": "classification"},
    }
    record = start_run(folder / "run", identity)
    record |= {"model": description, "headline": "accuracy", "rows": {}, "best_epoch": 0, "notes": [], "metrics": {}}
    run = finish_run(folder / "run", record, net.eval(), preprocessor)
    out = folder / "net.packed"
    extra = run_extra(images=run.takes_images, preprocessing=preprocessor.to_json(), about={})
    save(pack(run.model(), x[:16]), out, extra=extra)
    return folder / "run", out


def pictures(count: int, size: int) -> list[Image.Image]:
    """Smooth random pictures, about as large as photographs once they are files."""
    rng = np.random.default_rng(0)
    small = rng.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    return [Image.fromarray(pixels).resize((size, size), Image.Resampling.BICUBIC) for pixels in small]


def as_file(picture: Image.Image, kind: str) -> bytes:
    picture.save(file := io.BytesIO(), kind)
    return file.getvalue()


def made(name: str, folder: Path) -> tuple[dict[str, Path], list[bytes], list[Any]]:
    """What each side serves, bodies of requests, and the predictions of the packed network for them."""
    if name == "table":
        rng = np.random.default_rng(0)
        frame = pd.DataFrame({f"x{i}": rng.normal(size=500) for i in range(11)})
        preprocessor: Any = Preprocessor.fit(frame, np.arange(500) % 2, task="classification", classes=("no", "yes"))
        x = torch.from_numpy(preprocessor.transform(frame))
        shape = {"in_features": x.shape[1], "out_features": 2}
        bodies = [json.dumps([row]).encode() for row in frame.head(64).to_dict("records")]
    else:
        classes = tuple(map(str, range(10)))
        preprocessor = ImagePreprocessor((0.5,) * 3, (0.25,) * 3, (32, 32), 3, classes)
        some = pictures(64, 32)
        x = preprocessor.normalise(torch.from_numpy(np.stack([np.asarray(p).transpose(2, 0, 1) for p in some])))
        shape = {"in_channels": 3, "out_features": 10}
        bodies = [as_file(picture, "PNG") for picture in some]
    run, file = finished(folder, NETS[name] | shape, preprocessor, x)
    to_onnx(open_run(run).model(), x[:2], run / "net.onnx")
    packed = open_packed(file)
    found = packed.predict(frame.head(64)) if name == "table" else packed.predict_images(bodies)
    return {"packed": file, "eager": run, "onnxruntime": run}, bodies, found["prediction"].tolist()


class Served:
    """A server in a process of its own."""

    def __init__(self, form: str, path: Path, folder: Path, *, only: bool = False) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        surroundings = os.environ | {"HTAF_FORM": form, "OMP_NUM_THREADS": "1", "MOSEC_LOG_LEVEL": "warning"}
        surroundings |= {"MOSEC_PATH": str(folder / f"{form}-{self.port}"), "MOSEC_TIMEOUT": "60000"}
        surroundings |= {"HTAF_ONLY": "1"} if only else {}
        self.begun = time.perf_counter()
        self.log = folder / f"{form}-{self.port}.log"
        with self.log.open("wb") as out:
            command = [sys.executable, str(SERVED), str(path), "--port", str(self.port)]
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=surroundings)

    def ready(self) -> float:
        """Seconds from the command until it is ready."""
        while self.process.poll() is None:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
                connection.request("GET", "/")
                if connection.getresponse().status == 200:
                    return time.perf_counter() - self.begun
            except OSError:
                time.sleep(0.05)
            finally:
                connection.close()
        sys.exit(f"a server did not start:\n{self.log.read_text()[-3000:]}")

    def memory(self) -> int | None:
        """Bytes that its processes hold, shared pages by share."""
        root = psutil.Process(self.process.pid)
        try:
            return sum(one.memory_full_info().pss for one in (root, *root.children(recursive=True)))
        except AttributeError:
            return None

    def stop(self) -> None:
        root = psutil.Process(self.process.pid)
        everything = [*root.children(recursive=True), root]
        self.process.send_signal(signal.SIGTERM)
        for left in psutil.wait_procs(everything, timeout=120)[1]:
            left.kill()


@contextmanager
def serving(servers: dict[str, Served]) -> Iterator[dict[str, Served]]:
    try:
        for server in servers.values():
            server.ready()
        yield servers
    finally:
        for server in servers.values():
            server.stop()


def asked(port: int, route: str, bodies: list[bytes]) -> list[Any]:
    """The answers to requests, one after the other."""
    connection, answers = http.client.HTTPConnection("127.0.0.1", port, timeout=60), []
    for body in bodies:
        connection.request("POST", route, body)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            sys.exit(f"{route}: expected 200, got {answer.status}: {text.decode()}")
        answers.append(json.loads(text))
    connection.close()
    return answers


def sample(port: int, route: str, bodies: list[bytes], clients: int, seconds: float) -> tuple[float, list[float]]:
    """Requests a second of so many clients together, and the seconds of each request."""
    spent: list[list[float]] = [[] for _ in range(clients)]
    start = threading.Barrier(clients + 1)
    failed: list[str] = []

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.connect()
        start.wait()
        end = time.perf_counter() + seconds
        place = number
        while (begun := time.perf_counter()) < end:
            connection.request("POST", route, bodies[place % len(bodies)])
            answer = connection.getresponse()
            answer.read()
            spent[number].append(time.perf_counter() - begun)
            if answer.status != 200:
                failed.append(str(answer.status))
                break
            place += 1
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    start.wait()
    begun = time.perf_counter()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - begun
    if failed:
        sys.exit(f"{route}: expected 200 of every request, got {failed[0]}")
    every = [seconds for some in spent for seconds in some]
    return len(every) / elapsed, every


def measured(name: str, given: Any, folder: Path) -> list[dict[str, Any]]:
    """Requests a second of all sides of one network."""
    paths, bodies, expected = made(name, folder)
    ways = {f"{side} {route}": (side, route) for side in SIDES for route in ("/predict", "/alone")}
    ways["empty"] = ("packed", "/empty")
    rows: list[dict[str, Any]] = []
    with serving({side: Served(side, paths[side], folder) for side in SIDES}) as servers:
        equal: dict[str, float] = {}
        for way, (side, route) in ways.items():
            answers = asked(servers[side].port, route, bodies)
            found = [one[0] if isinstance(one, list) else one for one in answers]
            same = [one.get("prediction") == wanted for one, wanted in zip(found, expected, strict=True)]
            equal[way] = statistics.mean(same)
        for clients in given.clients:
            latencies: dict[str, list[float]] = {way: [] for way in ways}

            def timed(way: str, clients: int = clients, latencies: dict[str, list[float]] = latencies) -> Callable:
                side, route = ways[way]

                def one() -> tuple[float]:
                    rate, spent = sample(servers[side].port, route, bodies, clients, given.seconds)
                    latencies[way] += spent
                    return (rate,)

                return one

            rates = measuring.alternate({way: timed(way) for way in ways}, given.rounds, warm_up=0)
            for way, (side, route) in ways.items():
                base = f"{BASE} {route}"
                row: dict[str, Any] = {
                    "network": name, "what": "requests", "side": "empty" if way == "empty" else side,
                    "batch": 1 if route == "/alone" else 32, "clients": clients, "threads": 1,
                    "a_second": spread(rate for (rate,) in rates[way])._asdict(),
                    "p50_ms": 1e3 * float(np.quantile(latencies[way], 0.5)),
                    "p99_ms": 1e3 * float(np.quantile(latencies[way], 0.99)), "requests": len(latencies[way]),
                }  # fmt: skip
                if way != "empty":
                    row |= {"of_eager": measuring.ratio(rates[way], rates[base])._asdict(), "equal": equal[way]}
                rows.append(row)
                over = f"{measuring.ratio(rates[way], rates[base])} of eager" if way != "empty" else ""
                print(
                    f"{name:9} {row['side']:12} batch {row['batch']:2}  {clients:2} clients "
                    f"{row['a_second']['median']:7.0f} / s  p50 {row['p50_ms']:6.1f}  p99 {row['p99_ms']:6.1f} ms "
                    f" {over}",
                    flush=True,
                )
    return rows + starts(name, given.starts, paths, bodies, folder)


def starts(name: str, rounds: int, paths: dict[str, Path], bodies: list[bytes], folder: Path) -> list[dict[str, Any]]:
    """Time until a server with one worker is ready, and its memory."""
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    for number in range(rounds):
        for side in SIDES[:: -1 if number % 2 else 1]:
            server = Served(side, paths[side], folder, only=True)
            seconds = server.ready()
            asked(server.port, "/predict", bodies[:32])
            found[side].append((seconds, float(server.memory() or 0)))
            server.stop()
    rows = []
    for side, some in found.items():
        seconds, memory = (spread(one[part] for one in some) for part in (0, 1))
        rows.append({"network": name, "what": "start", "side": side, "seconds": seconds._asdict(),
                     "memory_bytes": memory._asdict()})  # fmt: skip
        print(f"{name:9} {side:12} ready after {seconds} s, {memory.median / 2**20:.0f} MiB", flush=True)
    return rows


def forms() -> list[dict[str, Any]]:
    """What it costs to read one image in the forms that a request could hold."""
    rows = []
    for size in (32, 224):
        (picture,) = pictures(1, size)
        pixels = np.asarray(picture)
        np.save(npy := io.BytesIO(), pixels)
        bodies = {"PNG": as_file(picture, "PNG"), "JPEG": as_file(picture, "JPEG"), "npy": npy.getvalue(),
                  "JSON": json.dumps(pixels.tolist()).encode()}  # fmt: skip
        for form, body in bodies.items():

            def read(form: str = form, body: bytes = body, size: int = size) -> Any:
                if form == "JSON":
                    return np.array(json.loads(body), dtype=np.uint8)
                return np.load(io.BytesIO(body), allow_pickle=False) if form == "npy" else decode(body, 3, (size, size))

            read()
            ms = 1e3 * statistics.median(measuring.once(read) for _ in range(20))
            rows.append({"what": "form", "form": form, "pixels": size, "bytes": len(body), "ms": ms})
            print(f"{form:5} {size:3} px  {len(body):8,} bytes  {ms:.3f} ms to read", flush=True)
    return rows


def as_table(rows: list[dict[str, Any]]) -> str:
    """The rows in Markdown."""
    load = measuring.machine()["load_before"]
    cores = measuring.machine()["cores"]
    told = [
        f"{cores} cores, which clients and servers share; load before the run: {load:.1f}.",
        measuring.one_line() + ".",
    ]
    lines = ["# Requests a second of `htaf serve`", "", "`python benchmarks/serving.py`. " + " ".join(told), ""]
    lines += [
        "| network | clients | batch | side | requests / s | of eager | p50, ms | p99, ms |",
        "|---|" + "---:|" * 7,
    ]
    for row in rows:
        if row["what"] == "requests":
            over = str(measuring.Spread(**row["of_eager"])) if "of_eager" in row else ""
            cells = (
                row["network"],
                row["clients"],
                row["batch"],
                row["side"],
                f"{row['a_second']['median']:,.0f}",
                over,
            )
            lines.append("| " + " | ".join(map(str, (*cells, f"{row['p50_ms']:.1f}", f"{row['p99_ms']:.1f}"))) + " |")
    lines += ["", "| network | side | seconds until ready | memory, MiB |", "|---|---|---:|---:|"]
    for row in rows:
        if row["what"] == "start":
            memory = row["memory_bytes"]["median"] / 2**20
            lines.append(f"| {row['network']} | {row['side']} | {row['seconds']['median']:.1f} | {memory:,.0f} |")
    lines += ["", "| image | pixels | bytes | ms to read |", "|---|---:|---:|---:|"]
    for row in rows:
        if row["what"] == "form":
            lines.append(f"| {row['form']} | {row['pixels']} | {row['bytes']:,} | {row['ms']:.3f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    made_parser = measuring.parser(__doc__, rounds=3)
    made_parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    made_parser.add_argument("--clients", nargs="+", type=at_least_one, default=[1, 8, 32])
    made_parser.add_argument("--seconds", type=float, default=0.6, help="of a sample; default: 0.6")
    made_parser.add_argument(
        "--starts", type=at_least_one, default=1, help="times that a server is started; default: 1"
    )
    made_parser.add_argument("--out", type=Path, help="a folder for serving.json and serving.md")
    given = measuring.begin(made_parser, "test_serving.py")
    if given.out:
        given.json = given.out / "serving.json"
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name in given.nets:
        with tempfile.TemporaryDirectory() as folder:
            rows += measured(name, given, Path(folder))
        measuring.write(given.json, rows)  # a benchmark that is stopped has said what it knows
    rows += forms()
    measuring.end(given, rows)
    if given.out:
        (given.out / "serving.md").write_text(as_table(rows))


if __name__ == "__main__":
    main()
