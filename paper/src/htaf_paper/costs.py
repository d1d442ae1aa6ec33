"""How fast a core of this machine is, against the one on which the costs of the paper's items were measured."""

from __future__ import annotations

import time

import torch
from torch import nn

REFERENCE = 0.25  # CPU seconds of `_work` on the reference: a core of an AMD EPYC with AVX-512, PyTorch 2.13


def machine_speed(rounds: int = 5) -> float:
    """The reference's seconds for a small training over this machine's, one thread, the fastest of some rounds."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return REFERENCE / min(_work() for _ in range(rounds))
    finally:
        torch.set_num_threads(before)


def _work() -> float:
    """CPU seconds of some training steps: a small convolution network and an MLP, as the items have them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * 16 * 16, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip
        x, y = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    began = time.process_time()
    for _ in range(12):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return time.process_time() - began
