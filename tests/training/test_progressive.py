"""Hardening stage by stage: what moves and what does not, what is kept, and that it resumes to the last bit."""

from __future__ import annotations

import copy
import csv
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from htaf import convert
from htaf.activations import HTAF, SATURATION, Heaviside
from htaf.data.images import Images
from htaf.data.images import load as load_images
from htaf.data.tabular import Table, load
from htaf.runs import Run, open_run
from htaf.sharpening import Geometric, learn_within
from htaf.spiking import IF
from htaf.training.distributed import TrainingError
from htaf.training.families import make_recipe
from htaf.training.fit import check, fit
from htaf.training.module import Training, distance
from htaf.training.notes import best_of, trained_exact
from htaf.training.plan import Plan, PlanError, Source
from htaf.training.progressive import Progressive, loss_of, readers, step_names, unmoved_norms, unreached
from htaf.training.recipe import Hardening, Recipe
from htaf.training.report import SearchResult, summary_row
from htaf.training.running import Running
from htaf.training.stages import Mask, Noise, Stages, momentum, rate, stages_of
from quick import slow_but

PROGRESSIVE = sys.modules["htaf.training.progressive"]
FIELDS: dict[str, Any] = {"harden": "progressive", "harden_from": 0.5, "harden_to": 0.75}
QUICK = make_recipe(hidden=(8, 6), epochs=8, batch_size=16, lr=0.02, sharpen_fraction=0.25, patience=0, **FIELDS)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=80), "b": rng.normal(size=80)})
    frame["y"] = 10 * (frame["a"] > 0) + 5 * frame["b"] + rng.normal(size=80)
    path = tmp_path_factory.mktemp("data") / "made.csv"
    frame.to_csv(path, index=False)
    return load(path, target="y")


def train(out: Path, table: Table, recipe: Recipe = QUICK, **options: Any) -> Run:
    """As `fit`; `options` are those of `Running` too."""
    own = {name: options.pop(name) for name in [*options] if name in Running.__dataclass_fields__}
    running = Running(**{"device": "cpu", "checkpoint_seconds": 0.0, **own})
    return fit(recipe, table, out, running=running, **options)


def outcome(run: Run) -> tuple[Any, ...]:
    names = ("metrics", "layers", "model", "model_sha256", "best_epoch", "epochs_run", "key")
    stages = [{k: v for k, v in stage.items() if k != "seconds"} for stage in run.record["hardening"]["stages"]]
    return (
        *(run.record[n] for n in names),
        run.record.get("smooth_sha256"),
        stages,
        (run.path / "metrics.csv").read_bytes(),
    )


# ---- stages ----


@settings(max_examples=40, deadline=None)
@given(
    steps=st.integers(1, 20),
    epochs=st.integers(2, 120),
    first=st.floats(0.1, 0.8),
    width=st.sampled_from([0.0, 0.02, 0.1, 0.15]),
    stages=st.integers(0, 20),
    order=st.sampled_from(["forward", "backward", "together"]),
)
def test_every_step_is_hardened_once_and_in_order(steps, epochs, first, width, stages, order) -> None:
    names = [f"step{i}" for i in range(steps)]
    options = Hardening("progressive", first, first + width, order, harden_stages=stages)
    try:
        made = stages_of(options, names, epochs)
    except ValueError as error:
        if not any(word in str(error) for word in ("epochs must be >=", "harden_stages", "harden_to")):
            raise
        return
    assert list(made.hard(len(made.groups))) == (names[::-1] if order == "backward" else names)
    assert all(made.groups)
    assert made.begins[0] > 0
    assert made.begins[-1] < epochs
    assert all(a < b for a, b in zip(made.begins, made.begins[1:], strict=False))
    assert [made.at(begin) - made.at(begin - 1) for begin in made.begins] == [1] * len(made.begins)
    for group in range(len(made.groups)):
        shares = [made.share(group, i / 50) for i in range(51)]
        assert shares == sorted(shares)
        assert made.share(group, made.begins[group] / epochs) == pytest.approx(1.0)
        assert made.share(group, 0.0) == 0.0


@settings(max_examples=60, deadline=None)
@given(steps=st.integers(1, 12), epochs=st.integers(1, 12))
def test_the_least_number_of_epochs_is_the_least(steps: int, epochs: int) -> None:
    names, options = [str(i) for i in range(steps)], Hardening("progressive")
    try:
        stages_of(options, names, epochs)
    except ValueError as error:
        least = int(str(error).split(">= ")[1].split(" ")[0])
        stages_of(options, names, least)
        for fewer in range(epochs, least):
            with pytest.raises(ValueError, match=f"epochs must be >= {least} "):
                stages_of(options, names, fewer)


def test_more_stages_than_steps_and_none_apart() -> None:
    with pytest.raises(ValueError, match="harden_stages must be at most 2"):
        stages_of(Hardening("progressive", harden_stages=3), ["a", "b"], 100)
    with pytest.raises(ValueError, match="harden_to must be further above harden_from for 2 stages"):
        stages_of(Hardening("progressive", 0.5, 0.5), ["a", "b"], 100)


def test_groups_of_several_steps() -> None:
    made = stages_of(Hardening("progressive", 0.5, 0.75, harden_stages=2), list("abcde"), 8)
    assert made == Stages(8, (4, 6), (("a", "b"), ("c", "d", "e")))
    assert stages_of(Hardening("progressive", 0.5, harden_order="together"), list("ab"), 8).groups == (("a", "b"),)


def test_the_rate_starts_anew_in_every_stage() -> None:
    made = Stages(10, (4, 8), (("a",), ("b",)))
    assert made.within(0.0) == (0, 0.0)
    assert made.within(0.2) == (0, 0.5)
    assert made.within(0.4) == (1, 0.0)
    assert made.within(0.9) == (2, 0.5)
    assert made.within(1.0) == (2, 1.0)


@pytest.mark.parametrize("total", [50, 400])
def test_one_cycle_is_that_of_torch(total: int) -> None:
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=0.1)
    cycle = OneCycleLR(optimizer, 0.1, total_steps=total + 1)
    for step in range(total):
        done = step / total
        group = optimizer.param_groups[0]
        assert group["lr"] == pytest.approx(0.1 * rate("one_cycle", done), abs=0.1 * 4 / total)
        assert group["betas"][0] == pytest.approx(momentum(done), abs=0.5 / total)
        optimizer.step()
        cycle.step()
    assert [rate("linear", d, 0.5) for d in (0.0, 0.5, 1.0)] == [1.0, 0.75, 0.5]
    assert [rate("cosine", d, 0.5) for d in (0.0, 0.5, 1.0)] == [1.0, 0.75, 0.5]
    assert rate("constant", 0.7) == 1.0


# ---- noise and masks ----


def test_noise_is_off_in_eval_and_at_exact_steps() -> None:
    step, x = HTAF(), torch.linspace(-2, 2, 5)
    step.register_forward_pre_hook(Noise(0.5))
    assert not torch.equal(step(x), HTAF()(x))
    assert torch.equal(step.eval()(x), HTAF()(x))
    exact = convert.harden(nn.Sequential(step).train(), share=True)
    assert torch.equal(exact[0](x), Heaviside()(x))


def test_noise_has_its_standard_deviation() -> None:
    torch.manual_seed(0)
    step = HTAF().train()
    (noisy,) = Noise(0.5)(step, (torch.zeros(20_000),)) or ()
    assert noisy.std().item() == pytest.approx(0.5, rel=0.03)
    assert noisy.mean().item() == pytest.approx(0.0, abs=0.02)


@settings(max_examples=40, deadline=None)
@given(
    unit=st.sampled_from(["channel", "unit"]), shape=st.sampled_from([(3, 40), (2, 5, 4, 4), (2, 6, 8)]), data=st.data()
)
def test_masks_grow_and_are_the_same_again(unit, shape, data) -> None:
    shares = sorted(data.draw(st.lists(st.floats(0, 1), min_size=2, max_size=5)))
    first, again, x = Mask(unit, 7), Mask(unit, 7), torch.randn(shape)
    before = None
    for share in shares:
        first.share = again.share = share
        chosen = first.chosen(x)
        assert torch.equal(chosen, again.chosen(x))
        assert before is None or bool((before <= chosen).all())
        before = chosen
    first.share = 1.0
    assert first.chosen(x).all()
    if unit == "channel":
        assert first.chosen(x).numel() == (shape[1] if len(shape) == 4 else shape[-1])


def test_a_masked_unit_is_exact_and_passes_no_gradient() -> None:
    step, mask, x = HTAF(), Mask("unit", 3), torch.randn(4, 50, requires_grad=True)
    step.register_forward_hook(mask)
    mask.share = 0.4
    out = step(x)
    out.sum().backward()
    chosen = mask.chosen(x).expand(4, 50)
    assert 0 < chosen.sum() < 200
    assert torch.equal(out[chosen], Heaviside()(x)[chosen])
    assert torch.equal(out[~chosen], HTAF()(x)[~chosen])
    assert x.grad is not None
    assert (x.grad[chosen] == 0).all()
    assert (x.grad[~chosen] != 0).all()


def test_distance_is_that_of_the_distributions() -> None:
    p, q = torch.randn(5, 3), torch.randn(5, 3)
    kl = (q.softmax(1) * (q.log_softmax(1) - p.log_softmax(1))).sum(1).mean()
    assert distance(p, q, True).item() == pytest.approx(kl.item(), rel=1e-5)
    assert distance(p, p, True).item() == pytest.approx(0.0, abs=1e-6)
    assert distance(p, q, False).item() == pytest.approx(((p - q) ** 2).mean().item(), rel=1e-6)


# ---- what learns no more ----


class Residual(nn.Module):
    """A shortcut around a step."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.act, self.conv = nn.Linear(3, 4), nn.BatchNorm1d(4), HTAF(), nn.Linear(4, 4)
        self.act2, self.head = HTAF(), nn.Linear(4, 2)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.conv(self.act(self.norm(x)))
        return self.head(self.act2(x))


def test_what_is_frozen_in_a_chain_and_around_a_shortcut() -> None:
    chain = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), HTAF(), nn.Linear(4, 4), nn.BatchNorm1d(4), HTAF(), nn.Linear(4, 1)
    )
    x = torch.randn(6, 3)
    hard = convert.harden(chain, where="2", share=True)
    found = unreached(hard, lambda: hard(x), ["2"])
    assert found == ["0.weight", "0.bias", "1.weight", "1.bias"]
    for name in found:
        hard.get_parameter(name).requires_grad_(False)
    assert unmoved_norms(hard, x) == ["1"]
    net = Residual()
    hard = convert.harden(net, where="act", share=True)
    assert unreached(hard, lambda: hard(x), ["act"]) == ["norm.weight", "norm.bias"]
    for name in ("norm.weight", "norm.bias"):
        hard.get_parameter(name).requires_grad_(False)
    assert unmoved_norms(hard, x) == []  # the stem moves its inputs
    assert step_names(net, x) == ["act", "act2"]


def test_the_layers_that_read_a_step() -> None:
    net, x = Residual(), torch.randn(2, 3)
    assert readers(net, ["act"], x) == ["conv"]  # the head only through the other step
    assert readers(net, ["act2"], x) == ["head"]
    assert readers(convert.harden(net, where="act"), ["act", "act2"], x) == ["conv", "head"]
    spiking = nn.Sequential(nn.Linear(2, 3), IF(HTAF()), nn.Linear(3, 3), IF(HTAF()), nn.Linear(3, 1))
    assert readers(spiking, ["1.spike"], torch.randn(2, 4, 2)) == ["2"]


def test_steps_of_neurons_are_found() -> None:
    assert step_names(nn.Sequential(nn.Linear(2, 3), IF(HTAF()), nn.Linear(3, 3), HTAF()), torch.zeros(2, 2, 2)) == [
        "1.spike",
        "3",
    ]


@pytest.mark.parametrize("unit", ["layer", "unit"])
@pytest.mark.parametrize("bipolar", [False, True])
def test_straight_through_keeps_the_smooth_gradient(unit: Any, bipolar: bool) -> None:
    step, mask, x = HTAF(0.5, 3.0, bipolar=bipolar), Mask(unit, 3, True), torch.randn(4, 50, requires_grad=True)
    smooth = torch.autograd.grad(step(x).sum(), x)
    step.register_forward_hook(mask)
    mask.share = 1.0
    out = step(x)
    assert torch.equal(out, Heaviside(bipolar=bipolar)(x))
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0], smooth[0])


# ---- trainings ----


class Watch(L.Callback):
    """The state at the end of every epoch."""

    def __init__(self) -> None:
        self.states: list[dict[str, torch.Tensor]] = []
        self.hard: list[int] = []
        self.rates: list[list[float]] = []

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.rates.append([])

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        self.rates[-1].append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, Training)
        self.states.append(pl_module.weights())
        self.hard.append(sum(isinstance(m, Heaviside) for m in pl_module.net.modules()))


def watched(patch: pytest.MonkeyPatch) -> Watch:
    """A callback beside those of the next training."""
    watch, original = Watch(), sys.modules["htaf.training.fit"]._trainer

    def with_watch(*args: Any) -> Any:
        trainer, history = original(*args)
        trainer.callbacks.insert(0, watch)
        return trainer, history

    patch.setattr(sys.modules["htaf.training.fit"], "_trainer", with_watch)
    return watch


def test_frozen_layers_do_not_move(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watched(monkeypatch)
    run = train(tmp_path / "run", table)
    assert watch.hard == [0, 0, 0, 0, 1, 1, 2, 2]
    first = [name for name in watch.states[0] if name.startswith("hidden.0.")]
    second = [name for name in watch.states[0] if name.startswith("hidden.1.")]
    head = [name for name in watch.states[0] if name not in (*first, *second)]
    for name in first:  # statistics too
        assert all(torch.equal(watch.states[4][name], watch.states[i][name]) for i in (5, 6, 7)), name
    for name in second:
        assert torch.equal(watch.states[6][name], watch.states[7][name]), name
    assert any(not torch.equal(watch.states[4][name], watch.states[5][name]) for name in second)
    assert any(not torch.equal(watch.states[6][name], watch.states[7][name]) for name in head)
    assert max(watch.rates[4]) <= 0.3 * 0.02
    assert max(max(rates) for rates in watch.rates[:4]) == pytest.approx(0.02, rel=0.05)
    assert [stage["epoch"] for stage in run.record["hardening"]["stages"]] == [4, 6]


def test_nothing_is_frozen_with_straight_through(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watched(monkeypatch)
    run = train(tmp_path / "run", table, QUICK.replace(straight_through=True))
    weights = [name for name in watch.states[0] if name.endswith("weight")]
    for before, after in itertools.pairwise(watch.states):
        assert all(not torch.equal(before[name], after[name]) for name in weights)
    stages = run.record["hardening"]["stages"]
    assert [stage["epoch"] for stage in stages] == [4, 6]
    assert all(stage["loss_before"] != stage["loss_hardened"] for stage in stages)
    rows = list(csv.DictReader((run.path / "metrics.csv").open()))
    equal = [row["val_loss"] == row["val_loss_smooth"] for row in rows]
    assert equal == [False] * 6 + [True] * 2  # in the last stage the network that learns is the exact one
    trained = run.record["best_epoch"] >= 4
    assert trained_exact(run.record) == trained
    assert any("the exact network was trained" in note for note in run.record["notes"]) == trained
    record = run.record | {"best_epoch": 3}
    assert not trained_exact(record)
    plan = Plan("study", (Source("table"),), {"htaf": {}})
    for one, shown in ((record, True), (run.record | {"best_epoch": 7}, False)):
        row = summary_row(plan, plan.sources[0], "htaf", SearchResult(QUICK, None, ()), [one])
        assert row["exact"]
        assert bool(row["smooth"]) == bool(row["gap"]) == shown


def test_the_best_weights_of_a_stage_come_back(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watched(monkeypatch)
    seen: list[dict[str, torch.Tensor]] = []
    original = PROGRESSIVE.convert.harden

    def harden(net: nn.Module, **options: Any) -> nn.Module:
        if "where" in options:
            seen.append({name: value.clone() for name, value in net.state_dict().items()})
        return original(net, **options)

    # in epoch 0 sharpening has not ended, so the exact network's loss of 1 counts
    losses = {0: 0.1, 1: 0.9, 2: 0.2, 3: 0.3, 4: 0.4, 5: 0.5, 6: 0.1, 7: 0.1}

    def validation_step(self: Training, batch: Any, batch_idx: int) -> None:
        self.log("val_loss_smooth", losses[self.current_epoch], batch_size=1)
        self.log("val_loss", 1.0 - 0.1 * self.current_epoch, batch_size=1)

    monkeypatch.setattr(Training, "validation_step", validation_step)
    monkeypatch.setattr(PROGRESSIVE.convert, "harden", harden)
    run = train(tmp_path / "run", table, QUICK.replace(repair=False))
    assert [stage["restored"] for stage in run.record["hardening"]["stages"]] == [2, 4]
    for state, epoch in zip(seen, (2, 4), strict=False):
        assert all(torch.equal(state[name], watch.states[epoch][name]) for name in state)
    smooth = open_run(run.path).model(exact=False).state_dict()
    assert all(torch.equal(smooth[name], watch.states[2][name]) for name in smooth)
    exact = open_run(run.path).model().state_dict()
    assert all(torch.equal(exact[name], watch.states[7][name]) for name in exact)


class Stopped(Exception):
    """What stands for a kill."""


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"noise": 0.3, "distil": 0.5, "recalibrate": True, "refit": True},
    "learned pairs": {"learn_pair": True, "weight_decay": 0.01},
    "pairs that move": {"learn_pair": True, "distil": 1.0, "sharpen_fraction": 1.0},
    "straight-through": {"straight_through": True, "distil": 1.0},
    "straight-through masks": {"straight_through": True, "harden_unit": "channel"},
    "masks": {"harden_unit": "unit", "optimizer": "sgd", "clip": 1.0, "distil": 1.0},
    "no restart": {"restart": 0.0, "schedule": "cosine", "precision": "bfloat16", "sharpen_fraction": 1.0},
}


@pytest.mark.parametrize("variant", slow_but(VARIANTS, "pairs that move", "straight-through masks"))
def test_resumes_to_the_last_bit_from_every_stage(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    recipe = QUICK.replace(**VARIANTS[variant])
    whole, original = train(tmp_path / "whole", table, recipe), Training.training_step
    assert [stage["epoch"] for stage in whole.record["hardening"]["stages"]] == [4, 6]
    stops = {2, 4, 5, 6, 7}  # each once, after some steps of the epoch

    def training_step(self: Training, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 2 and self.current_epoch in stops:
            stops.discard(self.current_epoch)
            raise Stopped
        return original(self, batch, batch_idx)

    monkeypatch.setattr(Training, "training_step", training_step)
    while stops:
        with pytest.raises(Stopped):
            train(tmp_path / "run", table, recipe)
    assert outcome(train(tmp_path / "run", table, recipe)) == outcome(whole)


@pytest.mark.parametrize("better", [None, 1.0])
def test_validation_chooses_the_repair(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, better: float | None
) -> None:
    """Better outputs with one strength, worse ones with the other; in the second stage worse ones with both."""
    made: list[float | None] = []

    def repair(exact: nn.Module, smooth: nn.Module, batches: Any, *, strength: float | None, **_: Any) -> Any:
        made.append(strength)
        changed = copy.deepcopy(exact)
        _, y = batches[0]
        with torch.no_grad():
            head = [m for m in changed.modules() if isinstance(m, nn.Linear)][-1]
            head.weight.zero_()
            head.bias.fill_(y.mean().item() if strength == better and len(made) <= 2 else 100.0)
        return changed, None

    monkeypatch.setattr(PROGRESSIVE.hardening, "repair", repair)
    losses: list[float] = []
    original = PROGRESSIVE.loss_of

    def loss_of(net: nn.Module, *args: Any) -> float:
        losses.append(original(net, *args))
        return losses[-1] + (1000.0 if len(losses) <= 2 else 0.0)  # of the first stage, before any repair

    monkeypatch.setattr(PROGRESSIVE, "loss_of", loss_of)
    stages = train(tmp_path / "run", table).record["hardening"]["stages"]
    assert made == [None, 1.0] * 2
    assert [stage["repair"] for stage in stages] == ["by layer" if better is None else better, "none"]
    assert stages[0]["loss_repaired"] < stages[0]["loss_hardened"]
    assert stages[1]["loss_repaired"] == stages[1]["loss_hardened"]


def test_an_early_epoch_comes_back_where_its_exact_network_was_better(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def validation_step(self: Training, batch: Any, batch_idx: int) -> None:
        self.log("val_loss_smooth", 0.3 if self.current_epoch else 0.1, batch_size=1)
        self.log("val_loss", 1.0 if self.current_epoch else 0.2, batch_size=1)

    monkeypatch.setattr(Training, "validation_step", validation_step)
    run = train(tmp_path / "run", table)
    assert run.record["hardening"]["stages"][0]["restored"] == 0


def test_a_repaired_network_that_no_epoch_beats_is_the_result(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def validation_step(self: Training, batch: Any, batch_idx: int) -> None:
        for name in ("val_loss_smooth", "val_loss"):
            self.log(name, 1000.0 - self.current_epoch, batch_size=1)

    monkeypatch.setattr(Training, "validation_step", validation_step)
    run = train(tmp_path / "run", table)
    stages = run.record["hardening"]["stages"]
    assert run.record["best_epoch"] == 5
    assert stages[1]["loss_repaired"] == pytest.approx(run.record["metrics"]["exact"]["validation"]["loss"], rel=1e-4)
    assert stages[1]["restored"] == 3  # of the first stage too no epoch was better than what its repair gave
    assert run.record["hardening"]["best"] == ("hardened" if stages[1]["repair"] == "none" else "repaired")
    assert best_of(run.record) == f"{run.record['hardening']['best']}, before epoch 7"


def losses_by_epoch(patch: pytest.MonkeyPatch, loss: Callable[[int], float]) -> None:
    """Let the validation losses be a function of the epoch, lower than that of any repair."""

    def validation_step(self: Training, batch: Any, batch_idx: int) -> None:
        for name in ("val_loss_smooth", "val_loss"):
            self.log(name, loss(self.current_epoch), batch_size=1)

    patch.setattr(Training, "validation_step", validation_step)


@pytest.mark.parametrize("helps", [False, True])
def test_a_training_says_when_no_stage_helped(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helps: bool
) -> None:
    losses_by_epoch(monkeypatch, lambda epoch: 1e-6 * (9 - epoch if helps else epoch + 1))
    record = train(tmp_path / "run", table).record
    found = [note for note in record["notes"] if str(note).startswith("no stage helped")]
    assert len(found) == (not helps)
    assert best_of(record) == ("best epoch 8" if helps else "best epoch 1")
    if not helps:
        assert "exact network of epoch 1, from before the first stage (epoch 5), has validation loss 1e-06" in found[0]
        assert "the best one after it 5e-06" in found[0]


def test_a_repaired_network_is_one_that_a_stage_gave(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses_by_epoch(monkeypatch, lambda epoch: 1e6 + epoch)  # so that no epoch is better than what one stage left
    record = train(tmp_path / "run", table, QUICK.replace(harden_order="together")).record
    assert record["hardening"]["best"] != "epoch"
    assert not [note for note in record["notes"] if str(note).startswith("no stage helped")]


def test_the_note_on_sharpening_names_the_smooth_network(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses_by_epoch(monkeypatch, lambda epoch: 1e-6 * (9 - epoch))
    record = train(tmp_path / "run", table, QUICK.replace(sharpen_fraction=0.7)).record
    (note,) = [note for note in record["notes"] if "sharpening" in note]
    assert note.startswith("the smooth network is that of epoch 4, of before the first stage (epoch 5)")
    assert best_of(record) == "best epoch 8"


def test_stages_and_what_follows_are_said_as_they_come(
    table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = QUICK.replace(recalibrate=True, refit=True)
    original = Training.training_step

    def training_step(self: Training, batch: Any, batch_idx: int) -> Any:
        if self.current_epoch == 5:
            raise Stopped
        return original(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "training_step", training_step)
        with pytest.raises(Stopped):
            train(tmp_path / "run", table, recipe, progress=True)
    first = capsys.readouterr().err.splitlines()
    record = train(tmp_path / "run", table, recipe, progress=True).record
    later = capsys.readouterr().err.splitlines()
    said = [line for line in (*first, *later) if " of 2, hidden" in line]
    for stage, (line, told) in enumerate(zip(said, record["hardening"]["stages"], strict=True), 1):
        assert line.startswith(f"epoch {told['epoch'] + 1}/8: stage {stage} of 2, hidden.{stage - 1}.act exact from he")
        assert f"loss {told['loss_before']:.4f} -> {told['loss_hardened']:.4f}" in line
    assert (said[0] in first, said[1] in later) == (True, True)  # not again after a resume
    lines = {line.split(":")[0]: line for line in (*first, *later) if ": train loss" in line}
    kinds = ["smooth" if "(smooth" in x else "partly" if "(partly exact" in x else "exact" for x in lines.values()]
    assert kinds == ["smooth"] * 4 + ["partly"] * 2 + ["exact"] * 2
    finish = record["hardening"]["finish"]
    for line, step in zip(later[-len(finish) :], finish, strict=True):
        assert line.startswith(f"{step['name']}: validation loss {step['before']:.4f} -> {step['after']:.4f}")
        assert line.endswith(", not kept") is not step["kept"]


@pytest.mark.usefixtures("drawn")
def test_a_picture_shows_the_stages(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: figures.append(self))
    train(tmp_path / "run", table)
    (axes,) = figures[0].axes
    assert [*axes.lines[0].get_xdata()] == [*range(1, 9)]
    upright = [line.get_xdata()[0] for line in axes.lines[3:]]  # pyright: ignore[reportIndexIssue]
    assert upright[:-1] == [4.5, 6.5]  # of stages that begin with epochs 5 and 7


@pytest.mark.parametrize("method", ["htaf", "ss", "ste", "relu"])
def test_finishing_is_for_every_method(table: Table, tmp_path: Path, method: str) -> None:
    plain = make_recipe(hidden=(8,), epochs=2, batch_size=16, lr=0.02, method=method)
    before = train(tmp_path / "plain", table, plain).record
    record = train(tmp_path / "run", table, plain.replace(recalibrate=True, refit=True)).record
    assert "hardening" not in before
    network = "smooth" if method == "relu" else "exact"
    kept = [step for step in record["hardening"]["finish"] if step["kept"]]
    loss = record["metrics"][network]["validation"]["loss"]
    assert loss == pytest.approx(kept[-1]["after"] if kept else before["metrics"][network]["validation"]["loss"])
    assert loss <= before["metrics"][network]["validation"]["loss"]
    if method != "relu":
        assert record["metrics"]["smooth"] == before["metrics"]["smooth"]


def test_a_real_valued_network_is_trained_as_ever(table: Table, tmp_path: Path) -> None:
    plain = make_recipe(hidden=(8,), epochs=4, batch_size=16, lr=0.02, method="relu", patience=2, sharpen_fraction=0.1)
    runs = [train(tmp_path / "a", table, plain), train(tmp_path / "b", table, plain.replace(**FIELDS))]
    for name in ("metrics.csv", "model.safetensors"):
        assert (runs[0].path / name).read_bytes() == (runs[1].path / name).read_bytes()
    check(plain.replace(compile=True, **FIELDS), Running("cpu"))


def test_restored_pairs_are_moved_from_where_they_were(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best epoch is the first, in which the schedule had another pair; nothing is learned, so the pair that comes
    back is the schedule's of now."""
    pairs: list[tuple[float, ...]] = []
    original = PROGRESSIVE.loss_of

    def loss_of(net: nn.Module, *rest: Any) -> float:
        smooth = [m for m in net.modules() if isinstance(m, HTAF)]
        pairs.extend(tuple(float(value) for value in m.alphas) for m in smooth)
        return original(net, *rest)

    def validation_step(self: Training, batch: Any, batch_idx: int) -> None:
        for name in ("val_loss_smooth", "val_loss"):
            self.log(name, float(self.current_epoch), batch_size=1)

    monkeypatch.setattr(PROGRESSIVE, "loss_of", loss_of)
    monkeypatch.setattr(Training, "validation_step", validation_step)
    recipe = QUICK.replace(learn_pair=True, sharpen_fraction=1.0, lr=1e-9, weight_decay=0.0, repair=False)
    run = train(tmp_path / "run", table, recipe)
    assert run.record["hardening"]["stages"][0]["restored"] == 0
    schedule = recipe.activation.sharpening()
    assert schedule is not None
    assert pairs[0] == pytest.approx(schedule.at(0.5), rel=1e-3)


def test_nothing_comes_back_without_restart(table: Table, tmp_path: Path) -> None:
    run = train(tmp_path / "run", table, QUICK.replace(restart=0.0, harden_order="together", harden_from=0.8))
    assert [stage["restored"] for stage in run.record["hardening"]["stages"]] == [None]


def test_random_units_are_not_repaired(table: Table, tmp_path: Path) -> None:
    recipe = QUICK.replace(harden_unit="unit")
    assert "repair" in recipe.hardening.unread("htaf")
    assert all("repair" not in stage for stage in train(tmp_path / "run", table, recipe).record["hardening"]["stages"])


def test_a_last_step_that_cannot_be_taken_loses_nothing(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> Any:
        raise ValueError("expected another head")

    monkeypatch.setattr("htaf.hardening.refit_head", refuse)
    run = train(tmp_path / "run", table, QUICK.replace(recalibrate=True, refit=True))
    told = run.record["hardening"]["finish"]
    assert [step["name"] for step in told] == ["recalibrate", "refit"]
    assert (told[1]["error"], told[1]["kept"]) == ("expected another head", False)


def test_errors_before_the_training(table: Table, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"epochs must be >= 4 for 2 stages between 0\.5 and 0\.75"):
        train(tmp_path / "run", table, QUICK.replace(epochs=2))
    assert not (tmp_path / "run").exists()
    with pytest.raises(TrainingError, match="expected no gradients"):
        train(tmp_path / "run", table, gradients=True)
    with pytest.raises(TrainingError, match="one process, got 2"):
        check(QUICK, Running("cpu", devices=2))
    for fields in (FIELDS, {"noise": 0.1}):
        with pytest.raises(TrainingError, match="compile goes with neither"):
            check(make_recipe(compile=True, **fields), Running("cpu"))


def test_what_is_off_is_not_read() -> None:
    plain, later = make_recipe(), {"noise", "recalibrate", "refit"}
    assert {*Hardening().values()} & {*plain.effective()} == {"harden"} | later
    with pytest.raises(ValueError, match="restart needs harden progressive"):
        plain.refuse_unread(["restart"])
    assert {*Hardening().values()} <= {*make_recipe(harden="progressive").effective()}


class Plain(L.LightningModule):
    """A user's own module, with a network in .net."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), HTAF(), nn.Linear(8, 8), HTAF(), nn.Linear(8, 1))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss_smooth", nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), 0.05)


def test_the_callback_hardens_a_module_of_ones_own() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 3)
    batches: list[Any] = [(x, (x[:, :1] > 0).float())]
    options, module = Hardening("progressive", 0.5, 0.75, refit=True), Plain()
    before = module.net
    stages = stages_of(options, step_names(module.net, x), 8)
    callback = Progressive(stages, batches, batches, nn.functional.mse_loss, options)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*batches[0]), 16)
    trainer = L.Trainer(
        max_epochs=8, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[callback],
    )  # fmt: skip
    trainer.fit(module, loader, loader)
    assert [type(module.net[i]) for i in (1, 3)] == [Heaviside, Heaviside]
    assert len(callback.told) == 2
    assert [type(before[i]) for i in (1, 3)] == [HTAF, HTAF]  # another module with the same tensors
    assert all(a is b for a, b in zip(before.parameters(), module.net.parameters(), strict=True))
    assert loss_of(module.net, batches, nn.functional.mse_loss) < 0.15  # that of a constant is 0.25


class Scheduled(Plain):
    """With a scheduler of its own."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), 0.02)
        return [optimizer], [torch.optim.lr_scheduler.ConstantLR(optimizer)]


def test_distil_wants_a_pupil_before_it_trains() -> None:
    x = torch.randn(16, 3)
    batches: list[Any] = [(x, x[:, :1])]
    options, module = Hardening("progressive", 0.5, 0.75, distil=1.0), Plain()
    stages = stages_of(options, step_names(module.net, x), 8)
    callback = Progressive(stages, batches, batches, nn.functional.mse_loss, options)
    with pytest.raises(TypeError, match=r"distil needs a LightningModule with teach\(network\), got Plain"):
        callback.on_train_start(L.Trainer(max_epochs=8, accelerator="cpu", logger=False), module)


class Silent(Plain):
    """Logs nothing in its validation."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        return


@pytest.mark.parametrize(
    ("kind", "epochs", "message"),
    [
        (Scheduled, 8, "expected a module without a scheduler"),
        (Plain, 6, "expected max_epochs 8, as stages say, got 6"),
        (Silent, 8, "expected a module that logs val_loss_smooth"),
    ],
)
def test_what_the_callback_expects(kind: type[Plain], epochs: int, message: str) -> None:
    x = torch.randn(16, 3)
    batches: list[Any] = [(x, x[:, :1])]
    options, module = Hardening("progressive", 0.5, 0.75), kind()
    stages = stages_of(options, step_names(module.net, x), 8)
    callback = Progressive(stages, batches, batches, nn.functional.mse_loss, options)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*batches[0]), 16)
    trainer = L.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[callback],
    )  # fmt: skip
    with pytest.raises(ValueError, match=message):
        trainer.fit(module, loader, loader)


def test_what_cannot_be_hardened_in_stages() -> None:
    options = Hardening("progressive", 0.5, 0.75)
    with pytest.raises(ValueError, match="expected a network with smooth steps"):
        stages_of(options, [], 8)
    stages, batches = stages_of(options, ["a"], 8), [(torch.zeros(2, 1), torch.zeros(2, 1))]
    with pytest.raises(ValueError, match="expected options with harden progressive, got harden end"):
        Progressive(stages, batches, batches, nn.functional.mse_loss, Hardening())
    with pytest.raises(TypeError, match="that can be gone through again"):
        Progressive(stages, batches, iter(batches), nn.functional.mse_loss, options)


# ---- learned pairs ----


@settings(max_examples=60, deadline=None)
@given(move=st.tuples(st.floats(-3, 3), st.floats(-3, 3)), progress=st.floats(0, 1))
def test_learned_pairs_keep_the_schedule_s_product(move, progress) -> None:
    schedule, step = Geometric((1.0, 2.0), (2.0, 11.0), 0.7), HTAF(2.0, 11.0, learnable=True)
    now = schedule.at(progress)
    learn_within(step, now, now, 22.0)  # as an optimizer finds it
    with torch.no_grad():
        step.get_parameter("log_alpha0").fill_(math.log(now[0]) + move[0])
        step.get_parameter("log_alpha1").fill_(math.log(now[1]) + move[1])
    assert learn_within(nn.Sequential(step), now, now, 22.0) == 1
    alpha0, alpha1 = (float(value) for value in step.alphas)
    assert alpha0 * alpha1 == pytest.approx(now[0] * now[1], rel=1e-5)
    assert 0.1 - 1e-6 <= alpha0 <= 22 / SATURATION + 1e-5
    if progress >= 0.7:
        assert alpha1 >= SATURATION - 1e-5
    nearest = now[0] * math.exp((move[0] - move[1]) / 2)
    assert alpha0 == pytest.approx(min(max(nearest, 0.1), 22 / SATURATION), rel=1e-5)


def test_a_pair_that_learns_nothing_follows_the_schedule() -> None:
    module = Training(learnable_net(), make_recipe(hidden=(4,), learn_pair=True), "regression", 100)
    step = next(m for m in module.net.modules() if isinstance(m, HTAF))
    assert module.schedule is not None
    for i in range(101):
        module.sharpen(i / 100)
        expected = module.schedule.at(i / 100)
        assert [float(alpha) for alpha in step.alphas] == pytest.approx(expected, rel=1e-4)


def learnable_net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), HTAF(2.0, 11.0, learnable=True), nn.Linear(4, 1))


def test_every_layer_learns_its_own_pair(table: Table, tmp_path: Path) -> None:
    recipe = make_recipe(hidden=(8, 6), epochs=4, batch_size=16, lr=0.05, learn_pair=True)
    run = train(tmp_path / "run", table, recipe)
    found = [m.alphas for m in open_run(run.path).model(exact=False).modules() if isinstance(m, HTAF)]
    assert len({float(alpha0) for alpha0, _ in found}) == 2
    assert all(float(alpha0) != pytest.approx(2.0, rel=1e-3) for alpha0, _ in found)
    assert run.record["model"]["activation"]["learnable"] is True
    assert run.record["recipe"]["learn_pair"] is True


# ---- families ----


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    """Class folders of small images, of which one is brighter on the left."""
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for name in ("left", "right"):
        (folder / name).mkdir()
        for i in range(20):
            pixels = rng.integers(0, 120, (8, 8, 3), dtype=np.uint8)
            pixels[:, slice(0, 4) if name == "left" else slice(4, 8)] += 120
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return load_images(folder, size=8)


FAMILIES: dict[str, dict[str, Any]] = {
    "dhn": {"depth": 10},
    "bnn": {"width": 2},
    "snn": {"width": 2, "steps": 2},
    "icbm": {"depth": 10, "concepts": 4},
}


@pytest.mark.parametrize("family", slow_but(FAMILIES, "dhn", "snn"))
def test_every_family_becomes_exact_stage_by_stage(images: Images, tmp_path: Path, family: str) -> None:
    recipe = make_recipe(
        family, epochs=4, batch_size=8, harden="progressive", harden_from=0.5, harden_to=0.75, noise=0.1, repair=True,
        harden_stages=2 if family == "dhn" else 1, recalibrate=True, refit=True, distil=0.1, augment="none",
        validation_images=8, **FAMILIES[family],
    )  # fmt: skip
    run = fit(recipe, images, tmp_path / "run", running=Running("cpu", checkpoint_seconds=0.0))
    told = run.record["hardening"]
    assert len(told["stages"]) == recipe.hardening.harden_stages
    steps = [name for stage in told["stages"] for name in stage["steps"]]
    exact = dict(open_run(run.path).model().named_modules())
    assert steps
    assert all(isinstance(exact[name], Heaviside) for name in steps)
    assert sum(isinstance(module, Heaviside) for module in exact.values()) == len(steps)
    assert [step["name"] for step in told["finish"]] == ["recalibrate", "refit"]


class Own(nn.Module):
    """A step from outside htaf that keeps the contract."""

    kind, sharpness, bipolar = "own", ("steep",), False

    def __init__(self) -> None:
        super().__init__()
        self.steep = 4.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.steep * x)

    def hardened(self) -> nn.Module:
        return Heaviside.of(self)


def test_a_step_from_outside_is_hardened_too(table: Table, tmp_path: Path) -> None:
    recipe = QUICK.replace(method="somewhere.steps:Own", start=(1.0,), sharpness=(8.0,))
    run = train(tmp_path / "run", table, recipe, method=Own)
    assert len(run.record["hardening"]["stages"]) == 2
    assert not [m for m in open_run(run.path, method=Own).model().modules() if isinstance(m, Own)]


def test_plans_take_the_fields() -> None:
    plan = Plan(
        "mine",
        (Source("wine"),),
        {"htaf": {"harden,noise": (("end", 0.0), ("progressive", 0.5)), "refit": (True,)}},
        make_recipe(),
    )
    found = {recipe.hardening for recipe in plan.recipes("htaf")}
    assert found == {Hardening(refit=True), Hardening("progressive", noise=0.5, refit=True)}
    assert plan.describe()["base"].items() >= Hardening().values().items()
    with pytest.raises(PlanError, match="restart needs harden progressive"):
        Plan("mine", plan.sources, {"htaf": {"restart": (0.1, 0.3)}}, make_recipe())
