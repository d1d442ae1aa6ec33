"""The README's Python runs, and its commands are ones that the command knows."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_python_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    assert "relu" in capsys.readouterr().out.lower(), "the conversion says what it replaced"


def test_the_commands_of_the_readme_exist(htaf) -> None:
    verbs = set(re.findall(r"\.venv/bin/htaf (\w+)", README))
    assert {"train", "evaluate", "predict"} <= verbs
    for verb in verbs:
        code, _, err = htaf(verb, "--help")
        assert code == 0, err


def test_make_knows_the_targets_that_documents_name() -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    for target in set(re.findall(r"`make ([a-z-]+)`", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_links_point_at_files() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (Path(__file__).parents[1] / target).exists(), target
