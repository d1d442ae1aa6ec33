"""SEW-ResNet and its neurons beside SpikingJelly: first that both compute the same, then how fast they train.

    python benchmarks/peers/spikingjelly/compare.py [--part equality throughput] [--widths 64 16] [--threads 1 2]
                                                    [--batch 32] [--steps 4] [--rounds 7] [--json FILE]

Any Python >= 3.11 will do: the first run makes `.venv` beside this file (SpikingJelly brings packages that do not suit
ours) and installs requirements.txt and htaf into it. After a change of csrc/, delete `.venv/.installed`.

Equality: outputs and gradients from the same weights, the largest difference over the largest value; the exact spike
with the ATan slope on both sides. Throughput: forward, cross entropy, backward of SEW-ResNet-18 with the stem for small
images, both sides in one process, in turn, each in both memory formats; images a second are batch / median time. The
ratio compares each of ours with SpikingJelly's quicker format, round by round; its target is 1.2.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
VENV, STAMP = HERE / ".venv", HERE / ".venv" / ".installed"
PYTHON = VENV / "bin" / "python"
TARGET = 1.2


def enter_environment() -> None:
    """Make the environment if need be, and run this file in it."""
    if not STAMP.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        constraints = ROOT / "constraints.txt"
        pip = next(line for line in constraints.read_text().splitlines() if line.startswith("pip=="))
        for arguments in (
            [pip],
            ["-c", constraints, "-r", HERE / "requirements.txt"],
            ["--build-constraint", constraints, "--no-deps", "-e", ROOT],
        ):
            subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", *arguments], check=True)
        STAMP.touch()
    if Path(sys.prefix).resolve() != VENV:
        os.execv(PYTHON, [str(PYTHON), *sys.argv])


def main() -> None:
    sys.path[:0] = [str(HERE), str(ROOT / "benchmarks")]
    import htaf  # noqa: F401  # before torchvision: see htaf/_compat.py  # isort: skip
    import equality
    import measuring
    import throughput
    from rich.console import Console

    parser = measuring.parser(__doc__)
    parser.add_argument("--part", nargs="+", choices=["equality", "throughput"], default=["equality", "throughput"])
    parser.add_argument("--widths", type=measuring.at_least_one, nargs="+", default=[64, 16])
    parser.add_argument("--threads", type=measuring.at_least_one, nargs="+", default=[1, 2])
    parser.add_argument("--batch", type=measuring.at_least_one, default=32)
    parser.add_argument("--steps", type=measuring.at_least_one, default=4, help="time steps")
    parser.add_argument("--rounds", type=measuring.at_least_one, default=5)
    arguments = parser.parse_args()

    console, rows = Console(width=120), []
    if "equality" in arguments.part:
        rows += equality.check()
        equality.show(rows, console)
        if not all(row["equal"] for row in rows):
            sys.exit("not equal, so nothing is timed: a fast wrong network is worth nothing")
    if "throughput" in arguments.part:
        measuring.warn_when_busy()
        timed = []
        for width in arguments.widths:
            for threads in arguments.threads:
                timed += throughput.measure(width, threads, arguments.batch, arguments.steps, arguments.rounds)
        throughput.show(timed, console, TARGET)
        rows += timed
    peer = f"spikingjelly {version('spikingjelly')}"
    console.print(f"{measuring.one_line()}; {peer}")
    measuring.write(arguments.json, [{**row, "peer": peer} for row in rows])


if __name__ == "__main__":
    enter_environment()
    main()
