"""How far the images of a page are from those of the training, in its data and in a browser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from htaf.concepts.codes import ConceptError
from htaf.concepts.known import Known
from htaf.explorer import build
from htaf.explorer.build import build_page
from htaf.explorer.likeness import Likeness
from htaf.explorer.scripts import unpacked
from made_pages import made_codes, read_page, read_script
from visits import Site, pictures

CODES = made_codes(names=("ash", "birch", "cedar", "dogwood", "elm"))
RANDOM = np.random.default_rng(0)
FEATURES = {one: RANDOM.normal(size=6).astype(np.float32) for one in CODES.ids}


def of(ids: Sequence[str]) -> np.ndarray:
    found = np.stack([FEATURES[one] for one in ids])
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def likeness() -> Likeness:
    train, held = CODES.part("train").ids, CODES.part("validation").ids
    near = (1 - of(held) @ of(train).T).min(1)
    return Likeness(Known(of(train), [*train], np.sort(near).astype(np.float32)), of)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("likeness") / "page"
    build_page(CODES, folder, pixels=pictures, likeness=likeness(), seconds=0.0)
    return Site(folder, CODES)


def expected() -> tuple[np.ndarray, np.ndarray]:
    """Of each test image the share of validation images that are nearer, and the three nearest training images."""
    train = CODES.part("train").ids
    near, held = (1 - of(CODES.part(part).ids) @ of(train).T for part in ("test", "validation"))
    return (held.min(1)[None] < near.min(1)[:, None]).mean(1), np.argsort(near, axis=1)[:, :3]


def test_shares_and_nearest_images_are_in_the_data(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    share, nearest = expected()
    page = read_page(site.folder)
    assert page["page"]["unlike"] == {"far": 0.99, "validation": 40, "train": 40}
    np.testing.assert_allclose(page["arrays"]["unlike"], share, atol=1e-6)
    known = read_script(site.folder / "data" / "known.js")
    places = unpacked({"nearest": known["nearest"]})["nearest"]
    train = CODES.part("train").ids
    assert [[known["ids"][place] for place in row] for row in places] == [[train[i] for i in row] for row in nearest]
    assert known["ids"][: len({*nearest[:, 0]})] == [  # those of the least like images come first
        train[i] for i in dict.fromkeys(nearest[np.argsort(-share, kind="stable"), 0])
    ]
    assert known["pictured"] == len(known["ids"])
    assert {file.name for file in (site.folder / "data").glob("known-*.webp")} == {"known-0000.webp"}
    monkeypatch.setattr(build, "PICTURED", 3)
    build_page(CODES, site.folder.parent / "few", pixels=pictures, likeness=likeness(), seconds=0.0)
    assert read_script(site.folder.parent / "few" / "data" / "known.js")["pictured"] == 3
    build_page(CODES, site.folder.parent / "few", seconds=0.0)
    assert not [*(site.folder.parent / "few" / "data").glob("known*")]
    build_page(CODES, site.folder.parent / "without", seconds=0.0)
    assert read_page(site.folder.parent / "without")["page"]["unlike"] is None


def test_features_that_cannot_be_had_are_a_note(tmp_path: Path) -> None:
    def gone(ids: Sequence[str]) -> np.ndarray:
        raise ConceptError("the images are gone")

    known = Known(of(CODES.ids[:3]), CODES.ids[:3], np.ones(2, np.float32))
    made = build_page(CODES, tmp_path / "page", likeness=Likeness(known, gone), seconds=0.0)
    assert "no distances to the training images: the images are gone" in made["notes"]
    assert read_page(tmp_path / "page")["page"]["unlike"] is None
