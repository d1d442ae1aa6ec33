"""Outcomes of the paper's items as `htaf paper run` writes them, whose every word may try to be HTML or Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from htaf_paper.outcomes import FORMAT, OUTCOMES, keep_outcomes, picture_file
from htaf_paper.protocol import Claim, Drawing, Figure, Outcome, Panel, Scale, Series, Table, Verdict

HOSTILE = "<script>alert(1)</script> a&b \"q\" 'r' | $\\frac{1}{2}$ \u202eevil [x](javascript:1) `c` *b*"
XS = tuple(i / 10 for i in range(1, 31))


def put(
    out: Path,
    item: str,
    scale: Scale,
    outcome: Outcome | None = None,
    *,
    status: str = "finished",
    message: str = "",
    title: str = "",
    seconds: float = 12.5,
    **more: Any,
) -> Path:
    """Write an outcome; the file of outcomes."""
    measured = [
        {
            "cells": 3, "cpu_seconds": seconds, "commit": "0123456789abcdef0123456789abcdef01234567+changes",
            "platform": "Linux-x86_64", "threads": 1, "device": "cpu", "versions": {"torch": "2.13.0", "htaf": "1.0"},
        }
    ]  # fmt: skip
    value = {
        "format": FORMAT, "id": item, "title": title or f"Title of {item}", "paper": f"Table of {item}",
        "scale": scale, "about": f"what is done at {scale}", "status": status, "message": message,
        "outcome": (outcome or Outcome()).to_json(), "measured": measured if status == "finished" else [],
    }  # fmt: skip
    keep_outcomes(out, [{**value, **more}])
    return out / OUTCOMES


def claim(verdict: Verdict = "holds", text: str = "A is better than B") -> Claim:
    return Claim(text, "section 1", "holds if the interval lies above 0", verdict, "+1.00 [+0.50, +1.50], n = 3")


def table(word: str = "method") -> Table:
    """With the paper's figures in one column, and a row that was not run."""
    rows = (
        ("HTAF", Figure.of([90.0, 91.0, 92.0], 93.4, paper_error=0.3), Figure.of([0.5, 0.75], digits=2)),
        (word, Figure(note="not run: GPU", paper=95.0), Figure()),
    )
    return Table(f"Accuracy, {word}", ("method", "CIFAR-10", "gap"), rows, f"Note: {word}")


def drawings(word: str = "line") -> tuple[Drawing, ...]:
    """One of every style, and a photograph, `photo.png`."""
    curve = Series(word, XS, tuple(x**2 for x in XS))
    dots = Series(f"_{word}", XS[:4], (1.0, 10.0, 100.0, 0.0), "points", (0.1, 1.0, 10.0, 0.0))
    bars = tuple(Series(f"{word} {i}", (0.0, 1.0), (1.0 + i, 2.0), "bars", (0.1, 0.2)) for i in range(3))
    steps = Series("steps", (0.0, 0.5, 1.0), (3.0, 4.0), "steps")
    panels = (
        Panel(word, word, word, (curve, dots), x_log=True, y_log=True, hline=1.0),
        Panel("bars", "", "y", bars, ticks=(word, "a long name of a data set")),
        Panel("steps", "x", "y", (steps,)),
    )
    return (
        Drawing("curves", word, f"What is seen: {word}", panels, columns=2),
        Drawing("photo", "Photographs", "Two birds", picture="photo.png"),
    )


def photograph(out: Path, scale: Scale) -> None:
    """The file of `drawings` of a scale."""
    file = picture_file(out, scale, "photo.png")
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.arange(40 * 700 * 3, dtype=np.uint32).reshape(40, 700, 3) % 251
    Image.fromarray(pixels.astype(np.uint8)).save(file)


def full_outcome(word: str = "word") -> Outcome:
    """Something of everything, with one word everywhere."""
    verdicts: tuple[Verdict, ...] = ("holds", "does not hold", "not settled", "not testable at this scale", "not run")
    return Outcome(
        (table(word),),
        drawings(word),
        tuple(Claim(f"{v}: {word}", word, word, v, word) for v in verdicts),
        (f"erratum {word}",),
        (f"deviation {word}",),
        ((f"row {word}", "not run: data", f"command {word}"),),
        (f"note {word}",),
    )
