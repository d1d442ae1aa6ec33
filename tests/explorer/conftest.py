"""A real Chromium, a small page, and a server of folders."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from visits import Site, Visit, pictures, with_dead

from htaf.explorer import folder
from htaf.explorer.beside import Beside
from htaf.explorer.build import build_page
from htaf.explorer.shown import Heading
from made_pages import made_codes

ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


@pytest.fixture
def stand_in(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page of three small files in place of the real one."""
    made = tmp_path_factory.mktemp("page")
    for name in ("index.html", "app.js", "app.css"):
        (made / name).write_text(name)
    monkeypatch.setattr(folder, "PAGE", made)
    return made


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync = pytest.importorskip("playwright.sync_api")
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("expected chromium in PATH, or its path in CHROMIUM")
        pytest.skip("expected chromium in PATH, or its path in CHROMIUM")
    with sync.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """40 images with 21 concepts, some named; concept 20 is dead."""
    codes = made_codes(names=("ash", "birch", "cedar", "dogwood", "elm"))
    codes = with_dead(codes, 20)
    out = tmp_path_factory.mktemp("page") / "site"
    names = [
        {"concept": 3, "name": "smooth bark", "verified": True, "reason": "", "held_out": 0.93, "p_value": 0.01,
         "agreement": 0.9, "source": "model", "label_1": "smooth", "label_0": "rough", "justification": "as birches"},
        {"concept": 4, "name": "large leaf", "verified": False, "reason": "held-out balanced accuracy 0.61 < 0.75",
         "held_out": 0.61, "p_value": 0.2, "agreement": 0.7, "source": "attributes"},
    ]  # fmt: skip
    build_page(codes, out, pixels=pictures, names=names, heading=Heading("Trees", about=[("Run", "r")]), seconds=5.0,
               beside=Beside(made_codes(concepts=13, names=codes.classes), "another run"))  # fmt: skip
    return Site(out, codes)


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visit]]:
    """Open a tab: visit(site) from disk, visit(address) from elsewhere; at the end each is checked."""
    opened: list[tuple[Visit, Any]] = []

    def open_(where: Site | str, *, check: bool = True, **settings: Any) -> Visit:
        context = browser.new_context(accept_downloads=True, **settings)
        page = context.new_page()
        page.set_default_timeout(60_000)  # a machine that is busy with other tests too
        made = Visit(page, where if isinstance(where, str) else where.index)
        page.on("console", lambda said: said.type in ("error", "warning") and made.errors.append(said.text))
        page.on("pageerror", lambda error: made.errors.append(str(error)))
        context.on("request", lambda request: made.asked.append(request.url))
        opened.append((made, context if check else None))
        return made

    yield open_
    for made, checked in opened:
        made.page.context.close()
        if checked is not None:
            made.check()


@pytest.fixture
def served() -> Iterator[Callable[[Path], str]]:
    """Serve a folder on this machine; gives the address of its index.html."""
    servers: list[http.server.ThreadingHTTPServer] = []

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    def serve(folder: Path) -> str:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/index.html"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()
