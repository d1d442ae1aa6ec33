"""`htaf serve`: a real server answers as `predict` does, refuses what it cannot read, and stops when told to."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
import torch
from PIL import Image

import made_runs
from htaf import Heaviside, harden
from htaf.data.preprocess import Preprocessor
from htaf.data.reading import DataError
from htaf.models.build import build
from htaf.program.packed import PackedError, pack, save
from htaf.training.runs import PackedRun, open_packed, pack_run
from htaf.training.runs.packed import run_extra

pytest.importorskip("mosec", reason="no wheels for Windows")

LARGEST = 20_000  # bytes of a request
FRAME = pd.DataFrame(
    {
        "size": np.linspace(-3, 5, 200),
        "count": np.arange(200) % 7,
        "kind": np.array([*"abc"])[np.arange(200) % 3],
        "code": 2**53 + 1 + 2 * (np.arange(200) % 4),  # numbers as categories, which float64 would round
    }
)


@pytest.fixture(scope="module")
def image_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served-images")
    run = made_runs.made_run(folder / "run", made_runs.digits(), kind="wide_resnet")
    pack_run(run, folder / "net.packed")
    return folder / "net.packed"


@pytest.fixture(scope="module")
def table_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    typed = FRAME.assign(code=FRAME["code"].astype(str))
    preprocessor = Preprocessor.fit(typed, np.arange(200) % 2, task="classification", classes=("no", "yes"))
    x = torch.from_numpy(preprocessor.transform(FRAME))
    description = {"kind": "mlp", "in_features": x.shape[1], "hidden": [32, 16], "out_features": 2,
                   "batch_norm": True, "activation": made_runs.HTAF}  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = build(description)
    net(x)  # for the batch norms
    file = tmp_path_factory.mktemp("served-table") / "net.packed"
    extra = run_extra(images=False, preprocessing=preprocessor.to_json(), about={})
    exact = harden(net.eval())
    torch.save(exact, file.with_name("exact.pt"))
    save(pack(exact, x), file, extra=extra)
    return file


def contents(count: int) -> list[bytes]:
    """Image files of digits."""
    made = []
    for pixels in made_runs.digits().train.batch(torch.arange(count)):
        Image.fromarray(pixels[0].numpy()).save(file := io.BytesIO(), "PNG")
        made.append(file.getvalue())
    return made


def as_json(rows: pd.DataFrame) -> bytes:
    return rows.to_json(orient="records", double_precision=15).encode()


def same(answer: Any, expected: pd.DataFrame) -> None:
    """Predictions are equal, numbers up to the rounding of another batch."""
    found = pd.DataFrame(answer)
    assert [*found] == [*expected]
    assert found["prediction"].tolist() == expected["prediction"].tolist()
    numbers = [name for name in expected if name != "prediction"]
    np.testing.assert_allclose(found[numbers].to_numpy(float), expected[numbers].to_numpy(float), atol=1e-5)


def test_contents_of_files_are_predicted_as_files_are(image_file: Path, tmp_path: Path) -> None:
    run, given = open_packed(image_file), contents(3)
    for number, content in enumerate(given):
        (tmp_path / f"{number}.png").write_bytes(content)
    files = run.predict_images(sorted(tmp_path.iterdir()))
    found = run.predict_images(given)
    assert [*found.index] == ["image 1", "image 2", "image 3"]
    np.testing.assert_array_equal(found.to_numpy(), files.to_numpy())
    with pytest.raises(DataError, match=r"^image 2: expected an image, got a file of another kind$"):
        run.predict_images([given[0], b"text"])
    loose = run.predict_images([b"", given[1]], strict=False)
    assert loose["error"].tolist() == ["expected an image, got an empty file", None]


def test_contents_run_no_other_program(image_file: Path) -> None:
    Image.new("RGB", (8, 8)).save(file := io.BytesIO(), "EPS")  # Pillow reads it by Ghostscript
    with pytest.raises(DataError, match="got a file of another kind"):
        open_packed(image_file).predict_images([file.getvalue()])


def predictor(file: Path, monkeypatch: pytest.MonkeyPatch, batch: int = 32, bits: bool = False) -> Any:
    """A worker in this process."""
    from htaf.cli.serving import Predict

    monkeypatch.setenv("HTAF_SERVE_FILE", str(file))
    monkeypatch.setenv("HTAF_SERVE_THREADS", "1")
    monkeypatch.setenv("HTAF_SERVE_BITS", "1" if bits else "")
    made = Predict()
    made.max_batch_size = batch
    return made


def answers_of(worker: Any, bodies: list[bytes]) -> list[tuple[int, Any]]:
    found = [(int(answer[:3]), answer[3:]) for answer in worker.forward(bodies)]
    return [(status, json.loads(body) if status == 200 else body.decode()) for status, body in found]


BAD_ROWS = {
    b"{bad": "expected JSON, got Expecting property name",
    b"[" * 100_000: "expected JSON, got maximum recursion depth",
    b"\xff\xfe": "expected JSON, got ",
    b"[1" + b"0" * 5000 + b"]": "expected JSON, got Exceeds the limit",
    b"[]": "expected a JSON list of rows",
    b"[[1, 2]]": "expected a JSON list of rows",
    b'{"size": 1}': "expected a JSON list of rows",
    b'[{"size": 1, "count": 2, "code": 1}]': "row 1: expected the columns ['kind'] too, got ['size', 'count', 'code']",
    b'[{"size": {}, "count": 2, "kind": "a", "code": 1}]': "row 1: expected a text, a number, true, false or null",
    b'[{"size": "x", "count": 2, "kind": "a", "code": 1}]': "column 'size', row 1: expected a number, got 'x'",
    b'[{"size": "\\ud800", "count": 2, "kind": "a", "code": 1}]': "column 'size', row 1: expected a number, got ",
    b'[{"size": 1e999, "count": 2, "kind": "a", "code": 1}]': "column 'size', row 1: expected a finite number",
}


def test_a_request_that_cannot_be_read_is_refused_alone(table_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, run = predictor(table_file, monkeypatch), open_packed(table_file)
    good = [FRAME[i : i + 1 + i % 3] for i in range(len(BAD_ROWS))]
    bodies = [body for pair in zip(map(as_json, good), BAD_ROWS, strict=True) for body in pair]
    found = answers_of(worker, bodies)
    for rows, (status, answer) in zip(good, found[::2], strict=True):
        assert status == 200
        same(answer, run.predict(rows))
    for words, (status, text) in zip(BAD_ROWS.values(), found[1::2], strict=True):
        assert (status, text[: len(words)]) == (422, words)


def test_rows_are_understood_alike_beside_others(table_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = predictor(table_file, monkeypatch)
    plain = {"size": 0.5, "count": 3, "kind": "b", "code": 2**53 + 1}
    rows = [plain, plain | {"code": str(2**53 + 1)}, plain | {"count": 3.0}, plain | {"size": "0.5", "extra": [1]}]
    odd = [plain | {"kind": True}, plain | {"kind": None, "size": None, "code": None}]
    bodies = [json.dumps([row]).encode() for row in rows + odd]
    together, alone = answers_of(worker, bodies), [answers_of(worker, [body])[0] for body in bodies]
    for one, other in zip(together, alone, strict=True):
        same(one[1], pd.DataFrame(other[1]))
    beside = answers_of(worker, [bodies[0], bodies[-1]])
    same(beside[0][1], pd.DataFrame(alone[0][1]))
    for status, answer in together[: len(rows)]:
        assert status == 200
        same(answer, pd.DataFrame(together[0][1]))


def test_images_are_refused_alone(image_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, given = predictor(image_file, monkeypatch), contents(6)
    bodies = [*given[:3], b"no image", *given[3:], given[0][:60]]
    found = answers_of(worker, bodies)
    assert [status for status, _ in found] == [200, 200, 200, 422, 200, 200, 200, 422]
    assert found[3][1] == "image 1: expected an image, got a file of another kind"
    same([answer for status, answer in found if status == 200], open_packed(image_file).predict_images(given))


def last_steps(model: torch.nn.Module, x: torch.Tensor) -> list[str]:
    """What the last step of a hardened network gives."""
    seen: list[torch.Tensor] = []
    steps = [module for module in model.modules() if isinstance(module, Heaviside)]
    with steps[-1].register_forward_hook(lambda _, __, y: seen.append(y)), torch.no_grad():
        model(x)
    return ["".join("01"[int(bit)] for bit in row) for row in seen[-1]]


def test_bits_are_those_of_the_last_step(
    table_file: Path, image_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = torch.load(table_file.with_name("exact.pt"), weights_only=False)
    run = open_packed(table_file)
    expected = last_steps(network, torch.from_numpy(run.preprocessor().transform(FRAME)))
    assert len(set(expected)) > 20
    assert run.predict(FRAME, bits=True)["bits"].tolist() == expected
    assert [*run.predict(FRAME[:0], bits=True)] == [*run.predict(FRAME), "bits"]
    answers = answers_of(predictor(table_file, monkeypatch, bits=True), [as_json(FRAME[5:7])])
    assert [row["bits"] for row in answers[0][1]] == expected[5:7]

    icbm = made_runs.made_run(tmp_path / "icbm", made_runs.digits(), concepts=21)
    pack_run(icbm, tmp_path / "icbm.packed")
    given = contents(10)
    found = open_packed(tmp_path / "icbm.packed").predict_images([*given, b"text"], strict=False, bits=True)
    pixels, _ = icbm.preprocessor().read_each(given)
    assert found["bits"].tolist() == [*last_steps(icbm.model(), icbm.preprocessor().normalise(pixels)), None]
    with pytest.raises(PackedError, match=r"one row of bits for each input, got \[\d+, \d+\] of them"):
        open_packed(image_file).predict_images(given, bits=True)


def test_a_mistake_of_the_server_is_not_told(
    image_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker, given = predictor(image_file, monkeypatch), contents(2)
    whole = PackedRun.predict_images

    def failing(self: PackedRun, paths: Any, **options: Any) -> pd.DataFrame:
        if given[1] in paths:
            raise RuntimeError("a secret")
        return whole(self, paths, **options)

    monkeypatch.setattr(PackedRun, "predict_images", failing)
    (first, _), second = answers_of(worker, given)
    assert first == 200
    assert second == (500, "see the log of the server")


class Served:
    """`htaf serve` in a process of its own."""

    def __init__(self, file: Path, log: Path, *words: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        own = {"PATH": str(log.parent / "sockets"), "MAX_REQUEST_SIZE": str(LARGEST), "TIMEOUT": "30000"}
        surroundings = os.environ | {"HTAF_DATA": ""} | {f"MOSEC_{name}": value for name, value in own.items()}
        self.log = log
        with log.open("wb") as out:
            command = [sys.executable, "-m", "htaf", "serve", str(file), "--port", str(self.port), *words]
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=surroundings)

    def wait(self) -> Served:
        end = time.monotonic() + 300
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if self.ask("GET", "/")[0] == 200:
                    return self
            except OSError:
                time.sleep(0.2)
        self.stop()
        pytest.fail(f"the server did not start:\n{self.log.read_text()[-3000:]}")

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def predict(self, body: bytes) -> tuple[int, bytes]:
        return self.ask("POST", "/predict", body)

    def stop(self) -> int:
        """The exit code after SIGTERM."""
        root = psutil.Process(self.process.pid)
        everything = [*root.children(recursive=True), root]
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=60)
        finally:
            for left in psutil.wait_procs(everything, timeout=10)[1]:
                left.kill()


@pytest.fixture(scope="module")
def servers(
    image_file: Path, table_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Served]]:
    """Of images, and of a table with two workers; they start beside each other."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("images", "table")}
    started = {
        "images": Served(image_file, folders["images"] / "log", "--batch-wait", "20"),
        "table": Served(table_file, folders["table"] / "log", "--workers", "2"),
    }
    try:
        yield {name: server.wait() for name, server in started.items()}
    finally:
        for server in started.values():
            if server.process.poll() is None:
                server.stop()


@pytest.mark.slow
def test_a_server_of_images_answers_as_predict(servers: dict[str, Served], image_file: Path) -> None:
    server, given = servers["images"], contents(96)
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(server.predict, given))
    assert {status for status, _ in found} == {200}
    same([json.loads(body) for _, body in found], open_packed(image_file).predict_images(given))
    told = server.ask("GET", "/metrics")[1].decode()
    sums = {
        key: float(re.search(rf'htaf_batch_size_{key}{{stage="Predict_1".*}} (\S+)', told)[1])
        for key in ("sum", "count")
    }  # pyright: ignore
    assert sums["sum"] > sums["count"], "some requests were answered together"


@pytest.mark.slow
def test_a_server_stops_on_sigterm(table_file: Path, tmp_path: Path) -> None:
    server = Served(table_file, tmp_path / "log").wait()
    assert server.predict(as_json(FRAME[:1]))[0] == 200
    children = psutil.Process(server.process.pid).children(recursive=True)
    assert len(children) >= 3  # mosec's own process, a worker, and the one that gives each request its status
    assert server.stop() == 0
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    assert not (tmp_path / "sockets").exists()
    with pytest.raises(ConnectionRefusedError):
        server.ask("GET", "/")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("net.packed", "expected a safetensors file"),
        ("none", "No such file"),
        ("own", "no preprocessing"),
    ],
)
def test_a_file_that_cannot_be_served_is_an_error(htaf: Any, tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "net.packed").write_bytes(b"no packed network")
    net, x = torch.nn.Sequential(torch.nn.Linear(3, 8), Heaviside(), torch.nn.Linear(8, 2)), torch.zeros(2, 3)
    save(pack(net, x), tmp_path / "own")
    code, _, err = htaf("serve", str(tmp_path / name))
    assert code != 0
    assert said in err
