"""A linear model of the inputs beside the bits: the default for tables, from its training to its files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import RidgeCV
from torch import nn

import htaf
from htaf.core.activations import Heaviside
from htaf.data.tabular import from_frame
from htaf.models.build import build
from htaf.models.mlp import MLP
from htaf.tables.inspection import reasons
from htaf.training.boosting import given_once
from htaf.training.families import make_recipe, ready_recipe
from htaf.training.finish import finished
from htaf.training.fit import MOST_EPOCHS, VALIDATIONS, fit, long_enough
from htaf.training.module import EpochBatches, Training
from htaf.training.problems import Problem, problem
from htaf.training.recipe import Running
from htaf.training.runs import forward
from htaf.transform.hardening import refit_head

QUICK = {"hidden": (64,), "recipe": {"members": 2}}


def made(rows: int = 400, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Numbers that follow a line far beyond its noise, and a step that no line has."""
    rng = np.random.default_rng(seed)
    x = pd.DataFrame({name: rng.random(rows) for name in "abc"})
    y = 10 * x["a"] - 5 * x["b"] + 0.5 * (x["c"] > 0.5) + rng.normal(0, 0.05, rows)
    return x, y.to_numpy()


@pytest.fixture(scope="module")
def regressor() -> htaf.HtafRegressor:
    x, y = made()
    return htaf.HtafRegressor(**QUICK).fit(x, y)


def test_the_bits_learn_what_the_line_leaves(regressor: htaf.HtafRegressor) -> None:
    x, y = made(300, 1)
    line = RidgeCV(np.logspace(-4, 2, 9)).fit(*made())
    error = np.sqrt(np.mean((regressor.predict(x) - y) ** 2))
    assert error < 0.85 * np.sqrt(np.mean((line.predict(x) - y) ** 2))
    without = htaf.HtafRegressor(**QUICK | {"recipe": {"members": 2, "direct": False}}).fit(*made())
    assert error < 0.5 * np.sqrt(np.mean((without.predict(x) - y) ** 2))


@given(st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_the_mean_of_the_members_is_the_network(outputs: int, members: int, thermometer: bool) -> None:
    net = MLP(3, outputs, (4,), members=members, direct=True, thresholds=(2, 2, 2) if thermometer else ())
    assert isinstance(net.direct, nn.Linear)
    nn.init.normal_(net.direct.weight)
    x = torch.randn(5, 3)
    torch.testing.assert_close(net.member_outputs(x).mean(1), net(x))
    torch.testing.assert_close(net(x) - net.direct(x), net.head(net.hidden(net.thermometer(x))))


class Beside(nn.Module):
    """A head over bits, and a part of its own that is added; twice where `multiplied`, which is no sum."""

    def __init__(self, outputs: int, multiplied: bool = False) -> None:
        super().__init__()
        self.first, self.act, self.plain = nn.Linear(3, 64), Heaviside(), nn.Linear(3, outputs)
        self.head, self.multiplied = nn.Linear(64, outputs), multiplied

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        plain = self.plain(x)
        outputs = self.head(self.act(self.first(x)))
        return outputs * (1 + plain) if self.multiplied else outputs + plain


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_head_is_fitted_beside_what_is_added(outputs: int) -> None:
    torch.manual_seed(0)
    net, x = Beside(outputs), torch.randn(500, 3)
    y = x[:, :1] ** 2 if outputs == 1 else (x[:, 0] ** 2 > 0.5).long() + (outputs == 3) * (x[:, 1] > 1).long()
    loss = nn.functional.mse_loss if outputs == 1 else nn.functional.cross_entropy
    made, report = refit_head(net, [(x[:300], y[:300])], validation=[(x[300:], y[300:])])
    with torch.no_grad():
        before, after = (float(loss(one(x[300:]), y[300:])) for one in (net.eval(), made))
    assert after < 0.7 * before
    assert report.after is not None
    assert report.after["loss"] == pytest.approx(after, rel=1e-4)  # what is added is counted
    for name, value in net.state_dict().items():
        assert torch.equal(value, made.state_dict()[name]) == (not name.startswith("head"))
    with pytest.raises(ValueError, match="expected a model that returns the output of"):
        refit_head(Beside(outputs, multiplied=True), [(x, y)])


@pytest.mark.parametrize(("noise", "low", "high"), [(0.0, 0.9, 1.0), (30.0, 0.0, 0.3)])
def test_bits_that_say_nothing_count_little(noise: float, low: float, high: float, posed) -> None:
    """The share is near 1 where the bits are right, and near 0 where they are noise."""
    x, y = torch.cat([x for x, _ in posed.validation]), torch.cat([y for _, y in posed.validation])
    torch.manual_seed(0)
    net = MLP(x.shape[1], 1, (256,), Heaviside, direct=True)
    assert net.direct is not None
    made, _ = refit_head(net, [(x, y)], validation=[(x, y)])
    made.head.weight.data += noise * made.head.weight.std() * torch.randn_like(made.head.weight)
    shrunk, told = finished(made, posed, make_recipe(), print)
    (step,) = told
    assert step["name"] == "shrink"
    if step["kept"]:
        assert isinstance(shrunk, MLP)
        share = float((shrunk.head.weight / made.head.weight).detach().nanmean())
        assert low <= share <= high
    else:
        assert high == 1.0


@pytest.fixture
def posed() -> Problem:
    x, y = made()
    return problem(ready_recipe("mlp", "tabular-residual"), from_frame(x, y, task="regression"), 0, "random")


@given(st.integers(2, 200_000), st.integers(1, 40), st.integers(0, 2000))
def test_the_number_of_steps_decides(rows: int, epochs: int, steps: int) -> None:
    recipe = ready_recipe("mlp", "tabular-residual").replace(epochs=epochs, least_steps=steps)
    known, every, told = long_enough(recipe, rows)
    found, an_epoch = known.optimization.epochs, len(EpochBatches(rows, recipe.optimization.batch_size, 0))
    assert epochs <= found <= MOST_EPOCHS
    assert found * an_epoch >= steps or found == MOST_EPOCHS
    assert found % every == 0
    assert every == 1 or VALIDATIONS / 2 < found / every <= VALIDATIONS
    assert every == 1 or found > epochs
    assert bool(told) == (found > epochs)


def test_a_training_of_many_short_epochs_is_validated_now_and_then_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = made(100)
    table, recipe = from_frame(x, y, task="regression"), ready_recipe("mlp", "tabular-residual")
    recipe = recipe.replace(hidden=(8,), members=2, least_steps=600, epochs=15)
    running = Running("cpu", checkpoint_seconds=0.0)
    whole = fit(recipe, table, tmp_path / "whole", running=running)
    rows = pd.read_csv(tmp_path / "whole" / "metrics.csv")
    every = MOST_EPOCHS // VALIDATIONS
    assert rows["epoch"].tolist() == list(range(every - 1, MOST_EPOCHS, every))
    assert whole.record["epochs_run"] == MOST_EPOCHS
    assert whole.record["best_epoch"] in set(rows["epoch"])

    begun = Training.on_train_batch_start

    def stop(self: Training, batch: object, batch_idx: int) -> None:
        if self.current_epoch == 57:
            raise KeyError("stopped")
        begun(self, batch, batch_idx)

    monkeypatch.setattr(Training, "on_train_batch_start", stop)
    with pytest.raises(KeyError, match="stopped"):
        fit(recipe, table, tmp_path / "run", running=running)
    monkeypatch.setattr(Training, "on_train_batch_start", begun)
    again = fit(recipe, table, tmp_path / "run", running=running)
    assert again.record["model_sha256"] == whole.record["model_sha256"]
    for name in ("metrics.csv", "model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_what_is_computed_once_is_what_the_network_says(posed: Problem) -> None:
    """The state is the same, so that a training resumes with another number of processes."""
    recipe = ready_recipe("mlp", "tabular-residual")
    net = build(recipe.model(posed.inputs, posed.outputs))
    assert isinstance(net, MLP)
    recipe.network.initialise(net, posed)
    net.eval()
    before, names = forward(net, posed.validation[torch.arange(40), 0][0]), [*net.state_dict()]
    told = given_once(posed, net)
    assert [*net.state_dict()] == names
    x = told.validation[torch.arange(40), 0][0]
    assert x.shape[1] == posed.inputs["in_features"] + 1
    torch.testing.assert_close(forward(net, x), before)
    net.given = False
    torch.testing.assert_close(forward(net, posed.validation[torch.arange(40), 0][0]), before)


def test_several_processes_wrap_a_network_whose_line_is_held() -> None:
    net = MLP(3, 1, (4,), direct=True)
    Training(net, ready_recipe("mlp", "tabular-residual").replace(members=1), "regression", 10)
    assert net.direct is not None
    assert not any(p.requires_grad for p in net.direct.parameters())


def test_epochs_that_are_asked_for_are_those() -> None:
    x, y = made(60)
    assert htaf.HtafRegressor(epochs=2, **QUICK).fit(x, y).n_iter_ == 2


def test_reasons_count_the_line(regressor: htaf.HtafRegressor, tmp_path: Path) -> None:
    x, y = made()
    run = htaf.load(regressor.save(tmp_path / "run")).run_
    found = reasons(run, x[:1], x.assign(target=y))
    assert found.decision == pytest.approx(regressor.predict(x[:1])[0], abs=1e-4)


def test_files_predict_as_the_run(regressor: htaf.HtafRegressor, tmp_path: Path) -> None:
    x, _ = made(50, 2)
    folder = regressor.save(tmp_path / "run")
    run = htaf.load(folder).run_
    inputs = torch.from_numpy(regressor._preprocessor.transform(x))
    packed = htaf.pack(run.model(), inputs)
    torch.testing.assert_close(packed(inputs), forward(run.model(), inputs), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(htaf.load(folder).predict(x), regressor.predict(x))
