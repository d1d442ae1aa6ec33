"""The explorer's page for everybody: axe-core, narrow screens, keyboards, and how fast it opens."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from htaf.concepts.codes import codes_of
from htaf.concepts.explorer.build import build_page
from htaf.concepts.explorer.shown import Items
from made_pages import made_codes
from visits import Site, Visit

pytestmark = pytest.mark.slow
Open = Callable[..., Visit]

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
VIEWS = {
    "overview": "#/",
    "concepts": "#/concepts",
    "table of concepts": "#/concepts?as=table",
    "concept": "#/concept/3",
    "classes": "#/classes",
    "class": "#/class/1",
    "images": "#/images",
    "image": "#/image/?row=2&flip=1,2",
    "confusion": "#/confusion",
    "pair": "#/pair?a=1&b=2",
    "off": "#/off?off=3,5",
    "glossary": "#/glossary",
    "nothing": "#/concept/999",
}


@pytest.fixture(scope="module")
def axe() -> str:
    if not AXE.is_file():
        (pytest.fail if os.environ.get("CI") else pytest.skip)("expected web/node_modules/axe-core: run make web")
    return AXE.read_text("utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_axe_finds_no_serious_fault(width: int, scheme: str, axe: str, site: Site, visit: Open) -> None:
    tab = visit(site, viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce")
    found = []
    for name, address in VIEWS.items():
        page = tab.go(address)
        if name == "concept":
            page.click("text=Edit name")
        found += faults(page, axe, name)
    assert found == []


def faults(page: Any, axe: str, name: str) -> list[str]:
    page.evaluate(axe)
    result = page.evaluate("axe.run(document, {preload: false})")
    assert len(result["passes"]) > 10
    return [f"{name}: {fault(one)}" for one in result["violations"] if one["impact"] in ("serious", "critical")]


def fault(one: dict[str, Any]) -> str:
    return f"{one['id']} at {[node['target'] for node in one['nodes'][:3]]}"


@pytest.mark.parametrize("width", [320, 768, 1440])
def test_nothing_runs_over_the_side(width: int, site: Site, visit: Open) -> None:
    tab = visit(site, viewport={"width": width, "height": 844})
    for name, address in VIEWS.items():
        page = tab.go(address)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name
        names = page.eval_on_selector_all("table.list tbody th", "all => all.map(one => one.clientWidth)")
        assert min(names, default=width) >= 60, name


def test_the_keyboard_reaches_everything(site: Site, visit: Open) -> None:
    page = visit(site).go("#/image/?row=2")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.getAttribute('role') ?? document.activeElement.tagName"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert {"A", "BUTTON", "SELECT", "INPUT", "switch"} <= set(reached)


def test_ten_thousand_images_open_in_two_seconds(visit: Open, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images, concepts, classes = 30_000, 512, 50
    labels = rng.integers(0, classes, images)
    bits = (rng.random((classes, concepts)) < 0.5)[labels] ^ (rng.random((images, concepts)) < 0.3)
    weight, bias = rng.normal(0, 0.2, (classes, concepts)), rng.normal(0, 0.1, classes)
    parts = np.where(np.arange(images) < 20_000, 0, 2).astype(np.uint8)
    names = [f"{k:03d}.Class_number_{k}" for k in range(classes)]
    ids = [f"{names[label]}/image_{row:05d}.jpg" for row, label in enumerate(labels)]
    codes = codes_of(bits, labels, weight, bias, classes=names, parts=parts, ids=ids)
    build_page(codes, tmp_path / "large")
    tab = visit((tmp_path / "large" / "index.html").as_uri())
    ready = {"#/": ".scores", "#/concepts": "[data-concept]", "#/images": ".thumb", "#/image/?row=7": "[data-logit]"}
    for address, what in ready.items():
        times = []
        for _ in range(3):
            tab.page.goto("about:blank")
            tab.page.goto(f"{tab.home}{address}", wait_until="commit")
            tab.page.wait_for_selector(what)
            times.append(tab.page.evaluate("performance.now()"))
        print(f"{address}: {min(times):.0f} to {max(times):.0f} ms")
        assert min(times) < 2000, address
    began = time.perf_counter()
    tab.page.click("[role=switch] >> nth=0")
    tab.page.wait_for_selector("tr.changed")
    print(f"a flip: {1000 * (time.perf_counter() - began):.0f} ms, with the browser's driver")
    assert time.perf_counter() - began < 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault_in_a_page_of_texts(scheme: str, axe: str, visit: Open, tmp_path: Path) -> None:
    codes = made_codes()
    texts = {one: f"https://example.org/{row}" if row % 2 else "words " * 500 for row, one in enumerate(codes.ids)}
    build_page(codes, tmp_path / "page", items=Items("text", texts))
    tab = visit(Site(tmp_path / "page", codes), viewport={"width": 390, "height": 900}, color_scheme=scheme)
    found = []
    for name, address in VIEWS.items():
        page = tab.go(address)
        found += faults(page, axe, name)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name
    assert found == []


def test_axe_sees_faults(axe: str, site: Site, visit: Open) -> None:
    page = visit(site).go()
    page.evaluate(axe)
    page.evaluate("document.querySelector('main').append(document.createElement('button'))")
    result = page.evaluate("axe.run(document, {preload: false})")
    assert "button-name" in [one["id"] for one in result["violations"]]
