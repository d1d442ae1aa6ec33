"""Where the results of cells lie: `cells/<key>.json`, each written whole, in a folder or at an address of fsspec such
as s3://bucket/study."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from htaf._errors import HtafError, first_line
from htaf._files import parse_json, to_json, write_atomic


class StudyError(HtafError):
    """A study that cannot go on."""


def is_remote(place: str | Path) -> bool:
    """Whether results lie at an address of fsspec instead of in a folder."""
    return "://" in str(place)


def absolute_place(place: str | Path) -> str:
    """A place of results that means the same in every working folder."""
    return str(place).rstrip("/") if is_remote(place) else str(Path(place).absolute())


class Results:
    """The results of cells at one place.

    Args:
        place: a folder, or an address of fsspec.
        valid: whether an object is a result; others are damaged.
    """

    def __init__(self, place: str | Path, valid: Callable[[Any], bool] = lambda record: isinstance(record, dict)):
        self.place, self._valid = absolute_place(place), valid
        self.folder = None if is_remote(place) else Path(place)
        self._fs, self._root = (None, "") if self.folder is not None else _filesystem(self.place)

    def named(self, key: str) -> str:
        """The file or address of a result."""
        return f"{self.place}/cells/{key}.json"

    def read(self, key: str, valid: Callable[[Any], bool] | None = None) -> dict[str, Any] | None:
        """The result of a finished cell; None when there is none. valid: in place of that of this object.

        Raises:
            StudyError: it is damaged. Nothing is overwritten.
        """
        try:
            text = self._read(f"cells/{key}.json")
            if text is None:
                return None
            record = parse_json(text)
        except (OSError, ValueError):
            record = None
        if not (valid or self._valid)(record):
            raise StudyError(f"{self.named(key)} is damaged: delete it to compute the cell again")
        return record

    def write(self, key: str, record: dict[str, Any]) -> bool:
        """Write a result unless there is one already: two workers may have computed a cell, and the first one counts.

        In a folder one of two that write at the same moment is first. A bucket has no such step: there both may write,
        each a whole result of the same cell, and the later one stays.

        Returns:
            Whether it was written.

        Raises:
            OSError: the disk is full, or the place cannot be written.
        """
        return self._write_new(f"cells/{key}.json", to_json(record).encode())

    def expect_same(self, token: str, address: str) -> None:
        """See that this place is that of the study whose queue has a token, which `token` writes down.

        Raises:
            StudyError: it belongs to another study, or cannot be read.
        """
        try:
            text = self._read("queue.json")
            if text is None:
                raise StudyError(
                    f"{self.place} is not where the results of the study in {address} belong: there is no queue.json; "
                    "expected the folder or address that all machines of the study share, by --out"
                )
            found = json.loads(text)["token"]
        except (OSError, ValueError, TypeError, KeyError):
            raise StudyError(f"{self.place}/queue.json is damaged: expected an object with a token") from None
        if found != token:
            raise StudyError(
                f"{self.place} holds the results of another study than the queue in {address}: expected token {token}, "
                f"got {found}; give the folder of that study by --out, or another --store"
            )

    def token(self, new: str) -> str:
        """The token of the study at this place; `new` where there is none yet.

        Raises:
            StudyError: queue.json is damaged. OSError: it cannot be written.
        """
        self._write_new("queue.json", to_json({"token": new}).encode())
        text = self._read("queue.json")
        try:
            found = json.loads(text or b"")["token"]
        except (ValueError, TypeError, KeyError):
            found = None
        if not isinstance(found, str):
            raise StudyError(f"{self.place}/queue.json is damaged: delete it and give the same command again")
        return found

    def _read(self, name: str) -> bytes | None:
        """The content of a file; None when it is not there."""
        try:
            if self.folder is not None:
                return (self.folder / name).read_bytes()
            assert self._fs is not None
            self._fs.invalidate_cache()
            return self._fs.cat_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return None

    def _write_new(self, name: str, data: bytes) -> bool:
        if self.folder is not None:
            return _write_new(self.folder / name, data)
        assert self._fs is not None
        path = f"{self._root}/{name}"
        try:
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            if self._fs.exists(path):
                return False
            self._fs.pipe_file(path, data)
            return True
        except OSError:
            raise
        except Exception as error:  # of a client of a bucket: each has its own kinds
            raise OSError(None, f"cannot be written: {first_line(error)}", f"{self.place}/{name}") from None


def _filesystem(place: str) -> tuple[Any, str]:
    """The file system of fsspec for an address, and the path in it."""
    scheme = place.partition("://")[0]
    try:
        import fsspec

        if scheme in ("s3", "gs", "az") and not _has_own(scheme):
            import obstore.fsspec  # one client for all three, without one's own package for each

            obstore.fsspec.register(scheme)
        fs, root = fsspec.core.url_to_fs(place)
    except ModuleNotFoundError as error:
        raise StudyError(f"results at {place} need the package {error.name}: pip install 'htaf[scale]'") from None
    except (ImportError, ValueError) as error:
        raise StudyError(f"--results: expected a folder or an address of fsspec, got {place}: {error}") from None
    return fs, root.rstrip("/")


def _has_own(scheme: str) -> bool:
    """Whether fsspec's own client of a bucket is installed."""
    return importlib.util.find_spec({"s3": "s3fs", "gs": "gcsfs", "az": "adlfs"}[scheme]) is not None


def _write_new(path: Path, data: bytes) -> bool:
    """Write a whole file, unless there is one. A link to a temporary file beside it, which fails where the name is
    taken, on shared disks too."""
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.link(name, path)
        return True
    except FileExistsError:
        return False
    except OSError as error:
        if isinstance(error, PermissionError) or error.errno in _NO_LINKS:
            write_atomic(path, data)  # a disk without links: whole, and with the same result
            return True
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
