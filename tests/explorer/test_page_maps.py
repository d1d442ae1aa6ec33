"""Maps over pictures in a real browser: drawn as the command draws them, chosen by the keyboard."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from test_page_access import axe, fault  # noqa: F401

from htaf.concepts.explorer.run_page import build_run_page
from htaf.concepts.explorer.shown import Shown
from htaf.concepts.extract import extract
from htaf.concepts.regions import Map
from htaf.concepts.store import open_codes
from htaf.concepts.where import AGAINST, FOR, STRENGTH, Maps
from htaf.training.runs import Run
from made_pages import read_page
from made_runs import digits, made_run
from visits import Site, Visit, until

pytestmark = pytest.mark.slow
Open = Callable[..., Visit]

PIXELS = """([row, concept]) => {
  const canvas = document.querySelector(`canvas[data-row="${row}"][data-concept="${concept}"]`);
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return [canvas.height, canvas.width, ...data];
}"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made_run(tmp_path_factory.mktemp("mapped") / "run", digits())


@pytest.fixture(scope="module")
def mapped(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A page of digits, 120 of which have maps."""
    place = tmp_path_factory.mktemp("mapped")
    extract(run, digits(), place / "codes", parts=["train", "test"])
    build_run_page(run, place / "codes", place / "page", shown=Shown(detailed=120))
    return Site(place / "page", open_codes(place / "codes"))


def coloured(found: Map) -> np.ndarray:
    """A map over a black picture of 8 x 8 pixels: orange where it speaks for the bit, blue where against."""
    small = Image.fromarray((found.values / np.abs(found.values).max()).astype(np.float32))
    values = np.asarray(small.resize((8, 8), Image.Resampling.BILINEAR))[..., None]
    return STRENGTH * np.abs(values).clip(0, 1) * np.where(values > 0, np.array(FOR), np.array(AGAINST))


def drawn(page: Any, row: int, concept: int) -> np.ndarray:
    """What a canvas shows over a black picture."""
    height, width, *values = page.evaluate(PIXELS, [row, concept])
    pixels = np.array(values, dtype=np.float64).reshape(height, width, 4)
    return pixels[..., :3] * pixels[..., 3:] / 255


def some_concept(site: Site) -> tuple[int, list[int]]:
    """One with several images from strong to barely on, and their rows."""
    read = read_page(site.folder)
    ends = np.concatenate(list(read["arrays"]["strongest"][:2, :, :4]), axis=1)
    there = np.isin(ends, read["page"]["maps"]["rows"])
    concept = int(there.sum(1).argmax())
    return concept, list(dict.fromkeys(ends[concept][there[concept]].tolist()))


def test_the_maps_drawn_are_those_of_the_command(run: Run, mapped: Site, visit: Open) -> None:
    concept, rows = some_concept(mapped)
    page = visit(mapped).go(f"#/concept/{concept}")
    page.wait_for_selector("[data-where] canvas")
    seen = page.eval_on_selector_all(".seen-row li", "all => all.map(li => [+li.dataset.row, +li.dataset.margin])")
    assert {row for row, _ in seen} == set(rows)
    assert all(a >= b >= 0 for (_, a), (_, b) in pairwise(seen))
    maps = Maps(run, digits())
    for row, margin in seen:
        (found,) = maps.of([str(mapped.shown.ids[row])], [concept])[0]
        assert margin == pytest.approx(found.pre_activation, abs=1e-5)
        np.testing.assert_allclose(drawn(page, row, concept), coloured(found), atol=255 * (1 / 254 + 1.5 / 255))


def test_without_margins_the_order_is_that_of_random_images(
    run: Run, visit: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("htaf.concepts.extract.MARGINS", 0)
    extract(run, digits(), tmp_path / "codes", parts=["train", "test"])
    build_run_page(run, tmp_path / "codes", tmp_path / "page", shown=Shown(detailed=400))
    site, found = Site(tmp_path / "page", open_codes(tmp_path / "codes")), read_page(tmp_path / "page")
    there = found["page"]["maps"]["rows"]
    concept = int(np.isin(found["arrays"]["samples"], there).sum(1).argmax())
    page = visit(site).go(f"#/concept/{concept}")
    page.wait_for_selector("[data-where] canvas")
    seen = page.eval_on_selector_all(".seen-row li", "all => all.map(li => [+li.dataset.row, +li.dataset.margin])")
    samples = found["arrays"]["samples"][concept].tolist()
    assert {row for row, _ in seen} == {row for row in samples if row in there}
    assert len(seen) > 1
    assert all(a >= b >= 0 for (_, a), (_, b) in pairwise(seen))
    said = page.inner_text("[data-where] p")
    assert said.startswith("Drawn at random from the images that have it")
    assert "rank" not in said


def test_an_image_shows_the_map_of_a_reason(run: Run, mapped: Site, visit: Open) -> None:
    row = read_page(mapped.folder)["page"]["maps"]["rows"][3]
    page = visit(mapped).go(f"#/image/?row={row}")
    page.wait_for_selector(".where-tile")
    tiles = page.eval_on_selector_all(".where-tile", "all => all.map(tile => +tile.dataset.map)")
    bits = mapped.shown.unpack(np.array([row]))[0]
    assert len(tiles) > 2
    assert all(bits[tile] for tile in tiles)
    assert int(page.locator(".where-picture canvas").get_attribute("data-concept")) in tiles
    page.focus(f"[data-map='{tiles[1]}']")
    shown = f"() => document.querySelector('.where-picture canvas')?.dataset.concept === '{tiles[1]}'"
    until(page, shown)
    page.keyboard.press("Enter")
    until(page, f"() => document.querySelector(`[data-map='{tiles[1]}']`).getAttribute('aria-pressed') === 'true'")
    (found,) = Maps(run, digits()).of([str(mapped.shown.ids[row])], [tiles[1]])[0]
    np.testing.assert_allclose(drawn(page, row, tiles[1]), coloured(found), atol=255 * (1 / 254 + 1.5 / 255))
    page.keyboard.press("Space")  # off again; the focus still shows it until it leaves
    page.keyboard.press("Shift+Tab")
    until(page, "() => location.hash.includes('where=none')")
    page.evaluate("document.activeElement.blur()")
    until(page, "() => !document.querySelector('.where-picture canvas')")


def test_two_classes_show_their_images_and_lead_on_with_them(mapped: Site, visit: Open) -> None:
    shown = mapped.shown
    page = visit(mapped).go("#/pair?a=3&b=8")
    until(page, "() => document.querySelectorAll('[data-strip] li[data-row] canvas').length > 0")
    until(page, "() => document.querySelectorAll('[data-strip] li[data-row]').length === 6")
    rows = page.eval_on_selector_all("[data-strip] li[data-row]", "all => all.map(li => +li.dataset.row)")
    assert shown.labels[rows].tolist() == [3, 8] * 3
    concepts = page.eval_on_selector_all("[data-strip]", "all => all.map(one => +one.dataset.strip)")
    said = page.eval_on_selector_all("[data-strip] .caption", "all => all.map(one => one.textContent)")
    for place, row in enumerate(rows):
        has = shown.unpack(np.array([row]))[0][concepts[place // 2]]
        assert said[place].startswith("has it" if has else "lacks it")
    page.click(f"[data-strip='{concepts[0]}'] h3 a")
    page.wait_for_selector("[data-two='3 8'] li[data-row]")
    until(page, "() => document.querySelectorAll('[data-two] ul').length === 2")
    of = page.eval_on_selector_all(
        "[data-two] ul", "all => all.map(ul => [...ul.querySelectorAll('li')].map(li => +li.dataset.row))"
    )
    assert [set(shown.labels[rows].tolist()) for rows in of] == [{3}, {8}]
    assert page.query_selector("[data-two='3 8'] a[href='#/pair?a=3&b=8']")
