"""SEW-ResNet in SpikingJelly, with the stem, width and read-out of `htaf.models.sew_resnet` and the same weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from spikingjelly.activation_based import functional, layer, neuron, surrogate
from spikingjelly.activation_based.model import sew_resnet
from torch import Tensor, nn

from htaf import surrogates
from htaf.activations import StraightThrough
from htaf.models.sew_resnet import SEWResNet

IFNode = partial(neuron.IFNode, detach_reset=True, surrogate_function=surrogate.ATan(2.0))
exact_spike = partial(StraightThrough, partial(surrogates.atan, alpha=2.0))

DEPTHS = {
    18: (sew_resnet.BasicBlock, [2, 2, 2, 2]),
    34: (sew_resnet.BasicBlock, [3, 4, 6, 3]),
    50: (sew_resnet.Bottleneck, [3, 4, 6, 3]),
}


class Peer(sew_resnet.SEWResNet):
    """SpikingJelly's SEW-ResNet, multi-step, as its authors' ImageNet code runs it: the stem's convolution and norm
    once, repeated over time, and the linear layer on the mean over time.

    Its bottleneck joins by IAND the other way round, s (1 - i), so depth 50 is compared with ADD and AND only.
    """

    def __init__(
        self, depth: int, classes: int, steps: int, width: int, connect: str, stem: str, in_channels: int
    ) -> None:
        block, blocks = DEPTHS[depth]
        super().__init__(block, blocks, classes, cnf=connect.upper(), spiking_neuron=IFNode)
        self.steps = steps
        size, stride = (7, 2) if stem == "imagenet" else (3, 1)
        self.conv1 = layer.Conv2d(in_channels, width, size, stride, size // 2, bias=False)
        self.bn1 = layer.BatchNorm2d(width)
        if stem == "cifar":
            self.maxpool = nn.Identity()
        if width != 64:
            self.inplanes = width
            for i, count in enumerate(blocks):
                stage = self._make_layer(
                    block, width * 2**i, count, 2 if i else 1, cnf=self.layer1[0].cnf, spiking_neuron=IFNode
                )
                setattr(self, f"layer{i + 1}", stage)
            self.fc = layer.Linear(self.inplanes, classes)
        functional.set_step_mode(self, "m")
        for module in (self.conv1, self.bn1, self.fc):
            module.step_mode = "s"

    def forward(self, x: Tensor) -> Tensor:
        functional.reset_net(self)
        x = self.bn1(self.conv1(x)).unsqueeze(0).repeat(self.steps, 1, 1, 1, 1)
        x = self.maxpool(self.sn1(x))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(2).mean(0))


def pair(
    make: Callable[[], nn.Module],
    depth: int = 18,
    classes: int = 10,
    *,
    steps: int = 4,
    width: int = 64,
    connect: str = "add",
    stem: str = "cifar",
    in_channels: int = 3,
) -> tuple[SEWResNet, Peer]:
    """Ours with the neurons of `make`, and SpikingJelly's with the same weights."""
    torch.manual_seed(0)
    ours = SEWResNet(
        depth, classes, make, steps=steps, width=width, connect=connect, stem=stem, in_channels=in_channels
    )
    theirs = Peer(depth, classes, steps, width, connect, stem, in_channels)
    with torch.no_grad():  # so that neurons fire in every stage, and statistics are not those of an untrained norm
        for module in ours.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.8, 2.0)
                module.bias.uniform_(0.0, 0.6)
    theirs.load_state_dict(ours.state_dict())  # strict: the names are the same
    return ours, theirs
