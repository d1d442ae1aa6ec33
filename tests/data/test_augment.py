"""Augmentation: a function of the key alone, each image with its own draws, equal to PIL and PyTorch."""

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad

import htaf.data.images as module
from htaf._ground.names import Augment
from htaf.data.images import augment, crop

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
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (margin, margin), (margin, margin)))
    result = crop(torch.from_numpy(padded), size, torch.tensor(top), torch.tensor(left), torch.tensor(flip)).numpy()
    for place in range(count):
        window = padded[place, :, top[place] : top[place] + size[0], left[place] : left[place] + size[1]]
        np.testing.assert_array_equal(result[place], window[:, :, ::-1] if flip[place] else window)


def test_crop_flip_draws_for_each_image_alone_and_over_the_whole_range() -> None:
    image = noise(1)
    results = augment("crop-flip", image.expand(2000, -1, -1, -1), 3)
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
    with pytest.raises(ValueError, match=r"augment: expected one of none, crop-flip, .*, got 'mixup'"):
        module.check_preset("mixup")
    with pytest.raises(ValueError, match="key must be >= 0, got -1"):
        augment("shift", noise(), -1)


def test_shift_flip_moves_by_two_pixels_and_reflects() -> None:
    image = noise(1)
    results = augment("shift", image.expand(800, -1, -1, -1), 3)
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


def test_shift_mirrors_none() -> None:
    image = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4)
    moved = augment("shift", image.expand(60, -1, -1, -1), 5)
    assert not torch.equal(moved, image.expand(60, -1, -1, -1))
    assert bool((moved.int().diff(dim=3).sum(3) >= 0).all())  # a mirrored row would fall


def test_shift_flip_begins_with_half_of_the_images_mirrored() -> None:
    image = noise(1, 1, 1, 8).expand(10_000, -1, -1, -1)  # one pixel high, so not moved
    for rows in (torch.arange(10_000), torch.arange(10_000) * 10, torch.arange(10_000) * 2 + 1):
        mirrored = (augment("shift-flip", image, 0, rows=rows) != image).flatten(1).any(1)
        assert 0.48 < mirrored.double().mean() < 0.52
