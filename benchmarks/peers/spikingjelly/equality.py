"""Same weights, same surrogate: are outputs and gradients of both libraries the same?"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from networks import exact_spike, pair
from rich.console import Console
from rich.table import Table
from spikingjelly.activation_based import neuron, surrogate
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from htaf.spiking.neurons import IF, LIF

LIMIT = 1e-4  # float32, sums in another order; the same spikes everywhere, or the difference would be far larger


def difference(ours: Tensor, theirs: Tensor) -> float:
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def check() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    return [*neurons(), *networks()]


def neurons() -> list[dict[str, Any]]:
    rows = []
    kinds: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "IF": (IF, neuron.IFNode, {}),
        "LIF": (LIF, neuron.LIFNode, {"tau": 2.0}),
        "LIF, tau 3": (LIF, neuron.LIFNode, {"tau": 3.0}),
        "LIF, input not decayed": (LIF, neuron.LIFNode, {"tau": 3.0, "decay_input": False}),
    }
    for (name, (mine, peer, arguments)), reset, detach in itertools.product(
        kinds.items(), ("hard", "soft"), (True, False)
    ):
        torch.manual_seed(0)
        a = mine(exact_spike(), reset=reset, detach_reset=detach, **arguments)
        b = peer(
            v_reset=0.0 if reset == "hard" else None, detach_reset=detach, surrogate_function=surrogate.ATan(2.0),
            step_mode="m", **arguments,
        )  # fmt: skip
        x = torch.randn(6, 10_000) * 1.5
        found = []
        for net in (a, b):
            own = x.clone().requires_grad_()
            y = net(own)
            y.backward(x.sin())
            found.append((y.detach(), own.grad))
        (y, gx), (peer_y, peer_gx) = found
        rows.append(row(f"{name}, {reset} reset{'' if detach else ', attached'}", y, peer_y, difference(gx, peer_gx)))
    return rows


def networks() -> list[dict[str, Any]]:
    rows = []
    for depth, connect, stem, size in (
        (18, "add", "cifar", 32), (18, "add", "imagenet", 96), (18, "and", "cifar", 32), (18, "iand", "cifar", 32),
        (34, "add", "cifar", 32), (50, "add", "cifar", 32), (50, "and", "imagenet", 96),
    ):  # fmt: skip
        ours, theirs = pair(lambda: IF(exact_spike()), depth, width=16, connect=connect, stem=stem)
        x, label = torch.randn(4, 3, size, size), torch.randint(10, (4,))
        outputs = []
        for net in (ours, theirs):
            outputs.append(net(x))
            cross_entropy(outputs[-1], label).backward()
        grads = [{name: p.grad for name, p in net.named_parameters()} for net in (ours, theirs)]
        worst = max(difference(grads[0][name], g) for name, g in grads[1].items() if isinstance(g, Tensor))
        name = f"SEW-ResNet-{depth}, {connect}, {stem} stem"
        rows.append(row(name, *(y.detach() for y in outputs), worst, spikes_of(ours, x)))
    return rows


def spikes_of(net: nn.Module, x: Tensor) -> float:
    """The smallest share of spikes in a layer: where nothing fires, everything is equal."""
    shares: list[float] = []
    hooks = [
        m.register_forward_hook(lambda *a: shares.append(a[2].mean().item())) for m in net.modules() if type(m) is IF
    ]
    with torch.no_grad():
        net(x)
    for hook in hooks:
        hook.remove()
    return min(shares)


def row(name: str, ours: Tensor, theirs: Tensor, of_gradients: float, spikes: float | None = None) -> dict[str, Any]:
    of_outputs = difference(ours, theirs)
    return {
        "part": "equality",
        "case": name,
        "outputs": of_outputs,
        "gradients": of_gradients,
        "spikes": theirs.mean().item() if spikes is None else spikes,
        "equal": max(of_outputs, of_gradients) < LIMIT,
    }


def show(rows: list[dict[str, Any]], console: Console) -> None:
    table = Table(title="Largest difference / largest value, float32")
    for name in ("case", "outputs", "gradients", "least spikes", "equal"):
        table.add_column(name, justify="left" if name == "case" else "right", no_wrap=True)
    for r in rows:
        cells = (f"{r['outputs']:.1e}", f"{r['gradients']:.1e}", f"{r['spikes']:.3f}", "yes" if r["equal"] else "NO")
        table.add_row(r["case"], *cells)
    console.print(table)
