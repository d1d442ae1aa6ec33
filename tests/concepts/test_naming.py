"""Names of a language model and their checks on classes, with models that know a table, and that are badly meant."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from made_askers import (
    QUICK,
    Counted,
    ListsClasses,
    Scripted,
    SortsAllAlike,
    TableModel,
    job,
    made,
    named,
    read_lists,
    shares,
)

from htaf.concepts.codes import codes_of
from htaf.concepts.naming import ConceptName, NamingSettings, class_evidence, read_names
from htaf.data.attributes import Attributes
from htaf.llm import BudgetError

AB = Attributes(("x",), tuple(f"{'ab'[i // 6]}{i % 6}" for i in range(12)), np.zeros((12, 1), dtype=np.float32))
HALVES = np.array([[1.0] * 6 + [0.0] * 6])


def test_a_model_that_knows_finds_names_that_hold() -> None:
    table = made()
    found = named(table)
    assert [each["concept"] for each in found] == list(range(6))
    for entry, name in zip(found, table.names, strict=True):
        assert (entry["name"], entry["label_1"], entry["label_0"]) == (name, name, f"not {name}")
        assert [entry[key] for key in ("held_out", "naming", "own", "shown", "agreement")] == [1] * 5
        assert (entry["verified"], entry["status"], entry["reason"]) == (True, "verified", "")
        assert (entry["group_a"], entry["group_b"], entry["mixed"], entry["empty"]) == (9, 15, 0, 0)
        assert (entry["rounds"], entry["scored"], entry["source"], entry["candidate"]) == (3, 24, "model", False)
        assert (entry["justification"], entry["model"]) == ("as the table says", "table model")
        assert [each["name"] for each in entry["rounds_detail"]] == [name] * 3
        assert (entry["p_value"], entry["baseline"]["p95"] < 0.9) == (0.01, True)


def test_no_name_is_verified_of_training_images_alone() -> None:
    """Groups that test images turn round: found names and given ones alike."""
    table = made()
    has, labels = table.binary().T[:1].astype(bool), np.repeat(np.arange(24), 2)
    bits = np.where(np.arange(48) % 2 == 0, has[0][labels], ~has[0][labels])[:, None]
    codes = codes_of(bits, labels, np.zeros((24, 1)), np.zeros(24), classes=table.classes,
                     parts=np.tile([0, 2], 24).astype(np.uint8))  # fmt: skip
    for given in (None, [{"concept": 0, "name": "a0"}]):
        (entry,) = named(table, rows=codes, given=given)
        assert (entry["held_out"], entry["verified"], entry["status"]) == (1, False, "not verified")
        assert entry["reason"] == "not so on test images: 0% of group A and 100% of group B have it"


def test_a_round_never_sees_the_classes_that_judge_it() -> None:
    table = made()
    client = Counted(TableModel(table))
    named(table, client, shares(table)[:1], parallel=1)
    case = class_evidence(shares(table)[:1], QUICK, classes=table.classes).case(0)
    naming = [read_lists(text) for text in client.prompts[::2]]
    sorting = [read_lists(text) for text in client.prompts[1::2]]
    assert len(naming) == len(sorting) == 3
    for number, (lists, sort) in enumerate(zip(naming, sorting, strict=True)):
        for group, side in (("Group A", True), ("Group B", False)):
            rows = case.used[(case.fold != number) & (case.inside == side)]
            assert lists[group] == [table.classes[row] for row in rows]
        assert sorted(sort["Classes"]) == sorted(table.classes)
    orders = [sort["Classes"] for sort in sorting]
    assert len({tuple(order) for order in [*orders, list(table.classes)]}) == 4
    assert not any("Group" in text for text in client.prompts[1::2])


@pytest.mark.parametrize("bad", [ListsClasses, SortsAllAlike])
def test_models_that_name_or_sort_badly_are_not_verified(bad: type[TableModel]) -> None:
    table = made(60, 30)
    found = named(table, bad(table), shares(table)[5:15])
    assert not any(each["verified"] for each in found)
    assert np.mean([each["held_out"] for each in found]) == pytest.approx(0.5, abs=0.08)


def test_a_name_that_lists_its_classes_is_right_about_them_and_no_others() -> None:
    (entry,) = named(AB, ListsClasses(AB), HALVES)
    assert (entry["naming"], entry["held_out"], entry["verified"]) == (1.0, 0.5, False)


def test_the_name_shown_is_that_of_the_round_which_agrees_most() -> None:
    sort = {"odd one": lambda c: int(c[1]) % 2 == 0, "good": lambda c: c[0] == "a"}

    def by(name: str, each: str) -> bool:
        return sort[name.removesuffix(" too")](each)

    (entry,) = named(AB, Scripted(["odd one", "good", "good too"], by), HALVES)
    assert (entry["name"], entry["own"]) == ("good", 1.0)  # of the two that agree the first
    assert entry["agreement"] == pytest.approx(1 / 3, abs=0.15)
    scores = [each["held_out"] for each in entry["rounds_detail"]]
    assert scores[1:] == [1, 1]
    assert entry["held_out"] == pytest.approx((scores[0] + 2) / 3, abs=0.05)
    (wrong,) = named(AB, Scripted(["odd one", "good", "odd one"], by), HALVES)
    assert (wrong["name"], wrong["verified"]) == ("odd one", False)  # most agree on it, though it scores worse


@pytest.mark.parametrize(
    ("own", "others", "reason"),
    [
        (0.7, 0.7, "the name shown, alone, has a balanced accuracy of 0.70 < 0.75"),
        (0.5, 1.0, "the name shown, alone, has a held-out balanced accuracy of 0.50 < 0.625"),  # it lists its classes
        (0.7, 0.9, ""),
    ],
)
def test_the_name_shown_must_hold_by_itself(own: float, others: float, reason: str) -> None:
    """Two rounds share a poor name, which is shown, and a third has a good one, which lifts the score of all."""
    inside = np.arange(120) < 60
    evidence = class_evidence(inside[None].astype(float), QUICK)
    case, poor = evidence.case(0), inside.copy()
    for side in (True, False):
        for number, share in enumerate((own, others, others)):
            rows = np.flatnonzero((inside == side) & (case.fold == number))
            poor[rows[round(share * len(rows)) :]] ^= True
    names = [ConceptName(name, "x", "y") for name in ("poor", "poor", "good")]
    best, entry = evidence.verdict(case, names, [poor.astype(float), poor.astype(float), inside.astype(float)])
    assert (best, entry["own"]) == (0, pytest.approx(own))
    assert entry["shown"] == pytest.approx((own + 2 * others) / 3)
    assert entry["held_out"] >= 0.75
    assert (entry["verified"], entry["reason"]) == (not reason, reason)


@pytest.mark.parametrize(
    ("row", "reason", "status"),
    [
        ([1.0], "dead: always 1", "nothing to name"),
        ([1.0, 0.0], "group A has one class: not asked, as the name could not be checked", "too few classes"),
    ],
)
def test_few_classes(row: list[float], reason: str, status: str) -> None:
    table = made(len(row), 2)
    client = Counted(TableModel(table))
    asked = job(table, client, np.array([row]), NamingSettings())
    (entry,) = asked.run()
    assert (entry["verified"], entry["reason"], entry["status"]) == (False, reason, status)
    assert (entry["held_out"], entry["name"], client.prompts) == (None, None, [])
    needed = asked.estimate()
    assert (needed.calls, needed.single, needed.idle) == (0, "one class" in reason, "one class" not in reason)


def test_two_classes_a_group_are_two_folds() -> None:
    table = made(4, 1)
    client = Scripted(["x"] * 2, lambda _, c: c in ("class 0", "class 2"))
    (entry,) = named(table, client, np.array([[1.0, 0.0, 1.0, 0.0]]), NamingSettings())
    assert (entry["rounds"], entry["held_out"], entry["verified"]) == (2, 1.0, False)
    assert entry["reason"].startswith("shuffled classes do as well: p = 0.2")
    assert entry["status"] == "too few classes"


def test_five_thousand_classes() -> None:
    table = made(5000, 2)
    client = Counted(TableModel(table))
    begun = time.monotonic()
    (entry,) = named(table, client, shares(table)[:1])
    assert time.monotonic() - begun < 20
    assert (entry["name"], entry["scored"], entry["verified"]) == ("a0", 200, True)
    assert (entry["group_a"], entry["group_b"]) == (2000, 3000)
    for text in client.prompts[::2]:
        assert [len(names) for names in read_lists(text).values()] == [100, 100]
        assert " classes, drawn at random):" in text
    assert all(len(read_lists(text)["Classes"]) == 200 for text in client.prompts[1::2])
    assert max(map(len, client.prompts)) < 12_000
    few = np.zeros((1, 5000))
    few[0, :3] = 1
    (entry,) = named(table, rows=few)
    assert (entry["rounds"], entry["scored"]) == (3, 200)


def test_codes_use_the_training_part_and_the_most_important_first(tmp_path: Path) -> None:
    table = made(12, 4)
    labels = np.repeat(np.arange(12), 5)
    bits = table.binary()[labels]
    parts = np.tile([0, 0, 0, 2, 2], 12).astype(np.uint8)
    bits[parts == 2] ^= True  # would leave each class mixed
    weight = np.random.default_rng(0).normal(size=(12, 4)) * [1, 5, 0.1, 3]
    codes = codes_of(bits, labels, weight, np.zeros(12), classes=table.classes, parts=parts)
    evidence = class_evidence(codes, QUICK)
    assert evidence.order == (1, 3, 0, 2)
    client = Counted(TableModel(table))
    assert [each["name"] for each in named(table, client, codes, parallel=1)] == list(table.names)
    assert client.prompts[0] == evidence.naming(evidence.case(1), 0)[1]["content"]
    client.fails = lambda n, text: BudgetError("used up") if n > 12 + 24 else None
    with pytest.raises(BudgetError):
        named(table, client, codes, parallel=1, out=tmp_path / "n.json")
    assert [each["concept"] for each in read_names(tmp_path / "n.json")] == [1, 3]


def test_names_from_a_list() -> None:
    table = made()
    flipped = np.concatenate([shares(table)[:1], 1 - shares(table)[1:2]])
    found = named(table, rows=flipped, candidates=table.names[:3])
    keys = ("name", "label_1", "label_0", "candidate", "negated", "held_out")
    assert [tuple(each[key] for key in keys) for each in found] == [
        ("a0", "a0", "not a0", True, False, 1),
        ("not a1", "not a1", "a1", True, True, 1),
    ]
