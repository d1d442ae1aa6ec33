"""U-Net with batch norm on synthetic shapes: which pixels are disks, among boxes and noise; intersection over union."""

from __future__ import annotations

import torch
from benchmarks.own_models.problem import Activation, Pair, Supervised
from torch import Tensor, nn


def convolutions(inputs: int, outputs: int, act: Activation) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in (inputs, outputs):
        layers += [nn.Conv2d(size, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), act()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, act: Activation, width: int = 12) -> None:
        super().__init__()
        self.down1, self.down2 = convolutions(1, width, act), convolutions(width, 2 * width, act)
        self.middle = convolutions(2 * width, 4 * width, act)
        self.up2, self.up1 = convolutions(6 * width, 2 * width, act), convolutions(3 * width, width, act)
        self.pool, self.rise = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(self.pool(a))
        c = self.middle(self.pool(b))
        b = self.up2(torch.cat([self.rise(c), b], 1))
        return self.head(self.up1(torch.cat([self.rise(b), a], 1)))


def pictures(count: int, generator: torch.Generator, size: int = 32) -> Pair:
    at = torch.arange(size).float()
    x = torch.zeros(count, size, size)
    y = torch.zeros(count, size, size)
    for kind in ("disk", "box", "disk", "box"):
        middle = torch.rand(count, 2, 1, generator=generator) * size
        radius = 3 + 5 * torch.rand(count, 1, 1, generator=generator)
        bright = 0.6 + 0.8 * torch.rand(count, 1, 1, generator=generator)
        across, down = at[None] - middle[:, 0], at[None] - middle[:, 1]
        if kind == "disk":
            inside = across[:, None, :].square() + down[:, :, None].square() < radius.square()
            y = torch.where(inside, 1.0, y)
        else:
            inside = (across[:, None, :].abs() < 0.9 * radius) & (down[:, :, None].abs() < 0.9 * radius)
            y = torch.where(inside, 0.0, y)
        x = torch.where(inside, bright, x)
    return (x + 0.3 * torch.randn(x.shape, generator=generator))[:, None], y[:, None]


def overlap(net: nn.Module, x: Tensor, y: Tensor) -> float:
    found, true = net(x) > 0, y > 0.5
    return ((found & true).sum() / (found | true).sum()).item()


class Shapes(Supervised):
    @torch.no_grad()
    def measure(self, net: nn.Module) -> float:
        return 1 - overlap(net.eval(), *self.validation)


def make(seed: int) -> Shapes:
    generator = torch.Generator().manual_seed(2000 + seed)
    training, validation, test = (pictures(count, generator) for count in (400, 200, 400))
    return Shapes(
        UNet, training, validation, test, nn.functional.binary_cross_entropy_with_logits, overlap, "IoU", "higher",
        epochs=16, batch=10, rate=3e-3, seed=seed,
    )  # fmt: skip
