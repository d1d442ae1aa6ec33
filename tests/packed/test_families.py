"""The networks of htaf.models, with one block a stage."""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path

import pytest
import torch
from packed_nets import IMAGES, packs_as, settled

import htaf
from htaf.models.bireal import BiRealNet
from htaf.models.resnet import ResNet
from htaf.models.sew_resnet import SEWResNet
from htaf.models.wide_resnet import WideResNet
from htaf.program.packed import load, pack, save
from quick import slow_but

NETS = {
    "wide": (lambda: WideResNet(10, 1, 4, dropout=0.1), IMAGES, 8),
    "bireal": (lambda: BiRealNet(18, 4, width=8, stem="cifar"), IMAGES, 4),
    "bireal-imagenet": (lambda: BiRealNet(18, 4, width=8), (3, 33, 33), 4),
    "resnet": (lambda: ResNet(18, 4, htaf.HTAF, width=4, stem="cifar"), IMAGES, 11),
    "sew-add": (lambda: SEWResNet(18, 4, width=4, steps=4, stem="cifar"), IMAGES, 11),
    "sew-and": (lambda: SEWResNet(18, 4, partial(htaf.LIF, reset="soft"), width=4, connect="and"), IMAGES, 5),
    "sew-iand": (lambda: SEWResNet(18, 4, width=4, steps=2, stem="cifar", connect="iand"), IMAGES, 5),
}
pytestmark = pytest.mark.usefixtures("short")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    for name in ("bireal", "resnet", "sew_resnet"):
        module = importlib.import_module(f"htaf.models.{name}")
        blocks = getattr(module, "BLOCKS", None) or module._BLOCKS
        monkeypatch.setitem(blocks, 18, (1, 1, 1, 1))


@pytest.mark.parametrize("name", slow_but(NETS, "wide", "bireal", "sew-iand"))
def test_packed_gives_what_the_hardened_model_gives(name: str, tmp_path: Path) -> None:
    make, size, layers = NETS[name]
    packs_as(make, size, layers, tmp_path / "model.htaf")


def test_weights_of_binary_layers_are_bits(tmp_path: Path) -> None:
    x = torch.randn(4, 3, 16, 16)
    packed = pack(settled(BiRealNet(18, 4, stem="cifar"), x), x[:2])
    assert packed.report.float_bytes > 25 * packed.report.packed_bytes
    save(packed, tmp_path / "model.htaf")
    assert load(tmp_path / "model.htaf").report.packed_bytes == packed.report.packed_bytes
