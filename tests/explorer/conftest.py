"""A small page, and a server of folders."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from htaf.concepts.explorer import folder
from htaf.concepts.explorer.build import build_page
from htaf.concepts.explorer.shown import Heading
from made_pages import made_codes
from visits import Site, pictures, with_dead


@pytest.fixture
def stand_in(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page of three small files in place of the real one."""
    made = tmp_path_factory.mktemp("page")
    for name in ("index.html", "app.js", "app.css"):
        (made / name).write_text(name)
    monkeypatch.setattr(folder, "PAGE", made)
    return made


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
    build_page(codes, out, pixels=pictures, names=names, heading=Heading("Trees", about=[("Run", "r")]))
    return Site(out, codes)


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
