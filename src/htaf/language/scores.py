"""What a language model can do: perplexity and nearness to the original."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor, nn

from htaf.language.errors import LanguageError
from htaf.language.losses import Losses, mean_of, next_token_losses


@dataclass(frozen=True)
class TextScores:
    """On text: means over next tokens, the first token of a block left out. The last two are None without an original.

    tokens: how many were predicted. loss: mean negative log-likelihood of a token, nats. perplexity: exp(loss).
    kl: mean KL divergence of the original's next-token distribution from this one, nats.
    agreement: share of tokens at which both find the same token the likeliest.

    Raises:
        LanguageError: a loss that is not finite.
    """

    tokens: int
    loss: float
    perplexity: float
    kl: float | None
    agreement: float | None

    @classmethod
    def of(cls, tokens: int, found: Losses, *, near: bool = True) -> TextScores:
        """Of so many tokens; near: whether the losses tell of an original too."""
        perplexity = math.exp(min(found.likelihood, 700.0))
        return cls(tokens, found.likelihood, perplexity, *((found.kl, found.agreement) if near else (None, None)))

    def __post_init__(self) -> None:
        for name, value in (("loss", self.loss), ("KL divergence", self.kl)):
            if value is not None and not math.isfinite(value):
                raise LanguageError(f"expected a finite {name} on the text, the model gives {value}: check its weights")


@torch.no_grad()
def text_scores(
    mine: nn.Module,
    other: nn.Module | None,
    tokens: Int[Tensor, "blocks length"],
    tell: Callable[[int, int], None] | None = None,
) -> tuple[TextScores | None, TextScores]:
    """Scores of an original, where there is one, and of a model, on blocks of text.

    Args:
        mine: the model. other: the original.
        tell: called after each block with how many are done, and of how many.
    """
    device = next(mine.parameters()).device
    found, of_other, head = list[Losses](), list[Losses](), nn.Identity()  # these are logits already
    for row, block in enumerate(tokens.split(1), 1):
        x = block.to(device)
        logits = mine(input_ids=x, use_cache=False).logits
        truth = logits if other is None else other(input_ids=x, use_cache=False).logits
        found.append(next_token_losses(head, logits, truth, x))
        if other is not None:
            of_other.append(next_token_losses(head, truth, truth, x))
        if tell is not None:
            tell(row, len(tokens))
    count = len(tokens) * (tokens.shape[1] - 1)
    scored = TextScores.of(count, mean_of(found), near=other is not None)
    return TextScores.of(count, mean_of(of_other), near=False) if of_other else None, scored
