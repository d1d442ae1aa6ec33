"""The file of names: what is written can be read, and what is no such file is refused; names from attributes."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score

from htaf.concepts.codes import ConceptError, codes_key, codes_of
from htaf.concepts.heads import edited
from htaf.concepts.naming import by_attributes
from htaf.concepts.naming.by_attributes import name_by_attributes, play, splits
from htaf.concepts.naming.files import RENAMED, earlier_names, read_names, seal_of, status_of, write_names
from htaf.data.attributes import Attributes
from htaf.data.reading import DataError
from made_pages import made_codes

FILLED = (
    *("concept", "name", "label_1", "label_0", "verified", "status", "held_out", "p_value", "agreement", "naming"),
    *("group_a", "group_b", "mixed", "test_a", "test_b", "source", "reason", "justification", "checked_by"),
)
HOSTILE = ("=1+1", "'=1+1", "''=x", "+x", "-x", "@x", "\tx", "\rx", "'tis", "'", 'a"b,c;d', "a\r\nb\nc\rd", "\u202eabc")
texts = st.none() | st.text(min_size=1, max_size=20) | st.sampled_from(HOSTILE)
shares = st.none() | st.floats(0, 1)
counts = st.none() | st.integers(0, 10**6)


@st.composite
def entries(draw: st.DrawFn) -> list[dict[str, Any]]:
    """What every kind of naming fills."""
    numbers = draw(st.lists(st.integers(0, 50), unique=True, max_size=4))
    found = []
    for number in sorted(numbers):
        entry: dict[str, Any] = {"concept": number, "name": draw(texts), "label_1": draw(texts), "label_0": draw(texts)}
        entry |= {"verified": entry["name"] is not None and draw(st.booleans()), "reason": draw(texts) or ""}
        entry |= {key: draw(shares) for key in ("held_out", "p_value", "agreement", "naming", "test_a", "test_b")}
        entry |= {key: draw(counts) for key in ("group_a", "group_b", "mixed")}
        entry |= {"justification": draw(texts), "source": draw(st.sampled_from(["attributes", "model", "hand"]))}
        entry |= {"checked_by": draw(texts)}
        entry |= {"status": status_of(entry)}
        found.append(entry)
    return found


def seen(names: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: entry[key] for key in FILLED} for entry in names]


@settings(deadline=None, max_examples=60)  # each writes files
@given(entries())
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, names: list[dict[str, Any]]) -> None:
    file = tmp_path_factory.mktemp("names") / "names.json"
    write_names(names, file)
    assert seen(read_names(file, 51)) == names


@settings(deadline=None, max_examples=60)
@given(entries(), st.data())
def test_a_checked_name_that_is_edited_is_named_by_hand(
    tmp_path_factory: pytest.TempPathFactory, names: list[dict[str, Any]], data: st.DataObject
) -> None:
    """By whatever hand, and whatever of its three texts; a name without a check is only a name."""
    path = tmp_path_factory.mktemp("names") / "names.json"
    write_names(names, path)
    rows: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))
    edited = [data.draw(st.sampled_from(["", "name", "label_1", "label_0"])) for _ in rows]
    for row, key in zip(rows, edited, strict=True):
        if key:
            row[key] = f"{row[key] or ''}!"
    path.write_text(json.dumps(rows))
    for before, row, key in zip(names, read_names(path), edited, strict=True):
        if not key:
            assert seen([row]) == [before]
        elif before["held_out"] is None and not before["verified"]:
            assert (row["source"], row["verified"]) == (before["source"], False)
        else:
            assert (row["source"], row["verified"], row["reason"]) == ("hand", False, RENAMED)
            gone = ("held_out", "p_value", "agreement", "naming", "checked_by", "justification", "model")
            assert [row.get(what) for what in gone] == [None] * 7
            assert [row[what] for what in ("group_a", "group_b")] == [before["group_a"], before["group_b"]]
        assert "seal" not in row


def test_a_check_needs_its_seal(tmp_path: Path) -> None:
    entry = {"concept": 0, "name": "x", "verified": True, "held_out": 0.9, "source": "model", "model": "m"}
    for more in ({}, {"seal": None}, {"seal": "abcdefghijkl"}, {"verified": False}):
        (tmp_path / "n.json").write_text(json.dumps([entry | more]))
        (found,) = read_names(tmp_path / "n.json")
        assert [found.get(key) for key in ("source", "verified", "reason", "held_out", "model")] == [
            *("hand", False, "renamed since it was checked", None, None)
        ]
    write_names([entry], tmp_path / "n.json")
    (kept,) = json.loads((tmp_path / "n.json").read_text())
    assert re.fullmatch("[0-9a-f]{12}", kept["seal"])
    assert seal_of(entry) == seal_of(entry | {"label_1": ""}) == kept["seal"] != seal_of(entry | {"label_1": "y"})
    assert seal_of({"concept": 0, "name": "x"}) is None


def test_names_of_another_network_are_refused(tmp_path: Path) -> None:
    file = "n.json"
    ours, theirs = (codes_key(made_codes(seed=seed)) for seed in (0, 1))
    entry = {"concept": 0, "name": "x", "verified": True, "held_out": 0.9, "source": "model"}
    write_names([entry], tmp_path / file, codes=theirs)
    with pytest.raises(ConceptError, match=f"names of this network's concepts .{ours}., got .* .{theirs}.: "):
        read_names(tmp_path / file, 4, codes=ours)
    for same in (theirs, None):
        (found,) = read_names(tmp_path / file, codes=same)
        assert found["verified"]
        assert "codes" not in found
    write_names([entry], tmp_path / file)  # as by hand: it does not say
    assert read_names(tmp_path / file, codes=ours)[0]["name"] == "x"


def test_codes_are_known_by_their_network() -> None:
    """Other images, another split or an edited head change no concept; another training or other thresholds do."""
    codes = made_codes()
    key = codes_key(codes)
    assert re.fullmatch("[0-9a-f]{12}", key)
    assert codes_key(codes.part("test")) == codes_key(edited(codes, [(0, 3)])) == key
    binarised = [replace(codes, info={"settings": {"thresholds": text}}) for text in ("a", "b")]
    blank = [replace(one, bias=np.zeros_like(one.bias)) for one in (codes, made_codes(seed=1))]
    others = [made_codes(seed=1), made_codes(concepts=20), made_codes(names=tuple("abcde")), *binarised, *blank]
    assert len({key, *map(codes_key, others)}) == 8


def test_halves_of_surrogate_pairs_are_replaced(tmp_path: Path) -> None:
    write_names([{"concept": 0, "name": "a\ud800b😀"}], tmp_path / "n.json")
    assert read_names(tmp_path / "n.json")[0]["name"] == "a\ufffdb😀"
    (tmp_path / "e.json").write_text('[{"concept": 0, "name": "\\udcff"}]')
    assert read_names(tmp_path / "e.json")[0]["name"] == "\ufffd"


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_list_by_hand(tmp_path: Path, mark: str) -> None:
    """Unknown keys, concepts left out; never verified without a source."""
    rows = [{"name": "b", "concept": 2, "note": 1, "verified": True}, {"concept": 1, "name": "a", "verified": True}]
    (tmp_path / "n.json").write_bytes((mark + json.dumps([*rows, {"concept": 0, "name": None}])).encode())
    found = read_names(tmp_path / "n.json", 4)
    assert [(e["concept"], e["name"], e["verified"], e["source"], e["reason"]) for e in found] == [
        (0, None, False, "hand", ""),
        (1, "a", False, "hand", "named by hand, not checked"),
        (2, "b", False, "hand", "named by hand, not checked"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[{"concept": 0, "name": "\xff"}]', "n.json: expected UTF-8, got byte 0xff at 25"),
        (b'[{"concept": 0, "title": "a"}]', "entry 1: expected an object with concept and name"),
        (b"", "expected JSON"),
        (b"{}", "expected a list of objects, got dict"),
        (b"[" * 100_000, "expected JSON"),
        (b'[{"concept": 0, "name": "a"}, {"concept": 0, "name": "b"}]', "entry 2: .*, got concept 0 again"),
        (b'[{"concept": 7, "name": "a"}]', "concept in 0 to 3, got 7: are these the names of another network"),
        (b'[{"concept": "one", "name": "a"}]', "expected a whole number for concept, got 'one'"),
        (b'[{"concept": null, "name": "a"}]', "expected a whole number for concept, got None"),
        (b'[{"concept": 0, "name": "a", "held_out": NaN}]', "NaN is no number"),
        (b'[{"concept": 0, "name": "a", "held_out": "1,2"}]', "expected a number for held_out, got '1,2'"),
        (b'[{"concept": 0, "name": "a", "source": "oracle"}]', "expected a source of .*, got .oracle."),
    ],
)
def test_files_that_are_none(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "n.json").write_bytes(content)
    with pytest.raises(ConceptError, match=message):
        read_names(tmp_path / "n.json", 4)
    with pytest.raises(ConceptError, match="ends in"):
        read_names(tmp_path / "n.csv")


@pytest.mark.parametrize(
    ("source", "checked", "kept"),
    [("model", None, True), ("hand", None, False), ("pictures", None, False), ("hand", "m", False)],
)
def test_names_of_another_source_are_not_written_over(
    tmp_path: Path, source: str, checked: str | None, kept: bool
) -> None:
    path = tmp_path / "n.json"
    assert earlier_names(path, "model", 5, None) == []
    write_names([{"concept": 1, "name": "x", "source": source, "checked_by": checked}], path)
    if kept:
        assert [entry["name"] for entry in earlier_names(path, "model", 5, None)] == ["x"]
    else:
        with pytest.raises(ConceptError, match="which would be lost: choose another --out"):
            earlier_names(path, "model", 5, None)
    if checked:
        assert [entry["name"] for entry in earlier_names(path, None, 5, None)] == ["x"]
    else:
        with pytest.raises(ConceptError, match="expected a new file or names of an earlier check"):
            earlier_names(path, None, 5, None)


def made(classes: int = 30, count: int = 40, seed: int = 0) -> Attributes:
    """Random attributes that half the classes have, as shares."""
    rng = np.random.default_rng(seed)
    values = rng.random((classes, count)).astype(np.float32)
    names = tuple(f"a{i}" for i in range(count))
    return Attributes(names, tuple(f"c{i}" for i in range(classes)), values)


def test_planted_attributes_and_negations_are_found() -> None:
    attributes = made()
    planted = attributes.binary().T.astype(float)
    found = name_by_attributes(np.concatenate([planted, 1 - planted]), attributes)
    assert [each["name"] for each in found] == [*attributes.names, *(f"not {name}" for name in attributes.names)]
    assert all(each["verified"] and each["naming"] == pytest.approx(1) for each in found)
    assert all(each["held_out"] > 0.9 and each["agreement"] > 0.5 for each in found)
    assert found[3]["attribute"] == 3
    assert found[43]["negated"]


@pytest.mark.parametrize(("share", "verified"), [(1.0, True), (0.6, True), (0.4, False), (None, True)])
def test_groups_of_training_images_alone_verify_no_name(share: float | None, verified: bool) -> None:
    """A bit that all training images of group A have, and `share` of its test images; of group B the other ones."""
    attributes = made(count=4)
    has = attributes.binary().T[0].astype(bool)
    labels = np.repeat(np.arange(30), 10)
    training, bits = labels >= 0, [has[labels]]
    if share is not None:
        some = np.arange(300) % 10 < 10 * share
        training, bits = np.repeat([True, False], 300), [*bits, np.where(has[labels], some, ~some)]
    codes = codes_of(
        np.concatenate(bits)[:, None], np.resize(labels, len(training)), np.zeros((30, 1)), np.zeros(30),
        classes=attributes.classes, parts=np.where(training, 0, 2).astype(np.uint8),
    )  # fmt: skip
    (found,) = name_by_attributes(codes, attributes)
    assert (found["name"], found["verified"]) == ("a0", verified)
    if share is None:
        assert (found["test_a"], found["test_b"]) == (None, None)
    else:
        assert (found["test_a"], found["test_b"]) == pytest.approx((share, 1 - share))
    if share is not None and not verified:
        said = f"not so on test images: {share:.0%} of group A and {1 - share:.0%} of group B have it"
        assert (found["reason"], found["status"]) == (said, "not verified")


def test_p_values_of_random_groups_are_even(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_attributes, "ROUNDS", 5)
    monkeypatch.setattr(by_attributes, "SHUFFLES", 19)
    attributes = made(24, 12)
    rng = np.random.default_rng(2)
    shares = np.array([rng.permutation(np.arange(24) < 10) for _ in range(100)], dtype=float)
    found = name_by_attributes(shares, attributes)
    p = np.array([each["p_value"] for each in found])
    assert 0.4 < p.mean() < 0.62  # (1 + 19 / 2) / 20 = 0.525
    assert (p <= 0.05).mean() < 0.13
    assert np.mean([each["baseline"]["mean"] for each in found]) == pytest.approx(0.5, abs=0.02)


def test_few_classes_may_pass_the_threshold_by_chance_but_not_the_p_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_attributes, "ROUNDS", 1)
    attributes = made(6, 200)
    rng = np.random.default_rng(3)
    shares = np.array([rng.permutation([1, 1, 0, 0, 0, 0]) for _ in range(30)], dtype=float)
    found = name_by_attributes(shares, attributes)
    passed = [each for each in found if (each["held_out"] or 0) >= 0.75 and each["agreement"] >= 0.5]
    assert passed
    assert not any(each["verified"] for each in passed)
    assert "shuffled classes do as well: p = " in passed[0]["reason"]


def test_play_against_scikit_learn() -> None:
    """Each round: the best balanced accuracy over attributes and negations, and that name's score on the others."""
    attributes = made(20, 15)
    rng = np.random.default_rng(4)
    inside = rng.random(20) < 0.4
    held = splits(inside, 12, 0.3, rng)
    played = play(inside, held, attributes)
    have = attributes.binary()
    for number in range(12):
        naming = ~held[number]
        scores = {
            (a, negated): balanced_accuracy_score(inside[naming], have[naming, a] != negated)
            for a, negated in itertools.product(range(15), (False, True))
        }
        assert played.naming[number] == pytest.approx(max(scores.values()))
        chosen = int(played.attribute[number]), bool(played.negated[number])
        assert scores[chosen] == pytest.approx(max(scores.values()))
        others = held[number]
        expected = balanced_accuracy_score(inside[others], have[others, chosen[0]] != chosen[1])
        assert played.held_out[number] == pytest.approx(expected)


def test_splits_are_stratified_and_leave_a_class_on_either_side() -> None:
    inside = np.array([True] * 10 + [False] * 20)
    held = splits(inside, 50, 0.3, np.random.default_rng(0))
    assert (held[:, inside].sum(1) == 3).all()
    assert (held[:, ~inside].sum(1) == 6).all()
    assert len(np.unique(held, axis=0)) > 40
    two = splits(np.array([True, True, False, False]), 10, 0.9, np.random.default_rng(0))
    assert (two[:, :2].sum(1) == 1).all()
    assert (two[:, 2:].sum(1) == 1).all()


def test_ties_go_to_the_larger_difference_of_the_values() -> None:
    values = np.array([[0.6, 0.9, 0.9], [0.6, 0.9, 0.8], [0.4, 0.1, 0.2], [0.4, 0.1, 0.1]], dtype=np.float32)
    attributes = Attributes(("faint", "clear", "nearly"), tuple("wxyz"), values)
    found = name_by_attributes(np.array([[1.0, 1, 0, 0]]), attributes)[0]
    assert found["name"] == "clear"
    opposite = Attributes(("a", "b"), tuple("wxyz"), np.stack([values[:, 0], 1 - values[:, 1]], axis=1))
    found = name_by_attributes(np.array([[1.0, 1, 0, 0]]), opposite)[0]
    assert found["name"] == "not b"


def test_a_held_out_class_has_no_say() -> None:
    """Whatever the attributes of held-out classes are, the round's name stays the same."""
    attributes = made(20, 30)
    inside = np.arange(20) < 8
    held = splits(inside, 1, 0.3, np.random.default_rng(0))
    first = play(inside, held, attributes)
    changed = attributes.values.copy()
    changed[held[0]] = 1 - changed[held[0]]
    second = play(inside, held, Attributes(attributes.names, attributes.classes, changed))
    assert (first.attribute, first.negated, first.naming) == (second.attribute, second.negated, second.naming)
    assert second.held_out[0] == pytest.approx(1 - first.held_out[0])


def test_twins_of_a_name_are_no_disagreement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four attributes that are the same in every class, and one that is their opposite: rounds may name any."""
    monkeypatch.setattr(by_attributes, "ROUNDS", 50)
    monkeypatch.setattr(by_attributes, "HELD_OUT", 0.6)
    rng = np.random.default_rng(7)
    has = np.arange(30) < 14
    columns = [np.where(has, *rng.uniform((0.5, 0), (1, 0.5), (30, 2)).T) for _ in range(5)]
    columns[4] = 1 - columns[4]
    attributes = Attributes(tuple("abcde"), tuple(map(str, range(30))), np.stack(columns, axis=1).astype(np.float32))
    assert (attributes.binary()[:, :4] == has[:, None]).all()
    assert (attributes.binary()[:, 4] != has).all()
    found = name_by_attributes(np.stack([has, ~has]).astype(float), attributes)
    for each in found:
        assert (each["held_out"], each["agreement"], each["verified"]) == (1, 1, True)


def test_codes_use_the_training_part_and_names_of_classes() -> None:
    attributes = made(12, 10)
    order = np.random.default_rng(5).permutation(12)
    classes = [attributes.classes[i] for i in order]
    labels = np.repeat(np.arange(12), 5)
    bits = attributes.binary()[order][labels]
    parts = np.tile([0, 0, 0, 0, 2], 12).astype(np.uint8)
    bits[parts == 2] ^= True  # would turn each name round
    codes = codes_of(bits, labels, np.zeros((12, 10)), np.zeros(12), classes=classes, parts=parts)
    found = name_by_attributes(codes, attributes)
    assert [(each["name"], each["source"]) for each in found] == [(name, "attributes") for name in attributes.names]
    with pytest.raises(DataError, match=r"got none of .*'c3'"):
        name_by_attributes(
            codes, Attributes(attributes.names, (*attributes.classes[:3], *"abcdefghi"), attributes.values)
        )


def test_a_threshold_out_of_range() -> None:
    with pytest.raises(ConceptError, match="expected threshold"):
        name_by_attributes(np.zeros((1, 30)), made(), threshold=2.0)


def test_the_seed_decides() -> None:
    attributes = made()
    shares = np.random.default_rng(6).integers(0, 2, (5, 30)).astype(float)
    first, again, other = (name_by_attributes(shares, attributes, seed=seed) for seed in (0, 0, 1))
    assert first == again != other
    assert name_by_attributes(shares[:2], attributes) == first[:2]  # not on the concepts after it
