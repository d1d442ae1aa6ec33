"""Repair against closed forms, direct least squares, and networks that it can make exact."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import Linear01, batches, error, fresh, rows
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import htaf
from htaf import HTAF, BinaryConv2d, harden, repair
from htaf.models.bireal import BiRealNet
from htaf.models.icbm import ICBM
from htaf.models.mlp import MLP
from htaf.models.sew_resnet import SEWResNet
from htaf.models.wide_resnet import WideResNet
from quick import slow_but

WEAK = 1e-7


# ---- networks whose smooth outputs are a linear function of the bits: repair makes them exact ----


@settings(max_examples=20)
@given(
    st.integers(0, 1000),
    st.lists(st.integers(1, 12), min_size=1, max_size=3),
    st.integers(1, 4),
    st.booleans(),
)
def test_a_linear_function_of_the_bits_is_found(seed: int, hidden: list[int], outputs: int, norm: bool) -> None:
    net = fresh(lambda: MLP(5, outputs, hidden, Linear01, norm), seed)
    some = batches(200, 5)
    repaired, report = repair(harden(net), net, some, strength=WEAK)
    assert error(repaired, net, some) < 1e-3
    assert [layer.name for layer in report.layers][-1] == "head"
    assert len(report.layers) == len(hidden)  # not the first, whose input is as it was


class Residual(nn.Module):
    """Two blocks, each added to the bits that it reads; `join` says how."""

    def __init__(self, join: Callable[[Tensor, Tensor], Tensor], more: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.linears = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
        self.acts = nn.ModuleList([Linear01() for _ in range(2)])
        self.more = nn.ModuleList([more() for _ in range(2)])
        self.join = join

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for linear, act, more in zip(self.linears, self.acts, self.more, strict=True):
            bits = act(x)
            x = self.join(more(linear(bits)), bits)
        return self.head(x)


def in_place(a: Tensor, b: Tensor) -> Tensor:
    a += b
    return a


JOINS: dict[str, tuple[Callable[..., Tensor], Callable[[], nn.Module]]] = {
    "plus": (lambda a, b: a + b, nn.Identity),
    "in place": (in_place, nn.Identity),
    "into the shortcut": (lambda a, b: b.clone().add_(a), nn.Identity),
    "norm": (lambda a, b: a + b, lambda: nn.BatchNorm1d(8)),
    "norm, in place": (in_place, lambda: nn.BatchNorm1d(8)),
    "norm and dropout": (in_place, lambda: nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Identity())),
    "reshaped": (lambda a, b: (a.reshape(-1, 2, 4) + b.view(-1, 2, 4)).reshape(-1, 8), nn.Identity),
}  # fmt: skip


@pytest.mark.parametrize("kind", JOINS)
def test_errors_of_a_shortcut_are_carried(kind: str) -> None:
    net, some = fresh(partial(Residual, *JOINS[kind])), batches(300, 6)
    exact = harden(net)
    repaired, report = repair(exact, net, some, strength=WEAK)
    assert error(exact, net, some) > 0.1
    assert error(repaired, net, some) < 1e-3
    # the second sum is the smooth one already, so the head stays as it is
    assert [layer.name for layer in report.layers] == ["linears.0", "linears.1"]


# ---- against direct least squares ----

CONVOLUTIONS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "1d, stride": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1), (4, 17)),
    "2d": (lambda: nn.Conv2d(3, 5, 3, padding=1), (3, 7, 6)),
    "2d, groups, stride, dilation": (
        lambda: nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(2, 1), dilation=(2, 1), groups=2), (4, 9, 8)),
    "2d, depthwise, reflect": (lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4, padding_mode="reflect"), (4, 6, 6)),
    "2d, circular, no bias": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular", bias=False), (3, 6, 5)),
    "2d, same": (lambda: nn.Conv2d(2, 3, (2, 4), padding="same"), (2, 6, 7)),
    "2d, valid, replicate": (lambda: nn.Conv2d(2, 3, 3, padding="valid", padding_mode="replicate"), (2, 6, 7)),
    "3d": (lambda: nn.Conv3d(2, 4, 2, padding=1, groups=2), (2, 4, 3, 5)),
    "linear": (lambda: nn.Linear(7, 4), (7,)),
    "linear, tokens": (lambda: nn.Linear(7, 4), (3, 7)),
}  # fmt: skip


def patches_of(layer: Any, x: Tensor) -> Tensor:
    """[groups, rows, fan_in], by the layer itself with one weight of 1 after the other."""
    if isinstance(layer, nn.Linear):
        return x.reshape(1, -1, x.shape[-1])
    probe = copy.deepcopy(layer).double()
    size = layer.weight[0].numel()
    found = []
    for i in range(size):
        with torch.no_grad():
            probe.weight.zero_().flatten(1)[:, i] = 1
            if probe.bias is not None:
                probe.bias.zero_()
            y = probe(x)
        y = y.movedim(1, -1).reshape(-1, layer.groups, layer.out_channels // layer.groups)
        found.append(y[:, :, 0].T)
    return torch.stack(found, -1)


def direct(layer: Any, calls: list[tuple[Tensor, Tensor]], strength: float) -> tuple[Tensor, Tensor | None]:
    """Weight and bias by the normal equations of all patches, in float64; uncentred without a bias."""
    layer = copy.deepcopy(layer).double()
    with torch.no_grad():
        h = torch.cat([patches_of(layer, x.double()) for x, _ in calls], 1)
        axis = -1 if isinstance(layer, nn.Linear) else 1
        outputs = layer.weight.shape[0]
        r = torch.cat([(u.double() - layer(x.double())).movedim(axis, -1).reshape(-1, outputs) for x, u in calls])
        r = r.reshape(len(r), h.shape[0], -1).transpose(0, 1)
        mean, offset = (v.mean(1, keepdim=True) if layer.bias is not None else 0 for v in (h, r))
        hc, rc = h - mean, r - offset
        gram = hc.transpose(1, 2) @ hc
        weight = strength * gram.diagonal(dim1=1, dim2=2).mean(1)
        d = torch.linalg.solve(gram + weight[:, None, None] * torch.eye(gram.shape[1]), hc.transpose(1, 2) @ rc)
        bias = None if layer.bias is None else layer.bias + (offset - mean @ d).flatten()
        return layer.weight + d.transpose(1, 2).reshape(layer.weight.shape), bias


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_a_layer_against_direct_least_squares(kind: str) -> None:
    make, shape = CONVOLUTIONS[kind]
    net: Any = fresh(lambda: nn.Sequential(HTAF(1.0, 3.0), make()))
    some = batches(12, *shape)
    repaired: Any = repair(harden(net), net, some, strength=0.05)[0]
    with torch.no_grad():
        calls = [((x >= 0).float(), net(x)) for x in some]
    weight, bias = direct(net[1], calls, 0.05)
    torch.testing.assert_close(repaired[1].weight.double(), weight, rtol=1e-4, atol=1e-5)
    if bias is not None:
        torch.testing.assert_close(repaired[1].bias.double(), bias, rtol=1e-4, atol=1e-5)


class Steps(nn.Module):
    """One layer at two depths, and three time steps of another."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.act, self.head = nn.Linear(5, 5), HTAF(1.0, 3.0), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.head(self.act(x + i)) for i in (-0.5, 0.0, 0.5)]).mean(0)


def test_all_calls_of_a_layer_are_taken_together() -> None:
    net: Any = fresh(Steps)
    some = batches(40, 5)
    repaired: Any = repair(harden(net), net, some, strength=0.02)[0]
    with torch.no_grad():
        calls = [((x + i >= 0).float(), net.head(net.act(x + i))) for x in some for i in (-0.5, 0.0, 0.5)]
    weight, bias = direct(net.head, calls, 0.02)
    torch.testing.assert_close(repaired.head.weight.double(), weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(repaired.head.bias.double(), bias, rtol=1e-4, atol=1e-5)


def test_large_inputs_are_sampled_the_same_each_time() -> None:
    net = fresh(lambda: nn.Sequential(HTAF(1.0, 3.0), nn.Conv2d(2, 3, 3, padding=1)))
    some = batches(16, 2, 40, 40)  # 51,200 rows
    exact = harden(net)
    one, report = repair(exact, net, some)
    two, _ = repair(exact, net, some)
    assert report.layers[0].rows == 4096
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))
    held = [rows(16, 2, 40, 40, seed=9)]
    assert error(one, net, held) < 0.9 * error(exact, net, held)


# ---- what is left alone ----


def test_fewer_rows_than_inputs_are_noted() -> None:
    net = fresh(lambda: nn.Sequential(nn.Linear(4, 6), HTAF(1.0, 3.0), nn.Linear(6, 2)))
    few = "2: 5 rows are fewer than its 6 inputs. Many weights fit so few rows; the strength decides"
    notes = repair(harden(net), net, [rows(5, 4)])[1].notes
    assert [note.startswith(few) for note in notes] == [True]
    assert "near what they were" in notes[0]
    assert repair(harden(net), net, [rows(6, 4)])[1].notes == ()


def test_dead_units_keep_their_weights() -> None:
    net: Any = fresh(lambda: nn.Sequential(nn.Linear(4, 6), HTAF(1.0, 3.0), nn.Linear(6, 2)))
    with torch.no_grad():
        net[0].bias[:2] = torch.tensor([50.0, -50.0])
    repaired: Any = repair(harden(net), net, batches(100, 4))[0]
    before, after = net[2].weight, repaired[2].weight
    assert torch.equal(before[:, :2], after[:, :2])
    assert not torch.equal(before, after)
    with torch.no_grad():
        net[0].bias[:] = 50.0
    repaired = repair(harden(net), net, batches(100, 4), strength=0.1)[0]
    assert torch.equal(net[2].weight, repaired[2].weight)
    assert error(repaired, net, batches(100, 4)) < 1e-5


def test_binary_layers_stay_binary() -> None:
    net: Any = fresh(
        lambda: nn.Sequential(HTAF(1.0, 3.0, bipolar=True), BinaryConv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU())
    )
    some, exact = batches(20, 3, 8, 8), harden(net)
    repaired: Any
    repaired, report = repair(exact, net, some)
    assert torch.equal(net[1].weight, repaired[1].weight)
    assert [layer.name for layer in report.layers] == ["2"]
    assert report.notes == ("1 is left as it is: its weights are binary",)
    assert error(repaired, net, some) < error(exact, net, some)


def test_layers_that_cannot_be_corrected_are_named() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act, self.embedding = HTAF(1.0, 3.0), nn.Embedding(4, 6)
            self.tied, self.normed = nn.Linear(6, 4), parametrizations.weight_norm(nn.Linear(6, 4))
            self.tied.weight = self.embedding.weight
            self.twice = Twice(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.act(x)
            return self.tied(x) * self.normed(x) * self.twice(x)

    class Twice(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    net = fresh(Odd)
    repaired, report = repair(harden(net), net, batches(50, 6))
    assert report.layers == ()
    assert [note.split(": ")[1] for note in report.notes] == [
        "another module has the same weight",
        "its weight is computed from others (a parametrisation)",
        "its output is not that of a plain Twice",
    ]
    assert all(
        torch.equal(a, b) for a, b in zip(net.state_dict().values(), repaired.state_dict().values(), strict=True)
    )


def test_channels_of_gain_zero_are_left_alone() -> None:
    net: Any = fresh(partial(Residual, *JOINS["norm"]))
    with torch.no_grad():
        net.more[0].weight[2] = 0
    repaired: Any = repair(harden(net), net, batches(300, 6), strength=WEAK)[0]
    assert torch.equal(net.linears[0].weight[2], repaired.linears[0].weight[2])
    assert not torch.equal(net.linears[0].weight[3], repaired.linears[0].weight[3])
    assert all(torch.isfinite(v).all() for v in repaired.state_dict().values())


def test_norms_behind_sums_and_layers_get_the_right_mean() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.acts = nn.ModuleList([HTAF(1.0, 3.0) for _ in range(2)])
            self.convs = nn.ModuleList([nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(2)])
            self.norms = nn.ModuleList([nn.BatchNorm2d(4) for _ in range(2)])

        def forward(self, x: Tensor) -> Tensor:
            x = self.norms[0](self.convs[0](self.acts[0](x)))
            return self.norms[1](self.convs[1](self.acts[1](x)) + x.abs())

    net, some = fresh(Block), batches(50, 4, 6, 6)
    repaired, report = repair(harden(net), net, some)
    assert [layer.name for layer in report.layers] == ["convs.0", "convs.1", "norms.1"]
    with torch.no_grad():
        outputs = [torch.cat([m(x) for x in some]) for m in (net, repaired)]
        inner: Any = [m.norms[0](m.convs[0](m.acts[0](torch.cat(some)))) for m in (net, repaired)]
    for pair in (outputs, inner):
        torch.testing.assert_close(*[y.mean((0, 2, 3)) for y in pair], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(*[y.std((0, 2, 3)) for y in pair], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("make", "shape"),
    [(lambda: nn.Conv2d(3, 4, 3), (3, 9, 9)), (lambda: nn.Linear(5, 4), (30, 5)), (lambda: nn.Linear(5, 4), (5,))],
)
def test_one_sample_is_enough(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    net = fresh(lambda: nn.Sequential(Linear01(), make()))
    some = batches(1, *shape, count=1)
    repaired, report = repair(harden(net), net, some)
    assert len(report.layers) == 1
    assert error(repaired, net, some) < (0.05 if len(shape) > 1 else 1e-5)  # of one row the bias alone is known


def test_a_network_of_bfloat16() -> None:
    net = fresh(lambda: MLP(5, 3, (12, 10), Linear01, True)).bfloat16()
    some = [x.bfloat16() for x in batches(200, 5)]
    repaired, report = repair(harden(net), net, some, strength=WEAK)
    assert report.notes == ()
    with torch.no_grad():
        x = torch.cat(some)
        errors = [nn.functional.mse_loss(m(x).float(), net(x).float()).item() for m in (harden(net), repaired)]
    assert errors[1] < 0.01 * errors[0]  # a bit at its threshold falls to the other side now and then


def set_in_part(a: Tensor, b: Tensor) -> Tensor:
    a[:, 0] = 1.0
    return a + b


def through_a_view(a: Tensor, b: Tensor) -> Tensor:
    a.view(-1)[::3].fill_(1.0)
    return a + b


@pytest.mark.parametrize("join", [set_in_part, through_a_view])
def test_what_was_overwritten_is_not_undone(join: Callable[..., Tensor]) -> None:
    """Then a layer gives what it gave in the smooth network, as does every layer that goes into no sum."""
    net, some = fresh(partial(Residual, join, nn.Identity)), batches(300, 6)
    repaired: Any = repair(harden(net), net, some, strength=WEAK)[0]
    with torch.no_grad():
        for x in some:
            bits = (repaired.first(x) >= 0).float()
            torch.testing.assert_close(
                repaired.linears[0](bits), net.linears[0](0.2 + 0.5 * bits), atol=1e-4, rtol=1e-4
            )


# ---- whole networks ----


def timm_resnet() -> nn.Module:
    timm = pytest.importorskip("timm")
    sizes: dict[str, Any] = {"channels": (4, 4, 8, 8), "stem_width": 4}
    return htaf.replace(
        timm.create_model("resnet10t", num_classes=3, in_chans=1, **sizes), partial(HTAF, 1.0, 5.0), where="*"
    )


def timm_vit() -> nn.Module:
    timm = pytest.importorskip("timm")
    sizes: dict[str, Any] = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
    vit = timm.create_model("vit_tiny_patch16_224", num_classes=3, in_chans=1, **sizes)
    return htaf.replace(vit, partial(HTAF, 1.0, 5.0), where="*")


def icbm() -> nn.Module:
    backbone = WideResNet(10, 1, 1, nn.ReLU, in_channels=1)
    backbone.head = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
    return ICBM(backbone, 3, partial(HTAF, 1.0, 5.0), example=torch.zeros(2, 1, 16, 16), concepts=12)


act, bipolar = partial(HTAF, 1.0, 5.0), partial(HTAF, 1.0, 5.0, bipolar=True)
# the network, its layers that are repaired, and the largest share of the error of its outputs that may be left
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, float]] = {
    "mlp": (lambda: nn.Sequential(nn.Flatten(), MLP(256, 3, (16, 12), act, True)), 2, 0.9),
    "wide resnet": (lambda: WideResNet(10, 1, 3, act, in_channels=1), 9, 0.9),
    "sew resnet": (
        lambda: SEWResNet(18, 3, lambda: htaf.IF(act()), steps=2, width=4, stem="cifar", in_channels=1), 20, 1.0),
    "bireal": (lambda: BiRealNet(18, 3, bipolar, width=4, stem="cifar", in_channels=1), 4, 1.0),
    "icbm": (icbm, 1, 0.9),
    "timm resnet": (timm_resnet, 15, 1.0),
    "timm vit": (timm_vit, 7, 0.9),
}  # fmt: skip


@pytest.mark.parametrize("kind", slow_but(NETWORKS, "mlp", "wide resnet", "bireal", "icbm", "timm vit"))
def test_every_family(kind: str) -> None:
    make, count, gain = NETWORKS[kind]
    net = fresh(make)
    exact, some = harden(net), batches(64, 1, 16, 16, count=1)
    before = {k: v.clone() for k, v in [*net.state_dict().items(), *exact.state_dict().items()]}
    repaired, report = repair(exact, net, some)
    weights = [layer for layer in report.layers if "running mean" not in layer.note]
    assert len(weights) == count, report
    assert all(layer.after <= layer.before * 1.001 for layer in weights)
    with torch.no_grad():
        errors = [sum((m(x) - net(x)).square().mean().item() for x in some) for m in (exact, repaired)]
    assert errors[1] < gain * errors[0]
    after = dict([*net.state_dict().items(), *exact.state_dict().items()])
    assert all(torch.equal(v, after[k]) for k, v in before.items()), "the inputs are not changed"
    assert not any(m._forward_hooks for m in (*net.modules(), *repaired.modules()) if isinstance(m, nn.Conv2d))
    assert not repaired.training
    assert len(json.loads(json.dumps(dataclasses.asdict(report)))["layers"]) == len(report.layers)


def test_training_flags_and_layers_in_train_mode_stay() -> None:
    net = fresh(lambda: MLP(5, 2, (6,), HTAF, True)).train()
    exact = harden(net)
    exact.get_submodule("hidden.0.norm").eval()
    flags = [m.training for m in exact.modules()]
    repair(exact, net, batches(20, 5))
    assert [m.training for m in exact.modules()] == flags
    assert all(m.training for m in net.modules())


# ---- errors ----


def test_batches_and_networks_that_do_not_fit() -> None:
    net = fresh(lambda: MLP(5, 2, (6,), HTAF, True))
    exact = harden(net)
    with pytest.raises(ValueError, match=r"expected strength >= 0, or None, got -0.1"):
        repair(exact, net, batches(4, 5), strength=-0.1)
    with pytest.raises(
        ValueError, match=r"the same layers, got hidden.0.norm \(1 calls\) in exact where smooth has head"
    ):
        repair(exact, fresh(lambda: MLP(5, 2, (6,), HTAF)), batches(4, 5))
    with pytest.raises(
        ValueError, match=r"got the smooth network first: hidden.0.act is HTAF in the first network and"
    ):
        repair(net, exact, batches(4, 5))
    shorter = copy.deepcopy(exact)
    shorter.head = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValueError, match="the same layers, got 2 and 3"):
        repair(shorter, net, batches(4, 5))
