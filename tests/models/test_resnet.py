"""ResNet against torchvision's, weight by weight."""

from __future__ import annotations

import pytest
import torch
import torchvision

from htaf.models.resnet import ResNet


@pytest.mark.parametrize("depth", [18, 34])
def test_equals_torchvision(depth: int) -> None:
    torch.manual_seed(0)
    theirs = getattr(torchvision.models, f"resnet{depth}")(num_classes=7)
    ours = ResNet(depth, 7)
    names = [name for name, _ in theirs.named_parameters()]
    mine = [name for name, _ in ours.named_parameters()]
    assert len(names) == len(mine)
    order = {"conv1": "stem.conv", "bn1": "stem.norm", "fc": "head"}

    def renamed(name: str) -> str:
        first, _, rest = name.partition(".")
        if first in order:
            return f"{order[first]}.{rest}"
        rest = rest.replace("downsample.0", "shortcut.conv").replace("downsample.1", "shortcut.norm")
        return f"stages.{int(first[-1]) - 1}.{rest.replace('bn1', 'norm1').replace('bn2', 'norm2')}"

    ours.load_state_dict({renamed(key): value for key, value in theirs.state_dict().items()})
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))
    torch.testing.assert_close(ours.train()(x), theirs.train()(x))
