"""How far the images of a page are from those of the training, in its data and in a browser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from htaf.concepts.codes import ConceptError
from htaf.concepts.known import Known
from htaf.explorer.build import build_page
from htaf.explorer.likeness import Likeness
from htaf.explorer.scripts import unpacked
from made_pages import made_codes, read_page, read_script
from visits import Site, Visit, pictures, until

Open = Callable[..., Visit]
CODES = made_codes(names=("ash", "birch", "cedar", "dogwood", "elm"))
RANDOM = np.random.default_rng(0)
FEATURES = {one: RANDOM.normal(size=6).astype(np.float32) for one in CODES.ids}


def of(ids: Sequence[str]) -> np.ndarray:
    found = np.stack([FEATURES[one] for one in ids])
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    train, held = CODES.part("train").ids, CODES.part("validation").ids
    near = (1 - of(held) @ of(train).T).min(1)
    known = Known(of(train), [*train], np.sort(near).astype(np.float32))
    folder = tmp_path_factory.mktemp("likeness") / "page"
    build_page(CODES, folder, pixels=pictures, likeness=Likeness(known, of), seconds=0.0)
    return Site(folder, CODES)


def expected() -> tuple[np.ndarray, np.ndarray]:
    """Of each test image the share of validation images that are nearer, and the three nearest training images."""
    train = CODES.part("train").ids
    near, held = (1 - of(CODES.part(part).ids) @ of(train).T for part in ("test", "validation"))
    return (held.min(1)[None] < near.min(1)[:, None]).mean(1), np.argsort(near, axis=1)[:, :3]


def test_shares_and_nearest_images_are_in_the_data(site: Site) -> None:
    share, nearest = expected()
    page = read_page(site.folder)
    assert page["page"]["unlike"] == {"far": 0.99, "validation": 40, "train": 40}
    np.testing.assert_allclose(page["arrays"]["unlike"], share, atol=1e-6)
    known = read_script(site.folder / "data" / "known.js")
    places = unpacked({"nearest": known["nearest"]})["nearest"]
    train = CODES.part("train")
    assert [[known["ids"][place] for place in row] for row in places] == [
        [train.ids[i] for i in row] for row in nearest
    ]
    build_page(CODES, site.folder.parent / "without", seconds=0.0)
    assert read_page(site.folder.parent / "without")["page"]["unlike"] is None


def test_features_that_cannot_be_had_are_a_note(tmp_path: Path) -> None:
    def gone(ids: Sequence[str]) -> np.ndarray:
        raise ConceptError("the images are gone")

    known = Known(of(CODES.ids[:3]), CODES.ids[:3], np.ones(2, np.float32))
    made = build_page(CODES, tmp_path / "page", likeness=Likeness(known, gone), seconds=0.0)
    assert "no distances to the training images: the images are gone" in made["notes"]
    assert read_page(tmp_path / "page")["page"]["unlike"] is None


@pytest.mark.slow
def test_the_least_like_come_first_and_say_so(site: Site, visit: Open) -> None:
    share, nearest = expected()
    tab = visit(site)
    tab.go("#/").click("text=least like the training images")
    page = tab.page
    until(page, "() => document.querySelector('.thumb .far')")
    assert page.input_value("label:has-text('Sort by') select") == "-unlike"
    said = [int(text.split()[-1].rstrip("%")) for text in page.locator(".thumb .far").all_inner_texts()]
    np.testing.assert_allclose(said, np.round(100 * np.sort(share)[::-1]), atol=1)
    train = CODES.part("train")
    for row in (int(share.argmax()), int(share.argmin())):
        page = tab.go(f"#/image/?row={row}")
        page.wait_for_selector("[data-known]")
        named = page.eval_on_selector_all("[data-known]", "all => all.map(one => one.dataset.known)")
        assert named == [train.ids[i] for i in nearest[row]]
        first = train.labels[nearest[row, 0]]
        assert (CODES.classes[first] if first >= 0 else "train") in page.inner_text("[data-known] >> nth=0")
        assert page.locator(".far-off").count() == (share[row] > 0.99)
        assert f"{100 * share[row]:.0f}% of validation images" in page.inner_text(".portrait")
