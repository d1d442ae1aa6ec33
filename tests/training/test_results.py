"""Where results of cells lie: whole, once, in a folder or through fsspec."""

from __future__ import annotations

import errno
import os
import threading
import uuid
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from htaf.training.results import Results, StudyError


class Bucket(BaseHTTPRequestHandler):
    """As much of S3 as results need: objects are put, read and listed over HTTP."""

    objects: dict[str, bytes]

    def do_PUT(self) -> None:
        self.objects[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"", self.objects[self.path])

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        asked = parse_qs(parts.query)
        if "list-type" in asked:
            prefix = f"{parts.path.rstrip('/')}/{asked.get('prefix', [''])[0]}"
            found = [name for name in sorted(self.objects) if name.startswith(prefix)]
            rows = "".join(
                f"<Contents><Key>{name.split('/', 2)[2]}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                f'<ETag>"e"</ETag><Size>{len(self.objects[name])}</Size></Contents>'
                for name in found
            )
            return self._answer(200, f"<ListBucketResult>{rows}</ListBucketResult>".encode())
        data = self.objects.get(parts.path)
        return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>") if data is None else self._answer(200, data)

    def _answer(self, code: int, body: bytes, about: bytes | None = None) -> None:
        self.send_response(code)
        self.send_header("ETag", '"e"')
        self.send_header("Last-Modified", formatdate(usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an empty bucket of a server of its own."""
    handler = type("Own", (Bucket,), {"objects": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    given = {"ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "ALLOW_HTTP": "true", "REGION": "us-east-1"}
    for name, value in (given | {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret"}).items():
        monkeypatch.setenv(f"AWS_{name}", value)
    yield f"s3://bucket/{uuid.uuid4().hex}"
    server.shutdown()


@pytest.fixture(params=["folder", "memory", "file", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return request.getfixturevalue("bucket")
    return {"folder": str(tmp_path), "memory": f"memory://{uuid.uuid4().hex}", "file": f"file://{tmp_path}"}[
        request.param
    ]


def test_the_first_result_counts(place: str) -> None:
    results = Results(place)
    assert results.read("a") is None
    assert results.write("a", {"x": 1.5})
    assert not Results(place).write("a", {"x": 2.5})
    assert Results(place).read("a") == {"x": 1.5}


def test_a_damaged_result_is_named_and_kept(place: str) -> None:
    results = Results(place, lambda record: isinstance(record, dict) and "x" in record)
    results.write("a", {"y": 1})
    with pytest.raises(StudyError, match=r"cells/a.json is damaged: delete it to compute the cell again"):
        results.read("a")
    results._write_new("cells/b.json", b'{"x": 1')
    with pytest.raises(StudyError, match=r"cells/b.json is damaged"):
        results.read("b")
    assert results._read("cells/b.json") == b'{"x": 1'


def test_results_of_another_study(place: str) -> None:
    results = Results(place)
    with pytest.raises(StudyError, match=r"there is no queue.json; expected the folder or address"):
        results.expect_same("mine", "the store")
    assert results.token("mine") == "mine"
    assert results.token("later") == "mine"
    results.expect_same("mine", "the store")
    with pytest.raises(StudyError, match=r"another study than the queue in the store: expected token yours, got mine"):
        results.expect_same("yours", "the store")


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = Results(tmp_path)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device.*cells/a.json"):
        results.write("a", {})
    assert list((tmp_path / "cells").iterdir()) == []
    monkeypatch.undo()
    assert results.write("a", {})


def test_a_disk_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    assert Results(tmp_path).write("a", {"x": 1})
    assert [file.name for file in (tmp_path / "cells").iterdir()] == ["a.json"]


def test_an_address_of_no_file_system() -> None:
    with pytest.raises(StudyError, match=r"expected a folder or an address of fsspec, got what://x"):
        Results("what://x")
