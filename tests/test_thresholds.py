"""Steps whose pre-activations cannot be negative: `replace` moves their threshold, and the network learns."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from torch import distributed, nn
from torch.nn import functional as F

import htaf
from htaf import StraightThrough

X = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))


class Residual(nn.Module):
    """relu(net(x) + x) with a ReLU at the end of `net`, as of temporal convolutional networks; or with F.relu."""

    def __init__(self, functional: bool = False) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
        self.entrance, self.relu, self.head = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)
        self.functional = functional

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.entrance(x))
        h = F.relu(h + F.relu(self.net[0](h))) if self.functional else self.relu(self.net(h) + h)
        return self.head(h)


def chain(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), *between, nn.Linear(16, 2))


NETS: dict[str, Callable[[], nn.Module]] = {
    "residual": Residual,
    "functional": lambda: Residual(functional=True),
    "ReLU-ReLU": lambda: chain(nn.ReLU(), nn.ReLU()),
    "GELU-ReLU": lambda: chain(nn.GELU(), nn.ReLU()),
    "Sigmoid-Hardtanh": lambda: chain(nn.Sigmoid(), nn.Hardtanh()),
    "ReLU-Softplus": lambda: chain(nn.ReLU(), nn.Softplus()),
    "ReLU-MaxPool-ReLU": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        nn.Conv1d(1, 4, 3),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12, 2),
    ),
    "ReLU on what is not negative": lambda: nn.Sequential(nn.Softmax(1), nn.ReLU(), nn.Linear(8, 2)),
}


@pytest.mark.parametrize("name", NETS)
def test_every_step_gives_both_values(name: str) -> None:
    torch.manual_seed(0)
    net = htaf.replace(NETS[name](), where="*", example=X)
    seen: list[set[float]] = []
    for step in net.modules():
        if isinstance(step, StraightThrough):
            step.register_forward_hook(lambda module, args, output: seen.append({*output.flatten().tolist()}))
    net.eval()(X)
    assert seen
    assert all(values == {0.0, 1.0} for values in seen), seen
    assert "threshold" in str(htaf.conversion(net))


def test_the_threshold_goes_wherever_the_step_goes() -> None:
    torch.manual_seed(0)
    made = Residual()
    net = htaf.replace(made, example=X).eval()
    assert net.relu.threshold > 0  # pyright: ignore[reportOperatorIssue]
    expected = net(X)
    exact = htaf.harden(net).eval()
    assert torch.equal(exact(X), expected)
    assert torch.allclose(htaf.pack(exact, X)(X), expected, atol=1e-5)
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other = htaf.replace(made, example=3 * X.abs()).eval()
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(X), expected)
    with pytest.warns(UserWarning, match="no threshold"):
        other.load_state_dict(dict(net.state_dict()))


def test_the_gradient_lies_around_the_threshold() -> None:
    step = StraightThrough(htaf.surrogates.tanh, threshold=0.7)
    x = torch.linspace(-1, 2, 31, requires_grad=True)
    step(x).sum().backward()
    shifted = (x.detach() - torch.tensor(0.7)).requires_grad_()
    StraightThrough(htaf.surrogates.tanh)(shifted).sum().backward()
    assert torch.allclose(x.grad, shifted.grad, atol=1e-6)  # pyright: ignore[reportArgumentType]
    assert torch.equal(step(x), (x >= 0.7).float())


def test_a_residual_network_learns() -> None:
    """At chance where its last step gave 1 throughout."""
    torch.manual_seed(0)
    y = (X[:, 0] * X[:, 1] > 0).long()
    net = htaf.replace(Residual(), example=X)
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    for step in range(150):
        htaf.sharpen(net, step / 150)
        optimizer.zero_grad()
        F.cross_entropy(net(X), y).backward()
        optimizer.step()
    assert (net.eval()(X).argmax(1) == y).float().mean() > 0.8


def test_what_stays_constant_is_told() -> None:
    net = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    nn.init.zeros_(net[0].weight)  # pyright: ignore[reportArgumentType]
    nn.init.ones_(net[0].bias)  # pyright: ignore[reportArgumentType]
    with pytest.warns(UserWarning, match="one value"):
        new = htaf.replace(net, example=X)
    assert "1: it gives one value" in str(htaf.conversion(new))


@pytest.mark.parametrize("module", [nn.LazyLinear(8)])
def test_parameters_without_values_are_named(module: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"0\.weight"):
        htaf.replace(nn.Sequential(module, nn.ReLU(), nn.Linear(8, 2)), example=X)


def test_an_activation_inside_vmap() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.vmap(lambda row: self.b(torch.relu(self.a(row))))(x)

    new = htaf.replace(Rows(), where="*", example=X)
    assert {*new(X).shape} == {256, 2}


def test_save_pretrained_does_not_lose_the_steps() -> None:
    class Pretrained(nn.Sequential):
        def save_pretrained(self, folder: str) -> None:
            raise AssertionError

    made = Pretrained(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    new = htaf.replace(made, example=X)
    for net in (new, htaf.harden(new)):
        with pytest.raises(ValueError, match=r"torch\.save"):
            net.save_pretrained("folder")
    with pytest.raises(AssertionError):
        made.save_pretrained("folder")


def of_one_rank(rank: int, place: str, found: "mp.SimpleQueue[list[float]]") -> None:
    distributed.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    torch.manual_seed(0)
    net = htaf.replace(Residual(), example=(1 + 9 * rank) * X, levels=2)
    steps = [m for m in net.modules() if isinstance(m, StraightThrough)]
    found.put([number for step in steps for number in (step.width, step.spacing, step.threshold)])
    distributed.destroy_process_group()


def test_all_processes_of_a_group_have_the_same_steps(tmp_path: Path) -> None:
    context = mp.get_context("fork")
    found = context.SimpleQueue()
    processes = [context.Process(target=of_one_rank, args=(rank, str(tmp_path / "store"), found)) for rank in (0, 1)]
    for process in processes:
        process.start()
    assert found.get() == found.get()
    for process in processes:
        process.join()
