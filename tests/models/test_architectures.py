"""What holds of every residual network: sizes of images, hooks, memory formats, autocast, refused arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from htaf import StraightThrough, surrogates
from htaf.core.activations import HTAF
from htaf.core.binary import BinaryConv2d
from htaf.models.bireal import BiRealNet
from htaf.models.build import build
from htaf.models.resnet import ResNet
from htaf.models.sew_resnet import SEWResNet
from htaf.models.whitened import WhitenedConvNet
from htaf.models.wide_resnet import WideResNet
from htaf.training.families import ready_recipe
from htaf.transform.spiking.neurons import IF

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


# ---- ResNet against torchvision's, weight by weight ----


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


# ---- SEW-ResNet against its published forward, written out over the state dict, and torchvision's names and sizes ----


exact_if = partial(IF, StraightThrough(surrogates.atan))


@pytest.mark.parametrize(("depth", "parameters"), [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032)])
def test_sizes_and_names_are_those_of_torchvision(depth: int, parameters: int) -> None:
    import torchvision

    with torch.device("meta"):
        net = SEWResNet(depth, 1000)
        resnet = getattr(torchvision.models, f"resnet{depth}")()
    assert sum(p.numel() for p in net.parameters()) == parameters
    assert [(k, v.shape) for k, v in net.state_dict().items()] == [(k, v.shape) for k, v in resnet.state_dict().items()]


def published(
    w: dict[str, Tensor], x: Tensor, depth: int, steps: int, connect: str, stem: str, fire: Callable[[Tensor], Tensor]
) -> Tensor:
    """The forward of the official ImageNet code in training mode, from a state dict."""

    def norm(name: str, y: Tensor) -> Tensor:  # batch statistics over time and images
        mean, var = y.mean((0, 2, 3), keepdim=True), y.var((0, 2, 3), keepdim=True, unbiased=False)
        scale, shift = w[f"{name}.weight"][:, None, None], w[f"{name}.bias"][:, None, None]
        return (y - mean) / (var + 1e-5).sqrt() * scale + shift

    def site(conv: str, bn: str, y: Tensor, stride: int) -> Tensor:
        t, n = y.shape[:2]
        weight = w[f"{conv}.weight"]
        y = F.conv2d(y.flatten(0, 1), weight, stride=stride, padding=weight.shape[-1] // 2)
        return fire(norm(bn, y).unflatten(0, (t, n)))

    y = norm(
        "bn1", F.conv2d(x, w["conv1.weight"], stride=1 if stem == "cifar" else 2, padding=1 if stem == "cifar" else 3)
    )
    y = fire(torch.stack([y] * steps))
    if stem == "imagenet":
        y = torch.stack([F.max_pool2d(now, 3, 2, 1) for now in y])
    for stage, blocks in enumerate({18: [2, 2, 2, 2], 34: [3, 4, 6, 3], 50: [3, 4, 6, 3]}[depth]):
        for block in range(blocks):
            name, stride = f"layer{stage + 1}.{block}", 2 if stage and not block else 1
            strides = [1, stride, 1] if depth == 50 else [stride, 1]
            out = y
            for i, s in enumerate(strides, 1):
                out = site(f"{name}.conv{i}", f"{name}.bn{i}", out, s)
            identity = y
            if f"{name}.downsample.0.weight" in w:
                identity = site(f"{name}.downsample.0", f"{name}.downsample.1", y, stride)
            y = {"add": out + identity, "and": out * identity, "iand": identity * (1 - out)}[connect]
    return y.mean((3, 4)).mean(0) @ w["fc.weight"].T + w["fc.bias"]


def integrate_and_fire(x: Tensor) -> Tensor:
    v, spikes = torch.zeros_like(x[0]), []
    for now in x:
        v = v + now
        spikes.append((v >= 1).to(x.dtype))
        v = v * (1 - spikes[-1])
    return torch.stack(spikes)


@pytest.mark.parametrize(
    ("depth", "connect", "stem", "steps"),
    [
        (18, "add", "cifar", 4), (18, "and", "imagenet", 2), (18, "iand", "cifar", 3),
        (34, "add", "imagenet", 4), (50, "add", "cifar", 2), (50, "iand", "imagenet", 3),
    ],
)  # fmt: skip
@pytest.mark.parametrize("spiking", [True, False])
def test_the_published_architecture(depth: int, connect: Any, stem: Any, steps: int, spiking: bool) -> None:
    torch.manual_seed(0)
    neuron, fire = (exact_if, integrate_and_fire) if spiking else (nn.ReLU, torch.relu)
    steps = steps if spiking else 1
    net = SEWResNet(depth, 7, neuron, steps=steps, width=4, connect=connect, stem=stem, in_channels=2).double()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):  # so that neurons fire
            nn.init.uniform_(module.weight, 0.8, 2.0)
            nn.init.uniform_(module.bias, 0.0, 0.6)
    x = torch.randn(3, 2, 32, 40, dtype=torch.float64)
    expected = published(net.state_dict(), x, depth, steps, connect, stem, fire)
    torch.testing.assert_close(net(x), expected)
    assert expected.std() > 1e-3


# ---- WhitenedConvNet ----


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


def test_first_activations_may_stay_real() -> None:
    recipe = ready_recipe("dhn", "quick").replace(keep_first=3)
    net = build(recipe.model({"in_channels": 1, "image_size": [9, 9]}, 10))
    acts = [type(m) for path, m in net.named_modules() if path.endswith(("act1", "act2"))]
    assert acts == [nn.ReLU] * 3 + [HTAF] * 3
    with pytest.raises(ValueError, match="keep_first must be in 0 to 5, got 6"):
        recipe.replace(keep_first=6)


def test_images_too_small_for_the_blocks() -> None:
    recipe = ready_recipe("dhn", "quick")
    recipe.model({"in_channels": 1, "image_size": [9, 9]}, 10)
    with pytest.raises(ValueError, match=r"images of 9 pixels or more on a side for 3 blocks \(widths\), got 8 x 12"):
        recipe.model({"in_channels": 1, "image_size": [8, 12]}, 10)
