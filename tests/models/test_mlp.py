"""The MLP: shapes, layers and sizes."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from htaf.activations import HTAF
from htaf.models.mlp import MLP


@pytest.mark.parametrize("hidden", [(4,), (5, 3), (256, 256, 128)])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_shapes_and_layers(hidden: tuple[int, ...], batch_norm: bool) -> None:
    model = MLP(7, 3, hidden, batch_norm=batch_norm)
    assert model(torch.randn(5, 7)).shape == (5, 3)
    assert sum(isinstance(m, HTAF) for m in model.modules()) == len(hidden)
    assert sum(isinstance(m, nn.BatchNorm1d) for m in model.modules()) == len(hidden) * batch_norm


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


def test_forward_is_linear_step_linear() -> None:
    model = MLP(2, 1, (3,), partial(HTAF, 1.0, 5.0))
    x = torch.randn(4, 2)
    weight, bias = model.hidden[0].linear.weight, model.hidden[0].linear.bias
    hidden = torch.sigmoid(5 * torch.tanh(x @ weight.T + bias))
    assert torch.allclose(model(x), hidden @ model.head.weight.T + model.head.bias, atol=1e-6)


def test_each_layer_has_its_own_activation() -> None:
    made: list[nn.Module] = []

    def make() -> nn.Module:
        made.append(nn.ReLU())
        return made[-1]

    model = MLP(2, 1, (3, 4), make)
    assert [model.hidden[0].act, model.hidden[1].act] == made


def test_empty_batch() -> None:
    assert MLP(2, 1, (3,), batch_norm=True).eval()(torch.zeros(0, 2)).shape == (0, 1)


@pytest.mark.parametrize("sizes", [(0, 1, (3,)), (2, 0, (3,)), (2, 1, ()), (2, 1, (3, 0)), (2, 1, (-1,))])
def test_bad_sizes(sizes: tuple[int, int, tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="sizes must be positive, got"):
        MLP(*sizes)
