"""The study of the theory: its cells, its exact arithmetic, and trainings restated; vanishing gradients too."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pandas as pd
import pytest
import torch
from mpmath import mpf
from torch import Tensor, nn

from htaf.core.activations import HTAF, Heaviside, ScaledSigmoid, StraightThrough
from htaf.data import tabular
from htaf.models.mlp import MLP
from htaf_paper import bounds, networks, theory, theory_report, vanishing, vanishing_report
from htaf_paper.computing import Place
from htaf_paper.gap_bound import dhn_gap_bound
from htaf_paper.theory import cells
from htaf_paper.tuning import tune
from htaf_paper.vanishing import DepthCell, GradientNorms, LayerGradient, mean_by_layer, train

mse = nn.functional.mse_loss


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two small tables in place of the real ones, and few cells of each kind."""
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(size=(120, 3)), columns=["a", "b", "c"])
    noisy = frame.a + generator.normal(size=120)
    frame.assign(y=noisy).to_csv(tmp_path / "wine.csv", index=False)
    frame.assign(y=np.where(noisy > 0, "Yes", "No")).to_csv(tmp_path / "churn.csv", index=False)
    made = {name: tabular.load(tmp_path / f"{name}.csv", target="y") for name in ("wine", "churn")}
    monkeypatch.setattr(theory, "load", lambda name, data_dir: made[name])
    monkeypatch.setattr(theory, "TABLES", ("wine", "churn"))
    monkeypatch.setattr(theory, "SIZES", (10.0, 100.0, 1e5))
    monkeypatch.setattr(theory, "EPSILONS", (1.0, 1e-2))
    monkeypatch.setattr(theory, "RATES", (1e-3,))
    monkeypatch.setattr(bounds, "PAPER_PAIRS", ((2.0, 11.0), (5.0, 4.4)))
    theory._data.cache_clear()
    yield tmp_path / "out"
    theory._data.cache_clear()


@pytest.mark.parametrize("form", ["paper", "central"])
@pytest.mark.parametrize("m", [3.0, 1e7])
def test_the_error_in_60_digits(form: networks.SquareForm, m: float) -> None:
    alpha0, alpha1, x = 2.0, 11.0, mpf("0.7")
    found = theory.exact_square_error(alpha0, alpha1, m, form, Decimal("0.7"))
    with mpmath.workdps(60):

        def phi(z: Any) -> Any:
            return 1 / (1 + mpmath.exp(-mpf(alpha1) * mpmath.tanh(mpf(alpha0) * z)))

        t, h = mpf(networks.square_network(alpha0, alpha1, m, form).bias[0]), mpf("0.7") / (m * 22)
        points = (t, t + h, t + 2 * h) if form == "paper" else (t - h, t, t + h)
        second = phi(points[0]) - 2 * phi(points[1]) + phi(points[2])
        error = abs(second / h**2 / mpmath.diff(phi, t, 2) - 1) * x**2
    assert found == pytest.approx(float(error), rel=1e-6)


def test_the_outcome(small: Path) -> None:
    few = {"epochs": 1, "seeds": (0, 3), "pairs": bounds.PAPER_PAIRS, "tables": theory.TABLES, "rates": theory.RATES}
    records = []
    for cell in cells(**few):
        records.append({**theory.cell(cell, Place(small)), "cell": cell})
    assert len(records) == 4 + 2 + 3 + 2 * 2 * 2 + 2 * 5 * 2
    found = theory_report.outcome(records, "full")
    rows = {row["cell"]["kind"]: row for row in records}
    assert rows.keys() == set(theory_report.KINDS)
    for row in [row for record in records if record["cell"]["kind"] == "relu" for row in record["rows"]]:
        assert row["float64"] <= row["bound"] <= row["eps"] * (1 + 1e-9)
    for row in [theory_report.gap_row(r) for r in records if r["cell"]["kind"] == "gap"]:
        assert 0 < row["measured"] <= row["triangle"] <= (row["certified"] or math.inf)
        assert (row["paper"] is None) == (row["depth"] == 2)
    titles = " ".join(table.title for table in found.tables)
    for heading in ("squaring", "product", "ReLU", "Exact steps", "one hidden", "two hidden", "general activation"):
        assert heading in titles
    assert "Learned on digits: alpha0 " in found.tables[-1].note
    verdicts = {claim.place: claim.verdict for claim in found.claims}
    assert (verdicts["Theorem B.1"], verdicts["Theorem B.2"], verdicts["Theorem C.1"]) == ("holds",) * 3
    assert {drawing.name for drawing in found.drawings} == {"squares", "gap-bounds"}


def test_a_gap_is_that_of_the_trained_network(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training restated: Adam under a one-cycle rate, batches by the seed."""
    data = theory.table_data("churn", 1)
    settings = {"hidden": [5], "alpha0": 2.0, "alpha1": 11.0, "seed": 1, "lr": 0.01, "epochs": 2, "batch_size": 50}
    record = theory.compute({"kind": "gap", **settings}, data)
    torch.manual_seed(1)
    net = MLP(3, 2, (5,), lambda: theory.HTAF(2.0, 11.0), batch_norm=True)
    x, y = data.parts[0].x, data.parts[0].y
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, 4)
    for epoch in range(2):
        for part in torch.randperm(len(x), generator=torch.Generator().manual_seed(1_000_003 + epoch)).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[part]), y[part]).backward()
            optimizer.step()
            schedule.step()
    found = dhn_gap_bound(net.eval(), data.parts[2].x)
    assert record["bounds"]["measured"] == pytest.approx(sum(found.measured) / 2, rel=1e-6)
    assert found.paper is not None
    assert record["bounds"]["paper"] == pytest.approx(sum(found.paper) / 2, rel=1e-6)
    assert record["layers"][0]["eps"] == pytest.approx(bounds.achieved_eps(2.0, 11.0))
    assert record["auroc"] is not None


def test_another_activation_is_refused() -> None:
    data = theory.digits(0)
    assert [len(part.x) for part in data.parts] == [len(part.y) for part in data.parts]
    settings = {"task": "digits", "method": "gelu", "lr": 0.1, "seed": 0, "epochs": 1, "batch_size": 8}
    with pytest.raises(
        ValueError, match=r"^expected one of relu, tanh, htaf-1-4, htaf-2-11, htaf-learned, got 'gelu'$"
    ):
        theory.compute({"kind": "activation", **settings}, data)


# ---- vanishing gradients ----


def test_one_training_spelled_out() -> None:
    """Two epochs of Adam on one batch each: norms, losses and the RMSE of the last network."""
    torch.manual_seed(5)
    x, y = torch.randn(30, 4), torch.randn(30, 1)
    cell = DepthCell((6, 5), {"method": "htaf", "alpha0": 1.0, "alpha1": 6.0}, seed=3, epochs=2, lr=0.1)
    found = train(cell, (x, y), (x, y), scale=2.0)
    torch.manual_seed(3)
    net = MLP(4, 1, (6, 5), lambda: HTAF(1.0, 6.0))
    optimizer = torch.optim.Adam(net.parameters(), 0.1)
    for epoch in range(2):
        first = net.hidden[0].linear(x)  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
        loss = nn.functional.mse_loss(net.head(net.hidden[1](HTAF(1.0, 6.0)(first))), y)
        (gradient,) = torch.autograd.grad(loss, first, retain_graph=True)
        assert found["train_loss"][epoch] == pytest.approx(loss.item(), rel=1e-3)
        assert found["norm"][0][epoch] == pytest.approx(gradient.norm().item(), rel=1e-3)
        assert found["per_sample"][0][epoch] == pytest.approx(gradient.norm(dim=1).sum().item(), rel=1e-3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert found["layers"] == ["hidden.0.act", "hidden.1.act"]
    last = 2 * nn.functional.mse_loss(net(x), y).sqrt().item()
    assert found["validation_rmse"]["smooth"] == pytest.approx(last, rel=1e-3)
    assert found["validation_rmse"]["exact"] != found["validation_rmse"]["smooth"]
    relu = DepthCell((6,), {"method": "relu"}, seed=0, epochs=1)
    assert train(relu, (x, y), (x, y), 1.0)["validation_rmse"]["exact"] is None


def test_a_tuned_training_spelled_out() -> None:
    """Three epochs of two batches: pair by pair along the schedule of `tune`, from its weights."""
    torch.manual_seed(5)
    x, y = torch.randn(40, 4), torch.randn(40, 1)
    cell = DepthCell((6, 5), vanishing.HTAF, seed=3, epochs=3, batch_size=20, lr=0.1, tuned=True)
    found = train(cell, (x, y), (x, y), scale=1.0)
    torch.manual_seed(3)
    net, tuning = tune(MLP(4, 1, (6, 5), lambda: HTAF(3.0, 7.3)), x, rate=0.1)
    optimizer, step = torch.optim.Adam(net.parameters(), 0.1), 0
    for epoch in range(3):
        total = 0.0
        for rows in torch.randperm(40, generator=torch.Generator().manual_seed(3_000_009 + epoch)).split(20):
            for layer in tuning.layers:
                f, act = min(step / 6 / 0.7, 1.0), net.get_submodule(layer.path)
                act.alpha0, act.alpha1 = (  # pyright: ignore[reportAttributeAccessIssue]
                    a ** (1 - f) * b**f for a, b in zip(layer.start, layer.end, strict=True)
                )
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            total, step = total + loss.item() / 2, step + 1
        assert found["train_loss"][epoch] == pytest.approx(total, rel=1e-3)
    last = nn.functional.mse_loss(net(x), y).sqrt().item()
    assert found["validation_rmse"]["smooth"] == pytest.approx(last, rel=1e-3)
    assert [layer["end"] for layer in found["tuning"]] == [pytest.approx(v.end, rel=1e-3) for v in tuning.layers]


def made(
    hidden: tuple[int, ...], activation: dict[str, Any], seed: int, last: float, lr: float = 1e-3, tuned: bool = False
) -> dict[str, Any]:
    """A record of 20 epochs whose first layer's norm is 1, and `last` in the last two epochs."""
    cell = DepthCell(hidden, activation, seed, epochs=20, lr=lr, tuned=tuned)
    curve = [1.0] * 18 + [last, last]
    return {
        "cell": cell.settings("abalone"),
        "layers": ["a", "b"],
        "norm": [curve, [0.5] * 20],
        "per_sample": [[10 * v for v in curve], [5.0] * 20],
        "train_loss": [0.25] * 20,
        "validation_rmse": {"smooth": 2.5, "exact": None if activation == vanishing.RELU else 3.0},
    }


# 20 epochs: the last two count; 25: the last three; 5: the last one
@pytest.mark.parametrize(
    ("norms", "expected"),
    [
        ([1.0] * 18 + [0.0, 1.9e-5], True),
        ([1.0] * 18 + [0.0, 2e-5], False),  # a median of exactly 1e-5 is not below it
        ([1.0] * 22 + [0.0, 0.0, 1.0], True),
        ([1.0] * 22 + [0.0, 1.0, 1.0], False),
        ([1.0] * 4 + [0.0], True),
    ],
)
def test_the_median_of_the_last_tenth_of_the_epochs(norms: list[float], expected: bool) -> None:
    assert vanishing_report.verdict([{"norm": [norms]}])[0] == expected


# ---- gradient norms against autograd with everything spelled out, and closed forms ----


def data(rows: int = 6, columns: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, columns, generator=generator), torch.randn(rows, 1, generator=generator)


@pytest.mark.parametrize("act", [HTAF, ScaledSigmoid, StraightThrough, Heaviside, nn.ReLU])
def test_against_autograd(act: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), act(), nn.Linear(5, 4), act(), nn.Linear(4, 1))
    x, y = data()
    first = model[0](x)
    second = model[2](model[1](first))
    loss = mse(model[4](model[3](second)), y)
    expected = torch.autograd.grad(loss, (first, second))
    with GradientNorms(model) as norms:
        mse(model(x), y).backward()
        found = norms.read()
    assert list(found) == ["1", "3"]
    for layer, gradient in zip(found.values(), expected, strict=True):
        assert layer.norm == pytest.approx(gradient.double().square().sum().sqrt().item(), rel=1e-6)
        each = [row.double().square().sum().sqrt().item() for row in gradient]
        assert layer.per_sample == pytest.approx(math.fsum(each), rel=1e-6)
    if act is Heaviside:
        assert {layer.norm for layer in found.values()} == {0.0}


def test_per_sample_is_the_norm_of_each_samples_own_loss() -> None:
    torch.manual_seed(0)
    model = MLP(3, 1, (5,), nn.ReLU)
    x, y = data()
    own = []
    for i in range(len(x)):
        pre = model.hidden[0].linear(x[i : i + 1])  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
        (gradient,) = torch.autograd.grad(mse(model.head(pre.relu()), y[i : i + 1]), pre)
        own.append(gradient.norm().item())
    with GradientNorms(model) as norms:
        mse(model(x), y).backward()
        found = norms.read()["hidden.0.act"]
    assert found.per_sample == pytest.approx(sum(own) / len(own), rel=1e-5)
    assert found.norm == pytest.approx(math.sqrt(math.fsum(n * n for n in own)) / len(own), rel=1e-5)


@pytest.mark.parametrize("size", [1e-35, 1e-22, 1e-13, 1.0, 1e18, 1e25])
def test_norms_whose_squares_leave_float32(size: float) -> None:
    x = torch.ones(2, 50, requires_grad=True)
    model = nn.Sequential(nn.Identity(), nn.ReLU())
    with GradientNorms(model) as norms:
        (model(x) * torch.tensor([[1.0], [1e-3]]) * size).sum().backward()
        found = norms.read()["1"]
    assert found.norm == pytest.approx(size * math.sqrt(50 * (1 + 1e-6)), rel=1e-5, abs=0)
    assert found.per_sample == pytest.approx(size * math.sqrt(50) * 1.001, rel=1e-5, abs=0)


def test_means_over_the_batches_of_an_epoch() -> None:
    batches = [{"a": LayerGradient(1.0, 4.0)}, {"a": LayerGradient(2.0, 8.0), "b": LayerGradient(math.inf, 1.0)}]
    found = mean_by_layer(batches)
    assert found["a"] == LayerGradient(1.5, 6.0)
    assert math.isnan(found["b"].norm)
