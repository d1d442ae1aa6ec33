"""Data flows one way: every module of ours imports only from rooms before its own."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
# Rooms in order; rooms on one line do not import each other unless a later line allows it.
ORDER = [
    ["_compat", "_errors", "_lazy"],
    ["_files"],
    ["_console"],
    ["llm"],
    ["theory"],
    ["kernels"],
    ["functional"],
    ["surrogates", "contract"],
    ["activations"],
    ["convert", "binary"],
    ["sharpening", "spiking"],
    ["diagnostics"],
    ["models"],
    ["data"],
    ["packed", "export"],
    ["runs"],
    ["training", "concepts"],
    ["explorer"],
    ["cli"],
    ["htaf_paper"],
]
RANK = {room: i for i, rooms in enumerate(ORDER) for room in rooms}
NO_LIGHTNING = {room for room, rank in RANK.items() if rank <= RANK["runs"]}


def room_of(module: str) -> str | None:
    """The room of a dotted name: `htaf.data.tabular` -> data, `htaf_paper.tabular` -> htaf_paper, others -> None."""
    head, _, rest = module.partition(".")
    return "htaf_paper" if head == "htaf_paper" else rest.split(".")[0] or None if head == "htaf" else None


def imports(path: Path) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def violations(path: Path, module: str) -> list[str]:
    room, bad = room_of(module), []
    if room is None:  # the public page htaf/__init__.py names everything
        return bad
    for line, name in imports(path):
        other = room_of(name)
        if other == "__version__":
            continue
        if other is not None and other != room and RANK.get(other, 99) >= RANK[room]:
            bad.append(f"{module}:{line} ({room}) imports {name} ({other})")
        if room in NO_LIGHTNING and name.split(".")[0] in {"lightning", "pytorch_lightning"}:
            bad.append(f"{module}:{line} ({room}) imports lightning")
    return bad


MODULES = {
    ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): path for path in SRC.rglob("*.py")
}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_only_from_earlier_rooms(module: str) -> None:
    assert violations(MODULES[module], module) == []


def test_the_check_sees_a_violation(tmp_path: Path) -> None:
    bad = tmp_path / "functional.py"
    bad.write_text("from htaf.training import fit\nimport lightning\n")
    assert len(violations(bad, "htaf.functional")) == 2
