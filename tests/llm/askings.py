"""What tests of a language model ask, and whom."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from htaf.concepts.llm import ModelError, ServerClient
from scripted_server import Answer, ScriptedServer, scripted

KEY = "sk-very-secret-0123456789"
ASKED = [{"role": "system", "content": "Reply in JSON."}, {"role": "user", "content": "Name it."}]


def other(number: int) -> list[dict[str, str]]:
    """Another question."""
    return [*ASKED[:1], {"role": "user", "content": f"Name number {number}."}]


class Name(BaseModel):
    name: str = Field(min_length=1)
    votes: list[int] = []

    @field_validator("votes")
    @classmethod
    def _in_range(cls, votes: list[int], info: ValidationInfo) -> list[int]:
        if info.context and any(vote >= info.context["count"] for vote in votes):
            raise ValueError(f"expected numbers below {info.context['count']}")
        return votes


GOOD = Answer('{"name": "wings"}')


def model_of(server: ScriptedServer | str, cache: Path | None = None, **settings: Any) -> ServerClient:
    url = server if isinstance(server, str) else server.base_url
    return ServerClient("m", base_url=url, cache=cache, **{"api_key": KEY, "timeout": 20.0} | settings)


def ask(*answers: Answer, **settings: Any) -> tuple[Name | ModelError, Counter[str], list[dict[str, Any]]]:
    """What one asking gives, the error if it raises one; usage; the requests."""
    with scripted(*answers) as server, model_of(server, **settings) as model:
        try:
            found: Name | ModelError = model.ask(ASKED, Name)
        except ModelError as error:
            found = error
        return found, model.usage, server.requests
