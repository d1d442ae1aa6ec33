"""A client that survives any server, pays nothing twice, keeps its budget, and never tells the key."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai._base_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationInfo, field_validator
from scripted_server import Answer, ScriptedServer, scripted

from htaf.concepts import _model_server
from htaf.concepts._chat import objects_in, read_completion, short, validated
from htaf.concepts.language_model import (
    BudgetError,
    LanguageModel,
    MalformedReply,
    ModelError,
    Replies,
    Unanswered,
    Usage,
    default_cache,
    request_key,
    tokens_of,
)

KEY = "sk-very-secret-0123456789"
ASKED = [{"role": "system", "content": "Reply in JSON."}, {"role": "user", "content": "Name it."}]


class Name(BaseModel):
    name: str = Field(min_length=1)
    votes: list[int] = []

    @field_validator("votes")
    @classmethod
    def _in_range(cls, votes: list[int], info: ValidationInfo) -> list[int]:
        if info.context and any(vote >= info.context["count"] for vote in votes):
            raise ValueError(f"expected numbers below {info.context['count']}")
        return votes


GOOD = Answer('{"name": "wings"}')


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_MODEL", "OPENAI_API_KEY", "OPENAI_CUSTOM_HEADERS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)


def model_of(server: ScriptedServer | str, cache: Path | None = None, **settings: Any) -> LanguageModel:
    url = server if isinstance(server, str) else server.base_url
    return LanguageModel("m", base_url=url, cache=cache, **{"api_key": KEY, "timeout": 20.0, "retries": 1} | settings)


def ask(*answers: Answer, **settings: Any) -> tuple[Name | ModelError, Usage, list[dict[str, Any]]]:
    """What one asking gives, the error if it raises one; usage; the requests."""
    with scripted(*answers) as server, model_of(server, **settings) as model:
        try:
            found: Name | ModelError = model.ask(ASKED, Name)
        except ModelError as error:
            found = error
        return found, model.usage, server.requests


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
        with LanguageModel(cache=None) as model:
            assert model.ask(ASKED, Name).name == "wings"
    assert server.requests[0]["model"] == "theirs"
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def test_no_model_and_no_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="OPENAI_MODEL"):
        LanguageModel(cache=None)
    monkeypatch.delitem(sys.modules, "htaf.concepts._model_server")
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ModelError, match=r"pip install 'htaf\[names\]'"):
        LanguageModel("m", cache=None)


@pytest.mark.parametrize(
    "settings",
    [{"timeout": 0.0}, {"retries": -1}, {"attempts": 0}, {"temperature": -1.0}, {"calls": -1}, {"tokens": -1}],
)
def test_settings_out_of_range(settings: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="expected"):
        model_of("http://localhost:1/v1", **settings)


# Replies that are good, whatever stands around them


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "wings"}',
        '\ufeff {"name": "wings"}\n',
        '```json\n{"name": "wings"}\n```',
        '```\n{"name": "wings"}',
        'Sure! Here it is:\n```JSON\n{"name": "wings"}\n```\nAnything else?',
        'The attribute is {"name": "wings"}, I think.',
        '<think>Perhaps {"name": "beak"}? No.</think>\n{"name": "wings"}',
        'thinking without a start, {"name": "beak"}</think>{"name": "wings"}',
        '{"name": "beak"}, no: {"name": "wings"}',
        '{"name": "wings"} and {"other": 1}',
        '```json\n{"name": "wings"}\n```\nrather than {"name": "beak"}',
        'an unfinished {"name": and then {"name": "wings"}',
        '{"name": "wings", "more": "```"}',
        'text {"name": "wings", "more": "```json"} text',
    ],
)
def test_json_is_found_in_a_reply(text: str) -> None:
    assert validated(text, Name, None).name == "wings"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected a JSON object, got ''"),
        ("no idea", "expected a JSON object, got 'no idea'"),
        ('{"name": "wings"', "expected a JSON object"),
        ('<think>{"name": "beak"}', "expected a JSON object"),
        ('[{"name": "wings"}]', "valid dictionary"),
        ('{"name": NaN}', "expected a JSON object"),
        ('{"name": "\\ud800"}', "expected a JSON object"),
        ('{"name": "a", "votes": [1e999]}', "expected a JSON object"),
        ('{"name": ""}', "name: String should have at least 1 character"),
        ('{"name": "wings", "votes": [3]}', "expected numbers below 3"),
        ("[" * 100_000, "expected a JSON object"),
        ('{"a":' * 39_000, "expected a JSON object"),
        ('{"' * 99_000, "expected a JSON object"),
        ('{"name": "wings"}' + " " * 200_000, "expected at most 200,000 characters"),
    ],
)
def test_what_cannot_be_used_says_why(text: str, words: str) -> None:
    start = time.monotonic()
    with pytest.raises(MalformedReply) as caught:
        validated(text, Name, {"count": 3})
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500
    assert time.monotonic() - start < 10


jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(), jsons, min_size=1, max_size=4)
prose = st.text(st.characters(codec="utf-8", exclude_characters="{}`<"), max_size=30)


@given(jsons, st.booleans(), st.sampled_from([None, 2]), st.sampled_from(["", "\n", " \t"]))
def test_bare_json_is_read_as_it_is(value: Any, escaped: bool, indent: int | None, space: str) -> None:
    text = space + json.dumps(value, ensure_ascii=escaped, indent=indent) + space
    assert objects_in(text) == [json.loads(text)]


@given(objects, prose, prose, st.booleans())
def test_json_is_found_between_words(value: dict[str, Any], before: str, after: str, thought: bool) -> None:
    text = f"x {before}{json.dumps(value)}{after} x"
    if "```" not in text and "</think>" not in text:
        assert objects_in(f"<think>hm {{</think>{text}" if thought else text) == [value]


@given(objects, prose, prose)
def test_json_is_found_in_a_fence(value: dict[str, Any], before: str, after: str) -> None:
    body = json.dumps(value, indent=1)
    if "```" not in body and "</think>" not in body:
        assert objects_in(f"{before}\n```json\n{body}\n```\n{after}") == [value]


@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    for found in objects_in(text):
        json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
    assert short(text).isprintable()


@given(st.binary(max_size=200) | jsons.map(lambda value: json.dumps(value).encode()))
def test_no_body_breaks_it(body: bytes) -> None:
    got = read_completion(body)
    assert got.problem
    assert not got.chat


# Replies that cannot be used are asked again


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
        return Answer(status=400, body=b'{"detail": "extra"}') if len(body) > allowed else GOOD

    for allowed, notes in ((3, "a schema for the reply"), (2, "or a temperature")):
        with ScriptedServer(answer) as server, model_of(server, temperature=0.0) as model:
            model.ask(ASKED, Name)
            model.ask(ASKED, Name, sample=1)
            assert notes in model.notes[0]
        assert [len(body) for body in server.requests] == [*([5, 3, 2][: 5 - allowed]), allowed]
        assert server.requests[-1].keys() >= {"model", "messages"}


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


# Servers that fail


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_what_may_pass_is_retried(status: int) -> None:
    found, usage, requests = ask(Answer(status=status), GOOD)
    assert found == Name(name="wings")
    assert (usage.calls, usage.retried, len(requests)) == (2, 1, 2)
    found, usage, _ = ask(Answer(status=status, body=b'{"error": {"message": "too much"}}'), retries=2)
    assert type(found) is ModelError
    assert f"HTTP {status} (3 times): too much" in str(found)
    assert (usage.calls, usage.retried, usage.malformed) == (3, 2, 0)


def test_retry_after_is_heeded_within_reason() -> None:
    start = time.monotonic()
    found, _, _ = ask(Answer(status=429, headers={"Retry-After": "0.5"}), GOOD)
    assert isinstance(found, Name)
    assert time.monotonic() - start > 0.5
    found, usage, _ = ask(Answer(status=429, headers={"Retry-After": "86400"}), GOOD)
    assert "it asks to wait 86400 s" in str(found)
    assert usage.calls == 1


@pytest.mark.parametrize("manner", ["hang", "drip", "drip head"])
def test_a_slow_server_is_not_waited_for(manner: Any) -> None:
    start = time.monotonic()
    found, usage, _ = ask(Answer(manner=manner), timeout=0.3)
    assert time.monotonic() - start < 10
    assert type(found) is ModelError
    assert "gave no whole answer in 0.3 s (2 times)" in str(found)
    assert usage.calls == 2


@pytest.mark.parametrize("manner", ["truncate", "close"])
def test_a_broken_connection_is_retried(manner: Any) -> None:
    found, usage, _ = ask(Answer(manner=manner), GOOD)
    assert isinstance(found, Name)
    assert usage.retried == 1
    found, usage, _ = ask(Answer(manner=manner))
    assert type(found) is ModelError
    assert "broke off (2 times)" in str(found)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(status=404, body=b'{"error": {"message": "no model m"}}'), "has no such model or address (HTTP 404)"),
        (Answer(status=307, headers={"Location": "http://elsewhere/v1"}), "redirects to http://elsewhere/v1"),
        (Answer(status=402, body=b'{"message": "pay"}'), "answered HTTP 402: pay"),
        (Answer(status=418, body=b"<html>long</html>"), "answered HTTP 418"),
    ],
)
def test_what_will_not_pass_is_not_retried(answer: Answer, words: str) -> None:
    found, usage, _ = ask(answer)
    assert type(found) is ModelError
    assert words in str(found)
    assert "html" not in str(found)
    assert usage.calls == 1


def test_a_server_that_goes_down_half_way(tmp_path: Path) -> None:
    with scripted(GOOD) as server, model_of(server, tmp_path) as model:
        model.ask(ASKED, Name)
        server.stop()
        with pytest.raises(ModelError, match=r"(cannot be reached|broke off) \(2 times\)"):
            model.ask(ASKED, Name, sample=1)
        assert model.ask(ASKED, Name).name == "wings"
        assert model.usage.cached == 1


def test_closing_ends_the_calls_of_other_threads() -> None:
    with scripted(Answer(manner="hang")) as server, ThreadPoolExecutor(2) as pool:
        model = model_of(server, timeout=60.0)
        futures = [pool.submit(model.ask, ASKED, Name, sample=sample) for sample in range(2)]
        while len(server.requests) < 2:
            time.sleep(0.01)
        model.close()
        model.close()
        for future in futures:
            with pytest.raises(ModelError, match="closed"):
                future.result(timeout=5)
        with pytest.raises(ModelError, match="closed"):
            model.ask(ASKED, Name, sample=3)


# The key


SHOUT = f'{{"error": {{"message": "not {KEY}, Authorization: Bearer {KEY}, nor bearer another-one"}}}}'.encode()


@pytest.mark.parametrize(
    "answer",
    [
        Answer(status=401, body=SHOUT),
        Answer(status=403, body=SHOUT),
        Answer(status=400, body=SHOUT),
        Answer(status=404, body=SHOUT),
        Answer(status=500, body=SHOUT),
        Answer(status=307, headers={"Location": f"http://elsewhere/{KEY}"}),
        Answer(status=429, headers={"Retry-After": KEY}),
        Answer(body=SHOUT),
        Answer(body=KEY.encode()),
        Answer(f"your key is {KEY}"),
        Answer(f'{{"name": ["{KEY}"]}}'),
        Answer(manner="close"),
        Answer(manner="hang"),
    ],
)
def test_the_key_is_nowhere(
    answer: Answer, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.INFO, "httpcore2")  # below, it logs the headers that a server sends, echoes among them
    with scripted(answer) as server, model_of(server, tmp_path, timeout=0.3) as model:
        with pytest.raises(ModelError) as caught:
            model.ask(ASKED, Name)
        texts = [repr(model), str(model._server), str(model.__dict__), str(model._server.__dict__), caplog.text]
    if answer.status in (401, 403):
        assert "refused the key" in str(caught.value)
    error: BaseException | None = caught.value
    while error is not None:
        texts += [str(error), repr(error), str(error.__dict__)]
        frame = error.__traceback__
        while frame is not None:
            if "/htaf/" in frame.tb_frame.f_code.co_filename:
                texts += [repr(value) for name, value in frame.tb_frame.f_locals.items() if name != "self"]
            frame = frame.tb_next
        assert error.__cause__ is None
        error = error.__context__
    texts += [path.read_text() for path in tmp_path.rglob("*.json")]
    texts += list(capfd.readouterr())
    assert not [text for text in texts if KEY in text]
    assert "another-one" not in str(caught.value)


def test_a_model_that_says_the_key(tmp_path: Path) -> None:
    with scripted(Answer(f'{{"name": "{KEY}"}}')) as server, model_of(server, tmp_path) as model:
        assert model.ask(ASKED, Name).name == "***"
    assert [path for path in tmp_path.rglob("*.json") if KEY not in path.read_text()]


def test_headers_of_the_environment_are_secret_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Gateway: gateway-secret")
    found, _, _ = ask(Answer(status=500, body=b'{"error": {"message": "no gateway-secret"}}'), retries=0)
    assert str(found).endswith("HTTP 500: no ***")


def test_a_server_that_wants_a_key() -> None:
    found, _, _ = ask(Answer(status=401), api_key="")
    assert "wants a key (HTTP 401)" in str(found)


@pytest.mark.parametrize("key", ["sk-a\nb", "sk-ü", "sk a", "sk\x00"])
def test_a_key_that_no_header_carries(key: str) -> None:
    with pytest.raises(ModelError, match="printable ASCII") as caught:
        model_of("http://localhost:1/v1", api_key=key)
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://user:hidden@host/v1", "no user or password"),
        ("http://hidden@host/v1", "no user or password"),
        ("https://host/v1?key=hidden", "nothing after"),
        ("https://host/v1#hidden", "nothing after"),
        ("ftp://host/v1", "http://localhost:8000/v1"),
        ("localhost:8000", "http://localhost:8000/v1"),
        ("http:///v1", "http://localhost:8000/v1"),
        ("http://[::1/v1", "http://localhost:8000/v1"),
        ("http://host:99999/v1", "http://localhost:8000/v1"),
        ("http://ho\nst/v1", "http://localhost:8000/v1"),
    ],
)
def test_base_urls_that_are_refused(url: str, words: str) -> None:
    with pytest.raises(ModelError) as caught:
        model_of(url)
    assert words in str(caught.value)
    assert "hidden" not in str(caught.value)


# The cache


def test_nothing_is_paid_twice(tmp_path: Path) -> None:
    with scripted(GOOD) as server:
        for number in range(2):
            with model_of(server, tmp_path / "new" / "folder") as model:
                assert model.known(ASKED) is (number == 1)
                assert model.ask(ASKED, Name).name == "wings"
                assert model.known(ASKED)
                assert not model.known(ASKED, sample=1)
                assert model.usage == (Usage(cached=1) if number else Usage(calls=1, tokens=10))
        assert len(server.requests) == 1
        key = request_key("m", server.base_url, ASKED)
    path = tmp_path / "new" / "folder" / key[:2] / f"{key}.json"
    entry = json.loads(path.read_text())
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "format": 1, "key": key, "model": "m", "messages": ASKED, "sample": 0, "temperature": None,
        "reply": '{"name": "wings"}', "tokens": 10,
    }  # fmt: skip
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]


@pytest.mark.parametrize(
    "how", ["empty", "truncated", "garbage", "foreign", "format", "key", "type", "folder", "pipe", "deep"]
)
def test_a_damaged_entry_is_asked_again(tmp_path: Path, how: str) -> None:
    with scripted(GOOD, Answer('{"name": "beak"}')) as server, model_of(server, tmp_path) as model:
        model.ask(ASKED, Name)
        (path,) = tmp_path.rglob("*.json")
        whole = path.read_bytes()
        entry = json.loads(whole)
        path.unlink()
        damaged = {
            "empty": b"", "truncated": whole[:-20], "garbage": b"\xff\x00\xfe", "foreign": b"[1]",
            "format": json.dumps(entry | {"format": 0}).encode(), "key": json.dumps(entry | {"key": "f" * 64}).encode(),
            "type": json.dumps(entry | {"reply": 5}).encode(), "deep": b"[" * 10**6,
        }  # fmt: skip
        if how in ("folder", "pipe"):
            path.mkdir() if how == "folder" else os.mkfifo(path)  # a pipe that is opened waits for a writer
            assert not model.known(ASKED)
            return
        path.write_bytes(damaged[how])
        assert not model.known(ASKED)
        assert model.ask(ASKED, Name).name == "beak"
        assert json.loads(path.read_text())["reply"] == '{"name": "beak"}'


def test_a_stale_entry_is_asked_again(tmp_path: Path) -> None:
    class Longer(Name):
        reason: str

    with scripted(GOOD, Answer('{"name": "beak", "reason": "r"}')) as server, model_of(server, tmp_path) as model:
        model.ask(ASKED, Name)
        assert model.ask(ASKED, Longer).reason == "r"
        assert model.ask(ASKED, Longer).name == "beak"
        assert (model.usage.calls, model.usage.cached) == (2, 1)


def test_only_replies_that_were_used_are_kept(tmp_path: Path) -> None:
    with scripted(Answer("no idea")) as server, model_of(server, tmp_path) as model:
        with pytest.raises(MalformedReply):
            model.ask(ASKED, Name)
        assert not model.known(ASKED)
    assert not list(tmp_path.rglob("*.json"))


def test_refresh_asks_anew_once(tmp_path: Path) -> None:
    with scripted(GOOD, Answer('{"name": "beak"}')) as server:
        for refresh, name in ((False, "wings"), (True, "beak"), (False, "beak")):
            with model_of(server, tmp_path, refresh=refresh) as model:
                assert model.known(ASKED) is (name == "beak" and not refresh)
                assert [model.ask(ASKED, Name).name for _ in range(2)] == [name] * 2
        assert len(server.requests) == 2


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="expected a folder that can be written"):
        model_of("http://localhost:1/v1", tmp_path / "file" / "cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "htaf" / "replies"
    with scripted(GOOD) as server, model_of(server, tmp_path / "cache") as model:
        key = request_key("m", server.base_url, ASKED)
        (tmp_path / "cache" / key[:2]).write_text("in the way")
        with pytest.raises(ModelError, match="a reply cannot be kept"):
            model.ask(ASKED, Name)


def test_threads_that_ask_the_same_pay_once(tmp_path: Path) -> None:
    with ScriptedServer(lambda _: (time.sleep(0.1), GOOD)[1]) as server, model_of(server, tmp_path) as model:
        with ThreadPoolExecutor(8) as pool:
            names = list(pool.map(lambda n: model.ask(ASKED, Name, sample=n % 2).name, range(16)))
        assert names == ["wings"] * 16
        assert len(server.requests) == 2
        assert (model.usage.calls, model.usage.cached) == (2, 14)


def _fill(url: str, folder: Path) -> None:
    with model_of(url, folder) as model:
        for sample in range(20):
            model.ask(ASKED, Name, sample=sample)


def test_processes_share_a_cache(tmp_path: Path) -> None:
    with scripted(GOOD) as server:
        worker = multiprocessing.get_context("spawn").Process(target=_fill, args=(server.base_url, tmp_path))
        worker.start()
        while not server.requests and worker.is_alive():  # so that both are at it together
            time.sleep(0.001)
        _fill(server.base_url, tmp_path)
        worker.join(timeout=60)
        assert worker.exitcode == 0
        asked = len(server.requests)
        with model_of(server, tmp_path) as model:
            assert all(model.known(ASKED, sample=sample) for sample in range(20))
        assert len(server.requests) == asked
        assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 20


texts = st.text(max_size=20)
conversations = st.lists(st.fixed_dictionaries({"role": texts, "content": texts}), max_size=3)
requests = st.tuples(
    texts, texts.map(lambda url: url.rstrip("/")), conversations, st.integers(0, 5), st.none() | st.floats(0, 2)
)


@given(requests, requests)
def test_one_key_one_request(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    key = request_key(*one)
    assert len(key) == 64
    assert int(key, 16) >= 0
    assert (key == request_key(*other)) == (one == other)
    assert key == request_key(one[0], one[1] + "/", [dict(reversed(m.items())) for m in one[2]], *one[3:])


@given(requests, texts, st.integers(0, 4))
def test_each_part_changes_the_key(request_: tuple[Any, ...], more: str, part: int) -> None:
    other = list(request_)
    other[part] = [
        lambda v: v + "x", lambda v: v + "x", lambda v: [*v, {"role": "user", "content": more}],
        lambda v: v + 1, lambda v: 3.0 if v is None else v + 1,
    ][part](other[part])  # fmt: skip
    assert request_key(*other) != request_key(*request_)


def test_the_key_is_the_same_in_later_versions() -> None:
    """Else every cache would be paid for again: raise FORMAT where this must change."""
    wanted = "24195d175cf6b3ad04245fd96fd4617cda7950848645e7373053e8d09a550bf2"
    assert request_key("m", "http://localhost/v1", ASKED, 1, 0.5) == wanted
    assert request_key("m", "", ASKED, 0, 1) == request_key("m", "", ASKED, 0, 1.0)


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


# Without a server


def lines(path: Path, *entries: Any) -> Path:
    path.write_text("".join((e if isinstance(e, str) else json.dumps(e)) + "\n" for e in entries), encoding="utf-8")
    return path


def test_requests_are_written_and_replies_are_read_back(tmp_path: Path) -> None:
    other = [{"role": "user", "content": "And <b>this</b>, «é»?"}]
    asker = Replies("m", temperature=0.2)
    for messages in (ASKED, other, ASKED):
        assert not asker.known(messages)
        with pytest.raises(Unanswered):
            asker.ask(messages, Name)
    assert asker.waiting == asker.write(tmp_path / "batch.jsonl") == 2
    batch = [json.loads(line) for line in (tmp_path / "batch.jsonl").read_text().splitlines()]
    assert all(line["method"] == "POST" and line["url"] == "/v1/chat/completions" for line in batch)
    by_text = {line["body"]["messages"][-1]["content"]: line for line in batch}
    assert by_text.keys() == {"Name it.", other[0]["content"]}
    assert by_text["Name it."]["body"]["model"] == "m"
    assert by_text["Name it."]["body"]["response_format"]["type"] == "json_schema"
    chat = json.loads(Answer('```json\n{"name": "wings"}\n```').bytes())
    output = lines(
        tmp_path / "output.jsonl",
        {"id": "b", "custom_id": by_text["Name it."]["custom_id"], "error": None,
         "response": {"status_code": 200, "request_id": "r", "body": chat}},
    )  # fmt: skip
    mine = lines(
        tmp_path / "mine.jsonl", {"custom_id": by_text[other[0]["content"]]["custom_id"], "reply": '{"name": "b"}'}
    )
    read = Replies("m", (output, mine), temperature=0.2)
    assert (len(read), read.problems) == (2, [])
    assert read.known(ASKED)
    assert [read.ask(messages, Name).name for messages in (ASKED, other)] == ["wings", "b"]
    assert read.write(tmp_path / "batch.jsonl") == 0
    assert (tmp_path / "batch.jsonl").read_text() == ""


def test_lines_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    key = request_key("m", "", ASKED)
    error = {"custom_id": key, "response": None, "error": {"message": "expired"}}
    good = "\ufeff" + json.dumps({"custom_id": key, "reply": '{"name": "wings"}'})
    chat = json.loads(Answer('{"name": "beak"}').bytes())
    bodies = [{"status_code": 500, "body": chat}, {"status_code": 200, "body": {"choices": []}}]
    failed = [{"custom_id": key, "response": body} for body in bodies]
    others = ["", "{half", "[1]", {"custom_id": 5, "reply": "x"}, error, *failed, {"custom_id": key, "reply": None}]
    file = lines(tmp_path / "r.jsonl", good, *others)
    asker = Replies("m", [file])
    assert [problem.split(": ")[0] for problem in asker.problems] == [f"{file}:{n}" for n in (3, 4, 5, 6, 7, 8, 9)]
    assert "expired" in asker.problems[3]
    assert asker.ask(ASKED, Name).name == "wings"


def test_a_reply_that_does_not_fit_waits_again(tmp_path: Path) -> None:
    key = request_key("m", "", ASKED)
    bad = lines(tmp_path / "bad.jsonl", {"custom_id": key, "reply": "no idea"})
    asker = Replies("m", [bad])
    with pytest.raises(MalformedReply, match="no idea"):
        asker.ask(ASKED, Name)
    assert asker.write(tmp_path / "batch.jsonl") == 1
    good = lines(tmp_path / "good.jsonl", {"custom_id": key, "reply": '{"name": "wings"}'})
    for files in ([bad, good], [good, bad]):
        assert Replies("m", files).ask(ASKED, Name).name == "wings"
    two = lines(tmp_path / "two.jsonl", {"custom_id": key, "reply": '{"name": "beak"}'})
    assert Replies("m", [good, two]).ask(ASKED, Name).name == "beak"


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        Replies("m", [tmp_path / "nowhere.jsonl"])
    (tmp_path / "binary").write_bytes(os.urandom(200) + b"\n")
    assert Replies("m", [tmp_path / "binary"]).problems
    with pytest.raises(ModelError, match="cannot be written"):
        Replies("m").write(tmp_path / "binary" / "batch.jsonl")


def test_threads_ask_without_a_server() -> None:
    asker, barrier = Replies("m"), threading.Barrier(8)

    def one(sample: int) -> None:
        barrier.wait()
        for number in range(50):
            with pytest.raises(Unanswered):
                asker.ask(ASKED, Name, sample=50 * sample + number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(8)))
    assert asker.waiting == 400


def test_local_servers_are_reached_past_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    found, _, _ = ask(GOOD)
    assert isinstance(found, Name)
    assert "127.0.0.1" in _model_server.LOOPBACK
