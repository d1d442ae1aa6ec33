"""A client of language models: it asks an OpenAI-compatible server, through openai's SDK, for JSON of a given form.

    class Answer(pydantic.BaseModel):
        animal: str

    with ServerClient("gpt-4o-mini", cache=Path("replies")) as client:
        reply = client.ask([{"role": "user", "content": "Which animal barks? Reply with JSON."}], Answer)

The content of a message is a text or a list of parts (`text_part`, `picture_part`), as OpenAI's chat completions have
them. Text that others wrote is put into a prompt as a JSON string (`quoted`): it can neither end its line nor hide. A
reply that was used is kept on disk, so that nothing is paid twice.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np
from jaxtyping import UInt8
from pydantic import BaseModel, ValidationError

from htaf._ground.console import visible
from htaf._ground.errors import HtafError, installed
from htaf._ground.files import parse_json, to_json, write_atomic

SAID = 400  # characters of a server's or a model's words in a message
LONGEST = 200  # characters of a text that is quoted in a prompt

Message = dict[str, Any]  # "role" and "content": a text, or a list of parts
R = TypeVar("R", bound=BaseModel)
Part = dict[str, Any]
QUALITY = 90  # of JPEG
START = "data:image/jpeg;base64,"
OPENAI = "https://api.openai.com/v1"
RETRIES = 4  # of one call
ATTEMPTS = 3  # to get a reply that can be used
REPLY_TOKENS = 4096  # of a first reply; later ones have no limit, as models think before they reply
REFUSED = (400, 413, 422)  # the server is there, but does not take this request
LEAST_SECRET = 8  # characters: a shorter key may be a word of the model's own
LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class ModelError(HtafError):
    """The server, the key or the reply; the message never holds the key."""


class MalformedReply(ModelError):
    """No reply to this request could be used; other requests may do better."""


def shortened(text: str, most: int = LONGEST) -> str:
    """Cut a text to so many characters; the last is an ellipsis where some are missing."""
    return text if len(text) <= most else text[: most - 1] + "…"


@lru_cache(maxsize=2**14)  # many prompts hold the same texts
def quoted(text: str, most: int = LONGEST) -> str:
    """Write a text, shortened, as a JSON string of visible characters on one line; `json.loads` gives it back."""
    return visible(json.dumps(shortened(text, most), ensure_ascii=False))


def numbered(texts: Sequence[str]) -> str:
    """Write a line for each text: its number, counted from 1, and the text as a JSON string."""
    return "\n".join(f"{number}. {quoted(text)}" for number, text in enumerate(texts, 1))


def validated(text: str, reply: type[R], context: Mapping[str, Any] | None = None) -> R:
    """Read the reply that a text holds: its JSON object, from the first brace to the last, after </think>.

    Raises:
        MalformedReply: there is none; the message says what is wrong, for the model too.
    """
    said = text.rpartition("</think>")[2]
    found = said[max(0, said.find("{")) : said.rfind("}") + 1]
    if not found:
        raise MalformedReply(f"expected a JSON object, got {short(text, 80)!r}")
    try:
        return reply.model_validate_json(found, strict=True, context=None if context is None else dict(context))
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)[:5]
    texts = [f"{'.'.join(map(str, fault['loc'])) or 'the reply'}: {fault['msg']}" for fault in faults]
    raise MalformedReply(short("; ".join(texts)))


def short(text: str, limit: int = SAID) -> str:
    """Put a text on one line, without control characters, at most `limit` characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def text_part(text: str) -> Part:
    """Make a part of a message that is a text."""
    return {"type": "text", "text": text}


def picture_part(pixels: UInt8[np.ndarray, "height width 3"]) -> Part:
    """Make a part of a message that is a picture: a JPEG in a data URL, of pixels alone, no place, time or name.

    Args:
        pixels: uint8 [height, width, 3], red, green, blue.
    """
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "JPEG", quality=QUALITY, subsampling=0)
    return {"type": "image_url", "image_url": {"url": START + base64.b64encode(file.getvalue()).decode("ascii")}}


class ServerClient(AbstractContextManager["ServerClient"]):
    """Asks a model behind an OpenAI-compatible server. Threads may share it.

    A request asks for JSON of the reply's schema; a server that refuses the schema is asked without. A reply that
    cannot be used is told so and asked again.

    Args:
        model: the server's name of it; default: OPENAI_MODEL.
        base_url: default: OPENAI_BASE_URL, else OpenAI's.
        api_key: default: OPENAI_API_KEY; local servers need none. It is sent to that server alone, and neither printed,
            logged nor stored.
        cache: folder of replies; None for none. Processes may share it.
        timeout: seconds without a word from the server after which a call has failed.
    Attributes:
        usage: counts of "calls" (requests sent, retries and failures among them), "tokens" (where the server counts
            them), "cached" (replies that were kept) and "malformed" (replies that could not be used).
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
        timeout: float = 600.0,
    ) -> None:
        with installed():
            import openai

        if not 0 < timeout < float("inf"):
            raise ModelError(f"expected timeout > 0, got {timeout}")
        self.model = model or os.environ.get("OPENAI_MODEL", "")
        if not self.model:
            raise ModelError("expected a model's name, as an argument or in OPENAI_MODEL, got none")
        self.base_url = checked_url(base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI)
        key = (api_key if api_key is not None else os.environ.get("OPENAI_API_KEY", "")).strip()
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise ModelError(f"the key: expected printable ASCII without spaces, got others among {len(key)}")
        parts = urlsplit(self.base_url)
        local = parts.hostname in LOOPBACK
        self.unencrypted = (parts.hostname or "") if key and parts.scheme == "http" and not local else ""
        self._cache = cache
        self.usage, self._guard = Counter[str](), threading.Lock()
        self._schemas = True  # whether the server takes a schema
        self._talks = False  # whether it has ever answered
        # a closure, so that no dump of attributes shows the key
        self._redact = lambda text: text.replace(key, "***") if len(key) >= LEAST_SECRET else text
        http = openai.DefaultHttpxClient(
            timeout=timeout,
            follow_redirects=False,  # pictures and prompts go to this host alone
            trust_env=not local,  # no proxy leads to this machine
            event_hooks={"request": [lambda _: self._count(calls=1)]},
        )
        self._sdk = openai.OpenAI(  # it wants a key, which local servers need not
            base_url=self.base_url, api_key=key or "none", max_retries=RETRIES, timeout=timeout, http_client=http
        )

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Send nothing more; calls under way in other threads end at their time-out at the latest."""
        self._sdk.close()

    def ask(self, messages: Sequence[Message], reply: type[R], *, context: Mapping[str, Any] | None = None) -> R:
        """Ask for the model's reply, from the cache or the server.

        Args:
            reply: a pydantic model; its validators see `context` as `info.context`.
        Raises:
            MalformedReply: no reply could be used, or the server does not take this request though it took others.
            ModelError: the server is down, refuses the key, or is no such server.
        """
        key = self._key(messages)
        try:
            found = validated(self._kept(key), reply, context)
        except MalformedReply:
            pass  # nothing is kept, or what another form took
        else:
            self._count(cached=1)
            return found
        turn, problem = list(messages), ""
        for attempt in range(ATTEMPTS):
            text, problem = self._complete(turn, reply, REPLY_TOKENS if attempt == 0 else 0)
            try:
                if not problem:
                    found = validated(text, reply, context)
                    self._keep(key, text)
                    return found
            except MalformedReply as error:
                problem = str(error)
            self._count(malformed=1)
            said = {"role": "assistant", "content": text[: 4 * SAID] or "(nothing)"}  # templates want alternate roles
            complaint = f"That reply cannot be used: {problem}. Answer again with nothing but the JSON object."
            turn = [*messages, said, {"role": "user", "content": complaint}]
        message = f"no usable reply in {ATTEMPTS} attempts; the last: {problem}"
        if self._talks:
            raise MalformedReply(message)
        raise ModelError(f"{self.base_url} is no OpenAI-compatible server, or its base URL is another: {message}")

    def _complete(self, turn: list[Message], reply: type[R], limit: int) -> tuple[str, str]:
        """Get one reply, and why it cannot be used; a request that is refused is sent without schema and limit."""
        import openai

        # A schema, not `json_object`: LM Studio takes no other. Not strict: OpenAI would refuse bounds of lengths
        schema = {"name": "reply", "schema": reply.model_json_schema(), "strict": False}
        wanted: dict[str, Any] = {"response_format": {"type": "json_schema", "json_schema": schema}}
        wanted |= {"max_completion_tokens": limit} if limit else {}
        call: Any = self._sdk.chat.completions.with_raw_response.create
        refused = ""
        for options in [wanted, {}] if self._schemas else [{}]:
            try:
                body = call(model=self.model, messages=turn, **options).http_response.content
            except (openai.OpenAIError, RuntimeError) as error:  # httpx has the second for a client that was closed
                if getattr(error, "status_code", 0) not in REFUSED:
                    raise ModelError(self._told(error)) from None
                refused = refused or self._told(error)
            else:
                return self._read(body, plain=bool(refused))
        # where it took others, this one is too long, or not to its liking
        raise (MalformedReply if self._talks else ModelError)(refused)

    def _read(self, body: bytes, *, plain: bool) -> tuple[str, str]:
        """Read an answer, as `_complete` gives it; plain: whether the server took it without a schema alone."""
        try:
            got = parse_json(body)
            choice, counted = got["choices"][0], got.get("usage")
            text, finish = choice["message"].get("content"), choice.get("finish_reason")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            start = self._redact(body[:SAID].decode("utf-8", "replace"))
            return "", f"expected a chat completion, got {short(start, 80)!r}"
        self._talks, self._schemas = True, self._schemas and not plain
        tokens = counted.get("total_tokens") if isinstance(counted, dict) else None
        self._count(tokens=tokens if isinstance(tokens, int) else 0)
        if finish == "length":
            return "", "the reply was cut off at the limit of tokens; be brief"
        if not isinstance(text, str) or not text.strip():
            return "", f"the reply was empty: {short(self._redact(str(choice)))}"
        return self._redact(text), ""

    def _told(self, error: Exception) -> str:
        """Say an error of the SDK in words, without what its request holds; pages of HTML say nothing."""
        url, status, body = self.base_url, getattr(error, "status_code", 0), getattr(error, "body", None)
        if not status:
            return short(self._redact(f"{url} cannot be reached, or gave no answer: {error.__cause__ or error}"))
        hint = {401: ": the key, in OPENAI_API_KEY, is wrong or missing", 404: ": no such model, or no /v1 at its end"}
        said = body if isinstance(body, dict) else {}
        words = next((f": {said[name]}" for name in ("message", "detail", "error") if said.get(name)), "")
        return short(self._redact(f"{url} answered HTTP {status}{hint.get(status, '')}{words}"))

    def _count(self, **more: int) -> None:
        with self._guard:
            self.usage.update(more)

    def _key(self, messages: Sequence[Message]) -> str:
        """SHA-256 of all that decides a reply: the name of its file in the cache."""
        parts = [self.model, self.base_url, list(messages)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _kept(self, key: str) -> str:
        """Return the text of a reply on disk; "" for none, or for a file that is none."""
        try:
            entry = None if self._cache is None else parse_json((self._cache / f"{key}.json").read_bytes())
        except (OSError, ValueError):
            return ""
        reply = entry.get("reply") if isinstance(entry, dict) else None
        return reply if isinstance(reply, str) else ""

    def _keep(self, key: str, text: str) -> None:
        if self._cache is None:
            return
        try:
            self._cache.mkdir(mode=0o700, parents=True, exist_ok=True)  # replies may speak of what is private
            write_atomic(self._cache / f"{key}.json", to_json({"model": self.model, "reply": text}))
        except OSError as error:  # to continue would pay for replies that are then lost
            raise ModelError(f"{self._cache}: a reply cannot be kept: {error.strerror or error}") from None


def checked_url(url: str) -> str:
    """Give the base URL without a slash at its end; parts that may hold a secret are refused, and not shown."""
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
