"""Networks from descriptions: every method builds, anything else is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from htaf import surrogates
from htaf.activations import HTAF, Heaviside, ScaledSigmoid, StraightThrough
from htaf.convert import harden
from htaf.models.build import SLOPES, activation, build

ACTIVATIONS: dict[str, dict[str, Any]] = {
    "htaf": {"method": "htaf", "alpha0": 1.0, "alpha1": 22.0},
    "ss": {"method": "ss", "beta": 10.0},
    "ste": {"method": "ste", "slope": "tanh"},
    "relu": {"method": "relu"},
}


def described(method: str, **changes: Any) -> dict[str, Any]:
    description = {"kind": "mlp", "in_features": 4, "out_features": 2, "hidden": [5, 3], "batch_norm": True}
    return description | {"activation": ACTIVATIONS[method]} | changes


@pytest.mark.parametrize(
    ("method", "kind"), [("htaf", HTAF), ("ss", ScaledSigmoid), ("ste", StraightThrough), ("relu", nn.ReLU)]
)
def test_every_method_builds(method: str, kind: type[nn.Module]) -> None:
    model = build(json.loads(json.dumps(described(method))))  # as a record gives it
    assert sum(isinstance(m, kind) for m in model.modules()) == 2
    assert model(torch.randn(6, 4)).shape == (6, 2)


def test_parameters_arrive() -> None:
    htaf, ss, ste = (activation(ACTIVATIONS[method])() for method in ("htaf", "ss", "ste"))
    assert isinstance(htaf, HTAF)
    assert htaf.alphas == (1.0, 22.0)
    assert isinstance(ss, ScaledSigmoid)
    assert ss.beta == 10.0
    assert isinstance(ste, StraightThrough)
    assert ste.slope is surrogates.tanh


@pytest.mark.parametrize("slope", sorted(SLOPES))
def test_every_slope_trains(slope: str) -> None:
    assert SLOPES[slope] is getattr(surrogates, slope)
    module, x = activation({"method": "ste", "slope": slope})(), torch.tensor([0.05, -0.05], requires_grad=True)
    module(x).sum().backward()
    assert x.grad is not None
    assert (x.grad > 0).all()


@pytest.mark.parametrize("method", ["htaf", "ss", "ste"])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_hardened_network_has_the_same_entries(method: str, batch_norm: bool) -> None:
    smooth = build(described(method, batch_norm=batch_norm))
    exact = harden(smooth)
    assert list(exact.state_dict()) == list(smooth.state_dict())
    assert sum(isinstance(m, Heaviside) for m in exact.modules()) == 2


@pytest.mark.parametrize(
    "description",
    [
        {"method": "tanh"},
        {"method": "htaf", "alpha0": 1.0},
        {"method": "ss"},
        {"method": "ste", "slope": "nope"},
        {},
    ],
)
def test_unknown_activations(description: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected a method of"):
        activation(description)


def test_unknown_kind_and_missing_fields() -> None:
    with pytest.raises(ValueError, match="expected a model of kind mlp, got 'cnn'"):
        build(described("htaf", kind="cnn"))
    for name in ("kind", "in_features", "out_features", "hidden", "batch_norm", "activation"):
        description = described("htaf")
        del description[name]
        with pytest.raises(ValueError, match=f"lacks '{name}'"):
            build(description)
