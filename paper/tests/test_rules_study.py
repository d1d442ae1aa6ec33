"""The study of rules: on a table with a planted rule."""

from __future__ import annotations

from pathlib import Path

from htaf_paper.rules import planted_cell


def test_a_planted_rule_is_found_by_a_trained_network(tmp_path: Path) -> None:
    """The target is a known rule of two of eight columns, with 5% of the labels turned."""
    found = planted_cell(0, tmp_path, hidden=(8,), epochs=12)
    assert found["precision"] > 0.6  # 2 of 8 columns taken at random: 0.25
    assert found["important"]
    assert found["best_agreement"] > 0.8 > found["constant"] > 0.5
