"""The exact network of a run as a file or folder for inference, written once it predicts as the network does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int64
from torch import Tensor, nn

from htaf._ground.console import progress as progress_of
from htaf._ground.errors import HtafError, option
from htaf._ground.files import OutputError, check_output, hold, lock_beside
from htaf.data.images import ImagePreprocessor, Images, pixel_table
from htaf.data.preprocess import Column, Preprocessor, labels_of, spelled
from htaf.program import packed
from htaf.program.integer import files
from htaf.program.integer.build import integer_program
from htaf.program.integer.logic_c import told
from htaf.program.integer.model import IntegerModel, quantised
from htaf.program.integer.ops import Array, IntegerError
from htaf.program.integer.program import PACKED, Input, IntegerProgram
from htaf.program.integer.raw import TEXTS, prepared_column, raw_inputs
from htaf.program.integer.raw import raw as raw_program
from htaf.program.packed import Report, Row, Verification
from htaf.program.packed.graph import trace
from htaf.training.runs.folder import HASHED, MODEL, RunError
from htaf.training.runs.packed import RUN, extra_of
from htaf.training.runs.predictions import Agreement, agreement
from htaf.training.runs.run import Run, raw_part, rows_are_known

if TYPE_CHECKING:
    from htaf.data.parts import Data
    from htaf.data.preprocess import Target
    from htaf.training.runs.run import PartName, Place, RunPart

Form = Literal["onnx", "nir", "integer", "c", "verilog", "onnx-integer"]
FOLDERS = ("c", "verilog")
ROUNDING = 0.002  # of the rows: a sum in another order that is rounded across a threshold may carry on to the output
SAME = 2.0**-22  # of the largest output: by more, the outputs of an integer program are not the network's, rounded
LARGE = 20_000  # bytes of constants: beyond what the smallest processors have
NUMBERS = 256 * 3 * 32 * 32  # of the inputs that are compared layer by layer


class CheckError(HtafError):
    """A file that does not predict as the network of the run does, and so is not written."""


@dataclass(frozen=True)
class WrittenFile:
    """A file, or a folder of C or Verilog, with the exact network of a run.

    path: where it is. size, run_size: its bytes, and those of the run's weights in float32; of C the bytes of constants
    that a processor holds, of Verilog 0.
    part: of the run's data, on which predictions were compared. agreement: how they agree; None: nothing here runs it.
    notes: its sizes on the hardware, and the like.
    """

    path: Path
    size: int
    run_size: int
    part: PartName
    agreement: Agreement | None
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As `htaf export --json` prints it."""
        said = {"file": str(self.path), "bytes": self.size, "run_bytes": self.run_size, "notes": [*self.notes]}
        return said if self.agreement is None else {**said, **_checked(self.agreement, self.part)}


@dataclass(frozen=True)
class PackedFile(WrittenFile):
    """A packed file; `htaf.runs.open_packed` reads it.

    report: what became of every operator. layers: the bits of each layer, given the same bits before. verified: rows on
    which they were compared.
    """

    agreement: Agreement
    report: Report
    layers: Verification
    verified: int

    def to_json(self) -> dict[str, Any]:
        """As `htaf pack --json` prints it."""
        bits = sum(layer.bits for layer in self.layers.layers)
        layers = {"rows": self.verified, "bits": bits, "flips": self.layers.count}
        return {**super().to_json(), "layers": layers, "report": self.report.to_json()}


def pack_run(
    run: Run,
    out: str | PathLike[str],
    *,
    part: PartName = "test",
    differing: int | None = None,
    data: Data | Place | None = None,
    data_dir: Place | None = None,
    progress: bool = False,
) -> PackedFile:
    """Pack the exact network of a run into a file, with the run's preprocessing: bits instead of floats.

    A network of truth tables is packed as its integer program, another one by training rows. Its predictions on a part,
    and of layers the bits on some of it, are compared with those of the run's exact network before anything is written.

    Args:
        run: from `htaf.runs.open_run`; not of method relu.
        out: the file. Its folders are made.
        part: of the run's data, on which predictions are compared. Of a run on a data frame, which does not say on
            which rows: all of `data`, any rows with the target.
        differing: rows of it that may have another prediction, from rounding; None: 0.2%, one at least.
        data: the run's own, from `run.data()`, or where they are now; None: where they were at the training.
        data_dir: a folder with the public sets.
        progress: show bars on the error stream.

    Returns:
        What was written and compared.

    Raises:
        CheckError: more predictions differ, or bits that rounding does not explain.
        RunError: a damaged run, one without steps, other data than its own, or a part without rows.
        PackedError: an operator that cannot be packed. OutputError, BusyError: the file cannot be written.
    """
    part = known_part(run, part)
    with to_write(run, out, data, differing) as path:
        rows, training = parts_of(run, data, data_dir, part)
        model = run.model()
        if run.record["model"]["kind"] == "logic":
            return _pack_program(run, path, rows, part, differing, progress)
        example = _some(training, 64)
        traced = packed.trace(model, example, progress=progress)
        made = packed.pack(traced, example, progress=progress)
        found = _compared(model, made, rows, progress)
        _expect_equal(found, differing, part)
        compared = _some(rows, 256)
        layers = packed.verify(made, traced, compared, progress=progress)
        if not layers.ok:
            raise CheckError(
                f"expected every layer to make the bits of the run's exact network on {part} rows, but where rounding "
                f"explains another, got:\n{layers}\nnothing is written"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        packed.save(made, path, extra=extra_of(run, checked=_checked(found, part)))
        return PackedFile(path, path.stat().st_size, _weights(run), part, found, (), made.report, layers, len(compared))


def _pack_program(
    run: Run, path: Path, rows: RunPart, part: PartName, differing: int | None, progress: bool
) -> PackedFile:
    """Pack a network of truth tables as its integer program, which predicts as the network on all rows."""
    program = build_run(run)
    found = _compared_program(run, program, rows, part, differing, progress)
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {**program.about, PACKED: extra_of(run, checked=_checked(found, part))[RUN]}
    files.save(replace(program, about=about), path)
    report = Report(tuple(Row(op.name, "", type(op).__name__, "packed: integers") for op in program.ops), 0, 0)
    layers = Verification((), found.difference, 0.0, found.difference, found.rows, found.predictions)
    return PackedFile(path, path.stat().st_size, _weights(run), part, found, (), report, layers, 0)


def _compared_program(
    run: Run, program: IntegerProgram, rows: RunPart, part: PartName, differing: int | None, progress: bool
) -> Agreement:
    """How an integer program predicts beside the network of its run. Raises CheckError where one row differs."""
    found = _compared(run.model(), IntegerModel(program, table_of(run)), rows, progress)
    if program.values[program.output].size == 1 and found.difference > SAME:  # of one number every row tells
        found = replace(found, predictions=0)
    _expect_equal(found, differing or 0, part)
    return found


def table_of(run: Run) -> Tensor | None:
    """What a network of images is given for each pixel, float32 [channels, 256]; None of one of a table."""
    known = run.preprocessor()
    return pixel_table(known) if isinstance(known, ImagePreprocessor) else None


def export_run(
    run: Run,
    out: str | PathLike[str],
    *,
    to: Form,
    raw: bool = True,
    name: str = "network",
    luts: int | None = None,
    part: PartName = "test",
    differing: int | None = None,
    data: Data | Place | None = None,
    data_dir: Place | None = None,
    progress: bool = False,
) -> WrittenFile:
    """Write the exact network of a run in another form, compared on all rows of a part before it is written.

    Args:
        to: onnx for any runtime, compared by onnxruntime where it is installed; nir for spiking networks, not compared;
            of weights on a grid as integers alone: integer, a program in a file; c (C99) and verilog, folders;
            onnx-integer, a file whose name ends with .onnx. Readable and logic networks of tables take raw columns in
            the last three, see `raw_inputs`.
        raw: ONNX of a table: the preparation is in the file, raw columns in and predictions out, see
            `htaf.export.table_to_onnx`; False: the network alone, as of images.
        name: of the module or the functions, in C and Verilog.
        luts: most of six inputs, by an estimate, that Verilog may take; None: 100,000.
        differing: rows that may have another prediction, from rounding; None: 0.2%, one at least; of integers none.
        run, out, part, data, data_dir, progress: as `pack_run` takes them.

    Returns:
        What was written; its agreement is None where the file was not run.

    Raises:
        CheckError: more predictions differ. ExportError, IntegerError: a network that this form cannot hold.
        RunError, OutputError, BusyError: as `pack_run`.
    """
    part = known_part(run, part)
    if to in ("integer", "onnx-integer") and (Path(out).suffix == ".onnx") != (to == "onnx-integer"):
        wanted = "that ends with .onnx" if to == "onnx-integer" else "without .onnx behind it"
        raise OutputError(f"{option('--out', 'out')}: expected a name {wanted} for {to}, got {out}")
    with nullcontext(Path(out)) if to in FOLDERS else to_write(run, out, data, differing) as path:
        own = own_data(run, data, data_dir)
        rows, training = parts_of(run, own, data_dir, part)
        if to in ("onnx", "nir"):
            example = _some(training, 2)
            found, notes = _write_network(run, path, to, raw, own, rows, example, part, differing, progress), ()
            size = path.stat().st_size
        else:
            program = build_run(run)
            found = _compared_program(run, program, rows, part, differing, progress)
            size, notes = _write_program(run, program, path, to, name, luts, own, rows, part)
        return WrittenFile(path, size, _weights(run), part, found, notes)


def _write_network(
    run: Run,
    path: Path,
    to: Form,
    raw: bool,
    own: Data,
    rows: RunPart,
    example: Tensor,
    part: PartName,
    differing: int | None,
    progress: bool,
) -> Agreement | None:
    """ONNX or NIR; gives how it agrees, where something here runs it."""
    import htaf.program.export as writers

    model, found, runs = run.model(), None, find_spec("onnxruntime") is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f".{path.name}.unchecked")
    try:
        if to == "nir":
            _to_nir(model, example, written, table=not isinstance(own, Images))
        elif raw and not isinstance(own, Images):
            known: Any = run.preprocessor()
            labels = labels_of(run.record)
            said = {"run": run.record["key"]} | ({"labels": json.dumps(labels)} if labels else {})
            writers.table_to_onnx(model, known, written, about=said)
            if runs:
                table = raw_part(run, own, part)
                found = _table_agreement(writers.onnx_table(written)(table), run.predict(table), known.target)
        else:
            writers.to_onnx(model, example, written, finite=isinstance(own, Images))
            if runs:
                found = _compared(model, writers.onnx_network(written), rows, progress)
        if found is not None:
            _expect_equal(found, differing, part)
        written.replace(path)
    finally:
        written.unlink(missing_ok=True)
    return found


def _write_program(
    run: Run,
    program: IntegerProgram,
    path: Path,
    to: Form,
    name: str,
    luts: int | None,
    own: Data,
    rows: RunPart,
    part: PartName,
) -> tuple[int, tuple[str, ...]]:
    """A program in a file, C, Verilog or ONNX; gives its size, see `WrittenFile`, and what is to be said of it."""
    x, notes = quantised(program, table_of(run), next(iter(rows))[0][:16]), tuple[str, ...]()
    is_exact = run.is_readable or run.record["model"]["kind"] == "logic"
    if is_exact and not isinstance(own, Images) and to != "integer":  # which is the packed file too
        try:
            inputs = raw_inputs(program, values_of(program.about["columns"], raw_part(run, own, "all")))
        except IntegerError as error:
            notes = (f"takes prepared columns: {error}",)
        else:
            program, x = _of_raw(run, program, inputs, raw_part(run, own, part))
    path.parent.mkdir(parents=True, exist_ok=True)
    if to == "c":
        from htaf.program.integer.c import to_c

        made = to_c(program, path, name=name, rows=x[:16])
        size = made.flash_bytes
        notes = (*notes, f"{size:,} bytes of constants, {made.ram_bytes:,} bytes of buffers", *told(program))
        if made.flash_bytes > LARGE and not is_exact and not isinstance(own, Images):
            notes = (*notes, "--recipe readable makes a smaller program of a table: under 1,000 bytes on two tables")
    elif to == "verilog":
        from htaf.program.integer.verilog import MOST, to_verilog

        size, estimated = 0, to_verilog(program, path, name=name, rows=x[:16], most=MOST if luts is None else luts)
        notes = (*notes, f"about {estimated:,} LUTs of six inputs, estimated without a synthesis", *told(program)[:1])
    elif to == "onnx-integer":
        from htaf.program.export.integer import to_integer_onnx

        to_integer_onnx(program, path)
        size = path.stat().st_size
    else:
        files.save(program, path)
        size = path.stat().st_size
    return size, (*notes, f"program {program.digest[:12]}; htaf verify {path} {run.path} checks it")


def _of_raw(
    run: Run, program: IntegerProgram, inputs: list[dict[str, Any]], rows: pd.DataFrame
) -> tuple[IntegerProgram, Array]:
    """The program of raw columns, and what it takes for these rows, for which it predicts as the other one."""
    made, known = raw_program(program, inputs), run.preprocessor()
    assert isinstance(known, Preprocessor)
    x = prepared(made.about["columns"], made.input, rows)
    wanted = IntegerModel(program).integers(program.input.quantised(known.transform(rows)))
    if others := others_of(IntegerModel(made).integers(x), wanted):
        raise CheckError(
            f"expected the predictions of the run's exact network from raw columns, got {others:,} others of "
            f"{len(x):,}: nothing is written"
        )
    return made, x


def others_of(found: Array, wanted: Array) -> int:
    """How many rows of integer outputs have another prediction; of one output, how many differ."""
    return int((found != wanted).sum() if wanted.shape[1] == 1 else (found.argmax(1) != wanted.argmax(1)).sum())


def _to_nir(model: nn.Module, example: Tensor, path: Path, *, table: bool) -> None:
    from htaf.program.export import ExportError, to_nir

    try:
        to_nir(model, example, path)
    except ExportError as error:
        if not table or find_spec("nir") is None:
            raise
        raise ExportError(
            "expected a network of linear layers, batch norms and steps for NIR, got one of a table with thresholds of "
            f"its columns, several members or other parts that NIR does not know: give {option('--to onnx', 'ONNX')}, "
            "which writes every network of a table with its preparation"
        ) from error


@contextmanager
def to_write(
    run: Run, out: str | PathLike[str], data: Data | Place | None, differing: int | None = None
) -> Iterator[Path]:
    """The file to write, held, once it is sure that it can be and that there is something to write."""
    path, source = Path(out), (run.record.get("source") or {}).get("name")
    read = [run.path, *(place for place in (data, source) if isinstance(place, str | PathLike) and place)]
    check_output(path, read)
    if not run.has_step:
        raise RunError(f"expected a run with steps, {run.path} is a plain network (method relu)")
    if differing is not None and differing < 0:
        raise RunError(f"differing must be >= 0, got {differing}")
    with hold(lock_beside(path), f"another process writes {path}"):
        yield path


def own_data(run: Run, data: Data | Place | None, data_dir: Place | None) -> Data:
    return run.data(data, data_dir=data_dir) if data is None or isinstance(data, str | PathLike) else data


def parts_of(run: Run, data: Data | Place | None, data_dir: Place | None, part: PartName) -> tuple[RunPart, RunPart]:
    """The rows that are compared, and those that the run was trained on."""
    own = own_data(run, data, data_dir)
    rows = run.part(part, own)
    if not len(rows):
        raise RunError(f"{run.path} has no rows in its {part} part: choose another part")
    return rows, rows if not run.takes_images and not rows_are_known(run) else run.part("train", own)


def known_part(run: Run, part: PartName) -> PartName:
    """A part, or all rows where the run does not say which it was trained on: labelled rows of any origin will do."""
    if run.takes_images or rows_are_known(run):
        return part
    if part not in ("test", "all"):  # the first is what is taken where nothing is asked for
        raise RunError(f"{run.path} does not say which rows it was trained on: expected part 'all', got {part!r}")
    return "all"


def _some(rows: RunPart, most: int) -> Tensor:
    """Some inputs, two at least and fewer of large ones: all that lies between the layers is held at once."""
    inputs = next(iter(rows))[0]
    inputs = inputs[: max(2, min(most, NUMBERS // inputs[0].numel()))]
    return inputs if len(inputs) > 1 else inputs.expand(2, *inputs.shape[1:]).contiguous()


@torch.no_grad()
def _compared(model: nn.Module, other: Callable[[Tensor], Tensor], rows: RunPart, progress: bool) -> Agreement:
    expected, found = [], []
    with progress_of("comparing predictions", len(rows), shown=progress) as advance:
        for inputs, _ in rows:
            for x in inputs.split(256):
                expected.append(model(x))
                found.append(other(x))
                advance(len(x))
    return agreement(torch.cat(found), torch.cat(expected))


def _table_agreement(found: pd.DataFrame, expected: pd.DataFrame, target: Target) -> Agreement:
    """Of predictions of raw rows: of classes the names and probabilities, of a number the standardised values."""
    if target.task == "regression":
        standard = [(torch.tensor(f["prediction"].to_numpy()) - target.mean) / target.std for f in (found, expected)]
        return agreement(*(values[:, None] for values in standard))
    same = int((found["prediction"].to_numpy() == expected["prediction"].to_numpy()).sum())
    columns = [f"probability_{name}" for name in target.classes]
    away = np.abs(found[columns].to_numpy() - expected[columns].to_numpy())
    return Agreement(
        len(expected), same, float(away.max(initial=0)) / float(expected[columns].to_numpy().max(initial=0) or 1)
    )


def _expect_equal(found: Agreement, differing: int | None, part: str) -> None:
    wrong = found.rows - found.predictions
    most = max(1, int(ROUNDING * found.rows)) if differing is None else differing
    if wrong > most:
        raise CheckError(
            f"expected the predictions of the run's exact network but for at most {most}, "
            f"got {wrong} others of {found.rows} {part} rows "
            f"(outputs differ by {found.difference:.1e} of the largest): nothing is written"
        )


def _checked(found: Agreement, part: str) -> dict[str, Any]:
    return {"part": part, "rows": found.rows, "same": found.predictions, "difference": found.difference}


def _weights(run: Run) -> int:
    """Bytes of the run's weights; 0 of a run that is in memory alone."""
    weights = run.path / MODEL
    return weights.stat().st_size if weights.exists() else 0


def inputs_of(known: Preprocessor, given: Input) -> list[dict[str, Any]]:
    """Each input of a program as JSON values: its place and name, the raw column, and by its kind how it is made of it;
    `htaf.integer.columns` says what they mean."""
    made = dict[int, dict[str, Any]]()
    for column in known.columns:
        places = known.inputs_of(column.name).tolist()
        made |= zip(places, _made_of(column, known.special_codes, given), strict=True)
    return [{"x": x, "name": name, **made[x]} for x, name in enumerate(known.feature_names)]


def _made_of(column: Column, codes: Sequence[float], given: Input) -> Iterator[dict[str, Any]]:
    own = {"column": column.name}
    own |= {key: getattr(column, key) for key in ("unit", "order", "zoned") if getattr(column, key)}
    if column.kind == "number" and column.high > column.low:
        scale, ends = 1 / (column.high - column.low), {"low": column.low, "high": column.high}
        shift = {"scale": scale, "offset": 0 - column.low * scale}
        yield {"kind": "number", **own, **shift, **ends, "fill": column.fill, "codes": [*codes]}
    for code in column.codes:
        yield {"kind": "code", **own, "code": code}
    if column.missing:
        yield {"kind": "missing", **own}
    lows, highs = np.array(column.lows), np.array(column.highs)
    table = np.array([*column.values, column.otherwise]) if column.kind == "encoded" else lows
    table = given.quantised(((table - lows) / np.where(highs > lows, highs - lows, 1)).astype(np.float32))
    for place, output in enumerate(column.outputs):
        if column.kind == "date":
            ends = {"low": column.lows[place], "high": column.highs[place]}
            yield {"kind": "date", **own, "part": output, **ends, "first": column.first, "fill": column.filled}
        else:
            *values, otherwise = table[:, place].tolist()
            values = dict(zip(column.categories, values, strict=True))
            yield {"kind": "encoded", **own, "values": values, "otherwise": otherwise}
    if column.kind == "category":
        yield from ({"kind": "category", **own, "text": text} for text in column.categories)
        if column.other:
            yield {"kind": "other", **own, "texts": [*column.categories]}


def prepared(columns: Sequence[dict[str, Any]], given: Input, rows: pd.DataFrame) -> Int64[Array, "rows inputs"]:
    """Say what a program takes for raw rows, by what an export says of its inputs alone.

    Args:
        columns: as `inputs_of` or `raw_inputs` makes them. rows: of any dtypes, with the raw columns.

    Raises:
        DataError: a column is not there, or holds other values than those of its kind.
    """
    raw = values_of(columns, rows)
    return np.stack([prepared_column(one, raw[one["column"]], given) for one in columns], 1)


def values_of(columns: Sequence[dict[str, Any]], rows: pd.DataFrame) -> dict[str, Array]:
    """The raw columns that lines name, by name: float64 with NaN, datetime64[us], or texts as `spelled`."""
    from htaf.program.export.tables import raw_columns

    asked = {
        one["column"]: {
            "name": one["column"],
            "dtype": "string" if one["kind"] in TEXTS else "int64" if "order" in one else "float64",
            **{key: one[key] for key in ("unit", "order", "zoned") if key in one},
        }
        for one in columns
    }
    found = {name: column[:, 0] for name, column in raw_columns(rows, [*asked.values()]).items()}
    for name, said in asked.items():
        if said["dtype"] == "string":
            found[name] = np.array([spelled(text) for text in found[name]], object)
        elif said["dtype"] == "int64":
            found[name] = found[name].astype("datetime64[us]")
    return found


def build_run(run: Run) -> IntegerProgram:
    """Build the integer program of a run that was trained with weights on a grid.

    A program of images takes their pixels, as read and resized; one of a table takes prepared columns as integers, see
    `Input.quantised`. about: the run's key, the SHA-256 of its weights, its classes and its target; of a table
    "columns", how each input is made of raw values, see `inputs_of`; "packed", what `open_packed` needs besides.

    Raises:
        RunError: a run without steps, or a damaged one.
        IntegerError: the network has no integer form; the message names the layer and says what to do.
    """
    if not run.has_step:
        raise RunError(f"expected a run with steps, {run.path} is a plain network (method relu)")
    exact = run.is_readable or run.record["model"]["kind"] == "logic"
    if not exact and run.record["recipe"].get("weights", "float") == "float":
        flag = option("--weights int8", 'weights="int8"')
        raise IntegerError(f"expected a run with integer weights, {run.path} has real ones: train with {flag}")
    model, known, about = run.model(), run.preprocessor(), dict[str, Any]()
    if isinstance(known, ImagePreprocessor):
        shape = (known.channels, *known.size)
        program = integer_program(
            model,
            known.normalise(torch.zeros(2, *shape, dtype=torch.uint8)),
            input=Input("pixels", shape),
            table=pixel_table(known),
        )
        classes = known.classes
        about["target"] = {"task": "classification", "classes": [*classes]}
    else:
        example = torch.zeros(2, len(known.feature_names))
        traced = trace(model, example)
        program = integer_program(traced, example)
        classes, target = known.target.classes or (), known.target
        kept = ("mean", "std", "unit") if target.task == "regression" else ("classes", "threshold")
        about["target"] = {"task": target.task, "name": target.name} | {key: getattr(target, key) for key in kept}
        about["columns"] = inputs_of(known, program.input)
    about |= {"run": run.record["key"], HASHED[MODEL]: run.record[HASHED[MODEL]], "classes": [*map(str, classes)]}
    about |= {PACKED: extra_of(run)[RUN]}
    return IntegerProgram(program.input, program.ops, program.output, program.unit, {**program.about, **about})
