"""The study of the theory: its cells, its exact arithmetic, what its report chooses, and that it goes on."""

from __future__ import annotations

import json
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
from torch import nn

from htaf.data import tabular
from htaf.models.mlp import MLP
from htaf_paper import bounds, networks, theory, theory_report
from htaf_paper.computing import Place
from htaf_paper.gap_bound import dhn_gap_bound
from htaf_paper.theory import cells


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


def test_cells() -> None:
    found = cells()
    count = {kind: sum(cell["kind"] == kind for cell in found) for kind in theory_report.KINDS}
    assert count == {"square": 12, "product": 6, "relu": 3, "gap": 2 * 4 * 6, "activation": 2 * 5 * 5 * 3}
    assert len({json.dumps(cell, sort_keys=True) for cell in found}) == len(found)
    by_method = {c["method"]: [] for c in found if c["kind"] == "activation"}
    for cell in found:
        if cell["kind"] == "activation":
            by_method[cell["method"]].append({k: v for k, v in cell.items() if k != "method"})
    assert all(own == by_method["relu"] for own in by_method.values()), "every activation has the same budget"


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


def test_squares_and_products_keep_their_bounds() -> None:
    for form in ("paper", "central"):
        record = theory.square(2.0, 11.0, form)  # pyright: ignore[reportArgumentType]
        assert all(row["exact"] <= row["bound"] for row in record["rows"])
        assert record["rows"][0]["float64"] == pytest.approx(record["rows"][0]["exact"], rel=1e-6)
        last = record["rows"][-1]
        assert last["float64"] > 100 * last["bound"], "m = 1e7 is past the best m"
        row = theory_report.square_row({"cell": {"alpha0": 2.0, "alpha1": 11.0, "form": form}, **record})
        for dtype in ("float64", "float32"):
            assert row[dtype]["best_m"] / 5 < row[dtype]["predicted_m"] < 5 * row[dtype]["best_m"]
        assert row["float32"]["best_m"] < row["float64"]["best_m"]
    record = theory.product(2.0, 11.0)
    assert all(row["float64"] <= row["bound"] for row in record["rows"] if row["m"] < 300)


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


def made(method: str, seed: int, lr: float, validation: float, test: float, metric: str = "rmse") -> dict[str, Any]:
    cell = {"kind": "activation", "task": "wine", "method": method, "seed": seed, "lr": lr}
    return {"cell": cell, "metric": metric, "validation": validation, "test": test}


def test_the_rate_is_chosen_by_validation_and_differences_are_paired() -> None:
    records = [made("relu", s, lr, v, t) for s, lr, v, t in ((0, 0.1, 1, 5), (0, 0.2, 2, 1), (1, 0.1, 3, 7))]
    records += [made("tanh", 0, 0.1, 9, 0), made("tanh", 0, 0.2, 8, 6), made("tanh", 1, 0.1, 3, 9)]
    relu, tanh = theory_report.activation_rows(records)
    assert relu["test"] == [6, pytest.approx(1)]
    assert relu["less_relu"] is None
    assert tanh["test"] == [7.5, pytest.approx(1.5)]
    assert tanh["less_relu"] == [1.5, pytest.approx(0.5)]
    assert tanh["rates"] == {"0.1": 1, "0.2": 1}
    # of two HTAF pairs the one that is better on validation is judged, not the one that is better on test rows
    pairs = [made("htaf-1-4", s, 0.1, 1.0, 9.0) for s in (0, 1)] + [made("htaf-2-11", s, 0.1, 2.0, 1.0) for s in (0, 1)]
    (claim,) = theory_report.outcome([*records, *pairs], "full").claims
    assert claim.evidence.startswith("HTAF (1, 4), the best on validation, better than ReLU by -3.000")
    accuracy = [made("relu", 0, lr, v, t, "accuracy") for lr, v, t in ((0.1, 1, 5), (0.2, 2, 1))]
    assert theory_report.activation_rows(accuracy)[0]["test"] == [1, None]


def test_another_activation_is_refused() -> None:
    data = theory.digits(0)
    assert [len(part.x) for part in data.parts] == [len(part.y) for part in data.parts]
    settings = {"task": "digits", "method": "gelu", "lr": 0.1, "seed": 0, "epochs": 1, "batch_size": 8}
    with pytest.raises(
        ValueError, match=r"^expected one of relu, tanh, htaf-1-4, htaf-2-11, htaf-learned, got 'gelu'$"
    ):
        theory.compute({"kind": "activation", **settings}, data)
