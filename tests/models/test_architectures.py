"""What holds of every residual network: sizes of images, hooks, memory formats, autocast, refused arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from htaf.models.bireal import BiRealNet
from htaf.models.resnet import ResNet
from htaf.models.sew_resnet import SEWResNet
from htaf.models.whitened import WhitenedConvNet
from htaf.models.wide_resnet import WideResNet

FAMILIES: dict[str, Callable[..., nn.Module]] = {
    "wide resnet": partial(WideResNet, 10, 1, 3),
    "resnet": partial(ResNet, 18, 3, width=4, stem="cifar"),
    "bireal": partial(BiRealNet, 18, 3, width=4, stem="cifar"),
    "bireal, imagenet": partial(BiRealNet, 18, 3, width=4),
    "sew resnet": partial(SEWResNet, 18, 3, width=4, stem="cifar"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_any_input_size(family: str) -> None:
    net = FAMILIES[family](in_channels=1).eval()
    for shape in ((2, 1, 1, 1), (2, 1, 7, 5), (1, 1, 33, 40), (0, 1, 8, 8)):
        assert net(torch.randn(shape)).shape == (shape[0], 3), shape


@pytest.mark.parametrize("family", ["wide resnet", "bireal"])
def test_channels_last_and_autocast(family: str) -> None:
    torch.manual_seed(0)
    act: dict[str, Any] = {"act": nn.ReLU} if family == "wide resnet" else {}
    model, x = FAMILIES[family](**act).eval(), torch.randn(4, 3, 16, 16)
    expected = model(x)
    model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    torch.testing.assert_close(model(x.to(memory_format=torch.channels_last)), expected, rtol=1e-4, atol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        out = model.train()(x)
        out.sum().backward()
    assert out.dtype == torch.bfloat16
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


whitened = partial(WhitenedConvNet, 5, nn.ReLU)
SIZES = "sizes must be positive, got"
REFUSED: list[tuple[Callable[..., nn.Module], dict[str, Any], str]] = [
    *((WideResNet, {"depth": d, "width": 1, "classes": 3}, rf"6 n \+ 4 .*, got {d}$") for d in (4, 12, 39, 0, -2)),
    (FAMILIES["wide resnet"], {"dropout": -0.1}, "dropout must be in"),
    (FAMILIES["wide resnet"], {"dropout": 1.0}, "dropout must be in"),
    (FAMILIES["wide resnet"], {"dropout": float("nan")}, "dropout must be in"),
    (FAMILIES["wide resnet"], {"in_channels": 0}, SIZES),
    (WideResNet, {"depth": 10, "width": 0, "classes": 3}, f"{SIZES} width=0, classes=3"),
    (WideResNet, {"depth": 10, "width": 1, "classes": 0}, f"{SIZES} width=1, classes=0"),
    (ResNet, {"depth": 50, "classes": 3}, r"depth must be one of \(18, 34\), got 50"),
    (ResNet, {"depth": 18, "classes": 0}, f"{SIZES} classes=0"),
    (BiRealNet, {"depth": 50, "classes": 3}, r"^depth must be one of \(18, 34\), got 50$"),
    (BiRealNet, {"depth": 18, "classes": 0}, f"^{SIZES} classes=0"),
    (FAMILIES["bireal"], {"stem": "mnist"}, r"^stem must be one of \('imagenet', 'cifar'\), got 'mnist'$"),
    (FAMILIES["bireal"], {"width": 0}, f"^{SIZES} classes="),
    (FAMILIES["bireal"], {"in_channels": 0}, f"^{SIZES} classes="),
    (SEWResNet, {"depth": 20, "classes": 3}, r"depth must be one of \(18, 34, 50\), got 20"),
    (FAMILIES["sew resnet"], {"connect": "ADD"}, "'iand'.*got 'ADD'"),
    (FAMILIES["sew resnet"], {"stem": "mnist"}, "'cifar'.*got 'mnist'"),
    (FAMILIES["sew resnet"], {"steps": 0}, "steps must be >= 1, got 0"),
    (FAMILIES["sew resnet"], {"width": 0}, "width"),
    (FAMILIES["sew resnet"], {"in_channels": 0}, "in_channels"),
    *((whitened, bad, f"{SIZES} classes=5") for bad in (
        {"widths": ()}, {"widths": (4, 0)}, {"steps": 0}, {"in_channels": 0})),
]  # fmt: skip


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("row", range(len(REFUSED)))
def test_what_is_refused(row: int) -> None:
    make, options, message = REFUSED[row]
    with pytest.raises(ValueError, match=message):
        make(**options)
