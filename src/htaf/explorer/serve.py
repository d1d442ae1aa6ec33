"""A page served to the browser of this machine alone."""

from __future__ import annotations

import io
import sys
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

from htaf.concepts.codes import ConceptError
from htaf.explorer.folder import INDEX, head_of

ADDRESS = "127.0.0.1"
TRIED = 20  # ports from the first one on
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".webp": "image/webp",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
    ".csv": "text/csv; charset=utf-8",
    ".json": "application/json",
}
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",  # a page that was built again is shown at once
    "Cross-Origin-Resource-Policy": "same-origin",  # data files are scripts: other sites must not load them
    "Content-Security-Policy": "default-src 'self' 'unsafe-inline' data: blob:; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}


class PageServer(ThreadingHTTPServer):
    """Serves the files of one folder on 127.0.0.1; `serve_forever()` until it is interrupted.

    Args:
        folder: that `htaf.explorer.build.build_page` wrote.
        port: the first to try; where it is taken, the next free one of 20. 0: any free one.

    Raises:
        ConceptError: no whole page in the folder; a port that is none; no free port.
    """

    daemon_threads = True
    allow_reuse_address = sys.platform != "win32"  # there it would let two servers share a port

    def __init__(self, folder: str | Path, port: int = 8000) -> None:
        self.folder = Path(folder).resolve()
        if head_of(self.folder) is None:
            raise ConceptError(f"expected a folder that htaf explore wrote, found no whole page at {folder}")
        if not 0 <= port <= 65535:
            raise ConceptError(f"expected a port in 0 to 65535, got {port}")
        last, problem = (min(65535, port + TRIED - 1) if port else 0), ""
        for tried in range(port, last + 1):
            try:
                super().__init__((ADDRESS, tried), _Handler)
            except OSError as error:
                problem = error.strerror or str(error)
            else:
                return
        raise ConceptError(f"expected a free port in {port} to {last} on {ADDRESS}: {problem}")

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing to say of a browser that closed a connection."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class _Handler(SimpleHTTPRequestHandler):
    server: PageServer  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout = 30  # seconds that a silent connection is kept
    server_version, sys_version = "htaf", ""
    extensions_map = KINDS

    def send_head(self) -> io.BytesIO | BinaryIO | None:
        if not self._is_ours():
            return self.send_error(HTTPStatus.FORBIDDEN, "expected a request for 127.0.0.1 or localhost")
        del self.headers["If-Modified-Since"]  # a page may be built twice in a second
        return super().send_head()

    def _is_ours(self) -> bool:
        """Whether the browser meant this address: a site whose name is made to point here must not read the page."""
        port = self.server.server_port
        hosts = {f"{name}:{port}" for name in (ADDRESS, "localhost")}
        return self.headers.get("Host", "").lower() in (hosts | {ADDRESS, "localhost"} if port == 80 else hosts)

    def translate_path(self, path: str) -> str:
        """The file of the folder that a request names; "" for anything else: hidden ones, folders, links out."""
        path = unquote(path.partition("?")[0].partition("#")[0])
        if not path.startswith("/"):
            return ""
        steps = path.split("/")[1:]
        if any(step.startswith(".") or any(mark in step for mark in "\\:") for step in steps) or "" in steps[:-1]:
            return ""
        try:
            file = self.server.folder.joinpath(*steps[:-1], steps[-1] or INDEX).resolve()
            return str(file) if file.is_relative_to(self.server.folder) and file.is_file() else ""
        except (OSError, ValueError):  # names that no file system takes
            return ""

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal is not for every request."""
