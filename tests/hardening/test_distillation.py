"""Distillation trains what a gradient reaches, and nothing else."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from small import batches, fresh, rows
from torch import nn

from htaf import HTAF, distil, harden
from htaf.models.bireal import BiRealNet
from htaf.models.mlp import MLP

X = batches(100, 6, count=3)


def changed(before: nn.Module, after: nn.Module) -> set[str]:
    pairs = zip(before.state_dict().items(), after.state_dict().values(), strict=True)
    return {name for (name, a), b in pairs if not torch.equal(a, b)}


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_head_learns_the_outputs_of_the_teacher(outputs: int) -> None:
    smooth = fresh(lambda: MLP(6, outputs, (16, 12), lambda: HTAF(1.0, 4.0), True))
    exact = harden(smooth)
    flags = [p.requires_grad for p in exact.parameters()]
    found, report = distil(exact, smooth, X, epochs=30, lr=0.01)
    assert changed(exact, found) == {"head.weight", "head.bias"}
    assert report.notes == (f"{12 * outputs + outputs} parameters in 2 tensors, 30 epochs",)
    held = rows(200, 6, seed=9)

    def distance(net: nn.Module) -> float:
        with torch.no_grad():
            wanted, output = smooth(held), net(held)
            if outputs == 1:
                return nn.functional.mse_loss(output, wanted).item()
            return nn.functional.kl_div(output.log_softmax(1), wanted.softmax(1), reduction="batchmean").item()

    assert distance(found) < 0.9 * distance(exact)
    assert [p.requires_grad for p in found.parameters()] == flags
    assert all(p.grad is None for p in (*found.parameters(), *exact.parameters(), *smooth.parameters()))
    assert not found.training


def test_shortcuts_lead_to_what_is_below_and_binary_weights_stay() -> None:
    make = lambda: BiRealNet(18, 3, lambda: HTAF(1.0, 4.0, bipolar=True), width=2, stem="cifar", in_channels=1)  # noqa: E731
    smooth = fresh(make)
    exact = harden(smooth)
    found, _ = distil(exact, smooth, batches(8, 1, 8, 8, count=1), epochs=1, lr=0.01)
    names = changed(exact, found)
    assert {"stages.0.0.norm.weight", "stages.1.0.shortcut.conv.weight", "head.weight"} <= names
    assert not any("running" in name or re.fullmatch(r"stages\.\d\.\d\.conv\.weight", name) for name in names)


def test_the_best_network_on_validation_is_kept() -> None:
    smooth: Any = fresh(lambda: MLP(6, 3, (16, 12), lambda: HTAF(1.0, 4.0)))
    exact = harden(smooth)
    with torch.no_grad():
        held = [(x, exact(x).argmax(1)) for x in X]  # as the exact network has it: worse with every step
    found, report = distil(exact, smooth, X, epochs=50, lr=1.0, patience=2, validation=held)
    assert changed(exact, found) == set()
    assert report.after == report.before
    assert report.notes[0].endswith("2 epochs")


def test_float_targets_make_several_outputs_numbers() -> None:
    """The cross-entropy of softmax outputs says nothing about what all of them have in common."""
    smooth: Any = fresh(lambda: MLP(6, 3, (16, 12), lambda: HTAF(1.0, 4.0)))
    exact: Any = harden(smooth)
    with torch.no_grad():
        exact.head.bias += 2.0
        held = [(x, smooth(x)) for x in X]
    found: Any = distil(exact, smooth, X, epochs=60, lr=0.05, patience=60, validation=held)[0]
    with torch.no_grad():
        errors = [nn.functional.mse_loss(net(X[0]), smooth(X[0])).item() for net in (exact, found)]
    assert errors[1] < 0.1 * errors[0]


def test_errors() -> None:
    smooth = fresh(lambda: nn.Sequential(nn.Linear(6, 3), HTAF()))
    with pytest.raises(ValueError, match="expected parameters that a gradient reaches, got none"):
        distil(harden(smooth), smooth, X)
    with pytest.raises(ValueError, match="expected numbers > 0, got epochs=0"):
        distil(smooth, smooth, X, epochs=0)
