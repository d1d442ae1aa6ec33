"""What `pip install htaf` does not bring: one line says which extra does, in Python and on the command line."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from htaf import fit
from htaf._ground.errors import EXTRAS, installed

DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn", "joblib": "scikit-learn"}


def test_each_package_is_in_the_extra_that_is_named() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    for package, extra in EXTRAS.items():
        name = DISTRIBUTIONS.get(package, package)
        assert any(one.startswith((f"{name}>", f"{name}[")) for one in project["optional-dependencies"][extra])
        assert not any(one.startswith(name) for one in project["dependencies"])


@pytest.fixture
def no_lightning() -> Iterator[None]:
    """Imports as where lightning is not installed; afterwards all modules are those that were there."""

    def taken() -> dict[str, Any]:
        names = [name for name in sys.modules if name.startswith(("htaf.training.", "lightning"))]
        return {name: sys.modules.pop(name) for name in names}

    before = taken()
    sys.modules["lightning"] = None  # pyright: ignore[reportArgumentType]
    yield
    taken()
    sys.modules.update(before)
    for name, module in before.items():
        package, _, last = name.rpartition(".")
        if package in sys.modules:
            setattr(sys.modules[package], last, module)


@pytest.mark.usefixtures("no_lightning")
def test_python_names_the_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"^this needs lightning: pip install 'htaf\[tables\]'$"):
        fit(pd.DataFrame({"x": [*range(20)], "y": ["a", "b"] * 10}), "y", epochs=1)


@pytest.mark.usefixtures("no_lightning")
def test_the_command_names_the_extra(htaf, tmp_path: Path) -> None:
    code, _, err = htaf("train", "tabular", "--data", "digits", "--out", tmp_path / "run", "--epochs", "1")
    assert (code, err) == (1, "htaf: error: this needs lightning: pip install 'htaf[tables]'\n")


@pytest.mark.usefixtures("no_lightning")
def test_a_package_that_no_extra_brings_is_no_message_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package"), installed():
        import no_such_package  # noqa: F401  # pyright: ignore[reportMissingImports]


BARE = """
import sys
from htaf._ground.errors import EXTRAS
sys.modules.update(dict.fromkeys(EXTRAS))
import htaf, torch
from htaf._ground.errors import installed
from htaf.data.image_reading import decode
from htaf.program.integer import integer_program, to_c, to_verilog
from torch import nn

x, y = torch.randn(512, 8), torch.randint(0, 2, (512,))
loss = nn.functional.cross_entropy
net = htaf.replace(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2)), example=x)
htaf.conversion(net)
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
for step in range(10):
    htaf.sharpen(net, step / 10)
    optimizer.zero_grad()
    loss(net(x[:400]), y[:400]).backward()
    optimizer.step()
exact, report = htaf.finish(net, [(x[:400], y[:400])], valid=(x[400:], y[400:]))
packed = htaf.pack(exact, x)
htaf.packed.save(packed, sys.argv[1])
assert torch.equal(htaf.load(sys.argv[1])(x), packed(x))
program = integer_program(htaf.on_grid(exact, x), x)
to_c(program, sys.argv[2])
to_verilog(program, sys.argv[3])
from htaf.cli import main
for words in (["--help"], ["evaluate", "runs/none"]):
    sys.argv = ["htaf", *words]
    try:
        main()
    except SystemExit:
        pass
for need in (lambda: htaf.fit, lambda: decode(b"", 3, (8, 8))):
    try:
        with installed():
            need()
    except ModuleNotFoundError as error:
        print(error)
"""


def test_the_bare_package_converts_trains_packs_and_exports(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("net.packed", "c", "verilog")]
    done = subprocess.run([sys.executable, "-c", BARE, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: htaf VERB" in done.stdout
    assert "needs tyro: pip install 'htaf[tables]'" in done.stderr
    for package in ("pandas", "PIL"):
        assert f"this needs {package}: pip install 'htaf[tables]'" in done.stdout
