"""Data flows one way: every module of ours imports only from rooms before its own."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Rooms in order; rooms on one line do not import each other unless a later line allows it.
ORDER = [
    ["_ground.compat", "_ground.errors"],
    ["_ground.files"],
    ["_ground.console", "_ground.names"],
    ["concepts.llm"],
    ["core.kernels"],
    ["core.functional"],
    ["core.surrogates", "core.contract"],
    ["core.activations"],
    ["transform.convert", "core.binary"],
    ["core.sharpening", "transform.spiking", "transform.grid"],
    ["transform.diagnostics"],
    ["models"],
    ["transform.hardening"],
    ["data"],
    ["program.packed"],
    ["program.integer"],
    ["program.export"],
    ["training.runs"],
    ["tables.inspection"],
    ["training", "concepts", "language"],
    ["tables.readable"],
    ["tables.report"],
    ["tables.estimators"],
    ["concepts.explorer"],
    ["concepts.embeddings"],
    ["concepts.discovery"],
    ["sharing"],
    ["cli"],
    ["__main__"],
    ["htaf_paper"],
]
# Lines that a room may have, "": the files beside the rooms. They only fall: what needs more takes as many away.
BUDGETS = {
    "_ground": 1_237,
    "cli": 3_109,
    "concepts": 7_523,
    "core": 5_002,
    "data": 5_762,
    "language": 2_222,
    "models": 2_349,
    "program": 9_558,
    "tables": 2_438,
    "training": 7_914,
    "transform": 6_120,
    "": 564,
}
# the same of whole folders, in all
TOTALS = {("src/htaf",): 53_798, ("tests", "paper/tests"): 47_434, ("paper/src",): 13_850}
RANK = {room: i for i, rooms in enumerate(ORDER) for room in rooms}
NO_LIGHTNING = {room for room, rank in RANK.items() if rank <= RANK["training.runs"]}

SHARED = {"htaf._ground"}
COMPILED = "htaf.core.kernels._native"  # the extension, which only its own room imports


def room_of(module: str) -> str | None:
    """The room of a dotted name: `htaf.core.binary` -> core.binary, `htaf.data.tabular` -> data, others -> None."""
    head, _, rest = module.partition(".")
    if head != "htaf":
        return head if head == "htaf_paper" else None
    part = ".".join(rest.split(".")[:2])
    return part if part in RANK else rest.split(".")[0] or None


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
    assert rooms == {"core.kernels"}


def test_the_check_sees_private_names(tmp_path: Path) -> None:
    bad = tmp_path / "names.py"
    bad.write_text(
        "import htaf.core.kernels.operators\nfrom htaf.training import runs\n"
        "from htaf._ground.errors import first_line\nfrom htaf.core.kernels._secret import value\n"
        "from htaf.data.named import _plain\nimport htaf.concepts.llm._hidden\n"
        "first_line\nruns._shown\nhtaf.core.kernels.operators._fake\n"
        "self._own\nruns.__name__\n"
    )
    found = [line.partition(" ")[0].rpartition(":")[2] for line in private(bad, "htaf.concepts.names")]
    assert found == ["4", "5", "6", "8", "9"]


def test_no_file_has_the_name_of_something_else_in_its_package() -> None:
    """`htaf.transform.diagnostics.operations` is the function, so no file may be called that."""
    shadowed = []
    for name, path in MODULES.items():
        if path.name == "__init__.py":
            given = [n for _, n in imports(path) if n not in MODULES]
            shadowed += [one for one in given if f"{name}.{one.rpartition('.')[2]}" in MODULES]
    assert shadowed == []
