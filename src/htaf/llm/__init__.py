"""Clients of language models: they ask for JSON of a given form, over an OpenAI-compatible server or from files.

    class Answer(pydantic.BaseModel):
        animal: str

    with htaf.llm.ServerClient("gpt-4o-mini", cache=htaf.llm.default_cache()) as client:
        reply = client.ask([{"role": "user", "content": "Which animal barks? Reply with JSON."}], Answer)

`picture_part` puts a picture into a message, and `expect_sight` sees whether a model takes any. `Client` says what a
client is, so that a stand-in can take its place. `quoted` and `numbered` put text that others
wrote into a prompt. `in_threads` does the same work for many items. Asking needs openai and pydantic: pip install
'htaf[llm]'.
"""

from typing import TYPE_CHECKING

from htaf._lazy import lazy

if TYPE_CHECKING:
    from htaf.llm.chat import (
        BudgetError,
        MalformedReply,
        Message,
        ModelError,
        Unanswered,
        numbered,
        quoted,
        request_key,
        shortened,
        tokens_of,
    )
    from htaf.llm.client import Client, ServerClient, Usage
    from htaf.llm.pictures import picture_part, picture_pixels, pictures_in, text_part
    from htaf.llm.replies import BatchClient, ReplyCache, default_cache
    from htaf.llm.sight import BlindError, expect_sight
    from htaf.llm.threads import Stopped, in_threads

__all__ = [
    "BatchClient",
    "BlindError",
    "BudgetError",
    "Client",
    "MalformedReply",
    "Message",
    "ModelError",
    "ReplyCache",
    "ServerClient",
    "Stopped",
    "Unanswered",
    "Usage",
    "default_cache",
    "expect_sight",
    "in_threads",
    "numbered",
    "picture_part",
    "picture_pixels",
    "pictures_in",
    "quoted",
    "request_key",
    "shortened",
    "text_part",
    "tokens_of",
]

_CLIENT = dict.fromkeys(("Client", "ServerClient", "Usage"), "htaf.llm.client")
_REPLIES = dict.fromkeys(("BatchClient", "ReplyCache", "default_cache"), "htaf.llm.replies")
_PICTURES = dict.fromkeys(("picture_part", "picture_pixels", "pictures_in", "text_part"), "htaf.llm.pictures")
_SIGHT = dict.fromkeys(("BlindError", "expect_sight"), "htaf.llm.sight")
_THREADS = dict.fromkeys(("Stopped", "in_threads"), "htaf.llm.threads")
__getattr__, __dir__ = lazy(
    __name__, dict.fromkeys(__all__, "htaf.llm.chat") | _CLIENT | _PICTURES | _REPLIES | _SIGHT | _THREADS
)  # lazily, as pydantic is optional
