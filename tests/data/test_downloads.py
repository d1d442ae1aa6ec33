"""Public archives from a real server: whole, wrong, cut short, unreachable; nothing half-done is left behind."""

import hashlib
import http.server
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from htaf.data.downloads import Archive, obtain
from htaf.data.reading import DataError

CONTENT = {"birds/list.txt": b"1 a\n", "birds/images/x.png": b"pixels", "attributes.txt": b"beak\n"}


def tar_of(content: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        for name, data in content.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            file.addfile(entry, io.BytesIO(data))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            file.addfile(entry)
    return buffer.getvalue()


def zip_of(content: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, data in content.items():
            file.writestr(name, data)
    return buffer.getvalue()


class Server:
    """Serves `files`; `short` ones end after half of their bytes, `asked` lists the paths that were asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.short: set[str] = set()
        self.asked: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                data = outer.files.get(self.path)
                if data is None:
                    self.send_error(404, "Not Found")
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[: len(data) // 2] if self.path in outer.short else data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.home = f"http://127.0.0.1:{self.http.server_address[1]}"

    def offer(self, path: str, data: bytes, md5: str | None = None) -> Archive:
        self.files[path] = data
        return Archive("birds", self.home + path, md5 or hashlib.md5(data).hexdigest())


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    made = Server()
    thread = threading.Thread(target=made.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.http.shutdown()
    thread.join()
    made.http.server_close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HTAF_DATA", raising=False)
    return tmp_path / "cache" / "htaf"


def left(cache: Path) -> list[str]:
    """What is in the cache beside the lock."""
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


@pytest.mark.parametrize(("path", "make"), [("/birds.tgz", tar_of), ("/a/birds.zip", zip_of)])
def test_downloaded_checked_unpacked_once(server: Server, cache: Path, path: str, make, capsys) -> None:
    archive = server.offer(path, make(CONTENT))
    folder = obtain("birds", archive, None, True)
    assert folder == cache / "birds"
    assert (folder / "images" / "x.png").read_bytes() == b"pixels"
    assert (folder / "attributes.txt").read_bytes() == b"beak\n"  # CUB has it beside its folder
    assert left(cache) == ["birds"]
    assert f"downloading {archive.url}" in capsys.readouterr().err
    assert obtain("birds", archive, None, True) == folder
    assert obtain("birds", archive, None, False) == folder
    assert server.asked == [path]
    assert capsys.readouterr() == ("", "")


def test_wrong_checksum(server: Server, cache: Path) -> None:
    archive = server.offer("/birds.tgz", tar_of(CONTENT), md5="0" * 32)
    with pytest.raises(DataError, match=rf"{archive.url}: expected MD5 0{{32}}, got [0-9a-f]{{32}}; what answered"):
        obtain("birds", archive, None, True)
    assert left(cache) == []


def test_cut_short(server: Server, cache: Path) -> None:
    archive = server.offer("/birds.tgz", tar_of(CONTENT))
    server.short.add("/birds.tgz")
    size = len(server.files["/birds.tgz"])
    with pytest.raises(DataError, match=f"the connection ended after {size // 2} of {size} bytes"):
        obtain("birds", archive, None, True)
    assert left(cache) == []
    server.short.clear()
    assert obtain("birds", archive, None, True).is_dir()


def test_unreachable_says_where_to_put_what(server: Server, cache: Path, tmp_path: Path) -> None:
    missing = Archive("birds", server.home + "/gone.tgz", "0" * 32)
    with pytest.raises(DataError, match=r"not downloaded \(Not Found\)"):
        obtain("birds", missing, None, True)
    server.http.server_close()
    nobody = Archive("birds", "http://127.0.0.1:9/birds.tgz", "0" * 32)
    with pytest.raises(DataError) as caught:
        obtain("birds", nobody, tmp_path, True)
    message = str(caught.value)
    assert message.startswith(f"birds: birds not found in '{tmp_path}', '{cache}' and not downloaded (")
    assert message.endswith(
        "; download http://127.0.0.1:9/birds.tgz, put it (or the folder birds that it unpacks to) into a folder "
        "and name that folder in HTAF_DATA or --data-dir"
    )
    assert "\n" not in message
    with pytest.raises(DataError, match="and no download wanted; download http"):
        obtain("birds", nobody, None, False)
    assert left(cache) == []


def test_folders_in_order(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive("birds", "http://host.invalid/birds.tgz", "0" * 32)
    for folder in (cache, tmp_path / "variable", tmp_path / "given"):
        (folder / "birds").mkdir(parents=True)
    assert obtain("birds", archive, None, True) == cache / "birds"
    monkeypatch.setenv("HTAF_DATA", str(tmp_path / "variable"))
    assert obtain("birds", archive, None, True) == tmp_path / "variable" / "birds"
    assert obtain("birds", archive, tmp_path / "given", True) == tmp_path / "given" / "birds"
    assert obtain("birds", archive, tmp_path / "given" / "birds", True) == tmp_path / "given" / "birds"
    with pytest.raises(DataError, match=f"data_dir: expected a folder, got '{tmp_path / 'absent'}'"):
        obtain("birds", archive, tmp_path / "absent", True)


def test_an_archive_that_was_put_there(tmp_path: Path, cache: Path) -> None:
    data = tar_of(CONTENT)
    (tmp_path / "birds.tgz").write_bytes(data)
    good = Archive("birds", "http://host.invalid/birds.tgz", hashlib.md5(data).hexdigest())
    with pytest.raises(DataError, match=r"birds.tgz: expected MD5 0{32}, got .*: not the public archive, or damaged"):
        obtain("birds", Archive("birds", good.url, "0" * 32), tmp_path, False)
    assert obtain("birds", good, tmp_path, False) == cache / "birds"
    assert (tmp_path / "birds.tgz").exists()
    assert left(cache) == ["birds"]


@pytest.mark.parametrize(
    ("content", "links"),
    [
        ({"birds/a": b"1", "../escaped": b"2"}, {}),
        ({"birds/a": b"1"}, {"birds/link": "../../outside"}),
        ({"birds/a": b"1"}, {"birds/link": "/etc"}),
    ],
)
def test_tar_entries_that_leave_are_refused(
    server: Server, cache: Path, content: dict[str, bytes], links: dict[str, str]
) -> None:
    archive = server.offer("/birds.tgz", tar_of(content, links))
    with pytest.raises(DataError, match="cannot be unpacked"):
        obtain("birds", archive, None, True)
    assert left(cache) == ["birds.tgz"]
    assert not list(cache.parent.rglob("escaped"))


def test_absolute_tar_entries_become_relative(server: Server, cache: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside" / "file"
    archive = server.offer("/birds.tgz", tar_of({"birds/a": b"1", str(outside): b"2"}))
    obtain("birds", archive, None, True)
    assert left(cache) == ["birds"]
    assert not outside.exists()


def test_zip_entries_stay_inside(server: Server, cache: Path) -> None:
    archive = server.offer("/birds.zip", zip_of({"birds/a": b"1", "../escaped": b"2", "/escaped2": b"3"}))
    obtain("birds", archive, None, True)
    assert left(cache) == ["birds"]
    assert not list(cache.glob("escaped*"))
    assert not list(cache.parent.glob("escaped*"))


def test_archives_that_hold_something_else(server: Server, cache: Path) -> None:
    with pytest.raises(DataError, match="expected a folder 'birds' in the archive, got 'cats'"):
        obtain("birds", server.offer("/birds.tgz", tar_of({"cats/a": b"1"})), None, True)
    (cache / "birds.tgz").unlink()
    with pytest.raises(DataError, match=r"birds2.tgz: cannot be unpacked"):
        obtain("birds", server.offer("/birds2.tgz", b"<html>moved</html>"), None, True)
    assert not (cache / "birds").exists()


def test_a_cache_that_cannot_be_written(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    archive = server.offer("/birds.tgz", tar_of(CONTENT))
    with pytest.raises(DataError, match=r"file/htaf: expected a folder that can be written, got .*XDG_CACHE_HOME"):
        obtain("birds", archive, None, True)
    assert server.asked == []


def test_many_at_once_download_once(server: Server) -> None:
    archive = server.offer("/birds.tgz", tar_of(CONTENT))
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: obtain("birds", archive, None, True), range(4)))
    assert len(folders) == 1
    assert server.asked == ["/birds.tgz"]
