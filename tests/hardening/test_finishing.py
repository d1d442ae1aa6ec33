"""The end of a training and its steps: what a measure finds better is kept; norms; what a batch may be."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from small import batches, fresh, rows
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as binary
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import update_bn

import htaf
from htaf import HTAF, Heaviside, harden, recalibrate, refit_head, repair
from htaf.transform.convert.finding import inputs_of
from htaf.transform.hardening.finishing import kept_where_better
from htaf.transform.hardening.judging import judge_by
from htaf.transform.hardening.report import Report, call, expect_batches, moved, pair_of

ROWS = torch.randn(600, 6, generator=torch.Generator().manual_seed(0))
CODES = (ROWS[:, 0] * ROWS[:, 1] > 0).long()
TRAINING = [(ROWS[:200], CODES[:200]), (ROWS[200:400], CODES[200:400])]
HELD = ROWS[400:], CODES[400:]


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
    exact, report = htaf.finish(net, TRAINING, valid=HELD)
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

    exact, report = htaf.finish(net, TRAINING, measure=changed, higher=False)
    assert not any(calls)
    assert not any(one.kept for one in report.steps)
    assert "repair: not kept: 0 -> 1" in str(report)
    assert [one.name for one in report.steps] == ["recalibrate", "repair", "refit_head"]  # norms see what they saw
    assert all(torch.equal(value, first[name]) for name, value in exact.state_dict().items())


def test_exact_steps_need_no_repair_and_inputs_alone_no_head() -> None:
    net = trained(htaf.StraightThrough)
    _, report = htaf.finish(net, [x for x, _ in TRAINING], measure=loss, higher=False)
    assert [one.name for one in report.steps] == ["recalibrate", "refit_head"]
    assert "refit_head: left out: expected batches (inputs, targets), targets a tensor" in str(report)
    assert report.trained == report.hardened
    _, report = htaf.finish(net, TRAINING, measure=loss, higher=False)
    assert [one.name for one in report.steps] == ["recalibrate", "refit_head"]
    assert report.steps[1].kept


def test_a_step_that_cannot_be_taken_is_left_out_and_says_why() -> None:
    net = nn.Sequential(nn.Linear(6, 8), HTAF(1.0, 5.0), nn.Linear(8, 2), nn.Tanh())
    _, report = htaf.finish(net, TRAINING, measure=lambda other: other(ROWS).var(), higher=False)
    assert "refit_head: left out: expected a model that returns the output of an nn.Linear" in str(report)


@pytest.mark.parametrize("calls", [0, 3, 6])  # of the network, of a step, inside refit_head
def test_an_error_of_the_measure_is_not_swallowed(calls: int) -> None:
    def broken(net: nn.Module) -> float:
        if len(called) == calls:
            raise ValueError("mine")
        called.append(1)
        return 1.0

    called = list[int]()
    with pytest.raises(ValueError, match="mine"):
        htaf.finish(trained(htaf.StraightThrough, 1), TRAINING, measure=broken, higher=False)


def test_bad_input_says_what_to_do() -> None:
    net = trained(partial(HTAF, 1.0, 5.0), 1)
    with pytest.raises(ValueError, match="expected a measure that is finite for the exact network, got nan"):
        htaf.finish(net, TRAINING, measure=lambda other: float("nan"), higher=False)
    with pytest.raises(TypeError, match="expected a measure that gives a number, got NoneType"):
        htaf.finish(net, TRAINING, measure=lambda other: None, higher=False)
    with pytest.raises(ValueError, match=r"call htaf\.replace first"):
        htaf.finish(nn.Sequential(nn.Linear(6, 2), nn.ReLU(), nn.Linear(2, 2)), TRAINING, measure=loss, higher=False)
    with pytest.raises(ValueError, match="expected validation= or measure= to choose by, got both"):
        htaf.refit_head(htaf.harden(net), TRAINING, validation=TRAINING, measure=loss)


def test_norms_in_front_of_the_first_step_are_not_tried() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), htaf.StraightThrough(), nn.Linear(8, 2))
    _, report = htaf.finish(net, TRAINING, measure=loss, higher=False)
    assert [one.name for one in report.steps] == ["refit_head"]
    _, report = htaf.finish(nn.Sequential(*net[:3], nn.BatchNorm1d(8), net[3]), TRAINING, measure=loss, higher=False)
    assert [one.name for one in report.steps] == ["recalibrate", "refit_head"]


def test_batches_of_several_inputs_say_how_they_are_given() -> None:
    def measure(net: nn.Module) -> torch.Tensor:
        return cross_entropy(net(ROWS, ROWS), CODES)

    words = r"several inputs a tuple, \(\(a, b\), targets\), got \(Tensor, Tensor, Tensor\), which the model cannot"
    for batch in ((ROWS, ROWS, CODES), [ROWS, ROWS, CODES]):
        with pytest.raises(ValueError, match=words):
            htaf.finish(TwoInputs(htaf.StraightThrough), [batch], measure=measure, higher=False)
    _, report = htaf.finish(TwoInputs(htaf.StraightThrough), [((ROWS, ROWS), CODES)], measure=measure, higher=False)
    assert report.steps[0].kept
    _, report = htaf.finish(TwoInputs(htaf.StraightThrough), [{"a": ROWS, "b": ROWS}], measure=measure, higher=False)
    assert "got dict: take targets out of it, (batch, batch.pop('labels'))" in str(report)


def accuracy(net: nn.Module) -> float:
    return (net(HELD[0]).argmax(1) == HELD[1]).float().mean().item()


def test_a_measure_is_followed_only_in_the_direction_that_is_said() -> None:
    """An accuracy for which lower was taken as better fell from 87 to 23%."""
    net = trained(partial(htaf.StraightThrough, htaf.surrogates.tanh))
    with pytest.raises(TypeError, match=r"higher=True .* such as an accuracy.* got neither"):
        htaf.finish(net, TRAINING, measure=accuracy)
    exact, report = htaf.finish(net, TRAINING, measure=accuracy, higher=True)
    assert accuracy(exact) == report.measure > report.hardened == report.trained
    assert all(one.kept == (one.after > one.before) for one in report.steps if one.after is not None)
    for wrong in ({}, {"valid": HELD, "measure": loss, "higher": False}, {"valid": HELD, "higher": False}):
        with pytest.raises(TypeError, match="expected"):
            htaf.finish(net, TRAINING, **wrong)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_kept_within_the_noise_of_a_measure_and_that_is_told(seed: int) -> None:
    net = trained(partial(htaf.StraightThrough, htaf.surrogates.tanh), 2)
    random = torch.Generator().manual_seed(seed)
    with pytest.warns(UserWarning, match=r"differs by .* from call to call"):
        _, report = htaf.finish(
            net, TRAINING, measure=lambda net: accuracy(net) + 100 * torch.rand((), generator=random), higher=True
        )
    assert report.noise > 10
    assert not any(one.kept and one.after - one.before <= report.noise for one in report.steps if one.after is not None)


def test_a_network_far_behind_another_is_told_what_to_try() -> None:
    net, other = trained(partial(htaf.StraightThrough, htaf.surrogates.tanh), 2), trained(nn.ReLU)
    _, report = htaf.finish(net, TRAINING, valid=HELD, reference=other)
    assert report.reference is not None
    assert report.measure > 1.1 * report.reference
    assert "htaf.sensitivity" in str(report)
    assert htaf.finish(net, TRAINING, valid=HELD, reference=net)[1].notes == ()


HEAD = nn.Linear(6, 3)
LOGITS, KNOWN = HEAD(ROWS).detach(), ROWS[:, 2] <= 0
OUTPUTS: dict[str, tuple[nn.Module, Tensor, Callable[[], Tensor]]] = {
    "codes": (nn.Identity(), CODES, lambda: cross_entropy(LOGITS, CODES)),
    "probabilities": (nn.Softmax(1), CODES, lambda: cross_entropy(LOGITS, CODES)),
    "left out": (nn.Identity(), CODES - 2 * (ROWS[:, 2] > 0), lambda: cross_entropy(LOGITS[KNOWN], CODES[KNOWN])),
    "pixels": (nn.Unflatten(1, (3, 1)), CODES[:, None], lambda: cross_entropy(LOGITS, CODES)),
    "bits": (nn.Identity(), (LOGITS > 0).float(), lambda: binary(LOGITS, (LOGITS > 0).float())),
    "sigmoid": (nn.Sigmoid(), (LOGITS > 0).float(), lambda: binary(LOGITS, (LOGITS > 0).float())),
    "numbers": (nn.Identity(), LOGITS + 1, lambda: torch.ones(())),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_usual_loss_is_the_one_that_the_targets_ask_for(name: str) -> None:
    end, y, wanted = OUTPUTS[name]
    net = nn.Sequential(HEAD, end)
    for held in ((ROWS, y), [(ROWS[:100], y[:100]), (ROWS[100:], y[100:])]):
        found = judge_by(net, held, None, None, None)(net)
        assert found == pytest.approx(wanted().item(), rel=0.1 if name == "left out" else 1e-4)
    with pytest.raises(ValueError, match="give loss= or measure="):
        judge_by(net, (ROWS, torch.rand(600, 2, 5)), None, None, None)
    other = judge_by(net, (ROWS, y), lambda output, y: (output * 0).sum() + 7, None, None)
    assert other(net) == 7


def test_held_out_data_that_are_the_training_data_are_warned_of() -> None:
    net = nn.Sequential(nn.Linear(6, 8), HTAF(1.0, 5.0), nn.Linear(8, 2))
    y = (ROWS[:, 0] > 0).long()
    batches = [(ROWS[:300], y[:300]), (ROWS[300:], y[300:])]
    for valid in ((ROWS, y), batches, [(ROWS, y)]):
        with pytest.warns(UserWarning, match="valid holds training data"):
            _, report = htaf.finish(net, batches, valid=valid)
        assert any("training data" in note for note in report.notes)
    with warnings.catch_warnings(record=True) as seen:
        htaf.finish(net, batches[:1], valid=batches[1])
    assert not [one for one in seen if "training data" in str(one.message)]


def test_seconds_bound_all_that_is_tried() -> None:
    y = (ROWS @ torch.randn(6, 400) > 0).float()
    net = nn.Sequential(nn.Linear(6, 300), HTAF(1.0, 5.0), nn.Linear(300, 300), HTAF(1.0, 5.0), nn.Linear(300, 400))
    begin = time.perf_counter()
    _, report = htaf.finish(net, [(ROWS, y)] * 9, valid=(ROWS, y), seconds=2)
    assert time.perf_counter() - begin < 12
    assert report.steps[-1].name == "refit_head"
    _, report = htaf.finish(net, [(ROWS, y)], valid=(ROWS, y), seconds=1e-9)
    assert {one.left_out for one in report.steps} == {"no time was left"}
    with pytest.raises(ValueError, match="expected seconds > 0"):
        htaf.finish(net, [(ROWS, y)], valid=(ROWS, y), seconds=0)


def test_a_step_that_changes_nothing_is_not_kept() -> None:
    """Though a measure that falls from call to call finds it better."""
    net, falling = nn.Linear(2, 1), iter([2.0, 1.0])
    nothing = lambda net: (copy.deepcopy(net), Report("none", 0.0))  # noqa: E731
    kept, (step,) = kept_where_better(net, [("none", nothing)], lambda net: next(falling))
    assert (kept is net, step.after, step.kept) == (True, 1.0, False)


# ---- recalibration: the norms behind the first step, and they alone ----


def network() -> nn.Sequential:
    one = (nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), HTAF(1.0, 5.0), nn.Dropout(0.5))
    return nn.Sequential(*one, nn.Conv2d(4, 3, 3, bias=False), nn.BatchNorm2d(3, momentum=0.3), HTAF(1.0, 5.0))


def test_statistics_are_those_of_update_bn_without_dropout() -> None:
    exact = harden(fresh(network))
    some = batches(20, 2, 8, 8, count=3)
    before = {k: v.clone() for k, v in exact.state_dict().items()}
    found: Any
    found, report = recalibrate(exact, some)
    wanted: Any = harden(fresh(network))
    wanted[3] = nn.Identity()
    wanted[1].momentum = 0.0  # the one in front of the first step stays
    first = wanted[1]
    wanted[1] = nn.Sequential()  # in eval mode, so that `update_bn` does not see it
    x = [first.eval()(wanted[0](x)) for x in some]
    with torch.no_grad():
        update_bn(x, nn.Sequential(*list(wanted)[2:]))
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(found[5], name), getattr(wanted[5], name))
        assert torch.equal(getattr(found[1], name), before[f"1.{name}"])
    assert found[5].momentum == 0.3
    assert report.notes == (
        "statistics of 1 of 2 batch norms taken anew; the others lie in front of the first exact step, or do not run",
    )
    assert all(torch.equal(v, before[k]) for k, v in exact.state_dict().items()), "the input is not changed"
    assert not any(m.training for m in found.modules())


def test_without_a_step_all_norms_are_taken() -> None:
    plain = fresh(lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()))
    found: Any = recalibrate(plain, batches(20, 2, 8, 8))[0]
    with torch.no_grad():
        y = torch.cat([found[:2](x) for x in batches(20, 2, 8, 8)])
    torch.testing.assert_close(y.mean((0, 2, 3)), found[1].bias, atol=1e-3, rtol=1e-3)


def weighted(net: Any, norm: int, some: list[Any]) -> tuple[Any, Any]:
    """Mean and variance behind the layers in front of a norm, each batch by its values a channel."""
    mean = var = total = 0.0
    with torch.no_grad():
        for x in some:
            y = net[:norm](x).movedim(1, 0).flatten(1)
            mean, var = mean + y.mean(1) * y.shape[1], var + y.var(1) * y.shape[1]
            total += y.shape[1]
    return mean / total, var / total


def test_batches_count_by_their_rows() -> None:
    exact = harden(fresh(network))
    sizes = (40, 25, 3)
    some = [x + i for i, x in enumerate(torch.cat(batches(sum(sizes), 2, 8, 8, count=1)).split(sizes))]
    found: Any = recalibrate(exact, some)[0]
    mean, var = weighted(found, 4 + 1, some)
    torch.testing.assert_close(found[5].running_mean, mean)
    torch.testing.assert_close(found[5].running_var, var)


def table() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), HTAF(1.0, 5.0), nn.Linear(6, 5), nn.BatchNorm1d(5))


def test_a_single_row_is_left_out() -> None:
    exact = harden(fresh(table))
    parts = batches(51, 4, count=1)[0].split((30, 1, 20))
    for wrap in (lambda x: x, lambda x: (x, torch.zeros(len(x)))):
        found: Any = recalibrate(exact, [wrap(part) for part in parts])[0]
        mean, var = weighted(found, 3, [parts[0], parts[2]])
        torch.testing.assert_close(found[3].running_mean, mean)
        torch.testing.assert_close(found[3].running_var, var)


def test_single_images_of_several_sizes_are_batches() -> None:
    exact = harden(
        fresh(lambda: nn.Sequential(nn.Conv2d(2, 3, 1), HTAF(1.0, 5.0), nn.Conv2d(3, 5, 1), nn.BatchNorm2d(5)))
    )
    images = [torch.randn(1, 2, side, side) for side in (4, 6, 3)]
    found: Any = recalibrate(exact, images)[0]
    values = torch.cat([exact[:3](x).flatten(2) for x in images], 2)[0]
    torch.testing.assert_close(found[3].running_mean, values.mean(1))


def test_one_row_alone_has_no_variance() -> None:
    with pytest.raises(ValueError, match="expected batches with two values a channel or more"):
        recalibrate(harden(fresh(table)), batches(1, 4, count=1))


def test_batches_can_be_gone_through_again() -> None:
    with pytest.raises(TypeError, match="expected batches that can be gone through again"):
        recalibrate(fresh(network), iter(batches(4, 2, 8, 8)))


# ---- what a batch may be, what is refused, and what a report says ----


X, Y = rows(20, 6), torch.arange(20) % 3


class TwoInputs(nn.Module):
    def __init__(self, make: Callable[[], nn.Module] = lambda: HTAF(1.0, 5.0)) -> None:
        super().__init__()
        self.act, self.head = make(), nn.Linear(6, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.head(self.act(a + b))


def test_two_inputs_without_targets_are_a_pair_with_none() -> None:
    net = fresh(TwoInputs)
    pairs = [((X, X.roll(i, 0)), None) for i in (1, 2)]
    one, report = repair(harden(net), net, pairs)
    two, _ = repair(harden(net), net, [({"a": a, "b": b}, Y) for (a, b), _ in pairs])
    assert [layer.name for layer in report.layers] == ["head"]
    torch.testing.assert_close(one.state_dict(), two.state_dict())
    assert inputs_of((X, Y)) is X
    assert inputs_of([X, Y]) is X  # as a DataLoader makes it
    assert inputs_of(X) is X
    with pytest.raises(ValueError, match=r"expected batches of \(inputs, targets\) with a tensor of targets, got None"):
        pair_of(((X, X), None))


def test_moved_inputs_are_what_they_were() -> None:
    class Named(NamedTuple):
        a: Tensor
        b: list[Tensor]

    found = moved(Named(X, [X]), torch.device("cpu"))
    assert isinstance(found, Named)
    assert isinstance(found.b, list)
    assert type(moved((X, {"a": [X]}), torch.device("cpu"))) is tuple

    class OfList(nn.Module):
        def forward(self, images: list[Tensor]) -> Tensor:
            assert isinstance(images, list)
            return torch.stack(images)

    assert call(OfList(), [X, X, X]).shape == (3, 20, 6)


def linear_network() -> nn.Module:
    return fresh(lambda: nn.Sequential(nn.Linear(6, 8), HTAF(1.0, 5.0), nn.Linear(8, 3)))


STEPS: dict[str, Callable[[Any], Any]] = {
    "recalibrate": lambda some: recalibrate(harden(linear_network()), some),
    "repair": lambda some: repair(harden(linear_network()), linear_network(), some),
    "refit_head": lambda some: refit_head(harden(linear_network()), some),
}


@pytest.mark.parametrize("step", STEPS)
def test_every_step_refuses_the_same(step: str) -> None:
    with pytest.raises(TypeError, match=r"got a tensor of shape \(20, 6\)"):
        STEPS[step](X)
    for pair in ((X, Y), [X, Y], (X, X)):  # as one batch of a DataLoader
        with pytest.raises(TypeError, match="one pair"):
            STEPS[step](pair)


def test_validation_is_refused_alike() -> None:
    pairs = [(X, Y)]

    def take(some: Any, held: Any) -> None:
        refit_head(harden(linear_network()), some, validation=held)

    with pytest.raises(TypeError, match="expected validation that can be gone through again, such as a list, got list"):
        take(pairs, iter(pairs))
    with pytest.raises(ValueError, match="expected validation with one batch or more, got none"):
        take(pairs, [])
    with pytest.raises(ValueError, match=r"expected batches of \(inputs, targets\), got Tensor"):
        take(pairs, [X])
    with pytest.raises(TypeError, match="expected validation as a list of batches, got one pair"):
        take(pairs, (X, Y))


@pytest.mark.parametrize(
    "pair",
    [
        ({"a": X, "b": X}, Y),
        ((X, X), Y),
        [X, X[:, :1]],
        [X.long(), Y],
        [X, Y.float()],
        [X, Y[:, None].expand(-1, 6)],
    ],
)
def test_one_pair_is_no_list_of_batches(pair: Any) -> None:
    with pytest.raises(TypeError, match="got one pair"):
        expect_batches(pair)


@pytest.mark.parametrize(
    "some",
    [
        [X, X[:7]],
        [(X, Y), (X, Y)],
        ((X, Y), (X, Y)),
        [X],
        [rows(2, 3, 8, 8), rows(2, 3, 6, 6)],
    ],
)
def test_two_batches_are_no_pair(some: Any) -> None:
    assert expect_batches(some) is some[0]
