"""Multi-layer perceptrons for tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from htaf.training.recipe import (
    LIMIT,
    Activation,
    Family,
    Hardening,
    Network,
    Optimization,
    Recipe,
    TableData,
    Weights,
    expect,
    titled,
    weighted,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from htaf.training.problems import Problem
    from htaf.transform.hardening.finishing import Make


MOST_BITS = 16_384  # of all inputs together, where each can have more than one
FITTED_BITS = 1024  # of a readable network before steps are fused
BITS_OF_A_ROW = 16  # more are not supported by the rows, and take time
FEWEST_LEAVES, MOST_LEAVES = 16, 65_536  # a tree has 16


@dataclass(frozen=True)
class MLPNetwork(Network):
    """The multi-layer perceptron.

    Args:
        hidden: Sizes of the hidden layers, of each member; none: the readable network, a sum of step functions of the
            columns and of rules, which is fitted in closed form.
        batch_norm: Normalise the pre-activations.
        members: Networks of one hidden layer beside each other, each with its own loss; the output is their mean.
        thresholds: Most bits of a thermometer for each input, at quantiles of the training rows, fewer where there are
            more than 16,384 in all, or 16 for each training row: the network reads bits alone; year, month, weekday,
            day of year and whole numbers that repeat have one for each value, so that a single day or firm can be told;
            0: it reads the inputs.
        dropout: Of the activations, in training.
        direct: Add a linear part, a linear model of the inputs themselves: fitted first, so that the bits learn what it
            leaves.
        leaves: Add boosted trees over the thermometer, of so many leaves at most, each a hidden unit: fitted next, so
            that the bits learn what they leave; 0: none.
        weights: int8, int4: of layers over bits on a grid of integers, so that all sums are exact, see docs/packed.md.
        terms: Of a readable network: columns and pairs of columns, at most.
        steps: Of a readable network: steps and rules, at most; 0: as many as are best out of fold.
        pairs: Of a readable network: pairs of columns that have rules, at most.
        points: Of a readable network: the largest integer of a step, for a score that is summed by hand; 0: fine ones.
        monotone: Of a readable network: columns with which the prediction, or the score of the second of two classes,
            must not fall (age+) or not rise (age-).
    """

    family: ClassVar[str] = "mlp"
    data: ClassVar = TableData
    hidden: tuple[int, ...] = (256, 256, 128)
    batch_norm: bool = True
    members: int = 1
    thresholds: int = 0
    dropout: float = 0.0
    direct: bool = False
    leaves: int = 0
    weights: Weights = "float"
    terms: int = 30
    steps: int = 0
    pairs: int = 10
    points: int = 0
    monotone: tuple[str, ...] = ()

    def check(self) -> None:
        self.expect_all(("members",), lambda v: 1 <= v <= 1024, "must lie in 1 to 1,024")
        self.expect_all(("thresholds",), lambda v: 0 <= v <= 4096, "must lie in 0 to 4,096")
        fits = f"must be 0 or lie in {FEWEST_LEAVES} to {MOST_LEAVES:,}"
        self.expect_all(("leaves",), lambda v: v == 0 or FEWEST_LEAVES <= v <= MOST_LEAVES, fits)
        self.expect_all(("dropout",), lambda v: 0 <= v < 1, "must lie in [0, 1)")
        self.expect_all(("terms",), lambda v: 1 <= v <= 1024, "must lie in 1 to 1,024")
        self.expect_all(("steps", "points"), lambda v: 0 <= v <= 2**15, f"must lie in 0 to {2**15:,}")
        self.expect_all(("pairs",), lambda v: 0 <= v <= self.terms, "must lie in 0 to the number of terms")
        signed = all(len(name) > 1 and name[-1] in "+-" for name in self.monotone)
        expect(signed, "monotone must be names of columns in front of + or -, such as age+", self.monotone)
        single = self.members == 1 or len(self.hidden) == 1
        expect(single, f"{self.members} members must have one hidden layer each", self.hidden)
        sizes = all(type(size) is int and 1 <= size < LIMIT for size in self.hidden)
        expect(
            bool(self.hidden or self.thresholds),
            "a network without hidden layers must have thresholds",
            self.thresholds,
        )
        expect(sizes, f"hidden sizes must be integers in 1 to {LIMIT - 1:,}", self.hidden)

    @property
    def normalised(self) -> bool:
        return self.batch_norm

    @property
    def on_grid(self) -> bool:
        return super().on_grid or not self.hidden

    def model(self, inputs: Mapping[str, Any], outputs: int, activation: Mapping[str, Any]) -> dict[str, Any]:
        more: dict[str, Any] = {}
        if self.members > 1:
            more["members"] = self.members
        if self.dropout:
            more["dropout"] = self.dropout
        if self.direct:
            more["direct"] = True
        if self.thresholds:
            most, discrete = self._most(inputs), {*inputs["discrete"]}  # a holiday is one day of the year
            more["thresholds"] = [
                count - 1 if place in discrete else min(most, count - 1) for place, count in enumerate(inputs["levels"])
            ]
            if self.leaves and self.hidden and any(more["thresholds"]):
                more["leaves"] = self.leaves
        model = {
            "kind": "mlp",
            "in_features": inputs["in_features"],
            "out_features": outputs,
            "activation": activation,
            "hidden": list(self.hidden),
            "batch_norm": self.batch_norm,
            **more,
        }
        return weighted(model, self.weights)

    def _most(self, inputs: Mapping[str, Any]) -> int:
        """Thresholds of an input, by how many values each has: fewer where there are so many inputs that their bits
        would be more than `_most_bits`, at least one."""
        most, levels = self._most_bits(inputs), inputs["levels"]
        fits = (count for count in range(self.thresholds, 1, -1) if sum(min(count, n - 1) for n in levels) <= most)
        return next(fits, min(self.thresholds, 1))

    def _most_bits(self, inputs: Mapping[str, Any]) -> int:
        """Of all inputs together; without a number of rows as for many."""
        return min(MOST_BITS if self.hidden else FITTED_BITS, BITS_OF_A_ROW * inputs.get("rows", MOST_BITS))

    def reads(self, inputs: Mapping[str, Any]) -> tuple[str, ...]:
        count, levels, most = self._most(inputs), inputs["levels"], self._most_bits(inputs)
        if count == self.thresholds or max(levels) - 1 <= count:
            return ()
        rows = f", {BITS_OF_A_ROW} for each of {inputs['rows']:,} training rows" if most < MOST_BITS else ""
        return (
            f"{len(levels):,} inputs: at most {count} threshold{'' if count == 1 else 's'} each instead of "
            f"{self.thresholds}, as their bits are at most {most:,} in all{rows}, or one each. Leave out columns "
            "that do not help, to have more",
        )

    def unread(self, method: str) -> dict[str, str]:
        readable = ("terms", "steps", "pairs", "points", "monotone")
        if not self.hidden:
            return dict.fromkeys(("batch_norm", "members", "dropout", "direct", "leaves", "weights"), "hidden none")
        found = dict.fromkeys(readable, "hidden layers") | ({} if self.thresholds else {"leaves": "thresholds 0"})
        return found | ({"weights": "method relu"} if method == "relu" else {})

    def title(self) -> str:
        sizes = f"MLP {'-'.join(map(str, self.hidden))}" if self.hidden else "readable network"
        return titled(sizes if self.members == 1 else f"{self.members} {sizes}", self.weights)

    def initialise(self, net: nn.Module, posed: Problem) -> dict[str, Any]:
        from htaf.models.mlp import MLP, Thermometer
        from htaf.training.boosting import fit_direct, fit_leaves

        assert isinstance(net, MLP)
        if isinstance(net.thermometer, Thermometer):
            net.thermometer.place(net.columns(posed.examples(sys.maxsize)))
        if not self.hidden:
            from htaf.training.additive import fit_readable

            return {"out_of_fold": fit_readable(net, posed, self)}
        if net.direct is not None:
            fit_direct(net, posed)
        if net.leaves is not None:
            fit_leaves(net, posed)
        return {}

    def sizes(self, net: nn.Module) -> dict[str, Any]:
        from htaf.models.mlp import MLP

        assert isinstance(net, MLP)
        asked = (self.leaves and self.thresholds) or not self.hidden
        found: dict[str, Any] = {"leaves": 0 if net.leaves is None else net.leaves.count} if asked else {}
        return found | ({} if self.hidden else {"thresholds": [*net.thermometer.counts]})  # pyright: ignore

    def hold(self, net: nn.Module) -> None:
        from htaf.models.mlp import MLP

        for part in (net.fitted if self.hidden else [net]) if isinstance(net, MLP) else ():
            part.requires_grad_(False)  # see `initialise`

    def refits(self, task: str) -> bool:
        # of classes beside a linear model it takes half of the time and brings nothing (docs/log.md)
        return not (self.direct and task == "classification")

    def finishing(self, net: nn.Module, posed: Problem) -> dict[str, Make]:
        from htaf.models.mlp import MLP
        from htaf.training.boosting import shrunk

        learned = self.hidden and isinstance(net, MLP) and net.fitted
        return {"shrink": lambda net: shrunk(net, posed)} if learned else {}

    def groups(self, net: nn.Module, lr: float) -> list[Any]:
        from htaf.models.mlp import MLP

        trained = super().groups(net, lr)
        if self.members == 1:
            return trained
        assert isinstance(net, MLP)
        head = {id(p) for p in net.head.parameters()}  # the mean's: a member's own is `members` times its part
        rest = [p for p in trained if id(p) not in head]
        return [{"params": rest}, {"params": [*net.head.parameters()], "lr": lr / self.members}]

    def loss(
        self,
        net: nn.Module,
        x: Tensor,
        y: Tensor,
        loss: Callable[[Tensor, Tensor], Tensor],
        attributes: Tensor | None,
    ) -> Tensor:
        from htaf.models.mlp import MLP

        assert isinstance(net, MLP)
        if self.members == 1:
            return loss(net(x), y)
        return loss(net.member_outputs(x).flatten(0, 1), y.repeat_interleave(self.members, 0))


def tabular_mlp() -> Recipe:
    """100 epochs at most, no step after them: (2, 11) from a soft start, batch norm, one cycle up to 3e-3."""
    return Recipe(MLPNetwork(), TableData())


def tabular_residual() -> Recipe:
    """The default for tables: a linear model of the inputs, boosted trees for what it leaves, whose leaves are ands of
    the bits of a thermometer, and for what both leave two networks of 256 bits on that thermometer; 300 steps, and 8
    epochs; (1, 8) from a soft start, norms and head fitted to the bits. Chosen on those tables of
    `benchmarks/foreign_tables.py` that choose."""
    members = tabular_members()
    network = MLPNetwork(hidden=(256,), members=2, thresholds=48, dropout=0.1, direct=True, leaves=4096)
    training = Optimization(epochs=8, least_steps=300, weight_decay=0.01, patience=0)
    return Recipe(network, TableData(), members.activation, training, members.hardening)


def tabular_members() -> Recipe:
    """Eight networks of 256 bits beside each other on a thermometer of the inputs, 40 epochs; (1, 8) from a soft start,
    norms and head fitted to the bits. Chosen on the validation parts of tables, see `htaf_paper.more_tables.TABLES`."""
    activation = Activation(
        alpha0=1.0, alpha1=8.0, beta=8.0, start=(0.5, 4.0), sharpen_fraction=0.3, slope="approx_sign"
    )
    network = MLPNetwork(hidden=(256,), members=8, thresholds=48, dropout=0.2)
    training = Optimization(epochs=40, weight_decay=0.01, patience=0)
    return Recipe(network, TableData(), activation, training, Hardening(recalibrate=True, refit=True))


def readable() -> Recipe:
    """A network that is its own explanation: step functions of the columns and rules of pairs of them, at most 30
    terms, chosen out of fold. Chosen on those tables of `benchmarks/foreign_tables.py` that choose."""
    network = MLPNetwork(hidden=(), batch_norm=False, thresholds=128)
    return Recipe(network, TableData(), Activation(sharpen=False), Optimization(epochs=1, patience=0), Hardening())


def _suited(given: Mapping[str, Any]) -> str:
    """Several members have one hidden layer each: more layers are of one network."""
    sizes = given.get("hidden")  # of an estimator it may be anything
    return "tabular-mlp" if isinstance(sizes, tuple) and len(sizes) > 1 and "members" not in given else ""


FAMILY = Family(
    MLPNetwork,
    verb="tabular",
    about="Train an MLP with 0/1 activations on a table; smooth and exact results, and how they differ.",
    recipes={
        "tabular-residual": tabular_residual,
        "tabular-members": tabular_members,
        "tabular-mlp": tabular_mlp,
        "readable": readable,
    },
    recipes_help="tabular-residual: a linear part, leaves of boosted trees on their thermometer, and "
    "two networks of one hidden layer on it for what these leave, 300 steps and 8 epochs; tabular-members: eight such "
    "networks alone, 40 epochs; tabular-mlp, which several hidden layers start from: at most 100 epochs; readable: "
    "step functions of the columns and rules of pairs of them, integers that anybody can add up.",
    suited=_suited,
)
