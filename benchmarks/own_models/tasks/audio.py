"""Raw sound: ten vowels of voices between men's and women's, in noise, by strided convolutions over samples; accuracy.

Pulses of a voice through three resonances. Formants: Peterson and Barney 1952, means of men and of women.
"""

from __future__ import annotations

import math

import torch
from benchmarks.own_models.problem import Activation, Pair, Supervised, accuracy
from torch import Tensor, nn

RATE, SAMPLES, HARMONICS = 8000, 1024, 40
MEN = (
    (270, 2290, 3010), (390, 1990, 2550), (530, 1840, 2480), (660, 1720, 2410), (730, 1090, 2440),
    (570, 840, 2410), (440, 1020, 2240), (300, 870, 2240), (640, 1190, 2390), (490, 1350, 1690),
)  # fmt: skip
WOMEN = (
    (310, 2790, 3310), (430, 2480, 3070), (610, 2330, 2990), (860, 2050, 2850), (850, 1220, 2810),
    (590, 920, 2710), (470, 1160, 2680), (370, 950, 2670), (760, 1400, 2780), (500, 1640, 1960),
)  # fmt: skip


class Raw(nn.Module):
    def __init__(self, act: Activation, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, size, stride in ((1, 32, 4), (width, 5, 2), (width, 5, 2), (width, 5, 2)):
            layers += [nn.Conv1d(inputs, width, size, stride, size // 2, bias=False), nn.BatchNorm1d(width), act()]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(width, len(MEN))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean(2))


def sounds(count: int, generator: torch.Generator) -> Pair:
    def draw(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, generator=generator)

    y = torch.randint(0, len(MEN), (count,), generator=generator)
    voice = draw(0, 1, 1)
    formants = torch.lerp(torch.tensor(MEN).float()[y], torch.tensor(WOMEN).float()[y], voice) * draw(0.96, 1.04, 3)
    pitch = (120 + 90 * voice) * draw(0.8, 1.2, 1)
    f = pitch * torch.arange(1, HARMONICS + 1)
    gain = torch.where(f < RATE / 2, 1 / f, 0.0).to(torch.complex64)
    for i in range(3):
        resonance = formants[:, i : i + 1].square()
        gain = gain * resonance / torch.complex(resonance - f.square(), f * (60 + 40 * i))
    turns = f[:, :, None] * (torch.arange(SAMPLES) / RATE) + draw(0, 1, 1)[:, :, None]
    x = torch.einsum("bh,bht->bt", gain, torch.polar(torch.ones(()), 2 * math.pi * turns)).real
    x = x / x.std(1, keepdim=True) * draw(0.5, 1.5, 1)
    return (x + 0.3 * torch.randn(x.shape, generator=generator))[:, None], y


def make(seed: int) -> Supervised:
    generator = torch.Generator().manual_seed(18_000 + seed)
    training, validation, test = (sounds(count, generator) for count in (3000, 1000, 2000))
    return Supervised(
        Raw, training, validation, test, nn.functional.cross_entropy, accuracy, "accuracy, %", "higher",
        epochs=12, batch=64, rate=2e-3, seed=seed,
    )  # fmt: skip
