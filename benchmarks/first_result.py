"""From `pip install` of a wheel into an empty environment to the first result of each door: seconds and megabytes.

    make wheel
    python benchmarks/first_result.py dist/htaf-*.whl --model SmolLM2-135M-Instruct.gguf --json first_result.json

Doors that need the same extra share an environment. Each has a new process, a folder of its own and a PATH without a
compiler. pip, or uv, takes the versions of constraints.txt from where it is set up to look, its cache included. A first
result is what the README shows: the report of `htaf.finish`, predictions of a table, a page of concepts, a language
model's perplexity with gates, C without floats. CPU seconds say what a busy machine hides.
"""

from __future__ import annotations

import collections
import os
import re
import resource
import shlex
import subprocess
import tempfile
import time
import venv
from pathlib import Path
from typing import Any, NamedTuple

from measuring import ROOT, begin, end, parser

# the extra -> its doors -> what is run, {} being the model; "README: ..." is the block of its Python with these words
DOORS = {
    "": {"own model": ["README: htaf.finish("]},
    "train": {
        "table": ["README: htaf.fit("],
        "images": ["htaf demo --out runs/demo"],
        "integers in C": [
            "htaf train tabular --data digits --weights int8 --epochs 10 --out runs/digits",
            "htaf export runs/digits --to c --out digits-c",
        ],
    },
    "language": {
        "language": [
            "htaf train llm --model {model} --text {text} --last-k 2 --steps 0 --training-blocks 20 --out runs/smol",
        ]
    },
}


class Spent(NamedTuple):
    seconds: float
    cpu_seconds: float


def spent(command: list[str], folder: Path, env: dict[str, str]) -> Spent:
    """By a command that must end well."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    took, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout}")
    return Spent(took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def megabytes(folder: Path) -> dict[str, float]:
    """Of what lies in a folder, by its first name, the largest first."""
    sizes: collections.Counter[str] = collections.Counter()
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink():
            sizes[re.split(r"[-.]", file.relative_to(folder).parts[0])[0]] += file.stat().st_size
    return {name: size / 1e6 for name, size in sizes.most_common()}


def words(line: str, programs: Path, model: Path | None) -> list[str]:
    """A line of DOORS as a command."""
    if line.startswith("README: "):
        blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
        (block,) = [block for block in blocks if line.removeprefix("README: ") in block]
        return [str(programs / "python"), "-c", block]
    first, *others = line.split()
    return [str(programs / first), *(word.format(model=model, text=ROOT / "docs" / "concepts.md") for word in others)]


def main() -> None:
    given = parser(__doc__)
    given.add_argument("wheel", type=Path)
    given.add_argument("--model", type=Path, help="of the language door, which is left out without it")
    given.add_argument("--uv", metavar="PROGRAM", help="install by this uv instead of pip")
    given.add_argument("--only", choices=[door for doors in DOORS.values() for door in doors], nargs="+")
    args = begin(given)
    rows: list[dict[str, Any]] = []
    print("door            extra       install s (CPU)   result s (CPU)    MB")
    for extra, doors in DOORS.items():
        asked = [door for door in doors if door in (args.only or doors) and (args.model or door != "language")]
        if not asked:
            continue
        with tempfile.TemporaryDirectory() as made:
            place = Path(made) / "venv"
            programs, env = place / "bin", {name: x for name, x in os.environ.items() if name != "PYTHONPATH"}
            venv.create(place, with_pip=True)
            (packages,) = place.glob("lib/python*/site-packages")
            empty = sum(megabytes(packages).values())
            wanted = f"{args.wheel.resolve()}[{extra}]" if extra else str(args.wheel)
            python = str(programs / "python")
            pip = [args.uv, "pip", "install", "--python", python] if args.uv else [python, "-m", "pip", "install"]
            install = spent([*pip, "-c", str(ROOT / "constraints.txt"), wanted], ROOT, env)
            found = megabytes(packages)
            size = sum(found.values()) - empty
            env["PATH"] = str(programs)
            for door in asked:
                folder = Path(made) / door.replace(" ", "-")
                folder.mkdir()
                steps = [spent(words(line, programs, args.model), folder, env) for line in doors[door]]
                result = Spent(*map(sum, zip(*steps, strict=True)))
                rows.append({"door": door, "extra": extra, "install": install._asdict(), "result": result._asdict()})
                rows[-1] |= {"megabytes": size, "packages": found}
                times = (f"{one.seconds:.0f} ({one.cpu_seconds:.0f})" for one in (install, result))
                print(f"{door:<16}{extra:<10}{next(times):>17}{next(times):>17}{size:>6.0f}", flush=True)
            largest = ", ".join(f"{name} {size:.0f}" for name, size in found.items() if size >= 5)
            print(f"  MB: {largest}", flush=True)
    end(args, rows)


if __name__ == "__main__":
    main()
