"""A slice of `tests/stress/bad_inputs.py`, which tries hundreds: one clear line each, and nothing left behind."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parent / "stress" / "bad_inputs.py"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The file as a module."""
    spec = importlib.util.spec_from_file_location("bad_inputs", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bad_inputs", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each input runs in a fork")
def test_a_slice_of_the_bad_inputs(module: Any) -> None:
    result = module.run(12, 0, say=lambda _: None, seconds=120.0)
    assert result["inputs"] == 12
    assert result["failures"] == []


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="each input runs in a fork")
def test_all_bad_inputs_of_bottlenecks(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "inputs", lambda world, count, seed: list(module.bottlenecks(world)))
    result = module.run(0, 0, say=lambda _: None, seconds=120.0)
    assert result["inputs"] > 150
    assert result["failures"] == []


def test_the_judge_sees_what_is_wrong(module: Any) -> None:
    bad = module.Bad("number", ("--lr", "nan"), ("train",))
    assert module._judged(bad, 2, "", "htaf: error: lr must be > 0, got nan") == []
    assert module._judged(bad, 1, "", "Traceback (most recent call last)\nlr must be > 0, got nan") == ["a traceback"]
    assert module._judged(bad, 0, "trained", "") == ["taken without a word"]
    assert "names none of" in module._judged(bad, 2, "", "htaf: error: a bad value, expected another")[0]
    assert module._judged(bad, 2, "", "htaf: error: nan") == ["does not say what was expected"]
    assert "ended by SIGSEGV" in module._judged(bad, -11, "", "")
