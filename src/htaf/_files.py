"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write a whole file or nothing: to a temporary file beside it, flushed to disk, then renamed.

    Raises:
        OSError: the disk is full or the folder is not writable; it names `path`. The old file, if any, is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _write(path, data)
    except OSError as error:  # of the temporary file, whose name says nothing to a reader
        raise OSError(error.errno, error.strerror, str(path)) from None


def _write(path: Path, data: bytes | str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
