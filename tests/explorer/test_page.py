"""The explorer's page in a real browser: views, search, flips, logits, addresses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import torch

from htaf.concepts.codes import codes_of
from htaf.concepts.explorer.build import build_page
from made_pages import read_page
from visits import Site, Visit, pictures, until

pytestmark = pytest.mark.slow
Open = Callable[..., Visit]


def image(site: Site, row: int, more: str = "") -> str:
    return f"#/image/{quote(site.shown.ids[row], safe='')}{more}"


def logits_on(page: Any, classes: int) -> np.ndarray:
    """Of each class, as the table holds them."""
    found = page.eval_on_selector_all("[data-logit]", "all => all.map(row => [+row.dataset.class, +row.dataset.logit])")
    values = np.full(classes, np.nan)
    for k, value in found:
        values[k] = value
    return values


def number(text: str) -> float:
    return float(text.replace("\u2212", "-"))


def concepts_on(page: Any) -> list[int]:
    return page.eval_on_selector_all("tbody tr[data-concept]", "all => all.map(row => +row.dataset.concept)")


@pytest.mark.parametrize("how", ["file", "http"])
def test_opens_from_disk_and_from_a_server(how: str, site: Site, visit: Open, served: Callable[[Path], str]) -> None:
    tab = visit(site if how == "file" else served(site.folder))
    page = tab.go()
    assert page.title() == "Overview · Trees"
    assert page.inner_text("h1") == "Trees"
    for room, head in [("Concepts", "Concepts"), ("Classes", "Classes"), ("Images", "Images"), ("Overview", "Trees")]:
        page.click(f"header nav >> text={room}")
        until(page, "head => document.querySelector('h1').textContent === head", head)
        until(page, "() => document.activeElement.tagName === 'H1'")
    page.click("header nav >> text=Images")
    until(page, "() => [...document.querySelectorAll('.thumb img')].some(img => img.complete && img.naturalWidth)")


def test_logits_are_those_of_pytorch_after_random_flips(site: Site, visit: Open) -> None:
    tab = visit(site)
    shown, rng = site.shown, np.random.default_rng(0)
    weight, bias = torch.from_numpy(np.array(shown.weight)), torch.from_numpy(np.array(shown.bias))
    for row in range(8):
        flips = np.flatnonzero(rng.random(shown.concepts) < 0.3)
        bits = shown.unpack(np.array([row]))[0].astype(np.float32)
        bits[flips] = 1 - bits[flips]
        page = tab.go(image(site, row, f"?flip={','.join(map(str, flips))}"))
        seen = logits_on(page, 5)
        single = torch.nn.functional.linear(torch.from_numpy(bits), weight, bias).numpy()
        double = torch.nn.functional.linear(torch.from_numpy(bits).double(), weight.double(), bias.double()).numpy()
        np.testing.assert_allclose(seen, single, rtol=0, atol=1e-5)
        np.testing.assert_allclose(seen, double, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(
            page.evaluate("([r, f]) => htafExplorer.logits(r, f)", [row, flips.tolist()]), seen
        )
        shares = page.eval_on_selector_all(
            "[data-logit] .share .value", "all => all.map(cell => parseFloat(cell.textContent))"
        )
        order = np.argsort(-seen, kind="stable")
        np.testing.assert_allclose(shares, 100 * torch.softmax(torch.from_numpy(seen), 0).numpy()[order], atol=0.051)


def test_a_bit_is_flipped_by_mouse_and_by_keyboard(site: Site, visit: Open) -> None:
    page = visit(site).go(image(site, 2))
    before = logits_on(page, 5)
    first, second = concepts_on(page)[:2]
    bits = site.shown.unpack(np.array([2]))[0]
    change = {
        concept: (1 - 2.0 * bits[concept]) * np.float64(site.shown.weight[:, concept]) for concept in (first, second)
    }

    page.click(f"tr[data-concept='{first}'] [role=switch]")
    page.wait_for_selector("tr.changed")
    np.testing.assert_allclose(logits_on(page, 5), before + change[first], atol=1e-9)
    assert "1 bit changed" in page.inner_text("#announcement")
    page.focus(f"tr[data-concept='{second}'] [role=switch]")
    page.keyboard.press("Space")
    until(page, "() => document.querySelectorAll('tr.changed').length === 2")
    np.testing.assert_allclose(logits_on(page, 5), before + change[first] + change[second], atol=1e-9)
    assert (
        page.get_attribute(f"tr[data-concept='{second}'] [role=switch]", "aria-checked")
        == str(not bits[second]).lower()
    )
    page.keyboard.press("Enter")
    until(page, "() => document.querySelectorAll('tr.changed').length === 1")
    until(page, "flip => location.hash.endsWith(`flip=${flip}`)", str(first))
    page.reload()  # the address keeps the flips
    page.wait_for_selector("tr.changed")
    np.testing.assert_allclose(logits_on(page, 5), before + change[first], atol=1e-9)
    page.click(".prediction >> text=Reset")
    until(page, "() => !document.querySelector('tr.changed')")
    np.testing.assert_array_equal(logits_on(page, 5), before)


def test_contributions_are_counted_from_the_average_image(site: Site, visit: Open) -> None:
    page = visit(site).go(image(site, 4, "?class=3"))
    seen = page.eval_on_selector_all(
        "tr[data-concept]",
        "all => all.map(row => [+row.dataset.concept, row.querySelector('.signed .value').textContent])",
    )
    rates = np.array([one["rate"] for one in read_page(site.folder)["concepts"]])
    expected = site.shown.weight[3] * (site.shown.unpack(np.array([4]))[0] - rates)
    totals = [number(text) for text in page.locator("table.bits tfoot td.num").all_inner_texts()]
    logit = site.shown.logits(np.array([4]))[0, 3]
    np.testing.assert_allclose(totals, [logit - expected.sum(), logit], atol=0.0051)
    assert len(seen) == 21
    np.testing.assert_allclose([number(value) for _, value in seen], expected[[c for c, _ in seen]], atol=0.0051)
    assert np.all(np.diff(expected[[c for c, _ in seen]]) <= 0)


def test_nearest_images_follow_the_flips(site: Site, visit: Open) -> None:
    page = visit(site).go(image(site, 1, "?flip=0,5"))
    bits = site.shown.unpack()
    query = bits[1].copy()
    query[[0, 5]] = 1 - query[[0, 5]]
    far = (bits != query).sum(1)
    order = [row for row in np.argsort(far, kind="stable") if row != 1][:10]
    links = page.eval_on_selector_all(
        "section[aria-labelledby=nearest] .thumb > a", "all => all.map(a => a.getAttribute('href'))"
    )
    assert links == [image(site, row) for row in order]
    said = page.eval_on_selector_all(
        "section[aria-labelledby=nearest] .far", "all => all.map(span => span.textContent)"
    )
    assert [0 if text == "same bits" else int(text.split()[0]) for text in said] == far[order].tolist()


def test_flips_are_shown_and_applied(site: Site, visit: Open) -> None:
    shown = site.shown
    row = int(np.flatnonzero((shown.labels >= 0) & (shown.labels != shown.exact))[0])
    page = visit(site).go(image(site, row))
    count = page.locator(".chips li").count()
    assert count
    page.click("text=Apply these flips")
    page.wait_for_selector("text=Applied")
    assert int(np.argmax(logits_on(page, 5))) == shown.labels[row]
    assert page.locator("tr.changed").count() == count


def test_concepts_are_searched_sorted_and_filtered(site: Site, visit: Open) -> None:
    page = visit(site).go("#/concepts?as=table")
    rates = site.codes.part("train").unpack().mean(0)
    assert len(concepts_on(page)) == 21
    page.click("th >> text=Images with it")
    page.wait_for_selector("th[aria-sort=descending] >> text=Images with it")
    assert np.all(np.diff(rates[concepts_on(page)]) <= 0)
    page.click("th >> text=Images with it")
    page.wait_for_selector("th[aria-sort=ascending] >> text=Images with it")
    assert np.all(np.diff(rates[concepts_on(page)]) >= 0)
    page.click("th >> text=Name")
    page.wait_for_selector("th[aria-sort=ascending] >> text=Name")
    assert concepts_on(page)[:2] == [4, 3]  # those without a name come last
    for words, expected in [("BARK", [3]), ("rough", [3]), ("17", [17]), ("no such", [])]:
        page.fill("input[type=search]", words)
        until(page, "count => document.querySelectorAll('tr[data-concept]').length === count", len(expected))
        assert concepts_on(page) == expected
    page.fill("input[type=search]", "cedar")
    until(page, "() => !document.querySelector('.empty')")
    share = site.shown.unpack()[site.shown.labels == 2].mean(0)
    assert sorted(concepts_on(page)) == np.flatnonzero(share >= 0.8).tolist()
    page.fill("input[type=search]", "")
    for state, expected in [("verified", [3]), ("unverified", [4]), ("dead", [20])]:
        page.select_option("label:has-text('Show') select", state)
        until(page, "count => document.querySelectorAll('tr[data-concept]').length === count", len(expected))
        assert concepts_on(page) == expected
    until(page, "() => location.hash.includes('show=dead')")
    page.reload()
    page.wait_for_selector("tr[data-concept]")
    assert concepts_on(page) == [20]


def test_a_concept_shows_random_images_of_both_kinds(site: Site, visit: Open) -> None:
    tab, bits = visit(site), site.shown.unpack()
    page = tab.go("#/concept/3")
    for title, value in [("With the concept", 1), ("Without it", 0)]:
        half = page.locator("section[aria-labelledby=images] .columns > div", has_text=title)
        links = half.locator(".thumb > a")
        rows = [
            site.shown.ids.index(links.nth(i).get_attribute("href")[len("#/image/") :]) for i in range(links.count())
        ]
        assert len(rows) == 12
        assert rows != sorted(rows)
        assert (bits[rows, 3] == value).all()
        assert half.locator("h3").inner_text().endswith(str(int((bits[:, 3] == value).sum())))
        half.locator("button").click()
        assert links.count() > 12
    assert page.inner_text(".badge") == "verified"
    assert "93.0%" in page.inner_text("section[aria-labelledby=check]")
    page = tab.go("#/concept/4")
    assert page.inner_text(".badge") == "unverified"
    assert "0.61 < 0.75" in page.inner_text("section[aria-labelledby=check]")
    page.click("text=Concept 5 →")
    until(page, "() => document.title.startsWith('Concept 5')")


def test_what_bits_add_sums_to_the_logit_and_to_the_difference_of_two(site: Site, visit: Open) -> None:
    tab, shown = visit(site), site.shown
    logits = shown.logits()[4]
    for address, name, expected in [
        ("#/image/{}?class=2", "its logit", logits[2]),
        ("#/image/{}?class=2&than=1&flip=0", "ahead by", None),
    ]:
        page = tab.go(address.format(quote(shown.ids[4], safe="")))
        rows = page.locator("table.bits tbody tr")
        added = [rows.nth(i).locator("td .value").first.inner_text() for i in range(rows.count())]
        start, total = page.locator("table.bits tfoot tr", has_text=name).locator("td.num").all_inner_texts()
        found = [float(text.replace("\u2212", "-")) for text in (*added, start)]
        assert rows.count() == shown.concepts
        if expected is None:
            flips = shown.unpack(np.array([4]))[0].astype(float)
            flips[0] = 1 - flips[0]
            after = shown.weight @ flips + shown.bias
            expected = after[2] - after[1]
        assert float(total.replace("\u2212", "-")) == pytest.approx(expected, abs=0.006)
        assert sum(found) == pytest.approx(expected, abs=0.005 * len(found))


def test_images_are_filtered_by_class_and_verdict(site: Site, visit: Open) -> None:
    page, shown = visit(site).go("#/images"), site.shown
    assert page.locator(".thumb").count() == len(shown)
    page.select_option("label:has-text('Class') select", "2")
    until(page, "count => document.querySelectorAll('.thumb').length === count", int((shown.labels == 2).sum()))
    page.select_option("label:has-text('Show') select", "wrong")
    wrong = (shown.labels == 2) & (shown.exact != 2)
    until(page, "count => document.querySelectorAll('.thumb').length === count", int(wrong.sum()))
    page.goto("about:blank")
    page.go_back()
    page.wait_for_selector(".thumb")
    assert page.locator(".thumb").count() == wrong.sum()


def test_addresses_lead_to_their_views_and_back(site: Site, visit: Open) -> None:
    tab = visit(site)
    page = tab.go("#/concepts?q=bark&as=table")
    page.click("tr[data-concept='3'] a")
    page.wait_for_selector("#check")
    assert page.title() == "Concept 3: smooth bark · Trees"
    page.reload()
    page.wait_for_selector("#check")
    page.go_back()
    page.wait_for_selector("tr[data-concept]")
    assert concepts_on(page) == [3]
    assert page.input_value("input[type=search]") == "bark"
    page.go_forward()
    page.wait_for_selector("#check")
    page = tab.go("#/images")
    page.wait_for_selector(".thumb >> nth=15")
    page.evaluate("scrollTo(0, 300)")
    page.click(".thumb >> nth=15 >> a >> nth=0")
    page.wait_for_selector("#prediction")
    until(page, "() => scrollY === 0")
    page.go_back()
    page.wait_for_selector("h1:text-is('Images')")
    until(page, "() => scrollY > 100")
    assert tab.go("#/class/2").inner_text("h1") == "cedar"
    for nowhere in ["#/concept/21", "#/concept/x", "#/class/-1", "#/image/no%20such", "#/image/%zz", "#/other"]:
        assert tab.go(nowhere).inner_text("h1") == "There is nothing here"


def test_the_page_of_a_sparse_head_shows_the_concepts_that_it_uses(site: Site, visit: Open, tmp_path: Path) -> None:
    weight = np.zeros_like(site.codes.weight)
    for k in range(5):
        weight[k, [k, k + 1, 9]] = site.codes.weight[k, [k, k + 1, 9]]  # 7 of 21 concepts, 3 a class
    codes = codes_of(
        site.codes.unpack(), site.codes.labels, weight, site.codes.bias, classes=site.codes.classes,
        parts=np.asarray(site.codes.parts), ids=site.codes.ids,
    )  # fmt: skip
    build_page(codes, tmp_path / "page", pixels=pictures)
    sparse = Site(tmp_path / "page", codes)
    tab = visit(sparse)
    page = tab.go()
    assert "decides by 7 concepts" in page.inner_text(".view-head .lead")
    assert "14 more have no weight" in page.inner_text(".view-head .lead")
    for address, rows, used in [
        ("#/concepts?as=table", [0, 1, 2, 3, 4, 5, 9], "7 of 21 concepts are used"),
        (image(sparse, 4, "?class=3"), [3, 4, 9], "3 of 21 concepts are used for dogwood"),
        (image(sparse, 4, "?class=3&than=1"), [1, 2, 3, 4, 9], "5 of 21 concepts are used to tell dogwood from birch"),
        ("#/class/2", [2, 3, 9], "3 of 21 concepts are used for this class"),
        ("#/pair?a=2&b=3", [2, 3, 4, 9], ""),
    ]:
        page = tab.go(address)
        listed = page.locator("table.list tbody tr")
        assert listed.count() == len(rows), address
        numbers = page.eval_on_selector_all("table.list .number", "all => all.map(one => +one.textContent)")
        assert sorted(numbers) == rows, address
        if used:
            assert used in page.inner_text(".used-only")
            page.click(".used-only >> text=Show all")
            page.wait_for_selector(".used-only >> text=Hide them")
            assert listed.count() == (20 if "class/" in address else 21)
    page = tab.go(image(sparse, 4))
    bits, logits = sparse.shown.unpack(np.array([4]))[0], sparse.shown.logits(np.array([4]))[0]
    k, than = np.argsort(-logits, kind="stable")[:2]
    shown = page.eval_on_selector_all("[data-reason]", "all => all.map(row => +row.dataset.reason)")
    assert sorted(shown) == np.flatnonzero(weight[k] != weight[than]).tolist()
    assert "other concept" not in page.inner_text(".waterfall")
    assert page.locator(".waterfall .have-it >> text=these have it").count() == sum(
        not bits[concept] for concept in shown
    )
    said = page.eval_on_selector_all(
        "table.bits tbody tr", "all => all.map(row => [+row.dataset.concept, row.querySelector('.value').textContent])"
    )
    rates = [one["rate"] for one in read_page(sparse.folder)["concepts"]]
    assert {concept for concept, _ in said} == set(np.flatnonzero(weight[k]))
    for concept, value in said:  # one that is off adds what the average image has of it
        assert number(value) == pytest.approx((bits[concept] - rates[concept]) * weight[k, concept], abs=0.0051)
    assert any(not bits[concept] and number(value) != 0 for concept, value in said)
    assert "no part in any decision" in tab.go("#/concept/15").inner_text(".decides")
    assert visit(site).go("#/concepts").locator(".used-only").count() == 0  # a dense head uses all


def test_mistakes_lead_to_their_images(site: Site, visit: Open) -> None:
    tab, shown = visit(site), site.shown
    page = tab.go("#/")
    first = page.locator("section[aria-labelledby=mistakes] li").first
    count = int(first.locator("a.value").inner_text().split()[0])
    first.locator("a.value").click()
    until(page, "count => document.querySelectorAll('.thumb').length === count", count)
    assert count <= int(((shown.labels >= 0) & (shown.labels != shown.exact)).sum())


def test_an_unverified_name_says_so_wherever_it_stands(site: Site, visit: Open) -> None:
    page = visit(site).go(f"#/image/{quote(site.shown.ids[0], safe='')}")
    assert "unverified" in page.locator("tr[data-concept='4'] .concept-name").inner_text()
    assert "unverified" not in page.locator("tr[data-concept='3'] .concept-name").inner_text()
