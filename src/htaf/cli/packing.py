"""`htaf pack`, `export` and `verify`: the hardened network of a run as a file, checked."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import FlagConversionOff, OmitArgPrefixes, Positional, arg

from htaf._ground.console import FAILED, UsageError, fail, print_json, say
from htaf.cli.flags import DataDir, Json, MethodOfRun, RunDir, Source, is_language_model, needs_source, opened_run

if TYPE_CHECKING:
    from htaf.program.packed import Report, Row
    from htaf.training.runs import PackedRun, Run
    from htaf.training.runs.packing import WrittenFile

OutFile = Annotated[Path, arg(help="File to write. Nothing is written if a check fails.", metavar="FILE")]
Part = Annotated[
    Literal["train", "validation", "test"], arg(help="Part of the run's data on which predictions are compared.")
]
ROUNDED = 1e-5  # of the largest output: by more it differs only where a bit does
READS = {"raw": ("onnx",), "name": ("c", "verilog"), "luts": ("verilog",)}  # flags that some forms alone read


@dataclass(frozen=True)
class Compared:
    """Rows on which predictions are compared before anything is written.

    Args:
        differing: Most rows of that part that may get another prediction, from rounding; none: 0.2%, for integers 0.
    """

    part: Part = "test"
    differing: Annotated[int | None, arg(metavar="ROWS")] = None
    data: Source = None
    data_dir: DataDir = None

    def written(self, write: str, run: Path, out: Path, method: str | None, **options: Any) -> Any:
        """Return what `pack_run` or `export_run` writes. Raises UsageError for a value out of range."""
        if is_language_model(run):
            raise UsageError(f"expected a run with steps, {run} is a language model: open it with htaf.language.load")
        if self.differing is not None and self.differing < 0:
            raise UsageError(f"--differing must be >= 0, got {self.differing}")
        from htaf.training import runs

        with needs_source("give --data"):
            return getattr(runs, write)(opened_run(run, method), out, progress=True, **vars(self), **options)


def pack(
    run: RunDir,
    *,
    out: OutFile,
    compared: OmitArgPrefixes[Compared] = Compared(),
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Pack the exact network: bits instead of floats. `htaf predict FILE` reads the file, preprocessing included."""
    made = compared.written("pack_run", run, out, method)
    if json:
        return print_json(made.to_json())
    say(_folded(made.report))
    say(_agreement(made))
    if made.layers.layers:
        say(*str(made.layers).splitlines()[2:], sep="\n")  # bits that differ, given the same bits before
    return say(_sizes(made))


def export(
    run: RunDir,
    *,
    to: Literal["onnx", "nir", "integer", "c", "verilog", "onnx-integer"],
    out: OutFile,
    raw: FlagConversionOff[bool] = True,
    name: str = "network",
    luts: Annotated[int | None, arg(metavar="NUMBER")] = None,
    compared: OmitArgPrefixes[Compared] = Compared(),
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Write the exact network as ONNX or NIR; or one with weights on a grid as integers alone: C, Verilog, ONNX.

    Args:
        to: onnx for any runtime; nir for spiking networks. With weights int8 or int4 also: integer, a program in a
            file; c or verilog, a folder; onnx-integer.
        raw: ONNX of a table: raw columns in, predictions out. False: the network alone, with prepared inputs.
        name: Name of the functions in C, or of the module in Verilog.
        luts: Most LUTs of six inputs that Verilog may take, by an estimate; none: 100,000.
    """
    if luts is not None and luts < 1:
        raise UsageError(f"--luts must be > 0, got {luts}")
    given = {"raw": not raw, "name": name != "network", "luts": luts is not None}
    if unread := [f"--{flag}" for flag, is_given in given.items() if is_given and to not in READS[flag]]:
        raise UsageError(f"--to {to} does not read {', '.join(unread)}")
    made = compared.written("export_run", run, out, method, to=to, raw=raw, name=name, luts=luts)
    if json:
        return print_json(made.to_json())
    for note in made.notes:
        say(note)
    if made.agreement is not None:
        say(_agreement(made))
    else:
        what = "other libraries run NIR" if to == "nir" else "onnxruntime is not installed (pip install 'htaf[export]')"
        say(f"not compared: {what}")
    return say(_sizes(made))


def verify(
    exported: Annotated[Positional[Path], arg(help="What `htaf export` or `htaf pack` wrote.", metavar="EXPORTED")],
    run: RunDir,
    *,
    rows: int = 1000,
    target: Annotated[str | None, arg(metavar="WHERE")] = None,
    part: Part = "test",
    data: Source = None,
    data_dir: DataDir = None,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Run the same rows through a network and an exported form of it, and count the numbers that differ.

    Args:
        rows: How many rows of that part to run, from the first.
        target: Where C or Verilog runs: host, clang, cortex-m0, cortex-m3, cortex-m4,
            riscv32; iverilog; none: everywhere that has its tools.
    """
    if rows < 1:
        raise UsageError(f"--rows must be > 0, got {rows}")
    from htaf.training.runs.verify import CIRCUIT, Checked, verify_export

    with needs_source("give --data"):
        opened = opened_run(run, method)
        only = () if target is None else (target,)
        found = list[Checked]()
        for one in verify_export(
            exported,
            opened,
            rows=rows,
            targets=only,
            part=part,
            data=data,
            data_dir=data_dir,
            progress=True,
        ):
            found.append(one)
            if not json:  # as soon as it is known: others may take minutes
                differ = f"{one.predictions:,} predictions and {one.outputs:,} outputs differ"
                what = f"not run: {one.wrong}" if one.wrong else f"{one.rows:,} rows: {differ}"
                say(f"{one.where:{len(found[0].where)}}  {what}")
                sys.stdout.flush()
    if json:
        print_json([one.to_json() for one in found])
    if differing := [one.where for one in found if one.predictions or one.outputs]:
        fail(f"{', '.join(differing)}: numbers differ", FAILED)
    if all(one.wrong for one in found[1:] if one.where != CIRCUIT):
        raise UsageError(f"nothing here runs {exported}")


def opened(path: Path, *, exact: bool, method: str | None) -> Run | PackedRun:
    """Open a run folder, or a packed file, which is read without what training needs."""
    if path.is_file():
        from htaf.training.runs.packed import open_packed

        if not exact:
            raise UsageError(f"--smooth is for a run folder: {path} holds the exact network alone")
        return open_packed(path)

    return opened_run(path, method)


def _folded(report: Report) -> Report:
    """Return the report in which operators that run in float alike are one row, with how many they are."""
    alike = Counter((row.operator, row.how) for row in report.rows)
    rows: list[Row] = []
    for row in report.rows:
        count = 1 if row.how.startswith("packed") else alike.pop((row.operator, row.how), 0)
        rows += [row if count == 1 else replace(row, name=f"{row.name} and {count - 1} more")] * (count > 0)
    return replace(report, rows=tuple(rows))


def _agreement(made: WrittenFile) -> str:
    found: Any = made.agreement
    differ = f"outputs differ by at most {found.difference:.1e} of the largest"
    if found.difference > ROUNDED:
        differ += ", because rounding decides a bit: its pre-activation is next to the threshold"
    return f"{found.predictions:,} of {found.rows:,} {made.part} rows predicted as by the run's exact network; {differ}"


def _sizes(made: WrittenFile) -> str:
    from htaf.program.packed.report import compared

    if not made.size:  # of Verilog, whose LUTs are told
        return f"{made.path} is written"
    what = "bytes of constants" if made.path.is_dir() else "bytes"
    said = compared(made.size, made.run_size, "the run's weights in float32")
    return f"{made.path}: {made.size:,} {what}, {said}"
