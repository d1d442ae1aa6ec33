"""What can be wrong with a language model, its files or its text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from htaf._errors import HtafError

if TYPE_CHECKING:
    from torch import Tensor


class LanguageError(HtafError):
    """A model, a file or a text that this room cannot take; its message says what was expected and what came."""


def expect_scores(logits: Tensor) -> None:
    """Raises LanguageError where the logits of a next token hold NaN or infinity; minus infinity: never this token."""
    if not bool((logits < float("inf")).all()):
        raise LanguageError("expected finite logits of the next token, the model gives NaN or infinity")
