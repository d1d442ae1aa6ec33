"""What is written before, at and after a step is read as it is meant: one net of many forms, integer sums, no flips."""

from __future__ import annotations

from collections.abc import Callable

import torch
from packed_nets import packed_beside
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear, max_pool2d

from htaf.core.functional import heaviside
from htaf.program.packed import pack

Form = Callable[[Tensor, "Forms"], Tensor]


def _bit(y: Tensor) -> Tensor:
    return heaviside(y - 1)


def _levels(y: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * _bit(y)


# y: integer sums [batch, 6, 5, 4]; net.c: of 6 channels, of both signs; what comes out goes into a layer
AFFINE: dict[str, Form] = {
    "y - c": lambda y, net: y - net.c,
    "c - y": lambda y, net: net.c - y,
    "y * c": lambda y, net: y * net.c,
    "y / c": lambda y, net: y / net.c,
    "c / y": lambda y, net: net.c / (y + 0.5),
    "3 - y": lambda y, net: 3 - y,
    "sub, alpha": lambda y, net: torch.sub(y, net.c, alpha=2),
    "rsub, alpha": lambda y, net: torch.sub(net.c, y, alpha=2),
    "add, alpha": lambda y, net: torch.add(net.c, y, alpha=-1),
    "neg": lambda y, net: -y,
    "twice": lambda y, net: (2 - y * net.c) * net.c + net.c,
    "along a row": lambda y, net: y * net.c[:4, 0, 0],
    "over an image": lambda y, net: y * (net.c[:5, :, 0] + net.c[:4, 0, 0]),
    "residual": lambda y, net: conv2d(heaviside(y), net.second, None, 1, 1) + y,
    "residual, scaled": lambda y, net: net.c * (conv2d(heaviside(y), net.second, None, 1, 1) + y) + net.c,
    "residual, scaled within": lambda y, net: conv2d(heaviside(y), net.second, None, 1, 1) * net.c + net.c + y,
    "two layers": lambda y, net: conv2d(_bit(y), net.second, None, 1, 1) + conv2d(_bit(-y), net.first, None, 1, 1),
    "broadcast": lambda y, net: y + y[:, :, :1, :1],
    "itself": lambda y, net: y + y,
}
STEPS: dict[str, Form] = {
    "scaled": lambda y, net: 3 - 2 * _bit(y),
    "relu": lambda y, net: torch.relu(_levels(y, -1.0, 2.0)),
    "relu, swapped": lambda y, net: torch.relu(_levels(y, 2.0, -1.0)),
    "step before a norm": lambda y, net: _bit(y * net.c - net.c) + _bit(y * net.c * net.c),
}
JOINS: dict[str, Form] = {
    "sum": lambda y, net: _bit(y) + _bit(-y),
    "sum of three": lambda y, net: _bit(y) + _bit(y - 1) + _bit(y + 2),
    "sum of seven": lambda y, net: sum((_bit(y - i) for i in range(-3, 3)), start=_bit(-y)),
    "sum of -1 and 1": lambda y, net: _levels(y, -1.0, 1.0) + _levels(y - 1, -1.0, 1.0),
    "sum of other levels": lambda y, net: _bit(y) + _levels(y - 1, 0.5, 1.0),
    "and": lambda y, net: _bit(y) * _bit(2 - y),
    "and not": lambda y, net: _bit(y) * (1 - _bit(y - 1)),
    "not and": lambda y, net: (1 - _bit(y - 1)) * _bit(y),
    "neither": lambda y, net: (1 - _bit(y - 1)) * (1 - _bit(-y)),
    "product of other levels": lambda y, net: _bit(y) * (3 - _bit(y - 1)),
    "pool": lambda y, net: max_pool2d(_bit(y), 2, 1),
    "pool, padded": lambda y, net: max_pool2d(_bit(y), 3, 2, 1),
    "pool, dilated": lambda y, net: max_pool2d(_bit(y), 2, 1, 0, 2),
    "pool, rounded up": lambda y, net: max_pool2d(_bit(y), 2, 2, ceil_mode=True),
    "pool of the smaller": lambda y, net: max_pool2d(1 - _bit(y), 2, 1),
    "pool of -1 and 1": lambda y, net: max_pool2d(_levels(y, -1.0, 1.0), 3, 1, 1),
    "pool of a sum": lambda y, net: max_pool2d(_bit(y) + _bit(y - 2), 2, 1),
}


def _set(x: Tensor) -> Tensor:
    x[:, :2, 1] = 1
    return x


# of bits, for which the layer before and the one after are over bits
MOVES: dict[str, Form] = {
    "turned": lambda y, net: _bit(y).permute(0, 1, 3, 2),
    "transposed": lambda y, net: _bit(y).transpose(-1, 2),
    "channels last and back": lambda y, net: _bit(y).permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
    "a sum, turned": lambda y, net: (_bit(y) + _bit(-y)).transpose(2, 3),
    "flip": lambda y, net: _levels(y, 2.0, -1.0).flip(-1, 2),
    "flip of channels": lambda y, net: _levels(y, 2.0, -1.0).flip(1, 2),
    "channel shuffle": lambda y, net: _bit(y).view(-1, 2, 3, 5, 4).transpose(1, 2).reshape(-1, 6, 5, 4),
    "channel shuffle by name": lambda y, net: nn.functional.channel_shuffle(_bit(y), 3),
    "chunk and cat": lambda y, net: torch.cat(_bit(y).chunk(2, 1)[::-1], 1),
    "split, and cat with others": lambda y, net: torch.cat([_bit(y).split([2, 4], 1)[1], _bit(-y)[:, :2]], 1),
    "cat with zeros": lambda y, net: torch.cat([_bit(y)[:, 2:], torch.zeros_like(y)[:, :2]], 1),
    "padded channels": lambda y, net: nn.functional.pad(_bit(y)[:, :4], (0, 0, 0, 0, 1, 1)),
    "roll": lambda y, net: _bit(y).roll(1, 2),
    "picked": lambda y, net: _bit(y)[:, [5, 3, 3, 0, 1, 2]],
    "repeated": lambda y, net: _bit(y)[:, ::2].repeat(1, 2, 1, 1),
    "enlarged": lambda y, net: max_pool2d(nn.functional.interpolate(_bit(y), scale_factor=2.0), 2),
    "written into": lambda y, net: _set(_bit(y)),
    "cut": lambda y, net: max_pool2d(_bit(y)[:, :, 1:], 2, 1),
}
MAPS: dict[str, Form] = {
    "relu_": lambda y, net: torch.relu_(_levels(y, -1.0, 2.0)),
    "relu, in place": lambda y, net: nn.functional.relu(_levels(y, -1.0, 2.0), inplace=True),
    "clamp_": lambda y, net: _levels(y, -1.0, 2.0).clamp_(0, 1),
    "+=": lambda y, net: _levels(y, -1.0, 2.0).add_(1).mul_(0.5),
    "copy_": lambda y, net: torch.empty_like(y).copy_(_bit(y)),
    "hardtanh": lambda y, net: nn.functional.hardtanh(3 * _bit(y), inplace=True),
    "relu6": lambda y, net: nn.functional.relu6(9 * _bit(y)),
    "neg and div": lambda y, net: -_bit(y) / 3,
    "sigmoid": lambda y, net: _bit(y).sigmoid_(),
    "relu of a sum": lambda y, net: torch.relu(_bit(y) + _bit(-y)),
    "relu_ of parts": lambda y, net: _in_parts(_levels(y, -1.0, 2.0)),
    "relu_ of what was cut": lambda y, net: max_pool2d(_cut(_levels(y, -1.0, 2.0))[:, :, 1:], 1),
    "all written": lambda y, net: _all(y.clone(), _bit(y)),
}


def _in_parts(x: Tensor) -> Tensor:
    x[:, :2].relu_()
    x[:, 2:].relu_()
    return x


def _cut(x: Tensor) -> Tensor:
    nn.functional.relu(x[:, :, 1:], inplace=True)
    return x


def _all(x: Tensor, value: Tensor) -> Tensor:
    x[:] = value
    return x


FORMS = [  # the second with what changes its input, whose graph is traced several times
    {
        **{f"affine: {k}": (lambda y, net, f=f: _bit(f(y, net))) for k, f in AFFINE.items()},
        **{f"step: {k}": f for k, f in STEPS.items()},
        **{f"join: {k}": f for k, f in JOINS.items()},
    },
    {**{f"move: {k}": f for k, f in MOVES.items()}, **{f"map: {k}": f for k, f in MAPS.items()}},
]


# of bits [batch, 16] and of integers [batch, 8] that are 0 where x is small, so that an example hides them
BESIDE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "alone": lambda b, n: b,
    "cat, integers": lambda b, n: torch.cat([b, n], 1),
    "cat, flags": lambda b, n: torch.cat([2 * b - 1, n < 1], 1),
    "step of integers": lambda b, n: torch.cat([b, (n >= 1).float()], 1),
    "step of flags": lambda b, n: torch.cat([b, torch.where((n > 1) >= 1, 2.0, -1.0)], 1),
    "step of float64": lambda b, n: torch.cat([b, (n.double().sin() > 0.5).float()], 1),
}


class Beside(nn.Module):
    """Numbers of other dtypes that become entries of what a layer takes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(16, 8))
        self.weight = nn.Parameter(torch.randint(-8, 9, (5, 32)) / 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        bits, numbers = heaviside(linear(x, self.first)), (x * 3).long()
        given = {name: form(bits, numbers) for name, form in BESIDE.items()}
        return {name: linear(y, self.weight[:, : y.shape[1]]) for name, y in given.items()}


class Forms(nn.Module):
    """Each form between two layers; the second pads, with weights that are binary or not."""

    def __init__(self, forms: dict[str, Form]) -> None:
        super().__init__()
        self.forms = forms
        sign = torch.sign(torch.randn(3, 6, 6, 3, 3))
        self.first, self.second = nn.Parameter(sign[0]), nn.Parameter(sign[1])
        self.register_buffer("c", torch.tensor([2.0, -1.0, 1.0, -4.0, 0.5, 4.0]).view(6, 1, 1))
        self.real = nn.Parameter(torch.randint(-8, 9, (4, 6, 3, 3)) / 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = conv2d((x >= 0).float(), self.first, None, 1, 1)
        found = {"y": y}
        for i, (name, form) in enumerate(self.forms.items()):
            bits = form(y, self)
            if i % 2:
                found[name] = conv2d(bits, self.real, None, 1, 1)
            else:
                found[name] = conv2d(bits, self.second, None, 1, 1)
        return found


class Images(nn.Module):
    """Whole images into linear layers, with other sizes each way; means of levels."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randint(-8, 9, (5, 6 * 5 * 4)) / 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        image = linear(_levels(x, -1.0, 2.0).flatten(1), self.weight)
        return image, _levels(image, -1.0, 2.0).mean(1), _levels(x, 2.0, -3.0).mean((2, 3))


def test_every_form_is_packed_and_gives_the_same_bits() -> None:
    """Layers over what is bits, or a sum of them; floats where it is neither."""
    torch.manual_seed(0)
    floats, compared, x = [], 0, torch.randn(6, 6, 5, 4)
    for forms in FORMS:
        packed, found = packed_beside(Forms(forms).eval(), x)
        assert found.ok, found
        assert found.count == 0, found
        assert found.difference < 1e-5, found
        assert found.free_difference == found.difference
        rows = [row for row in packed.report.rows if row.operator.startswith("aten.conv2d")]
        floats += [row.how for row in rows if row.how.startswith("float")]
        compared += len(found.layers)
    # other levels, or two complements, added or multiplied; pools of integers; what moves entries
    assert len(floats) == 37, floats
    assert compared > 50


def test_whole_images() -> None:
    torch.manual_seed(0)
    net, x = Images().eval(), torch.randn(6, 6, 5, 4)
    packed, found = packed_beside(net, x)
    assert found.ok, found
    assert found.count == 0, found
    assert packed.report.layers == 1
    with torch.no_grad():
        for a, b in zip(packed(x), net(x), strict=True):
            torch.testing.assert_close(a, b)


def test_numbers_beside_bits_are_no_bits() -> None:
    """The example shows zeros alone, so that `pack` cannot see a difference; other inputs do."""
    torch.manual_seed(0)
    net, x = Beside().eval(), 3 * torch.randn(20, 8)
    packed = pack(net, torch.randn(4, 8) / 100)
    with torch.no_grad():
        found, wanted = packed(x), net(x)
    for name in BESIDE:
        torch.testing.assert_close(found[name], wanted[name], msg=lambda text, name=name: f"{name}: {text}")
