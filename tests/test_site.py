"""The site of `make docs` is built without a warning, and its links lead somewhere; test_examples runs the examples."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest
from bs4 import BeautifulSoup

from htaf.concepts.discovery import Discovery

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_site_is_built_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    words = ["-q", "-W", "--keep-going", "-D", "plot_gallery=0", "-d", str(tmp_path / "kept"), "-c", "docs", "."]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *words, str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    pages = {
        page: BeautifulSoup(page.read_text(), "html.parser") for page in sorted((tmp_path / "site").rglob("*.html"))
    }
    anchors = {page: {tag["id"] for tag in soup.find_all(id=True)} for page, soup in pages.items()}
    dead = []
    for page, soup in pages.items():
        for tag in soup.find_all(href=True) + soup.find_all(src=True):
            link, anchor = urldefrag(str(tag.get("href") or tag.get("src")))
            if "://" in link or link.startswith(("mailto:", "data:")):
                continue
            to = (page.parent / unquote(link.partition("?")[0])).resolve() if link else page
            if not to.exists() or (anchor and to in anchors and unquote(anchor) not in anchors[to]):
                dead.append(f"{page.relative_to(tmp_path)}: {link}#{anchor}")
    assert not dead, dead
    assert len(pages) > 100
    shown = {page.name for page in pages}
    assert {"README.html", "htaf.replace.html", "01_own_model.html"} <= shown


def test_a_page_that_an_example_writes_is_on_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    live = importlib.import_module("live")
    monkeypatch.setattr(live, "PLACE", tmp_path / "live")
    (tmp_path / "explorer").mkdir()
    (tmp_path / "explorer" / "index.html").write_text("the page")
    none: Any = None
    found = Discovery(run=none, codes=none, page=tmp_path / "explorer" / "index.html", summary={})
    shared = {"example_globals": {"x": 1, "found": found}, "src_file": "examples/03_concepts.py"}
    assert live.pages(("code", "print(found.run)", 1), shared, {}) == ""
    assert '"../../03_concepts/index.html"' in live.pages(("code", "print(found.page)", 1), shared, {})
    assert (tmp_path / "live/03_concepts/index.html").read_text() == "the page"
