"""Naming over HTTP: the same names as of the model itself, paid for once, whatever the server does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from made_askers import TableModel, job, made, named
from sklearn.metrics import roc_auc_score

from htaf.concepts.codes import codes_of
from htaf.concepts.naming import NamingSettings, class_evidence, naming_job, read_names
from htaf.llm import ModelError, ServerClient
from scripted_server import Answer, ScriptedServer

TABLE = made()
MODEL = TableModel(TABLE)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)


def told(names: list[dict]) -> list[dict]:
    """Without what holds the server's address, and what a file adds."""
    return [{key: entry[key] for key in entry if key not in ("settings", "seal", "checked_by")} for entry in names]


def served(fails: Callable[[int], Answer | None] = lambda n: None) -> ScriptedServer:
    """A server behind which the table model sits."""
    guard, count = threading.Lock(), [0]

    def answer(body: dict[str, Any]) -> Answer:
        with guard:
            count[0] += 1
            number = count[0]
        return fails(number) or Answer(text=MODEL.answer(body["messages"]))

    return ScriptedServer(answer)


def test_over_http_the_names_are_the_same_and_paid_for_once(tmp_path: Path) -> None:
    with served() as server:
        with ServerClient(MODEL.model, base_url=server.base_url, cache=tmp_path) as client:
            found = named(TABLE, client)
            assert (client.usage.calls, client.usage.cached) == (36, 0)
            assert job(TABLE, client).estimate().cached == 36
        assert told(found) == told(named(TABLE))
        with ServerClient(MODEL.model, base_url=server.base_url, cache=tmp_path) as client:
            assert named(TABLE, client) == found
            assert client.usage.calls == 0
        assert len(server.requests) == 36


def test_a_server_that_goes_down_half_way(tmp_path: Path) -> None:
    out, last = tmp_path / "n.json", [20]
    with served(lambda n: Answer(status=500, text="") if n > last[0] else None) as server:
        with (
            ServerClient(MODEL.model, base_url=server.base_url, cache=tmp_path / "c", retries=0) as client,
            pytest.raises(ModelError),
        ):
            named(TABLE, client, out=out, parallel=2)
        kept = read_names(out)
        assert 0 < len(kept) < 6
        last[0], before = 1000, len(server.requests)
        with ServerClient(MODEL.model, base_url=server.base_url, cache=tmp_path / "d") as client:
            found = named(TABLE, client, out=out)
        assert len(server.requests) - before == 6 * (6 - len(kept))
    assert told(found) == told(named(TABLE))


def test_garbage_is_told_and_asked_again() -> None:
    bad = ["no JSON", '{"label_1": [1, 1], "label_0": []}', '{"label_1": [], "label_0": []}', '{"concept": ""}']
    with served(lambda n: Answer(text=bad[n // 2 % 4]) if n % 2 else None) as server:
        with ServerClient(MODEL.model, base_url=server.base_url, cache=None) as client:
            found = named(TABLE, client, parallel=1)
        assert len(server.requests) == 72
    assert told(found) == told(named(TABLE))


def test_flipped_bits_over_http(tmp_path: Path) -> None:
    """The whole way: prompts, a server, replies, checks; an attribute of its class is a bit of an image, 5% flipped."""
    table, rng = made(200, 100), np.random.default_rng(0)
    labels, parts = np.repeat(np.arange(200), 12), np.tile([0, 2], 1200).astype(np.uint8)
    bits = table.binary()[labels] ^ (rng.random((2400, 100)) < 0.05)
    codes = codes_of(bits, labels, np.zeros((200, 100)), np.zeros(200), classes=table.classes, parts=parts)
    model, only = TableModel(table), list(range(0, codes.concepts, 5))
    evidence = class_evidence(codes, NamingSettings(permutations=199))
    truth = table.names
    given = [{"concept": c, "name": truth[c]} for c in only]
    shuffled = [{"concept": c, "name": truth[other]} for c, other in zip(only, only[1:] + only[:1], strict=True)]
    with ScriptedServer(lambda body: Answer(text=model.answer(body["messages"]))) as server:
        with ServerClient(model.model, base_url=server.base_url, cache=tmp_path) as client:
            made_names = naming_job(evidence, client, only=only).run()
            right = naming_job(evidence, client, given=given).run()
            wrong = naming_job(evidence, client, given=shuffled).run()
        assert len(server.requests) == len(only) * 8
    assert all(each["verified"] for each in [*made_names, *right])
    assert told(made_names) == told(naming_job(evidence, model, only=only).run())
    assert np.mean([each["verified"] for each in wrong]) < 0.2
    held_out = [each["held_out"] for each in [*right, *wrong]]
    assert roc_auc_score([True] * len(right) + [False] * len(wrong), held_out) > 0.97
