"""WideResNet against a restatement of AugMix's code, its published sizes, and the transforms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from published import outputs_and_gradients, randomise
from torch import Tensor, nn

import htaf
from htaf.core.activations import HTAF, Heaviside
from htaf.models.wide_resnet import WideResNet


class PublishedBlock(nn.Module):
    """BasicBlock of google-research/augmix, third_party/WideResNet_pytorch/wideresnet.py."""

    def __init__(self, n_in: int, n_out: int, stride: int, drop_rate: float, act: Any) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(n_in)
        self.conv1 = nn.Conv2d(n_in, n_out, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, kernel_size=3, stride=1, padding=1, bias=False)
        self.drop_rate, self.equal, self.act = drop_rate, n_in == n_out, act
        if not self.equal:
            self.conv_shortcut = nn.Conv2d(n_in, n_out, kernel_size=1, stride=stride, padding=0, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.equal:
            x = self.act(self.bn1(x))
            out = x
        else:
            out = self.act(self.bn1(x))
        out = self.act(self.bn2(self.conv1(out)))
        if self.drop_rate > 0:
            out = F.dropout(out, p=self.drop_rate, training=self.training)
        out = self.conv2(out)
        return torch.add(x if self.equal else self.conv_shortcut(x), out)


class Published(nn.Module):
    def __init__(self, depth: int, widen: int, classes: int, drop_rate: float = 0.0, act: Any = torch.relu) -> None:
        super().__init__()
        channels = [16, 16 * widen, 32 * widen, 64 * widen]
        n = (depth - 4) // 6
        self.conv1 = nn.Conv2d(3, channels[0], kernel_size=3, stride=1, padding=1, bias=False)
        self.blocks = nn.ModuleList()
        for i, stride in enumerate((1, 2, 2)):
            for j in range(n):
                n_in, s = (channels[i], stride) if j == 0 else (channels[i + 1], 1)
                self.blocks.append(PublishedBlock(n_in, channels[i + 1], s, drop_rate, act))
        self.bn1 = nn.BatchNorm2d(channels[3])
        self.fc = nn.Linear(channels[3], classes)
        self.act = act
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(m, nn.BatchNorm2d):
                m.weight.data.fill_(1)
                m.bias.data.zero_()
            elif isinstance(m, nn.Linear):
                m.bias.data.zero_()

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(x)
        for block in self.blocks:
            out = block(out)
        out = F.avg_pool2d(self.act(self.bn1(out)), 8)
        return self.fc(out.view(out.shape[0], -1))


def pair(depth: int, width: int, classes: int, act: type[nn.Module], function: Any, dropout: float = 0.0) -> Any:
    """The published network and ours, with the same random weights."""
    torch.manual_seed(0)
    theirs = Published(depth, width, classes, dropout, function)
    randomise(theirs)
    ours = WideResNet(depth, width, classes, act, dropout=dropout)
    state = theirs.state_dict()
    assert len(state) == len(ours.state_dict())  # both registered in the order of use
    ours.load_state_dict(dict(zip(ours.state_dict(), state.values(), strict=True)))
    return theirs, ours


def size(depth: int, k: int, classes: int) -> int:
    """Parameters, from the table of Zagoruyko and Komodakis: 3x3 convolutions, 1x1 shortcuts, norms, linear."""
    n = (depth - 4) // 6
    c1, c2, c3 = 16 * k, 32 * k, 64 * k
    convs = 9 * (3 * 16 + 16 * c1 + (2 * n - 1) * c1**2 + c1 * c2 + (2 * n - 1) * c2**2 + c2 * c3 + (2 * n - 1) * c3**2)
    shortcuts = (16 * c1 if k > 1 else 0) + c1 * c2 + c2 * c3
    norms = 2 * (16 + c1 + c2) + 2 * (2 * n - 1) * (c1 + c2 + c3) + 2 * c3
    return convs + shortcuts + norms + classes * (c3 + 1)


@pytest.mark.parametrize(
    ("depth", "width", "count", "millions"),
    [(16, 1, 175_066, 0.2), (40, 2, 2_243_546, 2.2), (28, 10, 36_479_194, 36.5), (22, 8, 17_158_106, 17.2)],
)
def test_parameter_counts_are_the_published_ones(depth: int, width: int, count: int, millions: float) -> None:
    with torch.device("meta"):
        model = WideResNet(depth, width, 10)
    assert sum(p.numel() for p in model.parameters()) == count == size(depth, width, 10)
    assert round(count / 1e6, 1) == millions


@pytest.mark.parametrize(("depth", "width"), [(10, 1), (16, 1), (16, 2)])  # without and with a first shortcut
@pytest.mark.parametrize("train", [True, False])
def test_equals_the_published_code(depth: int, width: int, train: bool) -> None:
    theirs, ours = pair(depth, width, 7, nn.ReLU, torch.relu)
    outputs, grads = outputs_and_gradients((theirs, ours), torch.randn(4, 3, 32, 32), train)
    torch.testing.assert_close(outputs[1], outputs[0])
    for theirs_grad, ours_grad in zip(*grads, strict=True):
        torch.testing.assert_close(ours_grad, theirs_grad, rtol=1e-4, atol=1e-4 * theirs_grad.abs().max().item())


def test_same_seed_same_initial_weights_as_the_published_code() -> None:
    torch.manual_seed(3)
    theirs = Published(16, 2, 10).state_dict()
    torch.manual_seed(3)
    ours = WideResNet(16, 2, 10).state_dict()
    assert all(torch.equal(a, b) for a, b in zip(theirs.values(), ours.values(), strict=True))


def test_dropout_acts_between_the_convolutions_in_training_only() -> None:
    theirs, ours = pair(10, 1, 5, nn.ReLU, torch.relu, dropout=0.4)
    x = torch.randn(2, 3, 32, 32)
    for train in (True, False):
        outputs = []
        for model in (theirs, ours):
            torch.manual_seed(1)
            outputs.append(model.train(train)(x))
        torch.testing.assert_close(outputs[1], outputs[0])
    assert not torch.allclose(ours.train()(x), ours(x))
    assert not any(isinstance(m, nn.Dropout) for m in WideResNet(10, 1, 5).modules())


def test_harden_gives_the_published_network_with_the_step() -> None:
    theirs, ours = pair(10, 2, 4, HTAF, lambda x: (x >= 0).float())
    exact = htaf.harden(ours.eval())
    assert sum(isinstance(m, Heaviside) for m in exact.modules()) == 7
    assert not any(isinstance(m, HTAF) for m in exact.modules())
    assert list(exact.state_dict()) == list(ours.state_dict())
    x = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(exact(x), theirs.eval()(x))
        assert not torch.allclose(ours(x), exact(x))
