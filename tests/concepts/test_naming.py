"""Names of a language model and their checks, with models that know a table, and that are badly meant."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_askers import HOSTILE, QUICK, Counted, Scripted, made, shares

from htaf.concepts.codes import codes_of
from htaf.concepts.naming import ConceptName, check_names, estimate, name_by_model, naming_plan, read_names, write_names
from htaf.concepts.naming.by_model import judged
from htaf.data.attributes import Attributes
from htaf.llm import BudgetError
from htaf_paper.table_model import TableModel, read_lists


def test_a_model_that_knows_finds_names_that_hold() -> None:
    table = made()
    found = name_by_model(shares(table), TableModel(table), classes=table.classes, settings=QUICK)
    assert [each["concept"] for each in found] == list(range(6))
    for entry, name in zip(found, table.names, strict=True):
        assert (entry["name"], entry["label_1"], entry["label_0"]) == (name, name, f"not {name}")
        assert [entry[key] for key in ("held_out", "naming", "own", "shown", "agreement")] == [1] * 5
        assert (entry["verified"], entry["reason"], entry["p_value"]) == (True, "", 0.01)
        assert (entry["group_a"], entry["group_b"], entry["mixed"], entry["empty"]) == (9, 15, 0, 0)
        assert (entry["rounds"], entry["scored"], entry["source"], entry["candidate"]) == (3, 24, "model", False)
        assert entry["justification"] == "the table says so"
        assert [each["name"] for each in entry["rounds_detail"]] == [name] * 3
        assert entry["model"] == "table model: table"
        assert entry["baseline"]["p95"] < 0.9


def test_no_name_is_verified_of_training_images_alone() -> None:
    """Groups that test images turn round: found names and given ones alike."""
    table = made()
    has, labels = table.binary().T[:1].astype(bool), np.repeat(np.arange(24), 2)
    bits = np.where(np.arange(48) % 2 == 0, has[0][labels], ~has[0][labels])[:, None]
    codes = codes_of(bits, labels, np.zeros((24, 1)), np.zeros(24), classes=table.classes,
                     parts=np.tile([0, 2], 24).astype(np.uint8))  # fmt: skip
    (found,) = name_by_model(codes, TableModel(table), settings=QUICK)
    (given,) = check_names(codes, TableModel(table), [{"concept": 0, "name": "a0"}], settings=QUICK)
    for entry in (found, given):
        assert (entry["held_out"], entry["verified"], entry["status"]) == (1, False, "not verified")
        assert entry["reason"] == "not so on test images: 0% of group A and 100% of group B have it"


def test_a_round_never_sees_the_classes_that_judge_it() -> None:
    table = made()
    client = Counted(TableModel(table))
    name_by_model(shares(table)[:1], client, classes=table.classes, settings=QUICK, parallel=1)
    case = naming_plan(shares(table)[:1], table.classes, (), QUICK).case(0)
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


@pytest.mark.parametrize(
    "behaviour", ["random name", "same name", "lists classes", "random sorting", "all under label 1"]
)
def test_models_that_name_or_sort_badly_are_not_verified(behaviour: Any) -> None:
    table = made(60, 30)
    client = TableModel(table, behaviour)
    found = name_by_model(shares(table)[5:15], client, classes=table.classes, settings=QUICK)
    assert not any(each["verified"] for each in found)
    assert np.mean([each["held_out"] for each in found]) == pytest.approx(0.5, abs=0.08)


def test_a_name_that_lists_its_classes_is_right_about_them_and_no_others() -> None:
    classes = [f"c{i}" for i in range(12)]
    client = TableModel(Attributes(("x",), tuple(classes), np.zeros((12, 1), dtype=np.float32)), "lists classes")
    entry = name_by_model(np.array([[1.0] * 6 + [0.0] * 6]), client, classes=classes, settings=QUICK)[0]
    assert (entry["naming"], entry["held_out"], entry["verified"]) == (1.0, 0.5, False)


def test_the_name_shown_is_that_of_the_round_which_agrees_most() -> None:
    shares_, classes = np.array([[1.0] * 6 + [0.0] * 6]), [f"{'ab'[i // 6]}{i % 6}" for i in range(12)]
    sort = {"odd one": lambda c: int(c[1]) % 2 == 0, "good": lambda c: c[0] == "a"}

    def by(name: str, each: str) -> bool:
        return sort[name.removesuffix(" too")](each)

    entry = name_by_model(shares_, Scripted(["odd one", "good", "good too"], by), classes=classes, settings=QUICK)[0]
    assert (entry["name"], entry["own"]) == ("good", 1.0)  # of the two that agree the first
    assert entry["agreement"] == pytest.approx(1 / 3, abs=0.15)
    scores = [each["held_out"] for each in entry["rounds_detail"]]
    assert scores[1:] == [1, 1]
    assert entry["held_out"] == pytest.approx((scores[0] + 2) / 3, abs=0.05)
    wrong = name_by_model(
        shares_, Scripted(["odd one", "good", "odd one"], by), classes=classes, settings=QUICK
    )[0]  # fmt: skip
    assert wrong["name"] == "odd one"  # most agree on it, though it scores worse
    assert not wrong["verified"]


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
    plan = naming_plan(inside[None].astype(float), [str(i) for i in range(120)], (), QUICK)
    case, poor = plan.case(0), inside.copy()
    for side in (True, False):
        for number, share in enumerate((own, others, others)):
            rows = np.flatnonzero((inside == side) & (case.fold == number))
            poor[rows[round(share * len(rows)) :]] ^= True
    names = [ConceptName(name, "x", "y") for name in ("poor", "poor", "good")]
    entry = judged(plan, case, names, [poor.astype(float), poor.astype(float), inside.astype(float)])
    assert (entry["name"], entry["own"]) == ("poor", pytest.approx(own))
    assert entry["shown"] == pytest.approx((own + 2 * others) / 3)
    assert entry["held_out"] >= 0.75
    assert (entry["verified"], entry["reason"]) == (not reason, reason)


def test_classes_left_out_are_half_right() -> None:
    classes = [f"{'ab'[i // 6]}{i % 6}" for i in range(12)]
    client = Scripted(["x"] * 3, lambda _, each: None if each == "a0" else each[0] == "a")
    entry = name_by_model(np.array([[1.0] * 6 + [0.0] * 6]), client, classes=classes, settings=QUICK)[0]
    assert entry["held_out"] == pytest.approx(((5 + 0.5) / 6 + 1) / 2)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([1.0], "dead: always 1"),
        ([0.5], "both groups are empty: every class is mixed"),
        ([1.0, 1.0, 0.5], "group B is empty: no class with a share of 20% or less"),
        ([1.0, 0.0], "group A has one class: not asked, as the name could not be checked"),
        ([1.0, 1.0, 1.0, 0.0], "group B has one class: not asked, as the name could not be checked"),
    ],
)
def test_few_classes(row: list[float], reason: str) -> None:
    table = made(len(row), 2)
    client = Counted(TableModel(table))
    entry = name_by_model(np.array([row]), client, classes=table.classes)[0]
    assert (entry["verified"], entry["reason"], entry["held_out"]) == (False, reason, None)
    assert (entry["name"] is None, len(client.prompts)) == (True, 0)
    needed = estimate(np.array([row]), client, classes=table.classes)
    assert (needed.calls, needed.single, needed.idle) == (0, "one class" in reason, "one class" not in reason)


def test_two_classes_a_group_are_two_folds() -> None:
    table = made(4, 1)
    row = np.array([[1.0, 0.0, 1.0, 0.0]])
    entry = name_by_model(row, Scripted(["x"] * 2, lambda _, c: c in ("class 0", "class 2")), classes=table.classes)[0]
    assert (entry["rounds"], entry["held_out"], entry["verified"]) == (2, 1.0, False)
    assert entry["reason"].startswith("shuffled classes do as well: p = 0.2")


def test_five_thousand_classes() -> None:
    table = made(5000, 2)
    client = Counted(TableModel(table))
    begun = time.monotonic()
    entry = name_by_model(shares(table)[:1], client, classes=table.classes)[0]
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
    entry = name_by_model(few, Counted(TableModel(table)), classes=table.classes, settings=QUICK)[0]
    assert (entry["rounds"], entry["scored"]) == (3, 200)


def test_hostile_names_of_classes_are_sorted_like_others() -> None:
    names = [*HOSTILE, *(f"class {i}" for i in range(12))]
    table = made(24, 3, names)
    client = Counted(TableModel(table))
    found = name_by_model(shares(table), client, classes=names, settings=QUICK)
    assert [(each["name"], each["held_out"]) for each in found] == [("a0", 1), ("a1", 1), ("a2", 1)]
    assert not any("\u202e" in text or "\x1b" in text or "x" * 300 in text for text in client.prompts)


def test_a_hostile_model_stays_text(tmp_path: Path) -> None:
    classes = [f"{'ab'[i // 6]}{i % 6}" for i in range(12)]
    for name in HOSTILE:
        if len(name) > 200 or "\ud800" in name:
            continue
        entry = name_by_model(np.array([[1.0] * 6 + [0.0] * 6]), Scripted([name] * 3, lambda _, c: c[0] == "a"),
                              classes=classes, settings=QUICK)  # fmt: skip
        assert entry[0]["held_out"] == 1.0
        write_names(entry, tmp_path / "names.json")
        assert read_names(tmp_path / "names.json") == entry


def test_codes_use_the_training_part_and_the_most_important_first() -> None:
    table = made(12, 4)
    labels = np.repeat(np.arange(12), 5)
    bits = table.binary()[labels]
    parts = np.tile([0, 0, 0, 2, 2], 12).astype(np.uint8)
    bits[parts == 2] ^= True  # would leave each class mixed
    weight = np.random.default_rng(0).normal(size=(12, 4)) * [1, 5, 0.1, 3]
    codes = codes_of(bits, labels, weight, np.zeros(12), classes=table.classes, parts=parts)
    assert naming_plan(codes).order == (1, 3, 0, 2)
    client = Counted(TableModel(table))
    found = name_by_model(codes, client, settings=QUICK, parallel=1)
    assert [each["name"] for each in found] == list(table.names)
    plan = naming_plan(codes, settings=QUICK)
    assert client.prompts[0] == plan.naming(plan.case(1), 0)[1]["content"]
    client.fails = lambda n, text: BudgetError("used up") if n > 12 + 24 else None
    kept: list[list[dict[str, Any]]] = []
    with pytest.raises(BudgetError):
        name_by_model(codes, client, settings=QUICK, parallel=1, save=kept.append)
    assert [each["concept"] for each in kept[-1]] == [1, 3]


def test_names_from_a_list() -> None:
    table = made()
    flipped = np.concatenate([shares(table)[:1], 1 - shares(table)[1:2]])
    found = name_by_model(flipped, TableModel(table), classes=table.classes, candidates=table.names[:3], settings=QUICK)
    assert [(each["name"], each["label_1"], each["label_0"]) for each in found] == [
        ("a0", "a0", "not a0"),
        ("not a1", "not a1", "a1"),
    ]
    assert [(each["candidate"], each["negated"], each["held_out"]) for each in found] == [
        (True, False, 1),
        (True, True, 1),
    ]
