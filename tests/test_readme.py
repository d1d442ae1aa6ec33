"""The README's Python runs, and its commands are ones that the command knows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_python_of_the_readme_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "relu" in done.stdout.lower(), "the conversion says what it replaced"


def test_the_commands_of_the_readme_exist() -> None:
    verbs = set(re.findall(r"\.venv/bin/htaf (\w+)", README))
    assert {"train", "evaluate", "predict"} <= verbs
    for verb in verbs:
        done = subprocess.run([sys.executable, "-m", "htaf.cli", verb, "--help"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_make_knows_the_targets_that_documents_name() -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    for target in set(re.findall(r"`make ([a-z-]+)`", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_links_point_at_files() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (Path(__file__).parents[1] / target).exists(), target
