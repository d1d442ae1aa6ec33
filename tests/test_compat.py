"""The repair of torchvision beside a CPU-only torch: when it acts, and that imports work after it."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from htaf._ground import compat as _compat
from htaf._ground.compat import repair_torchvision, repair_torchvision_when_imported
from htaf.cli import doctor


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A torchvision folder built for CUDA, not imported yet, beside a CPU-only torch: the repair acts."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "version.py").write_text("__version__ = '0.28.0+cu130'\n")
    spec = ModuleSpec("torchvision", None, origin=str(package / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "torchvision" else None)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    return package


@pytest.fixture
def defined(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the repair declares, without declaring it in this process."""
    names: dict[str, str] = {}
    monkeypatch.setattr(torch.library, "define", names.__setitem__)
    monkeypatch.setattr(torch.ops, "torchvision", object(), raising=False)
    return names


def test_declares_both_operators(torchvision: Path, defined: dict[str, str]) -> None:
    assert repair_torchvision() is True
    schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    assert defined == {"torchvision::nms": schema, "torchvision::qnms": schema}


def test_doctor_tells_of_the_pair(torchvision: Path) -> None:
    assert "import htaf first" in doctor.report()["torchvision"]
    (torchvision / "version.py").write_text("__version__ = '0.28.0+cpu'\n")
    assert "torchvision" not in doctor.report()


def test_leaves_existing_operators_alone(torchvision: Path, defined, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = type("Namespace", (), {"nms": None})()
    monkeypatch.setattr(torch.ops, "torchvision", namespace, raising=False)
    assert repair_torchvision() is True
    assert list(defined) == ["torchvision::qnms"]


def test_where_nothing_is_to_repair_nothing_is_declared(
    torchvision: Path, defined: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    version = torchvision / "version.py"
    built = version.read_text()
    for build in ("0.28.0+cpu", "0.28.0", "0.28.0+rocm6.3"):
        version.write_text(f"__version__ = '{build}'\ncuda = None\n")
        assert repair_torchvision() is False
    version.unlink()
    assert repair_torchvision() is False
    version.write_text(built)
    for name in ("cuda", "hip"):
        with monkeypatch.context() as patch:
            patch.setattr(torch.version, name, "13.0")
            assert repair_torchvision() is False
    for spec in (None, ModuleSpec("torchvision", None)):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, spec=spec: spec)
        assert repair_torchvision() is False
    assert not defined


def test_too_late_once_imported(torchvision: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(sys.meta_path)
    monkeypatch.setitem(sys.modules, "torchvision", object())
    assert repair_torchvision_when_imported() is False
    assert sys.meta_path == before


PARTS = {  # as in torchvision: torch first, then parts of its own, of which one says how an operator acts on no data
    "__init__": "import torch\ntorch.version.cuda = torch.version.hip = None\nfrom torchvision import meta\n",
    "meta": "import torch\ntorch.library.register_fake('torchvision::nms', lambda *a: None)\n",
    "version": "__version__ = '0.28.0+cu130'\n",
}


@pytest.mark.parametrize("first", ["", "import htaf; assert 'torch' not in sys.modules; "], ids=["alone", "after htaf"])
def test_whoever_imports_torchvision(tmp_path: Path, first: str) -> None:
    """`import htaf` imports no torch, yet what imports torchvision after it finds the operators declared."""
    (tmp_path / "torchvision").mkdir()
    for name, text in PARTS.items():
        (tmp_path / "torchvision" / f"{name}.py").write_text(text)
    look = "import importlib.util; importlib.util.find_spec('torchvision'); "  # as torch and others do
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {first}{look}import torchvision; print('imported')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.stdout == "imported\n") == bool(first), done.stderr
    assert first or "operator torchvision::nms does not exist" in done.stderr


class Finds:
    """Finds torch as a finder of an application's own does; `loader` is what it finds."""

    def __init__(self, loader: object) -> None:
        self.loader = loader

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        for finder in list(sys.meta_path):  # it asks the others too
            if isinstance(finder, _compat._Torch):
                assert finder.find_spec(fullname) is None
        return ModuleSpec(fullname, self.loader)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("failing", [False, True])
def test_torch_is_found_by_any_finder_and_never_lost(monkeypatch: pytest.MonkeyPatch, failing: bool) -> None:
    """The operators are declared once torch is imported; where they cannot be, torch is imported all the same."""
    done = []

    def declare() -> None:
        done.append("declared")
        if failing:
            raise RuntimeError("of the kernels")

    loader = SimpleNamespace(create_module=lambda spec: None, exec_module=lambda module: done.append("torch"))
    ours = _compat._Torch()
    monkeypatch.setattr(sys, "meta_path", [ours, object(), Finds(loader)])
    monkeypatch.setattr(_compat, "declare_operators", declare)
    spec = ours.find_spec("torch")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(ModuleType("torch"))
    assert done == ["torch", "declared"]
    assert ours not in sys.meta_path


@pytest.mark.slow
def test_imports_work_after_htaf() -> None:
    code = "import htaf, torchvision, lightning, torchmetrics; print(torchvision.models.resnet18.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "resnet18", done.stderr


def test_ctrl_c_during_the_imports_ends_the_command_quietly() -> None:
    script = (
        "import importlib.util, os, signal, sys, time\n"
        "sys.argv = [sys.argv[2]]\n"
        f"spec = importlib.util.spec_from_file_location('compat', {_compat.__file__!r})\n"
        "compat = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(compat)\n"
        "compat.quiet_interrupt()\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "time.sleep(9)\n"
    )
    for name, code in (("/somewhere/bin/htaf", 130), ("/somewhere/notebook", -signal.SIGINT)):
        done = subprocess.run([sys.executable, "-c", script, "-", name], capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        assert (done.stderr == "htaf: error: stopped\n") == (code == 130)
