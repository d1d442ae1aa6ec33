"""Names that are edited on the explorer's page, kept, exported and read back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from htaf.concepts.explorer.build import build_page
from htaf.concepts.naming.files import read_names
from visits import Site, Visit, pictures, until

pytestmark = pytest.mark.slow
Open = Callable[..., Visit]


def test_names_are_edited_kept_exported_and_read_back(site: Site, visit: Open, tmp_path: Path) -> None:
    tab = visit(site)
    page = tab.go("#/concept/7")
    page.click("text=Edit name")
    page.fill("input[name=name]", '=HYPERLINK("x"), it\'s\u202e')
    page.fill("input[name=label_1]", "with")
    page.keyboard.press("Enter")
    page.wait_for_selector(".badge.edited")
    page.reload()
    page.wait_for_selector(".names-bar.edited")
    assert page.inner_text("h1") == '=HYPERLINK("x"), it\'s\\u202e', "kept as it is, shown letter by letter"
    with page.expect_download() as download:
        page.click("text=Export JSON")
    download.value.save_as(tmp_path / "names.json")
    names = read_names(tmp_path / "names.json", 21)
    assert [entry["concept"] for entry in names] == list(range(21))
    edited, given = names[7], names[3]
    assert (edited["name"], edited["label_1"], edited["label_0"]) == ('=HYPERLINK("x"), it\'s\u202e', "with", None)
    assert (edited["source"], edited["verified"], edited["held_out"]) == ("hand", False, None)
    assert edited["reason"] == "named by hand, not checked"
    assert (given["name"], given["verified"], given["held_out"], given["source"]) == (
        "smooth bark",
        True,
        0.93,
        "model",
    )
    assert given["justification"] == "as birches"
    assert names[4]["reason"] == "held-out balanced accuracy 0.61 < 0.75"

    page.once("dialog", lambda dialog: dialog.accept())
    page.click("text=Discard")
    until(page, "() => document.querySelector('h1').textContent === 'Unnamed'")
    page.click("header nav >> text=Concepts")
    page.set_input_files("input[type=file]", tmp_path / "names.json")
    page.wait_for_selector("text=21 names read, 1 other than the data's")
    page.click("[data-concept='7'] h2 a")
    page.wait_for_selector(".badge.edited")
    page.click("text=Reset to the data's name")
    page.wait_for_selector("text=Nobody has named this concept.")
    assert page.evaluate("Object.keys(localStorage).filter(key => key.startsWith('htaf-names'))") == []


def test_an_edit_that_the_data_took_over_is_forgotten(site: Site, visit: Open, tmp_path: Path) -> None:
    """Rename, export, check by the command, build again: the browser must not hide the check."""
    page = visit(site, check=False).go("#/concept/7")  # goes on to another folder
    page.click("text=Edit name")
    page.fill("input[name=name]", "thorns")
    page.keyboard.press("Enter")
    page.wait_for_selector(".badge.edited")
    checked = {"concept": 7, "name": "thorns", "verified": True, "reason": "", "held_out": 0.95, "source": "hand"}
    build_page(site.codes, tmp_path / "page", pixels=pictures, names=[checked | {"checked_by": "some model"}])
    page.goto(Site(tmp_path / "page", site.codes).index + "#/concept/7")
    page.wait_for_selector(".badge.verified")
    text = page.inner_text("section[aria-labelledby=check]")
    assert "None was held out" in text
    assert "some model" in text
    assert page.locator(".names-bar.edited").count() == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[{"number": 1, "name": "a"}]', "with concept and name"),
        ('[{"concept": 21, "name": "a"}]', "entry 1: expected a concept in 0 to 20, got 21"),
        ('[{"concept": 1, "name": "a"}, {"concept": 1, "name": "b"}]', "again"),
        ('[{"concept": 1, "name": 2}]', "expected text for name"),
        ('[{"concept": 1', "expected JSON"),
        (b'[{"concept": 1, "name": "\xff"}]', "expected UTF-8"),
    ],
)
def test_a_file_of_other_names_changes_nothing(
    text: str | bytes, why: str, site: Site, visit: Open, tmp_path: Path
) -> None:
    page = visit(site).go("#/concepts")
    (tmp_path / "n.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    page.set_input_files("input[type=file]", tmp_path / "n.json")
    page.wait_for_selector(".told.warn")
    assert why in page.inner_text(".told")
    assert page.locator(".names-bar.edited").count() == 0
