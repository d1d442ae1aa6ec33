"""What a naming says: one line a concept, warnings before money is spent, what many checks are worth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from made_askers import QUICK, Counted, made, shares
from rich.cells import cell_len

from htaf.concepts.naming import (
    NamingSettings,
    check_notes,
    estimate,
    estimate_line,
    estimate_notes,
    name_lines,
    naming_plan,
)
from htaf_paper.table_model import TableModel


def entry(concept: int, name: str | None, reason: str = "", p_value: float | None = 0.001) -> dict[str, Any]:
    return {
        "concept": concept, "name": name, "verified": not reason, "reason": reason, "p_value": p_value,
        "held_out": None if p_value is None else 0.9, "group_a": 100, "group_b": 80, "mixed": 20, "source": "model",
    }  # fmt: skip


def test_a_line_a_concept_the_verified_first() -> None:
    names = [
        entry(0, "short", "shuffled classes do as well: p = 0.20 > 0.05, and more"),
        entry(1, "\u6771" * 40),
        entry(2, None, "waiting for replies", None),
        entry(3, "a name that is rather long by itself", "and a reason that is as long as the name"),
        entry(4, "fits", "too") | {"test_a": 0.91, "test_b": 0.04},
        entry(5, "sixth"),
        entry(6, None, "dead: always 1", None),
        entry(7, "two\nlines \x1b[31m"),
    ]
    lines = name_lines(names, [7, 6, 5, 4, 3, 2, 1, 0], 80)
    assert [line.split()[0] for line in lines] == ["concept", "7", "5", "1", "6", "4", "3", "2", "0"]
    assert [line.split()[1] for line in lines[1:]] == ["yes"] * 3 + ["no"] * 3 + ["waits", "no"]
    assert all(cell_len(line) <= 80 for line in lines)
    assert cell_len(lines[3]) >= 79  # what fits is used
    assert lines[1].endswith("two\\nlines \\u001b[31m")
    assert lines[4].endswith("-      -  100/80        -  (dead: always 1)")
    assert lines[5].endswith("0.90  0.001  100/80    91/4%  fits (too)")
    assert lines[6].endswith("\u2026)")
    assert lines[7].endswith("100/80        -  -")
    assert "short (shuffled classes" in lines[8]
    assert "\u2026" not in "".join(name_lines(names, range(8), 400))


def test_many_checks_let_some_pass_by_chance() -> None:
    names = [entry(number, "x") for number in range(25)] + [entry(99, None, "dead: always 1", None)]
    told = ["25 names were checked, each at p <= 0.05: chance alone may pass about 1.2 of them"]
    assert check_notes(names) == told
    assert check_notes(names[:1]) == check_notes(names[-1:]) == []


def test_too_few_classes_are_no_failure_of_a_name() -> None:
    names = [entry(0, "x", "p = 0.20") | {"status": "too few classes"}, entry(1, "y") | {"only_class": True}]
    lines = name_lines(names, [0, 1], 100)
    assert [line.split()[1] for line in lines[1:]] == ["yes", "few"]
    assert lines[1].endswith("y (of its class alone)")
    assert check_notes(names)[1:] == [
        "1 of 2 names have too few classes for this check: htaf concepts name --pictures checks names on images",
        "1 of the verified names tell no images of one class apart: they may only name classes",
    ]


def test_few_classes_are_told_before_anything_is_asked() -> None:
    client = Counted(TableModel(made()))
    rows = np.full((4, 24), 0.5)
    for row, (a, b) in zip(rows, ((3, 4), (1, 9), (12, 12), (0, 9)), strict=True):
        row[:a], row[24 - b :] = 1, 0
    classes = made().classes
    needed = estimate(rows, client, classes=classes, settings=QUICK)
    assert (needed.concepts, needed.idle, needed.single, needed.hopeless, needed.calls) == (4, 1, 1, 1, 12)
    text = estimate_line(needed)
    assert text.startswith(
        "4 names to find or check (1 with nothing to ask; 1 of them cannot be checked (a group has one class): "
        "not asked): 12 requests, about "
    )
    assert estimate_notes(needed)[0].startswith("1 of them: so few classes in the groups that even")
    given = [{"concept": c, "name": "x"} for c in range(4)]
    checks = estimate(rows, client, names=given, classes=classes, settings=QUICK)
    assert (checks.single, checks.hopeless) == (0, 1)  # all classes are permuted at once: 1 of 9 or 35 ways
    assert estimate(shares(made()), client, classes=classes).hopeless == 0
    assert estimate(rows, client, classes=classes, settings=NamingSettings(permutations=0)).hopeless == 0


@pytest.mark.parametrize(("a", "b", "hopeless"), [(3, 4, True), (2, 6, True), (5, 4, False), (2, 2, True)])
def test_the_best_sorting_of_few_classes(a: int, b: int, hopeless: bool) -> None:
    plan = naming_plan(np.array([[1.0] * a + [0.0] * b]))
    assert plan.case(0).hopeless(folds=True) is hopeless
