"""What can be wrong with a language model, its files or its text."""

from __future__ import annotations

from htaf._ground.errors import HtafError


class LanguageError(HtafError):
    """A model, a file or a text that this room cannot take; its message says what was expected and what came."""
