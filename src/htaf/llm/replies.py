"""Replies of language models in files: a cache that processes share, and the lines of batches that others answer."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from htaf._files import cache_folder, to_json, write_atomic
from htaf.llm.chat import (
    FORMAT,
    MalformedReply,
    Message,
    ModelError,
    R,
    Unanswered,
    body_of,
    plain,
    read_completion,
    request_key,
    short,
    validated,
)

LARGEST = 2**24  # bytes of an entry of the cache


def default_cache() -> Path:
    """Where replies are kept: htaf/replies in XDG_CACHE_HOME or ~/.cache."""
    return cache_folder() / "replies"


class ReplyCache:
    """Replies that were used, a JSON file each: FOLDER/<first two digits of the key>/<key>.json.

    Files are written whole or not at all, so threads and processes may share a folder. Whatever has an entry's name but
    cannot be read as one, or says another format or key, counts as nothing and is overwritten.

    Args:
        folder: made where it is missing.
    Raises:
        ModelError: it cannot be written to.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # prompts may name what is private
        except OSError as error:
            raise ModelError(f"{folder}: expected a folder that can be written, got {error.strerror}") from None
        if not os.access(folder, os.W_OK):
            raise ModelError(f"{folder}: expected a folder that can be written, got one that cannot")
        self.folder = folder

    def path(self, key: str) -> Path:
        """The file of a key, there or not."""
        return self.folder / key[:2] / f"{key}.json"

    def get(self, key: str) -> str | None:
        """The text of a reply, or None."""
        path = self.path(key)
        try:
            if not path.is_file() or path.stat().st_size > LARGEST:
                return None
            entry = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(entry, dict) or entry.get("format") != FORMAT or entry.get("key") != key:
            return None
        return entry["reply"] if isinstance(entry.get("reply"), str) else None

    def put(self, key: str, reply: str, **about: Any) -> None:
        """Keep the text of a reply, with what else is known of it.

        Raises:
            ModelError: it cannot be written; to continue would pay for replies that are then lost.
        """
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        entry = {**about, "format": FORMAT, "key": key, "reply": reply, "time": now}
        try:
            write_atomic(self.path(key), to_json(entry))
        except OSError as error:
            raise ModelError(f"{self.folder}: a reply cannot be kept: {error.strerror or error}") from None


class BatchClient:
    """Answers from files, without a server: what they lack is noted and can be written as input of OpenAI's Batch API.

    A line is {"custom_id": KEY, "reply": TEXT} or one of OpenAI's batch output, {"custom_id": KEY, "response":
    {"status_code": 200, "body": CHAT COMPLETION}}, where KEY is that of the line that `write` wrote. A line that is
    neither is left out and listed in `problems`; of several replies to one request the last that fits is taken.

    Args:
        model: written into the batch.
        files: of lines, read now. temperature: written into the batch, None for the server's own.
    Attributes:
        files: their names.
        problems: "FILE:LINE: what was expected", of the lines that were left out.
        used, unusable: keys of the requests whose reply was used, and could not be used.
    Raises:
        ModelError: a file cannot be read.
    """

    def __init__(self, model: str, files: Sequence[str | Path] = (), *, temperature: float | None = None) -> None:
        self.model, self.temperature, self.files = model, temperature, tuple(map(str, files))
        self.problems: list[str] = []
        self.used: set[str] = set()
        self.unusable: set[str] = set()
        self._replies: dict[str, list[str]] = {}
        self._keys: dict[str, set[str]] = {}  # of each file
        self._met: set[str] = set()  # keys of all requests, asked or only looked for
        self._waiting: dict[str, dict[str, Any]] = {}
        self._guard = threading.Lock()
        for file in files:
            self._read(Path(file))

    def __len__(self) -> int:
        """How many requests have a reply in the files."""
        return len(self._replies)

    @property
    def met(self) -> int:
        """How many replies belong to a request that was asked or looked for."""
        with self._guard:
            return len(self._met & self._replies.keys())

    @property
    def waiting(self) -> int:
        """How many requests were noted."""
        with self._guard:
            return len(self._waiting)

    def known(self, messages: Sequence[Message], *, sample: int = 0) -> bool:
        """Whether the files have a reply."""
        return self._key(plain(messages), sample) in self._replies

    def unmet(self) -> dict[str, int]:
        """Of each file that has some, how many replies belong to no request that was asked or looked for."""
        with self._guard:
            counts = {file: len(keys - self._met) for file, keys in self._keys.items()}
        return {file: count for file, count in counts.items() if count}

    def ask(
        self, messages: Sequence[Message], reply: type[R], *, sample: int = 0, context: Mapping[str, Any] | None = None
    ) -> R:
        """The reply of the files; arguments as of `ServerClient.ask`.

        Raises:
            Unanswered: there is none. MalformedReply: none can be used. Either way the request is noted for `write`.
        """
        messages = plain(messages)
        key = self._key(messages, sample)
        problem = ""
        for text in self._replies.get(key, [])[::-1]:
            try:
                found = validated(text, reply, context)
            except MalformedReply as error:
                problem = problem or str(error)
            else:
                with self._guard:
                    self.used.add(key)
                return found
        body = body_of(self.model, messages, reply, self.temperature)
        with self._guard:
            self._waiting[key] = {"custom_id": key, "method": "POST", "url": "/v1/chat/completions", "body": body}
            self.unusable |= {key} if problem else set()
        if problem:
            raise MalformedReply(f"the reply of the files cannot be used: {problem}")
        raise Unanswered("the files of replies have none to this request")

    def write(self, path: str | Path) -> int:
        """Write what waits as OpenAI batch input, a request a line, sorted; an empty file where nothing waits.

        Returns:
            the number of lines.
        Raises:
            ModelError: the file cannot be written.
        """
        with self._guard:
            lines = [json.dumps(self._waiting[key], ensure_ascii=False) + "\n" for key in sorted(self._waiting)]
        try:
            write_atomic(Path(path), "".join(lines))
        except OSError as error:
            raise ModelError(f"{path}: cannot be written: {error.strerror or error}") from None
        return len(lines)

    def _key(self, messages: list[Message], sample: int) -> str:
        key = request_key(self.model, "", messages, sample, self.temperature)
        with self._guard:
            self._met.add(key)
        return key

    def _read(self, path: Path) -> None:
        try:
            with path.open(encoding="utf-8-sig", errors="replace", newline="\n") as file:
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        self._take(str(path), number, line)
        except OSError as error:
            raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None

    def _take(self, file: str, number: int, line: str) -> None:
        place = f"{file}:{number}"
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            self.problems.append(f"{place}: expected a line of JSON, got {short(line, 60)!r}")
            return
        key = entry.get("custom_id") if isinstance(entry, dict) else None
        if not isinstance(key, str):
            self.problems.append(f'{place}: expected an object with "custom_id", got {short(line, 60)!r}')
            return
        try:
            text = _text(entry)
        except MalformedReply as error:
            self.problems.append(f"{place}: {error}")
        else:
            self._replies.setdefault(key, []).append(text)
            self._keys.setdefault(file, set()).add(key)


def _text(entry: dict[str, Any]) -> str:
    """The reply of a line; raises MalformedReply where there is none."""
    if isinstance(entry.get("reply"), str):
        return entry["reply"].encode("utf-8", "replace").decode()
    response = entry.get("response")
    if not isinstance(response, dict):
        said = f": {short(json.dumps(entry['error']), 200)}" if entry.get("error") else ""
        raise MalformedReply(f'expected "reply" with a text or "response" with an object{said}')
    if response.get("status_code", 200) != 200:
        raise MalformedReply(f"expected status_code 200, got {short(json.dumps(response), 200)}")
    got = read_completion(response.get("body"))
    if got.problem:
        raise MalformedReply(got.problem)
    return got.text
