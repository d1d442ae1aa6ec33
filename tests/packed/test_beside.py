"""Bits beside bits, of networks of images and of series: packed, and what they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from packed_nets import packed_beside, packs_as
from torch import Tensor, nn
from torch.nn import functional as F

import htaf


class Own(nn.Module):
    """Layers by name, and what `forward` does with them."""

    def __init__(self, forward: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.called = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.called(self, x)


def step(channels: int, bipolar: bool = False) -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm2d(channels), htaf.HTAF(bipolar=bipolar))


def line_step(channels: int) -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm1d(channels), htaf.HTAF())


def conv(inputs: int, outputs: int, size: int = 3) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, padding=size // 2)


def dense() -> nn.Module:
    """Bits beside bits: words, whole bytes, and one byte more; a last part that ends within one."""

    def forward(net: Any, x: Tensor) -> Tensor:
        y = net.s0(net.a(x))
        y = torch.cat([y, net.s1(net.b(y))], 1)
        y = torch.cat([y, net.s2(net.c(y)), y], 1)
        return net.e(torch.cat([y, net.s3(net.d(y))], 1)).mean((2, 3))

    steps = {f"s{i}": step(n) for i, n in enumerate((64, 8, 24, 5))}
    return Own(forward, a=conv(3, 64), b=conv(64, 8), c=conv(72, 24), d=conv(168, 5), e=conv(173, 4, 1), **steps)


def along() -> nn.Module:
    """Bits beside bits, one below the other."""

    def forward(net: Any, x: Tensor) -> Tensor:
        y = net.s0(net.a(x))
        return net.b(torch.cat([y, y], 2)).mean((2, 3))

    return Own(forward, a=conv(3, 20), s0=step(20), b=conv(20, 4))


def lines() -> nn.Module:
    """A network of series: pools, dilation; the last step is a mean's."""

    def forward(net: Any, x: Tensor) -> Tensor:
        y = F.max_pool1d(net.s0(net.a(x.flatten(2))), 3, 2, 1)
        y = net.s1(net.b(y))
        y = net.s2(net.c(y))
        return net.d(y).mean(2)

    layers = {
        "a": nn.Conv1d(3, 20, 5, padding=2), "b": nn.Conv1d(20, 24, 3, dilation=2),
        "c": nn.Conv1d(24, 20, 3, padding=4, dilation=2), "d": nn.Conv1d(20, 4, 3, padding=2),
    }  # fmt: skip
    return Own(forward, **layers, s0=line_step(20), s1=line_step(24), s2=line_step(20))


def levels() -> nn.Module:
    """Steps of several levels: beside each other."""

    def forward(net: Any, x: Tensor) -> Tensor:
        y = net.s0(net.a(x))
        y = net.s1(net.b(torch.cat([y, y], 1)))
        return net.e(y).mean((2, 3))

    steps = {f"s{i}": nn.Sequential(nn.BatchNorm2d(24), htaf.HTAF(levels=3)) for i in range(2)}
    layers = {"a": conv(3, 24), "b": conv(48, 24)}
    return Own(forward, **layers, e=conv(24, 4), **steps)


NETS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "dense": (dense, 4), "along": (along, 1), "lines": (lines, 3), "levels": (levels, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_packed_gives_what_the_hardened_model_gives(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, layers = NETS[name]
    packs_as(make, (3, 8, 8), layers, tmp_path / "model.htaf")


def test_a_step_that_runs_in_float_is_compared_too() -> None:
    """Of which layers that read it in float would make other bits, as a flip that no rounding explains."""
    torch.manual_seed(0)
    net = Own(
        lambda net, x: net.c(net.s(F.avg_pool2d(net.s(net.b(net.s(net.a(x)))), 2))),
        a=conv(3, 20), b=conv(20, 20), c=conv(20, 4), s=htaf.Heaviside(),
    )  # fmt: skip
    _, found = packed_beside(net.eval(), torch.randn(6, 3, 8, 8))
    assert found.ok, found
    assert len(found.layers) == 3
