"""A NIR graph while it is made: its nodes and edges, and what carries each value of the network."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from htaf.export.program import ExportError

aten = torch.ops.aten
# Operators whose result is their input, or shares its memory (a dropout in eval mode)
ALIASES = {
    aten.detach.default, aten.detach_.default, aten.alias.default, aten.contiguous.default, aten.dropout.default,
    aten.feature_dropout.default,
}  # fmt: skip
MOVES = {aten.flatten.using_ints, aten.unflatten.int, aten.view.default, aten.reshape.default}


@dataclass(frozen=True)
class Value:
    """Nodes whose outputs add up to a value, and how time lies in it.

    Attributes:
        sources: names of nodes.
        time: "static": the same at every step; "split": [T, N, ...]; "merged": [T N, ...]; "mean": averaged, which the
            graph's reader does last, so that only linear layers may follow.
        shape: of one row at one time step.
    """

    sources: tuple[str, ...]
    time: Literal["static", "split", "merged", "mean"]
    shape: tuple[int, ...]

    @property
    def lead(self) -> int:
        """Dimensions of a tensor before those of a row."""
        return 2 if self.time == "split" else 1


class Graph:
    """Nodes and edges of NIR beside the values of an exported program."""

    def __init__(self, nir: Any) -> None:
        self.nir = nir
        self.nodes: dict[str, Any] = {}
        self.edges: list[tuple[str, str]] = []
        self.values: dict[Node, Value | Tensor | None] = {}  # None: a size, or what is made of sizes
        self.makers: dict[str, Node] = {}
        self.steps: int | None = None

    def add(self, name: str, layer: Any, sources: tuple[str, ...]) -> None:
        self.nodes[name] = layer
        self.edges += [(source, name) for source in sources]

    def after(self, value: Value, node: Node, layer: Any, shape: tuple[int, ...] | None = None) -> Value:
        """A node of NIR behind a value; its rows have this shape, None: the same."""
        name = f"{node.name}_{len(self.nodes)}"
        self.add(name, layer, value.sources)
        self.makers[name] = node
        return replace(value, sources=(name,), shape=value.shape if shape is None else shape)

    def flattened(self, value: Value, node: Node) -> Value:
        rank = len(value.shape)  # from behind: snnTorch counts the batch among the dimensions
        flatten = self.nir.Flatten(input_type={"input": np.array(value.shape)}, start_dim=-rank, end_dim=-1)
        return self.after(value, node, flatten, (math.prod(value.shape),))

    def given(self, argument: Any) -> Any:
        """A node's value; anything else is itself."""
        return self.values[argument] if isinstance(argument, Node) else argument

    def value(self, argument: Any) -> Value:
        value = self.given(argument)
        if not isinstance(value, Value):
            raise ExportError(f"{argument}: expected a value of the network, got a constant")
        return value

    def tensor(self, argument: Any) -> Tensor:
        tensor = self.given(argument)
        if not isinstance(tensor, Tensor):
            raise ExportError(f"{argument}: expected constant weights, got none or some that depend on the input")
        return tensor.detach().float()

    def constant(self, node: Node) -> Tensor | None:
        """What a node makes of constants alone; None where sizes of the batch are among them."""
        if any(self.values[used] is None for used in node.all_input_nodes):
            return None
        args, kwargs = (_filled_in(part, self.values) for part in (node.args, node.kwargs))
        with torch.no_grad():
            made = cast(Any, node.target)(*args, **kwargs)
        return made if isinstance(made, Tensor) else None

    def reshaped(self, node: Node) -> Value:
        """An operator that says anew where time and rows lie, or flattens what a row holds."""
        value, used = self.value(node.args[0]), node.all_input_nodes[0]
        before, after = tuple(used.meta["val"].shape), tuple(node.meta["val"].shape)
        if node.target is aten.expand.default and value.time == "static" and after[1:] == before:
            self._time(after[0])
            return replace(value, time="split")
        if node.target in MOVES:
            if after == before:
                return value
            if value.time == "split" and after[1:] == before[2:]:
                return replace(value, time="merged")
            if value.time == "merged" and after[2:] == value.shape and self._is_time(after[0]):
                return replace(value, time="split")
            if after[: value.lead] == before[: value.lead] and after[value.lead :] == (math.prod(value.shape),):
                return self.flattened(value, node)
        raise ExportError(f"{node.name}: expected what NIR can say exactly, got {node.target} (see docs/export.md)")

    def _is_time(self, size: Any) -> bool:
        return isinstance(size, int) and size == self.steps  # a size of the batch is a SymInt

    def _time(self, steps: Any) -> None:
        if not isinstance(steps, int) or self.steps not in (None, steps):
            raise ExportError(f"expected one number of time steps, got {self.steps} and {steps}")
        self.steps = steps


def _filled_in(arguments: Any, values: Any) -> Any:
    return map_arg(arguments, lambda used: values[used])


def _readers(node: Node) -> list[Node]:
    """Nodes that take this one's numbers, not its sizes alone."""
    return [user for user in node.users if user.op == "output" or not _is_size(user)]


def _is_size(node: Node) -> bool:
    return not isinstance(node.meta.get("val"), (Tensor, tuple, list))


def alone(node: Node, maker: Node | None = None) -> bool:
    """Whether what this node makes has one reader, as what it shares memory with up to its maker has."""
    return all(len(_readers(one)) == 1 for one in _upwards(node, maker))


def _upwards(node: Node, maker: Node | None) -> Iterator[Node]:
    """The node and those it is an alias of; to the maker, through whatever takes one value."""
    while True:
        yield node
        if node is maker or node.op != "call_function" or not node.all_input_nodes:
            return
        if maker is None and node.target not in ALIASES | MOVES | {aten.expand.default}:
            return
        node = node.all_input_nodes[0]
