"""An installed htaf computes: the first Python of docs/own-model.md and the command's help, without a compiler in PATH.

    python tests/installed.py [--native]

With --native the compiled kernels must be there. It needs no pytest; wheels
are tested with it before they are published.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

os.environ["PATH"] = str(Path(sys.executable).parent)

import htaf
from htaf.core.kernels.native import load

page = (Path(__file__).resolve().parents[1] / "docs" / "own-model.md").read_text(encoding="utf-8")
found = re.search(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
assert found, "expected a block of Python in docs/own-model.md"
exec(compile(found[1], "own-model.md", "exec"))

help_ = subprocess.run([sys.executable, "-m", "htaf", "--help"], capture_output=True, text=True, check=True).stdout
assert help_.startswith("usage: htaf"), help_

kernels, why = load()
assert kernels or "--native" not in sys.argv, f"expected compiled kernels: {why}"
said = ", ".join(kernels.instruction_sets()) if kernels else why
print(f"htaf {htaf.__version__} in {Path(htaf.__file__).parent}, kernels: {said}")
