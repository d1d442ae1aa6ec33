"""Instructions are whole: run, sized, written and read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from htaf.core.kernels import native
from htaf.core.kernels.float_layers import cpu
from htaf.core.kernels.float_layers import reference as float_layers
from htaf.core.kernels.layers import Geometry
from htaf.core.kernels.packed_maps.reference import pack as packed_bits
from htaf.program.packed import PackedError, PackedModel, Report, instructions, load, save
from htaf.program.packed.files import program_to_json
from htaf.program.packed.instructions import (
    INSTRUCTIONS,
    Call,
    Instruction,
    Layer,
    Machine,
    Made,
    Means,
    Pool,
    Read,
    Rounded,
    Spikes,
    Threshold,
    Unpack,
    kernels,
)
from htaf.program.packed.program import Input, Program, check

DOCS = Path(__file__).parents[2] / "docs"
X = torch.randn(5, 70, generator=torch.Generator().manual_seed(0))
IMAGE = torch.randn(2, 5, 4, 4, generator=torch.Generator().manual_seed(1))
TIMES = torch.randn(3, 4, 9, generator=torch.Generator().manual_seed(2))
SIGNS = torch.randn(6, 70, generator=torch.Generator().manual_seed(3)) >= 0


class Example(NamedTuple):
    """An instruction, the values it reads, its tensors, and what it is to make."""

    instruction: Instruction
    values: list[Tensor]
    tensors: dict[str, Tensor]
    wanted: list[Tensor]


def _layer() -> Example:
    shift, lower, upper = torch.ones(1), torch.zeros(1), torch.full((1,), torch.inf)
    tensors = {"w": packed_bits(SIGNS)[:, None, None], "shift": shift, "lower": lower, "upper": upper}
    layer = Layer("l", "binary", "row", Geometry(70, 6), "w", False, 0, 1, None, "shift", "lower", "upper",
                  2, 3)  # fmt: skip
    y = (X >= 0).float() @ (2.0 * SIGNS.float() - 1).T + 1 + X[:, :6]
    return Example(layer, [packed_bits(X >= 0), X[:, :6].contiguous()], tensors, [y, packed_bits(y >= 0)])


def _threshold() -> Example:
    ends = {"lower": torch.full((5,), -0.5), "upper": torch.full((5,), 1.0)}
    bits = packed_bits(((IMAGE >= -0.5) & (IMAGE <= 1)).movedim(1, -1))
    return Example(Threshold("t", 0, 1, "lower", "upper", 1), [IMAGE], ends, [bits])


def _spikes() -> Example:
    v, fired = torch.zeros(4, 9), []
    for x in TIMES:
        h = 0.5 * v + x
        fired.append(h >= 1)
        v = torch.where(h >= 1, 0.0, h)
    spikes = Spikes("s", 0, 2, 0.5, 1.0, 1.0, False, 1)
    return Example(spikes, [TIMES], {}, [packed_bits(torch.stack(fired))])


def _pool() -> Example:
    bits = IMAGE >= 0.5
    wanted = torch.nn.functional.max_pool2d(bits.float(), 2, 2).movedim(1, -1) > 0
    pool = Pool("p", 0, (2, 2), (2, 2), (0, 0), 1)
    return Example(pool, [packed_bits(bits.movedim(1, -1))], {}, [packed_bits(wanted)])


def _unpack() -> Example:
    bits = IMAGE >= 0
    wanted = torch.where(bits, 0.75, 0.25)
    return Example(Unpack("u", 0, 5, 1, 0.25, 0.75, 1), [packed_bits(bits.movedim(1, -1))], {}, [wanted])


def _call() -> Example:
    weight = torch.tensor([[1.0, -2.0, 0.5, 0, 0], [1.0, 1.0, 1.0, 0, 0]])
    call = Call("c", "linear.default", [{"v": 0}, {"t": "w"}], {}, 1)
    x = IMAGE[:, :, 0, 0].contiguous()
    return Example(call, [x], {"w": weight}, [x @ weight.T])


def _rounded() -> Example:
    weight = torch.randint(-127, 128, (3, 5, 3, 2), generator=torch.Generator().manual_seed(4)).short()
    g, unit = Geometry(5, 3, (3, 2), (2, 1), (1, 0)), torch.tensor([0.5, 1.0, 0.25])
    wanted = float_layers.rounded(IMAGE, float_layers.Rounded(weight, unit, 8, 4096), g)
    exact = float_layers.convolution(IMAGE, weight * unit.view(-1, 1, 1, 1), None, g)
    assert 0 < (wanted - exact).abs().max() < 2.0**-9 * 30 * 127
    rounded = Rounded("r", 0, g, "w", "u", 8, 4096, 1)
    return Example(rounded, [IMAGE], {"w": weight, "u": unit}, [wanted])


def _means() -> Example:
    bits = (IMAGE >= 0).movedim(1, -1)
    weight, bias = torch.arange(-5, 5).reshape(2, 5).int(), torch.tensor([3, -100])
    wanted = (bits.double().mean((1, 2)) @ weight.double().T + bias) / 4
    means = Means("m", 0, "w", "b", 0.25, 1)
    return Example(means, [packed_bits(bits)], {"w": weight, "b": bias}, [wanted.float()])


EXAMPLES: dict[type[Instruction], Callable[[], Example]] = {
    Layer: _layer, Threshold: _threshold, Spikes: _spikes, Pool: _pool, Unpack: _unpack, Call: _call,
    Rounded: _rounded, Means: _means,
}  # fmt: skip


def _program(one: Example) -> Program:
    inputs = tuple(Input(tuple(x.shape), x.dtype) for x in one.values)
    return Program(inputs, (one.instruction,), one.instruction.makes, one.tensors)


def _whole(one: Example) -> None:
    """All that an instruction says of itself holds when it runs."""
    instruction, inputs = one.instruction, len(one.values)
    assert instruction.reads == tuple(range(inputs))
    assert instruction.makes == tuple(range(inputs, inputs + len(one.wanted)))
    assert set(instruction.tensors) == one.tensors.keys()

    written = json.loads(json.dumps(instruction.to_json()))
    assert written.pop("step") == instruction.opcode
    assert type(instruction).from_json(written) == instruction
    for name in written:
        with pytest.raises(PackedError, match="expected fields"):
            type(instruction).from_json({n: v for n, v in written.items() if n != name})

    meta = {name: tensor.to("meta") for name, tensor in one.tensors.items()}
    sizes = instruction.sizes([x.to("meta") for x in one.values], meta, 1 << 30)
    ready = instruction.prepare(Machine(one.tensors, *kernels(), cpu if native.available() else None))
    values = [*one.values, *[None] * len(one.wanted)]
    ready.run(values, len(one.values[0]))
    made = [values[v] for v in instruction.makes]
    for got, size, wanted in zip(made, sizes, one.wanted, strict=True):
        assert (got.shape, got.dtype) == (size.shape, size.dtype)
        torch.testing.assert_close(got, wanted)
    if (decided := instruction.decided()) is not None:
        assert decided.bits in instruction.makes
        assert values[decided.bits].dtype == torch.uint8


@pytest.mark.parametrize("kind", EXAMPLES)
@pytest.mark.parametrize("compiled", [True, False])
def test_an_instruction_is_whole(kind: type[Instruction], compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(native, "available", lambda: False)
    _whole(EXAMPLES[kind]())


@pytest.mark.parametrize("kind", EXAMPLES)
def test_an_instruction_goes_through_a_file(kind: type[Instruction], tmp_path: Path) -> None:
    one = EXAMPLES[kind]()
    model = PackedModel(_program(one), Report((), 0, 0))
    save(model, tmp_path / "one.htaf")
    for found in (model(*one.values), load(tmp_path / "one.htaf")(*one.values)):
        for got, wanted in zip(found, one.wanted, strict=True):
            torch.testing.assert_close(got, wanted)


def test_a_plan_reads_inputs_of_its_dtype_alone() -> None:
    """A plan takes addresses: memory of another dtype would be read as if it were the right one."""
    one = _pool()
    model = PackedModel(replace(_program(one), outputs=1), Report((), 0, 0))
    (bits,) = one.values
    for _ in range(2):
        torch.testing.assert_close(model(bits), one.wanted[0])
    with pytest.raises(PackedError, match=r"expected an input in torch\.uint8, got torch\.float32"):
        model(torch.zeros(bits.shape))


def _classes(module: ModuleType) -> Iterator[type[Instruction]]:
    for item in vars(module).values():
        if isinstance(item, type) and issubclass(item, Instruction) and item is not Instruction:
            yield item


def test_every_instruction_is_known_tried_and_documented() -> None:
    assert set(_classes(instructions)) == set(INSTRUCTIONS.values()) == EXAMPLES.keys()
    text = (DOCS / "packed-format.md").read_text()
    for cls in INSTRUCTIONS.values():
        told = re.search(
            rf"^\| `{cls.opcode}` \|[^\n]*|^\*\*`{cls.opcode}`\*\*.*?^\*\*", text, re.MULTILINE | re.DOTALL
        )
        assert told, f"docs/packed-format.md says nothing of {cls.opcode}"
        named = set(re.findall(r"`(\w+)`", told[0]))
        assert set(cls.fields) - {"name"} <= named, cls.opcode
        assert list(cls.fields) == [f.name for f in fields(cls)], "what is kept is what the class has"  # pyright: ignore


def test_what_an_instruction_makes_is_checked() -> None:
    """The sizes of a file's program are those of every value made."""

    class Short(Instruction):
        opcode = "short"
        name: str
        input: Read
        bits: Made

        def sizes(self, values, tensors, most):
            return []

        def prepare(self, machine):
            raise NotImplementedError

        def decided(self):
            return None

    short = dataclass(frozen=True)(Short)("s", 0, 1)  # pyright: ignore[reportCallIssue]
    with pytest.raises(PackedError, match="s: expected the sizes of 1 values, got 0"):
        check(Program((Input((None, 70)),), (short,), 1, {}))


@pytest.mark.usefixtures("unchecked")  # the types say it too, but are checked in tests alone
def test_a_program_takes_instructions_alone() -> None:
    class Stranger:
        name = "s"

    with pytest.raises(PackedError, match="expected instructions of packed programs, got Stranger"):
        Program((Input((None, 3)),), (Stranger(),), 0, {})  # pyright: ignore[reportArgumentType]
    assert program_to_json(Program((Input((None, 3)),), (), 0, {}))["steps"] == []
