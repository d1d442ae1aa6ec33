"""Files of every kind that htaf reads, changed at random: each is refused with a message or used; none runs code.

    python tests/stress/mutations.py --count 100000 --seed 0 --json results/stress/mutations.json

A case is a number: it chooses a kind, a file of it and a change (of bytes, or one that knows JSON, headers, digests).
Cases run in child processes, so that one that ends its process is seen and named; `--only NUMBER` repeats one. What
fails a case: any error but htaf's own, a signal, more than 20 s of a processor, more than 1 GiB, a canary that was
touched or opened, a program that was started, a connection, a file written elsewhere.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import hashlib
import io
import json
import mmap
import os
import pickle
import platform
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pandas as pd
import safetensors.torch
import torch

from htaf import _files
from htaf._errors import HtafError
from htaf._files import SEAL

SECONDS, BYTES = 20, 1 << 30
LIBRARIES = ("htaf", "torch", "numpy", "pyarrow", "safetensors", "pillow", "timm", "transformers", "pandas")
Files = dict[str, bytes]
Seal = Callable[[Files], None]


@dataclass(frozen=True)
class Kind:
    """Files that are read together: how they are read, and how their digests are made to fit again.

    allowed: errors beside htaf's own that the reader's documentation names.
    """

    files: Files
    read: Callable[[Path], object]
    weight: int
    seal: Seal | None = None
    allowed: tuple[type[BaseException], ...] = ()
    targets: tuple[str, ...] = ()  # of `files`; none: all


@dataclass
class Place:
    """Where the children work: `work` for the files, `traps` for what nobody may touch."""

    root: Path
    traps: Path = field(init=False)
    work: Path = field(init=False)

    def __post_init__(self) -> None:
        self.traps, self.work = self.root / "canary", self.root / "work"
        self.traps.mkdir()
        self.work.mkdir()

    @property
    def ran(self) -> Path:
        """There once code of a file has run."""
        return self.traps / "ran"


class Canary:
    """Its pickle makes a file when something runs what a pickle says."""

    def __init__(self, file: Path) -> None:
        self.file = str(file)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.file,)


# ---- what is read ----


def run_files(folder: Path) -> Files:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def seal_run(files: Files) -> None:
    edit(files, "record.json", lambda record: record.update(
        model_sha256=digest(files.get("model.safetensors", b"")),
        preprocessing_sha256=digest(files.get("preprocessing.json", b"")),
    ))  # fmt: skip


def seal_codes(files: Files) -> None:
    def footer(file: bytes) -> bytes:
        return file[len(file) - 8 - int.from_bytes(file[-8:-4], "little") :]

    edit(files, "concepts.json", lambda record: record.update(
        head=digest(files.get("head.safetensors", b"")),
        parts=[{**one, "footer": digest(footer(files.get(f"parts/{one['file']}", b"")))} for one in record["parts"]],
    ))  # fmt: skip


def seal_packed(files: Files) -> None:
    data = files.get("net.packed", b"")
    with contextlib.suppress(Exception):
        end = 8 + int.from_bytes(data[:8], "little")
        header, body = json.loads(data[8:end]), data[end:]
        header["__metadata__"][SEAL] = _files._seal_of_tensors(header, [body])
        text = json.dumps(header).encode()
        files["net.packed"] = len(text).to_bytes(8, "little") + text + body


def edit(files: Files, name: str, change: Callable[[Any], object]) -> None:
    """Change the values of a JSON file, if they can still be changed."""
    with contextlib.suppress(Exception):
        value = json.loads(files[name])
        change(value)
        value.pop(SEAL, None)
        files[name] = json.dumps(value).encode()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


ROWS = pd.DataFrame({"a": np.linspace(0, 10, 24), "b": [1.0, 5.0, 2.0] * 8, "kind": ["x", "y", "z", "x"] * 6})


def made_table_run(folder: Path) -> None:
    from htaf import runs
    from htaf.data.preprocess import Preprocessor
    from htaf.models.build import build

    fitted = Preprocessor.fit(ROWS, np.arange(24) % 3, task="classification", target_name="t", classes=("a", "b", "c"))
    description = {"kind": "mlp", "in_features": 5, "out_features": 3, "hidden": [6], "batch_norm": True}
    description |= {"activation": {"method": "htaf", "alpha0": 2.0, "alpha1": 11.0}}
    data = {"name": "made", "fingerprint": "f" * 16, "task": "classification", "split": "random"}
    recipe = {"method": "htaf", "lr": 0.1, "hidden": [6], "family": "mlp"}
    record = runs.start_run(folder, {"recipe": recipe, "seed": 0, "data": data})
    figures = {part: {"auroc": 0.5, "accuracy": 0.5} for part in ("validation", "test")}
    record |= {"model": description, "metrics": {"smooth": figures, "exact": figures}, "headline": "accuracy"}
    record |= {"rows": {"train": 16}, "best_epoch": 0, "notes": [], "source": {"name": "made.csv", "data_dir": None}}
    runs.finish_run(folder, record, build(description).eval(), fitted)


def read_table_run(folder: Path) -> None:
    from htaf.runs import open_run

    run = open_run(folder)
    run.predict(ROWS, exact=run.has_step)
    printed(run.record)


def made_image_run(folder: Path, backbone: dict[str, Any], size: int) -> None:
    from htaf import runs
    from htaf.data.image_preprocess import ImagePreprocessor
    from htaf.models.build import build

    description = {"kind": "icbm", "in_channels": 3, "image_size": [size, size], "out_features": 3, "concepts": 9}
    description |= {"backbone": backbone, "norm": None, "bottleneck": "implicit", "freeze": False}
    description |= {"activation": {"method": "htaf", "alpha0": 2.0, "alpha1": 11.0}}
    data = {"name": "made", "fingerprint": "f" * 16, "task": "classification", "split": "official"}
    recipe = {"method": "htaf", "family": "icbm", "train_images": 0, "validation_images": 0.1}
    record = runs.start_run(folder, {"recipe": recipe, "seed": 0, "data": data})
    record |= {"model": description, "metrics": {}, "headline": "accuracy", "rows": {}, "best_epoch": 0, "notes": []}
    fitted = ImagePreprocessor((0.5,) * 3, (0.2,) * 3, (size, size), 3, ("a", "b", "c"))
    runs.finish_run(folder, record, build(description).eval(), fitted)


def read_image_run(folder: Path) -> None:
    from htaf.runs import open_run

    run = open_run(folder)
    model, preprocessor = run.model(exact=run.has_step), run.preprocessor()
    if run.takes_images and max(preprocessor.size) <= 64:  # pyright: ignore[reportAttributeAccessIssue]
        from htaf.runs.predictions import forward

        pixels = torch.zeros(1, preprocessor.channels, *preprocessor.size, dtype=torch.uint8)  # pyright: ignore
        with contextlib.suppress(ValueError, RuntimeError):  # of another size or number of channels than its network
            forward(model, preprocessor.normalise(pixels))  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
    printed(run.record)


def read_unfinished(folder: Path) -> None:
    from htaf.runs import read_record
    from htaf.training.callbacks import last_checkpoint

    printed(read_record(folder))
    if (path := last_checkpoint(folder / "checkpoints")) is not None:
        torch.load(path, weights_only=True)


def made_checkpoint() -> bytes:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    history = {"rows": [{"epoch": 0}], "best_loss": 0.1, "best_epoch": 0, "stopped": False, "best": model.state_dict()}
    state = {"state_dict": model.state_dict(), "callbacks": {"History": history}, "loops": {}, "epoch": 1}
    state |= {"optimizer_states": [optimizer.state_dict()], "lr_schedulers": [], "global_step": 3}
    return saved(state)


def saved(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def printed(value: Any) -> None:
    """What is read can be told: a surrogate, NaN or a loop in it could not."""
    from htaf.runs import to_json

    to_json(value).encode()


def made_packed(run: Path, file: Path) -> None:
    from htaf import packed
    from htaf.runs import open_run
    from htaf.runs.packed import run_extra

    opened = open_run(run)
    inputs = torch.from_numpy(opened.preprocessor().transform(ROWS))  # pyright: ignore[reportAttributeAccessIssue]
    extra = run_extra(images=False, preprocessing=opened.preprocessor().to_json(), about={"key": "k"})
    packed.save(packed.pack(opened.model(), inputs), file, extra)


def read_packed(folder: Path) -> None:
    from htaf.runs.packed import open_packed

    found = open_packed(folder / "net.packed")
    str(found.model.report)
    printed(found.about)
    if not found.takes_images:
        found.predict(ROWS)


def made_codes_folder(folder: Path) -> None:
    from htaf.concepts.writing import write_codes
    from made_pages import made_codes

    codes = made_codes(24, 11, 3, names=("ash", "birch", "cedar"))
    codes = dataclasses.replace(codes, ids=[f"bilder/ä{i}.png" for i in range(24)])
    settings = {"run": "r", "parts": ["train"], "thresholds": None}
    info = {"run": "r", "method": "htaf", "model": {"kind": "icbm"}, "notes": ["a note"]}
    write_codes(folder, codes, settings, features=np.zeros((24, 11), np.float32), info=info)


def read_codes(folder: Path) -> None:
    from htaf.concepts.codes import PARTS, codes_key
    from htaf.concepts.counts import class_counts
    from htaf.concepts.store import open_codes, open_features

    codes = open_codes(folder)
    ids = list(codes.ids)
    assert codes.ids.index(ids[-1]) < len(codes)
    codes.unpack()
    codes.logits()
    codes_key(codes)
    printed(codes.info)
    for name in PARTS:
        if len(codes.rows(name)):
            class_counts(codes.part(name))
    if "features" in codes.info["columns"]:
        open_features(folder)


NAMES: list[dict[str, Any]] = [
    {"concept": 3, "name": "smooth bark", "verified": True, "reason": "", "held_out": 0.93, "p_value": 0.01,
     "agreement": 0.9, "source": "model", "label_1": "smooth", "label_0": "rough", "justification": "as birches",
     "group_a": 2, "group_b": 1, "settings": "0123456789abcdef", "model": "m", "rounds_detail": [{"name": "bark"}]},
    {"concept": 4, "name": "=large leaf", "verified": False, "reason": "held-out 0.61 < 0.75", "held_out": 0.61,
     "p_value": 0.2, "agreement": 0.7, "source": "attributes"},
    {"concept": 5, "name": None, "reason": "no classes", "source": "model"},
]  # fmt: skip


def read_name_file(file: Path) -> None:
    from htaf.concepts.naming.files import read_names, write_names

    names = read_names(file, 11, codes="abcdefabcdef")
    again = file.with_suffix(".again.json")
    write_names(names, again)
    assert (
        read_names(again, 11)
        == [{key: value for key, value in entry.items() if key not in ("codes", "seal")} for entry in names]
        or names
    )
    again.unlink()


MESSAGES: Any = [{"role": "user", "content": "name this"}]


def asker(cache: Path) -> Any:
    from htaf.llm.client import ServerClient

    return ServerClient("m", base_url="http://127.0.0.1:9/v1", api_key="", cache=cache, calls=0)


def made_replies() -> Files:
    with asker(Path()) as client:
        key = client._key(MESSAGES)
    reply = '{"concept": "bark", "label_1": "a", "label_0": "b", "justification": "c"}'
    return {f"{key}.json": json.dumps({"model": "m", "reply": reply}).encode()}


def read_replies(folder: Path) -> None:
    from htaf.concepts.naming.prompts import NameReply
    from htaf.llm.chat import MalformedReply, validated

    with asker(folder) as client:
        kept = client._kept(client._key(MESSAGES))
    with contextlib.suppress(MalformedReply):  # what cannot be read counts as nothing
        validated(kept, NameReply)


def write_page(folder: Path) -> None:
    from htaf.explorer.build import build_page
    from htaf.explorer.shown import Heading, Shown
    from made_pages import made_codes

    shown, heading = Shown(images=8), Heading("Trees")
    build_page(made_codes(24, 9, 3), folder, shown=shown, seconds=0.0, heading=heading, names=NAMES[:2])


def read_page(folder: Path) -> None:
    from htaf.explorer.folder import head_of

    head_of(folder)
    write_page(folder)


def read_weights_file(folder: Path) -> None:
    from htaf.models.backbone_weights import load_backbone

    for name in ("w.safetensors", "w.pt"):
        if (folder / name).exists():
            load_backbone(torch.nn.Sequential(torch.nn.Linear(4, 3)), folder / name)


def read_tables(folder: Path) -> None:
    from htaf.data.table_files import read_frame

    for name in ("t.csv", "t.parquet"):
        if (folder / name).exists():
            read_frame(folder / name)


def read_pictures(folder: Path) -> None:
    from htaf.data.image_reading import decode, look

    for file in sorted(folder.glob("p.*")):
        if not (problem := look(file).problem):
            decode(file, 3, (16, 16))
        problem.encode()


def made_kinds(root: Path, only: set[str] | None = None) -> dict[str, Kind]:
    """Everything that is read, made once."""
    from htaf.concepts.naming.files import write_names

    made: dict[str, Callable[[Path], Kind]] = {}

    def kind(function: Callable[[Path], Kind]) -> None:
        name = function.__name__.replace("_", " ")
        if only is None or name in only:
            made[name] = function

    @kind
    def run_of_a_table(at: Path) -> Kind:
        made_table_run(at)
        return Kind(run_files(at), read_table_run, 18, seal_run)

    @kind
    def run_of_images(at: Path) -> Kind:
        made_image_run(at, {"kind": "wide_resnet", "depth": 10, "width": 1, "dropout": 0.0}, 8)
        return Kind(run_files(at), read_image_run, 6, seal_run)

    @kind
    def run_with_timm(at: Path) -> Kind:
        made_image_run(at, {"kind": "timm", "name": "test_vit", "options": {"drop_rate": 0.1}}, 32)
        return Kind(run_files(at), read_image_run, 4, seal_run, targets=("record.json",))

    @kind
    def run_with_transformers(at: Path) -> Kind:
        from transformers import ViTConfig

        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        config = ViTConfig(**sizes, image_size=16, patch_size=8).to_dict()  # pyright: ignore[reportArgumentType]
        made_image_run(at, {"kind": "transformers", "config": config}, 16)
        return Kind(run_files(at), read_image_run, 3, seal_run, targets=("record.json",))

    @kind
    def unfinished_run(at: Path) -> Kind:
        made_table_run(at)
        record = json.loads((at / "record.json").read_text()) | {"status": "running"}
        names = ("epoch-000000.ckpt", "epoch-000001.ckpt")
        files = {f"checkpoints/{name}": made_checkpoint() for name in names}
        return Kind({"record.json": json.dumps(record).encode(), **files}, read_unfinished, 8)

    @kind
    def packed(at: Path) -> Kind:
        made_table_run(at / "run")
        made_packed(at / "run", at / "net.packed")
        return Kind({"net.packed": (at / "net.packed").read_bytes()}, read_packed, 15, seal_packed)

    @kind
    def codes(at: Path) -> Kind:
        made_codes_folder(at)
        return Kind(run_files(at), read_codes, 20, seal_codes)

    @kind
    def names(at: Path) -> Kind:
        at.mkdir()
        write_names(NAMES, at / "n.json", codes="abcdefabcdef")
        return Kind({"n.json": (at / "n.json").read_bytes()}, lambda folder: read_name_file(folder / "n.json"), 6)

    @kind
    def name_tables(at: Path) -> Kind:
        at.mkdir()
        write_names(NAMES, at / "n.csv", codes="abcdefabcdef")
        return Kind({"n.csv": (at / "n.csv").read_bytes()}, lambda folder: read_name_file(folder / "n.csv"), 4)

    @kind
    def replies(at: Path) -> Kind:
        return Kind(made_replies(), read_replies, 6)

    @kind
    def pages(at: Path) -> Kind:
        write_page(at)
        keep = {name: data for name, data in run_files(at).items() if name.startswith(("data/", ".htaf"))}
        return Kind(keep, read_page, 4)

    @kind
    def weights(at: Path) -> Kind:
        state = torch.nn.Sequential(torch.nn.Linear(4, 3)).state_dict()
        files = {"w.safetensors": safetensors.torch.save(state), "w.pt": saved({"state_dict": state})}
        return Kind(files, read_weights_file, 6, allowed=(ValueError,))

    @kind
    def tables(at: Path) -> Kind:
        stream = io.BytesIO()
        ROWS.to_parquet(stream)
        return Kind({"t.csv": ROWS.to_csv(index=False).encode(), "t.parquet": stream.getvalue()}, read_tables, 4)

    @kind
    def pictures(at: Path) -> Kind:
        from PIL import Image

        files, image = {}, Image.fromarray(np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3))
        for suffix in ("png", "jpg", "webp", "gif", "tiff", "bmp", "ppm"):
            stream = io.BytesIO()
            image.save(stream, "JPEG" if suffix == "jpg" else suffix)
            files[f"p.{suffix}"] = stream.getvalue()
        return Kind(files, read_pictures, 4)

    return {name: function(root / name.replace(" ", "-")) for name, function in made.items()}


# ---- what is changed ----


class Mutator:
    """Changes to files, drawn by one case's generator."""

    def __init__(self, rng: random.Random, place: Place) -> None:
        self.rng, self.place = rng, place

    def files(self, kind: Kind) -> tuple[Files, list[str]]:
        """The files of a kind after changes to one or two of them, and which have changed; None: it is gone."""
        rng, files = self.rng, dict(kind.files)
        names = list(kind.targets or kind.files)
        for name in rng.sample(names, min(len(names), rng.choice((1, 1, 1, 1, 2)))):
            if rng.random() < 0.01:
                del files[name]
                continue
            files[name] = self.change(name, files[name], list(kind.files.values()))
        if kind.seal is not None and rng.random() < 0.7:
            kind.seal(files)
        changed = [name for name in kind.files if files.get(name) != kind.files[name]]
        return files, changed

    def change(self, name: str, data: bytes, others: list[bytes]) -> bytes:
        rng, aware = self.rng, None
        if name.endswith((".json", ".js", ".jsonl")):
            aware = self.json_text
        elif name.endswith((".safetensors", ".packed")):
            aware = self.safetensors
        elif name.endswith(".npy"):
            aware = self.npy
        elif name.endswith((".toml", ".csv", ".txt")):
            aware = self.text
        elif name.endswith((".ckpt", ".pt")):
            aware = self.pickled
        if aware is not None and rng.random() < 0.7:
            try:
                return aware(data)
            except (ValueError, TypeError, KeyError, IndexError, RecursionError):
                pass
        for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
            data = self.bytes(data, others)
        return data

    def bytes(self, data: bytes, others: list[bytes]) -> bytes:
        rng, found = self.rng, bytearray(data)
        if not found:
            return rng.randbytes(rng.randrange(20))
        at = rng.randrange(len(found))
        match rng.randrange(10):
            case 0 | 1 | 2:
                found[at] ^= 1 << rng.randrange(8)
            case 3:
                found[at] = rng.randrange(256)
            case 4 | 5:
                size = rng.choice((1, 2, 4, 8))
                value = rng.choice((0, 1, -1, 2 ** (8 * size - 1), 2 ** (8 * size - 1) - 1, 1 << (8 * size - 4), 255))
                found[at : at + size] = (value % 2 ** (8 * size)).to_bytes(size, rng.choice(("little", "big")))
            case 6:
                del found[at:]
            case 7:
                del found[at : at + rng.randrange(1, 64)]
            case 8:
                other = rng.choice(others) or b"\0"
                start = rng.randrange(len(other))
                found[at : at + rng.choice((0, 8, 64))] = other[start : start + rng.randrange(1, 256)]
            case _:
                found[at:at] = rng.choice((b"\0" * 64, b"\xff" * 8, rng.randbytes(16), found[: rng.randrange(1, 99)]))
        return bytes(found)

    def text(self, data: bytes) -> bytes:
        """Words and lines exchanged for others."""
        rng, lines = self.rng, data.decode().split("\n")
        at = rng.randrange(len(lines))
        hostile = self.value(0)
        shown = hostile if isinstance(hostile, str) else json.dumps(hostile)
        match rng.randrange(5):
            case 0:
                lines.insert(at, shown)
            case 1:
                lines[at] = lines[at].replace(rng.choice(lines[at].split() or ["x"]), shown, 1)
            case 2:
                lines.insert(at, rng.choice(lines))
            case 3:
                left, sign, _ = lines[at].partition("=")
                lines[at] = (
                    left + sign + rng.choice((shown, json.dumps(shown), "[" * rng.choice((3, 2000)), "1979-05-27"))
                )
            case _:
                del lines[at]
        return "\n".join(lines).encode("utf-8", "surrogatepass")

    def json_text(self, data: bytes) -> bytes:
        """A value of the JSON exchanged, deleted, added; a page's script keeps its call around the values."""
        text = data.decode()
        start, end = 0, len(text)
        if text.startswith("htafData("):
            start, end = text.index(", ") + 2, text.rindex(")")
        lines = (
            text[start:end].split("\n") if "\n{" in text[start:end] and not text.startswith("[") else [text[start:end]]
        )
        at = self.rng.randrange(len(lines))
        value = json.loads(lines[at] or "null")
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            value = self.changed(value)
        lines[at] = json.dumps(value)
        if self.rng.random() < 0.05:  # what only a text can hold
            word = self.rng.choice(("NaN", "1e999", "-Infinity", "[" * 100_000, "9" * 5000, '"\\ud800"', "01", "'a'"))
            lines[at] = lines[at].replace(self.rng.choice(("null", "0", "1", "true", "{", '"')), word, 1)
        return (text[:start] + "\n".join(lines) + text[end:]).encode("utf-8", "surrogatepass")

    def changed(self, value: Any) -> Any:
        """A copy with one place of it changed."""
        rng, places = self.rng, list(walk(value))
        if not places:
            return self.value(0)
        parent, key = rng.choice(places)
        match rng.randrange(8):
            case 0 | 1 | 2:
                parent[key] = self.value(parent[key])
            case 3:
                if isinstance(parent, dict):
                    del parent[key]
                else:
                    parent.pop(key)
            case 4 | 5:
                if isinstance(parent, dict):
                    parent[self.key()] = self.value(0)
                else:
                    parent.insert(key, self.value(parent[key]))
            case 6:
                other, place = rng.choice(places)
                parent[key] = json.loads(json.dumps(other[place]))
            case _:
                parent[key] = [parent[key]] if rng.random() < 0.5 else {self.key(): parent[key]}
        return value

    def key(self) -> str:
        names = (
            "checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir", "auto_map",
            "options", "trust_remote_code", "attn_implementation", "_attn_implementation", "model_args", "backbone",
            "_name_or_path", "config", "name", "kind", "family", "__class__", "__proto__", "", "files", "features_only",
            "model_type", "architecture", "quantization_config", "backbone_config", "use_pretrained_backbone", "\ud800",
            "a" * 5000,
        )  # fmt: skip
        return self.rng.choice(names)

    def value(self, before: Any) -> Any:
        """Something that a reader may not expect; near `before` now and then."""
        rng, traps = self.rng, self.place.traps
        if isinstance(before, bool):
            near: list[Any] = [not before, int(before), None]
        elif isinstance(before, (int, float)):
            near = [
                before + 1,
                before - 1,
                -before,
                before * 2,
                before * 1000 + 1,
                str(before),
                before / 3,
                float(before),
            ]
        elif isinstance(before, str):
            near = [before + "x", before[:-1], before.upper(), [before], "", rng.choice(before or "x"), before * 50]
        else:
            near = [before, [before, before]]
        if rng.random() < 0.3:
            return rng.choice(near)
        kinds = ("mlp", "icbm", "sew_resnet", "bireal", "resnet", "wide_resnet", "timm", "transformers", "timm_wrapper")
        code = f"__import__('os').mkdir({str(self.place.ran)!r})"
        deep: Any = []
        for _ in range(rng.choice((5, 90, 400))):
            deep = [deep]
        return rng.choice([
            None, True, False, 0, 1, -1, 2, 7, 0.5, -0.0, 1e300, 1e-300, 255, 256, 2**31 - 1, 2**31, 2**32, 2**53 + 1,
            2**63 - 1, -(2**63), 2**64, 10**25, "", "x", "0", "\0", "\ud800", "\u202eabc", "a" * 10_000, [], {}, [0],
            {"a": 1}, [[]], [None],
            deep, code, f"${{{code}}}", "../../../etc/passwd", str(traps / "evil.pt"), str(traps), f"file://{traps}/evil.pt",
            {"checkpoint_path": str(traps / "evil.pt")}, {"file": str(traps / "evil.pt"), "custom_load": True},
            {"kind": "timm", "name": "test_vit", "options": {"checkpoint_path": str(traps / "evil.pt")}},
            {"kind": "timm", "name": "test_vit", "options": {"pretrained_cfg": {"file": str(traps / "evil.pt")}}},
            {"kind": "timm", "name": f"local-dir:{traps}"}, {"kind": "timm", "name": f"hf-hub:{traps}"},
            {"kind": "transformers", "config": {"model_type": "timm_wrapper", "architecture": "test_vit",
                                                "model_args": {"checkpoint_path": str(traps / "evil.pt")}}},
            {"kind": "transformers", "config": {"model_type": "vit", "attn_implementation": "evil/kernel"}},
            {"kind": "transformers", "config": str(traps)}, f"transformers:{traps}", f"local-dir:{traps}",
            {"AutoModel": f"{traps}--modeling.Evil"}, rng.choice(kinds), "</script><script>alert(1)</script>",
        ])  # fmt: skip

    def safetensors(self, data: bytes) -> bytes:
        rng, size = self.rng, int.from_bytes(data[:8], "little")
        header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
        inside = header.get("__metadata__", {})
        packed = [name for name in ("graph", "extra", "report") if name in inside]
        if packed and rng.random() < 0.7:
            name = rng.choice(packed)
            inside[name] = json.dumps(self.changed(json.loads(inside[name])))
        elif rng.random() < 0.5:
            name = rng.choice([n for n in header if n != "__metadata__"])
            header[name] = self.changed(header[name])
            if rng.random() < 0.3:
                header[name]["dtype"] = rng.choice(("F64", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "X"))
        elif rng.random() < 0.7 and body:
            found = bytearray(body)
            for _ in range(rng.choice((1, 4, 40))):
                found[rng.randrange(len(found))] = rng.choice((0, 255, 127, 128, rng.randrange(256)))
            body = bytes(found)
        else:
            header = self.changed(header)
        text = json.dumps(header).encode("utf-8", "surrogatepass")
        length = len(text) if rng.random() < 0.95 else rng.choice((0, 2**63, 2**32, len(text) + 1, 2**64 - 1))
        return length.to_bytes(8, "little") + text + body

    def npy(self, data: bytes) -> bytes:
        rng, size = self.rng, int.from_bytes(data[8:10], "little")
        text = data[10 : 10 + size].decode("latin-1")
        dtypes = ("'|O'", "'<f8'", "'>i4'", "'<U4'", "'|V9'", "[('a', '<i4')]", "'<M8[s]'", "5", "'|u1'", "'<i4'")
        shapes = (
            "()",
            "(-1,)",
            "(1,)",
            "(2**62, 4)",
            f"({2**62}, 4)",
            f"({2**40},)",
            "(24,)",
            "[24]",
            "(24.0,)",
            "None",
        )
        match rng.randrange(4):
            case 0:
                text = text.replace(text.split("'descr': ")[1].split(",")[0], rng.choice(dtypes), 1)
            case 1:
                text = text[: text.index("'shape': ") + 9] + rng.choice(shapes) + ", }"
            case 2:
                text = rng.choice(
                    ("(" * 300, "{'descr':", "__import__('os').mkdir('x')", "{}", "\x00", "1 if", "{**{}}")
                )
            case _:
                text = text.replace("False", rng.choice(("True", "1", "None", "'x'")))
        header = text.strip().ljust(117).encode("latin-1", "replace") + b"\n"
        version = rng.choice((b"\1\0", b"\1\0", b"\1\0", b"\2\0", b"\3\0", b"\x09\0"))
        length = len(header).to_bytes(2 if version == b"\1\0" else 4, "little")
        return data[:6] + version + length + header + data[10 + size :]

    def pickled(self, data: bytes) -> bytes:
        """Another archive of PyTorch, a bare pickle, or the same archive with other values."""
        evil = Canary(self.place.ran)
        match self.rng.randrange(5):
            case 0:
                return pickle.dumps(evil, protocol=self.rng.choice((0, 2, 5)))
            case 1:
                return saved({"state_dict": {"0.weight": evil}, "epoch": 1})
            case 2:
                stream = io.BytesIO()
                torch.save(evil, stream, _use_new_zipfile_serialization=False)
                return stream.getvalue()
            case 3:
                content = torch.load(io.BytesIO(data), weights_only=True)
                return saved(self.changed(content))
            case _:
                raise ValueError  # bytes


def walk(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of nested lists and dicts: what holds it, and where."""
    items = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, inside in items:
        yield value, key
        yield from walk(inside)


# ---- running ----


class TooLong(BaseException):
    """A case that takes more than SECONDS of a processor."""


class Watch:
    """What a case did that no reader may do."""

    def __init__(self, place: Place) -> None:
        self.place, self.seen = place, []
        self.work, self.traps = str(place.work), str(place.traps)
        self.on = False
        sys.addaudithook(self)

    def __call__(self, event: str, given: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in (
            "os.system",
            "subprocess.Popen",
            "os.exec",
            "os.posix_spawn",
            "socket.connect",
            "pickle.find_class",
        ):
            self.seen.append(f"{event} {given!r:.200}")
        elif event in ("open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "shutil.rmtree"):
            path = os.fsdecode(given[0]) if isinstance(given[0], (str, bytes, os.PathLike)) else ""
            writes = event != "open" or (isinstance(given[1], str) and set(given[1]) & set("wax+"))
            if path.startswith(self.traps) or (writes and path and not path.startswith((self.work, "/dev/"))):
                self.seen.append(f"{event} {path}")


def run_case(number: int, seed: int, kinds: dict[str, Kind], place: Place, watch: Watch) -> tuple[str, str, str]:
    """The kind, the outcome ("used", "refused" or "failed") and what failed."""
    rng = random.Random(f"{seed}/{number}")
    names = list(kinds)
    name = rng.choices(names, [kinds[n].weight for n in names])[0]
    kind, folder = kinds[name], place.work / name.replace(" ", "-")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        files, changed = Mutator(rng, place).files(kind)
    for file in changed:
        (folder / file).unlink(missing_ok=True)
        if file in files:
            (folder / file).write_bytes(files[file])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome, why = "used", ""
    watch.seen.clear()
    watch.on = True
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            kind.read(folder)
    except (HtafError, *kind.allowed) as error:
        outcome = "refused"
        try:
            str(error).encode()
        except UnicodeEncodeError:
            outcome, why = "failed", f"a message that cannot be printed: {error!r:.200}"
    except BaseException as error:  # whatever else: that is what is looked for
        if isinstance(error, KeyboardInterrupt):
            raise
        outcome, why = "failed", f"{type(error).__name__} at {where(error)}: {error!s:.200}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        watch.on = False
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    if watch.seen:
        outcome, why = "failed", f"it reached out: {watch.seen[0]}"
    elif place.ran.exists():
        outcome, why = "failed", "it ran code"
    elif grown > BYTES:
        outcome, why = "failed", f"it took {grown / 2**30:.1f} GiB"
    shutil.rmtree(place.ran, ignore_errors=True)
    if name == "pages":  # writes beside reading
        shutil.rmtree(folder)
    restore(folder, kind, None if name == "pages" else changed)
    return name, outcome, why


def restore(folder: Path, kind: Kind, changed: list[str] | None) -> None:
    """The files as they were made."""
    for file in kind.files if changed is None else changed:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(kind.files[file])


def where(error: BaseException) -> str:
    """The last line of htaf's own that the error went through."""
    own = [f for f in traceback.extract_tb(error.__traceback__) if "/htaf/" in f.filename] or [
        *traceback.extract_tb(error.__traceback__)
    ]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "?"


def child(numbers: range, seed: int, kinds: dict[str, Kind], place: Place, at: Any, send: Any) -> None:
    """Run cases one after the other; `at` holds the number of the one that runs."""

    def late(*_: Any) -> None:
        raise TooLong

    signal.signal(signal.SIGPROF, late)
    with contextlib.suppress(ValueError, OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 4 * BYTES,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)
    place.work.mkdir(exist_ok=True)
    for name, kind in kinds.items():
        restore(place.work / name.replace(" ", "-"), kind, None)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            kind.read(place.work / name.replace(" ", "-"))  # as they are, they must be read; and all is imported
    watch = Watch(place)
    for number in numbers:
        at[:8] = number.to_bytes(8, "little")
        send.write(json.dumps([number, *run_case(number, seed, kinds, place, watch)]) + "\n")


def stress(
    count: int,
    seed: int,
    *,
    workers: int = 2,
    kinds: set[str] | None = None,
    start: int = 0,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Run the cases `start` to `start + count - 1`. Returns the counts by kind and outcome, and what failed."""
    began, made_in = time.monotonic(), None
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    failures: list[dict[str, Any]] = []
    fast = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="htaf-", dir=fast if os.access(fast, os.W_OK) else None) as root:
        base = Path(root) / "base"
        base.mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = made_kinds(base, kinds)
        made_in = time.monotonic() - began
        todo: list[range] = [range(start + w, start + count, workers) for w in range(workers)]
        running: dict[int, list[Any]] = {}
        done = 0

        def begin(worker: int, numbers: range) -> None:
            place_root = Path(root) / f"worker-{worker}-{numbers.start}"
            place_root.mkdir()
            place = Place(place_root)
            (place.traps / "evil.pt").write_bytes(pickle.dumps(Canary(place.ran)))
            at = mmap.mmap(-1, 8)
            reading, writing = os.pipe()
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if not pid:
                code = 1
                try:
                    os.close(reading)
                    with os.fdopen(writing, "w", buffering=1) as send:  # a line a case: none is lost with the process
                        child(numbers, seed, made, place, at, send)
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            os.close(writing)
            running[pid] = [worker, at, reading, numbers, b""]

        def take(number: int, name: str, outcome: str, why: str) -> None:
            counts[name][outcome] += 1
            if outcome == "failed":
                failures.append({"case": number, "kind": name, "why": why})
                if len(failures) <= 50:
                    say(f"case {number} ({name}): {why}")

        try:
            for worker, numbers in enumerate(todo):
                begin(worker, numbers)
            shown = time.monotonic()
            while running:
                streams = {entry[2]: pid for pid, entry in running.items()}
                ready, _, _ = select.select(list(streams), [], [], 5.0)
                for stream in ready:
                    pid = streams[stream]
                    if chunk := os.read(stream, 1 << 16):
                        *lines, running[pid][4] = (running[pid][4] + chunk).split(b"\n")
                        for line in lines:
                            take(*json.loads(line))
                        done += len(lines)
                        continue
                    worker, at, _, numbers, _ = running.pop(pid)
                    _, status = os.waitpid(pid, 0)
                    os.close(stream)
                    if status:
                        last, ended = int.from_bytes(at[:8], "little"), os.waitstatus_to_exitcode(status)
                        said = f"signal {-ended}" if ended < 0 else f"exit {ended}"
                        take(last, kind_of(last, seed, made), "failed", f"the process ended: {said}")
                        done += 1
                        if last + workers < numbers.stop:
                            begin(worker, range(last + workers, numbers.stop, workers))
                if time.monotonic() - shown > 10:
                    shown = time.monotonic()
                    say(f"{done:,} of {count:,} cases, {len(failures)} failures, {shown - began:.0f} s")
        finally:
            for pid in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "count": count,
        "seed": seed,
        "cases": sum(sum(each.values()) for each in counts.values()),
        "kinds": {name: dict(sorted(each.items())) for name, each in sorted(counts.items())},
        "failures": failures,
        "seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(own.ru_utime + own.ru_stime, 1),
        "made_in": round(made_in, 1),
        "versions": {"python": platform.python_version()} | {name: metadata.version(name) for name in LIBRARIES},
    }


def kind_of(number: int, seed: int, kinds: dict[str, Kind]) -> str:
    names = list(kinds)
    return random.Random(f"{seed}/{number}").choices(names, [kinds[n].weight for n in names])[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kinds", nargs="*", help="of these alone")
    parser.add_argument("--only", type=int, help="the number of one case to repeat")
    words = parser.parse_args()
    start, count = (0, words.count) if words.only is None else (words.only, 1)
    workers = 1 if words.only is not None else words.workers
    found = stress(
        count, words.seed, workers=workers, kinds=set(words.kinds) if words.kinds else None, start=start,
        say=lambda text: print(text, flush=True),
    )  # fmt: skip
    for name, each in found["kinds"].items():
        print(f"{name}: {', '.join(f'{number:,} {outcome}' for outcome, number in each.items())}")
    print(f"{found['cases']:,} cases, {len(found['failures'])} failures, {found['seconds']} s")
    if words.json is not None:
        words.json.parent.mkdir(parents=True, exist_ok=True)
        words.json.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if found["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
