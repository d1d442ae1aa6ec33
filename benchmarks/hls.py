"""Integer programs through hls4ml: `python benchmarks/hls.py RUN`, of networks of linear layers.

The QONNX that `htaf export` writes is converted by hls4ml, compiled by g++ with the types that it brings, and run on
the test rows; all outputs are compared with the integer program. hls4ml knows no MultiThreshold: a step x >= t of
integers is written as Quant of one bit, which clips x + 1 - t to 0 and 1. What chooses columns (Gather, as before a
thermometer's thresholds) is a product with a matrix of 0 and 1.

    pip install hls4ml qonnx onnx==1.19.1
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from htaf.integer.onnx import QONNX, datatype, to_qonnx
from htaf.integer.ops import Array
from htaf.integer.program import IntegerProgram
from htaf.runs import open_run
from htaf.runs.integer import build_run
from htaf.runs.verify import quantised

READ = ("MatMul", "Add", "Mul")  # as they are
DOMAIN = {"domain": QONNX}


class Rewriting:
    """The nodes and constants of a graph that hls4ml reads, made of those of a QONNX file."""

    def __init__(self, onnx: Any, given: Any) -> None:
        self.onnx, self.nodes, self.constants = onnx, list[Any](), dict[str, Any]()
        self.known = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in given.initializer}
        self.same = {"input": "input"}  # the name of each tensor here
        self.shapes = [[d.dim_value for d in one.type.tensor_type.shape.dim] for one in (*given.input, *given.output)]
        for node in given.node:
            self.see(node)

    def add(self, operator: str, *given: str, **attributes: Any) -> str:
        made = f"{operator}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, [*given], [made], made, **attributes))
        return made

    def quant(self, x: str, bits: int, signed: int) -> str:
        """Clipped to integers of so many bits."""
        numbers = [f"{x}.{name}" for name in ("scale", "zero", "bits")]
        self.constants |= dict(zip(numbers, map(np.float32, (1, 0, bits)), strict=True))
        return self.add("Quant", x, *numbers, signed=signed, narrow=0, rounding_mode="FLOOR", **DOMAIN)

    def constant(self, array: Array) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants[name] = array.astype(np.float64)
        bits = datatype(min(int(array.min()), -1), int(array.max())).removeprefix("INT")
        return self.quant(name, int(bits), 1)

    def see(self, node: Any) -> None:
        (made,), (x, *_) = node.output, node.input
        if node.op_type in ("Cast", "Identity"):
            self.same[made] = self.same[x]
        elif node.op_type == "MultiThreshold":
            said = {one.name: self.onnx.helper.get_attribute_value(one) for one in node.attribute}
            thresholds = self.known[node.input[1]]
            if thresholds.shape[1] > 1 or (said["out_scale"], said["out_bias"]) != (1, 0):
                raise SystemExit(f"expected steps of one threshold and of 0 and 1, got others in {node.name}")
            self.same[made] = self.quant(self.add("Add", self.same[x], self.constant(1 - thresholds[:, 0])), 1, 0)
        elif node.op_type == "Gather" and x == "input":
            chosen = np.arange(self.shapes[0][-1])[:, None] == self.known[node.input[1]]
            self.same[made] = self.add("MatMul", x, self.constant(chosen))
        elif node.op_type in READ:
            given = [self.same.get(x) or self.constant(self.known[x]) for x in node.input]
            self.same[made] = self.add(node.op_type, *given)
        else:
            raise SystemExit(f"expected a network of linear layers and steps, got {node.op_type} ({node.name})")

    def model(self) -> Any:
        helper, number = self.onnx.helper, self.onnx.TensorProto.FLOAT
        names = ("input", self.same["output"])
        ends = [helper.make_tensor_value_info(*one) for one in zip(names, [number] * 2, self.shapes, strict=True)]
        held = [self.onnx.numpy_helper.from_array(np.asarray(x), name) for name, x in self.constants.items()]
        graph = helper.make_graph(self.nodes, "htaf", ends[:1], ends[1:], held)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid(QONNX, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def simulated(program: IntegerProgram, x: Array, backend: str, folder: str) -> Array:
    """The outputs of hls4ml's C simulation."""
    onnx, hls4ml = importlib.import_module("onnx"), importlib.import_module("hls4ml")
    wrapper = importlib.import_module("qonnx.core.modelwrapper").ModelWrapper
    path = Path(folder) / "network.onnx"
    to_qonnx(program, path)
    model = Rewriting(onnx, onnx.load(path).graph).model()
    model = importlib.import_module("qonnx.util.cleanup").cleanup_model(wrapper(model))
    names = {"granularity": "name", "backend": backend, "default_precision": "fixed<64,64>"}
    config = hls4ml.utils.config_from_onnx_model(model, **names)
    bits = datatype(min(program.input.low, -1), program.input.high).removeprefix("INT")
    config["LayerName"]["global_in"]["Precision"]["result"] = f"fixed<{bits},{bits}>"
    made = hls4ml.converters.convert_from_onnx_model(
        model, output_dir=f"{folder}/hls", backend=backend, io_type="io_parallel", hls_config=config
    )
    made.compile()
    return made.predict(np.ascontiguousarray(x, np.float64))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("--data", help="its table, where it is not where it was")
    parser.add_argument("--backend", default="Vitis", help="of hls4ml (default: Vitis)")
    given = parser.parse_args()
    run = open_run(given.run)
    program = build_run(run)
    rows = [quantised(run, program, x) for x, _ in run.part("test", run.data(given.data))]
    x = np.concatenate(rows)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        found = simulated(program, x, given.backend, folder)
    wanted = program.run(x)
    others = int((found.argmax(1) != wanted.argmax(1)).sum())
    said = f"{others} predictions and {int((found != wanted).sum())} outputs differ"
    print(f"hls4ml, {given.backend}: {len(x)} rows: {said}")


if __name__ == "__main__":
    main()
