"""C99 of an integer program: constant arrays, static buffers, functions of loops; no floats, no malloc, no libraries.

A value that is read once, element by element, is computed where it is read. Others have a buffer: channels last, bits
(and all else that is one of two numbers) as words of up to 32 channels. Buffers lie in one union and share bytes where
they are not there at the same time. Truth tables of thresholds are written out instead: `logic_c`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from htaf._ground.files import check_output_folder, write_atomic
from htaf.program.integer import ops
from htaf.program.integer.exports import OPEN, filled, is_raw, lines, sealed, vectors
from htaf.program.integer.logic_c import Logic, chosen, count_lines, logic_of, names, stored_lines
from htaf.program.integer.ops import Array, IntegerError, Op, Value, channel_axis
from htaf.program.integer.program import IntegerProgram
from htaf.program.packed.planning import places

TEST = "test/test.c"  # beside the network, Arduino would compile its `main` too
LINE = 8  # bytes: of which the beginning of a buffer is a multiple
At = tuple[str, ...]


@dataclass(frozen=True)
class Written:
    """files: that were written. flash_bytes: of the constants, without the code. ram_bytes: of the buffers, without the
    stack, and without the inputs and outputs, which are the caller's."""

    files: tuple[Path, ...]
    flash_bytes: int
    ram_bytes: int


def to_c(
    program: IntegerProgram,
    folder: str | Path,
    *,
    name: str = "network",
    rows: int | Array = 16,
) -> Written:
    """Write a program as C99: `name.h`, `name.c`, `test/test.c` with rows and their outputs, and a Makefile.

    `void name_run(const T x[], U y[])` takes one row, pixels as uint8_t [C, H, W] or columns as int32_t, and gives its
    integer outputs. A column outside the range of the input counts as the end that is nearer. It is not reentrant: its
    buffers are static. `make check` compiles and runs the test.

    Of truth tables of thresholds T is the smallest type of the range, and `int name_class(const T x[])` gives the class
    of a classification. The header names raw columns, see `htaf.program.integer.raw`.

    Args:
        name: of the files, and the first part of all names in C.
        rows: of the test: how many, or some of data.
    Raises:
        IntegerError: the name is none in C; the files cannot be written.
        HtafError: the folder is one of something else.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,59}", name):
        raise IntegerError(f"expected a name in C (a letter, then letters, digits and _, at most 60), got {name!r}")
    folder = Path(folder)
    check_output_folder(folder, flag="folder")
    made = _Writer(program, name)
    source, header = made.source(), made.header()
    x, y = vectors(program, rows)
    test = _test(name, [("x", made.x_type, x), ("wanted", made.y_type, y)])
    texts = {f"{name}.h": header, f"{name}.c": source, TEST: test, "Makefile": filled("Makefile", name=name, test=TEST)}
    try:
        (folder / TEST).parent.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            write_atomic(folder / file, text)
    except OSError as error:
        raise IntegerError(f"{folder} cannot be written: {error.strerror or error}") from None
    return Written(tuple(folder / file for file in texts), made.flash, made.ram)


# ---------------------------------------------------------------------------------------------------------------- types


def stored(low: int, high: int) -> str:
    """The smallest type that holds a range."""
    if low >= 0 and high <= 255:
        return "uint8_t"
    return next(f"int{n}_t" for n in (8, 16, 32, 64) if -(2 ** (n - 1)) <= low and high < 2 ** (n - 1))


def working(*bounds: int) -> str:
    """int32_t where it holds these numbers and their negatives, else int64_t, in which every value fits."""
    return "int32_t" if max(map(abs, bounds)) < 2**31 else "int64_t"


def width(kind: str) -> int:
    """Bytes of an integer type."""
    return int(kind.strip("uint_")) // 8


def literal(number: int) -> str:
    """A number in C. The magnitude of the least one has no literal."""
    if -(2**31) < number < 2**31:
        return str(number)
    return f"INT64_C({number})" if number > -(2**63) else f"(INT64_C({number + 1}) - 1)"


def flat(sizes: Sequence[int], at: Sequence[str]) -> str:
    """The place of an element in C order."""
    text = "0"
    for size, place in zip(sizes, at, strict=True):
        if size > 1:
            text = _wrapped(place) if text == "0" else f"{_wrapped(text)} * {size} + {_wrapped(place)}"
    return text


def _wrapped(text: str) -> str:
    return text if re.fullmatch(r"\w+(\[\w+\])?", text) else f"({text})"


def last(of: Sequence, images: bool) -> tuple:
    """Axes in the order in which a buffer has them: those of images with the channels last."""
    return (*of[:-3], of[-2], of[-1], of[-3]) if images else tuple(of)


@dataclass(frozen=True)
class Buffer:
    """Where a value lies: words of bits, `word` bits each, or one number an element (word = 0)."""

    text: str
    value: Value
    kind: str
    word: int
    two: tuple[int, int] = (0, 1)  # what bits mean

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of its axes, of which the last one are words."""
        *front, channels = last(self.value.shape, len(self.value.shape) >= 3)
        return (*front, -(-channels // self.word) if self.word else channels)

    @property
    def count(self) -> int:
        return int(np.prod(self.sizes))

    def place(self, at: At) -> str:
        channel = last(at, len(at) >= 3)[-1]
        if self.word:
            channel = "0" if self.sizes[-1] == 1 else f"{_wrapped(channel)} / {self.word}"
        return self.word_at(at, channel)

    def word_at(self, at: At, word: str) -> str:
        """A word, whatever the channel in `at`."""
        return f"{self.text}[{flat(self.sizes, (*last(at, len(at) >= 3)[:-1], word))}]"

    def bit(self, at: At) -> str:
        channel = last(at, len(at) >= 3)[-1]
        return channel if self.sizes[-1] == 1 else f"{_wrapped(channel)} % {self.word}"


# ---------------------------------------------------------------------------------------------------------- the program


def reads_once(op: Op) -> bool:
    """Whether it reads every element of what it takes once at most."""
    if isinstance(op, ops.Pool):
        return op.stride[0] >= op.kernel[0] and op.stride[1] >= op.kernel[1]
    return not isinstance(op, (ops.Conv, ops.Linear, ops.Take, ops.LUT))


def kept(program: IntegerProgram, first: int = 0) -> tuple[list[int], list[int]]:
    """The operations that the output needs, and the values that lie in memory, by their numbers; 0: clamped columns.

    first: a value that is made of x at once, without those before it; 0: none.
    """
    needed, readers = {program.output}, dict[int, list[Op]]()
    for number in range(program.output, first, -1):
        if number in needed:
            op = program.ops[number - 1]
            needed.update(op.reads)
            for read in op.reads:
                readers.setdefault(read, []).append(op)
    live = sorted(needed - {0})

    def in_memory(number: int) -> bool:
        made = program.ops[number - 1] if number else None
        if number in (program.output, first or None) or isinstance(made, ops.View):
            return True
        return len(readers[number]) > 1 or not reads_once(readers[number][0])

    clamped = [0] if program.input.kind == "columns" and program.output and 0 in readers else []
    return live, [number for number in [*clamped, *live] if in_memory(number)]


@dataclass
class _Writer:
    program: IntegerProgram
    name: str
    lines: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    helpers: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)  # a layer: bytes of its constants
    depth: int = 1
    fresh: int = 0
    written: set[str] = field(default_factory=set)  # constants

    def __post_init__(self) -> None:
        program, values = self.program, self.program.values
        self.logic = logic_of(program)
        self.live, self.kept = kept(program, self.logic.number if self.logic else 0)
        self.x_type = "uint8_t" if program.input.kind == "pixels" else "int32_t"
        if self.logic:  # compares need no clamped columns
            low, high = program.input.low, program.input.high
            self.x_type = "uint16_t" if low >= 0 and 2**15 <= high < 2**16 else stored(low, high)
        self.choice = chosen(program) if any(isinstance(op, ops.LUT) for op in program.ops) else ""
        end = values[program.output]
        self.y_type = working(end.low, end.high)
        self.buffers = {n: self._buffer(n, values[n]) for n in self.kept if n != program.output}
        self.buffers[program.output] = Buffer("y", end, self.y_type, 0)
        spans = {number: (number, max(self._read_at(number), number)) for number in self.kept}
        spans.pop(program.output, None)
        taken = {number: self.buffers[number].count * width(self.buffers[number].kind) for number in spans}
        self.begins, self.ram = places(spans, taken, LINE)
        self.body = list[str]()

    def _buffer(self, number: int, value: Value) -> Buffer:
        two = self.two(number)
        if two is None:
            return Buffer(f"buffer.v{number}.at", value, stored(value.low, value.high), 0)
        word = next(n for n in (8, 16, 32) if n == 32 or value.channels <= n)
        return Buffer(f"buffer.v{number}.at", value, f"uint{word}_t", word, two)

    def two(self, number: int) -> tuple[int, int] | None:
        """The two numbers that a value holds, if it holds no others: it lies in bits."""
        value = self.program.values[number]
        if (value.low, value.high) == (0, 1):
            return 0, 1
        match self.program.ops[number - 1] if number else None:
            case ops.Steps() as op if op.thresholds.shape[1] == 1:
                return value.low, value.high
            case ops.View() | ops.Pool() | ops.Take() as op:
                return self.two(op.x)
        return None

    def _read_at(self, number: int) -> int:
        """The last kept value that is made from this one, directly or through values that are not kept."""
        readers = [n for n in self.live if number in self.program.ops[n - 1].reads]
        return max((n if n in self.kept else self._read_at(n) for n in readers), default=number)

    @property
    def flash(self) -> int:
        return sum(self.sizes.values())

    # text

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(f"{head} {{")
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")

    @contextmanager
    def loop(self, count: int) -> Iterator[str]:
        """A loop over 0 to count - 1, and the name of its variable; none over one."""
        if count == 1:
            yield "0"
            return
        i = self.new("i")
        with self.block(f"for (int32_t {i} = 0; {i} < {count}; {i}++)"):
            yield i

    @contextmanager
    def loops(self, counts: Sequence[int]) -> Iterator[At]:
        if not counts:
            yield ()
            return
        with self.loop(counts[0]) as first, self.loops(counts[1:]) as rest:
            yield (first, *rest)

    @contextmanager
    def elements(self, shape: tuple[int, ...]) -> Iterator[At]:
        """Loops over the elements of a value, the channels innermost."""
        images = len(shape) >= 3
        with self.loops(last(shape, images)) as at:
            yield (*at[:-3], at[-1], at[-3], at[-2]) if images else at

    def new(self, letter: str) -> str:
        self.fresh += 1
        return f"{letter}{self.fresh}"

    def local(self, kind: str, text: str, *, const: bool = True) -> str:
        name = self.new("v")
        self.line(f"{'const ' * const}{kind} {name} = {text};")
        return name

    def helper(self, which: str, kind: str = "int32_t") -> str:
        name = f"{self.name}_{which}{8 * width(kind)}"
        self.helpers[name] = filled(f"{which}.c", T=kind, name=name)
        return name

    def constant(self, number: int, field_: str, array: Array, kind: str | None = None) -> str:
        """The name of a constant array; it is written once."""
        name, layer = f"{self.name}_{field_}{number}", self.layer(number)
        if name in self.written:
            return name
        self.written.add(name)
        masks, kind = kind is not None, kind or stored(int(array.min()), int(array.max()))
        self.constants.append(
            f"static const {kind} {name}[{array.size}] = {{ /* {layer} */\n{numbers(array, kind if masks else '')}}};\n"
        )
        self.sizes[layer] = self.sizes.get(layer, 0) + array.size * width(kind)
        return name

    def by(self, number: int, field_: str, array: Array, place: str) -> str:
        """An entry of an array; the number itself where all are the same."""
        if int(array.min()) == int(array.max()):
            text = literal(int(array.flat[0]))
            return f"({text})" if text.startswith("-") else text
        return f"{self.constant(number, field_, array)}[{place}]"

    def layer(self, number: int) -> str:
        op = self.program.ops[number - 1]
        return re.sub(r"[^A-Za-z0-9_.\- ]", "_", op.name) or type(op).__name__

    # elements

    def scalar(self, number: int, at: At) -> str:
        """An expression for one element of a value, after the lines that compute it."""
        if number in self.buffers:
            buffer = self.buffers[number]
            if not buffer.word:
                return buffer.place(at)
            low, high = buffer.two
            bit = f"(int32_t)({buffer.place(at)} >> {_wrapped(buffer.bit(at))} & 1)"
            return bit if buffer.two == (0, 1) else f"({bit} ? {literal(high)} : {literal(low)})"
        return self.computed(number, at)

    def clamped(self, kind: str, text: str, given: tuple[int, int], kept: tuple[int, int]) -> str:
        """A variable of a number in the range `given`, clamped to the range `kept`."""
        y = self.local(kind, text, const=False)
        if given[0] < kept[0]:
            self.line(f"if ({y} < {literal(kept[0])}) {y} = {literal(kept[0])};")
        if given[1] > kept[1]:
            self.line(f"if ({y} > {literal(kept[1])}) {y} = {literal(kept[1])};")
        return y

    def computed(self, number: int, at: At) -> str:
        if number == 0:
            given, text = self.program.input, f"x[{flat(self.program.input.shape, at)}]"
            if given.kind == "pixels":
                return text
            return self.clamped(self.x_type, text, (-(2**31), 2**31 - 1), (given.low, given.high))
        op = self.program.ops[number - 1]
        x = self.program.values[op.reads[0]]
        channel = at[channel_axis(self.program.values[number].shape)]
        match op:
            case ops.Lookup():
                table = self.constant(number, "table", op.table)
                return f"{table}[{flat(op.table.shape, (channel, self.scalar(op.x, at)))}]"
            case ops.Take():
                return self.scalar(op.x, (*at[:-1], self.by(number, "index", op.index, at[-1])))
            case ops.Shift():
                return self.shift(number, op, x, self.scalar(op.x, at), channel)
            case ops.Steps():
                return self.steps(number, op, x, self.scalar(op.x, at), channel)
            case ops.Add():
                return self.add(number, op, at, channel)
            case ops.LUT():
                return self.lut(number, op, at)
            case ops.Pool():
                return self.pool(number, op, x, at)
            case ops.Count():
                return self.count(number, op, x, at)
            case ops.Linear():
                return self.linear(number, op, at)
            case ops.Conv():
                return self.conv(number, op, at)
        raise AssertionError(op)

    def shift(self, number: int, op: ops.Shift, x: Value, given: str, channel: str) -> str:
        bound = max(abs(x.low), abs(x.high))
        shift = np.maximum(op.shift, -(bound.bit_length() + 1))  # further right: 0 all the same
        left, right = np.maximum(shift, 0), np.maximum(-shift, 0)
        value = self.program.values[number]
        kind = working(bound << int(left.max()), 1 << int(max(left.max(), right.max())), value.low, value.high)
        text = given
        if right.any():
            text = f"{self.helper('half_even', kind)}({given}, {self.by(number, 'right', right, channel)})"
        if left.any():
            text = f"{text} * (({kind})1 << {self.by(number, 'left', left, channel)})"
        most = bound << int(left.max())
        return self.clamped(kind, text, (-most, most), (op.least, op.most))

    def steps(self, number: int, op: ops.Steps, x: Value, given: str, channel: str) -> str:
        levels, kind = op.thresholds.shape[1], working(1 - x.low, x.high + 1)
        ends = np.where(op.sign[:, None] > 0, [[x.low, x.high + 1]], [[-x.high, 1 - x.low]])
        thresholds = op.thresholds.clip(ends[:, :1], ends[:, 1:])
        signed = self.local(kind, self.signed(number, op.sign, channel, given, kind))
        if levels == 1:
            n = f"({signed} >= {self.by(number, 'threshold', thresholds, channel)})"
        else:
            n = self.local("int32_t", "0", const=False)
            with self.loop(levels) as level:
                place = flat(thresholds.shape, (channel, level))
                self.line(f"{n} += {signed} >= {self.by(number, 'threshold', thresholds, place)};")
        kind = working(op.least, op.least + op.unit * levels, op.unit * levels)
        text = n if op.unit == 1 else f"({kind}){literal(op.unit)} * {n}"
        return self.local(kind, text if op.least == 0 else f"{literal(op.least)} + {text}")

    def signed(self, number: int, sign: Array, channel: str, given: str, kind: str) -> str:
        if (sign == 1).all():
            return f"({kind}){given}"
        if (sign == -1).all():
            return f"-({kind}){given}"
        return f"{self.constant(number, 'sign', sign)}[{channel}] * ({kind}){given}"

    def lut(self, number: int, op: ops.LUT, at: At) -> str:
        """The address of the inputs' bits, then the bit of the table there."""
        words, index = max(op.table.shape[1] // 32, 1), self.constant(number, "index", op.index)
        found = self.local("int32_t", "0", const=False)
        with self.loop(op.index.shape[1]) as i:
            place = self.local("int32_t", f"{index}[{flat(op.index.shape, (at[-1], i))}]")
            self.line(f"{found} |= {self.scalar(op.x, (*at[:-1], place))} << {i};")
        padded = np.pad(op.table, ((0, 0), (0, words * 32 - op.table.shape[1]))).reshape(len(op.table), words, 32)
        table = self.constant(number, "table", (padded << np.arange(32)).sum(-1), "uint32_t")
        word = flat((len(op.table), words), (at[-1], f"{found} / 32"))
        return self.local("int32_t", f"(int32_t)({table}[{word}] >> {found} % 32 & 1)")

    def add(self, number: int, op: ops.Add, at: At, channel: str) -> str:
        parts, bounds = list[str](), list[int]()
        for which, (read, shift) in {"left": (op.a, op.left), "right": (op.b, op.right)}.items():
            value, most = self.program.values[read], int(shift.max())
            bounds.append(max(abs(value.low), abs(value.high), 1) << most)
            parts.append(self.scalar(read, at))
            if most:
                parts[-1] = f"{parts[-1]} * ((T)1 << {self.by(number, which, shift, channel)})"
        kind = working(sum(bounds))
        return self.local(kind, " + ".join(f"(T){part}" for part in parts).replace("(T)", f"({kind})"))

    def pool(self, number: int, op: ops.Pool, x: Value, at: At) -> str:
        *front, channel, row, column = at
        smallest = self.by(number, "smallest", op.smallest, channel)
        most, least = literal(x.high), literal(x.low)
        known = {"0": least, "1": most}.get(smallest, f"{smallest} ? {most} : {least}")
        y = self.local(working(x.low, x.high), known, const=False)
        with self.windows(op.kernel, op.stride, op.padding, (1, 1), x, (row, column)) as (_, pixel):
            one = self.local(working(x.low, x.high), self.scalar(op.x, (*front, channel, *pixel)))
            wins = {"0": f"{one} > {y}", "1": f"{one} < {y}"}
            self.line(f"if ({wins.get(smallest, f'{smallest} ? {one} < {y} : {one} > {y}')}) {y} = {one};")
        return y

    @contextmanager
    def windows(
        self, kernel: tuple, stride: tuple, padding: tuple, dilation: tuple, x: Value, at: At
    ) -> Iterator[tuple[At, At]]:
        """Loops over the places of a kernel that lie in the image: where in the kernel, and which pixel."""
        taps, pixel, closing = list[str](), list[str](), list[str]()
        for n, k, s, p, d, size in zip(at, kernel, stride, padding, dilation, x.shape[-2:], strict=True):
            tap = "0"
            if k > 1:
                tap = self.new("k")
                self.line(f"for (int32_t {tap} = 0; {tap} < {k}; {tap}++) {{")
                self.depth += 1
                closing.append("}")
            text = n if s == 1 or n == "0" else f"{n} * {s}"
            text += f" + {tap}" * (tap != "0") + f" * {d}" * (tap != "0" and d > 1) + f" - {p}" * (p > 0)
            place = text if re.fullmatch(r"\w+", text) else self.local("int32_t", text)
            if p:
                self.line(f"if ({place} >= 0 && {place} < {size}) {{")
                self.depth += 1
                closing.append("}")
            taps.append(tap)
            pixel.append(place)
        yield tuple(taps), tuple(pixel)
        for end in closing:
            self.depth -= 1
            self.line(end)

    def count(self, number: int, op: ops.Count, x: Value, at: At) -> str:
        value = self.program.values[number]
        kind = working(value.low, value.high, x.low, x.high)
        total = self.local(kind, "0", const=False)
        axes = [axis % len(x.shape) for axis in op.axes]
        with self.loops([x.shape[axis] for axis in axes]) as inside:
            rest, of_axis = iter(at), dict(zip(axes, inside, strict=True))
            whole = tuple(of_axis[axis] if axis in of_axis else next(rest) for axis in range(len(x.shape)))
            self.line(f"{total} += {self.scalar(op.x, whole)};")
        return total

    # sums of products

    def linear(self, number: int, op: ops.Linear, at: At) -> str:
        weight = op.weight[:, None, :]
        with self.total(number, op, weight, at[-1]) as total:
            self.products(number, op.x, weight, total, (at[-1], "0"), at[:-1], ())
        return total

    def conv(self, number: int, op: ops.Conv, at: At) -> str:
        *front, o, row, column = at
        high, wide = op.weight.shape[2:]
        weight = op.weight.transpose(0, 2, 3, 1).reshape(len(op.weight), high * wide, -1)
        x = self.program.values[op.x]
        with (
            self.total(number, op, weight, o) as total,
            self.windows((high, wide), op.stride, op.padding, op.dilation, x, (row, column)) as (tap, pixel),
        ):
            self.products(number, op.x, weight, total, (o, flat((high, wide), tap)), tuple(front), pixel)
        return total

    @contextmanager
    def total(self, number: int, op: ops.Conv | ops.Linear, weight: Array, o: str) -> Iterator[str]:
        """A variable that begins with the bias and holds the sums in whatever order they are made."""
        x = self.program.values[op.x]
        most, buffer = max(abs(x.low), abs(x.high)), self.buffers.get(op.x)
        if buffer is not None and buffer.word and buffer.two != (0, 1):
            most = most + abs(x.low) + x.high - x.low  # least * weights, then (high - least) * bits
        rows = weight.reshape(len(weight), -1).tolist()
        bound = max(sum(map(abs, row)) for row in rows) * most
        bound += 0 if op.bias is None else int(np.abs(op.bias).max())
        op.expect(bound < 2**63, "sums that an int64 holds in any order", f"up to {bound:,}")
        self.kind = kind = working(bound)
        yield self.local(kind, "0" if op.bias is None else self.by(number, "bias", op.bias, o), const=False)

    def products(self, number: int, read: int, weight: Array, total: str, tap: At, front: At, pixel: At) -> None:
        """total += weights [O, taps, inputs] at a tap (o, tap) times the channels of x at a pixel."""
        kind, inputs = self.kind, weight.shape[2]
        buffer = self.buffers.get(read)
        if buffer is None or not buffer.word:
            array = self.constant(number, "weight", weight)
            with self.loop(inputs) as i:
                x = self.scalar(read, (*front, i, *pixel))
                self.line(f"{total} += ({kind}){array}[{flat(weight.shape, (*tap, i))}] * {x};")
            return
        least, unit = buffer.two[0], buffer.two[1] - buffer.two[0]
        into = total if (least, unit) == (0, 1) else self.local(kind, "0", const=False)
        self.bits_products(number, buffer, weight, into, tap, front, pixel)
        if into != total:
            every = self.by(number, "every", least * weight.sum(2), flat(weight.shape[:2], tap))
            self.line(f"{total} += {every} + {into} * ({kind}){literal(unit)};")

    def bits_products(
        self, number: int, buffer: Buffer, weight: Array, total: str, tap: At, front: At, pixel: At
    ) -> None:
        """total += weights at a tap whose bits are set: by words, or eight bits at a time."""
        word, words, inputs = buffer.word, buffer.sizes[-1], weight.shape[2]
        with self.loop(words) as k:
            bits = self.local("uint32_t", buffer.word_at((*front, "0", *pixel), k), const=False)
            if np.abs(weight).max() <= 1 and inputs > 4:
                place = flat((len(weight), weight.shape[1], words), (*tap, k))
                plus = self.constant(number, "plus", packed(weight > 0, word), buffer.kind)
                if (weight != 0).all():
                    minus = f"~(uint32_t){plus}[{place}]"
                else:
                    minus = f"{self.constant(number, 'minus', packed(weight < 0, word), buffer.kind)}[{place}]"
                difference = f"{self.helper('difference')}({bits} & {plus}[{place}], {bits} & {minus})"
                self.line(f"{total} += {difference};")
                return
            array, w, at_once = self.constant(number, "weight", weight), self.new("w"), min(8, inputs)
            start = flat(weight.shape, (*tap, "0" if words == 1 else f"{k} * {word}"))
            step = f"{bits} >>= {at_once}, {w} += {at_once}"
            with self.block(f"for (int32_t {w} = {start}; {bits}; {step})"):
                for bit in range(at_once):
                    self.line(f"if ({bits} & {1 << bit}u) {total} += {array}[{w}{f' + {bit}' * (bit > 0)}];")

    # whole values

    def store(self, number: int, at: At, text: str) -> None:
        buffer = self.buffers[number]
        if buffer.word:
            if buffer.two != (0, 1):
                text = f"{text} > {literal(buffer.two[0])}"
            self.line(
                f"{buffer.place(at)} |= ({buffer.kind})((uint32_t){_wrapped(text)} << {_wrapped(buffer.bit(at))});"
            )
        else:
            self.line(f"{buffer.place(at)} = ({buffer.kind}){_wrapped(text)};")

    def function(self, number: int) -> str:
        """The function that makes a kept value, and its call."""
        self.lines, self.fresh = [], 0
        value, buffer = self.program.values[number], self.buffers[number]
        if buffer.word:
            with self.loop(buffer.count) as i:
                self.line(f"{buffer.text}[{i}] = 0;")
        op = self.program.ops[number - 1] if number else None
        match op:
            case _ if self.logic and number == self.logic.number:
                self.counts(self.logic)
            case ops.View():
                shape = self.program.values[op.x].shape
                with self.elements(shape) as at:
                    text = self.scalar(op.x, at)
                    place = self.local("int32_t", flat(shape, at))
                    self.store(number, unflat(value.shape, place), text)
            case _:
                with self.elements(value.shape) as at:
                    self.store(number, at, self.computed(number, at))
        text = "\n".join(self.lines)
        taken = {"x": f"const {self.x_type} *x"} if re.search(r"\bx\[", text) else {}
        taken |= {"y": f"{self.y_type} *y"} if number == self.program.output else {}
        what = "columns, clamped" if op is None else f"{self.layer(number)}: {type(op).__name__}"
        self.body.append(
            f"/* {what} {list(value.shape)} in {value.low} to {value.high} */\n"
            f"static void {self.name}_v{number}({', '.join(taken.values()) or 'void'})\n{{\n{text}\n}}\n"
        )
        return f"    {self.name}_v{number}({', '.join(taken)});"

    def counts(self, logic: Logic) -> None:
        """The counts of truth tables, written out."""
        self.sizes["truth tables"] = sum(max(len(table.entries), 8) // 8 for table in logic.tables())
        stored = logic.stored()
        if logic.tables():
            self.line("uint32_t w;")
        self.line("int32_t n;")
        if stored:
            self.line(f"uint8_t b[{len(stored)}];")
        for text in stored_lines(stored):
            self.line(text)
        for group, bits in enumerate(logic.groups):
            for text in count_lines(bits, stored):
                self.line(text)
            self.store(logic.number, (str(group),), "n")

    # files

    def source(self) -> bytes:
        self.body = []
        calls = [self.function(number) for number in self.kept]
        if self.program.output == 0:
            with self.elements(self.program.input.shape) as at:
                self.line(f"y[{flat(self.program.input.shape, at)}] = {self.computed(0, at)};")
            calls = self.lines
        elif not any("(x" in call for call in calls):
            calls.insert(0, "    (void)x;")
        members = list[str]()
        for number, begin in self.begins.items():
            buffer = self.buffers[number]
            skipped = f"uint8_t before[{begin}]; " if begin else ""
            members.append(f"    struct {{ {skipped}{buffer.kind} at[{buffer.count}]; }} v{number};")
        memory = "/* a value is read only while no other one lies in its bytes */\nstatic union {\n" + "\n".join(
            members
        )
        parts = [
            f'{self.head("c")}#include <stddef.h>\n#include <stdint.h>\n\n#include "{self.name}.h"\n',
            f'const char {self.name}_program[] = "{self.program.digest}";\n'
            f'const char {self.name}_text[] = "text sha256: {OPEN}";\n',
            *([filled("keep.c")] if self.logic else []),
            *self.constants,
            *([f"{memory}\n}} buffer;\n"] if members else []),
            *self.helpers.values(),
            *self.body,
            f"void {self.name}_run(const {self.x_type} *x, {self.y_type} *y)\n{{\n" + "\n".join(calls) + "\n}\n",
        ]
        if self.choice:
            steps = f"    {self.y_type} y[{self.buffers[self.program.output].count}];\n    {self.name}_run(x, y);"
            parts.append(f"int {self.name}_class(const {self.x_type} *x)\n{{\n{steps}\n{self.choice}\n}}\n")
        return sealed("\n".join(parts).encode())

    def head(self, of: str) -> str:
        return f"""/* {self.name}.{of}: an integer program of htaf in C99. Do not edit: write it again from the network.
   program sha256: {self.program.digest}
   constants: {self.flash:,} bytes of flash; buffers: {self.ram:,} bytes of RAM; without code, stack, x and y. */
"""

    def header(self) -> bytes:
        upper, given, end = self.name.upper(), self.program.input, self.program.values[self.program.output]
        exponent, divisor = self.program.unit
        what = "pixels [channels, height, width]"
        if given.kind == "columns":
            what = f"columns: round(value * 2^{given.exponent}), half to even, clamped to {given.low} to {given.high};"
        if is_raw(self.program.about.get("columns") or []):
            what = "raw columns as integers, see below;"
        means = "".join(f"   {line}\n" for line in lines(self.program))
        greatest = "" if means else "; the class is the first of the greatest"
        taken = [f"{upper}_{of}" for of in ("H", "INPUTS", "OUTPUTS", "CONSTANT_BYTES", "BUFFER_BYTES")]
        named = f"{found}\n" if (found := names(self.program, self.name, taken)) else ""
        class_ = f"\n/* the place of the predicted class */\nint {self.name}_class(const {self.x_type} *x);\n"
        text = filled(
            "network.h", head=self.head("h"), open=OPEN, upper=upper, inputs=self.program.values[0].size,
            outputs=end.size, flash=self.flash, ram=self.ram, named=named, name=self.name, what=what,
            shape=list(given.shape), exponent=-exponent, divisor=divisor, greatest=greatest,
            reentrant=" Not reentrant: static buffers." * (self.ram > 0), means=means, x_type=self.x_type,
            y_type=self.y_type, class_=class_ * bool(self.choice),
        )  # fmt: skip
        return sealed(text.encode())


def unflat(shape: tuple[int, ...], place: str) -> At:
    """The indices of the element at a place in C order."""
    found, after = list[str](), 1
    for size in reversed(shape):
        text = place if after == 1 else f"{place} / {after}"
        after *= size
        found.append("0" if size == 1 else text if len(found) == len(shape) - 1 else f"{_wrapped(text)} % {size}")
    return tuple(reversed(found))


def packed(bits: Array, word: int) -> Array:
    """The last axis as words; what is missing in the last word is 0."""
    padded = np.pad(bits.astype(np.int64), [(0, 0)] * (bits.ndim - 1) + [(0, -bits.shape[-1] % word)])
    return (padded.reshape(*bits.shape[:-1], -1, word) << np.arange(word)).sum(-1)


def numbers(array: Array, mask: str = "") -> str:
    """Numbers of an initialiser, in lines; mask: their type, where they are masks of bits."""
    lines, line, digits = list[str](), "   ", 2 * width(mask) if mask else 0
    for number in array.reshape(-1).tolist():
        one = f" 0x{number:0{digits}x}u," if mask else f" {literal(number)},"
        if len(line) + len(one) > 110:
            lines.append(line)
            line = "   "
        line += one
    return "\n".join([*lines, line, ""])


def _test(name: str, arrays: Sequence[tuple[str, str, Array]]) -> bytes:
    upper, rows = name.upper(), len(arrays[0][2])
    texts = [
        f"static const {kind} {of}[ROWS][{upper}_{size}] = {{\n"
        + "".join(f"    {{\n{numbers(row)}    }},\n" for row in array)
        + "};\n"
        for (of, kind, array), size in zip(arrays, ("INPUTS", "OUTPUTS"), strict=True)
    ]
    text = filled("test.c", open=OPEN, name=name, rows=rows, arrays="".join(texts), upper=upper, y_type=arrays[1][1])
    return sealed(text.encode())
