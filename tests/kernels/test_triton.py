"""Runs triton_interpreted.py with triton_indices.py, triton_compiled.py and the common table, each in its own process.

Whether Triton interprets is settled when it is first imported, so not in the process that runs all tests.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


FILES = {
    "interpreted": ["triton_interpreted.py", "triton_indices.py"],
    "compiled": ["triton_compiled.py"],
    "table": ["test_implementations.py", "-k", "triton"],  # the one that all implementations are in; minutes
}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("how", FILES)
def test_kernels(how: str, tmp_path: Path) -> None:
    interpret = "0" if how == "compiled" else "1"
    environment = {**os.environ, "TRITON_INTERPRET": interpret, "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *FILES[how]]
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
