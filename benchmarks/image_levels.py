"""What levels, epochs, distillation and averaged weights bring on CIFAR-10: the quick network in a loop of its own.

    python benchmarks/image_levels.py [--only "8: two levels" ...] [--seeds 0 1 2] [--out image_levels.jsonl] [--jobs 1]

One line a training goes to --out: settings, accuracies of the exact network in %, seconds. Those that it holds are not
done again. `--jobs N` runs N processes on the one device. HTAF_DATA is the folder with cifar-10-batches-py.
The recipe is that of `htaf train dhn --recipe quick`: Muon, batch 500, bfloat16, smooth for 34% of the steps, then
exact with the smooth gradient; statistics of norms are taken anew at the end. 2,500 images are the validation part.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pickle
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import htaf
from htaf.models.whitened import WhitenedConvNet

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH, HELD = 500, 2500
PAIR, SWITCH = (0.4, 5.0), 0.34
SPACING = {1: 1.4, 2: 1.4, 3: 1.0, 4: 0.7, 8: 0.3}


@dataclass(frozen=True)
class Trial:
    """One training: `relu` has the real-valued activation everywhere, `relu_at` at these of the six steps."""

    name: str
    epochs: int = 8
    levels: int = 1
    relu: bool = False
    relu_at: tuple[int, ...] = ()
    binary_weights: bool = False
    widths: tuple[int, ...] = (64, 256, 256)
    average: float = 0.0  # decay of the averaged weights over the last 30% of the steps; 0: none
    teacher_epochs: int = (
        0  # of a ReLU network with the same seed, whose logits are learned (weight 0.7, temperature 2)
    )
    seed: int = field(default=0, compare=False)


LEVELS = {"one": 1, "two": 2, "three": 3, "four": 4}
TRIALS = [
    *[Trial(f"{epochs}: {n} level{'s' * (k > 1)}", epochs, k) for epochs in (4, 8, 32) for n, k in LEVELS.items()],
    *[Trial(f"{epochs}: ReLU", epochs, relu=True) for epochs in (4, 8, 32)],
    *[
        Trial(f"{e}: binary weights, {n}", e, k, binary_weights=True)
        for e in (8, 32)
        for n, k in list(LEVELS.items())[:3]
    ],
    Trial("32: three levels, averaged weights", 32, 3, average=0.995),
    *[Trial(f"24 + 8: {n} levels, distilled", 24, k, teacher_epochs=8) for n, k in list(LEVELS.items())[1:3]],
    *[
        Trial(f"4: {n}, ReLU at step {i + 1}", 4, k, relu_at=(i,))
        for n, k in list(LEVELS.items())[:2]
        for i in range(6)
    ],
    Trial("4: two levels, 48-176-176", 4, 2, widths=(48, 176, 176)),
]


class Step(nn.Module):
    """HTAF of some levels; once `exact`, the exact step forward and the gradient of HTAF backward."""

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.smooth = htaf.HTAF(*PAIR, levels=levels, spacing=SPACING[levels])
        self.step, self.exact = self.smooth.hardened(), False

    def forward(self, x: Tensor) -> Tensor:
        y = self.smooth(x)
        return self.step(x.detach()) + y - y.detach() if self.exact else y


def images() -> tuple[Tensor, Tensor]:
    """All 60,000, training first, as the network takes them."""
    folder = Path(os.environ["HTAF_DATA"]) / "cifar-10-batches-py"
    read = [
        pickle.loads((folder / name).read_bytes(), encoding="bytes")
        for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
    ]
    x = torch.cat([torch.from_numpy(part[b"data"]) for part in read]).view(-1, 3, 32, 32).to(DEVICE)
    mean = torch.tensor([0.4914, 0.4822, 0.4465], device=DEVICE).view(1, 3, 1, 1)
    std = torch.tensor([0.2470, 0.2435, 0.2616], device=DEVICE).view(1, 3, 1, 1)
    return (x.float() / 255 - mean) / std, torch.tensor([y for part in read for y in part[b"labels"]], device=DEVICE)


def batches(x: Tensor, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Indices and images: shifted by up to 2 pixels, flipped in every other epoch."""
    order, at, flipped = torch.randperm(len(x), device=DEVICE), 0, torch.rand(len(x), device=DEVICE) < 0.5
    row, rows = torch.arange(32, device=DEVICE), torch.arange(BATCH, device=DEVICE).view(-1, 1, 1)
    for _ in range(steps):
        if at + BATCH > len(x):
            order, at, flipped = torch.randperm(len(x), device=DEVICE), 0, ~flipped
        index = order[at : at + BATCH]
        at += BATCH
        picked = torch.where(flipped[index].view(-1, 1, 1, 1), x[index].flip(3), x[index])
        padded = F.pad(picked, (2, 2, 2, 2), mode="reflect").permute(0, 2, 3, 1)
        down, right = (torch.randint(0, 5, (BATCH, 1, 1), device=DEVICE) for _ in range(2))
        yield index, padded[rows, down + row.view(1, 32, 1), right + row.view(1, 1, 32)].permute(0, 3, 1, 2)


def network(trial: Trial, examples: Tensor) -> WhitenedConvNet:
    places = iter(range(2 * len(trial.widths)))

    def activation() -> nn.Module:
        return nn.ReLU() if trial.relu or next(places) in trial.relu_at else Step(trial.levels)

    conv = htaf.BinaryConv2d if trial.binary_weights else nn.Conv2d
    net = WhitenedConvNet(10, activation, widths=trial.widths, conv=conv).to(DEVICE)
    net.whiten(examples)
    return net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def optimizer_of(net: nn.Module) -> torch.optim.Optimizer:
    from timm.optim.muon import Muon  # timm imports torchvision, which htaf repairs first

    learned = [p for p in net.parameters() if p.requires_grad]
    matrices = [p for p in learned if p.ndim in (2, 4)]
    others = [p for p in learned if p.ndim not in (2, 4)]
    groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0, "use_fallback": True}]
    return Muon(groups, lr=0.012, weight_decay=0.5, momentum=0.8, ns_steps=3)


def logits(net: nn.Module, x: Tensor) -> Tensor:
    net.eval()
    with torch.no_grad():
        return torch.cat([net(part.to(memory_format=torch.channels_last)) for part in x.split(HELD)])


def trained(trial: Trial, x: Tensor, y: Tensor, taught: Tensor | None) -> nn.Module:
    """The network after its training, exact, with statistics of norms taken anew."""
    net = network(trial, x[:5000])
    optimizer, steps = optimizer_of(net), trial.epochs * len(x) // BATCH
    averaged: list[Tensor] = []
    learned = [p for p in net.parameters() if p.requires_grad]
    net.train()
    for number, (index, picked) in enumerate(batches(x, steps)):
        progress = number / steps
        for group in optimizer.param_groups:
            group["lr"] = 0.012 * (progress / 0.2 if progress < 0.2 else max(0.001, (1 - progress) / 0.8))
        for step in net.modules():
            if isinstance(step, Step):
                step.exact = progress >= SWITCH
        with torch.autocast(DEVICE, torch.bfloat16):
            out = net(picked.to(memory_format=torch.channels_last))
        loss = F.cross_entropy(out.float(), y[index], label_smoothing=0.1)
        if taught is not None:
            own, other = (F.log_softmax(z / 2, 1) for z in (out.float(), taught[index]))
            loss = 0.3 * loss + 0.7 * 4 * F.kl_div(own, other, log_target=True, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if trial.average and progress > 0.7:
            now = [p.detach().clone() for p in learned]
            averaged = [a.lerp(b, 1 - trial.average) for a, b in zip(averaged or now, now, strict=True)]
    with torch.no_grad():
        for parameter, value in zip(learned, averaged, strict=False):
            parameter.copy_(value)
    return htaf.recalibrate(net, [(part, None) for part in x[:10_000].split(BATCH)])[0]


def measured(trial: Trial) -> dict[str, object]:
    torch.set_num_threads(1)
    torch.manual_seed(trial.seed)
    x, y = images()
    fit, held, test = x[: 50_000 - HELD], x[50_000 - HELD : 50_000], x[50_000:]
    begun, taught = time.perf_counter(), None
    if trial.teacher_epochs:
        teacher = trained(Trial("", trial.teacher_epochs, relu=True), fit, y, None)
        taught = (logits(teacher, fit) + logits(teacher, fit.flip(3))) / 2
    net = trained(trial, fit, y, taught)
    seconds = round(time.perf_counter() - begun, 1)
    scores = {
        part: round(100 * (logits(net, some).argmax(1) == y[at : at + len(some)]).float().mean().item(), 2)
        for part, some, at in (("validation", held, 50_000 - HELD), ("test", test, 50_000), ("fit", fit[:10_000], 0))
    }
    return dataclasses.asdict(trial) | scores | {"seconds": seconds, "device": DEVICE}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="names of trials", choices=[t.name for t in TRIALS], metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("image_levels.jsonl"))
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.is_file() else []
    done = {(row["name"], row["seed"]) for row in rows}
    wanted = [
        dataclasses.replace(t, seed=s) for s in args.seeds for t in TRIALS if not args.only or t.name in args.only
    ]
    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool, args.out.open("a") as file:
        for row in pool.map(measured, [t for t in wanted if (t.name, t.seed) not in done]):
            print(json.dumps(row), file=file, flush=True)
            rows.append(row)
            print(f"{row['name']}, seed {row['seed']}: {row['test']} %", flush=True)
    for name in dict.fromkeys(row["name"] for row in rows):
        found = [row["test"] for row in rows if row["name"] == name]
        error = statistics.stdev(found) / len(found) ** 0.5 if len(found) > 1 else float("nan")
        print(f"{name:44} {statistics.fmean(found):.2f} ({error:.2f}, {len(found)} seeds)")


if __name__ == "__main__":
    main()
