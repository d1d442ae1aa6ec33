"""The page served: its files to this machine's browser, nothing else to anyone."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPMessage
from pathlib import Path

import pytest

from htaf.concepts.codes import ConceptError
from htaf.explorer.folder import FORMAT
from htaf.explorer.scripts import script
from htaf.explorer.serve import PageServer


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder that looks like a page, with a secret beside it."""
    (tmp_path / "secret.txt").write_text("secret")
    made = tmp_path / "page"
    (made / "data").mkdir(parents=True)
    (made / "index.html").write_text("<!doctype html>ä")
    (made / "app.js").write_text("1")
    (made / "app.css").write_text("a{}")
    (made / ".htaf-explorer").write_text("format 1")
    (made / "data" / "page.js").write_text(script("page", {"format": FORMAT}))
    (made / "data" / "sprite-0000.webp").write_bytes(b"RIFF")
    (made / "out.txt").symlink_to(tmp_path / "secret.txt")
    return made


@pytest.fixture
def server(out: Path) -> Iterator[PageServer]:
    with PageServer(out, 0) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(server: PageServer, path: str, host: str | None = "", method: str = "GET") -> tuple[int, HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=5)
    connection.putrequest(method, path, skip_host=True)
    if host is not None:
        connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, answer.headers, answer.read()
    connection.close()
    return found


@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        ("/", "text/html; charset=utf-8", "<!doctype html>ä".encode()),
        ("/index.html", "text/html; charset=utf-8", "<!doctype html>ä".encode()),
        ("/index.html?a=b", "text/html; charset=utf-8", "<!doctype html>ä".encode()),
        ("/app.js", "text/javascript; charset=utf-8", b"1"),
        ("/app.css", "text/css; charset=utf-8", b"a{}"),
        ("/data/sprite-0000.webp", "image/webp", b"RIFF"),
        ("/%61pp.js", "text/javascript; charset=utf-8", b"1"),
    ],
)
def test_files_of_the_page(server: PageServer, path: str, kind: str, body: bytes) -> None:
    status, headers, data = ask(server, path)
    assert (status, headers["Content-Type"], data) == (200, kind, body)
    assert int(headers["Content-Length"]) == len(body)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "default-src 'self'" in headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    "path",
    [
        *("/../secret.txt", "/%2e%2e/secret.txt", "/data/..%2f..%2fsecret.txt", "/data/%2e%2e/%2e%2e/secret.txt"),
        *("//secret.txt", "/out.txt", "/.htaf-explorer", "/..\\secret.txt", "/%00", "/data", "/data/", "/nothing"),
        *("http://127.0.0.1/secret.txt", "/data//page.js", "/%ff%fe", "/" + "a" * 5000, "secret.txt", "*"),
    ],
)
def test_nothing_else(server: PageServer, path: str) -> None:
    status, _, data = ask(server, path)
    assert status == 404
    assert b"secret" not in data
    assert b"page.js" not in data


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{}", "127.0.0.1.evil.example:{}", None, "127.0.0.1:1"])
def test_a_site_whose_name_points_here_is_refused(server: PageServer, host: str | None) -> None:
    status, _, data = ask(server, "/data/page.js", host and host.format(server.server_port))
    assert status == 403
    assert b"htafData" not in data


def test_a_head_without_its_body(server: PageServer) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=5) as connection:
        connection.sendall(f"HEAD / HTTP/1.0\r\nHost: localhost:{server.server_port}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
    assert b"\r\nContent-Length: 17\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


def test_localhost_is_a_name_of_this_machine(server: PageServer) -> None:
    assert ask(server, "/app.js", f"LocalHost:{server.server_port}")[0] == 200


def test_nothing_is_written(server: PageServer) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(server, "/app.js", method=method)[0] == 501


def test_only_this_machine_can_connect(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_port}/"


def test_garbage_does_not_stop_it(server: PageServer, capfd: pytest.CaptureFixture[str]) -> None:
    for data in (b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b""):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=5) as connection:
            connection.sendall(data)
    assert ask(server, "/")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_a_port_that_is_taken(out: Path) -> None:
    with PageServer(out, 0) as first, PageServer(out, first.server_port) as second:
        assert first.server_port < second.server_port < first.server_port + 20


def test_no_port_is_free(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("htaf.explorer.serve.TRIED", 1)
    with PageServer(out, 0) as first, pytest.raises(ConceptError, match=r"expected a free port .*: Address already in"):
        PageServer(out, first.server_port)
    for port in (-1, 65536):
        with pytest.raises(ConceptError, match=f"expected a port in 0 to 65535, got {port}"):
            PageServer(out, port)


def test_a_folder_without_a_page(tmp_path: Path) -> None:
    with pytest.raises(ConceptError, match="found no whole page at"):
        PageServer(tmp_path, 0)
