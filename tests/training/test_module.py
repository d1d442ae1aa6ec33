"""Batches that depend on seed and epoch alone, the sharpened module, and the metrics."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mean_absolute_error, r2_score
from torch import nn

from htaf.data.parts import Part, TableBatches
from htaf.training.families import make_recipe
from htaf.training.module import EpochBatches, Training, loaders, undecayed
from htaf.training.runs.metrics import metrics


def batches(rows: int, size: int, seed: int = 0, epoch: int = 0) -> list[list[int]]:
    sampler = EpochBatches(rows, size, seed)
    sampler.set_epoch(epoch)
    found = [rows.tolist() for rows, *_ in sampler]
    assert len(found) == len(sampler)
    return found


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(2, 80), size=st.integers(2, 20), seed=st.integers(0, 9), epoch=st.integers(0, 9))
def test_every_row_once(rows: int, size: int, seed: int, epoch: int) -> None:
    parts = batches(rows, size, seed, epoch)
    assert sorted(row for part in parts for row in part) == list(range(rows))
    assert all(len(part) == size for part in parts[:-1])
    assert 2 <= len(parts[-1]) <= size + 1  # one left-over row joins: batch norm needs two


def test_loaders_keep_rows_and_targets_together() -> None:
    x, y = torch.arange(20.0).reshape(10, 2), torch.arange(10)
    data = TableBatches(x, y)
    train, validation = loaders(Part(data, torch.arange(10)), Part(data, torch.tensor([2, 0, 1]), 2), 4, seed=0)
    parts = list(train)
    assert [len(part[0]) for part in parts] == [4, 4, 2]
    for inputs, targets in parts:
        assert torch.equal(inputs[:, 0], 2.0 * targets)
    chunks = list(validation)
    assert [len(inputs) for inputs, _ in chunks] == [2, 1]
    assert torch.equal(torch.cat([inputs for inputs, _ in chunks]), x[[2, 0, 1]])  # in the order of the part
    assert torch.equal(torch.cat([targets for _, targets in chunks]), y[[2, 0, 1]])


@pytest.mark.parametrize("schedule", ["one_cycle", "cosine", "linear", "constant"])
@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
def test_schedules(schedule, optimizer) -> None:
    net = torch.nn.Linear(1, 1)
    recipe = make_recipe(
        method="relu", lr=0.1, schedule=schedule, optimizer=optimizer, nesterov=True, weight_decay=0.01
    )
    made = Training(net, recipe, "regression", 20).configure_optimizers()
    found = made if schedule == "constant" else made["optimizer"]
    assert type(found).__name__.lower() == optimizer
    assert found.param_groups[0]["weight_decay"] == 0.01
    if schedule == "constant":
        assert found.param_groups[0]["lr"] == 0.1
        return
    rates, momenta = [], set()
    for _ in range(20):
        rates.append(found.param_groups[0]["lr"])
        momenta.add(found.param_groups[0].get("momentum"))
        found.step()
        made["lr_scheduler"]["scheduler"].step()
    assert made["lr_scheduler"]["interval"] == "step"
    assert max(rates) == pytest.approx(0.1, rel=0.05)
    assert rates[-1] < 0.01
    assert (rates[0] < 0.05) == (schedule == "one_cycle")
    if optimizer == "sgd":
        assert momenta == {0.9}  # one cycle does not move it


@pytest.mark.parametrize(("schedule", "halfway"), [("linear", 0.0505), ("cosine", 0.0505), ("constant", 0.1)])
def test_schedules_end_where_they_should(schedule, halfway: float) -> None:
    recipe = make_recipe(method="relu", lr=0.1, lr_end=0.001, schedule=schedule, optimizer="sgd")
    made = Training(torch.nn.Linear(1, 1), recipe, "regression", 20).configure_optimizers()
    rates = []
    optimizer = made if schedule == "constant" else made["optimizer"]
    for _ in range(21):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if schedule != "constant":
            made["lr_scheduler"]["scheduler"].step()
    assert rates[10] == pytest.approx(halfway)
    assert rates[20] == pytest.approx(0.1 if schedule == "constant" else 0.001)


def test_label_smoothing_is_for_training_only() -> None:
    recipe = make_recipe(method="relu", label_smoothing=0.3)
    module = Training(torch.nn.Linear(2, 3), recipe, "classification", 1)
    outputs, target = torch.randn(5, 3), torch.arange(5) % 3
    smoothed = torch.nn.functional.cross_entropy(outputs, target, label_smoothing=0.3)
    assert torch.equal(module.train_loss(outputs, target), smoothed)
    assert torch.equal(module.loss(outputs, target), torch.nn.functional.cross_entropy(outputs, target))


def test_regression_metrics_are_in_the_units_of_the_target() -> None:
    torch.manual_seed(0)
    outputs, target = torch.randn(30, 1), torch.randn(30, 1)
    found = metrics(outputs, target, "regression", scale=3.0)
    y, t = outputs[:, 0].double().numpy(), target[:, 0].double().numpy()
    assert found["rmse"] == pytest.approx(3 * ((y - t) ** 2).mean() ** 0.5)
    assert found["mae"] == pytest.approx(3 * mean_absolute_error(t, y))
    assert found["r2"] == pytest.approx(r2_score(t, y))
    assert found["loss"] == pytest.approx(((y - t) ** 2).mean(), rel=1e-5)


def test_undefined_metrics_are_none() -> None:
    outputs = torch.randn(5, 2)
    assert metrics(outputs, torch.zeros(5, dtype=torch.int64), "classification")["auroc"] is None
    assert metrics(torch.zeros(1, 1), torch.ones(1, 1), "regression")["r2"] is None
    assert metrics(torch.full((2, 1), math.nan), torch.ones(2, 1), "regression")["loss"] is None


def test_saturated_logits_do_not_tie() -> None:
    outputs = torch.tensor([[0.0, 30.0], [0.0, 28.0], [0.0, 26.0], [0.0, 24.0]])  # float32 probabilities are all 1
    found = metrics(outputs, torch.tensor([1, 1, 0, 0]), "classification")
    assert found["auroc"] == 1.0


def test_norms_and_biases_have_no_weight_decay_in_muon() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))
    decayed, kept = undecayed(list(net.parameters()))
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    assert [names[id(p)] for p in decayed["params"]] == ["0.weight", "2.weight"]
    assert [names[id(p)] for p in kept["params"]] == ["0.bias", "1.weight", "1.bias", "2.bias"]
    assert ("weight_decay" in decayed, kept["weight_decay"]) == (False, 0.0)
    groups = undecayed([{"params": [net[0].weight, net[0].bias], "lr": 0.1}, {"params": [net[2].weight]}])
    assert [(len(group["params"]), group.get("lr"), group.get("weight_decay")) for group in groups] == [
        (1, 0.1, None), (1, 0.1, 0.0), (1, None, None),
    ]  # fmt: skip
