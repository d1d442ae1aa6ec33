"""Verilog of integer programs in a simulator."""

from __future__ import annotations

import math
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, Integer

from htaf._errors import first_line
from htaf._files import parse_json, regular
from htaf.integer.ops import Array, IntegerError
from htaf.integer.sealing import is_whole
from htaf.integer.verilog import hexadecimal


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
        _call(here, "iverilog", "-g2001", f"-P{top}.ROWS={len(x)}", "-s", top, "-o", "sim", *sources)
        _call(here, "vvp", "-n", "sim")
        return _numbers((here / "results.hex").read_text(), held["output"], len(x))


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


def _call(folder: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
        raise IntegerError(f"{command[0]} ends with {done.returncode}: {said[0]}")


def _numbers(text: str, held: dict[str, Any], rows: int) -> Array:
    lines, width = text.split(), held["width"]
    if len(lines) != rows or any(set(line) - set("0123456789abcdef") for line in lines):
        raise IntegerError(f"expected {rows} rows of outputs of the simulator, got {len(lines)}: {lines[:1]}")
    every, half = [int(line, 16) for line in lines], 1 << (width - 1)
    sign = half if held["signed"] else 0
    mask = (1 << width) - 1
    found = [[((row >> (i * width) & mask) ^ sign) - sign for i in range(math.prod(held["shape"]))] for row in every]
    return np.array(found, np.int64)
