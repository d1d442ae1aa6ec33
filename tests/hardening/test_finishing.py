"""The end of a training: what a measure finds better is kept, and nothing else; what was tried is told."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import htaf
from htaf import HTAF, Heaviside
from htaf.hardening.finishing import kept_where_better
from htaf.hardening.report import Report

ROWS = torch.randn(600, 6, generator=torch.Generator().manual_seed(0))
CODES = (ROWS[:, 0] * ROWS[:, 1] > 0).long()
TRAINING = [(ROWS[:200], CODES[:200]), (ROWS[200:400], CODES[200:400])]


def trained(make, steps: int = 60) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 32), make(), nn.Linear(32, 16), nn.BatchNorm1d(16), make(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(net(ROWS[:400]), CODES[:400]).backward()
        optimizer.step()
    return net


def loss(net: nn.Module) -> torch.Tensor:
    return cross_entropy(net(ROWS[400:]), CODES[400:])


@pytest.mark.parametrize("steps", [60, 100])
def test_only_what_is_better_is_kept_and_the_network_has_the_last_measure(steps: int) -> None:
    net = trained(partial(HTAF, 1.0, 5.0), steps)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    exact, report = htaf.finish(net, TRAINING, loss)
    again = ["recalibrate"] * report.steps[1].kept  # norms see other values only behind what was repaired
    assert [one.name for one in report.steps] == ["recalibrate", "repair", *again, "refit_head"]
    best = report.hardened
    for one in report.steps:
        assert one.before == best
        assert one.after is not None
        assert one.kept == (one.after < best)
        best = min(best, one.after)
    assert report.measure == best < report.hardened
    with torch.no_grad():
        assert loss(exact).item() == best
        assert loss(net.eval()).item() == report.trained
    assert isinstance(exact[1], Heaviside)  # pyright: ignore[reportIndexIssue]
    assert not exact.training
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())


def test_a_step_that_is_worse_is_told_and_not_kept() -> None:
    net = trained(partial(HTAF, 1.0, 5.0))
    first = htaf.harden(net).state_dict()
    calls = []

    def changed(other: nn.Module) -> float:  # as a return that every change makes worse
        calls.append(other.training)
        return float(any(not torch.equal(v, first[k]) for k, v in other.state_dict().items()))

    exact, report = htaf.finish(net, TRAINING, measure=changed)
    assert not any(calls)
    assert not any(one.kept for one in report.steps)
    assert "repair: not kept: 0 -> 1" in str(report)
    assert [one.name for one in report.steps] == ["recalibrate", "repair", "refit_head"]  # norms see what they saw
    assert all(torch.equal(value, first[name]) for name, value in exact.state_dict().items())


def test_exact_steps_need_no_repair_and_inputs_alone_no_head() -> None:
    net = trained(htaf.StraightThrough)
    _, report = htaf.finish(net, [x for x, _ in TRAINING], measure=loss)
    assert [one.name for one in report.steps] == ["recalibrate", "refit_head"]
    assert "refit_head: left out: expected batches (inputs, targets), targets a tensor" in str(report)
    assert report.trained == report.hardened
    _, report = htaf.finish(net, TRAINING, measure=loss)
    assert [one.name for one in report.steps] == ["recalibrate", "refit_head"]
    assert report.steps[1].kept


def test_a_step_that_cannot_be_taken_is_left_out_and_says_why() -> None:
    net = nn.Sequential(nn.Linear(6, 8), HTAF(1.0, 5.0), nn.Linear(8, 2), nn.Tanh())
    _, report = htaf.finish(net, TRAINING, measure=lambda other: other(ROWS).var())
    assert "refit_head: left out: expected a model that returns the output of an nn.Linear" in str(report)


@pytest.mark.parametrize("calls", range(7))  # of the network, of a step, inside refit_head
def test_an_error_of_the_measure_is_not_swallowed(calls: int) -> None:
    def broken(net: nn.Module) -> float:
        if len(called) == calls:
            raise ValueError("mine")
        called.append(1)
        return 1.0

    called = list[int]()
    with pytest.raises(ValueError, match="mine"):
        htaf.finish(trained(htaf.StraightThrough, 1), TRAINING, measure=broken)


def test_bad_input_says_what_to_do() -> None:
    net = trained(partial(HTAF, 1.0, 5.0), 1)
    with pytest.raises(ValueError, match="expected a measure that is finite for the exact network, got nan"):
        htaf.finish(net, TRAINING, measure=lambda other: float("nan"))
    with pytest.raises(TypeError, match="expected a measure that gives a number, got NoneType"):
        htaf.finish(net, TRAINING, measure=lambda other: None)
    with pytest.raises(ValueError, match=r"call htaf\.replace first"):
        htaf.finish(nn.Sequential(nn.Linear(6, 2), nn.ReLU(), nn.Linear(2, 2)), TRAINING, measure=loss)
    with pytest.raises(ValueError, match="expected validation= or measure= to choose by, got both"):
        htaf.refit_head(htaf.harden(net), TRAINING, validation=TRAINING, measure=loss)


@pytest.mark.filterwarnings("ignore:the measure of one network")
def test_the_exact_network_is_measured_twice_and_norms_only_where_there_are_some() -> None:
    seen = list[nn.Module]()
    net = nn.Sequential(nn.Linear(6, 8), htaf.StraightThrough(), nn.Linear(8, 2))
    exact, report = htaf.finish(net, TRAINING, measure=lambda other: seen.append(other) or len(seen))
    assert [one.name for one in report.steps] == ["refit_head"]
    assert seen.count(exact) == 2  # the second tells whether the measure is partly chance
    assert report.hardened == report.steps[0].before == 2


def test_norms_in_front_of_the_first_step_are_not_tried() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), htaf.StraightThrough(), nn.Linear(8, 2))
    _, report = htaf.finish(net, TRAINING, measure=loss)
    assert [one.name for one in report.steps] == ["refit_head"]
    _, report = htaf.finish(nn.Sequential(*net[:3], nn.BatchNorm1d(8), net[3]), TRAINING, measure=loss)
    assert [one.name for one in report.steps] == ["recalibrate", "refit_head"]


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act, self.head = htaf.StraightThrough(), nn.Linear(6, 2)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.head(self.act(a + b))


def test_batches_of_several_inputs_say_how_they_are_given() -> None:
    def measure(net: nn.Module) -> torch.Tensor:
        return cross_entropy(net(ROWS, ROWS), CODES)

    words = r"several inputs a tuple, \(\(a, b\), targets\), got \(Tensor, Tensor, Tensor\), which the model cannot"
    for batch in ((ROWS, ROWS, CODES), [ROWS, ROWS, CODES]):
        with pytest.raises(ValueError, match=words):
            htaf.finish(Two(), [batch], measure=measure)
    _, report = htaf.finish(Two(), [((ROWS, ROWS), CODES)], measure=measure)
    assert report.steps[0].kept
    _, report = htaf.finish(Two(), [{"a": ROWS, "b": ROWS}], measure=measure)
    assert "got dict: take targets out of it, (batch, batch.pop('labels'))" in str(report)


def test_steps_are_taken_on_what_was_kept() -> None:
    def plus(net: nn.Module, value: float) -> tuple[nn.Module, htaf.hardening.Report]:
        other = nn.Linear(1, 1)
        nn.init.constant_(other.bias, net.bias.item() + value)  # pyright: ignore[reportCallIssue,reportArgumentType]
        return other, htaf.hardening.Report("plus", 0.0)

    begin = nn.Linear(1, 1)
    nn.init.constant_(begin.bias, 3.0)
    steps = [(f"{value}", partial(plus, value=value)) for value in (-1.0, 2.0, -1.5)]
    net, taken = kept_where_better(begin, steps, lambda other: other.bias)
    assert [(one.before, one.after, one.kept) for one in taken] == [(3, 2, True), (2, 4, False), (2, 0.5, True)]
    assert net.bias.item() == 0.5  # pyright: ignore[reportCallIssue]


def test_a_score_without_its_minus_is_questioned() -> None:
    def accuracy(net: nn.Module) -> float:
        return (net(ROWS[400:]).argmax(1) == CODES[400:]).float().mean().item()

    net = trained(partial(htaf.StraightThrough, htaf.surrogates.tanh))
    with pytest.warns(UserWarning, match="minus"):
        _, report = htaf.finish(net, TRAINING, accuracy)
    assert len(report.notes) == 1
    for proper in (loss, lambda net: -accuracy(net)):
        assert htaf.finish(net, TRAINING, proper)[1].notes == ()


def test_a_measure_that_is_partly_chance_is_named() -> None:
    net = trained(partial(htaf.StraightThrough, htaf.surrogates.tanh), 2)
    with pytest.warns(UserWarning, match="chance"):
        htaf.finish(net, TRAINING, lambda net: loss(net) + 0.01 * torch.rand(()))


def test_a_step_that_changes_nothing_is_not_kept() -> None:
    """Though a measure that falls from call to call finds it better."""
    net, falling = nn.Linear(2, 1), iter([2.0, 1.0])
    nothing = lambda net: (copy.deepcopy(net), Report("none", 0.0))  # noqa: E731
    kept, (step,) = kept_where_better(net, [("none", nothing)], lambda net: next(falling))
    assert (kept is net, step.after, step.kept) == (True, 1.0, False)
