"""One pass of a network with concepts over images, in this process or in several."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float16, Float32, Int64, UInt8
from torch import Tensor, nn

from htaf import convert
from htaf._errors import HtafError
from htaf.activations import BINARY_ABOVE, BINARY_BELOW
from htaf.concepts.codes import ConceptError
from htaf.data.image_reading import read_files
from htaf.data.images import FilePart, ImagePreprocessor, Part
from htaf.functional import pack_bits
from htaf.runs import Run
from htaf.runs.features import FeatureStore, key_of

Device = Literal["auto", "cpu", "cuda", "mps"]
Layer = Literal["concepts", "backbone"]
LARGEST, SMALLEST = np.float16(65504), np.float16(2**-24)


@dataclass(frozen=True)
class Piece:
    """Some images, in a form that another process can be given.

    ids: their names. pixels: uint8 [n, C, H, W], or the files to be read; or float32 [n, F], what a frozen backbone
    gives of them.
    """

    ids: tuple[str, ...]
    pixels: UInt8[np.ndarray, "n c h w"] | Float32[np.ndarray, "n f"] | tuple[Path, ...]

    def batch(self, rows: slice, preprocessor: ImagePreprocessor) -> UInt8[Tensor, "b c h w"] | Float32[Tensor, "b f"]:
        """uint8 [b, C, H, W], or float32 [b, F]."""
        if isinstance(self.pixels, tuple):
            return read_files(self.pixels[rows], preprocessor.channels, preprocessor.size)
        return torch.from_numpy(self.pixels[rows])


@dataclass(frozen=True, eq=False)
class ImageSequence:
    """Images to pass over, from several parts.

    segments: parts of a set with row numbers of each. ids: one name each, in order. kept: what a frozen backbone gives
    of each segment's part, where that is at hand.
    """

    segments: tuple[tuple[Part, Int64[Tensor, " _"]], ...]
    ids: Sequence[str]
    kept: tuple[FeatureStore, ...] = ()

    def piece(self, first: int, last: int) -> Piece:
        """Images first to last - 1; those in files are not read yet."""
        ends = list(accumulate(len(rows) for _, rows in self.segments))
        sources = self.kept or tuple(part for part, _ in self.segments)
        cut = [
            (part, rows[max(0, first - end + len(rows)) : max(0, last - end + len(rows))])
            for part, (_, rows), end in zip(sources, self.segments, ends, strict=True)
        ]
        cut = [(part, rows) for part, rows in cut if len(rows)]
        ids = tuple(self.ids[i] for i in range(first, last))
        files = tuple(
            part.folder / part.names[row] for part, rows in cut if isinstance(part, FilePart) for row in rows.tolist()
        )
        if len(files) == last - first:
            return Piece(ids, files)
        return Piece(ids, np.concatenate([part.batch(rows).numpy() for part, rows in cut]))


class ConceptNetwork:
    """The network of a run, as extraction uses it.

    Attributes:
        plain: whether it has no step, and so no bits.
        layer: "backbone": what the backbone gives is read, in place of bits and pre-activations.
        weight: float32 [K, C]. bias: float32 [K]. Of a backbone, which has no head of its own, both 0.

    Raises:
        ConceptError: a run without concepts.
    """

    def __init__(self, run: Run, device: Device = "auto", layer: Layer = "concepts") -> None:
        smooth: Any = run.model(exact=False)
        preprocessor = run.preprocessor()
        if not hasattr(smooth, "pre_activations") or not isinstance(preprocessor, ImagePreprocessor):
            family = run.record["recipe"].get("family", run.record["model"].get("kind"))
            raise ConceptError(
                f"expected a run with concepts, as `htaf train icbm` makes it, got one of family {family} at {run.path}"
            )
        self.preprocessor, self.plain = preprocessor, not run.has_step
        self.layer: Layer = layer
        self.device = choose_device(device)
        self.smooth: Any = smooth.to(self.device).eval()
        self.exact: Any = None
        if not self.plain:
            if getattr(smooth.act, "bipolar", False):
                raise ConceptError(f"expected concepts of 0 and 1, {run.path} has -1 and 1")
            hard = convert.harden(smooth, share=True)
            if run.has_own_smooth:
                hard = run.model().to(self.device)
            if run.has_own_smooth or {site.path for site in convert.conversion(hard).replaced} != {"act"}:
                self.exact = hard.eval()  # its weights differ or its backbone has steps: a pass of its own
        self.head: Any = (self.smooth if self.exact is None else self.exact).head  # which reads the bits

    def kept(self, run: Run, segments: Sequence[tuple[Part, Tensor]]) -> tuple[FeatureStore, ...]:
        """What the frozen backbone of a run gives of parts of a set; empty where not all of it is at hand."""
        if self.exact is not None or not run.record["model"].get("freeze"):
            return ()
        found: list[FeatureStore] = []
        for part, rows in segments:
            key = key_of(self.smooth, run.record["model"], self.preprocessor, part, part.fingerprint())
            store = FeatureStore.kept(key, rows)
            if store is None:
                return ()
            found.append(store)
        return tuple(found)

    @property
    def weight(self) -> Float32[np.ndarray, "classes concepts"]:
        if self.layer == "backbone":
            size = (2, self.preprocessor.channels, *self.preprocessor.size)
            with torch.no_grad():
                features = self.smooth.features(torch.zeros(size, device=self.device)).shape[1]
            return np.zeros((len(self.head.weight), features), np.float32)
        return self.head.weight.detach().float().cpu().numpy()

    @property
    def bias(self) -> Float32[np.ndarray, " classes"]:
        head: nn.Linear = self.head
        if head.bias is None or self.layer == "backbone":
            return np.zeros(len(head.weight), np.float32)
        return head.bias.detach().float().cpu().numpy()

    def __call__(self, piece: Piece, batch: int, kept: Sequence[str]) -> dict[str, np.ndarray]:
        """The arrays of `htaf.concepts.store` for a piece; the next batch is read while one is computed.

        kept: of "features" and "margins".
        """
        starts = range(0, len(piece.ids), batch)
        found: list[dict[str, np.ndarray]] = []
        with ThreadPoolExecutor(1) as reader:

            def ask(start: int):
                return reader.submit(piece.batch, slice(start, start + batch), self.preprocessor)

            coming = ask(0)
            for start in starts:
                pixels = coming.result()
                if start + batch < len(piece.ids):
                    coming = ask(start + batch)
                found.append(self._batch(pixels, piece.ids[start : start + batch], kept))
        return {name: np.concatenate([arrays[name] for arrays in found]) for name in found[0]}

    @torch.no_grad()
    def _batch(self, pixels: Tensor, ids: Sequence[str], kept: Sequence[str]) -> dict[str, np.ndarray]:
        x = pixels.to(self.device)
        if x.ndim == 4:
            x = self.preprocessor.normalise(x)
        # a GPU's shorter mantissas would turn bits near the threshold
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            if self.layer == "backbone":
                return self._of_backbone(x, ids)
            before: Tensor = self.smooth.pre_activations(x)
            deciding: Tensor = before if self.exact is None else self.exact.pre_activations(x)
        if (bad := (before.isnan() | deciding.isnan()).any(1)).any():
            raise ConceptError(
                f"expected numbers as pre-activations, got NaN for the image {ids[int(bad.int().argmax())]}"
            )
        after: Tensor = self.smooth.act(before)
        arrays = {"smooth": self.smooth.head(after).argmax(1)}
        if not self.plain:
            arrays["exact"] = self.head((deciding >= 0).to(after.dtype)).argmax(1)
            arrays["saturated"] = ((after > BINARY_ABOVE) | (after < BINARY_BELOW)).sum(1)
        made = {name: values.to(torch.int32).cpu().numpy() for name, values in arrays.items()}
        if not self.plain:
            made["codes"] = pack_bits(deciding.float().cpu()).numpy()
        values = deciding.float().cpu().numpy() if kept else np.empty(0, np.float32)
        forms = {"features": lambda: values, "margins": lambda: as_margins(values)}
        return made | {name: forms[name]() for name in kept}

    def _of_backbone(self, x: Tensor, ids: Sequence[str]) -> dict[str, np.ndarray]:
        """What the backbone of the network that gives the bits makes of a batch, and what the smooth one predicts."""

        def of(net: Any) -> Tensor:
            return x if x.ndim == 2 else net.features(x)

        features = of(self.smooth if self.exact is None else self.exact)
        if (bad := features.isnan().any(1)).any():
            raise ConceptError(f"expected numbers as features, got NaN for the image {ids[int(bad.int().argmax())]}")
        net, own = self.smooth, features if self.exact is None else of(self.smooth)
        logits = net.head(net.act(net.norm(net.projection(own))))
        return {
            "smooth": logits.argmax(1).to(torch.int32).cpu().numpy(),
            "features": features.float().cpu().numpy(),
        }


def as_margins(values: Float32[np.ndarray, "n concepts"]) -> Float16[np.ndarray, "n concepts"]:
    """Pre-activations as float16 that are >= 0 where the bit is 1 and only there: large ones are cut."""
    margins = values.clip(-LARGEST, LARGEST).astype(np.float16)
    margins[(values < 0) & (margins == 0)] = -SMALLEST
    return margins


def choose_device(device: Device) -> torch.device:
    """auto: a GPU where there is one.

    Raises:
        ConceptError: a device that is not there.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return torch.device(next(name for name, found in there.items() if found))
    if not there[device]:
        raise ConceptError(
            f"expected a device of this machine ({', '.join(k for k, v in there.items() if v)}), got {device}"
        )
    return torch.device(device)


Job = tuple[int, Callable[[], Piece]]  # a chunk's number, and what makes its piece


def in_order(
    network: ConceptNetwork, jobs: Sequence[Job], batch: int, kept: Sequence[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(chunk, arrays) for each job, in this process."""
    for chunk, piece in jobs:
        yield chunk, network(piece(), batch, kept)


def in_processes(
    run: Run,
    jobs: Sequence[Job],
    batch: int,
    kept: Sequence[str],
    device: Device,
    workers: int,
    layer: Layer = "concepts",
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(chunk, arrays) as they come from worker processes. One chunk is under way in each, so memory is bounded.

    A worker lives as long as its pipe: it ends with this process, however that ends.

    Raises:
        ConceptError: a worker ended, for want of memory for example. Errors of the work itself come as they are.
    """
    context, waiting = get_context("spawn"), list(jobs)[::-1]
    workers = min(workers, len(waiting))
    threads = max(1, torch.get_num_threads() // workers)
    processes, pipes = [], []
    try:
        for _ in range(workers):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there, run, batch, kept, device, threads, layer), daemon=True)
            process.start()
            there.close()
            processes.append(process)
            pipes.append(here)
        for pipe in pipes:
            _send(pipe, waiting)
        left = len(jobs)
        while left:
            for pipe in connection.wait(pipes):
                assert isinstance(pipe, connection.Connection)
                try:
                    chunk, result = pipe.recv()
                except (EOFError, ConnectionError):
                    raise ConceptError(
                        "a worker process ended, perhaps for lack of memory: give the same command again to continue; "
                        "htaf concepts extract also takes fewer --workers and a smaller --batch"
                    ) from None
                if isinstance(result, BaseException):
                    raise result
                left -= 1
                if waiting:
                    _send(pipe, waiting)
                else:
                    pipes.remove(pipe)
                    pipe.close()
                yield chunk, result
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _send(pipe: connection.Connection, waiting: list[Job]) -> None:
    chunk, piece = waiting.pop()
    with suppress(ConnectionError):  # the worker has ended: receiving says so
        pipe.send((chunk, piece()))


def _work(
    pipe: connection.Connection, run: Run, batch: int, kept: Sequence[str], device: Device, threads: int, layer: Layer
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers
    torch.set_num_threads(threads)
    network = None
    while True:
        try:
            chunk, piece = pipe.recv()
        except (EOFError, ConnectionError):
            return
        try:
            network = network or ConceptNetwork(run, device, layer)
            result: Any = network(piece, batch, kept)
        except (HtafError, OSError) as error:
            result = error
        except Exception as error:
            result = RuntimeError(f"{type(error).__name__} in a worker process: {error}")
        try:
            pipe.send((chunk, result))
        except ConnectionError:
            return
