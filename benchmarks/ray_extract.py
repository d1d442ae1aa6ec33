"""Images a second of `htaf concepts extract --engine ray` on two nodes of this machine, over one process.

    python benchmarks/ray_extract.py [--images 100000] [--part-images 5000] [--rounds 3] [--json FILE]

CIFAR-10 (`HTAF_DATA`), as PNG files of 32 x 32 in Parquet shards, over and over up to so many images; an ICBM over
WRN-10-1 with 128 concepts, trained for one epoch on 1,000 of them. Each round takes three samples, in turned order
every other round: one process with as many threads as both nodes have CPUs; two nodes with half of them each; the
same, with the second node's raylet killed (SIGKILL) when half of the parts are there. `seconds` is all of it, `work`
without the start of Ray. `processor` is what all processes took while the work lasted, Ray's own among them: on a busy
machine it says more than the clock. The bytes of all samples are compared.
"""

from __future__ import annotations

import contextlib
import io
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")  # 15 where nothing is said
os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import measuring
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from ray.cluster_utils import Cluster

from htaf.concepts.extract import Block, Engine, Job, Outcome, extract, in_this_process
from htaf.concepts.ray_engine import connected
from htaf.data.image_sets import load
from htaf.data.images import Images
from htaf.training.families import ready_recipe
from htaf.training.fit import fit
from htaf.training.runs import Run

SHARD = 10_000
Sample = tuple[float, float, float]  # seconds of all, of the work, and of the processor while the work lasted
STORE = 200_000_000  # bytes of each node's object store


def write_shards(images: Images, count: int, folder: Path) -> list[str]:
    """Parquet files of PNG files, with labels."""
    made: list[bytes] = []
    labels = images.train.labels.tolist()
    for row in range(min(count, len(images.train))):
        stream = io.BytesIO()
        pixels = images.train.batch(torch.tensor([row]))[0].permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(stream, "PNG", compress_level=1)
        made.append(stream.getvalue())
    files: list[str] = []
    for first in range(0, count, SHARD):
        rows = [row % len(made) for row in range(first, min(count, first + SHARD))]
        table = pa.table({"image": [made[row] for row in rows], "label": [labels[row] for row in rows]})
        files.append(str(folder / f"{first // SHARD:05d}.parquet"))
        pq.write_table(table, files[-1], row_group_size=1000)
    return files


class Spent:
    """Seconds of the processor of this process and of all that it has started, those that have ended too."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}
        self._seconds: dict[int, float] = {}
        self._over = threading.Event()
        self._before = self._look()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _look(self) -> float:
        own = psutil.Process()
        self._known |= {one.pid: one for one in (own, *own.children(recursive=True)) if one.pid not in self._known}
        for pid, one in self._known.items():
            with contextlib.suppress(psutil.Error):
                times = one.cpu_times()
                self._seconds[pid] = times.user + times.system
        return sum(self._seconds.values())

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            self._look()

    def end(self) -> float:
        """The seconds since this was made."""
        self._over.set()
        self._watcher.join()
        return self._look() - self._before


class Timed:
    """An engine that notes the seconds of the work, and calls a function when half of the parts are there."""

    def __init__(self, engine: Engine, half: Any = None) -> None:
        self.engine, self.half = engine, half
        self.seconds = self.processor = 0.0

    def __call__(self, job: Job, blocks: Sequence[Block]) -> Iterator[Outcome]:
        start, spent = time.perf_counter(), Spent()
        if self.half is not None:
            threading.Thread(target=self._watch, args=(job.out, len(blocks) // 2), daemon=True).start()
        yield from self.engine(job, blocks)
        self.seconds, self.processor = time.perf_counter() - start, spent.end()

    def _watch(self, out: Path, parts: int) -> None:
        while len(list(out.glob("parts/part-*"))) < parts:
            time.sleep(0.02)
        self.half()


def content(out: Path) -> dict[str, bytes]:
    """All parts."""
    return {p.name: p.read_bytes() for p in sorted(out.glob("parts/*.parquet"))}


def one_process(run: Run, files: list[str], out: Path, size: int, cpus: int) -> Sample:
    start = time.perf_counter()
    torch.set_num_threads(cpus)
    engine = Timed(in_this_process)
    extract(run, files, out, part_images=size, engine=engine, device="cpu")
    return time.perf_counter() - start, engine.seconds, engine.processor


def two_nodes(run: Run, files: list[str], out: Path, size: int, cpus: int, *, kill: bool) -> Sample:
    start = time.perf_counter()
    node = {"num_cpus": cpus // 2, "object_store_memory": STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    second = cluster.add_node(num_cpus=cpus // 2, object_store_memory=STORE)
    try:
        with connected(cluster.address) as engine:
            timed = Timed(engine, (lambda: second.kill_raylet(check_alive=False)) if kill else None)
            extract(run, files, out, part_images=size, engine=timed, device="cpu")
    finally:
        cluster.shutdown()
    return time.perf_counter() - start, timed.seconds, timed.processor


def main() -> None:
    parser = measuring.parser(__doc__, rounds=3)
    parser.add_argument("--images", type=measuring.at_least_one, default=100_000, help="default: 100,000")
    parser.add_argument("--part-images", type=measuring.at_least_one, default=5000, help="default: 5,000")
    parser.add_argument("--cpus", type=measuring.at_least_one, default=2, help="of both nodes; default: 2")
    args = measuring.begin(parser, "concepts/test_extract.py", "concepts/test_ray_engine.py")
    images = load("cifar10")
    samples: dict[str, list[Sample]] = {"one process": [], "two nodes": [], "two nodes, one killed": []}
    loads: list[float] = []
    with tempfile.TemporaryDirectory() as held:
        folder = Path(held)
        recipe = ready_recipe("icbm", "small").replace(depth=10, concepts=128, epochs=1, train_images=1000)
        run = fit(recipe, images, folder / "run")
        files = write_shards(images, args.images, folder)
        expected: dict[str, bytes] = {}
        for turn in range(args.rounds):
            for name in list(samples)[:: 1 if turn % 2 == 0 else -1]:
                loads.append(round(os.getloadavg()[0], 1))
                out = folder / f"{turn} {name}"
                if name == "one process":
                    samples[name].append(one_process(run, files, out, args.part_images, args.cpus))
                else:
                    kill = name != "two nodes"
                    samples[name].append(two_nodes(run, files, out, args.part_images, args.cpus, kill=kill))
                came = content(out)
                expected = expected or came
                if different := sorted(k for k in expected.keys() | came.keys() if expected.get(k) != came.get(k)):
                    shown = ", ".join(different[:5])
                    raise SystemExit(f"{name}: {len(different)} files differ from those of the first sample: {shown}")
                whole, work, spent = samples[name][-1]
                print(
                    f"{name}: {whole:.1f} s, work {work:.1f} s, processor {spent:.1f} s, load {loads[-1]}", flush=True
                )
    rows: list[dict[str, Any]] = []
    base = samples["one process"]
    for name, found in samples.items():
        whole, work, spent = (statistics.median(values) for values in zip(*found, strict=True))
        ratio = statistics.median(one[1] / two[1] for two, one in zip(found, base, strict=True))
        clock, processor = (
            statistics.median(two[i] - one[i] for two, one in zip(found, base, strict=True)) / args.images * 1e6
            for i in (1, 2)
        )
        rows.append(
            {
                "engine": name,
                "images": args.images,
                "part_images": args.part_images,
                "cpus": args.cpus,
                "seconds": round(whole, 1),
                "work_seconds": round(work, 1),
                "images_a_second": round(args.images / work),
                "speed_over_one_process": round(ratio, 3),
                "processor": round(spent, 1),
                "overhead_us_an_image": round(clock, 1),
                "overhead_processor_us_an_image": round(processor, 1),
                "same_bytes": True,
                "load_before_each_sample": loads,
            }
        )
        print(
            f"{name}: {rows[-1]['images_a_second']:,} images a second, {ratio:.2f} times one process; processor "
            f"{spent:.1f} s, {processor:.0f} us an image more"
        )
    measuring.end(args, rows)


if __name__ == "__main__":
    main()
