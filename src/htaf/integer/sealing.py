"""Files that hold the SHA-256 of themselves, so that an edited export is told from a written one."""

from __future__ import annotations

import hashlib
import re

OPEN = "0" * 64  # where the digest of a file is put: that of the file with these zeros
KEY = "file_sha256"  # of the metadata of ONNX
_SEAL = re.compile(rb"(?:text sha256: |%s\x12@)([0-9a-f]{64})" % KEY.encode())  # \x12@: a text of 64 letters follows


def sealed(data: bytes) -> bytes:
    """The file with its digest in place of the zeros behind `text sha256: `, or of ONNX's file_sha256: they are there
    once."""
    assert _SEAL.findall(data) == [OPEN.encode()]
    return _filled(data, hashlib.sha256(data).hexdigest())


def is_sealed(data: bytes) -> bool:
    """Whether a file says its digest, right or wrong."""
    return _SEAL.search(data) is not None


def is_whole(data: bytes) -> bool:
    """Whether a file is as `sealed` made it."""
    return len(_SEAL.findall(data)) == 1 and sealed(_filled(data, OPEN)) == data


def _filled(data: bytes, digest: str) -> bytes:
    found = _SEAL.search(data)
    assert found
    return data[: found.start(1)] + digest.encode() + data[found.end(1) :]
