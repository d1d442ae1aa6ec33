"""What a batch may be, what is refused, and what a report says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from small import fresh, rows
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from htaf import HTAF, harden, recalibrate, refit_head, repair
from htaf.hardening.report import batch_count, call, expect_batches, inputs_of, moved, pair_of

X, Y = rows(20, 6), torch.arange(20) % 3


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act, self.head = HTAF(1.0, 5.0), nn.Linear(6, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.head(self.act(a + b))


def test_two_inputs_without_targets_are_a_pair_with_none() -> None:
    net = fresh(Two)
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


def test_counts_are_of_batches() -> None:
    class Rows:
        def __len__(self) -> int:
            return 100

        def __iter__(self) -> Any:
            return iter([X, X])

    assert batch_count(Rows()) == 2
    assert batch_count([X] * 3) == 3
    assert batch_count(DataLoader(TensorDataset(X, Y), batch_size=8)) == 3


def network() -> nn.Module:
    return fresh(lambda: nn.Sequential(nn.Linear(6, 8), HTAF(1.0, 5.0), nn.Linear(8, 3)))


STEPS: dict[str, Callable[[Any], Any]] = {
    "recalibrate": lambda some: recalibrate(harden(network()), some),
    "repair": lambda some: repair(harden(network()), network(), some),
    "refit_head": lambda some: refit_head(harden(network()), some),
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
        refit_head(harden(network()), some, validation=held)

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
    [({"a": X, "b": X}, Y), ((X, X), Y), [X, X[:, :1]], [X.long(), Y], [X, Y.float()], [X, Y[:, None].expand(-1, 6)]],
)
def test_one_pair_is_no_list_of_batches(pair: Any) -> None:
    with pytest.raises(TypeError, match="got one pair"):
        expect_batches(pair)


@pytest.mark.parametrize(
    "some",
    [[X, X[:7]], [(X, Y), (X, Y)], ((X, Y), (X, Y)), [X], [rows(2, 3, 8, 8), rows(2, 3, 6, 6)]],
)
def test_two_batches_are_no_pair(some: Any) -> None:
    assert expect_batches(some) is some[0]


def test_only_the_first_batch_is_looked_at_before_the_work() -> None:
    made: list[int] = []

    class Costly:
        def __iter__(self) -> Any:
            for i in range(4):
                made.append(i)
                yield X

    recalibrate(harden(fresh(lambda: nn.Sequential(HTAF(), nn.Linear(6, 5), nn.BatchNorm1d(5)))), Costly())
    assert made == [0, 0, 1, 2, 3]
