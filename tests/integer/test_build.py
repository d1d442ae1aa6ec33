"""Integer programs of small networks of every family: each value equals the hardened module's, from pixels on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import htaf
from htaf.data.image_preprocess import ImagePreprocessor
from htaf.integer.build import Walk, build, columns_input, columns_input
from htaf.integer.ops import IntegerError, Neuron, Pool, Steps
from htaf.integer.program import Input, IntegerProgram
from htaf.models.mlp import MLP
from htaf.models.mlp import MLP
from htaf.models.sew_resnet import SEWResNet
from htaf.models.whitened import WhitenedConvNet
from htaf.models.wide_resnet import WideResNet
from htaf.packed.graph import Traced, trace
from htaf.spiking.neurons import IF, LIF

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
    each = torch.arange(256, dtype=torch.uint8).expand(1, shape[0], 1, 256)
    return exact, x, pixels, pre.normalise(each)[0, :, 0]


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


def of_rows(y: Tensor, count: int) -> np.ndarray:
    """A value of a graph, [N, ...], [T, N, ...] or [T N, ...], with the rows first."""
    if y.shape[0] == count:
        return y.numpy()
    y = y if y.ndim > 1 and y.shape[1] == count else y.unflatten(0, (-1, count))
    return y.transpose(0, 1).numpy()


def same(
    exact: nn.Module, x: Tensor, given: np.ndarray, input: Input, table: Tensor | None = None, *, sums: int = 1
) -> IntegerProgram:
    """All values that the program holds are those of the graph; bits and logits of the simplified one are too.

    sums: roundings of the outputs in float32.
    """
    traced = trace(exact, x)
    walk = Walk(traced, input, table)
    whole = IntegerProgram(input, tuple(walk.ops), 0 if len(input.shape) == 1 else walk.known[traced.outputs[0]].value)  # pyright: ignore
    values, found, compared = whole.every_value(given), Nodes(traced).all(x), 0
    for node, known in walk.known.items():
        if known.base is not node or known.shift is not None or known.still or known.divisor > 1:
            continue
        if sums > 1 and node.target is torch.ops.aten.add.Tensor:
            continue
        shape = whole.values[known.value].shape
        unit = known.unit.reshape(-1, 1, 1) if len(shape) >= 3 else known.unit
        wanted = of_rows(found[node], len(given)).astype(np.float64)
        np.testing.assert_array_equal(values[known.value] * unit, wanted.reshape(-1, *shape), err_msg=node.name)
        compared += 1
    assert compared > 3
    bits, outputs = dict[str, Tensor](), None
    for name, module in exact.named_modules():
        if isinstance(module, (htaf.Heaviside, IF, LIF)):
            module.register_forward_hook(lambda m, i, o, name=name: bits.update({name: o}))
    with torch.no_grad():
        outputs = exact(x).double().numpy()
    program = build(traced, x, input=input, table=table)
    made = program.every_value(given)
    counted = 0
    for number, op, value in program:
        if isinstance(op, (Steps, Neuron)):
            wanted, step = of_rows(bits[op.name], len(given)), number
            while wanted.size < made[step].size:  # the pooling that was before the step
                assert isinstance(program.ops[step], Pool)
                step += 1
            y = wanted.reshape(made[step].shape)
            low, high = op.value(*(program.values[i] for i in op.reads)).low, value.high
            assert set(np.unique(y)) <= {low, high} | {0, 1}
            np.testing.assert_array_equal(made[step], y, err_msg=op.name)
            counted += 1
    assert counted
    logits = np.ldexp(made[program.output].astype(np.float64), program.unit[0]) / program.unit[1]
    np.testing.assert_allclose(logits, outputs, rtol=2**-23, atol=2e-15 if sums == 1 else sums * 2**-23)
    np.testing.assert_array_equal(logits.argmax(1), outputs.argmax(1))
    assert not program.about["unproved"] or sums > 1
    return program


IMAGES: dict[str, tuple[Make, tuple[int, ...]]] = {
    "wrn": (lambda: WideResNet(10, 2, 5, ACT), (3, 16, 16)),
    "digits": (lambda: WideResNet(16, 1, 10, ACT, in_channels=1), (1, 8, 8)),
    "whitened": (lambda: WhitenedConvNet(5, ACT, widths=(8, 16)), (3, 14, 14)),
    "sew": (lambda: SEWResNet(18, 5, lambda: IF(ACT()), steps=2, width=4, stem="cifar"), (3, 8, 8)),
    "sew lif": (lambda: SEWResNet(18, 5, lambda: LIF(ACT()), steps=3, width=4, stem="imagenet"), (3, 16, 16)),
    "sew and": (lambda: SEWResNet(18, 5, lambda: IF(ACT()), width=4, stem="cifar", connect="and"), (3, 8, 8)),
    "sew iand": (
        lambda: SEWResNet(18, 5, lambda: IF(ACT()), steps=2, width=4, stem="cifar", connect="iand"),
        (3, 8, 8),
    ),
    "sew soft": (lambda: SEWResNet(18, 5, lambda: IF(ACT(), reset="soft"), width=4, stem="cifar"), (3, 8, 8)),
    "spiking": (lambda: WhitenedConvNet(5, lambda: LIF(ACT(), tau=4.0), widths=(8, 16), steps=2), (3, 14, 14)),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images_from_pixels(name: str) -> None:
    make, shape = IMAGES[name]
    exact, x, pixels, table = images(make, shape)
    same(exact, x, pixels, Input("pixels", shape), table)  # pyright: ignore


TABLES: dict[str, tuple[Make, int, int]] = {
    "columns": (lambda: MLP(12, 10, (70, 20), ACT, True), 12, 1),
    "no norms": (lambda: MLP(7, 3, (70, 20), ACT), 7, 1),
    "thermometer": (lambda: MLP(7, 3, (70, 20), ACT, True, thresholds=[3] * 7), 7, 1),
    "regression": (lambda: MLP(7, 1, (70,), ACT, True, thresholds=[3, 0, 9, 1, 2, 3, 3], members=1), 7, 1),
    "members": (lambda: MLP(7, 3, (20,), ACT, True, thresholds=[3] * 7, members=4), 7, 1),
    "leaves": (lambda: MLP(7, 3, (20,), ACT, True, thresholds=[3] * 7, leaves=16), 7, 3),
    "direct": (lambda: MLP(7, 3, (20,), ACT, True, thresholds=[3] * 7, direct=True, leaves=16), 7, 3),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_from_columns(name: str) -> None:
    make, width, sums = TABLES[name]
    torch.manual_seed(0)
    net = make()
    assert isinstance(net, MLP)
    x = (torch.randn(40, width) * 2**12).round() / 2**12
    if not isinstance(net.thermometer, nn.Identity):
        net.thermometer.place(x[:20])  # pyright: ignore
    for part in net.fitted:
        for parameter in part.parameters():
            nn.init.normal_(parameter, std=0.3)
    if net.leaves is not None:
        weight = torch.randint(-1, 2, net.leaves.linear.weight.shape).float()
        net.leaves.place(weight, weight.clamp(min=0).sum(1) - 3, torch.randn(3, 16))
    exact = disturbed(htaf.on_grid(net, x[:2]), x)
    input = columns_input(trace(exact, x))
    same(exact, x, input.quantised(x.numpy()), input, sums=sums)
