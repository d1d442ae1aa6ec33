"""Exports run where they are meant to run: compiled for this machine or for a processor that is emulated."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64, Integer

from htaf._ground.errors import first_line
from htaf._ground.files import parse_json, regular
from htaf.program.integer.c import numbers, width
from htaf.program.integer.exports import classes, filled, is_whole
from htaf.program.integer.ops import Array, IntegerError
from htaf.program.integer.verilog import hexadecimal

EMULATION = Path(__file__).parent / "emulation"
STRICT = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O2")
PACKAGES = {  # a tool: the packages of Debian that it needs
    "gcc": "gcc libc6-dev",
    "clang": "clang libc6-dev",
    "arm-none-eabi-gcc": "gcc-arm-none-eabi libnewlib-arm-none-eabi",
    "riscv64-unknown-elf-gcc": "gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf",
    "qemu-system-arm": "qemu-system-arm",
    "qemu-system-riscv32": "qemu-system-misc",
}
TIMEOUT = 600  # seconds, of a compiler or a program


@dataclass(frozen=True)
class Target:
    """How C is compiled and run. rows: the most bytes of rows that are compiled into one program."""

    compiler: tuple[str, ...]
    emulator: tuple[str, ...] = ()
    rows: int = 2**22

    @property
    def tools(self) -> tuple[str, ...]:
        return (self.compiler[0], *self.emulator[:1])


def _cortex(cpu: str, board: str, flash: int, ram: int, rows: int) -> Target:
    sizes = f"-Wl,--defsym=FLASH_SIZE={flash},--defsym=RAM_SIZE={ram - 2048}"  # the rest: the stack
    linked = (f"-DTOP_OF_STACK={0x20000000 + ram:#x}", "-nostartfiles", f"-T{EMULATION / 'cortex-m.ld'}", sizes)
    compiler = ("arm-none-eabi-gcc", f"-mcpu={cpu}", "-mthumb", "--specs=nano.specs", "--specs=rdimon.specs", *linked)
    semihosting = ("-nographic", "-monitor", "none", "-serial", "none", "-semihosting-config", "enable=on")
    emulator = ("qemu-system-arm", "-M", board, *semihosting, "-kernel")
    return Target((*compiler, str(EMULATION / "start.c")), emulator, rows)


_RISCV = {"flash": 0x80000000, "flash_size": 0x400000, "ram": 0x80400000, "ram_size": 0x400000, "stack_size": 0x4000}
TARGETS = {
    "host": Target(("gcc",)),
    "clang": Target(("clang",)),
    "cortex-m0": _cortex("cortex-m0", "microbit", 2**18, 2**14, 2**16),
    "cortex-m3": _cortex("cortex-m3", "mps2-an385", 2**22, 2**22, 2**20),
    "cortex-m4": _cortex("cortex-m4", "mps2-an386", 2**22, 2**22, 2**20),
    "riscv32": Target(
        (
            *("riscv64-unknown-elf-gcc", "--specs=picolibc.specs", "-march=rv32imac", "-mabi=ilp32"),
            *("--oslib=semihost", "--crt0=semihost"),
            "-Wl," + ",".join(f"--defsym=__{name}={value:#x}" for name, value in _RISCV.items()),
        ),
        (
            *("qemu-system-riscv32", "-M", "virt", "-bios", "none", "-nographic", "-monitor", "none"),
            *("-serial", "none", "-semihosting-config", "enable=on", "-kernel"),
        ),
        2**20,
    ),
}


class Export(NamedTuple):
    """What the header of a C export says."""

    name: str
    inputs: int
    x_type: str
    outputs: int
    y_type: str


def missing(target: str) -> dict[str, str]:
    """The tools of a target that are not installed, and the packages of Debian that bring them.

    Raises:
        IntegerError: no such target.
    """
    if target not in TARGETS:
        raise IntegerError(f"expected a target of {', '.join(TARGETS)}, got {target!r}")
    return {tool: PACKAGES[tool] for tool in TARGETS[target].tools if shutil.which(tool) is None}


def run_c(folder: str | Path, x: Integer[Array, "rows ..."], *, target: str = "host") -> Int64[Array, "rows classes"]:
    """Compile an export of `to_c` and give its outputs for some rows.

    The rows are compiled in, and the program prints what it gives; where a processor has little flash there are several
    programs.

    Args:
        x: integers as the program takes them, [rows, *input.shape].
        target: host (gcc), clang; and emulated by QEMU cortex-m0, cortex-m3, cortex-m4, or riscv32 (rv32imac).
    Raises:
        IntegerError: a tool is missing; the folder holds no such export; rows of another size or
            range; the program does not compile, does not fit the processor, or ends with an error.
    """
    export = exported(folder)
    given, size = np.asarray(x), width(export.x_type)
    kind = np.iinfo(export.x_type.removesuffix("_t"))
    ends = (int(kind.min), int(kind.max))
    if given.dtype.kind not in "iu" or given.ndim < 2 or given[:1].size not in (0, export.inputs):
        raise IntegerError(f"expected integers [rows, {export.inputs}], got {given.dtype} {list(given.shape)}")
    if given.size and not (ends[0] <= int(given.min()) and int(given.max()) <= ends[1]):
        raise IntegerError(f"expected inputs in {list(ends)}, got some in [{int(given.min())}, {int(given.max())}]")
    at_once = max(1, TARGETS[target].rows // (size * export.inputs)) if not missing(target) else 1
    found = list[int]()
    with tempfile.TemporaryDirectory() as scratch:
        for start in range(0, len(given), at_once):
            rows = given[start : start + at_once]
            source = Path(scratch) / "rows.c"
            source.write_text(_printing(export, rows))
            text = run_program(folder, source, target=target)
            words = re.findall(r"\b[0-9a-f]{16}\b", text)
            if len(words) != len(rows) * export.outputs:
                raise IntegerError(f"{target}: expected {len(rows) * export.outputs} outputs, got {len(words)}")
            found += [int(word, 16) for word in words]
    return np.array(found, np.uint64).astype(np.int64).reshape(len(given), export.outputs)


def exported(folder: str | Path) -> Export:
    """What an export of `to_c` is called, takes and gives. Raises IntegerError: the folder holds none."""
    for header in sorted(Path(folder).glob("*.h")):
        text = header.read_text()
        declared = re.search(r"^void (\w+)_run\(const (\w+) \*x, (\w+) \*y\);", text, re.MULTILINE)
        sizes = re.findall(r"^#define \w+_(?:INPUTS|OUTPUTS) (\d+)$", text, re.MULTILINE)
        if declared and len(sizes) == 2 and header.stem == declared[1]:
            return Export(declared[1], int(sizes[0]), declared[2], int(sizes[1]), declared[3])
    raise IntegerError(f"expected a folder with an export to C, got {folder}")


def run_program(folder: str | Path, source: str | Path, *, target: str = "host", options: Sequence[str] = ()) -> str:
    """What a C file with `main` prints, compiled together with an export.

    Args:
        options: for the emulator.
    Raises:
        IntegerError: as `run_c`.
    """
    absent = missing(target)
    if absent:
        tools = ", ".join(f"{tool} (Debian: apt install {packages})" for tool, packages in absent.items())
        raise IntegerError(f"{target}: expected {tools}, which is not installed")
    folder, by = Path(folder), TARGETS[target]
    with tempfile.TemporaryDirectory() as scratch:
        program = Path(scratch) / "program"
        files = (source, folder / f"{exported(folder).name}.c")
        compiler = [by.compiler[0], *STRICT, *by.compiler[1:], f"-I{folder}", *map(str, files), "-o", str(program)]
        _run(compiler, f"{target}: the export does not compile")
        emulator = (by.emulator[0], *options, *by.emulator[1:]) if by.emulator else ()
        return _run([*emulator, str(program)], f"{target}: the export ended with an error")


def _run(command: Sequence[str], wrong: str, folder: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=TIMEOUT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise IntegerError(f"{wrong}: no end after {TIMEOUT} seconds") from None
    if done.returncode:
        if lacking := re.search(r"region `(\w+)' overflowed by (\d+) bytes", done.stderr):
            target, too_many = wrong.partition(":")[0], f"{int(lacking[2]):,} bytes too many for its {lacking[1]}"
            raise IntegerError(f"{target}: no room: {too_many}, with the rows that are compiled in")
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        told = next((line for line in said if "error" in line), said[-1] if said else "")
        raise IntegerError(f"{wrong}: {told.strip() or f'code {done.returncode}'}")
    return done.stdout + done.stderr


def _printing(export: Export, rows: Array) -> str:
    """A program that prints the outputs of rows, 16 hexadecimal digits each."""
    texts = "".join(f"    {{\n{numbers(row)}    }},\n" for row in rows.reshape(len(rows), -1))
    return filled("printing.c", **export._asdict(), texts=texts, rows=len(rows))


# ---- Verilog in a simulator ----


def run_verilog(folder: str | Path, x: Integer[Array, "rows ..."]) -> Int64[Array, "rows classes"]:
    """The integer outputs that a folder of `to_verilog` gives for some rows, by its testbench in Icarus Verilog.

    Args:
        x: integers in the range of the program's input, [rows, ...], from one row.
    Raises:
        IntegerError: no such folder, one that was edited, inputs that it does not take, or no such tool.
    """
    if shutil.which("iverilog") is None:
        raise IntegerError("expected iverilog on the PATH, got none: apt-get install iverilog")
    held = written(Path(folder))
    name, wanted = held["name"], held["input"]
    if x.dtype.kind not in "iu" or list(x.shape[1:]) != wanted["shape"] or not len(x):
        raise IntegerError(f"expected integers [rows, {wanted['shape']}], got {x.dtype} {list(x.shape)}")
    if not wanted["low"] <= int(x.min()) <= int(x.max()) <= wanted["high"]:
        ends = f"[{int(x.min())}, {int(x.max())}]"
        raise IntegerError(f"expected inputs in [{wanted['low']}, {wanted['high']}], got some in {ends}")
    with tempfile.TemporaryDirectory() as made:
        here = Path(made)
        for file in (f"{name}.v", f"{name}_tb.v"):
            shutil.copy(Path(folder) / file, here / file)
        rows = hexadecimal(x, wanted["width"])
        (here / "inputs.hex").write_text(rows)
        (here / "outputs.hex").write_text("0\n" * len(x))
        top, sources = f"{name}_tb", [f"{name}_tb.v", f"{name}.v"]
        words = ["iverilog", "-g2001", f"-P{top}.ROWS={len(x)}", "-s", top, "-o", "sim", *sources]
        _run(words, "iverilog: the module does not compile", here)
        _run(["vvp", "-n", "sim"], "vvp: the simulation ended with an error", here)
        label = held["label"] if held["label"]["width"] else None
        return _numbers((here / "results.hex").read_text(), held["output"], len(x), label)


def written(folder: Path) -> dict[str, Any]:
    """What `to_verilog` says of its folder. Raises IntegerError: it is none, or one that was edited."""
    found = sorted(folder.glob("*.json"))
    try:
        held = parse_json(regular(found[0]).read_bytes())
        edited = [
            file
            for end in ("", "_tb")
            if not is_whole(regular(folder / (file := f"{held['name']}{end}.v")).read_bytes())
        ]
    except (IndexError, KeyError, TypeError, OSError, ValueError) as error:
        raise IntegerError(f"{folder}: expected a folder of to_verilog, got {first_line(error)}") from None
    if edited:
        raise IntegerError(f"{folder}: expected {edited[0]} as it was written, got one that was changed")
    return held


def _numbers(text: str, held: dict[str, Any], rows: int, label: dict[str, Any] | None) -> Array:
    lines, width = text.split(), held["width"]
    if len(lines) != rows or any(set(line) - set("0123456789abcdef") for line in lines):
        raise IntegerError(f"expected {rows} rows of outputs of the simulator, got {len(lines)}: {lines[:1]}")
    every, half = [int(line, 16) for line in lines], 1 << (width - 1)
    sign = half if held["signed"] else 0
    mask = (1 << width) - 1
    found = [[((row >> (i * width) & mask) ^ sign) - sign for i in range(math.prod(held["shape"]))] for row in every]
    numbers, above = np.array(found, np.int64), np.array([row >> width * len(found[0]) for row in every])
    if wrong := int((above != classes(numbers, label["least"])).sum()) if label else 0:
        raise IntegerError(f"expected the class as the label, got another in {wrong:,} rows")
    return numbers
