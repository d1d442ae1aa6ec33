"""Naming over HTTP and through files: the same names, paid for once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_askers import QUICK, made, shares

from htaf.concepts.naming import NamingSettings, check_names, estimate, name_by_model
from htaf.concepts.naming.prompts import NameReply, SortReply
from htaf.llm import BatchClient, ModelError, ServerClient
from htaf_paper.named import area
from htaf_paper.planted import planted_codes, planting
from htaf_paper.table_model import TableModel
from scripted_server import Answer, ScriptedServer


def answered(path: Path, out: Path, model: TableModel) -> int:
    """Reply to each line of a batch."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    out.write_text("".join(
        json.dumps({"custom_id": line["custom_id"], "reply": model.answer(line["body"]["messages"])}) + "\n"
        for line in lines
    ))  # fmt: skip
    return len(lines)


def test_prompts_and_replies_in_files(tmp_path: Path) -> None:
    table = made()
    options: dict[str, Any] = {"classes": table.classes, "settings": QUICK}
    model = TableModel(table)
    files: list[Path] = []
    for turn in range(3):
        client = BatchClient(model.model, files)
        found = name_by_model(shares(table), client, **options)
        waiting = client.write(tmp_path / f"prompts-{turn}.jsonl")
        assert waiting == (18, 18, 0)[turn]  # names first, then what follows from them
        if waiting:
            assert {each["reason"] for each in found} == {"waiting for replies"}
            files.append(tmp_path / f"replies-{turn}.jsonl")
            answered(tmp_path / f"prompts-{turn}.jsonl", files[-1], model)
    assert found == name_by_model(shares(table), model, **options)


def told(names: list[dict]) -> list[dict]:
    """Without the hash that holds the server's address."""
    return [{key: value for key, value in entry.items() if key != "settings"} for entry in names]


def served(model: TableModel, fails: Callable[[int], Answer | None] = lambda n: None) -> ScriptedServer:
    """A server behind which the table model sits."""
    guard, count = threading.Lock(), [0]

    def answer(body: dict[str, Any]) -> Answer:
        with guard:
            count[0] += 1
            number = count[0]
        return fails(number) or Answer(text=model.answer(body["messages"]))

    return ScriptedServer(answer)


def test_over_http_the_names_are_the_same_and_paid_for_once(tmp_path: Path) -> None:
    table = made()
    options: dict[str, Any] = {"classes": table.classes, "settings": QUICK}
    model = TableModel(table)
    with served(model) as server:
        with ServerClient(model.model, base_url=server.base_url, cache=tmp_path / "cache") as client:
            found = name_by_model(shares(table), client, **options)
            assert (client.usage.calls, client.usage.cached) == (36, 0)
            assert estimate(shares(table), client, **options).cached == 36
        assert told(found) == told(name_by_model(shares(table), model, **options))
        with ServerClient(model.model, base_url=server.base_url, cache=tmp_path / "cache") as client:
            assert name_by_model(shares(table), client, **options) == found
            assert client.usage.calls == 0
        assert len(server.requests) == 36


def test_a_server_that_goes_down_half_way(tmp_path: Path) -> None:
    table = made()
    options: dict[str, Any] = {"classes": table.classes, "settings": QUICK}
    model, kept, last = TableModel(table), [[]], [20]
    with served(model, lambda n: Answer(status=500, text="") if n > last[0] else None) as server:
        with (
            ServerClient(model.model, base_url=server.base_url, cache=tmp_path / "c", retries=0) as client,
            pytest.raises(ModelError),
        ):
            name_by_model(shares(table), client, save=kept.append, parallel=2, **options)
        assert 0 < len(kept[-1]) < 6
        last[0], before = 1000, len(server.requests)
        with ServerClient(model.model, base_url=server.base_url, cache=tmp_path / "d") as client:
            found = name_by_model(shares(table), client, known=kept[-1], **options)
        assert len(server.requests) - before == 6 * (6 - len(kept[-1]))
    assert told(found) == told(name_by_model(shares(table), model, **options))


def test_garbage_is_told_and_asked_again(tmp_path: Path) -> None:
    table = made()
    model = TableModel(table)
    bad = ["no JSON", '{"label_1": [1, 1], "label_0": []}', '{"label_1": [], "label_0": []}', '{"concept": ""}']
    with served(model, lambda n: Answer(text=bad[n // 2 % 4]) if n % 2 else None) as server:
        with ServerClient(model.model, base_url=server.base_url, cache=None) as client:
            found = name_by_model(shares(table), client, classes=table.classes, settings=QUICK, parallel=1)
        assert len(server.requests) == 72
    assert told(found) == told(name_by_model(shares(table), model, classes=table.classes, settings=QUICK))


def test_replies_have_schemas_that_servers_take() -> None:
    for reply in (NameReply, SortReply):
        schema = reply.model_json_schema()
        assert schema["type"] == "object"
        assert {"label_1", "label_0"} <= schema["properties"].keys()


@pytest.mark.data
def test_cub_over_http(data_dir: Path, tmp_path: Path) -> None:
    """The whole way: prompts, a server, replies, checks; some of CUB's attributes, 5% of the bits flipped."""
    plan = planting(data_dir, download=False)
    codes = planted_codes(plan, 0.05, np.random.default_rng(0))
    model, only, quick = (
        TableModel(plan.attributes),
        list(range(0, codes.concepts, 5)),
        NamingSettings(permutations=199),
    )
    truth = [plan.attributes.names[column] for column in plan.columns]
    given = [{"concept": c, "name": truth[c]} for c in only]
    shuffled = [{"concept": c, "name": truth[other]} for c, other in zip(only, only[1:] + only[:1], strict=True)]
    with ScriptedServer(lambda body: Answer(text=model.answer(body["messages"]))) as server:
        with ServerClient(model.model, base_url=server.base_url, cache=tmp_path) as client:
            made_names = name_by_model(codes, client, only=only, settings=quick)
            right = check_names(codes, client, given, settings=quick)
            wrong = check_names(codes, client, shuffled, settings=quick)
        assert len(server.requests) == len(only) * 8
    assert all(each["verified"] for each in [*made_names, *right])
    assert told(made_names) == told(name_by_model(codes, model, only=only, settings=quick))
    assert np.mean([each["verified"] for each in wrong]) < 0.2
    assert area(*(np.array([e["held_out"] for e in names]) for names in (right, wrong))) > 0.97
