"""Public archives: found in a folder, or downloaded, checked and unpacked into a cache."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock

from htaf._console import progress, tell
from htaf._files import cache_folder
from htaf.data.reading import DataError, data_folders, listed

TIMEOUT = 30  # seconds without an answer
BLOCK, MB = 2**20, 10**6


@dataclass(frozen=True)
class Archive:
    """One public archive.

    Attributes:
        folder: what it unpacks to.
        url: its public home.
        md5: of the archive, as its home or torchvision gives it.
    """

    folder: str
    url: str
    md5: str

    @property
    def file(self) -> str:
        """The archive's own name."""
        return Path(urlsplit(self.url).path).name


def obtain(name: str, archive: Archive, data_dir: str | os.PathLike[str] | None, download: bool) -> Path:
    """The folder of a public set, wherever it is; else it is downloaded into the cache.

    Looked for in `data_dir`, then in the folder that HTAF_DATA names, then in the cache; each may hold the folder, be
    the folder, or hold the archive, which is then unpacked into the cache.

    Args:
        name: of the set, for messages.
        archive: what to look for.
        data_dir: searched first.
        download: whether to download what is found nowhere.
    Returns:
        the folder.
    Raises:
        DataError: found nowhere and not downloaded, or an archive that is not the public one.
    """
    cache = cache_folder()
    roots = [*data_folders(data_dir), cache]
    for root in roots:
        for found in (root / archive.folder, root):
            if found.name == archive.folder and found.is_dir():
                return found
        if (root / archive.file).is_file():
            return _into_cache(archive, cache, root / archive.file)
    hint = (
        f"download {archive.url}, put it (or the folder {archive.folder} that it unpacks to) into a folder "
        "and name that folder in HTAF_DATA or --data-dir"
    )
    looked = listed([str(root) for root in roots])
    if not download:
        raise DataError(f"{name}: {archive.folder} not found in {looked} and no download wanted; {hint}")
    try:
        return _into_cache(archive, cache, None)
    except (OSError, http.client.HTTPException) as error:
        reason = str(getattr(error, "reason", "") or error) or type(error).__name__
        raise DataError(
            f"{name}: {archive.folder} not found in {looked} and not downloaded ({reason}); {hint}"
        ) from error


def _into_cache(archive: Archive, cache: Path, given: Path | None) -> Path:
    """Downloads unless the archive is given, checks, unpacks; one process at a time."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"{cache}: expected a folder that can be written, got {error.strerror}; name another in XDG_CACHE_HOME"
        ) from error
    target = cache / archive.folder
    with FileLock(cache / f".{archive.folder}.lock"):
        if target.is_dir():  # another process was faster
            return target
        if given is None:
            given = cache / archive.file
            if not given.is_file():
                _download(archive, given)
        elif (found := _md5(given)) != archive.md5:
            raise DataError(f"{given}: expected MD5 {archive.md5}, got {found}: not the public archive, or damaged")
        _unpack(archive, given, target)
        if given.parent == cache:
            given.unlink()
    return target


def _download(archive: Archive, target: Path) -> None:
    """To a temporary file, which gets its name once the checksum is right."""
    request = urllib.request.Request(archive.url, headers={"User-Agent": "htaf"})
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{archive.file}-")
    try:
        digest = hashlib.md5(usedforsecurity=False)
        with os.fdopen(handle, "wb") as file, urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            size = int(response.headers.get("Content-Length") or 0)
            tell(f"downloading {archive.url} ({size / MB:.0f} MB) to {target.parent}")
            done = 0
            with progress(f"{archive.file}, MB", size // MB or None) as more:
                while block := response.read(BLOCK):
                    file.write(block)
                    digest.update(block)
                    more((done + len(block)) // MB - done // MB)
                    done += len(block)
        if size and done != size:
            raise http.client.HTTPException(f"the connection ended after {done:,} of {size:,} bytes")
        if digest.hexdigest() != archive.md5:
            raise DataError(
                f"{archive.url}: expected MD5 {archive.md5}, got {digest.hexdigest()}; "
                "what answered is not the public archive, or it was damaged on its way"
            )
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _unpack(archive: Archive, file: Path, target: Path) -> None:
    """Into a temporary folder beside the target, which then gets its name; no entry can leave that folder."""
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{archive.folder}-"))
    try:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as opened:
                opened.extractall(temporary)  # drops "..", drives and leading slashes itself
        else:
            with tarfile.open(file) as opened:
                opened.extractall(temporary, filter="data")
        wanted = temporary / archive.folder
        if not wanted.is_dir():
            came = listed(sorted(entry.name for entry in temporary.iterdir()), 5)
            raise DataError(f"{file}: expected a folder {archive.folder!r} in the archive, got {came or 'nothing'}")
        for beside in temporary.iterdir():  # CUB has attributes.txt beside its folder
            if beside.is_file() and not (wanted / beside.name).exists():
                os.replace(beside, wanted / beside.name)
        os.replace(wanted, target)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, OSError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{file}: cannot be unpacked: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
