"""A run folder: its files, and its record, which is written first and last so that nothing is ever half there.

record.json         recipe, seed, data fingerprint, commit, versions, device, metrics, layer statistics
model.safetensors   the weights; the smooth and the exact network share them
smooth.safetensors  only where the exact network has weights of its own: those of the smooth one
preprocessing.json  what turns raw rows into the network's inputs, and outputs into predictions
metrics.csv         one row a validation
report.html         of a table: figures and pictures of the run, see htaf.tables.report; report.json has the figures
checkpoints/        only while the training runs
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

import torch

from htaf._ground import files as _files
from htaf._ground.errors import HtafError, option
from htaf._ground.files import LOCK, expect_folder, hold, sealed, to_json, write_atomic
from htaf._ground.names import Method, is_outside
from htaf.data.notes import from_record
from htaf.models.build import KINDS

FORMAT = 4  # of a record, and of what makes two runs the same
RECORD, MODEL, SMOOTH, PREPROCESSING, METRICS = (
    "record.json",
    "model.safetensors",
    "smooth.safetensors",
    "preprocessing.json",
    "metrics.csv",
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


@functools.cache
def _commit() -> str | None:
    """The commit of the source tree that is running, with `+changes` when files differ from it, as it was when first
    asked for; None outside one."""
    root = Path(__file__).resolve().parents[4]
    if not (root / ".git").exists():
        return None
    try:
        asked = (["rev-parse", "HEAD"], ["status", "--porcelain", "-uno", "src"])
        head, changed = (
            subprocess.run(["git", "-C", root, *one], capture_output=True, text=True, timeout=10, check=True).stdout
            for one in asked
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head.strip() + ("+changes" if changed.strip() else "")


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


def _are_notes(value: Any) -> bool:
    try:
        return isinstance(value, list) and isinstance(from_record(value), list)
    except ValueError:
        return False


_TEXTS = (lambda v: isinstance(v, list) and all(map(_is(str), v)), "a list of texts")
_IMAGES = dict.fromkeys(("recipe.train_images", "recipe.validation_images"), _COUNT)
_OPTIONAL: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("data.fingerprint", "data.task", "data.split", "recipe.family", "headline", "positive"), _TEXT),
    **dict.fromkeys((*HASHED.values(), "source.name", "source.data_dir", "source.target"), _TEXT),
    "source.task": (lambda v: v in ("regression", "classification"), "regression or classification"),
    "source.text_as_missing": (_is(bool), "true or false"),
    **dict.fromkeys(("source.exclude", "source.ids"), _TEXTS),
    **dict.fromkeys(("data.group", "data.time"), _TEXT),
    "data.shares": (
        lambda v: isinstance(v, list) and len(v) in (2, 3) and all(type(s) is float and 0 < s < 1 for s in v),
        "two or three numbers between 0 and 1",
    ),
    "source.size": _WHOLE,
    **dict.fromkeys(("best_epoch", "epochs_run", "parameters"), _WHOLE),
    **dict.fromkeys(("seconds", "cpu_seconds"), _NUMBER),
    **dict.fromkeys(("source", "versions"), _OBJECT),
    "notes": (_are_notes, "a list of texts and notes"),
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
        if record["status"] == "finished" and model.get("kind") != "mlp" and "in_channels" in model:
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
            raise RunError(f"{path} holds another run ({first}): choose another {option('--out', 'folder')}")
        return record
    left = (LOCK, f".{RECORD}.")  # of a process that was killed while it claimed the folder
    if path.exists() and (not path.is_dir() or not all(p.name.startswith(left) for p in path.iterdir())):
        what = "holds other files" if path.is_dir() else "is a file"
        raise RunError(f"expected a new or empty folder, {path} {what}: choose another {option('--out', 'folder')}")
    return None


def shown(value: Any) -> str:
    """A value in a message; of a hash of 40 digits or more the first 12."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{28,}\b", r"\1...", repr(value))


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one level, "recipe.lr"; sequences as JSON gives them."""
    if isinstance(value, Mapping):
        return {k: v for name, part in value.items() for k, v in _flat(part, f"{prefix}{name}.").items()}
    return {prefix[:-1]: list(value) if isinstance(value, tuple) else value}
