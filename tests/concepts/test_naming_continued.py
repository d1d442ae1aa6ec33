"""Naming that is interrupted, continued, estimated; names that are given; what a file holds that must not be lost."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_askers import QUICK, Counted, TableModel, job, made, named, shares

from htaf.concepts import naming
from htaf.concepts.codes import Codes, ConceptError, codes_key, codes_of
from htaf.concepts.naming import NamingSettings, check_only, class_evidence, files, read_names, write_names
from htaf.concepts.naming import job as of_job
from htaf.concepts.naming.files import kept_names
from htaf.llm import BudgetError, MalformedReply, ModelError

TABLE = made()
MODEL = TableModel(TABLE)
WHOLE = named(TABLE)


def plain(names: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what a file adds."""
    return [{key: value for key, value in entry.items() if key not in ("seal", "checked_by")} for entry in names]


def test_threads_change_nothing() -> None:
    slow = Counted(MODEL, lambda n, text: time.sleep(random.random() / 200))
    assert named(TABLE, slow, parallel=16) == WHOLE


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 36), st.integers(1, 5), st.sampled_from([BudgetError, ModelError, KeyboardInterrupt]))
def test_interrupted_and_resumed_is_as_uninterrupted(
    tmp_path: Path, at: int, parallel: int, error: type[BaseException]
) -> None:
    out = tmp_path / "names.json"
    out.unlink(missing_ok=True)
    failing = Counted(MODEL, lambda n, text: error("stopped") if n == at else None)
    steps: list[tuple[int, int]] = []
    with pytest.raises(error, match="stopped"):
        named(TABLE, failing, out=out, parallel=parallel, progress=lambda done, total: steps.append((done, total)))
    known = read_names(out) if out.exists() else []
    assert steps == [(i, 6) for i in range(len(known) + 1)]
    client = Counted(MODEL)
    assert plain(named(TABLE, client, out=out)) == WHOLE
    assert plain(read_names(out)) == WHOLE
    assert len(client.prompts) == 6 * (6 - len(known))


def test_ctrl_c_does_not_wait_for_a_server_that_hangs(tmp_path: Path) -> None:
    release = threading.Event()
    client = Counted(MODEL, lambda n, text: release.wait(20) and None if n > 12 else None)

    def interrupt(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        named(TABLE, client, out=tmp_path / "n.json", progress=interrupt, parallel=1)
    assert time.monotonic() - begun < 10
    assert len(read_names(tmp_path / "n.json")) == 2
    release.set()


def test_a_concept_without_a_usable_reply_does_not_stop_others(tmp_path: Path) -> None:
    evidence = class_evidence(shares(TABLE), QUICK, classes=TABLE.classes)
    bad = evidence.naming(evidence.case(2), 1)[1]["content"]
    client = Counted(MODEL, lambda n, text: MalformedReply("no JSON") if text == bad else None)
    found = named(TABLE, client, out=tmp_path / "n.json")
    assert [each for each in found if each["concept"] != 2] == [each for each in WHOLE if each["concept"] != 2]
    assert (found[2]["name"], found[2]["verified"], found[2]["settings"]) == (None, False, None)
    assert (found[2]["reason"], found[2]["status"]) == ("no usable reply: no JSON", "no answer")
    again = Counted(MODEL)
    assert plain(named(TABLE, again, out=tmp_path / "n.json")) == WHOLE
    assert len(again.prompts) == 6


def test_some_concepts_and_the_order_of_asking(tmp_path: Path) -> None:
    client, out = Counted(MODEL), tmp_path / "n.json"
    assert [each["concept"] for each in named(TABLE, client, only=[4, 1, 4], out=out, parallel=1)] == [1, 4]
    evidence = class_evidence(shares(TABLE), QUICK, classes=TABLE.classes)
    assert client.prompts[0] == evidence.naming(evidence.case(4), 0)[1]["content"]
    assert [each["concept"] for each in named(TABLE, client, only=[2], out=out)] == [1, 2, 4]
    assert len(client.prompts) == 18
    named(TABLE, client, only=[2], out=out, refresh=True)
    assert len(client.prompts) == 24
    with pytest.raises(ConceptError, match="expected concepts in 0 to 5, got 6"):
        job(TABLE, only=[6])
    with pytest.raises(ConceptError, match="parallel >= 1"):
        named(TABLE, parallel=0)


# Names that are given


def test_given_names_are_checked_once(tmp_path: Path) -> None:
    given_names = [
        {"concept": 0, "name": "a0", "source": "hand", "verified": False, "extra": 1},
        {"concept": 1, "name": "a2"},
        {"concept": 2, "name": "not a2", "label_1": "a2", "label_0": "not a2", "source": "hand"},
        {"concept": 3, "name": None, "source": "hand"},
    ]
    client, out = Counted(MODEL), tmp_path / "n.json"
    found = named(TABLE, client, given=given_names, out=out)
    assert [(each.get("held_out"), each["verified"]) for each in (found[0], found[2])] == [(1, True), (1, True)]
    assert found[1]["verified"] is False
    assert (found[0]["extra"], found[0]["rounds"], found[0]["agreement"], found[0]["scored"]) == (1, 1, None, 24)
    assert found[0]["checked_by"] == client.model
    assert found[3] == given_names[3]
    assert len(client.prompts) == 3
    assert 'Label 1: "a0"\nLabel 0: "otherwise"\n' in "".join(client.prompts)
    again = Counted(MODEL)
    assert [e.get("verified", False) for e in named(TABLE, again, given=given_names, out=out)] == [
        True,
        False,
        True,
        False,
    ]
    assert again.prompts == []
    now = [given_names[0] | {"name": "a1"}, *given_names[2:]]  # renamed, deleted, kept
    assert job(TABLE, again, given=now, out=out).estimate().calls == 1
    found = named(TABLE, again, given=now, out=out)
    assert [(e["name"], e.get("verified", False)) for e in found] == [("a1", False), ("not a2", True), (None, False)]
    assert len(again.prompts) == 1
    assert named(TABLE, again, given=given_names, only=[2])[0] == given_names[0]


def test_only_names_by_hand_are_checked_unless_others_are_asked_for() -> None:
    given_names = [dict(entry) for entry in WHOLE]
    given_names[1] |= {"source": "attributes"}
    given_names[2] |= {"source": "hand", "verified": False}
    client = Counted(MODEL)
    assert job(TABLE, client, given=given_names).estimate().calls == 1
    found = named(TABLE, client, given=given_names)
    assert len(client.prompts) == 1
    assert [e for e in found if e["concept"] != 2] == [e for e in given_names if e["concept"] != 2]
    asked = named(TABLE, client, given=given_names, only=[0, 1])[:2]
    assert len(client.prompts) == 3
    for entry in (found[2], *asked):
        assert (entry["verified"], entry["checked_by"], entry["held_out"], entry["rounds"]) == (
            True,
            client.model,
            1,
            1,
        )
        assert [entry[key] for key in ("agreement", "naming", "own", "shown", "rounds_detail")] == [None] * 5
    assert [entry["source"] for entry in asked] == ["model", "attributes"]


def test_names_that_are_not_checked_yet_are_not_lost(tmp_path: Path) -> None:
    given_names = [{"concept": concept, "name": f"a{concept}"} for concept in range(4)]
    client = Counted(MODEL, lambda n, text: BudgetError("used up") if n > 1 else None)
    with pytest.raises(BudgetError):
        named(TABLE, client, given=given_names, parallel=1, out=tmp_path / "n.json")
    found = read_names(tmp_path / "n.json")
    assert [(entry["name"], entry["verified"]) for entry in found] == [
        (f"a{concept}", not concept) for concept in range(4)
    ]


def test_a_check_without_groups_or_replies() -> None:
    given_names = [{"concept": 0, "name": "a0", "verified": True}]
    (entry,) = named(TABLE, rows=np.ones((1, 24)), given=given_names)
    assert (entry["verified"], entry["reason"], entry["status"]) == (False, "dead: always 1", "nothing to name")
    client = Counted(MODEL, lambda n, text: MalformedReply("y"))
    (entry,) = named(TABLE, client, shares(TABLE)[:1], given=given_names)
    assert (entry["name"], entry["verified"], entry["settings"]) == ("a0", False, None)
    assert entry["reason"] == "no usable reply: y"


# What it will cost


def test_the_estimate_is_what_is_asked() -> None:
    kept: dict[str, Any] = {}
    client = Counted(MODEL, keep=kept)
    some = np.concatenate([shares(TABLE), np.ones((1, 24))])
    first = job(TABLE, client, some).estimate()
    assert (first.concepts, first.idle, first.calls, first.cached, client.prompts) == (7, 1, 36, 0, [])
    assert (first.pictures, first.bytes, first.images) == (0, 0, 0)
    named(TABLE, client, some, only=[0, 3])
    size = sum(len(text) for text in client.prompts) / 4
    assert job(TABLE, client, some, only=[0, 3]).estimate().calls == 12
    assert first.prompt_tokens == pytest.approx(size * 3 * 1.3, rel=0.4)
    second = job(TABLE, client, some).estimate()
    assert (second.calls, second.cached) == (36, 12)
    assert second.prompt_tokens == pytest.approx(first.prompt_tokens * 2 / 3, rel=0.1)
    assert len(client.prompts) == 12  # the estimate asked nothing
    named(TABLE, client, some)
    last = job(TABLE, client, some).estimate()
    assert (last.cached, last.prompt_tokens) == (36, 0)


# What a file holds


def codes(classes: int = 24) -> Codes:
    labels = np.repeat(np.arange(24), 2)
    names = [f"class {i}" if i < classes else f"other {i}" for i in range(24)]
    return codes_of(TABLE.binary()[labels], labels, np.ones((24, 6)), np.zeros(24), classes=names,
                    parts=np.zeros(48, dtype=np.uint8))  # fmt: skip


def test_names_of_other_codes_are_not_gone_on_with(tmp_path: Path) -> None:
    path, key = tmp_path / "names.json", codes_key(codes())
    names = named(TABLE, rows=codes(), out=path)
    assert {entry["codes"] for entry in json.loads(path.read_text())} == {key}
    assert plain(named(TABLE, rows=codes(), out=path)) == names
    path.write_text(path.read_text().replace(key, "bbbbbbbbbbbb"))
    for read in (
        lambda: job(TABLE, rows=codes(), out=path),
        lambda: job(TABLE, rows=codes(), given=path),
        lambda: check_only(path, "model", 99, key),
    ):
        with pytest.raises(ConceptError, match=r"those of another network \(bbbbbbbbbbbb\)"):
            read()


@pytest.mark.parametrize(
    "how", ["settings", "model", "server", "prompts", "candidates", "hand", "attributes", "checked", "edited", "groups"]
)
def test_other_names_are_not_lost(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, model, entries, now = tmp_path / "names.json", TableModel(TABLE), [dict(e) for e in WHOLE], QUICK
    options: dict[str, Any] = {"candidates": ("a0",)} if how == "candidates" else {}
    rows = shares(TABLE)
    if how == "settings":
        now = NamingSettings(permutations=99, threshold=0.8)
    elif how == "model":
        model.model = "another"
    elif how == "server":
        monkeypatch.setattr(model, "base_url", "http://localhost:8000/v1", raising=False)
    elif how == "prompts":
        monkeypatch.setattr(of_job, "TEMPLATES", ("another",))
    elif how == "groups":
        rows[3, 0] = 1 - rows[3, 0]
    elif how == "checked":
        entries = named(TABLE, given=entries, only=[0])
    elif how in ("hand", "attributes"):
        entries[1] |= {"source": how}
    write_names(entries, path)
    if how == "edited":
        path.write_text(path.read_text().replace('"name": "a3"', '"name": "odd"'))
    before = path.read_bytes()
    with pytest.raises(ConceptError, match=r"names.json: expected a new file or names of the same settings"):
        job(TABLE, model, rows, now, out=path, **options)
    assert path.read_bytes() == before


def test_a_table_says_not_what_it_rests_on(tmp_path: Path) -> None:
    path = tmp_path / "names.csv"
    for given_names in (None, path):
        for write in (lambda: write_names(WHOLE, path), lambda: path.write_text("concept,name\n0,mine\n")):
            write()
            with pytest.raises(ConceptError, match="got one that exists"):
                job(TABLE, given=given_names, out=path)


def test_names_of_one_source_alone_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    check_only(path, "attributes", 6)
    ours = [entry | {"source": "attributes"} for entry in WHOLE]
    write_names(ours, path)
    check_only(path, "attributes", 6)
    for other in (WHOLE, [ours[0], ours[1] | {"checked_by": "m"}], [{"concept": 0, "name": "mine"}]):
        write_names(other, path)
        with pytest.raises(ConceptError, match=r"expected a new file or names of attributes.*which would be lost"):
            check_only(path, "attributes", 6)


def test_checked_names_go_where_no_others_are(tmp_path: Path) -> None:
    path, own = tmp_path / "checked.json", tmp_path / "own.csv"
    own.write_text("concept,name\n0,a0\n1,a1\n")
    found = named(TABLE, given=own, out=path)
    assert [e["verified"] for e in found] == [True, True]
    assert job(TABLE, given=own, out=path).todo() == []
    write_names(WHOLE, path)
    with pytest.raises(ConceptError, match="expected a new file or one of checked names"):
        job(TABLE, given=own, out=path)
    assert job(TABLE, given=path, out=path, only=[0]).todo() == [0]  # its own names, to be checked


def test_names_are_written_now_and_then_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, now = tmp_path / "names.json", [100.0]
    monkeypatch.setattr(files.time, "monotonic", lambda: now[0])

    def numbers() -> list[int]:
        return [entry["concept"] for entry in json.loads(path.read_text())]

    def entries(count: int) -> list[dict]:
        return [{"concept": i, "name": None} for i in range(count)]

    with pytest.raises(KeyboardInterrupt), kept_names(path) as keep:  # noqa: PT012
        keep(entries(1))
        assert numbers() == [0]
        now[0] += 0.5
        keep(entries(2))
        assert numbers() == [0]
        now[0] += 0.6
        keep(entries(3))
        assert numbers() == [0, 1, 2]
        keep(entries(4))
        raise KeyboardInterrupt
    assert numbers() == [0, 1, 2, 3]
    with kept_names(tmp_path / "none.json"):
        pass
    assert not (tmp_path / "none.json").exists()


def test_every_public_name_is_there() -> None:
    assert [name for name in naming.__all__ if not hasattr(naming, name)] == []
