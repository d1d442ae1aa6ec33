"""A client that asks again, pays nothing twice, keeps its budget, and never tells its key; servers good and bad."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from askings import ASKED, GOOD, KEY, Name, ask, model_of, other

from htaf.concepts.llm import MalformedReply, ModelError, ServerClient
from scripted_server import Answer, ScriptedServer, scripted

pytestmark = pytest.mark.usefixtures("no_surroundings")


def test_a_request_and_its_reply() -> None:
    with scripted(Answer('{"name": "wings", "votes": [1, 2]}')) as server, model_of(server) as model:
        assert model.ask(ASKED, Name, context={"count": 3}) == Name(name="wings", votes=[1, 2])
        assert model.usage == {"calls": 1, "tokens": 10}
    body = server.requests[0]
    assert (body["model"], body["messages"]) == ("m", ASKED)
    assert body["max_completion_tokens"] == 4096
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["name"]
    assert server.paths == ["/v1/chat/completions"]
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def test_what_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="OPENAI_MODEL"):
        ServerClient(cache=None)
    with pytest.raises(ModelError, match="expected timeout > 0"):
        model_of("http://localhost:1/v1", timeout=-1)
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'htaf\[images\]'"):
        model_of("http://localhost:1/v1")


@pytest.mark.parametrize(
    "bad",
    [
        Answer("no idea"),
        Answer('{"name": 5}'),
        Answer(None),
        Answer('{"name": "wings"}', finish="length"),
        Answer("", finish="content_filter"),
        Answer(body=b'{"choices": []}'),
        Answer(body=b'{"choices": [{"message": {"content": null, "refusal": "I will not"}}]}'),
        Answer(body=b"\xff\xfe\x00garbage"),
        Answer(body=b""),
        Answer(body=b"<html>Sign in</html>"),
        Answer(body=b'{"error": {"message": "overloaded"}}'),
        Answer(body=b'{"choices": {"message": 1}}'),
        Answer(body=b"[" * 100_000),
    ],
)
def test_a_malformed_reply_is_asked_again(bad: Answer) -> None:
    found, usage, requests = ask(bad, GOOD)
    assert found == Name(name="wings")
    assert (usage["calls"], usage["malformed"], len(requests)) == (2, 1, 2)
    with scripted(GOOD, bad) as server, model_of(server) as model:
        model.ask(ASKED, Name)
        with pytest.raises(MalformedReply, match=r"no usable reply in 3 attempts; the last: ."):
            model.ask(ASKED, Name)
        assert model.usage["calls"] == len(server.requests) == 4


def test_what_a_server_refuses_is_left_out_from_then_on() -> None:
    def answer(body: dict[str, Any]) -> Answer:
        return Answer(status=400, body=b'{"detail": "no response_format"}') if "response_format" in body else GOOD

    with ScriptedServer(answer) as server, model_of(server) as model:
        for _ in range(2):
            model.ask(ASKED, Name)
    assert [sorted(body) for body in server.requests[1:]] == [["messages", "model"]] * 2
    assert len(server.requests) == 3


# What is kept


def test_a_reply_is_paid_for_once(tmp_path: Path) -> None:
    with scripted(GOOD) as server:
        for calls in (1, 0):
            with model_of(server, tmp_path / "a" / "b") as model:
                assert model.ask(ASKED, Name).name == "wings"
                assert (model.usage["calls"], model.usage["cached"]) == (calls, 1 - calls)
        (path,) = (tmp_path / "a" / "b").iterdir()
        assert json.loads(path.read_text()) == {"model": "m", "reply": GOOD.text}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"[" * 100_000, b"\xff", b'{"reply": 3}'])
def test_a_damaged_file_counts_as_nothing(content: bytes, tmp_path: Path) -> None:
    with scripted(GOOD) as server, model_of(server, tmp_path) as model:
        model.ask(ASKED, Name)
        (path,) = tmp_path.iterdir()
        path.write_bytes(content)
        for _ in range(2):
            assert model.ask(ASKED, Name).name == "wings"
        assert (model.usage["calls"], model.usage["cached"]) == (2, 1)


# Servers that fail


@pytest.mark.parametrize("answer", [Answer(status=429), Answer(status=500), Answer(manner="close")])
def test_what_may_pass_is_retried(answer: Answer) -> None:
    found, usage, _ = ask(answer, GOOD)
    assert found == Name(name="wings")
    assert (usage["calls"], usage["malformed"]) == (2, 0)
    found, usage, _ = ask(answer)
    assert type(found) is ModelError
    assert usage["calls"] == 2


def test_a_server_that_hangs_is_not_waited_for() -> None:
    start = time.monotonic()
    found, usage, _ = ask(Answer(manner="hang"), timeout=0.3)
    assert time.monotonic() - start < 10
    assert "gave no answer" in str(found)
    assert usage["calls"] == 2


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(status=401), "answered HTTP 401: the key, in OPENAI_API_KEY, is wrong"),
        (Answer(status=404, body=b'{"error": {"message": "no model m"}}'), "answered HTTP 404: no such model"),
        (Answer(status=307, headers={"Location": "http://elsewhere/v1"}), "answered HTTP 307"),
        (Answer(status=402, body=b'{"message": "pay"}'), "answered HTTP 402: pay"),
        (Answer(status=418, body=b"<html>long</html>"), "answered HTTP 418"),
    ],
)
def test_what_will_not_pass_is_not_retried(answer: Answer, words: str) -> None:
    found, usage, _ = ask(answer)
    assert type(found) is ModelError
    assert words in str(found)
    assert "html" not in str(found)
    assert usage["calls"] == 1


# The key

SHOUT = f'{{"error": {{"message": "not {KEY}, Authorization: Bearer {KEY}"}}}}'.encode()


@pytest.mark.parametrize(
    "answer",
    [
        Answer(status=401, body=SHOUT),
        Answer(status=400, body=SHOUT),
        Answer(status=500, body=SHOUT),
        Answer(body=SHOUT),
        Answer(f"your key is {KEY}"),
        Answer(f'{{"name": ["{KEY}"]}}'),
        Answer(manner="hang"),
    ],
)
def test_the_key_is_nowhere(
    answer: Answer, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    with scripted(answer) as server, model_of(server, tmp_path, timeout=0.3) as model:
        with pytest.raises(ModelError) as caught:
            model.ask(ASKED, Name)
        texts = [str(model.__dict__), caplog.text, str(caught.value), *capfd.readouterr()]
    assert caught.value.__cause__ is None
    texts += [path.read_text() for path in tmp_path.rglob("*.json")]
    assert not [text for text in texts if KEY in text]


@pytest.mark.parametrize(
    ("url", "key", "host"),
    [
        ("http://gpu.example:8000/v1", KEY, "gpu.example"),
        ("http://gpu.example:8000/v1", "", ""),
        ("https://gpu.example/v1", KEY, ""),
        ("http://[::1]:80/v1", KEY, ""),
    ],
)
def test_a_key_in_the_clear_is_told(url: str, key: str, host: str) -> None:
    with model_of(url, api_key=key) as model:
        assert model.unencrypted == host


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://user:hidden@host/v1", "expected no user, password"),
        ("https://host/v1?key=hidden", "anything after"),
        ("ftp://host/v1", "http://localhost:8000/v1"),
        ("localhost:8000", "http://localhost:8000/v1"),
        ("http:///v1", "http://localhost:8000/v1"),
        ("http://host:99999/v1", "http://localhost:8000/v1"),
        ("http://ho\nst/v1", "http://localhost:8000/v1"),
    ],
)
def test_base_urls_that_are_refused(url: str, words: str) -> None:
    with pytest.raises(ModelError) as caught:
        model_of(url)
    assert words in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_a_server_that_goes_down_half_way(tmp_path: Path) -> None:
    with scripted(GOOD) as server, model_of(server, tmp_path) as model:
        model.ask(ASKED, Name)
        server.stop()
        with pytest.raises(ModelError, match="cannot be reached"):
            model.ask(other(1), Name)
        assert model.ask(ASKED, Name).name == "wings"
        model.close()
        with pytest.raises(ModelError, match="closed"):
            model.ask(other(2), Name)


def test_a_model_that_says_the_key(tmp_path: Path) -> None:
    with scripted(Answer(f'{{"name": "{KEY}"}}')) as server, model_of(server, tmp_path) as model:
        assert model.ask(ASKED, Name).name == "***"
    assert [path for path in tmp_path.rglob("*.json") if KEY not in path.read_text()]
    with scripted(GOOD) as server, model_of(server, api_key="wings") as model:
        assert model.ask(ASKED, Name).name == "wings"  # too short to be secret
