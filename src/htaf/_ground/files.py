"""Files that are written whole or not at all, by one process at a time, never over what is read; JSON of strangers."""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import io
import json
import math
import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from htaf._ground.errors import HtafError, first_line, option

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

# web/src/csv.ts has the same rules
_FORMULA = re.compile(r"'*[=+\-@\t\r]")  # what a spreadsheet would run, however often it was guarded
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
SEAL = "sha256"  # of a record, of the metadata of tensors: that of the rest of it
_LONGEST_HEADER = 1 << 26  # bytes, of a safetensors file
_DEEPEST = 100  # levels: what walks over the values again must not run out of stack


def to_json(value: Any) -> str:
    """Strict, sorted JSON: the same text for the same content."""
    return json.dumps(value, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"


def guarded(cell: Any) -> Any:
    """A cell of a CSV: a text that a spreadsheet would run as a formula gets a ' in front; numbers, as texts too, do
    not."""
    formula = isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if formula else cell


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Rows as CSV, their cells `guarded`; None is an empty cell."""
    lines = io.StringIO(newline="")
    table = csv.writer(lines, lineterminator="\r\n")  # with \n alone it would leave \r in a cell without quotes
    text = ""
    for row in rows:
        table.writerow(map(guarded, row))
        text += lines.getvalue().removesuffix("\r\n") + "\n"
        lines.seek(0)
        lines.truncate()
    return text


def frame_csv(frame: pd.DataFrame, *, header: bool = True) -> str:
    """A frame without its index as CSV, its cells and the names of its columns `guarded`."""
    safe = frame.copy(deep=False)
    for place, kind in enumerate(frame.dtypes):
        if kind.kind == "O":  # texts and categories
            cells: Any = frame.iloc[:, place].astype(object).map(guarded)
            safe.isetitem(place, cells)
    options: Any = {"index": False, "header": [guarded(name) for name in frame] if header else False}
    text = safe.to_csv(**options)
    # a \r in a cell would stand without quotes, and end the line for many readers
    return safe.to_csv(**options, quoting=csv.QUOTE_NONNUMERIC) if "\r" in text else text


def sealed(record: Mapping[str, Any]) -> str:
    """The JSON text of a record with the SHA-256 of the rest of it, by which `read_record` sees damage."""
    plain = json.loads(to_json({name: value for name, value in record.items() if name != SEAL}))
    return to_json({**plain, SEAL: _seal(plain)})


def _seal(plain: dict[str, Any]) -> str:
    return hashlib.sha256(to_json(plain).encode()).hexdigest()


def file_sha256(file: Path) -> str:
    """Of the bytes of a file, in hexadecimal digits. Raises OSError: it cannot be read, or is none (`regular`)."""
    with regular(file).open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def sealed_tensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """A safetensors file whose metadata hold the SHA-256 of the rest of it, by which `read_seal` sees damage."""
    import safetensors.torch

    data = safetensors.torch.save(dict(tensors))
    end = 8 + int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8:end]), data[end:]
    header["__metadata__"] = dict(metadata)
    header["__metadata__"][SEAL] = _seal_of_tensors(header, [body])
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def read_seal(opened: io.BufferedIOBase) -> tuple[dict[str, Any], bool]:
    """The metadata of a safetensors file, {} where it has none, and whether it is as `sealed_tensors` made it.

    Its tensors are not read into memory at once.

    Raises:
        ValueError: no safetensors file. OSError: it cannot be read.
    """
    size = int.from_bytes(opened.read(8), "little")
    text = opened.read(min(size, _LONGEST_HEADER + 1))
    header = parse_json(text) if 0 < len(text) == size <= _LONGEST_HEADER else None
    if not isinstance(header, dict):
        raise ValueError("expected a safetensors file, got one without a whole header")
    metadata = header.get("__metadata__")
    if not isinstance(metadata, dict):
        return {}, False
    return metadata, _seal_of_tensors(header, iter(lambda: opened.read(1 << 20), b"")) == metadata.get(SEAL)


def _seal_of_tensors(header: Mapping[str, Any], body: Iterable[bytes]) -> str:
    metadata = {name: value for name, value in header["__metadata__"].items() if name != SEAL}
    rest = {**header, "__metadata__": metadata}
    text = json.dumps(rest, sort_keys=True, allow_nan=False, separators=(",", ":"))
    found = hashlib.sha256(text.encode())
    for chunk in body:
        found.update(chunk)
    return found.hexdigest()


class NoFileError(OSError):
    """There is something at a path that is no file: who opens it would wait for ever, or read without an end."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def regular(path: Path) -> Path:
    """The path, to open, where it leads to a file, or where nothing can be said of it.

    Raises:
        NoFileError: a named pipe, a socket or a device. What the process has open already may be one: /dev/stdin, and
            the /dev/fd/N that a shell makes of `<(...)`.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return path
    odd = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    what = odd.get(stat.S_IFMT(mode))
    if what is None or str(path) == "/dev/stdin" or path.parent in (Path("/dev/fd"), Path("/proc/self/fd")):
        return path
    raise NoFileError(errno.EINVAL, f"expected a file, got {what}", str(path))


def read_record(file: Path, known: int, error: type[HtafError]) -> dict[str, Any] | None:
    """The object of a JSON file with a `format`, less its seal; None where the file is not there.

    Raises:
        error: no JSON, of another format than `known`, or changed since it was sealed.
    """
    if "\0" in str(file):
        raise error(f"expected a path, got {str(file)!r}, which holds a null character")
    try:
        record = parse_json(regular(file).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as reason:
        raise error(f"{file} is damaged: {first_line(reason)}") from None
    if not isinstance(record, dict) or record.get("format") != known:
        found = record.get("format") if isinstance(record, dict) else type(record).__name__
        raise error(f"{file}: expected format {known}, got {found}: make it again with this version")
    if (seal := record.pop(SEAL, None)) is not None and seal != _seal(record):
        raise error(f"{file} was changed or is damaged: its SHA-256 differs from the one in it; put back a copy of it")
    return record


def cache_folder() -> Path:
    """XDG_CACHE_HOME/htaf, or ~/.cache/htaf."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "htaf"


def parse_json(data: bytes | str) -> Any:
    """The values of a JSON text, such that they can be compared, printed and written again.

    Raises:
        ValueError: no JSON; or NaN, infinity, a whole number beyond 64 bits, half of a surrogate pair, more than 100
            levels.
    """
    try:
        value = json.loads(data, parse_constant=_number, parse_float=_number, parse_int=_whole)
    except RecursionError:
        raise ValueError(f"expected at most {_DEEPEST} levels, got more") from None
    level, depth = [value], 0
    while level:
        inside: list[Any] = []
        for item in level:
            if isinstance(item, str):
                if not item.isascii():
                    item.encode()  # raises UnicodeEncodeError, a ValueError
            elif isinstance(item, list):
                inside += item
            elif isinstance(item, dict):
                inside += item.keys()
                inside += item.values()
        level, depth = inside, depth + 1
        if depth > _DEEPEST:
            raise ValueError(f"expected at most {_DEEPEST} levels, got more")
    return value


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"expected finite numbers, got {text:.20}")
    return value


def _whole(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**64:
        raise ValueError(f"expected whole numbers of 64 bits, got {text:.24}")
    return int(text)


LOCK = ".lock"


# folders that verbs write: all that marks one, and what else in it belongs to it, files and folders; rooms above have
# these names, a test compares
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "run": (
        ("record.json",),
        ("model.safetensors", "smooth.safetensors", "preprocessing.json", "metrics.csv", "report.html", "report.json",
         "checkpoints"),
    ),
    "folder of codes": (("concepts.json",), ("head.safetensors", "parts", "names.json", "projection.safetensors")),
    "study": (("cells", "outcomes.jsonl"), ("cells.jsonl", "report.md", "work")),
    "page": ((".htaf-explorer",), ("index.html", "app.js", "app.css", "data")),
    "folder of scores": (("scores.json",), ()),
    "found concept": (("found.json",), ()),
    "language model": (
        ("htaf_record.json",),
        ("model.htaf.safetensors", "htaf_gates.safetensors", "config.json", "generation_config.json", "tokenizer.json",
         "tokenizer_config.json", "chat_template.jinja", "work"),
    ),
    "demonstration": (("demo.json",), ()),
}  # fmt: skip


class OutputError(HtafError):
    """A place where nothing may or can be written."""


class BusyError(HtafError):
    """Another process holds what is to be written."""


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write a whole file or nothing: to a temporary file beside it, flushed to disk, then renamed.

    Raises:
        OSError: the disk is full or the folder is not writable; it names `path`. The old file, if any, is untouched.
    """
    with written_whole(path) as new:
        new.write_bytes(data.encode() if isinstance(data, str) else data)


_UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@contextmanager
def naming(path: Path, temporary: str | None = None) -> Iterator[None]:
    """Errors of the block name `path` where they name its temporary file, or no file and they are those of writing."""
    try:
        yield
    except OSError as error:
        unnamed = error.filename is None and error.errno in _UNWRITTEN
        if unnamed or (temporary is not None and error.filename == temporary):
            raise OSError(error.errno, os.strerror(error.errno or errno.EIO), str(path)) from None
        raise


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A new file beside `path` to write while the block runs, which then takes its place; on an error it is removed.

    Raises:
        OSError: as `write_atomic`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:  # of the temporary file, whose name says nothing to a reader
        raise OSError(error.errno, error.strerror, str(path)) from None
    os.close(handle)
    try:
        with naming(path, name):
            yield Path(name)
            with open(name, "rb+") as file:
                os.fsync(file.fileno())
            os.chmod(name, 0o644)
            os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


def check_output(out: Path, inputs: Iterable[str | os.PathLike[str]] = (), *, flag: str = "--out") -> None:
    """See, before any work, that a file can be written without harm to what is read.

    Args:
        out: the file that will be written.
        inputs: files and folders that are read; those that do not exist do not matter.
        flag: that names `out`, for the message.
    Raises:
        OutputError: `out` is a folder; is the same file as an input, by any name (another spelling, a link); is one of
            the files of a folder that a verb writes; or lies where nothing can be written.
    """
    check_place(out, flag)
    if out.is_dir():
        raise OutputError(f"{flag} must be a file, {out} is a folder")
    if out.exists() and not out.is_file():
        raise OutputError(f"{flag}: expected a file, {out} is a device or a pipe")
    for given in inputs:
        if _same(out, Path(given)):
            raise OutputError(f"{flag} {out} is the same file as the input {given}: choose another file")
    # a link is replaced, but what it leads to is meant
    for place in {Path(os.path.realpath(out.parent)) / out.name, Path(os.path.realpath(out))}:
        if owner := _owner(place):
            raise OutputError(f"{flag} {out} is a file of the {owner[0]} in {owner[1]}: choose another file")


def check_output_folder(
    out: Path, inputs: Iterable[str | os.PathLike[str]] = (), *, own: str = "", flag: str = "--out"
) -> None:
    """As `check_output`, for a folder into which files of one's own are written beside others.

    Args:
        own: of `KINDS`: a folder of this kind is one's own.

    Raises:
        OutputError: it is a file; an input folder; a folder that another verb writes; or cannot be written.
    """
    check_place(out, flag)
    if out.exists() and not out.is_dir():
        raise OutputError(f"{flag}: expected a folder, {out} is a file")
    for given in inputs:
        if _same(out, Path(given)):
            raise OutputError(f"{flag} {out} is the same folder as the input {given}: choose another folder")
    place = Path(os.path.realpath(out))
    if (kind := kind_of(place)) and kind != own:
        raise OutputError(f"{flag}: expected a folder of its own, {out} holds a {kind}: choose another folder")
    if not kind and (owner := _owner(place)):
        raise OutputError(f"{flag} {out} is a folder of the {owner[0]} in {owner[1]}: choose another folder")
    if out.is_symlink() and not out.exists():
        raise OutputError(f"{flag}: expected a folder, {out} is a link that leads to none")


def kind_of(folder: Path) -> str | None:
    """Which of `KINDS` a folder is, by what marks one; None for another folder."""
    return next((kind for kind, (marks, _) in KINDS.items() if all((folder / mark).exists() for mark in marks)), None)


def _owner(place: Path) -> tuple[str, Path] | None:
    """The kind, and the folder, to which a file or folder at a place belongs; one's own beside them belong to none."""
    for folder in place.parents:
        if kind := kind_of(folder):
            marks, names = KINDS[kind]
            owned = place.relative_to(folder).parts[0].casefold() in (LOCK, *marks, *names)
            return (kind, folder) if owned else None
    return None


def expect_folder(path: Path, what: str, error: type[HtafError]) -> None:
    """Raises `error` where a path that must become a folder for something is, or lies in, a file."""
    if nearest(path).is_file():
        raise error(
            f"expected a folder for {what}, {path} is or lies in a file: choose another {option('--out', 'folder')}"
        )


def nearest(path: Path) -> Path:
    """The path itself where there is something, else the nearest of its folders that is there."""
    return next((place for place in (path, *path.parents) if place.exists()), Path("."))


def check_place(out: Path, flag: str = "--out") -> None:
    """See that something can be written at a path, whose folders need not exist yet. Raises OutputError: it cannot."""
    if "\0" in str(out):
        raise OutputError(f"{flag}: expected a path, got {str(out)!r}, which holds a null character")
    try:
        there = nearest(out.absolute().parent)
        name_max = os.pathconf(there, "PC_NAME_MAX") if hasattr(os, "pathconf") else 255
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise OutputError(f"{flag}: expected a path, got {str(out)!r} ({reason})") from None
    if not there.is_dir():
        raise OutputError(f"{flag}: expected a folder to write into, {there} is a file")
    longest = max(out.parts, key=lambda part: len(os.fsencode(part)), default="")  # "." has no parts
    if len(os.fsencode(longest)) > name_max - 16:  # a temporary file beside it has a longer name
        raise OutputError(f"{flag}: expected names of at most {name_max - 16} bytes, got {longest[:40]!r}...")
    if not os.access(there, os.W_OK | os.X_OK):
        raise OutputError(f"{flag}: {there} is a folder that cannot be written: choose another")


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):  # one is not there: not the same file, unless by name
        with contextlib.suppress(ValueError):  # a null character: no path at all
            return os.path.realpath(one) == os.path.realpath(other)
        return False


def lock_beside(out: Path) -> Path:
    """The lock of a file that is to be written."""
    return out.with_name(f".{out.name}{LOCK}")


@contextmanager
def hold(lock: Path, busy: str, error: type[HtafError] = BusyError) -> Iterator[None]:
    """Hold a lock file while the block runs; the system lets go of it when the process ends, however it ends.

    The file is removed while it is held. One who had opened it before would then hold a file without a name, beside
    one who makes a new file: filelock takes no such file (from 3.30).

    Args:
        lock: made, with its folders, and removed at the end; so are folders made for it that are still empty.
        busy: what another process does, such as "another process trains in runs/a".
        error: raised, with `busy`, the holder and what to do, where another process holds it.
    """
    from filelock import FileLock, Timeout  # with asyncio, which help and figures do without

    check_place(lock)
    made = [folder for folder in lock.parents if not folder.exists()]
    lock.parent.mkdir(parents=True, exist_ok=True)
    ours = FileLock(lock, timeout=0)
    try:
        ours.acquire()
    except Timeout:
        raise error(f"{busy}{holder(lock)}: wait for it, or choose another {option('--out', 'folder')}") from None
    try:
        if type(ours) is FileLock:  # without flock the file itself is the lock, and says the same
            with contextlib.suppress(OSError):
                lock.write_text(f"{os.getpid()}\n{socket.gethostname()}\n", encoding="utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows keeps an open file; the next one takes it
            lock.unlink()
        ours.release()
        for folder in made:
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()


def holder(lock: Path) -> str:
    """Who holds a lock, as far as its file says."""
    try:
        pid, host, *_ = lock.read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return ""
    return f" (process {pid} on {host})"
