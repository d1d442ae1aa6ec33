"""Time of a training step with each activation, beside straight-through and ReLU, once the activations' tests pass.

    python benchmarks/steps.py [--nets mlp mlp-bn conv dhn bnn snn] [--modes eager compiled] [--threads 1 2]
                               [--rounds 15] [--json FILE] [--no-test]

A step: forward, cross entropy, backward, Adam. All activations see the same batches and start from the same weights; a
sample is as many steps as take 20 ms or more. Every round takes a sample of each activation, in reversed order every
other round; a ratio is the median over the rounds of time / time of the other in the same round, with its quartiles.
`again` is a second net with straight-through: how far a ratio of equals strays from 1. dhn, bnn and snn are the
networks of the reduced recipes (WRN-16-1; Bi-Real-18 and SEW-ResNet-18, T = 4, width 16), channels-last.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import measuring
import torch
from measuring import Sample
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import htaf
from htaf import surrogates
from htaf.models.bireal import BiRealNet
from htaf.models.mlp import MLP
from htaf.models.sew_resnet import SEWResNet
from htaf.models.wide_resnet import WideResNet
from htaf.transform.spiking.neurons import IF

SHORTEST = 0.020  # seconds of a sample
TARGET = 1.05  # HTAF over straight-through
BATCHES = 8  # different ones, in turn: one alone would be learned by heart and its gradients vanish
CLASSES = 10

Activation = Callable[[], nn.Module]
ACTIVATIONS: dict[str, Activation] = {
    "ste": partial(htaf.StraightThrough, surrogates.sigmoid),
    "htaf": partial(htaf.HTAF, 2.0, 11.0),
    "ss": partial(htaf.ScaledSigmoid, 22.0),
    "relu": nn.ReLU,
}
AGAIN = "again"  # of straight-through


class Net(NamedTuple):
    make: Callable[[Activation], nn.Module]
    shape: tuple[int, ...]
    batches: tuple[int, ...]


def convolutional(act: Activation) -> nn.Module:
    """Three blocks, 32 channels at 32 x 32, 64 at 16 x 16, 128 at 8 x 8, then the mean over pixels."""
    blocks = [
        nn.Sequential(nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False), nn.BatchNorm2d(n_out), act())
        for n_in, n_out, stride in ((3, 32, 1), (32, 64, 2), (64, 128, 2))
    ]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES))


def mlp(act: Activation, batch_norm: bool) -> nn.Module:
    return MLP(16, CLASSES, (256, 256, 128), act, batch_norm)


def bireal(act: Activation) -> nn.Module:
    signs = act if act is nn.ReLU else partial(act, bipolar=True)
    return BiRealNet(18, CLASSES, signs, width=16, stem="cifar")


def sew(act: Activation) -> nn.Module:
    neuron = nn.ReLU if act is nn.ReLU else lambda: IF(act())
    return SEWResNet(18, CLASSES, neuron, width=16, stem="cifar")


NETS: dict[str, Net] = {
    "mlp": Net(partial(mlp, batch_norm=False), (16,), (256, 4096)),
    "mlp-bn": Net(partial(mlp, batch_norm=True), (16,), (256, 4096)),
    "conv": Net(convolutional, (3, 32, 32), (64,)),
    "dhn": Net(lambda act: WideResNet(16, 1, CLASSES, act), (3, 32, 32), (128,)),
    "bnn": Net(bireal, (3, 32, 32), (128,)),
    "snn": Net(sew, (3, 32, 32), (64,)),
}
FAMILIES = ("dhn", "bnn", "snn")  # left out unless they are asked for: a step of theirs takes up to a second


class Training:
    """A net of its own, its optimizer, and the batches it sees in turn."""

    def __init__(self, net: Net, act: Activation, data: Sequence[tuple[Tensor, Tensor]], compiled: bool) -> None:
        torch.manual_seed(0)
        module = net.make(act)
        if len(net.shape) == 3:
            module = module.to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.Adam(module.parameters(), 1e-3)
        self.run = torch.compile(module, dynamic=False) if compiled else module
        self.batches = itertools.cycle(data)

    def sample(self, steps: int) -> Sample:
        """Seconds of a step."""
        start = time.perf_counter()
        for _ in range(steps):
            x, label = next(self.batches)
            self.optimizer.zero_grad()
            cross_entropy(self.run(x), label).backward()
            self.optimizer.step()
        return ((time.perf_counter() - start) / steps,)


def make_data(shape: tuple[int, ...], batch: int) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [
        (torch.randn(batch, *shape, generator=draw), torch.randint(CLASSES, (batch,), generator=draw))
        for _ in range(BATCHES)
    ]


def measure(name: str, batch: int, compiled: bool, threads: int, rounds: int) -> list[dict[str, Any]]:
    torch.set_num_threads(threads)
    torch.compiler.reset()  # code compiled for another number of threads is not used again
    data = make_data(NETS[name].shape, batch)
    acts = {**ACTIVATIONS, AGAIN: ACTIVATIONS["ste"]}
    trainings = {key: Training(NETS[name], act, data, compiled) for key, act in acts.items()}
    for training in trainings.values():
        training.sample(2)  # compiles
    fastest = min(statistics.median(t.sample(1)[0] for _ in range(5)) for t in trainings.values())
    steps = math.ceil(1.2 * SHORTEST / fastest)
    times = measuring.alternate({key: partial(t.sample, steps) for key, t in trainings.items()}, rounds)
    case = {"net": name, "batch": batch, "mode": "compiled" if compiled else "eager", "threads": threads}
    return [
        {
            **case,
            "activation": key,
            "steps_per_sample": steps,
            "rounds": rounds,
            "ms": 1e3 * measuring.spread(t[0] for t in spent).median,
            "over_ste": measuring.ratio(spent, times["ste"])._asdict(),
            "over_relu": measuring.ratio(spent, times["relu"])._asdict(),
        }
        for key, spent in times.items()
    ]


def compiler_problem() -> str | None:
    """Why `torch.compile` does not work here, None when it does."""
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.ones(64))
    except Exception as error:  # whatever the compiler raises
        return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return None


def show(rows: list[dict[str, Any]]) -> None:
    cells = []
    for case in grouped(rows):
        first = case["ste"]
        cells.append([first["net"], str(first["batch"]), first["mode"], str(first["threads"]), f"{first['ms']:.2f}"])
        cells[-1] += [str(measuring.Spread(**case[key]["over_ste"])) for key in ("htaf", AGAIN, "ss")]
        cells[-1].append(str(measuring.Spread(**case["htaf"]["over_relu"])))
    columns = ("net", "batch", "mode", "threads", "ste, ms", "htaf / ste", "again / ste", "ss / ste", "htaf / relu")
    measuring.show("Training step: ratio, median over the rounds and (quartiles)", columns, cells, ["net", "mode"])
    ratios = [case["htaf"]["over_ste"]["median"] for case in grouped(rows)]
    met = sum(r <= TARGET for r in ratios)
    print(f"HTAF within {TARGET} of straight-through: {met} of {len(ratios)}; the largest is {max(ratios):.3f}")


def grouped(rows: list[dict[str, Any]]) -> list[dict[str, dict[str, Any]]]:
    """One dict a net, batch, mode and number of threads: activation -> row."""
    groups: dict[tuple, dict[str, dict[str, Any]]] = {}
    for row in rows:
        key = tuple(row[k] for k in ("net", "batch", "mode", "threads"))
        groups.setdefault(key, {})[row["activation"]] = row
    return list(groups.values())


def main() -> None:
    parser = measuring.parser(__doc__, rounds=15, threads=(1, 2))
    parser.add_argument("--nets", nargs="+", choices=NETS, default=[n for n in NETS if n not in FAMILIES])
    parser.add_argument("--modes", nargs="+", choices=["eager", "compiled"], default=["eager", "compiled"])
    arguments = measuring.begin(parser, "test_activations.py", *measuring.kernel_tests())
    modes = list(arguments.modes)
    problem = compiler_problem() if "compiled" in modes else None
    if problem is not None:
        print(f"torch.compile does not work here, compiled steps are left out: {problem}")
        modes.remove("compiled")
    rows = []
    for mode, name in itertools.product(modes, arguments.nets):
        for batch, threads in itertools.product(NETS[name].batches, arguments.threads):
            rows += measure(name, batch, mode == "compiled", threads, arguments.rounds)
    if rows:
        show(rows)
    measuring.end(arguments, rows)


if __name__ == "__main__":
    main()
