"""WhitenedConvNet against its layers written out, its whitening, its binary and spiking forms, and the transforms."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from htaf.core.activations import HTAF
from htaf.core.binary import BinaryConv2d
from htaf.models.whitened import WhitenedConvNet
from htaf.training.families import ready_recipe
from htaf.transform.spiking.neurons import IF

ACT = partial(HTAF, 0.5, 2.0)


def small(**options: Any) -> WhitenedConvNet:
    torch.manual_seed(0)
    return WhitenedConvNet(5, **({"act": ACT, "widths": (6, 8)} | options))


def written_out(net: WhitenedConvNet, x: Tensor) -> Tensor:
    def norm(x: Tensor, layer: nn.BatchNorm2d) -> Tensor:
        return F.batch_norm(x, layer.running_mean, layer.running_var, layer.weight, layer.bias)

    x = F.conv2d(x, net.whitening.weight)
    for block in net.blocks:
        p = dict(block.named_modules())
        x = F.max_pool2d(F.conv2d(x, p["conv1"].weight, padding=1), 2)
        x = torch.sigmoid(2.0 * torch.tanh(0.5 * norm(x, p["norm1"])))
        x = torch.sigmoid(2.0 * torch.tanh(0.5 * norm(F.conv2d(x, p["conv2"].weight, padding=1), p["norm2"])))
    return x.flatten(2).mean(2) @ net.head.weight.T + net.head.bias


def test_forward_is_the_layers_written_out() -> None:
    net, x = small(), torch.randn(4, 3, 16, 16)
    net(x)  # statistics that are not 0 and 1
    net.eval()
    torch.testing.assert_close(net(x), written_out(net, x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_whitening_makes_patches_uncorrelated(channels: int) -> None:
    net = small(in_channels=channels)
    images = torch.randn(40, channels, 12, 12).cumsum(2).cumsum(3) / 12 + 0.3
    net.whiten(images)
    seen = net.whitening(images).transpose(0, 1).flatten(1).double()
    moment = seen @ seen.T / seen.shape[1]
    assert (moment - torch.diag(moment.diagonal())).abs().max() < 1e-4
    assert moment.diagonal().min() > 0
    assert moment.diagonal().max() <= 1.0001
    assert moment[0, 0] > 0.99  # 5e-4 is small beside the largest variance, which comes first


def test_binary_weights_everywhere_but_in_the_first_convolution() -> None:
    net = small(conv=BinaryConv2d, act=partial(HTAF, 0.5, 2.0, bipolar=True))
    kinds = {path: type(m) for path, m in net.named_modules() if isinstance(m, nn.Conv2d)}
    assert [path for path, kind in kinds.items() if kind is nn.Conv2d] == ["whitening", "blocks.0.conv1"]
    assert net(torch.randn(2, 3, 9, 9)).shape == (2, 5)


def test_one_time_step_is_the_network_without_time() -> None:
    plain, timed = small(), small(act=lambda: IF(ACT()), steps=1)
    state = {k.replace("act1", "act1.spike").replace("act2", "act2.spike"): v for k, v in plain.state_dict().items()}
    timed.load_state_dict(state)
    x = torch.randn(3, 3, 10, 10)
    shifted = small(act=lambda: _Shifted(ACT()))  # an IF neuron fires at 1, a plain step at 0
    shifted.load_state_dict(plain.state_dict())
    torch.testing.assert_close(timed(x), shifted(x))


class _Shifted(nn.Module):
    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x - 1.0)


def test_images_too_small_for_the_blocks() -> None:
    recipe = ready_recipe("dhn", "quick")
    recipe.model({"in_channels": 1, "image_size": [9, 9]}, 10)
    with pytest.raises(ValueError, match=r"images of 9 pixels or more on a side for 3 blocks \(widths\), got 8 x 12"):
        recipe.model({"in_channels": 1, "image_size": [8, 12]}, 10)
