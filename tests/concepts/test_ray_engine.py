"""Extraction with Ray: the same bytes as one process, though a node dies; addresses and nodes that cannot be used."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from htaf import runs
from htaf.concepts import ray_engine
from htaf.concepts.codes import ConceptError
from htaf.concepts.extract import Block, Job, extract, write
from htaf.concepts.ray_engine import Actors, RayError, Size, check_alike, check_seen, connected
from htaf.data.image_sources import Decoded
from made_runs import digits, made_run

pytest.importorskip("ray", reason="the extra ray is not installed")

MEMORY = 100_000_000  # bytes of Ray's object store
ALIKE = {
    "htaf": "1",
    "source": "ab",
    "torch": "2",
    "numpy": "3",
    "pillow": "4",
    "pyarrow": "5",
    "ray": "6",
    "python": "7",
}


def answers(**other: Any) -> dict[str, dict[str, Any]]:
    seen = {"seen": [True, True], "writes": True}
    return {"a (10.0.0.1)": ALIKE | seen, "b (10.0.0.2)": ALIKE | seen | other}


def test_nodes_must_have_the_same() -> None:
    check_alike(answers())
    for what, said in (
        ("torch", r"the same torch on all nodes, got 2 on a \(10.0.0.1\); other on b \(10.0.0.2\)"),
        ("htaf", "the same htaf on all nodes"),
        ("source", "the same source of htaf on all nodes, got ab on a"),
        ("python", "the same python on all nodes"),
        ("ray", "the same ray on all nodes"),
    ):
        with pytest.raises(RayError, match=said):
            check_alike(answers(**{what: "other"}))


def test_nodes_must_see_the_files(tmp_path: Path) -> None:
    paths = ["/shared/run/model.safetensors", "/shared/codes/.seen-x"]
    check_seen(answers(), paths, tmp_path)
    for other, said in (
        ({"seen": [False, True]}, r"node b \(10.0.0.2\) does not see /shared/run/model.safetensors, .* shared disk"),
        ({"seen": [True, False]}, rf"node b \(10.0.0.2\) does not see the folder {tmp_path}, which"),
        ({"writes": False}, rf"node b \(10.0.0.2\) cannot write to {tmp_path}"),
    ):
        with pytest.raises(RayError, match=said):
            check_seen(answers(**other), paths, tmp_path)


@contextmanager
def listening() -> Iterator[int]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield held.getsockname()[1]


def test_addresses_that_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with listening() as port:
        closed = port
    for address, said in (
        (f"127.0.0.1:{closed}", rf"127\.0\.0\.1:{closed} does not answer \(Connection refused\): is Ray running there"),
        ("127.0.0.1", "expected auto or HOST:PORT .*, got '127.0.0.1'"),
        ("ray://127.0.0.1:10001", "expected auto or HOST:PORT"),
        ("127.0.0.1:70000", "expected auto or HOST:PORT"),
        ("no-such-host.invalid:6379", "no-such-host.invalid:6379 does not answer"),
    ):
        with pytest.raises(RayError, match=said), connected(address):
            pass
    monkeypatch.setattr(ray_engine, "ANSWERED", 0.5)
    with (
        listening() as port,
        pytest.raises(RayError, match="takes connections, but no Ray answers"),
        connected(f"127.0.0.1:{port}"),
    ):
        pass


def test_a_cluster_that_asks_for_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `ray health-check` ends where RAY_AUTH_MODE, or the file of the token, is missing."""

    def refused(asked: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        said = b"ray.exceptions.AuthenticationError: RPC error: InvalidAuthToken: Authentication token is missing"
        return subprocess.CompletedProcess(asked, 1, b"", said)

    monkeypatch.setattr(subprocess, "run", refused)
    with (
        listening() as port,
        pytest.raises(RayError, match=rf"127\.0\.0\.1:{port} asks for its token.*RAY_AUTH_MODE=token"),
        connected(f"127.0.0.1:{port}"),
    ):
        pass


def test_auto_where_no_ray_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import services

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(services, "find_gcs_addresses", set)
    with pytest.raises(RayError, match="expected this machine to be a node of a Ray cluster"), connected("auto"):
        pass


def test_another_version_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def refuses(**_: Any) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.50.0\n    Python: 3.11.7")

    monkeypatch.setattr(ray, "init", refuses)
    monkeypatch.setattr(ray_engine, "_reached", lambda address: address)
    with (
        pytest.raises(
            RayError, match=r"no Ray cluster can be used at a:1: Version mismatch: .* Ray: 2.50.0 Python: 3.11"
        ),
        connected("a:1"),
    ):
        pass


def test_a_node_that_joined_with_another_version(run: runs.Run, tmp_path: Path) -> None:
    here = ray_engine._has([], str(tmp_path))
    assert here["writes"]
    job = Job(run, tmp_path, {}, "concepts", (), False, True, 250, "cpu")
    block = Block(0, ())
    pixels = Decoded(("a",), np.zeros(1, np.int32), np.zeros(1, np.uint8), np.zeros((1, 1, 8, 8), np.uint8))
    parts = ray_engine._Parts(job, str(tmp_path), 1, here | {"torch": "0.1"})
    outcome = write(job, parts.network, block, pixels)
    assert outcome.error.startswith("expected the same torch on all nodes, got 0.1 on the first nodes; ")
    assert outcome.kind == "RayError"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options", [{"least": 0}, {"least": 3, "most": 2}, {"cpus": 0}, {"cpus": float("nan")}, {"gpus": -1}]
)
def test_actors_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(ConceptError, match=r"expected actors from 1 on|expected cpus > 0"):
        Actors(**options)


def sized(actors: Actors, device: Any = "auto", blocks: int = 100, **resources: float) -> Size:
    engine = ray_engine.RayEngine(actors, device, told=False)
    return engine.sized([{"Resources": resources}, {"Resources": resources}], blocks)


def test_how_many_actors() -> None:
    assert sized(Actors(), CPU=4) == Size(1, 8, 1, 0)
    assert sized(Actors(cpus=0.5), CPU=4) == Size(1, 16, 0.5, 0)
    assert sized(Actors(), CPU=4, blocks=3) == Size(1, 3, 1, 0)
    assert sized(Actors(2, 4), CPU=4) == Size(2, 4, 1, 0)
    assert sized(Actors(), CPU=16, GPU=2) == Size(1, 8, 4, 0.5)
    assert sized(Actors(gpus=1, cpus=2), CPU=4, GPU=2) == Size(1, 4, 2, 1)
    assert sized(Actors(), "cpu", CPU=4, GPU=2) == Size(1, 8, 1, 0)
    for actors, device, resources, said in (
        (Actors(cpus=16), "auto", {"CPU": 4}, "expected 16 CPUs in the cluster, got 8"),
        (Actors(gpus=1), "auto", {"CPU": 4}, "expected 1 GPU for an actor, the cluster has 0"),
        (Actors(), "cuda", {"CPU": 4}, "expected GPUs in the cluster for the device cuda"),
    ):
        with pytest.raises(RayError, match=said):
            sized(actors, device, **resources)


COUNT = 6000
BAD = (17, 3456)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    return made_run(tmp_path_factory.mktemp("runs") / "run", digits())


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two Parquet files of 3,000 images, and the same images as files."""
    folder, images = tmp_path_factory.mktemp("photos"), digits()
    (folder / "files").mkdir()
    for half in (0, 1):
        rows = list[bytes]()
        for number in range(half * COUNT // 2, (half + 1) * COUNT // 2):
            pixels = images.train.batch(torch.tensor([number % len(images.train)]))[0, 0].numpy()
            stream = BytesIO()
            Image.fromarray(np.roll(pixels, number // len(images.train), 1)).save(stream, "PNG")
            rows.append(b"text" if number in BAD else stream.getvalue())
            (folder / "files" / f"{number:05d}.png").write_bytes(rows[-1])
        pq.write_table(pa.table({"image": rows}), folder / f"{half}.parquet")
    return folder


def files(path: Path) -> dict[str, bytes]:
    return {str(f.relative_to(path)): f.read_bytes() for f in sorted(path.rglob("*")) if f.is_file()}


def settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of Ray for a busy machine; quiet."""
    settings = {
        "RAY_agent_register_timeout_ms": "300000",
        "RAY_worker_register_timeout_seconds": "300",
        "RAY_worker_niceness": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_BACKEND_LOG_LEVEL": "fatal",
        "OMP_NUM_THREADS": "1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes on this machine, each with one CPU."""
    from ray.cluster_utils import Cluster

    settle(monkeypatch)
    node = {"num_cpus": 1, "object_store_memory": MEMORY, "include_dashboard": False}
    for _ in range(5):  # Ray gives a node 30 seconds to start
        made = Cluster()
        try:
            made.add_node(**node)
            made.add_node(**node)
            break
        except Exception:
            made.shutdown()
    else:
        pytest.fail("Ray does not start here")
    try:
        yield made
    finally:
        made.shutdown()


@pytest.mark.slow
def test_a_node_that_dies_loses_its_blocks_alone(
    cluster: Any, run: runs.Run, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(photos / "0.parquet"), str(photos / "1.parquet")]
    torch.set_num_threads(1)
    extract(run, given, tmp_path / "one", part_images=1000)
    killed: list[float] = []

    def kill() -> None:
        while len(list((tmp_path / "ray").glob("parts/part-*"))) < 2:
            time.sleep(0.05)
        killed.append(len(list((tmp_path / "ray").glob("parts/part-*"))))
        worker = next(iter(cluster.worker_nodes))
        worker.kill_raylet(check_alive=False)

    killer = threading.Thread(target=kill, daemon=True)
    with connected(cluster.address, Actors(2, 2)) as engine:
        killer.start()
        found = extract(run, given, tmp_path / "ray", part_images=1000, engine=engine)
    assert killed
    assert killed[0] < 6, "the node was killed after the work"
    assert len(found) == COUNT - len(BAD)
    one, came = files(tmp_path / "one"), files(tmp_path / "ray")
    assert one == came
    said = capsys.readouterr().err
    assert "Ray: 2 nodes: " in said
    assert "(1 CPU); 2 to 2 actors with 1 CPU each; 6 parts to make" in said


@pytest.mark.slow
def test_the_command_with_a_cluster_of_its_own(
    run: runs.Run, photos: Path, tmp_path: Path, htaf: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"num_cpus": 2, "object_store_memory": MEMORY, "include_dashboard": False}
    monkeypatch.setattr(ray_engine, "OWN", own)
    settle(monkeypatch)
    monkeypatch.chdir(photos)
    words = ("concepts", "extract", str(run.path), "--engine", "ray", "--files", "files", "--part-images", "2000")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    code, out, said = htaf(*words, "--out", str(tmp_path / "a"), "--json")
    assert code == 3, said
    assert json.loads(out)["images"] == COUNT - len(BAD)
    assert "not read: files/00017.png (a file of another kind)" in said
    extract(run, ["files"], tmp_path / "one", part_images=2000)
    assert files(tmp_path / "one") == files(tmp_path / "a")
