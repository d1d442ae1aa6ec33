"""Instructions that the NEON kernels execute for a multiply-add, counted under emulation: no measure of time.

    python benchmarks/neon/count.py [--json FILE]

Needs (Debian) g++-aarch64-linux-gnu, gcc and qemu-user. A layer runs once and three times; half of the difference in
executed instructions is one layer with all that belongs to it: borders, indices, tables, bits of the output. `floats`:
a float32 convolution of the same sizes with the kernel of csrc/floats.cpp, of which four multiply-adds are one
instruction at best: the base of the last column. `integers`: integer weights by products of bytes. How long an
instruction takes, the processor decides: on a real one `python benchmarks/binary_convolution.py` and
`python benchmarks/table_convolution.py` measure time.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import measuring

HERE = Path(__file__).resolve().parent
CSRC = measuring.ROOT / "csrc"
KINDS = ("floats", "binary", "float32", "int16", "int8", "integers")
LAYERS = ((64, 64, 3, 28), (128, 128, 3, 14), (256, 256, 3, 7))  # channels, outputs, kernel, size
FLAGS = (
    "-std=c++20", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-DHTAF_KERNELS=neon",
    "-DHTAF_NAMESPACE=for_neon", '-DHTAF_NAME="neon"', "-DHTAF_LANES=4", "-DHTAF_PARTS=4", f"-I{CSRC}",
)  # fmt: skip


def build(folder: Path) -> tuple[Path, Path]:
    """The program and the plugin."""
    sources = [CSRC / f"{name}.cpp" for name in ("binary", "tables", "integers", "floats", "parallel")]
    program, plugin = folder / "layer", folder / "instructions.so"
    subprocess.run(["aarch64-linux-gnu-g++", *FLAGS, HERE / "layer.cpp", *sources, "-o", program], check=True)
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", HERE / "instructions.c", "-o", plugin], check=True)
    return program, plugin


def executed(program: Path, plugin: Path, *words: object) -> int:
    command = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-plugin", plugin, program, *map(str, words)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    return int(said.split("executed ")[1])


def main() -> None:
    arguments = measuring.begin(measuring.parser(__doc__))
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        program, plugin = build(Path(folder))
        for channels, outputs, kernel, size in LAYERS:
            work = channels * outputs * kernel**2 * size**2
            base = 0.0
            for kind in KINDS:
                once, thrice = (executed(program, plugin, kind, channels, outputs, kernel, size, n) for n in (1, 3))
                each = (thrice - once) / 2
                base = each if kind == "floats" else base
                rows.append({
                    "layer": f"{channels} to {outputs}, {kernel} x {kernel}, {size} x {size}", "kind": kind,
                    "per_multiply_add": each / work, "per_output": each / (outputs * size**2), "fewer": base / each,
                })  # fmt: skip
    cells = [
        (row["layer"], row["kind"], f"{row['per_multiply_add']:.4f}", f"{row['per_output']:.1f}", f"{row['fewer']:.1f}")
        for row in rows
    ]
    columns = ("layer", "kind", "per multiply-add", "per output", "fewer than float32")
    measuring.show("NEON: instructions executed under emulation", columns, cells, ["layer", "kind"])
    measuring.end(arguments, rows)


if __name__ == "__main__":
    main()
