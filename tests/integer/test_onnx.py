"""Integer programs as ONNX: 0 numbers of random programs differ in onnxruntime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from tests.integer.made import KINDS, random_program

from htaf.program.integer.onnx import to_integer_onnx
from htaf.program.integer.ops import Linear, Steps
from htaf.program.integer.program import Input, IntegerProgram

SEEDS = 6


def run_integers(file: Path, x: np.ndarray) -> np.ndarray:
    session: Any = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    return session.run(None, {"input": x.astype({"tensor(uint8)": np.uint8, "tensor(int32)": np.int32}[given.type])})[0]


@pytest.mark.parametrize("kind", KINDS)
def test_integer_onnx_gives_the_same_integers(kind: str, tmp_path: Path) -> None:
    for seed in range(SEEDS):
        program, x = random_program(seed, kind)
        to_integer_onnx(program, tmp_path / "p.onnx")
        y = run_integers(tmp_path / "p.onnx", x)
        assert y.dtype == np.int64
        np.testing.assert_array_equal(y, program.run(x))
        for some in (x[:1], x[:0]):
            np.testing.assert_array_equal(run_integers(tmp_path / "p.onnx", some), program.run(some))
        if program.input.kind == "columns":
            far = np.where(x > 0, 2**31 - 1, -(2**31))
            clamped = program.run(far.clip(program.input.low, program.input.high))
            np.testing.assert_array_equal(run_integers(tmp_path / "p.onnx", far), clamped)


def _one(given: Input, *ops: Any) -> IntegerProgram:
    return IntegerProgram(given, ops, len(ops))


def test_files_name_the_program(tmp_path: Path) -> None:
    fc = Linear("fc", 0, np.array([[3, -7], [1, 4]]), None)
    act = Steps("act", 1, np.array([[5], [-2]]), np.array([1, -1]), -1, 2)
    program = _one(Input("columns", (2,), -8, 7, 3), fc, act)
    to_integer_onnx(program, tmp_path / "i.onnx")
    said = {one.key: one.value for one in onnx.load(tmp_path / "i.onnx").metadata_props}
    assert said["program_sha256"] == program.digest
    assert json.loads(said["unit"]) == [0, 1]
    assert json.loads(said["input"])["exponent"] == 3


def test_bytes_are_multiplied_only_where_no_kernel_saturates(tmp_path: Path) -> None:
    """Kernels for AVX2 add two products of bytes in 16 bits: 2 * 255 * 127 would be cut to 32,767."""
    for high, weight, operator in ((128, 127, "MatMulInteger"), (255, 127, "MatMul"), (128, 128, "MatMul")):
        program = _one(Input("columns", (2,), 0, high), Linear("fc", 0, np.full((1, 2), weight), None))
        to_integer_onnx(program, tmp_path / "p.onnx")
        assert operator in [node.op_type for node in onnx.load(tmp_path / "p.onnx").graph.node]
        assert run_integers(tmp_path / "p.onnx", np.full((1, 2), high)).tolist() == [[2 * high * weight]]
