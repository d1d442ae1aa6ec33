"""What the explorer's page leads to, in a real browser: decisions, maps, terms, cards, pairs, concepts that are off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from htaf.concepts.codes import Codes, codes_of
from htaf.concepts.counts import proportions
from htaf.concepts.explorer.build import build_page
from made_pages import made_codes, read_page
from visits import Site, Visit, pictures, until

pytestmark = pytest.mark.slow
Open = Callable[..., Visit]


def number(text: str) -> float:
    return float(text.replace("\u2212", "-").replace("%", ""))


def test_the_first_decision_adds_up(site: Site, visit: Open) -> None:
    page, shown = visit(site).go(), site.shown
    row = read_page(site.folder)["page"]["example"]
    bits = shown.unpack(np.array([row]))[0].astype(float)
    logits = bits @ shown.weight.T.astype(float) + shown.bias
    first, second = np.argsort(-logits, kind="stable")[:2]
    rates = site.codes.part("train").unpack()[site.codes.part("train").labels >= 0].mean(0)
    difference = shown.weight[first].astype(float) - shown.weight[second]
    adds = (bits - rates) * difference
    found = page.eval_on_selector_all(
        "[data-reason]", "all => all.map(row => [+row.dataset.reason, +row.dataset.adds])"
    )
    assert len(found) == 8
    np.testing.assert_allclose([value for _, value in found], adds[[concept for concept, _ in found]], atol=1e-6)
    assert np.all(np.diff(np.abs([value for _, value in found])) <= 1e-9), "the strongest first"
    lead = float(page.get_attribute("[data-ahead]", "data-ahead"))
    assert lead == pytest.approx(logits[first] - logits[second], abs=1e-6)
    column = [number(text) for text in page.locator(".waterfall td.num").all_inner_texts()]
    assert sum(column[:-1]) == pytest.approx(lead, abs=0.06)
    sentence = page.inner_text(".sentence")
    assert f"taken for {shown.classes[first]} rather than {shown.classes[second]}" in sentence
    for concept, value in found[:1]:
        assert ("it has" if bits[concept] else "it lacks") in sentence
        assert value > 0 or "Against it" in sentence
    before = page.inner_text(".sentence")
    for _ in range(20):  # drawn at random: some other one comes
        page.click("text=Another image")
        if page.inner_text(".sentence") != before:
            break
    assert page.inner_text(".sentence") != before
    until(page, "() => location.hash.includes('decision=')")


def test_the_map_is_read_and_left_by_keyboard(site: Site, visit: Open) -> None:
    page = visit(site).go()
    arrays = read_page(site.folder)["arrays"]
    shares, trained = (proportions(site.codes.part(part)) for part in ("test", "train"))
    page.focus(".heat-frame")
    page.keyboard.press("Home")
    for _ in range(10):
        page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    concept, k = arrays["concept_order"][1], arrays["class_order"][0]
    until(page, "text => document.querySelector('.heat-said').textContent.includes(text)", site.codes.classes[k])
    said = page.inner_text(".heat-said")
    assert f"{100 * shares[concept, k]:.0f}% of its test images have it (training: " in said
    assert f"(training: {100 * trained[concept, k]:.0f}%)" in said
    page.keyboard.press("Enter")
    until(page, "title => document.title.startsWith(title)", f"Concept {concept}")
    page.go_back()
    page.wait_for_selector(".heat-said")
    page.click(".heat-cells", position={"x": 3, "y": 3})
    until(page, "text => document.querySelector('.heat-said').textContent.includes(text)", site.codes.classes[k])
    first = int(arrays["concept_order"][0])
    page.click(".heat-said >> text=Its images with the concept")
    page.wait_for_selector("h1:text-is('Images')")
    bits = site.shown.unpack()
    expected = int(((site.shown.labels == k) & (bits[:, first] == 1)).sum())
    assert page.locator(".thumb").count() == expected


def test_concepts_are_cards_with_pictures(site: Site, visit: Open) -> None:
    tab = visit(site)
    page = tab.go("#/concepts")
    samples = read_page(site.folder)["arrays"]["samples"]
    assert page.locator(".concept-card").count() == 21
    for concept in (3, 20):
        card = page.locator(f".concept-card[data-concept='{concept}']")
        assert card.locator(".strip .picture").count() == int((samples[concept] >= 0).sum())
    assert "verified" in page.inner_text("[data-concept='3'] .card-foot")
    assert "dead" in page.inner_text("[data-concept='20'] .card-foot")
    page.select_option(".tools label:has(> span:text-is('As')) select", "table")
    page.wait_for_selector("table.concepts")
    until(page, "() => location.hash.includes('as=table')")
    assert page.locator(".concept-card").count() == 0


def rows_of(page: Any, site: Site, section: str) -> list[int]:
    links = page.locator(f"section[aria-labelledby={section}] .thumb > a").all()
    return [site.shown.ids.index(link.get_attribute("href")[len("#/image/") :]) for link in links]


def test_related_concepts_of_each_kind(site: Site, visit: Open) -> None:
    page = visit(site).go("#/concept/3")
    arrays = read_page(site.folder)["arrays"]
    for kind, name in enumerate(("similar", "opposite", "together")):
        numbers = arrays["related"][kind, 3]
        place = page.locator(f"[data-kind={name}] li")
        assert place.count() == int((numbers >= 0).sum())
        if place.count():
            first = place.first.inner_text().split()
            assert first[0] == str(numbers[0])
            assert number(first[-1]) == pytest.approx(arrays["related_by"][kind, 3, 0], abs=0.0051)
    assert "unnamed" in page.inner_text("#related + p + div")


def test_images_from_strong_to_barely_on(site: Site, visit: Open, tmp_path: Path) -> None:
    margins = np.random.default_rng(0).normal(size=(len(site.codes), 21)).astype(np.float16)
    build_page(site.codes, tmp_path / "page", pixels=pictures, margins=margins)
    page = visit(Site(tmp_path / "page", site.codes)).go("#/concept/3")
    found = read_page(tmp_path / "page")["arrays"]["strongest"][:, 3]
    assert rows_of(page, site, "margins") == found[found >= 0].tolist()
    bars = page.locator("#margins + figure rect title").all_text_contents()
    assert list(map(int, bars)) == read_page(tmp_path / "page")["arrays"]["strengths"][3].tolist()
    assert visit(site).go("#/concept/3").locator("#margins").count() == 0


def test_a_concept_says_first_what_it_does_to_decisions(site: Site, visit: Open, tmp_path: Path) -> None:
    weight = site.codes.weight[:, 3]
    page = visit(site).go("#/concept/3")
    said = page.inner_text(".decides").replace("\u2212", "-")
    for k, side in ((weight.argmax(), "for"), (weight.argmin(), "against")):
        assert f"{side} {site.codes.classes[k]} ({weight[k]:+.2f})" in said
    changed = site.codes.weight.copy()
    changed[:, 3] = 0
    build_page(replace(site.codes, weight=changed), tmp_path / "page")
    page = visit(Site(tmp_path / "page", site.codes)).go("#/concept/3")
    assert "No class draws on it" in page.inner_text(".decides")


def test_a_mistake_leads_to_what_separates_the_classes(site: Site, visit: Open) -> None:
    page, found = visit(site).go("#/confusion"), read_page(site.folder)
    mistakes = [row for row in found["arrays"]["confusion"].tolist() if row[0] != row[1]]
    label, guess, images = max(mistakes, key=lambda row: row[2])
    said = page.inner_text(".heat-said")
    assert f"{site.codes.classes[label]} taken for {site.codes.classes[guess]}: {images} image" in said
    page.focus(".heat-frame")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-separation]")
    weight, leads_apart = site.codes.weight.astype(float), []
    shares = {part: proportions(site.codes.part(part)) for part in ("test", "train")}
    by = {part: (of[:, label] - of[:, guess]) * (weight[label] - weight[guess]) for part, of in shares.items()}
    order = np.argsort(-np.abs(by["test"]), kind="stable")
    rows = page.eval_on_selector_all(
        "[data-separation]",
        "all => all.map(row => [+row.dataset.concept, +row.dataset.separation, +row.dataset.trained, "
        "row.innerText.includes('reversed'), row.innerText.includes('may be chance')])",
    )
    listed = [int(concept) for concept, *_ in rows]
    np.testing.assert_allclose([value for _, value, *_ in rows], by["test"][order[:16]], atol=1e-5)
    np.testing.assert_allclose([trained for _, _, trained, *_ in rows], by["train"][listed], atol=1e-5)
    error = np.zeros(site.codes.concepts)  # of the difference, squared
    for k in (label, guess):
        of_class = [part.unpack()[part.labels == k] for part in map(site.codes.part, ("test", "train"))]
        error += np.concatenate(of_class).var(0) * sum(1 / len(bits) for bits in of_class)
    apart = np.abs(by["test"] - by["train"]) > 2 * np.abs(weight[label] - weight[guess]) * np.sqrt(error)
    assert [told for *_, told, _ in rows] == ((by["test"] * by["train"] < 0) & apart)[listed].tolist()
    held = [site.shown.unpack()[site.shown.labels == k] for k in (label, guess)]
    of_both = np.concatenate(held).var(0) * sum(1 / len(bits) for bits in held)
    chance = (shares["test"][:, label] - shares["test"][:, guess]) ** 2 <= 4 * of_both
    assert [told for *_, told in rows] == chance[listed].tolist()
    sure = [i for i in order if by["test"][i] > 0 and by["train"][i] > 0 and not chance[i]][:3]
    said = page.eval_on_selector_all(".sentence a[href*=concept]", "all => all.map(a => +a.hash.match(/\\d+/)[0])")
    assert said == sure
    assert listed[:5] == order[:5].tolist()
    for part in ("test", "train"):
        some = site.codes.part(part)
        leads = some.logits().astype(float) @ (np.eye(5)[label] - np.eye(5)[guess])
        leads_apart.append(leads[some.labels == label].mean() - leads[some.labels == guess].mean())
        assert by[part].sum() == pytest.approx(leads_apart[-1], abs=1e-4), "what the page says of the sum"
    said = page.inner_text("section[aria-labelledby=separating]").replace("\u2212", "-")
    assert (
        f"by {leads_apart[0]:.2f} more for test images of A than for those of B (training: {leads_apart[1]:.2f})"
        in said
    )
    learned = by["train"] > 0
    assert (
        f"Of the {learned.sum()} concepts that separate training images, {(by['test'][learned] <= 0).sum()} do" in said
    )
    first = page.inner_text("[data-separation] >> nth=0").split()
    told = [f"{100 * shares[part][order[0], k]:.0f}%" for k in (label, guess) for part in ("test", "train")]
    assert [word for word in first if word.endswith("%")] == told
    wrong = np.flatnonzero((site.shown.labels == label) & (site.shown.exact == guess))
    mistaken = page.locator(".side", has_text="A, taken for B").locator(".thumb")
    assert mistaken.count() == min(8, len(wrong))
    page.click("text=Swap")
    until(page, "a => location.hash.includes(`a=${a}`)", str(guess))


def memorised() -> Codes:
    """Two classes: all training images of the first have the only live bit and none of the second; of the test images
    55% and 40% of them, the other way round. A third class has no test images."""
    train, test = np.repeat([0, 1, 2], 20), np.repeat([0, 1], 20)
    live = np.concatenate([train == 0, np.where(test == 0, np.arange(40) % 20 < 8, np.arange(40) % 20 < 11)])
    return codes_of(
        np.stack([live, ~live], axis=1), np.concatenate([train, test]), np.array([[1, 0], [0, 1], [0, 0]]),
        np.zeros(3), classes=("ash", "birch", "cedar"), parts=np.repeat([0, 2], [60, 40]).astype(np.uint8),
    )  # fmt: skip


def test_what_holds_for_training_images_alone_is_marked(visit: Open, tmp_path: Path) -> None:
    """Class and concept views too; a class without held-out images shows those of training, and says so."""
    build_page(memorised(), tmp_path / "page")
    tab = visit(Site(tmp_path / "page", memorised()))
    page = tab.go("#/pair?a=0&b=1")
    assert "nothing that both the training and the test images show" in page.inner_text(".sentence >> nth=0")
    assert page.locator("[data-chance=true]").count() == 2
    assert "may be chance" not in page.inner_text(".sentence >> nth=0")
    assert page.locator("[data-separation] .badge", has_text="reversed").count() == 2
    assert "Of the 2 concepts that separate training images, 2 do not" in page.inner_text("#separating ~ p >> nth=0")
    page = tab.go("#/pair?a=0&b=2")
    assert "there are no test images of B" in page.inner_text("[data-not-held-out]")
    assert "(100% of A, 0% of B)" in page.inner_text(".sentence >> nth=0")
    row = tab.go("#/class/0").inner_text("table.weights tbody tr >> nth=0")
    assert row.split()[:2] == ["0", "unnamed"]
    for said in ("40%", "training 100%", "reversed", "mixed", "training A"):
        assert said in row
    assert "it has no test images" in tab.go("#/class/2").inner_text("#concepts ~ p >> nth=0")
    page = tab.go("#/concept/0")
    groups = page.locator("section[aria-labelledby=classes] .columns > div").all_inner_texts()
    assert [name for name in ("ash", "birch", "cedar") if name in groups[0] + groups[1]] == ["cedar"]
    assert "training images alone" in groups[1]
    assert groups[2].split() == ["Mixed", "2", "birch", "55%", "training", "0%", "reversed", "ash", "40%", "training",
                                 "100%", "reversed"]  # fmt: skip


def test_parts_come_when_they_are_needed(
    site: Site, visit: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pages of many files of bits and ids, every view says what it says in one."""
    monkeypatch.setattr("htaf.concepts.explorer.contents.BITS", 3)
    monkeypatch.setattr("htaf.concepts.explorer.contents.IDS", 16)
    codes = made_codes(600, names=("ash", "birch", "cedar", "dogwood", "elm"))
    build_page(codes, tmp_path / "page")
    many = Site(tmp_path / "page", codes)
    assert len(list((tmp_path / "page" / "data").glob("bits-*.js"))) == 4
    tab = visit(many)
    page = tab.go("#/classes")
    asked = {address.rpartition("/")[2].partition("#")[0] for address in tab.asked}
    assert {"page.js", "concepts.js", "arrays.js"} <= asked
    assert not any(name.startswith(("bits", "ids", "rows", "doubtful")) for name in asked)
    row = 130
    page = tab.go(f"#/image/{many.shown.ids[row]}")
    seen = page.evaluate("row => htafExplorer.logits(row)", row)
    np.testing.assert_allclose(seen, many.shown.logits()[row], atol=1e-5)
    page.wait_for_selector("#nearest ~ .grid .thumb")
    bits = many.shown.unpack()
    far = (bits != bits[row]).sum(1)
    order = [other for other in np.argsort(far, kind="stable") if other != row][:10]
    links = page.eval_on_selector_all("#nearest ~ .grid .thumb > a", "all => all.map(a => a.getAttribute('href'))")
    assert links == [f"#/image/{many.shown.ids[other]}" for other in order]
    page = tab.go("#/concept/4")
    heads = page.locator("section[aria-labelledby=images] h3").all_inner_texts()
    assert heads == [f"With the concept {bits[:, 4].sum()}", f"Without it {(1 - bits[:, 4]).sum()}"]


def test_a_decision_says_what_the_named_concepts_leave_open(site: Site, visit: Open) -> None:
    tab, codes, rates = visit(site), site.shown, [one["rate"] for one in read_page(site.folder)["concepts"]]
    told = 0
    for row in range(0, 40, 3):
        bits, logits = codes.unpack(np.array([row]))[0], codes.logits(np.array([row]))[0]
        k, than = np.argsort(-logits, kind="stable")[:2]
        difference = codes.weight[k] - codes.weight[than]
        adds = (bits - np.array(rates)) * difference
        order = np.argsort(-np.abs(adds), kind="stable")
        named = [i for i in order if adds[i] > 0][:3] + [i for i in order if adds[i] < 0][:2]
        lead, rest = logits[k] - logits[than], adds.sum() - adds[named].sum()
        page = tab.go(f"#/image/?row={row}")
        page.wait_for_selector(".sentence")
        expected = adds[named].sum() < max(lead / 2, rest)
        assert (page.query_selector(".others") is not None) == expected, row
        if expected:
            told += 1
            assert f"({codes.concepts - len(named)} concepts) adds " in page.inner_text(".others")
            assert f"{abs(rest):.1f}" in page.inner_text(".others")
    assert told > 0


def test_a_map_of_images_shows_one_and_leads_to_it(site: Site, visit: Open) -> None:
    page = visit(site).go("#/images?view=map")
    places = read_page(site.folder)["arrays"]["places"]
    box = page.locator(".image-map canvas").bounding_box()
    at = {
        "x": 12 + float(places[7, 0]) * (box["width"] - 24),
        "y": 12 + float(places[7, 1]) * (box["height"] - 24),
    }
    page.hover(".image-map canvas", position=at)
    assert page.get_attribute(".map-tip", "href") == f"#/image/{site.shown.ids[7]}"
    page.select_option("section[aria-label=Map] select", "3")
    until(page, "() => document.querySelector('.legend').textContent.includes('have it')")
    page.click(".image-map canvas", position=at)
    until(page, "title => document.title.startsWith(title)", f"Image {site.shown.ids[7]}")


def test_doubtful_labels_lead_to_their_images(site: Site, visit: Open) -> None:
    page, found = visit(site).go("#/doubtful"), read_page(site.folder)["doubtful"]
    assert found["pairs"]
    assert page.locator(".doubts li").count() == len(found["pairs"])
    assert "No two images that are all but equal" in page.inner_text("main")
    said = page.locator(".doubts li .thumb").all_inner_texts()
    for one, text in zip([one[side] for one in found["pairs"] for side in ("image", "like")], said, strict=True):
        assert f"label {one['label']}" in text
        assert f"predicted {one['prediction']}" in text
    row = next(one["image"]["row"] for one in found["pairs"] if one["image"]["row"] >= 0)
    page.click(f".doubts a[href='#/image/{site.shown.ids[row]}']")
    until(page, "title => document.title.startsWith(title)", f"Image {site.shown.ids[row]}")
