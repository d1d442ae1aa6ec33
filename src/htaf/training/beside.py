"""What stands beside the bits of a network for tables, a linear part and leaves of trees: fitted before the bits learn
what these leave. At the end the validation rows choose by how much the bits count."""

from __future__ import annotations

import copy
import time

import numpy as np
import torch
from torch import nn

from htaf import hardening
from htaf.data.parts import Part
from htaf.models.mlp import MLP, Thermometer
from htaf.runs.metrics import loss_function
from htaf.training.boosting import Known, boosted
from htaf.training.finish import refitted
from htaf.training.problems import Problem

SHARES = tuple(k / 20 for k in range(21))


def fit_direct(net: MLP, posed: Problem) -> None:
    """Make the linear layer of the inputs the linear model that is best on the validation rows; the head's bias, which
    no constant is left for, starts as zeros."""
    assert net.direct is not None
    made, _ = refitted(net.direct, posed)
    net.direct.load_state_dict(made.state_dict())
    nn.init.zeros_(net.head.bias)


def fit_leaves(net: MLP, posed: Problem) -> None:
    """Make the leaves those of boosted trees on what the linear model leaves."""
    assert isinstance(net.thermometer, Thermometer)
    assert net.leaves is not None
    nn.init.zeros_(net.head.bias)  # the trees begin from the linear part, or from 0
    seed = torch.initial_seed()  # the training's: what is drawn next depends on the size that the network had before
    train, validation = _known(net, posed.fitting()), _known(net, posed.choosing())
    found = boosted(train, validation, net.thermometer.counts, net.leaves.count, seed)
    if len(found.needed):
        weight, needed, value = (torch.from_numpy(v).float() for v in (found.weight, found.needed, found.value))
        net.leaves.place(weight, needed, value)
    else:
        net.leaves = None


def _known(net: MLP, part: Part) -> Known:
    """A part as trees take it, in chunks."""
    assert isinstance(net.thermometer, Thermometer)
    asked = [j for j, count in enumerate(net.thermometer.counts) if count]
    first = np.cumsum([0, *(net.thermometer.counts[j] for j in asked)])[:-1]
    codes, starts, ys = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    with torch.no_grad():
        for given, y in part:
            x = net.columns(given)
            reached = np.zeros((len(x), len(net.thermometer.counts)), np.int16)
            reached[:, asked] = np.add.reduceat(net.thermometer(x).numpy(), first, axis=1)
            codes.append(reached)
            plain = torch.zeros(len(x), net.head.out_features) if net.direct is None else net.direct(x)
            starts.append(plain.double().numpy())
            ys.append(y.numpy())
    y = np.concatenate(ys)
    weights = None if part.weights is None else part.weights.double().numpy()
    return Known(np.concatenate(codes), np.concatenate(starts), y, weights)


@torch.no_grad()
def shrunk(net: nn.Module, posed: Problem) -> tuple[nn.Module, hardening.Report]:
    """The network with what its bits add to what was fitted before them, a linear part and leaves of trees, times a
    share.

    The share is the mean of `SHARES`, each weighted by the likelihood of the validation rows with it, where numbers are
    normal around their predictions: with few rows the choice is soft, and small.
    """
    begin, made, part = time.perf_counter(), copy.deepcopy(net), posed.choosing()
    assert isinstance(made, MLP)
    device, loss = made.head.weight.device, loss_function(posed.task)
    rows = [(x.to(device), y.to(device)) for x, y in part]
    whole = torch.cat([net(x).double() for x, _ in rows])
    learned = torch.cat([made.head(made.hidden(made.thermometer(made.columns(x)))).double() for x, _ in rows])
    plain, y = whole - learned, torch.cat([y for _, y in rows])
    weights = None if part.weights is None else part.weights.to(device)
    of_y = y.double() if y.is_floating_point() else y
    losses = torch.stack([loss(plain + share * (whole - plain), of_y, weights) for share in SHARES]).cpu()
    unit = 2 * float(losses.min()) if posed.task == "regression" else 1.0
    likely = torch.softmax(-losses * len(part) / max(unit, 1e-12), 0)
    share = float(likely @ torch.tensor(SHARES, dtype=torch.float64))
    for parameter in made.head.parameters():
        parameter *= share
    note = (f"what the bits add to what was fitted before them counts {share:.2f}",)
    return made, hardening.Report("shrink", time.perf_counter() - begin, None, None, (), note)
