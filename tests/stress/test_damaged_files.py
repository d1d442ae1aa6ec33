"""Damaged files and bad values: each is refused with a clear line, or used; no traceback, and nothing else happens.

Files of every kind that htaf reads are changed, their digests made to fit again or not, and given to what reads them
and to the verbs; flags get values that they do not take; files are no tables, no images, no weights. All is tried in a
child process that may not run code of a file, start a program, open a connection or write elsewhere.

    pytest tests/stress/test_damaged_files.py --hypothesis-profile stress --hypothesis-seed 0
    pytest tests/stress/test_damaged_files.py -k train-tabular --hypothesis-profile stress    # the flags of one verb
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import pickle
import re
import resource
import shutil
import sys
import tempfile
import traceback
import types
import typing
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from hypothesis import given, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from PIL import Image
from world import FORK, Files, cases, command, function_of, make_world, state, warm, words_of

from htaf._ground import files as _files
from htaf._ground.errors import HtafError
from htaf.cli import known
from htaf.concepts.explorer.build import build_page
from htaf.concepts.explorer.shown import Heading, Shown
from htaf.concepts.naming.files import read_names, write_names
from htaf.concepts.store import open_codes
from htaf.data import attributes
from htaf.data.image_reading import decode, look
from htaf.data.table_files import read_frame
from htaf.models.backbone_weights import load_backbone
from htaf.program.integer import files as integer_files
from htaf.training.module import last_checkpoint
from htaf.training.runs import open_run, read_record, to_json
from htaf.training.runs.packed import open_packed

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="each case runs in a fork")

SECONDS, BYTES = 60, 2 << 30  # that one case may take
TRAPS = Path(tempfile.gettempdir(), f"htaf-traps-{os.getpid()}")  # what nobody may open; RAN is there once code has run
RAN, EVIL = TRAPS / "ran", TRAPS / "evil.pt"
SAYS = re.compile(
    r"expect|must|need|choose|give|cannot|invalid|require|unrecogni|no such|did you mean|lack|not exist|missing|is not"
    r"|outside|null|too long|does not|holds|exists|is for|unknown|damaged|not found|none of|could not|unexpected|than"
    r"|leave|is a",
    re.IGNORECASE,
)


class Canary:
    """Its pickle makes a folder when something runs what a pickle says."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(RAN),)


# ---- the child ----

SEEN: list[str] = []  # what the case did that none may do
PLACE: list[Path] = []  # with the folders world, damaged, work
POOL: list[ProcessPoolExecutor] = []
STARTS = {"os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "socket.connect", "pickle.find_class"}
WRITES = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "shutil.rmtree"}


def watch(event: str, details: tuple[Any, ...]) -> None:
    if event in STARTS:
        SEEN.append(f"{event} {details!r:.200}")
    elif event in WRITES and isinstance(details[0], (str, bytes, os.PathLike)):
        path = os.path.abspath(os.fsdecode(details[0]))
        writes = event != "open" or (details[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        own = path.startswith((str(PLACE[0]), "/dev/", "/proc", tempfile.gettempdir())) and not path.startswith(
            str(TRAPS)
        )
        if path.startswith(str(TRAPS)) or (writes and not own):
            SEEN.append(f"{event} {path}")


def begin() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 3 * BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    read_all()  # so that all is imported
    sys.dont_write_bytecode = True  # a fresh clone has no bytecode of what a verb imports later
    sys.addaudithook(watch)


def read_all() -> None:
    for kind in KINDS.values():
        restore(kind.files)
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind.read(PLACE[0] / "damaged")


def read(name: str) -> object:
    return KINDS[name].read(PLACE[0] / "damaged")


def tried(function: Callable[..., Any], *words: Any) -> tuple[str, Any]:
    """ "used" and the answer, "refused" and the message, or "failed" and why."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    SEEN.clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = "used", function(*words)
    except HtafError as error:
        str(error).encode()
        outcome = "refused", str(error)
    except BaseException:
        return "failed", traceback.format_exc()
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    if SEEN or RAN.exists() or grown > BYTES:
        return "failed", f"it reached out: {SEEN[:1]}, ran code: {RAN.exists()}, took {grown / 1e9:.1f} GB"
    return outcome


def ask(function: Callable[..., Any], *words: Any) -> tuple[str, Any]:
    """`tried` in the child, which must not end or hang."""
    try:
        outcome, answer = POOL[0].submit(tried, function, *words).result(timeout=SECONDS)
    except Exception:
        for process in POOL[0]._processes.values():
            process.kill()
        new_child()
        raise
    assert outcome != "failed", answer
    return outcome, answer


def new_child() -> None:
    while POOL:
        POOL.pop().shutdown()
    POOL.append(ProcessPoolExecutor(1, mp_context=FORK, initializer=begin))
    POOL[0].submit(int).result()


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    warm()
    PLACE[:] = [tmp_path_factory.mktemp("stress")]
    make_world(PLACE[0] / "world")
    TRAPS.mkdir()
    EVIL.write_bytes(pickle.dumps(Canary()))
    KINDS.update(made_kinds(PLACE[0] / "world", PLACE[0] / "made"))
    new_child()
    yield
    while POOL:
        POOL.pop().shutdown()
    shutil.rmtree(TRAPS)
    KINDS.clear()


def restore(files: Files) -> None:
    """The folder of damaged files anew, and an empty one to work in."""
    for name in ("damaged", "work"):
        shutil.rmtree(PLACE[0] / name, ignore_errors=True)
        (PLACE[0] / name).mkdir()
    for name, data in files.items():
        file = PLACE[0] / "damaged" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


# ---- kinds of files ----


@dataclasses.dataclass(frozen=True)
class Kind:
    """Files that are read together: how, by which verbs, and how their digests are made to fit again.

    sealed: files by whose digest a single changed byte is found. words: "D/" is their folder.
    """

    files: Files
    read: Callable[[Path], object]
    words: tuple[str, ...] = ()
    seal: Callable[[Files], None] | None = None
    sealed: bool = False


KINDS: dict[str, Kind] = {}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def edit(files: Files, name: str, change: Callable[[Any], object]) -> None:
    """Change the values of a JSON file, if they can still be changed."""
    with contextlib.suppress(Exception):
        value = json.loads(files[name])
        change(value)
        value.pop(_files.SEAL, None)
        files[name] = json.dumps(value).encode()


def seal_run(files: Files) -> None:
    names = {"model_sha256": "model.safetensors", "preprocessing_sha256": "preprocessing.json"}
    edit(files, "record.json", lambda record: record.update((k, digest(files.get(v, b""))) for k, v in names.items()))


def seal_codes(files: Files) -> None:
    def fit(record: Any) -> None:
        record["head"] = digest(files.get("head.safetensors", b""))
        record["parts"] = [{**one, "sha256": digest(files.get(f"parts/{one['file']}", b""))} for one in record["parts"]]

    edit(files, "concepts.json", fit)


def seal_tensors(files: Files) -> None:
    for name, data in files.items():
        with contextlib.suppress(Exception):
            end = 8 + int.from_bytes(data[:8], "little")
            header = json.loads(data[8:end])
            header["__metadata__"][_files.SEAL] = _files._seal_of_tensors(header, [data[end:]])
            text = json.dumps(header).encode()
            files[name] = len(text).to_bytes(8, "little") + text + data[end:]


def read_run(folder: Path) -> object:
    run = open_run(folder)
    to_json(run.record).encode()
    model, rows = run.model(exact=run.has_step), pd.read_csv(PLACE[0] / "world" / "rows.csv")
    if not run.takes_images:
        return run.predict(rows, exact=run.has_step).to_csv()
    return None if model is None else run.preprocessor().to_json()


def read_packed(folder: Path) -> object:
    found = open_packed(folder / "net.packed")
    to_json(found.about).encode()
    return str(found.model.report)


def read_codes(folder: Path) -> object:
    codes = open_codes(folder)
    to_json(codes.info).encode()
    return list(codes.ids), codes.unpack().tolist(), codes.logits().tolist()


def read_unfinished(folder: Path) -> None:
    to_json(read_record(folder)).encode()
    if (path := last_checkpoint(folder / "checkpoints")) is not None:
        torch.load(path, weights_only=True)


def read_page(folder: Path) -> None:
    from made_pages import made_codes

    build_page(made_codes(24, 9, 3), folder, shown=Shown(images=8), heading=Heading("Trees"))


def read_weights(folder: Path) -> None:
    for file in folder.iterdir():
        with contextlib.suppress(ValueError):  # that its documentation names
            load_backbone(torch.nn.Sequential(torch.nn.Linear(4, 3)), file)


def read_pictures(folder: Path) -> None:
    for file in sorted(folder.iterdir()):
        if not (problem := look(file).problem):
            decode(file, 3, (16, 16))
        problem.encode()


def made_kinds(world: Path, made: Path) -> dict[str, Kind]:
    """Everything that is read, made once."""
    from tests.integer.made import random_program

    def of(folder: Path) -> Files:
        return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}

    def stored(write: Callable[[Path], object], name: str) -> Files:
        made.mkdir(exist_ok=True)
        write(made / name)
        return {name: (made / name).read_bytes()}

    table, run = of(world / "table-run"), of(world / "run")
    state = torch.nn.Sequential(torch.nn.Linear(4, 3)).state_dict()
    checkpoint = {"state_dict": state, "callbacks": {"History": {"rows": [{"epoch": 0}], "best_loss": 0.1}}, "epoch": 1}
    running = json.dumps(json.loads(table["record.json"]) | {"status": "running", _files.SEAL: None}).encode()
    epochs = {f"checkpoints/epoch-00000{i}.ckpt": saved(checkpoint) for i in (0, 1)}
    names = [{"concept": 3, "name": "smooth bark", "verified": True, "held_out": 0.93, "p_value": 0.01,
              "source": "model"},
             {"concept": 4, "name": "=large leaf", "verified": False, "reason": "held-out 0.61 < 0.75",
              "held_out": 0.6},
             {"concept": 5, "name": None, "reason": "no classes", "source": "model"}]  # fmt: skip
    rows = pd.read_csv(world / "rows.csv")
    pictures = {f"p.{kind}": image_bytes(kind) for kind in ("png", "jpeg", "webp", "gif", "tiff", "bmp", "ppm")}
    (made / "page").mkdir(parents=True)
    read_page(made / "page")
    page = {name: data for name, data in of(made / "page").items() if name.startswith(("data/", ".htaf"))}

    program, _ = random_program(0, "mlp")
    return {
        "run of a table": Kind(table, read_run, ("predict D W/rows.csv", "evaluate D", "pack D --out out.packed",
                               "explain D W/rows.csv", "export D --to onnx --out o.onnx"), seal_run, True),
        "run of images": Kind(run, read_run, ("predict D W/photos", "evaluate D", "concepts extract D --out out",
                              "concepts edit D --off 3:1 --out out", "pack D --out out.packed"), seal_run, True),
        "unfinished run": Kind({"record.json": running, **epochs}, read_unfinished),
        "packed": Kind(of_file(world / "net.packed"), read_packed, ("predict D/net.packed W/photos",
                       "evaluate D/net.packed"), seal_tensors, True),
        "codes": Kind(of(world / "codes"), read_codes, ("concepts score D", "explore W/run --codes D --out out"),
                      seal_codes),
        "integer program": Kind(stored(lambda file: integer_files.save(program, file), "p.safetensors"),
                                lambda folder: integer_files.load(folder / "p.safetensors").digest, (), seal_tensors),
        "names": Kind(stored(lambda file: write_names(names, file, codes="abcdefabcdef"), "n.json"),
                      lambda folder: read_names(folder / "n.json", 11, codes="abcdefabcdef"),
                      ("explore W/run --codes W/codes --names D/n.json --out out",)),
        "a page": Kind(page, read_page),
        "weights": Kind({"w.safetensors": safetensors.torch.save(state), "w.pt": saved(state)}, read_weights),
        "tables": Kind({"t.csv": (world / "rows.csv").read_bytes(), "t.parquet": rows.to_parquet()},
                       lambda folder: [len(read_frame(file)) for file in sorted(folder.iterdir())],
                       ("predict W/table-run D/t.csv", "evaluate W/table-run --data D/t.parquet",
                        "train tabular --data D/t.csv --target label --out out --hidden 4 --epochs 1")),
        "attributes": Kind(of_file(world / "attributes.csv"), lambda folder: attributes.load(folder / "attributes.csv"),
                           ("concepts name W/codes --attributes D/attributes.csv",)),
        "pictures": Kind(pictures, read_pictures, ("predict W/run D", "predict W/net.packed D",
                                                   "concepts extract W/run --files D/p.png --out out")),
    }  # fmt: skip


def of_file(file: Path) -> Files:
    return {file.name: file.read_bytes()}


def saved(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def image_bytes(kind: str, pixels: np.ndarray | None = None) -> bytes:
    stream = io.BytesIO()
    made = np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3) if pixels is None else pixels
    Image.fromarray(made).save(stream, kind)
    return stream.getvalue()


# ---- damage ----

WORDS = (b"NaN", b"1e999", b"-Infinity", b"[" * 100_000, b"9" * 5000, b'"\\ud800"', b"\0" * 64, b"\xff" * 8)
INSTEAD = (b"", b"hello", b"[]", b"null", b"{}", b"\0" * 500, b"<html>404 not found</html>\n", pickle.dumps(Canary()),
           saved({"state_dict": {"0.weight": Canary()}}))  # fmt: skip
KEYS = ("checkpoint_path", "pretrained", "pretrained_cfg", "cache_dir", "auto_map", "options", "trust_remote_code",
        "attn_implementation", "model_args", "backbone", "_name_or_path", "config", "name", "kind", "family", "",
        "__class__", "__proto__", "files", "model_type", "architecture", "quantization_config", "\ud800",
        "a" * 5000)  # fmt: skip
_CODE = f"__import__('os').mkdir({str(RAN)!r})"
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 0.5, -0.0, 1e300, 255, 256, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 10**25, "", "x",
    "0", "\0", "\ud800", "\u202eabc", "a" * 10_000, [], {}, [0], {"a": 1}, [[]], [None],
    json.loads("[" * 90 + "]" * 90),
    json.loads("[" * 400 + "]" * 400), _CODE, f"${{{_CODE}}}", "../../../etc/passwd", str(EVIL), str(TRAPS),
    f"file://{EVIL}", {"checkpoint_path": str(EVIL)}, {"file": str(EVIL), "custom_load": True},
    {"kind": "timm", "name": "test_vit", "options": {"checkpoint_path": str(EVIL)}},
    {"kind": "timm", "name": "test_vit", "options": {"pretrained_cfg": {"file": str(EVIL)}}},
    {"kind": "timm", "name": f"local-dir:{TRAPS}"}, {"kind": "timm", "name": f"hf-hub:{TRAPS}"},
    {"kind": "transformers", "config": {"model_type": "timm_wrapper", "architecture": "test_vit",
                                        "model_args": {"checkpoint_path": str(EVIL)}}},
    {"kind": "transformers", "config": {"model_type": "vit", "attn_implementation": "evil/kernel"}},
    {"kind": "transformers", "config": str(TRAPS)}, {"AutoModel": f"{TRAPS}--modeling.Evil"}, "mlp", "icbm", "resnet",
    "timm", "transformers", "sew_resnet", "</script><script>alert(1)</script>",
)  # fmt: skip


def near(before: Any) -> list[Any]:
    """Values that are almost this one."""
    if isinstance(before, bool) or before is None:
        return [not before, int(bool(before)), "None"]
    if isinstance(before, (int, float)):
        return [before + 1, before - 1, -before, before * 2, before * 1000 + 1, str(before), before / 3, float(before)]
    if isinstance(before, str):
        return [before + "x", before[:-1], before.upper(), [before], "", before * 50]
    return [[before], [before, before], {"a": before}]


def walk(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of nested lists and dicts: what holds it, and where."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inside in list(items):
        yield value, key
        yield from walk(inside)


def opened(name: str, data: bytes) -> tuple[Any, Callable[[Any], bytes]]:
    """The values that a file holds, and how they become a file again. Raises ValueError: it holds none."""

    def text(value: Any) -> bytes:
        return json.dumps(value).encode("utf-8", "surrogatepass")

    suffix = Path(name).suffix
    if suffix == ".json" or name.startswith(".htaf"):
        return json.loads(data), text
    if suffix == ".js":
        start, end = data.index(b", ") + 2, data.rindex(b")")
        return [json.loads(data[start:end])], lambda value: data[:start] + text(value[0]) + data[end:]
    if suffix in (".safetensors", ".packed"):
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        inside = header.get("__metadata__", {})
        nested = [key for key in ("graph", "extra", "report") if key in inside]
        header["__metadata__"] = inside | {key: json.loads(inside[key]) for key in nested}

        def close(value: Any) -> bytes:
            with contextlib.suppress(KeyError, TypeError):
                value["__metadata__"] |= {key: json.dumps(value["__metadata__"][key]) for key in nested}
            return len(text(value)).to_bytes(8, "little") + text(value) + data[end:]

        return header, close
    if suffix in (".csv", ".txt"):
        return [line.split(",") for line in data.decode().split("\n")], lambda value: "\n".join(
            ",".join(map(str, line)) if isinstance(line, list) else str(line) for line in value
        ).encode("utf-8", "surrogatepass")
    if suffix in (".ckpt", ".pt"):
        return torch.load(io.BytesIO(data), weights_only=True), saved
    raise ValueError(name)


class DamagedFiles(RuleBasedStateMachine):
    """The files of one kind, damaged once or more."""

    files: Files
    kind: Kind

    @initialize(data=st.data())
    def chosen(self, data: st.DataObject) -> None:
        self.data, self.damages, self.raw = data, 0, True
        self.name = self.pick(sorted(KINDS))
        self.kind, self.files = KINDS[self.name], dict(KINDS[self.name].files)
        outcome, self.answer = self.read()
        assert outcome == "used", self.answer

    def pick(self, choices: Any) -> Any:
        return self.data.draw(st.sampled_from(choices))

    def place(self, size: int) -> int:
        return self.data.draw(st.integers(0, max(0, size - 1)))

    def read(self) -> tuple[str, Any]:
        restore(self.files)
        return ask(read, self.name)

    @rule()
    def value(self) -> None:
        """A value, if the file holds any, becomes another, goes or comes."""
        name = self.pick(sorted(self.files) or ["none"])
        try:
            value, close = opened(name, self.files[name])
            places = list(walk(value))
            holder, key = places[self.place(len(places))]
        except Exception:  # damaged before: it holds no values any more
            return
        how = self.pick(["near", "other", "other", "gone", "more", "copy", "inside"])
        if how == "gone":
            del holder[key]
        elif how == "more" and isinstance(holder, dict):
            holder[self.pick(KEYS)] = self.pick(VALUES)
        elif how == "copy":
            other, place = places[self.place(len(places))]
            holder[key] = json.loads(json.dumps(other[place], default=str))
        else:
            chosen = {"near": near(holder[key]), "inside": [{self.pick(KEYS): holder[key]}, [holder[key]]]}
            holder[key] = self.pick(chosen.get(how, VALUES))
        with contextlib.suppress(Exception):
            self.files[name] = close(value)
        self.raw = False
        self.check()

    @rule()
    def bytes(self) -> None:
        """A bit or a number is another, a piece is gone, doubled or of another file, or all is something else."""
        name = self.pick(sorted(self.files) or ["none"])
        data = bytearray(self.files.get(name, b""))
        at, size = self.place(len(data)), self.pick([1, 2, 4, 8, 64])
        number = self.pick([0, 1, 255, 2 ** (8 * size - 1), 2 ** (8 * size) - 1]) % 2 ** (8 * size)
        how = self.pick(["bit", "number", "cut", "hole", "double", "other", "word", "all", "gone"])
        if how == "bit" and data:
            data[at] ^= 1 << self.place(8)
        elif how == "number":
            data[at : at + size] = number.to_bytes(size, self.pick(["little", "big"]))
        elif how == "cut":
            del data[at:]
        elif how in ("hole", "double"):
            data[at : at + size] = b"" if how == "hole" else data[at : at + size] * 2
        elif how == "other":
            other = self.files[self.pick(sorted(self.files) or [name])] if self.files else b""
            data[at:at] = other[(start := self.place(len(other))) : start + 4 * size]
        elif how == "word":
            data[at:at] = self.pick(WORDS)
        self.files[name] = self.pick(INSTEAD) if how == "all" else bytes(data)
        if how == "gone":
            del self.files[name]
        self.check()

    @precondition(lambda self: self.kind.seal is not None)
    @rule()
    def sealed(self) -> None:
        assert self.kind.seal is not None
        self.kind.seal(self.files)
        self.raw = False
        self.check()

    def check(self) -> None:
        """Refused or used; a single byte that is found by its digest changes no answer."""
        self.damages += 1
        outcome, answer = self.read()
        note(f"{self.name}: {outcome} {answer!r:.200}")
        if outcome == "used" and self.kind.sealed and self.raw and self.damages == 1:
            assert answer == self.answer
        if self.kind.words and self.pick([False, False, True]):
            words = self.pick(self.kind.words).replace("D/", "../damaged/").replace(" D", " ../damaged").split()
            keeps = " ".join(words[:2]) == "concepts extract"  # which goes on with the images that it has read
            code, said = run(tuple(words), keeps=keeps)
            note(f"htaf {' '.join(words)}: {code} {said[-300:]}")
            assert code in (0, 3) or "error:" in said, said


def run(words: tuple[str, ...], *, keeps: bool = False) -> tuple[int, str]:
    """Of a command, which changes no input, and leaves nothing where it fails."""
    work, inputs = PLACE[0] / "work", (PLACE[0] / "world", PLACE[0] / "damaged")
    before, there = [state(folder) for folder in inputs], state(work, numbers=False)
    outcome, answer = ask(command, words, work, PLACE[0] / "world")
    code, said = answer if outcome == "used" else (1, f"error: {answer}")
    assert [state(folder) for folder in inputs] == before, "an input has changed"
    if code not in (0, 3) and not keeps:  # 3: what could be read was done
        assert state(work, numbers=False) == there, "something is left behind"
    assert "Traceback (most recent call last)" not in said, said
    return code, said


DamagedFiles.TestCase.settings = cases(40, stateful_step_count=3)
TestDamagedFiles = DamagedFiles.TestCase


# ---- bad values ----

HUGE, TINIEST = "99999999999999999999", "-99999999999999999999"
NUMBERS = {
    int: ("nan", "inf", "1.5", "x", "", "-1", TINIEST, HUGE, "1e3", "0x10", "\u0663x"),
    float: ("nan", "inf", "-inf", "-1", "-1e-300", "1e400", "x", "", "1,5", "-0.5"),
}
TAKES_HUGE = {"--part-images", "-k", "--k", "--differing", "--images", "--rows", "--count", "--tokens",
              "--blocks", "--originals", "--maps"}  # fmt: skip
READ_LATER = {"--data-dir", "--base-url", "--model", "--storage"}  # texts that are read only where something needs them
PATHS = ("W/missing", "W/empty", "W/nothing.bin", "W/broken-link", "a\0b", "W/rows.csv/x", "n" * 300)
OWN = {  # of one flag: classes, concepts, images, servers, what no memory holds
    "--off": ("", ":", "3:", ":1", "3:x", "3:-1", "3:999", "99:1", "no such class:1", f"3:{HUGE}", "3", "3:1.5"),
    "--image": ("", "no such image", "-1", HUGE, "9999999", "1.5", "test/99999999"),
    "--target": ("", "ten", "lable"),
    "--concept": ("-1", "21", HUGE, "x", "1.5"),
    "--hidden": ("10000000 10000000", "100000 100000 4", HUGE),
    "--width": ("1000000", HUGE),
    "--depth": ("6000004", HUGE),
    "--seed": (HUGE, str(2**63), str(2**64), "-1"),
    "--views": ("65",),
    "--pretrained": ("missing.pth", "no-such-package", "W/empty", "W/codes", "hub"),
}
TAKEN = {  # what is good; and what is known: a started run is left, a report is written beside a run or codes
    ("paper run", "--workers", HUGE),
    *(("paper labelfree", f"--{name}", n) for name in ("similarity", "clip-cutoff") for n in ("-1", "-1e-300", "-0.5")),
    ("paper labelfree", "--out", "W/codes"),
    ("train icbm", "--pretrained", ""), ("demo", "--pretrained", ""), ("concepts extract", "--out", "W/codes"),
    ("harden", "--data", "n" * 300), *(("paper report", "--out", f"W/{name}") for name in ("run", "codes")),
}  # fmt: skip
FILES = {"concepts name", "predict", "pack", "export"}  # verbs whose --out is a file


def flags_of(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Each flag of a verb with its type, those of dataclasses among them."""
    for name, kind in typing.get_type_hints(function, include_extras=True).items():
        plain = plain_type(kind)
        if dataclasses.is_dataclass(plain) and isinstance(plain, type):
            yield from flags_of(plain)
        elif name != "return" and "Positional" not in repr(kind):
            yield "--" + name.strip("_").replace("_", "-"), plain


def plain_type(kind: Any) -> Any:
    """A type without Annotated, None and tuples."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return plain_type(next(part for part in inside if part is not type(None)))
    return plain_type(inside[0]) if origin in (typing.Annotated, tuple) else kind


def bad_values(verb: str, flag: str, kind: Any) -> list[str]:
    literal, end = typing.get_origin(kind) is typing.Literal, ".csv" if verb in FILES else ""
    if flag == "--out":
        values = [f"W/rows.csv/x{end}", f"a\0b{end}", "W/run", "W/codes", "n" * 300 + end, "/proc/nowhere/x"]
        values += ["W/empty", "W/run/record.json", "W/codes/concepts.json", "W/run/metrics.csv", "."] if end else []
    elif kind in NUMBERS:
        values = [value for value in NUMBERS[kind] if value != HUGE or flag not in TAKES_HUGE]
    elif kind is Path:
        values = list(PATHS)
    elif kind is bool:
        values = ["maybe"]
    elif literal:
        values = ["no-such-choice", "", (first := str(typing.get_args(kind)[0])).swapcase(), f"{first} "]
    else:
        values = [] if flag in READ_LATER else ["no such thing", "", "\x1b[31mred", "n" * 300]
    return [value for value in dict.fromkeys([*values, *OWN.get(flag, ())]) if (verb, flag, value) not in TAKEN]


def replaced(words: tuple[str, ...], flag: str, value: str) -> tuple[str, ...]:
    """The words with this flag's values in place of those that are there."""
    kept, skip = [], False
    for word in words:
        skip = word == flag or (skip and not word.startswith("--"))
        kept += [] if skip else [word]
    return (*kept, flag, *(value.split(" ") if flag == "--hidden" else [value]))


def judge(words: tuple[str, ...], named: list[str]) -> None:
    """The message of a command that cannot do its work; labelfree keeps the features that it has, to go on from."""
    code, said = run(words, keeps=words[:2] == ("paper", "labelfree"))
    note(f"htaf {' '.join(words)}: {code} {said}")
    assert code, "taken without a word"
    flat = re.sub(r"[\s│╭╮╰╯─]", "", said).casefold()  # a message may be folded anywhere
    names = [re.sub(r"\s", "", name).casefold()[:100] for name in named if name.strip()]
    assert any(name in flat for name in names), f"names none of {names}"
    assert SAYS.search(said), "does not say what was expected"


@pytest.mark.parametrize("verb", sorted(known().verbs), ids=lambda verb: verb.replace(" ", "-"))
@given(st.data())
@cases(2)
def test_bad_values_of_flags(verb: str, data: st.DataObject) -> None:
    flags = [(flag, kind) for flag, kind in flags_of(function_of(verb)) if bad_values(verb, flag, kind)]
    flag, kind = data.draw(st.sampled_from([*flags, ("--no-such-flag", Path)]))
    value = data.draw(st.sampled_from(bad_values(verb, flag, kind)))
    restore({})
    names = [
        value,
        repr(value),
        repr(value)[1:-1],
        json.dumps(value)[1:-1],
        flag,
        flag[2:].replace("-", "_"),
        Path(value.strip("\0")).name,
        value.strip("\x1b"),
    ]
    names += ["/proc/nowhere"] if "/proc/nowhere" in value else ["--depth"] if flag == "--pretrained" else []
    with contextlib.suppress(ValueError, OverflowError):
        names += [str(float(value)), f"{float(value):g}"]
    judge(
        replaced(words_of(verb), flag, value), [*names, *value.split(":"), "GB", "TB", "own images", "integer weights"]
    )


def table(rows: int = 40, head: str = "a,b,kind,label", **changes: str) -> bytes:
    """A table that can be learned, with columns that hold something else."""
    made = [
        {"a": f"{i / 7:.3f}", "b": f"{i}", "kind": "xyz"[i % 3], "label": ("no", "yes")[i % 2]} for i in range(rows)
    ]
    return "\n".join([head, *(",".join((row | changes).values()) for row in made), ""]).encode()


_PNG, _MODEL = image_bytes("png"), torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, 2))
_ICBM = "train icbm --data digits --out out --depth 10 --width 1 --epochs 1 --train-images 40 --validation-images 20"
_FOLDER = "--out out --epochs 1 --depth 10 --width 1 --data"
HAND: dict[str, Files] = {  # words, to which a path comes: of a file, or of its first folder
    "train tabular --target label --out out --hidden 4 --epochs 1 --data": {
        "blank.csv": b"\n\n\n", "header.csv": table(0), "one-row.csv": table(1), "nul.csv": table(kind="\0"),
        "utf16.csv": table().decode().encode("utf-16-le"), "ragged.csv": table() + b"1,2,3,4,5,6,7,8\n",
        "no-label.csv": table(head="a,b,kind,result"),
        "cut.csv": table()[:5],
        "empty-label.csv": table(label=""), "one-class.csv": table(label="no"),
        "only.csv": b"label\n" + b"no\nyes\n" * 20,
        "constant.csv": b"a,label\n" + b"1,no\n1,yes\n" * 20, "missing.csv": b"a,b,label\n" + b",,no\n,,yes\n" * 20,
        "infinite.csv": b"a,label\n" + b"inf,no\n-inf,yes\n" * 20, "quote.csv": table() + b'"1,2,x,no\n',
        "picture.csv": _PNG, "html.parquet": b"<html>404 not found</html>\n" * 20, "zeros.parquet": b"\0" * 500,
    },
    "predict W/table-run": {"empty.csv": b"", "others.csv": b"z\n1\n", "header.csv": table(0)},
    "predict W/run": {
        "cut.png": _PNG[:80], "bomb.png": _PNG[:16] + (60_000).to_bytes(4, "big") * 2 + _PNG[24:],
        "svg.png": b"<svg/>",
        "floats.tif": image_bytes("tiff", np.full((9, 9), 0.5, np.float32)), "table.webp": table(3),
    },
    f"train dhn {_FOLDER}": {"set/readme.txt": b"hello", "set/a/text.png": b"no"},
    f"train icbm {_FOLDER}": {"set/a/1.png": _PNG},
    "demo --out out --backbone wide_resnet --pretrained W/run --epochs 1 --data": {"set/a/1.png": _PNG},
    f"{_ICBM} --freeze True --backbone wide_resnet --pretrained": {
        "shapes.pth": saved(_MODEL.state_dict()), "none.pth": saved({}), "numbers.pth": saved({"a": 1, "b": "x"}),
        "tensor.pth": saved(torch.ones(3)), "module.pth": saved(_MODEL), "empty.pth": b"", "text.safetensors": b"hello",
        "list.bin": b"[]", "evil.pt": saved({"a": Canary()}),
    },
    f"{_ICBM} --bottleneck joint --attributes": {"mine.csv": b"class,round\ncat,1\ndog,0\n"},
    "paper leakage W/codes --names W/names.json --attributes": {"few.csv": b"class,round\n0,1\n1,0\n"},
}  # fmt: skip


@given(st.sampled_from([(words, name) for words, files in HAND.items() for name in files]))
@cases(15)
def test_files_that_are_something_else(case: tuple[str, str]) -> None:
    words, name = case
    restore({name: HAND[words][name]})
    top = name.split("/")[0]
    judge((*words.split(), f"../damaged/{top}"), [top, "class", "label", "images", "column"])


TOGETHER = [  # what is no verb, what would be written over inputs, or over what belongs to others, what lacks a part
    "trian", "Predict", "--frobnicate", "concepts scores", "train cnn", "train tabluar", "predict W/run --no-such-flag",
    "evaluate W/run stray-word", "predict W/run",
    *(f"demo --data W/photos --out W/photos{end}" for end in ("", "/a/out")),
    *(f"predict W/table-run W/rows.csv --out {out}"
      for out in ("W/rows.csv", "W/empty/../rows.csv", "soft.csv", "hard.csv")),
    *(f"pack W/table-run --out {out}" for out in ("W//rows.csv", "soft.csv", "hard.csv")),
    *(f"{verb} --out W/run/{name}" for verb in ("pack W/run", "export W/run --to nir", "export W/run --to onnx")
      for name in ("record.json", "MODEL.safetensors", "metrics.csv")),
    *(f"{verb} --out {out}" for verb in ("concepts score W/codes", "demo") for out in ("W/run", "W/codes")),
    "predict W/net.packed W/photos --out W/net.packed", "predict W/net.packed W/photos --smooth",
    "predict W/table-run W/rows.csv W/rows.csv", "predict W/run W/rows.csv", "predict W/table-run W/photos",
    *(f"concepts find W/run --with W/photos/red --without W/photos{end}" for end in ("", "/red", "/blue/0.png")),
    "concepts edit W/table-run --off 1:1 --out out",
    "paper leakage W/codes", "paper leakage W/features", "concepts name W/codes",
    "concepts name W/codes --attributes digits --model m", "concepts name W/codes --model m --base-url http://[",
    "concepts extract W/table-run --out out", "concepts extract W/run --out out --keep backbone margins",
    "predict W/run W/photos --bits --smooth", "predict W/run W/photos --names W/names.json",
    "predict W/net.packed W/photos --explain", "evaluate W/llm-run --part all", "evaluate W/net.packed",
]  # fmt: skip


@given(st.sampled_from(TOGETHER))
@cases(15)
def test_words_that_do_not_go_together(words: str) -> None:
    restore({})
    (PLACE[0] / "work" / "soft.csv").symlink_to(PLACE[0] / "world" / "rows.csv")
    os.link(PLACE[0] / "world" / "rows.csv", PLACE[0] / "work" / "hard.csv")
    last = [word.removeprefix("W/").split("/")[-1] for word in words.split()]
    judge(tuple(words.split()), [*last, "one", "INPUT", "without"])
