"""What a language model can do: perplexity, nearness to the original, multiple choice."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from htaf.language.errors import LanguageError, expect_scores
from htaf.language.losses import Losses, mean_of, next_token_losses
from htaf.language.text import Question


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


@dataclass(frozen=True)
class ChoiceScores:
    """On multiple choice, as lm-evaluation-harness defines them.

    accuracy: the right continuation has the highest log-likelihood. normalised: likewise with them divided by
    the number of characters of the continuation. error: standard error of accuracy.
    """

    questions: int
    accuracy: float
    normalised: float
    error: float


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
    found, of_other = list[Losses](), list[Losses]()
    for row, block in enumerate(tokens.split(1), 1):
        x = block.to(device)
        logits = mine(input_ids=x, use_cache=False).logits
        truth = logits if other is None else other(input_ids=x, use_cache=False).logits
        found.append(logit_losses(logits, truth, x))
        if other is not None:
            of_other.append(logit_losses(truth, truth, x))
        if tell is not None:
            tell(row, len(tokens))
    count = len(tokens) * (tokens.shape[1] - 1)
    scored = TextScores.of(count, mean_of(found), near=other is not None)
    return TextScores.of(count, mean_of(of_other), near=False) if of_other else None, scored


def logit_losses(
    mine: Float[Tensor, "1 tokens vocabulary"],
    other: Float[Tensor, "1 tokens vocabulary"],
    tokens: Int[Tensor, "1 tokens"],
) -> Losses:
    """`next_token_losses` of logits behind each token of a text."""
    return next_token_losses(lambda logits: logits, mine, other, tokens)


@torch.no_grad()
def choice_scores(model: nn.Module, tokenizer: Any, questions: Sequence[Question]) -> ChoiceScores:
    """Accuracy of a model on multiple choice.

    Raises:
        LanguageError: no questions; or as `log_likelihoods`.
    """
    if not questions:
        raise LanguageError("expected questions, got none")
    pairs = [
        (context, " " + continuation)
        for question in questions
        for context, continuation in zip(question.contexts, question.continuations, strict=True)
    ]
    likelihoods = iter(log_likelihoods(model, tokenizer, pairs))
    right = normalised = 0
    for question in questions:
        found = [next(likelihoods) for _ in question.contexts]
        lengths = [len(text) for text in question.continuations]
        right += _best(found) == question.answer
        normalised += _best([v / max(n, 1) for v, n in zip(found, lengths, strict=True)]) == question.answer
    count = len(questions)
    accuracy = right / count
    error = math.sqrt(accuracy * (1 - accuracy) / max(count - 1, 1))
    return ChoiceScores(count, accuracy, normalised / count, error)


@torch.no_grad()
def log_likelihoods(
    model: nn.Module, tokenizer: Any, pairs: Sequence[tuple[str, str]], at_once: int = 32
) -> list[float]:
    """Sums of the log-probabilities of a continuation's tokens after its context, nats, of (context, continuation).

    Context and continuation are tokenised as one text, with the special tokens that the tokenizer adds to one, and the
    continuation's tokens are those behind as many as the context alone has; in front of an empty context stands the
    token that begins a text. So does lm-evaluation-harness.

    Raises:
        LanguageError: a context and its continuation have more tokens than the model reads.
    """
    encoded = list[tuple[list[int], int]]()
    for context, continuation in pairs:
        bare = context.rstrip()
        known, whole = (tokenizer(t)["input_ids"] for t in (bare, context + continuation))
        before = [] if known else [tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id]
        encoded.append((before + whole, len(before or known)))
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)  # pyright: ignore
    longest = max((len(ids) for ids, _ in encoded), default=0)
    if most is not None and longest > most:
        raise LanguageError(f"expected questions of at most {most} tokens, as the model reads at once, got {longest}")
    found = [0.0] * len(encoded)
    by_length = sorted(range(len(encoded)), key=lambda i: len(encoded[i][0]))  # little padding
    for begin in range(0, len(by_length), at_once):
        batch = by_length[begin : begin + at_once]
        x = torch.zeros(len(batch), len(encoded[batch[-1]][0]), dtype=torch.int64)
        for row, i in enumerate(batch):
            x[row, : len(encoded[i][0])] = torch.tensor(encoded[i][0])  # what follows is seen by nothing before it
        x = x.to(next(model.parameters()).device)
        first = max(0, min(encoded[i][1] for i in batch) - 1)
        logits = model(input_ids=x, use_cache=False, logits_to_keep=x.shape[1] - first).logits.float()
        expect_scores(logits)
        for row, i in enumerate(batch):
            ids, known = encoded[i]
            logs = logits[row, known - 1 - first : len(ids) - 1 - first].log_softmax(-1)
            found[i] = logs.gather(1, x[row, known : len(ids), None]).sum().item()
    return found


def _best(values: Sequence[float]) -> int:
    return max(range(len(values)), key=lambda i: values[i])
