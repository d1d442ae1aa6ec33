"""Clients of language models: they ask an OpenAI-compatible server for JSON of a given form.

    class Answer(pydantic.BaseModel):
        animal: str

    with htaf.llm.ServerClient("gpt-4o-mini", cache=htaf.llm.default_cache()) as client:
        reply = client.ask([{"role": "user", "content": "Which animal barks? Reply with JSON."}], Answer)

`picture_part` puts a picture into a message, and `expect_sight` sees whether a model takes any. `Client` says what a
client is, so that a stand-in can take its place. `quoted` and `numbered` put text that others wrote into a prompt.
Asking needs openai and pydantic: pip install 'htaf[images]'.
"""

from typing import TYPE_CHECKING

from htaf._lazy import lazy

if TYPE_CHECKING:
    from htaf.llm.chat import (
        BudgetError,
        MalformedReply,
        Message,
        ModelError,
        numbered,
        quoted,
        shortened,
        tokens_of,
        validated,
    )
    from htaf.llm.client import Client, ServerClient, Usage, default_cache
    from htaf.llm.pictures import picture_part, pictures_in, text_part
    from htaf.llm.sight import BlindError, expect_sight

__all__ = [
    "BlindError",
    "BudgetError",
    "Client",
    "MalformedReply",
    "Message",
    "ModelError",
    "ServerClient",
    "Usage",
    "default_cache",
    "expect_sight",
    "numbered",
    "picture_part",
    "pictures_in",
    "quoted",
    "shortened",
    "text_part",
    "tokens_of",
    "validated",
]

_CLIENT = dict.fromkeys(("Client", "ServerClient", "Usage", "default_cache"), "htaf.llm.client")
_PICTURES = dict.fromkeys(("picture_part", "pictures_in", "text_part"), "htaf.llm.pictures")
_SIGHT = dict.fromkeys(("BlindError", "expect_sight"), "htaf.llm.sight")
__getattr__, __dir__ = lazy(
    __name__, dict.fromkeys(__all__, "htaf.llm.chat") | _CLIENT | _PICTURES | _SIGHT
)  # lazily, as pydantic is optional
