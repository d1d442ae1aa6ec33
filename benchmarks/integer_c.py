"""Flash, RAM and instructions of networks as C on microcontrollers: `python benchmarks/integer_c.py`.

Random networks with weights of 8 bits (and one of -1, 0 and 1), exported by `htaf.integer.c.to_c` and compiled with
-O2. Flash and RAM are the sections of `network.o`: code with constants, and buffers; what a C library brings is not in
them. Instructions are the mean over 16 rows, counted by QEMU with `-icount shift=0`, where each takes one nanosecond of
the emulated time: by SysTick on Cortex-M, whose ticks are calibrated by a loop of known length, by minstret on RISC-V.
They are no cycles: a Cortex-M0 takes one or two an instruction, more for a branch. Every row is compared before it is
counted.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from htaf.program.integer.c import numbers, to_c
from htaf.program.integer.execute import TARGETS, exported, missing, run_c, run_program
from htaf.program.integer.exports import vectors
from htaf.program.integer.ops import Array, Conv, Linear, Lookup, Op, Pool, Steps, Value, View
from htaf.program.integer.program import Input, IntegerProgram

COUNTING = """#include <stdio.h>

#include "network.h"

#if defined(__riscv)
static uint32_t now(void)
{
    uint32_t count;
    __asm__ volatile(".option arch, +zicsr\\n csrr %0, minstret" : "=r"(count));
    return count;
}
static void start(void) {}
#define LOOP "1: addi %0, %0, -1\\n bnez %0, 1b"
#define PASSED(from, to) ((to) - (from))
#define REGISTER "r"
#else
#define SYSTICK ((volatile uint32_t *)0xe000e010)
static uint32_t now(void) { return SYSTICK[2]; }
static void start(void)
{
    SYSTICK[1] = 0xffffff;
    SYSTICK[2] = 0;
    SYSTICK[0] = 5;
}
#define LOOP "1: sub %0, %0, #1\\n cmp %0, #0\\n bne 1b"
#define PASSED(from, to) (((from) - (to)) & 0xffffff)
#define REGISTER "l"
#endif

static const X_TYPE x[ROWS][NETWORK_INPUTS] = {
X_ROWS};

int main(void)
{
    static Y_TYPE y[ROWS][NETWORK_OUTPUTS];
    uint32_t loops = 1000000;
    start();
    const uint32_t a = now();
    __asm__ volatile(LOOP : "+" REGISTER (loops) : : "cc");
    const uint32_t b = now();
    for (int i = 0; i < ROWS; i++) network_run(x[i], y[i]);
    const uint32_t c = now();
    printf("%lu %lu", (unsigned long)PASSED(a, b), (unsigned long)PASSED(b, c));
    for (int i = 0; i < ROWS; i++) {
        int most = 0;
        for (int k = 1; k < NETWORK_OUTPUTS; k++) most = y[i][k] > y[i][most] ? k : most;
        printf(" %d", most);
    }
    return 0;
}
"""
LOOPED = {"riscv32": 2_000_000}  # instructions of the loop


class Grown:
    """A network that grows by layers of random weights."""

    def __init__(self, given: Input, seed: int = 0) -> None:
        self.rng, self.input, self.ops = np.random.default_rng(seed), given, list[Op]()
        self.values = [Value(given.shape, given.low, given.high)]
        self.seen = [vectors(IntegerProgram(given, (View("", 0, (int(np.prod(given.shape)),)),), 1), 32)[0]]

    def add(self, kind: type, *fields: object) -> None:
        op = kind(f"{kind.__name__.lower()}{len(self.ops)}", len(self.ops), *fields)
        self.values.append(op.value(self.values[-1]))
        self.seen.append(op.run(self.seen[-1]))
        self.ops.append(op)

    def linear(self, outputs: int, most: int) -> None:
        inputs = self.values[-1].channels
        self.add(Linear, self.rng.integers(-most, most + 1, (outputs, inputs)), None)

    def conv(self, filters: int, most: int) -> None:
        shape = (filters, self.values[-1].channels, 3, 3)
        self.add(Conv, self.rng.integers(-most, most + 1, shape), None, (1, 1), (1, 1), (1, 1), 1)

    def bits(self) -> None:
        """Half of them are set."""
        channels, seen = self.values[-1].channels, self.seen[-1]
        middle = np.median(seen.reshape(len(seen), channels, -1), (0, 2)).astype(int)
        self.add(Steps, middle[:, None], np.ones(channels, int), 0, 1)

    def program(self) -> IntegerProgram:
        return IntegerProgram(self.input, tuple(self.ops), len(self.ops))


def mlp(most: int) -> IntegerProgram:
    grown = Grown(Input("columns", (64,), -(2**15), 2**15, 12))
    for width in (256, 256):
        grown.linear(width, most)
        grown.bits()
    grown.linear(10, most)
    return grown.program()


def conv(most: int) -> IntegerProgram:
    grown = Grown(Input("pixels", (1, 16, 16)))
    grown.add(Lookup, np.arange(-128, 128)[None])
    for filters in (16, 32):
        grown.conv(filters, 127 if grown.values[-1].channels == 1 else most)
        grown.bits()
        grown.add(Pool, (2, 2), (2, 2), (0, 0), np.zeros(filters, int))
    grown.add(View, (32 * 16,))
    grown.linear(10, most)
    return grown.program()


NETWORKS = {
    "MLP 64-256-256-10, int8": lambda: mlp(127),
    "MLP 64-256-256-10, ternary": lambda: mlp(1),
    "conv 16x16, 16 and 32 filters, int8": lambda: conv(127),
    "conv 16x16, 16 and 32 filters, ternary": lambda: conv(1),
}


def counted(folder: Path, x: Array, target: str) -> tuple[float, list[int]]:
    """Instructions a row of an export called network, and the class that it gives each row."""
    export = exported(folder)
    rows = "".join(f"    {{\n{numbers(row)}    }},\n" for row in x.reshape(len(x), -1))
    text = COUNTING.replace("X_TYPE", export.x_type).replace("Y_TYPE", export.y_type)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "count.c"
        file.write_text(text.replace("X_ROWS", rows).replace("ROWS", str(len(x))))
        said = run_program(folder, file, target=target, options=("-icount", "shift=0"))
    loop, passed, *classes = map(int, said.split())
    return passed * LOOPED.get(target, 3_000_000) / loop / len(x), classes


def sections(folder: Path, compiler: tuple[str, ...]) -> tuple[int, int]:
    """Bytes of code and constants, and of buffers."""
    prefix = compiler[0].removesuffix("gcc")
    flags = [flag for flag in compiler[1:] if flag.startswith(("-m", "--specs=picolibc"))]
    subprocess.run([compiler[0], *flags, "-std=c99", "-O2", "-c", "network.c"], cwd=folder, check=True)
    text = subprocess.run([f"{prefix}size", "network.o"], cwd=folder, check=True, capture_output=True, text=True).stdout
    code, data, bss = map(int, text.splitlines()[1].split()[:3])
    return code, data + bss


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--targets", nargs="+", default=[name for name, how in TARGETS.items() if how.emulator])
    chosen = [target for target in parser.parse_args().targets if not missing(target)]
    print("| Network | Processor | Flash, bytes | RAM, bytes | Instructions a row |\n|---|---|---|---|---|")
    for name, make in NETWORKS.items():
        program = make()
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            to_c(program, folder)
            x, y = vectors(program, 16)
            for target in chosen:
                assert np.array_equal(run_c(folder, x, target=target), y)
                each, _ = counted(folder, x, target)
                flash, ram = sections(folder, TARGETS[target].compiler)
                print(f"| {name} | {target} | {flash:,} | {ram:,} | {each:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
