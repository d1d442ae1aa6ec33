"""The report of the paper for everybody: axe-core, narrow screens, light and dark, from disk, no script."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from htaf_paper.items import ITEMS
from htaf_paper.protocol import Outcome
from htaf_paper.writing import write_report
from made_paper import HOSTILE, claim, full_outcome, photograph, put
from visits import Visit

pytestmark = pytest.mark.slow
AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a report with something of everything, twice, once with words that are markup."""
    out = tmp_path_factory.mktemp("paper")
    first, second, third, fourth, *_ = ITEMS
    photograph(out, "full")
    put(out, first, "full", full_outcome(HOSTILE), title=HOSTILE)
    put(out, second, "full", full_outcome("word"))
    put(out, second, "cpu", Outcome(claims=(claim(),)))
    put(out, third, "cpu", Outcome(claims=(claim("not settled"),)), status="failed", message="a worker died")
    put(out, fourth, "full", status="not run: data", message="expected CIFAR-10, got nothing")
    return write_report(out).as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_all_is_seen_and_nothing_runs_over(width: int, scheme: str, address: str, visit: Callable[..., Visit]) -> None:
    page = visit(address, viewport={"width": width, "height": 900}, color_scheme=scheme).go("")
    over = "document.documentElement.scrollWidth - innerWidth"
    assert page.evaluate(over) <= 0
    assert page.evaluate("document.querySelectorAll('script').length") == 0
    assert page.evaluate("[...document.images].map(one => one.complete && one.naturalWidth > 0)") == [True, True]
    sizes = page.evaluate(
        "[...document.querySelectorAll('.panel text')].map(one => parseFloat(getComputedStyle(one).fontSize) * "
        "one.ownerSVGElement.getBoundingClientRect().width / one.ownerSVGElement.viewBox.baseVal.width)"
    )
    assert min(sizes) >= 9.5  # pixels
    inks = page.evaluate("[...document.querySelectorAll('.panel text')].map(one => getComputedStyle(one).fill)")
    assert (
        set(inks)
        == {"light": {"rgb(29, 31, 30)", "rgb(95, 99, 97)"}, "dark": {"rgb(236, 235, 230)", "rgb(166, 171, 168)"}}[
            scheme
        ]
    )
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    assert page.evaluate(over) <= 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_axe_finds_no_fault(width: int, scheme: str, address: str, visit: Callable[..., Visit]) -> None:
    if not AXE.is_file():
        (pytest.fail if os.environ.get("CI") else pytest.skip)("expected web/node_modules/axe-core: run make web")
    page = visit(address, viewport={"width": width, "height": 900}, color_scheme=scheme).go("")
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    page.evaluate(AXE.read_text("utf-8"))
    result = page.evaluate("axe.run(document, {preload: false})")
    assert len(result["passes"]) > 10
    assert [f"{one['id']} at {[n['target'] for n in one['nodes'][:3]]}" for one in result["violations"]] == []
