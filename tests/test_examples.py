"""The examples of the site run without a warning, print and draw, and write into temporary folders alone."""

from __future__ import annotations

import ast
import runpy
import tempfile
import warnings
from pathlib import Path

import matplotlib
import pytest
import torch

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("[0-9][0-9]_*.py"))
QUICK = ("04", "06", "09")
LONGEST = 80  # lines that are not blank


def names(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if path.name[:2] in QUICK else pytest.mark.slow, id=path.stem) for path in EXAMPLES],
)
def test_an_example_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    matplotlib.use("agg")
    from matplotlib import pyplot

    here, aside, beside = tmp_path / "here", tmp_path / "aside", sorted(path.parent.iterdir())
    for folder in (here, aside):
        folder.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(tempfile, "tempdir", str(aside))
    pyplot.close("all")
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("error", UserWarning)
            runpy.run_path(str(path), run_name="__main__")
        drawn = [pyplot.figure(number).axes for number in pyplot.get_fignums()]
    finally:
        pyplot.close("all")
    printed = capsys.readouterr()
    assert printed.out.strip()
    assert not printed.err, "nothing is written to the error stream: no bars"
    assert all(drawn), "a figure without axes"
    assert list(here.iterdir()) == []
    assert sorted(path.parent.iterdir()) == beside


@pytest.mark.parametrize("path", EXAMPLES, ids=names)
def test_an_example_has_a_title_and_is_short(path: Path) -> None:
    text = path.read_text()
    title, line, empty, *about = (ast.get_docstring(ast.parse(text)) or "").splitlines()
    assert line == "=" * len(title)
    assert not empty
    assert about
    assert len([line for line in text.splitlines() if line.strip()]) <= LONGEST
    assert "# %%" in text


def test_examples_are_numbered_from_1() -> None:
    assert [int(path.name[:2]) for path in EXAMPLES] == [*range(1, len(EXAMPLES) + 1)]
