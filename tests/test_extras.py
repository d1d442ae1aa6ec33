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
from htaf._errors import EXTRAS, installed

DISTRIBUTIONS = {"PIL": "pillow"}


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
    with pytest.raises(ModuleNotFoundError, match=r"^this needs lightning: pip install 'htaf\[train\]'$"):
        fit(pd.DataFrame({"x": [*range(20)], "y": ["a", "b"] * 10}), "y", epochs=1)


@pytest.mark.usefixtures("no_lightning")
def test_the_command_names_the_extra(htaf, tmp_path: Path) -> None:
    code, _, err = htaf("train", "tabular", "--data", "digits", "--out", tmp_path / "run", "--epochs", "1")
    assert (code, err) == (1, "htaf: error: this needs lightning: pip install 'htaf[train]'\n")


@pytest.mark.usefixtures("no_lightning")
def test_a_package_that_no_extra_brings_is_no_message_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package"), installed():
        import no_such_package  # noqa: F401  # pyright: ignore[reportMissingImports]


PACKED = """
import sys
sys.modules.update(dict.fromkeys(("PIL", "lightning", "matplotlib", "torchmetrics")))
import htaf, torch
from torch import nn
x = torch.randn(64, 8)
net = nn.Sequential(nn.Linear(8, 16), htaf.Heaviside(), nn.Linear(16, 16), htaf.Heaviside(), nn.Linear(16, 2)).eval()
packed = htaf.pack(net, x)
htaf.packed.save(packed, sys.argv[1])
assert torch.equal(htaf.load(sys.argv[1])(x), packed(x))
from htaf._errors import MissingError
from htaf.data.image_reading import decode
try:
    decode(b"", 3, (8, 8))
except MissingError as error:
    print(error)
"""


def test_a_packed_file_needs_no_reader_of_images(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PACKED, tmp_path / "p.packed"], capture_output=True, text=True)
    assert done.stdout == "this needs PIL: pip install 'htaf[train]'\n", done.stderr
