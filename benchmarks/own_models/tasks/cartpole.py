"""CartPole by REINFORCE: the equations of Barto, Sutton and Anderson 1983, many carts at once; mean return of 500."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks.own_models.problem import Activation, ignored, optimizers
from torch import Tensor, nn

MOST = 500  # steps of an episode
GRAVITY, CART, POLE, HALF, FORCE, TAU = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02


def moved(state: Tensor, right: Tensor) -> Tensor:
    """The state [carts, 4] (place, speed, angle, turning) after one Euler step."""
    x, v, angle, turning = state.unbind(1)
    force = torch.where(right.bool(), FORCE, -FORCE)
    mass = CART + POLE
    pushed = (force + POLE * HALF * turning.square() * angle.sin()) / mass
    turn = (GRAVITY * angle.sin() - angle.cos() * pushed) / (HALF * (4 / 3 - POLE * angle.cos().square() / mass))
    speed = pushed - POLE * HALF * turn * angle.cos() / mass
    return torch.stack([x + TAU * v, v + TAU * speed, angle + TAU * turning, turning + TAU * turn], 1)


def fallen(state: Tensor) -> Tensor:
    return (state[:, 0].abs() > 2.4) | (state[:, 2].abs() > 12 * math.pi / 180)


def begun(count: int, generator: torch.Generator) -> Tensor:
    return 0.1 * torch.rand(count, 4, generator=generator) - 0.05


SCALE = torch.tensor([1.0, 1.0, 5.0, 1.0])


@torch.no_grad()
def returns(net: nn.Module, seed: int, count: int = 100) -> float:
    """The mean length of episodes in which the likelier action is taken."""
    state = begun(count, torch.Generator().manual_seed(seed))
    alive, total = torch.ones(count, dtype=torch.bool), torch.zeros(count)
    net.eval()
    for _ in range(MOST):
        total += alive
        state = torch.where(alive[:, None], moved(state, net(state * SCALE).argmax(1)), state)
        alive = alive & ~fallen(state)
        if not alive.any():
            break
    return total.mean().item()


@dataclass
class CartPole:
    seed: int
    metric: str = "return"
    better: str = "higher"
    where: None = None
    updates: int = 25
    carts: int = 16
    rate: float = 1e-2

    def net(self, activation: Activation) -> nn.Module:
        torch.manual_seed(self.seed)
        return nn.Sequential(nn.Linear(4, 64), activation(), nn.Linear(64, 64), activation(), nn.Linear(64, 2))

    @property
    def example(self) -> Tensor:
        """States of carts that are pushed at random."""
        generator = torch.Generator().manual_seed(4000 + self.seed)
        state, seen = begun(64, generator), []
        for _ in range(8):
            seen.append(state)
            state = moved(state, torch.randint(0, 2, (64,), generator=generator))
        return torch.cat(seen) * SCALE

    @property
    def batches(self) -> list[Tensor]:
        return [self.example]

    def train(self, net: nn.Module, optimizer: str, begin: Callable[[float], Any] = ignored) -> None:
        torch.manual_seed(self.seed)
        generator = torch.Generator().manual_seed(5000 + self.seed)
        found = optimizers(net, optimizer, self.rate)
        net.train()
        for update in range(self.updates):
            begin(update / self.updates)
            state, alive = begun(self.carts, generator), torch.ones(self.carts, dtype=torch.bool)
            states, actions, lives = [], [], []
            with torch.no_grad():
                while alive.any() and len(states) < MOST:
                    action = torch.multinomial(net(state * SCALE).softmax(1), 1, generator=generator)[:, 0]
                    states.append(state)
                    actions.append(action)
                    lives.append(alive)
                    state = moved(state, action)
                    alive = alive & ~fallen(state)
            live = torch.stack(lives).float()
            gain, sums = torch.zeros(self.carts), []
            for step in reversed(live):
                gain = step * (1 + 0.99 * gain)
                sums.append(gain)
            worth = torch.stack(sums[::-1])
            mask = live.flatten() > 0
            worth = worth.flatten()[mask]
            worth = (worth - worth.mean()) / (worth.std() + 1e-6)
            rows = torch.cat(states)[mask] * SCALE
            chosen = net(rows).log_softmax(1).gather(1, torch.cat(actions)[mask][:, None])[:, 0]
            for one in found:
                one.zero_grad()
            (-(chosen * worth).mean()).backward()
            for one in found:
                one.step()
        net.eval()

    def measure(self, net: nn.Module) -> float:
        return -returns(net, 6000 + self.seed)

    def score(self, net: nn.Module) -> float:
        return returns(net, 7000 + self.seed, 200)


def make(seed: int) -> CartPole:
    return CartPole(seed)
