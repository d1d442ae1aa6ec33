"""Integer programs as Verilog-2001: every neuron its own adders and comparators, so that a row comes out every clock.

An operation is a function of the module, its own fields, a label for its wires and the wires that it takes, which are
object arrays of the shapes of one row: what only moves numbers is then the operation's own `run`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from htaf._ground.errors import option
from htaf._ground.files import check_output_folder, to_json, write_atomic
from htaf.program.integer import ops
from htaf.program.integer.exports import OPEN, classes, filled, least_difference, sealed, vectors
from htaf.program.integer.exports import lines as meaning
from htaf.program.integer.ops import Array, IntegerError, Op, Value, channel_axis
from htaf.program.integer.program import IntegerProgram

MOST = 100_000  # LUTs of six inputs: about those of an FPGA of middle size
BITS = ("1'b0", "1'b1")
ROWS = 64  # of the vectors that are written beside the network


def to_verilog(
    program: IntegerProgram,
    folder: str | Path,
    *,
    name: str = "network",
    rows: int | Array = ROWS,
    most: int = MOST,
    pipelined: bool = True,
) -> int:
    """Write a program as one Verilog module, with a testbench and vectors.

    The module NAME of NAME.v has an input vector x and an output vector y, number 0 of a row in the lowest bits, in
    the widths that NAME.json says. Of several outputs it also gives label, the place of the first greatest one; a
    design that reads label alone lets a synthesis take away what only y needs. It has clk, rst, in_valid and out_valid:
    a row comes out as many clocks later as NAME.json and the head of the module say, one every clock.

    NAME_tb.v reads inputs.hex and outputs.hex, the vectors (label above y), and prints how many rows differ:
    `iverilog -o sim NAME.v NAME_tb.v && vvp -n sim` in that folder.

    A column outside the range of the input, as far as x is wide enough for it, counts as the end that is nearer.

    Args:
        rows: of the vectors, see `htaf.integer.exports.vectors`.
        most: LUTs of six inputs, by the estimate.
        pipelined: registers behind each step, shift, table and count; else behind x and before the outputs.
    Returns:
        How many LUTs of six inputs the module takes, by a rough estimate without a synthesis.
    Raises:
        IntegerError: the name is no identifier of Verilog's, the estimate is more than `most`, or
            an image is convolved or pooled.
        HtafError: the folder cannot be written to.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or name in filled("reserved.txt").split():
        raise IntegerError(f"expected a name of letters, digits and _ that Verilog does not reserve, got {name!r}")
    for op in program.ops:
        op.expect(
            type(op) in WRITTEN,
            "tables, steps, sums of rows and counts, as all pixels would be gates at once: write C",
            type(op).__name__,
        )
    total = estimated(program, most)
    check_output_folder(Path(folder), (), flag="folder")
    module = Module(pipelined)
    given = module.vector_of("x", program.values[0])
    y, label = _operations(module, program, given)
    text, last = _text(module, program, name, given, y, label), program.values[program.output]
    held = {"name": name, "program_sha256": program.digest, "latency": module.stages}
    held |= {"input": _format(program.values[0]), "output": _format(last), "unit": list(program.unit)}
    least = least_difference(program)
    held["label"] = {"width": sum(wire.width for wire in label), "least": least}
    x, wanted = vectors(program, rows)
    files = {f"{name}.v": sealed(text.encode())}
    x_bits, y_bits = (math.prod(held[which]["shape"]) * held[which]["width"] for which in ("input", "output"))
    taken = f".y(y[{y_bits - 1}:0])" + (f", .label(y[{len(label) + y_bits - 1}:{y_bits}])" if len(label) else "")
    sizes = {"rows": len(x), "x": x_bits - 1, "y": held["label"]["width"] + y_bits - 1, "latency": module.stages}
    files |= {f"{name}_tb.v": sealed(filled("testbench.v", name=name, open=OPEN, outputs=taken, **sizes).encode())}
    files |= {f"{name}.json": to_json(held), "inputs.hex": hexadecimal(x, held["input"]["width"])}
    files["outputs.hex"] = hexadecimal(wanted, held["output"]["width"], classes(wanted, least) if len(label) else None)
    Path(folder).mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        write_atomic(Path(folder) / file, content)
    return total


def estimated(program: IntegerProgram, most: float) -> int:
    """Estimate the LUTs of six inputs. Raises IntegerError where they are more than `most`."""
    uses = [(luts(op, program.values[op.reads[0]], value), op.name) for _, op, value in program]
    uses.append((argmax_luts(program.values[program.output]), "label"))
    if (total := sum(count for count, _ in uses)) > most:
        largest = ", ".join(f"{layer} {count:,}" for count, layer in sorted(uses, reverse=True)[:3])
        raise IntegerError(
            f"expected at most {most:,} LUTs, got about {total:,} ({largest}). Dense layers take an adder for each "
            f"weight: train a logic network or a smaller one, write C, or set {option('--luts', 'most')} to what your "
            "FPGA has"
        )
    return total


def luts(op: Op, given: Value, made: Value) -> int:
    """About how many LUTs of six inputs an operation takes: one a bit of what is added, and one more for each carry.

    Of a threshold the bits above its last zeros are compared, five a LUT.
    """
    width, signed = width_of(given.low, given.high)
    if isinstance(op, ops.Steps):
        number = np.where(op.sign[:, None] > 0, op.thresholds, 1 - op.thresholds)
        zeros = np.log2(np.gcd(number, 1 << min(width, 62))).astype(int)
        compared = np.where((number > given.low) & (number <= given.high), (width - zeros + 3) // 5, 0)
        return int(compared.sum()) * made.size // len(op.sign)
    if isinstance(op, ops.LUT):
        varies = (op.table != op.table[:, :1]).any(1) & (op.index != op.index[:, :1]).any(1)
        return int(varies.sum()) * max(1, op.table.shape[1] // 64) * (made.size // len(op.index))
    if isinstance(op, ops.Count):
        return given.size * width
    if not isinstance(op, ops.Linear):
        return 0
    total, bit = 0, (width, signed) == (1, False)
    for weight, count in zip(*np.unique(np.abs(op.weight), return_counts=True), strict=True):
        terms = len([*digits(int(weight))])
        each = int(weight).bit_length() + 1 if bit and weight else terms * (width + 1)
        total += each * int(count)
    return total * (made.size // len(op.weight))


def argmax_luts(y: Value) -> int:
    """About how many LUTs the place of the greatest number takes: to compare two numbers, and to choose one."""
    return (y.size - 1) * 3 * width_of(y.low, y.high)[0]


def hexadecimal(rows: Array, width: int, above: Array | None = None) -> str:
    """A line a row, its first number in the lowest bits: what $readmemh reads. above: a number [rows] over these."""
    bits = (
        ("".join(f"{n & (1 << width) - 1:0{width}b}" for n in row[::-1]))
        for row in rows.reshape(len(rows), -1).tolist()
    )
    if above is not None:
        bits = (f"{n:b}{text}" for n, text in zip(above.tolist(), bits, strict=True))
    return "".join(f"{int(one, 2):0{-(-len(one) // 4)}x}\n" for one in bits)


def _format(value: Value) -> dict[str, Any]:
    width, signed = width_of(value.low, value.high)
    shape = list(value.shape)
    return {"shape": shape, "width": width, "signed": signed, "low": value.low, "high": value.high}


def width_of(low: int, high: int) -> tuple[int, bool]:
    """The bits of the numbers of a range, and whether they have a sign."""
    if low >= 0:
        return max(high.bit_length(), 1), False
    return max((-low - 1).bit_length(), high.bit_length()) + 1, True


@dataclass(frozen=True)
class Wire:
    """A number of one row: bits of a vector from `low` on; or a constant bit, which is in no vector."""

    vector: str
    low: int
    width: int
    signed: bool = False

    @property
    def text(self) -> str:
        if self.constant:
            return self.vector
        return f"{self.vector}[{self.low if self.width == 1 else f'{self.low + self.width - 1}:{self.low}'}]"

    @property
    def number(self) -> str:
        """As a signed expression. One operand without a sign would take it from all."""
        return f"$signed({self.text})" if self.signed else f"$signed({{1'b0, {self.text}}})"

    @property
    def plain(self) -> str:
        """To be compared with others of its kind."""
        return f"$signed({self.text})" if self.signed else self.text

    @property
    def bit(self) -> bool:
        return self.width == 1 and not self.signed

    @property
    def constant(self) -> bool:
        return self.vector in BITS


class Module:
    """The text of a module while it is made."""

    def __init__(self, pipelined: bool) -> None:
        self.functions, self.lines, self.registers = list[str](), list[str](), list[str]()
        self.body = list[str]()  # of the block of the operation that is made
        self.stages, self.pipelined = 0, pipelined

    def vector_of(self, label: str, value: Value) -> Array:
        """The numbers of a vector, in the shape of a row."""
        width, signed = width_of(value.low, value.high)
        return wires([Wire(label, i * width, width, signed) for i in range(value.size)]).reshape(value.shape)

    def vector(self, label: str, value: Value, texts: Sequence[str]) -> Array:
        """A vector of expressions, which give the numbers of a value; the left side cuts off what overflowed.

        Equal expressions are written once, and constant bits not at all.
        """
        unique = [text for text in dict.fromkeys(texts) if text not in BITS]
        made = self.vector_of(label, replace(value, shape=(len(unique),)))
        found = {bit: Wire(bit, 0, 1) for bit in BITS} | dict(zip(unique, made, strict=True))
        if unique:
            self.lines.append(f"  reg [{sum(wire.width for wire in made) - 1}:0] {label};")
        self.body += [f"    {found[text].text} = {text};" for text in unique]
        return wires([found[text] for text in texts]).reshape(value.shape)

    def block(self, read: Sequence[Array]) -> None:
        """What was made since the last one, as one block: simulators then run it once a row, not once a number."""
        vectors = sorted({wire.vector for given in read for wire in given.flat if not wire.constant})
        if self.body:
            self.lines += [f"  always @({' or '.join(vectors) or 'x'}) begin", *self.body, "  end"]
        self.body = []

    def registered(self, label: str, given: Array) -> Array:
        """The same numbers a clock later."""
        held, low = dict[Wire, Wire](), 0
        for wire in given.flat:
            if wire not in held:
                held[wire] = wire if wire.constant else replace(wire, vector=label, low=low)
                low += 0 if wire.constant else wire.width
        if low:
            self.lines.append(f"  reg [{low - 1}:0] {label};")
            texts = [wire.text for wire in reversed(held) if not wire.constant]
            self.registers.append(f"    {label} <= {{{', '.join(texts)}}};")
        return wires([held[wire] for wire in given.flat]).reshape(given.shape)


def wires(found: Sequence[Wire]) -> Array:
    made = np.empty(len(found), object)
    made[:] = found
    return made


def packed(given: Array) -> str:
    """Numbers as one vector, the first in the lowest bits."""
    return "{" + ", ".join(wire.text for wire in given.flat[::-1]) + "}"


Written = Callable[[Module, Any, str, list[Array], list[Value], Value], Array]


def _operations(module: Module, program: IntegerProgram, given: Array) -> tuple[Array, Array]:
    """All operations; gives the wires of the output and of its label. Every value knows the clock at which it is
    there."""
    found, clock = [given if module.pipelined else module.registered("x_held", given)], [int(not module.pipelined)]
    later: dict[tuple[int, int], Array] = {}  # a value some clocks after its own

    def at(number: int, when: int) -> Array:
        if when == clock[number]:
            return found[number]
        if (number, when) not in later:
            later[number, when] = module.registered(f"v{number}_at_{when}", at(number, when - 1))
        return later[number, when]

    value, (width, signed) = program.values[0], width_of(program.input.low, program.input.high)
    port = Value(value.shape, -(1 << width - 1) if signed else 0, (1 << width - signed) - 1)
    if (port.low, port.high) != (value.low, value.high) and not _compared_alone(program):
        module.lines.append("\n  // x, clamped")
        clamp = ops.Shift("x", 0, np.zeros(value.channels, int), value.low, value.high)
        taken, found[0] = found[0], _shift(module, clamp, "v0", [found[0]], [port], value)
        module.block([taken])
    for number, op, value in program:
        when = max(clock[place] for place in op.reads)
        taken = [at(place, when) for place in op.reads]
        said = re.sub(r"[^A-Za-z0-9_.]", "_", op.name)
        module.lines.append(f"\n  // {type(op).__name__} {said}")
        values = [program.values[place] for place in op.reads]
        made = WRITTEN[type(op)](module, op, f"v{number}", taken, values, value)
        module.block(taken)
        if module.pipelined and isinstance(op, ops.Steps | ops.Shift | ops.LUT | ops.Count):
            made, when = module.registered(f"v{number}_held", made), when + 1
        found.append(made)
        clock.append(when)
    module.stages, last = clock[program.output] + 1, found[program.output]
    if last.size > 1:
        module.lines.append("\n  // label")
    label = wires(_class(module, program, [*last.flat]))
    module.block([last])
    return module.registered("y_held", last), module.registered("label_held", label)


def _class(module: Module, program: IntegerProgram, y: list[Wire]) -> list[Wire]:
    """The bits of the class, as `exports.classes` says it."""
    least, value = least_difference(program), program.values[program.output]
    if least is None:
        return _greatest(module, "label", y)[1]
    apart = Value((1,), value.low - value.high, value.high - value.low)
    texts = [f"{weighted([y[1]], [1])} - ({weighted([y[0]], [1])})"]
    (difference,) = module.vector("label_difference", apart, texts)
    return [*module.vector("label_is_second", Value((1,), 0, 1), [reached(difference, apart, least, 1)])]


def _greatest(module: Module, label: str, given: list[Wire]) -> tuple[Wire, list[Wire]]:
    """The first greatest of some numbers, and the bits of its place, the lowest first."""
    if len(given) == 1:
        return given[0], []
    half = 1 << (len(given) - 1).bit_length() - 1
    first, low = _greatest(module, f"{label}_0", given[:half])
    second, high = _greatest(module, f"{label}_1", given[half:])
    high = high + [Wire(BITS[0], 0, 1)] * (len(low) - len(high))
    bit, width = Value((1,), 0, 1), first.width
    (later,) = module.vector(f"{label}_is_later", bit, [f"{second.plain} > {first.plain}"])
    module.lines.append(f"  reg [{width - 1}:0] {label}_most;")
    module.body.append(f"    {label}_most = {later.text} ? {second.text} : {first.text};")
    chosen = [f"{later.text} ? {b.text} : {a.text}" for a, b in zip(low, high, strict=True)]
    places = [*module.vector(f"{label}_place", Value((len(chosen),), 0, 1), chosen)] if chosen else []
    return Wire(f"{label}_most", 0, width, first.signed), [*places, later]


def _compared_alone(program: IntegerProgram) -> bool:
    """Whether all that reads x are steps, to which a column beyond its range is as one at the end of it."""
    moved = {0}
    for number, op, _ in program:
        if moved.intersection(op.reads):
            if isinstance(op, ops.Take | ops.View):
                moved.add(number)
            elif not isinstance(op, ops.Steps):
                return False
    return program.output not in moved


def _text(module: Module, program: IntegerProgram, name: str, given: Array, y: Array, label: Array) -> str:
    last, first, depth = _format(program.values[program.output]), _format(program.values[0]), module.stages
    said = [f"// {line}\n" for line in meaning(program)]
    said += ["// label: the place of the class: of the first greatest y, or by the threshold\n"] * bool(len(label))
    # an output that only moves numbers may be of narrower ones than its own range says
    size = last["width"]
    wide = [f"  assign y[{(i + 1) * size - 1}:{i * size}] = {wire.number};" for i, wire in enumerate(y.flat)]
    return filled(
        "network.v", name=name, digest=program.digest, open=OPEN, inputs=given.size, x_width=first["width"],
        x_low=first["low"], x_high=first["high"], outputs=y.size, y_width=size, meaning="".join(said), depth=depth,
        signed="signed" if last["signed"] else "unsigned", exponent=program.unit[0], divisor=program.unit[1],
        label_port=", label" if len(label) else "", x_last=given.size * first["width"] - 1, y_last=size * y.size - 1,
        label_output=f"  output [{len(label) - 1}:0] label;\n" if len(label) else "",
        made="\n".join([*module.functions, *module.lines]), last=depth - 1,
        assigned="\n".join([*wide, *([f"  assign label = {packed(label)};"] if len(label) else [])]),
        follow="in_valid" if depth == 1 else f"{{valid[{depth - 2}:0], in_valid}}",
        registers="".join(f"{line}\n" for line in module.registers),
    )  # fmt: skip


# ---- expressions ----


def constant(value: int) -> str:
    """A signed number in as few bits as hold it and its negative."""
    return f"{'-' if value < 0 else ''}{abs(value).bit_length() + 1}'sd{abs(value)}"


def digits(weight: int) -> Iterator[tuple[int, int]]:
    """Places and signs of a weight as a sum of few powers of two, no two of them neighbours."""
    place = 0
    while weight:
        if weight & 1:
            sign = 2 - (weight & 3)
            yield place, sign
            weight -= sign
        weight >>= 1
        place += 1


def tree(terms: Sequence[str], by: str = "{} + {}") -> str:
    """Terms joined by two and two: expressions that are not deep."""
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return "(" + by.format(tree(terms[:half], by), tree(terms[half:], by)) + ")"


def weighted(given: Sequence[Wire], weights: Sequence[int], bias: int = 0) -> str:
    """A sum of numbers times weights: a bit is spread over the bits of its weight, others are shifted and added."""
    plus, minus = list[str](), list[str]()
    for wire, weight in zip(given, weights, strict=True):
        if wire.bit and weight:
            size = abs(weight).bit_length()
            spread = f"{{{size}{{{wire.text}}}}} & {size}'d{abs(weight)}" if size > 1 else wire.text
            (plus if weight > 0 else minus).append(f"$signed({{1'b0, {spread}}})")
        elif weight:
            for place, sign in digits(weight):
                shifted = f"({wire.number} <<< {place})" if place else wire.number
                (plus if sign > 0 else minus).append(shifted)
    if bias:
        (plus if bias > 0 else minus).append(constant(abs(bias)))
    text = tree(plus) if plus else constant(0)
    return f"{text} - {tree(minus)}" if minus else text


def reached(wire: Wire, value: Value, threshold: int, sign: int) -> str:
    """One bit: sign * wire >= threshold. The bits below the lowest one of the threshold are not compared."""
    at = threshold if sign > 0 else 1 - threshold
    if at <= value.low or at > value.high:
        return BITS[(at <= value.low) == (sign > 0)]
    zeros = min((at & -at).bit_length() - 1, wire.width - 1) if at else wire.width - 1
    upper = replace(wire, low=wire.low + zeros, width=wire.width - zeros)
    if upper.width == 1:  # its first bit alone
        return upper.text if (sign > 0) != wire.signed else f"~{upper.text}"
    number = constant(at >> zeros) if wire.signed else f"{upper.width}'d{at >> zeros}"
    return f"({upper.plain} {'>=' if sign > 0 else '<'} {number})"


def by_number(of: Array, shape: tuple[int, ...]) -> list[Any]:
    """Entries a channel as a list of one a number of a value of this shape."""
    axis = channel_axis(shape)
    channel = np.arange(shape[axis]).reshape(-1, *[1] * (-axis - 1))
    return of[np.broadcast_to(channel, shape).reshape(-1)].tolist()


# ---- operations ----


def _moved(module: Module, op: Any, label: str, given: list[Array], values: list[Value], made: Value) -> Array:
    """Only other places: the operation's own way with arrays."""
    return op.run(*(x[None] for x in given))[0]


def _lookup(module: Module, op: ops.Lookup, label: str, given: list[Array], values: list[Value], made: Value) -> Array:
    slope, texts = np.diff(op.table, axis=1), list[str]()
    width = width_of(made.low, made.high)[0]
    line = (slope == slope[:, :1]).all(1)
    for c in np.flatnonzero(~line):
        name, numbers = f"f{label}_{c}", (op.table[c] & (1 << width) - 1).tolist()
        cases = [f"      8'd{i}: {name} = {width}'d{number};" for i, number in enumerate(numbers)]
        module.functions += [f"  function [{width - 1}:0] {name}; input [7:0] p;", "    case (p)", *cases]
        module.functions += ["    endcase", "  endfunction"]
    for wire, c in zip(given[0].flat, by_number(np.arange(len(op.table)), made.shape), strict=True):
        scaled = weighted([wire], [int(slope[c, 0])], int(op.table[c, 0])) if line[c] else ""
        number = f"f{label}_{c}({wire.text})"
        texts.append(scaled or number)
    return module.vector(label, made, texts)


def _shift(module: Module, op: ops.Shift, label: str, given: list[Array], values: list[Value], made: Value) -> Array:
    held = width_of(min(values[0].low, op.least), max(values[0].high, op.most))[0]
    for by in np.unique(op.shift).tolist():
        width = max(held + 1 + max(by, 0), 2 - by)
        up = ""
        if by < 0:
            rest = f" & (p[{-by}]{f' | (|p[{-by - 2}:0])' if by < -1 else ''})"
            up = f" + $signed({{1'b0, p[{-by - 1}]{rest}}})"
        turned = f"p <<< {by}" if by >= 0 else f"(p >>> {-by}){up}"
        name = f"f{label}_{'l' if by >= 0 else 'r'}{abs(by)}"
        module.functions += [
            f"  function signed [{width - 1}:0] {name}; input signed [{width - 1}:0] p;",
            f"    reg signed [{width - 1}:0] q;",
            f"    begin q = {turned};",
            f"    {name} = q < {constant(op.least)} ? {constant(op.least)} : q > {constant(op.most)} ? "
            f"{constant(op.most)} : q; end",
            "  endfunction",
        ]
    shifts = by_number(op.shift, made.shape)
    names = [f"f{label}_{'l' if by >= 0 else 'r'}{abs(by)}" for by in shifts]
    return module.vector(label, made, [f"{f}({w.number})" for f, w in zip(names, given[0].flat, strict=True)])


def _linear(module: Module, op: ops.Linear, label: str, given: list[Array], values: list[Value], made: Value) -> Array:
    bias = [0] * len(op.weight) if op.bias is None else op.bias.tolist()
    rows = given[0].reshape(-1, op.weight.shape[1]).tolist()
    rule = [*zip(op.weight.tolist(), bias, strict=True)]
    return module.vector(label, made, [weighted(row, w, b) for row in rows for w, b in rule])


def _steps(module: Module, op: ops.Steps, label: str, given: list[Array], values: list[Value], made: Value) -> Array:
    thresholds, signs = by_number(op.thresholds, made.shape), by_number(op.sign, made.shape)
    width, texts = width_of(made.low, made.high)[0], list[str]()
    for wire, of, sign in zip(given[0].flat, thresholds, signs, strict=True):
        bits = [reached(wire, values[0], threshold, sign) for threshold in of]
        if width > 1:
            bits = [f"({{{width}{{{bit}}}}} & {width}'d{op.unit})" for bit in bits]
        least = [f"{width}'d{op.least & (1 << width) - 1}"] if op.least else []
        texts.append(tree([*least, *bits]))
    return module.vector(label, made, texts)


def _lut(module: Module, op: ops.LUT, label: str, given: list[Array], values: list[Value], made: Value) -> Array:
    texts = list[str]()
    for row in given[0].reshape(-1, given[0].shape[-1]):
        for places, table in zip(op.index, op.table.tolist(), strict=True):
            held = int("".join(map(str, reversed(table))), 2)
            varies = 0 < sum(table) < len(table)
            texts.append(f"{len(table)}'h{held:x} >> {packed(row[places])}" if varies else BITS[table[0]])
    return module.vector(label, made, texts)


def _count(module: Module, op: ops.Count, label: str, given: list[Array], values: list[Value], made: Value) -> Array:
    summed = [axis % given[0].ndim for axis in op.axes]
    kept = [axis for axis in range(given[0].ndim) if axis not in summed]
    rows = given[0].transpose(kept + summed).reshape(made.size, -1).tolist()
    bits = all(wire.bit for wire in given[0].flat)
    texts = [ones(module, f"{label}_{i}", row) if bits else weighted(row, [1] * len(row)) for i, row in enumerate(rows)]
    return module.vector(label, made, texts)


def ones(module: Module, label: str, given: list[Wire]) -> str:
    """How many of some bits are 1. Compressors make of up to six bits of one place one bit of each of three."""
    size, made, name = len(given).bit_length(), 0, f"c{label}"
    places = [[*given], *([] for _ in range(size + 2))]  # the carries out of the last ones are 0
    for place, column in enumerate(places[:size]):
        while len(column) > 1:
            taken, column[:6] = column[:6], []
            width = len(taken).bit_length()
            found = [Wire(name, made + i, 1) for i in range(width)]
            module.body.append(f"    {Wire(name, made, width).text} = {' + '.join(wire.text for wire in taken)};")
            made += width
            for i, wire in enumerate(found):
                places[place + i].append(wire)
    if made:
        module.lines.append(f"  reg [{made - 1}:0] {name};")
    bits = [column[0].text if column else BITS[0] for column in places[:size]]
    return f"{{{', '.join(reversed(bits))}}}"


WRITTEN: dict[type[Op], Written] = {
    ops.Lookup: _lookup, ops.Take: _moved, ops.Shift: _shift, ops.Linear: _linear, ops.Steps: _steps,
    ops.LUT: _lut, ops.Count: _count, ops.View: _moved,
}  # fmt: skip
