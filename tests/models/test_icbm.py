"""Concept bottlenecks over any backbone: what is taken away, where the step stands, weights from files."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from htaf.core.activations import HTAF, Heaviside, StraightThrough
from htaf.models.build import backbone, build
from htaf.models.final_activation import origin
from htaf.models.icbm import ICBM
from htaf.models.resnet import ResNet
from htaf.models.wide_resnet import WideResNet
from htaf.transform.convert import harden
from quick import slow_but


def trained_looking(model: nn.Module) -> nn.Module:
    """Batch norms as after some training: their last ones are not 0, as residual networks start them."""
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    return model.eval()


@pytest.mark.parametrize(
    ("name", "last", "norm"),
    [
        ("resnet18", "layer4.1.act2", True),
        ("convnext_atto", None, False),  # pools, then a layer norm
        ("mobilenetv3_small_050", "act2", True),  # behind the pooling
        pytest.param("vit_tiny_patch16_224", None, False, marks=pytest.mark.slow),  # a layer norm, then the CLS token
        pytest.param("efficientnet_b0", "bn2.act", True, marks=pytest.mark.slow),
        pytest.param("densenet121", "features.norm5.act", True, marks=pytest.mark.slow),
        pytest.param("regnetx_002", "s4.b7.act3", True, marks=pytest.mark.slow),
    ],
)
def test_the_last_activation_of_timm_models_is_taken_away(name: str, last: str | None, norm: bool) -> None:
    model = trained_looking(ICBM.from_timm(name, 7, image_size=64))
    assert isinstance(model, ICBM)
    assert model.size == timm.create_model(name).head_hidden_size
    assert isinstance(model.norm, nn.BatchNorm1d) is norm
    assert origin(model.backbone, torch.randn(2, 3, 64, 64)).activations == ()
    if last is not None:
        assert isinstance(model.backbone.get_submodule(last), nn.Identity)
    z = model.pre_activations(torch.randn(8, 3, 64, 64))
    assert (z < 0).any()
    assert (z >= 0).any()
    assert model(torch.randn(2, 3, 64, 64)).shape == (2, 7)


def test_features_are_the_backbones_own_before_its_activation() -> None:
    """By hand: the last block's sum, averaged."""
    whole = trained_looking(timm.create_model("resnet18", num_classes=0))
    x = torch.randn(3, 3, 64, 64)
    seen: list[Tensor] = []
    whole.layer4[1].act2.register_forward_pre_hook(lambda module, args: seen.append(args[0].clone()))
    whole(x)
    model = ICBM(whole, 4, example=x, norm=False).eval()
    torch.testing.assert_close(model.pre_activations(x), seen[0].mean((2, 3)))


def test_an_edited_network_is_a_new_one() -> None:
    x = torch.randn(4, 3, 8, 8)
    model = ICBM(nn.Sequential(nn.Flatten(), nn.Linear(192, 6)), 3, example=x, norm=False).eval()
    before = model.head.weight.clone()
    other = model.edited([(1, 2), (2, 0)])
    assert torch.equal(model.head.weight, before)
    assert torch.equal((other.head.weight != before).nonzero(), torch.tensor([[1, 2], [2, 0]]))
    assert torch.equal(other.concepts(x), model.concepts(x))
    with pytest.raises(ValueError, match="expected a class below 3 and a concept below 6, got 3, 0"):
        model.edited([(3, 0)])


@pytest.mark.parametrize(
    "name", slow_but(["resnet18", "densenet121", "mobilenet_v3_small"], "resnet18", "mobilenet_v3_small")
)
def test_torchvision_models(name: str) -> None:
    """One ReLU module in several places (resnet18), a function in the forward (densenet121)."""
    whole = trained_looking(getattr(torchvision.models, name)())
    setattr(whole, "fc" if name == "resnet18" else "classifier", nn.Identity())
    x = torch.randn(4, 3, 64, 64)
    keys, plain = set(whole.state_dict()), whole(x)
    model = ICBM(whole, 5, example=x, norm=False).eval()
    assert set(model.backbone.state_dict()) == keys
    if name != "mobilenet_v3_small":  # ends in ReLU; before it values are lower, and some negative
        z = model.pre_activations(x)
        assert (z <= plain + 1e-5).all()
        assert (z < 0).any()
    assert (plain == whole(x)).all()  # the backbone given is as it was


def test_concepts_may_differ_from_the_backbones_width() -> None:
    x = torch.randn(6, 3, 16, 16)
    net = WideResNet(10, 1, 3, nn.ReLU)
    net.head = nn.Identity()
    model = ICBM(net, 3, example=x, concepts=20).eval()
    assert model.concepts(x).shape == (6, 20)
    assert isinstance(model.projection, nn.Linear)
    assert isinstance(model.backbone.act, nn.ReLU)  # the linear layer gives values of both signs
    torch.testing.assert_close(model.pre_activations(x), model.norm(model.projection(net(x))))
    assert ICBM(net, 3, example=x, concepts=64).size == 64
    assert isinstance(ICBM(net, 3, example=x, concepts=64).projection, nn.Identity)


def test_hardened_concepts_are_bits_and_logits_are_the_heads() -> None:
    torch.manual_seed(0)
    net = ResNet(18, 1, width=4, stem="cifar")
    net.head = nn.Identity()
    x = torch.randn(9, 3, 16, 16)
    model = ICBM(net, 5, partial(HTAF, 1.0, 22.0), example=x).eval()
    exact = harden(model)
    assert isinstance(exact, ICBM)
    assert isinstance(exact.act, Heaviside)
    bits = exact.concepts(x)
    assert set(bits.unique().tolist()) <= {0.0, 1.0}
    assert torch.equal(bits, (model.pre_activations(x) >= 0).float())
    torch.testing.assert_close(exact(x), bits @ exact.head.weight.T + exact.head.bias)
    assert model.state_dict().keys() == exact.state_dict().keys()


def test_plain_network_keeps_its_activation() -> None:
    net = trained_looking(ResNet(18, 1, width=4, stem="cifar"))
    net.head = nn.Identity()
    x = torch.randn(4, 3, 16, 16)
    model = ICBM(net, 5, None, example=x).eval()
    assert isinstance(model.norm, nn.Identity)
    assert isinstance(model.act, nn.Identity)
    assert torch.equal(model.concepts(x), net(x))
    assert (model.concepts(x) >= 0).all()
    with pytest.raises(ValueError, match=r"expected a smooth step such as HTAF .* in ICBM, got relu"):
        harden(model)


def test_norms_of_the_backbone_keep_their_statistics_while_it_is_trained() -> None:
    x = torch.randn(6, 3, 8, 8)
    model = ICBM(WideResNet(10, 1, 7), 5, StraightThrough, example=x, concepts=9, keep_norms=True)
    state = {name: value.clone() for name, value in model.state_dict().items() if "running" in name}
    model(x).square().sum().backward()  # as it is made, which is how a trainer takes it
    model.train()(x)
    for name, value in model.state_dict().items():
        if "running" in name:
            assert torch.equal(value, state[name]) is name.startswith("backbone."), name
    assert all(p.grad is not None for p in model.backbone.parameters())


def test_gradients_reach_the_backbone_unless_it_is_frozen() -> None:
    x = torch.randn(4, 3, 16, 16)
    for freeze in (False, True):
        net = ResNet(18, 1, width=4, stem="cifar")
        net.head = nn.Identity()
        model = ICBM(net, 5, StraightThrough, example=x, freeze=freeze).train()
        before = net.stem.norm.running_mean.clone()
        model(x).sum().backward()
        assert all((p.grad is None) is freeze for p in model.backbone.parameters())
        assert model.head.weight.grad is not None
        assert torch.equal(before, model.backbone.stem.norm.running_mean) is freeze
        assert model.norm.training


class Ends(nn.Module):
    """Backbones whose features end in an activation in different ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.conv, self.act, self.how = nn.Conv2d(3, 6, 3), nn.ReLU(inplace=True), how

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.conv(x)) - 0.5
        match self.how:
            case "module":
                y = self.act(y)
            case "function":
                y = F.gelu(y)
            case "method":
                y = y.relu_()
            case "branches":
                y = torch.cat([F.relu(y), F.relu(-y)], 1)
            case "untraceable":
                y = self.act(y) if y.sum() > -1e9 else y
            case "square":
                return y
        return y.mean((2, 3))


@pytest.mark.parametrize("how", ["module", "function", "method", "none"])
def test_ways_to_end(how: str) -> None:
    x = torch.randn(4, 3, 8, 8)
    net = Ends(how)
    model = ICBM(net, 2, example=x, norm=False)
    torch.testing.assert_close(model.pre_activations(x), (F.relu(net.conv(x)) - 0.5).mean((2, 3)))


@pytest.mark.parametrize("how", ["branches", "untraceable"])
def test_an_activation_that_cannot_be_told_apart_is_an_error(how: str) -> None:
    with pytest.raises(ValueError, match="cannot be taken away by itself"):
        ICBM(Ends(how), 2, example=torch.randn(4, 3, 8, 8))
    assert (
        ICBM(Ends(how), 2, example=torch.randn(4, 3, 8, 8), concepts=9).size == 9
    )  # behind a linear layer it may stay


class Drops(nn.Module):
    """One ReLU in two places, and dropout that a traced graph would keep on for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act = nn.Conv2d(3, 6, 3), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.act(self.conv(x)), 0.5, training=self.training) - 0.5
        return self.act(x).mean((2, 3))


@pytest.mark.parametrize("training", [True, False])
def test_a_graph_that_would_keep_its_mode_is_an_error(training: bool) -> None:
    net = Drops().train(training)
    with pytest.raises(ValueError, match="cannot be taken away by itself"):
        ICBM(net, 2, example=torch.randn(4, 3, 8, 8))
    assert all(module.training is training for module in net.modules())


class InADict(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"features": x.mean((2, 3))}


def test_bad_arguments(unchecked: None) -> None:
    x = torch.randn(2, 3, 8, 8)
    with pytest.raises(ValueError, match="sizes must be positive, got classes=0"):
        ICBM(Ends("none"), 0, example=x)
    with pytest.raises(ValueError, match=r"expected a backbone with features \[batch, features\], got \(2, 6, 6, 6\)"):
        ICBM(Ends("square"), 2, example=x)
    for wrong in (None, {"pixel_values": x}, x[0, 0]):
        with pytest.raises(ValueError, match=r"an example of images, a tensor \[batch, channels, height, width"):
            ICBM(Ends("none"), 2, example=wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"\[batch, features\], got dict from InADict: put a module around it"):
        ICBM(InADict(), 2, example=x)
    with pytest.raises(TypeError, match="expected a backbone that is a module, got str"):
        ICBM("resnet18", 2, example=x)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"name of a timm model, got 'resnet_18' \(did you mean .*resnet18"):
        ICBM.from_timm("resnet_18", 2)


def described(**changes: Any) -> dict[str, Any]:
    own = {"kind": "wide_resnet", "depth": 10, "width": 1, "dropout": 0.0}
    shape = {"in_channels": 3, "image_size": [16, 16], "out_features": 4, "concepts": None, "norm": None}
    activation = {"method": "htaf", "alpha0": 2.0, "alpha1": 11.0}
    rest = {"backbone": own, "activation": activation, "bottleneck": "implicit", "freeze": False}
    return {"kind": "icbm", **shape, **rest, **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"concepts": 10, "activation": {"method": "relu"}},
        {"backbone": {"kind": "resnet", "depth": 18, "width": 4, "stem": "cifar"}, "in_channels": 1},
        {"backbone": {"kind": "timm", "name": "vit_tiny_patch16_224"}, "image_size": [32, 48]},
        {"activation": {"method": "relu"}, "bottleneck": "independent", "concepts": 6},
    ],
)
def test_build_from_a_description(changes: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = build(described(**changes)).eval()
    d = described(**changes)
    x = torch.randn(3, d["in_channels"], *d["image_size"])
    assert model(x).shape == (3, 4)
    again = build(d)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.eval()(x), model(x))
    with pytest.raises(ValueError, match="expected a backbone of kind"):
        backbone({"kind": "perceptron"}, 3, (8, 8))


# ---- weights from files ----


@pytest.fixture
def weights() -> dict[str, Tensor]:
    torch.manual_seed(1)
    net = ResNet(18, 10, width=4, stem="cifar")
    return {k: torch.randn_like(v) if v.is_floating_point() else v for k, v in net.state_dict().items()}


@pytest.mark.parametrize("prefix", ["", "backbone.", "module.model."])
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_pretrained_files(weights: dict[str, Tensor], prefix: str, suffix: str, tmp_path: Path) -> None:
    from htaf.models.backbone_weights import load_backbone

    file = tmp_path / f"weights{suffix}"
    content = {prefix + key: value for key, value in weights.items()}
    if suffix == ".pth":
        torch.save({"state_dict": content, "epoch": 3}, file)
    else:
        safetensors.torch.save_file(content, file)
    net = backbone({"kind": "resnet", "depth": 18, "width": 4, "stem": "cifar"}, 3, (16, 16))
    load_backbone(net, file)
    for key, value in net.state_dict().items():
        assert torch.equal(value, weights[key])


def test_weights_of_another_architecture_change_nothing(weights: dict[str, Tensor], tmp_path: Path) -> None:
    from htaf.models.backbone_weights import load_backbone

    file = tmp_path / "weights.safetensors"
    safetensors.torch.save_file(weights, file)
    for other, said in (
        ({"kind": "resnet", "depth": 34, "width": 4, "stem": "cifar"}, "missing"),
        ({"kind": "resnet", "depth": 18, "width": 8, "stem": "cifar"}, r"of another shape \(stages.0.0.conv1.weight"),
        ({"kind": "wide_resnet", "depth": 10, "width": 1, "dropout": 0.0}, "left over"),
    ):
        net = backbone(other, 3, (16, 16))
        before = {k: v.clone() for k, v in net.state_dict().items()}
        with pytest.raises(ValueError, match=rf"another architecture: .*{said}"):
            load_backbone(net, file)
        assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_files_that_hold_no_weights(tmp_path: Path) -> None:
    from htaf.models.backbone_weights import read_weights

    with pytest.raises(ValueError, match="pretrained: expected hub, a file of weights"):
        read_weights(tmp_path / "none.pth")
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    (tmp_path / "broken.pth").write_bytes(b"\x80\x02no")
    torch.save([1, 2], tmp_path / "list.pth")
    for name, said in (
        ("broken.safetensors", "cannot be read"),
        ("broken.pth", "cannot be read"),
        ("list.pth", "list"),
    ):
        with pytest.raises(ValueError, match=said):
            read_weights(tmp_path / name)
