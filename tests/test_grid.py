"""Weights on a grid: what a filter is rounded to, its gradient, and whole models whose sums are exact in any order."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import htaf
from htaf.core.functional import sign
from htaf.core.kernels.table_convolution.reference import holds
from htaf.models.build import build
from htaf.models.mlp import MLP
from htaf.models.wide_resnet import WideResNet
from htaf.transform.grid import (
    Bits,
    GridBinaryLinear,
    GridConv2d,
    GridLinear,
    LayerBits,
    Mean,
    WideBatchNorm1d,
    WideBatchNorm2d,
    bias_of,
    columns_grid,
    fixed_point,
    grid_weight,
    integers_and_steps,
    pixels_grid,
    settled,
    weight_of,
)

ACT = partial(htaf.HTAF, 2.0, 11.0)
shapes = st.one_of(
    st.tuples(st.integers(1, 4), st.integers(1, 140)),
    st.tuples(st.integers(1, 3), st.integers(1, 70), st.integers(1, 3), st.integers(1, 3)),
)


def drawn(shape: tuple[int, ...], seed: int) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    size = 10.0 ** torch.randint(-6, 4, (shape[0],), generator=made)
    return torch.randn(shape, generator=made) * size.view(-1, *[1] * (len(shape) - 1))


@settings(max_examples=60, deadline=None)
@example(shape=(3, 67, 1, 1), seed=67, bits=8)  # its rounded sums are further apart than those of the weights
@given(shape=shapes, seed=st.integers(0, 999), bits=st.sampled_from([4, 8]))
def test_a_filter_is_integers_times_a_power_of_two(shape: tuple[int, ...], seed: int, bits: Bits) -> None:
    w = drawn(shape, seed)
    k, s = integers_and_steps(w, bits)
    most = 2 ** (bits - 1) - 1
    step = s.view(-1, *[1] * (w.ndim - 1))
    assert torch.equal(k, k.round())
    assert float(k.abs().max()) <= most
    assert bool((s.frexp().mantissa == 0.5).all())
    assert torch.equal(grid_weight(w, bits), k * step)
    assert torch.equal(grid_weight(k * step, bits), k * step)  # what lies on the grid stays
    clipped = k.abs() == most
    assert bool(((k * step - w).abs() <= step / 2)[~clipped].all())
    image = k.to(torch.int8) if w.ndim == 4 else k.to(torch.int8)[:, :, None, None]
    assert holds(image, "int8")


@settings(max_examples=40, deadline=None)
@given(shape=shapes, seed=st.integers(0, 999), bits=st.sampled_from([4, 8, 16]))
def test_filters_can_share_their_power_of_two(shape: tuple[int, ...], seed: int, bits: LayerBits) -> None:
    w = drawn(shape, seed) * (torch.arange(shape[0]) > 0).view(-1, *[1] * (len(shape) - 1))  # the first is of zeros
    k, s = integers_and_steps(w, bits, shared=True)
    assert len(s.unique()) == 1
    assert torch.equal(k, k.round())
    assert float(k.abs().max()) < 2 ** (bits - 1)
    made = grid_weight(w, bits, shared=True)
    assert torch.equal(made, k * s[0])
    assert torch.equal(grid_weight(made, bits, shared=True), made)
    if bits == 16:
        assert float((made - w).abs().max()) <= float(w.abs().max()) * 2**-14


def test_what_compares_outputs_has_one_unit_for_weights_and_bias() -> None:
    net = nn.Sequential(nn.Linear(3, 40), htaf.HTAF(), nn.Linear(40, 5))
    grid: Any = htaf.on_grid(net, torch.randn(5, 3))
    assert [(layer.shared, layer.real) for layer in (grid[0], grid[2])] == [(False, True), (True, False)]
    layer, bits = grid[2].eval(), (torch.rand(50, 40) < 0.5).float()
    unit = integers_and_steps(layer.weight, 8, shared=True)[1][0]
    y = layer(bits) / unit
    assert torch.equal(y, y.round())
    assert torch.equal(bias_of(layer) / unit, (layer.bias / unit).round())  # pyright: ignore[reportOptionalOperand]
    layer(bits).sum().backward()
    assert torch.equal(layer.bias.grad, torch.full((5,), 50.0)), "straight through"
    assert torch.equal(settled(grid)[2](bits), layer(bits))  # pyright: ignore[reportIndexIssue]


MLPS: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "columns": ({"batch_norm": True}, (18, 2**21)),  # 6 columns
    "thermometer": ({"thresholds": [3] * 6, "direct": True, "leaves": 5}, (20, 2**23)),
}


@pytest.mark.parametrize("name", MLPS)
def test_columns_are_rounded_once(name: str) -> None:
    """The network of rounded columns is the network; first layer and linear part are sums of integers."""
    options, grid = MLPS[name]
    net: Any = htaf.on_grid(MLP(6, 3, (20,), ACT, **options), torch.randn(5, 6))
    assert net.columns.rounds
    assert (net.columns.exponent, net.columns.limit) == grid
    x, exact = torch.randn(200, 6) * 10.0 ** torch.randint(-6, 6, (200, 6)), htaf.harden(net).eval()
    q = (x.double() * 2.0 ** grid[0]).round().clamp(-grid[1], grid[1])
    assert torch.equal(exact(x), exact((q / 2.0 ** grid[0]).float()))
    layer = net.hidden[0].linear if name == "columns" else net.direct
    assert (layer.bits, layer.real, layer.rounds, layer.shared) == ((8, True, False, False), (16, True, False, True))[
        name == "thermometer"
    ]
    k, s = integers_and_steps(layer.weight, layer.bits, shared=layer.shared)
    whole = q.long() @ k.long().T
    bias = torch.zeros(len(s)) if layer.bias is None else layer.grid_bias()
    y = (whole * (s * 2.0 ** -grid[0]).double() + bias.double()).float()
    assert torch.equal(layer.eval()(net.columns(x)), y)


@pytest.mark.parametrize("kind", [htaf.BinaryLinear, partial(htaf.BinaryConv2d, kernel_size=3, padding=1)])
def test_binary_layers_sum_signs(kind: Any) -> None:
    """Sums of signs times one scale, so the steps behind see integers; the training is that of the plain layer."""
    rows = (5, 16) if kind is htaf.BinaryLinear else (5, 16, 6, 6)
    plain, bits = kind(16, 8, bias=True), torch.randint(2, rows).float() * 2 - 1
    plain.weight.data[0] = 0
    net = nn.Sequential(htaf.HTAF(bipolar=True), plain, htaf.HTAF(), *([] if len(rows) == 4 else [nn.Linear(8, 2)]))
    layer: Any = htaf.on_grid(net, torch.randn(rows))[1]  # pyright: ignore[reportIndexIssue]
    assert type(layer).__name__ == f"Grid{type(plain).__name__}"
    assert "bits" not in str(layer)
    g, grads = torch.randn_like(plain(bits)), []
    for one in (plain, layer):
        assert torch.equal(one.train()(bits), plain(bits))
        one.zero_grad()
        (one(bits) * g).sum().backward()
        grads.append(one.weight.grad.clone())
    assert torch.equal(*grads)
    k, s = sign(plain.weight), plain.weight.double().abs().flatten(1).mean(1).float()
    sums = nn.functional.linear(bits, k) if len(rows) == 2 else nn.functional.conv2d(bits, k, padding=1)
    assert torch.equal(sums, sums.round())
    at = (-1, *[1] * (len(rows) - 2))
    assert torch.equal(layer.eval()(bits), sums * s.view(at) + plain.bias.view(at))
    assert torch.equal(settled(layer)(bits), layer(bits))
    assert torch.equal(weight_of(settled(layer)), weight_of(layer))
    assert layer.state_dict().keys() == plain.state_dict().keys()


def test_binary_layers_over_real_inputs_are_named() -> None:
    net = nn.Sequential(htaf.BinaryLinear(3, 4), htaf.HTAF(), htaf.BinaryLinear(4, 2))
    with pytest.warns(UserWarning, match=r"rounded in 0 \(BinaryLinear, real inputs\)$"):
        grid: Any = htaf.on_grid(net, torch.randn(5, 3))
    assert [type(grid[i]) for i in (0, 2)] == [htaf.BinaryLinear, GridBinaryLinear]


def test_layers_over_means_sum_integers() -> None:
    """Of means of 9 and of 36 bits, by modules and as calls: the same bits in any order; a network of these alone."""

    class Means(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.act, self.pool = nn.Conv2d(1, 4, 3), htaf.HTAF(), nn.AvgPool2d(3, 1)
            self.conv, self.act2, self.head = nn.Conv2d(4, 6, 3), htaf.HTAF(), nn.Conv2d(6, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.act(self.stem(x))
            return self.head(self.act2(self.conv(self.pool(x))).mean((2, 3), True))

    grid: Any = htaf.harden(htaf.on_grid(Means(), torch.randn(5, 1, 12, 12), bits=4)).eval()
    assert [(layer.over, layer.bits, layer.shared) for layer in (grid.conv, grid.head)] == [
        (9, 4, False),
        (36, 4, True),
    ]
    counts = torch.randint(0, 10, (7, 4, 8, 8))
    k, s = integers_and_steps(grid.conv.weight, 4)
    sums = nn.functional.conv2d(counts.double(), k.double()) * s.view(-1, 1, 1) / 9
    expected = sums.float() + grid.conv.bias.view(-1, 1, 1)
    assert torch.equal(grid.conv(counts / 9), expected)
    assert torch.equal(grid.conv((counts / 9).nextafter(torch.tensor(9.0))), expected), "a last bit does not matter"
    assert torch.equal(settled(grid.conv)(counts / 9), expected)
    assert not torch.equal(grid.conv.train()(counts / 9), expected)
    unit = integers_and_steps(grid.head.weight, 4, shared=True)[1]
    assert torch.equal(grid.head.grid_bias() / unit, (grid.head.bias / unit).round())
    net = nn.Sequential(nn.Conv2d(1, 4, 3), htaf.HTAF(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    one: Any = htaf.on_grid(net, torch.randn(5, 1, 7, 7))
    assert (one[4].over, one[4].bits, one[4].real) == (25, 16, True)


def test_inputs_that_would_be_clipped_are_told() -> None:
    net = nn.Sequential(nn.Linear(3, 4), htaf.HTAF(), nn.Linear(4, 2))
    with pytest.warns(
        UserWarning, match="expected inputs of about 1, as normalised ones, got some beyond 8, where 0 clips"
    ):
        htaf.on_grid(net, 30 * torch.randn(50, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        htaf.on_grid(net, torch.randn(50, 3))


def test_layers_of_other_models_round_what_they_are_given() -> None:
    net = nn.Sequential(nn.Linear(3, 4), htaf.HTAF(), nn.Linear(4, 2))
    layer: Any = htaf.on_grid(net, torch.randn(5, 3)).eval()[0]  # pyright: ignore[reportIndexIssue]
    assert (layer.bits, layer.rounds) == (8, True)
    x, (exponent, limit) = 9 * torch.randn(50, 3), columns_grid(3)
    assert torch.equal(layer(x), layer(fixed_point(x, exponent, limit)))
    assert not torch.equal(layer(x), layer.train()(x))


def test_the_gradient_is_that_of_the_weight() -> None:
    w = torch.randn(3, 5, requires_grad=True)
    g = torch.randn(3, 5)
    (grid_weight(w, 4) * g).sum().backward()
    assert w.grad is not None
    assert torch.equal(w.grad, g)
    layer = GridConv2d(2, 3, 3)
    layer(torch.randn(1, 2, 5, 5)).sum().backward()
    assert layer.weight.grad is not None
    assert bool(layer.weight.grad.any())


def test_zeros_and_tiny_filters_are_kept() -> None:
    w = torch.tensor([[0.0, 0.0], [1e-38, -3e-39]])
    assert torch.equal(grid_weight(w)[0], w[0])
    assert bool(grid_weight(w).isfinite().all())


@pytest.mark.parametrize(("w", "bits", "error", "words"), [
    (torch.ones(2, 2, dtype=torch.int64), 8, TypeError, "floating-point"),
    (torch.ones(2), 8, ValueError, "at least two dimensions"),
    (torch.ones(2, 2), 3, ValueError, "bits must be 4, 8 or 16, got 3"),
])  # fmt: skip
def test_bad_arguments(unchecked: None, w: Tensor, bits: Bits, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        grid_weight(w, bits)


def test_truth_tables_are_layers_over_bits() -> None:
    torch.manual_seed(0)
    x = torch.randn(50, 6)
    net = nn.Sequential(nn.Linear(6, 20), htaf.HTAF(), htaf.LUTLayer(20, 8), htaf.GroupSum(2, 2.0))
    exact = htaf.harden(htaf.on_grid(net, x).eval())
    program = htaf.integer.integer_program(exact, x)
    found = program.run(program.input.quantised(x.numpy())) * 2.0 ** program.unit[0]
    assert torch.equal(torch.from_numpy(found).float(), exact(x))


def test_bad_models(unchecked: None) -> None:
    with pytest.raises(ValueError, match="bits must be 4 or 8, got 2"):
        htaf.on_grid(nn.Linear(2, 2), torch.zeros(1, 2), bits=2)  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        ValueError, match=r"expected a model with an nn\.Linear or a convolution over the outputs of steps"
    ):
        htaf.on_grid(nn.Sequential(nn.Linear(2, 2), htaf.HTAF()), torch.randn(4, 2))
    grid = htaf.on_grid(nn.Sequential(nn.Linear(2, 2), htaf.HTAF(), nn.Linear(2, 2)), torch.randn(4, 2))
    with pytest.raises(ValueError, match="real weights, got one that is on a grid already"):
        htaf.on_grid(grid, torch.randn(4, 2))


class OwnConv2d(nn.Conv2d):
    """A subclass may compute anything."""


def test_what_stays_real_is_named() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 64, 3), htaf.HTAF(), OwnConv2d(64, 4, 1), nn.GroupNorm(2, 4), htaf.HTAF(), nn.Conv2d(4, 32, 3),
        nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 4, 3),
    )  # fmt: skip
    with pytest.warns(UserWarning, match="sums stay rounded in") as told:
        grid = htaf.on_grid(net, torch.randn(2, 1, 9, 9))
    (one,) = [str(w.message) for w in told]
    assert one.endswith("2 (OwnConv2d); 3 (GroupNorm); 8 (Conv2d, 288 real inputs for each output)")
    assert [type(grid[i]) for i in (0, 2, 5, 8)] == [GridConv2d, OwnConv2d, GridConv2d, nn.Conv2d]  # pyright: ignore
    with pytest.raises(ValueError, match=r"got 1 of them over real inputs, and 2 \(OwnConv2d\)"):
        htaf.on_grid(net[:3], torch.randn(2, 1, 9, 9))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        htaf.on_grid(nn.Sequential(*net[:2], nn.Conv2d(64, 4, 1)), torch.randn(2, 1, 9, 9))


@pytest.mark.parametrize("bits", [4, 8])
def test_every_convolution_is_exact(bits: Bits) -> None:
    """Over real inputs, over bits and in groups, with stride and dilation: one scale an output, sums in any order."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 12, 3, padding=1), nn.BatchNorm2d(12), htaf.HTAF(),
        nn.Conv2d(12, 8, 4, 2, padding=1), nn.BatchNorm2d(8), htaf.HTAF(),
        nn.Conv2d(8, 6, 3, dilation=2, groups=2, bias=False),
    )  # fmt: skip
    x = torch.randn(3, 2, 12, 12)
    grid: Any = htaf.on_grid(net, x, bits=bits)
    assert [type(grid[i]) for i in (0, 3, 6)] == [GridConv2d] * 3
    assert [(grid[i].real, grid[i].bits) for i in (0, 3)] == [(True, 8), (False, bits)]
    assert grid.state_dict().keys() == net.state_dict().keys()
    filters = grid[3].grid_weight()
    k, step = integers_and_steps(grid[3].weight, bits)
    assert torch.equal(filters, k * step.view(-1, *[1] * (k.ndim - 1)))
    exact: Any = htaf.harden(grid).eval()
    with torch.no_grad():
        y, wide = x, x.double()
        for at, layer in enumerate(exact):
            y = layer(y)
            if at in (3, 6):
                plain: Any = nn.Conv2d.__new__(nn.Conv2d)
                plain.__dict__.update(vars(layer))
                plain._parameters = {n: None if p is None else p.double() for n, p in layer._parameters.items()}
                plain._parameters["weight"] = layer.grid_weight().double()
                assert torch.equal(y, plain(wide).float())
            wide = y.double()
    assert torch.equal(htaf.pack(exact, x)(x), exact(x))
    grid.train()(x).sum().backward()
    assert all(p.grad is not None for p in grid.parameters())


def test_a_layer_under_two_names_stays_one() -> None:
    shared = nn.Linear(4, 4)
    grid = htaf.on_grid(nn.Sequential(nn.Linear(2, 4), htaf.HTAF(), shared, htaf.HTAF(), shared), torch.randn(3, 2))
    assert isinstance(grid[2], GridLinear)  # pyright: ignore[reportIndexIssue]
    assert grid[2] is grid[4]  # pyright: ignore[reportIndexIssue]


def test_on_grid_says_by_its_types_what_each_layer_reads() -> None:
    net = WideResNet(10, 1, 4, ACT)
    grid = htaf.on_grid(net, torch.randn(2, 3, 8, 8), bits=4)
    kinds = {name: type(module) for name, module in grid.named_modules() if not list(module.children())}
    assert kinds["stem"] is GridConv2d
    assert grid.get_submodule("stem").real
    assert grid.get_submodule("stem").bits == 8
    assert grid.get_submodule("stages.0.0.conv1").bits == 4
    assert not grid.get_submodule("stages.0.0.conv1").real
    assert (kinds["norm"], kinds["head"]) == (WideBatchNorm2d, GridLinear)
    assert {k: v.tolist() for k, v in net.state_dict().items()} == {k: v.tolist() for k, v in grid.state_dict().items()}
    assert type(net.stem) is nn.Conv2d
    next(grid.get_submodule("head").parameters()).data.zero_()  # the copies are its own
    assert bool(net.head.weight.any())
    mlp = htaf.on_grid(
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), htaf.HTAF(), nn.Linear(4, 2)), torch.randn(5, 3)
    )
    assert [type(module) for module in mlp.children()] == [GridLinear, WideBatchNorm1d, htaf.HTAF, GridLinear]


def test_large_integers_are_real_numbers() -> None:
    """Columns of whole numbers, such as incomes, are no bits: their sums would leave what float32 holds."""
    net, x = nn.Sequential(nn.Linear(3, 4), htaf.HTAF(), nn.Linear(4, 2)), torch.randint(0, 9, (20, 3)).float()
    for real in (False, True):
        layers = [module for module in htaf.on_grid(net, x).children() if isinstance(module, GridLinear)]
        assert [layer.real for layer in layers] == [real, False]
        x[3, 1] = 2**24 // (3 * 127) + 1


def test_training_mode_is_that_of_the_plain_layers() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 3)
    mean: Any = htaf.on_grid(nn.Sequential(htaf.HTAF(), nn.Linear(3, 3), Mean((1,))), x)[2]  # pyright: ignore
    for plain, wide in ((Mean((1,)), mean), (nn.BatchNorm1d(3), WideBatchNorm1d(3))):
        wide.load_state_dict(plain.state_dict())
        assert torch.equal(plain(x), wide(x))
        torch.testing.assert_close(plain.eval()(x), wide.eval()(x).float())
    assert mean.eval()(x).dtype == torch.float64


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), weights=st.sampled_from([27 * 127, 258 * 127, 4 * 127]))
def test_fixed_point_inputs_are_few_steps(seed: int, weights: int) -> None:
    x = 6 * torch.randn(200, generator=torch.Generator().manual_seed(seed))
    y = fixed_point(x, *pixels_grid(weights))
    scale = 2.0 ** torch.arange(0, 16)
    step = 1 / scale[[bool((y * s == (y * s).round()).all()) for s in scale]].min()
    assert float(y.abs().max() / step) * weights <= 2**24
    inside = x.abs() < 8
    assert bool(((y - x).abs() <= step / 2)[inside].all())
    z = x.clone().requires_grad_()
    fixed_point(z, *pixels_grid(weights)).sum().backward()
    assert z.grad is not None
    assert bool((z.grad[inside] == 1).all())
    assert not z.grad[x.abs() > 17].any()


@pytest.mark.parametrize("bits", [4, 8])
def test_sums_do_not_depend_on_their_order(bits: Bits) -> None:
    """The hardened network gives the same bits whatever the batch, the layout and the order of the channels."""
    torch.manual_seed(1)
    net = WideResNet(10, 2, 4, ACT).train()
    x = torch.randn(9, 3, 12, 12)
    with torch.no_grad():
        net(x)
    exact = htaf.harden(htaf.on_grid(net, x, bits=bits).eval())
    with torch.no_grad():
        whole = exact(x)
        each = torch.cat([exact(one[None].contiguous(memory_format=torch.channels_last)) for one in x])
    torch.testing.assert_close(whole, each, atol=1e-6, rtol=0)  # the mean of the last bits may be rounded otherwise
    stem = exact.get_submodule("stem")
    assert torch.equal(stem(x)[3:4], stem(x[3:4].contiguous(memory_format=torch.channels_last)))
    layer, bits_in = exact.get_submodule("stages.0.0.conv1"), (torch.rand(5, 16, 9, 9) < 0.5).float()
    order = torch.randperm(16)
    weight = weight_of(layer)[:, order]
    assert torch.equal(layer(bits_in), nn.functional.conv2d(bits_in[:, order], weight, padding=1))
    assert torch.equal(
        layer(bits_in).double(), nn.functional.conv2d(bits_in.double(), weight_of(layer).double(), padding=1)
    )


def test_settled_models_hold_the_rounded_weights() -> None:
    net = nn.Sequential(nn.Linear(3, 4), htaf.HTAF(), nn.Linear(4, 2))
    assert settled(net) is net
    grid = htaf.on_grid(net, torch.randn(5, 3), bits=4)
    fixed, x = settled(grid), torch.randn(7, 3)
    assert torch.equal(fixed(x), grid(x))
    assert torch.equal(fixed.state_dict()["2.weight"], grid_weight(net.state_dict()["2.weight"], 4))
    assert torch.equal(grid.state_dict()["2.weight"], net.state_dict()["2.weight"])


def test_networks_are_built_with_weights_on_a_grid() -> None:
    act = {"method": "htaf", "alpha0": 2.0, "alpha1": 11.0}
    d = {"kind": "mlp", "in_features": 3, "out_features": 2, "hidden": [4, 4], "batch_norm": True, "activation": act}
    net = build(d | {"weights": "int4"})
    assert [*net.state_dict()] == [*build(d).state_dict()]
    head = net.get_submodule("head")
    assert isinstance(head, GridLinear)
    assert head.bits == 4
    with pytest.raises(ValueError, match="expected weights of int8, int4"):
        build(d | {"weights": "int3"})
    with pytest.raises(ValueError, match="with steps for activations"):
        build(d | {"weights": "int8", "activation": {"method": "relu"}})


def test_members_learn_with_the_weights_that_the_network_has() -> None:
    act = {"method": "htaf", "alpha0": 2.0, "alpha1": 11.0}
    d = {"kind": "mlp", "in_features": 3, "out_features": 2, "hidden": [4], "batch_norm": True, "activation": act}
    net, x = build(d | {"weights": "int4", "members": 3}).eval(), torch.randn(8, 3)
    torch.testing.assert_close(net.member_outputs(x).mean(1), net(x))  # pyright: ignore[reportCallIssue]


def test_means_over_images_of_another_size_are_refused() -> None:
    """What is counted again would be rounded to the wrong multiples."""
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), htaf.HTAF(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    )
    exact = htaf.harden(htaf.on_grid(net, torch.randn(4, 1, 8, 8))).eval()
    assert exact(torch.randn(16, 1, 8, 8)).shape == (16, 3)
    with pytest.raises(ValueError, match=r"1 / 64, .* on_grid with an example of this size"):
        exact(torch.randn(16, 1, 12, 12))


@pytest.mark.parametrize("levels", [1, 4])
def test_means_of_levels_are_counted_in_their_own_units(levels: int) -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), htaf.HTAF(levels=levels), nn.AvgPool2d(3), nn.Conv2d(8, 4, 1), nn.Flatten()
    )
    exact = htaf.harden(htaf.on_grid(net, torch.randn(4, 1, 9, 9))).eval()
    x = torch.randn(16, 1, 9, 9)
    with torch.no_grad():
        means, layer = exact[:3](x), exact[3]
        sums = nn.functional.conv2d(means.double(), weight_of(layer).double()) + layer.grid_bias().view(-1, 1, 1)
        torch.testing.assert_close(layer(means).double(), sums)
        layer(torch.full_like(means, torch.nan))  # raises nothing
