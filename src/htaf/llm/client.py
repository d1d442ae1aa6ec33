"""What a client of a language model is, and the one that asks an OpenAI-compatible server through openai's SDK.

A reply that was used is kept on disk, so that nothing is paid twice; calls and tokens have limits, checked before each
call.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, ValidationError, field_validator

from htaf._errors import installed
from htaf._files import cache_folder, parse_json, to_json, write_atomic
from htaf.llm.chat import (
    SAID,
    BudgetError,
    MalformedReply,
    Message,
    ModelError,
    R,
    corrected,
    short,
    tokens_of,
    validated,
)

if TYPE_CHECKING:
    import openai

FORMAT = 2  # of a reply on disk
OPENAI = "https://api.openai.com/v1"
REPLY_TOKENS = 4096  # of a reply; one that was cut off there is asked for again without a limit
REFUSED = (400, 413, 422)  # the server is there, but does not take this request
LEAST_SECRET = 8  # characters: a shorter key may be a word of the model's own
LOOPBACK = {"localhost", "127.0.0.1", "::1"}


@runtime_checkable
class Client(Protocol):
    """Whatever answers messages with a JSON object of a wanted form; `base_url`, where it has one, says who does."""

    model: str

    def ask(
        self, messages: Sequence[Message], reply: type[R], *, sample: int = 0, context: Mapping[str, Any] | None = None
    ) -> R:
        """The reply, validated; `sample` tells repeated askings of the same messages apart."""
        ...

    def known(self, messages: Sequence[Message], *, sample: int = 0) -> bool:
        """Whether the reply is known already, so that it costs nothing."""
        ...


@dataclass(frozen=True)
class Usage:
    """What was used since the start.

    Attributes:
        calls: requests that were sent, retries and failures among them.
        tokens: of prompts and replies, as the server counts them, or about so many where it does not.
        cached: replies that the cache gave.
        malformed: replies that could not be used.
    """

    calls: int = 0
    tokens: int = 0
    cached: int = 0
    malformed: int = 0


class _Said(BaseModel):
    content: str | None = None
    refusal: Any = None

    @field_validator("content", mode="before")
    @classmethod
    def _joined(cls, content: object) -> object:
        """Of a list of parts, as some thinking models send, the texts."""
        if not isinstance(content, list):
            return content
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))


class _Choice(BaseModel):
    message: _Said
    finish_reason: Any = None


class _Completion(BaseModel):
    """A chat completion, as far as it is read."""

    choices: list[_Choice] = Field(min_length=1)
    usage: Any = None


class ServerClient:
    """Asks a model behind an OpenAI-compatible server. Threads may share it.

    A request asks for JSON of the reply's schema and at most 4,096 tokens; one that a server refuses is sent without,
    and where it takes that, so are all others. openai's SDK retries time-outs, broken connections, 408, 409, 429 and
    5xx. A reply that cannot be used is told so and asked again; one that was cut off is asked again without a limit, as
    models think before they reply.

    Args:
        model: the server's name of it; default: OPENAI_MODEL.
        base_url: default: OPENAI_BASE_URL, else OpenAI's.
        api_key: default: OPENAI_API_KEY; local servers need none. It is sent to that server alone, and neither printed,
            logged nor stored.
        cache: folder of replies; None for none. `default_cache()` is the usual one. Processes may share it.
        calls: most requests that are sent, retries among them; never exceeded.
        tokens: no request is sent once so many are used: exceeded by the calls under way only.
        timeout: seconds without a word from the server after which a call has failed.
        retries: of one call.
        attempts: to get a reply that can be used.
        temperature: None for the server's own.
        refresh: ask anew what the cache holds.
    Attributes:
        unencrypted: the host that gets a key over http, where that is not this machine; else "".
    Raises:
        ModelError: settings that cannot be used, no model. ModuleNotFoundError: openai is not installed.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        cache: Path | None,
        calls: int | None = None,
        tokens: int | None = None,
        timeout: float = 60.0,
        retries: int = 4,
        attempts: int = 3,
        temperature: float | None = None,
        refresh: bool = False,
    ) -> None:
        numbers = {"retries": retries, "calls": calls, "tokens": tokens, "temperature": temperature}
        if bad := [name for name, value in numbers.items() if value is not None and not value >= 0]:
            raise ModelError(f"expected {bad[0]} >= 0, got {numbers[bad[0]]}")
        if not (0 < timeout < float("inf") and attempts >= 1):
            raise ModelError(f"expected timeout > 0 and attempts >= 1, got {timeout} and {attempts}")
        self.model = model or os.environ.get("OPENAI_MODEL", "")
        if not self.model:
            raise ModelError("expected a model's name, as an argument or in OPENAI_MODEL, got none")
        self.base_url = checked_url(base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI)
        key = checked_key(api_key if api_key is not None else os.environ.get("OPENAI_API_KEY", ""))
        parts = urlsplit(self.base_url)
        local = parts.hostname in LOOPBACK
        self.unencrypted = (parts.hostname or "") if key and parts.scheme == "http" and not local else ""
        self.temperature, self._attempts = temperature, attempts
        self._cache, self._refresh = cache, refresh
        self._limits = {"calls": calls, "tokens": tokens}
        self._usage, self._guard = Usage(), threading.Lock()
        self._schemas = True  # whether the server takes a schema
        self._talks = False  # whether it has ever answered
        self._closed = False
        self._redact = _redactor(key)
        self._sdk = _sdk(self.base_url, key, timeout, retries, self._before, local)

    def __repr__(self) -> str:
        return f"ServerClient({self.model!r}, base_url={self.base_url!r})"

    def __enter__(self) -> ServerClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Send nothing more; calls under way in other threads end at their time-out at the latest."""
        self._closed = True
        self._sdk.close()

    @property
    def usage(self) -> Usage:
        """What was used up to now."""
        return self._usage

    @property
    def notes(self) -> list[str]:
        """What the server did not take, in words for the user."""
        what = "a schema for the reply or a limit of its tokens"
        return [] if self._schemas else [f"{self.base_url} refused {what}: asked without"]

    def known(self, messages: Sequence[Message], *, sample: int = 0) -> bool:
        """Whether the cache has a reply, perhaps one that a newer form of reply does not accept."""
        return self._kept(self._key(messages, sample)) is not None

    def ask(
        self, messages: Sequence[Message], reply: type[R], *, sample: int = 0, context: Mapping[str, Any] | None = None
    ) -> R:
        """The model's reply, from the cache or the server.

        Args:
            messages: {"role": "system", "user" or "assistant", "content": text} each; content may also be a list of
                parts, text and pictures (`htaf.llm.pictures`).
            reply: a pydantic model; its validators see `context` as `info.context`.
            sample: tells repeated askings apart, which would else be one in the cache.
            context: what the reply is checked against.
        Raises:
            MalformedReply: no reply could be used, or the server does not take this request though it took others.
            BudgetError: a limit is reached.
            ModelError: the server is down, refuses the key, or is no such server.
        """
        key = self._key(messages, sample)
        if (kept := self._kept(key)) is not None:
            try:
                found = validated(kept, reply, context)
            except MalformedReply:
                pass  # kept when another form was wanted: asked anew
            else:
                self._count(cached=1)
                return found
        turn, limit = list(messages), REPLY_TOKENS
        problem = ""
        for _ in range(self._attempts):
            text, problem, cut = self._complete(turn, reply, limit)
            if not problem:
                try:
                    found = validated(text, reply, context)
                except MalformedReply as error:
                    problem = str(error)
                else:
                    self._keep(key, text)
                    return found
            self._count(malformed=1)
            if cut and limit:
                limit = 0  # the same again, with more room
            else:
                turn = corrected(messages, text, problem)
        message = f"no usable reply in {self._attempts} attempts; the last: {problem}"
        if self._talks:
            raise MalformedReply(message)
        raise ModelError(f"{self.base_url} is no OpenAI-compatible server, or its base URL is another: {message}")

    def _complete(self, turn: list[Message], reply: type[R], limit: int) -> tuple[str, str, bool]:
        """One reply, why it cannot be used, and whether it was cut off; a request that is refused is sent without a
        schema and a limit."""
        import openai

        # A schema, not `json_object`: LM Studio takes no other. Not strict: OpenAI would refuse bounds of lengths
        schema = {"name": "reply", "schema": reply.model_json_schema(), "strict": False}
        wanted: dict[str, Any] = {"response_format": {"type": "json_schema", "json_schema": schema}}
        wanted |= {"max_completion_tokens": limit} if limit else {}
        refused = ""
        for options in [wanted, {}] if self._schemas else [{}]:
            if self.temperature is not None:
                options["temperature"] = self.temperature
            call: Any = self._sdk.chat.completions.with_raw_response.create
            try:
                body = call(model=self.model, messages=turn, **options).http_response.content
            except (openai.OpenAIError, RuntimeError) as error:  # httpx has the second for a client that was closed
                if getattr(error, "status_code", 0) not in REFUSED:
                    raise ModelError(self._told(error)) from None
                refused = refused or self._told(error)
                continue
            return self._read(body, turn, bool(refused))
        if self._talks:  # it took others: this one is too long, or not to its liking
            raise MalformedReply(refused)
        raise ModelError(refused)

    def _read(self, body: bytes, turn: list[Message], plain: bool) -> tuple[str, str, bool]:
        """What an answer says, as `_complete` gives it; plain: whether the server took it without a schema alone."""
        try:
            got = _Completion.model_validate_json(body)
        except ValidationError:
            start = self._redact(body[:SAID].decode("utf-8", "replace"))
            return "", f"expected a chat completion, got {short(start, 80)!r}", False
        said, finish = got.choices[0].message, got.choices[0].finish_reason
        text = self._redact(said.content or "")
        self._talks, self._schemas = True, self._schemas and not plain
        counted = got.usage.get("total_tokens") if isinstance(got.usage, dict) else None
        if type(counted) is not int or not 0 < counted < 10**8:  # not counted, or not believably
            counted = tokens_of([*turn, {"content": text}])
        self._count(tokens=counted)
        if finish == "length":
            return text, "the reply was cut off at the limit of tokens; be brief", True
        if not text.strip():
            return text, f"the reply was empty: {short(self._redact(str(said.refusal or finish)))}", False
        return text, "", False

    def _told(self, error: Exception) -> str:
        """An error of the SDK in words, without what its request holds."""
        import openai

        url, status, said = self.base_url, getattr(error, "status_code", 0), _words(getattr(error, "body", None))
        if self._closed or not isinstance(error, openai.OpenAIError):
            text = f"the connection to {url} was closed"
        elif isinstance(error, openai.APITimeoutError):
            text = f"{url} gave no answer in {self._sdk.timeout:g} s"
        elif isinstance(error, openai.APIConnectionError):
            text = f"{url} cannot be reached, or broke off: {error.__cause__ or error}"
        elif status in (401, 403):
            text = f"{url} refused the key, or wants one (HTTP {status}): give it in OPENAI_API_KEY"
        elif status == 404:
            text = f"{url} has no such model or address (HTTP 404); most end in /v1{said}"
        else:
            text = f"{url} answered HTTP {status}{said}"
        return short(self._redact(text))

    def _before(self, _: object) -> None:
        """Take one call out of the budget, before it is sent."""
        with self._guard:
            for name, limit in self._limits.items():
                used = getattr(self._usage, name)
                if limit is not None and used >= limit:
                    raise BudgetError(f"the budget of {limit:,} {name} is used up ({used:,} used)")
            self._usage = replace(self._usage, calls=self._usage.calls + 1)

    def _count(self, **more: int) -> None:
        with self._guard:
            self._usage = replace(self._usage, **{k: getattr(self._usage, k) + n for k, n in more.items()})

    def _key(self, messages: Sequence[Message], sample: int) -> str:
        """SHA-256 of all that decides a reply: the name of its file in the cache."""
        parts = [FORMAT, self.model, self.base_url, list(messages), sample, self.temperature]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _kept(self, key: str) -> str | None:
        """The text of a reply on disk; None for none, or for a file that is none."""
        if self._cache is None or self._refresh:
            return None
        try:
            entry = parse_json((self._cache / f"{key}.json").read_bytes())
        except (OSError, ValueError):
            return None
        reply = entry.get("reply") if isinstance(entry, dict) and entry.get("format") == FORMAT else None
        return reply if isinstance(reply, str) else None

    def _keep(self, key: str, text: str) -> None:
        if self._cache is None:
            return
        try:
            self._cache.mkdir(mode=0o700, parents=True, exist_ok=True)  # replies may speak of what is private
            write_atomic(self._cache / f"{key}.json", to_json({"format": FORMAT, "model": self.model, "reply": text}))
        except OSError as error:  # to continue would pay for replies that are then lost
            raise ModelError(f"{self._cache}: a reply cannot be kept: {error.strerror or error}") from None


def default_cache() -> Path:
    """Where replies are kept: htaf/replies in XDG_CACHE_HOME or ~/.cache."""
    return cache_folder() / "replies"


def _sdk(
    base_url: str, key: str, timeout: float, retries: int, before: Callable[[object], None], local: bool
) -> openai.OpenAI:
    """openai's client; `before` is called with each real request, retries too, and may raise."""
    with installed():
        import openai

    http = openai.DefaultHttpxClient(
        timeout=timeout,
        follow_redirects=False,  # pictures and prompts go to this host alone
        trust_env=not local,  # no proxy leads to this machine
        event_hooks={"request": [before]},
    )
    # local servers need no key, but the SDK wants one
    return openai.OpenAI(
        base_url=base_url, api_key=key or "none", max_retries=retries, timeout=timeout, http_client=http
    )


def _redactor(key: str) -> Callable[[str], str]:
    """What takes a key out of a text; a closure, so that no dump of attributes shows it."""
    return lambda text: text.replace(key, "***") if len(key) >= LEAST_SECRET else text


def _words(body: object) -> str:
    """What a server says of an error; pages of HTML say nothing."""
    if isinstance(body, dict):
        body = next((body[name] for name in ("message", "detail", "error") if isinstance(body.get(name), str)), "")
    if not isinstance(body, str) or not body.strip() or body.lstrip().startswith("<"):
        return ""
    return f": {body}"


def checked_url(url: str) -> str:
    """The base URL without a slash at its end.

    Raises:
        ModelError: not http or https, no host, or with parts that may hold a secret; the message does not show them.
    """
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ModelError("base URL: expected something like http://localhost:8000/v1, got no URL") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ModelError(
            f"base URL of {host}: expected no user, password or anything after ? or #; give the key in OPENAI_API_KEY"
        )
    if parts.scheme not in ("http", "https") or not host or not url.isprintable():
        raise ModelError(f"base URL: expected something like http://localhost:8000/v1, got {short(url, 80)!r}")
    return url.strip().rstrip("/")


def checked_key(key: str) -> str:
    """The key without white space around it.

    Raises:
        ModelError: characters that no header can carry; the message does not show them.
    """
    key = key.strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ModelError(f"the key: expected printable ASCII without spaces, got {len(key)} characters, some others")
    return key
