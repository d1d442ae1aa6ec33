"""Servers that fail, and that are sent the key: nothing takes longer than it may, and the key is nowhere."""

from __future__ import annotations

import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from askings import ASKED, GOOD, KEY, Name, ask, model_of

from htaf.llm import ModelError
from htaf.llm import server as model_server
from scripted_server import Answer, scripted

pytestmark = pytest.mark.usefixtures("no_surroundings")


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


@pytest.mark.parametrize("key", ["1", "a", "wings", "x" * 7])
def test_a_short_key_changes_no_reply(key: str, tmp_path: Path) -> None:
    text = '{"name": "the bearer of wings", "votes": [1, 11]}'
    with scripted(Answer(text)) as server, model_of(server, tmp_path, api_key=key) as model:
        assert model.ask(ASKED, Name) == Name(name="the bearer of wings", votes=[1, 11])
    (path,) = tmp_path.rglob("*.json")
    assert json.loads(path.read_text())["reply"] == text
    found, _, _ = ask(Answer(status=400, body=b'{"message": "no wings, Bearer token1"}'), api_key="wings")
    assert str(found).endswith(": no ***, Bearer ***")


@pytest.mark.parametrize(
    ("url", "key", "host"),
    [
        ("http://gpu.example:8000/v1", KEY, "gpu.example"),
        ("http://gpu.example:8000/v1", "", ""),
        ("https://gpu.example/v1", KEY, ""),
        ("http://localhost:8000/v1", KEY, ""),
        ("http://127.0.0.1/v1", KEY, ""),
        ("http://[::1]:80/v1", KEY, ""),
    ],
)
def test_a_key_in_the_clear_is_told(url: str, key: str, host: str) -> None:
    with model_of(url, api_key=key) as model:
        assert model.unencrypted == host


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


def test_local_servers_are_reached_past_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    found, _, _ = ask(GOOD)
    assert isinstance(found, Name)
    assert "127.0.0.1" in model_server.LOOPBACK
