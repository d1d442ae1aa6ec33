"""Trainings on images: every family on the bundled digits, what a run folder holds, how it is read back."""

from __future__ import annotations

import csv
import functools
import importlib
import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from htaf.cli import Verb, known
from htaf.core.activations import HTAF, Heaviside, ScaledSigmoid, StraightThrough
from htaf.data.image_sets import load
from htaf.data.images import Images, MemoryPart
from htaf.data.reading import DataError
from htaf.data.tabular import load as load_table
from htaf.models.mlp import Thermometer
from htaf.training import families
from htaf.training.families import FAMILIES, make_recipe, ready_recipe
from htaf.training.fit import fit
from htaf.training.module import Training
from htaf.training.problems import problem, resolved
from htaf.training.recipe import ImageData, Recipe, Running
from htaf.training.runs import Run, RunError, open_run
from htaf.transform.spiking.neurons import IF, LIF
from smallest import SMALLEST


def recipe(family: Any, **changes: Any) -> Recipe:
    small = {"epochs": 2, "batch_size": 50, "train_images": 200, "validation_images": 100, "precision": "float32"}
    recipes = FAMILIES[family].recipes
    name = "reduced" if "reduced" in recipes else next(iter(recipes))
    return ready_recipe(family, name).replace(**{**small, **SMALLEST[family].fields, **changes})


@pytest.fixture(scope="module")
def digits() -> Images:
    return load("digits")


@pytest.fixture(scope="module")
def runs(digits: Images, tmp_path_factory: pytest.TempPathFactory):
    """One finished run a family and method."""
    folder = tmp_path_factory.mktemp("runs")

    @functools.cache
    def made(family: str, method: str = "htaf") -> Run:
        return fit(recipe(family, method=method), digits, folder / f"{family}-{method}", source={"name": "digits"})

    return made


def test_every_family_on_images_has_its_row() -> None:
    """Of the table `smallest`; an ICBM, which any backbone makes, has tests of its own."""
    assert {name for name, one in FAMILIES.items() if one.network.data is ImageData} == {*SMALLEST, "icbm"}


@pytest.mark.parametrize("family", SMALLEST)
def test_every_family_trains_and_is_read_back(runs, family: str) -> None:
    run, (_, kind, sites) = runs(family), SMALLEST[family]
    record = open_run(run.path).record
    smooth, exact = run.model(exact=False), run.model()
    assert isinstance(smooth, kind)
    assert sum(isinstance(m, HTAF) for m in smooth.modules()) == sites
    steps = {id(m) for m in exact.modules() if isinstance(m, Heaviside)}
    assert len(steps - {id(m.step) for m in exact.modules() if isinstance(m, Thermometer)}) == sites
    assert len(record["layers"]) == len(steps)
    assert record["rows"] == {"train": 200, "validation": 100, "test": len(load("digits").test)}
    assert record["parameters"] == sum(p.numel() for p in smooth.parameters())
    assert record["headline"] == "accuracy"
    assert record["cpu_seconds"] > 0
    assert {*record["metrics"]["exact"]["test"]} == {"loss", "accuracy", "auroc"}
    x = torch.randn(3, 1, 8, 8)
    assert not torch.equal(smooth(x), exact(x))


@pytest.mark.parametrize("family", SMALLEST)
@pytest.mark.parametrize(("method", "kind"), [("ste", StraightThrough), ("ss", ScaledSigmoid)])
def test_other_methods(digits: Images, family: Any, method: Any, kind: type[nn.Module]) -> None:
    """Their networks are built and step; trainings of every pair would take minutes."""
    posed = problem(recipe(family, method=method), digits, 0, "random")
    from htaf.models.build import build

    net = build(recipe(family, method=method).model(posed.inputs, posed.outputs))
    assert any(isinstance(m, kind) for m in net.modules())
    x, y = posed.train[torch.arange(8), 0]
    nn.functional.cross_entropy(net(x), y).backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in net.parameters())


def test_neurons_follow_the_recipe(digits: Images) -> None:
    from htaf.models.build import build

    made = build(recipe("snn", neuron="lif", tau=3.0, reset="soft").model({"in_channels": 1}, 10))
    found = [m for m in made.modules() if isinstance(m, LIF)]
    assert {(m.tau, m.reset, m.exact_reset, m.detach_reset) for m in found} == {(3.0, "soft", False, True)}
    real = build(recipe("snn", method="relu").model({"in_channels": 1}, 10))
    assert not any(isinstance(m, IF) for m in real.modules())
    assert sum(isinstance(m, nn.ReLU) for m in real.modules()) == 20


def test_only_training_images_are_augmented(digits: Images) -> None:
    posed = problem(recipe("dhn", augment="crop-flip"), digits, 0, "random")
    rows = torch.arange(40)
    assert not torch.equal(posed.train[rows, 1][0], posed.train[rows, 2][0])
    assert torch.equal(posed.train[rows, 1][0], posed.train[rows, 1][0])
    assert torch.equal(posed.validation[rows, 1][0], posed.validation[rows, 2][0])


def test_dropout_follows_from_the_seed_and_survives_a_resume(digits: Images, tmp_path: Path) -> None:
    settings = recipe("dhn", dropout=0.3)
    state = torch.get_rng_state()
    first = fit(settings, digits, tmp_path / "first")
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.MonkeyPatch.context() as patch:
        original = Training.training_step

        def stopped(self: Training, batch: Any, i: int) -> Any:
            if self.current_epoch == 1 and i == 2:
                raise MemoryError
            return original(self, batch, i)

        patch.setattr(Training, "training_step", stopped)
        with pytest.raises(MemoryError):
            fit(settings, digits, tmp_path / "resumed", running=Running(checkpoint_seconds=0))
    torch.rand(3)
    resumed = fit(settings, digits, tmp_path / "resumed")
    assert resumed.record["model_sha256"] == first.record["model_sha256"]
    assert (resumed.path / "metrics.csv").read_bytes() == (first.path / "metrics.csv").read_bytes()


def test_a_training_without_the_test_part(digits: Images, tmp_path: Path) -> None:
    run = fit(recipe("dhn", epochs=1), digits, tmp_path / "run", test=False)
    assert set(run.record["metrics"]["exact"]) == {"validation"}
    assert "test" not in run.record["rows"]
    with pytest.raises(RunError, match="test"):
        fit(recipe("dhn", epochs=1), digits, tmp_path / "run")


def test_the_wrong_kind_of_data(digits: Images, tmp_path: Path, runs) -> None:
    with pytest.raises(DataError, match="expected a table for a recipe of family mlp, got digits"):
        fit(make_recipe(), digits, tmp_path / "run")
    with pytest.raises(DataError, match="expected images for a recipe of family dhn, got digits"):
        fit(recipe("dhn"), load_table("digits"), tmp_path / "run")
    with pytest.raises(DataError, match="expected images for"):
        runs("dhn").evaluate("all", load_table("digits"))
    with pytest.raises(DataError, match="was trained on images"):
        runs("dhn").predict(load_table("digits").features)
    with pytest.raises(DataError, match=r"expected 500 training"):
        fit(recipe("dhn", train_images=5000), digits, tmp_path / "run")


def test_predicting_files(runs, digits: Images, tmp_path: Path) -> None:
    """A file of a digit's pixels is read as the network read the digit; a larger picture is scaled."""
    run, rows = runs("dhn"), torch.arange(5)
    pixels = digits.test.batch(rows)
    for i in range(5):
        Image.fromarray(pixels[i, 0].numpy()).save(tmp_path / f"{i}.png")
    Image.fromarray(np.zeros((40, 30, 3), np.uint8)).save(tmp_path / "large.png")
    frame = run.predict_images([*(tmp_path / f"{i}.png" for i in range(5)), tmp_path / "large.png"])
    preprocessor = run.preprocessor()
    with torch.no_grad():
        expected = run.model()(preprocessor.normalise(pixels)).double().softmax(1).numpy()
    columns = [f"probability_{name}" for name in digits.classes]
    assert np.allclose(frame[columns].to_numpy()[:5], expected, atol=1e-6)
    assert frame["prediction"].tolist()[:5] == [digits.classes[i] for i in expected.argmax(1)]
    assert frame.index.name == "image"
    assert np.allclose(frame[columns].sum(axis=1), 1)
    assert run.predict_images([]).shape == (0, 11)
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(DataError, match=r"text\.png"):
        run.predict_images([tmp_path / "text.png"])


# --- augmentation ---


def coloured(pixels: torch.Tensor, classes: tuple[str, ...] = ("cat", "dog")) -> Images:
    labels = torch.arange(len(pixels)) % len(classes)
    part = MemoryPart(pixels, labels)
    return Images("made", classes, part, part, "0" * 64, ())


def test_the_augmentation_follows_from_the_data(digits: Images) -> None:
    auto = recipe("dhn")
    assert auto.data.augment == "auto"
    found, (note,) = resolved(auto, digits)
    assert found.data.augment == "none"
    assert note.startswith("augment none, as is the default for grey images")
    pixels = torch.randint(0, 256, (20, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert resolved(auto, coloured(pixels)) == (auto.replace(augment="crop-flip"), ())
    grey = pixels[:, :1].repeat(1, 3, 1, 1)
    grey[:, 2] = (grey[:, 2].int() + 8).clamp(max=255)  # as JPEG does to grey
    assert resolved(auto, coloured(grey))[0].data.augment == "none"
    assert resolved(auto, coloured(pixels, ("3", "8")))[0].data.augment == "none"
    assert "one character" in resolved(auto, coloured(pixels, ("3", "8")))[1][0]
    for chosen in ("shift", "none"):  # what is asked for stays
        asked = auto.replace(augment=chosen)
        assert resolved(asked, digits) == (asked, ())


def test_a_family_is_added_as_contributing_says(htaf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file and the row that CONTRIBUTING.md shows."""
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    section = page[page.index("it needs a family") :]
    file, row = (textwrap.dedent(block) for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL)[:2])
    (tmp_path / "hrn.py").write_text(file)
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])  # as if it stood there
    monkeypatch.setitem(families.FAMILIES, "hrn", importlib.import_module("htaf.training.families.hrn").FAMILY)
    ((verb, added),) = eval(f"{{{row}}}", {"Verb": Verb}).items()
    monkeypatch.setitem(known().verbs, verb, added)
    assert "--width INT Channels of the first stage. (default: 16)" in shown(htaf("train", "hrn", "--help")[1])
    small = ("--data", "digits", "--width", 2, "--train-images", 60, "--validation-images", 30, "--epochs", 1)
    code, _, err = htaf("train", "hrn", *small, "--out", tmp_path / "run")
    assert code == 0, err
    run = open_run(tmp_path / "run")
    assert (run.record["recipe"]["family"], run.record["model"]["kind"]) == ("hrn", "resnet")
    assert any(isinstance(module, Heaviside) for module in run.model().modules())
    assert families.make_recipe(**run.record["recipe"]).network.title() == "ResNet, depth 18, width 2"
    code, _, err = htaf("train", "hrn", *small[:2], "--depth", 50, "--out", tmp_path / "no")
    assert (code, "depth must be 18 or 34, got 50" in err) == (2, True), err


def shown(text: str) -> str:
    """Help in one line."""
    return " ".join(text.replace("│", " ").split())


# ---- recipes' precision and clip, and the memory layout of images ----


SMALL = {"depth": 10, "width": 1, "train_images": 60, "validation_images": 40, "batch_size": 30, "epochs": 1}
TINY = ready_recipe("dhn", "reduced").replace(**SMALL, precision="float32")


def spied(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the first training step saw."""
    seen: dict[str, Any] = {}
    original, after = Training.training_step, Training.on_train_batch_end

    def step(self: Training, batch: Any, i: int) -> Any:
        loss = original(self, batch, i)
        seen["autocast"] = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
        seen["layouts"] = {
            p.is_contiguous(memory_format=torch.channels_last) for p in self.net.parameters() if p.dim() == 4
        }
        seen["dtypes"] = {p.dtype for p in self.net.parameters()}
        return loss

    def end(self: Training, *args: Any) -> None:
        gradients = [p.grad.flatten() for p in self.net.parameters() if p.grad is not None]
        seen["norm"] = torch.cat(gradients).norm().item() if gradients else seen.get("norm")
        after(self, *args)

    patch.setattr(Training, "training_step", step)
    patch.setattr(Training, "on_train_batch_end", end)
    return seen


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_precision_and_layout(digits: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Any) -> None:
    seen = spied(monkeypatch)
    run = fit(TINY.replace(precision=precision), digits, tmp_path / "run", running=Running("cpu"))
    assert seen["autocast"] == (torch.bfloat16 if precision == "bfloat16" else False)
    assert seen["layouts"] == {True}
    assert seen["dtypes"] == {torch.float32}  # the weights
    assert {value.dtype for value in run.model().state_dict().values()} <= {torch.float32, torch.int64}
    with open(run.path / "metrics.csv") as file:
        best = list(csv.DictReader(file))[run.record["best_epoch"]]
    result = run.record["metrics"]["exact"]["validation"]["loss"]
    assert float(best["val_loss"]) == pytest.approx(result, rel=1e-6), "the epoch's line and the result are one network"


def test_clip_bounds_the_gradient(digits: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spied(monkeypatch)
    fit(TINY, digits, tmp_path / "free", running=Running("cpu"))
    free = seen["norm"]
    fit(TINY.replace(clip=1e-3), digits, tmp_path / "clipped", running=Running("cpu"))
    assert seen["norm"] == pytest.approx(1e-3, rel=1e-3)
    assert free > 2e-3
