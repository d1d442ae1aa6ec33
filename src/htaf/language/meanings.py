"""What gates mean: which tokens open a gate, where in a text it opens widest, and how much the token alone says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from htaf.language.errors import LanguageError
from htaf.language.gates import Gate, gates_of, read_gates

TOKENS, SNIPPETS = 8, 6  # of a gate
BEFORE, AFTER = 12, 4  # tokens around one in a snippet
SEEN = 4  # how often a token must occur


@dataclass(frozen=True)
class OpeningToken:
    """A token and the share of its occurrences at which a gate opens."""

    token: str
    share: float
    count: int


@dataclass(frozen=True)
class Snippet:
    """A place in a text at which a gate opens: the token, and what stands around it."""

    before: str
    token: str
    after: str


@dataclass(frozen=True)
class Meaning:
    """What is known of a gate.

    open: share of tokens that open it.
    by_token: share of its variance that the current token explains on the half of the text that did not count the
        tokens, 1 - sum (b - p[token])^2 / sum (b - mean b)^2; 1: a detector of tokens, 0: the token says nothing.
    tokens: those it opens at most surely. snippets: where g - threshold is largest, one a block.
    """

    layer: int
    neuron: int
    open: float
    by_token: float
    tokens: tuple[OpeningToken, ...]
    snippets: tuple[Snippet, ...]


@torch.no_grad()
def meanings(
    model: Any,
    tokenizer: Any,
    blocks: Int[Tensor, "blocks length"],
    *,
    tell: Callable[[int, int], None] | None = None,
) -> list[Meaning]:
    """What the gates of a model mean, by layer and neuron.

    Args:
        model: with gates. tokenizer: its own.
        blocks: text without padding, two blocks or more; even ones count tokens, odd ones check them.
        tell: called with (blocks read, of how many).

    Raises:
        LanguageError: no gates, or less than two blocks.
    """
    gates = gates_of(model)
    if not gates:
        raise LanguageError("expected a model with gates, got one without")
    if len(blocks) < 2:
        raise LanguageError(f"expected two blocks of text or more, got {len(blocks)}")
    seen = _Seen(gates)
    read_gates(model, blocks, seen, tell)
    counting = torch.arange(blocks.numel()) // blocks.shape[1] % 2 == 0
    known, place = blocks.flatten().unique(return_inverse=True)
    words = [str(tokenizer.decode([token])) for token in known.tolist()]
    found = list[Meaning]()
    for number in sorted(gates):
        opened = torch.cat(seen.bits.pop(number))
        explained = _explained(opened, place, counting, len(known))
        found += _described(number, opened, place, explained, seen.widest[number], words, blocks, tokenizer)
    return found


class _Seen:
    """The bits of gates by layer, and their widest openings with the places in the text."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self.bits: dict[int, list[Tensor]] = {number: [] for number in numbers}
        self.widest: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, number: int, gate: Gate, g: Tensor) -> None:
        self.bits[number].append(gate.open(g).cpu())
        over, row = (g.float() - gate.threshold).max(0)  # one in a block, so that places differ
        over, at = over.cpu()[None], row.cpu()[None] + (len(self.bits[number]) - 1) * len(g)
        if number in self.widest:
            over, at = (torch.cat(pair) for pair in zip(self.widest[number], (over, at), strict=True))
        over, order = over.topk(min(SNIPPETS, len(over)), dim=0)
        self.widest[number] = over, at.gather(0, order)


def _counts(opened: Bool[Tensor, "tokens neurons"], place: Tensor, kinds: int) -> tuple[Tensor, Tensor]:
    """How often each token opens each gate [kinds, neurons], and how often it occurs [kinds]."""
    hits = torch.zeros(kinds, opened.shape[1]).index_add_(0, place, opened.float())
    return hits, torch.bincount(place, minlength=kinds).float()


def _explained(opened: Tensor, place: Tensor, counting: Tensor, kinds: int) -> Float[Tensor, " neurons"]:
    """`Meaning.by_token` of each gate."""
    hits, seen = _counts(opened[counting], place[counting], kinds)
    base = opened[counting].float().mean(0)
    guess = (hits + base) / (seen[:, None] + 1)  # a token that was hardly seen: the gate's own rate
    bits = opened[~counting].float()
    left = (bits - guess[place[~counting]]).square().sum(0)
    whole = (bits - bits.mean(0)).square().sum(0)
    return torch.where(whole > 0, 1 - left / whole.clamp_min(1e-9), 0.0)


def _described(
    layer: int, opened: Tensor, place: Tensor, explained: Tensor, widest: tuple[Tensor, Tensor], words: Sequence[str],
    blocks: Tensor, tokenizer: Any,
) -> list[Meaning]:  # fmt: skip
    hits, seen = _counts(opened, place, len(words))
    # the lower end of Wilson's 95% interval of the share: a rare token must not win by luck
    share, z = hits / seen.clamp_min(1)[:, None], 1.96
    n = seen.clamp_min(1)[:, None]
    lower = (share + z * z / (2 * n) - z * ((share * (1 - share) + z * z / (4 * n)) / n).sqrt()) / (1 + z * z / n)
    lower[seen < SEEN] = -1
    best = lower.topk(min(TOKENS, len(words)), dim=0)
    rate = opened.float().mean(0)
    made = list[Meaning]()
    for neuron in range(opened.shape[1]):
        tokens = tuple(
            OpeningToken(words[int(i)], share[i, neuron].item(), int(seen[i]))
            for i, low in zip(best.indices[:, neuron].tolist(), best.values[:, neuron].tolist(), strict=True)
            if low > rate[neuron]
        )
        places = [
            at
            for over, at in zip(widest[0][:, neuron].tolist(), widest[1][:, neuron].tolist(), strict=True)
            if over >= 0
        ]
        snippets = tuple(_snippet(blocks, at, tokenizer) for at in places)
        made.append(Meaning(layer, neuron, rate[neuron].item(), explained[neuron].item(), tokens, snippets))
    return made


def _snippet(blocks: Tensor, at: int, tokenizer: Any) -> Snippet:
    row, column = divmod(at, blocks.shape[1])
    ids = blocks[row].tolist()
    parts = ids[max(0, column - BEFORE) : column], ids[column : column + 1], ids[column + 1 : column + 1 + AFTER]
    before, token, after = (str(tokenizer.decode(part)) for part in parts)
    return Snippet(before, token, after)
