"""Integer programs of small networks of every family: each value equals the hardened module's, from pixels on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer
from tests.integer.made import KINDS, random_program
from torch import Tensor, nn

import htaf
from htaf.data import tabular
from htaf.data.image_sets import load
from htaf.data.images import ImagePreprocessor, Images, pixel_table
from htaf.models.mlp import MLP
from htaf.models.whitened import WhitenedConvNet
from htaf.models.wide_resnet import WideResNet
from htaf.program.integer import files
from htaf.program.integer.build import Walk, columns_input, integer_program
from htaf.program.integer.ops import LUT, Add, IntegerError, Pool, Steps, Take
from htaf.program.integer.program import Input, IntegerProgram, simplify
from htaf.program.packed.graph import Traced, trace
from htaf.training.families import ready_recipe
from htaf.training.fit import fit
from htaf.training.runs import Run, RunError
from htaf.training.runs.packing import build_run
from htaf.transform.grid import columns_grid
from htaf.transform.spiking.neurons import LIF
from quick import slow_but

ACT = partial(htaf.HTAF, 2.0, 11.0)
Make = Callable[[], nn.Module]


def preprocessor(shape: tuple[int, ...]) -> ImagePreprocessor:
    c = shape[0]
    return ImagePreprocessor((0.49, 0.48, 0.44)[:c], (0.24, 0.26, 0.27)[:c], shape[1:], c, ("a", "b"))  # pyright: ignore


def rows(shape: tuple[int, ...], count: int, seed: int) -> np.ndarray:
    """Pixels of noise, of blocks and of one colour."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
    x[count // 2 :] = x[count // 2 :, :, ::4, ::4].repeat(4, 2).repeat(4, 3)[:, :, : shape[1], : shape[2]]
    x[-2], x[-1] = 0, 255
    return x


def disturbed(grid: nn.Module, x: Tensor) -> nn.Module:
    """The hardened network, whose norms have seen inputs and rise and fall."""
    grid.train()
    with torch.no_grad():
        for _ in range(3):
            grid(x)
        for module in grid.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.weight.add_(0.8 * torch.randn_like(module.weight))
                module.bias.add_(0.3 * torch.randn_like(module.bias))
    return htaf.harden(grid).eval()


def images(make: Make, shape: tuple[int, ...], seed: int = 0) -> tuple[nn.Module, Tensor, np.ndarray, Tensor]:
    """A network on a grid, its example, pixels, and what each pixel is to it."""
    torch.manual_seed(seed)
    pre = preprocessor(shape)
    pixels = rows(shape, 24, seed)
    x = pre.normalise(torch.from_numpy(pixels))
    net = make()
    if isinstance(net, WhitenedConvNet):
        net.whiten(x)
    exact = disturbed(htaf.on_grid(net, x[:2]), x)
    return exact, x, pixels, pixel_table(pre)


class Nodes(torch.fx.Interpreter):
    """What every node of an exported graph gives."""

    def __init__(self, traced: Traced) -> None:
        super().__init__(traced.module, graph=traced.graph)
        self.traced, self.found = traced, dict[torch.fx.Node, Tensor]()

    def run_node(self, n: torch.fx.Node) -> object:
        y = self.traced.constants[n] if n in self.traced.constants else super().run_node(n)
        if isinstance(y, Tensor):
            self.found[n] = y
        return y

    def all(self, x: Tensor) -> dict[torch.fx.Node, Tensor]:
        held = {n: self.traced.constants.get(n, x) for n in self.traced.graph.find_nodes(op="placeholder")}
        with torch.no_grad():
            self.run(x, initial_env=dict(held))
        return self.found | held


def same(exact: nn.Module, x: Tensor, given: np.ndarray, input: Input, table: Tensor | None = None) -> IntegerProgram:
    """All values that the program holds are those of the graph; bits and logits of the simplified one are too."""
    traced = trace(exact, x)
    walk = Walk(traced, input, table)
    whole = IntegerProgram(input, tuple(walk.ops), 0 if len(input.shape) == 1 else walk.known[traced.outputs[0]].value)  # pyright: ignore
    values, found, compared = whole.every_value(given), Nodes(traced).all(x), 0
    for node, known in walk.known.items():
        if node.op == "placeholder":  # columns before they are rounded
            continue
        if known.base is not node or known.shift is not None or known.divisor > 1:
            continue
        shape = whole.values[known.value].shape
        unit = known.unit.reshape(-1, 1, 1) if len(shape) >= 3 else known.unit
        wanted = found[node].numpy().astype(np.float64)
        np.testing.assert_array_equal(values[known.value] * unit, wanted.reshape(-1, *shape), err_msg=node.name)
        compared += 1
    assert compared > 2
    bits, outputs = dict[str, Tensor](), None
    for name, module in exact.named_modules():
        module.register_forward_hook(lambda m, i, o, name=name: bits.update({name: o}))
    with torch.no_grad():
        outputs = exact(x).double().numpy()
    program = integer_program(traced, x, input=input, table=table)
    made = program.every_value(given)
    counted = 0
    for number, op, value in program:
        if isinstance(op, Steps):
            wanted, step = bits[op.name].numpy(), number
            while wanted.size < made[step].size:  # the pooling that was before the step
                assert isinstance(program.ops[step], Pool)
                step += 1
            y = wanted.reshape(made[step].shape)
            np.testing.assert_array_equal(made[step], y * value.high, err_msg=op.name)  # shares of several levels
            counted += 1
    assert counted
    logits = np.ldexp(made[program.output].astype(np.float64), program.unit[0]) / program.unit[1]
    np.testing.assert_allclose(logits, outputs, rtol=2**-23, atol=2e-15)
    np.testing.assert_array_equal(logits.argmax(1), outputs.argmax(1))
    return program


IMAGES: dict[str, tuple[Make, tuple[int, ...]]] = {
    "wrn": (lambda: WideResNet(10, 2, 5, ACT), (3, 16, 16)),
    "digits": (lambda: WideResNet(16, 1, 10, ACT, in_channels=1), (1, 8, 8)),
    "binary": (
        lambda: WhitenedConvNet(5, partial(htaf.HTAF, 2.0, 11.0, bipolar=True), widths=(8, 16), conv=htaf.BinaryConv2d),
        (3, 14, 14),
    ),
    "one pixel": (lambda: WhitenedConvNet(5, ACT, widths=(8, 16)), (3, 6, 6)),
    "whitened": (lambda: WhitenedConvNet(5, ACT, widths=(8, 16)), (3, 14, 14)),
}


@pytest.mark.parametrize("name", slow_but(IMAGES, "binary", "digits", "one pixel", "whitened"))
def test_images_from_pixels(name: str) -> None:
    make, shape = IMAGES[name]
    exact, x, pixels, table = images(make, shape)
    same(exact, x, pixels, Input("pixels", shape), table)  # pyright: ignore


def norm(channels: int, dimensions: int = 2) -> list[nn.Module]:
    return [(nn.BatchNorm1d, nn.BatchNorm2d)[dimensions - 1](channels), ACT()]


FORMS: dict[str, Make] = {
    "pooled": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.MaxPool2d(2), *norm(8), nn.Dropout(), nn.Conv2d(8, 6, 2, bias=False), *norm(6),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5), *norm(5, 1), nn.Identity(), nn.Linear(5, 2),
    ),
    "whole images": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), htaf.HTAF(bipolar=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 5)
    ),
    "rows": lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 20), *norm(20, 1), nn.Linear(20, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_networks_as_users_write_them(name: str) -> None:
    exact, x, pixels, table = images(FORMS[name], (3, 8, 8))
    same(exact, x, pixels, Input("pixels", (3, 8, 8)), table)


TABLES: dict[str, tuple[Make, int]] = {
    "columns": (lambda: MLP(12, 10, (70, 20), ACT, True), 12),
    "no norms": (lambda: MLP(7, 3, (70, 20), ACT), 7),
    "thermometer": (lambda: MLP(7, 3, (70, 20), ACT, True, thresholds=[3] * 7), 7),
    "regression": (lambda: MLP(7, 1, (70,), ACT, True, thresholds=[3, 0, 9, 1, 2, 3, 3], members=1), 7),
    "members": (lambda: MLP(7, 3, (20,), ACT, True, thresholds=[3] * 7, members=4), 7),
    "leaves": (lambda: MLP(7, 3, (20,), ACT, True, thresholds=[3] * 7, leaves=16), 7),
    "direct": (lambda: MLP(7, 3, (20,), ACT, True, thresholds=[3] * 7, direct=True, leaves=16), 7),
}


@pytest.mark.parametrize("name", slow_but(TABLES, "columns", "members", "direct"))
def test_tables_from_columns(name: str) -> None:
    make, width = TABLES[name]
    torch.manual_seed(0)
    net = make()
    assert isinstance(net, MLP)
    x = torch.randn(40, width)
    if not isinstance(net.thermometer, nn.Identity):
        net.thermometer.place(x[:20])  # pyright: ignore
    for part in net.fitted:
        for parameter in part.parameters():
            nn.init.normal_(parameter, std=0.3)
    if net.leaves is not None:
        weight = torch.randint(-1, 2, net.leaves.linear.weight.shape).float()
        net.leaves.place(weight, weight.clamp(min=0).sum(1) - 3, torch.randn(3, 16))
    exact = disturbed(htaf.on_grid(net, x[:2]), x)
    x[-1] *= 1e6
    input = columns_input(trace(exact, x))
    same(exact, x, input.quantised(x.numpy()), input)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_simplified_programs_give_the_same(kind: str, seed: int) -> None:
    program, x = random_program(seed, kind)
    simple = simplify(program)
    np.testing.assert_array_equal(simple.run(x), program.run(x))
    assert simplify(simple).digest == simple.digest


def every_row(bits: int) -> np.ndarray:
    return np.array([*itertools.product([0, 1], repeat=bits)])


@given(st.integers(0, 10**6), st.sampled_from(["logic", "logic of pixels"]))
@settings(max_examples=30, deadline=None)
def test_truth_tables_are_reduced(seed: int, kind: str) -> None:
    """No first table is equal to another or unread; none reads a bit on which it does not depend."""
    program, x = random_program(seed, kind)
    simple = simplify(program)
    np.testing.assert_array_equal(simple.run(x), program.run(x))
    first, last = (op for op in simple.ops if isinstance(op, LUT))
    assert len({*map(bytes, np.column_stack([first.index, first.table]))}) == len(first.table)
    assert {*range(1, len(first.table))} <= {*last.index.flat}
    constant = {*np.flatnonzero((first.table == first.table[:, :1]).all(1)).tolist()}
    for op in (first, last):
        for index, table in zip(op.index, op.table, strict=True):
            read, place = np.unique(index, return_inverse=True)
            if table.min() == table.max():
                continue
            assert op is first or not constant.intersection(read.tolist())
            bits, one = every_row(len(read)), LUT("", 0, place[None], table[None])
            assert all((one.run(bits) != one.run(bits ^ bit)).any() for bit in np.eye(len(read), dtype=int))


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_bits_that_others_read_stay(seed: int) -> None:
    """Bits that tables and a sum read, some of them twice, equal or constant."""
    rng = np.random.default_rng(seed)
    thresholds, sign = rng.integers(-5, 7, (5, 1)), rng.choice([-1, 1], 5)
    steps = Steps("steps", 1, thresholds, sign, 0, 1)
    a, b = (LUT("", x, rng.integers(0, 5, (5, 3)), rng.integers(0, 2, (5, 8))) for x in (2, 3))
    both = Add("add", int(rng.integers(2, 5)), 4, np.zeros(5, int), np.zeros(5, int))
    program = IntegerProgram(
        Input("columns", (3,), -4, 4), (Take("", 0, rng.integers(0, 3, 5)), steps, a, b, both), int(rng.integers(1, 6))
    )
    x = np.array([*itertools.product(range(-4, 5), repeat=3)])
    np.testing.assert_array_equal(simplify(program).run(x), program.run(x))


class Added(nn.Module):
    """A residual stream of real norms, as Bi-Real networks have."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm1, self.act1 = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), ACT()
        self.conv, self.norm2, self.act2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), ACT()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act1(self.norm1(self.stem(x)))
        return self.head(self.act2(self.norm2(self.conv(x)) + x).mean((2, 3)))


class Recurrent(nn.Module):
    """Rows of pixels through an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.act, self.head = nn.LSTM(8, 4, batch_first=True), ACT(), nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.rows(x.flatten(1, 2))[0]).flatten(1))


class Compared(nn.Module):
    """A thermometer as one writes it oneself: each column minus several thresholds."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ends", torch.randn(64, 3))
        self.act, self.head = ACT(), nn.Linear(192, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(x.flatten(1)[..., None] - self.ends).flatten(1))


def chain(*layers: nn.Module) -> nn.Sequential:
    """Some layers between a step over an image and a linear end."""
    return nn.Sequential(nn.Conv2d(1, 4, 3), ACT(), *layers, ACT(), nn.Flatten(), nn.LazyLinear(2))


REFUSED: dict[str, tuple[Make, str]] = {
    "a norm in a stream": (Added, "norm2: expected sums of integers in units that are powers of two, got real numbers"),
    "spikes": (
        lambda: WhitenedConvNet(2, lambda: LIF(ACT()), widths=(4,), steps=2, in_channels=1),
        "expected a network without time steps .*, got spiking neurons: htaf.pack runs them",
    ),
    "a recurrence": (lambda: Recurrent(), "rows: .* got aten.*: htaf.pack runs it in float"),
    "thresholds of one's own": (lambda: Compared(), r".* got aten.sub.Tensor .*: take a copy of a column"),
    "transposed": (
        lambda: chain(nn.ConvTranspose2d(4, 4, 2)),
        "2: .* got aten.conv_transpose2d",
    ),
    "smooth": (lambda: chain(nn.Conv2d(4, 4, 1), nn.ReLU()), "3: expected layers on a grid, .* got aten.relu"),
    "means": (lambda: chain(nn.AvgPool2d(2), nn.Conv2d(4, 4, 1)), "2: .* got aten.avg_pool2d.*: use nn.MaxPool2d"),
    "lines": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), ACT(), nn.Flatten(2), nn.Conv1d(4, 4, 3), ACT(), nn.Flatten(), nn.LazyLinear(2)
        ),
        "3: .* got aten.conv1d.*: use two dimensions",
    ),
    "groups": (lambda: chain(nn.Conv2d(4, 4, 1, groups=2)), "2: expected a convolution without groups, got 2 groups"),
    "the greatest, rounded up": (
        lambda: chain(nn.MaxPool2d(3, 2, ceil_mode=True)),
        "2: .* got aten.max_pool2d.default .*: give it ceil_mode=False",
    ),
    "dilation": (lambda: chain(nn.MaxPool2d(2, dilation=2)), "2: .* ceil_mode=False and no dilation"),
    "a norm of layers": (
        lambda: chain(nn.Conv2d(4, 4, 1), nn.LayerNorm([6, 6])),
        r"3: .* got aten.layer_norm.default \(layer_norm\): use nn.BatchNorm1d or 2d before a step",
    ),
    "softmax": (lambda: nn.Sequential(chain(), nn.Softmax(1)), "1: .* got aten.softmax.*: return its input"),
    "greatest": (lambda: chain(nn.AdaptiveMaxPool2d(1)), "2: .*: use nn.MaxPool2d with the size of the image"),
    "a norm at the end": (
        lambda: nn.Sequential(chain(), nn.BatchNorm1d(2)),
        "1: .* real numbers, as of a norm .*: put a step behind it, or leave it out",
    ),
    "bias": (
        lambda: chain(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)),
        "2: expected a bias on the grid of the layer's sums, got a real one: give the layer bias=False",
    ),
    "zeros": (lambda: chain(nn.ZeroPad2d(1)), "2: .* got aten.pad.*: use padding= of the layer behind it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_integer_form_is_refused_by_name(name: str) -> None:
    make, words = REFUSED[name]
    torch.manual_seed(0)
    net, x = make(), torch.randn(3, 1, 8, 8)
    net(x)
    exact = htaf.harden(htaf.on_grid(net, x)).eval()
    with pytest.raises(IntegerError, match=words):
        integer_program(exact, x, input=Input("pixels", (1, 8, 8)), table=torch.linspace(-2, 2, 256)[None])


def test_weights_off_the_grid_are_refused_by_name() -> None:
    x = torch.randn(3, 1, 8, 8)
    exact = trace(htaf.harden(WideResNet(10, 1, 3, ACT, in_channels=1)), x)
    table = torch.linspace(-2, 2.1, 256)[None]
    with pytest.raises(
        IntegerError, match="expected weights on a grid of integers, got real ones: train a run with weig"
    ):
        integer_program(exact, x, input=Input("pixels", (1, 8, 8)), table=torch.arange(256.0)[None])
    with pytest.raises(IntegerError, match="expected pixels that are rounded to a grid before a layer, got real ones"):
        integer_program(exact, x, input=Input("pixels", (1, 8, 8)), table=table)
    with pytest.raises(IntegerError, match=r"expected a table \[1, 256\] of what each pixel is, got None"):
        integer_program(exact, x, input=Input("pixels", (1, 8, 8)))
    with pytest.raises(IntegerError, match=r"expected an input \[1, 9, 8\], got a network of \[1, 8, 8\]"):
        integer_program(exact, x, input=Input("pixels", (1, 9, 8)), table=table)


def test_activations_of_several_levels_and_user_layers() -> None:
    """Shares of 4 levels, bipolar ones too; a pooling behind the norm."""

    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.MaxPool2d(2), htaf.HTAF(2.0, 11.0, levels=4),
        nn.Conv2d(6, 8, 3, bias=False), nn.BatchNorm2d(8), htaf.HTAF(2.0, 11.0, levels=2, bipolar=True),
        nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8), htaf.HTAF(2.0, 11.0),
        nn.Flatten(), nn.Linear(8 * 25, 3),
    )  # fmt: skip
    shape = (3, 16, 16)
    pixels = rows(shape, 20, 0)
    pre = preprocessor(shape)
    x = pre.normalise(torch.from_numpy(pixels))
    exact = disturbed(htaf.on_grid(net, x), x)
    same(exact, x, pixels, Input("pixels", shape), pixel_table(pre))


def test_columns_that_only_a_layer_rounds_and_those_that_none_does() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 5)
    net = nn.Sequential(nn.Linear(5, 9), ACT(), nn.Linear(9, 3))
    exact = disturbed(htaf.on_grid(net, x), x)
    input = columns_input(trace(exact, x))
    assert (input.exponent, input.high) == columns_grid(5)
    same(exact, x, input.quantised(x.numpy()), input)
    raw = trace(htaf.harden(htaf.on_grid(nn.Sequential(ACT(), nn.Linear(5, 3)), x)), x)
    assert integer_program(raw, x, input=columns_input(raw)).input == columns_input(raw)


def test_images_that_are_no_pixels() -> None:
    torch.manual_seed(0)
    shape = (2, 6, 5)
    net = nn.Sequential(nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), ACT(), nn.Flatten(), nn.Linear(4 * 12, 3))
    x = torch.randint(0, 17, (30, *shape)) / 16
    exact = disturbed(htaf.on_grid(net, x), x)
    input = Input("columns", shape, 0, 16, 4)
    same(exact, x, input.quantised(x.numpy()), input)


def test_sums_that_the_next_layer_clips() -> None:
    torch.manual_seed(0)
    shape = (3, 8, 8)
    pre, pixels = preprocessor(shape), rows(shape, 24, 0)
    x = pre.normalise(torch.from_numpy(pixels))
    net = nn.Sequential(nn.Conv2d(3, 8, 2, bias=False), nn.Conv2d(8, 6, 3), ACT(), nn.Flatten(), nn.Linear(150, 3))
    nn.init.normal_(net[0].weight)  # pyright: ignore
    exact = disturbed(htaf.on_grid(net, x), x)
    sums = exact[0](x)  # pyright: ignore
    assert float((sums.abs() > 2**24 // (72 * 127) / 128).float().mean()) > 0.01
    same(exact, x, pixels, Input("pixels", shape), pixel_table(pre))


class Times(nn.Module):
    """Bits times a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


@pytest.mark.parametrize("factor", [3.0, 1.5])
def test_a_factor_between_layers_is_built_or_refused(factor: float) -> None:
    """Bits times 3 are integers to the layer behind them; times 1.5 they are real, and no power of two."""
    torch.manual_seed(0)
    x = torch.rand(32, 4)
    net = nn.Sequential(nn.Linear(4, 16), htaf.HTAF(), Times(factor), nn.Linear(16, 16), htaf.HTAF(), nn.Linear(16, 3))
    exact = htaf.harden(htaf.on_grid(net.eval(), x))
    given = Input("columns", (4,), -(2**15), 2**15, 12)
    if factor == 1.5:
        with pytest.raises(IntegerError, match="rounded to a power of two, got multiples of 3"):
            integer_program(exact, x, input=given)
        return
    program = integer_program(exact, x, input=given)
    q = given.quantised(x.numpy())
    with torch.no_grad():
        expected = exact(torch.from_numpy(q / 2**12).float()).argmax(1)
    assert np.array_equal(program.run(q).argmax(1), expected.numpy())


def test_columns_without_a_number_are_refused() -> None:
    given = Input("columns", (2,), -(2**15), 2**15, 12)
    with pytest.raises(IntegerError, match="got NaN in 1 rows"):
        given.quantised(np.array([[1.0, np.nan], [2.0, 3.0]], np.float32))
    assert given.quantised(np.array([[np.inf, -np.inf]], np.float32)).tolist() == [[2**15, -(2**15)]]


def test_a_program_in_one_call_gives_the_outputs_of_the_network() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    net = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), htaf.HTAF(), nn.Linear(16, 3))
    exact = disturbed(htaf.on_grid(net, x), x)
    wanted = exact(x).detach().double().numpy()
    program = htaf.integer.integer_program(exact, x)
    np.testing.assert_array_equal(program.outputs(x), wanted)
    assert program.input == columns_input(trace(exact, x))
    exact, x, pixels, table = images(lambda: WideResNet(10, 1, 3, act=ACT, in_channels=1), (1, 8, 8))
    program = integer_program(exact, x, input=Input("pixels", (1, 8, 8)), table=table)
    np.testing.assert_allclose(program.outputs(pixels), exact(x).detach().numpy(), rtol=1e-5, atol=1e-5)


# ---- runs trained with weights on a grid, as integer programs ----


SMALL = {"epochs": 1, "batch_size": 50, "train_images": 200, "validation_images": 100, "precision": "float32"}
FAMILIES = {
    "dhn": {"depth": 10},
    "bnn": {"layout": "whitened", "widths": (8, 16)},
}


@pytest.fixture(scope="module")
def digits() -> Images:
    return load("digits")


def trained(family: str, digits: Images, path: Path, **more: object) -> Run:
    recipe = ready_recipe(family, "reduced").replace(**SMALL, **FAMILIES[family], **more)
    return fit(recipe, digits, path, source={"name": "digits"})


@pytest.mark.parametrize("family", slow_but(FAMILIES, "dhn"))
def test_a_run_of_images(family: str, digits: Images, tmp_path: Path) -> None:
    run = trained(family, digits, tmp_path / "run", weights="int8")
    program = build_run(run)
    assert program.about["run"] == run.record["key"]
    assert program.about["classes"] == [*"0123456789"]
    pixels = digits.test.batch(torch.arange(len(digits.test)))
    with torch.no_grad():
        expected = run.model()(run.preprocessor().normalise(pixels)).numpy()  # pyright: ignore
    logits = program.run(pixels.numpy())
    np.testing.assert_array_equal(logits.argmax(1), expected.argmax(1))
    made = np.ldexp(logits.astype(np.float64), program.unit[0]) / program.unit[1]
    np.testing.assert_allclose(made, expected, rtol=2**-23, atol=1e-15)
    files.save(program, tmp_path / "run.integer")
    assert files.load(tmp_path / "run.integer").digest == program.digest


def test_runs_without_integer_weights_are_refused(digits: Images, tmp_path: Path) -> None:
    run = trained("dhn", digits, tmp_path / "run")
    with pytest.raises(IntegerError, match=r"integer weights, .* has real ones: train with weights=.int8"):
        build_run(run)
    run.record["recipe"]["method"] = "relu"
    with pytest.raises(RunError, match="expected a run with steps"):
        build_run(run)


@pytest.mark.parametrize("name", slow_but(["mlp", "members", "residual"], "mlp"))
def test_a_run_of_a_table(name: str, tmp_path: Path) -> None:
    bunch: Any = load_breast_cancer(as_frame=True)
    bunch.frame.to_csv(tmp_path / "table.csv", index=False)
    table = tabular.load(tmp_path / "table.csv", target="target")
    recipe = ready_recipe("mlp", f"tabular-{name}").replace(epochs=1, weights="int8")
    run = fit(recipe, table, tmp_path / "run")
    program = build_run(run)
    assert program.input.kind == "columns"
    assert program.about["classes"] == ["0", "1"]
    x = torch.cat([inputs for inputs, _ in run.part("test", table)])
    with torch.no_grad():
        expected = run.model()(x).numpy()
    logits = program.run(program.input.quantised(x.numpy()))
    np.testing.assert_array_equal(logits.argmax(1), expected.argmax(1))
    made = np.ldexp(logits.astype(np.float64), program.unit[0]) / program.unit[1]
    np.testing.assert_allclose(made, expected, rtol=2**-23, atol=1e-15)
