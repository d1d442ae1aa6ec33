"""The maps of a page: those of the network, quantised; kept by a later call; none where none are exact."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from htaf.concepts import where
from htaf.concepts.codes import Codes, ConceptError
from htaf.concepts.explorer.build import build_page
from htaf.concepts.explorer.contents import chosen_rows, strongest_images
from htaf.concepts.explorer.folder import KINDS
from htaf.concepts.explorer.run_page import build_run_page
from htaf.concepts.explorer.shown import Shown
from htaf.concepts.extract import extract
from htaf.concepts.store import open_codes, open_folder
from htaf.concepts.where import Maps
from htaf.training.runs import Run
from made_pages import made_codes, read_page, read_script
from made_runs import digits, made_run

IMAGES = 64  # on a page: all have maps unless a test says how many

pytestmark = pytest.mark.usefixtures("stand_in")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made_run(tmp_path_factory.mktemp("maps") / "run", digits())


@pytest.fixture(scope="module")
def codes(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("maps") / "codes"
    extract(run, digits(), out, parts=["train", "test"])
    return out


def built(run: Run, codes: Path, out: Path, maps: int = IMAGES) -> dict[str, Any]:
    return build_run_page(run, codes, out, shown=Shown(images=IMAGES, detailed=maps))


def seen(codes: Path) -> tuple[Codes, np.ndarray]:
    """The images of the page, and their margins."""
    rows = chosen_rows(open_codes(codes), "test", IMAGES)
    margins = open_folder(codes).margins()
    assert margins is not None
    return open_codes(codes).take(rows), margins[rows]


def arrays_of(out: Path, row: int) -> dict[str, np.ndarray]:
    value = read_script(out / "data" / f"maps-{row:06d}.js")
    return {
        name: np.frombuffer(base64.b64decode(one["data"]), KINDS[one["dtype"]]).reshape(one["shape"])
        for name, one in value.items()
        if name != "key"
    }


def test_maps_are_those_of_the_network_quantised(run: Run, codes: Path, tmp_path: Path) -> None:
    """And the images of a concept stand from the strongest to the barely on."""
    made = built(run, codes, tmp_path / "p")
    found, maps = read_page(tmp_path / "p"), Maps(run, digits())
    said, (shown, _) = found["page"]["maps"], seen(codes)
    assert (made["maps"], said["rows"], said["grid"], said["size"]) == (IMAGES, list(range(IMAGES)), [2, 2], [8, 8])
    assert said["colours"] == {"for": list(where.FOR), "against": list(where.AGAINST)}
    assert len(list((tmp_path / "p" / "data").glob("maps-*.js"))) == IMAGES
    for row in said["rows"][::9]:
        arrays = arrays_of(tmp_path / "p", row)
        expected = maps.of([str(shown.ids[row])], range(21))[0]
        assert arrays["concepts"].tolist() == list(range(21))
        for k, one in enumerate(expected):
            top = float(arrays["tops"][k])
            values = (arrays["values"][k].astype(float) - 128) / 127 * top
            assert top == pytest.approx(np.abs(one.values).max(), abs=1e-5)
            np.testing.assert_allclose(values, one.values, atol=top / 254 + 1e-5)
            assert arrays["margins"][k] == pytest.approx(one.pre_activation, abs=1e-5)
            assert tuple(arrays["boxes"][k].tolist()) == (one.box() or (-1, -1, -1, -1))


def test_without_margins_there_is_no_order(run: Run, codes: Path, tmp_path: Path) -> None:
    build_page(open_codes(codes), tmp_path / "p", maps=Maps(run, digits()), shown=Shown(images=IMAGES, detailed=9))
    found = read_page(tmp_path / "p")
    assert "strongest" not in found["arrays"]
    assert len(found["page"]["maps"]["rows"]) == 9


def test_of_few_images_the_strongest_come_first_then_mistakes(run: Run, codes: Path, tmp_path: Path) -> None:
    shown, margins = seen(codes)
    best = strongest_images(shown, margins)
    built(run, codes, tmp_path / "p", maps=30)
    rows = read_page(tmp_path / "p")["page"]["maps"]["rows"]
    assert set(best[0, :9, 0][best[0, :9, 0] >= 0].tolist()) <= set(rows)
    wrong = np.flatnonzero((shown.labels >= 0) & (shown.labels != shown.exact)).tolist()
    first = set(best[:2, :, 0][best[:2, :, 0] >= 0].tolist()) | set(wrong)
    assert wrong
    built(run, codes, tmp_path / "p", maps=len(first) + 1)  # and the example
    assert first <= set(read_page(tmp_path / "p")["page"]["maps"]["rows"])


def test_a_later_call_keeps_the_maps(run: Run, codes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def files() -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in (tmp_path / "p" / "data").iterdir()}

    built(run, codes, tmp_path / "p", 40)
    before, asked = files(), []
    given = Maps.of

    def counted(self: Maps, ids: Any, concepts: Any) -> Any:
        asked.extend(ids)
        return given(self, ids, concepts)

    monkeypatch.setattr(Maps, "of", counted)
    built(run, codes, tmp_path / "p", 40)
    assert (asked, files()) == ([], before)
    damaged = sorted((tmp_path / "p" / "data").glob("maps-*.js"))[:2]
    (tmp_path / "p" / "data" / "page.js").unlink()  # a call that was killed: its page is not whole
    damaged[0].write_text("half")
    damaged[1].unlink()
    built(run, codes, tmp_path / "p", 40)
    assert files() == before
    assert len(asked) in (16, 24, 32), "only the groups of the two images"
    built(run, codes, tmp_path / "p", 0)
    assert read_page(tmp_path / "p")["page"]["maps"] is None
    assert not list((tmp_path / "p" / "data").glob("maps-*.js"))


def test_an_error_leaves_what_is_whole(run: Run, codes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, calls = Maps.of, []

    def failing(self: Maps, ids: Any, concepts: Any) -> Any:
        calls.append(ids)
        if len(calls) == 2:
            raise ConceptError("gone")
        return given(self, ids, concepts)

    monkeypatch.setattr(Maps, "of", failing)
    made = built(run, codes, tmp_path / "p", 40)
    assert made["maps"] == len(read_page(tmp_path / "p")["page"]["maps"]["rows"]) == 16
    assert "maps of some images only: gone" in made["notes"]


def test_the_network_must_agree_with_the_codes(run: Run, tmp_path: Path) -> None:
    other = made_codes(concepts=21, classes=10)
    made = build_page(other, tmp_path / "p", maps=Maps(run, digits()))
    assert made["maps"] == 0
    assert any(note.startswith("no maps over pictures: expected ids of digits") for note in made["notes"])
