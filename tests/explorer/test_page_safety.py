"""The explorer's page with hostile texts, damaged data, and no way out to other machines."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from htaf.concepts.explorer.build import build_page
from htaf.concepts.explorer.shown import Heading
from made_pages import HOSTILE, made_codes
from visits import Site, Visit, pictures

pytestmark = pytest.mark.slow
Open = Callable[..., Visit]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Site:
    codes = made_codes(90, 12, len(HOSTILE))
    ids = [
        HOSTILE[row // 3 % len(HOSTILE)] if row < 60 else f"{HOSTILE[row % len(HOSTILE)][:40]}{row}"
        for row in range(90)
    ]
    codes = replace(codes, classes=tuple(HOSTILE), ids=ids)
    folder = tmp_path_factory.mktemp("hostile") / "a 'page' #1 %"
    names = [
        {"concept": number, "name": text, "label_1": text, "label_0": text, "verified": number % 2 == 0, "reason": text,
         "justification": text, "source": "model", "model": text, "held_out": 0.9}
        for number, text in enumerate(HOSTILE)
    ]  # fmt: skip
    about = [(text, text) for text in HOSTILE]
    build_page(
        codes,
        folder,
        pixels=pictures,
        names=names,
        heading=Heading(HOSTILE[4], about=about, notes=HOSTILE),
    )
    return Site(folder, codes)


def test_hostile_texts_stay_texts_everywhere(hostile: Site, visit: Open) -> None:
    tab = visit(hostile, viewport={"width": 390, "height": 844})
    rooms = ["#/", "#/concepts", "#/concepts?as=table", "#/classes", "#/images"]
    views = [f"#/{kind}/{number}" for kind in ("concept", "class") for number in range(len(HOSTILE))]
    for address in [*rooms, *views, *[f"#/image/?row={row}" for row in range(0, 30, 3)]]:
        page = tab.go(address)
        assert page.evaluate("window.hit") is None
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, address
        assert page.locator("main script, main [onerror], main [onload], main a[href^='javascript']").count() == 0
        assert not any(mark in page.title() for mark in "\u202e\u2066\n")
        assert len(page.title()) < 200
        isolated = "all => all.every(one => getComputedStyle(one).unicodeBidi.startsWith('isolate'))"
        assert page.eval_on_selector_all("bdi", isolated)
        long = page.eval_on_selector_all(
            "main a, main h1, main th", "all => Math.max(0, ...all.map(one => one.textContent.length))"
        )
        assert long < 400, address
    page = tab.go("#/concept/0")
    assert page.inner_text("h1") == HOSTILE[0]
    page = tab.go("#/concept/6")
    page.click(".view-head summary")
    assert page.inner_text(".view-head details bdi") == HOSTILE[6]


def test_every_image_has_an_address_that_leads_to_it(hostile: Site, visit: Open) -> None:
    tab = visit(hostile)
    ids = hostile.shown.ids
    links = tab.go("#/images").eval_on_selector_all(".thumb > a", "all => all.map(a => a.getAttribute('href'))")
    assert len(links) == len(set(links)) == len(ids)
    for row in range(0, len(links), 2):
        tab.go(links[row])
        assert tab.page.locator("[data-logit]").count() > 0
        seen = tab.page.evaluate("htafExplorer.data.rowOf.get(htafExplorer.data.ids[0])")
        assert seen == 0
        tab.page.reload()
        tab.page.wait_for_selector("[data-logit]")
        here = tab.page.evaluate(
            "[...document.querySelectorAll('[data-logit]')].map(row => [+row.dataset.class, +row.dataset.logit])"
        )
        expected = tab.page.evaluate("row => htafExplorer.logits(row)", row)
        assert all(expected[k] == value for k, value in here)


@pytest.mark.parametrize("how", ["file", "http"])
def test_the_policy_lets_nothing_out(how: str, site: Site, visit: Open, served: Callable[[Path], str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(0.3)
        address = f"http://127.0.0.1:{other.getsockname()[1]}/"
        tab = visit(site if how == "file" else served(site.folder), check=False)
        page = tab.go()
        blocked = page.evaluate(
            """async (address) => {
                const seen = new Set();
                document.addEventListener('securitypolicyviolation', (event) => seen.add(event.effectiveDirective));
                await fetch(address, {signal: AbortSignal.timeout(300)}).catch(() => 0);
                try { new WebSocket(address.replace('http', 'ws')); } catch {}
                try { navigator.sendBeacon(address, 'x'); } catch {}
                try { new EventSource(address); } catch {}
                for (const tag of ['img', 'script', 'iframe', 'video', 'object']) {
                    const one = document.createElement(tag);
                    one[tag === 'object' ? 'data' : 'src'] = address;
                    document.body.append(one);
                }
                const style = document.createElement('link'); style.rel = 'stylesheet'; style.href = address;
                const inline = document.createElement('script'); inline.textContent = 'window.hit = 1';
                document.body.append(style, inline);
                document.body.style.backgroundImage = `url(${address}b.png)`;
                const form = document.createElement('form'); form.action = address; form.target = 'f';
                document.body.append(form); form.submit();
                await new Promise((done) => setTimeout(done, 500));
                return [...seen];
            }""",
            address,
        )
        expected = {
            "connect-src",
            "img-src",
            "script-src-elem",
            "style-src-elem",
            "frame-src",
            "media-src",
            "object-src",
        }
        assert expected | {"form-action"} <= set(blocked)
        assert page.evaluate("window.hit") is None
        assert said_to(other) == b""


def said_to(server: socket.socket) -> bytes:
    """What those said who came: the browser itself may open a connection early, but sends nothing over it."""
    said = b""
    try:
        while not said:
            came, _ = server.accept()
            came.settimeout(0.3)
            with came, contextlib.suppress(TimeoutError):
                said += came.recv(1000)
    except TimeoutError:
        pass
    return said


def broken(site: Site, folder: Path, name: str, text: str | None) -> str:
    shutil.copytree(site.folder, folder, dirs_exist_ok=True)
    file = folder / "data" / name
    if text is None:
        file.unlink()
    else:
        file.write_text(text.replace("WHOLE", file.read_text("ascii")[:500]))
    return (folder / "index.html").as_uri()


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("page.js", None, "data/page.js is missing"),
        ("rows.js", None, "data/rows.js is missing"),
        ("bits-0000.js", None, "data/bits-0000.js is missing"),
        ("rows.js", 'htafData("rows", 5);', "expected an object in data/rows.js"),
        ("arrays.js", "WHOLE", "data/arrays.js is damaged"),
        ("concepts.js", "", "data/concepts.js is damaged"),
        ("page.js", 'htafData("page", {"format": 4});', "expected data of format 3, got 4"),
        ("page.js", 'htafData("page", null);', "expected an object in data/page.js"),
        ("concepts.js", 'htafData("concepts", []);', "expected 21 entries, got 0"),
        ("arrays.js", 'htafData("arrays", {});', "expected the array related, which is missing"),
    ],
)
def test_damaged_data_is_said(name: str, text: str | None, why: str, site: Site, visit: Open, tmp_path: Path) -> None:
    tab = visit(broken(site, tmp_path / "b", name, text), check=False)
    tab.page.goto(tab.home)
    tab.page.wait_for_selector("[role=alert]")
    assert why in tab.page.inner_text("[role=alert]")


@pytest.mark.parametrize("stored", ["", "[", "null", "[1]", '{"0": 5, "99": {"name": "x"}, "1": {"name": 7}}'])
def test_a_damaged_store_of_names_is_survived(stored: str, hostile: Site, visit: Open) -> None:
    tab = visit(hostile)
    page = tab.go("#/concepts?as=table")
    page.evaluate("text => localStorage.setItem(`htaf-names:${htafExplorer.data.page.key}`, text)", stored)
    page.reload()
    page.wait_for_selector("tr[data-concept]")
    assert page.locator("tr[data-concept]").count() == 12


def test_pictures_that_are_missing_are_said(site: Site, visit: Open, tmp_path: Path) -> None:
    shutil.copytree(site.folder, tmp_path / "s")
    for sheet in (tmp_path / "s" / "data").glob("*.webp"):
        sheet.unlink()
    tab = visit((tmp_path / "s" / "index.html").as_uri(), check=False)
    page = tab.go("#/images")
    page.wait_for_selector("text=no picture")
    assert page.locator("[role=img][aria-label^='Image ']").count() == len(site.shown)
