"""Concepts as numbers, not bits: what the head of a soft bottleneck reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float32, Int32, UInt8

from htaf.concepts.codes import PARTS, ConceptError, PartName
from htaf.concepts.store import Features


@dataclass(frozen=True, eq=False)
class SoftConcepts:
    """Numbers of N images and C concepts; fields as in `htaf.concepts.codes.Codes`.

    values: float32 [N, C], perhaps memory-mapped.
    """

    values: Float32[np.ndarray, "images concepts"]
    classes: tuple[str, ...]
    labels: Int32[np.ndarray, " images"]
    parts: UInt8[np.ndarray, " images"]
    ids: Sequence[str]
    weight: Float32[np.ndarray, "classes concepts"]
    bias: Float32[np.ndarray, " classes"]

    @classmethod
    def of(cls, features: Features) -> SoftConcepts:
        """The pre-activations of a folder, in place of its bits."""
        names = ("values", "classes", "labels", "parts", "ids", "weight", "bias")
        return cls(*(getattr(features, name) for name in names))

    def __len__(self) -> int:
        """N."""
        return len(self.values)

    @property
    def concepts(self) -> int:
        """C."""
        return self.values.shape[1]

    def unpack(self, rows: np.ndarray | slice = slice(None)) -> Float32[np.ndarray, "rows concepts"]:
        """What the head reads: float32 [rows, C], a copy."""
        return np.array(self.values[rows], dtype=np.float32)

    def take(self, rows: np.ndarray) -> SoftConcepts:
        """The images of these row numbers, copied into memory."""
        arrays = {name: np.ascontiguousarray(getattr(self, name)[rows]) for name in ("values", "labels", "parts")}
        return replace(self, **arrays, ids=[self.ids[row] for row in rows.tolist()] if len(self.ids) else ())

    def labelled(self, part: PartName) -> SoftConcepts:
        """The images of a part whose class is known, without their ids.

        Raises:
            ConceptError: there are none.
        """
        rows = np.flatnonzero((np.asarray(self.parts) == PARTS.index(part)) & (np.asarray(self.labels) >= 0))
        if not len(rows):
            raise ConceptError(f"expected labelled images of the part {part!r}, got none")
        return replace(self, ids=()).take(rows)
