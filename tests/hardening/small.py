"""A smooth step whose values are a linear function of its bits, and networks with it: repair can make these exact."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import htaf


class Linear01(nn.Module):
    """0.2 + 0.5 H(x): smooth in name only."""

    kind, sharpness, bipolar = "linear01", (), False

    def forward(self, x: Tensor) -> Tensor:
        return 0.2 + 0.5 * (x >= 0).to(x.dtype)

    def hardened(self) -> htaf.Heaviside:
        return htaf.Heaviside.of(self)


def rows(n: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed))


def batches(n: int, *shape: int, count: int = 2) -> list[Tensor]:
    return [rows(n, *shape, seed=i) for i in range(count)]


def fresh(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """The network with weights of its own, and norms that have seen something."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = make()
        with torch.no_grad():
            for module in net.modules():
                if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
                    for tensor in (module.weight, module.running_var):
                        tensor.uniform_(0.5, 2.0)
                    module.bias.uniform_(-0.5, 0.5)
                    module.running_mean.uniform_(-0.5, 0.5)  # pyright: ignore[reportOptionalMemberAccess]
    return net.eval()


def error(net: nn.Module, smooth: nn.Module, some: list[Tensor]) -> float:
    """Largest difference of outputs over the largest output."""
    with torch.no_grad():
        pairs = [(net(x), smooth(x)) for x in some]
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)
