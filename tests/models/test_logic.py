"""Logic networks: tables of bits, learned connections, and the same outputs as integers."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import htaf
from htaf import GroupSum, LogicNet, LUTLayer, Patches
from htaf.core.kernels import native
from htaf.core.kernels.lookup import reference
from htaf.core.kernels.registration import implementation
from htaf.models.logic import informative
from htaf.models.mlp import Thermometer
from htaf.program.integer import Circuit, Input, integer_program


@given(inputs=st.integers(1, 8), tables=st.integers(1, 5), seed=st.integers(0, 1000))
def test_of_bits_it_is_the_entry_at_their_address(inputs: int, tables: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    entries = torch.randn(tables, 2**inputs, generator=rng)
    x = torch.randint(0, 2, (7, tables, inputs), generator=rng).float().requires_grad_()
    address = (x.detach().long() << torch.arange(inputs)).sum(-1)
    y = htaf.functional.lookup(x, entries)
    assert torch.equal(y, entries[torch.arange(tables), address])
    y.sum().backward()
    assert x.grad is not None
    for i in range(inputs):  # what the other value of one bit would add
        on, off = (entries[torch.arange(tables), address & ~(1 << i) | bit << i] for bit in (1, 0))
        torch.testing.assert_close(x.grad[..., i], on - off)


@pytest.mark.skipif(native.load()[0] is None, reason="no compiled kernels")
@given(shape=st.tuples(st.integers(0, 9), st.integers(1, 40), st.integers(1, 8)), bits=st.booleans())
def test_the_compiled_kernel_is_the_formula(shape: tuple[int, int, int], bits: bool) -> None:
    rng = torch.Generator().manual_seed(sum(shape))
    x, grad = torch.rand(shape, generator=rng), torch.randn(shape[:-1], generator=rng)
    x, entries = x.round() if bits else x, torch.rand(shape[1], 2 ** shape[2], generator=rng)
    fast = implementation("lookup", "cpu")
    torch.testing.assert_close(fast.forward(x, entries), reference.forward(x, entries))
    for found, expected in zip(fast.backward(grad, x, entries), reference.backward(grad, x, entries), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_gradients_of_the_first_and_second_order() -> None:
    x = torch.rand(2, 3, 3, dtype=torch.float64, requires_grad=True)
    entries = torch.rand(3, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(htaf.functional.lookup, (x, entries), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(htaf.functional.lookup, (x, entries))


@pytest.mark.parametrize(("x", "entries"), [((2, 3, 2), (3, 8)), ((2, 3, 2), (2, 4)), ((2,), (1, 4))])
def test_shapes_that_do_not_fit_are_named(x: tuple[int, ...], entries: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="got shapes"):
        htaf.functional.lookup(torch.rand(x), torch.rand(entries))


def test_a_layer_finds_the_two_columns_that_matter() -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 2, (2048, 12)).float()
    y = (x[:, 3] != x[:, 7]).long()
    net = nn.Sequential(LUTLayer(12, 32, 3), GroupSum(2, 2.0))
    optimizer = torch.optim.Adam(net.parameters(), 0.05)
    for rows in torch.arange(2048).repeat(6).split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
    exact = htaf.harden(net).eval()
    assert (exact(x).argmax(1) == y).float().mean() > 0.99
    layer = net[0]
    assert isinstance(layer, LUTLayer)
    before = exact(x)
    layer.settle()
    assert [name for name, _ in net.named_parameters()] == ["0.table"]
    assert torch.equal(htaf.harden(net).eval()(x), before)


def test_random_connections_read_all_columns_alike() -> None:
    layer = LUTLayer(10, 7, 3, learned=False)
    assert set(layer.connections.bincount(minlength=10).tolist()) == {2, 3}
    assert layer.weight is None


@pytest.mark.parametrize("sizes", [(0, 3, 6), (3, 0, 6), (3, 3, 0), (3, 3, 9)])
def test_sizes_that_cannot_be_are_named(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="expected positive sizes and 1 to 8 inputs, got"):
        LUTLayer(*sizes)
    with pytest.raises(ValueError, match="a multiple of 4"):
        GroupSum(4)(torch.zeros(2, 6))


def test_inputs_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match=r"expected \[batch, ..., 4\], got \[3, 10\]"):
        LUTLayer(4, 2, 2)(torch.rand(3, 10))
    with pytest.raises(ValueError, match=r"expected values in \[0, 1\], got -3 to 1"):
        LUTLayer(2, 2, 2).eval()(torch.tensor([[-3.0, 1.0]]))
    with pytest.raises(ValueError, match="one dtype on one device"):
        htaf.functional.lookup(torch.rand(1, 1, 1), torch.rand(1, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match="a threshold in one column"):
        LogicNet(2, 2, thresholds=(0, 0))
    with pytest.raises(ValueError, match="finite"):
        LogicNet(1, 2, thresholds=(1,)).place(torch.tensor([[float("nan")], [1.0]]))


def test_a_layer_runs_twice_before_a_backward_and_in_other_dtypes() -> None:
    layer, x = LUTLayer(4, 3, 2), torch.randint(0, 2, (5, 4)).float()
    (layer(x).sum() + layer(1 - x).sum()).backward()
    assert layer(x.bfloat16()).dtype == torch.bfloat16
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        torch.testing.assert_close(layer(x), layer.double()(x.double()).float())
    finally:
        torch.set_default_dtype(before)


def test_columns_with_fewer_gaps_than_thresholds_have_some_that_are_never_reached() -> None:
    net = LogicNet(2, 2, (4,), thresholds=(2, 3))
    x = torch.tensor([[1.0, 0.0], [1.0, 100.0]])
    net.place(x)
    assert net.thermometer(x).sum(1).tolist() == [0, 1]


@pytest.mark.parametrize(("outputs", "luts", "exponent"), [*product([3, 1], [(50,), (40, 30)], [None, 6])])
def test_a_hardened_network_is_an_integer_program(outputs: int, luts: tuple[int, ...], exponent: int | None) -> None:
    torch.manual_seed(1)
    x = torch.randint(-40, 60, (400, 5)) / 4
    net = LogicNet(5, outputs, luts, thresholds=(3, 0, 7, 1, 2), exponent=exponent)
    net.place(x)
    with torch.no_grad():
        for parameter in net.head.parameters():
            parameter.uniform_(-3, 3)
    net.settle()
    exact = htaf.harden(net).eval()
    program = integer_program(exact, x[:4])
    assert [type(op).__name__ for op in program.ops].count("LUT") == len(luts)
    with torch.no_grad():
        assert np.array_equal(program.outputs(x.numpy()), exact(x).numpy())


def test_thresholds_of_pixels_are_bytes() -> None:
    torch.manual_seed(2)
    pixels, deviation = torch.randint(0, 256, (300, 2, 3, 4), dtype=torch.uint8), torch.tensor([[0.3], [0.25]])
    table = (torch.arange(256) / 255 - torch.tensor([[0.4], [0.5]])) / deviation
    x = torch.stack([table[c][pixels[:, c].long()] for c in range(2)], 1)
    net = LogicNet(24, 4, (30,), thresholds=(2,) * 24)
    net.place(x.flatten(1))
    net.settle()
    exact = htaf.harden(net).eval()
    program = integer_program(exact, x[:4], input=Input("pixels", (2, 3, 4)), table=table)
    assert not any(type(op).__name__ == "Lookup" for op in program.ops)
    with torch.no_grad():
        assert np.array_equal(program.outputs(pixels.numpy()), exact(x).numpy())


def test_a_learned_divisor_becomes_a_power_of_two() -> None:
    sums = GroupSum(2, 24.0, learned=True)
    x = torch.ones(1, 8)
    torch.testing.assert_close(sums(x), torch.full((1, 2), 4 / 24))
    sums(x).sum().backward()
    assert sums.log2_divisor is not None
    assert sums.log2_divisor.grad is not None
    sums.settle()
    assert (sums.divisor, [*sums.parameters()]) == (32.0, [])
    assert sums(x).tolist() == [[4 / 32, 4 / 32]]


def test_the_most_informative_levels_are_found() -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 8, (4000, 3), generator=rng)
    y = (x[:, 0] >= 3).long() + (x[:, 2] >= 6).long()
    assert informative(x, y, 1) == [2]
    assert informative(x, y, 2) == [2, 5]
    assert informative(x[:, :1] * 0, y, 2) == [0, 1]  # columns that say nothing


def test_patches_make_a_convolution_of_tables_and_the_same_integers() -> None:
    torch.manual_seed(3)
    patches = Patches((2, 6, 7), kernel=3, stride=2)
    x = torch.randint(0, 2, (40, 2, 6, 7)).float()
    assert torch.equal(patches(x), nn.functional.unfold(x, 3, stride=2).mT)
    bits = Thermometer([1] * 84)
    bits.threshold.fill_(0.5)
    net = nn.Sequential(nn.Flatten(), bits, patches, LUTLayer(18, 5), nn.Flatten(), LUTLayer(30, 12, 4), GroupSum(3))
    exact = htaf.harden(net.requires_grad_(False)).eval()
    for layer in exact:
        if isinstance(layer, LUTLayer):
            layer.settle()
    program = integer_program(exact, x[:4], input=Input("columns", (2, 6, 7), 0, 1))
    assert np.array_equal(program.outputs(x.numpy()), exact(x).numpy())
    if native.available():
        q = program.input.quantised(x.numpy())
        assert np.array_equal(Circuit(program).run(q), program.run(q))
    with pytest.raises(ValueError, match="a window within the image"):
        Patches((1, 4, 8), 5)
    with pytest.raises(ValueError, match=r"expected \[batch, 2, 6, 7\]"):
        patches(x[:, :, :5])
