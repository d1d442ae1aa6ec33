"""A packed model: a module with the call of the model that it was made from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, final

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map_only

from htaf._ground.errors import first_line
from htaf.core.kernels.packed_maps import reference as maps
from htaf.program.packed.errors import PackedError
from htaf.program.packed.execution import Execution
from htaf.program.packed.instructions import Instruction, Layer, Threshold, Values
from htaf.program.packed.program import Program, check
from htaf.program.packed.report import Report

_FAILURES = (RuntimeError, ValueError, TypeError, IndexError, ArithmeticError, MemoryError)
_TRACED = (
    "expected a call, got a trace, which cannot see packed kernels: export the hardened model, or use htaf.packed.save"
)


def _float32() -> AbstractContextManager[Any]:
    """Without the lower precision of an autocast around the call."""
    return torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else nullcontext()


@final
class PackedModel(nn.Module):
    """Runs a program over packed bits, on the CPU in float32, without gradients.

    `pack` and `load` make it. Call it like the model that it was made from. The batch may have any size; the other
    sizes are those of the example. `report` says how each operator runs; `extra` is what was saved with the model.

    Raises:
        PackedError: weights or inputs that are not finite; inputs of other shapes, dtypes or devices; inputs for which
            the memory is too small; `to` another device or dtype.
    """

    def __init__(self, program: Program, report: Report, extra: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.program, self.report = program, report
        self.extra: dict[str, Any] = dict(extra or {})
        try:
            self._execution = Execution(program)
        except ValueError as error:  # of a kernel's weights: not finite, or too many
            raise PackedError(f"expected layers that the kernels take: {error}") from None
        shapes = {name: tensor.to("meta") for name, tensor in program.tensors.items()}
        self._sizes = replace(program, tensors=shapes)  # whatever becomes of the tensors
        self._fitting = {0}  # batch sizes with which all values fit
        self._expected = [
            (len(sizes), [(i, s) for i, s in enumerate(sizes) if s is not None]) for sizes, _ in program.inputs
        ]
        self.eval()

    def forward(self, *inputs: Tensor) -> Any:
        if len(inputs) == 1 and type(x := inputs[0]) is Tensor:  # sizes that are known need no further look
            whole = self._execution.fast.get((x.shape, x.stride()))
            if whole is not None and x.dtype is torch.float32 and x.is_cpu and not x.is_neg():
                address = x.data_ptr()
                if address and not address % 4:
                    _expect_finite(x)
                    return whole(address)
        inputs = self._checked(inputs)
        if not inputs[0].shape[0]:  # no rows give no outputs, of the shapes of one
            one = self(*(x.new_zeros(1, *x.shape[1:]) for x in inputs))
            return tree_map_only(Tensor, lambda y: y[:0] if y.ndim else y, one)
        try:
            with torch.no_grad(), _float32():
                return self._execution(inputs)
        except _FAILURES as error:  # an operator whose sizes hold for other batches only
            raise PackedError(f"expected inputs that every operator takes, got {first_line(error):.200}") from error

    def _slow_forward(self, *inputs: Any, **named: Any) -> Any:
        """Return what PyTorch calls in place of `forward` when it traces: of a plan a trace sees nothing."""
        raise PackedError(_TRACED)

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedModel, (self.program, self.report, self.extra)  # closures are made anew

    def with_bits(self, *inputs: Tensor) -> tuple[Any, Bool[Tensor, "batch bits"]]:
        """As the call, with the bits of the last step: an ICBM's concepts, the last hidden layer of an MLP.

        Returns:
            The outputs; the bits, bool [batch, bits], True for the upper level of the step. Of a step of several levels
            the bits of a unit's thresholds stand side by side, lowest first.

        Raises:
            PackedError: as the call; no step is over bits, or the last one gives no single row of bits for each input,
                as of a convolutional network without a bottleneck.
        """
        steps = [i for i in self.program.instructions if i.decided() is not None]
        last = [i for i in steps if i is steps[-1] or _compared(i) == _compared(steps[-1]) is not None]
        kept: list[tuple[Tensor, int]] = []

        def after(instruction: Instruction, values: Values) -> None:
            decided = instruction.decided() if instruction in last else None
            if isinstance(instruction, Layer) and decided is not None:
                kept.append((values[decided.bits], instruction.geometry.outputs))
            elif isinstance(instruction, Threshold) and decided is not None:
                kept.append((values[decided.bits], values[instruction.input].shape[decided.axis]))

        outputs = self.watch(inputs, after)
        if not kept or kept[0][0].ndim != 2:
            got = f"{list(kept[0][0].shape[1:-1])} of them" if kept else "a network without one"
            raise PackedError(f"expected a network whose last step gives one row of bits for each input, got {got}")
        return outputs, torch.stack([maps.unpack(*bits) > 0 for bits in kept], -1).flatten(1)

    def watch(self, inputs: tuple[Tensor, ...], after: Callable[[Instruction, Values], None]) -> Any:
        """As the call; `after(instruction, values)` sees every instruction and may change the values."""
        inputs, instructions = self._checked(inputs), self.program.instructions
        with torch.no_grad(), _float32():
            return self._execution(inputs, after=lambda at, values: after(instructions[at], values))

    def _checked(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Inputs whose memory holds their numbers, which it does not where a sign or zeros are lazy."""
        if len(inputs) != len(self._expected):
            raise PackedError(f"expected {len(self._expected)} inputs, got {len(inputs)}")
        for x, (rank, sizes), wanted in zip(inputs, self._expected, self.program.inputs, strict=True):
            if isinstance(x, FakeTensor):
                raise PackedError(_TRACED)
            if not isinstance(x, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise PackedError(f"expected tensors, got {type(x).__name__}")
            shape = x.shape
            if len(shape) != rank or any(shape[i] != size for i, size in sizes):
                shown = ["batch" if s is None else s for s in wanted.sizes]
                raise PackedError(f"expected an input of shape {shown}, got {list(shape)}")
            if not x.is_cpu:
                raise PackedError(f"expected an input on the CPU, got one on {x.device}")
            if x.dtype is not wanted.dtype:
                raise PackedError(f"expected an input in {wanted.dtype}, got {x.dtype}")
            if x.layout is not torch.strided:
                raise PackedError(f"expected a dense input, got one with the layout {x.layout}")
            _expect_finite(x)
        batches = [x.shape[0] for x, wanted in zip(inputs, self.program.inputs, strict=True) if wanted.sizes[0] is None]
        if len(set(batches)) > 1:
            raise PackedError(f"expected inputs of one batch size, got {batches}")
        if (batch := batches[0] if batches else inputs[0].shape[0]) not in self._fitting:
            check(self._sizes, batch)
            self._fitting.add(batch)
        for x in inputs:
            if x.is_neg() or x._is_zerotensor():
                return tuple(y.resolve_neg().clone() for y in inputs)
        return inputs

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> PackedModel:  # pyright: ignore
        moved = fn(torch.zeros(1, dtype=torch.float32))
        if moved.device.type != "cpu" or moved.dtype != torch.float32:
            raise PackedError(
                f"expected a packed model to stay on the CPU in float32, got {moved.device}, {moved.dtype}"
            )
        return self

    def extra_repr(self) -> str:
        return f"{len(self.program.instructions)} instructions, {self.report.packed} operators packed"


def _expect_finite(x: Tensor) -> None:
    """Raise PackedError for NaN and infinity, because a bit has no value for NaN."""
    if x.is_floating_point() and x.numel():
        low, high = (end.item() for end in torch.aminmax(x))  # NaN where one is
        if not -math.inf < low <= high < math.inf:
            raise PackedError(f"expected finite inputs, got values from {low} to {high}")


def _compared(instruction: Instruction) -> int | None:
    """Return the floats whose bits an instruction makes, where they are a value: those of all thresholds of one
    step."""
    if isinstance(instruction, Layer):
        return instruction.y
    return instruction.input if isinstance(instruction, Threshold) else None
