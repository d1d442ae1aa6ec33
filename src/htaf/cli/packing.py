"""`htaf pack` and `htaf export`: the hardened network of a run as one file for inference."""

from __future__ import annotations

from functools import partial
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from htaf._console import UsageError, print_json, progress, say
from htaf._errors import HtafError
from htaf._files import check_output, hold, lock_beside
from htaf.cli.flags import DataDir, Json, RunDir
from htaf.cli.training import own_data

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from htaf.packed import Verification
    from htaf.runs import Run
    from htaf.runs.predictions import Agreement
    from htaf.training.evaluate import Joined

OutFile = Annotated[Path, arg(help="File to write. Nothing is written if a check fails.", metavar="FILE")]
Part = Annotated[
    Literal["train", "validation", "test"], arg(help="Part of the run's data on which predictions are compared.")
]
Source = Annotated[
    str | None,
    arg(
        help="Where the run's own data are now.",
        metavar="NAME_OR_PATH",
        help_behavior_hint="(default: where they were at the training)",
    ),
]
Differing = Annotated[
    int | None,
    arg(
        help="Rows of that part that may have another prediction, from rounding.",
        help_behavior_hint="(default: 0.2%)",
        metavar="ROWS",
    ),
]
ROUNDING = 0.002  # of the rows: a sum in another order that is rounded across a threshold may carry on to the output
NUMBERS = 256 * 3 * 32 * 32  # of the inputs that are compared layer by layer


class CheckError(HtafError):
    """A written network does not predict as the network of the run does."""


def pack(
    run: RunDir,
    *,
    out: OutFile,
    tables: Annotated[
        Literal["float32", "int16", "int8", "auto"],
        arg(help="Sums of real weights over bits. float32: exact; int16, int8: faster and rounded; auto: as measured."),
    ] = "float32",
    budget: Annotated[float, arg(help="With --tables auto: largest relative rms error of a layer's sums.")] = 1e-3,
    part: Part = "test",
    differing: Differing = None,
    data: Source = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Pack the exact network: bits instead of floats. `htaf predict FILE` reads the file, preprocessing included."""
    if not 0 < budget < inf:
        raise UsageError(f"--budget must be > 0 and finite, got {budget}")
    opened = _opened(run, out, data, differing)
    from htaf import packed

    with hold(lock_beside(out), f"another process writes {out}"):
        rows, training, model = _parts(opened, data_dir, part)
        made = packed.pack(model, _some(training, 64), tables=tables, budget=budget, progress=not json)
        hint = f"--tables {tables}" if tables != "float32" else ""
        found = _compared(model, made, rows, shown=not json)
        _expect_equal(found, differing, part, hint)
        layers = packed.verify(made, model, compared := _some(rows, 256), progress=not json)
        _expect_explained(layers, part, hint)
        extra = _extra(opened, found, part)
        out.parent.mkdir(parents=True, exist_ok=True)
        packed.save(made, out, extra=extra)
        sizes = _sizes(opened, out)
        if json:
            report = made.report.to_json()
            told = {"file": str(out), **sizes, **_as_json(found, part), "layers": _layers_json(layers, len(compared))}
            return print_json({**told, "report": report})
        say(made.report)
        _say(found, part)
        say(*str(layers).splitlines()[2:], sep="\n")  # bits that differ, given the same bits before
        return say(f"{out}: {_compared_sizes(sizes)}")


def export(
    run: RunDir,
    *,
    to: Annotated[Literal["onnx", "nir"], arg(help="ONNX for any runtime; NIR for spiking networks.")],
    out: OutFile,
    opset: Annotated[int, arg(help="ONNX operator set.")] = 18,
    part: Part = "test",
    differing: Differing = None,
    data: Source = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Write the exact network as ONNX, compared by onnxruntime where it is installed, or as a NIR graph."""
    import importlib.util

    import htaf.export as writers

    if to == "onnx":
        from htaf.export.onnx import check_opset

        check_opset(opset)
    opened = _opened(run, out, data, differing)
    with hold(lock_beside(out), f"another process writes {out}"):
        rows, training, model = _parts(opened, data_dir, part)
        example = _some(training, 2)
        found = None
        out.parent.mkdir(parents=True, exist_ok=True)
        written = out.with_name(f".{out.name}.unchecked")
        try:
            if to == "nir":
                writers.to_nir(model, example, written)
            else:
                writers.to_onnx(model, example, written, opset=opset)
                if importlib.util.find_spec("onnxruntime") is not None:
                    found = _compared(model, writers.onnx_network(written), rows, shown=not json)
                    _expect_equal(found, differing, part, "")
            written.replace(out)
        finally:
            written.unlink(missing_ok=True)
        sizes = _sizes(opened, out)
        if json:
            return print_json({"file": str(out), **sizes, **({} if found is None else _as_json(found, part))})
        if found is not None:
            _say(found, part)
        elif to == "onnx":
            say("not compared: onnxruntime is not installed (pip install 'htaf[export]')")
        else:
            say("not compared: a NIR graph is run by the software of a chip or simulator (docs/export.md)")
        return say(f"{out}: {_compared_sizes(sizes)}")


def predictors(path: Path, *, exact: bool) -> tuple[Callable[..., Any], Callable[..., Any], bool]:
    """Of a run folder or a packed file: image files to predictions, rows to predictions and notes, and which it takes.

    A packed file is read without what training needs.
    """
    if path.is_file():
        from htaf.runs.packed import open_packed

        if not exact:
            raise UsageError(f"--smooth is for a run: {path} holds the exact network alone")
        packed = open_packed(path)
        return packed.predict_images, packed.predict_with_notes, packed.takes_images
    from htaf.runs import open_run

    run = open_run(path)
    return partial(run.predict_images, exact=exact), partial(run.predict_with_notes, exact=exact), run.takes_images


def _opened(path: Path, out: Path, data: str | None, differing: int | None) -> Run:
    """The run, once it is sure that the file can be written."""
    from htaf.runs import RunError, open_run

    if differing is not None and differing < 0:
        raise UsageError(f"--differing must be >= 0, got {differing}")
    run = open_run(path)
    own = (run.record.get("source") or {}).get("name")
    check_output(out, [path, *(name for name in (data, own) if name)])
    if not run.has_step:
        raise RunError(f"expected a run with steps, {path} is a plain network (method relu)")
    if data is not None:
        run.record["source"] = {**(run.record.get("source") or {}), "name": data}
    return run


def _parts(run: Run, data_dir: str | None, part: str) -> tuple[Joined, Joined, nn.Module]:
    """The rows of the part that is compared, those that the run was trained on, and the hardened network."""
    from htaf.runs import RunError
    from htaf.training.evaluate import part_of

    found = own_data(run, data_dir)
    rows = part_of(run, found, part)
    if not len(rows):
        raise RunError(f"{run.path} has no rows in its {part} part: choose another --part")
    return rows, part_of(run, found, "train"), run.model()


def _some(rows: Joined, most: int) -> Tensor:
    """Some inputs, two at least and fewer of large ones: all that lies between the layers is held at once."""
    inputs = next(iter(rows))[0]
    inputs = inputs[: max(2, min(most, NUMBERS // inputs[0].numel()))]
    return inputs if len(inputs) > 1 else inputs.expand(2, *inputs.shape[1:]).contiguous()


def _compared(model: nn.Module, other: Callable[[Tensor], Tensor], rows: Joined, *, shown: bool) -> Agreement:
    import torch

    from htaf.runs.predictions import agreement

    expected, found = [], []
    with torch.no_grad(), progress("comparing predictions", len(rows), shown=shown) as advance:
        for inputs, _ in rows:
            for x in inputs.split(256):
                expected.append(model(x))
                found.append(other(x))
                advance(len(x))
    return agreement(torch.cat(found), torch.cat(expected))


def _expect_equal(found: Agreement, differing: int | None, part: str, hint: str) -> None:
    wrong, most = found.rows - found.predictions, differing
    if most is None:
        most = max(1, int(ROUNDING * found.rows))
    if wrong > most:
        tail = f"; leave out {hint}, or allow them by --differing" if hint else ""
        raise CheckError(
            f"expected the predictions of the run's exact network but for at most {most}, "
            f"got {wrong} others of {found.rows} {part} rows "
            f"(outputs differ by {found.difference:.1e} of the largest): nothing is written{tail}"
        )


def _expect_explained(layers: Verification, part: str, hint: str) -> None:
    if layers.contradicted:
        tail = f"; leave out {hint}" if hint else ""
        raise CheckError(
            f"expected every layer to make the bits of the run's exact network on {part} rows, but where rounding "
            f"explains another, got:\n{layers}\nnothing is written{tail}"
        )


def _layers_json(layers: Verification, rows: int) -> dict[str, Any]:
    """Bits that differ, given the same bits before: how many, and the first of them with where they lie."""
    bits = sum(layer.bits for layer in layers.layers)
    listed = [
        {"layer": f.layer, "row": f.row, "channel": f.channel, "distance": d if isfinite(d := f.distance) else None}
        for f in layers.flips
    ]
    return {"rows": rows, "bits": bits, "flips": layers.count, "listed": listed}


def _extra(run: Run, found: Agreement, part: str) -> dict[str, Any]:
    from htaf.runs.packed import run_extra

    names = ("key", "model_sha256", "headline", "metrics", "seed", "data")
    about = {name: run.record[name] for name in names if name in run.record}
    return run_extra(
        images=run.takes_images,
        preprocessing=run.preprocessor().to_json(),
        about={**about, "checked": _as_json(found, part)},
    )


def _as_json(found: Agreement, part: str) -> dict[str, Any]:
    return {"part": part, "rows": found.rows, "same": found.predictions, "difference": found.difference}


def _sizes(run: Run, out: Path) -> dict[str, int]:
    from htaf.runs import MODEL

    return {"bytes": out.stat().st_size, "run_bytes": (run.path / MODEL).stat().st_size}


def _compared_sizes(sizes: dict[str, int]) -> str:
    ratio = sizes["run_bytes"] / sizes["bytes"]
    said = f"{ratio:.1f} times smaller" if ratio >= 1 else f"{1 / ratio:.1f} times larger"
    return f"{sizes['bytes']:,} bytes, {said} than the run's weights in float32 ({sizes['run_bytes']:,} bytes)"


def _say(found: Agreement, part: str) -> None:
    differ = f"outputs differ by at most {found.difference:.1e} of the largest"
    say(f"{found.predictions:,} of {found.rows:,} {part} rows predicted as by the run's exact network; {differ}")
