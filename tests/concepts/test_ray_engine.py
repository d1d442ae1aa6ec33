"""Extraction with Ray: the same bytes as one process, though a node dies; addresses and nodes that cannot be used."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from htaf.concepts import ray_engine
from htaf.concepts.extract import Block, Job, extract
from htaf.concepts.ray_engine import RayError, connected, unfit, versions
from htaf.training import runs
from made_runs import digits, made_run

pytest.importorskip("ray", reason="the extra ray is not installed")

MEMORY = 100_000_000  # bytes of Ray's object store


def test_nodes_must_have_the_same_and_see_the_files(tmp_path: Path) -> None:
    own, there, gone = versions(), str(tmp_path), str(tmp_path / "run" / "model.safetensors")
    assert own["torch"] == torch.__version__
    assert unfit(own, own, [there]) == ""
    for what in own:
        assert f"got {what} {own[what]} instead of other: install" in unfit(own | {what: "other"}, own, [there])
    assert unfit(own, own, [there, gone]).startswith(f"this node does not see {gone}: ")
    assert f"see the folder {tmp_path}: " in unfit(own, own, [str(tmp_path / ".seen-x")])


def test_another_version_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def refuses(**_: Any) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.50.0\n    Python: 3.11.7")

    monkeypatch.setattr(ray, "init", refuses)
    with (
        pytest.raises(
            RayError, match=r"no Ray cluster can be used at a:1: Version mismatch: .* Ray: 2.50.0 Python: 3.11"
        ),
        connected("a:1"),
    ):
        pass


def test_a_node_that_may_not_make_parts(run: runs.Run, tmp_path: Path) -> None:
    job = Job(run, tmp_path, {}, "concepts", (), 250, "cpu")
    with pytest.raises(RayError, match=rf"torch {re.escape(torch.__version__)} instead of 0\.1"):
        ray_engine.made((job, str(tmp_path), versions() | {"torch": "0.1"}, []), Block(3, ()))
    assert list(tmp_path.iterdir()) == []


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
    with connected(cluster.address) as engine:
        killer.start()
        found = extract(run, given, tmp_path / "ray", part_images=1000, engine=engine, device="cpu")
    assert killed
    assert killed[0] < 6, "the node was killed after the work"
    assert len(found) == COUNT - len(BAD)
    one, came = files(tmp_path / "one"), files(tmp_path / "ray")
    assert one == came
    said = capsys.readouterr().err
    assert "Ray: 2 nodes, 2 CPUs, 0 GPUs; 6 parts to make" in said


@pytest.mark.slow
def test_the_command_with_a_cluster_of_its_own(
    run: runs.Run, photos: Path, tmp_path: Path, htaf: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"num_cpus": 2, "object_store_memory": MEMORY, "include_dashboard": False}
    monkeypatch.setattr(ray_engine, "LOCAL", own)
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
