"""Multi-layer perceptron whose activation is an argument; inputs as a thermometer, several members in one network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from htaf.core.activations import HTAF, Heaviside
from htaf.transform.grid import Addend, Columns, bias_of, columns_grid, weight_of


@final
class Thermometer(nn.Module):
    """Bits that say which thresholds each input reaches: b_jk = 1 if x_j >= t_jk else 0.

    The bits are exact from the start, in training too, and have no gradient. The thresholds are buffers: midpoints
    between values that lie at quantiles of the training rows, set by `place`.

    Args:
        counts: how many thresholds each input has; 0: it is not read.

    Shape: [batch, inputs] -> [batch, sum(counts)].

    Source: Buckman et al. 2018, "Thermometer encoding"; at quantiles as in Bacellar et al. 2024.
    """

    column: Tensor
    threshold: Tensor

    def __init__(self, counts: Sequence[int]) -> None:
        super().__init__()
        if not counts or min(counts) < 0 or not any(counts):
            raise ValueError(f"counts must be numbers of thresholds, >= 0 and not all 0, got {tuple(counts)}")
        self.counts = tuple(counts)
        column = torch.tensor([j for j, count in enumerate(counts) for _ in range(count)])
        self.register_buffer("column", column, persistent=False)
        self.register_buffer("threshold", torch.zeros(len(column)))
        self.step = Heaviside()

    @property
    def out_features(self) -> int:
        """Columns of the output."""
        return len(self.column)

    @torch.no_grad()
    def place(self, x: Float[Tensor, "rows inputs"]) -> None:
        """Put the thresholds at quantiles of the columns of these rows, between two values that occur.

        Raises:
            ValueError: a column has fewer gaps between its values than thresholds.
        """
        placed = [midpoints(x[:, j], count) for j, count in enumerate(self.counts) if count]
        self.threshold.copy_(torch.cat(placed))

    def forward(self, x: Float[Tensor, "batch inputs"]) -> Float[Tensor, "batch outputs"]:
        return self.step(x.index_select(1, self.column) - self.threshold)


def midpoints(values: Float[Tensor, " rows"], count: int) -> Float[Tensor, " count"]:
    """`count` different midpoints of neighbouring values, those nearest to the quantiles k / (count + 1).

    Raises:
        ValueError: there are fewer gaps between different values than that.
    """
    levels, rows = values.double().unique(return_counts=True)
    gaps = len(levels) - 1
    if count > gaps:
        raise ValueError(f"expected at most {gaps} thresholds for {gaps + 1} different values, got {count}")
    below = rows.cumsum(0)[:-1] / len(values)  # the share of rows below each gap
    wanted = torch.arange(1, count + 1, device=values.device) / (count + 1)
    chosen, first = list[int](), 0
    for k, share in enumerate(wanted.tolist()):
        last = gaps - count + k  # the others need a gap each too
        part = below[first : last + 1]
        chosen.append(first + int((part - share).abs().argmin()))
        first = chosen[-1] + 1
    place = torch.tensor(chosen, device=values.device)
    middle = ((levels[place] + levels[place + 1]) / 2).to(values.dtype)
    upper = levels[place + 1].to(values.dtype)
    return torch.where(middle > levels[place].to(values.dtype), middle, upper)  # neighbours in floating point


AT_ONCE = 256  # rows whose leaves a cache holds


@final
class Leaves(nn.Module):
    """Ands of bits, such as leaves of trees, and what each adds to the outputs where it is on.

        outputs = values . step(weight . bits - needed + 1/2)

    Exact from the start, in training too, and without a gradient: `place` sets them.

    Args:
        bits: of the input. leaves: how many ands. out_features: outputs.

    Shape: [batch, bits] -> [batch, out_features].
    """

    def __init__(self, bits: int, leaves: int, out_features: int) -> None:
        super().__init__()
        self.linear, self.step = nn.Linear(bits, leaves), Heaviside()
        self.head = Addend(leaves, out_features, bias=False)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    @property
    def count(self) -> int:
        """Of the ands."""
        return self.linear.out_features

    @torch.no_grad()
    def place(
        self, weight: Float[Tensor, "leaves bits"], needed: Float[Tensor, " leaves"], value: Float[Tensor, "out leaves"]
    ) -> None:
        """Take these ands, as many as there are.

        Args:
            weight: 1 for a bit that must be 1, -1 for one that must be 0, else 0. needed: how many must be 1.
        """
        self.linear.weight, self.linear.bias = nn.Parameter(weight), nn.Parameter(0.5 - needed)
        self.head.weight = nn.Parameter(value)
        self.linear.out_features = self.head.in_features = len(weight)

    def forward(self, bits: Float[Tensor, "batch bits"]) -> Float[Tensor, "batch out_features"]:
        return self.head(self.step(self.linear(bits)))


@final
class LeavesByWords(nn.Module):
    """The same as `Leaves` on a CPU, for inference alone: ands of words, each a bit of eight rows.

    Args:
        leaves: placed; its head is shared.
    """

    def __init__(self, leaves: Leaves) -> None:
        super().__init__()
        weight, most = leaves.linear.weight.detach().numpy(), leaves.linear.in_features
        opposite, none = np.arange(most, 2 * most), 2 * most
        asked = np.where(weight > 0, np.arange(most), np.where(weight < 0, opposite, none))
        asked.sort(axis=1)
        self.asked, self.head = asked[:, : int((weight != 0).sum(1).max(initial=1))].T.copy(), leaves.head

    def forward(self, bits: Float[Tensor, "batch bits"]) -> Float[Tensor, "batch out_features"]:
        return torch.cat([self.head(self.fired(part)) for part in bits.split(AT_ONCE)])

    def fired(self, bits: Float[Tensor, "batch bits"]) -> Float[Tensor, "batch leaves"]:
        """The ands, as `step(linear(bits))` of the leaves gives them."""
        words = np.packbits(bits.detach().t().bool().numpy(), axis=1)
        answers = np.concatenate([words, ~words, np.full_like(words[:1], 255)])  # of a bit, its opposite, neither
        found = answers[self.asked[0]]
        for places in self.asked[1:]:
            found &= answers[places]
        return torch.from_numpy(np.unpackbits(found, axis=1, count=len(bits))).t().to(self.head.weight.dtype)


@final
class MLP(nn.Module):
    """[thermometer] -> linear -> [batch norm] -> activation -> [dropout], once per hidden size, then a linear head.

    Members: networks beside each other that share no weight but the inputs. Their first layers are one linear layer,
    their heads another, so that the output is the mean of the members' outputs and the network is an ordinary one.
    Members learn each on its own loss, of `member_outputs`; then their errors differ and the mean is better than one
    network of that width.

    Args:
        in_features: columns of the input.
        out_features: columns of the output: classes, or 1 for a regression.
        hidden: sizes of the hidden layers, of each member; (256, 256, 128) is the paper's. None, with thresholds: the
            head reads their bits, a sum of step functions of the columns, which are rounded as on a grid.
        act: makes one activation module per hidden layer, such as `partial(HTAF, 2.0, 11.0)`.
        batch_norm: normalise every pre-activation.
        members: how many; more than one have one hidden layer each.
        thresholds: how many each column of the input has, see `Thermometer`; empty: the inputs are read as they are.
        dropout: share of a hidden layer's activations that are dropped in training.
        direct: a linear layer of the inputs themselves is added to the head's outputs; it starts as zeros. A training
            of htaf fits it, and the leaves, before the bits, and holds both.
        leaves: so many ands of the thermometer's bits are added to them too, see `Leaves`; 0: none.

    Shape: [batch, in_features] -> [batch, out_features].

    Raises:
        ValueError: a size is not a positive integer, or there is no hidden layer and no thermometer; several members of
            other than one layer; leaves without a thermometer.

    Source: the paper, appendix E.3; members: Lakshminarayanan et al. 2017, in one network as Gorishniy et al. 2025;
    direct: Cheng et al. 2016, "Wide & Deep Learning".
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        hidden: Sequence[int] = (256, 256, 128),
        act: Callable[[], nn.Module] = HTAF,
        batch_norm: bool = False,
        *,
        members: int = 1,
        thresholds: Sequence[int] = (),
        dropout: float = 0.0,
        direct: bool = False,
        leaves: int = 0,
    ) -> None:
        super().__init__()
        if not (hidden or any(thresholds)) or min(in_features, *hidden, out_features, members) < 1:
            raise ValueError(f"sizes must be positive, got {in_features} -> {tuple(hidden)} -> {out_features}")
        if members > 1 and len(hidden) != 1:
            raise ValueError(f"several members must have one hidden layer each, got {members} of {tuple(hidden)}")
        if thresholds and len(thresholds) != in_features:
            raise ValueError(f"thresholds must be of {in_features} columns, got {len(thresholds)}")
        self.members = members
        self.given = False  # whether inputs are followed by what `beside` gives for them
        self.thermometer = Thermometer(thresholds) if any(thresholds) else nn.Identity()
        self.columns = Columns(*columns_grid(None if any(thresholds) else in_features))
        self.columns.rounds = not hidden
        if leaves and not isinstance(self.thermometer, Thermometer):
            raise ValueError(f"leaves must be 0 without a thermometer, got {leaves}")
        sizes = [getattr(self.thermometer, "out_features", in_features), *(members * size for size in hidden)]
        self.leaves: Leaves | LeavesByWords | None = Leaves(sizes[0], leaves, out_features) if leaves else None
        self.hidden = nn.Sequential()
        for n_in, n_out in itertools.pairwise(sizes):
            block = nn.Sequential()
            block.add_module("linear", nn.Linear(n_in, n_out, bias=not batch_norm))
            if batch_norm:
                block.add_module("norm", nn.BatchNorm1d(n_out))
            block.add_module("act", act())
            if dropout:
                block.add_module("dropout", nn.Dropout(dropout))
            self.hidden.append(block)
        self.head = nn.Linear(sizes[-1], out_features)
        if members > 1:  # a member's own head is `members` times its part, and starts as one of its size does
            self.head.weight.data /= math.sqrt(members)
        self.direct = Addend(in_features, out_features) if direct else None
        if self.direct is not None:
            nn.init.zeros_(self.direct.weight)
            nn.init.zeros_(self.direct.bias)

    @property
    def fitted(self) -> list[nn.Module]:
        """The parts beside the bits, which are fitted before these and do not learn."""
        return [part for part in (self.direct, self.leaves) if part is not None]

    def forward(self, x: Float[Tensor, "batch in_features"]) -> Float[Tensor, "batch out_features"]:
        bits, plain = self._bits_and_plain(x)
        outputs = self.head(self.hidden(bits))
        return outputs if plain is None else (outputs + plain).to(self.head.weight.dtype)

    def _bits_and_plain(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the hidden layers read, and what is added to the head's outputs."""
        columns = self.columns(x)
        bits = self.thermometer(columns)
        return bits, x[:, -self.head.out_features :] if self.given else self.beside(columns, bits)

    def beside(
        self, columns: Float[Tensor, "batch in_features"], bits: Float[Tensor, "batch bits"]
    ) -> Float[Tensor, "batch out_features"] | None:
        """What is added to the head's outputs, by the columns and their thermometer; None: nothing."""
        plain = None if self.direct is None else self.direct(columns)
        if self.leaves is None:
            return plain
        return self.leaves(bits) if plain is None else plain + self.leaves(bits)

    def member_outputs(self, x: Float[Tensor, "batch in_features"]) -> Float[Tensor, "batch members out_features"]:
        """What each member says; `forward` is their mean.

        y_m = members W_m h_m + b, where W_m are the columns of the head's weight that read member m.
        """
        bits, plain = self._bits_and_plain(x)
        h = self.hidden(bits).unflatten(1, (self.members, -1))
        weight = weight_of(self.head).unflatten(1, (self.members, -1))
        bias = bias_of(self.head)
        assert bias is not None
        outputs = self.members * torch.einsum("bmh,omh->bmo", h, weight) + bias
        return outputs if plain is None else (outputs + plain[:, None]).to(self.head.weight.dtype)
