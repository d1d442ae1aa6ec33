"""Losses of a network with gates on the next token, against the text and against the original."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from htaf.language.hidden import Hidden
from htaf.language.options import LanguageError


@dataclass(frozen=True)
class Losses:
    """Means over next tokens, in nats.

    weighted: weights[0] kl + weights[1] likelihood, with its gradient. kl: KL(original || this). likelihood: negative
    log-likelihood of the text. agreement: share of tokens at which both find the same token the likeliest.
    """

    weighted: Tensor
    kl: float
    likelihood: float
    agreement: float


def next_token_losses(
    head: Callable[[Tensor], Tensor],
    mine: Float[Tensor, "blocks length size"],
    other: Float[Tensor, "blocks length size"],
    tokens: Int[Tensor, "blocks length"],
    weights: tuple[float, float] = (1.0, 0.0),
) -> Losses:
    """Compute the losses of outputs of the last layer.

    kl = mean over tokens of sum_v p[v] (log p[v] - log q[v]), p the original's probabilities of the next token, q this
    network's; likelihood = mean of -log q[next].

    The head runs on few tokens at once, and the gradient with it: logits of all tokens fill gigabytes.

    Args:
        head: makes logits of such outputs; it does not learn.
        mine, other: of this network and of the original.
        weights: of kl and likelihood.
    """
    ahead = tokens[:, 1:].flatten()
    mine, other = (v[:, :-1].flatten(0, 1)[None] for v in (mine, other))
    count, at_once = len(ahead), 64 if mine.device.type == "cpu" else 1024
    kl_sum, likelihood_sum, same = 0.0, 0.0, 0
    gradient = torch.zeros_like(mine) if mine.requires_grad else None
    for begin in range(0, count, at_once):
        part = slice(begin, begin + at_once)
        with torch.no_grad():
            truth = head(other[:, part])[0].float().log_softmax(-1)
        x = mine[:, part].detach()
        with torch.set_grad_enabled(gradient is not None):
            x.requires_grad_(gradient is not None)
            found = head(x)[0].float().log_softmax(-1)
            kl = nn.functional.kl_div(found, truth, reduction="sum", log_target=True) / count
            likelihood = nn.functional.nll_loss(found, ahead[part], reduction="sum") / count
            loss = sum((w * v for w, v in zip(weights, (kl, likelihood), strict=True) if w), kl.new_zeros(()))
        if gradient is not None and loss.requires_grad:
            gradient[:, part] = torch.autograd.grad(loss, x)[0]
        kl_sum += kl.item()
        likelihood_sum += likelihood.item()
        same += int((found.argmax(-1) == truth.argmax(-1)).sum())
    value = weights[0] * kl_sum + weights[1] * likelihood_sum
    weighted: Any = mine.new_tensor(value) if gradient is None else _Known.apply(mine, gradient, value)
    return Losses(weighted, kl_sum, likelihood_sum, same / count)


@torch.no_grad()
def hidden_losses(
    run: Callable[..., Sequence[Tensor]],
    head: Callable[[Tensor], Tensor],
    hidden: Hidden,
    device: torch.device,
    dtype: torch.dtype,
    tell: Callable[[int, int], None] | None = None,
) -> Losses:
    """Compute the losses over all blocks of hidden states of the original, from which a network's last layers start.

    Args:
        run, head: see `htaf.language.hidden.running`.
        device, dtype: of the network.
        tell: called after each block with how many are done, and of how many.
    """
    made = list[Losses]()
    for row in range(len(hidden.tokens)):
        tokens, inputs, outputs = hidden.at(torch.tensor([row]), device)
        made.append(next_token_losses(head, run(tokens, inputs.to(dtype))[-1], outputs.to(dtype), tokens))
        if tell is not None:
            tell(row + 1, len(hidden.tokens))
    return mean_of(made)


def mean_of(blocks: Sequence[Losses]) -> Losses:
    """Return the losses over blocks of equal length."""
    sums = (sum(getattr(one, name) for one in blocks) for name in ("kl", "likelihood", "agreement"))
    kl, likelihood, agreement = (value / len(blocks) for value in sums)
    return Losses(torch.tensor(kl), kl, likelihood, agreement)


class _Known(torch.autograd.Function):
    """A loss whose value and gradient are known."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gradient: Tensor, value: float) -> Tensor:
        ctx.save_for_backward(gradient)
        return torch.tensor(value, device=x.device)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.saved_tensors[0] * grads[0].to(ctx.saved_tensors[0].dtype), None, None


@dataclass(frozen=True)
class TextScores:
    """On text: means over next tokens, the first token of a block left out.

    tokens: how many were predicted. loss: mean negative log-likelihood of a token, nats. perplexity: exp(loss).
    kl: mean KL divergence of the original's next-token distribution from this one, nats.
    agreement: share of tokens at which both find the same token the likeliest.

    Raises:
        LanguageError: a loss that is not finite.
    """

    tokens: int
    loss: float
    perplexity: float
    kl: float
    agreement: float

    @classmethod
    def of(cls, tokens: int, found: Losses) -> TextScores:
        """Return the scores of losses over so many tokens."""
        return cls(tokens, found.likelihood, math.exp(min(found.likelihood, 700.0)), found.kl, found.agreement)

    def __post_init__(self) -> None:
        for name, value in (("loss", self.loss), ("KL divergence", self.kl)):
            if not math.isfinite(value):
                raise LanguageError(f"expected a finite {name} on the text, the model gives {value}: check its weights")
