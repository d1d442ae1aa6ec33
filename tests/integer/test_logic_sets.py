"""benchmarks/logic_sets.py reads files of the layout that it names, made up here: the real ones are large."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "logic_sets.py"


def made(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *map(str, words)], capture_output=True, text=True)


@pytest.mark.skipif(not SCRIPT.exists(), reason="an installed package has no benchmarks")
def test_files_of_the_layout_become_tables(tmp_path: Path) -> None:
    names, numbers = [f"zlogz_{i}" for i in range(16)], np.arange(32.0).reshape(2, 16) / 7
    lines = [f"@ATTRIBUTE {name} REAL" for name in names] + ["@ATTRIBUTE 'class' {g, q}", "@DATA"]
    rows = [",".join([*map(str, row), of]) for row, of in zip(numbers.tolist(), "gq", strict=True)]
    (tmp_path / "jets.arff").write_text("\n".join(["% a comment", "@RELATION jets", *lines, *rows]))
    assert "--target class" in made("jets", tmp_path / "jets.arff", "--out", tmp_path / "jets").stdout
    found = pd.read_csv(tmp_path / "jets" / "train.csv")
    assert [*found] == [*names, "class"]
    np.testing.assert_array_equal(found[names].to_numpy(), numbers)
    flows = pd.DataFrame({"id": [1], **{f"c{i}": ["tcp" if i == 1 else i] for i in range(42)}, "attack_cat": ["DoS"]})
    flows.assign(label=1).to_csv(tmp_path / "flows.csv", index=False)
    said = made("unsw", tmp_path / "flows.csv", tmp_path / "flows.csv", "--out", tmp_path / "unsw").stdout
    assert said.count("\n") == 2
    assert [*pd.read_csv(tmp_path / "unsw" / "test.csv")] == [*(f"c{i}" for i in range(42)), "label"]
    wrong = made("jets", tmp_path / "flows.csv", "--out", tmp_path / "jets")
    assert wrong.returncode == 1
    assert "expected 16 columns and 'class', got c0, c1" in wrong.stderr
