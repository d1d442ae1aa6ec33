"""One OpenAI-compatible server: calls that end in time, are counted before they are sent, and never tell the key.

Imports openai and httpx2: only to be imported where a server is asked (extra `llm`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import re
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx2
import openai

from htaf.llm.chat import BudgetError, ModelError, short

OPENAI = "https://api.openai.com/v1"
CONNECT = 10.0  # seconds to reach a server, where the time-out allows so many
LARGEST = 4 * 2**20  # bytes of an answer
LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class RequestRefused(ModelError):
    """The server is there, but does not take this request: 400, 413 or 422."""


class Oversized(ModelError):
    """An answer without end, or compressed though that was declined."""


class BoundedHttpClient(httpx2.AsyncClient):
    """Sends each request with a deadline for the whole of it, a limit of size, and no redirects.

    httpx2's own time-outs are for one read: a server that sends a byte a second would hold the caller for ever.
    """

    def __init__(self, deadline: float, before: Callable[[bool], None], *, trust_env: bool, verify: bool) -> None:
        super().__init__(
            timeout=httpx2.Timeout(deadline, connect=min(deadline, CONNECT), pool=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100),
            follow_redirects=False,  # a POST would become a GET, and the key might travel
            trust_env=trust_env,
            verify=verify,
        )
        self._deadline, self._before = deadline, before

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """One real call; `before` is told whether it is a retry and may raise."""
        self._before(request.headers.get("x-stainless-retry-count", "0") != "0")
        try:
            async with asyncio.timeout(self._deadline):
                options["stream"] = True  # so that the body is read here
                response = await super().send(request, **options)
                try:
                    body = await _bounded_body(response)
                finally:
                    await response.aclose()
        except TimeoutError:
            raise httpx2.ReadTimeout(f"no whole answer in {self._deadline:g} s", request=request) from None
        kept = ("retry-after", "retry-after-ms", "x-should-retry", "location")
        headers = {name: response.headers[name] for name in kept if name in response.headers}
        headers["content-type"] = "application/json"  # no charset of the server's choice
        return httpx2.Response(response.status_code, headers=headers, content=body, request=request)


async def _bounded_body(response: httpx2.Response) -> bytes:
    if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise Oversized("the answer is compressed although that was declined")  # a small one may unpack to gigabytes
    body = bytearray()
    async for block in response.aiter_raw():
        body += block
        if len(body) > LARGEST:
            raise Oversized(f"the answer is larger than {LARGEST:,} bytes")
    return bytes(body)


class Server:
    """Chat completions of one server, for many threads; a loop in a thread of its own does the work.

    Args:
        base_url: as given by `checked_url`.
        key: as given by `checked_key`; "" for none.
        timeout: seconds for one whole call.
        retries: of time-outs, broken connections, 408, 409, 429 and 5xx, by the SDK: it waits 0.5 s, doubled each
            time up to 8 s, or what Retry-After says up to two minutes; a server that wants more time is not retried.
        before: called before each real call with whether it is a retry; may raise a ModelError.
    """

    def __init__(self, base_url: str, key: str, timeout: float, retries: int, before: Callable[[bool], None]) -> None:
        self.base_url = base_url
        self.redact, self.redact_reply = _redactor(key), _redactor(key, whole=True)
        self._has_key = bool(key)
        self._timeout = timeout
        local = urlsplit(base_url).hostname in LOOPBACK  # no proxy leads to this machine
        tls = not local or base_url.startswith("https:")  # else no certificates are read, which takes 40 ms
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=key or "none",  # local servers need no key, but the SDK wants one
            max_retries=retries,
            timeout=timeout,
            default_headers={"Accept-Encoding": "identity"},
            http_client=BoundedHttpClient(timeout, before, trust_env=not local, verify=tls),
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="htaf-model-server", daemon=True)
        self._thread.start()
        self._guard, self._closed = threading.Lock(), False

    def __repr__(self) -> str:
        return f"Server({self.base_url!r})"

    def post(self, body: dict[str, Any]) -> bytes:
        """The answer to a chat completion request: what a server sent with a status of success.

        Raises:
            RequestRefused, Oversized, BudgetError, ModelError: none has the SDK's exception, which holds the key in its
                request, as its cause or context.
        """
        with self._guard:
            if self._closed:
                raise ModelError("expected an open connection to the server, got one that was closed")
            future = asyncio.run_coroutine_threadsafe(self._post(body), self._loop)
        try:
            answer = future.result()
        except concurrent.futures.CancelledError:
            answer = ModelError("the connection to the server was closed before it answered")
        except BaseException:  # the user stops: so does the call
            future.cancel()
            raise
        if isinstance(answer, ModelError):
            raise answer
        return answer

    async def _post(self, body: dict[str, Any]) -> bytes | ModelError:
        """Errors are given back, not raised, so that they leave the SDK's exceptions behind."""
        try:
            response = await self._client.post("/chat/completions", body=body, cast_to=httpx2.Response)
        except (BudgetError, Oversized) as error:
            return type(error)(str(error))
        except openai.APIStatusError as error:
            return self._status(error)
        except openai.APITimeoutError as error:
            return ModelError(f"{self.base_url} gave no whole answer in {self._timeout:g} s{_tried(error)}")
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            what = "cannot be reached" if isinstance(cause, httpx2.ConnectError) else "broke off"
            return ModelError(f"{self.base_url} {what}{_tried(error)}: {short(self.redact(str(cause)))}")
        except (openai.OpenAIError, httpx2.HTTPError, httpx2.InvalidURL) as error:
            return ModelError(f"{self.base_url} cannot be asked: {short(self.redact(str(error)))}")
        return response.content

    def _status(self, error: openai.APIStatusError) -> ModelError:
        status, url = error.status_code, self.base_url
        said = self._words(error.body)
        if status in (401, 403):
            if self._has_key:
                return ModelError(f"{url} refused the key (HTTP {status}); give another in OPENAI_API_KEY")
            return ModelError(f"{url} wants a key (HTTP {status}): give it in OPENAI_API_KEY")
        if status == 404:
            return ModelError(f"{url} has no such model or address (HTTP 404); most end in /v1{said}")
        if 300 <= status < 400:
            target = self.redact(error.response.headers.get("location", "nowhere"))
            return ModelError(f"{url} redirects to {short(target, 200)} (HTTP {status}), which is not followed")
        if status in (400, 413, 422):
            return RequestRefused(f"{url} refused the request (HTTP {status}){said}")
        wait = error.response.headers.get("retry-after")
        asks = f"; it asks to wait {short(self.redact(wait), 40)} s" if wait else ""
        return ModelError(f"{url} answered HTTP {status}{_tried(error)}{asks}{said}")

    def _words(self, body: object) -> str:
        """What a server says of an error; pages of HTML say nothing."""
        if isinstance(body, dict):
            body = next((body[name] for name in ("message", "detail", "error") if isinstance(body.get(name), str)), "")
        if not isinstance(body, str) or body.lstrip().startswith("<"):
            return ""
        return f": {short(self.redact(body))}" if body.strip() else ""

    def close(self) -> None:
        """End all calls, also those that other threads wait for."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            future = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        concurrent.futures.wait([future], timeout=5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        if not self._thread.is_alive():
            self._loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.close()


def _redactor(key: str, *, whole: bool = False) -> Callable[[str], str]:
    """What takes secrets out of a text, whoever put them there; a closure, so that no dump of attributes shows them.

    Args:
        whole: for replies: what is too short to be secret, or only looks like one, may be the model's own words.
    """
    lines = os.environ.get("OPENAI_CUSTOM_HEADERS", "").splitlines()  # the SDK sends them
    values = [line.partition(":")[2].strip() for line in lines]
    secrets = [secret for secret in (key, *values) if len(secret) >= 8 or (secret == key != "" and not whole)]

    def redact(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, "***")
        return text if whole else re.sub(r"(?i)\bbearer\s+[^\s\"',;]+", "Bearer ***", text)

    return redact


def _tried(error: openai.APIError) -> str:
    count = int(error.request.headers.get("x-stainless-retry-count", 0)) + 1
    return f" ({count} times)" if count > 1 else ""


def in_the_clear(base_url: str) -> str:
    """The host to which http carries a key for all to read; "" for https and for this machine."""
    parts = urlsplit(base_url)
    return parts.hostname or "" if parts.scheme == "http" and parts.hostname not in LOOPBACK else ""


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
    if "@" in parts.netloc:
        raise ModelError(f"base URL of {host}: expected no user or password in it; give the key in OPENAI_API_KEY")
    if parts.query or parts.fragment:
        raise ModelError(f"base URL of {host}: expected nothing after ? or #; give the key in OPENAI_API_KEY")
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
