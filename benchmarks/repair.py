"""What the steps of `htaf.transform.hardening` bring, on small networks of every family.

    python benchmarks/repair.py [--seeds 3] [--only mlp ...] [--json FILE]

Each network is trained smooth for seconds, on the digits of scikit-learn (1,000 images, 300 for validation, 497 for
testing) or on the wine table (`HTAF_DATA`), then hardened and repaired. Figures are of the test part: accuracy, or RMSE
of the standardised target. `chosen` is what `htaf.finish` does: each step is kept where it lowers the validation loss.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import measuring
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import htaf
from htaf import HTAF, IF, harden
from htaf.models.bireal import BiRealNet
from htaf.models.icbm import ICBM
from htaf.models.mlp import MLP
from htaf.models.sew_resnet import SEWResNet
from htaf.models.wide_resnet import WideResNet
from htaf.transform import hardening

Pairs = list[tuple[Tensor, Tensor]]
ACT = partial(HTAF, 1.0, 5.0)
COLUMNS = ("smooth", "exact", "recalibrate", "refit", "repair", "repair + refit", "chosen")


def timm_resnet() -> nn.Module:
    import timm

    sizes: dict[str, Any] = {"channels": (8, 16, 32, 64), "stem_width": 8}
    return htaf.replace(timm.create_model("resnet10t", num_classes=10, in_chans=1, **sizes), ACT, where="*")


def icbm() -> nn.Module:
    backbone = WideResNet(10, 1, 1, nn.ReLU, in_channels=1)
    backbone.head = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
    return ICBM(backbone, 10, ACT, example=torch.zeros(2, 1, 8, 8), concepts=32)


# the network, epochs, and how many times its images are enlarged (0: the wine table)
FAMILIES: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "mlp, wine": (lambda: MLP(11, 1, (128, 64), ACT, batch_norm=True), 30, 0),
    "mlp": (lambda: nn.Sequential(nn.Flatten(), MLP(64, 10, (64, 64, 32), ACT, batch_norm=True)), 30, 1),
    "dhn": (lambda: WideResNet(10, 1, 10, ACT, in_channels=1), 8, 1),
    "bnn": (lambda: BiRealNet(18, 10, partial(ACT, bipolar=True), width=8, stem="cifar", in_channels=1), 8, 1),
    "snn": (lambda: SEWResNet(18, 10, lambda: IF(ACT()), steps=2, width=8, stem="cifar", in_channels=1), 8, 1),
    "icbm": (icbm, 8, 1),
    "timm resnet10t": (timm_resnet, 8, 3),
}


def digits(scale: int) -> list[Pairs]:
    found = load_digits()
    x = torch.tensor(found.images, dtype=torch.float32)[:, None]  # pyright: ignore[reportAttributeAccessIssue]
    x, y = (x - x.mean()) / x.std(), torch.tensor(found.target)  # pyright: ignore[reportAttributeAccessIssue]
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order].repeat_interleave(scale, 2).repeat_interleave(scale, 3), y[order]
    return [batches(x[part], y[part]) for part in (slice(0, 1000), slice(1000, 1300), slice(1300, None))]


def wine(seed: int) -> list[Pairs]:
    from htaf.data import tabular
    from htaf.training.families.mlp import FAMILY
    from htaf.training.problems import problem

    posed = problem(next(iter(FAMILY.recipes.values()))(), tabular.load("wine"), seed, "random")
    parts: list[Any] = [posed.train, posed.validation, posed.test]
    return [batches(*next(iter(part))) for part in parts]


def batches(x: Tensor, y: Tensor) -> Pairs:
    return list(zip(x.split(250), y.split(250), strict=True))


def trained(net: nn.Module, train: Pairs, epochs: int, seed: int) -> nn.Module:
    x, y = (torch.cat(values) for values in zip(*train, strict=True))
    loss = mse_loss if y.is_floating_point() else cross_entropy
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    steps = len(x) // 64
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, epochs * steps)
    generator = torch.Generator().manual_seed(seed)
    net.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator)[: steps * 64].split(64):
            optimizer.zero_grad()
            loss(net(x[rows]), y[rows]).backward()
            optimizer.step()
            schedule.step()
    return net.eval()


def row(family: str, seed: int) -> dict[str, Any]:
    make, epochs, scale = FAMILIES[family]
    train, validation, test = digits(scale) if scale else wine(seed)
    torch.manual_seed(seed)
    seconds: dict[str, float] = {}

    def timed(name: str, what: Callable[[], Any]) -> Any:
        begin = time.process_time()
        made = what()
        seconds[name] = round(time.process_time() - begin, 2)
        return made[0] if isinstance(made, tuple) else made

    smooth = timed("training", lambda: trained(make(), train, epochs, seed))
    exact = harden(smooth)
    nets = {"smooth": smooth, "exact": exact}
    nets["recalibrate"] = timed("recalibrate", lambda: htaf.recalibrate(exact, train))
    nets["refit"] = timed("refit", lambda: htaf.refit_head(exact, train, validation=validation))
    nets["repair"] = repaired = timed("repair", lambda: htaf.repair(exact, smooth, train))
    nets["repair + refit"] = htaf.refit_head(repaired, train, validation=validation)[0]
    nets["chosen"], kept = chosen(exact, smooth, train, validation)
    figures = {name: figure(net, test) for name, net in nets.items()}
    return {"family": family, "seed": seed, **figures, "kept": kept, "cpu_seconds": seconds}


def chosen(exact: nn.Module, smooth: nn.Module, train: Pairs, validation: Pairs) -> tuple[nn.Module, list[str]]:
    net, kept, best = exact, list[str](), loss_and_hits(exact, validation)[0]
    steps: list[Callable[[nn.Module], tuple[nn.Module, hardening.Report]]] = [
        lambda now: htaf.recalibrate(now, train),
        lambda now: htaf.repair(now, smooth, train),
        lambda now: htaf.recalibrate(now, train),
        lambda now: htaf.refit_head(now, train, validation=validation),
    ]
    for step in steps:
        made, report = step(net)
        if (loss := loss_and_hits(made, validation)[0]) < best:
            net, kept, best = made, [*kept, report.name], loss
    return net, kept


@torch.no_grad()
def loss_and_hits(net: nn.Module, pairs: Pairs) -> tuple[float, float | None]:
    """The mean squared error and None, or the cross-entropy and the accuracy."""
    output, y = (torch.cat(parts) for parts in zip(*[(net(x), y) for x, y in pairs], strict=True))
    if y.is_floating_point():
        return nn.functional.mse_loss(output, y.reshape(output.shape)).item(), None
    return nn.functional.cross_entropy(output, y).item(), (output.argmax(1) == y).double().mean().item()


def figure(net: nn.Module, test: Pairs) -> float:
    loss, hits = loss_and_hits(net, test)
    return loss**0.5 if hits is None else hits


def main() -> None:
    parser = measuring.parser(__doc__)
    parser.add_argument("--seeds", type=measuring.at_least_one, default=3, help="default: 3")
    parser.add_argument("--only", nargs="+", choices=FAMILIES, default=[*FAMILIES], help="default: all")
    arguments = measuring.begin(parser)
    torch.set_num_threads(1)
    rows = []
    for family in arguments.only:
        for seed in range(arguments.seeds):
            rows.append(row(family, seed))
            print(rows[-1], flush=True)
    table = []
    for family in arguments.only:
        own = [one for one in rows if one["family"] == family]
        cells = []
        for column in COLUMNS:
            values = [one[column] for one in own]
            spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.3f}{spread}")
        table.append((family, *cells, f"{statistics.mean(one['cpu_seconds']['repair'] for one in own):.1f}"))
    measuring.show("Test part, mean ± standard deviation", ("family", *COLUMNS, "CPU s of repair"), table, ["family"])
    measuring.end(arguments, rows)


if __name__ == "__main__":
    main()
