"""Replies in files: a cache that is never believed blindly, and batches without a server."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from askings import ASKED, GOOD, Name, model_of
from hypothesis import given
from hypothesis import strategies as st

from htaf.llm import BatchClient, MalformedReply, ModelError, Unanswered, Usage, default_cache, request_key
from scripted_server import Answer, ScriptedServer, scripted

pytestmark = pytest.mark.usefixtures("no_surroundings")


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


@pytest.mark.slow
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


# Without a server


def lines(path: Path, *entries: Any) -> Path:
    path.write_text("".join((e if isinstance(e, str) else json.dumps(e)) + "\n" for e in entries), encoding="utf-8")
    return path


def test_requests_are_written_and_replies_are_read_back(tmp_path: Path) -> None:
    other = [{"role": "user", "content": "And <b>this</b>, «é»?"}]
    client = BatchClient("m", temperature=0.2)
    for messages in (ASKED, other, ASKED):
        assert not client.known(messages)
        with pytest.raises(Unanswered):
            client.ask(messages, Name)
    assert client.waiting == client.write(tmp_path / "batch.jsonl") == 2
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
    read = BatchClient("m", (output, mine), temperature=0.2)
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
    client = BatchClient("m", [file])
    assert [problem.split(": ")[0] for problem in client.problems] == [f"{file}:{n}" for n in (3, 4, 5, 6, 7, 8, 9)]
    assert "expired" in client.problems[3]
    assert client.ask(ASKED, Name).name == "wings"


def test_a_reply_that_does_not_fit_waits_again(tmp_path: Path) -> None:
    key = request_key("m", "", ASKED)
    bad = lines(tmp_path / "bad.jsonl", {"custom_id": key, "reply": "no idea"})
    client = BatchClient("m", [bad])
    with pytest.raises(MalformedReply, match="no idea"):
        client.ask(ASKED, Name)
    assert client.write(tmp_path / "batch.jsonl") == 1
    good = lines(tmp_path / "good.jsonl", {"custom_id": key, "reply": '{"name": "wings"}'})
    for files in ([bad, good], [good, bad]):
        assert BatchClient("m", files).ask(ASKED, Name).name == "wings"
    two = lines(tmp_path / "two.jsonl", {"custom_id": key, "reply": '{"name": "beak"}'})
    assert BatchClient("m", [good, two]).ask(ASKED, Name).name == "beak"


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        BatchClient("m", [tmp_path / "nowhere.jsonl"])
    (tmp_path / "binary").write_bytes(os.urandom(200) + b"\n")
    assert BatchClient("m", [tmp_path / "binary"]).problems
    with pytest.raises(ModelError, match="cannot be written"):
        BatchClient("m").write(tmp_path / "binary" / "batch.jsonl")


def test_threads_ask_without_a_server() -> None:
    client, barrier = BatchClient("m"), threading.Barrier(8)

    def one(sample: int) -> None:
        barrier.wait()
        for number in range(50):
            with pytest.raises(Unanswered):
                client.ask(ASKED, Name, sample=50 * sample + number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(8)))
    assert client.waiting == 400
