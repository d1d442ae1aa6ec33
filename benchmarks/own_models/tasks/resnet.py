"""Small ResNet (batch norm, sums) on 4,000 images of CIFAR-10 at 16 x 16; accuracy on 4,000 of its test images."""

from __future__ import annotations

from benchmarks.own_models.problem import Activation, Supervised, accuracy
from benchmarks.own_models.tasks.mixer import read
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, act: Activation, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.act1, self.act2, self.down = act(), act(), nn.Identity()
        if stride > 1:
            self.down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        h = self.act1(self.norm1(self.conv1(x)))
        return self.act2(self.norm2(self.conv2(h)) + self.down(x))


def network(act: Activation) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), act(), Block(24, 24, act, 1), Block(24, 48, act, 2),
        Block(48, 96, act, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10),
    )  # fmt: skip


def small(name: str, count: int, skip: int = 0) -> tuple[Tensor, Tensor]:
    x, y = read(name, count, skip)
    return nn.functional.avg_pool2d(x, 2), y


def make(seed: int) -> Supervised:
    training, validation = small("data_batch_1", 4000), small("data_batch_1", 1500, 6000)
    return Supervised(
        network, training, validation, small("test_batch", 4000), nn.functional.cross_entropy, accuracy, "accuracy, %",
        "higher", epochs=4, batch=64, rate=2e-3, seed=seed,
    )  # fmt: skip
