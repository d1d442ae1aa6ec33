"""What a task is: a model in plain PyTorch, its data, its own loop and its own measure. Nothing here knows htaf."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

Activation = Callable[[], nn.Module]
Pair = tuple[Tensor, Tensor]


class MissingDataError(Exception):
    """The data of a task are not on this machine."""


def ignored(progress: float) -> None:
    pass


class Problem(Protocol):
    """A task with a seed.

    example: inputs, some hundred rows of the training part. where: the activations that are to be steps; None: all.
    batches: (inputs, targets) of the training part, or inputs alone. better: "higher" or "lower", of the score.
    """

    example: Any
    where: Any
    batches: list[Any]
    metric: str
    better: str

    def net(self, activation: Activation) -> nn.Module:
        """A new network with the weights of the seed."""
        ...

    def train(self, net: nn.Module, optimizer: str, begin: Callable[[float], Any] = ignored) -> None:
        """The loop. begin: called in front of every step, with the share of the training that is done."""
        ...

    def measure(self, net: nn.Module) -> float:
        """On held-out data that choose; lower is better."""
        ...

    def score(self, net: nn.Module) -> float:
        """On test data."""
        ...


@dataclass
class Supervised:
    """A training on batches of rows.

    make: activation -> network. loss: of outputs and targets. scored: (network, inputs, targets) -> score.
    cosine: whether the rate falls to 0, else it stays.
    """

    make: Callable[[Activation], nn.Module]
    training: Pair
    validation: Pair
    test: Pair
    loss: Callable[[Tensor, Tensor], Tensor]
    scored: Callable[[nn.Module, Tensor, Tensor], float]
    metric: str
    better: str
    epochs: int
    batch: int
    rate: float
    seed: int
    cosine: bool = True
    where: Any = None

    @property
    def example(self) -> Tensor:
        x = self.training[0]
        return x[:512] if self.batch < len(x) else x

    @property
    def batches(self) -> list[Pair]:
        x, y = self.training
        return list(zip(x.split(self.batch), y.split(self.batch), strict=True))

    def net(self, activation: Activation) -> nn.Module:
        torch.manual_seed(self.seed)
        return self.make(activation)

    def train(self, net: nn.Module, optimizer: str, begin: Callable[[float], Any] = ignored) -> None:
        x, y = self.training
        torch.manual_seed(self.seed)
        found = optimizers(net, optimizer, self.rate)
        rates = [group["lr"] for one in found for group in one.param_groups]
        net.train()
        order = torch.arange(len(x))  # a graph stays whole
        per_epoch = max(1, len(x) // self.batch)
        steps = self.epochs * per_epoch
        for step in range(steps):
            begin(step / steps)
            if step % per_epoch == 0 and self.batch < len(x):
                order = torch.randperm(len(x))
            rows = order[step % per_epoch * self.batch :][: self.batch]
            if self.cosine:
                for group, rate in zip((g for one in found for g in one.param_groups), rates, strict=True):
                    group["lr"] = rate * (1 + math.cos(math.pi * step / steps)) / 2
            loss = self.loss(net(x[rows]), y[rows])
            for one in found:
                one.zero_grad()
            loss.backward()
            for one in found:
                one.step()
        net.eval()

    @torch.no_grad()
    def measure(self, net: nn.Module) -> float:
        x, y = self.validation
        return self.loss(net.eval()(x), y).item()

    @torch.no_grad()
    def score(self, net: nn.Module) -> float:
        return self.scored(net.eval(), *self.test)


def optimizers(net: nn.Module, name: str, rate: float) -> list[torch.optim.Optimizer]:
    """AdamW, SGD with momentum, or Muon for matrices beside AdamW for the rest."""
    parameters = [p for p in net.parameters() if p.requires_grad]
    match name:
        case "adamw":
            return [torch.optim.AdamW(parameters, rate)]
        case "sgd":
            return [torch.optim.SGD(parameters, 20 * rate, momentum=0.9, nesterov=True)]
        case "muon":
            matrices = [p for p in parameters if p.ndim == 2]
            rest = [p for p in parameters if p.ndim != 2]
            return [torch.optim.Muon(matrices, 3 * rate), *([torch.optim.AdamW(rest, rate)] if rest else [])]
    raise ValueError(f"expected adamw, sgd or muon, got {name}")


def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """In percent, over the rows with a class."""
    known = y >= 0
    return 100 * (net(x).argmax(-1) == y)[known].float().mean().item()


def error(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """Mean squared error."""
    return (net(x) - y).square().mean().item()
