"""An OpenAI-compatible server on 127.0.0.1 whose every answer a test decides, good or bad."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal


@dataclass
class Answer:
    """What the server does with one request.

    Attributes:
        text: of the model's reply, inside a chat completion; None for null.
        status, headers: of the response.
        body: sent instead of a chat completion.
        usage: of the chat completion; None leaves it out.
        finish: finish_reason.
        manner: "whole"; "hang" (not a byte), "drip" (a byte each `pause`), "drip head" (headers too), "truncate" (half
            the body, though the length was promised), "close" (no answer), "endless" (blocks without end).
        pause: seconds.
    """

    text: str | None = "{}"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    usage: Any = field(default_factory=lambda: {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10})
    finish: str = "stop"
    manner: Literal["whole", "hang", "drip", "drip head", "truncate", "close", "endless"] = "whole"
    pause: float = 0.05

    def bytes(self, model: str = "scripted") -> bytes:
        """The body."""
        if self.body is not None:
            return self.body
        message = {"role": "assistant", "content": self.text}
        choice = {"index": 0, "message": message, "finish_reason": self.finish}
        chat = {"id": "1", "object": "chat.completion", "created": 0, "model": model, "choices": [choice]}
        return json.dumps(chat if self.usage is None else chat | {"usage": self.usage}).encode()


def in_order(*answers: Answer) -> Callable[[dict[str, Any]], Answer]:
    """The first answer to the first request, and so on; the last to all that follow."""
    left, guard = list(answers), threading.Lock()

    def answer(_: dict[str, Any]) -> Answer:
        with guard:
            return left.pop(0) if len(left) > 1 else left[0]

    return answer


class ScriptedServer:
    """A context manager; `answer` gets the JSON of each request's body, in the thread that serves it.

    Attributes:
        base_url: with /v1 at its end.
        requests: bodies, in the order of their coming.
        headers: of the same requests, names in lower case.
    """

    def __init__(self, answer: Callable[[dict[str, Any]], Answer]) -> None:
        self.answer = answer
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self._end, self._guard = threading.Event(), threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with owner._guard:
                    owner.requests.append(body)
                    owner.headers.append({name.lower(): value for name, value in self.headers.items()})
                    owner.paths.append(self.path)
                if owner._end.is_set():  # a connection that was kept when the server went down
                    self.close_connection = True
                    return
                with contextlib.suppress(OSError):  # the client has gone: as it should in many tests
                    owner._serve(self, owner.answer(body))

            def log_message(self, *_: Any) -> None: ...

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: Any, client_address: Any) -> None: ...

        self._http = Quiet(("127.0.0.1", 0), Handler)
        self.base_url = f"http://127.0.0.1:{self._http.server_port}/v1"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def _serve(self, handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        body = answer.bytes()
        head = f"HTTP/1.1 {answer.status} Scripted\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        if answer.manner == "endless":
            head = f"HTTP/1.1 {answer.status} Scripted\r\nConnection: close\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items()) + "\r\n"
        if answer.manner == "hang":
            self._end.wait()
        if answer.manner in ("hang", "close"):
            handler.close_connection = True
            return
        if answer.manner == "drip head":
            self._drip(handler, head.encode(), answer.pause)
        else:
            handler.wfile.write(head.encode())
        if answer.manner == "truncate":
            handler.wfile.write(body[: len(body) // 2])
            handler.close_connection = True
        elif answer.manner == "endless":
            while not self._end.is_set():
                handler.wfile.write(b" " * 2**20)
        elif answer.manner == "drip":
            self._drip(handler, body, answer.pause)
        else:
            handler.wfile.write(body)

    def _drip(self, handler: BaseHTTPRequestHandler, data: bytes, pause: float) -> None:
        for byte in data:
            handler.wfile.write(bytes([byte]))
            if self._end.wait(pause):
                return

    def stop(self) -> None:
        """As a server that goes down: nothing is answered any more, the port is closed."""
        self._end.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(timeout=5)

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextlib.contextmanager
def scripted(*answers: Answer) -> Iterator[ScriptedServer]:
    """A server that gives these answers in order, the last again and again."""
    with ScriptedServer(in_order(*answers)) as server:
        yield server
