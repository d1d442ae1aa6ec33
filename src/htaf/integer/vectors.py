"""Rows with the outputs that a program gives for them, by which an export of it is tested."""

from __future__ import annotations

import numpy as np

from htaf.integer.program import Array, IntegerProgram


def vectors(program: IntegerProgram, rows: int | Array, seed: int = 0) -> tuple[Array, Array]:
    """Rows and their outputs.

    Args:
        rows: integers [rows, *input.shape], as rows of data, which are taken as they are; or how many to draw: uniform
            over the range of the input, columns of every magnitude too, and two rows that are all at one end.
    Returns:
        x and `program.run(x)`, int64.
    """
    if not isinstance(rows, int):
        return np.asarray(rows).astype(np.int64), program.run(rows)
    rng, given = np.random.default_rng(seed), program.input
    x = rng.integers(given.low, given.high + 1, (rows, *given.shape))
    if given.kind == "columns":
        x[::2] >>= rng.integers(0, 32, x[::2].shape)
    x[1:2], x[2:3] = given.low, given.high
    return x, program.run(x)
