"""What a naming says: one line a concept, warnings before money is spent, what many checks are worth."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from made_askers import Counted, TableModel, job, made

from htaf._console import terminal
from htaf.concepts.naming import (
    NamingSettings,
    check_notes,
    estimate_line,
    estimate_notes,
    name_table,
)
from htaf.concepts.naming.job import Estimate


def lines_of(names: list[dict[str, Any]], order: list[int], width: int = 80) -> list[str]:
    console = terminal(width=width, file=io.StringIO())
    console.print(name_table(names, order))
    return console.file.getvalue().splitlines()


def entry(concept: int, name: str | None, reason: str = "", p_value: float | None = 0.001) -> dict[str, Any]:
    return {
        "concept": concept, "name": name, "verified": not reason, "reason": reason, "p_value": p_value,
        "held_out": None if p_value is None else 0.9, "group_a": 100, "group_b": 80, "mixed": 20, "source": "model",
    }  # fmt: skip


def test_a_row_a_concept_the_verified_first() -> None:
    names = [
        entry(0, "short", "shuffled classes do as well: p = 0.20 > 0.05, and more"),
        entry(1, "\u6771" * 40),
        entry(4, "fits", "too") | {"test_a": 0.91, "test_b": 0.04},
        entry(5, "sixth"),
        entry(6, None, "dead: always 1", None),
        entry(7, "two\nlines \x1b[31m[red]"),
    ]
    lines = lines_of(names, [7, 6, 5, 4, 1, 0])
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines[1:] if line.split()[0].isdigit()]
    assert [row[:2] for row in rows] == [
        ["7", "yes"], ["5", "yes"], ["1", "yes"], ["6", "no"], ["4", "no"], ["0", "no"],
    ]  # fmt: skip
    text = "\n".join(lines)
    assert "\\u001b[31m[red]" in text
    assert "\x1b" not in text
    assert rows[3][2:] == ["-", "-", "100/80", "-", "(dead:", "always", "1)"]
    assert rows[4][2:] == ["0.90", "0.001", "100/80", "91/4%", "fits", "(too)"]


def test_many_checks_let_some_pass_by_chance() -> None:
    names = [entry(number, "x") for number in range(25)] + [entry(99, None, "dead: always 1", None)]
    told = ["25 names were checked, each at p <= 0.05: chance alone may pass about 1.2 of them"]
    assert check_notes(names) == told
    assert check_notes(names[:1]) == check_notes(names[-1:]) == []


def test_too_few_classes_are_no_failure_of_a_name() -> None:
    names = [entry(0, "x", "p = 0.20") | {"status": "too few classes"}, entry(1, "y") | {"only_class": True}]
    lines = lines_of(names, [0, 1], 100)
    assert [line.split()[1] for line in lines[1:]] == ["yes", "few"]
    assert lines[1].endswith("y (of its class alone)")
    assert check_notes(names)[1:] == [
        "1 of 2 names have too few classes for this check: htaf concepts name --pictures checks names on images",
        "1 of the verified names tell no images of one class apart: they may only name classes",
    ]


def test_few_classes_are_told_before_anything_is_asked() -> None:
    table, rows = made(), np.full((4, 24), 0.5)
    for row, (a, b) in zip(rows, ((3, 4), (1, 9), (12, 12), (0, 9)), strict=True):
        row[:a], row[24 - b :] = 1, 0
    client = Counted(TableModel(table))
    needed = job(table, client, rows).estimate()
    assert (needed.concepts, needed.idle, needed.single, needed.hopeless, needed.calls) == (4, 1, 1, 1, 12)
    assert estimate_line(needed, "x").startswith(
        "4 names to find or check (1 with nothing to ask; 1 of them cannot be checked (a group has one class): "
        "not asked): 12 requests, about "
    )
    assert estimate_notes(needed)[0].startswith("1 of them: so few classes in the groups that even")
    checks = job(table, client, rows, given=[{"concept": c, "name": "x"} for c in range(4)]).estimate()
    assert (checks.single, checks.hopeless) == (0, 1)  # all classes are permuted at once: 1 of 9 or 35 ways
    assert job(table, client).estimate().hopeless == 0
    assert job(table, client, rows, NamingSettings(permutations=0)).estimate().hopeless == 0


def test_what_would_be_sent_is_told() -> None:
    needed = Estimate(2, 0, 6, 0, 3000, 800, images=88, pictures=10, bytes=1_200_000)
    assert estimate_line(needed, "gpu.example") == (
        "2 names to find or check: 6 requests with 10 pictures that show 88 of your images, about 1.2 MB, to "
        "gpu.example, about 3,000 tokens to send and 800 to receive"
    )
