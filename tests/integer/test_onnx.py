"""Integer programs as ONNX: 0 numbers of random programs differ, in integers by onnxruntime, as QONNX by onnx."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from tests.integer.made import KINDS, random_program

from htaf.integer.onnx import QONNX, to_integer_onnx, to_qonnx
from htaf.integer.ops import IntegerError, Linear, Lookup, Steps, View
from htaf.integer.program import Input, IntegerProgram

SEEDS = 6


class MultiThreshold(OpRun):
    """QONNX's: how many thresholds [C, L] a number of channel C reaches, scaled and shifted."""

    op_domain = QONNX

    def _run(self, x: Any, thresholds: Any, out_dtype: Any, out_scale: Any, out_bias: Any, data_layout: Any) -> Any:
        assert data_layout == ("NCHW" if x.ndim == 4 else "NC")
        of = thresholds.reshape(1, len(thresholds), *[1] * (x.ndim - 2), -1)
        return (((x[..., None] >= of).sum(-1) * out_scale + out_bias).astype(x.dtype),)


def run_integers(file: Path, x: np.ndarray) -> np.ndarray:
    session: Any = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    return session.run(None, {"input": x.astype({"tensor(uint8)": np.uint8, "tensor(int32)": np.int32}[given.type])})[0]


def run_qonnx(file: Path, x: np.ndarray) -> np.ndarray:
    evaluator: Any = ReferenceEvaluator(str(file), new_ops=[MultiThreshold])
    return evaluator.run(None, {"input": x.astype(np.float32)})[0]


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


@pytest.mark.parametrize("kind", KINDS)
def test_qonnx_gives_the_same_integers(kind: str, tmp_path: Path) -> None:
    wide = 0
    for seed in range(SEEDS):
        program, x = random_program(seed, kind)
        wide += bool(to_qonnx(program, tmp_path / "p.onnx", rows=len(x)))
        np.testing.assert_array_equal(run_qonnx(tmp_path / "p.onnx", x), program.run(x))
    assert wide < SEEDS
    assert wide or kind != "mlp"


def _one(given: Input, *ops: Any) -> IntegerProgram:
    return IntegerProgram(given, ops, len(ops))


def test_files_name_the_program_and_its_types(tmp_path: Path) -> None:
    fc = Linear("fc", 0, np.array([[3, -7], [1, 4]]), None)
    act = Steps("act", 1, np.array([[5], [-2]]), np.array([1, -1]), -1, 2)
    program = _one(Input("columns", (2,), -8, 7, 3), fc, act)
    to_integer_onnx(program, tmp_path / "i.onnx")
    to_qonnx(program, tmp_path / "q.onnx")
    for model in (onnx.load(tmp_path / "i.onnx"), onnx.load(tmp_path / "q.onnx")):
        said = {one.key: one.value for one in model.metadata_props}
        assert said["program_sha256"] == program.digest
        assert json.loads(said["unit"]) == [0, 1]
        assert json.loads(said["input"])["exponent"] == 3
    noted = onnx.load(tmp_path / "q.onnx").graph.quantization_annotation
    types = {one.tensor_name: one.quant_parameter_tensor_names[0].value for one in noted}
    assert types["input"] == "INT4"
    assert types["1.fc/constant_0"] == "INT4"
    assert [kind for name, kind in types.items() if "MultiThreshold" in name] == ["BIPOLAR"]


def test_bytes_are_multiplied_only_where_no_kernel_saturates(tmp_path: Path) -> None:
    """Kernels for AVX2 add two products of bytes in 16 bits: 2 * 255 * 127 would be cut to 32,767."""
    for high, weight, operator in ((128, 127, "MatMulInteger"), (255, 127, "MatMul"), (128, 128, "MatMul")):
        program = _one(Input("columns", (2,), 0, high), Linear("fc", 0, np.full((1, 2), weight), None))
        to_integer_onnx(program, tmp_path / "p.onnx")
        assert operator in [node.op_type for node in onnx.load(tmp_path / "p.onnx").graph.node]
        assert run_integers(tmp_path / "p.onnx", np.full((1, 2), high)).tolist() == [[2 * high * weight]]


def test_tables_of_one_slope_are_products_in_qonnx(tmp_path: Path) -> None:
    table = np.arange(256) * np.array([[3], [-2]]) + 9
    program = _one(Input("pixels", (2, 1, 1)), Lookup("in", 0, table), View("flat", 1, (2,)))
    to_qonnx(program, tmp_path / "q.onnx", rows=256)
    assert "Gather" not in [node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node]
    x = np.stack([np.arange(256), np.arange(256)[::-1]], 1).reshape(256, 2, 1, 1)
    np.testing.assert_array_equal(run_qonnx(tmp_path / "q.onnx", x), program.run(x))


def test_sums_that_float32_cannot_hold_are_in_float64(tmp_path: Path) -> None:
    """Only the layers that need it, and a wide input."""
    act = Steps("act", 1, np.array([[2**30 + 1]]), np.array([1]), 0, 1)
    end = Linear("head", 2, np.array([[3]]), None)
    for high, kind, layers in ((2**15, "FLOAT", ("layers.0", "act")), (2**30, "DOUBLE", ("layers.0", "act"))):
        by = 2**30 // high + 1
        program = _one(Input("columns", (2,), -high, high), Linear("layers.0", 0, np.array([[by, 1]]), None), act, end)
        assert to_qonnx(program, tmp_path / "q.onnx", rows=2) == layers
        graph = onnx.load(tmp_path / "q.onnx").graph
        kinds = [
            onnx.TensorProto.DataType.Name(one.type.tensor_type.elem_type) for one in (*graph.input, *graph.output)
        ]
        assert kinds == [kind, "FLOAT"]
        x = np.array([[high, 1 - high], [high, -high]])
        evaluator: Any = ReferenceEvaluator(str(tmp_path / "q.onnx"), new_ops=[MultiThreshold])
        given = x.astype({"FLOAT": np.float32, "DOUBLE": np.float64}[kind])
        np.testing.assert_array_equal(evaluator.run(None, {"input": given})[0], program.run(x))


def test_sums_that_no_float_holds_are_refused_by_name(tmp_path: Path) -> None:
    wide = _one(Input("columns", (2,), -(2**30), 2**30), Linear("layers.0", 0, np.array([[2**22, -(2**22)]]), None))
    with pytest.raises(
        IntegerError, match=r"layers\.0: expected integers below 2 \*\* 53.*got up to 9,007,199,254,740,992"
    ):
        to_qonnx(wide, tmp_path / "q.onnx")
    assert not (tmp_path / "q.onnx").exists()
