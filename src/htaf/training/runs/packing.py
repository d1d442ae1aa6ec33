"""The exact network of a run as one file for inference, which is written once it predicts as the network does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from htaf._ground.console import progress as progress_of
from htaf._ground.errors import HtafError, option
from htaf._ground.files import check_output, hold, lock_beside
from htaf.data.images import Images
from htaf.data.targets import labels_of
from htaf.program import packed
from htaf.program.integer import files
from htaf.program.integer.model import IntegerModel
from htaf.program.integer.program import PACKED
from htaf.program.packed import Report, Row, Verification
from htaf.training.runs.data import raw_part, rows_are_known
from htaf.training.runs.folder import MODEL, RunError
from htaf.training.runs.integer import build_run
from htaf.training.runs.packed import RUN, as_run, extra_of
from htaf.training.runs.predictions import Agreement, agreement
from htaf.training.runs.run import Run

if TYPE_CHECKING:
    from htaf.data.parts import Data
    from htaf.data.preprocess import Target
    from htaf.training.runs.data import PartName, Place, RunPart

ROUNDING = 0.002  # of the rows: a sum in another order that is rounded across a threshold may carry on to the output
NUMBERS = 256 * 3 * 32 * 32  # of the inputs that are compared layer by layer


class CheckError(HtafError):
    """A file that does not predict as the network of the run does, and so is not written."""


@dataclass(frozen=True)
class WrittenFile:
    """A file with the exact network of a run.

    path: where it is. size, run_size: its bytes, and those of the run's weights in float32.
    part: of the run's data, on which predictions were compared. agreement: how they agree; None: nothing here runs it.
    """

    path: Path
    size: int
    run_size: int
    part: PartName
    agreement: Agreement | None

    def to_json(self) -> dict[str, Any]:
        """As `htaf export --json` prints it."""
        sizes = {"file": str(self.path), "bytes": self.size, "run_bytes": self.run_size}
        return sizes if self.agreement is None else {**sizes, **_checked(self.agreement, self.part)}


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
        return PackedFile(path, *_sizes(run, path), part, found, made.report, layers, len(compared))


def _pack_program(
    run: Run, path: Path, rows: RunPart, part: PartName, differing: int | None, progress: bool
) -> PackedFile:
    """Pack a network of truth tables as its integer program, which predicts as the network on all rows."""
    program = build_run(run)
    made = as_run(IntegerModel(program), path).model
    found = _compared(run.model(), made, rows, progress)
    _expect_equal(found, differing or 0, part)
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {**program.about, PACKED: extra_of(run, checked=_checked(found, part))[RUN]}
    files.save(replace(program, about=about), path)
    report = Report(tuple(Row(op.name, "", type(op).__name__, "packed: integers") for op in program.ops), 0, 0)
    layers = Verification((), found.difference, 0.0, found.difference, found.rows, found.predictions)
    return PackedFile(path, *_sizes(run, path), part, found, report, layers, 0)


def export_run(
    run: Run,
    out: str | PathLike[str],
    *,
    to: Literal["onnx", "nir"],
    raw: bool = True,
    part: PartName = "test",
    differing: int | None = None,
    data: Data | Place | None = None,
    data_dir: Place | None = None,
    progress: bool = False,
) -> WrittenFile:
    """Write the exact network of a run as ONNX, compared by onnxruntime where it is installed, or as NIR.

    Args:
        to: onnx for any runtime; nir for spiking networks.
        raw: ONNX of a table: the preparation is in the file, raw columns in and predictions out, see
            `htaf.export.table_to_onnx`; False: the network alone, as of images.
        run, out, part, differing, data, data_dir, progress: as `pack_run` takes them.

    Returns:
        What was written; its agreement is None where the file was not run.

    Raises:
        CheckError: more predictions differ. ExportError: a network that cannot be written.
        RunError, OutputError, BusyError: as `pack_run`.
    """
    import htaf.program.export as writers

    part = known_part(run, part)
    with to_write(run, out, data, differing) as path:
        own = own_data(run, data, data_dir)
        rows, training = parts_of(run, own, data_dir, part)
        model, example, found = run.model(), _some(training, 2), None
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
                if find_spec("onnxruntime") is not None:
                    table = raw_part(run, own, part)
                    expected = run.predict(table)
                    predicted = writers.onnx_table(written)(table)
                    found = _table_agreement(predicted, expected, known.target)
                    _expect_equal(found, differing, part)
            else:
                writers.to_onnx(model, example, written, finite=isinstance(own, Images))
                if find_spec("onnxruntime") is not None:
                    found = _compared(model, writers.onnx_network(written), rows, progress)
                    _expect_equal(found, differing, part)
            written.replace(path)
        finally:
            written.unlink(missing_ok=True)
        return WrittenFile(path, *_sizes(run, path), part, found)


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


def _sizes(run: Run, path: Path) -> tuple[int, int]:
    """Bytes of the file, and of the run's weights; 0 of a run that is in memory alone."""
    weights = run.path / MODEL
    return path.stat().st_size, weights.stat().st_size if weights.exists() else 0
