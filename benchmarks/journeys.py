"""How many files of the library a call enters, and how often it climbs: six journeys on handwritten digits.

A climb is a pair of files, the lower of which calls a function of the higher. A file is higher than all that it
imports.

    python benchmarks/journeys.py [--source src/htaf] [--json results/journeys.json]
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

JOURNEYS = {
    "train tabular": "train tabular --data digits --epochs 1 --out {0}/table",
    "explain": "explain {0}/table",
    "pack": "pack {0}/table --out {0}/packed",
    "train icbm": "train icbm --data digits --recipe small --depth 10 --concepts 16 --epochs 1 --out {0}/icbm",
    "concepts extract": "concepts extract {0}/icbm --out {0}/codes",
    "explore": "explore {0}/icbm --codes {0}/codes --out {0}/page",
}


def floors(source: Path) -> dict[str, int]:
    """Of each file: one more than the highest that it imports; in a circle from the file that is asked."""
    files = {str(file.resolve()): file for file in source.rglob("*.py") if file.name != "__init__.py"}
    names = {".".join(file.relative_to(source.parent).with_suffix("").parts): path for path, file in files.items()}

    @functools.cache
    def imports(path: str) -> set[str]:
        found = set[str]()
        for node in ast.walk(ast.parse(files[path].read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        return {names[name] for name in found if name in names} - {path}

    known: dict[str, int] = {}

    def floor(path: str, above: frozenset[str] = frozenset()) -> int:
        if path not in known:
            below = imports(path) - above
            known[path] = 1 + max((floor(other, above | {path}) for other in below), default=0)
        return known[path]

    return {path: floor(path) for path in files}


def travelled(work: Callable[[], Any], floor: dict[str, int]) -> tuple[int, int]:
    """Files entered and climbs of a call."""
    entered, climbs = set[str](), set[tuple[str, str]]()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        here = frame.f_code.co_filename
        if event != "call" or here not in floor or frame.f_code.co_name == "<module>":
            return
        entered.add(here)
        caller = frame.f_back
        while caller is not None and caller.f_code.co_filename not in floor:
            caller = caller.f_back
        if caller is not None and floor[caller.f_code.co_filename] < floor[here]:
            climbs.add((caller.f_code.co_filename, here))

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return len(entered), len(climbs)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--source", type=Path, default=Path(__file__).parents[1] / "src" / "htaf")
    given.add_argument("--json", type=Path, help="where to write the figures")
    args = given.parse_args()
    sys.path.insert(0, str(args.source.parent))
    import pandas as pd
    from sklearn.datasets import load_digits

    import htaf
    from htaf import cli

    frame = pd.DataFrame(load_digits(as_frame=True).frame)
    floor, rows = floors(args.source), dict[str, dict[str, int]]()

    def command(words: list[str]) -> None:
        sys.argv = ["htaf", *words]
        cli.main()

    with tempfile.TemporaryDirectory() as folder:
        work: dict[str, Callable[[], Any]] = {"htaf.fit(frame)": lambda: htaf.fit(frame, "target", epochs=1)}
        for name, words in JOURNEYS.items():
            work[name] = functools.partial(command, words.format(folder).split())
        for name, act in work.items():
            files, climbs = travelled(act, floor)
            rows[name] = {"files": files, "climbs": climbs}
            print(f"{name:<20} {files:>3} files {climbs:>3} climbs", file=sys.stderr, flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
