"""Naming that is interrupted, continued, estimated, and names that are given to be checked."""

from __future__ import annotations

import json
import random
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_askers import QUICK, Counted, made, shares

from htaf.concepts.codes import ConceptError
from htaf.concepts.naming import NamingSettings, check_names, estimate, name_by_model, naming_plan
from htaf.llm import BudgetError, MalformedReply, ModelError, Unanswered
from htaf_paper.table_model import TableModel


@pytest.mark.parametrize("parallel", [1, 2, 16])
def test_threads_change_nothing(parallel: int) -> None:
    table = made()
    slow = Counted(TableModel(table), lambda n, text: time.sleep(random.random() / 200))
    found = name_by_model(shares(table), slow, classes=table.classes, settings=QUICK, parallel=parallel)
    assert found == name_by_model(shares(table), TableModel(table), classes=table.classes, settings=QUICK, parallel=1)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 36), st.integers(1, 5), st.sampled_from([BudgetError, ModelError, KeyboardInterrupt]))
def test_interrupted_and_resumed_is_as_uninterrupted(at: int, parallel: int, error: type[BaseException]) -> None:
    table = made()
    whole = name_by_model(shares(table), TableModel(table), classes=table.classes, settings=QUICK)
    failing = Counted(TableModel(table), lambda n, text: error("stopped") if n == at else None)
    kept: list[list[dict[str, Any]]] = [[]]
    steps: list[tuple[int, int]] = []
    with pytest.raises(error, match="stopped"):
        name_by_model(shares(table), failing, classes=table.classes, settings=QUICK, parallel=parallel,
                      save=kept.append, progress=lambda done, total: steps.append((done, total)))  # fmt: skip
    assert steps == [(i, 6) for i in range(len(kept))]
    known = json.loads(json.dumps(kept[-1]))
    client = Counted(TableModel(table))
    again = name_by_model(shares(table), client, classes=table.classes, settings=QUICK, known=known)
    assert again == whole
    assert len(client.prompts) == 6 * (6 - len(known))


def test_ctrl_c_does_not_wait_for_a_server_that_hangs() -> None:
    table, release = made(), threading.Event()
    client = Counted(TableModel(table), lambda n, text: release.wait(20) and None if n > 12 else None)

    def interrupt(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    begun, kept = time.monotonic(), []
    with pytest.raises(KeyboardInterrupt):
        name_by_model(shares(table), client, classes=table.classes, settings=QUICK, save=kept.append,
                      progress=interrupt, parallel=1)  # fmt: skip
    assert time.monotonic() - begun < 10
    assert len(kept[-1]) == 2
    release.set()


@pytest.mark.parametrize("error", [MalformedReply, Unanswered])
def test_a_concept_without_a_usable_reply_does_not_stop_others(error: type[ModelError]) -> None:
    table = made()
    plan = naming_plan(shares(table), table.classes, (), QUICK)
    bad = plan.naming(plan.case(2), 1)[1]["content"]
    client = Counted(TableModel(table), lambda n, text: error("no JSON") if text == bad else None)
    found = name_by_model(shares(table), client, classes=table.classes, settings=QUICK)
    whole = name_by_model(shares(table), TableModel(table), classes=table.classes, settings=QUICK)
    assert [each for each in found if each["concept"] != 2] == [each for each in whole if each["concept"] != 2]
    assert (found[2]["name"], found[2]["verified"], found[2]["settings"]) == (None, False, None)
    assert found[2]["reason"] == ("waiting for replies" if error is Unanswered else "no usable reply: no JSON")
    again = Counted(TableModel(table))
    assert name_by_model(shares(table), again, classes=table.classes, settings=QUICK, known=found) == whole
    assert len(again.prompts) == 6


def test_what_is_known_counts_for_the_same_question_only() -> None:
    table = made()
    known = name_by_model(shares(table), TableModel(table), classes=table.classes, settings=QUICK)

    asked_none = Counted(TableModel(table))
    assert name_by_model(shares(table), asked_none, classes=table.classes, settings=QUICK, known=known) == known
    assert asked_none.prompts == []
    for changed in ({"settings": NamingSettings(permutations=99, seed=1)}, {"candidates": table.names}):
        client = Counted(TableModel(table))
        name_by_model(
            shares(table), client, **({"classes": table.classes, "settings": QUICK, "known": known} | changed)
        )
        assert len(client.prompts) == 36
    client = Counted(TableModel(table, "same name"))  # another model
    name_by_model(shares(table), client, classes=table.classes, settings=QUICK, known=known)
    assert len(client.prompts) == 36
    other = shares(table)
    other[3, 0] = 1 - other[3, 0]  # other groups of one concept
    client = Counted(TableModel(table))
    name_by_model(other, client, classes=table.classes, settings=QUICK, known=known)
    assert len(client.prompts) == 6


def test_some_concepts_and_the_order_of_asking() -> None:
    table = made()
    client = Counted(TableModel(table))
    options: dict[str, Any] = {"classes": table.classes, "settings": QUICK, "parallel": 1}
    found = name_by_model(shares(table), client, only=[4, 1, 4], **options)
    assert [each["concept"] for each in found] == [1, 4]
    first = naming_plan(shares(table), table.classes, (), QUICK)
    assert client.prompts[0] == first.naming(first.case(4), 0)[1]["content"]
    more = name_by_model(shares(table), client, only=[2], known=found, **options)
    assert [each["concept"] for each in more] == [1, 2, 4]
    assert len(client.prompts) == 18
    for wrong, message in (({"only": [6]}, "expected concepts in 0 to 5, got 6"), ({"parallel": 0}, "parallel >= 1")):
        with pytest.raises(ConceptError, match=message):
            name_by_model(shares(table), client, **(options | wrong))


def test_given_names_are_checked_once() -> None:
    table = made(24, 6)
    names = [
        {"concept": 0, "name": "a0", "source": "hand", "verified": False, "extra": 1},
        {"concept": 1, "name": "a2"},
        {"concept": 2, "name": "not a2", "label_1": "a2", "label_0": "not a2", "source": "hand"},
        {"concept": 3, "name": None, "source": "hand"},
    ]
    client = Counted(TableModel(table))
    found = check_names(shares(table), client, names, classes=table.classes, settings=QUICK)
    assert [(each["held_out"], each["verified"]) for each in (found[0], found[2])] == [(1, True), (1, True)]
    assert found[1]["verified"] is False
    assert (found[0]["extra"], found[0]["rounds"], found[0]["agreement"], found[0]["scored"]) == (1, 1, None, 24)
    assert found[0]["checked_by"] == client.model
    assert found[3] == names[3]
    assert len(client.prompts) == 3
    assert 'Label 1: "a0"\nLabel 0: "otherwise"\n' in "".join(client.prompts)
    again = Counted(TableModel(table))
    options: dict[str, Any] = {"classes": table.classes, "settings": QUICK, "known": found[:3]}
    assert check_names(shares(table), again, names, **options) == found
    assert again.prompts == []
    changed = [names[0] | {"name": "a1"}, *names[1:]]
    assert estimate(shares(table), again, names=changed, **options).calls == 1
    assert check_names(shares(table), again, changed, **options)[0]["verified"] is False
    assert check_names(shares(table), again, names, only=[2], classes=table.classes)[0] == names[0]


def test_only_names_by_hand_are_checked_unless_others_are_asked_for() -> None:
    table = made(24, 6)
    options: dict[str, Any] = {"classes": table.classes, "settings": QUICK}
    names = name_by_model(shares(table), TableModel(table), **options)
    names[1] |= {"source": "attributes"}
    names[2] |= {"source": "hand", "verified": False}
    client = Counted(TableModel(table))
    assert estimate(shares(table), client, names=names, **options).calls == 1
    found = check_names(shares(table), client, names, **options)
    assert len(client.prompts) == 1
    assert [each for each in found if each["concept"] != 2] == [each for each in names if each["concept"] != 2]
    assert (found[2]["verified"], found[2]["checked_by"]) == (True, client.model)
    asked = check_names(shares(table), client, names, only=[0, 1], **options)[:2]
    assert len(client.prompts) == 3
    for entry in (found[2], *asked):
        assert (entry["agreement"], entry["naming"], entry["rounds"], entry["held_out"]) == (None, None, 1, 1)
        assert not {"own", "shown", "rounds_detail"} & entry.keys()
    assert [entry["source"] for entry in asked] == ["model", "attributes"]


def test_a_check_of_names_that_are_no_more_counts_for_nothing() -> None:
    table = made(24, 6)
    options: dict[str, Any] = {"classes": table.classes, "settings": QUICK}
    names = [{"concept": concept, "name": f"a{concept}"} for concept in range(4)]
    known = check_names(shares(table), TableModel(table), names, **options)
    assert all(entry["verified"] for entry in known)
    now = [names[0], {"concept": 1, "name": "a5"}, {"concept": 2, "name": None}]  # kept, renamed, emptied, deleted
    for only, requests in ((None, 1), ([0], 0), ([1], 1)):
        client = Counted(TableModel(table))
        found = check_names(shares(table), client, now, known=known, only=only, **options)
        assert [entry["name"] for entry in found] == ["a0", "a5", None]
        assert [entry.get("verified", False) for entry in found] == [True, False, False]
        assert len(client.prompts) == requests
    edited = [known[0] | {"name": "a3"}]
    assert check_names(shares(table), TableModel(table), now[:1], known=edited, **options)[0]["name"] == "a0"


def test_names_that_are_not_checked_yet_are_not_lost() -> None:
    table, kept = made(24, 6), []
    names = [{"concept": concept, "name": f"a{concept}"} for concept in range(4)]
    client = Counted(TableModel(table), lambda n, text: BudgetError("used up") if n > 1 else None)
    with pytest.raises(BudgetError):
        check_names(shares(table), client, names, classes=table.classes, parallel=1, save=kept.append)
    assert [entry["name"] for entry in kept[-1]] == ["a0", "a1", "a2", "a3"]
    assert [entry.get("verified") for entry in kept[-1]] == [True, None, None, None]


def test_a_plan_is_taken_for_the_codes() -> None:
    table = made()
    options: dict[str, Any] = {"classes": table.classes, "settings": QUICK}
    plan, client = naming_plan(shares(table), table.classes, (), QUICK), TableModel(table)
    names = name_by_model(plan, client)
    assert names == name_by_model(shares(table), client, **options)
    assert estimate(plan, client) == estimate(shares(table), client, **options)
    given_ = [{"concept": 0, "name": "a0"}]
    assert check_names(plan, client, given_) == check_names(shares(table), client, given_, **options)
    with pytest.raises(ConceptError, match="settings in the plan, got some beside it"):
        name_by_model(plan, client, settings=QUICK)


def test_a_check_without_groups_or_replies() -> None:
    table = made(6, 2)
    entry = check_names(np.ones((1, 6)), TableModel(table), [{"concept": 0, "name": "a0", "verified": True}])[0]
    assert (entry["verified"], entry["reason"]) == (False, "dead: always 1")
    for error in (Unanswered("x"), MalformedReply("y")):
        client = Counted(TableModel(table), lambda n, text, error=error: error)
        entry = check_names(shares(table)[:1], client, [{"concept": 0, "name": "a0"}], classes=table.classes)[0]
        assert (entry["name"], entry["verified"], entry["settings"]) == ("a0", False, None)
        assert entry["reason"] in ("waiting for replies", "no usable reply: y")


def test_the_estimate_is_what_is_asked() -> None:
    table = made()
    kept: dict[str, Any] = {}
    options: dict[str, Any] = {"classes": table.classes, "settings": QUICK}
    some = np.concatenate([shares(table), np.ones((1, 24))])
    client = Counted(TableModel(table), keep=kept)
    first = estimate(some, client, **options)
    assert (first.concepts, first.idle, first.calls, first.cached, client.prompts) == (7, 1, 36, 0, [])
    name_by_model(some, client, only=[0, 3], **options)
    size = sum(len(text) for text in client.prompts) / 4
    assert estimate(some, client, only=[0, 3], **options).calls == 12
    assert first.prompt_tokens == pytest.approx(size * 3 * 1.3, rel=0.4)
    second = estimate(some, client, **options)
    assert (second.calls, second.cached) == (36, 12)
    assert second.prompt_tokens == pytest.approx(first.prompt_tokens * 2 / 3, rel=0.1)
    assert len(client.prompts) == 12  # the estimate asked nothing
    name_by_model(some, client, **options)
    assert (estimate(some, client, **options).cached, estimate(some, client, **options).prompt_tokens) == (36, 0)
