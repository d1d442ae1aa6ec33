"""Bad inputs for every verb and for the Python API: each must end in one clear line, and leave everything as it was.

    .venv/bin/python tests/stress/bad_inputs.py --count 900 --seed 0 --json results/stress/bad_inputs.json

The inputs are the product of verbs, flags and bad values, and files made by hand: tables, images, records.
Each runs in a fork of this process, which has imported everything. It passes when there is no traceback, an exit code
that is not 0, a message that names the value or the file and says what was expected, nothing left behind, no file
changed, and time and memory within bounds. The exit code is 1 where one does not pass.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import inspect
import io
import json
import os
import pkgutil
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pandas as pd
import safetensors.torch
import torch
from PIL import Image

SECONDS, GIGABYTES = 30.0, 2.0  # that one input may take
SAYS = re.compile(
    r"expect|must|need|choose|give|cannot|invalid|require|unrecogni|no such|did you mean|lack|not exist|missing"
    r"|is not|outside|null|too long|does not fit|holds|does not read|is for|unknown|damaged|not found|none of|could not"
    r"|unexpected|in \{|than|leave",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Bad:
    """One bad input: words of the command, or a call; the message must hold one of `names`."""

    kind: str
    names: tuple[str, ...]
    words: tuple[str, ...] = ()
    call: Callable[[], Any] | None = None
    title: str = ""
    noted: bool = False  # exit code 0 with a note is what the documents say
    before: Callable[[Path], Any] | None = None  # makes the files of this input in its folder, the working folder

    def __str__(self) -> str:
        return self.title or "htaf " + " ".join(self.words)


@dataclass
class World:
    """What the inputs are given beside the bad part; nothing of it may change."""

    root: Path
    files: dict[str, Path] = field(default_factory=dict)

    def state(self) -> dict[str, tuple[int, int, int]]:
        """Of every file: size, time of the last change, inode."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            seen = path.lstat()
            found[str(path)] = (seen.st_size, 0 if path.is_dir() else seen.st_mtime_ns, seen.st_ino)
        return found

    def __getitem__(self, name: str) -> str:
        return str(self.files[name])


def made_world(root: Path) -> World:
    """Runs that nobody trained, codes, a packed file, names, a page, tables, images, attributes."""
    import made_clip
    import made_runs
    from htaf import packed, runs
    from htaf.concepts.codes import codes_key
    from htaf.concepts.extract import extract
    from htaf.concepts.naming.by_attributes import name_by_attributes
    from htaf.concepts.naming.files import write_names
    from htaf.data import tabular
    from htaf.data.attributes import load as load_attributes
    from htaf.data.preprocess import Preprocessor
    from htaf.language import Data, Training, fit
    from htaf.models.build import build
    from htaf.runs.packed import run_extra
    from htaf.training.problems import data_identity
    from made_language import TEXT, write_model

    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"a": rng.normal(size=90), "b": rng.integers(0, 50, 90), "kind": rng.choice([*"xyz"], 90)})
    rows["label"] = np.where(rows["a"] > 0, "yes", "no")
    rows["value"] = 3 * rows["a"] + rows["b"]
    rows.to_csv(root / "rows.csv", index=False)
    inputs = rows.drop(columns=["label", "value"])
    preprocessor = Preprocessor.fit(
        inputs, (rows["label"] == "yes").to_numpy(np.int64), task="classification", target_name="label",
        classes=("no", "yes"),
    )  # fmt: skip
    width = len(preprocessor.transform(inputs)[0])
    model = {"kind": "mlp", "in_features": width, "out_features": 2, "hidden": [6], "batch_norm": True}
    model |= {"activation": made_runs.HTAF}
    data = data_identity(tabular.load(root / "rows.csv", target="label"), "random")
    identity = {"recipe": {"method": "htaf", "family": "mlp"}, "seed": 0, "data": data}
    record = runs.start_run(root / "table-run", identity)
    metrics = {part: {"accuracy": 0.5} for part in ("validation", "test")}
    record |= {"model": model, "metrics": {"smooth": metrics, "exact": metrics}, "headline": "accuracy", "rows": {}}
    source = {"name": str(root / "rows.csv"), "data_dir": None, "target": "label", "task": None, "drop_empty": False}
    record |= {"best_epoch": 0, "notes": [], "source": source}
    runs.finish_run(root / "table-run", record, build(model).eval(), preprocessor)

    digits = made_runs.digits()
    run = made_runs.made_run(root / "run", digits)
    extract(made_runs.made_run(root / "plain", digits, made_runs.PLAIN), digits, root / "features")
    codes = extract(run, digits, root / "codes").codes()
    write_names(name_by_attributes(codes, load_attributes("digits")), root / "names.json", codes=codes_key(codes))
    network = run.model()
    known: Any = run.preprocessor()
    made = packed.pack(network, known.normalise(digits.train.batch(torch.arange(4))))
    packed.save(made, root / "net.packed", extra=run_extra(images=True, preprocessing=known.to_json(), about={}))
    for label in ("red", "blue"):
        (root / "photos" / label).mkdir(parents=True)
        for i in range(6):
            Image.fromarray(rng.integers(0, 255, (12, 10, 3), dtype=np.uint8)).save(
                root / "photos" / label / f"{i}.png"
            )
    table = pd.DataFrame({"class": [str(i) for i in range(10)], "round": [1, 0] * 5, "tall": [0, 0, 1, 1, 0] * 2})
    table.to_csv(root / "attributes.csv", index=False)
    (root / "empty.journal").touch()
    (root / "list.txt").write_text("round\ntall\n")
    made_clip.write_clip(root / "clip")
    (root / "key.txt").write_text("secret\n")
    (root / "empty").mkdir()
    (root / "nothing.bin").touch()
    (root / "broken-link").symlink_to(root / "gone")
    write_model(root / "llm")
    (root / "text.txt").write_text(TEXT)
    training = Training(steps=0)
    fit(str(root / "llm"), Data(str(root / "text.txt"), length=16, training=4), training, root / "llm-run", last_k=1)
    world = World(root)
    world.files = {path.name: path for path in root.iterdir()}
    return world


# ---- verbs x flags x bad values ----

TINY = ("--epochs", "1", "--checkpoint-seconds", "60")
IMAGES = (*TINY, "--train-images", "40", "--validation-images", "20")


def verbs(world: World) -> dict[str, tuple[str, ...]]:
    """Words with which a verb does its work, quickly, with its outputs in the working folder.

    A verb that needs no more than RUN and --out needs no row: see `words_for`.
    """
    from htaf.training.families import FAMILIES
    from smallest import SMALLEST

    w = world
    table = ("--data", w["rows.csv"], "--target", "label", "--out", "out", "--hidden", "4", *TINY)
    images = ("--data", "digits", "--out", "out", *IMAGES)
    return {
        "train tabular": table,
        **{f"train {FAMILIES[name].verb}": (*images, *row.flags()) for name, row in SMALLEST.items()},
        "train icbm": (*images, "--depth", "10", "--width", "1"),
        "train llm": (
            "--model",
            w["llm"],
            "--text",
            w["text.txt"],
            "--out",
            "out",
            "--length",
            "16",
            "--last-k",
            "1",
            "--steps",
            "1",
            "--training-blocks",
            "4",
            "--method",
            "ste",
        ),
        "generate": (w["llm-run"], "red cats", "--tokens", "3"),
        "predict": (w["table-run"], w["rows.csv"], "--out", "out.csv"),
        "explain": (w["table-run"], w["rows.csv"], "--out", "out.csv"),
        "paper list": (),
        "paper run": ("bounds", "--out", "out"),
        "paper report": ("--out", "."),
        "paper cost": ("bounds", "--speed", "1"),
        "demo": ("--out", "out"),
        "doctor": (),
        "pack": (w["run"], "--out", "out.packed"),
        "push": (w["table-run"], "nobody/net"),
        "export": (w["run"], "--to", "onnx", "--out", "out.onnx"),
        "verify": (w["net.packed"], w["run"]),
        "explore": (w["run"], "--codes", w["codes"], "--out", "out"),
        "concepts extract": (w["run"], "--out", "out"),
        "paper binarise": (w["features"], "--out", "out"),
        "paper labelfree": (
            *(w["run"], "--texts", w["list.txt"], "--clip", w["clip"], "--out", "out", "--steps", "1"),
            *("--similarity", "-0.999", "--clip-cutoff", "-0.999"),
        ),
        "paper leakage": (w["codes"], "--names", w["names.json"], "--attributes", w["attributes.csv"]),
        "paper bench": (w["codes"], "--features", w["features"], "--attributes", w["attributes.csv"], "--out", "out"),
        "concepts score": (w["codes"], "--out", "out"),
        "concepts sparse": (w["run"], "--codes", w["codes"], "--out", "out", "--nec", "2"),
        "concepts where": (w["run"], "--codes", w["codes"], "--out", "out"),
        "concepts find": (w["run"], *_sides(world), "--out", "out"),
        "concepts counterfactuals": (w["codes"], "--image", "0"),
        "concepts intervene": (w["codes"],),
        "concepts edit": (w["run"], "--off", "3:1", "--out", "out"),
        "concepts neighbours": (w["codes"], "--image", "0"),
        "concepts name": (w["codes"], "--attributes", w["attributes.csv"], "--out", "out.json"),
    }


def _sides(world: World) -> tuple[str, ...]:
    """Images with a concept and without."""
    photos = world.files["photos"]
    return ("--with", str(photos / "red"), "--without", str(photos / "blue"))


def words_for(world: World, verb: str, function: Callable[..., Any]) -> tuple[str, ...]:
    """The words of a verb that is in no row of `verbs`: a run of a table, and --out where it is needed."""
    known = {"run": (world["table-run"],), "out": ("--out", "out")}
    needed = [name for name, one in inspect.signature(function).parameters.items() if one.default is one.empty]
    others = [name for name in needed if name not in known]
    assert not others, f"expected a row of `verbs` with words for htaf {verb}, which needs {', '.join(others)}"
    return tuple(word for name in needed for word in known[name])


HUGE, TINIEST = "99999999999999999999", "-99999999999999999999"
NO_SERVER = ("--base-url", "http://127.0.0.1:9/v1", "--max-calls", "0")
NUMBERS = {
    int: ("nan", "inf", "1.5", "x", "", "-1", TINIEST, HUGE, "1e3", "0x10", "\u0663x"),
    float: ("nan", "inf", "-inf", "-1", "-1e-300", "1e400", "x", "", "1,5", "-0.5"),
}
# values that a flag takes, as documented: they are not bad
TAKEN: dict[str, tuple[str, ...]] = {
    "--opset": (),
    "--part-images": (HUGE,),
    "--max-calls": (HUGE,),
    "--timeout": (),
    "-k": (HUGE,),
    "--k": (HUGE,),
    "--differing": (HUGE,),
    "--images": (HUGE,),
    "--rows": (HUGE,),
    "--count": (HUGE,),
    "--tokens": (HUGE,),
    "--blocks": (HUGE,),
    "--validation-images": (),
    "--tolerance": (),
}


def flags_of(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Each flag of a verb with its type, those of dataclasses among them; positional ones by their bare name."""
    for name, kind in typing.get_type_hints(function, include_extras=True).items():
        if name == "return":
            continue
        marks = getattr(kind, "__metadata__", ())
        plain = _plain(kind)
        if dataclasses.is_dataclass(plain) and isinstance(plain, type):
            yield from flags_of(plain)
        elif any("Positional" in repr(mark) for mark in marks) or "Positional" in repr(kind):
            yield name, plain
        else:
            yield "--" + name.strip("_").replace("_", "-"), plain


def _plain(kind: Any) -> Any:
    """A type without Annotated, None and tuples."""
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return _plain(typing.get_args(kind)[0])
    if origin in (typing.Union, types.UnionType):
        inner = [part for part in typing.get_args(kind) if part is not type(None)]
        return _plain(inner[0])
    if origin is tuple:
        return _plain(typing.get_args(kind)[0])
    return kind


def commands() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every verb with its function."""
    from htaf.cli.verbs import known

    for verb, row in known().verbs.items():
        yield verb, pkgutil.resolve_name(row.function)


def replaced(base: tuple[str, ...], flag: str, value: str) -> tuple[str, ...]:
    """The words with this flag's values in place of those that are there."""
    words, out, skip = list(base), [], False
    for word in words:
        if word == flag:
            skip = True
        elif word.startswith("--"):
            skip = False
        if not skip:
            out.append(word)
    return (*out, flag, value)


def of_flags(world: World) -> Iterator[Bad]:
    """The product of verbs, flags and bad values."""
    bases = verbs(world)
    for verb, function in commands():
        base = bases[verb] if verb in bases else words_for(world, verb, function)
        for flag, kind in flags_of(function):
            if not flag.startswith("--"):
                continue
            yield from _of_flag(world, verb, base, flag, kind)
        yield Bad("unknown flag", ("--no-such-flag",), (*verb.split(), *base, "--no-such-flag", "1"))
        yield Bad("unknown word", ("stray-word",), (*verb.split(), *base, "--json", "stray-word"))
    for word in ("trian", "Predict", "", "--frobnicate", "pack\n"):
        yield Bad("unknown verb", (word or "''", "expected"), (word,))
    yield from (Bad("unknown verb", (word,), ("concepts", word)) for word in ("scores", "--scored", "flip"))
    yield from (Bad("unknown verb", (word,), ("train", word)) for word in ("cnn", "tabluar", "DHN"))


def _of_flag(world: World, verb: str, base: tuple[str, ...], flag: str, kind: Any) -> Iterator[Bad]:
    def bad(what: str, value: str, *names: str) -> Bad:
        shown = tuple(name for name in (value, *names) if name.strip()) or (flag.lstrip("-"), flag)
        return Bad(what, shown, (*verb.split(), *replaced(base, flag, value)))

    if kind in NUMBERS:
        for value in NUMBERS[kind]:
            if value in TAKEN.get(flag, ()):
                continue
            names = [flag, flag[2:].replace("-", "_")]
            with contextlib.suppress(ValueError, OverflowError):
                names += [str(float(value)), f"{float(value):g}"]
            yield bad("number", value, *names)
    elif kind is bool:
        yield bad("switch", "maybe", flag)
    elif typing.get_origin(kind) is typing.Literal:
        first = str(typing.get_args(kind)[0])
        for value in ("no-such-choice", "", first.upper() if first != first.upper() else first.lower(), f"{first} "):
            yield bad("choice", value, flag)
    elif flag == "--out":
        yield from _of_out(world, verb, base)
    elif kind is Path:
        for value in _paths(world, flag):
            shown = repr(value), value.replace("\0", "\\u0000"), Path(value.strip("\0")).name
            yield bad("path", value, flag, Path(value).name, *shown)
    elif kind is str:
        for value in ("no such thing", "", "\x1b[31mred", "n" * 300):
            if (flag, value) in (("--pretrained", ""),):
                continue  # none
            if (verb.startswith("train") and flag in ("--data-dir",)) or flag in ("--base-url", "--model", "--storage"):
                continue
            if flag == "--data-dir":
                continue  # it is read only where a public set is
            yield bad("name", value, flag, repr(value), value[:20], value.replace("\x1b", ""))


def _paths(world: World, flag: str) -> tuple[str, ...]:
    """Paths that are no input of any flag."""
    w = world
    missing = str(w.root / "missing")
    if flag == "--save-run":
        return (w["rows.csv"], w["codes"], f"{w['rows.csv']}/x", "a\0b", "n" * 300)
    common = (missing, w["empty"], w["nothing.bin"], w["broken-link"], "a\0b", f"{w['rows.csv']}/x", "n" * 300)
    return common if flag in ("--files", "--names", "--check", "--text", "--texts") else (*common, w["rows.csv"])


def _of_out(world: World, verb: str, base: tuple[str, ...]) -> Iterator[Bad]:
    """Outputs that are of the other kind, are read, belong to a run or codes, or lie where nothing can be."""
    w, words = world, verb.split()
    current = base[base.index("--out") + 1] if "--out" in base else None
    suffix = Path(current or "").suffix
    file = bool(suffix) or verb == "concepts name"
    end = suffix or ".json"
    if verb in ("demo",):
        outs = [w["rows.csv"], "a\0b", f"{w['rows.csv']}/x", w["run"]]
    elif file:
        outs = [w["empty"], f"{w['rows.csv']}/x{end}", f"a\0b{end}", "n" * 300 + end, f"{w['run']}/record.json"]
        outs += [f"{w['codes']}/concepts.json", "/proc/nowhere/x" + end, "", "."]
    else:
        outs = [w["rows.csv"], f"{w['rows.csv']}/x", "a\0b", w["run"], w["codes"], "/proc/nowhere", "n" * 300]
        if verb == "concepts extract":
            outs.remove(w["codes"])  # made by these words: nothing is left to do
        if verb == "explore":
            outs = [value for value in outs if value != w["codes"]] + [w["photos"]]
    for value in outs:
        names = (value, "--out", repr(value), Path(value.strip("\0")).name, str(Path(value.strip("\0")).parent))
        yield Bad("output", tuple(n for n in names if n and n != "."), (*words, *replaced(base, "--out", value)))


# ---- files made by hand ----


def tables(world: World) -> Iterator[Bad]:
    """Tables, for training, predictions and evaluation."""
    rows = "a,b,kind,label\n" + "".join(f"{i / 7:.3f},{i},{'xyz'[i % 3]},{('no', 'yes')[i % 2]}\n" for i in range(40))
    head, body = rows.split("\n", 1)
    contents: dict[str, bytes] = {
        "empty": b"",
        "blank-lines": b"\n\n\n",
        "header-only": head.encode() + b"\n",
        "one-row": (head + "\n" + body.split("\n")[0] + "\n").encode(),
        "two-rows": (head + "\n" + "\n".join(body.split("\n")[:2]) + "\n").encode(),
        "nul-bytes": rows.replace("x", "\0").encode(),
        "only-nul": b"\0" * 500,
        "utf16-without-bom": rows.encode("utf-16-le"),
        "ragged": rows.encode() + b"1,2,3,4,5,6,7,8\n",
        "duplicate-columns": rows.replace("a,b,", "a,a,", 1).encode(),
        "no-target": rows.replace("label", "result", 1).encode(),
        "empty-target": re.sub(r",(no|yes)\n", ",\n", rows).encode(),
        "one-class": rows.replace("yes", "no").encode(),
        "constant-columns": ("a,label\n" + "1,no\n1,yes\n" * 20).encode(),
        "only-target": ("label\n" + "no\nyes\n" * 20).encode(),
        "all-missing": ("a,b,label\n" + ",,no\n,,yes\n" * 20).encode(),
        "infinite": ("a,label\n" + "inf,no\n-inf,yes\n" * 20).encode(),
        "many-classes": ("a,label\n" + "".join(f"{i},c{i}\n" for i in range(60))).encode(),
        "unclosed-quote": rows.encode() + b'"1,2,x,no\n',
        "a-picture": (world.files["photos"] / "red" / "0.png").read_bytes(),
        "html": b"<!doctype html><html><body>404 not found</body></html>\n" * 20,
        "json": b'{"a": 1}\n' * 20,
        "semicolon-one-column": b"label\n" + b"a;b;c\n" * 30,
    }
    for name, content in contents.items():
        for suffix in (".csv", ".parquet"):
            if suffix == ".parquet" and name not in ("empty", "a-picture", "html", "ragged", "only-nul", "json"):
                continue
            file = f"{name}{suffix}"
            make = functools.partial(_write, name=file, content=content)
            words = ("train", "tabular", "--data", file, "--target", "label", "--out", "out", "--hidden", "4", *TINY)
            yield Bad("table, train", (file, name, "label"), words, before=make)
            if name in ("many-classes", "one-class", "two-rows", "one-row", "no-target", "empty-target"):
                continue
            wanted = (file, "kind", "column", "'a'", "rows")
            yield Bad("table, predict", wanted, ("predict", world["table-run"], file), before=make)
            yield Bad("table, evaluate", wanted, ("evaluate", world["table-run"], "--data", file), before=make)
    for value in ("1e300", "-1e300", "9" * 400, "9223372036854775808", "abc", "True", "2020-01-01"):
        text = "a,b,kind\n" + f"{value},{value},x\n" * 3
        make = functools.partial(_write, name="new.csv", content=text.encode())
        words = ("predict", world["table-run"], "new.csv")
        yield Bad("table, values", (value, "a", "new.csv"), words, before=make, noted=True, title=f"values {value}")
    for target, text in (("value", "1e300"), ("value", "9223372036854775808"), ("value", "nan"), ("value", "inf")):
        lines = "a,value\n" + "".join(f"{i},{text}\n" for i in range(30))
        make = functools.partial(_write, name="t.csv", content=lines.encode())
        words = ("train", "tabular", "--data", "t.csv", "--target", target, "--out", "out", "--hidden", "4", *TINY)
        yield Bad("table, targets", (target, "t.csv"), words, before=make)
    for flag, value, name in (("--target", "lable", "lable"), ("--target", "", "target"), ("--target", "A", "'A'")):
        words = ("train", "tabular", "--data", world["rows.csv"], flag, value, "--out", "out", *TINY)
        yield Bad("table, names", (name,), words)
    words = ("train", "tabular", "--data", world["rows.csv"], "--out", "out", *TINY)
    yield Bad("table, names", ("target",), words)
    yield Bad("table, names", ("target", "kind"), (*words, "--target", "kind", "--task", "regression"))


def _write(folder: Path, name: str, content: bytes) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


def pictures() -> dict[str, bytes]:
    """Files that are no image that can be read."""
    good = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (30, 30, 3), dtype=np.uint8)).save(good, "PNG")
    jpeg = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(jpeg, "JPEG")
    floats = io.BytesIO()
    Image.fromarray(np.full((9, 9), 0.5, np.float32)).save(floats, "TIFF")
    deep = io.BytesIO()
    Image.fromarray(np.full((9, 9), 10**6, np.int32)).save(deep, "TIFF")
    png = good.getvalue()
    bomb = bytearray(png)
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2
    return {
        "empty.png": b"",
        "truncated.png": png[: len(png) // 2],
        "header.png": png[:30],
        "cut.jpg": jpeg.getvalue()[:200],
        "text.png": b"no image",
        "html.jpg": b"<html>not found</html>",
        "zeros.png": b"\0" * 400,
        "flipped.png": png[:60] + bytes(b ^ 255 for b in png[60:90]) + png[90:],
        "bomb.png": bytes(bomb),
        "floats.tif": floats.getvalue(),
        "deep.tif": deep.getvalue(),
        "table.webp": b"a,b\n1,2\n",
        "svg.png": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
    }


def images(world: World) -> Iterator[Bad]:
    """Image files, alone and beside good ones, and folders of classes."""
    good = str(world.files["photos"] / "red" / "0.png")
    for name, content in pictures().items():
        make = functools.partial(_write, name=name, content=content)
        for model in ("run", "net.packed"):
            yield Bad("image, alone", (name,), ("predict", world[model], name), before=make)
            yield Bad("image, beside others", (name,), ("predict", world[model], good, name), before=make)
        yield Bad("image, strict", (name,), ("predict", world["run"], "--strict", good, name), before=make)
        words = ("concepts", "extract", world["run"], "--out", "out", "--files", name)
        yield Bad("image, extract", (name,), words, before=make)
        words = ("concepts", "extract", world["run"], "--out", "out", "--files", good, name)
        yield Bad("image, extract", (name,), words, before=make)
    for path in (world["empty"], "missing.png", world["broken-link"], "a\0b.png", "n" * 300):
        shown = (path, Path(path).name, repr(path), "null")
        for model in ("run", "net.packed"):
            yield Bad("image, path", shown, ("predict", world[model], path))
    for model in ("run", "net.packed", "table-run"):
        yield Bad("no input", ("INPUT", "expected", "required"), ("predict", world[model]))
    yield Bad("wrong kind", ("rows.csv",), ("predict", world["run"], world["rows.csv"]))
    yield Bad("wrong kind", ("photos",), ("predict", world["table-run"], world["photos"]))
    yield Bad("wrong kind", ("got 2", "one"), ("predict", world["table-run"], world["rows.csv"], world["rows.csv"]))
    yield Bad("wrong kind", ("--smooth",), ("predict", world["net.packed"], good, "--smooth"))

    def folder(where: Path, *, classes: dict[str, list[str]]) -> None:
        for label, names in classes.items():
            (where / "set" / label).mkdir(parents=True)
            for name in names:
                content = pictures().get(name) if name in pictures() else Path(good).read_bytes()
                _write(where / "set" / label, name, content or b"")

    sets: dict[str, dict[str, list[str]]] = {
        "no class": {},
        "one class": {"a": ["1.png", "2.png"]},
        "no image": {"a": [], "b": []},
        "only unreadable": {"a": ["text.png"], "b": ["empty.png"]},
        "one image a class": {"a": ["1.png"], "b": ["1.png"]},
    }
    for what, classes in sets.items():
        make = functools.partial(folder, classes=classes)
        if not classes:
            make = functools.partial(_write, name="set/readme.txt", content=b"hello")
        for family in ("dhn", "icbm"):
            words = ("train", family, "--data", "set", "--out", "out", "--epochs", "1", "--depth", "10", "--width", "1")
            yield Bad(f"image folder: {what}", ("set", "class", "images"), words, before=make)


def damaged(world: World) -> Iterator[Bad]:
    """Runs, codes, packed files and names that were edited or cut."""

    def copied(where: Path, *, source: str, name: str, change: Callable[[bytes], bytes] | None) -> None:
        target = where / source
        path = world.files[source]
        if path.is_dir():
            shutil.copytree(path, target)
            file = target / name
        else:
            shutil.copy(path, target)
            file = target
        if change is None:
            file.unlink()
        else:
            file.write_bytes(change(file.read_bytes()))

    def edit(*keys: str, value: Any = None, drop: bool = False) -> Callable[[bytes], bytes]:
        def changed(data: bytes) -> bytes:
            content = json.loads(data)
            inner = content
            for key in keys[:-1]:
                inner = inner[key]
            if drop:
                inner.pop(keys[-1], None)
            else:
                inner[keys[-1]] = value
            return json.dumps(content).encode()

        return changed

    records = {
        f"{'.'.join(keys)} = {value!r}": edit(*keys, value=value)
        for keys, value in (
            (("model", "kind"), "no-such-kind"), (("model", "kind"), None), (("model", "kind"), 7),
            (("model", "kind"), []), (("model",), None), (("model",), []), (("model",), "mlp"),
            (("model", "activation"), None), (("model", "activation"), {"method": "gelu"}),
            (("model", "activation", "alpha0"), "two"), (("model", "activation", "alpha0"), -1),
            (("model", "out_features"), -3), (("model", "out_features"), 10**9), (("model", "out_features"), "x"),
            (("recipe",), None), (("recipe",), []), (("recipe", "method"), "gelu"), (("recipe", "method"), None),
            (("metrics",), 3), (("status",), "done"), (("status",), None), (("format",), 99), (("format",), "1"),
            (("format",), None), (("model_sha256",), "0" * 64), (("model_sha256",), None),
            (("preprocessing_sha256",), 5), (("notes",), None), (("headline",), 4), (("data",), None),
            (("source",), None), (("source",), {"name": 5}), (("source",), "x"), (("source",), {"name": "gone.csv"}),
            (("source",), {"nmae": "x"}),
        )
    }  # fmt: skip
    records |= {f"without {key}": edit(key, drop=True) for key in ("model", "recipe", "status", "model_sha256", "data")}
    records |= {f"without model.{key}": edit("model", key, drop=True) for key in ("kind", "activation", "out_features")}
    verb_words: dict[str, list[tuple[str, ...]]] = {
        "table-run": [("predict", "table-run", world["rows.csv"]), ("evaluate", "table-run"),
                      ("pack", "table-run", "--out", "out.packed")],
        "run": [("predict", "run", str(world.files["photos"] / "red")), ("evaluate", "run"),
                ("concepts", "extract", "run", "--out", "out"),
                ("explore", "run", "--codes", world["codes"], "--out", "out")],
    }  # fmt: skip
    unread = {"predict": ("metrics", "notes", "headline", "data", "source", "recipe =")}
    for source, several in verb_words.items():
        for what, change in records.items():
            for words in several:
                if words[0] != "predict" and not what.startswith(("model", "without model", "source", "recipe")):
                    continue  # what every verb reads in the same place is tried once
                if words[0] == "explore" and what.startswith(("source", "model.", "without model.")):
                    continue  # codes are given: the network is not read, and without images there is a note
                if what.startswith(unread.get(words[0], ("metrics", "notes", "headline", "data"))):
                    continue
                make = functools.partial(copied, source=source, name="record.json", change=change)
                title = f"{what}: htaf {' '.join(words)}"
                yield Bad("record", (source, "record", "gone"), words, before=make, title=title)
    cuts: dict[str, Callable[[bytes], bytes] | None] = {
        "missing": None, "empty": lambda data: b"", "half": lambda data: data[: len(data) // 2],
        "text": lambda data: b"hello", "list": lambda data: b"[]", "null": lambda data: b"null",
        "deep": lambda data: b"[" * 100_000, "utf16": lambda data: b"\xff\xfe{\0}\0",
    }  # fmt: skip
    files: dict[tuple[str, str], list[tuple[str, ...]]] = {
        ("table-run", "record.json"): [("predict", "table-run", world["rows.csv"]), ("evaluate", "table-run")],
        ("table-run", "model.safetensors"): [("predict", "table-run", world["rows.csv"])],
        ("table-run", "preprocessing.json"): [("predict", "table-run", world["rows.csv"])],
        ("run", "model.safetensors"): [("evaluate", "run"), ("pack", "run", "--out", "out.packed")],
        ("run", "preprocessing.json"): [("concepts", "extract", "run", "--out", "out"), ("evaluate", "run")],
        ("codes", "concepts.json"): [("concepts", "score", "codes"), ("concepts", "intervene", "codes")],
        ("codes", "parts/part-00000.parquet"): [
            ("concepts", "score", "codes"), ("concepts", "counterfactuals", "codes"),
        ],
        ("codes", "head.safetensors"): [("concepts", "intervene", "codes")],
        ("net.packed", ""): [("predict", "net.packed", str(world.files["photos"] / "red" / "0.png"))],
        ("names.json", ""): [("explore", world["run"], "--codes", world["codes"], "--names", "names.json",
                              "--out", "out")],
        ("attributes.csv", ""): [("concepts", "name", world["codes"], "--attributes", "attributes.csv")],
    }  # fmt: skip
    for (source, name), several in files.items():
        for what, change in cuts.items():
            for words in several:
                if (source, what) == ("names.json", "list"):
                    continue  # no names
                make = functools.partial(copied, source=source, name=name, change=change)
                shown = (name or source, source, "record.json")
                title = f"{name or source} {what}: htaf {' '.join(words)}"
                yield Bad("damaged file", shown, words, before=make, title=title)


def names(world: World) -> Iterator[Bad]:
    """Classes, concepts, images, attributes, names by hand, lists of candidates."""
    w = world
    for off in ("", ":", "3:", ":1", "3:x", "3:-1", "3:999", "99:1", "no such class:1", f"3:{HUGE}", "3", "3:1.5"):
        shown = tuple(part for part in (off, repr(off), off.rpartition(":")[2], off.rpartition(":")[0]) if part)
        yield Bad("edit", shown, ("concepts", "edit", w["run"], "--off", off, "--out", "out"))
    yield Bad("edit", ("table-run",), ("concepts", "edit", w["table-run"], "--off", "1:1", "--out", "out"))
    for image in ("", "no such image", "-1", HUGE, "1797", "1.5", "test/99999"):
        for verb in ("counterfactuals", "neighbours"):
            yield Bad("image id", (image or "''",), ("concepts", verb, w["codes"], "--image", image))
    for target in ("", "ten", "-1", HUGE, "10"):
        words = ("concepts", "counterfactuals", w["codes"], "--image", "0", "--target", target)
        yield Bad("class", (target or "''",), words)
    for concept in ("-1", "21", HUGE, "x", "1.5"):
        words = ("concepts", "name", w["codes"], "--model", "m", *NO_SERVER, "--concept", concept)
        yield Bad("concept", (concept,), words)
    for point in ("-1", "22", HUGE, "x"):
        yield Bad("concept", (point,), ("concepts", "intervene", w["codes"], "--points", point))
    table = {
        "no rows": b"class,round\n",
        "one column": b"class\n0\n1\n",
        "repeated class": b"class,round\n" + b"1,1\n" * 10,
        "other classes": b"class,round\ncat,1\ndog,0\n",
        "repeated attribute": b"class,round,round\n" + b"".join(f"{i},1,0\n".encode() for i in range(10)),
        "text": b"class,round\n" + b"".join(f"{i},maybe\n".encode() for i in range(10)),
        "above one": b"class,round\n" + b"".join(f"{i},7\n".encode() for i in range(10)),
        "below zero": b"class,round\n" + b"".join(f"{i},-1\n".encode() for i in range(10)),
        "missing": b"class,round\n" + b"".join(f"{i},\n".encode() for i in range(10)),
        "infinite": b"class,round\n" + b"".join(f"{i},inf\n".encode() for i in range(10)),
        "a class too few": b"class,round\n" + b"".join(f"{i},1\n".encode() for i in range(9)),
    }
    for what, content in table.items():
        make = functools.partial(_write, name="mine.csv", content=content)
        words = ("concepts", "name", w["codes"], "--attributes", "mine.csv", "--out", "out.json")
        shown = ("mine.csv", "class", "attribute", "round")
        yield Bad("attributes", shown, words, before=make, title=f"{what}: htaf {' '.join(words)}")
        words = ("train", "icbm", "--data", "digits", "--out", "out", "--bottleneck", "joint", *IMAGES)
        words = (*words, "--attributes", "mine.csv", "--depth", "10", "--width", "1")
        yield Bad("attributes", shown, words, before=make, title=f"{what}: htaf {' '.join(words)}")
    hand = {
        "a number": "5", "a text": '"x"', "of a number": "[5]", "no concept": '[{"name": "x"}]',
        "a concept too high": '[{"concept": 99, "name": "x"}]', "negative": '[{"concept": -1, "name": "x"}]',
        "twice": '[{"concept": 1, "name": "x"}, {"concept": 1, "name": "y"}]',
        "a number as name": '[{"concept": 1, "name": 5}]', "text as number": '[{"concept": "one", "name": "x"}]',
        "a float": '[{"concept": 1.5, "name": "x"}]', "huge": f'[{{"concept": {HUGE}, "name": "x"}}]',
        "nan": '[{"concept": NaN, "name": "x"}]', "true": '[{"concept": true, "name": "x"}]',
    }  # fmt: skip
    for what, text in hand.items():
        make = functools.partial(_write, name="mine.json", content=text.encode())
        words = ("explore", w["run"], "--codes", w["codes"], "--names", "mine.json", "--out", "out")
        yield Bad("names", ("mine.json",), words, before=make, title=f"{what}: htaf {' '.join(words)}")
        words = ("concepts", "name", w["codes"], "--model", "m", *NO_SERVER)
        words = (*words, "--check", "mine.json")
        yield Bad("names", ("mine.json",), words, before=make, title=f"{what}: htaf {' '.join(words)}")
    for url in ("", "not a url", "ftp://x", "http://", "http://[", "https://user:pw@"):
        words = ("concepts", "name", w["codes"], "--model", "m", "--base-url", url, "--max-calls", "1")
        if url:
            yield Bad("server", (url, "base URL"), words)
    word = ("concepts", "name", w["codes"])
    yield Bad("server", ("--attributes", "--model"), word)
    yield Bad("server", ("--attributes", "--model"), (*word, "--attributes", "digits", "--model", "m"))
    # with few classes nothing is asked, and a note says so
    yield Bad("server", ("OpenAI", "OPENAI_API_KEY", "key"), (*word, "--model", "m"), noted=True)


def same_files(world: World) -> Iterator[Bad]:
    """Outputs that are an input by another name."""
    root = world.root

    def linked(where: Path, *, name: str, target: str, hard: bool) -> None:
        if hard:
            os.link(target, where / name)
        else:
            (where / name).symlink_to(target)

    for hard in (False, True):
        make = functools.partial(linked, name="link.csv", target=world["rows.csv"], hard=hard)
        words = ("predict", world["table-run"], world["rows.csv"], "--out", "link.csv")
        yield Bad("output is an input", ("link.csv",), words, before=make)
        for verb, more in (("pack", ()), ("export", ("--to", "onnx"))):
            make = functools.partial(linked, name="link.bin", target=world["rows.csv"], hard=hard)
            words = (verb, world["table-run"], *more, "--out", "link.bin")
            yield Bad("output is an input", ("link.bin",), words, before=make)
    around = str(root / "empty" / ".." / "rows.csv")
    for out in (world["rows.csv"], around, f"{root}//rows.csv", f"{root}/./rows.csv"):
        yield Bad("output is an input", ("rows.csv",), ("predict", world["table-run"], world["rows.csv"], "--out", out))
        yield Bad("output is an input", ("rows.csv",), ("pack", world["table-run"], "--out", out))
    for name in ("record.json", "model.safetensors", "preprocessing.json", "MODEL.safetensors", "metrics.csv"):
        for verb, more in (("pack", ()), ("export", ("--to", "onnx")), ("export", ("--to", "nir"))):
            out = f"{world['run']}/{name}"
            yield Bad("output is an input", (name,), (verb, world["run"], *more, "--out", out))
    out = f"{world['table-run']}/metrics.csv"
    yield Bad("output is an input", ("metrics.csv",), ("predict", world["table-run"], world["rows.csv"], "--out", out))
    packed = ("predict", world["net.packed"], str(root / "photos"), "--out", world["net.packed"])
    yield Bad("output is an input", ("net.packed", ".csv"), packed)
    for out in (world["run"], world["codes"]):
        yield Bad("output is an input", (Path(out).name,), ("concepts", "score", world["codes"], "--out", out))
        yield Bad("output is an input", (Path(out).name,), ("demo", "--out", out))


def bottlenecks(world: World) -> Iterator[Bad]:
    """What belongs to concept bottlenecks: maps, leakage, features of backbones, reasons, classes, first weights."""
    yield from _maps(world)
    yield from _own_concepts(world)
    yield from _leakage(world)
    yield from _backbones(world)
    yield from _reasons(world)
    yield from _classes(world)
    yield from _demonstrations(world)
    yield from _first_weights(world)


def _maps(world: World) -> Iterator[Bad]:
    w, one = world, ("--concept", "3", "--count", "1")
    words = ("concepts", "where", w["run"], "--codes", w["codes"], "--out", "out")

    def copied(where: Path, *, source: str, name: str, content: bytes) -> None:
        shutil.copytree(w.files[source], where / source)
        (where / source / name).write_bytes(content)

    for value in ("21", "-1", HUGE, "1.5"):
        yield Bad("maps", (value, "20", "concept"), (*words, "--concept", value))
    for value in ("no-such", "9999999", "-1", "", "a\0b", "test/99999999"):
        yield Bad("maps", (value, "image", repr(value)), (*words, "--image", value))
    for source in ("features", "empty", "run"):
        yield Bad("maps", (source,), (*replaced(words, "--codes", w[source]), *one))
    for run in ("plain", "table-run", "net.packed", "llm-run", "codes"):
        yield Bad("maps", (run, "bits", "table"), ("concepts", "where", w[run], *words[3:], *one))
    for value in ("photos", "rows.csv", "empty", "nothing.bin"):
        yield Bad("maps", (value, "class", "size"), (*words, *one, "--data", w[value]))
    for name, content in (("where.json", b"[]"), ("where.json", b"{"), ("mine.txt", b"x"), ("where.json", b"")):
        make = functools.partial(_write, name=f"out/{name}", content=content)
        yield Bad("maps", (name, "mine.txt"), (*words, *one), before=make, title=f"{name} {content}: where")
    make = functools.partial(copied, source="codes", name="parts/part-00000.parquet", content=b"x")
    mine = (*replaced(words, "--codes", "codes"), *one)
    yield Bad("maps", ("part-00000.parquet", "codes"), mine, before=make, title="damaged codes: where")


def _own_concepts(world: World) -> Iterator[Bad]:
    w, sides = world, _sides(world)
    words = ("concepts", "find", w["run"])

    def copied(where: Path, *, name: str, content: bytes) -> None:
        shutil.copytree(w.files["photos"] / "red", where / "mine")
        for file in sorted((where / "mine").iterdir())[:2]:
            file.unlink()
        _write(where, f"mine/{name}", content)

    for run in ("plain", "table-run", "net.packed", "llm-run", "codes", "empty"):
        yield Bad("own concept", (run, "bits", "table"), ("concepts", "find", w[run], *sides))
    red = sides[1]
    yield Bad("own concept", ("both sides",), (*words, "--with", red, "--without", red))
    yield Bad("own concept", ("both sides",), (*words, "--with", red, "--without", w["photos"]))
    yield Bad("own concept", ("6 and 1",), (*words, "--with", red, "--without", f"{sides[3]}/0.png"))
    for flag in ("--with", "--without"):
        yield Bad("own concept", (flag, "required", "INPUT"), (*words, *replaced(sides, flag, "")[:-1]))
    for place in (red, f"{red}/out"):
        yield Bad("own concept", ("--out",), (*words, *sides, "--out", place))
    for name, content in (("a.png", b"x"), ("b.png", b""), ("c.heic", b"x")):
        make = functools.partial(copied, name=name, content=content)
        yield Bad("own concept", (name, "4 and 6"), (*words, "--with", "mine", *sides[2:]), before=make)


def _leakage(world: World) -> Iterator[Bad]:
    w = world
    words = ("paper", "leakage", w["codes"])
    with_names = (*words, "--names", w["names.json"])
    yield Bad("leakage", ("pre-activations",), words)
    yield Bad("leakage", ("--names",), (*words, "--attributes", "digits"))
    for value in ("photos", "rows.csv", "no-such", "empty"):
        yield Bad(
            "leakage",
            (value, "class", "attributes"),
            (*with_names, "--attributes", w.files.get(value, value).__str__()),
        )
    few = b"class,round\n0,1\n1,0\n"
    make = functools.partial(_write, name="few.csv", content=few)
    yield Bad("leakage", ("few.csv", "class", "'2'"), (*with_names, "--attributes", "few.csv"), before=make)
    other = json.dumps([{"concept": 90, "name": "x"}]).encode()
    for name, content in (("far.json", other), ("cut.json", b"[{"), ("n.json", b"{}")):
        make = functools.partial(_write, name=name, content=content)
        yield Bad("leakage", (name, "name", "90"), (*words, "--names", name), before=make)
    yield Bad("leakage", ("features", "codes"), ("paper", "leakage", w["features"]))
    yield Bad("leakage", ("other",), (*with_names, "--part", "other"))
    yield Bad("leakage", ("run", "codes"), ("paper", "leakage", w["run"]))


def _backbones(world: World) -> Iterator[Bad]:
    w = world
    words = ("concepts", "extract", w["run"], "--out", "out", "--keep", "backbone")
    yield Bad("backbone", ("features",), (*words, "features"))
    yield Bad("backbone", ("margins",), (*words, "margins"))
    for value in ("photos", "rows.csv", "empty", "no-such"):
        yield Bad("backbone", (value, "class", "size"), (*words, "--data", w.files.get(value, value).__str__()))
    for run in ("table-run", "net.packed", "llm-run", "empty"):
        yield Bad("backbone", (run, "table"), ("concepts", "extract", w[run], *words[3:]))
    for value in ("codes", "features", "run"):
        yield Bad("backbone", (value,), replaced(words, "--out", w[value]))
    yield Bad("backbone", ("--parts",), (*words, "--parts", "test", "--data", "digits"))
    binarise = ("paper", "binarise", w["features"], "--out", "out")
    for value in ("0", "-1", "20001", "100000", "10000000", HUGE):
        yield Bad(
            "backbone", (value, f"{int(value):,}", "concepts"), (*binarise, "--how", "median", "--concepts", value)
        )


def _reasons(world: World) -> Iterator[Bad]:
    w = world
    good = str(w.files["photos"] / "red" / "0.png")
    for flag in ("--bits", "--explain"):
        for run in ("net.packed", "table-run", "plain"):
            given = w["rows.csv"] if run == "table-run" else good
            yield Bad("reasons", (run, "bits", "plain"), ("predict", w[run], given, flag))
        words = ("predict", w["run"], good, flag)
        yield Bad("reasons", ("--smooth",), (*words, "--smooth"))
        yield Bad("reasons", ("rows.csv",), ("predict", w["run"], w["rows.csv"], flag))
        yield Bad("reasons", ("empty",), ("predict", w["run"], w["empty"], flag))
        yield Bad("reasons", ("required", "INPUT", "expected"), ("predict", w["run"], flag))
        yield Bad("reasons", (".csv",), (*words, "--out", "bits.txt"))
        for name, content in (
            ("far.json", b'[{"concept": 90, "name": "x"}]'),
            ("cut.json", b"[{"),
            ("n.csv", b"a,b\n1,2\n"),
        ):
            make = functools.partial(_write, name=name, content=content)
            yield Bad("reasons", (name,), (*words, "--names", name), before=make)
    yield Bad("reasons", ("--bits", "--names"), ("predict", w["run"], good, "--names", w["names.json"]))


def _classes(world: World) -> Iterator[Bad]:
    w = world
    for run in ("run", "table-run"):
        for value in (w["run"], w["codes"], w["rows.csv"], f"{w['rows.csv']}/x", "a\0b", "n" * 300, "/proc/nowhere"):
            shown = (value, Path(value.strip("\0")).name, "null", "/proc", "names of at most")
            yield Bad("classes", shown, ("evaluate", w[run], "--out", value))
    yield Bad("classes", ("photos",), ("evaluate", w["run"], "--data", w["photos"], "--out", w["photos"]))
    yield Bad("classes", ("photos", "class"), ("evaluate", w["run"], "--data", w["photos"], "--out", "out"))
    yield Bad("classes", ("llm-run", "--out"), ("evaluate", w["llm-run"], "--out", "out"))
    yield Bad("classes", ("net.packed",), ("evaluate", w["net.packed"], "--out", "out"))


_held: list[Any] = []  # locks of the folder that is in use


def _demonstrations(world: World) -> Iterator[Bad]:
    w = world
    words = ("demo", "--out", "out", "--backbone", "wide_resnet", "--pretrained", w["run"], "--epochs", "1")

    def folder(where: Path, *, classes: dict[str, list[str]]) -> None:
        good = (w.files["photos"] / "red" / "0.png").read_bytes()
        for label, names in classes.items():
            (where / "set" / label).mkdir(parents=True)
            for name in names:
                _write(where / "set" / label, name, pictures().get(name, good))

    def used(where: Path) -> None:
        from filelock import FileLock

        folder(where, classes={"a": ["1.png", "2.png"], "b": ["1.png", "2.png"]})
        (where / "out").mkdir()
        _held.append(FileLock(where / "out" / ".lock"))
        _held[-1].acquire()

    for value in ("missing", "rows.csv", "empty", "nothing.bin", "run", "broken-link", "codes"):
        yield Bad("demonstration", (value, "class"), (*words, "--data", w.files.get(value, value).__str__()))
    for value in ("", "a\0b", "n" * 300):
        yield Bad("demonstration", (value, repr(value), "--data", "null", "data"), (*words, "--data", value))
    sets: dict[str, dict[str, list[str]]] = {
        "one class": {"a": ["1.png", "2.png", "3.png"]},
        "no image": {"a": [], "b": []},
        "broken images": {"a": ["text.png", "empty.png"], "b": ["cut.jpg", "zeros.png"]},
        "one image a class": {"a": ["1.png"], "b": ["1.png"]},
    }
    for what, classes in sets.items():
        make = functools.partial(folder, classes=classes)
        yield Bad(
            "demonstration", ("set", "class", "images"), (*words, "--data", "set"), before=make, title=f"demo: {what}"
        )
    eight = [f"{number}.png" for number in range(8)]
    whole = functools.partial(folder, classes={"a": eight, "b": eight})
    yield Bad("demonstration", ("another process",), (*words, "--data", "set"), before=used, title="demo: out in use")
    for out in ("set", "set/out", "set/a", "set/a/out", "set/../set"):
        inside = replaced(words, "--out", out)
        yield Bad("demonstration", (out, "set"), (*inside, "--data", "set"), before=whole, title=f"demo: --out {out}")
    for flag, value in (
        ("--size", "0"), ("--size", HUGE), ("--concepts", "-1"), ("--enlarge", "99999"), ("--epochs", "-5"),
        ("--backbone", "no-such"), ("--pretrained", "missing.pth"), ("--pretrained", w["empty"]),
        ("--pretrained", w["rows.csv"]), ("--pretrained", ""),
    ):  # fmt: skip
        mine = (*replaced(words, flag, value), "--data", "set")
        yield Bad("demonstration", (value or "pretrained", flag, flag[2:]), mine, before=whole)


def _first_weights(world: World) -> Iterator[Bad]:
    """Files that are no weights of the backbone, in a folder of their own."""
    import zipfile

    from torch import nn

    def stored(state: Any) -> bytes:
        stream = io.BytesIO()
        torch.save(state, stream)
        return stream.getvalue()

    def wheel(members: dict[str, bytes]) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return stream.getvalue()

    good = (world.files["run"] / "model.safetensors").read_bytes()
    state = safetensors.torch.load(good)
    small = stored(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(4, 2)).state_dict())
    empty_wheel = wheel({"tiny/__init__.py": b"", "tiny-1.dist-info/METADATA": b"Name: tiny\nVersion: 1\n"})
    contents = {
        "shapes.pth": small,
        "none.pth": stored({}),
        "numbers.pth": stored({"a": 1, "b": "x"}),
        "tensor.pth": stored(torch.ones(3)),
        "module.pth": stored(nn.Linear(2, 2)),  # would run code
        "empty.pth": b"",
        "text.safetensors": b"hello",
        "cut.safetensors": good[: len(good) // 2],
        "cut.pth": small[: len(small) // 2],
        "text.whl": b"no archive",
        "cut.whl": wheel({"tiny/w.pth": small})[:-40],
        "none.whl": empty_wheel,
        "two.whl": wheel({"tiny/a.pth": small, "tiny/b.pth": small}),
        "shapes.whl": wheel({"tiny/w.pth": small}),
        "broken.whl": wheel({"tiny/w.pth": b"hello"}),
        "list.bin": b"[]",
        "mine.onnx": b"x" * 50,
    }
    nan = {name: value * float("nan") if value.is_floating_point() else value for name, value in state.items()}
    contents["nan.safetensors"] = safetensors.torch.save(nan)
    words = ("train", "icbm", "--data", "digits", "--out", "out", "--freeze", "True", "--backbone", "wide_resnet")
    words = (*words, "--depth", "10", "--width", "1", *IMAGES)
    for name, content in contents.items():
        make = functools.partial(_write, name=name, content=content)
        yield Bad(
            "first weights", (name, "pretrained", "check its weights"), (*words, "--pretrained", name), before=make
        )
    for value in (
        "missing.pth",
        "no-such-package",
        world["empty"],
        world["codes"],
        world["table-run"],
        "a\0b",
        "n" * 300,
    ):
        shown = (value, Path(value).name, repr(value), "null")
        yield Bad("first weights", shown, (*words, "--pretrained", value))
    yield Bad("first weights", ("hub",), (*words, "--pretrained", "hub"))


def large() -> Iterator[Bad]:
    """What cannot fit into memory, or would run for ever."""
    digits = ("--data", "digits", "--out", "out", *IMAGES)
    table = ("train", "tabular", "--data", "digits", "--out", "out", *TINY)
    yield Bad("too large", ("GB", "TB"), (*table, "--hidden", "10000000", "10000000"))
    yield Bad("too large", ("GB", "TB"), (*table, "--hidden", "100000", "100000", "4"))
    yield Bad("too large", ("GB", "TB", "hidden"), (*table, "--hidden", HUGE))
    for size in ("30000", "1000000", HUGE, "0", "-5"):
        words = ("train", "dhn", "--data", "photos", "--out", "out", *IMAGES, "--depth", "10", "--width", "1")
        make = functools.partial(_photos)
        yield Bad("too large", (size, "GB"), (*words, "--size", size), before=make)
    for flag, value in (("--width", "1000000"), ("--depth", "6000004"), ("--width", HUGE), ("--depth", HUGE)):
        words = ("train", "dhn", *digits, "--depth", "10", "--width", "1")
        yield Bad("too large", (value, "GB", "TB", flag[2:]), ("train", "dhn", *replaced(words[2:], flag, value)))
    yield Bad("too large", ("concepts", "GB", "TB"), ("train", "icbm", *digits, "--concepts", "10000000000"))
    words = ("train", "snn", *replaced((*digits, "--width", "2"), "--steps", HUGE))
    yield Bad("too large", ("steps", "GB", "TB"), words)
    for seed in (HUGE, str(2**63), str(2**64), "-1"):
        for words in (("demo", "--out", "out"), ("train", "dhn", *digits)):
            yield Bad("seed", (seed,), (*words, "--seed", seed))
    for opset in ("99", "17", "0", "-1", HUGE):
        yield Bad("opset", (opset,), ("export", "{run}", "--to", "onnx", "--out", "out.onnx", "--opset", opset))


def _photos(folder: Path) -> None:
    for label in ("a", "b"):
        for i in range(6):
            (folder / "photos" / label).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (12, 12), (i, 9 * i, 0)).save(folder / "photos" / label / f"{i}.png")


def of_python(world: World) -> Iterator[Bad]:
    """Calls of the library."""
    import htaf
    from htaf import runs
    from htaf.concepts.extract import extract
    from htaf.concepts.intervene import intervention_curve
    from htaf.concepts.naming.by_attributes import name_by_attributes
    from htaf.concepts.scores import score
    from htaf.concepts.store import open_codes
    from htaf.data import attributes, images, tabular
    from htaf.runs.packed import open_packed
    from htaf.training.families import make_recipe

    def bad(what: str, call: Callable[[], Any], *shown: object) -> Bad:
        return Bad("python", tuple(map(str, shown)), call=call, title=what)

    for value in (0.0, -1.0, float("nan"), float("inf"), float("-inf")):
        yield bad(f"HTAF({value}, 11)", lambda v=value: htaf.HTAF(v, 11.0), value)
        yield bad(f"HTAF(2, {value})", lambda v=value: htaf.HTAF(2.0, v), value)
        yield bad(f"ScaledSigmoid({value})", lambda v=value: htaf.ScaledSigmoid(v), value)
        yield bad(f"LIF(tau={value})", lambda v=value: htaf.LIF(htaf.Heaviside(), tau=v), value)
        for name in ("lr", "alpha0", "alpha1", "beta", "weight_decay", "clip", "dropout", "momentum", "tau"):
            if value == 0 and name in ("weight_decay", "clip", "dropout", "momentum"):
                continue
            yield bad(f"make_recipe({name}={value})", lambda n=name, v=value: make_recipe(**{n: v}), name)
    for name in ("epochs", "batch_size", "width", "steps", "patience", "train_images", "concepts"):
        for number in (-1, 1.5, "x", True, 10**20):
            yield bad(f"make_recipe({name}={number})", lambda n=name, v=number: make_recipe(**{n: v}), name)
    for name in ("method", "family", "optimizer", "schedule", "precision", "augment", "slope", "stem", "reset"):
        for word in ("no-such", "", None, 5, []):
            yield bad(f"make_recipe({name}={word!r})", lambda n=name, v=word: make_recipe(**{n: v}), name)
    for hidden in ((), (0,), (-1,), (1.5,), ("x",), (10**20,)):
        yield bad(f"make_recipe(hidden={hidden})", lambda h=hidden: make_recipe(hidden=h), "hidden")  # pyright: ignore[reportArgumentType]
    for path in ("", "missing", world["empty"], world["rows.csv"], world["codes"], "a\0b", "n" * 300):
        name = Path(path.strip("\0")).name[:200]
        shown = (path, name, repr(path), ".", "null", "too long")
        yield bad(f"open_run({path!r})", lambda p=path: runs.open_run(p), *shown)
        if path != world["codes"]:
            yield bad(f"open_codes({path!r})", lambda p=path: open_codes(p), *shown)
        yield bad(f"open_packed({path!r})", lambda p=path: open_packed(p), *shown)
        if path != world["rows.csv"]:
            yield bad(f"tabular.load({path!r})", lambda p=path: tabular.load(p, target="label"), *shown)
            yield bad(f"attributes.load({path!r})", lambda p=path: attributes.load(p), *shown)
        yield bad(f"images.load({path!r})", lambda p=path: images.load(p), *shown, "class")
    run, codes = runs.open_run(world["run"]), open_codes(world["codes"])
    table = runs.open_run(world["table-run"])
    good = world.files["photos"] / "red" / "0.png"
    yield bad("predict_images of a text", lambda: run.predict_images([world["rows.csv"]]), "rows.csv")
    yield bad("predict_images of a folder", lambda: run.predict_images([world["empty"]]), "empty")
    yield bad("predict_images of a table's run", lambda: table.predict_images([good]), "table-run")
    yield bad("predict of an image run", lambda: run.predict(pd.DataFrame({"a": [1.0]})), "run")
    yield bad("predict without columns", lambda: table.predict(pd.DataFrame()), "column", "'a'")
    yield bad("predict of other columns", lambda: table.predict(pd.DataFrame({"z": [1]})), "'a'")
    yield bad("extract of nothing", lambda: extract(run, [], "out"), "images")
    yield bad("extract of a text", lambda: extract(run, [world["rows.csv"]], "out"), "rows.csv")
    for seed in (-1, 10**20, 2**63):
        yield bad(f"split(seed={seed})", lambda s=seed: images.split(images.load("digits"), seed=s), seed)
        yield bad(f"tabular.split(seed={seed})", lambda s=seed: tabular.split(tabular.load("digits"), s), seed)
        listed = attributes.load("digits")
        yield bad(
            f"name_by_attributes(seed={seed})", lambda s=seed, a=listed: name_by_attributes(codes, a, seed=s), seed
        )
    yield bad("score of no part", lambda: score(codes, scored="all"), "all")  # pyright: ignore[reportArgumentType]
    yield bad("intervention order", lambda: intervention_curve(codes, order="best"), "best")  # pyright: ignore[reportArgumentType]
    for points in ([-1], [22], [10**20], []):
        yield bad(f"points={points}", lambda p=points: intervention_curve(codes, points=p), "points")
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), htaf.HTAF(2.0, 11.0), torch.nn.Linear(4, 2))
    example = torch.randn(4, 3)
    yield bad("pack of a smooth model", lambda: htaf.pack(net, example), "hardened")
    yield bad("pack of no module", lambda: htaf.pack("net", example), "str")  # pyright: ignore[reportArgumentType]
    exact = htaf.harden(net.eval())
    yield bad("pack with another width", lambda: htaf.pack(exact, torch.randn(4, 5)), "3", "5", "example")
    yield bad("pack_bits of integers", lambda: htaf.functional.pack_bits(torch.zeros(2, 8, dtype=torch.int32)), "int32")
    yield bad("heaviside of text", lambda: htaf.functional.heaviside("x"), "str", "Tensor")  # pyright: ignore[reportArgumentType]
    for size in (0, -1, 30_000, 10**20):
        yield bad(f"images.load(size={size})", lambda s=size: images.load(world["photos"], size=s), size)
    for size in (1, 64):
        yield bad(f"images.load('digits', size={size})", lambda s=size: images.load("digits", size=s), "digits")


def inputs(world: World, count: int, seed: int) -> list[Bad]:
    """`count` distinct inputs: all that were made by hand, and so many of the product as are left."""
    made = [*tables(world), *images(world), *damaged(world), *names(world), *same_files(world)]
    made += [*bottlenecks(world), *large(), *of_python(world)]
    made = [dataclasses.replace(b, words=tuple(w.replace("{run}", world["run"]) for w in b.words)) for b in made]
    product = list(of_flags(world))
    order = random.Random(seed)
    order.shuffle(product)
    order.shuffle(made)
    share = min(len(made), max(count - len(product), int(count * 0.55)))
    chosen = [*made[:share], *product, *made[share:]]
    distinct = {(str(b), b.words): b for b in chosen}
    return list(distinct.values())[:count]


# ---- trying one ----


@dataclass
class Outcome:
    """What an input led to; problems is empty where all is as it should be."""

    code: int
    err: str
    problems: list[str]
    seconds: float


def warm() -> None:
    """Import what any verb imports, once."""
    import htaf  # before those that import torchvision, see htaf._compat

    _ = htaf
    import lightning
    import matplotlib.pyplot
    import onnx
    import onnxruntime
    import onnxscript
    import openai
    import sklearn.ensemble

    import htaf.cli
    import htaf.cli.demonstration
    import htaf.concepts.naming.job
    import htaf.explorer.build
    import htaf.explorer.serve
    import htaf.export
    import htaf.runs.packed
    import htaf.runs.run
    import htaf.training.fit

    matplotlib.pyplot.switch_backend("agg")
    _ = (lightning, onnx, onnxruntime, onnxscript, openai, sklearn)
    torch.set_num_threads(1)


def attempt(bad: Bad, world: World, state: dict[str, tuple[int, int, int]], seconds: float = SECONDS) -> Outcome:
    """Run an input in a fork, in a folder of its own, and judge it."""
    with tempfile.TemporaryDirectory(prefix="bad-") as name:
        folder = Path(name) / "work"
        folder.mkdir()
        if bad.before is not None:
            bad.before(folder)
        before = World(folder).state()
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            _child(bad, folder, Path(name))
        code, peak = _wait(child, started + seconds)
        took = time.monotonic() - started
        err = (Path(name) / "err").read_text(errors="replace")
        out = (Path(name) / "out").read_text(errors="replace")
        problems = _judged(bad, code, out, err)
        if code == -signal.SIGKILL and took >= seconds:
            problems.append(f"took more than {seconds:g} seconds")
        if peak > GIGABYTES * 1e9:
            problems.append(f"took {peak / 1e9:.1f} GB more than before")
        after = World(folder).state()
        done = code == 3  # what could be read was done
        if not (code == 0 and bad.noted) and not done:
            problems += [f"left behind: {Path(path).relative_to(folder)}" for path in sorted(after.keys() - before)][:3]
        problems += [f"gone: {path}" for path in sorted(before.keys() - after)][:3]
        problems += [f"changed: {path}" for path in before if path in after and _differs(before[path], after[path])][:3]
        now = world.state()
        problems += [f"left behind: {path}" for path in sorted(now.keys() - state)][:3]
        problems += [f"changed: {path}" for path in state if state[path] != now.get(path)][:3]
    return Outcome(code, err, problems, took)


def _differs(one: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
    return one[1:] != other[1:] if one[1] == 0 else one != other  # a folder's size may change


def _child(bad: Bad, folder: Path, logs: Path) -> None:
    """Never returns."""
    code = 70
    try:
        for number, name in ((1, "out"), (2, "err")):
            handle = os.open(logs / name, os.O_WRONLY | os.O_CREAT)
            os.dup2(handle, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        os.chdir(folder)
        for name in ("OPENAI_API_KEY", "OPENAI_MODEL", "OPENAI_BASE_URL", "HTAF_DATA", "WANDB_API_KEY"):
            os.environ.pop(name, None)
        os.environ |= {"XDG_CACHE_HOME": str(logs / "cache"), "COLUMNS": "100", "no_proxy": "*", "HF_HUB_OFFLINE": "1"}
        limit = _now() + int((GIGABYTES + 6) * 2**30)  # ends what would otherwise take the machine's memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        code = _call(bad)
    except BaseException:
        traceback.print_exc()
        code = 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _now() -> int:
    """Bytes of address space in use."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _call(bad: Bad) -> int:
    from htaf import cli
    from htaf._errors import HtafError

    if bad.call is not None:
        try:
            bad.call()
        except (HtafError, ValueError, TypeError, OSError) as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 1
        return 0
    sys.argv = ["htaf", *bad.words]

    try:
        cli.main()
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else int(bool(exit.code))
    return 0


def _wait(child: int, until: float) -> tuple[int, float]:
    """Exit code (negative: the signal), and bytes of memory above those of the parent."""
    while True:
        pid, status, used = os.wait4(child, os.WNOHANG)
        if pid:
            own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return os.waitstatus_to_exitcode(status), max(0.0, (used.ru_maxrss - own) * 1024.0)
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            until = float("inf")
        time.sleep(0.005)


def _judged(bad: Bad, code: int, out: str, err: str) -> list[str]:
    """What is wrong with an exit code and a message."""
    problems = []
    both = out + err
    if "Traceback (most recent call last)" in both:
        problems.append("a traceback")
    if code < 0:
        problems.append(f"ended by {signal.Signals(-code).name}")
    elif code == 70:
        problems.append("an error of no kind that a user is told of")
    elif code == 0 and not (bad.noted and "note:" in err):
        problems.append("taken without a word" if not bad.noted else "taken without a note")
    flat = _flat(both)
    if code != 0 or bad.noted:
        # the console shows how a long value begins and ends
        if code != 0 and not any(_flat(name)[:100] in flat for name in bad.names if name):
            problems.append(f"names none of {', '.join(map(repr, bad.names))}"[:200])
        if code != 0 and not SAYS.search(both):
            problems.append("does not say what was expected")
    return problems


def _flat(text: str) -> str:
    """Without blanks and the lines of boxes: a message may be folded anywhere."""
    return re.sub(r"[\s│╭╮╰╯─]", "", text).casefold()


def run(count: int, seed: int, *, say: Callable[[str], None] = print, seconds: float = SECONDS) -> dict[str, Any]:
    """Try `count` inputs.

    Returns:
        "inputs", "kinds" {kind: {"inputs", "failed"}}, "codes" {exit code: inputs}, "failures" [{"input", "kind",
        "problems", "code", "message"}], "slowest".
    """
    warm()
    kinds: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    codes: collections.Counter[str] = collections.Counter()
    failures, slowest = [], []
    with tempfile.TemporaryDirectory(prefix="world-") as name:
        root = Path(name).resolve() / "world"
        root.mkdir()
        world = made_world(root)
        chosen = inputs(world, count, seed)
        say(f"{len(chosen)} inputs")
        state = world.state()
        for number, bad in enumerate(chosen):
            outcome = attempt(bad, world, state, seconds)
            kinds[bad.kind]["inputs"] += 1
            codes[str(outcome.code)] += 1
            slowest.append((round(outcome.seconds, 2), str(bad)))
            if outcome.problems:
                kinds[bad.kind]["failed"] += 1
                message = outcome.err.strip()[-1500:]
                failures.append({"input": str(bad).replace(name, "..."), "kind": bad.kind, "code": outcome.code,
                                 "problems": [p.replace(name, "...") for p in outcome.problems],
                                 "message": message.replace(name, "...")})  # fmt: skip
                say(f"{number}: {bad}\n   {'; '.join(outcome.problems)}")
                state = world.state()
            elif number % 100 == 99:
                say(f"{number + 1} tried")
    return {
        "seed": seed,
        "inputs": sum(k["inputs"] for k in kinds.values()),
        "failed": len(failures),
        "kinds": {k: {"inputs": v["inputs"], "failed": v["failed"]} for k, v in sorted(kinds.items())},
        "codes": dict(sorted(codes.items())),
        "failures": failures,
        "slowest": [{"seconds": s, "input": t.replace(name, "...")} for s, t in sorted(slowest, reverse=True)[:5]],
    }


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=900)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--only", default="", help="only inputs whose text or kind holds this")
    given = parser.parse_args()
    if given.only:
        everything = inputs
        globals()["inputs"] = lambda world, count, seed: [
            bad for bad in everything(world, 10**6, seed) if given.only in str(bad) or given.only in bad.kind
        ][:count]
    started = time.monotonic()
    result = run(given.count, given.seed)
    if given.json:
        from htaf.runs import to_json, write_atomic

        write_atomic(given.json, to_json(result))
    for kind, counts in result["kinds"].items():
        print(f"{kind:<28} {counts['inputs']:>5} inputs, {counts['failed']} failed")
    print(f"{result['inputs']} bad inputs, {result['failed']} failed, {time.monotonic() - started:.0f} seconds")
    return int(result["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
