"""Trainings of implicit concept bottleneck models on the bundled digits: backbones, baselines, first weights."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from htaf.core.activations import Heaviside
from htaf.data.attributes import Attributes
from htaf.data.image_sets import load
from htaf.data.images import Images
from htaf.data.reading import DataError
from htaf.models.build import build
from htaf.models.icbm import ICBM
from htaf.training.families import ready_recipe
from htaf.training.fit import fit, run_identity
from htaf.training.module import Training, TrainingError
from htaf.training.problems import problem, supervision
from htaf.training.recipe import Recipe
from htaf.training.runs import Run, RunError, open_run
from quick import slow_but


def recipe(**changes: Any) -> Recipe:
    small = {"epochs": 2, "batch_size": 50, "train_images": 200, "validation_images": 100, "precision": "float32"}
    return ready_recipe("icbm", "reduced").replace(**{**small, "depth": 10, **changes})


@pytest.fixture(scope="module")
def digits() -> Images:
    return load("digits")


@pytest.fixture(scope="module")
def table(digits: Images) -> Attributes:
    """Ten classes, the four binary digits of each."""
    bits = [[float(number >> place & 1) for place in range(4)] for number in range(10)]
    return Attributes(tuple("abcd"), digits.classes, np.array(bits, dtype=np.float32))


@pytest.fixture(scope="module")
def runs(digits: Images, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("runs")

    @functools.cache
    def made(method: str = "htaf") -> Run:
        return fit(recipe(method=method), digits, folder / method, source={"name": "digits"})

    return made


@pytest.mark.parametrize("method", slow_but(["htaf", "ste", "ss", "relu"], "htaf", "relu"))
def test_every_method_trains_and_is_read_back(runs, method: str) -> None:
    run = open_run(runs(method).path)
    smooth, exact = run.model(exact=False), run.model()
    assert isinstance(smooth, ICBM)
    assert isinstance(exact, ICBM)
    assert smooth.size == 64
    assert isinstance(exact.act, Heaviside if method != "relu" else nn.Identity)
    assert (run.record["metrics"]["exact"] is None) is (method == "relu")
    shown = [layer["path"] for layer in run.record["layers"]]
    assert ("act" in shown) is (method != "relu")
    assert len(run.predict_images([])) == 0


def test_a_frozen_backbone_stays_as_it_was(digits: Images, tmp_path: Path) -> None:
    run = fit(recipe(backbone="resnet", depth=18, width=4, concepts=24, freeze=True), digits, tmp_path / "run")
    model = open_run(run.path).model()
    assert isinstance(model, ICBM)
    assert model.size == 24
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = build(run.record["model"])
    assert isinstance(first, ICBM)
    for key, value in first.backbone.state_dict().items():
        assert torch.equal(value, model.backbone.state_dict()[key]), key
    assert not torch.equal(first.head.weight, model.head.weight)


def enlarged(part: Any) -> Any:
    """Digits of 32 x 32, a multiple of the patches."""
    return dataclasses.replace(part, pixels=part.pixels.repeat_interleave(4, 2).repeat_interleave(4, 3))


def test_backbones_of_a_run_or_file_are_the_start(runs, digits: Images, tmp_path: Path) -> None:
    before = runs("relu")
    run = fit(recipe(pretrained=str(before.path), freeze=True), digits, tmp_path / "a")
    frozen = run.model(exact=False)
    assert isinstance(frozen, ICBM)
    theirs = before.model().backbone.state_dict()
    for key, value in frozen.backbone.state_dict().items():
        assert torch.equal(value, theirs[key])
    file = tmp_path / "moved.safetensors"
    file.write_bytes((before.path / "model.safetensors").read_bytes())
    with pytest.raises(RunError, match="normalisation"):  # which a file alone does not say
        fit(recipe(pretrained=str(file), freeze=True), digits, tmp_path / "a")
    run = fit(recipe(pretrained=str(file), freeze=True), digits, tmp_path / "b")
    file = file.rename(tmp_path / "again.safetensors")
    assert run.record["key"] == fit(recipe(pretrained=str(file), freeze=True), digits, tmp_path / "b").record["key"]
    # what it holds counts, not where it lies: the name is kept as a note only
    other = tmp_path / "other.safetensors"
    save_file({name: value + 1 for name, value in load_file(file).items()}, other)
    with pytest.raises(RunError, match="pretrained_sha256"):
        fit(recipe(pretrained=str(other), freeze=True), digits, tmp_path / "b")


def test_first_weights_that_cannot_be_used(runs, digits: Images, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"weights of another architecture: .* of another shape"):
        fit(recipe(pretrained=str(runs("relu").path), width=2), digits, tmp_path / "a")
    with pytest.raises(TrainingError, match="expected hub, a file of weights"):
        fit(recipe(pretrained=str(tmp_path / "none")), digits, tmp_path / "b")
    with pytest.raises(TrainingError, match="expected the name of a timm model, got 'resnet_18'"):
        fit(recipe(backbone="resnet_18"), digits, tmp_path / "c")


@pytest.mark.parametrize("bottleneck", ["joint", "sequential", "independent"])
@pytest.mark.parametrize("method", ["relu", "htaf"])
def test_supervised_bottlenecks(
    digits: Images, table: Attributes, bottleneck: Any, method: Any, tmp_path: Path
) -> None:
    """By hand: the loss, and which gradients it has."""
    chosen = recipe(bottleneck=bottleneck, method=method, concept_weight=0.5)
    posed = problem(chosen, digits, 0, "random", attributes=table)
    net = build(chosen.model(posed.inputs, posed.outputs))
    assert isinstance(net, ICBM)
    assert net.size == 4
    module = Training(net, chosen, "classification", steps=10, attributes=posed.attributes)
    x, y = posed.train[torch.arange(20), 0]
    net.eval()
    truth = torch.from_numpy(table.values)[y]
    z = net.pre_activations(x)
    concept = torch.stack([F.softplus(z) - truth * z]).sum(2).mean()
    seen = truth if bottleneck == "independent" else net.act(z)
    expected = F.cross_entropy(net.head(seen), y) + 0.5 * concept
    got = module.objective(x, y)
    torch.testing.assert_close(got, expected)
    concept_only = torch.autograd.grad(0.5 * concept, net.projection.weight)[0]
    whole = torch.autograd.grad(got, net.projection.weight)[0]
    assert torch.allclose(whole, concept_only, atol=1e-6) is (bottleneck != "joint")


def test_supervised_run(digits: Images, table: Attributes, tmp_path: Path) -> None:
    chosen = recipe(bottleneck="independent", method="relu", epochs=6, concept_weight=1.0)
    run = fit(chosen, digits, tmp_path / "a", attributes=table)
    model = open_run(run.path).model()
    assert isinstance(model.act, nn.Sigmoid)
    x, y = problem(recipe(), digits, 0, "random").validation[torch.arange(100), 0]
    with torch.no_grad():
        right = ((model.pre_activations(x) >= 0) == (torch.from_numpy(table.values)[y] == 1)).float().mean()
    assert right > 0.8  # 0.57 of these bits are 0
    changed = dataclasses.replace(table, values=1 - table.values)
    with pytest.raises(RunError, match="attributes"):
        fit(chosen, digits, tmp_path / "a", attributes=changed)


def test_attributes_that_nothing_reads(digits: Images, table: Attributes, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected no attributes for ICBM over wide_resnet, depth 10"):
        fit(recipe(), digits, tmp_path / "a", attributes=table)


def test_first_weights_from_a_hub(digits: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub is out of reach in tests: timm's maker is watched."""
    digits = dataclasses.replace(digits, train=enlarged(digits.train), test=enlarged(digits.test))
    asked, made = list[bool](), timm.create_model

    def create(name: str, pretrained: bool = False, **options: Any) -> nn.Module:
        asked.append(pretrained)
        with torch.random.fork_rng():
            torch.manual_seed(99 if pretrained else 1)
            return made(name, **options)

    monkeypatch.setattr(timm, "create_model", create)
    with torch.random.fork_rng():
        torch.manual_seed(99)
        theirs = made("test_vit", num_classes=0, in_chans=1, img_size=(32, 32)).state_dict()
    chosen = recipe(backbone="test_vit", pretrained="hub", freeze=True, epochs=1, augment="none")
    run = fit(chosen, digits, tmp_path / "run")
    backbone = open_run(run.path).model().backbone.state_dict()
    assert backbone.keys() == theirs.keys()
    for key, value in backbone.items():
        assert torch.equal(value, theirs[key]), key
    assert True in asked


def test_every_rate_falls_to_its_own_share(digits: Images) -> None:
    chosen = recipe(backbone_lr=0.1, schedule="cosine", lr_end=0.05)
    posed = problem(chosen, digits, 0, "random")
    module = Training(build(chosen.model(posed.inputs, posed.outputs)), chosen, "classification", steps=10)
    made = module.configure_optimizers()
    rates = []
    for _ in range(10):
        made["optimizer"].step()
        made["lr_scheduler"]["scheduler"].step()
        rates.append([group["lr"] for group in made["optimizer"].param_groups])
    assert rates[4] == pytest.approx([0.075, 0.0075])
    assert rates[-1] == pytest.approx([0.05, 0.005])


@pytest.mark.data
def test_cub_has_112_attributes(data_dir: Path) -> None:
    chosen = supervision(recipe(bottleneck="joint"), str(data_dir))
    assert chosen is not None
    assert len(chosen.names) == 112
    assert supervision(recipe()) is None


def test_identity_holds_the_network(digits: Images) -> None:
    def key(**changes: Any) -> str:
        return str(run_identity(recipe(**changes), digits, 0, "random"))

    assert len({key(), key(concepts=5), key(freeze=True), key(backbone_lr=0.5), key(bottleneck="joint")}) == 5
