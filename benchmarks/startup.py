"""CPU seconds (user and system) until the command answers: help and errors of the command line.

Every figure is of a fresh process; "imports torch" says whether it needed PyTorch.

    python benchmarks/startup.py --rounds 5 --json startup.json
"""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Any

from measuring import Spread, at_least_one, begin, end, parser, spread

from htaf.cli import VERBS

WORDS = [["--help"], ["--version"], ["evalute"], ["evaluate", "--no-such-flag"]]
WORDS += [[*verb.split(), "--help"] for verb in VERBS]


def seconds(words: list[str]) -> float:
    """Of one call of the command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "htaf", *words], capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def imports_torch(words: list[str]) -> bool:
    """Whether the call imports PyTorch."""
    command = [sys.executable, "-X", "importtime", "-m", "htaf", *words]
    lines = subprocess.run(command, capture_output=True, text=True).stderr.splitlines()
    return any(line.rsplit("|", 1)[-1].strip() == "torch" for line in lines)


def main() -> None:
    given = parser(__doc__)
    given.add_argument("--rounds", type=at_least_one, default=5, help="default: 5")
    args = begin(given)
    rows: list[dict[str, Any]] = []
    for words in WORDS:
        found: Spread = spread([seconds(words) for _ in range(args.rounds)])
        rows.append({"words": " ".join(words), "cpu_seconds": found._asdict(), "torch": imports_torch(words)})
        print(f"htaf {' '.join(words):<32} {found}{'  imports torch' if rows[-1]['torch'] else ''}", flush=True)
    end(args, rows)


if __name__ == "__main__":
    main()
