"""Random networks and integer programs give the same numbers in every form.

A network of ordinary operators is hardened, packed, saved, loaded and compared with itself in float64: every row that
differs must have a flip that rounding explains. A network on a grid is an integer program too: in PyTorch, packed, in
numpy, C and ONNX it gives the same integers.

    pytest tests/stress/test_networks.py --hypothesis-profile stress --hypothesis-seed 0
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
import safetensors.torch
import torch
from hypothesis import given, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.integer.made import KINDS, random_program
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from world import cases

import htaf
from htaf.data.image_preprocess import ImagePreprocessor
from htaf.integer import execute, files
from htaf.integer.build import columns_input, integer_program
from htaf.integer.c import to_c
from htaf.integer.onnx import to_integer_onnx
from htaf.integer.program import Input, IntegerProgram
from htaf.packed import load, pack, save, trace
from htaf.packed.verification import compare
from htaf.runs.integer import pixel_table

GRAPH_BYTES = 600  # of a file's header for every operator, above which a packed file may not be larger than float32


class Formula(nn.Module):
    """A function of the input and of the modules that it calls."""

    def __init__(self, function: Callable[..., Tensor], *parts: nn.Module, name: str = "") -> None:
        super().__init__()
        self.function, self.parts, self.name = function, nn.ModuleList(parts), name

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.parts)

    def extra_repr(self) -> str:
        return self.name


def put(y: Tensor, into: Any, of: Any) -> Tensor:
    y[into] = of
    return y


# of any shape [batch, channels, ...], which they keep
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "gelu": F.gelu, "silu": F.silu, "elu": F.elu, "mish": F.mish, "selu": F.selu, "celu": F.celu,
    "softplus": F.softplus, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "leaky": F.leaky_relu,
    "softsign": F.softsign, "tanhshrink": F.tanhshrink, "hardshrink": F.hardshrink, "logsigmoid": F.logsigmoid,
    "softmax": lambda x: F.softmax(x, 1), "log_softmax": lambda x: F.log_softmax(x, 1),
    "tanh": torch.tanh, "sin": torch.sin, "abs": torch.abs, "clamp": lambda x: x.clamp(-1, 1.5),
    "square": torch.square, "neg": lambda x: -x, "affine": lambda x: 0.5 * x + 0.25, "rsub": lambda x: 1 - x,
    "div": lambda x: x / (1 + x.abs()), "exp": lambda x: torch.exp(-x.square()),
    "sqrt": lambda x: (x.abs() + 0.1) ** 0.5,
    "maximum": lambda x: torch.maximum(x, 0.5 * x), "where": lambda x: torch.where(x > 0.1, x, 0.2 * x),
    "normalize": lambda x: F.normalize(x, dim=1), "centre": lambda x: x - x.mean(1, keepdim=True),
    "spread": lambda x: x / (x.std(1, keepdim=True) + 0.5), "top": lambda x: x - x.amax(1, keepdim=True),
    "flip": lambda x: x.flip(-1), "roll": lambda x: x.roll(1, 1), "cumsum": lambda x: x.cumsum(-1) * 0.3,
    "halves": lambda x: torch.cat(x.tensor_split(2, 1)[::-1], 1), "chunks": lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "written": lambda x: put(x.clone(), (..., 0), 0.5),
    "shifted": lambda x: put(torch.zeros_like(x), (slice(None), slice(1, None)), x[:, :-1]), "masked": lambda x: x.masked_fill(x > 2.0, 2.0),
    "picked": lambda x: x[:, torch.arange(x.shape[1] - 1, -1, -1)], "sorted": lambda x: x.sort(1).values,
    "stacked": lambda x: torch.stack([x, -x], 1).sum(1), "unbound": lambda x: torch.stack(x.unbind(1), 1) * 1.1,
    "einsum": lambda x: torch.einsum("bc...,bc...->bc...", x, torch.tanh(x)),
    "lerp": lambda x: torch.lerp(x, x.tanh(), 0.3), "addcmul": lambda x: torch.addcmul(x, x, x, value=0.1),
    "dropout": lambda x: F.dropout(x, 0.3, training=False),
}  # fmt: skip
STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "step": lambda x: (x >= 0.1).float(), "below": lambda x: (x < -0.1).to(x.dtype),
    "levels": lambda x: torch.where(x > 0.05, 1.0, -1.0), "heaviside": lambda x: torch.heaviside(x, torch.ones(())),
    "sign": lambda x: 2 * (x > 0).float() - 1, "two steps": lambda x: (x > -0.3).float() + (x > 0.3).float(),
    "and": lambda x: (x > -0.3).float() * (x < 0.4).float(),
}  # fmt: skip
SMOOTH: tuple[Callable[[], nn.Module], ...] = (
    nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.ELU, nn.Hardtanh, nn.ReLU6, nn.LeakyReLU, nn.Softplus,
    nn.Identity, nn.PReLU, nn.Dropout, nn.Softsign, nn.AlphaDropout, nn.LogSigmoid, nn.RReLU, nn.Softshrink,
    lambda: nn.Threshold(0.1, -0.2),
)  # fmt: skip


JOINED: dict[str, Callable[..., Tensor]] = {  # of a residual block
    "add": lambda x, body, project: project(x) + body(x), "sub": lambda x, body, project: project(x) - body(x),
    "mul": lambda x, body, project: project(x) * body(x), "in place": lambda x, body, project: body(x).add_(project(x)),
}  # fmt: skip


def excite(x: Tensor, down: nn.Module, up: nn.Module, gate: nn.Module) -> Tensor:
    dims = tuple(range(2, x.ndim))
    return x * gate(up(F.relu(down(x.mean(dims))))).unflatten(1, (-1, *(1 for _ in dims)))


def attention(x: Tensor, qkv: nn.Module, out: nn.Module, *, heads: int, function: bool) -> Tensor:
    b, n, c = x.shape
    q, k, v = qkv(x).reshape(b, n, 3, heads, c // heads).permute(2, 0, 3, 1, 4).unbind(0)
    products = q @ k.transpose(-2, -1) * (c // heads) ** -0.5
    y = F.scaled_dot_product_attention(q, k, v) if function else products.softmax(-1) @ v
    return x + out(y.transpose(1, 2).reshape(b, n, c))


def spiking(x: Tensor, first: nn.Module, neuron: nn.Module, last: nn.Module, *, steps: int) -> Tensor:
    """A layer over copies of the input, its neurons, and one more over their spikes; the mean over time comes out."""
    y = first(x.unsqueeze(0).repeat(steps, *(1 for _ in x.shape)).flatten(0, 1))
    z = last(neuron(y.unflatten(0, (steps, -1))).flatten(0, 1))
    return z.unflatten(0, (steps, -1)).mean(0)


class Network(nn.Module):
    """Inputs through their stems, summed, through the body; heads give a tensor, a tuple or a dict."""

    def __init__(self, stems: list[nn.Module], body: nn.Module, heads: list[nn.Module], outputs: type) -> None:
        super().__init__()
        self.stems, self.body, self.heads, self.outputs = nn.ModuleList(stems), body, nn.ModuleList(heads), outputs

    def forward(self, *inputs: Tensor) -> Any:
        x = self.body(sum(stem(given) for stem, given in zip(self.stems, inputs, strict=True)))
        found = [head(x) for head in self.heads]
        return (
            {f"head{i}": y for i, y in enumerate(found)}
            if self.outputs is dict
            else found[0]
            if len(found) == 1
            else tuple(found)
        )


class Grammar:
    """Draws modules that take values [batch, *shape]: [channels, ...], or of tokens [tokens, features]."""

    def __init__(self, data: st.DataObject, shape: tuple[int, ...], tokens: bool = False) -> None:
        self.data, self.shape, self.tokens, self.image = data, shape, tokens, (1, 1)

    def pick(self, *choices: Any) -> Any:
        return self.data.draw(st.sampled_from(choices))

    def of(self, *choices: Any) -> Any:
        """One of these for one, two and three dimensions."""
        return choices[0 if self.tokens else len(self.shape) - 1]

    @property
    def channels(self) -> int:
        return self.shape[1] if self.tokens else self.shape[0]

    @property
    def width(self) -> int:
        return self.pick(4, 6, 8, 9, 12)

    @property
    def blocks(self) -> list[Callable[[], nn.Module]]:
        """What a value of this kind may go through."""
        every = [self.layers] * 4 + [self.norm, self.activation, self.residual]
        if self.tokens:
            return [*every, self.attention, self.mlp, self.recurrent, self.untokened]
        every.append(self.compound)
        if len(self.shape) == 1:
            return every
        larger = [self.upsample] if math.prod(self.shape) <= 1500 else []
        others = [self.pool, self.padding, self.excited, self.grouped, self.pointwise, self.spiking, self.flat]
        return [*every, *others, *larger, self.tokened]

    def step(self) -> nn.Module:
        if self.tokens or self.pick(True, True, False):
            return htaf.HTAF(bipolar=self.pick(False, False, True))
        return Formula(STEPS[name := self.pick(*STEPS)], name=name)

    def activation(self) -> nn.Module:
        if self.pick(True, False):
            return self.step()
        if self.tokens or self.pick(True, False):
            return self.pick(*SMOOTH)()
        return Formula(FUNCTIONS[name := self.pick(*FUNCTIONS)], name=name)

    def norm(self) -> nn.Module:
        c, pixels = self.channels, math.prod(self.shape[1:])
        if self.tokens:
            return self.pick(nn.LayerNorm, nn.RMSNorm, nn.Identity)(c)
        batch, instance = (
            self.of(nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d),
            self.of(*[nn.InstanceNorm1d] * 2, nn.InstanceNorm2d),
        )
        groups = [g for g in (1, 2, 3, 4) if c % g == 0 and c > g]  # of one value there is no norm
        choices = [lambda: nn.GroupNorm(self.pick(*groups), c), lambda: batch(c), lambda: batch(c, affine=False)]
        if pixels > 1 or len(self.shape) == 1:
            choices.append(lambda: nn.LayerNorm(self.of(self.shape, self.shape, self.shape[1:])))
        if pixels > 1:
            choices += [lambda: instance(c, affine=True, track_running_stats=True), lambda: instance(c)]
            choices.append(lambda: nn.LocalResponseNorm(2))
        return self.pick(*choices)()

    def layer(self, out: int, *, keep: bool = False) -> nn.Module:
        """A linear layer, or any convolution that the size allows; keep: the size stays."""
        c, bias = self.channels, self.pick(True, False)
        if self.tokens or len(self.shape) == 1:
            return self.pick(nn.Linear, nn.Linear, nn.Linear, htaf.BinaryLinear)(c, out, bias=bias)
        make, least = self.of(None, nn.Conv1d, nn.Conv2d), min(self.shape[1:])
        kernel = self.pick(*(k for k in (1, 2, 3, 3, 5) if k <= least and not (keep and k == 2)))
        dilation = self.pick(1, 1, 2) if (kernel - 1) * 2 < least else 1
        pad = dilation * (kernel - 1) // 2 if keep or self.pick(True, True, False) else 0
        mode = self.pick("zeros", "zeros", "reflect", "replicate", "circular")
        stride = 1 if keep or least < 4 else self.pick(1, 1, 2)
        groups = self.pick(*(g for g in (1, 1, 2, 3, c) if c % g == 0 and out % g == 0))
        if make is nn.Conv2d and groups == dilation == 1 and self.pick(*[False] * 7, True):
            return htaf.BinaryConv2d(c, out, kernel, stride=stride, padding=pad)
        if keep and self.pick(False, False, True):
            return make(c, out, kernel, padding="same", dilation=dilation, groups=groups)
        return make(c, out, kernel, stride, pad, dilation, groups, bias, mode)

    def layers(self) -> nn.Module:
        first = self.layer(self.width)
        shape, self.shape = self.shape, size_after(first, self.shape)
        more = [self.norm(), self.activation()] if self.pick(True, False) else [self.activation()]
        self.shape = shape
        return nn.Sequential(first, *more)

    def pool(self) -> nn.Module:
        k = self.pick(*(k for k in (1, 2, 3) if k <= min(self.shape[1:])))
        pad, stride, out = self.pick(0, k // 2), self.pick(1, k), self.pick(1, 2, 3)
        lines = [
            lambda: nn.MaxPool1d(k, stride, pad), lambda: nn.AvgPool1d(k, stride, pad),
            lambda: nn.AdaptiveAvgPool1d(out), lambda: nn.AdaptiveMaxPool1d(out),
        ]  # fmt: skip
        images = [
            lambda: nn.MaxPool2d(k, stride, pad), lambda: nn.MaxPool2d(k, stride, pad, ceil_mode=True),
            lambda: nn.AvgPool2d(k, stride, pad), lambda: nn.AdaptiveAvgPool2d((out, 2)),
            lambda: nn.AvgPool2d(k, stride, pad, count_include_pad=False), lambda: nn.AdaptiveMaxPool2d(out),
            lambda: nn.LPPool2d(2, k), lambda: nn.MaxPool2d(k, 1, pad, dilation=1),
        ]  # fmt: skip
        return self.pick(*self.of(None, lines, images))()

    def padding(self) -> nn.Module:
        a, b = self.pick(0, 1), self.pick(1, 2)
        name, sizes = (
            self.pick("Constant", "Reflection", "Replication", "Circular"),
            self.of(None, (a, b), (a, b, b, a)),
        )
        if len(self.shape) == 3 and name == "Constant" and self.pick(True, False):
            sizes = (a, b, 0, -a)
        make = getattr(nn, f"{name}Pad{len(self.shape) - 1}d")
        return make(sizes, self.pick(0.0, 1.0, -1.0, 0.5)) if name == "Constant" else make(sizes)

    def upsample(self) -> nn.Module:
        c, make = self.channels, self.of(None, nn.ConvTranspose1d, nn.ConvTranspose2d)
        choices = [
            lambda: nn.Upsample(scale_factor=2), lambda: make(c, self.width, 2, 2), lambda: make(c, c, 3, 1, 1, groups=c),
            lambda: make(c, 6, 3, 2, 1, output_padding=1, bias=False),
            lambda: nn.Upsample(scale_factor=2, mode=self.of(None, "linear", "bilinear")),
        ]  # fmt: skip
        images = [
            lambda: nn.Upsample(size=(5, 6), mode="bilinear"), lambda: nn.PixelShuffle(2), lambda: nn.PixelUnshuffle(2),
            lambda: nn.Upsample(scale_factor=2, mode="bicubic", align_corners=True), lambda: nn.ChannelShuffle(2),
        ]  # fmt: skip
        return self.pick(*choices, *self.of(None, [], images))()

    def body(self, channels: int, out: int) -> nn.Module:
        """Some layers, with steps between them, that keep the size."""
        inner = Grammar(self.data, self.shape if self.tokens else (channels, *self.shape[1:]), self.tokens)
        layers: list[nn.Module] = []
        for o in (self.pick(out, self.width), out):
            layers += [self.pick(inner.step, inner.activation)(), inner.layer(o, keep=True)]
            inner.shape = (inner.shape[0], o) if self.tokens else (o, *inner.shape[1:])
            layers += [inner.norm()] if self.pick(True, False) else []
        return nn.Sequential(*layers)

    def residual(self) -> nn.Module:
        c, out, how = self.channels, self.pick(self.channels, self.channels, self.width), self.pick(*JOINED)
        project = (
            nn.Identity()
            if out == c
            else self.of(nn.Linear, *(partial(m, kernel_size=1) for m in (nn.Conv1d, nn.Conv2d)))(c, out)
        )
        return Formula(JOINED[how], self.body(c, out), project, name=how)

    def compound(self) -> nn.Module:
        c, kind = self.channels, self.pick("branches", "split", "sliced", "shared")
        if kind == "branches":
            parts = [self.body(c, self.width) for _ in range(self.pick(2, 3))]
            return Formula(lambda x, *each: torch.cat([part(x) for part in each], 1), *parts, name=kind)
        if kind == "shared":
            return Formula(lambda x, body: body(body(x)), self.body(c, c), name=kind)
        half, body = c - c // 2, self.body(c // 2, c // 2)
        if kind == "sliced":
            return Formula(lambda x, body: torch.cat([x[:, :half], body(x[:, half:])], 1), body, name=kind)
        return Formula(lambda x, body: torch.cat([(y := x.chunk(2, 1))[0], body(y[1])], 1), body, name=kind)

    def excited(self) -> nn.Module:
        gate = self.pick(nn.Sigmoid, nn.Hardsigmoid, htaf.HTAF)()
        return Formula(excite, nn.Linear(self.channels, 4), nn.Linear(4, self.channels), gate)

    def grouped(self) -> nn.Module:
        c, make = self.channels, self.of(None, nn.Conv1d, nn.Conv2d)
        return nn.Sequential(self.step(), make(c, 2 * c, 1, groups=c))

    def pointwise(self) -> nn.Module:
        linear = nn.Linear(self.channels, self.width)
        over = Formula(lambda x, body: body(x.movedim(1, -1)).movedim(-1, 1), linear, name="pointwise")
        return nn.Sequential(self.step(), over)

    def spiking(self) -> nn.Module:
        conv, norm = self.of(None, nn.Conv1d, nn.Conv2d), self.of(None, nn.BatchNorm1d, nn.BatchNorm2d)
        soft, slow = partial(htaf.IF, reset="soft", threshold=0.5), partial(htaf.LIF, tau=3.0, decay_input=False)
        neuron, steps = self.pick(htaf.IF, htaf.LIF, soft, slow)(), self.pick(2, 3, 4)
        first, last = nn.Sequential(conv(self.channels, 6, 1), norm(6)), conv(6, self.width, 1)
        return Formula(partial(spiking, steps=steps), first, neuron, last, name=f"{steps} steps")

    def flat(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(self.shape), 12))

    def tokened(self) -> nn.Module:
        self.image, self.tokens = (*self.shape[1:], 1)[:2], True
        return Formula(lambda x: x.flatten(2).transpose(1, 2), name="tokens")

    def untokened(self) -> nn.Module:
        self.tokens, size = False, self.image
        if self.pick(True, False):
            return Formula(lambda x: x.mean(1), name="mean of tokens")
        return Formula(lambda x: x.permute(0, 2, 1).reshape(x.shape[0], -1, *size), name="an image again")

    def attention(self) -> nn.Module:
        c, heads = self.channels, self.pick(*(h for h in (1, 2, 3) if self.channels % h == 0))
        if self.pick(True, False, False):
            module = nn.MultiheadAttention(c, heads, batch_first=True)
            return Formula(lambda x, module: x + module(x, x, x, need_weights=False)[0], module, name="a module")
        over = partial(attention, heads=heads, function=self.pick(True, False))
        return Formula(over, nn.Linear(c, 3 * c), nn.Linear(c, c), name=f"{heads} heads")

    def mlp(self) -> nn.Module:
        c = self.channels
        body = nn.Sequential(nn.LayerNorm(c), nn.Linear(c, 16), self.activation(), nn.Linear(16, c))
        return Formula(JOINED["add"], body, nn.Identity(), name="mlp")

    def recurrent(self) -> nn.Module:
        body = self.pick(nn.GRU, nn.LSTM, nn.RNN)(self.channels, 6, batch_first=True)
        return Formula(lambda x, body: body(x)[0], body, name="recurrent")


def size_after(module: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    with torch.no_grad():
        return tuple(module.eval()(torch.zeros(2, *shape)).shape[1:])


class Growing(RuleBasedStateMachine):
    """A network that grows by layers that fit: PyTorch says which do."""

    modules: tuple[nn.Module, ...] = ()

    def begin(self, data: st.DataObject, shape: tuple[int, ...], seed: int) -> None:
        torch.manual_seed(seed)
        self.given, self.grammar = shape, Grammar(data, shape)

    def grow(self, make: Callable[[], nn.Module]) -> None:
        tokens = self.grammar.tokens
        try:
            module = make()
            self.grammar.shape = size_after(module, self.grammar.shape)
            self.modules = (*self.modules, module)
        except (RuntimeError, ValueError):  # not of this shape
            self.grammar.tokens = tokens

    def teardown(self) -> None:
        if self.modules:
            self.check()

    def check(self) -> None:
        raise NotImplementedError


class Networks(Growing):
    """Networks of ordinary operators, steps and smooth activations anywhere; one layer at least takes bits."""

    @initialize(
        data=st.data(), shape=st.sampled_from([(3, 8, 8), (3, 9, 7), (1, 12, 12), (4, 16), (2, 21), (10,), (17,)]),
        inputs=st.sampled_from([1, 1, 1, 1, 2]), seed=st.integers(0, 10**6),
    )  # fmt: skip
    def stem(self, data: st.DataObject, shape: tuple[int, ...], inputs: int, seed: int) -> None:
        self.begin(data, shape, seed)
        g, out = self.grammar, self.grammar.width
        make = g.of(nn.Linear, *(partial(m, kernel_size=3, padding=1) for m in (nn.Conv1d, nn.Conv2d)))
        self.stems = [make(shape[0], out) for _ in range(inputs)]
        g.shape = (out, *shape[1:])
        self.grow(lambda: nn.Sequential(g.norm(), htaf.HTAF(bipolar=g.pick(False, True)), make(out, 9)))

    @rule()
    def block(self) -> None:
        self.grow(self.grammar.pick(*self.grammar.blocks))

    def head(self) -> nn.Module:
        g = self.grammar
        step = [htaf.HTAF(bipolar=g.pick(False, True))] if g.pick(False, True) else []
        return nn.Sequential(nn.Flatten(), *step, nn.Linear(math.prod(g.shape), g.pick(2, 5)))

    def check(self) -> None:
        heads = [self.head() for _ in range(self.grammar.pick(1, 1, 1, 2))]
        model = Network(self.stems, nn.Sequential(*self.modules), heads, self.grammar.pick(tuple, dict))
        agrees(htaf.harden(settled(model)), [self.given] * len(self.stems))


def settled(model: nn.Module) -> nn.Module:
    """Norms of any sign, statistics at random."""
    for module in model.modules():
        for name, value in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            is_norm = "Norm" in type(module).__name__
            if name == "running_mean" or (is_norm and name == "bias"):
                nn.init.normal_(value, std=0.3)
            elif name == "running_var":
                nn.init.uniform_(value, 0.3, 2.0)
            elif is_norm and name == "weight":
                nn.init.normal_(value, std=1.0)
    return model.eval()


def agrees(exact: nn.Module, shapes: list[tuple[int, ...]]) -> None:
    """Packed, saved and loaded, it is the same network: for several sizes of a batch."""
    note(f"{exact} of inputs {shapes}")
    batches = [tuple(torch.randn(rows, *shape) for shape in shapes) for rows in (3, 1, 6)]
    traced = trace(exact, batches[0])
    packed = pack(traced, batches[0])
    with TemporaryDirectory() as folder:
        file = Path(folder, "net.packed")
        save(packed, file)
        again, size = load(file), file.stat().st_size
    for inputs in batches:
        check = compare(again, traced, inputs)
        assert check.ok, str(check)
        with torch.no_grad():
            wanted, got = leaves(exact(*inputs)), leaves(again(*inputs))
        assert all(map(torch.equal, leaves(packed(*inputs)), got)), "the loaded model computes something else"
        for a, b in zip(wanted, got, strict=True):  # what is more than rounding is the consequence of a flip
            near = (a - b).abs().amax() <= check.bound or torch.allclose(a, b)
            assert near or check.count, "outputs differ without a flip"
    bytes_in_float = len(safetensors.torch.save({k: v.clone() for k, v in exact.state_dict().items()}))
    assert size <= bytes_in_float + 4096 + GRAPH_BYTES * len(again.program.instructions)


def leaves(outputs: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(outputs) if isinstance(x, Tensor)]


# ---- integers ----


class OnAGrid(Growing):
    """Networks of integer weights: what they compute is exact in every form."""

    @initialize(
        data=st.data(), shape=st.sampled_from([(1, 8, 8), (3, 7, 6), (2, 9), (7,), (12,)]), seed=st.integers(0, 10**6)
    )
    def first(self, data: st.DataObject, shape: tuple[int, ...], seed: int) -> None:
        self.begin(data, shape, seed)
        self.grow(self.bits)

    @rule(flat=st.sampled_from([False, False, True]))
    def layer(self, flat: bool) -> None:
        self.grow(nn.Flatten if flat else self.bits)

    def bits(self) -> nn.Module:
        g, out = self.grammar, self.grammar.width
        kernel = g.pick(*(k for k in (1, 2, 3) if k <= min((3, *g.shape[1:]))))
        make = g.of(nn.Linear, *(partial(m, kernel_size=kernel) for m in (nn.Conv1d, nn.Conv2d)))
        norm = [g.of(nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d)(out)] if g.pick(True, False) else []
        step = htaf.HTAF(bipolar=g.pick(False, False, True))
        pool = (
            [g.of(None, nn.MaxPool1d, g.pick(nn.MaxPool2d, nn.AvgPool2d))(2)]
            if len(g.shape) > 1 and g.pick(True, False)
            else []
        )
        return nn.Sequential(make(g.channels, out, bias=g.pick(True, False)), *norm, step, *pool)

    def check(self) -> None:
        size = math.prod(self.grammar.shape)
        same_integers(settled(nn.Sequential(*self.modules, nn.Flatten(), nn.Linear(size, 4))), self.given)


def same_integers(net: nn.Module, shape: tuple[int, ...]) -> None:
    note(str(net))
    pixels, table, input = torch.randint(0, 256, (24, *shape), dtype=torch.uint8), None, None
    if len(shape) == 3:
        c = shape[0]
        sizes: Any = (0.49, 0.48, 0.44)[:c], (0.24, 0.26, 0.27)[:c], shape[1:], c, ("a", "b")
        known = ImagePreprocessor(*sizes)
        x, table, input = known.normalise(pixels), pixel_table(known), Input("pixels", shape)
    else:
        x = torch.randn(24, *shape)
    exact = htaf.harden(htaf.on_grid(net, x[:2])).eval()
    traced = trace(exact, x)
    input = input or columns_input(traced)
    rows = pixels.numpy() if table is not None else input.quantised(x.numpy()).reshape(-1, *input.shape)
    program = integer_program(traced, x, input=input, table=table)
    with torch.no_grad():
        wanted = exact(x)
    torch.testing.assert_close(pack(traced, x)(x), wanted, rtol=2**-22, atol=1e-6)
    made = np.ldexp(program.run(rows).astype(np.float64), program.unit[0]) / program.unit[1]
    np.testing.assert_allclose(made, wanted.double(), rtol=2**-23, atol=2e-15)
    in_every_form(program, rows)


def in_every_form(program: IntegerProgram, x: np.ndarray) -> None:
    """Read again, as ONNX and, where there is a compiler, in C it gives the same integers."""
    wanted = program.run(x)
    with TemporaryDirectory() as folder:
        file = Path(folder, "p.safetensors")
        files.save(program, file)
        np.testing.assert_array_equal(files.load(file).run(x), wanted)
        to_integer_onnx(program, file.with_suffix(".onnx"))
        session: Any = onnxruntime.InferenceSession(file.with_suffix(".onnx"), providers=["CPUExecutionProvider"])
        kind = {"tensor(uint8)": np.uint8, "tensor(int32)": np.int32}[session.get_inputs()[0].type]
        np.testing.assert_array_equal(session.run(None, {"input": x.astype(kind)})[0], wanted)
        if not execute.missing("host"):
            to_c(program, Path(folder, "c"), name="net", rows=x[:4])
            np.testing.assert_array_equal(execute.run_c(Path(folder, "c"), x), wanted)


@given(st.integers(0, 10**6), st.sampled_from(KINDS))
@cases(5)
def test_integer_programs_in_every_form(seed: int, kind: str) -> None:
    in_every_form(*random_program(seed, kind))


Networks.TestCase.settings = cases(5, stateful_step_count=6)
OnAGrid.TestCase.settings = cases(4, stateful_step_count=4)
TestNetworks, TestOnAGrid = Networks.TestCase, OnAGrid.TestCase
