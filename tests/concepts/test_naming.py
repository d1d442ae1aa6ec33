"""Names of a language model and their checks on classes: models that know a table, that are badly meant, that stop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_askers import (
    HOSTILE,
    Counted,
    ListsClasses,
    SortsAllAlike,
    TableModel,
    job,
    made,
    named,
    read_lists,
    shares,
)

from htaf.concepts.codes import ConceptError, codes_of
from htaf.concepts.naming.files import read_names, write_names
from htaf.llm.chat import BudgetError, MalformedReply


def test_a_model_that_knows_finds_names_that_hold() -> None:
    table = made()
    found = named(table)
    assert [each["concept"] for each in found] == list(range(6))
    for entry, name in zip(found, table.names, strict=True):
        assert (entry["name"], entry["label_1"], entry["label_0"]) == (name, name, f"not {name}")
        assert (entry["verified"], entry["status"], entry["reason"]) == (True, "verified", "")
        assert (entry["group_a"], entry["group_b"], entry["mixed"], entry["empty"]) == (9, 15, 0, 0)
        assert (entry["held_out"], entry["scored"], entry["source"]) == (1, 13, "model")  # of 9 five check, of 15 eight
        assert (entry["justification"], entry["model"]) == ("as the table says", "table model")
        assert entry["p_value"] == pytest.approx(1 / 1287)  # of 13 choose 5


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


def test_the_name_never_sees_the_classes_that_judge_it() -> None:
    table = made()
    client = Counted(TableModel(table))
    named(table, client, shares(table)[:1])
    naming, sorting = (read_lists(text) for text in client.prompts)
    seen = [*naming["Group A"], *naming["Group B"]]
    assert sorted([*seen, *sorting["Classes"]]) == sorted(table.classes)
    assert set(naming["Group A"]) <= {table.classes[row] for row in np.flatnonzero(shares(table)[0])}
    assert sorting["Classes"] != sorted(sorting["Classes"], key=table.classes.index)
    assert "Group" not in client.prompts[1]


@pytest.mark.parametrize("bad", [ListsClasses, SortsAllAlike])
def test_models_that_name_or_sort_badly_are_not_verified(bad: type[TableModel]) -> None:
    table = made(60, 30)
    found = named(table, bad(table), shares(table)[5:15])
    assert not any(each["verified"] for each in found)
    assert np.mean([each["held_out"] for each in found]) == pytest.approx(0.5, abs=0.08)


@pytest.mark.parametrize(
    ("row", "reason", "status"),
    [
        ([1.0], "dead: always 1", "nothing to name"),
        ([1.0, 0.0], "1 classes with the concept and 1 without it are too few to check", "too few classes"),
        ([1.0] * 4 + [0.0] * 5, "4 classes with the concept and 5 without it are too few to check", "too few classes"),
    ],
)
def test_nothing_is_asked_of_few_classes(row: list[float], reason: str, status: str) -> None:
    table = made(len(row), 2)
    client = Counted(TableModel(table))
    asked = job(table, client, np.array([row]))
    assert asked.estimate() == {"names": 1, "idle": 1, "requests": 0, "images": 0}
    (entry,) = asked.run()
    assert (entry["verified"], entry["reason"], entry["status"]) == (False, reason, status)
    assert (entry["held_out"], entry["name"], entry["scored"], client.prompts) == (None, None, 0, [])


def test_codes_use_the_training_part_and_the_most_important_first() -> None:
    table = made(14, 4)
    labels = np.repeat(np.arange(14), 5)
    bits = table.binary()[labels]
    parts = np.tile([0, 0, 0, 2, 2], 14).astype(np.uint8)
    bits[parts == 2] ^= True  # would leave each class mixed
    weight = np.random.default_rng(0).normal(size=(14, 4)) * [1, 5, 0.1, 3]
    codes = codes_of(bits, labels, weight, np.zeros(14), classes=table.classes, parts=parts)
    asked = job(table, rows=codes)
    assert asked.concepts == asked.evidence.order == (1, 3, 0, 2)
    assert all(asked.evidence.case(concept).note == "" for concept in range(4))


def test_what_can_be_seen_depends_on_the_seed_alone() -> None:
    table = made()
    prompts = []
    for seed, rows in ((0, slice(None)), (0, slice(1)), (1, slice(1))):
        client = Counted(TableModel(table))
        named(table, client, shares(table)[rows], seed=seed, parallel=1)
        prompts.append(client.prompts[:2])
    assert prompts[0] == prompts[1] != prompts[2]


# Jobs that stop ------------------------------------------------------------------------------------------------------


def test_a_stopped_job_is_continued_and_asks_nothing_twice(tmp_path: Path) -> None:
    table, kept, out = made(), {}, tmp_path / "n.json"
    first = Counted(TableModel(table), lambda n, _: BudgetError("used up") if n > 5 else None, kept)
    with pytest.raises(BudgetError):
        named(table, first, out=out, parallel=1)
    assert [entry["concept"] for entry in read_names(out)] == [0, 1]
    second = Counted(TableModel(table), keep=kept)
    found = named(table, second, out=out)
    assert len(second.prompts) == 12 - 5
    assert len(set(first.prompts[:5]) & set(second.prompts)) == 0
    assert [each["verified"] for each in found] == [True] * 6
    assert [each["name"] for each in read_names(out)] == list(table.names)


def test_one_reply_that_cannot_be_used_stops_nothing(tmp_path: Path) -> None:
    table = made()
    client = Counted(TableModel(table), lambda n, _: MalformedReply("no JSON") if n == 3 else None)
    found = named(table, client, out=tmp_path / "n.json", parallel=1)
    assert [each["status"] for each in found] == ["verified", "no answer", *["verified"] * 4]
    assert (found[1]["name"], found[1]["reason"]) == (None, "no usable reply: no JSON")
    assert [each["status"] for each in read_names(tmp_path / "n.json")] == [each["status"] for each in found]


# Names that somebody gave --------------------------------------------------------------------------------------------


def test_given_names_are_checked(tmp_path: Path) -> None:
    table, out = made(), tmp_path / "checked.json"
    own = [{"concept": 1, "name": "a1"}, {"concept": 2, "name": "a3"}, {"concept": 3, "name": None}]
    own += [{"concept": 4, "name": "its", "source": "model", "verified": True, "held_out": 0.9, "status": "verified"}]
    client = Counted(TableModel(table))
    asked = job(table, client, given=own, out=out)
    assert asked.estimate() == {"names": 2, "idle": 0, "requests": 2, "images": 0}
    found = asked.run()
    assert [(each["name"], each.get("verified", False), each.get("checked_by")) for each in found] == [
        ("a1", True, "table model"), ("a3", False, "table model"), (None, False, None), ("its", True, None),
    ]  # fmt: skip
    assert (len(client.prompts), found[0]["source"], found[0]["scored"]) == (2, "hand", 13)
    assert not any("Group" in text for text in client.prompts)
    assert 'Label 0: "otherwise"' in client.prompts[0]
    assert [each["name"] for each in read_names(out)] == ["a1", "a3", None, "its"]
    with pytest.raises(ConceptError, match="which would be lost"):
        job(table, given=own, out=out)  # it holds the name of a model


def test_a_file_of_names_is_checked_in_place(tmp_path: Path) -> None:
    table, file = made(), tmp_path / "own.json"
    write_names([{"concept": 1, "name": "a1", "source": "hand"}], file)
    (entry,) = named(table, given=file, out=file)
    assert entry["verified"]
    assert (read_names(file)[0]["verified"], read_names(file)[0]["checked_by"]) == (True, "table model")
    assert named(table, given=file, out=tmp_path / "other.json")[0]["verified"]


def test_hostile_names_of_classes_do_no_harm() -> None:
    table = made(len(HOSTILE) * 2, 4, [*HOSTILE, *(f"class {i}" for i in range(len(HOSTILE)))])
    assert [entry["name"] for entry in named(table)] == list(table.names)
