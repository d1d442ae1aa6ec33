"""SpikingJelly's and snnTorch's networks beside htaf's, spike by spike over T steps, both ways.

    pip install -e '.[export]' -r benchmarks/peers/spiking/requirements.txt
    python benchmarks/peers/spiking/compare.py                # what of the two is installed
    python benchmarks/peers/spiking/compare.py --epochs 2     # a quick look

Networks are trained on scikit-learn's digits by each library itself: convolutions, neurons, a linear layer and neurons,
T = 8. A row counts the outputs that differ over all test images and steps, and the test images that are named
otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import htaf
from htaf.program.export import to_nir

T = 8


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    x = torch.tensor(np.asarray(pixels), dtype=torch.float32).view(-1, 1, 8, 8) / 16
    y, order = torch.tensor(labels), torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1300], order[1300:]
    return x[train], y[train], x[test], y[test]


def trained(net: nn.Module, run: Callable[[nn.Module, Tensor], Tensor], epochs: int) -> nn.Module:
    """By cross-entropy on the mean output over T steps, times 5."""
    x, y, _, _ = digits()
    optimizer, generator = torch.optim.Adam(net.parameters(), lr=5e-3), torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(64):
            optimizer.zero_grad()
            F.cross_entropy(5 * run(net.train(), over_time(x[rows])).mean(0), y[rows]).backward()
            optimizer.step()
    return net.eval()


def over_time(x: Tensor) -> Tensor:
    return x.expand(T, *x.shape)


def row(what: str, theirs: Tensor, ours: Tensor) -> None:
    _, _, _, y = digits()
    guesses = [out.detach().mean(0).argmax(1) for out in (theirs, ours)]
    differ, named = int((theirs != ours).sum()), int((guesses[0] != guesses[1]).sum())
    rates = [100 * float((guess == y).float().mean()) for guess in guesses]
    print(f"| {what} | {differ} of {ours.numel()} | {named} | {rates[0]:.1f}% | {rates[1]:.1f}% |", flush=True)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()):
        yield


class Ours(nn.Module):
    """A network of htaf: an image at every step, the mean over T."""

    def __init__(self, neuron: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.conv, self.neuron1, self.pool = nn.Conv2d(1, 8, 3, padding=1), neuron(), nn.AvgPool2d(2)
        self.fc1, self.neuron2 = nn.Linear(128, 10), neuron()

    def over_time(self, x: Tensor) -> Tensor:
        y = self.pool(self.neuron1(self.conv(x[0]).expand(len(x), -1, -1, -1, -1)).flatten(0, 1))
        return self.neuron2(self.fc1(y.flatten(1)).unflatten(0, (len(x), -1)))

    def forward(self, x: Tensor) -> Tensor:
        y = self.neuron1(self.conv(x).expand(T, -1, 8, 8, 8)).flatten(0, 1)
        return self.neuron2(self.fc1(self.pool(y).flatten(1)).unflatten(0, (T, -1))).mean(0)


def ours(neuron: Any, epochs: int) -> nn.Module:
    torch.manual_seed(0)
    net = Ours(lambda: neuron(htaf.StraightThrough(htaf.surrogates.atan)))
    return htaf.harden(trained(net, lambda net, x: net.over_time(x), epochs)).eval()


def of_spikingjelly(net: Any) -> Any:
    """A copy with htaf's neurons in the place of SpikingJelly's, as docs/export.md has it."""
    made = copy.deepcopy(net) if len(list(net.children())) else nn.Sequential(net)
    for path, found in list(made.named_modules()):
        node: Any = found
        if hasattr(node, "v_threshold"):
            shared = {"threshold": node.v_threshold, "reset": "soft" if node.v_reset is None else "hard"}
            tau = 1 / node.w.sigmoid().item() if hasattr(node, "w") else getattr(node, "tau", None)
            kind: Any = htaf.IF if tau is None else partial(htaf.LIF, tau=tau, decay_input=node.decay_input)
            made.set_submodule(path, kind(htaf.Heaviside(), **shared))
    return made.eval()


def spikingjelly(epochs: int) -> None:
    from spikingjelly.activation_based import functional, layer, neuron, nir_exchange, surrogate

    def run(net: nn.Module, x: Tensor) -> Tensor:
        functional.reset_net(net)
        return net(x)

    def network(norms: bool, node: Callable[..., nn.Module]) -> nn.Module:
        torch.manual_seed(0)
        norm = [layer.BatchNorm2d(8)] if norms else []
        net = nn.Sequential(
            layer.Conv2d(1, 8, 3, padding=1), *norm, node(), layer.MaxPool2d(2) if norms else layer.AvgPool2d(2),
            layer.Flatten(), layer.Linear(128, 10), node(),
        )  # fmt: skip
        functional.set_step_mode(net, "m")
        return net

    _, _, x, _ = digits()
    x = over_time(x)
    print("Random input, 2,048,000 spikes a neuron:\n")
    for node in (
        neuron.IFNode(), neuron.IFNode(v_threshold=0.7, v_reset=None), neuron.LIFNode(), neuron.LIFNode(tau=3.7),
        neuron.LIFNode(tau=3.7, v_reset=None), neuron.LIFNode(tau=3.0, decay_input=False),
        neuron.ParametricLIFNode(init_tau=2.5),
    ):  # fmt: skip
        node.step_mode = "m"
        given = 1.5 * torch.randn(32, 64, 1000, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            theirs, mine = run(node, given), of_spikingjelly(node)(given)
        print(f"- {type(node).__name__} {of_spikingjelly(node)[0].extra_repr()}: {int((theirs != mine).sum())} differ")
    header("SpikingJelly")
    atan = {"surrogate_function": surrogate.ATan()}
    kinds: dict[str, Callable[..., nn.Module]] = {
        "IF": lambda: neuron.IFNode(**atan),
        "IF, soft reset": lambda: neuron.IFNode(v_reset=None, **atan),
        "LIF": lambda: neuron.LIFNode(tau=2.0, **atan),
        "PLIF": lambda: neuron.ParametricLIFNode(init_tau=2.0, **atan),
    }
    for name, node in kinds.items():
        net = trained(network(True, node), run, epochs)
        with torch.no_grad():
            theirs, taken = run(net, x), of_spikingjelly(net)
            row(f"{name}: of_spikingjelly", theirs, taken(x))
    smooth = trained(network(True, lambda: neuron.LIFNode(surrogate_function=htaf.HTAF(2, 11))), run, epochs)
    functional.reset_net(smooth)
    exact = htaf.harden(smooth)
    with torch.no_grad():
        row("LIF(surrogate_function=HTAF()), hardened", run(exact, x), of_spikingjelly(exact)(x))
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in {"IF": htaf.IF, "LIF": htaf.LIF, "LIF, whole input": whole_input}.items():
            net = ours(kind, epochs)
            to_nir(net, x[0], Path(folder) / "net.nir")
            read = nir_exchange.import_from_nir(Path(folder) / "net.nir", step_mode="m")
            with torch.no_grad():
                row(f"{name}: to_nir, their reader", read(x)[0], net.over_time(x))


def snntorch(epochs: int) -> None:
    import nir
    import snntorch as snn
    from snntorch.import_nir import import_from_nir

    def run(net: nn.Module, x: Tensor) -> Tensor:
        for m in net.modules():
            if isinstance(m, snn.Leaky):
                m.mem = torch.zeros(0)
        outputs = [net(now) for now in x]
        return torch.stack([out[0] if isinstance(out, tuple) else out for out in outputs])

    _, _, x, _ = digits()
    x = over_time(x)
    header("snnTorch")
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in {"LIF": htaf.LIF, "LIF, whole input": whole_input}.items():
            net = ours(kind, epochs)
            to_nir(net, x[0], Path(folder) / "net.nir")
            with torch.no_grad(), quiet():
                theirs = run(import_from_nir(nir.read(Path(folder) / "net.nir")), x)
            row(f"{name}: to_nir, their reader", theirs, net.over_time(x))


def whole_input(spike: nn.Module) -> nn.Module:
    return htaf.LIF(spike, decay_input=False)


def header(peer: str) -> None:
    print(f"\n| {peer} | outputs that differ | images named otherwise | {peer}'s accuracy | htaf's |")
    print("|---|---|---|---|---|")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    epochs = parser.parse_args().epochs
    torch.set_num_threads(1)
    for peer in (spikingjelly, snntorch):
        try:
            peer(epochs)
        except ModuleNotFoundError as error:
            print(f"{peer.__name__}: not here ({error})")
