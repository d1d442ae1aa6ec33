"""`htaf pack`, `export`, `verify` and `push`: the hardened network of a run as a file, checked; a run shared."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import FlagConversionOff, Positional, arg

from htaf._ground.console import FAILED, UsageError, fail, print_json, say
from htaf.cli.flags import DataDir, Json, MethodOfRun, RunDir, Source, is_language_model, needs_source, opened_run

if TYPE_CHECKING:
    from htaf.training.runs import PackedRun, Run
    from htaf.training.runs.packing import WrittenFile
    from htaf.training.runs.predictions import Agreement
    from htaf.training.runs.verify import Checked

OutFile = Annotated[Path, arg(help="File to write. Nothing is written if a check fails.", metavar="FILE")]
Part = Annotated[
    Literal["train", "validation", "test"], arg(help="Part of the run's data on which predictions are compared.")
]
Differing = Annotated[int | None, arg(metavar="ROWS")]
ROUNDED = 1e-5  # of the largest output: by more it differs only where a bit does


def pack(
    run: RunDir,
    *,
    out: OutFile,
    part: Part = "test",
    differing: Differing = None,
    data: Source = None,
    data_dir: DataDir = None,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Pack the exact network: bits instead of floats. `htaf predict FILE` reads the file, preprocessing included.

    Args:
        differing: Most rows of that part that may get another prediction, from rounding; none: 0.2%.
    """
    if is_language_model(run):
        raise UsageError(f"expected a run with steps, {run} is a language model: open it with htaf.language.load")
    _check_differing(differing)
    from htaf.training.runs import pack_run
    from htaf.training.runs.packing import known_part

    opened = opened_run(run, method)
    with needs_source("give --data"):
        made = pack_run(
            opened,
            out,
            part=part,
            differing=differing,
            data=data,
            data_dir=data_dir,
            progress=True,
        )
    if json:
        return print_json(made.to_json())
    say(made.report)
    say(_agreement(made.agreement, known_part(opened, part)))
    if made.layers.layers:
        say(*str(made.layers).splitlines()[2:], sep="\n")  # bits that differ, given the same bits before
    return say(_sizes(made))


READS = {"raw": ("onnx",), "name": ("c", "verilog"), "luts": ("verilog",)}  # flags that some forms alone read


def export(
    run: RunDir,
    *,
    to: Literal["onnx", "nir", "integer", "c", "verilog", "onnx-integer"],
    out: OutFile,
    raw: FlagConversionOff[bool] = True,
    name: str = "network",
    luts: Annotated[int | None, arg(metavar="NUMBER")] = None,
    part: Part = "test",
    differing: Differing = None,
    data: Source = None,
    data_dir: DataDir = None,
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
        differing: Most rows of that part that may get another prediction, from rounding; none: 0.2%, for integers 0.
    """
    _check_differing(differing)
    if luts is not None and luts < 1:
        raise UsageError(f"--luts must be > 0, got {luts}")
    given = {"raw": not raw, "name": name != "network", "luts": luts is not None}
    if unread := [f"--{flag}" for flag, is_given in given.items() if is_given and to not in READS[flag]]:
        raise UsageError(f"--to {to} does not read {', '.join(unread)}")
    from htaf.training.runs import export_run
    from htaf.training.runs.packing import known_part

    opened = opened_run(run, method)
    with needs_source("give --data"):
        made = export_run(
            opened,
            out,
            to=to,
            raw=raw,
            name=name,
            luts=luts,
            part=part,
            differing=differing,
            data=data,
            data_dir=data_dir,
            progress=True,
        )
    if json:
        return print_json(made.to_json())
    for note in made.notes:
        say(note)
    if made.agreement is not None:
        say(_agreement(made.agreement, known_part(opened, part)))
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
        target: Where C or Verilog runs: host, host-64 (64 rows at once), clang, cortex-m0, cortex-m3, cortex-m4,
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
                what = f"not run: {one.wrong}" if one.wrong else f"{one.rows:,} rows: {_differ(one)}"
                say(f"{one.where:{len(found[0].where)}}  {what}")
                sys.stdout.flush()
    if json:
        print_json([one.to_json() for one in found])
    if differing := [one.where for one in found if one.predictions or one.outputs]:
        fail(f"{', '.join(differing)}: numbers differ", FAILED)
    if all(one.wrong for one in found[1:] if one.where != CIRCUIT):
        raise UsageError(f"nothing here runs {exported}")


def _differ(one: Checked) -> str:
    return f"{one.predictions:,} predictions and {one.outputs:,} outputs differ"


def opened(path: Path, *, exact: bool, method: str | None) -> Run | PackedRun:
    """Open a run folder, or a packed file, which is read without what training needs."""
    if path.is_file():
        from htaf.training.runs.packed import open_packed

        if not exact:
            raise UsageError(f"--smooth is for a run folder: {path} holds the exact network alone")
        return open_packed(path)

    return opened_run(path, method)


def _check_differing(differing: int | None) -> None:
    if differing is not None and differing < 0:
        raise UsageError(f"--differing must be >= 0, got {differing}")


def _agreement(found: Agreement, part: str) -> str:
    differ = f"outputs differ by at most {found.difference:.1e} of the largest"
    if found.difference > ROUNDED:
        differ += ", because rounding decides a bit: its pre-activation is next to the threshold"
    return f"{found.predictions:,} of {found.rows:,} {part} rows predicted as by the run's exact network; {differ}"


def _sizes(made: WrittenFile) -> str:
    from htaf.program.packed.report import compared

    said = compared(made.size, made.run_size, "the run's weights in float32")
    return f"{made.path}: {made.size:,} bytes, {said}"


def push(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    name: Annotated[Positional[str], arg(metavar="OWNER/NAME")],
    *,
    private: bool = False,
    revision: Annotated[str | None, arg(metavar="BRANCH")] = None,
    license: Annotated[str | None, arg(metavar="NAME")] = None,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Share a run or a packed file at the Hugging Face hub, with a card. `hf auth login` first.

    Paths of this machine, curves, reports and images stay here. What was shared by this name before is replaced.

    Args:
        run: Folder of a run or of ConceptBottleneck.save; or a file of htaf pack.
        name: At the hub; made where it is not there.
        private: Only its owner, and whom the owner admits, can read it.
        revision: Branch; none: main.
        license: Licence that the card gives, such as apache-2.0; none: the card gives none.
    """
    from htaf.sharing import push_to_hub

    what = run if method is None else opened_run(run, method)
    commit = push_to_hub(what, name, private=private, revision=revision, license=license)
    if json:
        return print_json({"name": name, "commit": commit, "private": private, "revision": revision})
    return say(f"{name}, commit {commit[:12]}: htaf.load({name!r}) opens it")
