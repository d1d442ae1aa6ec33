"""Surroundings of tests that ask a language model."""

from __future__ import annotations

import pytest


@pytest.fixture
def no_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model, server or key of the machine's own; short waits."""
    import openai._base_client  # where it is needed alone

    for name in ("OPENAI_BASE_URL", "OPENAI_MODEL", "OPENAI_API_KEY", "OPENAI_CUSTOM_HEADERS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr("htaf.concepts.llm.RETRIES", 1)
