"""A real Chromium, a tab of it at a page, and what goes wrong in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from htaf.concepts.codes import Codes, codes_of

ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


@dataclass
class Visit:
    """A tab, its address, and what went wrong in it."""

    page: Any
    home: str
    errors: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def go(self, address: str = "#/") -> Any:
        """Open a view as a visitor does who follows a link from elsewhere."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.home}{address}")
        self.page.wait_for_selector("main h1")
        return self.page

    def check(self) -> None:
        """Nothing was said on the console, nothing was asked for elsewhere."""
        assert self.errors == []
        base = self.home.rpartition("/")[0] + "/"
        assert [address for address in self.asked if not address.startswith((base, "data:", "about:", "blob:"))] == []


def until(page: Any, script: str, value: Any = None) -> None:
    """Wait for a function of the page to be true; Playwright's own wait needs the eval that the page forbids.

    While a view is drawn its elements are not there: an error of the function then means "not yet".
    """
    from playwright.sync_api import Error

    said = ""
    for _ in range(300):
        try:
            if page.evaluate(script, value):
                return
            said = ""
        except Error as error:
            said = f": {error.message}"
        page.wait_for_timeout(50)
    raise AssertionError(f"waited 15 s for {script}, with {value}{said}")


def pictures(ids: Any) -> np.ndarray:
    """Grey images of 8 x 8, each of another shade."""
    shades = np.arange(len(ids), dtype=np.uint8)
    return np.broadcast_to(shades[:, None, None, None], (len(ids), 1, 8, 8)).copy()


@dataclass(frozen=True)
class Site:
    """A folder with a page, and the codes that it shows: its images are those of the part test."""

    folder: Path
    codes: Codes

    @property
    def shown(self) -> Codes:
        return self.codes.part("test")

    @property
    def index(self) -> str:
        return (self.folder / "index.html").as_uri()


def with_dead(codes: Codes, concept: int) -> Codes:
    """The same codes; nobody has the concept."""
    values = codes.unpack().astype(bool)
    values[:, concept] = False
    return codes_of(
        values,
        codes.labels,
        codes.weight,
        codes.bias,
        classes=codes.classes,
        parts=np.asarray(codes.parts),
        ids=codes.ids,
    )


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
