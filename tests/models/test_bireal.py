"""Bi-Real Net against a restatement of its code, forward and backward."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from published import outputs_and_gradients, randomise
from torch import Tensor, nn

import htaf
from htaf import surrogates
from htaf.core.activations import HTAF, Heaviside, StraightThrough
from htaf.core.binary import BinaryConv2d
from htaf.models.bireal import BiRealNet

SIGN = partial(StraightThrough, surrogates.approx_sign, bipolar=True)


def published_sign(x: Tensor) -> Tensor:
    """BinaryActivation of liuzechun/Bi-Real-net, pytorch_implementation/BiReal18_34/birealnet.py."""
    mask1, mask2, mask3 = (x < -1).type(x.dtype), (x < 0).type(x.dtype), (x < 1).type(x.dtype)
    out1 = (-1) * mask1 + (x * x + 2 * x) * (1 - mask1)
    out2 = out1 * mask2 + (-x * x + 2 * x) * (1 - mask2)
    out3 = out2 * mask3 + 1 * (1 - mask3)
    return torch.sign(x).detach() - out3.detach() + out3


class PublishedConv(nn.Module):
    """HardBinaryConv."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.stride, self.shape = stride, (n_out, n_in, 3, 3)
        self.weights = nn.Parameter(torch.rand((n_in * n_out * 9, 1)) * 0.001)

    def forward(self, x: Tensor) -> Tensor:
        real = self.weights.view(self.shape)
        scale = real.abs().mean(3, keepdim=True).mean(2, keepdim=True).mean(1, keepdim=True).detach()
        binary = scale * torch.sign(real)
        clipped = torch.clamp(real, -1.0, 1.0)
        return F.conv2d(x, binary.detach() - clipped.detach() + clipped, stride=self.stride, padding=1)


class PublishedBlock(nn.Module):
    def __init__(self, n_in: int, n_out: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.binary_conv = PublishedConv(n_in, n_out, stride)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn1(self.binary_conv(published_sign(x)))
        return out + (x if self.downsample is None else self.downsample(x))


class Published(nn.Module):
    def __init__(self, layers: list[int], classes: int, width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.blocks = nn.Sequential()
        inplanes = width
        for i, count in enumerate(layers):
            planes, stride = width * 2**i, 1 if i == 0 else 2
            downsample = None
            if stride != 1 or inplanes != planes:
                downsample = nn.Sequential(
                    nn.AvgPool2d(kernel_size=2, stride=stride),
                    nn.Conv2d(inplanes, planes, kernel_size=1, bias=False),
                    nn.BatchNorm2d(planes),
                )
            self.blocks.append(PublishedBlock(inplanes, planes, stride, downsample))
            inplanes = planes
            for _ in range(1, count):
                self.blocks.append(PublishedBlock(inplanes, planes, 1, None))
        self.fc = nn.Linear(inplanes, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.maxpool(self.bn1(self.conv1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, (1, 1)).flatten(1))


LAYERS = {18: [4, 4, 4, 4], 34: [6, 8, 12, 6]}


def pair(depth: int, act: Any, width: int = 8) -> tuple[Published, BiRealNet]:
    """The published network and ours, with the same random weights, in float64 so that signs agree."""
    torch.manual_seed(0)
    theirs = Published(LAYERS[depth], 7, width).double()
    for m in theirs.modules():
        if isinstance(m, PublishedConv):
            nn.init.normal_(m.weights, std=0.7)  # some beyond the clip
    randomise(theirs)
    ours = BiRealNet(depth, 7, act, width=width).double()
    state = ours.state_dict()
    values = theirs.state_dict().values()  # both registered in the order of use
    ours.load_state_dict({k: v.reshape(state[k].shape) for k, v in zip(state, values, strict=True)})
    return theirs, ours


@pytest.mark.parametrize(("depth", "count"), [(18, 11_689_512), (34, 21_797_672)])
def test_parameter_counts_are_the_published_ones(depth: int, count: int) -> None:
    with torch.device("meta"):
        ours, theirs = BiRealNet(depth, 1000), Published(LAYERS[depth], 1000)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters()) == count
    binary = sum(m.weight.numel() for m in ours.modules() if isinstance(m, BinaryConv2d))
    c = (64, 128, 256, 512)
    cells = sum(c[i] * c[i - 1] + (n - 1) * c[i] ** 2 if i else n * c[0] ** 2 for i, n in enumerate(LAYERS[depth]))
    assert binary == 9 * cells  # every 3x3 convolution but the stem's


@pytest.mark.parametrize("depth", [18, 34])
def test_hardened_equals_the_published_code(depth: int) -> None:
    theirs, ours = pair(depth, partial(HTAF, bipolar=True))
    exact = htaf.harden(ours.eval())
    assert not any(isinstance(m, HTAF) for m in exact.modules())
    assert sum(isinstance(m, Heaviside) and m.bipolar for m in exact.modules()) == sum(LAYERS[depth])
    assert list(exact.state_dict()) == list(ours.state_dict())
    x = torch.randn(3, 3, 64, 64, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(exact(x), theirs.eval()(x), rtol=1e-10, atol=1e-10)
        assert not torch.allclose(ours(x), exact(x))


@pytest.mark.parametrize("train", [True, False])
def test_approx_sign_has_the_published_gradients(train: bool) -> None:
    theirs, ours = pair(18, SIGN)
    x = torch.randn(4, 3, 64, 64, dtype=torch.float64)
    outputs, grads = outputs_and_gradients((theirs, ours), x, train)
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-9, atol=1e-9)
    for a, b in zip(*grads, strict=True):
        assert a.count_nonzero() > 0
        torch.testing.assert_close(b, a.reshape(b.shape), rtol=1e-7, atol=1e-9 * a.abs().max().item())
    buffers = [[b for b in model.buffers() if b.is_floating_point()] for model in (theirs, ours)]
    torch.testing.assert_close(buffers[1], buffers[0])


def test_odd_sizes_average_what_is_there() -> None:
    """The published pooling rounds down and then fails; ours takes the pixels that the last window has."""
    pool = BiRealNet(18, 3, width=2).stages[1][0].shortcut.pool
    x = torch.arange(9.0).reshape(1, 1, 3, 3)
    assert pool(x).flatten().tolist() == [2.0, 3.5, 6.5, 8.0]
    assert torch.equal(pool(x[..., :2, :2]), F.avg_pool2d(x[..., :2, :2], 2))
    with pytest.raises(RuntimeError, match="must match"):
        Published(LAYERS[18], 3, 2)(torch.randn(1, 3, 33 * 4, 33 * 4))
