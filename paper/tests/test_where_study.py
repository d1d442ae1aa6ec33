"""The planted-spot experiment: what is planted, and its scores."""

import numpy as np
import pytest
import torch

from htaf.concepts.regions import Map
from htaf_paper import where
from htaf_paper.where import (
    SIZE,
    SPOT,
    covered,
    most_possible,
    overlap,
    planted,
    scored,
    textures,
    without_constant,
)


def test_spots_lie_where_the_boxes_say() -> None:
    data = planted(40, np.random.default_rng(0))
    assert data.images.shape == (40, 3, SIZE, SIZE)
    assert 0.3 < data.bits.mean() < 0.7
    for i, kind in zip(*np.nonzero(data.bits), strict=True):
        left, top, right, bottom = data.boxes[i, kind]
        assert 0 <= left < right <= SIZE
        assert 0 <= top < bottom <= SIZE
        seen = data.images[i, :, top:bottom, left:right].mean(0).numpy()
        assert np.abs(seen - textures()[kind]).max() < 1
    for boxes in data.boxes[:5]:
        assert all(overlap(tuple(a), tuple(b)) == 0 for k, a in enumerate(boxes) for b in boxes[:k])


def test_scores() -> None:
    assert overlap((0, 0, 4, 4), (2, 0, 6, 4)) == pytest.approx(8 / 24)
    assert overlap((0, 0, 2, 2), (2, 2, 4, 4)) == 0
    values = np.full((4, 4), -1.0)
    values[0, 0], values[2, 2] = 3.0, 1.0
    found = Map(0, values, float(values.sum()), -16.0, (SIZE, SIZE))
    spot = (0, 0, SPOT, SPOT)
    assert scored([found], [spot]) == pytest.approx({"mass": 0.75, "pointing": 1.0, "iou": 1.0})
    assert scored([found], [(12, 12, 18, 18)]) == pytest.approx({"mass": 0.25, "pointing": 0.0, "iou": 0.0})
    np.testing.assert_array_equal(without_constant(found).values, values + 1)
    assert most_possible((4, 4), [spot]) == 1
    assert most_possible((4, 4), [(3, 0, 9, 6)]) == pytest.approx(0.5)
    assert most_possible((2, 2), [spot]) == pytest.approx(0.25)


class Sum(torch.nn.Module):
    """Its bit needs the upper left corner."""

    def pre_activations(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 0, :SPOT, :SPOT].sum((1, 2))[:, None] - 1


def test_what_covering_the_box_does() -> None:
    data = where.Planted(torch.ones(1, 3, SIZE, SIZE), np.ones((1, 1), bool), np.array([[[0, 0, SPOT, SPOT]]]))
    values = np.zeros((4, 4))
    values[0, 0] = 1
    found = Map(0, values, 1.0, 0.0, (SIZE, SIZE))
    assert covered(Sum(), data, [(0, 0)], [found], np.random.default_rng(0)) == {"box": 1.0, "elsewhere": 0.0}


@pytest.mark.slow
def test_a_cell_finds_the_spots() -> None:
    found = where.cell("WideResNet-10-1", 0)
    assert found["accuracy"] > 0.95
    assert found["largest_difference"] < 1e-4
    assert found["methods"]["exact"]["mass"] > 3 * found["area"]
    assert found["covered"]["box"] > 0.9
    (table,) = where.outcome([found], "full").tables
    assert [row[0] for row in table.rows[:6]] == list(where.METHODS)
