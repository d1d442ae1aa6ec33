"""Augmentation: a function of the key alone, each image with its own draws, equal to PIL and PyTorch."""

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn.functional import interpolate, pad

import htaf.data.augment as module
from htaf.data import augmix
from htaf.data.augment import (
    augment,
    crop,
    crop_flip,
    enlarge,
    generator_of,
    resized_crop_flip,
    shift_flip,
)
from htaf.names import Augment

PRESETS = get_args(Augment)
RANDOM = [preset for preset in PRESETS if preset != "none"]


def noise(count: int = 8, channels: int = 3, height: int = 32, width: int = 32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8, generator=generator)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), size=st.tuples(st.integers(1, 12), st.integers(1, 12)), margin=st.integers(0, 4))
def test_a_crop_is_a_window_of_the_padded_image(data: st.DataObject, size: tuple[int, int], margin: int) -> None:
    count = data.draw(st.integers(1, 4))
    images = noise(count, data.draw(st.sampled_from([1, 3])), *size)
    offsets = st.lists(st.integers(0, 2 * margin), min_size=count, max_size=count)
    top, left = data.draw(offsets), data.draw(offsets)
    flip = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    result = crop(images, margin, torch.tensor(top), torch.tensor(left), torch.tensor(flip)).numpy()
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (margin, margin), (margin, margin)))
    for place in range(count):
        window = padded[place, :, top[place] : top[place] + size[0], left[place] : left[place] + size[1]]
        np.testing.assert_array_equal(result[place], window[:, :, ::-1] if flip[place] else window)


def test_crop_flip_draws_for_each_image_alone_and_over_the_whole_range() -> None:
    image = noise(1)
    results = crop_flip(image.expand(2000, -1, -1, -1), generator_of(3))
    padded = torch.nn.functional.pad(image[0], (4, 4, 4, 4))
    windows = {}
    for top in range(9):
        for left in range(9):
            window = padded[:, top : top + 32, left : left + 32]
            windows[window.numpy().tobytes()] = (top, left, False)
            windows[window.flip(2).numpy().tobytes()] = (top, left, True)
    assert len(windows) == 162
    found = [windows[result.numpy().tobytes()] for result in results]
    assert len(set(found)) == 162  # 2,000 draws miss one of them with probability below 0.001
    assert 0.45 < sum(flipped for *_, flipped in found) / 2000 < 0.55


@pytest.mark.parametrize(("size", "margin"), [((32, 32), 4), ((8, 8), 1), ((7, 64), 0), ((112, 96), 12)])
def test_the_margin_is_an_eighth(size: tuple[int, int], margin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(module, "crop", lambda images, margin, *_: seen.append(margin) or images)
    crop_flip(noise(1, 3, *size), generator_of(0))
    assert seen == [margin]


def test_flip_mirrors_about_half_of_the_images() -> None:
    images = noise(400, 1, 3, 4)
    result = augment("flip", images, 1)
    mirrored = (result == images.flip(3)).flatten(1).all(1)
    assert (mirrored | (result == images).flatten(1).all(1)).all()
    assert 0.4 < mirrored.double().mean() < 0.6


def test_none_changes_nothing() -> None:
    images = noise()
    assert torch.equal(augment("none", images, 5), images)


@pytest.mark.parametrize("preset", RANDOM)
@pytest.mark.parametrize("shape", [(16, 3, 32, 32), (16, 1, 8, 8), (16, 3, 20, 33)])
def test_a_function_of_the_key_alone(preset: Augment, shape: tuple[int, int, int, int]) -> None:
    images = noise(*shape)
    before, kept = torch.get_rng_state(), images.clone()
    first = augment(preset, images, 7)
    torch.rand(3)
    torch.set_rng_state(before)
    again = augment(preset, images, 7)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(images, kept)
    assert first.dtype == torch.uint8
    assert first.shape == images.shape
    assert torch.equal(first, again)
    assert not torch.equal(first, augment(preset, images, 8))
    assert not torch.equal(first, augment(preset, images, 7 + 2**32))


@pytest.mark.parametrize("preset", PRESETS)
def test_no_images_one_pixel_and_another_default_device(preset: Augment) -> None:
    assert augment(preset, noise(0), 0).shape == (0, 3, 32, 32)
    assert augment(preset, noise(2, 1, 1, 1), 0).shape == (2, 1, 1, 1)
    images = noise()
    expected = augment(preset, images, 0)
    with torch.device("meta"):
        result = augment(preset, images, 0)
    assert torch.equal(result, expected)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match=r"augment: expected one of none, flip, .*, got 'mixup'"):
        module.check_preset("mixup")
    with pytest.raises(ValueError, match="key must be >= 0, got -1"):
        augment("flip", noise(), -1)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_enlarge_equals_interpolating_the_window(data: st.DataObject) -> None:
    height, width = data.draw(st.integers(2, 40)), data.draw(st.integers(2, 40))
    tall, wide = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    top, left = data.draw(st.integers(0, height - tall)), data.draw(st.integers(0, width - wide))
    images = noise(2, 3, height, width)
    windows = torch.tensor([[top, left, tall, wide]] * 2)
    result = enlarge(images, windows, torch.tensor([False, True])).int()
    window = images[:, :, top : top + tall, left : left + wide].float()
    expected = interpolate(window, (height, width), mode="bilinear", align_corners=False)
    assert (result[0] - expected[0]).abs().max() <= 0.51
    assert (result[1] - expected[1].flip(2)).abs().max() <= 0.51


def test_windows_have_the_areas_and_ratios_of_the_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(module, "enlarge", lambda images, windows, flip: seen.append((windows, flip)) or images)
    resized_crop_flip(noise(1, 1, 200, 200).expand(4000, -1, -1, -1), generator_of(0))
    windows, flip = seen[0]
    top, left, tall, wide = windows.double().unbind(1)
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + tall <= 200).all()
    assert (left + wide <= 200).all()
    ratio, share = wide / tall, tall * wide / 200**2
    assert ratio.min() > 0.73
    assert ratio.max() < 1.37
    assert 0.079 < share.min() < 0.09
    assert share.max() > 0.95
    # all tries but those that stick out are kept: under 0.5 of the area every one fits, so shares there are uniform
    low = share[share < 0.5]
    assert abs(low.mean() - (0.08 + 0.5) / 2) < 0.01
    assert abs(ratio.log()[share < 0.5].mean()) < 0.02
    assert 0.45 < flip.double().mean() < 0.55


def test_a_long_image_takes_windows_that_fit_or_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(module, "enlarge", lambda images, windows, flip: seen.append(windows) or images)
    resized_crop_flip(noise(50, 1, 1, 40), generator_of(0))
    assert torch.equal(seen[0], torch.tensor([[0, 0, 1, 40]]).expand(50, 4)) or (seen[0][:, 2] == 1).all()


# --- AugMix ---


def published(operation: str, image: Image.Image, level: float, sign: int) -> Image.Image:
    """The operations of the published code, its sampled level given."""
    width, height = image.size

    def affine(*matrix: float) -> Image.Image:
        return image.transform(image.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR)

    match operation:
        case "autocontrast":
            return ImageOps.autocontrast(image)
        case "equalize":
            return ImageOps.equalize(image)
        case "posterize":
            return ImageOps.posterize(image, 4 - int(level * 4 / 10))
        case "solarize":
            return ImageOps.solarize(image, 256 - int(level * 256 / 10))
        case "rotate":
            return image.rotate(sign * int(level * 30 / 10), resample=Image.Resampling.BILINEAR)
        case "shear x":
            return affine(1, sign * level * 0.3 / 10, 0, 0, 1, 0)
        case "shear y":
            return affine(1, 0, 0, sign * level * 0.3 / 10, 1, 0)
        case "translate x":
            return affine(1, 0, sign * int(level * (width / 3) / 10), 0, 1, 0)
        case "translate y":
            return affine(1, 0, 0, 0, 1, sign * int(level * (height / 3) / 10))
    raise AssertionError(operation)


def kinds_of_images(height: int, width: int) -> Tensor:
    """Noise, a dark and a bright ramp, few values, one value."""
    ramp = torch.arange(height * width).view(1, height, width).expand(3, -1, -1)
    scaled = [ramp * 90 // ramp.max(), 255 - ramp * 70 // ramp.max(), ramp // 3 % 2 * 40 + 7, torch.full_like(ramp, 9)]
    return torch.cat((noise(3, 3, height, width), torch.stack(scaled).to(torch.uint8)))


@pytest.mark.parametrize("size", [(32, 32), (24, 41)])
@pytest.mark.parametrize("operation", augmix.OPERATIONS)
def test_operations_equal_the_published_ones(operation: str, size: tuple[int, int]) -> None:
    for level in (0.1, 1.3, 2.6, 2.99, 9.9):
        for sign in (-1, 1):
            images = kinds_of_images(*size)
            count = len(images)
            chosen = torch.full((count,), augmix.OPERATIONS.index(operation))
            levels = torch.full((count,), level, dtype=torch.float64)
            result = augmix.operate(images, chosen, levels, torch.full((count,), sign))
            for image, changed in zip(images, result, strict=True):
                pil = published(operation, Image.fromarray(image.permute(1, 2, 0).numpy()), level, sign)
                difference = changed.permute(1, 2, 0).int() - torch.from_numpy(np.array(pil)).int()
                assert difference.abs().max() <= (1 if operation in ("rotate", "shear x", "shear y") else 0)


def test_each_image_has_its_own_operation() -> None:
    images = noise(36)
    chosen = torch.arange(36) % 9
    levels, signs = torch.linspace(0.1, 3, 36, dtype=torch.float64), torch.arange(36) // 9 % 2 * 2 - 1
    together = augmix.operate(images, chosen, levels, signs)
    for place in range(36):
        one = slice(place, place + 1)
        assert torch.equal(augmix.operate(images[one], chosen[one], levels[one], signs[one]), together[one])


def test_weights_sum_to_one_and_chains_have_one_to_three_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, images = [], noise(600, 3, 4, 4)
    monkeypatch.setattr(augmix, "operate", lambda some, *draws: calls.append((len(some), *draws)) or some)
    assert torch.equal(augmix.augmix(images, generator_of(0)), images)
    counts = [count for count, *_ in calls]
    assert counts[0] == 1800  # three chains each
    assert 1100 < counts[1] < 1300
    assert 500 < counts[2] < 700
    chosen, levels, signs = (torch.cat(values) for values in list(zip(*calls, strict=True))[1:])
    assert torch.bincount(chosen).min() > 300  # of 3,600 draws among nine
    assert 0.1 <= levels.min() < 0.2
    assert 2.9 < levels.max() <= 3
    assert set(signs.tolist()) == {-1, 1}


def test_mixing_weights_are_uniform_and_dirichlet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains that turn black white leave 255 * m; each alone leaves 255 * m * w, where E w = 1 / 3, var w = 1 / 18."""
    count = 4000
    black = torch.zeros(count, 1, 1, 1, dtype=torch.uint8)
    monkeypatch.setattr(augmix, "operate", lambda some, *_: torch.full_like(some, 255))
    part = augmix.augmix(black, generator_of(1)).double().flatten() / 255
    assert abs(part.mean() - 1 / 2) < 0.02
    assert abs(part.var() - 1 / 12) < 0.01

    def first_chain(some: Tensor, *_: Tensor) -> Tensor:
        if len(some) == 3 * count:
            some = some.clone()
            some[:count] = 255
        return some

    monkeypatch.setattr(augmix, "operate", first_chain)
    weighted = augmix.augmix(black, generator_of(1)).double().flatten() / 255
    share = (weighted / part)[part > 0.2]
    assert abs(share.mean() - 1 / 3) < 0.02
    assert abs(share.var() - 1 / 18) < 0.005


def test_shift_flip_moves_by_two_pixels_and_reflects() -> None:
    image = noise(1)
    results = shift_flip(image.expand(800, -1, -1, -1), generator_of(3), torch.zeros(800, dtype=torch.long), 0)
    padded = pad(image.float(), (2, 2, 2, 2), mode="reflect")[0].to(torch.uint8)
    windows = {padded[:, i : i + 32, j : j + 32].numpy().tobytes() for i in range(5) for j in range(5)}
    assert {result.numpy().tobytes() for result in results} == windows


@given(seed=st.integers(0, 99), epoch=st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_shift_flip_mirrors_every_image_in_every_other_epoch(seed: int, epoch: int) -> None:
    images, rows = noise(16, 1, 8, 8, seed), torch.randint(0, 50_000, (16,))
    now, then, again = (augment("shift-flip", images, 5, rows=rows, epoch=epoch + i) for i in range(3))
    assert torch.equal(now, again)
    assert torch.equal(now, then.flip(3))
    order = torch.randperm(16)  # which ones are mirrored does not depend on their place in the batch
    line = noise(1, 1, 1, 8, seed).expand(16, -1, -1, -1)  # one pixel high, so not moved
    kept, mixed = (augment("shift-flip", line, 5, rows=r, epoch=epoch) for r in (rows, rows[order]))
    assert torch.equal(kept[order], mixed)


def test_shift_flip_begins_with_half_of_the_images_mirrored() -> None:
    image = noise(1, 1, 1, 8).expand(10_000, -1, -1, -1)  # one pixel high, so not moved
    for rows in (torch.arange(10_000), torch.arange(10_000) * 10, torch.arange(10_000) * 2 + 1):
        mirrored = (augment("shift-flip", image, 0, rows=rows) != image).flatten(1).any(1)
        assert 0.48 < mirrored.double().mean() < 0.52
