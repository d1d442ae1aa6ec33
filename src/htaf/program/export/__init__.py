"""Networks for other software: ONNX files, which any runtime runs, and NIR graphs, of spiking libraries and hardware.

Both go through `torch.export`, so that any model that it takes can be written. What the operators of htaf do stands in
the file in terms of its own format: nothing of htaf is needed to run it. `DECOMPOSITIONS` gives the same operators in
terms of PyTorch's, for `ExportedProgram.run_decompositions`; so does `COMPARISONS` for inputs without NaN, where a step
is one comparison.
"""

from htaf.core.kernels.operators import COMPARISONS, DECOMPOSITIONS
from htaf.program.export.nir import to_nir
from htaf.program.export.onnx import ExportError, onnx_network, to_onnx
from htaf.program.export.tables import onnx_table, raw_columns, table_to_onnx

__all__ = [
    "COMPARISONS",
    "DECOMPOSITIONS",
    "ExportError",
    "onnx_network",
    "onnx_table",
    "raw_columns",
    "table_to_onnx",
    "to_nir",
    "to_onnx",
]
