"""Networks from descriptions: every method builds, anything else is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from htaf import surrogates
from htaf.core.activations import HTAF, Heaviside, ScaledSigmoid, StraightThrough
from htaf.models.build import KINDS, SLOPES, activation, build
from htaf.transform.convert import harden
from htaf.transform.spiking.neurons import LIF

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


@pytest.mark.parametrize("slope", sorted(SLOPES))
def test_every_slope_trains(slope: str) -> None:
    assert SLOPES[slope] is getattr(surrogates, slope)
    module, x = activation({"method": "ste", "slope": slope})(), torch.tensor([0.05, -0.05], requires_grad=True)
    module(x).sum().backward()
    assert x.grad is not None
    assert (x.grad > 0).all()


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
    with pytest.raises(ValueError, match=f"expected a model of kind {', '.join(KINDS)}, got 'cnn'"):
        build(described("htaf", kind="cnn"))
    for name in ("kind", "in_features", "out_features", "hidden", "batch_norm", "activation"):
        description = described("htaf")
        del description[name]
        with pytest.raises(ValueError, match=f"lacks '{name}'"):
            build(description)


SHARED = {"in_channels": 3, "out_features": 10}
IMAGES: dict[str, dict[str, Any]] = {
    "wide_resnet": {"depth": 10, "width": 1, "dropout": 0.1},
    "bireal": {"depth": 18, "width": 4, "stem": "cifar"},
    "sew_resnet": {"depth": 18, "width": 4, "stem": "cifar", "steps": 2, "connect": "iand"}
    | {"neuron": {"kind": "lif", "tau": 3.0, "reset": "soft", "detach_reset": False, "exact_reset": True}},
}
STEPS = {"wide_resnet": 7, "bireal": 16, "sew_resnet": 20}


@pytest.mark.parametrize("kind", IMAGES)
@pytest.mark.parametrize("method", ["htaf", "ss", "ste"])
def test_image_networks(kind: str, method: str) -> None:
    bipolar = {"bipolar": True} if kind == "bireal" else {}
    description = {"kind": kind, **SHARED, **IMAGES[kind], "activation": ACTIVATIONS[method] | bipolar}
    model = build(json.loads(json.dumps(description))).eval()
    x = torch.randn(2, 3, 16, 16)
    assert model(x).shape == (2, 10)
    exact = harden(model)
    assert exact.state_dict().keys() == model.state_dict().keys()
    steps = [m for m in exact.modules() if isinstance(m, Heaviside)]
    assert len(steps) == STEPS[kind]
    assert all(m.bipolar == bool(bipolar) for m in steps)


def test_a_recorded_neuron_arrives() -> None:
    description = {"kind": "sew_resnet", **SHARED, **IMAGES["sew_resnet"], "activation": ACTIVATIONS["ste"]}
    neurons = [m for m in build(description).modules() if isinstance(m, LIF)]
    assert len(neurons) == 20
    assert {(m.tau, m.reset, m.detach_reset, m.exact_reset) for m in neurons} == {(3.0, "soft", False, True)}
    real = build(description | {"activation": ACTIVATIONS["relu"]})
    assert sum(isinstance(m, nn.ReLU) for m in real.modules()) == 20
