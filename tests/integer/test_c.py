"""C of integer programs, compiled and run: on this machine, and on emulated processors in the slow tests."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests.integer.made import KINDS, Made, random_program

from htaf._ground.errors import HtafError
from htaf.program.integer import execute
from htaf.program.integer.c import numbers, to_c
from htaf.program.integer.execute import TARGETS, run_c, run_program
from htaf.program.integer.exports import is_whole
from htaf.program.integer.ops import LUT, Add, Conv, IntegerError, Linear, Pool, Shift, Steps, Take, View
from htaf.program.integer.program import Input, IntegerProgram

IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}
EMULATED = [target for target, how in TARGETS.items() if how.emulator]


def needs(*targets: str) -> None:
    """The tools of targets may be missing, but not in CI."""
    if absent := {tool for target in targets for tool in execute.missing(target)}:
        (pytest.fail if IN_CI else pytest.skip)(f"{', '.join(sorted(absent))} is not installed")


def check(folder: Path, compiler: str, *flags: str, fails: bool = False) -> str:
    """The last line of `make check`, which must end well, or with `fails` must not."""
    alone = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    done = subprocess.run(
        ["make", "-B", "--no-print-directory", "check", f"CC={compiler}", f"CFLAGS={' '.join(flags)}"],
        cwd=folder, capture_output=True, text=True, env=alone,
    )  # fmt: skip
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    assert not done.stderr or fails, done.stderr
    return done.stdout.splitlines()[-1]


def images(seed: int = 3, channels: int = 40) -> tuple[IntegerProgram, np.ndarray]:
    """Bits of more channels than a word has: weights of one, two and three values, windows that overlap."""
    made = Made(seed, Input("pixels", (2, 7, 6)))
    made.add(Conv, 0, made.rng.integers(-9, 9, (channels, 2, 3, 2)), None, (1, 1), (2, 0), (2, 1))
    a = made.bits()
    made.add(Conv, a, made.rng.choice([-1, 1], (channels, channels, 3, 3)), None, (1, 2), (1, 1), (1, 1))
    made.bits()
    made.add(Pool, made.here(), (3, 3), (1, 2), (1, 1), made.rng.integers(0, 2, channels))
    b = made.here()
    made.add(Conv, b, made.rng.integers(-1, 2, (channels, channels, 1, 1)), None, (1, 1), (0, 1), (1, 1))
    made.add(Conv, made.bits(), made.rng.integers(-99, 99, (9, channels, 1, 3)), None, (1, 1), (0, 0), (1, 1))
    made.add(Shift, made.here(), np.array([-62, -9, -3, -1, 0, 1, 2, -2, -33]), -300, 10**9)
    c = made.bits()
    made.add(View, c, (made.values[c].size,))
    return made.ended(), made.seen[0]


def columns() -> tuple[IntegerProgram, np.ndarray]:
    """Sums that only an int64 holds, and columns that are taken more than once."""
    made = Made(4, Input("columns", (5,), -(2**31) + 1, 2**31 - 1, 20))
    made.add(Linear, 0, made.rng.integers(-30000, 30000, (50, 5)), made.rng.integers(-(2**40), 2**40, 50))
    a = made.steps() or made.here()
    made.add(Take, 0, made.rng.integers(0, 5, 70))
    b = made.bits()
    made.add(Linear, b, made.rng.integers(-127, 128, (50, 70)), None)
    made.steps(3)
    made.add(Linear, made.here(), made.rng.integers(-1, 2, (50, 50)), None)
    c = made.bits()
    made.add(Linear, 0, np.ones((3, 5), int), None)  # what nobody reads
    parts = [
        made.add(Linear, x, made.rng.integers(-(2**40), 2**40, (4, len(made.seen[x][0]))), None) for x in (a, b, c)
    ]
    none = np.zeros(4, int)
    made.add(Add, made.add(Add, parts[0], parts[1], none, none), parts[2], none, none)
    return IntegerProgram(made.input, tuple(made.ops), made.here()), made.seen[0]


def signs() -> tuple[IntegerProgram, np.ndarray]:
    """-1 and 1, and 3 and 5, through pools and views into sums of few and of many weights."""
    made = Made(6, Input("pixels", (3, 8, 7)))
    made.add(Conv, 0, made.rng.integers(-9, 9, (20, 3, 3, 3)), None, (1, 1), (1, 1), (1, 1))
    a = made.add(Steps, 1, made.thresholds(1), made.signs(), -1, 2)
    made.add(Pool, a, (2, 2), (2, 1), (1, 0), made.rng.integers(0, 2, 20))
    b = made.here()
    made.add(Conv, b, made.rng.choice([-1, 1], (40, 20, 3, 3)), made.rng.integers(-9, 9, 40), (1, 1), (2, 1), (1, 1))
    made.add(Steps, made.here(), made.thresholds(1), made.signs(), -1, 2)
    made.add(Conv, made.here(), made.rng.integers(-90, 90, (9, 40, 2, 2)), None, (1, 1), (1, 0), (1, 1))
    made.add(Steps, made.here(), made.thresholds(1), made.signs(), 3, 2)
    made.add(Pool, made.here(), (2, 1), (2, 1), (0, 0), np.ones(9, int))
    made.add(View, made.here(), (made.last.size,))
    made.linear(33, 1)
    made.add(Steps, made.here(), made.thresholds(1), made.signs(), -1, 2)
    return made.ended(), made.seen[0]


def tables() -> tuple[IntegerProgram, np.ndarray]:
    """Truth tables of seven and eight inputs, columns of 16 bits without a sign, and sums of counts."""
    made = Made(7, Input("columns", (9,), 0, 2**16 - 1))
    made.add(Take, 0, made.rng.integers(0, 9, 40))
    signs = made.signs()
    made.add(Steps, 1, made.thresholds(1) * signs[:, None], signs, 0, 1)
    for tables, inputs in ((20, 8), (12, 7)):
        index = made.rng.permuted(np.tile(np.arange(made.last.channels), (tables, 1)), axis=1)[:, :inputs]
        made.add(LUT, made.here(), index, made.rng.integers(0, 2, (tables, 2**inputs)))
    made.add(View, made.here(), (3, 1, 4))
    made.count((-2, -1))
    made.linear(2)
    return IntegerProgram(made.input, tuple(made.ops), made.here()), made.seen[0]


OTHERS = {"images": images, "narrow": lambda: images(5, 12), "columns": columns, "signs": signs, "tables": tables}


def program_of(kind: str, seed: int = 0) -> tuple[IntegerProgram, np.ndarray]:
    return OTHERS[kind]() if kind in OTHERS else random_program(seed, kind)


@pytest.mark.parametrize("kind", [*KINDS, *OTHERS])
def test_compiled_networks_give_the_program_s_outputs(kind: str, tmp_path: Path) -> None:
    needs("host", "clang")
    program, x = program_of(kind)
    written = to_c(program, tmp_path, name="net", rows=x)
    said = (
        f"0 of {program.run(x).size} outputs differ; constants {written.flash_bytes} bytes, "
        f"buffers {written.ram_bytes} bytes"
    )
    assert check(tmp_path, "gcc", "-O2") == said
    assert check(tmp_path, "clang", "-Os") == said
    files = [file.relative_to(tmp_path).as_posix() for file in written.files]
    assert files == ["net.h", "net.c", "test/test.c", "Makefile"]  # Arduino compiles what lies at the top
    assert "main" not in "".join(file.read_text() for file in tmp_path.glob("*.[ch]"))
    text = (tmp_path / "net.c").read_text()
    assert program.digest in text
    assert not re.search(r"float|double|malloc|0\.\d", text)
    assert re.findall(r"#include (.*)", text) == ["<stddef.h>", "<stdint.h>", '"net.h"']


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "seed"), [*((kind, seed) for kind in KINDS for seed in (1, 3)), *((o, 0) for o in OTHERS)]
)
def test_networks_by_compilers_and_sanitizers(kind: str, seed: int, tmp_path: Path) -> None:
    needs("host", "clang")
    program, x = program_of(kind, seed)
    to_c(program, tmp_path, rows=x)
    checked = ["-O1", "-fsanitize=undefined,address", "-fno-sanitize-recover=all"]
    for compiler, *flags in (["gcc", "-Os"], ["gcc", "-O3"], ["clang", "-O2"], ["gcc", *checked]):
        assert check(tmp_path, compiler, *flags).startswith("0 of ")


@pytest.mark.slow
@pytest.mark.parametrize("target", EMULATED)
@pytest.mark.parametrize("kind", [*KINDS, *OTHERS])
def test_networks_on_emulated_processors(kind: str, target: str, tmp_path: Path) -> None:
    needs(target)
    program, x = program_of(kind)
    to_c(program, tmp_path, rows=x[:16])
    assert run_program(tmp_path, tmp_path / "test/test.c", target=target).startswith("0 of ")
    if kind == "columns":  # 64 bits
        np.testing.assert_array_equal(run_c(tmp_path, x[:9], target=target), program.run(x[:9]))


@pytest.mark.slow
def test_what_does_not_fit_a_processor_is_told(tmp_path: Path) -> None:
    needs("cortex-m0")
    made = Made(0, Input("columns", (300,), -9, 9))
    made.linear(1000)
    to_c(made.ended(), tmp_path, rows=1)
    with pytest.raises(IntegerError, match=r"cortex-m0: no room: [\d,]+ bytes too many for its flash, with the rows"):
        run_c(tmp_path, np.zeros((1, 300), int), target="cortex-m0")


def test_rows_are_run_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("host")
    program, x = columns()
    to_c(program, tmp_path)
    monkeypatch.setitem(TARGETS, "host", execute.Target(("gcc",), (), 30 * 20))
    np.testing.assert_array_equal(run_c(tmp_path, x), program.run(x))
    assert run_c(tmp_path, x[:0]).shape == (0, 4)


def test_a_wrong_weight_is_seen(tmp_path: Path) -> None:
    needs("host")
    program, x = random_program(0, "mlp")
    to_c(program, tmp_path, rows=x)
    source, header = tmp_path / "network.c", tmp_path / "network.h"
    text = source.read_text()
    assert is_whole(source.read_bytes())
    assert is_whole(header.read_bytes())
    assert is_whole((tmp_path / "test/test.c").read_bytes())
    place = re.search(r"network_weight1\[.*\n    (-?\d+), ", text)
    assert place
    edited = text[: place.start(1)] + ("0" if place[1] != "0" else "1") + text[place.end(1) :]
    source.write_text(edited)
    assert not is_whole(edited.encode())
    found = re.match(r"(\d+) of 256 outputs differ", check(tmp_path, "gcc", "-O1", fails=True))
    assert found
    assert int(found[1]) == int((run_c(tmp_path, x) != program.run(x)).sum()) > 0


def test_bytes_are_those_of_the_object_file(tmp_path: Path) -> None:
    needs("host")
    program, _ = images()
    written = to_c(program, tmp_path)
    subprocess.run(["gcc", "-std=c99", "-O1", "-fno-merge-constants", "-c", "network.c"], cwd=tmp_path, check=True)
    symbols = subprocess.run(["nm", "-S", "network.o"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    sizes = dict.fromkeys("rRbB", 0)
    for size, kind, name in re.findall(r"^\w+ (\w+) ([rRbB]) (\w+)", symbols, re.MULTILINE):
        sizes[kind] += int(size, 16)
        assert kind != "b" or name == "buffer"
    assert sizes == {"r": written.flash_bytes, "R": 65 + 78, "b": written.ram_bytes, "B": 0}


def test_buffers_share_bytes(tmp_path: Path) -> None:
    made = Made(1, Input("columns", (64,), -99, 99))
    for _ in range(6):
        made.linear(256)
        made.bits()
    written = to_c(made.ended(), tmp_path)
    assert written.ram_bytes == 64 + 256 // 8  # the clamped columns and a layer, more than two layers; no sums


def test_signs_lie_in_bits(tmp_path: Path) -> None:
    made = Made(1, Input("columns", (64,), -99, 99))
    for _ in range(2):
        made.linear(256)
        made.add(Steps, made.here(), made.thresholds(1), made.signs(), -1, 2)
    assert to_c(made.ended(), tmp_path).ram_bytes == 64 + 256 // 8


def compared(sign: int) -> IntegerProgram:
    """Columns that are read once."""
    step = Steps("act", 0, np.array([[3], [-8]]), np.array([sign, sign]), 0, 1)
    return IntegerProgram(Input("columns", (2,), -8, 7), (step,), 1)


CLAMPED = {
    "sums": random_program(0, "mlp")[0],
    "steps": compared(1),
    "falling steps": compared(-1),
    "bits": IntegerProgram(Input("columns", (2,), 0, 1), (Linear("fc", 0, np.array([[9, 2**30]]), None),), 1),
    "nothing": IntegerProgram(Input("columns", (3,), -5, 2**20), (), 0),
}


@pytest.mark.parametrize("of", CLAMPED)
def test_columns_outside_the_range_count_as_its_ends(of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("host")
    program = CLAMPED[of]
    to_c(program, tmp_path)
    monkeypatch.setattr(execute, "STRICT", (*execute.STRICT, "-fsanitize=undefined", "-fno-sanitize-recover=all"))
    x = np.array([[-(2**31)], [2**31 - 1], [program.input.low - 1], [program.input.high + 1], [program.input.high]])
    x = np.broadcast_to(x, (len(x), *program.input.shape))
    np.testing.assert_array_equal(run_c(tmp_path, x), program.run(x.clip(program.input.low, program.input.high)))


@pytest.mark.parametrize("name", ["", "1st", "a-b", "größe", "a b", "_x", "x" * 61])
def test_names_that_are_none_in_c_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(IntegerError, match=r"expected a name in C .*, got '"):
        to_c(random_program(0, "mlp")[0], tmp_path / "new", name=name)
    assert not (tmp_path / "new").exists()


def test_names_of_modules_cannot_end_a_comment(tmp_path: Path) -> None:
    needs("host", "clang")
    op = Linear("*/ int x; /* ??/\n\\", 0, np.array([[1, 2]]), None)
    to_c(IntegerProgram(Input("columns", (2,), -4, 4), (op,), 1), tmp_path)
    assert check(tmp_path, "gcc").startswith("0 of 16")
    assert check(tmp_path, "clang").startswith("0 of 16")


def test_an_input_that_is_the_output(tmp_path: Path) -> None:
    needs("host")
    program = IntegerProgram(Input("columns", (3,), -4, 4), (), 0)
    to_c(program, tmp_path)
    np.testing.assert_array_equal(run_c(tmp_path, np.array([[1, -4, 3]])), [[1, -4, 3]])


def test_running_says_what_is_missing_or_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, x = random_program(0, "mlp")
    with pytest.raises(IntegerError, match="expected a folder with an export to C, got"):
        run_c(tmp_path, x)
    to_c(program, tmp_path)
    with pytest.raises(IntegerError, match=r"expected integers \[rows, \d+\], got int64 \[64, 2\]"):
        run_c(tmp_path, x[:, :2])
    with pytest.raises(IntegerError, match=r"expected inputs in \[-2147483648, 2147483647\], got some in"):
        run_c(tmp_path, x + 2**40)
    with pytest.raises(IntegerError, match=r"expected a target of host, clang, cortex-m0, .*, got 'z80'"):
        run_c(tmp_path, x, target="z80")
    monkeypatch.setenv("PATH", str(tmp_path))
    message = (
        r"cortex-m3: expected arm-none-eabi-gcc \(Debian: apt install gcc-arm-none-eabi libnewlib-arm-none-eabi\), "
    )
    with pytest.raises(IntegerError, match=message + r"qemu-system-arm \(Debian: apt install qemu-system-arm\), which"):
        run_c(tmp_path, x, target="cortex-m3")
    (tmp_path / "file").touch()
    with pytest.raises(HtafError, match=r"expected a folder to write into, .*file is a file"):
        to_c(program, tmp_path / "file" / "in")


def test_the_least_number_has_a_literal() -> None:
    given = np.array([-(2**63), -(2**31), 2**31, -5])
    assert numbers(given).split(", ")[0] == "    (INT64_C(-9223372036854775807) - 1)"
    assert "INT64_C(-2147483648), INT64_C(2147483648), -5," in numbers(given)
