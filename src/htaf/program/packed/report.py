"""What became of every operator of a model."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Row:
    """One operator: its node in the exported graph, the module that called it, what it is, and how it runs."""

    name: str
    path: str
    operator: str
    how: str


@dataclass(frozen=True)
class Report:
    """One row an operator, in the order of the graph; bytes of the packed layers' weights, and in float32."""

    rows: tuple[Row, ...]
    packed_bytes: int
    float_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": [list(asdict(row).values()) for row in self.rows],
            "packed_bytes": self.packed_bytes,
            "float_bytes": self.float_bytes,
        }

    @classmethod
    def from_json(cls, written: dict[str, Any]) -> Report:
        """The inverse of `to_json`. Raises TypeError or KeyError for anything else."""
        rows = tuple(Row(*(str(cell) for cell in row)) for row in written["rows"])
        return cls(rows, int(written["packed_bytes"]), int(written["float_bytes"]))

    @property
    def packed(self) -> int:
        """Operators that run over bits, or make them."""
        return sum(row.how.startswith("packed") for row in self.rows)

    @property
    def layers(self) -> int:
        """Layers that run over bits."""
        kinds = ("binary", "table", "integer", "means")
        return sum(row.how.startswith(tuple(f"packed: {kind}" for kind in kinds)) for row in self.rows)

    def folded(self) -> tuple[Row, ...]:
        """The rows, of equal operators that run in float for the same reason the first one with their count."""
        counts = Counter((row.operator, row.how) for row in self.rows if row.how.startswith("float"))
        found = dict[Any, Row]()
        for at, row in enumerate(self.rows):
            count = counts[kind := (row.operator, row.how)]
            how = f"{row.how} ({count} of these)" if count > 1 else row.how
            found.setdefault(kind if count > 1 else at, replace(row, how=how))
        return tuple(found.values())

    def __str__(self) -> str:
        cells = [("operator", "module", "what", "how"), *((r.name, r.path, r.operator, r.how) for r in self.folded())]
        widths = [max(len(row[i]) for row in cells) for i in range(3)]
        lines = ["  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[3]]) for row in cells]
        if self.packed_bytes and self.float_bytes:
            said = compared(self.packed_bytes, self.float_bytes, "in float32")
            lines.append(f"weights of the packed layers: {self.packed_bytes:,} bytes, {said}")
        return "\n".join(lines)


def compared(size: int, other: int, name: str) -> str:
    """A size in bytes beside another one, which has a name: "3.0 times smaller than NAME (300 bytes)"."""
    if f"{max(size, other) / min(size, other):.1f}" == "1.0":
        said = "about as large as"
    else:
        said = f"{other / size:.1f} times smaller than" if size < other else f"{size / other:.1f} times as large as"
    return f"{said} {name} ({other:,} bytes)"
