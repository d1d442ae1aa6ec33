"""Spike-element-wise residual networks, whose spiking neuron is an argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, final, get_args

from jaxtyping import Float
from torch import Tensor, nn

from htaf.models.stem import Stem
from htaf.transform.grid import Mean
from htaf.transform.spiking.neurons import IF

Connect = Literal["add", "and", "iand"]

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}


@final
class SEWResNet(nn.Module):
    """SEW-ResNet: residual blocks of conv, batch norm, neuron, joined to their input spike by spike.

    The stem's convolution and norm run once; their output is the input of every time step. Convolutions and norms see
    [T N, C, H, W], so that batch statistics are over time too; only the neurons see time. The head reads the mean over
    pixels and time. Parameters and buffers have the names that torchvision's ResNet gives them.

    Args:
        depth: 18, 34 (two 3x3 convolutions a block) or 50 (a bottleneck of three).
        classes: outputs.
        neuron: makes one module a site, [T, N, C, H, W] -> same shape, such as `IF` or `partial(LIF, tau=2.0)`. With
            `nn.ReLU` and steps=1 this is a real-valued network of the same shape.
        steps: T, time steps.
        width: channels of the first stage; the others have 2, 4 and 8 times as many (times 4 at depth 50).
        connect: what joins the block's spikes s to its input i: "add" s + i, "and" s i, "iand" i (1 - s).
        stem: "imagenet" (7x7, stride 2, then max pooling of the spikes) or "cifar" (3x3, no pooling).
        in_channels: of the image.

    Shape: [N, in_channels, H, W] -> [N, classes], any H and W.

    Raises:
        ValueError: a size that is not positive, or a depth, connect or stem that is not one of these.

    Source: Fang et al. 2021, arXiv:2102.04159, and its official code.
    """

    def __init__(
        self,
        depth: int,
        classes: int,
        neuron: Callable[[], nn.Module] = IF,
        *,
        steps: int = 4,
        width: int = 64,
        connect: Connect = "add",
        stem: Stem = "imagenet",
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        for name, value, choices in (
            ("depth", depth, tuple(BLOCKS)),
            ("connect", connect, get_args(Connect)),
            ("stem", stem, get_args(Stem)),
        ):
            if value not in choices:
                raise ValueError(f"{name} must be one of {choices}, got {value!r}")
        sizes = {"classes": classes, "steps": steps, "width": width, "in_channels": in_channels}
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")
        self.steps = steps
        large = stem == "imagenet"
        self.conv1 = _conv(in_channels, width, 7 if large else 3, 2 if large else 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.neuron1 = neuron()
        self.pool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        channels = width
        for stage, blocks in enumerate(BLOCKS[depth]):
            layer = nn.Sequential()
            for block in range(blocks):
                inner, stride = width * 2**stage, 2 if stage and not block else 1
                layer.append(_Block(channels, inner, stride, depth >= 50, neuron, connect))
                channels = inner * (4 if depth >= 50 else 1)
            self.add_module(f"layer{stage + 1}", layer)
        self.mean = Mean((0, 3, 4))
        self.fc = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        y = self.bn1(self.conv1(x))
        y = self.neuron1(y.expand(self.steps, *y.shape))
        if not isinstance(self.pool, nn.Identity):  # torch.export does not see that there and back is where it was
            y = self.pool(y.flatten(0, 1)).unflatten(0, (self.steps, -1))
        for stage in range(1, 5):
            y = self.get_submodule(f"layer{stage}")(y)
        return self.fc(self.mean(y))

    def extra_repr(self) -> str:
        return f"steps={self.steps}"


@final
class _Block(nn.Module):
    """conv, norm, neuron, two or (a bottleneck) three times, joined to the input; 1x1 where the shape changes."""

    def __init__(
        self, n_in: int, inner: int, stride: int, bottleneck: bool, neuron: Callable[[], nn.Module], connect: Connect
    ) -> None:
        super().__init__()
        self.connect = connect
        n_out = 4 * inner if bottleneck else inner
        # input and output channels, size and stride of the convolutions
        basic = ((n_in, inner, 3, stride), (inner, inner, 3, 1))
        narrow = ((n_in, inner, 1, 1), (inner, inner, 3, stride), (inner, n_out, 1, 1))
        self.convolutions = 3 if bottleneck else 2
        for i, shape in enumerate(narrow if bottleneck else basic, start=1):
            self.add_module(f"conv{i}", _conv(*shape))
            self.add_module(f"bn{i}", nn.BatchNorm2d(shape[1]))
            self.add_module(f"neuron{i}", neuron())
        self.downsample = None
        if stride != 1 or n_in != n_out:
            self.downsample = nn.Sequential(_conv(n_in, n_out, 1, stride), nn.BatchNorm2d(n_out))
            self.downsample_neuron = neuron()

    def forward(
        self, x: Float[Tensor, "steps batch n_in height width"]
    ) -> Float[Tensor, "steps batch n_out rows columns"]:
        out = identity = x
        for i in range(1, self.convolutions + 1):
            conv, norm, neuron = (self.get_submodule(f"{kind}{i}") for kind in ("conv", "bn", "neuron"))
            out = neuron(norm(conv(out.flatten(0, 1))).unflatten(0, (len(x), -1)))
        if self.downsample is not None:
            identity = self.downsample_neuron(self.downsample(x.flatten(0, 1)).unflatten(0, (len(x), -1)))
        if self.connect == "add":
            return out + identity
        return out * identity if self.connect == "and" else identity * (1 - out)

    def extra_repr(self) -> str:
        return f"connect={self.connect}"


def _conv(n_in: int, n_out: int, size: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(n_in, n_out, size, stride, padding=size // 2, bias=False)
