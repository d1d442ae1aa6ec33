"""An integer program with the call of the network that it was made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8
from torch import Tensor, nn

from htaf.core.kernels import native
from htaf.program import packed
from htaf.program.integer import files
from htaf.program.integer.circuit import Circuit
from htaf.program.integer.ops import Array, IntegerError
from htaf.program.integer.program import PACKED, IntegerProgram

ROWS = 64  # at once through the definition of a program


@final
class IntegerModel(nn.Module):
    """Runs an integer program on the CPU, as the network: inputs in, integer outputs times the program's unit out.

    Truth tables run compiled, by `Circuit`; a program that it does not take runs by its definition.

    Args:
        program: of the network.
        table: float32 [channels, 256], what the network is given for each pixel; None: of columns.

    Shape: [batch, *program.input.shape] -> [batch, outputs], float32; pixels may also come as they are, in uint8.

    Raises:
        IntegerError: of another shape; NaN; of images numbers that no pixel gives.
    """

    def __init__(self, program: IntegerProgram, table: Tensor | None = None) -> None:
        super().__init__()
        self.program, self.table = program, table
        self.extra: dict[str, Any] = {"run": program.about[PACKED]} if PACKED in program.about else {}
        try:
            self.integers = Circuit(program).run if native.available() else self._defined  # as `program.run`
        except IntegerError:
            self.integers = self._defined
        self.eval()

    def _defined(self, x: Array) -> Int64[Array, "rows outputs"]:
        """By the definition of each operation, of which tables hold an address for every input."""
        return np.concatenate([self.program.run(x[i : i + ROWS]) for i in range(0, max(len(x), 1), ROWS)])

    def forward(self, x: Tensor) -> Float32[Tensor, "batch outputs"]:
        exponent, divisor = self.program.unit
        pixels = x.dtype is torch.uint8 and self.program.input.kind == "pixels"
        given = x.numpy() if pixels else quantised(self.program, self.table, x)
        return torch.from_numpy(np.ldexp(self.integers(given).astype(np.float64), exponent) / divisor).float()

    def with_bits(self, x: Tensor) -> Any:
        """A program names no layer whose bits could be shown: raises IntegerError."""
        raise IntegerError("expected a packed network of layers for its bits, got an integer program")

    def __reduce__(self) -> tuple[Any, ...]:
        return IntegerModel, (self.program, self.table)


def load(path: Path) -> packed.PackedModel | IntegerModel:
    """Read a packed network or an integer program. Raises PackedError and IntegerError, as the readers of both."""
    return IntegerModel(files.load(path)) if files.is_program(path) else packed.load(path)


def quantised(
    program: IntegerProgram, table: Tensor | None, x: Float32[Tensor, "rows ..."] | UInt8[Tensor, "rows ..."]
) -> Int64[Array, "rows ..."]:
    """What a program takes for inputs of the network: the pixels behind them by `table`, or columns as integers."""
    if table is None and program.input.kind == "pixels":
        raise IntegerError(f"expected pixels of 0 to 255 in uint8, got {x.dtype}")
    if table is None:
        return program.input.quantised(x.numpy())
    found = torch.empty(x.shape, dtype=torch.int64)
    for channel, values in enumerate(table):
        ordered, pixels = values.sort()
        place = torch.searchsorted(ordered, x[:, channel].contiguous()).clamp(max=255)
        if not torch.equal(ordered[place], x[:, channel]):
            raise IntegerError("expected prepared pixels, got other numbers")
        found[:, channel] = pixels[place]
    return found.numpy()
