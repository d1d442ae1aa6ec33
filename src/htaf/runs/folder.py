"""A run folder: what it holds, how it is written so that nothing is ever half there, and how it is read back.

    record.json         recipe, seed, data fingerprint, commit, versions, device, metrics, layer statistics
    model.safetensors   the weights; the smooth and the exact network share them
    smooth.safetensors  only where the exact network has weights of its own: those of the smooth one
    preprocessing.json  what turns raw rows into the network's inputs, and outputs into predictions
    metrics.csv         one row an epoch         loss.png   the same as a picture
    report.html         of a table: figures and pictures of the run, see htaf.report; report.json has the figures
    checkpoints/        only while the training runs

Reading a run needs torch, pandas and scikit-learn, never lightning.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pandas as pd
import safetensors.torch
import torch
from torch import nn

from htaf import _files, convert
from htaf._errors import HtafError, first_line
from htaf._files import LOCK, expect_folder, hold, parse_json, regular, sealed, to_json, write_atomic
from htaf.contract import StepFactory, is_outside
from htaf.data.images import ImagePreprocessor
from htaf.data.preprocess import Preprocessor
from htaf.data.reading import DataError, Frame
from htaf.models.build import KINDS, Method, activation, at_most, build
from htaf.runs.predictions import of_images, of_rows

if TYPE_CHECKING:
    from htaf.data.parts import Data
    from htaf.runs.data import PartName, RunPart

FORMAT = 1
RECORD, MODEL, SMOOTH, PREPROCESSING, METRICS, PLOT = (
    "record.json",
    "model.safetensors",
    "smooth.safetensors",
    "preprocessing.json",
    "metrics.csv",
    "loss.png",
)
CHECKPOINTS = "checkpoints"
# what a run is of no use without; SMOOTH where the record has its hash
HASHED = {MODEL: "model_sha256", PREPROCESSING: "preprocessing_sha256", SMOOTH: "smooth_sha256"}


class RunError(HtafError):
    """A run folder that cannot be used as asked."""


def content_hash(value: Any) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of the JSON text."""
    return hashlib.sha256(to_json(value).encode()).hexdigest()[:16]


def environment() -> dict[str, Any]:
    """Versions, machine and commit, as they stand in every record."""
    packages = ("htaf", "torch", "numpy", "scikit-learn", "pandas", "lightning")
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "versions": versions,
        "commit": _commit(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
    }


def short_commit(commit: str | None) -> str:
    """The first 12 digits of a commit, with `+changes` where it had some, for people; "unknown" for None."""
    return "unknown" if commit is None else re.sub(r"^([0-9a-f]{12})[0-9a-f]+", r"\1", commit)


def _commit() -> str | None:
    """The commit of the source tree that is running, with `+changes` when files differ from it; None outside one."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        head = subprocess.run(
            ["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True
        )
        dirty = subprocess.run(
            ["git", "-C", root, "status", "--porcelain", "-uno", "src"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("+changes" if dirty.stdout.strip() else "")


@dataclass(frozen=True)
class Run:
    """A finished run, read by `open_run`.

    step: the class of its activation where that is a step from outside htaf.
    held: the content of its files but the record, by name, where they are kept in memory instead of at `path`.
    """

    path: Path
    record: dict[str, Any]
    step: StepFactory | None = None
    held: Mapping[str, bytes] | None = field(default=None, repr=False)

    def model(self, *, exact: bool = True) -> nn.Module:
        """The network in eval mode: hardened by default, the smooth one with exact=False (or where no step exists).

        Raises:
            RunError: the weights are missing, damaged, or do not fit the network that the record describes.
        """
        name = SMOOTH if self.has_own_smooth and not exact else MODEL
        file, data = self.path / name, self._checked(name)
        try:
            state = safetensors.torch.load(data)
            known = at_most(sum(map(torch.numel, state.values())), len(state))
            with warnings.catch_warnings(), known, torch.random.fork_rng(devices=[]):  # first weights are drawn
                warnings.simplefilter("ignore")  # the training said what there is to say of the pair
                model = build(self.record["model"], self.step)
            model.load_state_dict(state)
            if self.takes_images:  # as it was trained: the same bits, and faster
                model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        except Exception as error:  # networks raise nearly everything on a description that makes no sense
            raise RunError(f"{file} cannot be read: {first_line(error)}") from None
        return (convert.harden(model) if exact and self.has_step else model).eval()

    @property
    def has_step(self) -> bool:
        """False for a real-valued network (method relu), which has no exact step."""
        return self.record["recipe"]["method"] != "relu"

    @property
    def has_own_smooth(self) -> bool:
        """Whether the smooth network has weights of its own: the exact one was changed after it was hardened."""
        return HASHED[SMOOTH] in self.record

    @property
    def takes_images(self) -> bool:
        """Whether the network reads images; otherwise it reads rows of a table."""
        return self.record["model"]["kind"] != "mlp"

    def preprocessor(self) -> Preprocessor | ImagePreprocessor:
        """The fitted preprocessing. Raises RunError when its file is missing or damaged."""
        data, model = self._checked(PREPROCESSING), self.record["model"]
        try:
            found = (ImagePreprocessor if self.takes_images else Preprocessor).from_json(parse_json(data))
        except (DataError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{self.path / PREPROCESSING} cannot be read: {first_line(error)}") from None
        if isinstance(found, Preprocessor):
            fitting = {"in_features": len(found.feature_names), "out_features": len(found.target.classes) or 1}
        else:
            fitting = {"in_channels": found.channels, "out_features": len(found.classes)}
        size = [*getattr(found, "size", ())]  # of a table none; not every network of images is built for one
        fits = all(model.get(name) == value for name, value in fitting.items())
        if not fits or (model.get("image_size") or size) != size:
            raise RunError(f"{self.path / PREPROCESSING} does not fit the network that {RECORD} describes")
        return found

    def verify(self) -> None:
        """See that weights and preprocessing are there as they were written.

        Raises:
            RunError: one is missing or damaged; the message says what to do.
        """
        for name, entry in HASHED.items():
            if name != SMOOTH or entry in self.record:
                self._checked(name)

    def _checked(self, name: str) -> bytes:
        file = self.path / name
        again = f"put back a copy of it, or delete {self.path} and run the same command again, which trains anew"
        try:
            data = regular(file).read_bytes() if self.held is None else self.held[name]
        except (FileNotFoundError, KeyError):
            raise RunError(f"{file} is missing, and the run is of no use without it: {again}") from None
        except OSError as error:
            raise RunError(f"{file} cannot be read: {error.strerror or error}") from None
        if _sha256(data) != self.record[HASHED[name]]:
            raise RunError(f"{file} is damaged: its SHA-256 differs from the one in {RECORD}; {again}")
        return data

    def in_memory(self) -> Run:
        """The same run with its files in memory, so that its folder may go; it can be pickled.

        Raises:
            RunError: a file is missing or damaged.
        """
        held = {name: self._checked(name) for name, entry in HASHED.items() if name != SMOOTH or entry in self.record}
        metrics = self.path / METRICS
        if self.held is not None:
            held |= self.held
        elif metrics.is_file():
            held[METRICS] = metrics.read_bytes()
        return Run(Path("in memory"), self.record, self.step, held)

    def save(self, path: str | Path) -> Run:
        """Write the run into a folder, as a training does: the record comes last.

        Args:
            path: a folder: new, empty, or of this same run, which is written again.

        Returns:
            The run in its new folder.

        Raises:
            RunError: the folder holds another run or other files, another process holds it, or a file of this run is
                missing or damaged. OSError: it cannot be written.
        """
        path = Path(path)
        expect_folder(path, "the run", RunError)
        before = read_record(path)
        if before is not None and before["key"] != self.record["key"]:
            raise RunError(f"expected a new or empty folder, {path} holds another run: choose another one")
        if before is None and path.exists() and any(not one.name.startswith(LOCK) for one in path.iterdir()):
            raise RunError(f"expected a new or empty folder, {path} holds other files: choose another one")
        held = self.in_memory().held or {}
        with locked(path, "another process writes"):
            for name, data in held.items():
                write_atomic(path / name, data)
            write_atomic(path / RECORD, sealed(self.record))
        return Run(path, self.record, self.step)

    def data(self, place: str | PathLike[str] | None = None, *, data_dir: str | PathLike[str] | None = None) -> Data:
        """The data that the run was trained on: a table, or images at the size of the training.

        Args:
            place: their name or path now; None: where they were at the training.
            data_dir: a folder with the public sets; None: that of the training.

        Returns:
            A `htaf.data.tabular.Table` or `htaf.data.images.Images`. Where they have changed, `part` refuses them.

        Raises:
            UnknownSourceError: no place is given, and the record has none. DataError: they cannot be read.
        """
        from htaf.runs.data import own_data

        return own_data(self, place, data_dir=data_dir)

    def other_data(self, place: str | PathLike[str], *, data_dir: str | PathLike[str] | None = None) -> Data:
        """Other labelled data for this run's networks: a table with the same columns, or images of the same classes.

        Args:
            place: a name or a path. data_dir: a folder with the public sets.

        Returns:
            As `data`; `part("all", ...)` takes them.

        Raises:
            DataError: they cannot be read.
        """
        from htaf.runs.data import other_data

        return other_data(self, place, data_dir=data_dir)

    def part(self, part: PartName = "test", data: Data | None = None) -> RunPart:
        """A part of the run's data as its networks take it: iterating gives (inputs, targets) in chunks.

        Args:
            part: "train", "validation" or "test", as the training split them; "all", of other data too.
            data: from `data` or `other_data`; None: `data()`, which reads them.

        Returns:
            A sized iterable: inputs float32, targets int64 [rows] or float32 [rows, 1]; see `htaf.runs.data.RunPart`.

        Raises:
            RunError: no such part, or a part of data that the run was not trained on.
            DataError: another kind of data or task, or classes that the run does not know.
        """
        from htaf.runs.data import part_of

        return part_of(self, self.data() if data is None else data, part)

    def evaluate(self, part: PartName = "test", data: Data | None = None) -> dict[str, Any]:
        """The metrics of the smooth and the exact network on a part, and the gap between them.

        Args, raises: as `part`.

        Returns:
            {"headline", "part", "rows", "smooth": {...}, "exact": {...} or None, "gap": exact minus smooth or None}; of
            a classification also "classes", figures of each, and "confusion", the matrix [true][predicted].
        """
        from htaf.runs.evaluation import evaluate

        return evaluate(self, self.data() if data is None else data, part=part)

    def predict(self, rows: Frame, *, exact: bool = True) -> pd.DataFrame:
        """Predictions for raw rows.

        Args:
            rows: the columns that the run was trained on, by name, any order; others are ignored.
            exact: use the exact step (the default) or the smooth network.

        Returns:
            For a regression one column `prediction` in the target's units; for a classification `prediction`
            (the class) and one probability column per class, `probability_<class>`. The index is that of rows.

        Raises:
            RunError: a damaged run. DataError: rows lack a column or hold values that cannot be used.
        """
        return self.predict_with_notes(rows, exact=exact)[0]

    def predict_with_notes(self, rows: Frame, *, exact: bool = True) -> tuple[pd.DataFrame, list[str]]:
        """As `predict`, with what was handled in these rows: unseen categories, missing values, ignored columns."""
        preprocessor = self.preprocessor()
        if isinstance(preprocessor, ImagePreprocessor):
            raise DataError(f"{self.path} was trained on images: expected image files, got a table")
        return of_rows(self.model(exact=exact), preprocessor, rows)

    def predict_images(
        self, paths: Sequence[str | Path | bytes], *, exact: bool = True, strict: bool = True
    ) -> pd.DataFrame:
        """Predictions for image files.

        Args:
            paths: image files of the kinds in `htaf.data.image_reading.FORMATS`, or bytes, the content of one; they
                are scaled as the training images were.
            exact: use the exact step (the default) or the smooth network.
            strict: raise for a file that cannot be read; else its row has only the reason.

        Returns:
            `prediction` (the class) and one probability column per class, `probability_<class>`, indexed by path
            (contents: "image 1", "image 2" and so on); with strict=False also `error`, None where all is well.

        Raises:
            RunError: a damaged run. DataError: a table's run, or, with `strict`, a file that is no image (it is named).
        """
        preprocessor = self.preprocessor()
        if not isinstance(preprocessor, ImagePreprocessor):
            raise DataError(f"{self.path} was trained on a table: expected its rows, got image files")
        return of_images(self.model(exact=exact), preprocessor, paths, strict=strict)


def open_run(path: str | Path, *, method: StepFactory | None = None) -> Run:
    """Read a finished run folder. Nothing that a file names is imported.

    Args:
        method: the class of the run's step where it was trained with one from outside htaf
            (`htaf train --method package.module:Class`), whose code no file may have run.

    Raises:
        RunError: no such folder, no run in it, a damaged record, another format, a training that has not finished, or
            weights or preprocessing that are missing or damaged; or `method` is missing, or not for this run.
    """
    path = Path(path)
    record = read_record(path)
    if record is None:
        raise RunError(f"expected a run folder with {RECORD}, found none at {path}")
    if record["status"] != "finished":
        raise RunError(f"{path} holds a training that has not finished: run the same train command again to resume it")
    return finished_run(path, record, method)


def finished_run(path: Path, record: dict[str, Any], method: StepFactory | None = None) -> Run:
    """The run of a record that says finished, once its files are seen to be whole; raises as `open_run`."""
    trained = record["recipe"]["method"]
    if is_outside(trained):
        try:
            activation(record["model"]["activation"], method)()
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path}: {first_line(error)}") from None
    elif method is not None:
        raise RunError(f"{path} was trained with method {trained}, which is htaf's own: leave method out")
    run = Run(path, record, method)
    run.verify()
    return run


def read_record(path: Path) -> dict[str, Any] | None:
    """The record of a folder, None when it holds none. Raises RunError when it is damaged or of another format."""
    file = path / RECORD
    record = _files.read_record(file, FORMAT, RunError)
    if record is None:
        return None
    missing = {"status", "key", "recipe", "seed", "data", "threads"} - record.keys()
    if record.get("status") == "finished":
        missing |= {"model", "metrics", "headline", "rows", "best_epoch", "notes"} - record.keys()
        missing |= {HASHED[MODEL], HASHED[PREPROCESSING]} - record.keys()
    if missing:
        raise RunError(f"{file} is damaged: it lacks {', '.join(sorted(missing))}")
    for name in ("recipe", "data", "model", "metrics", "rows"):
        if not isinstance(record.get(name, {}), dict):
            raise RunError(f"{file} is damaged: expected {name} to be an object, got {record[name]!r:.80}")
    if wrong := _wrong_entry(record):
        raise RunError(f"{file} is damaged: expected {wrong}")
    return record


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in kinds  # of JSON: true is no number


_TEXT, _WHOLE, _NUMBER = (_is(str), "a text"), (_is(int), "a whole number"), (_is(int, float), "a number")
_OBJECT = (_is(dict), "an object")
# entries by their path: what they may hold, and that in words
_ENTRIES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "status": (lambda v: v in ("running", "finished"), "running or finished"),
    "key": _TEXT,
    "seed": _WHOLE,
    "threads": (lambda v: type(v) is int and 1 <= v <= 1024, "a number in 1 to 1024"),
    "data.name": _TEXT,
    "recipe.method": (lambda v: v in get_args(Method) or is_outside(v), "a known method"),
}
_MODEL: dict[str, tuple[Callable[[Any], bool], str]] = {
    "model.kind": (lambda v: v in KINDS, f"one of {', '.join(KINDS)}"),
    "model.activation": (
        lambda v: v["method"] in get_args(Method) or (is_outside(v["method"]) and isinstance(v["kind"], str)),
        "an object with a known method",
    ),
}
_COUNT = (lambda v: type(v) in (int, float) and v >= 0, "a number")
_TEXTS = (lambda v: isinstance(v, list) and all(map(_is(str), v)), "a list of texts")
_IMAGES = dict.fromkeys(("recipe.train_images", "recipe.validation_images"), _COUNT)
_OPTIONAL: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("data.fingerprint", "data.task", "data.split", "recipe.family", "headline", "positive"), _TEXT),
    **dict.fromkeys((*HASHED.values(), "source.name", "source.data_dir", "source.target"), _TEXT),
    "source.task": (lambda v: v in ("regression", "classification"), "regression or classification"),
    "source.drop_empty": (_is(bool), "true or false"),
    "source.test": _TEXT,
    **dict.fromkeys(("source.exclude", "source.ids"), _TEXTS),
    **dict.fromkeys(("data.group", "data.time"), _TEXT),
    "data.columns": _WHOLE,
    "data.shares": (
        lambda v: isinstance(v, list) and len(v) in (2, 3) and all(type(s) is float and 0 < s < 1 for s in v),
        "two or three numbers between 0 and 1",
    ),
    "source.size": _WHOLE,
    **dict.fromkeys(("best_epoch", "epochs_run", "parameters"), _WHOLE),
    **dict.fromkeys(("seconds", "cpu_seconds"), _NUMBER),
    **dict.fromkeys(("source", "versions"), _OBJECT),
    "notes": _TEXTS,
    "rows": (lambda v: all(map(_is(int), v.values())), "whole numbers"),
}


def _wrong_entry(record: Mapping[str, Any]) -> str:
    """What was expected of an entry that is of another kind, and what came; "" where all are as they are written."""

    def value_of(path: str) -> Any:
        room, _, name = path.rpartition(".")
        inside = record.get(room) if room else record
        return inside.get(name) if isinstance(inside, Mapping) else None

    model = record.get("model")
    expected = _ENTRIES | {path: entry for path, entry in _OPTIONAL.items() if value_of(path) is not None}
    if model is not None:
        expected |= {path: _MODEL[path] for path in _MODEL if path == "model.kind" or "activation" in model}
        if record["status"] == "finished" and model.get("kind") != "mlp":
            expected |= _IMAGES
    if record.get("metrics"):
        expected["metrics"] = (lambda v: are_metrics(v, record.get("headline")), "figures by network and part")
    for path, (fits, kind) in expected.items():
        value = value_of(path)
        try:
            right = fits(value)
        except (TypeError, AttributeError, KeyError):  # another kind than the test is written for
            right = False
        if not right:
            return f"{path} to be {kind}, got {value!r:.80}"
    return ""


def are_metrics(metrics: Any, headline: Any) -> bool:
    """Whether they are {"smooth": {part: {headline: number or None, ...}}, "exact": the same or None}."""
    if not isinstance(metrics, dict) or not isinstance(headline, str) or not metrics.keys() >= {"smooth", "exact"}:
        return False
    parts: list[Any] = []
    for network in (metrics["smooth"], metrics["exact"] or {}):
        parts += network.values() if isinstance(network, dict) else [None]
    known = (int, float, type(None))
    return all(isinstance(part, dict) and headline in part and type(part[headline]) in known for part in parts)


@contextmanager
def locked(path: Path, busy: str, error: type[HtafError] = RunError) -> Iterator[None]:
    """Hold a folder while the block runs; raises `error` at once where another process holds it, see `_files.hold`."""
    with hold(path / LOCK, f"{busy} {path}", error):
        yield


@contextmanager
def claim(path: Path, identity: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Hold a folder for a run while the block runs, so that two processes never write one run.

    Gives the record that `start_run` gives. A new folder is emptied again where the block refuses before there is
    anything to go on from.

    Raises:
        RunError: as `start_run`, or another process holds the folder.
    """
    expect_folder(path, "the run", RunError)
    with locked(path, "another process trains in"):
        new = not (path / RECORD).exists()
        record = start_run(path, identity)
        try:
            yield record
        except HtafError:
            if new and not any((path / CHECKPOINTS).glob("*")):
                for left in path.iterdir():
                    if left.name != LOCK:
                        shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
            raise


def start_run(path: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Claim a folder for a run, or find it claimed by the same run; a finished one may have lost its files.

    Args:
        path: made when it does not exist.
        identity: what makes two runs the same: recipe, seed, data. Its hash is the key.

    Returns:
        The record: status "running" (new, or to be resumed) or "finished".

    Raises:
        RunError: the folder holds another run (the message names the difference) or files that are not a run.
    """
    key = content_hash(identity)
    record = check_folder(path, identity)
    if record is not None:
        return record
    for left in path.glob(f".{RECORD}.*"):
        left.unlink(missing_ok=True)
    record = {"format": FORMAT, "status": "running", "key": key, **json.loads(to_json(identity)), **environment()}
    write_atomic(path / RECORD, sealed(record))
    return record


def check_folder(path: Path, identity: Mapping[str, Any], *, part: bool = False) -> dict[str, Any] | None:
    """The record of the run that a folder holds, None where it can become one.

    Args:
        path: need not exist.
        identity: as `start_run` takes it. part: or only what is known of it; what it lacks may be anything.

    Raises:
        RunError: as `start_run`.
    """
    record = read_record(path)
    if record is not None:
        there, here = _flat({k: record.get(k) for k in identity}), _flat(json.loads(to_json(identity)))
        differing = sorted(k for k in (here if part else there | here) if there.get(k) != here.get(k))
        if differing if part else record["key"] != content_hash(identity):
            first = "; ".join(f"{k}: {shown(there.get(k))} there, {shown(here.get(k))} here" for k in differing[:4])
            further = f", or train it further with --continue-from {path}" if "recipe.epochs" in differing else ""
            raise RunError(f"{path} holds another run ({first}): choose another --out{further}")
        return record
    left = (LOCK, f".{RECORD}.")  # of a process that was killed while it claimed the folder
    if path.exists() and (not path.is_dir() or not all(p.name.startswith(left) for p in path.iterdir())):
        what = "holds other files" if path.is_dir() else "is a file"
        raise RunError(f"expected a new or empty folder, {path} {what}: choose another --out")
    return None


def finish_run(
    path: Path,
    record: dict[str, Any],
    model: nn.Module,
    preprocessor: Preprocessor | ImagePreprocessor,
    method: StepFactory | None = None,
    *,
    smooth: nn.Module | None = None,
) -> Run:
    """Write weights and preprocessing, then the record as finished: a reader sees all of it or an unfinished run.

    Args:
        model: whose weights the exact network has.
        smooth: the smooth network where its weights are others; None: they share them.
    """
    for name in (RECORD, MODEL, SMOOTH, PREPROCESSING, METRICS, PLOT):
        for left in path.glob(f".{name}.*"):  # temporary files of a process that was killed while it wrote
            left.unlink(missing_ok=True)
    files = {MODEL: _weights(model)} | ({} if smooth is None else {SMOOTH: _weights(smooth)})
    files[PREPROCESSING] = to_json(preprocessor.to_json()).encode()
    if smooth is None:
        (path / SMOOTH).unlink(missing_ok=True)
    for name, data in files.items():
        write_atomic(path / name, data)
    hashes = {HASHED[name]: _sha256(data) for name, data in files.items()}
    record = {**record, "status": "finished", **hashes}
    write_atomic(path / RECORD, sealed(record))
    return Run(path, record, method)


def _weights(model: nn.Module) -> bytes:
    """Its state dict as a file of tensors."""
    return safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()})


def shown(value: Any) -> str:
    """A value in a message; of a hash of 40 digits or more the first 12."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{28,}\b", r"\1...", repr(value))


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one level, "recipe.lr"; sequences as JSON gives them."""
    if isinstance(value, Mapping):
        return {k: v for name, part in value.items() for k, v in _flat(part, f"{prefix}{name}.").items()}
    return {prefix[:-1]: list(value) if isinstance(value, tuple) else value}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
