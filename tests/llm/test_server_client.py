"""A client that asks again, pays nothing twice, keeps its budget."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from askings import ASKED, GOOD, KEY, Name, ask, model_of

from htaf.llm import BudgetError, MalformedReply, ModelError, ServerClient, Usage, tokens_of
from scripted_server import Answer, ScriptedServer, scripted

pytestmark = pytest.mark.usefixtures("no_surroundings")


def test_a_request_and_its_reply() -> None:
    with scripted(Answer('{"name": "wings", "votes": [1, 2]}')) as server, model_of(server, temperature=0.5) as model:
        assert model.ask(ASKED, Name, context={"count": 3}) == Name(name="wings", votes=[1, 2])
        assert model.usage == Usage(calls=1, tokens=10)
        assert model.notes == []
    body = server.requests[0]
    assert body["model"] == "m"
    assert body["messages"] == ASKED
    assert body["temperature"] == 0.5
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["name"]
    assert server.paths == ["/v1/chat/completions"]
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def test_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(GOOD) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url + "/")
        monkeypatch.setenv("OPENAI_MODEL", "theirs")
        monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
        with ServerClient(cache=None) as model:
            assert model.ask(ASKED, Name).name == "wings"
    assert server.requests[0]["model"] == "theirs"
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def test_no_model_and_no_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="OPENAI_MODEL"):
        ServerClient(cache=None)
    monkeypatch.delitem(sys.modules, "htaf.llm.server")
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ModelError, match=r"pip install 'htaf\[llm\]'"):
        ServerClient("m", cache=None)


@pytest.mark.parametrize(
    "settings",
    [{"timeout": 0.0}, {"retries": -1}, {"attempts": 0}, {"temperature": -1.0}, {"calls": -1}, {"tokens": -1}],
)
def test_settings_out_of_range(settings: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="expected"):
        model_of("http://localhost:1/v1", **settings)


@pytest.mark.parametrize(
    "bad",
    [
        Answer("no idea"),
        Answer('{"name": 5}'),
        Answer(""),
        Answer(None),
        Answer('{"name": "wings"}', finish="length"),
        Answer('{"name": "wings"}', finish="content_filter"),
        Answer(body=b'{"choices": []}'),
        Answer(body=b'{"choices": [{"message": {"content": null, "refusal": "I will not"}}]}'),
        Answer(body=b"\xff\xfe\x00garbage"),
        Answer(body=b""),
        Answer(body=b"<html>Sign in</html>"),
        Answer(body=b'{"error": {"message": "overloaded"}}'),
        Answer(body=b'{"choices": {"message": 1}}'),
        Answer(body=b'[1, "another schema"]'),
        Answer(manner="endless"),
        Answer(body=b" " * 5 * 2**20 + GOOD.bytes()),
        Answer('{"name": "wings"}', headers={"Content-Encoding": "gzip"}),
    ],
)
def test_a_malformed_reply_is_asked_again(bad: Answer) -> None:
    found, usage, requests = ask(bad, GOOD)
    assert found == Name(name="wings")
    assert (usage.calls, usage.malformed, usage.retried) == (2, 1, 0)
    assert len(requests) == 2
    with scripted(GOOD, bad) as server, model_of(server, attempts=2) as model:
        model.ask(ASKED, Name)
        with pytest.raises(MalformedReply, match=r"no usable reply in 2 attempts; the last: ."):
            model.ask(ASKED, Name, sample=1)
        assert model.usage.calls == len(server.requests) == 3


def test_the_model_is_told_what_was_wrong() -> None:
    found, _, requests = ask(Answer('{"name": 5}'), Answer("hm"), Answer('{"name": "wings"}'))
    assert isinstance(found, Name)
    assert [message["role"] for message in requests[2]["messages"]] == ["system", "user", "assistant", "user"]
    assert requests[1]["messages"][2]["content"] == '{"name": 5}'
    assert "name: Input should be a valid string" in requests[1]["messages"][3]["content"]
    assert requests[2]["messages"][2]["content"] == "hm"  # the first is forgotten


def test_a_server_of_another_kind_stops_the_work() -> None:
    found, usage, _ = ask(Answer(body=b"<html>Welcome</html>"))
    assert type(found) is ModelError
    assert "is no OpenAI-compatible server" in str(found)
    assert (usage.calls, usage.tokens) == (3, 0)


def test_options_that_a_server_refuses_are_left_out_from_then_on() -> None:
    def answer(body: dict[str, Any]) -> Answer:
        return Answer(status=400, body=b'{"detail": "not response_format"}') if len(body) > allowed else GOOD

    for allowed, notes in ((3, "a schema for the reply"), (2, "or a temperature")):
        with ScriptedServer(answer) as server, model_of(server, temperature=0.0) as model:
            model.ask(ASKED, Name)
            model.ask(ASKED, Name, sample=1)
            assert notes in model.notes[0]
        assert [len(body) for body in server.requests] == [*([5, 3, 2][: 5 - allowed]), allowed]
        assert server.requests[-1].keys() >= {"model", "messages"}


@pytest.mark.parametrize(
    ("said", "fields"),
    [
        ("too long", [5, 3, 5, 5, 3, 5, 3, 3]),  # two in a row: from then on
        ("5000 tokens are beyond the context length; lower max_tokens", [5, 3, 5, 5, 3, 5, 3, 3]),
        ("max_completion_tokens: unknown", [5, 3, 3, 3, 3, 3]),
    ],
)
def test_one_refusal_does_not_take_the_schema_from_all_requests(said: str, fields: list[int]) -> None:
    refused, body = [True, False, True, True, True], json.dumps({"error": {"message": said}}).encode()

    def answer(asked: dict[str, Any]) -> Answer:
        return Answer(status=400, body=body) if len(asked) > 3 and refused[len(done)] else GOOD

    with ScriptedServer(answer) as server, model_of(server, temperature=0.0) as model:
        for done in ([0] * number for number in range(5)):
            assert model.ask(ASKED, Name, sample=len(done)).name == "wings"
        assert len(model.notes) == 1
    assert [len(request) for request in server.requests] == fields


def test_what_was_cut_off_is_asked_again_with_more_room() -> None:
    cut = Answer('{"name": "wi', finish="length")
    found, usage, requests = ask(cut, cut, GOOD)
    assert found == Name(name="wings")
    assert [request.get("max_completion_tokens") for request in requests] == [4096, 16384, None]
    assert all(request["messages"] == ASKED and "response_format" in request for request in requests)
    assert usage.malformed == 2
    found, _, requests = ask(cut, attempts=4)
    assert "the last: the reply was cut off" in str(found)
    assert [len(request["messages"]) for request in requests] == [2, 2, 2, 4]  # in the end: be brief


def test_a_limit_that_is_refused_takes_nothing_from_other_requests() -> None:
    def answer(asked: dict[str, Any]) -> Answer:
        if asked.get("max_completion_tokens") == 16384:
            return Answer(status=400, body=b'{"error": {"message": "max_completion_tokens is too large"}}')
        return Answer("{", finish="length") if asked.get("max_completion_tokens") else GOOD

    with ScriptedServer(answer) as server, model_of(server) as model:
        model.ask(ASKED, Name)
        model.ask(ASKED, Name, sample=1)
        assert model.notes == []
    limits = [request.get("max_completion_tokens") for request in server.requests]
    assert limits == [4096, 16384, None] * 2


def test_a_request_that_is_refused() -> None:
    no = Answer(status=400, body=b'{"error": {"message": "context too long"}}')
    found, usage, _ = ask(no)
    assert type(found) is ModelError  # nothing shows that other requests would do better
    assert "HTTP 400): context too long" in str(found)
    assert usage.calls == 2
    with scripted(GOOD, no) as server, model_of(server) as model:
        model.ask(ASKED, Name)
        with pytest.raises(MalformedReply, match="context too long"):
            model.ask(ASKED, Name, sample=1)
        assert model.notes == []


def test_names_that_utf8_cannot_carry(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "caf\udce9"}]  # as a file system gives a Latin-1 name
    with scripted(GOOD) as server, model_of(server, tmp_path) as model:
        assert model.ask(asked, Name).name == "wings"
        assert model.known(asked)
    assert server.requests[0]["messages"][0]["content"] == "caf?"
    assert tokens_of(asked) > 0


# The budget


def test_the_calls_are_never_exceeded() -> None:
    with ScriptedServer(lambda _: (time.sleep(0.02), GOOD)[1]) as server, model_of(server, calls=7) as model:

        def one(sample: int) -> bool:
            try:
                return bool(model.ask(ASKED, Name, sample=sample))
            except BudgetError:
                return False

        with ThreadPoolExecutor(16) as pool:
            assert sum(pool.map(one, range(40))) == 7
        with pytest.raises(BudgetError, match=r"the budget of 7 calls is used up \(7 used\)"):
            model.ask(ASKED, Name, sample=99)
        assert len(server.requests) == model.usage.calls == 7


def test_retries_and_attempts_are_calls() -> None:
    found, usage, requests = ask(Answer(status=503), retries=9, calls=3)
    assert type(found) is BudgetError
    assert found.__cause__ is found.__context__ is None  # the SDK's exceptions hold the key
    assert (usage.calls, usage.retried, len(requests)) == (3, 2, 3)
    found, usage, requests = ask(Answer("no idea"), attempts=9, calls=3)
    assert type(found) is BudgetError
    assert (usage.malformed, len(requests)) == (3, 3)
    found, usage, requests = ask(GOOD, calls=0)
    assert type(found) is BudgetError
    assert not requests


def test_tokens_have_a_limit() -> None:
    with scripted(GOOD) as server, model_of(server, tokens=25) as model:
        for sample in range(3):
            model.ask(ASKED, Name, sample=sample)
        with pytest.raises(BudgetError, match=r"the budget of 25 tokens is used up \(30 used\)"):
            model.ask(ASKED, Name, sample=3)
        assert model.usage.estimated == 0


@pytest.mark.parametrize(
    "usage",
    [None, {}, "many", {"total_tokens": -5}, {"total_tokens": "10"}, {"total_tokens": 10**30}, {"total_tokens": True}],
)
def test_tokens_are_estimated_where_the_server_does_not_count(usage: Any) -> None:
    _, used, _ = ask(Answer('{"name": "wings"}', usage=usage))
    wanted = tokens_of(ASKED) + tokens_of([{"role": "assistant", "content": '{"name": "wings"}'}])
    assert used == Usage(calls=1, tokens=wanted, estimated=wanted)


def test_tokens_of_messages() -> None:
    assert tokens_of([]) == 0
    assert tokens_of([{"role": "user", "content": ""}]) == 4
    assert tokens_of([{"role": "user", "content": "abcde"}, {"role": "user", "content": "鳥鳥鳥鳥"}]) == 4 + 2 + 4 + 3
