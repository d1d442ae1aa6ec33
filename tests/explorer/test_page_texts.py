"""The explorer's page of texts, links and rows: their words, their cards, and where links lead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from htaf.concepts.explorer.build import build_page
from htaf.concepts.explorer.shown import Heading, Items
from made_pages import HOSTILE, made_codes, read_page, read_script
from visits import Site, Visit, until

Open = Callable[..., Visit]
LINKS = {"https://example.org/a?b=%3Cc%3E": True, "http://example.org": True, "HTTPS://example.org/<b>": True,
         "javascript:alert(1)": False, "data:text/html,x": False, "//example.org": False, "ftp://example.org": False,
         "https://example.org and more": False, "https://": False}  # fmt: skip
LONG = "a long text of words. " * 400


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Site:
    codes = made_codes(names=("ash", "birch", "cedar", "dogwood", "elm"))
    shown = codes.part("test")
    said = [*LINKS, LONG, *HOSTILE, *(f"the text number {row}\nand its second line" for row in range(40))]
    folder = tmp_path_factory.mktemp("texts") / "page"
    by_id = dict(zip(shown.ids, said, strict=False))
    build_page(codes, folder, items=Items("text", by_id), heading=Heading("Sayings"))
    return Site(folder, codes)


def row_of(site: Site, text: str) -> int:
    return [*LINKS, LONG, *HOSTILE].index(text)


def test_texts_are_in_the_data_in_the_order_of_their_rows(texts: Site) -> None:
    page = read_page(texts.folder)
    assert page["page"]["items"] == {"kind": "text", "texts": True}
    assert page["page"]["sprites"] is None
    assert read_script(texts.folder / "data" / "texts-0000.js")[:9] == [*LINKS]
    said = [*page["page"]["notes"], *(score["help"] for score in page["page"]["scores"])]
    assert any("training texts" in one for one in said)
    assert not [one for one in said if "image" in one]


def test_long_texts_come_in_files_of_a_megabyte(tmp_path: Path) -> None:
    codes = made_codes()
    build_page(codes, tmp_path, items=Items("text", dict.fromkeys(codes.ids, "x" * 100_000)))
    files = sorted((tmp_path / "data").glob("texts-*.js"))
    assert len(files) == 4
    assert sum(len(read_script(file)) for file in files) == 40
    build_page(codes, tmp_path)
    assert not [*(tmp_path / "data").glob("texts-*.js")]


@pytest.mark.slow
def test_a_card_is_the_text_and_leads_to_the_whole(texts: Site, visit: Open) -> None:
    tab = visit(texts, viewport={"width": 390, "height": 844})
    page = tab.go("#/images")
    cards = page.locator(".grid.texts .thumb .text-card")
    assert cards.count() == 40
    row = row_of(texts, LONG)
    assert 250 < len(cards.nth(row).inner_text()) < 310
    assert cards.nth(row).bounding_box()["height"] < 150
    cards.nth(row).click()
    until(page, "() => document.querySelector('.text-card.whole')?.textContent.length > 4000")
    page.click(".text-card.whole summary")
    assert page.text_content(".text-card.whole .rest p") == LONG
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


@pytest.mark.slow
def test_only_addresses_of_the_web_are_links(texts: Site, visit: Open) -> None:
    tab = visit(texts)
    for row, (text, is_link) in enumerate(LINKS.items()):
        found = tab.go(f"#/image/?row={row}").locator("main .text-card.whole a")
        assert found.count() == is_link, text
        if is_link:
            assert found.get_attribute("rel") == "noopener noreferrer"
            assert found.get_attribute("href").startswith(("http://example.org/", "https://example.org/"))
    assert tab.go("#/images").locator(".thumb .out").count() == 3


@pytest.mark.slow
def test_hostile_texts_stay_texts(texts: Site, visit: Open) -> None:
    tab = visit(texts, viewport={"width": 390, "height": 844})
    first = row_of(texts, HOSTILE[0])
    for address in ["#/images", *(f"#/image/?row={row}" for row in range(first, first + len(HOSTILE)))]:
        page = tab.go(address)
        assert page.evaluate("window.hit") is None
        assert page.locator("main img, main script, main svg, main [onerror], a[href^='javascript' i]").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, address
    assert "<img src=x onerror" in tab.go(f"#/image/?row={first}").inner_text(".text-card.whole")


@pytest.mark.slow
def test_the_page_speaks_of_texts(texts: Site, visit: Open) -> None:
    tab = visit(texts)
    rooms = ["#/", "#/concepts", "#/concepts?as=table", "#/concept/3", "#/classes", "#/class/1", "#/confusion"]
    for address in [*rooms, "#/pair?a=0&b=2", "#/images", "#/image/?row=30", "#/off?off=3", "#/glossary"]:
        page = tab.go(address)
        words = page.inner_text("body").lower().replace("#/image/", "")  # a hostile text has it
        assert "text" in words
        assert "image" not in words, address
        assert "picture" not in words or address == "#/glossary", address
    assert "an text" not in tab.go("#/").inner_text("body")


@pytest.mark.slow
def test_texts_are_searched(texts: Site, visit: Open) -> None:
    page = visit(texts).go("#/images")
    page.fill("input[type=search]", "NUMBER 12")
    until(page, "() => document.querySelectorAll('.thumb').length === 1")
    assert page.inner_text(".thumb .text-card") == "the text number 12 and its second line"
