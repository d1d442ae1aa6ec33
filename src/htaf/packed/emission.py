"""Instructions, tensors and values as they are added to a program, and the values of a graph's nodes in either form."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from htaf.packed.affine import shape_of
from htaf.packed.errors import PackedError
from htaf.packed.graph import Traced
from htaf.packed.instructions import Call, Instruction, Unpack
from htaf.packed.kinds import Bits
from htaf.packed.report import Row


class Emission:
    """The instructions so far, and the numbers of the values that nodes have, as floats and as bits."""

    def __init__(self, traced: Traced) -> None:
        self.traced, self.constants = traced, traced.constants
        self.kinds: dict[Node, Bits] = {}
        self.instructions: list[Instruction] = []
        self.tensors: dict[str, Tensor] = {}
        self.equal: dict[Any, Tensor] = {}  # by content
        self.rows: list[Row] = []
        self.floats: dict[Node, int] = {}  # values of nodes as floats
        self.bits: dict[Node, tuple[int, ...]] = {}  # and as bits, one value a plane
        self.nested: dict[Node, tuple[int, ...]] = {}  # of nested kinds, the bits whose sum they are
        self.ones: dict[Node, int] = {}
        self.packed_bytes = self.float_bytes = 0
        self.next = 0
        for node in traced.inputs:
            self.floats[node] = self._value()

    def _value(self) -> int:
        self.next += 1
        return self.next - 1

    def _tensor(self, name: str, tensor: Tensor) -> str:
        """Keep a tensor under this name or a longer one; equal ones, as of a module that runs twice, are one."""
        while name in self.tensors:
            name += "_"
        kept = tensor.detach().clone(memory_format=torch.contiguous_format)
        key = kept.dtype, kept.shape, hashlib.sha256(kept.numpy().tobytes()).digest()
        self.tensors[name] = self.equal.setdefault(key, kept)
        return name

    def _row(self, node: Node, how: str) -> None:
        self.rows.append(Row(node.name, self._path(node), str(node.target), how))

    def _path(self, node: Node) -> str:
        """The path of the module that a node is of."""
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        return str(stack[-1][0]) if stack else ""

    def _ends(self, node: Node, ends: tuple[Tensor, Tensor], channels: int) -> tuple[str, str]:
        lower, upper = (end.broadcast_to(channels) for end in ends)
        return self._channels(f"{node.name}.lower", lower), self._channels(f"{node.name}.upper", upper)

    def _channels(self, name: str, values: Tensor) -> str:
        """Numbers of every channel, as one where they are equal: pixels that were flattened may be many."""
        return self._tensor(name, values[:1] if bool((values == values[:1]).all()) else values)

    def _aten(self, node: Node, operator: str, args: list[Any], kwargs: dict[str, Any] | None = None) -> int:
        call = Call(node.name, operator, args, kwargs or {}, self._value())
        self.instructions.append(call)
        return call.y

    def _argument(self, node: Node) -> dict[str, Any]:
        if node in self.constants:
            name = re.sub(r"[^a-z0-9_.]", "_", node.name)
            name = next((n for n, t in self.tensors.items() if t is self.constants[node]), None) or self._constant(
                name, node
            )
            return {"t": name}
        if not isinstance(node.meta.get("val"), (Tensor, list, tuple)):
            return self._size(node.meta["val"])
        return {"v": self._float(node)}

    def _constant(self, name: str, node: Node) -> str:
        name = self._tensor(name, self.constants[node])
        self.constants[node] = self.tensors[name]  # the next use finds it
        return name

    def _size(self, size: Any) -> Any:
        """An integer, or {"s": [times, over, plus]}: batch times // over + plus."""
        if isinstance(size, int):
            return size
        batch = self.traced.batch.node.expr
        expression = size.node.expr
        at = [int(expression.subs(batch, n)) for n in (0, 1, 2, 60, 120)]
        slope, offset = at[1] - at[0], at[0]
        if at[2] == offset + 2 * slope and at[4] == offset + 120 * slope and slope >= 0 and offset >= 0:
            return {"s": [slope, 1, offset]}
        raise PackedError(f"expected sizes that are multiples of the batch, got {expression}")

    def _float(self, node: Node) -> int:
        """The value as floats, unpacked where it is bits."""
        if node in self.floats:
            return self.floats[node]
        kind, total = self.kinds[node], None
        for i, plane in enumerate(self._kept(node)):
            low, high = (kind.low, kind.high) if kind.most == 1 else (0.0, 1.0 if node in self.nested else float(2**i))
            channels = kind.channels if kind.whole is None else kind.whole[0]
            unpack = Unpack(node.name, plane, channels, kind.axis, low, high, self._value())
            self.instructions.append(unpack)
            total = unpack.y if total is None else self._aten(node, "add.Tensor", [{"v": total}, {"v": unpack.y}])
        assert total is not None
        total = self._levels(node, total, kind) if kind.most > 1 else total
        if kind.whole is not None:  # what was flattened
            total = self._aten(node, "reshape.default", [{"v": total}, [self._size(s) for s in shape_of(node)]])
        self.floats[node] = total
        return total

    def _kept(self, node: Node) -> tuple[int, ...]:
        """The bits whose sum a level is, of a nested kind; else its planes."""
        return self.nested.get(node) or self.bits[node]

    def _levels(self, node: Node, whole: int, kind: Bits) -> int:
        """The numbers that integers stand for, rounded as those of `Bits.levels`."""
        span = kind.high - kind.low
        if (span, kind.low) == (kind.most, 0.0):
            return whole
        if span != 1.0:
            whole = self._aten(node, "mul.Scalar", [{"v": whole}, span])
        if kind.low != 0.0:
            whole = self._aten(node, "add.Scalar", [{"v": whole}, kind.low * kind.most])
        return self._aten(node, "div.Scalar", [{"v": whole}, kind.most])
