"""Conversion to a spiking network: closed forms of one layer, spikingjelly's converter restated, errors, no state."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from htaf.activations import Heaviside
from htaf.convert import conversion
from htaf.spiking.ann_to_snn import BalancedIF, SpikingModel, fuse_batch_norm, to_spiking
from htaf.spiking.neurons import IF
from quick import slow_but


class Block(nn.Module):
    """A residual block with one ReLU module for three calls, as torchvision writes it, in place too."""

    def __init__(self, channels: int, *, inplace: bool = False) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.norm2 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=inplace)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += x
        return self.relu(out)


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.relu(self.first(x)))


class Branching(nn.Module):
    """torch.fx cannot trace it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if x.sum() > -1e9 else x


def conv_net(*, inplace: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace), Block(4, inplace=inplace), nn.AvgPool2d(4)
    )
    net += nn.Sequential(nn.Flatten(), nn.Linear(4 * 2 * 2, 5))
    net.double()
    for _ in range(3):  # running statistics that are not 0 and 1
        net(images(32))
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    return net.eval()


def images(n: int, seed: int = 1) -> Tensor:
    return torch.randn(n, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def layer(threshold: float, v0: float = 0.0) -> SpikingModel:
    return SpikingModel(BalancedIF(torch.tensor([threshold], dtype=torch.float64), v0)).eval()


def converter(model: nn.Module, batches: list[Tensor], mode: str | float, x: Tensor, steps: int) -> Tensor:
    """spikingjelly.activation_based.ann2snn.Converter(momentum=0.1, fuse_flag=True), then the sum over T steps / T."""
    graph = fx.symbolic_trace(copy.deepcopy(model).eval())
    modules = dict(graph.named_modules())
    for node in list(graph.graph.nodes):
        if node.op == "call_module" and isinstance(modules[node.target], nn.BatchNorm2d):
            conv = node.args[0]
            fused = fuse_conv_bn_eval(modules[conv.target], modules[node.target])
            parent, _, name = conv.target.rpartition(".")
            setattr(graph.get_submodule(parent), name, fused)
            node.replace_all_uses_with(conv)
            graph.graph.erase_node(node)
    graph.recompile()
    scale: dict[str, Tensor] = {}

    class Hooked(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Tensor:
            out = super().run_node(n)
            if n.op == "call_module" and isinstance(modules[n.target], nn.ReLU):
                if isinstance(mode, str) and mode.endswith("%"):
                    s = torch.tensor(np.percentile(out.detach().numpy(), float(mode[:-1])))
                else:
                    s = out.max() * (1.0 if mode == "max" else mode)
                scale[n.name] = s.clone() if n.name not in scale else 0.9 * scale[n.name] + 0.1 * s
            return out

    potential: dict[str, Tensor] = {}

    class Spiking(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Tensor:
            if not (n.op == "call_module" and isinstance(modules[n.target], nn.ReLU)):
                return super().run_node(n)
            current = self.fetch_args_kwargs_from_env(n)[0][0] * (1.0 / scale[n.name])
            v = potential.get(n.name, torch.zeros_like(current)) + current
            spike = (v >= 1.0).to(v)
            potential[n.name] = v - spike
            return spike * scale[n.name]

    with torch.no_grad():
        for batch in batches:
            Hooked(graph).run(batch.clone())
        total = sum(Spiking(graph).run(x.clone()) for _ in range(steps))
    assert isinstance(total, Tensor)
    return total / steps


# ---- one layer ----


@settings(max_examples=60, deadline=None)
@given(
    x=st.lists(st.floats(-3, 3), min_size=1, max_size=6),
    s=st.floats(0.1, 4),
    v0=st.sampled_from([0.0, 0.5]),
    steps=st.integers(1, 60),
)
def test_one_layer_is_a_clipped_relu_to_within_s_over_t(x: list[float], s: float, v0: float, steps: int) -> None:
    at = torch.tensor([x], dtype=torch.float64)
    error = at.clamp(0, s) - layer(s, v0)(at, steps)
    reached = (at <= 0) | (at >= s)  # a neuron below rest may owe, one above s may keep more than s
    assert (error[~reached] > -v0 * s / steps - 1e-9).all()
    assert (error[~reached] < (1 - v0) * s / steps + 1e-9).all()
    assert (error[reached].abs() <= 1e-9).all()


@pytest.mark.parametrize("v0", [0.0, 0.5])
def test_neuron_is_the_soft_reset_if_scaled(v0: float) -> None:
    x = images(3)
    neuron, v, total = IF(Heaviside(), threshold=1.7, reset="soft"), torch.full_like(x, v0 * 1.7), torch.zeros_like(x)
    model = layer(1.7, v0)
    for t, mean in model.run(x, range(1, 9)):
        spike, v = neuron.step(x, v)
        total += 1.7 * spike
        torch.testing.assert_close(mean, total / t, rtol=0, atol=1e-12)


def test_half_precision_keeps_its_membrane_in_float32() -> None:
    x = torch.full((1, 1), 0.003, dtype=torch.bfloat16)  # less than half an ulp of 1
    model = SpikingModel(BalancedIF(torch.tensor([4.0], dtype=torch.bfloat16))).eval()
    assert model(x, 3000).item() == pytest.approx(0.003, abs=4 / 3000)


# ---- whole networks ----


@pytest.mark.parametrize(
    ("mode", "inplace"),
    slow_but(
        itertools.product(("max", "99.9%", "80%", 0.5, 0.7), (False, True)),
        *(("max", True), ("80%", False), (0.7, True)),
        rows=True,
    ),
)
def test_numbers_of_spikingjelly(mode: str | float, inplace: bool) -> None:
    net, batches, x = conv_net(inplace=inplace), [images(6, seed) for seed in range(4)], images(5, 99)
    percent = isinstance(mode, str) and mode.endswith("%")
    spiking = to_spiking(
        net, batches, mode="percentile" if percent else mode, percentile=float(mode[:-1]) if percent else 99.9
    )
    for t, mean in spiking.run(x, (1, 2, 7, 40)):
        torch.testing.assert_close(mean, converter(net, batches, mode, x, t), rtol=0, atol=1e-9)


def test_tends_to_the_relu_network() -> None:
    net, x = conv_net(inplace=True), images(20)
    spiking = to_spiking(net, [x], momentum=None)
    with torch.no_grad():
        expected = net(x.clone())
    errors = {t: (mean - expected).abs().max().item() for t, mean in spiking.run(x, (10, 100, 1000))}
    assert errors[10] > errors[100] > errors[1000]
    assert errors[1000] < 0.03 * expected.abs().max()


def test_thresholds_by_hand() -> None:
    net = nn.Sequential(nn.Identity(), nn.ReLU(), nn.Identity()).double()
    batches = [torch.tensor([[-1.0, 2.0, 4.0]]), torch.tensor([[8.0, 1.0, -3.0]]), torch.tensor([[0.0, 1.0, -3.0]])]
    batches = [batch.double() for batch in batches]

    def threshold(**options) -> float:
        (neuron,) = to_spiking(net, batches, **options).neurons.values()
        return neuron.thresholds.item()

    assert threshold() == pytest.approx(0.9 * (0.9 * 4 + 0.1 * 8) + 0.1 * 1)
    assert threshold(momentum=None) == 8
    assert threshold(momentum=1.0) == 1
    assert threshold(momentum=0.0) == 4
    assert threshold(mode=0.5, momentum=None) == 4
    assert threshold(mode=1, momentum=None) == 8
    # sorted ReLU outputs 0 2 4, 0 1 8, 0 0 1: the median, and a quarter of the way from it to the largest
    assert threshold(mode="percentile", percentile=50, momentum=None) == 2
    assert threshold(mode="percentile", percentile=62.5, momentum=None) == pytest.approx(2.75)
    assert threshold(mode="percentile", percentile=100, momentum=None) == 8


@pytest.mark.parametrize("wrap", [lambda net: net, Branching])
def test_fusing_changes_nothing_but_the_modules(wrap) -> None:
    net, x = wrap(conv_net()), images(5)
    fused = fuse_batch_norm(net, x)
    assert sum(isinstance(m, nn.BatchNorm2d) for m in net.modules()) == 3
    assert not any(isinstance(m, nn.BatchNorm2d) for m in fused.modules())
    torch.testing.assert_close(fused(x), net(x), rtol=0, atol=1e-12)
    with_fusing, without = (to_spiking(net, [images(6)], fuse=fuse)(x, 20) for fuse in (True, False))
    torch.testing.assert_close(with_fusing, without, rtol=0, atol=1e-9)


class Unfusable(nn.Module):
    """Per line of the forward: read twice, a norm that runs twice, a conv that runs twice, two norms, own statistics,
    a norm before a conv, a function between, two names twice, another reader, no norm.

    The last conv is an output too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.ModuleList(nn.Conv2d(2, 2, 1) for _ in range(11))
        self.norm = nn.ModuleList(nn.BatchNorm2d(2) for _ in range(11))
        self.norm[4] = nn.BatchNorm2d(2, track_running_stats=False)
        self.alias, self.same = self.norm[7], self.conv[10]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        conv, norm = self.conv, self.norm
        x = norm[0](y := conv[0](x)) + y
        x = norm[1](norm[1](conv[1](x)))
        x = norm[2](conv[2](conv[2](x)))
        x = norm[3](y := conv[3](x)) + norm[9](y)
        x = norm[4](conv[4](x))
        x = conv[5](norm[5](x))
        x = norm[6](conv[6](x).abs())
        x = norm[10](conv[10](self.alias(conv[7](x))))
        x = torch.cat([norm[8](y := conv[8](x)), y])[: len(x)]
        return x, conv[9](x)


def test_norms_that_cannot_be_fused_stay() -> None:
    torch.manual_seed(0)
    net, x = Unfusable().double(), images(5)
    net(x)
    fused, expected = fuse_batch_norm(net, x), net.eval()(x)
    torch.testing.assert_close(fused(x), expected)
    kept = [i for i, norm in enumerate(fused.norm) if isinstance(norm, nn.BatchNorm2d)]  # pyright: ignore
    assert kept == list(range(11))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in fused.modules())


def test_a_norm_whose_convolution_is_the_output_stays() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return (y := self.conv(x)), self.norm(y)

    net, x = Both().double(), images(5)
    net(x)
    torch.testing.assert_close(fuse_batch_norm(net, x)(x), net.eval()(x))


def test_functional_relu_is_converted() -> None:
    torch.manual_seed(0)
    net, x = Functional().double().eval(), torch.randn(9, 5, dtype=torch.float64)
    spiking = to_spiking(net, [x], momentum=None)
    assert list(spiking.neurons) == ["relu_0"]
    assert "replaced 1 of 1" in str(conversion(spiking))
    torch.testing.assert_close(spiking(x, 1000), net(x), rtol=0, atol=0.01)


# ---- state and inputs ----


def test_no_state_survives_a_run() -> None:
    net, x = conv_net(), images(5)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    spiking = to_spiking(net, [images(6)])
    keys = set(spiking.state_dict())
    first = spiking(x, 5)
    unfinished = spiking.run(x, range(1, 100))
    ahead = [next(unfinished)[1] for _ in range(5)]
    assert torch.equal(spiking(x, 5), first)  # between two steps of another run
    assert torch.equal(ahead[-1], first)
    assert torch.equal(next(unfinished)[1], spiking(x, 6))
    with pytest.raises(RuntimeError, match="shapes"):
        spiking(images(5)[..., :6], 3)  # the linear layer does not fit
    assert torch.equal(spiking(x, 5), first)
    assert set(spiking.state_dict()) == keys
    assert all(neuron._membrane is None for neuron in spiking.neurons.values())
    assert all(torch.equal(net.state_dict()[name], tensor) for name, tensor in before.items())
    assert any(isinstance(module, nn.ReLU) for module in net.modules())
    assert not first.requires_grad


def test_inputs_are_not_overwritten() -> None:
    class Shift(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.add_(0.5)

    net = nn.Sequential(Shift(), nn.ReLU(inplace=True), nn.Linear(4, 2)).double().eval()
    x = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    kept = x.clone()
    spiking = to_spiking(net, [x, x], momentum=None)
    out = spiking(x, 2000)
    assert torch.equal(x, kept)
    torch.testing.assert_close(out, net(x.clone()), rtol=0, atol=5e-3)


def test_copies_and_pairs() -> None:
    net, x = conv_net(), images(5)
    spiking = to_spiking(net.train(), [(images(6), torch.zeros(6))])  # (inputs, targets); training mode is left alone
    assert net.training
    assert not any(module.training for module in spiking.modules())
    assert torch.equal(copy.deepcopy(spiking)(x, 4), spiking(x, 4))
    with pytest.raises(ValueError, match="eval mode"):
        spiking.train()(x, 4)


# ---- errors ----


def mlp(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), *layers)


X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("net", "batches", "options", "message"),
    [
        (mlp(nn.ReLU()), [], {}, "at least one batch"),
        (mlp(nn.ReLU()), [X[:0]], {}, r"at least one input, got shape \(0, 4\)"),
        (mlp(), [X], {}, "expected a ReLU that runs in Sequential, got no activation"),
        (mlp(nn.GELU()), [X], {}, r"expected a ReLU that runs in Sequential, got 1 \(gelu"),
        (mlp(nn.ReLU(), nn.Tanh()), [X], {}, r"only affine maps and ReLU, got 2 \(tanh"),
        (mlp(nn.ReLU(), nn.Softmax(-1)), [X], {}, "got softmax"),
        (mlp(nn.Unflatten(1, (1, 4)), nn.ReLU(), nn.MaxPool1d(2)), [X], {}, "got max_pool1d"),
        (mlp(nn.ReLU()), [X], {"mode": "min"}, "mode must be .*, got 'min'"),
        (mlp(nn.ReLU()), [X], {"mode": 0.0}, "mode must be"),
        (mlp(nn.ReLU()), [X], {"mode": 1.5}, "mode must be"),
        (mlp(nn.ReLU()), [X], {"mode": True}, "mode must be"),
        (mlp(nn.ReLU()), [X], {"mode": "percentile", "percentile": 0}, "percentile must be"),
        (mlp(nn.ReLU()), [X], {"momentum": 2}, "momentum must be"),
        (mlp(nn.ReLU()), [X], {"v0": 1.0}, "v0 must be"),
        (mlp(nn.ReLU()), [X * torch.nan], {}, r"1: expected a threshold > 0 and finite, got \[nan\]"),
        (mlp(nn.ReLU(), nn.Linear(4, 4), nn.ReLU()), [X], {"mode": "percentile", "percentile": 1}, "> 0 and finite"),
    ],
)
def test_errors(unchecked: None, net: nn.Module, batches: list[Tensor], options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        to_spiking(net, batches, **options)


def test_dead_activation() -> None:
    net = mlp(nn.ReLU())
    nn.init.constant_(net[0].bias, -100)
    with pytest.raises(ValueError, match=r"1: expected a threshold > 0 and finite, got \[0"):
        to_spiking(net, [X])


class Two(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return (a + b).relu()


@pytest.mark.parametrize(
    ("net", "batches", "message"),
    [
        (mlp(nn.ReLU()), ["x"], "must hold tensors, or tuples that begin with one, got str"),
        (mlp(nn.ReLU()), [{"x": X}], "got dict; a model that takes something else needs a module around it"),
        (mlp(nn.ReLU()), None, "batches of training data, such as a list of tensors, got NoneType"),
        (None, [X], "expected a model that is a torch.nn.Module, got NoneType"),
        (Two(), [X], r"the arguments of Two.forward\(.*missing a required argument: 'b'"),
    ],
)
def test_what_is_of_the_wrong_type(unchecked: None, net: Any, batches: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        to_spiking(net, batches)


def test_max_pooling_kept_on_request() -> None:
    net = mlp(nn.Unflatten(1, (1, 4)), nn.ReLU(), nn.MaxPool1d(2))
    with pytest.warns(UserWarning, match="max_pool1d"):
        spiking = to_spiking(net, [X], strict=False)
    assert spiking(X, 3).shape == net(X).shape


@pytest.mark.parametrize("steps", [(), (0,), (-1, 2), (3, 2), (2, 2), (1.5,)])
def test_bad_steps(unchecked: None, steps: tuple) -> None:
    spiking = to_spiking(mlp(nn.ReLU()), [X])
    with pytest.raises(ValueError, match="steps"):
        spiking.run(X, steps)  # at the call, before anything is drawn from it
    assert [t for t, _ in spiking.run(X)] == [10, 30, 50, 100, 200]


def test_forwards_that_vary() -> None:
    class Varying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act, self.times = nn.ReLU(), 2

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(self.times):
                x = self.act(x)
            return x

    spiking = to_spiking(Varying(), [X])
    for times in (1, 3):
        spiking.network.times = times  # pyright: ignore[reportArgumentType]
        with pytest.raises(RuntimeError, match="2 times in every forward"):
            spiking(X, 3)
    with pytest.raises(RuntimeError, match="inside a SpikingModel"):
        next(iter(spiking.neurons.values()))(X)


def test_a_fused_activation_and_one_by_its_arguments_are_seen():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.cell = nn.Linear(4, 4), nn.RNNCell(4, 4)

        def forward(self, x):
            return self.cell(self.linear(x).clamp(min=0))

    model, x = Recurrent(), torch.rand(3, 4)
    with pytest.raises(ValueError, match=r"got .*cell \(RNNCell\): tanh inside a fused layer"):
        to_spiking(model, [x])
    model.cell = nn.Linear(4, 4)
    spiking = to_spiking(model, [x])
    assert list(spiking.neurons) == ["relu_0"]
    torch.testing.assert_close(spiking(x, steps=400), model(x), atol=0.02, rtol=0)


def test_a_state_dict_with_another_v0_is_refused():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.rand(3, 4)
    half, rest = to_spiking(model, [x], v0=0.5), to_spiking(model, [x])
    with pytest.raises(RuntimeError, match=r"network\.1: expected v0=0\.0, got a state dict with v0=0\.5"):
        rest.load_state_dict(half.state_dict())
