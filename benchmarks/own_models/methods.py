"""What is compared: a real network, ten lines of one's own, and ways of htaf."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.own_models.problem import Problem, Supervised
from torch import Tensor, nn


class Step(torch.autograd.Function):
    """Straight-through as anybody writes it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: str) -> Tensor:
        ctx.save_for_backward(x)
        ctx.slope = slope
        return (x >= 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        match ctx.slope:
            case "sigmoid":
                return grad * x.sigmoid() * (1 - x.sigmoid()), None
            case "triangle":
                return grad * (1 - x.abs()).clamp(min=0), None
            case "tanh":
                return grad * (1 - x.tanh().square()), None
            case "hardtanh":
                return grad * (x.abs() < 1), None
        raise ValueError(f"unknown slope {ctx.slope}")


class StraightThrough(nn.Module):
    def __init__(self, slope: str) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        return Step.apply(x, self.slope)  # pyright: ignore[reportReturnType]


def real(problem: Problem, optimizer: str) -> nn.Module:
    net = problem.net(nn.ReLU if problem.where is None else nn.Sigmoid)
    problem.train(net, optimizer)
    return net


def own(slope: str, problem: Problem, optimizer: str) -> nn.Module:
    net = problem.net(functools.partial(StraightThrough, slope))
    problem.train(net, optimizer)
    return net


def constant(problem: Problem, optimizer: str) -> nn.Module:
    """The same without `sharpen`."""
    import htaf

    net = htaf.replace(problem.net(nn.ReLU), where=problem.where, example=problem.example)
    problem.train(net, optimizer)
    exact, _ = htaf.finish(net, problem.batches, measure=problem.measure, higher=False)
    return exact


def fixed(problem: Problem, optimizer: str) -> nn.Module:
    """HTAF(2, 11) throughout, then hardened."""
    import htaf

    net = htaf.replace(problem.net(nn.ReLU), lambda: htaf.HTAF(2.0, 11.0), where=problem.where, example=problem.example)
    problem.train(net, optimizer)
    return htaf.harden(net.eval())


def default(problem: Problem, optimizer: str, **options: Any) -> nn.Module:
    """README's way: exact steps as `replace` puts them in, `sharpen` in the loop, then `finish`."""
    import htaf

    net = htaf.replace(problem.net(nn.ReLU), where=problem.where, example=problem.example, **options)
    problem.train(net, optimizer, functools.partial(htaf.sharpen, net))
    exact, report = htaf.finish(net, problem.batches, measure=problem.measure, higher=False)
    print(report, flush=True)
    return exact


def chosen(problem: Problem, optimizer: str) -> nn.Module:
    """The default, or a second training with the levels that `sensitivity` chose for it, whichever validation prefers;
    a short training is a tenth of the whole one."""
    import htaf

    net = htaf.replace(problem.net(nn.ReLU), where=problem.where, example=problem.example)
    problem.train(net, optimizer, functools.partial(htaf.sharpen, net))
    first, _ = htaf.finish(net, problem.batches, measure=problem.measure, higher=False)

    def shortly(other: nn.Module) -> None:
        part = copy.copy(problem)
        if isinstance(part, Supervised):
            part.epochs, part.rate = max(1, part.epochs // 10), part.rate / 5
            part.seed = int(torch.randint(1000, ()))
        part.train(other, optimizer)

    found = htaf.sensitivity(net, problem.batches, measure=problem.measure, higher=False, train=shortly)
    print(found, flush=True)
    if not found.levels:
        return first
    second = default(problem, optimizer, levels=found.levels)
    return min(first, second, key=problem.measure)


METHODS: dict[str, Callable[[Problem, str], nn.Module]] = {
    "relu": real,
    "ste-sigmoid": functools.partial(own, "sigmoid"),
    "ste-triangle": functools.partial(own, "triangle"),
    "ste-tanh": functools.partial(own, "tanh"),
    "ste-hardtanh": functools.partial(own, "hardtanh"),
    "htaf-2-11": fixed,
    "constant": constant,
    "default": default,
    "default-levels-2": functools.partial(default, levels=2),
    "default-first": functools.partial(default, keep="first"),
    "default-chosen": chosen,
}
