"""The comparison with ANN-to-SNN conversion: its figures recomputed, what is resumed, what is refused, the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from htaf.activations import HTAF, Heaviside
from htaf.data.images import fit_preprocessor, load
from htaf.data.parts import image_rows
from htaf.models.build import build
from htaf.runs import finish_run, open_run, start_run
from htaf.spiking.neurons import IF
from htaf.training.families import make_recipe
from htaf.training.fit import run_identity
from htaf.training.recipe import Recipe
from htaf_paper.ann_to_snn import balanced_rows, pair_of
from htaf_paper.ann_to_snn_measure import ComparisonError, Pair, compare, passes_at
from htaf_paper.balanced import to_spiking


def small(act: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), act, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 3)
    )


def pair() -> Pair:
    class Once(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.neuron = IF(Heaviside())

        def forward(self, x: Tensor) -> Tensor:
            return self.neuron(x[None])[0]

    x = torch.randn(23, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    relu = small(nn.ReLU()).eval()
    labels = relu(x).argmax(1)
    labels[::4] = (labels[::4] + 1) % 3  # the ReLU network is not always right
    return Pair(relu, small(Once()).eval(), x, x + 0.1, labels, torch.randn(40, 1, 6, 6))


def test_figures_of_a_comparison() -> None:
    p, said = pair(), []
    result = compare(p, {"mode": 0.7}, steps=(2, 5, 9), batch_size=8, repeats=1, progress=said.append)
    spiking = to_spiking(p.relu, p.calibration.split(8), mode=0.7)
    expected = [(spiking(p.relu_images, t).argmax(1) == p.labels).float().mean().item() for t in range(1, 10)]
    assert result["accuracy_by_step"] == pytest.approx(expected)
    assert result["accuracy"] == pytest.approx({"2": expected[1], "5": expected[4], "9": expected[8]})
    assert result["relu"]["accuracy"] == pytest.approx(17 / 23)
    snn = (p.snn(p.snn_images).argmax(1) == p.labels).float().mean().item()
    assert result["snn"]["accuracy"] == pytest.approx(snn)
    assert result["thresholds"] == {"2": pytest.approx(float(spiking.neurons["2"].threshold))}
    assert 0 < result["seconds"]["2"] < result["seconds"]["5"] < result["seconds"]["9"]
    assert min(result["snn"]["seconds"], result["relu"]["seconds"], result["conversion_seconds"]) > 0
    assert said == ["8 of 23 images", "16 of 23 images", "23 of 23 images"]
    assert result["images"] == 23


def test_the_test_images_set_no_threshold() -> None:
    p = pair()
    one, other = (
        compare(q, {"mode": "max"}, steps=(1,), repeats=1) for q in (p, replace(p, relu_images=p.relu_images * 9))
    )
    assert one["thresholds"] == other["thresholds"]
    moved = replace(p, calibration=p.calibration * 9)
    assert compare(moved, {"mode": "max"}, steps=(1,), repeats=1)["thresholds"] != one["thresholds"]


def test_a_network_that_cannot_be_converted() -> None:
    p = pair()
    with pytest.raises(ComparisonError, match="cannot be converted"):
        compare(replace(p, relu=small(nn.Tanh()).eval()), {"mode": "max"}, steps=(1,))


@pytest.mark.parametrize(
    ("correct", "direct", "at"),
    [
        ([1, 5, 9], 4, 2),
        ([5, 6, 9], 4, 1),
        ([5, 3, 9, 8], 4, 3),  # ahead, behind, ahead
        ([1, 2, 4], 4, None),  # level is not ahead
        ([9, 9, 4], 4, None),
        ([1, 2, 5], 4, 3),
    ],
)
def test_passes_at(correct: list[int], direct: int, at: int | None) -> None:
    assert passes_at(correct, direct) == at


def test_balanced_rows() -> None:
    labels = torch.arange(60) % 3
    rows = balanced_rows(labels, 3, 20)
    assert torch.bincount(labels[rows]).tolist() == [7, 7, 6]
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert torch.equal(rows, balanced_rows(labels, 3, 20))
    assert not torch.equal(rows, balanced_rows(labels, 3, 20, seed=1))
    assert torch.equal(balanced_rows(labels, 3, 0), torch.arange(60))
    with pytest.raises(ComparisonError, match="expected 21 images of class 0, got 20"):
        balanced_rows(labels, 3, 61)
    with pytest.raises(ComparisonError, match="each of the 3 classes or more, got 2"):
        balanced_rows(labels, 3, 2)


# ---- runs ----


def make_run(path: Path, recipe: Recipe, accuracy: float) -> Path:
    """A run folder as `htaf train` writes it, with fresh weights."""
    images = load("digits")
    rows = image_rows(images, recipe.data.train_images, recipe.data.validation_images)
    preprocessor = fit_preprocessor(images, rows.train)
    record = start_run(path, run_identity(recipe, images, 0, "official"))
    description = recipe.model({"in_channels": 1}, 10)
    torch.manual_seed(3)
    model = build(description).train()
    model(preprocessor.normalise(images.train.batch(rows.train[:64])))
    metrics = {"test": {"accuracy": accuracy}}
    record |= {"model": description, "headline": "accuracy", "rows": {}, "best_epoch": 0, "notes": []}
    record |= {"metrics": {"smooth": metrics, "exact": metrics}, "source": {"name": "digits"}, "parameters": 1}
    finish_run(path, record, model, preprocessor)
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    snn = make_recipe(family="snn", width=2, train_images=200, validation_images=100, augment="none")
    return (
        make_run(folder / "relu", snn.replace(method="relu"), 0.875),
        make_run(folder / "snn", snn, 0.75),
    )


def test_pair_of_runs(runs: tuple[Path, Path]) -> None:
    relu, snn = (open_run(run) for run in runs)
    images = load("digits")
    p = pair_of(relu, snn, images, test=30, calibration=1000)
    assert torch.bincount(p.labels).tolist() == [3] * 10
    assert any(isinstance(m, Heaviside) for m in p.snn.modules())
    assert not any(isinstance(m, HTAF) for m in p.snn.modules())
    # all 200 training images of the run, and no other
    rows = image_rows(images, 200, 100).train
    expected = relu.preprocessor().normalise(images.train.batch(rows))  # pyright: ignore
    assert p.calibration.shape == expected.shape
    torch.testing.assert_close(p.calibration.flatten(1).sum(1).sort().values, expected.flatten(1).sum(1).sort().values)
    with pytest.raises(ComparisonError, match="expected a run of method relu, got htaf"):
        pair_of(snn, snn, images, test=30, calibration=10)
    with pytest.raises(ComparisonError, match="expected a spiking run"):
        pair_of(relu, relu, images, test=30, calibration=10)
    with pytest.raises(ComparisonError, match="trained on other data"):
        pair_of(relu, snn, replace(images, fingerprint="other"), test=30, calibration=10)
