"""Hardened networks with weights at random and batch norms whose statistics are those of their inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import htaf
from htaf.program.packed import PackedModel, Verification, load, pack, save, trace, verify

IMAGES = (3, 8, 8)


def packed_beside(model: nn.Module, x: Tensor, **options: Any) -> tuple[PackedModel, Verification]:
    """Packed by two rows of x, and compared with the model on all of them."""
    traced = trace(model, x[:2])
    packed = pack(traced, x[:2], **options)
    return packed, verify(packed, traced, x)


def settled(model: nn.Module, x: Tensor) -> nn.Module:
    """Norms of any sign, their statistics taken from x, then the exact step."""
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias, std=0.3)
    model.train()
    with torch.no_grad():
        for _ in range(10):
            model(x)
    return htaf.harden(model.eval())


def packs_as(make: Callable[[], nn.Module], size: tuple[int, ...], layers: int, path: Path) -> PackedModel:
    """Pack a net: so many layers over bits, its outputs for several batches, and the same after saving and loading."""
    x = torch.randn(12, *size)
    model = settled(make(), x)
    packed, found = packed_beside(model, x)
    assert packed.report.layers == layers, packed.report
    assert found.ok, found
    assert found.count <= 2, found
    if not found.count:
        for batch in (1, 5, 12):
            _close(packed, model, x[:batch])
    save(packed, path, {"classes": ["a", "b"]})
    again = load(path)
    assert again.extra == {"classes": ["a", "b"]}
    assert str(again.report) == str(packed.report)
    for a, b in zip(pytree.tree_leaves(packed(x)), pytree.tree_leaves(again(x)), strict=True):
        assert torch.equal(a, b)
    return packed


def _close(packed: nn.Module, model: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        wanted, got = model(x), packed(x)
    assert pytree.tree_structure(wanted) == pytree.tree_structure(got)
    for a, b in zip(pytree.tree_leaves(wanted), pytree.tree_leaves(got), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)


class Residual(nn.Module):
    """A network of one's own: functional calls, binary weights, groups, dilation, sums in place, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.norm = nn.BatchNorm2d(12)
        self.act = htaf.HTAF()
        self.grouped = nn.Conv2d(12, 12, 3, padding=2, dilation=2, groups=3)
        self.binary = htaf.BinaryConv2d(12, 70, 3, stride=2, padding=1)
        self.sign = htaf.HTAF(bipolar=True)
        self.wide = nn.Conv2d(70, 6, 3, padding=1)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(6 * 4 * 4, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        bits = self.act(self.norm(self.stem(x)))
        y = self.grouped(bits)
        y += bits
        small = self.binary(htaf.functional.heaviside(y - 0.25))
        z = self.wide(self.sign(small + 0.01))  # no sum of which is 0: its sign would be rounding
        codes = 2 * htaf.functional.heaviside(torch.relu(z) - 0.1) - 1
        return self.head(self.drop(torch.flatten(codes, 1))), {"mean": small.mean((2, 3))}


def plain() -> nn.Sequential:
    """What a user writes first."""
    act = htaf.HTAF
    return nn.Sequential(
        nn.Conv2d(3, 20, 3, padding=1), nn.BatchNorm2d(20), act(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(20 * 4 * 4, 33), nn.BatchNorm1d(33), act(), nn.Linear(33, 4),
    )  # fmt: skip


def columns() -> nn.Sequential:
    """Rows of a table through binary layers, one of them of filters that are zero."""
    net = nn.Sequential(
        nn.Linear(9, 100), htaf.HTAF(), htaf.BinaryLinear(100, 65), nn.BatchNorm1d(65), htaf.HTAF(bipolar=True),
        htaf.BinaryLinear(65, 3, bias=True),
    )  # fmt: skip
    layer = net[2]
    assert isinstance(layer, htaf.BinaryLinear)
    layer.weight.data[:2] = 0
    return net
