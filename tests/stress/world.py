"""What the three machines share: inputs for every verb, words with which it works, and a child process that runs it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import os
import pkgutil
import shlex
import sys
import warnings
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from hypothesis import settings
from PIL import Image

import htaf
import made_runs
from htaf import cli
from htaf.cli import known
from htaf.concepts.codes import codes_key
from htaf.concepts.extract import extract
from htaf.concepts.naming.by_attributes import name_by_attributes
from htaf.concepts.naming.files import write_names
from htaf.data import tabular
from htaf.data.attributes import load as load_attributes
from htaf.data.preprocess import Preprocessor
from htaf.language import Data, Training, fit
from htaf.models.build import build
from htaf.program import packed
from htaf.training import runs
from htaf.training.families import FAMILIES
from htaf.training.problems import data_identity
from htaf.training.runs.packed import run_extra
from smallest import SMALLEST

FORK = get_context("fork")  # of a process that has imported everything
Files = dict[str, bytes]


def cases(number: int, **more: Any) -> settings:
    """So many examples in `make test`, always the same; more by --hypothesis-profile many, others by stress."""
    examples = settings.default.max_examples
    return settings(max_examples=max(1, number * examples // 50), derandomize=examples < 1000, **more)


# ---- inputs ----


def make_world(root: Path) -> None:
    """Runs that nobody trained, codes, a packed file, names, tables, images, attributes, a language model."""
    import made_clip
    from made_language import TEXT, write_model

    root.mkdir()
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"a": rng.normal(size=90), "b": rng.integers(0, 50, 90), "kind": rng.choice([*"xyz"], 90)})
    rows["label"] = np.where(rows["a"] > 0, "yes", "no")
    rows["value"] = 3 * rows["a"] + rows["b"]
    rows.to_csv(root / "rows.csv", index=False)
    make_table_run(root / "table-run", rows, root / "rows.csv")
    digits = made_runs.digits()
    run = made_runs.made_run(root / "run", digits)
    extract(made_runs.made_run(root / "plain", digits, made_runs.PLAIN), digits, root / "features")
    codes = extract(run, digits, root / "codes").codes()
    write_names(name_by_attributes(codes, load_attributes("digits")), root / "names.json", codes=codes_key(codes))
    preprocessor: Any = run.preprocessor()
    made = packed.pack(run.model(), preprocessor.normalise(digits.train.batch(torch.arange(4))))
    extra = run_extra(images=True, preprocessing=preprocessor.to_json(), about={})
    packed.save(made, root / "net.packed", extra=extra)
    for label in ("red", "blue"):
        (root / "photos" / label).mkdir(parents=True)
        for i in range(6):
            pixels = rng.integers(0, 255, (12, 10, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / "photos" / label / f"{i}.png")
    table = pd.DataFrame({"class": [str(i) for i in range(10)], "round": [1, 0] * 5, "tall": [0, 0, 1, 1, 0] * 2})
    table.to_csv(root / "attributes.csv", index=False)
    (root / "list.txt").write_text("round\ntall\n")
    (root / "empty").mkdir()
    (root / "nothing.bin").touch()
    (root / "broken-link").symlink_to(root / "gone")
    made_clip.write_clip(root / "clip")
    write_model(root / "llm")
    (root / "text.txt").write_text(TEXT)
    data = Data(str(root / "text.txt"), length=16, training=4)
    fit(str(root / "llm"), data, Training(steps=0), root / "llm-run", last_k=1)


def make_table_run(out: Path, rows: pd.DataFrame, file: Path) -> None:
    inputs, target = rows.drop(columns=["label", "value"]), (rows["label"] == "yes").to_numpy(np.int64)
    fitted = Preprocessor.fit(
        inputs, target, task="classification", target_name="label", classes=("no", "yes")
    )  # fmt: skip
    width = len(fitted.transform(inputs)[0])
    model = {"kind": "mlp", "in_features": width, "out_features": 2, "hidden": [6], "batch_norm": True}
    model |= {"activation": made_runs.HTAF}
    data = data_identity(tabular.load(file, target="label"), "random")
    record = runs.start_run(out, {"recipe": {"method": "htaf", "family": "mlp"}, "seed": 0, "data": data})
    figures = {part: {"accuracy": 0.5, "auroc": 0.5} for part in ("validation", "test")}
    record |= {"model": model, "metrics": {"smooth": figures, "exact": figures}, "headline": "accuracy", "rows": {}}
    source = {"name": str(file), "data_dir": None, "target": "label", "task": None}
    record |= {"best_epoch": 0, "notes": [], "source": source}
    torch.manual_seed(0)
    runs.finish_run(out, record, build(model).eval(), fitted)


def warm() -> None:
    """Import what any verb imports, once, for the children."""
    import matplotlib.pyplot

    for name in ("lightning", "onnx", "onnxruntime", "onnxscript", "openai", "sklearn.ensemble", "pyarrow.parquet",
                 "htaf.cli.demo", "htaf.concepts.naming.job", "htaf.concepts.explorer.build",
                 "htaf.program.export", "htaf.training.runs.run", "htaf.training.fit"):  # fmt: skip
        pkgutil.resolve_name(name)
    for row in known().verbs.values():
        pkgutil.resolve_name(row.function)
    matplotlib.pyplot.switch_backend("agg")
    torch.set_num_threads(1)
    _ = htaf


# ---- words ----

# "W/" is the folder of inputs; a verb that needs no more than a run of a table and --out needs no row
TINY = "--epochs 1 --checkpoint-seconds 60"
IMAGES = f"--data digits --out out {TINY} --train-images 40 --validation-images 20"
WORDS = {
    "train tabular": f"--data W/rows.csv --target label --out out --hidden 4 {TINY}",
    **{f"train {FAMILIES[name].verb}": f"{IMAGES} {shlex.join(row.flags())}" for name, row in SMALLEST.items()},
    "train logic": f"--data W/rows.csv --target label --out out --luts 8 {TINY}",
    "train icbm": f"{IMAGES} --depth 10 --width 1",
    "train llm": "--model W/llm --text W/text.txt --out out --length 16 --last-k 1 --steps 1 --training-blocks 4 "
    "--method ste",
    "predict": "W/table-run W/rows.csv --out out.csv",
    "explain": "W/table-run W/rows.csv",
    "paper list": "",
    "paper run": "bounds --out out",
    "paper report": "--out .",
    "paper cost": "bounds --speed 1",
    "demo": "--out out",
    "doctor": "",
    "pack": "W/run --out out.packed",
    "serve": "W/net.packed --port 8765",
    "export": "W/run --to onnx --out out.onnx",
    "verify": "W/net.packed W/run",
    "explore": "W/run --codes W/codes --out out",
    "concepts extract": "W/run --out out",
    "paper binarise": "W/features --out out",
    "paper labelfree": "W/run --texts W/list.txt --clip W/clip --out out --steps 1 --similarity -0.999 "
    "--clip-cutoff -0.999",
    "paper leakage": "W/codes --names W/names.json --attributes W/attributes.csv",
    "paper bench": "W/codes --features W/features --attributes W/attributes.csv --out out",
    "concepts score": "W/codes --out out",
    "concepts find": "W/run --with W/photos/red --without W/photos/blue --out out",
    "concepts edit": "W/run --off 3:1 --out out",
    "concepts name": "W/codes --attributes W/attributes.csv --out out.json",
}


@functools.cache
def function_of(verb: str) -> Callable[..., Any]:
    return pkgutil.resolve_name(known().verbs[verb].function)


def words_of(verb: str) -> tuple[str, ...]:
    """Words with which a verb does its work, quickly, with its outputs in the working folder."""
    if verb in WORDS:
        return (*verb.split(), *shlex.split(WORDS[verb]))
    given = {"run": ("W/table-run",), "out": ("--out", "out")}
    parameters = inspect.signature(function_of(verb)).parameters.items()
    needed = [name for name, one in parameters if one.default is one.empty]
    assert given.keys() >= set(needed), f"expected a row of WORDS for htaf {verb}, which needs {', '.join(needed)}"
    return (*verb.split(), *(word for name in needed for word in given[name]))


# ---- running ----


def command(words: tuple[str, ...], folder: Path, world: Path) -> tuple[int, str]:
    """The exit code of `htaf` in a folder and what it said; any other exception goes through."""
    for name in ("OPENAI_API_KEY", "OPENAI_MODEL", "OPENAI_BASE_URL", "HTAF_DATA", "WANDB_API_KEY"):
        os.environ.pop(name, None)
    os.environ |= {
        "XDG_CACHE_HOME": str(world.parent / "cache"),
        "COLUMNS": "100",
        "no_proxy": "*",
        "HF_HUB_OFFLINE": "1",
    }
    os.chdir(folder)
    sys.argv = ["htaf", *(str(world) + word[1:] if word.startswith("W/") else word for word in words)]
    sys.stdin, said, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), warnings.catch_warnings():
        try:
            cli.main()
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else int(bool(exit.code))
    return code, said.getvalue()


def state(root: Path, *, numbers: bool = True) -> dict[str, Any]:
    """Of everything in a folder: kind, and of files the size, the time of the last change and the inode."""
    found = {}
    for path in sorted(root.rglob("*")):
        seen = path.lstat()
        plain = numbers and not path.is_dir()
        found[str(path.relative_to(root))] = (seen.st_ino, *((seen.st_size, seen.st_mtime_ns) if plain else ()))
    return found
