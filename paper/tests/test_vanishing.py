"""The paper's vanishing-gradient experiments: what is trained, exact resume, and verdicts from curves made by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from htaf.activations import HTAF
from htaf.models.mlp import MLP
from htaf_paper import vanishing, vanishing_report
from htaf_paper.tuning import tune
from htaf_paper.vanishing import DepthCell, cells, train
from htaf_paper.vanishing_report import outcome

# As printed: X no vanishing gradient, O vanishing; ReLU, HTAF, Scaled Sigmoid
PRINTED = """
[256, 256, 128] X X O
[512, 512, 256] X X O
[1024, 1024, 512] X X O
[256, 256, 256, 128] X X O
[512, 512, 512, 256] X X O
[1024, 1024, 1024, 512] X X O
[256, 256, 256, 256, 256] X O O
"""


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_papers_table() -> None:
    lines = [line.rsplit("] ", 1) for line in PRINTED.strip().splitlines()]
    expected = {tuple(json.loads(h + "]")): tuple(mark == "O" for mark in marks.split()) for h, marks in lines}
    assert expected == vanishing_report.PAPER
    assert tuple(expected) == vanishing.SHAPES


def test_cells_of_table_and_figure() -> None:
    everything_first = cells(rates=(1e-3,))
    tuned = [c for c in everything_first if c.tuned]
    assert len(tuned) == 2 * (3 * 3 + 4)  # three seeds of the shapes of 256 units
    assert {c.seed for c in tuned if max(c.hidden) > 256} == {0}
    first = [c for c in everything_first if not c.tuned]
    assert len(first) == 7 * 3 + 5 - 2  # the figure shares SS and ReLU with the table
    assert {(c.epochs, c.batch_size, c.lr, c.seed) for c in first} == {(200, 256, 1e-3, 0)}
    pairs = {(c.activation["alpha0"], c.activation["alpha1"]) for c in first if c.activation["method"] == "htaf"}
    assert pairs == {(3.0, 7.3), (2.0, 11.0), (8.0, 2.75), (11.0, 2.0)}
    everything = cells(seeds=(0, 4))
    untuned = [c for c in everything if not c.tuned]
    assert len(untuned) == 2 * (24 + 2 * (3 * 3 + 3))
    assert len(everything) - len(untuned) == 2 * (3 * 3 + 2 * 4 + 2 * 2 * 3)
    for width, rates in ((1024, {1e-3}), (512, {1e-3}), (256, {1e-3, 3e-3, 1e-2})):
        assert {c.lr for c in everything if max(c.hidden) == width} == rates
    assert len({json.dumps(c.settings("x")) for c in everything}) == len(everything)
    assert [max(c.hidden) == 1024 for c in untuned] == [False] * (2 * 42) + [True] * 12
    assert {c.seed for c in untuned} == {0, 4}


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


def test_every_batch_of_an_epoch_counts() -> None:
    """With a learning rate of 0 the epoch's norm is the mean over its batches of 4, 4 and 2 rows."""
    torch.manual_seed(5)
    x, y = torch.randn(10, 4), torch.randn(10, 1)
    found = train(DepthCell((6,), {"method": "relu"}, 1, epochs=1, batch_size=4, lr=0.0), (x, y), (x, y), 1.0)
    torch.manual_seed(1)
    net, norms, losses = MLP(4, 1, (6,), nn.ReLU), [], []
    for rows in torch.randperm(10, generator=torch.Generator().manual_seed(1_000_003)).split(4):
        pre = net.hidden[0].linear(x[rows])  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
        loss = nn.functional.mse_loss(net.head(pre.relu()), y[rows])
        norms.append(torch.autograd.grad(loss, pre)[0].norm().item())
        losses.append(loss.item() * len(rows))
    assert len(norms) == 3
    assert found["norm"][0][0] == pytest.approx(sum(norms) / 3, rel=1e-3)
    assert found["train_loss"][0] == pytest.approx(sum(losses) / 10, rel=1e-3)


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


def test_verdicts_of_the_outcome() -> None:
    small, deep = (256, 256, 128), vanishing.SHAPES[-1]
    records = [
        made(small, vanishing.RELU, 0, 1.0),
        made(small, vanishing.HTAF, 1, 5e-6),
        made(small, vanishing.HTAF, 0, 2e-5),
        made(small, vanishing.SS, 0, 0.0),
        made(small, vanishing.PAIRS[1], 0, 3e-2),
        made(deep, vanishing.HTAF, 0, 1e-3),
        made(deep, vanishing.HTAF, 0, 4e-1, tuned=True),
        made(deep, vanishing.HTAF, 0, 1e-7, lr=1e-2),
    ]
    found = outcome(records, "full")
    tables = {table.title: table for table in found.tables}
    first = tables["First layer, learning rate 0.001"]
    assert first.columns == ("hidden layers", "ReLU", "HTAF (3, 7.3)", "SS 22", "HTAF tuned")
    assert first.rows == (
        (
            "256-256-128",
            "1.0e+00 (1.0e+01): no [no]",
            "5.0e-06 to 2.0e-05 (5.0e-05 to 2.0e-04): 1 of 2 vanish [no]",
            "0.0e+00 (0.0e+00): vanishes [vanishes]",
            "-",
        ),
        ("256-256-256-256-256", "-", "1.0e-03 (1.0e-02): no [vanishes]", "-", "4.0e-01 (4.0e+00): no"),
    )
    other = tables["First layer, learning rate 0.01"]
    assert other.rows == (("256-256-256-256-256", "1.0e-07 (1.0e-06): vanishes [vanishes]"),)
    assert tables["Training loss and RMSE, learning rate 0.001"].rows[0][1:3] == (
        "0.250; RMSE 2.50 / -",
        "0.250; RMSE 2.50 / 3.00",
    )
    claims = {claim.text: claim for claim in found.claims}
    said = claims["Gradients vanish as Table 7 says"]
    assert said.verdict == "not settled"  # at one of two learning rates it is so
    assert said.evidence == (
        "the same verdict in 3 of 4 networks at rate 0.001, 1 of 1 networks at rate 0.01; at 0.001 others are "
        "256-256-256-256-256 HTAF (3, 7.3): does not, paper vanishes"
    )
    assert outcome(records[:-1], "full").claims[0].verdict == "does not hold"
    sigmoid = claims["With the scaled sigmoid the gradient always vanishes"]
    assert (sigmoid.verdict, sigmoid.evidence) == ("holds", "it does in 1 of 1 shapes at rate 0.001")
    tuned = next(claim for claim in found.claims if claim.text.startswith("With five hidden layers"))
    assert tuned.verdict == "does not hold"
    assert tuned.evidence == "at rate 0.001 HTAF (3, 7.3) does not, tuned it does not"
    worse = [*records, made(deep, vanishing.HTAF, 0, 1e-7, tuned=True, lr=1e-2)]
    assert next(c for c in outcome(worse, "full").claims if c.text == tuned.text).verdict == "not settled"
    figure = [made(small, activation, 0, 1.0) for activation in vanishing.FIGURE]
    assert outcome(figure, "full").claims[2].verdict == "does not hold"
    for record, norm in zip(figure, (1.0, 1e-7, 1e-7, 1e-7, 1.0), strict=True):
        record |= made(small, record["cell"]["activation"], 0, norm)
    assert outcome(figure, "full").claims[2].verdict == "holds"
    zeros = next(d for d in found.drawings if d.name == "vanishing-shapes-1e-3").panels[0].series[2]
    assert zeros.label == "SS 22"
    assert min(zeros.y) == 1.0  # a norm of 0 has no place on a logarithmic axis
    assert {claim.verdict for claim in outcome(records, "smoke").claims} == {"not testable at this scale"}


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
