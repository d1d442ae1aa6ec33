"""Random networks of ordinary operators: hardened, packed, saved, loaded, and compared with themselves in float64.

    python tests/stress/networks.py --count 1000 --seed 0 --json results/stress/networks.json
    python tests/stress/networks.py --count 1 --seed 17    # prints network 17 alone

A network is drawn from its seed alone. Every row of an ordinary run that differs from the hardened model's must have a
flip that rounding explains (`htaf.packed.verify`); a network that `pack` refuses is a finding.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import htaf  # before torch: see htaf/_compat.py
from htaf.packed import PackedError, Verification, load, pack, save, trace
from htaf.packed.verification import compare

BATCHES = (1, 3, 6)
GRAPH_BYTES = 600  # of a file's header for every operator, above which a packed file may not be larger than float32


# ---- modules that nn has not ----


class Function(nn.Module):
    """A functional form, by its name in FUNCTIONS."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        return FUNCTIONS[self.name](x)

    def extra_repr(self) -> str:
        return self.name


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x.split([x.shape[1] // 2, x.shape[1] - x.shape[1] // 2], 1)
    return a, b


def _written(x: Tensor) -> Tensor:
    y = x.clone()
    y[..., 0] = 0.5
    return y


def _inner(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[:, 1:] = x[:, :-1]
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
    "halves": lambda x: torch.cat(_halves(x)[::-1], 1), "chunks": lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "written": _written, "shifted": _inner, "masked": lambda x: x.masked_fill(x > 2.0, 2.0),
    "picked": lambda x: x[:, torch.arange(x.shape[1] - 1, -1, -1)], "sorted": lambda x: x.sort(1).values,
    "stacked": lambda x: torch.stack([x, -x], 1).sum(1), "unbound": lambda x: torch.stack(x.unbind(1), 1) * 1.1,
    "einsum": lambda x: torch.einsum("bc...,bc...->bc...", x, torch.tanh(x)),
    "lerp": lambda x: torch.lerp(x, x.tanh(), 0.3), "addcmul": lambda x: torch.addcmul(x, x, x, value=0.1),
    "step": lambda x: (x >= 0.1).float(), "below": lambda x: (x < -0.1).to(x.dtype),
    "levels": lambda x: torch.where(x > 0.05, 1.0, -1.0), "heaviside": lambda x: torch.heaviside(x, torch.ones(())),
    "sign": lambda x: 2 * (x > 0).float() - 1, "two steps": lambda x: (x > -0.3).float() + (x > 0.3).float(),
    "and": lambda x: (x > -0.3).float() * (x < 0.4).float(), "dropout": lambda x: F.dropout(x, 0.3, training=False),
}  # fmt: skip
STEPS = ("step", "below", "levels", "heaviside", "sign", "two steps", "and")


class Residual(nn.Module):
    """x + f(x), x - f(x) or x f(x); `project` changes x where the shapes differ."""

    def __init__(self, body: nn.Module, how: str, project: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.how, self.project = body, how, project

    def forward(self, x: Tensor) -> Tensor:
        y, x = self.body(x), x if self.project is None else self.project(x)
        if self.how == "in place":
            y += x
            return y
        return {"add": lambda: x + y, "sub": lambda: x - y, "mul": lambda: x * y}[self.how]()

    def extra_repr(self) -> str:
        return self.how


class Branches(nn.Module):
    """Of the same input, joined along the channels."""

    def __init__(self, *bodies: nn.Module) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(bodies)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([body(x) for body in self.bodies], 1)


class Split(nn.Module):
    """One half of the channels through a body, joined with the other."""

    def __init__(self, body: nn.Module, slices: bool) -> None:
        super().__init__()
        self.body, self.slices = body, slices

    def forward(self, x: Tensor) -> Tensor:
        half = x.shape[1] - x.shape[1] // 2
        a, b = (x[:, :half], x[:, half:]) if self.slices else x.chunk(2, 1)
        return torch.cat([a, self.body(b)], 1)


class Shared(nn.Module):
    """One module, several times."""

    def __init__(self, body: nn.Module, times: int) -> None:
        super().__init__()
        self.body, self.times = body, times

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = self.body(x)
        return x

    def extra_repr(self) -> str:
        return f"times={self.times}"


class Excite(nn.Module):
    """Squeeze and excitation, whose gate may be a step."""

    def __init__(self, channels: int, gate: nn.Module) -> None:
        super().__init__()
        self.down, self.up, self.gate = nn.Linear(channels, 4), nn.Linear(4, channels), gate

    def forward(self, x: Tensor) -> Tensor:
        dims = tuple(range(2, x.ndim))
        gate = self.gate(self.up(F.relu(self.down(x.mean(dims)))))
        return x * gate.view(*gate.shape, *(1 for _ in dims))


class Attention(nn.Module):
    """Over tokens [batch, tokens, features]: PyTorch's module, its function, or products and a softmax."""

    def __init__(self, features: int, heads: int, how: str) -> None:
        super().__init__()
        self.heads, self.how = heads, how
        self.module = nn.MultiheadAttention(features, heads, batch_first=True) if how == "module" else None
        self.qkv, self.out = nn.Linear(features, 3 * features), nn.Linear(features, features)

    def forward(self, x: Tensor) -> Tensor:
        if self.module is not None:
            return x + self.module(x, x, x, need_weights=False)[0]
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        if self.how == "function":
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = (q @ k.transpose(-2, -1) * (c // self.heads) ** -0.5).softmax(-1) @ v
        return x + self.out(y.transpose(1, 2).reshape(b, n, c))

    def extra_repr(self) -> str:
        return self.how


class Spiking(nn.Module):
    """A layer over T copies of images, its neurons, and one more over their spikes; the mean over time comes out."""

    def __init__(self, steps: int, first: nn.Module, norm: nn.Module, neuron: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.steps, self.first, self.norm, self.neuron, self.last = steps, first, norm, neuron, last

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(0).repeat(self.steps, *(1 for _ in x.shape))
        y = self.norm(self.first(x.flatten(0, 1)))
        spikes = self.neuron(y.unflatten(0, (self.steps, -1)))
        z = self.last(spikes.flatten(0, 1))
        return z.unflatten(0, (self.steps, -1)).mean(0)


class ToTokens(nn.Module):
    """[batch, channels, ...] -> [batch, pixels, channels]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2)


class ToImage(nn.Module):
    """[batch, height width, channels] -> [batch, channels, height, width]."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.size = height, width

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 1).reshape(x.shape[0], -1, *self.size)


class Pointwise(nn.Module):
    """A linear layer over the channels of images, moved to the end and back."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x.movedim(1, -1)).movedim(-1, 1)


class Recurrent(nn.Module):
    """The outputs of an RNN over tokens."""

    def __init__(self, body: nn.RNNBase) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)[0]


class Network(nn.Module):
    """Inputs through their stems, summed, through the body; heads give a tensor, a tuple or a dict."""

    def __init__(self, stems: list[nn.Module], body: nn.Module, heads: list[nn.Module], outputs: str) -> None:
        super().__init__()
        self.stems, self.body, self.heads, self.outputs = nn.ModuleList(stems), body, nn.ModuleList(heads), outputs

    def forward(self, *inputs: Tensor) -> Any:
        x = self.stems[0](inputs[0])
        for stem, given in zip(self.stems[1:], inputs[1:], strict=True):
            x = x + stem(given)
        x = self.body(x)
        found = [head(x) for head in self.heads]
        if self.outputs == "dict":
            return {f"head{i}": y for i, y in enumerate(found)}
        return found[0] if self.outputs == "one" else tuple(found)

    def extra_repr(self) -> str:
        return f"outputs={self.outputs}"


# ---- the grammar ----


@dataclass
class Draw:
    """What has been drawn so far: the shape without the batch, [channels, ...] or tokens [tokens, features]."""

    rng: random.Random
    shape: tuple[int, ...]
    tokens: bool = False
    image: tuple[int, int] = (1, 1)
    used: list[str] = field(default_factory=list)

    @property
    def channels(self) -> int:
        return self.shape[1] if self.tokens else self.shape[0]

    @property
    def rank(self) -> int:
        """Dimensions after the channels."""
        return len(self.shape) - 1

    def pick(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def to(self, module: nn.Module) -> nn.Module:
        """Note the shape that a module gives, without running it on numbers."""
        self.shape = shape_after(module, self.shape)
        return module


def shape_after(module: nn.Module, shape: Sequence[int]) -> tuple[int, ...]:
    with torch.no_grad():
        return tuple(module.eval()(torch.zeros(2, *shape)).shape[1:])


def activation(d: Draw) -> nn.Module:
    """A step as often as not, else anything smooth."""
    if d.rng.random() < 0.55:
        return step(d)
    name = d.pick(*(n for n in FUNCTIONS if n not in STEPS)) if d.rng.random() < 0.6 else ""
    if name and not d.tokens:
        return Function(name)
    make = d.pick(
        nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.ELU, nn.Hardtanh, nn.ReLU6, nn.LeakyReLU, nn.Softplus,
        nn.Identity, nn.PReLU, nn.Dropout, nn.Softsign, nn.AlphaDropout, nn.LogSigmoid, nn.RReLU, nn.Softshrink,
        lambda: nn.Threshold(0.1, -0.2),
    )  # fmt: skip
    return make()


def step(d: Draw) -> nn.Module:
    if d.rng.random() < 0.3 and not d.tokens:
        return Function(d.pick(*STEPS))
    return htaf.HTAF(bipolar=d.rng.random() < 0.35)


def norm(d: Draw) -> nn.Module:
    c = d.channels
    if d.tokens:
        return d.pick(lambda: nn.LayerNorm(c), lambda: nn.RMSNorm(c), nn.Identity)()
    groups = [g for g in (1, 2, 3, 4) if c % g == 0 and c > g]  # of one value there is no norm
    choices: list[Callable[[], nn.Module]] = [lambda: nn.GroupNorm(d.pick(*groups), c)]
    if d.rank == 0:
        choices += [lambda: nn.BatchNorm1d(c), lambda: nn.LayerNorm(c), lambda: nn.BatchNorm1d(c, affine=False)]
    if d.rank == 1:
        choices += [
            lambda: nn.BatchNorm1d(c),
            lambda: nn.LayerNorm(list(d.shape)),
            lambda: nn.InstanceNorm1d(c, affine=True),
        ]
    if d.rank == 2:
        choices += [lambda: nn.BatchNorm2d(c), lambda: nn.LayerNorm(list(d.shape[1:])), lambda: nn.LocalResponseNorm(2)]
        choices += [lambda: nn.InstanceNorm2d(c), lambda: nn.BatchNorm2d(c)]
        choices += [lambda: nn.InstanceNorm2d(c, affine=True, track_running_stats=True)]
    small = math.prod(d.shape[1:]) < 2
    return d.pick(*(choices[:2] if small else choices))()


def convolution(d: Draw, out: int, *, keep: bool = False) -> nn.Module:
    """Any convolution that the size allows; keep: the size stays."""
    flat = d.rank == 1
    least = min(d.shape[1:])
    kernel = d.pick(*(k for k in (1, 2, 3, 3, 5) if k <= least and not (keep and k == 2)))
    dilation = d.pick(1, 1, 2) if (kernel - 1) * 2 < least else 1
    reach = dilation * (kernel - 1)
    mode = d.pick("zeros", "zeros", "reflect", "replicate", "circular")
    same = keep or d.rng.random() < 0.7
    pad = reach // 2 if same else 0
    if (mode == "reflect" and pad >= least) or (mode == "circular" and pad > least):
        mode = "zeros"
    stride = 1 if keep or least < 4 else d.pick(1, 1, 2)
    c = d.channels
    groups = d.pick(*(g for g in (1, 1, 2, 3, c) if c % g == 0 and out % g == 0))
    options = {"stride": stride, "padding": pad, "dilation": dilation, "groups": groups, "bias": d.pick(True, False)}
    if d.rng.random() < 0.12 and groups == 1 and not flat:
        return htaf.BinaryConv2d(c, out, kernel, stride=stride, padding=(kernel - 1) // 2 if same else 0)
    if keep and d.rng.random() < 0.2:
        return (nn.Conv1d if flat else nn.Conv2d)(c, out, kernel, padding="same", dilation=dilation, groups=groups)
    return (nn.Conv1d if flat else nn.Conv2d)(c, out, kernel, padding_mode=mode, **options)


def linear(d: Draw, out: int) -> nn.Module:
    if d.rng.random() < 0.2:
        return htaf.BinaryLinear(d.channels, out, bias=d.pick(True, False))
    return nn.Linear(d.channels, out, bias=d.pick(True, False))


def width(d: Draw) -> int:
    return d.pick(4, 6, 8, 9, 12)


def pool(d: Draw) -> nn.Module:
    least = min(d.shape[1:])
    k = d.pick(*(k for k in (1, 2, 3) if k <= least))
    pad = d.pick(0, k // 2)
    stride = d.pick(1, k)
    out = d.pick(1, 2, 3)
    if d.rank == 1:
        return d.pick(
            lambda: nn.MaxPool1d(k, stride, pad), lambda: nn.AvgPool1d(k, stride, pad),
            lambda: nn.AdaptiveAvgPool1d(out), lambda: nn.AdaptiveMaxPool1d(out),
        )()  # fmt: skip
    return d.pick(
        lambda: nn.MaxPool2d(k, stride, pad), lambda: nn.MaxPool2d(k, stride, pad, ceil_mode=True),
        lambda: nn.AvgPool2d(k, stride, pad), lambda: nn.AdaptiveAvgPool2d((out, 2)),
        lambda: nn.AvgPool2d(k, stride, pad, count_include_pad=False), lambda: nn.AdaptiveMaxPool2d(out),
        lambda: nn.LPPool2d(2, k), lambda: nn.MaxPool2d(k, 1, pad, dilation=1),
    )()  # fmt: skip


def padding(d: Draw) -> nn.Module:
    a, b = d.pick(0, 1), d.pick(1, 2)
    least = min(d.shape[1:])
    constant = d.pick(0.0, 1.0, -1.0, 0.5)
    if d.rank == 1:
        makers = {
            "c": lambda: nn.ConstantPad1d((a, b), constant), "r": lambda: nn.ReflectionPad1d((a, b)),
            "p": lambda: nn.ReplicationPad1d((a, b)), "o": lambda: nn.CircularPad1d((a, b)),
        }  # fmt: skip
    else:
        four = (a, b, b, a)
        makers = {
            "c": lambda: nn.ConstantPad2d(four, constant), "r": lambda: nn.ReflectionPad2d(four),
            "p": lambda: nn.ReplicationPad2d(four), "o": lambda: nn.CircularPad2d(four),
            "z": lambda: nn.ZeroPad2d(four), "n": lambda: nn.ConstantPad2d((a, b, 0, -a), constant),
        }  # fmt: skip
    names = [n for n in makers if n not in "ro" or b < least]
    return makers[d.pick(*names)]()


def upsample(d: Draw) -> nn.Module:
    c = d.channels
    if d.rank == 1:
        return d.pick(
            lambda: nn.Upsample(scale_factor=2), lambda: nn.Upsample(scale_factor=2, mode="linear"),
            lambda: nn.ConvTranspose1d(c, width(d), 2, 2), lambda: nn.ConvTranspose1d(c, c, 3, 1, 1, groups=c),
        )()  # fmt: skip
    return d.pick(
        lambda: nn.Upsample(scale_factor=2), lambda: nn.Upsample(size=(5, 6), mode="bilinear"),
        lambda: nn.Upsample(scale_factor=2, mode="bicubic", align_corners=True),
        lambda: nn.ConvTranspose2d(c, width(d), 2, 2), lambda: nn.ConvTranspose2d(c, 6, 3, 2, 1, output_padding=1),
        lambda: nn.ConvTranspose2d(c, c, 3, 1, 1, groups=c, bias=False),
        *([lambda: nn.PixelShuffle(2)] if c % 4 == 0 else []),
        *([lambda: nn.PixelUnshuffle(2)] if d.shape[1] % 2 == d.shape[2] % 2 == 0 else []),
        *([lambda: nn.ChannelShuffle(2)] if c % 2 == 0 else []),
    )()  # fmt: skip


def block(d: Draw, depth: int) -> list[nn.Module]:
    """Some modules that take what is there; `d.to` follows the shape."""
    large = math.prod(d.shape) > 1500
    if d.tokens:
        kinds = ["linear"] * 3 + ["norm", "act", "attend", "mlp", "to image", "rnn", "residual", "mean"]
    elif d.rank == 0:
        kinds = ["linear"] * 4 + ["norm", "act", "residual", "split", "branches", "shared"]
    else:
        kinds = ["conv"] * 5 + ["norm", "act", "pool", "pad", "residual", "residual", "branches", "split", "excite"]
        kinds += ["shared", "spiking", "tokens", "pointwise", "flatten", "depthwise"]
        kinds += [] if large else ["up"]
    if depth:
        kinds = [k for k in kinds if k not in ("residual", "branches", "split", "shared", "spiking", "rnn", "mean")]
    kind = d.pick(*kinds)
    d.used.append(kind)
    c, shape = d.channels, d.shape
    if kind in ("conv", "linear"):
        out = width(d)
        layer = d.to(convolution(d, out) if kind == "conv" else linear(d, out))
        return [layer, d.to(norm(d)), d.to(activation(d))] if d.rng.random() < 0.7 else [layer, d.to(activation(d))]
    if kind in ("norm", "act"):
        return [d.to({"norm": norm, "act": activation}[kind](d))]
    if kind in ("pool", "pad", "up"):
        return [d.to({"pool": pool, "pad": padding, "up": upsample}[kind](d))]
    if kind == "depthwise":
        return [d.to(step(d)), d.to((nn.Conv1d if d.rank == 1 else nn.Conv2d)(c, 2 * c, 1, groups=c))]
    if kind == "excite":
        return [Excite(c, d.pick(nn.Sigmoid, nn.Hardsigmoid, htaf.HTAF)())]
    if kind in ("residual", "branches", "split", "shared"):
        return [compound(d, kind, shape)]
    if kind == "spiking":
        conv = (nn.Conv1d, nn.Conv2d)[d.rank - 1]
        batch_norm = (nn.BatchNorm1d, nn.BatchNorm2d)[d.rank - 1]
        neuron = d.pick(
            lambda: htaf.IF(), lambda: htaf.LIF(), lambda: htaf.IF(reset="soft", threshold=0.5),
            lambda: htaf.LIF(tau=3.0, decay_input=False),
        )()  # fmt: skip
        return [d.to(Spiking(d.pick(2, 3, 4), conv(c, 6, 1), batch_norm(6), neuron, conv(6, width(d), 1)))]
    if kind == "pointwise":
        return [d.to(Pointwise(nn.Sequential(step(d), nn.Linear(c, width(d)))))]
    if kind == "tokens":
        d.image = (d.shape[1], d.shape[2] if d.rank == 2 else 1)
        module = d.to(ToTokens())
        d.tokens = True
        return [module]
    if kind == "to image":
        module = d.to(ToImage(*d.image))
        d.tokens = False
        return [module]
    if kind == "mean":
        d.tokens = False
        return [d.to(Function("mean of tokens"))]
    if kind == "flatten":
        return [d.to(nn.Flatten()), d.to(nn.Linear(math.prod(d.shape), 12))]
    if kind == "attend":
        heads = d.pick(*(h for h in (1, 2, 3) if c % h == 0))
        return [Attention(c, heads, d.pick("module", "function", "products"))]
    if kind == "mlp":
        return [Residual(nn.Sequential(nn.LayerNorm(c), nn.Linear(c, 16), activation(d), nn.Linear(16, c)), "add")]
    make = d.pick(nn.GRU, nn.LSTM, nn.RNN)
    return [d.to(Recurrent(make(c, 6, batch_first=True)))]


def compound(d: Draw, kind: str, shape: tuple[int, ...]) -> nn.Module:
    """Blocks within one."""
    c, tokens = d.channels, d.tokens

    def body(channels: int, out: int) -> nn.Module:
        """Keeps the size."""
        inner = Draw(d.rng, (channels, *shape[1:]) if not tokens else shape, tokens)
        layers: list[nn.Module] = []
        for o in (d.pick(out, width(d)), out):
            layer = linear(inner, o) if tokens or inner.rank == 0 else convolution(inner, o, keep=True)
            layers += [step(inner) if d.rng.random() < 0.6 else activation(inner), inner.to(layer)]
            if d.rng.random() < 0.6:
                layers.append(norm(inner))
        return nn.Sequential(*layers)

    if kind == "residual":
        out = d.pick(c, c, width(d))
        project = None
        if out != c:
            project = nn.Linear(c, out) if tokens or d.rank == 0 else (nn.Conv1d, nn.Conv2d)[d.rank - 1](c, out, 1)
        return d.to(Residual(body(c, out), d.pick("add", "add", "in place", "sub", "mul"), project))
    if kind == "branches":
        return d.to(Branches(*(body(c, width(d)) for _ in range(d.pick(2, 3)))))
    if kind == "split":
        return d.to(Split(body(c // 2, c // 2), d.pick(True, False)))
    return d.to(Shared(body(c, c), d.pick(2, 3)))


FUNCTIONS["mean of tokens"] = lambda x: x.mean(1)
INPUTS = ((3, 8, 8), (3, 9, 7), (1, 12, 12), (4, 16), (2, 21), (10,), (17,))


def network(seed: int) -> tuple[nn.Module, tuple[tuple[int, ...], ...], list[str]]:
    """The network of a seed, smooth, the sizes of its inputs and the kinds of its blocks. At least one layer of it
    takes the output of a step."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    while True:
        try:
            model, inputs, used = drawn(rng)
            with torch.no_grad():
                model(*(torch.zeros(2, *shape) for shape in inputs))
            return model, inputs, used
        except (IndexError, RuntimeError):  # blocks that do not fit each other: PyTorch itself cannot run it
            continue


def drawn(rng: random.Random) -> tuple[nn.Module, tuple[tuple[int, ...], ...], list[str]]:
    """One network; whether PyTorch can run it is not known yet."""
    shape = rng.choice(INPUTS)
    d = Draw(rng, shape)
    first = width(d)
    stems = [stem(d, shape, first)]
    inputs = [shape]
    if rng.random() < 0.15:
        stems.append(stem(d, shape, first))
        inputs.append(shape)
    d.shape = shape_after(stems[0], shape)
    modules = [d.to(norm(d)), htaf.HTAF(bipolar=rng.random() < 0.35)]
    modules.append(d.to((nn.Linear(first, 9), nn.Conv1d(first, 9, 3), nn.Conv2d(first, 9, 3))[d.rank]))
    for _ in range(rng.choice((1, 2, 3, 4, 5))):
        modules += block(d, 0)
    heads = [head(d) for _ in range(rng.choice((1, 1, 1, 2)))]
    outputs = "one" if len(heads) == 1 else rng.choice(("tuple", "dict"))
    model = Network(stems, nn.Sequential(*modules), heads, outputs)
    settle(model)
    return model.eval(), tuple(inputs), d.used


def stem(d: Draw, shape: tuple[int, ...], out: int) -> nn.Module:
    make = {1: nn.Linear, 2: nn.Conv1d, 3: nn.Conv2d}[len(shape)]
    return make(shape[0], out) if make is nn.Linear else make(shape[0], out, 3, padding=1)  # pyright: ignore


def head(d: Draw) -> nn.Module:
    size = math.prod(d.shape)
    layers: list[nn.Module] = [] if d.rank == 0 else [nn.Flatten()]
    if d.rng.random() < 0.5:
        layers.append(htaf.HTAF(bipolar=d.rng.random() < 0.5))
    return nn.Sequential(*layers, nn.Linear(size, d.pick(2, 5)))


def settle(model: nn.Module) -> None:
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


# ---- one network, tried ----


@dataclass
class Found:
    """What became of one network. rows: of ordinary runs; differing: those that differ by more than rounding."""

    seed: int
    kinds: list[str]
    operators: list[str] = field(default_factory=list)
    refused: str | None = None
    wrong: str | None = None
    rows: int = 0
    differing: int = 0
    unexplained: int = 0
    flips: int = 0
    bits: int = 0
    packed_bytes: int = 0
    float_bytes: int = 0


def attempt(seed: int, folder: Path, *, shown: bool = False) -> Found:
    """Draw, harden, pack, save, load and compare the network of a seed."""
    model, shapes, kinds = network(seed)
    exact = htaf.harden(model)
    if shown:
        print(exact, *(f"input {list(shape)}" for shape in shapes), sep="\n")
    found = Found(seed, kinds)
    generator = torch.Generator().manual_seed(seed)
    inputs = {b: tuple(torch.randn(b, *shape, generator=generator) for shape in shapes) for b in BATCHES}
    try:
        traced = trace(exact, inputs[BATCHES[1]])  # takes most of the time
        packed = pack(traced, inputs[BATCHES[1]])
        save(packed, folder / "net.htaf")
        again = load(folder / "net.htaf")
    except PackedError as error:
        found.refused = str(error).splitlines()[0]
        return found
    found.operators = sorted({row.operator for row in packed.report.rows})
    for given in inputs.values():
        check = compare(again, traced, given)
        if shown:
            print(check)
        if not check.ok:
            found.wrong = str(check)
        if not all(map(torch.equal, leaves(packed(*given)), leaves(again(*given)))):
            found.wrong = "the loaded model computes something else than the packed one"
        count_rows(found, again, exact, given, check)
    sizes(found, exact, folder, len(again.program.instructions))
    if shown:
        print(packed.report)
    return found


def leaves(outputs: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(outputs) if isinstance(x, Tensor)]


def count_rows(
    found: Found, packed: nn.Module, exact: nn.Module, given: tuple[Tensor, ...], check: Verification
) -> None:
    """Rows of an ordinary run whose outputs differ by more than rounding, and those of them without a flip."""
    with torch.no_grad():
        wanted, got = leaves(exact(*given)), leaves(packed(*given))
    batch = len(given[0])
    # what float32 makes of equal bits is bounded by `check`; anything more is the consequence of a flip
    far = torch.zeros(batch, dtype=torch.bool)
    for a, b in zip(wanted, got, strict=True):
        far |= ((a - b).abs().reshape(batch, -1).amax(1) > check.bound) & ~torch.isclose(a, b).reshape(batch, -1).all(1)
    found.rows += batch
    found.differing += int(far.sum())
    found.unexplained += 0 if check.count or not far.any() else int(far.sum())
    found.flips += check.count
    found.bits += sum(layer.bits for layer in check.layers)


def sizes(found: Found, exact: nn.Module, folder: Path, steps: int) -> None:
    tensors = {k: v.clone() for k, v in exact.state_dict().items()}
    found.float_bytes = len(safetensors.torch.save(tensors))
    found.packed_bytes = (folder / "net.htaf").stat().st_size
    if found.packed_bytes > found.float_bytes + 4096 + GRAPH_BYTES * steps:
        found.wrong = f"a file of {found.packed_bytes:,} bytes, in float32 {found.float_bytes:,}, with {steps} steps"


def run(seed: int, count: int, *, shown: bool = False) -> list[Found]:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(seed, seed + count):
            try:
                found.append(attempt(i, Path(folder), shown=shown))
            except Exception as error:  # whatever it is, the others are tried too
                line = (str(error).strip().splitlines() or [""])[0]
                found.append(Found(i, [], wrong=f"{type(error).__name__}: {line}"))
            last = found[-1]
            if last.refused or last.wrong:
                print(f"{i}: {'refused: ' + last.refused if last.refused else last.wrong}", flush=True)
            if count > 100 and not (i + 1 - seed) % 100:
                print(f"{i + 1 - seed} of {count}", file=sys.stderr, flush=True)
    return found


def summary(found: list[Found], seconds: float) -> dict[str, Any]:
    good = [f for f in found if not f.refused and not f.wrong]
    return {
        "networks": len(found),
        "seeds": [found[0].seed, found[-1].seed],
        "refused": {f.seed: f.refused for f in found if f.refused},
        "wrong": {f.seed: f.wrong for f in found if f.wrong},
        "rows": sum(f.rows for f in found),
        "differing": sum(f.differing for f in found),
        "unexplained": sum(f.unexplained for f in found),
        "bits": sum(f.bits for f in found),
        "flips": sum(f.flips for f in found),
        "largest file, of float32": max((f.packed_bytes / f.float_bytes for f in good), default=0.0),
        "kinds": dict(Counter(kind for f in found for kind in f.kinds).most_common()),
        "operators": dict(Counter(o for f in found for o in f.operators).most_common()),
        "seconds": round(seconds, 1),
        "torch": torch.__version__,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the first network; the next has the next")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    found = summary(run(args.seed, args.count, shown=args.count == 1), time.perf_counter() - start)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    print(
        f"{found['networks']} networks: {len(found['refused'])} refused, {len(found['wrong'])} wrong; "
        f"{found['rows']} rows, {found['differing']} differ, {found['unexplained']} unexplained; "
        f"{found['flips']} of {found['bits']:,} bits flipped; {len(found['operators'])} operators; {found['seconds']} s"
    )
    return bool(found["refused"] or found["wrong"] or found["unexplained"])


if __name__ == "__main__":
    raise SystemExit(main())
