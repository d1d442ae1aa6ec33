"""Networks from descriptions: every method builds, anything else is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from htaf import surrogates
from htaf.core.activations import HTAF, Heaviside, ScaledSigmoid, StraightThrough
from htaf.models.build import KINDS, SLOPES, activation, build
from htaf.models.mlp import MLP, Thermometer, midpoints
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


# ---- the MLP: shapes, layers and sizes ----


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
