"""The comparison with ANN-to-SNN conversion: its figures recomputed, what is resumed, what is refused, the report."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from htaf.core.activations import HTAF, Heaviside
from htaf.data.image_sets import load
from htaf.data.images import fit_preprocessor, split
from htaf.models.build import build
from htaf.training.families import make_recipe
from htaf.training.fit import run_identity
from htaf.training.recipe import Recipe
from htaf.training.runs import finish_run, open_run, start_run
from htaf.transform.spiking.neurons import IF
from htaf_paper.ann_to_snn import balanced_rows, pair_of
from htaf_paper.ann_to_snn_measure import ComparisonError, Pair, compare, passes_at
from htaf_paper.balanced import BalancedIF, SpikingModel, to_spiking


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
    rows = split(images, train=recipe.data.train_images, validation=recipe.data.validation_images)
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
    rows = split(images, train=200, validation=100).train
    expected = relu.preprocessor().normalise(images.train.batch(rows))  # pyright: ignore
    assert p.calibration.shape == expected.shape
    torch.testing.assert_close(p.calibration.flatten(1).sum(1).sort().values, expected.flatten(1).sum(1).sort().values)
    with pytest.raises(ComparisonError, match="expected a run of method relu, got htaf"):
        pair_of(snn, snn, images, test=30, calibration=10)
    with pytest.raises(ComparisonError, match="expected a spiking run"):
        pair_of(relu, relu, images, test=30, calibration=10)
    with pytest.raises(ComparisonError, match="trained on other data"):
        pair_of(relu, snn, replace(images, fingerprint="other"), test=30, calibration=10)


# ---- balanced neurons ----


class Block(nn.Module):
    """A residual block with sums in place."""

    def __init__(self, channels: int, *, inplace: bool) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.norm2 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.relu1, self.relu2 = nn.ReLU(inplace), nn.ReLU(inplace)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu1(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += x
        return self.relu2(out)


def conv_net(*, inplace: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace), Block(4, inplace=inplace), nn.AvgPool2d(4)
    )
    net += nn.Sequential(nn.Flatten(), nn.Linear(4 * 2 * 2, 5))
    net.double()
    for _ in range(3):  # running statistics that are not 0 and 1
        net(images(32))
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    return net.eval()


def images(n: int, seed: int = 1) -> Tensor:
    return torch.randn(n, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def layer(threshold: float) -> SpikingModel:
    neuron = BalancedIF()
    neuron.threshold = torch.tensor(threshold, dtype=torch.float64)
    return SpikingModel(neuron).eval()


def converter(model: nn.Module, batches: list[Tensor], mode: str | float, x: Tensor, steps: int) -> Tensor:
    """spikingjelly.activation_based.ann2snn.Converter(momentum=0.1, fuse_flag=True), then the sum over T steps / T."""
    graph = fx.symbolic_trace(copy.deepcopy(model).eval())
    modules = dict(graph.named_modules())
    for node in list(graph.graph.nodes):
        if node.op == "call_module" and isinstance(modules[node.target], nn.BatchNorm2d):
            conv = node.args[0]
            fused = fuse_conv_bn_eval(modules[conv.target], modules[node.target])
            parent, _, name = conv.target.rpartition(".")
            setattr(graph.get_submodule(parent), name, fused)
            node.replace_all_uses_with(conv)
            graph.graph.erase_node(node)
    graph.recompile()
    scale: dict[str, Tensor] = {}

    class Hooked(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Tensor:
            out = super().run_node(n)
            if n.op == "call_module" and isinstance(modules[n.target], nn.ReLU):
                if isinstance(mode, str) and mode.endswith("%"):
                    s = torch.tensor(np.percentile(out.detach().numpy(), float(mode[:-1])))
                else:
                    s = out.max() * (1.0 if mode == "max" else mode)
                scale[n.name] = s.clone() if n.name not in scale else 0.9 * scale[n.name] + 0.1 * s
            return out

    potential: dict[str, Tensor] = {}

    class Spiking(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Tensor:
            if not (n.op == "call_module" and isinstance(modules[n.target], nn.ReLU)):
                return super().run_node(n)
            current = self.fetch_args_kwargs_from_env(n)[0][0] * (1.0 / scale[n.name])
            v = potential.get(n.name, torch.zeros_like(current)) + current
            spike = (v >= 1.0).to(v)
            potential[n.name] = v - spike
            return spike * scale[n.name]

    with torch.no_grad():
        for batch in batches:
            Hooked(graph).run(batch.clone())
        total = sum(Spiking(graph).run(x.clone()) for _ in range(steps))
    assert isinstance(total, Tensor)
    return total / steps


@settings(max_examples=60, deadline=None)
@given(x=st.lists(st.floats(-3, 3), min_size=1, max_size=6), s=st.floats(0.1, 4), steps=st.integers(1, 60))
def test_one_layer_is_a_clipped_relu_to_within_s_over_t(x: list[float], s: float, steps: int) -> None:
    at = torch.tensor([x], dtype=torch.float64)
    error = at.clamp(0, s) - layer(s)(at, steps)
    reached = (at <= 0) | (at >= s)  # a neuron below rest may owe, one above s may keep more than s
    assert (error[~reached] > -1e-9).all()
    assert (error[~reached] < s / steps + 1e-9).all()
    assert (error[reached].abs() <= 1e-9).all()


@pytest.mark.parametrize(("mode", "inplace"), [("max", True), ("80%", False), (0.7, True)])
def test_numbers_of_spikingjelly(mode: str | float, inplace: bool) -> None:
    net, batches, x = conv_net(inplace=inplace), [images(6, seed) for seed in range(4)], images(5, 99)
    how: Any = {"mode": "percentile", "percentile": 80} if mode == "80%" else {"mode": mode}
    spiking, given = to_spiking(net, batches, **how), x.clone()
    for _ in range(2):  # every run begins at rest
        for t, mean in spiking.run(x, (1, 2, 7, 40)):
            torch.testing.assert_close(mean, converter(net, batches, mode, x, t), rtol=0, atol=1e-9)
    assert torch.equal(x, given)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.relu(x) - 1)


@pytest.mark.parametrize("last", [nn.Tanh(), nn.MaxPool2d(2), nn.Threshold(9.0, 0.0), Twice()])
def test_what_is_not_affine_is_refused(last: nn.Module) -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), last)
    with pytest.raises(ValueError, match="affine"):
        to_spiking(net, [images(3).float()])


def test_a_dead_activation_has_no_threshold() -> None:
    with pytest.raises(ValueError, match="> 0"):
        to_spiking(nn.Sequential(nn.Identity(), nn.ReLU()), [-torch.ones(2, 3)])
