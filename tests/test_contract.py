"""The contract of smooth steps: an activation from outside the package goes everywhere, and nothing stays smooth
without a word."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import htaf
from htaf import HTAF, IF, Heaviside, SmoothStep, StraightThrough, conversion, harden, replace, sites
from htaf._ground.files import sealed
from htaf.cli import known
from htaf.core.contract import ContractError, sharpness_of
from htaf.core.sharpening import Geometric, set_sharpness
from htaf.training.runs import RunError, open_run

ROOT = Path(__file__).parents[1]
X = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
METHOD = "algebraic:Algebraic"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on the path of Python with the one file that CONTRIBUTING.md shows."""
    found = re.search(r'```python\n("""algebraic\.py.*?)```', (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert found is not None
    path = tmp_path_factory.mktemp("outside")
    (path / "algebraic.py").write_text(found[1])
    sys.path.insert(0, str(path))
    importlib.invalidate_caches()
    yield path
    sys.path.remove(str(path))
    sys.modules.pop("algebraic", None)


@pytest.fixture(scope="module")
def algebraic(folder: Path) -> Any:
    """The class in it."""
    return importlib.import_module("algebraic").Algebraic


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3)).eval()


def first_line(model: nn.Module) -> str:
    return str(conversion(model)).splitlines()[0]


# ---- an activation from outside ----


def test_is_found_put_in_place_and_made_exact(algebraic: Any) -> None:
    smooth = replace(network(), algebraic, example=X)
    assert isinstance(smooth[2], SmoothStep)
    assert [(site.path, site.kind) for site in sites(smooth, X)] == [("2", "algebraic")]
    exact = harden(smooth)
    assert isinstance(exact[2], Heaviside)
    assert first_line(exact) == "replaced 1 of 1 activation sites"
    assert exact.state_dict().keys() == smooth.state_dict().keys()
    assert torch.equal(exact[:3](X), (smooth[:2](X) >= 0).float())
    assert torch.equal(harden(nn.Sequential(algebraic(bipolar=True)))(X), X.sign())


class Around(nn.Module):
    """A step made of another one."""

    kind, sharpness, bipolar = "around", (), False

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)

    def hardened(self) -> Heaviside:
        return Heaviside.of(self)


def test_a_step_that_is_part_of_another_is_made_exact_elsewhere() -> None:
    inner = HTAF()
    outer = Around(inner)
    smooth = nn.Sequential(nn.Linear(6, 4), outer, nn.Linear(4, 4), inner, nn.Linear(4, 4), outer)
    found = sites(smooth, X)
    assert [(site.path, site.aliases) for site in found] == [("1", ("5",)), ("3", ())]
    exact = harden(smooth)
    assert [type(exact[i]) for i in (1, 3, 5)] == [Heaviside] * 3
    assert exact[1] is exact[5]
    assert not list(exact[1].children())


def test_is_sharpened(algebraic: Any) -> None:
    smooth = replace(network(), algebraic, example=X)
    assert set_sharpness(smooth, Geometric((2.0,), (8.0,), 0.5).at(0.25)) == 1
    assert sharpness_of(smooth[2]) == {"beta": 4.0}
    assert harden(smooth)[2].beta == 4.0
    whole = algebraic(8)  # an int, as people write it
    assert (set_sharpness(whole, (3.0,)), whole.beta) == (1, 3.0)
    mixed = nn.Sequential(algebraic(), htaf.ScaledSigmoid())
    with pytest.raises(ValueError, match="one kind, got algebraic, scaled_sigmoid"):
        set_sharpness(mixed, (3.0,))
    assert mixed[1].beta == 22.0


def test_is_a_neurons_spike_and_is_packed(algebraic: Any) -> None:
    neuron = IF(algebraic())
    assert neuron(X).sub(0.5).abs().min() < 0.49
    assert torch.equal(harden(neuron)(X), IF(Heaviside())(X))
    exact = harden(replace(network(), algebraic, example=X))
    torch.testing.assert_close(htaf.pack(exact, X)(X), exact(X))
    with pytest.raises(htaf.packed.PackedError, match=r"1 smooth activations \(Algebraic 2\)"):
        htaf.pack(replace(network(), algebraic, example=X), X)


@pytest.fixture(scope="module")
def run(folder: Path, algebraic: Any) -> Path:
    """A run that was trained with it."""
    from htaf.data.tabular import load
    from htaf.training.families import make_recipe
    from htaf.training.fit import fit

    recipe = make_recipe(method=METHOD, hidden=(64,), epochs=2, sharpness=(6.0,), start=(2.0,), patience=0)
    out = folder / "run"
    fit(recipe, load("digits"), out, source={"name": "digits"}, method=algebraic)
    return out


def test_is_trained_by_name(htaf: Any, run: Path, folder: Path) -> None:
    words = ("train", "tabular", "--data", "digits", "--out", run, "--hidden", 64, "--epochs", 2, "--patience", 0)
    words += ("--recipe", "tabular-mlp")  # the fields that Python starts from
    code, _, told = htaf(*words, "--method", METHOD, "--sharpness", 6, "--start", 2)
    assert (code, "already done: " in told) == (0, True), told  # the command makes the run that Python made
    record = json.loads((run / "record.json").read_text())
    assert record["model"]["activation"] == {"method": METHOD, "kind": "algebraic", "beta": 6.0}
    assert (record["recipe"]["method"], record["recipe"]["sharpness"]) == (METHOD, [6.0])
    assert record["layers"][0]["binarity"] is not None
    for flags, words_told in {
        ("--method", "algebraic:Nothing"): "cannot be imported: AttributeError",
        ("--method", "nowhere.at_all:Step"): "cannot be imported: ModuleNotFoundError",
        ("--method", METHOD, "--alpha0", 3): "does not read --alpha0",
        ("--method", METHOD, "--sharpness", 3, 4): "expected sharpness of 1 numbers (beta)",
        ("--method", "tanh"): "or package.module:Class, got 'tanh'",
    }.items():
        code, _, told = htaf("train", "tabular", "--data", "digits", "--out", folder / "none", *flags)
        assert (code != 0, words_told in told) == (True, True), told
    assert not (folder / "none").exists()


def test_a_run_is_read_with_its_class_alone(htaf: Any, run: Path, folder: Path, algebraic: Any) -> None:
    with pytest.raises(RunError, match=f"class of method {METHOD}.* give method=Algebraic"):
        open_run(run)
    with pytest.raises(RunError, match="kind algebraic, got HTAF of kind htaf"):
        open_run(run, method=HTAF)
    opened = open_run(run, method=algebraic)
    smooth = [m for m in opened.model(exact=False).modules() if isinstance(m, algebraic)]
    assert [m.beta for m in smooth] == [6.0]
    file = folder / "packed.safetensors"
    code, _, told = htaf("pack", run, "--out", file)
    assert (code != 0, f"--method {METHOD}" in told, file.exists()) == (True, True, False), told
    for wrong in ("htaf", "algebraic.Algebraic"):
        code, _, told = htaf("pack", run, "--out", file, "--method", wrong)
        assert (code, f"expected --method PACKAGE.MODULE:CLASS, got {wrong}" in told) == (2, True), told
    code, _, told = htaf("pack", run, "--out", file, "--method", METHOD)
    assert (code, file.exists()) == (0, True), told


@pytest.mark.parametrize("verb", known().verbs)
def test_every_verb_that_reads_a_run_takes_its_class(verb: str) -> None:
    flags = inspect.signature(pkgutil.resolve_name(known().verbs[verb].function)).parameters
    assert "run" not in flags or "method" in flags


def test_nothing_that_a_record_names_is_imported(
    htaf: Any, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "harmful.py").write_text(f"open({str(tmp_path / 'harm')!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    changed = tmp_path / "run"
    changed.mkdir()
    for file in run.iterdir():
        if file.is_file():
            (changed / file.name).write_bytes(file.read_bytes())
    record = (run / "record.json").read_text().replace(METHOD, "harmful:Step")
    (changed / "record.json").write_text(sealed(json.loads(record)))
    with pytest.raises(RunError, match="class of method harmful:Step"):
        open_run(changed)
    assert htaf("evaluate", changed)[0] != 0
    assert not (tmp_path / "harm").exists()
    assert "harmful" not in sys.modules


# ---- nothing stays smooth without a word ----


class Half(nn.Module):
    """Only `hardened`."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    def hardened(self) -> Heaviside:
        return Heaviside()


def half(**given: Any) -> nn.Module:
    module = Half()
    vars(module).update({"kind": "half", "sharpness": (), "bipolar": False} | given)
    return module


class Shifted(HTAF):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - 1)


class Own(Shifted):
    def hardened(self) -> Heaviside:
        return Heaviside.of(self)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Half, "kind must be a text, got None; sharpness must be a tuple of names, got None; bipolar must be True"),
        (lambda: half(kind=""), "kind must be a text, got ''$"),
        (lambda: half(sharpness="beta"), "sharpness must be a tuple of names, got 'beta'$"),
        (lambda: half(sharpness=("beta",)), "sharpness names beta, which it does not have$"),
        (lambda: half(bipolar=1), "bipolar must be True or False, got 1$"),
        (lambda: half(hardened=lambda: HTAF()), r"hardened\(\) to make an exact module, got HTAF"),
        (lambda: half(hardened=lambda: nn.BatchNorm1d(6)), r"state-dict keys \[\], got \['bias'"),
        (Shifted, r"its forward is that of Shifted, its hardened\(\) that of the class before"),
    ],
)
def test_what_looks_smooth_and_cannot_be_made_exact_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ContractError, match=words) as told:
        harden(nn.Sequential(HTAF(), make()))
    assert "1" in str(told.value)


def test_a_subclass_with_a_hardened_of_its_own_is_taken() -> None:
    class Exact(nn.Module):
        def hardened(self) -> Heaviside:
            return Heaviside.of(self)  # pyright: ignore[reportArgumentType]

    class Curve(Exact):
        kind, sharpness, bipolar = "curve", (), False

        def forward(self, x: Tensor) -> Tensor:
            return x.sigmoid()

    for make in (Own, Curve, half):
        assert isinstance(harden(nn.Sequential(make()))[0], Heaviside)
    in_place = replace(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 6)), HTAF, example=X.clone())
    assert isinstance(harden(in_place)[0], Heaviside)


class Aside(nn.Module):
    """Smooth in a way that no transform reaches."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.act, self.way, self.aside = HTAF(), way, [HTAF()] if way == "list" else None
        self.kept = htaf.functional.scaled_sigmoid if way == "kept" else None

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x) if self.aside is None else self.aside[0](x)


class Calling(Aside):
    def forward(self, x: Tensor) -> Tensor:
        return self.helper(self.act(x))

    def helper(self, x: Tensor) -> Tensor:
        return htaf.functional.htaf(x - 0.5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Aside("list"), "attribute aside; keep them in an nn.ModuleList"),
        (lambda: Aside("kept"), "calls a smooth function of htaf.functional"),
        (lambda: Calling(""), "calls a smooth function of htaf.functional"),
    ],
)
def test_what_stays_smooth_is_told(make: Any, words: str) -> None:
    exact = harden(nn.Sequential(make()))
    assert first_line(exact) == "replaced 1 of 2 activation sites"
    assert [words in line for line in conversion(exact).beyond] == [True]
    assert first_line(harden(nn.Sequential(Aside("")))) == "replaced 1 of 1 activation sites"


def test_a_step_over_a_parameter_is_made_exact() -> None:
    model = nn.Sequential(nn.Linear(6, 6), StraightThrough())
    nn.utils.parametrize.register_parametrization(model[0], "weight", HTAF(bipolar=True))
    exact = harden(model)
    assert exact[0].weight.abs().eq(1).all()
    assert first_line(exact) == "replaced 2 of 2 activation sites"
    assert exact.state_dict().keys() == model.state_dict().keys()


def test_inside_a_step_there_is_no_site_of_its_own(algebraic: Any) -> None:
    class Made(algebraic):
        def __init__(self) -> None:
            super().__init__()
            self.curve = nn.Sigmoid()

        def forward(self, x: Tensor) -> Tensor:
            return self.curve(self.beta * x)

        def hardened(self) -> Heaviside:
            return Heaviside.of(self)

    smooth = nn.Sequential(nn.Linear(6, 4), Made())
    assert [site.path for site in sites(smooth, X)] == ["1"]
    assert conversion(harden(smooth)).left == ()
