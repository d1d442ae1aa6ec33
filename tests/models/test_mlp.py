"""The MLP: shapes, layers and sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from htaf.models.mlp import MLP, Thermometer, midpoints


@pytest.mark.parametrize(
    ("batch_norm", "count"),
    [
        (False, (8 * 256 + 256) + (256 * 256 + 256) + (256 * 128 + 128) + (128 + 1)),
        (True, (8 * 256 + 512) + (256 * 256 + 512) + (256 * 128 + 256) + (128 + 1)),  # scale and shift, no bias
    ],
)
def test_parameter_count_of_the_paper_network(batch_norm: bool, count: int) -> None:
    model = MLP(8, 1, batch_norm=batch_norm)
    assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.parametrize("sizes", [(0, 1, (3,)), (2, 0, (3,)), (2, 1, ()), (2, 1, (3, 0)), (2, 1, (-1,))])
def test_bad_sizes(sizes: tuple[int, int, tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="sizes must be positive, got"):
        MLP(*sizes)


def test_a_thermometer_says_which_thresholds_are_reached() -> None:
    x = torch.tensor([[0.0, 5.0], [1.0, 5.0], [2.0, 7.0], [3.0, 7.0]])
    thermometer = Thermometer((3, 1))
    thermometer.place(x)
    assert thermometer.threshold.tolist() == [0.5, 1.5, 2.5, 6.0]
    assert thermometer(x).tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 1], [1, 1, 1, 1]]
    assert thermometer.out_features == 4


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=60),
    st.integers(1, 20),
)
def test_thresholds_part_the_values_and_are_distinct(values: list[float], count: int) -> None:
    column = torch.tensor(values, dtype=torch.float32)
    gaps = len(column.unique()) - 1
    if count > gaps:
        with pytest.raises(ValueError, match=rf"expected at most {gaps} thresholds .* got {count}"):
            midpoints(column, count)
        return
    found = midpoints(column, count)
    assert len(found.unique()) == count
    bits = (column[:, None] >= found).sum(1)  # how many thresholds each value reaches
    assert len(bits.unique()) == count + 1  # each of them parts some values from others


def test_thresholds_lie_at_quantiles() -> None:
    found = midpoints(torch.arange(1000.0), 9)
    assert torch.equal(found, torch.arange(1, 10) * 100.0 - 0.5)


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_output_is_the_mean_of_the_members(outputs: int) -> None:
    model = MLP(5, outputs, (8,), batch_norm=True, members=4, thresholds=(2, 0, 0, 1, 0)).eval()
    x = torch.randn(6, 5)
    members = model.member_outputs(x)
    assert members.shape == (6, 4, outputs)
    torch.testing.assert_close(members.mean(1), model(x))


def test_members_share_no_weight() -> None:
    model = MLP(5, 2, (8,), batch_norm=True, members=4)
    model.member_outputs(torch.randn(6, 5))[:, 1].square().sum().backward()
    grad = model.get_parameter("hidden.0.linear.weight").grad
    assert grad is not None
    reached = grad.unflatten(0, (4, 8)).abs().sum((1, 2)) > 0
    assert reached.tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": (8, 8), "members": 2}, "several members must have one hidden layer each, got 2"),
        ({"hidden": (8,), "members": 0}, "sizes must be positive"),
        ({"hidden": (8,), "thresholds": (1, 2)}, "thresholds must be of 3 columns, got 2"),
        ({"hidden": (8,), "thresholds": (1, -2, 0)}, r"counts must be .* got \(1, -2, 0\)"),
    ],
)
def test_bad_members_and_thresholds(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MLP(3, 1, **options)
