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
from htaf.core.functional import heaviside  # noqa: F401  in formulas
from htaf.data.images import ImagePreprocessor, pixel_table
from htaf.program.export.integer import to_integer_onnx
from htaf.program.integer import execute, files
from htaf.program.integer.build import columns_input, integer_program
from htaf.program.integer.c import to_c
from htaf.program.integer.program import Input, IntegerProgram
from htaf.program.packed import PackedError, load, pack, save, trace
from htaf.program.packed.verification import compare

GRAPH_BYTES = 600  # of a file's header for every operator, above which a packed file may not be larger than float32


class Formula(nn.Module):
    """What a text says of the input `x` and of the modules `p`."""

    def __init__(self, text: str, *parts: nn.Module) -> None:
        super().__init__()
        self.text, self.function, self.parts = text, eval(f"lambda x, p: {text}"), nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.parts)

    def extra_repr(self) -> str:
        return self.text


def put(y: Tensor, into: Any, of: Any) -> Tensor:
    y[into] = of
    return y


# of any shape [batch, channels, ...], which they keep
FUNCTIONS = (
    "F.relu(x)", "F.gelu(x)", "F.silu(x)", "F.elu(x)", "F.mish(x)", "F.selu(x)", "F.celu(x)", "F.softplus(x)",
    "F.hardswish(x)", "F.hardsigmoid(x)", "F.leaky_relu(x)", "F.softsign(x)", "F.tanhshrink(x)", "F.hardshrink(x)",
    "F.logsigmoid(x)", "F.softmax(x, 1)", "F.log_softmax(x, 1)", "x.tanh()", "x.sin()", "x.abs()", "x.clamp(-1, 1.5)",
    "x.square()", "-x", "0.5 * x + 0.25", "1 - x", "x / (1 + x.abs())", "torch.exp(-x.square())",
    "(x.abs() + 0.1) ** 0.5", "torch.maximum(x, 0.5 * x)", "torch.where(x > 0.1, x, 0.2 * x)", "F.normalize(x, dim=1)",
    "x - x.mean(1, keepdim=True)", "x / (x.std(1, keepdim=True) + 0.5)", "x - x.amax(1, keepdim=True)", "x.flip(-1)",
    "x.roll(1, 1)", "x.cumsum(-1) * 0.3", "torch.cat(x.tensor_split(2, 1)[::-1], 1)", "x.masked_fill(x > 2.0, 2.0)",
    "torch.cat(x.chunk(2, 1)[::-1], 1)", "put(x.clone(), (..., 0), 0.5)",
    "x[:, torch.arange(x.shape[1] - 1, -1, -1)]", "x.sort(1).values", "torch.stack([x, -x], 1).sum(1)",
    "torch.stack(x.unbind(1), 1) * 1.1", "torch.einsum('bc...,bc...->bc...', x, x.tanh())",
    "torch.lerp(x, x.tanh(), 0.3)", "torch.addcmul(x, x, x, value=0.1)", "F.dropout(x, 0.3, training=False)",
    "put(torch.zeros_like(x), (slice(None), slice(1, None)), x[:, :-1])",
)  # fmt: skip
STEPS = (
    "heaviside(x - 0.1)", "1 - heaviside(x + 0.1)", "2 * heaviside(x) - 1",
    "heaviside(x + 0.3) + heaviside(x - 0.3)", "heaviside(x + 0.3) * (1 - heaviside(x - 0.4))",
    "(x > 0.1).float()",
)  # fmt: skip
SMOOTH: tuple[Callable[[], nn.Module], ...] = (
    nn.Sigmoid, nn.GELU, nn.Hardtanh, nn.ReLU6, nn.Identity, nn.PReLU, nn.Dropout, nn.AlphaDropout, nn.RReLU,
    nn.Softshrink, nn.LogSigmoid, partial(nn.Threshold, 0.1, -0.2),
)  # fmt: skip
JOINED = ("p[1](x) + p[0](x)", "p[1](x) - p[0](x)", "p[1](x) * p[0](x)", "p[0](x).add_(p[1](x))")  # with a body


def excite(x: Tensor, down: nn.Module, up: nn.Module, gate: nn.Module) -> Tensor:
    dims = tuple(range(2, x.ndim))
    return x * gate(up(F.relu(down(x.mean(dims))))).unflatten(1, (-1, *(1 for _ in dims)))


def attention(x: Tensor, heads: int, function: bool, qkv: nn.Module, out: nn.Module) -> Tensor:
    b, n, c = x.shape
    q, k, v = qkv(x).reshape(b, n, 3, heads, c // heads).permute(2, 0, 3, 1, 4).unbind(0)
    products = q @ k.transpose(-2, -1) * (c // heads) ** -0.5
    y = F.scaled_dot_product_attention(q, k, v) if function else products.softmax(-1) @ v
    return x + out(y.transpose(1, 2).reshape(b, n, c))


def spiking(x: Tensor, steps: int, first: nn.Module, neuron: nn.Module, last: nn.Module) -> Tensor:
    """A layer over copies of the input, its neurons, and one more over their spikes; the mean over time comes out."""
    y = first(x.unsqueeze(0).repeat(steps, *(1 for _ in x.shape)).flatten(0, 1))
    z = last(neuron(y.unflatten(0, (steps, -1))).flatten(0, 1))
    return z.unflatten(0, (steps, -1)).mean(0)


class Network(nn.Module):
    """Inputs through their stems, summed, through the body; heads give a tensor, a tuple or a dict."""

    def __init__(self, stems: list[nn.Module], body: nn.Module, heads: list[nn.Module], named: bool) -> None:
        super().__init__()
        self.stems, self.body, self.heads, self.named = nn.ModuleList(stems), body, nn.ModuleList(heads), named

    def forward(self, *inputs: Tensor) -> Any:
        x = self.body(sum(stem(given) for stem, given in zip(self.stems, inputs, strict=True)))
        found = tuple(head(x) for head in self.heads)
        if self.named:
            return {f"head{i}": y for i, y in enumerate(found)}
        return found if len(found) > 1 else found[0]


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

    def block(self) -> nn.Module:
        """What a value of this kind may go through."""
        c, conv = self.channels, self.of(None, nn.Conv1d, nn.Conv2d)
        every = [self.layers] * 4 + [self.norm, self.activation, self.residual]
        if self.tokens:
            every += [
                self.attention, self.untokened,
                lambda: Formula("p[0](x)[0]", self.pick(nn.GRU, nn.LSTM, nn.RNN)(c, 6, batch_first=True)),
                lambda: Formula("x + p[2](p[1](p[0](x)))", nn.Linear(c, 9), self.activation(), nn.Linear(9, c)),
            ]  # fmt: skip
        else:
            every.append(self.compound)
        if not self.tokens and len(self.shape) > 1:
            every += [self.upsample] if math.prod(self.shape) <= 1500 else []
            every += [
                self.pool, self.padding, self.spiking, self.tokened,
                lambda: Formula("excite(x, *p)", nn.Linear(c, 4), nn.Linear(4, c), self.pick(nn.Sigmoid, htaf.HTAF)()),
                lambda: nn.Sequential(self.step(), conv(c, 2 * c, 1, groups=c)),
                lambda: Formula("p[1](p[0](x).movedim(1, -1)).movedim(-1, 1)", self.step(), nn.Linear(c, self.width)),
                lambda: nn.Sequential(nn.Flatten(), nn.Linear(math.prod(self.shape), 12)),
            ]  # fmt: skip
        return self.pick(*every)()

    def step(self) -> nn.Module:
        own = not self.tokens and self.pick(False, False, True)
        return Formula(self.pick(*STEPS)) if own else htaf.HTAF(bipolar=self.pick(False, False, True))

    def activation(self) -> nn.Module:
        if self.pick(True, False):
            return self.step()
        return self.pick(*SMOOTH)() if self.tokens or self.pick(False, True) else Formula(self.pick(*FUNCTIONS))

    def norm(self) -> nn.Module:
        c, pixels = self.channels, math.prod(self.shape[1:])
        if self.tokens:
            return self.pick(nn.LayerNorm, nn.RMSNorm, nn.Identity)(c)
        batch = self.of(nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d)
        groups = [g for g in (1, 2, 3, 4) if c % g == 0 and c > g]  # of one value there is no norm
        choices = [lambda: nn.GroupNorm(self.pick(*groups), c), lambda: batch(c), lambda: batch(c, affine=False)]
        if pixels > 1 or len(self.shape) == 1:
            choices.append(lambda: nn.LayerNorm(self.of(self.shape, self.shape, self.shape[1:])))
        if pixels > 1:
            instance = self.of(None, nn.InstanceNorm1d, nn.InstanceNorm2d)
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
        first, before = self.layer(self.width), self.shape
        self.shape = size_after(first, before)
        more = [self.norm(), self.activation()] if self.pick(True, False) else [self.activation()]
        self.shape = before
        return nn.Sequential(first, *more)

    def pool(self) -> nn.Module:
        k, out = self.pick(*(k for k in (1, 2, 3) if k <= min(self.shape[1:]))), self.pick(1, 2, 3)
        given = (k, self.pick(1, k), self.pick(0, k // 2))
        lines = (partial(make, *given) for make in (nn.MaxPool1d, nn.AvgPool1d))
        lines = (*lines, *(partial(make, out) for make in (nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d)))
        images = (
            partial(nn.MaxPool2d, *given), partial(nn.MaxPool2d, *given, ceil_mode=True), partial(nn.AvgPool2d, *given),
            partial(nn.AvgPool2d, *given, count_include_pad=False), partial(nn.AdaptiveAvgPool2d, (out, 2)),
            partial(nn.AdaptiveMaxPool2d, out), partial(nn.LPPool2d, 2, k), partial(nn.MaxPool2d, k, 1, k // 2),
        )  # fmt: skip
        return self.pick(*self.of(None, lines, images))()

    def padding(self) -> nn.Module:
        name, a, b = self.pick("Constant", "Reflection", "Replication", "Circular"), self.pick(0, 1), self.pick(1, 2)
        sizes = [self.of(None, (a, b), (a, b, b, a)), self.of(None, (b, a), (a, b, 0, -a))]
        constant = name == "Constant"
        more = (self.pick(0.0, 1.0, -1.0, 0.5),) if constant else ()
        return getattr(nn, f"{name}Pad{len(self.shape) - 1}d")(sizes[constant and self.pick(0, 1)], *more)

    def upsample(self) -> nn.Module:
        c, make = self.channels, self.of(None, nn.ConvTranspose1d, nn.ConvTranspose2d)
        twice = partial(nn.Upsample, scale_factor=2)
        images = (
            partial(nn.Upsample, size=(5, 6), mode="bilinear"), partial(twice, mode="bicubic", align_corners=True),
            *(partial(kind, 2) for kind in (nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle)),
        )  # fmt: skip
        return self.pick(
            twice, partial(twice, mode=self.of(None, "linear", "bilinear")), partial(make, c, c, 3, 1, 1, groups=c),
            lambda: make(c, self.width, 2, 2), partial(make, c, 6, 3, 2, 1, output_padding=1, bias=False),
            *self.of(None, (), images),
        )()  # fmt: skip

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
        c, out = self.channels, self.pick(self.channels, self.channels, self.width)
        make = self.of(nn.Linear, partial(nn.Conv1d, kernel_size=1), partial(nn.Conv2d, kernel_size=1))
        return Formula(self.pick(*JOINED), self.body(c, out), nn.Identity() if out == c else make(c, out))

    def compound(self) -> nn.Module:
        c, half = self.channels, self.channels - self.channels // 2
        text = self.pick(
            "torch.cat([part(x) for part in p], 1)", "p[0](p[0](x))",
            "torch.cat([x.chunk(2, 1)[0], p[0](x.chunk(2, 1)[1])], 1)",
            f"torch.cat([x[:, :{half}], p[0](x[:, {half}:])], 1)",
        )  # fmt: skip
        if "part" in text:
            return Formula(text, *(self.body(c, self.width) for _ in range(self.pick(2, 3))))
        return Formula(text, self.body(c // 2, c // 2) if "cat" in text else self.body(c, c))

    def spiking(self) -> nn.Module:
        conv, norm = self.of(None, nn.Conv1d, nn.Conv2d), self.of(None, nn.BatchNorm1d, nn.BatchNorm2d)
        soft, slow = partial(htaf.IF, reset="soft", threshold=0.5), partial(htaf.LIF, tau=3.0, decay_input=False)
        first, last = nn.Sequential(conv(self.channels, 6, 1), norm(6)), conv(6, self.width, 1)
        return Formula(f"spiking(x, {self.pick(2, 3, 4)}, *p)", first, self.pick(htaf.IF, htaf.LIF, soft, slow)(), last)

    def tokened(self) -> nn.Module:
        self.image, self.tokens = (*self.shape[1:], 1)[:2], True
        return Formula("x.flatten(2).transpose(1, 2)")

    def untokened(self) -> nn.Module:
        self.tokens = False
        back = "x.permute(0, 2, 1).reshape(x.shape[0], -1, {}, {})".format(*self.image)
        return Formula(self.pick("x.mean(1)", back))

    def attention(self) -> nn.Module:
        c, heads = self.channels, self.pick(*(h for h in (1, 2, 3) if self.channels % h == 0))
        if self.pick(True, False, False):
            module = nn.MultiheadAttention(c, heads, batch_first=True)
            return Formula("x + p[0](x, x, x, need_weights=False)[0]", module)
        return Formula(f"attention(x, {heads}, {self.pick(True, False)}, *p)", nn.Linear(c, 3 * c), nn.Linear(c, c))


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
        data=st.data(), shape=st.sampled_from([(3, 8, 8), (3, 9, 7), (1, 12, 12), (10,), (17,)]),
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
        self.grow(self.grammar.block)

    def head(self) -> nn.Module:
        g = self.grammar
        step = [htaf.HTAF(bipolar=g.pick(False, True))] if g.pick(False, True) else []
        return nn.Sequential(nn.Flatten(), *step, nn.Linear(math.prod(g.shape), g.pick(2, 5)))

    def check(self) -> None:
        heads = [self.head() for _ in range(self.grammar.pick(1, 1, 1, 2))]
        model = Network(self.stems, nn.Sequential(*self.modules), heads, self.grammar.pick(False, True))
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
    try:
        packed = pack(traced, batches[0])
    except PackedError as error:
        if "there is nothing to pack" not in str(error):
            raise
        return  # all that reads bits runs in float
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

    @initialize(data=st.data(), shape=st.sampled_from([(1, 8, 8), (3, 7, 6), (7,), (12,)]), seed=st.integers(0, 10**6))
    def first(self, data: st.DataObject, shape: tuple[int, ...], seed: int) -> None:
        self.begin(data, shape, seed)
        self.grow(self.bits)

    @rule(flat=st.sampled_from([False, False, True]))
    def layer(self, flat: bool) -> None:
        self.grow(nn.Flatten if flat else self.bits)

    def bits(self) -> nn.Module:
        g, out = self.grammar, self.grammar.width
        kernel = g.pick(*(k for k in (1, 2, 3) if k <= min((3, *g.shape[1:]))))
        make = g.of(nn.Linear, None, partial(nn.Conv2d, kernel_size=kernel))
        norm = [g.of(nn.BatchNorm1d, None, nn.BatchNorm2d)(out)] if g.pick(True, False) else []
        step = htaf.HTAF(bipolar=g.pick(False, False, True))
        pool = [nn.MaxPool2d(2)] if len(g.shape) > 1 and g.pick(True, False) else []
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
