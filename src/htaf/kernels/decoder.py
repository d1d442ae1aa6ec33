"""The compiled decoder of csrc/decoder.cpp: checks its tensors, keeps them, and hands over addresses.

Of tokens x[t] = embedding[id], layer after layer (norm: x / sqrt(mean x^2 + epsilon) * weight):

    x += output attention(norm x)      grouped heads, rotary positions, as Llama's
    x += down^T (f(gate h) * up h)     h = norm x; f a bit, gate h >= threshold, or a smooth activation

and logits = head norm x. Weights are float32 or bfloat16, sums float32. A token's values do not depend on how many are
read at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from htaf.kernels.gated_mlp.reference import Weights
from htaf.kernels.native import TYPES, extension
from htaf.kernels.packed_native import CPU

Activation = Literal["step", "silu", "gelu_tanh"]
FIRST_ROOM = 512  # positions
ACTIVATIONS: tuple[Activation, ...] = ("step", "silu", "gelu_tanh")  # the order of csrc/gated.hpp


@dataclass(frozen=True)
class Layer:
    """Tensors of one layer.

    inputs: rows of queries, keys and values, one head after the other. window: how many positions a token sees, itself
    included; 0: all. mlp: its threshold is used where the activation is the step.
    """

    before_attention: Float[Tensor, " size"]
    before_mlp: Float[Tensor, " size"]
    inputs: Float[Tensor, "rows size"]
    inputs_bias: Float[Tensor, " rows"] | None
    output: Float[Tensor, "size seen"]
    query_norm: Float[Tensor, " width"] | None
    key_norm: Float[Tensor, " width"] | None
    mlp: Weights
    activation: Activation = "step"
    window: int = 0


@dataclass(frozen=True)
class Whole:
    """Tensors and numbers of a decoder beside its layers.

    width: of a head. groups: heads of keys and values. scale: of queries times keys. epsilon: of the norms.
    cosines, sines: of each position; their length is the context.
    """

    embedding: Float[Tensor, "vocabulary size"]
    head: Float[Tensor, "vocabulary size"]
    norm: Float[Tensor, " size"]
    cosines: Float[Tensor, "context half"]
    sines: Float[Tensor, "context half"]
    heads: int
    groups: int
    width: int
    epsilon: float
    scale: float


class Reading:
    """What was read of one text.

    position: how many tokens. keys, values: float32 [layers, groups, room, width] of these. opened: int64 [layers], how
    many gates opened.
    """

    def __init__(self, layers: int, groups: int, width: int) -> None:
        self.position = 0
        self.keys = self.values = torch.empty(layers, groups, 0, width, dtype=torch.float32, device=CPU)
        self.opened = torch.zeros(layers, dtype=torch.int64, device=CPU)

    def make_room(self, positions: int, most: int) -> None:
        """For so many positions at least: twice as many as before, so that copies stay few."""
        layers, groups, room, width = self.keys.shape
        if positions <= room:
            return
        room = min(most, max(positions, 2 * room, FIRST_ROOM))
        for name in ("keys", "values"):
            larger = torch.empty(layers, groups, room, width, dtype=torch.float32, device=CPU)
            larger[:, :, : self.position] = getattr(self, name)[:, :, : self.position]
            setattr(self, name, larger)


class Decoder:
    """A decoder, and what it has read of the last text that was begun.

    It keeps the tensors and their addresses: nothing else may move, free or change their memory.

    Raises:
        ValueError: a tensor has another shape than the rest asks for, or is not dense on the CPU.
        TypeError: another dtype.
    """

    def __init__(self, whole: Whole, layers: Sequence[Layer]) -> None:
        self.vocabulary, size = whole.embedding.shape
        self.context, half = whole.cosines.shape
        kind = whole.embedding.dtype
        if kind not in (torch.float32, torch.bfloat16):
            raise TypeError(f"weights must be float32 or bfloat16, got {kind}")
        if whole.heads < 1 or whole.groups < 1 or whole.heads % whole.groups or 2 * half > whole.width:
            raise ValueError(
                f"expected heads in whole groups and at most {whole.width} rotated values, got {whole.heads} heads, "
                f"{whole.groups} groups, {2 * half} values"
            )
        queries = whole.heads * whole.width
        rows = queries + 2 * whole.groups * whole.width
        self._kept: list[Tensor] = []

        def place(name: str, x: Tensor | None, dtype: torch.dtype, *shape: int) -> int:
            if x is None:
                return 0
            if x.dtype != dtype:
                raise TypeError(f"{name} must be {dtype}, got {x.dtype}")
            if tuple(x.shape) != shape or not x.is_cpu or not x.is_contiguous():
                raise ValueError(f"{name} must be dense {shape} on the CPU, got {tuple(x.shape)} on {x.device}")
            self._kept.append(x)
            return x.data_ptr()

        def placed(number: int, layer: Layer) -> tuple[list[int], list[int], list[int]]:
            f32, mlp, name = torch.float32, layer.mlp, f"layer {number}: "
            neurons = mlp.gate.shape[0]
            own = [
                place(name + "before_attention", layer.before_attention, f32, size),
                place(name + "before_mlp", layer.before_mlp, f32, size),
                place(name + "inputs", layer.inputs, kind, rows, size),
                place(name + "inputs_bias", layer.inputs_bias, f32, rows),
                place(name + "output", layer.output, kind, size, queries),
                place(name + "query_norm", layer.query_norm, f32, whole.width),
                place(name + "key_norm", layer.key_norm, f32, whole.width),
            ]
            parts = [
                place(name + "gate", mlp.gate, kind, neurons, size),
                place(name + "up", mlp.up, kind, neurons, size),
                place(name + "down", mlp.down, kind, neurons, size),
                place(name + "threshold", mlp.threshold, f32, neurons),
                place(name + "rounded", mlp.rounded, torch.int8, neurons, size),
                place(name + "step", mlp.step, f32, neurons),
                place(name + "rest", mlp.rest, f32, neurons),
                place(name + "norm", mlp.norm, f32, neurons),
            ]
            numbers = [layer.window, neurons, ACTIVATIONS.index(layer.activation)]
            return own, parts, numbers

        made = [placed(number, layer) for number, layer in enumerate(layers)]
        ends = [
            place("embedding", whole.embedding, kind, self.vocabulary, size),
            place("head", whole.head, kind, self.vocabulary, size),
            place("norm", whole.norm, torch.float32, size),
            place("cosines", whole.cosines, torch.float32, self.context, half),
            place("sines", whole.sines, torch.float32, self.context, half),
        ]
        sizes = [size, whole.heads, whole.groups, whole.width, 2 * half, self.vocabulary, self.context]
        self._native = extension().Decoder(TYPES[kind], sizes, whole.epsilon, whole.scale, ends, made)
        self.layers = len(layers)
        self._shape = (len(layers), whole.groups, whole.width)
        self.restart()

    def restart(self) -> Reading:
        """Begin a text, from now on the last one."""
        begun = self.reading = Reading(*self._shape)
        return begun  # not self.reading, where another thread's may stand by now

    def read(
        self, tokens: Int[Tensor, " count"], reading: Reading | None = None, *, every: bool = False, dense: bool = False
    ) -> Tensor:
        """Read tokens behind those that were read before.

        Args:
            tokens: int64.
            reading: of the text that they are of, which `restart` gave; None: the last one. One thread at a time.
            every: logits behind each token instead of the last alone.
            dense: read rows of closed gates too, as a dense network does; for comparisons.

        Returns:
            Logits float32 [vocabulary], or [count, vocabulary]. `reading.opened` has grown by the number of gates that
            opened in each layer.

        Raises:
            ValueError: no tokens, unknown ones, or more than the context takes.
        """
        tokens = tokens.to(torch.int64).contiguous()
        count = tokens.numel()
        if tokens.ndim != 1 or count == 0 or tokens.min() < 0 or tokens.max() >= self.vocabulary:
            raise ValueError(
                f"expected one or more tokens in 0 to {self.vocabulary - 1}, [count], got {tuple(tokens.shape)}"
            )
        reading = self.reading if reading is None else reading
        if reading.position + count > self.context:
            raise ValueError(f"expected at most {self.context} tokens in all, got {reading.position + count}")
        reading.make_room(reading.position + count, self.context)
        keys, values = reading.keys, reading.values
        logits = torch.empty(count if every else 1, self.vocabulary, dtype=torch.float32, device=CPU)
        self._native.read(
            keys.data_ptr(), values.data_ptr(), keys.shape[2], tokens.data_ptr(), count,
            reading.position, logits.data_ptr(), every, reading.opened.data_ptr(), dense, torch.get_num_threads(),
        )  # fmt: skip
        reading.position += count
        return logits if every else logits[0]
