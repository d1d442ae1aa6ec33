"""What a client of a language model is, and the one that asks an OpenAI-compatible server.

A reply that was used is kept on disk, so that nothing is paid twice; calls and tokens have limits, checked before each
call.
"""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from htaf.llm.chat import (
    REPLY_TOKENS,
    BudgetError,
    Completion,
    MalformedReply,
    Message,
    ModelError,
    R,
    body_of,
    corrected,
    plain,
    read_completion,
    request_key,
    tokens_of,
    validated,
)
from htaf.llm.pictures import without_pictures
from htaf.llm.replies import ReplyCache

if TYPE_CHECKING:
    from htaf.llm.server import Server

OPTION = re.compile(r"response_format|json_schema|max_completion_tokens|max_tokens|temperature")


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
        tokens: of prompts and replies, as the server counts them; estimated: of them, those that it did not count.
        cached: replies that the cache gave.
        retried: calls that repeated one which failed on its way (time-outs, 429, 5xx).
        malformed: replies that could not be used.
    """

    calls: int = 0
    tokens: int = 0
    estimated: int = 0
    cached: int = 0
    retried: int = 0
    malformed: int = 0


class ServerClient:
    """Asks a model behind an OpenAI-compatible server.

    A request asks for JSON of the reply's schema and at most 4,096 tokens; one that a server refuses with 400 or 422 is
    sent without, and so are all others once a refusal named such an option, or two in a row were taken only without.
    Time-outs, broken connections, 408, 409, 429 and 5xx are retried. A reply that cannot be used is told so and asked
    again; one that was cut off is asked again with 16,384 tokens, then with no limit, as models think before they
    reply. Threads may share a model; two that ask the same at once pay once.

    Args:
        model: the server's name of it; default: OPENAI_MODEL.
        base_url: default: OPENAI_BASE_URL, else OpenAI's.
        api_key: default: OPENAI_API_KEY; local servers need none. It is sent to that server alone, and neither printed,
            logged nor stored.
        cache: folder of replies; None for none. `default_cache()` is the usual one. Processes may share it.
        calls: most requests that are sent, retries among them; never exceeded.
        tokens: no request is sent once so many are used: exceeded by the calls under way only.
        timeout: seconds for one whole call, from connecting to the last byte.
        retries: of one call.
        attempts: to get a reply that can be used.
        temperature: None for the server's own.
        refresh: ask anew, once each, what the cache holds.
    Attributes:
        fresh: keys of the replies that were paid for and used since the start.
        unencrypted: the host that gets a key over http, where that is not this machine; else "".
    Raises:
        ModelError: settings that cannot be used, no model, openai not installed.
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
        try:
            from htaf.llm.server import OPENAI, Server, checked_key, checked_url, in_the_clear
        except ImportError as error:
            raise ModelError(f"asking a language model needs openai: pip install 'htaf[llm]' ({error})") from None
        if not (0 < timeout < float("inf") and retries >= 0 and attempts >= 1 and (temperature or 0) >= 0):
            raise ModelError(
                "expected timeout > 0, retries >= 0, attempts >= 1 and temperature >= 0, "
                f"got {timeout}, {retries}, {attempts} and {temperature}"
            )
        if min(0 if calls is None else calls, 0 if tokens is None else tokens) < 0:
            raise ModelError(f"expected calls and tokens >= 0, got {calls} and {tokens}")
        self.model = model or os.environ.get("OPENAI_MODEL", "")
        if not self.model:
            raise ModelError("expected a model's name, as an argument or in OPENAI_MODEL, got none")
        self.base_url = checked_url(base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI)
        self.temperature, self._attempts, self._refresh = temperature, attempts, refresh
        self._cache = None if cache is None else ReplyCache(cache)
        self._limits = calls, tokens
        self._usage, self._guard = Usage(), threading.Lock()
        self._asking: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self.fresh: set[str] = set()
        self._form, self._falls = 0, 0  # how much of a request the server takes; in a row, how many it took less of
        self._talks = False  # whether it has ever answered
        key = checked_key(api_key if api_key is not None else os.environ.get("OPENAI_API_KEY", ""))
        self.unencrypted = in_the_clear(self.base_url) if key else ""
        self._server: Server = Server(self.base_url, key, timeout, retries, self._before)

    def __repr__(self) -> str:
        return f"ServerClient({self.model!r}, base_url={self.base_url!r})"

    def __enter__(self) -> ServerClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the calls under way, in other threads too, which then raise ModelError."""
        self._server.close()

    @property
    def usage(self) -> Usage:
        """What was used up to now."""
        with self._guard:
            return self._usage

    @property
    def notes(self) -> list[str]:
        """What the server did not take, in words for the user."""
        what = ("", "a schema for the reply or a limit of its tokens", "a schema, a limit of tokens or a temperature")
        return [f"{self.base_url} refused {what[self._form]}: asked without"] if self._form else []

    def known(self, messages: Sequence[Message], *, sample: int = 0) -> bool:
        """Whether the cache has a reply, perhaps one that a newer form of reply does not accept."""
        return self._kept(self._key(plain(messages), sample)) is not None

    def ask(
        self, messages: Sequence[Message], reply: type[R], *, sample: int = 0, context: Mapping[str, Any] | None = None
    ) -> R:
        """The model's reply, from the cache or the server.

        Args:
            messages: {"role": "system", "user" or "assistant", "content": text} each; content may also be a list of
                parts, text and pictures (`htaf.llm.pictures`). Of pictures the cache keeps the SHA-256 alone.
            reply: a pydantic model; its validators see `context` as `info.context`.
            sample: tells repeated askings apart, which would else be one in the cache.
            context: what the reply is checked against.
        Raises:
            MalformedReply: no reply could be used, or the server does not take this request though it took others.
            BudgetError: a limit is reached.
            ModelError: the server is down, refuses the key, or is no such server.
        """
        messages = plain(messages)
        key = self._key(messages, sample)
        with self._guard:
            lock = self._asking.setdefault(key, threading.Lock())
        with lock:
            kept = self._kept(key)
            if kept is not None:
                try:
                    found = validated(kept, reply, context)
                except MalformedReply:
                    pass  # kept when another form was wanted: asked anew
                else:
                    self._count(cached=1)
                    return found
            return self._ask(key, messages, reply, sample, context)

    def _ask(
        self, key: str, messages: list[Message], reply: type[R], sample: int, context: Mapping[str, Any] | None
    ) -> R:
        turn, problem, limits = messages, "", list(REPLY_TOKENS)
        for _ in range(self._attempts):
            got, tokens = self._complete(turn, reply, limits[0])
            problem = got.problem
            if not problem:
                try:
                    found = validated(got.text, reply, context)
                except MalformedReply as error:
                    problem = self._server.redact(str(error))
                else:
                    self.fresh.add(key)
                    if self._cache is not None:
                        about = {"model": self.model, "messages": without_pictures(messages), "sample": sample}
                        self._cache.put(key, got.text, **about, temperature=self.temperature, tokens=tokens)
                    return found
            self._count(malformed=1)
            if got.cut and len(limits) > 1 and not self._form:
                del limits[0]  # the same again, with more room
            elif got.chat:
                turn = corrected(messages, got.text, problem)
        message = f"no usable reply in {self._attempts} attempts; the last: {problem}"
        if self._talks:
            raise MalformedReply(message)
        raise ModelError(f"{self.base_url} is no OpenAI-compatible server, or its base URL is another: {message}")

    def _complete(self, turn: list[Message], reply: type[R], limit: int | None) -> tuple[Completion, int]:
        """One reply, and its tokens; a refused request is tried in shorter forms."""
        from htaf.llm.server import Oversized, RequestRefused

        refused, first = "", self._form
        for form in range(first, 3):
            if form == 2 and self.temperature is None:
                continue
            heat = None if form == 2 else self.temperature
            try:
                answer = self._server.post(body_of(self.model, turn, reply if form == 0 else None, heat, limit))
            except RequestRefused as error:
                refused = refused or str(error)
                continue
            except Oversized as error:
                return Completion(problem=str(error), chat=False), 0
            got = read_completion(answer)
            got = replace(got, text=self._server.redact_reply(got.text), problem=self._server.redact(got.problem))
            guessed = tokens_of([*turn, {"role": "assistant", "content": got.text}]) if got.chat else 0
            if got.chat:
                self._took(form, first, refused if limit == REPLY_TOKENS[0] else "")  # else the limit was ours
            self._count(tokens=got.tokens or guessed, estimated=0 if got.tokens else guessed)
            return got, got.tokens or guessed
        if self._talks:  # it took others: this one is too long, or not to its liking
            raise MalformedReply(refused)
        raise ModelError(refused)

    def _took(self, form: int, first: int, refused: str) -> None:
        """Remember that the server took a form of a request, having refused those from the first on."""
        with self._guard:
            self._talks = True
            self._falls = self._falls + 1 if form > first else 0
            # a prompt that is too long may name a limit too
            if self._falls > 1 or (self._falls and "context length" not in refused and OPTION.search(refused)):
                self._form, self._falls = max(self._form, form), 0

    def _before(self, retry: bool) -> None:
        """Take one call out of the budget."""
        with self._guard:
            for name, limit in zip(("calls", "tokens"), self._limits, strict=True):
                used = getattr(self._usage, name)
                if limit is not None and used >= limit:
                    raise BudgetError(f"the budget of {limit:,} {name} is used up ({used:,} used)")
            self._usage = replace(self._usage, calls=self._usage.calls + 1, retried=self._usage.retried + retry)

    def _count(self, **more: int) -> None:
        with self._guard:
            self._usage = replace(self._usage, **{k: getattr(self._usage, k) + n for k, n in more.items()})

    def _key(self, messages: list[Message], sample: int) -> str:
        return request_key(self.model, self.base_url, messages, sample, self.temperature)

    def _kept(self, key: str) -> str | None:
        return None if self._cache is None or (self._refresh and key not in self.fresh) else self._cache.get(key)
