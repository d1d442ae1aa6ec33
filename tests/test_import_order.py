"""Data flows one way: every module of ours imports only from rooms before its own."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Rooms in order; rooms on one line do not import each other unless a later line allows it.
ORDER = [
    ["_compat", "_errors", "_lazy"],
    ["_files"],
    ["_console", "names"],
    ["llm"],
    ["kernels"],
    ["functional"],
    ["surrogates", "contract"],
    ["activations"],
    ["convert", "binary"],
    ["sharpening", "spiking", "grid"],
    ["diagnostics"],
    ["models"],
    ["hardening"],
    ["data"],
    ["packed"],
    ["integer"],
    ["export"],
    ["runs"],
    ["rules"],
    ["training", "concepts", "language"],
    ["report"],
    ["estimators"],
    ["explorer"],
    ["embeddings"],
    ["discovery"],
    ["cards"],
    ["sharing"],
    ["cli"],
    ["__main__"],
    ["htaf_paper"],
]
# Lines that a room may have, "": the files beside the rooms. They only fall: what needs more takes as many away.
BUDGETS = {
    "cli": 3_874,
    "concepts": 6_142,
    "convert": 2_840,
    "data": 6_977,
    "diagnostics": 331,
    "embeddings": 556,
    "explorer": 1_435,
    "export": 1_227,
    "hardening": 1_906,
    "integer": 3_610,
    "kernels": 3_560,
    "language": 2_465,
    "llm": 387,
    "models": 1_967,
    "packed": 4_971,
    "report": 1_569,
    "rules": 2_127,
    "runs": 2_977,
    "spiking": 418,
    "": 5_092,
    "training": 4_531,
}
# the same of whole folders, in all
TOTALS = {("src/htaf",): 58_962, ("tests", "paper/tests"): 50_216, ("paper/src",): 14_006}
RANK = {room: i for i, rooms in enumerate(ORDER) for room in rooms}
NO_LIGHTNING = {room for room, rank in RANK.items() if rank <= RANK["runs"]}

SHARED = {f"htaf.{room}" for room in RANK if room.startswith("_")}
COMPILED = "htaf.kernels._native"  # the extension, which only its own room imports


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


def private(path: Path, module: str) -> list[str]:
    """Private modules of other rooms, and private names of other modules, that a module of ours uses."""
    bad, ours = [], {}
    tree = ast.parse(path.read_text())

    def see(line: int, owner: str, name: str) -> None:
        whole = f"{owner}.{name}"
        own = whole in MODULES and room_of(whole) == room_of(module)
        if name.startswith("_") and not name.endswith("__") and whole not in SHARED and not own:
            bad.append(f"{module}:{line} uses {whole}")

    def see_module(line: int, name: str) -> None:
        owner, _, last = name.rpartition(".")
        if owner:
            see_module(line, owner)
            see(line, owner, last)

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if room_of(alias.name) is not None:
                    see_module(node.lineno, alias.name)
                    ours[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in {"htaf", "htaf_paper"}:
            see_module(node.lineno, str(node.module))
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole != COMPILED:
                    see(node.lineno, str(node.module), alias.name)
                if whole in MODULES:
                    ours[alias.asname or alias.name] = whole
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (owner := ours.get(ast.unparse(node.value))) is not None:
            see(node.lineno, owner, node.attr)
    return bad


MODULES = {
    ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): path
    for source in (ROOT / "src", ROOT / "paper" / "src")
    for path in source.rglob("*.py")
}


def test_imports_only_from_earlier_rooms() -> None:
    assert [bad for module, path in MODULES.items() for bad in violations(path, module)] == []


def test_rooms_keep_their_budgets() -> None:
    rooms = {room: (ROOT / "src" / "htaf" / room).rglob("*.py") for room in BUDGETS if room}
    rooms[""] = (ROOT / "src" / "htaf").glob("*.py")
    lines = {room: sum(len(file.read_text().splitlines()) for file in files) for room, files in rooms.items()}
    assert {room: (n, BUDGETS[room]) for room, n in lines.items() if n > BUDGETS[room]} == {}
    for folders, most in TOTALS.items():
        files = itertools.chain(*((ROOT / folder).rglob("*.py") for folder in folders))
        assert sum(len(file.read_text().splitlines()) for file in files) <= most, folders


def test_no_private_name_of_another_module() -> None:
    assert [bad for module, path in MODULES.items() for bad in private(path, module)] == []


def test_only_kernels_import_the_compiled_extension() -> None:
    rooms = {room_of(m) for m, path in MODULES.items() if any(name == COMPILED for _, name in imports(path))}
    assert rooms == {"kernels"}


def test_the_check_sees_private_names(tmp_path: Path) -> None:
    bad = tmp_path / "names.py"
    bad.write_text(
        "import htaf.kernels.operators\nfrom htaf import _files, runs\nfrom htaf._errors import first_line\n"
        "from htaf.kernels._secret import value\nfrom htaf.data.named import _plain\nimport htaf.llm._hidden\n"
        "_files.to_json\nruns._shown\nhtaf.kernels.operators._fake\nself._own\nruns.__name__\n"
    )
    found = [line.partition(" ")[0].rpartition(":")[2] for line in private(bad, "htaf.concepts.names")]
    assert found == ["4", "5", "6", "8", "9"]


def test_no_file_has_the_name_of_something_else_in_its_package() -> None:
    """`htaf.diagnostics.operations` is the function, so no file may be called that."""
    shadowed = []
    for name, path in MODULES.items():
        if path.name == "__init__.py":
            given = [n for _, n in imports(path) if n not in MODULES]
            shadowed += [one for one in given if f"{name}.{one.rpartition('.')[2]}" in MODULES]
    assert shadowed == []


def test_the_check_sees_a_violation(tmp_path: Path) -> None:
    bad = tmp_path / "functional.py"
    bad.write_text("from htaf.training import fit\nimport lightning\n")
    assert len(violations(bad, "htaf.functional")) == 2
