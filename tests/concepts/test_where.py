"""Maps of concepts, which sum to the pre-activation, and the images behind codes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor, nn

import htaf
from htaf.concepts.codes import ConceptError
from htaf.concepts.regions import Map, Regions, resized
from htaf.concepts.where import Pictures
from htaf.data.image_sets import load
from htaf.data.images import ImagePreprocessor
from htaf.data.reading import DataError
from htaf.models.build import backbone


def test_images_in_memory() -> None:
    digits = load("digits")
    found = Pictures(digits)
    expected = torch.stack([digits.test.pixels[3], digits.train.pixels[0], digits.test.pixels[0]])  # pyright: ignore
    assert torch.equal(found.pixels(["test/3", "train/0", "test/0"]), expected)
    assert found.pixels([]).shape == (0, 1, 8, 8)
    assert found.file("test/3") is None
    np.testing.assert_array_equal(found.original("test/3"), expected[0])
    with pytest.raises(ConceptError, match=r"expected ids of digits, such as 'train/0', got 'test/9999'"):
        found.pixels(["test/9999"])


@pytest.mark.parametrize("side", [80, 8])
def test_images_in_files(tmp_path: Path, side: int) -> None:
    """Small ones are read into memory, and keep their names."""
    for name, level in (("a", 10), ("b", 200)):
        (tmp_path / name).mkdir()
        for number in range(5):
            Image.fromarray(np.full((side, side + 1, 3), level + number, np.uint8)).save(
                tmp_path / name / f"{number}.png"
            )
    images = load(tmp_path, size=80) if side == 80 else load(tmp_path)
    names = [*images.train.names, *images.test.names]  # pyright: ignore
    assert sorted(names) == [f"{name}/{number}.png" for name in "ab" for number in range(5)]
    levels = [{"a": 10, "b": 200}[name[0]] + int(name[2]) for name in names]
    found = Pictures(images)
    assert found.pixels(names)[:, 0, 0, 0].tolist() == levels
    assert found.file(names[0]) == (tmp_path / names[0] if side == 80 else None)
    assert found.original(names[0]).shape == (3, side, side + 1)
    with pytest.raises(ConceptError, match=f"such as '{names[0]}', got 'a/9.png'"):
        found.pixels(["a/9.png"])
    own = Pictures(ImagePreprocessor((0.5,) * 3, (0.2,) * 3, images.train.size, 3, images.classes))  # of codes of files
    paths = [str(tmp_path / name) for name in names]
    assert torch.equal(own.pixels(paths), found.pixels(names))
    with pytest.raises(DataError, match="No such file"):
        own.pixels([*paths, str(tmp_path / "a/9.png")])


ACT = partial(htaf.HTAF, 2.0, 11.0)
WIDE = {"kind": "wide_resnet", "depth": 10, "width": 1, "dropout": 0.0}
NARROW = {"kind": "resnet", "depth": 18, "width": 4, "stem": "cifar"}


def settled(model: nn.Module, images: Tensor) -> Any:
    """With norms that have seen images, in eval mode."""
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(images)
    return model.eval()


def images_of(size: tuple[int, int], n: int = 3, channels: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(n, channels, *size, generator=torch.Generator().manual_seed(seed))


def own(description: dict[str, Any], size: tuple[int, int], concepts: int | None, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    example = torch.zeros(2, 3, *size)
    net = htaf.ICBM(backbone(description, 3, size), 5, ACT, example=example, concepts=concepts)
    return settled(net, images_of(size, 8))


def sums_to_pre_activations(model: Any, images: Tensor, concepts: list[int]) -> Regions:
    regions = Regions(model)
    with torch.no_grad():
        z = model.pre_activations(images).double()
    for i, of_image in enumerate(regions.of(images, concepts)):
        for found, j in zip(of_image, concepts, strict=True):
            assert found.concept == j
            assert found.pre_activation == pytest.approx(float(z[i, j]), abs=1e-5)
            assert found.values.sum() == pytest.approx(float(z[i, j]), abs=2e-5 * (1 + np.abs(found.values).sum()))
            assert found.values.size == 1 or found.values.std() > 0
    return regions


@settings(deadline=None, max_examples=5)
@given(
    description=st.sampled_from([WIDE, NARROW]),
    height=st.integers(8, 24), width=st.integers(8, 24),
    concepts=st.sampled_from([None, 1, 7]), seed=st.integers(0, 99),
)  # fmt: skip
def test_our_backbones(description: dict[str, Any], height: int, width: int, concepts: int | None, seed: int) -> None:
    model = own(description, (height, width), concepts, seed)
    chosen = [0, model.size - 1]
    smooth = sums_to_pre_activations(model, images_of((height, width)), chosen)
    hard = Regions(htaf.harden(model))
    one, two = (each.of(images_of((height, width), 1), chosen)[0][0] for each in (smooth, hard))
    np.testing.assert_allclose(one.values, two.values, atol=1e-6)


class Plain(nn.Module):
    """A made end of a network, to have each form of averaging."""

    channels, image_size = 3, (8, 12)

    def __init__(self, end: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv, self.end = nn.Conv2d(3, 6, 3, padding=1), end
        self.linear, self.norm = nn.Linear(24 if end == "quarters" else 6, 4), nn.BatchNorm1d(4)
        self.layer = nn.LayerNorm(6)

    def pre_activations(self, x: Tensor) -> Tensor:
        maps = self.conv(x).relu()
        match self.end:
            case "mean":
                out = maps.mean((2, 3))
            case "keyword":
                out = torch.mean(input=maps, dim=[-1, -2])
            case "adaptive":
                out = nn.functional.adaptive_avg_pool2d(maps, 1).flatten(1)
            case "quarters":
                out = nn.functional.avg_pool2d(maps, (4, 6)).flatten(1)
            case "channels last":
                out = maps.permute(0, 2, 3, 1).mean((1, 2))
            case "tokens":
                out = maps.flatten(2).transpose(1, 2).mean(1)
            case "pool of tokens":
                out = nn.AdaptiveAvgPool1d(1)(maps.flatten(2)).flatten(1)
            case "more tokens":
                out = torch.cat([maps.flatten(2), maps.amax((2, 3))[..., None]], 2).mean(2)
            case "layer norm":
                out = self.layer(maps.mean((2, 3)))
            case "activation":
                out = maps.mean((2, 3)).sub(0.3).relu()
            case "maximum too":
                out = maps.mean((2, 3)) + maps.amax((2, 3))
            case "excited":
                out = (maps * maps.mean((2, 3), keepdim=True).sigmoid()).amax((2, 3))
            case _:
                out = maps.amax((2, 3))
        return self.norm(self.linear(out))

    def forward(self, x: Tensor) -> Tensor:
        return self.pre_activations(x)


@pytest.mark.parametrize("end", ["mean", "keyword", "adaptive", "channels last", "tokens", "pool of tokens"])
def test_any_form_of_average(end: str) -> None:
    model = settled(Plain(end), images_of((8, 12), 8))
    images = images_of((8, 12), 2)
    regions = sums_to_pre_activations(model, images, [0, 3])
    assert regions.pooling.grid == (8, 12)
    found = regions.of(images, [3])[1][0]
    with torch.no_grad():  # by hand: the linear layer and the norm applied to each place
        each = model.conv(images[1:]).relu()[0].flatten(1).T
        expected = model.norm(model.linear(each))[:, 3].reshape(8, 12) / 96
    np.testing.assert_allclose(found.values, expected.numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("end", "why"),
    [("layer norm", "is not affine"), ("activation", "is not affine"), ("maximum too", "last average alone"),
     ("excited", "not affine|last average alone"), ("maximum", "takes no average"),
     ("more tokens", "no grid of places"), ("quarters", "not affine")],
)  # fmt: skip
def test_other_ends_are_not_called_exact(end: str, why: str) -> None:
    model = settled(Plain(end), images_of((8, 12), 8))
    with pytest.raises(ConceptError, match=why):
        Regions(model)


@pytest.mark.parametrize(
    ("name", "grid"),
    [("tf_efficientnet_lite0", (2, 2)), ("resnet18", (2, 2)), ("mixer_s32_224", (2, 2))],
)
def test_timm_backbones(name: str, grid: tuple[int, int]) -> None:
    pytest.importorskip("timm")  # an extra
    model = htaf.ICBM.from_timm(name, 5, 9, act=ACT, image_size=64)
    regions = sums_to_pre_activations(settled(model, images_of((64, 64), 4)), images_of((64, 64), 2), [0, 8])
    assert regions.pooling.grid == grid


def test_wrong_use() -> None:
    model = settled(Plain("mean"), images_of((8, 12), 8))
    with pytest.raises(ConceptError, match="from 0 to 3, got 4"):
        Regions(model).of(images_of((8, 12)), [4])
    with pytest.raises(ConceptError, match=r"\[3, 8, 12\], got \[3, 3, 8, 8\]"):
        Regions(model).of(images_of((8, 8)), [0])
    with pytest.raises(ConceptError, match="training mode"):
        Regions(model.train())


def test_grad_mode_stays_as_it_was() -> None:
    model = settled(Plain("mean"), images_of((8, 12), 8))
    for mode in (True, False):
        with torch.set_grad_enabled(mode):
            Regions(model).of(images_of((8, 12)), [0])
            assert torch.is_grad_enabled() is mode


@settings(deadline=None, max_examples=30)
@given(*(st.integers(1, 20) for _ in range(4)))
def test_resized_keeps_the_sum(h: int, w: int, height: int, width: int) -> None:
    values = np.random.default_rng(h * 100 + w).normal(size=(h, w))
    found = resized(values, (height, width))
    assert found.shape == (height, width)
    assert found.sum() == pytest.approx(values.sum(), abs=1e-9)
    np.testing.assert_allclose(resized(resized(values, (2 * h, 3 * w)), (h, w)), values, atol=1e-12)


def test_boxes() -> None:
    values = np.zeros((4, 4))
    values[1, 2], values[2, 2], values[3, 0], values[0, 0] = 4.0, 2.0, 3.0, -5.0
    found = Map(0, values, 4.0, 0.0, (32, 48))
    assert found.box() == (24, 8, 36, 24)  # columns of 12 pixels, rows of 8; the value at the left is not joined
    assert Map(0, -np.ones((4, 4)), -16.0, 0.0, (32, 32)).box() is None
    fine = np.zeros((64, 64))
    fine[20:24, 40:44] = 1
    assert Map(0, fine, 1.0, 0.0, (64, 64)).box() == (40, 20, 44, 24)
