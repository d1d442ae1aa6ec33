"""The report of a run for everybody: axe-core, narrow screens, light and dark, no script."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from htaf.tables.report.writing import PAGE
from made_report import hostile, reported
from visits import Visit

pytestmark = pytest.mark.slow
AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of a classification and of a regression, with names that are markup."""
    out = tmp_path_factory.mktemp("runs")
    tasks = ("classification", "regression")
    return [(reported(out / task, hostile(out / f"{task}-data", task)).path / PAGE).as_uri() for task in tasks]


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1440, "light")])
def test_axe_finds_no_fault_and_nothing_runs_over(
    width: int, scheme: str, pages: list[str], visit: Callable[..., Visit]
) -> None:
    if not AXE.is_file():
        (pytest.fail if os.environ.get("CI") else pytest.skip)("expected web/node_modules/axe-core: run make web")
    found = []
    for address in pages:
        tab = visit(address, viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = tab.go("")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert page.evaluate("document.querySelectorAll('script, img').length") == 0
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        page.evaluate(AXE.read_text("utf-8"))
        result = page.evaluate("axe.run(document, {preload: false})")
        assert len(result["passes"]) > 10
        found += [f"{one['id']} at {[node['target'] for node in one['nodes'][:3]]}" for one in result["violations"]]
    assert found == []
