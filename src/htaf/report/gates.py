"""The page of the gates of a language model, beside a file with all that is known of them; the words are in a
template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from htaf._files import write_atomic
from htaf.language.errors import LanguageError
from htaf.language.meanings import Meaning
from htaf.report.parts import templates

GATES, PAGE = "gates.jsonl", "index.html"
SHOWN = (40, 20)  # gates of a layer: those that tokens explain best, and others at random
LINES = {ord("\n"): "\u21b5", ord("\t"): "\u21e5", ord("\r"): "\u240d"}  # signs for line ends and tabs
SIGNS = {ord(" "): "\u2423", **LINES}


def write_gates(found: Sequence[Meaning], folder: str | Path, title: str, about: Sequence[str] = ()) -> None:
    """Write gates.jsonl, a gate on each line, and index.html, some of each layer for people to read.

    Raises:
        LanguageError: the folder holds other files. OSError: it cannot be written.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(f.name not in (GATES, PAGE) for f in folder.iterdir())):
        raise LanguageError(f"expected a new folder, or one of an earlier page, {folder} holds other files")
    folder.mkdir(parents=True, exist_ok=True)
    layers = [
        _layer(number, [gate for gate in found if gate.layer == number])
        for number in sorted({gate.layer for gate in found})
    ]
    page = templates().get_template("gates.html").render(title=title, about=about, layers=layers)
    write_atomic(folder / GATES, "".join(json.dumps(asdict(gate), ensure_ascii=False) + "\n" for gate in found))
    write_atomic(folder / PAGE, page)


def _layer(number: int, gates: Sequence[Meaning]) -> dict[str, Any]:
    """What the page shows of a layer."""
    alive = [gate for gate in gates if 0 < gate.open < 1]
    ordered = sorted(alive, key=lambda gate: -gate.by_token)
    best, rest = ordered[: SHOWN[0]], ordered[SHOWN[0] :]
    order = torch.randperm(len(rest), generator=torch.Generator().manual_seed(number)).tolist()
    return {
        "number": number, "count": len(gates), "mean": f"{sum(gate.open for gate in gates) / len(gates):.1%}",
        "dead": sum(gate.open == 0 for gate in gates), "always": sum(gate.open == 1 for gate in gates),
        "best": list(map(_row, best)), "others": [_row(rest[i]) for i in order[: SHOWN[1]]],
    }  # fmt: skip


def _row(gate: Meaning) -> dict[str, Any]:
    snippets = []
    for one in gate.snippets:
        token = one.token.translate(LINES if one.token.strip() else SIGNS)
        snippets.append((one.before.translate(LINES), token, one.after.translate(LINES)))
    tokens = [(one.token.translate(SIGNS), f"{one.share:.0%}") for one in gate.tokens]
    numbers = {"open": f"{gate.open:.1%}", "by_token": f"{gate.by_token:.2f}"}
    return {"neuron": gate.neuron, "tokens": tokens, "snippets": snippets, **numbers}
