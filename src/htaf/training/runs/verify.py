"""The exact network of a run beside its exported forms, number by number, where each can run."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from htaf._ground.console import progress as progress_of
from htaf._ground.errors import listed
from htaf.core.kernels import native
from htaf.data.images import Images
from htaf.data.parts import Data
from htaf.data.preprocess import Preprocessor
from htaf.program.integer import exports, files
from htaf.program.integer.circuit import Circuit
from htaf.program.integer.model import quantised
from htaf.program.integer.ops import Array, IntegerError
from htaf.program.integer.program import IntegerProgram
from htaf.program.integer.raw import raw
from htaf.training.runs.packing import build_run, known_part, others_of, own_data, parts_of, prepared, table_of
from htaf.training.runs.run import PartName, Place, Run, RunPart, raw_part

ROWS = 32  # at once through the definition of a program
ROUNDING = 2.0**-23  # of an output that is rounded to float32

Outputs = Int64[Array, "rows outputs"]


@dataclass(frozen=True)
class Checked:
    """How one form of a network compares with the integer program of the run.

    where: what ran it. rows, predictions, outputs: how many were compared, and of them how many rows have another
    prediction and how many numbers differ. wrong: why it was not run, else "".
    """

    where: str
    rows: int = 0
    predictions: int = 0
    outputs: int = 0
    wrong: str = ""

    @property
    def same(self) -> bool:
        return not (self.predictions or self.outputs or self.wrong)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def verify_export(
    exported: str | PathLike[str],
    run: Run,
    *,
    rows: int = 1000,
    targets: tuple[str, ...] = (),
    part: PartName = "test",
    data: Data | Place | None = None,
    data_dir: Place | None = None,
    progress: bool = False,
) -> Iterator[Checked]:
    """The same rows through a run's network, its integer program and an exported form of it.

    Rows of a table come to the export as raw values, made into integers by what the export says of its inputs.

    Args:
        exported: what `htaf export` or `htaf pack` wrote: a file, or a folder of C or Verilog.
        rows: of the part, the first ones.
        targets: where C or Verilog runs: host, clang, cortex-m0, cortex-m3, cortex-m4, riscv32; iverilog.
            None given: all whose tools are here, and those that are not are said.
        progress: show bars on the error stream.

    Yields:
        The network first, of truth tables their circuit, then what came of each place where the export ran, or was to.

    Raises:
        IntegerError: no export, an edited one, or one of another network. RunError, PackedError: as `pack_run`.
    """
    path = Path(exported)
    if not path.exists():
        raise IntegerError(f"expected an exported file or folder, there is none at {path}")
    program, part, own = build_run(run), known_part(run, part), own_data(run, data, data_dir)
    held = parts_of(run, own, data_dir, part)[0]
    said = _columns(path)
    form = _form(program, said)
    places = [*_places(path, form, run, held, targets)]  # what cannot be is said before all rows are run
    x = np.concatenate([quantised(program, table_of(run), x) for x in _inputs(held, rows)])
    wanted = _run(program, x, progress)
    yield _compared("network in PyTorch", _integers(run.model(), program, held, wanted), wanted)
    circuit = None if targets else _circuit(program)
    if circuit is not None:
        yield _compared(CIRCUIT, circuit.run(x), wanted)
    known = run.preprocessor()
    if not isinstance(own, Images) and isinstance(known, Preprocessor) and said:
        of_part, before = raw_part(run, own, part).iloc[:rows], x
        x = program.input.quantised(known.transform(of_part))
        if not np.array_equal(x, before):  # rows of the training are encoded without their own targets
            wanted = _run(program, x)
        x = prepared(said, form.input, of_part)
    for where, call in places:
        size = max(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path]))
        try:
            if isinstance(call, str):
                raise NotThereError(call)
            with progress_of(f"{where}: {size:,} bytes, {len(x):,} rows", None, shown=progress):
                found = _compared(where, call(x, wanted), wanted)
        except NotThereError as error:  # of all places some have no tool, and some no room
            if targets:
                raise
            found = Checked(where, wrong=str(error))
        yield found


def _form(program: IntegerProgram, said: list[dict[str, Any]]) -> IntegerProgram:
    """The program whose inputs an export says; that of the run where it says others, whose digest then differs."""
    if not exports.is_raw(said):
        return program
    try:
        return raw(program, said)
    except IntegerError:
        return program


def _columns(path: Path) -> list[dict[str, Any]]:
    """What an export says of how its inputs are made of raw columns; none where it takes pixels, or prepares itself."""
    if path.is_dir():
        for file in path.glob("*.[hv]"):
            _expect_whole(file)
        return [one for file in path.glob("*.[hv]") for one in exports.read(file.read_text("utf-8"))]
    if path.suffix == ".onnx":
        _expect_whole(path)
        return exports.read(_metadata(path).get("columns", "") if find_spec("onnx") else "")
    return [*files.load(path).about.get("columns", [])] if files.is_program(path) else []


CIRCUIT = "circuit"  # the compiled form of truth tables, which a run has whatever was exported


def _circuit(program: IntegerProgram) -> Circuit | None:
    try:
        return Circuit(program) if native.available() else None
    except IntegerError:
        return None


class NotThereError(IntegerError):
    """A form cannot run at a place: a tool is not installed, or a processor has no room."""


def _places(
    path: Path, program: IntegerProgram, run: Run, held: RunPart, targets: tuple[str, ...]
) -> Iterator[tuple[str, Callable[[Array, Outputs], Outputs] | str]]:
    """Where an export runs, and how, or why not: by the integers, and the outputs that are wanted, within the rounding
    of which real ones are taken for them."""
    if path.is_dir() and any(path.glob("*.v")):
        from htaf.program.integer.execute import run_verilog, written

        source = path / f"{written(path)['name']}.v"
        _expect_digest(source, program)
        for tool in targets or ("iverilog",):
            if tool != "iverilog":
                raise IntegerError(f"expected the target iverilog, got {tool!r}")
            wrong = _lacking({} if shutil.which(tool) else {tool: tool})
            yield tool, wrong or (lambda x, _: run_verilog(path, x))
    elif path.is_dir():
        from htaf.program.integer.c import TEST
        from htaf.program.integer.execute import TARGETS, exported, missing

        name = exported(path).name
        _expect_digest(path / f"{name}.c", program)
        for file in (f"{name}.c", f"{name}.h", TEST):
            if (path / file).exists():
                _expect_whole(path / file)
        for target in targets or TARGETS:
            yield target, _lacking(missing(target)) or (lambda x, _, target=target: _in_c(path, x, target))
    elif targets:
        raise IntegerError(f"{path}: expected no target, which C and Verilog alone have, got {listed(targets)}")
    elif path.suffix == ".onnx":
        _expect_whole(path)
        yield "ONNX", lambda x, _: _onnx(path, program, x)
    elif files.is_program(path):
        held_program = files.load(path)
        _expect(held_program.digest, program, path)
        yield "integer program", lambda x, _: _run(held_program, x)
    else:
        yield "packed", lambda x, wanted: _packed(path, run, program, held, wanted)


def _in_c(path: Path, x: Array, target: str) -> Outputs:
    from htaf.program.integer.execute import run_c

    try:
        return run_c(path, x, target=target)
    except IntegerError as error:
        raise NotThereError(str(error)) from None


def _lacking(tools: dict[str, str]) -> str:
    return ", ".join(f"{tool} is not installed (Debian: {of})" for tool, of in tools.items())


def _expect(found: str, program: IntegerProgram, path: Path) -> None:
    if found != program.digest:
        raise IntegerError(f"{path}: expected the program {program.digest[:12]} of the run, got {found[:12]}")


def _expect_digest(source: Path, program: IntegerProgram) -> None:
    """That a source names the program of the run."""
    named = re.search(r"program (?:sha256: )?([0-9a-f]{64})", source.read_text())
    if not named:
        raise IntegerError(f"{source}: expected an export with the digest of its program, got none")
    _expect(named[1], program, source)


def _expect_whole(file: Path) -> None:
    from htaf.program.integer.exports import is_sealed, is_whole

    data = file.read_bytes()
    if not is_sealed(data):
        raise IntegerError(
            f"{file}: expected a file that htaf export wrote with --to c, verilog or onnx-integer, got one "
            "without its digest, which is none of these"
        )
    if not is_whole(data):
        raise IntegerError(f"{file}: expected a file as it was written, got one that was changed: export it again")


def _metadata(path: Path) -> dict[str, str]:
    import onnx

    return {one.key: one.value for one in onnx.load(str(path)).metadata_props}


def _onnx(path: Path, program: IntegerProgram, x: Array) -> Outputs:
    """By onnxruntime."""
    try:
        import onnx
        import onnxruntime

        _expect(_metadata(path).get("program_sha256", ""), program, path)
        model = onnx.load(str(path))
        given, output = model.graph.input[0], model.graph.output[0].name
        kind = onnx.helper.tensor_dtype_to_np_dtype(given.type.tensor_type.elem_type)
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        parts = np.array_split(x.astype(kind), range(ROWS, len(x), ROWS))
        found = [session.run([output], {given.name: part})[0] for part in parts]
    except ImportError as error:
        raise NotThereError(f"{error.name} is not installed (pip install {error.name})") from None
    return np.concatenate([np.asarray(y) for y in found]).astype(np.int64)


def _packed(path: Path, run: Run, program: IntegerProgram, held: RunPart, wanted: Outputs) -> Outputs:
    """The outputs of a packed file in the unit of the program."""
    from htaf.program import packed

    model = packed.load(path)
    key = model.extra.get("run", {}).get("about", {}).get("key")
    if key != run.record["key"]:
        raise IntegerError(f"{path}: expected a packed file of the run {run.record['key']}, got one of {key}")
    return _integers(model, program, held, wanted)


@torch.no_grad()
def _integers(network: Callable[[Tensor], Tensor], program: IntegerProgram, held: RunPart, wanted: Outputs) -> Outputs:
    """Real outputs in the unit of the program; within the rounding of float32 they are what is wanted."""
    outputs = torch.cat([network(x) for x in _inputs(held, len(wanted))])
    exponent, divisor = program.unit
    real = np.ldexp(outputs.double().numpy(), -exponent) * divisor
    near = np.abs(real - wanted) <= np.maximum(np.abs(wanted) * ROUNDING, 1e-6)
    return np.where(near, wanted, np.rint(real).astype(np.int64) + (np.rint(real) == wanted))


def _compared(where: str, found: Outputs, wanted: Outputs) -> Checked:
    differ = int((found != wanted).sum())
    return Checked(where, len(wanted), others_of(found, wanted), differ)


def _run(program: IntegerProgram, x: Array, progress: bool = False) -> Outputs:
    found = list[Outputs]()
    with progress_of("integer program", len(x), shown=progress) as advance:
        for rows in np.array_split(x, range(ROWS, len(x), ROWS)):
            found.append(program.run(rows))
            advance(len(rows))
    return np.concatenate(found)


def _inputs(held: RunPart, rows: int) -> Iterator[Tensor]:
    """What the network is given for the first rows of a part."""
    left = min(rows, len(held))
    for inputs, _ in held:
        for x in inputs.split(256):
            if left <= 0:
                return
            yield x[:left]
            left -= len(x)
