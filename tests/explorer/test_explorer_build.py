"""The files of a page: each as the page reads it, with the figures of the network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from htaf.concepts.codes import Codes, ConceptError, codes_of
from htaf.concepts.counts import proportions
from htaf.concepts.explorer.build import build_page
from htaf.concepts.explorer.contents import chosen_rows
from htaf.concepts.explorer.shown import Heading, Items, Shown
from htaf.concepts.naming.files import seal_of
from htaf.concepts.scores import score
from made_pages import coloured, contents, made_codes, read_page

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "a\"b'c\\`${x}`\n\r\u2028\u2029\x00",
    "\u202eright to left\u2066",
    "x" * 10_000,
)


pytestmark = pytest.mark.usefixtures("stand_in")


def test_every_file_is_as_the_page_reads_it(tmp_path: Path) -> None:
    codes = made_codes()
    made = build_page(codes, tmp_path / "p", heading=Heading("T", about=[("Run", "r")], notes=["first"]))
    found, test = read_page(tmp_path / "p"), codes.part("test")
    assert set(contents(tmp_path / "p")) == {
        *(".htaf-explorer", "index.html", "app.js", "app.css"),
        *(f"data/{name}.js" for name in ("page", "concepts", "arrays", "rows", "doubtful", "bits-0000", "ids-0000")),
    }
    head, arrays = found["page"], found["arrays"]
    assert (head["format"], head["title"], head["part"], head["about"]) == (3, "T", "test", [["Run", "r"]])
    assert (head["concepts"], head["images"], head["classes"]) == (21, 40, list("01234"))
    assert head["parts"] == {"train": 40, "validation": 40, "test": 40, "other": 0}
    assert head["groups"] == {"low": 0.2, "high": 0.8}
    assert head["few"] == 10
    assert head["sprites"] is None
    assert head["notes"][0] == "first"
    assert head["notes"] == made["notes"]

    bits = np.array([[arrays["bits"][n, c // 8] >> (c % 8) & 1 for c in range(21)] for n in range(40)])
    np.testing.assert_array_equal(bits, test.unpack())
    logits = bits @ arrays["weight"].astype(np.float64).T + arrays["bias"]
    np.testing.assert_allclose(logits, test.logits(), atol=1e-5)
    for name in ("labels", "exact", "smooth", "weight", "bias"):
        np.testing.assert_array_equal(arrays[name], getattr(test, name))
    assert {name: array.dtype.str for name, array in arrays.items()} == {
        "bits": "|u1", "labels": "<i4", "exact": "<i4", "smooth": "<i4", "weight": "<f4", "bias": "<f4",
        "shares": "<f4", "held": "<f4", "concept_order": "<i4", "class_order": "<i4", "related": "<i4",
        "related_by": "<f4", "typical": "<i4", "samples": "<i4", "confusion": "<i4", "places": "<f4",
    }  # fmt: skip
    np.testing.assert_allclose(arrays["shares"], proportions(codes.part("train")), rtol=1e-6)
    np.testing.assert_allclose(arrays["held"], proportions(codes.part("test")), rtol=1e-6)
    assert found["images"]["ids"] == test.ids


def test_concepts_are_those_of_the_scores(tmp_path: Path) -> None:
    codes = made_codes()
    build_page(codes, tmp_path / "p")
    found, scores = read_page(tmp_path / "p"), score(codes)
    concepts, weight = found["concepts"], codes.weight.astype(np.float64)
    train = codes.part("train")
    known = train.unpack()[train.labels >= 0]
    assert [one["rate"] for one in concepts] == pytest.approx(known.mean(0))
    assert [one["importance"] for one in concepts] == pytest.approx(np.abs(weight).max(0))
    spread = known.std(0) * weight.std(0)
    assert [one["spread"] for one in concepts] == pytest.approx(spread)
    assert [one["rank"] for one in concepts] == (np.argsort(np.argsort(-spread)) + 1).tolist()
    assert [one["accuracy"] for one in concepts] == scores["concept_accuracy"]["per_concept"]["accuracy"]
    assert [one["balanced"] for one in concepts] == scores["concept_accuracy"]["per_concept"]["balanced"]
    assert all(one["name"] is None and one["verified"] is None for one in concepts)
    values = {one["key"]: one["value"] for one in found["page"]["scores"]}
    assert values["exact"] == scores["accuracy"]["test"]["exact"]
    assert values["gap"] == scores["accuracy"]["test"]["gap"]
    assert values["binarity"] == pytest.approx(20 / 21)
    assert values["dead"] == scores["dead"]["count"]
    assert {one["kind"] for one in found["page"]["scores"]} <= {"percent", "points", "count", "number"}
    assert all(one["label"] and one["help"] for one in found["page"]["scores"])


def test_classes_count_all_images_of_the_part(tmp_path: Path) -> None:
    codes = made_codes(600)
    build_page(codes, tmp_path / "p", shown=Shown(images=30))
    head, test = read_page(tmp_path / "p")["page"], codes.part("test")
    assert head["images"] == 30
    rows = chosen_rows(codes, "test", 30)
    assert read_page(tmp_path / "p")["images"]["ids"] == [codes.ids[row] for row in rows]
    for number, one in enumerate(head["per_class"]):
        of_class = test.labels == number
        assert one["images"] == of_class.sum()
        assert one["trained"] == (codes.part("train").labels == number).sum()
        assert one["accuracy"] == pytest.approx((test.exact == number)[of_class].mean())
        assert one["smooth"] == pytest.approx((test.smooth == number)[of_class].mean())
    assert any("30 of the 200 test images are shown, drawn at random" in note for note in head["notes"])
    assert any("34 of the 200 test images have no label" in note for note in head["notes"])


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    codes = replace(made_codes(classes=5, names=HOSTILE), ids=[f"{i}{HOSTILE[i % 4]}" for i in range(120)])
    names = [{"concept": i, "name": text, "reason": text, "source": "hand"} for i, text in enumerate(HOSTILE)]
    heading = Heading(HOSTILE[0], about=[(HOSTILE[1], HOSTILE[2])], notes=HOSTILE)
    build_page(codes, tmp_path / "p", names=names, heading=heading)
    for file in (tmp_path / "p" / "data").iterdir():
        data = file.read_bytes()
        assert data.isascii()
        assert b"<" not in data
        assert data.count(b"\n") == 1
    found = read_page(tmp_path / "p")
    assert found["page"]["classes"] == list(HOSTILE)
    assert found["page"]["about"] == [[HOSTILE[1], HOSTILE[2]]]
    assert found["images"]["ids"] == codes.part("test").ids
    assert [one["name"] for one in found["concepts"][:5]] == list(HOSTILE)


def test_names_stand_with_their_checks(tmp_path: Path) -> None:
    names = [
        {"concept": 3, "name": "wing", "verified": True, "held_out": 0.9, "p_value": 0.01, "source": "attributes"},
        {"concept": 5, "name": "beak", "reason": "why", "label_1": "l", "source": "model", "model": "m"},
        {"concept": 6, "name": None, "verified": False, "reason": "dead: always 0", "source": "model"},
    ]
    made = build_page(made_codes(), tmp_path / "p", names=names)
    concepts = read_page(tmp_path / "p")["concepts"]
    keys = ("name", "verified", "reason", "held_out", "label_1", "source", "model")
    assert [concepts[3][key] for key in keys] == ["wing", True, None, 0.9, None, "attributes", None]
    assert [concepts[5][key] for key in keys] == ["beak", False, "why", None, "l", "model", "m"]
    assert [concepts[6][key] for key in keys[:3]] == [None, False, "dead: always 0"]
    assert (made["named"], made["verified"]) == (2, 1)
    assert [concepts[number]["seal"] for number in (3, 5, 6)] == [seal_of(names[0]), None, None]
    given = {"concept": 5, "name": "beak", "verified": True, "held_out": 0.9, "source": "hand", "checked_by": "m"}
    made = build_page(made_codes(), tmp_path / "p", names=[names[0], given])
    concepts = read_page(tmp_path / "p")["concepts"]
    assert (concepts[5]["checked_by"], concepts[5]["seal"]) == ("m", seal_of(given))


def small(bits: np.ndarray, labels: list[int], classes: int, **options: Any) -> Codes:
    rng = np.random.default_rng(0)
    return codes_of(bits, labels, rng.normal(size=(classes, bits.shape[1])), np.zeros(classes), **options)


def test_images_without_labels(tmp_path: Path) -> None:
    codes = small(np.eye(8)[:, :3], [-1] * 8, 2, parts=np.array([0, 0, 0, 0, 2, 2, 2, 2], np.uint8))
    made = build_page(codes, tmp_path / "p")
    found = read_page(tmp_path / "p")
    assert np.isnan(found["arrays"]["shares"]).all()
    assert [one["key"] for one in found["page"]["scores"]] == ["dead"]
    assert [one["rate"] for one in found["concepts"]] == [0.25] * 3
    assert found["page"]["per_class"] == [{"images": 0, "trained": 0, "accuracy": None, "smooth": None}] * 2
    assert any("2 of 2 classes have no test images" in note for note in made["notes"])
    assert any("4 of the 4 test images have no label" in note for note in made["notes"])


def test_one_concept_one_class_and_dead_ones(tmp_path: Path) -> None:
    parts = np.array([0, 0, 2, 2], np.uint8)
    one = small(np.array([[1], [0], [1], [0]]), [0, 0, 0, 0], 1, parts=parts)
    made = build_page(one, tmp_path / "one")
    assert not any("no better than" in note for note in made["notes"])
    dead = small(np.array([[0, 1], [0, 1], [1, 1], [0, 0]]), [0, 1, 0, 1], 2, parts=parts)
    build_page(dead, tmp_path / "dead")
    found = read_page(tmp_path / "dead")
    assert [c["dead"] for c in found["concepts"]] == [True, True]
    assert [c["spread"] for c in found["concepts"]] == [0, 0]


def test_no_note_holds_a_brace(tmp_path: Path) -> None:
    codes = made_codes(600)
    unknown = replace(codes, labels=np.where(codes.labels == 2, -1, codes.labels))
    names = [{"concept": 0, "name": "x", "verified": True, "checked_by": "m"}, {"concept": 1, "name": "y"}]
    for number, (one, options) in enumerate(
        [
            (codes, {"shown": Shown(images=30)}),
            (codes, {"shown": Shown(images=30), "items": Items("text", dict.fromkeys(codes.ids, "a"))}),
            (unknown, {"names": names, "pixels": _gone, "shown": Shown(part="train")}),
        ]
    ):
        notes = build_page(one, tmp_path / str(number), **options)["notes"]
        assert notes
        assert not [note for note in notes if set(note) & {"{", "}"}]


def _gone(ids: object) -> np.ndarray:
    raise OSError("they are gone")


def test_doubtful_labels_are_listed_beside_what_speaks_against_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels, parts = np.repeat([0, 1, 2], 40), np.tile([0, 0, 2, 1], 30).astype(np.uint8)
    features = 3 * rng.normal(size=(3, 60))[labels] + rng.normal(size=(120, 60))
    features[0] = features[50]  # a training image; the other one is a test image
    codes = codes_of(np.eye(3)[labels], labels, np.eye(3), np.zeros(3), parts=parts, classes=("a", "b", "c"))
    changed = codes.labels.copy()
    changed[[9, 90]] = 1
    made = build_page(replace(codes, labels=changed), tmp_path / "p", features=features, pixels=coloured)
    found = read_page(tmp_path / "p")
    doubtful, test = found["doubtful"], codes.rows("test").tolist()
    said = [(one["kind"], int(one["image"]["id"]), one["image"]["label"], one["seems"]) for one in made["doubtful"]]
    assert said[0][:2] == ("copy", 0)
    assert sorted(said[1:]) == [("class", 9, "b", "a"), ("class", 90, "b", "c")]
    assert (made["doubtful"][0]["like"]["id"], made["doubtful"][0]["like"]["part"]) == ("50", "test")
    assert doubtful["compared"] == 120
    assert doubtful["pairs"] == made["doubtful"]
    shown = [one[side] for one in made["doubtful"] for side in ("image", "like")]
    assert [one["row"] for one in shown] == [
        test.index(row) if (row := int(one["id"])) in test else -1 for one in shown
    ]
    assert doubtful["sprites"]["files"] == ["data/sprite-d0000.webp"]
    assert any(note.startswith("3 labels are doubtful") for note in made["notes"])
    none = build_page(codes, tmp_path / "q")  # by bits, which only divide the classes
    assert none["doubtful"] == []
    assert read_page(tmp_path / "q")["doubtful"]["compared"] == 0
    assert not any("doubtful" in note for note in none["notes"])


def test_a_network_that_knows_nothing_is_said_to(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = (np.arange(400) % 2 * 2).astype(np.uint8)
    codes = small(rng.integers(0, 2, (400, 8)), rng.integers(0, 4, 400).tolist(), 4, parts=parts)
    made = build_page(codes, tmp_path / "p")
    assert any("do not trust names" in note for note in made["notes"])
    constant = codes_of(np.ones((40, 3)), [0, 0, 0, 1] * 10, np.zeros((2, 3)), np.array([1, 0]), parts=parts[:40])
    made = build_page(constant, tmp_path / "c")
    assert any(
        note.startswith("the network is right for 50.0% of images (always the most frequent class: 50.0%)")
        for note in made["notes"]
    )
    (accuracy,) = (one for one in read_page(tmp_path / "c")["page"]["scores"] if one["key"] == "exact")
    assert accuracy["help"].endswith("A guess finds 50.0%, always the most frequent class 50.0%.")
    assert not any("do not trust" in note for note in build_page(made_codes(600), tmp_path / "q")["notes"])


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"shown": Shown(images=0)}, "expected images >= 1"),
        ({}, {"shown": Shown(detailed=-1)}, "detailed >= 0"),
        ({"bias": np.full(5, np.inf, np.float32)}, {}, "expected finite weights and biases of the head, got inf"),
    ],
)
def test_what_no_page_can_be_made_of(
    tmp_path: Path, change: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConceptError, match=message):
        build_page(replace(made_codes(), **change), tmp_path / "p", **options)
    assert not (tmp_path / "p").exists()
