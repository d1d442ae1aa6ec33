"""What is said to a language model and what comes back: requests, replies, their JSON, and the errors; no network.

Text that others wrote is put into a prompt as a JSON string (`quoted`): it can neither end its line nor hide.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from htaf._console import visible
from htaf._errors import HtafError
from htaf.llm.pictures import picture_tokens

FORMAT = 1  # of a request's key and of a cached reply
BYTES_A_TOKEN = 4  # of UTF-8: about what English text has
TOKENS_A_MESSAGE = 4  # role and separators
REPLY_TOKENS = (4096, 16384, None)  # the next one where a reply was cut off: a model that thinks first needs room
SAID = 400  # characters of a server's or a model's words in a message
LONGEST_REPLY = 200_000  # characters
LONGEST = 200  # characters of a text that is quoted in a prompt
ELLIPSIS = "…"
BRACES = 1000  # places at which an object is looked for in a text
_DECODER = json.JSONDecoder()

Message = dict[str, Any]  # "role" and "content": a text, or a list of parts (`htaf.llm.pictures`)
R = TypeVar("R", bound=BaseModel)


class ModelError(HtafError):
    """The server, the key or the reply; the message never holds the key."""


class BudgetError(ModelError):
    """Calls or tokens are used up."""


class MalformedReply(ModelError):
    """No reply to this request could be used; other requests may do better."""


class Unanswered(ModelError):
    """The files of replies have none to this request, which was noted."""


@dataclass(frozen=True)
class Completion:
    """One reply of a server.

    Attributes:
        text: what the model wrote, perhaps "".
        problem: why it cannot be used; "" when it may be.
        tokens: of prompt and reply as the server counted them; None where it did not.
        chat: whether it was a chat completion at all.
        cut: whether the limit of tokens ended it.
    """

    text: str = ""
    problem: str = ""
    tokens: int | None = None
    chat: bool = True
    cut: bool = False


def shortened(text: str, most: int = LONGEST) -> str:
    """At most so many characters, the last an ellipsis where some are missing."""
    return text if len(text) <= most else text[: most - 1] + ELLIPSIS


@lru_cache(maxsize=2**14)  # many prompts hold the same texts
def quoted(text: str, most: int = LONGEST) -> str:
    """The text, shortened, as a JSON string of visible characters on one line; `json.loads` gives it back."""
    return visible(json.dumps(shortened(text, most), ensure_ascii=False))


def numbered(texts: Sequence[str]) -> str:
    """A line for each text: its number, counted from 1, and the text as a JSON string."""
    return "\n".join(f"{number}. {quoted(text)}" for number, text in enumerate(texts, 1))


def plain(messages: Sequence[Message]) -> list[Message]:
    """The messages with characters that UTF-8 cannot carry (of undecodable file names) as question marks."""
    return [_plain(message) for message in messages]


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else _clean(value)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def tokens_of(messages: Sequence[Message]) -> int:
    """About how many tokens messages have: a token for each 4 bytes of UTF-8, 4 for each message, and one for each
    28 x 28 pixels of a picture."""
    return sum(_tokens(message["content"]) + TOKENS_A_MESSAGE for message in messages)


def _tokens(content: str | list[Any]) -> int:
    if isinstance(content, str):
        return -(-len(content.encode("utf-8", "replace")) // BYTES_A_TOKEN)
    texts = sum(_tokens(part["text"]) for part in content if part.get("type") == "text")
    return texts + sum(picture_tokens(part["image_url"]["url"]) for part in content if part.get("type") == "image_url")


def request_key(
    model: str, base_url: str, messages: Sequence[Message], sample: int = 0, temperature: float | None = None
) -> str:
    """SHA-256, 64 hexadecimal digits, of all that decides a reply; the name of its place in the cache.

    Args:
        model: the server's name of it.
        base_url: of the server; "" for none.
        messages: of the request.
        sample: tells repeated askings apart.
        temperature: None for the server's own.
    """
    heat = None if temperature is None else float(temperature)  # 1 and 1.0 are one request
    parts = [FORMAT, model, base_url.rstrip("/"), [sorted(message.items()) for message in messages], sample, heat]
    return hashlib.sha256(json.dumps(parts, allow_nan=False).encode()).hexdigest()


def body_of(
    model: str,
    messages: Sequence[Message],
    reply: type[BaseModel] | None,
    temperature: float | None,
    limit: int | None = None,
) -> dict[str, Any]:
    """A chat completion request; without `reply` the minimal form, which every server takes.

    `limit` is the most tokens of the reply, thoughts among them; None for the server's own.

    A schema, not `json_object`: LM Studio takes no other, OpenAI wants the word JSON in the messages for that one, and
    local servers hold the model to the schema. It is not `strict`: OpenAI would refuse bounds of lengths.
    """
    body: dict[str, Any] = {"model": model, "messages": list(messages)}
    if temperature is not None:
        body["temperature"] = temperature
    if reply is not None:
        schema = {"name": "reply", "schema": reply.model_json_schema(), "strict": False}
        body |= {"response_format": {"type": "json_schema", "json_schema": schema}}
        if limit is not None:
            body |= {"max_completion_tokens": limit}
    return body


class _ChatMessage(BaseModel):
    content: str | list[Any] | None = None
    refusal: Any = None


class _ChatChoice(BaseModel):
    message: _ChatMessage
    finish_reason: Any = None


class _ChatCompletion(BaseModel):
    choices: list[_ChatChoice]
    usage: Any = None


def read_completion(body: Any) -> Completion:
    """What a server's answer says, whatever it is.

    Args:
        body: bytes of a response, or its JSON.
    """
    if isinstance(body, bytes):
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            start = _clean(body[:SAID].decode("utf-8", "replace"))
            return Completion(problem=f"expected a chat completion, got {short(start, 80)!r}", chat=False)
    try:
        chat = TypeAdapter(_ChatCompletion).validate_python(body)
    except ValidationError as error:
        said = (
            body["error"] if isinstance(body, dict) and body.get("error") else told(error)
        )  # an error with status 200
        return Completion(problem=f"expected a chat completion, got {short(_clean(str(said)))}", chat=False)
    tokens = _counted(chat.usage)
    if not chat.choices:
        return Completion(problem="the server gave no choices", tokens=tokens)
    choice = chat.choices[0]
    content = choice.message.content
    if isinstance(content, list):  # parts, as some servers of thinking models send them
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    text = _clean(content or "")
    problem = ""
    if choice.finish_reason == "length":
        problem = "the reply was cut off at the limit of tokens; be brief"
    elif choice.finish_reason == "content_filter":
        problem = "the server's filter stopped the reply"
    elif not text.strip():
        refusal = choice.message.refusal
        problem = f"the model refused: {short(refusal)}" if isinstance(refusal, str) else "the reply was empty"
    return Completion(text, problem, tokens, cut=choice.finish_reason == "length")


def _counted(usage: Any) -> int | None:
    """Tokens that a server charges, where it says so believably."""
    if not isinstance(usage, dict):
        return None
    total = usage.get("total_tokens")
    if total is None and {"prompt_tokens", "completion_tokens"} <= usage.keys():
        parts = usage["prompt_tokens"], usage["completion_tokens"]
        total = sum(parts) if all(isinstance(part, int) for part in parts) else None
    return total if isinstance(total, int) and not isinstance(total, bool) and 0 < total < 10**8 else None


def objects_in(text: str) -> list[Any]:
    """The JSON that a reply holds: the whole of it, else what ``` fences hold, else objects within the text.

    What a model thinks, up to </think>, is no part of its reply. NaN, Infinity and half surrogates are not JSON.
    """
    for part in (text, text.rpartition("</think>")[2]):
        if found := list(_parsed([part])):
            return found
    said = text.rpartition("</think>")[2]
    if said.lstrip().startswith("<think>"):  # cut off before it said anything
        return []
    fenced = (re.sub(r"\A[\w+-]*\s", "", piece) for piece in said.split("```")[1::2])
    found = [value for value in _parsed(fenced) if isinstance(value, dict | list)]  # not a number in backticks
    return found or list(_within(said))


def _parsed(texts: Sequence[str] | Iterator[str]) -> Iterator[Any]:
    for text in texts:
        try:
            yield _sound(_DECODER.decode(text.strip()))
        except (ValueError, RecursionError):
            continue


def _within(text: str) -> Iterator[Any]:
    start, tries = text.find("{"), 0
    while start >= 0 and tries < BRACES:
        tries += 1
        try:
            value, end = _DECODER.raw_decode(text, start)
            yield _sound(value)
        except (ValueError, RecursionError):
            end = start + 1
        start = text.find("{", end)


def _sound(value: Any) -> Any:
    """The value itself; a ValueError for NaN, Infinity, 1e999 or half a surrogate pair anywhere in it."""
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return value


def validated(text: str, reply: type[R], context: Mapping[str, Any] | None) -> R:
    """The reply that a text holds: of several objects the last that fits, as models conclude at the end.

    Raises:
        MalformedReply: there is none; the message says what is wrong, for the model too.
    """
    problem = ""
    for data in objects_in(text)[::-1] if len(text) <= LONGEST_REPLY else ():
        try:
            return reply.model_validate(data, context=None if context is None else dict(context))
        except ValidationError as error:
            problem = problem or told(error)
    if not problem and len(text) > LONGEST_REPLY:
        problem = f"expected at most {LONGEST_REPLY:,} characters, got {len(text):,}"
    raise MalformedReply(problem or f"expected a JSON object, got {short(text, 80)!r}")


def told(error: ValidationError) -> str:
    """The first five faults, in a line."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    texts = [f"{'.'.join(map(str, fault['loc'])) or 'the reply'}: {fault['msg']}" for fault in faults[:5]]
    return short("; ".join(texts) + ("; ..." if len(faults) > 5 else ""))


def corrected(messages: Sequence[Message], text: str, problem: str) -> list[Message]:
    """The conversation continued after a reply that could not be used."""
    complaint = f"That reply cannot be used: {problem}. Answer again with nothing but the JSON object."
    return [
        *messages,
        {"role": "assistant", "content": text[: 4 * SAID] or "(nothing)"},  # templates want roles to alternate
        {"role": "user", "content": complaint},
    ]


def short(text: str, limit: int = SAID) -> str:
    """In one line, without control characters, at most `limit` characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
